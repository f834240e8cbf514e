package stream

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
	"coordinator/server/quota"
)

// paused makes a subscription with one event of credit and overflows it.
func (b *bench) paused(s *Session) (frames.SubscriptionID, *frames.Gap) {
	b.t.Helper()
	id := b.subscribe(s, b.head(), 1, plentyBytes)
	b.write(1)
	require.Len(b.t, b.sequences(b.pullAll(s)), 1)
	b.write(frames.UnsentFrames + 1)
	return id, b.gapOf(b.pullAll(s))
}

func (b *bench) openReplay(s *Session, id frames.SubscriptionID, after frames.EventCut) (*frames.ReplayBegin, Reply, error) {
	b.t.Helper()
	r, err := s.OpenReplay(&frames.OpenReplay{RequestID: 1, Guard: b.guard, SubscriptionID: id, After: after})
	if err != nil {
		return nil, r, err
	}
	r.Sent()
	return r.Frames[0].(*frames.ReplayBegin), r, nil
}

// readReplay reads a replay to its END.
func (b *bench) readReplay(s *Session, begin *frames.ReplayBegin) (events []frames.ReplayEvent, pages int) {
	b.t.Helper()
	for cursor := begin.FirstCursor; cursor != nil; pages++ {
		r, err := s.ReplayNext(&frames.ReplayNext{RequestID: frames.RequestID(1 + pages), ReplayID: begin.ReplayID, Cursor: cursor})
		require.NoError(b.t, err)
		page := b.told(r)[0].(*frames.ReplayPage)
		require.EqualValues(b.t, frames.RequestID(1+pages), page.RequestID)
		require.EqualValues(b.t, pages, page.Index)
		events = append(events, page.Events...)
		if cursor = page.NextCursor; cursor == nil {
			require.IsType(b.t, &frames.ReplayEnd{}, r.Frames[0])
		} else if pages%3 != 0 { // some are made ahead
			r.Then()
		}
	}
	return events, pages
}

func (b *bench) applyReplay(s *Session, begin *frames.ReplayBegin, count, bytes uint32) error {
	b.t.Helper()
	r, err := s.ReplayApplied(&frames.ReplayApplied{
		RequestID: 1, ReplayID: begin.ReplayID, SubscriptionID: begin.SubscriptionID, CreditCount: count, CreditBytes: bytes,
	})
	if err == nil && r.Sent != nil {
		r.Sent()
	}
	return err
}

// reserve opens a snapshot with a subscription and reads it to its END.
func (b *bench) reserve(s *Session, replace frames.SubscriptionID) *frames.SnapshotBegin {
	b.t.Helper()
	r, err := s.Open(b.t.Context(), &frames.OpenSnapshot{RequestID: 1, Guard: b.guard, Reserve: true, Replace: replace})
	require.NoError(b.t, err)
	r.Sent()
	begin := r.Frames[0].(*frames.SnapshotBegin)
	b.readSnapshot(s, begin)
	return begin
}

func (b *bench) readSnapshot(s *Session, begin *frames.SnapshotBegin) (records []frames.SnapshotRecord) {
	b.t.Helper()
	for cursor := begin.FirstCursor; cursor != nil; {
		r, err := s.Next(&frames.SnapshotNext{RequestID: 1, SnapshotID: begin.SnapshotID, Cursor: cursor})
		require.NoError(b.t, err)
		page := b.told(r)[0].(*frames.SnapshotPage)
		records = append(records, page.Records...)
		if cursor = page.NextCursor; cursor == nil && r.Sent != nil {
			r.Sent()
		}
	}
	return records
}

func (b *bench) applySnapshot(s *Session, begin *frames.SnapshotBegin, count, bytes uint32) error {
	b.t.Helper()
	r, err := s.Applied(&frames.SnapshotApplied{
		RequestID: 1, SnapshotID: begin.SnapshotID, SubscriptionID: begin.SubscriptionID, CreditCount: count, CreditBytes: bytes,
	})
	if err == nil && r.Sent != nil {
		r.Sent()
	}
	return err
}

func TestC12_EachWayToLiveHasOneCredit(t *testing.T) {
	b := newBench(t)
	credit := func(s *Session, id frames.SubscriptionID) error {
		return s.Credit(&frames.Credit{SubscriptionID: id, AddCount: 5, AddBytes: plentyBytes})
	}
	t.Run("SUBSCRIBE", func(t *testing.T) {
		s := b.session()
		id := b.subscribe(s, b.head(), 1, 100_000)
		b.write(3)
		require.Len(t, b.pullAll(s), 1)
		require.NoError(t, s.Credit(&frames.Credit{SubscriptionID: id, AddCount: 1}))
		require.Len(t, b.pullAll(s), 1)
		s.Close()
	})
	t.Run("SNAPSHOT_APPLIED", func(t *testing.T) {
		s := b.session()
		begin := b.reserve(s, frames.SubscriptionID{})
		require.Equal(t, frames.CodeProtocolError, frames.CodeOf(credit(s, begin.SubscriptionID)), "RESERVED_SNAPSHOT takes none")
		b.write(3)
		require.Empty(t, b.pullAll(s))
		require.EqualValues(t, 3, b.unsent(), "they wait for it")
		require.NoError(t, b.applySnapshot(s, begin, 2, 100_000))
		got := b.pullAll(s)
		require.Equal(t, []frames.EventSequence{frames.EventSequence(begin.Base) + 1, frames.EventSequence(begin.Base) + 2}, b.sequences(got))
		require.EqualValues(t, 1, got[0].(*frames.CoordEvent).Delivery)
		require.EqualValues(t, 1, b.unsent())
		s.Close()
		require.Zero(t, b.unsent())
	})
	t.Run("REPLAY_APPLIED", func(t *testing.T) {
		s := b.session()
		id, gap := b.paused(s)
		require.NoError(t, credit(s, id), "what crosses a GAP is ignored")
		begin, _, err := b.openReplay(s, id, gap.LastEvent)
		require.NoError(t, err)
		require.NoError(t, credit(s, id), "so it is while replaying")
		b.write(2)
		require.EqualValues(t, 2, b.unsent())
		b.readReplay(s, begin)
		require.NoError(t, b.applyReplay(s, begin, 1, 100_000))
		got := b.pullAll(s)
		require.Len(t, got, 1, "one event is all the credit there is")
		require.EqualValues(t, 2, got[0].(*frames.CoordEvent).Delivery, "prior delivery cut + 1")
		require.EqualValues(t, begin.Cut+1, got[0].(*frames.CoordEvent).Sequence, "only what is behind the cut")
		s.Close()
	})
}

func TestC12_CreditGrants(t *testing.T) {
	b := newBench(t)
	limits := frames.ReferenceLimits()
	for _, tt := range []struct {
		name           string
		count, bytes   uint32 // initial
		addN, addBytes uint32
		want           frames.Code
	}{
		{"nothing to nothing", 0, 0, 0, 0, 0},
		{"up to the maximum", 1, 1, limits.CreditCount - 1, limits.CreditBytes - 1, 0},
		{"one event above", 1, 0, limits.CreditCount, 0, frames.CodeMalformedMessage},
		{"one byte above", 0, 1, 0, limits.CreditBytes, frames.CodeMalformedMessage},
		{"a sum that wraps around", 2, 2, math.MaxUint32 - 1, math.MaxUint32 - 1, frames.CodeMalformedMessage},
		{"a wrap of bytes alone", 0, 7, 1, math.MaxUint32 - 6, frames.CodeMalformedMessage},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := b.session()
			defer s.Close()
			id := b.subscribe(s, b.head(), tt.count, tt.bytes)
			err := s.Credit(&frames.Credit{SubscriptionID: id, AddCount: tt.addN, AddBytes: tt.addBytes})
			if tt.want != 0 {
				require.Equal(t, tt.want, frames.CodeOf(err))
				return
			}
			require.NoError(t, err)
		})
	}
	s := b.session()
	for _, over := range []frames.Subscribe{{CreditCount: limits.CreditCount + 1}, {CreditBytes: limits.CreditBytes + 1}} {
		over.After = b.head()
		_, err := s.Subscribe(&over)
		require.Equal(t, frames.CodeMalformedMessage, frames.CodeOf(err), "initial credit above the maximum")
	}
	require.Equal(t, frames.CodeProtocolError, frames.CodeOf(s.Credit(&frames.Credit{SubscriptionID: frames.SubscriptionID{1}})))
}

// TestC12_CountAndBytesBothGate gives exactly what one event costs, and one byte
// less.
func TestC12_CountAndBytesBothGate(t *testing.T) {
	b := newBench(t)
	s := b.session()
	id := b.subscribe(s, b.head(), 10, 0)
	b.write(2)
	require.Empty(t, b.pullAll(s))
	cost := uint32(frames.EventBytes(len(b.events[0].Payload)))
	require.NoError(t, s.Credit(&frames.Credit{SubscriptionID: id, AddBytes: cost - 1}))
	require.Empty(t, b.pullAll(s))
	require.NoError(t, s.Credit(&frames.Credit{SubscriptionID: id, AddBytes: 1}))
	got := b.pullAll(s)
	require.Len(t, got, 1)
	raw, err := frames.Append(nil, got[0])
	require.NoError(t, err)
	require.Len(t, raw, int(cost), "the full outer length is charged")
	require.NoError(t, s.Credit(&frames.Credit{SubscriptionID: id, AddBytes: cost}))
	require.Len(t, b.pullAll(s), 1)
}

func TestC13_AGapBeforeTheFirstEventHasAZeroDeliveryCut(t *testing.T) {
	b := newBench(t)
	b.write(frames.UnsentFrames + 10)
	s := b.session()
	for _, tt := range []struct {
		name  string
		after frames.EventCut
		count uint32
		gap   bool
	}{
		{"as much as the queue holds", 10, 0, false},
		{"one more", 9, 0, true},
		{"one more, and credit for it", 9, 1, false},
		{"everything, and credit for nine", 0, 9, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			id := b.subscribe(s, tt.after, tt.count, plentyBytes)
			got := b.pullAll(s)
			if !tt.gap {
				require.Len(t, b.sequences(got), int(tt.count))
				return
			}
			require.Equal(t, &frames.Gap{
				SubscriptionID: id, LastEvent: tt.after, Observed: frames.EventSequence(tt.after) + 1, Reason: frames.GapQueueOverflow,
			}, b.gapOf(got))
		})
	}
	_, err := s.Subscribe(&frames.Subscribe{RequestID: 1, After: b.head() + 1})
	require.Equal(t, frames.CodeMalformedMessage, frames.CodeOf(err), "a cut beyond the head")
	used, _ := b.quotas.Use(quota.Principal(b.viewer.Principal), quota.Subscriptions)
	require.EqualValues(t, 4, used, "a refused one is not charged")
}

// TestC13_AGapNeverOvertakes holds back the reply that names a subscription, and
// counts events as sent.
func TestC13_AGapNeverOvertakes(t *testing.T) {
	b := newBench(t)
	overflow := func() { b.write(frames.UnsentFrames + 1) }
	t.Run("SUBSCRIBED", func(t *testing.T) {
		s := b.session()
		r, err := s.Subscribe(&frames.Subscribe{RequestID: 1, After: b.head()})
		require.NoError(t, err)
		overflow()
		require.Empty(t, b.pull(s))
		r.Sent()
		require.Equal(t, frames.GapQueueOverflow, b.gapOf(b.pullAll(s)).Reason)
	})
	t.Run("SNAPSHOT_BEGIN", func(t *testing.T) {
		s := b.session()
		r, err := s.Open(t.Context(), &frames.OpenSnapshot{RequestID: 1, Reserve: true})
		require.NoError(t, err)
		overflow()
		require.Empty(t, b.pull(s))
		r.Sent()
		require.Equal(t, frames.GapQueueOverflow, b.gapOf(b.pullAll(s)).Reason)
		begin := r.Frames[0].(*frames.SnapshotBegin)
		require.NotEmpty(t, b.readSnapshot(s, begin), "the snapshot is valid as of its cut")
		require.NoError(t, b.applySnapshot(s, begin, 10, plentyBytes), "APPLIED is acknowledged")
		b.write(1)
		require.Empty(t, b.pullAll(s), "and its credit dropped")
	})
	t.Run("REPLAY_BEGIN", func(t *testing.T) {
		s := b.session()
		id, gap := b.paused(s)
		r, err := s.OpenReplay(&frames.OpenReplay{RequestID: 1, SubscriptionID: id, After: gap.LastEvent})
		require.NoError(t, err)
		overflow()
		require.Empty(t, b.pull(s))
		r.Sent()
		again := b.gapOf(b.pullAll(s))
		require.Equal(t, gap.LastEvent, again.LastEvent)
		require.Equal(t, gap.LastDelivery, again.LastDelivery)
		require.EqualValues(t, r.Frames[0].(*frames.ReplayBegin).Cut+1, again.Observed)
	})
	t.Run("an event that was sent", func(t *testing.T) {
		s := b.session()
		b.subscribe(s, b.head(), 3, plentyBytes)
		b.write(5)
		got := b.pullUpTo(s, 2, 1<<20)
		require.Len(t, b.sequences(got), 2)
		overflow()
		gap := b.gapOf(b.pullAll(s))
		require.EqualValues(t, 2, gap.LastDelivery)
		require.EqualValues(t, got[1].(*frames.CoordEvent).Sequence, gap.LastEvent)
		require.EqualValues(t, gap.LastEvent+1, gap.Observed)
	})
	t.Run("its GAP, by a peer that guesses", func(t *testing.T) {
		s := b.session()
		id := b.subscribe(s, b.head(), 0, 0)
		at := b.head()
		overflow()
		_, _, err := b.openReplay(s, id, at)
		require.Equal(t, frames.CodeNotFound, frames.CodeOf(err))
		_, err = s.Open(t.Context(), &frames.OpenSnapshot{RequestID: 1, Replace: id})
		require.Equal(t, frames.CodeNotFound, frames.CodeOf(err))
		b.gapOf(b.pullAll(s))
		for _, wrong := range []frames.EventCut{at - 1, at + 1} {
			_, _, err = b.openReplay(s, id, wrong)
			require.Equal(t, frames.CodeMalformedMessage, frames.CodeOf(err))
		}
		_, _, err = b.openReplay(s, id, at)
		require.NoError(t, err)
	})
}

func TestC13_ReplayResumes(t *testing.T) {
	b := newBench(t)
	s := b.session(func(l *frames.Limits) { l.PageRecords = 100 })
	id, gap := b.paused(s)
	require.EqualValues(t, 1, gap.LastDelivery)
	_, _, err := b.openReplay(s, id, gap.LastEvent+1)
	require.Equal(t, frames.CodeMalformedMessage, frames.CodeOf(err), "another cut than that of the GAP")
	_, _, err = b.openReplay(s, newID[frames.SubscriptionID](t), gap.LastEvent)
	require.Equal(t, frames.CodeNotFound, frames.CodeOf(err))

	begin, _, err := b.openReplay(s, id, gap.LastEvent)
	require.NoError(t, err)
	require.Equal(t, gap.Observed, begin.FirstEvent)
	require.Equal(t, b.head(), begin.Cut)
	_, _, err = b.openReplay(s, id, gap.LastEvent)
	require.Equal(t, frames.CodeNotFound, frames.CodeOf(err), "it is not paused any more")
	require.Equal(t, frames.CodeProtocolError, frames.CodeOf(b.applyReplay(s, begin, 1, 1)), "APPLIED before END")
	_, err = s.ReplayNext(&frames.ReplayNext{RequestID: 1, ReplayID: begin.ReplayID, Cursor: []byte("mine")})
	require.Equal(t, frames.CodeCursorInvalid, frames.CodeOf(err))

	events, pages := b.readReplay(s, begin)
	require.Len(t, events, frames.UnsentFrames+1)
	require.Equal(t, (frames.UnsentFrames+100)/100, pages)
	_, err = s.ReplayNext(&frames.ReplayNext{RequestID: 1, ReplayID: begin.ReplayID, Cursor: begin.FirstCursor})
	require.Equal(t, frames.CodeCursorInvalid, frames.CodeOf(err), "a cursor is used once")
	require.Equal(t, frames.CodeMalformedMessage, frames.CodeOf(b.applyReplay(s, begin, math.MaxUint32, 1)))
	require.NoError(t, b.applyReplay(s, begin, 5, plentyBytes))
	require.Equal(t, frames.CodeCursorInvalid, frames.CodeOf(b.applyReplay(s, begin, 5, plentyBytes)), "once")
	require.Zero(t, b.m.Open())

	// Nothing came meanwhile. The next GAP lies at the cut of the replay.
	b.write(frames.UnsentFrames + 6)
	again := b.gapOf(b.pullAll(s))
	require.Equal(t, begin.Cut, again.LastEvent)
	require.EqualValues(t, 1, again.LastDelivery)
}

func TestC11_AnEmptyReplayEndsAtOnce(t *testing.T) {
	b := newBench(t)
	s := b.session()
	id := b.subscribe(s, b.head(), 1, plentyBytes)
	b.write(1)
	require.Len(t, b.pullAll(s), 1)
	s.Final(frames.GapInternal, func([]byte) {})
	begin, r, err := b.openReplay(s, id, b.head())
	require.NoError(t, err)
	require.Nil(t, begin.FirstCursor)
	require.Zero(t, begin.FirstEvent)
	end := r.Frames[1].(*frames.ReplayEnd)
	require.Equal(t, frames.NewReplayDigest(b.guard, id, b.head(), b.head(), 0).Sum(), end.Digest)
	require.Zero(t, end.PageCount)
	require.NoError(t, b.applyReplay(s, begin, 1, plentyBytes))
	b.write(1)
	require.EqualValues(t, 2, b.pullAll(s)[0].(*frames.CoordEvent).Delivery)
}

func TestC13_AReplayOvertakenByWritesIsVoid(t *testing.T) {
	b := newBench(t)
	s := b.session(func(l *frames.Limits) { l.PageRecords = 10 })
	id, gap := b.paused(s)
	begin, _, err := b.openReplay(s, id, gap.LastEvent)
	require.NoError(t, err)
	r, err := s.ReplayNext(&frames.ReplayNext{RequestID: 1, ReplayID: begin.ReplayID, Cursor: begin.FirstCursor})
	require.NoError(t, err)
	b.write(frames.UnsentFrames)
	require.Empty(t, b.pullAll(s), "the queue holds them")
	b.write(1)
	again := b.gapOf(b.pullAll(s))
	require.Equal(t, gap.LastEvent, again.LastEvent)
	require.Zero(t, b.m.Open(), "the lease is gone with its replay")
	_, err = s.ReplayNext(&frames.ReplayNext{RequestID: 1, ReplayID: begin.ReplayID, Cursor: b.told(r)[0].(*frames.ReplayPage).NextCursor})
	require.Equal(t, frames.CodeCursorInvalid, frames.CodeOf(err))
	require.Equal(t, frames.CodeCursorInvalid, frames.CodeOf(b.applyReplay(s, begin, 1, 1)))

	begin, _, err = b.openReplay(s, id, again.LastEvent)
	require.NoError(t, err)
	events, _ := b.readReplay(s, begin)
	require.Len(t, events, 2*frames.UnsentFrames+2)
	require.NoError(t, b.applyReplay(s, begin, 1, plentyBytes))
}

func TestC13_ASnapshotReplaces(t *testing.T) {
	b := newBench(t)
	b.quota(func(l *quota.Limits) { l[quota.OfPrincipal][quota.Subscriptions] = 1 })
	s := b.session()
	begin := b.reserve(s, frames.SubscriptionID{}) // its lease outlives the GAP
	b.write(frames.UnsentFrames + 1)
	b.gapOf(b.pullAll(s))
	require.Equal(t, 1, b.m.Open())
	_, err := s.Subscribe(&frames.Subscribe{RequestID: 1, After: b.head()})
	require.Equal(t, frames.CodeResourceExhausted, frames.CodeOf(err))

	old := begin.SubscriptionID
	begin = b.reserve(s, old)
	require.NotEqual(t, old, begin.SubscriptionID)
	require.Equal(t, 1, b.m.Open(), "the lease of the old one ended")
	require.NoError(t, s.Credit(&frames.Credit{SubscriptionID: old, AddCount: 1}), "credit that crosses the replacement")
	_, _, err = b.openReplay(s, old, 0)
	require.Equal(t, frames.CodeNotFound, frames.CodeOf(err))
	_, err = s.Open(t.Context(), &frames.OpenSnapshot{RequestID: 1, Replace: begin.SubscriptionID})
	require.Equal(t, frames.CodeNotFound, frames.CodeOf(err), "it is reserved, not paused")
	require.NoError(t, b.applySnapshot(s, begin, 3, plentyBytes))
	b.write(1)
	e := b.pullAll(s)[0].(*frames.CoordEvent)
	require.Equal(t, begin.SubscriptionID, e.SubscriptionID)
	require.EqualValues(t, 1, e.Delivery)
	used, _ := b.quotas.Use(quota.Principal(b.viewer.Principal), quota.Subscriptions)
	require.EqualValues(t, 1, used)
}
