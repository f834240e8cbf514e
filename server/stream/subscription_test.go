package stream

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
	"coordinator/server/quota"
	"coordinator/server/store"
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
		r, err := s.ReplayNext(&frames.ReplayNext{RequestID: 1, ReplayID: begin.ReplayID, Cursor: cursor})
		require.NoError(b.t, err)
		page := r.Frames[0].(*frames.ReplayPage)
		require.EqualValues(b.t, pages, page.Index)
		events = append(events, page.Events...)
		if cursor = page.NextCursor; cursor == nil {
			require.IsType(b.t, &frames.ReplayEnd{}, r.Frames[1])
		}
	}
	return events, pages
}

func (b *bench) applyReplay(s *Session, begin *frames.ReplayBegin, count, bytes uint32) error {
	b.t.Helper()
	r, err := s.ReplayApplied(&frames.ReplayApplied{
		RequestID: 1, ReplayID: begin.ReplayID, SubscriptionID: begin.SubscriptionID, CreditCount: count, CreditBytes: bytes,
	})
	if err == nil {
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
		page := r.Frames[0].(*frames.SnapshotPage)
		records = append(records, page.Records...)
		if cursor = page.NextCursor; cursor == nil {
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
	if err == nil {
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
	_, err = s.ReplayNext(&frames.ReplayNext{RequestID: 1, ReplayID: begin.ReplayID, Cursor: r.Frames[0].(*frames.ReplayPage).NextCursor})
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

func TestRetentionIsExactAtItsEdge(t *testing.T) {
	b := newBenchIn(t, t.TempDir(), 4096, 1)
	s := b.session()
	gapped := make(map[frames.EventCut]frames.SubscriptionID)
	b.write(100)
	b.trim()
	b.write(3)
	first := frames.EventCut(b.store.FirstRetained())
	require.Greater(t, first, frames.EventCut(10))
	for _, tt := range []struct {
		name  string
		after frames.EventCut
		kept  bool
	}{
		{"the newest cut before what is retained", first - 2, false},
		{"the oldest event is the first wanted", first - 1, true},
		{"the oldest event is had", first, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			id := b.subscribe(s, tt.after, plentyEvents, plentyBytes)
			got := b.pullAll(s)
			if tt.kept {
				require.EqualValues(t, tt.after+1, b.sequences(got)[0])
				require.EqualValues(t, b.head(), b.sequences(got)[len(got)-1])
				return
			}
			gap := b.gapOf(got)
			require.Equal(t, &frames.Gap{SubscriptionID: id, LastEvent: tt.after, Reason: frames.GapRetention}, gap)
			gapped[tt.after] = id
		})
	}
	// A paused one whose events go meanwhile: the request ends, and the GAP says why.
	id := gapped[first-2]
	_, _, err := b.openReplay(s, id, first-2)
	require.Equal(t, frames.CodeCursorInvalid, frames.CodeOf(err))
	require.Equal(t, frames.GapRetention, b.gapOf(b.pullAll(s)).Reason)
	_, _, err = b.openReplay(s, id, first-2)
	require.Equal(t, frames.CodeCursorInvalid, frames.CodeOf(err), "still paused, and told again")
	require.Equal(t, frames.GapRetention, b.gapOf(b.pullAll(s)).Reason)
	begin := b.reserve(s, id)
	require.NoError(t, b.applySnapshot(s, begin, 1, plentyBytes))
}

// TestASlowSubscriberIsNotMovedForward writes past the window and past retention
// while one event of credit is all there is.
func TestASlowSubscriberIsNotMovedForward(t *testing.T) {
	b := newBenchIn(t, t.TempDir(), 4096, 1)
	s := b.session()
	id := b.subscribe(s, 0, 1, plentyBytes)
	b.write(1)
	require.Equal(t, []frames.EventSequence{1}, b.sequences(b.pullAll(s)))
	b.write(200)
	require.NoError(t, s.Credit(&frames.Credit{SubscriptionID: id, AddCount: 2}))
	require.Equal(t, []frames.EventSequence{2, 3}, b.sequences(b.pullAll(s)), "from the log")
	b.trim()
	require.Empty(t, b.pullAll(s), "nothing is due")
	require.NoError(t, s.Credit(&frames.Credit{SubscriptionID: id, AddCount: 1000}))
	require.Equal(t, &frames.Gap{SubscriptionID: id, LastDelivery: 3, LastEvent: 3, Observed: 4, Reason: frames.GapRetention}, b.gapOf(b.pullAll(s)))
}

// TestHiddenEventsAreNotMissed trims what a subscription cannot see: its next event
// is still there.
func TestHiddenEventsAreNotMissed(t *testing.T) {
	b := newBenchIn(t, t.TempDir(), 4096, 1)
	b.viewer.Scope &^= frames.ScopeAdmin
	s := b.session()
	b.subscribe(s, 0, 0, plentyBytes)
	for range 200 {
		b.commit(func(tx *store.Tx) { b.operation(tx, frames.KeyID{7}) })
	}
	b.write(1)
	b.trim()
	require.Greater(t, b.store.FirstRetained(), frames.EventSequence(50))
	id := s.subs[0].id
	require.NoError(t, s.Credit(&frames.Credit{SubscriptionID: id, AddCount: 1}))
	require.Equal(t, []frames.EventSequence{201}, b.sequences(b.pullAll(s)))
}

func TestRevisionMismatchOnAdminChanges(t *testing.T) {
	b := newBench(t)
	b.write(2)
	blind := b.viewer
	blind.Capabilities &^= frames.CapAdministration
	sees := b.session()
	b.viewer, blind = blind, b.viewer
	other := b.session()
	b.viewer = blind

	replayed, gap := b.paused(sees)
	id := b.subscribe(sees, b.head(), 10, plentyBytes)
	reserved := b.reserve(sees, frames.SubscriptionID{})
	begin, _, err := b.openReplay(sees, replayed, gap.LastEvent)
	require.NoError(t, err)
	b.subscribe(other, b.head(), 10, plentyBytes)
	before := b.head()
	b.changeAdmin()
	require.Equal(t, before+1, b.head(), "it consumes one sequence")
	b.write(1)

	require.Len(t, b.sequences(b.pullAll(other)), 1, "who does not see ADMIN is not told")
	got := b.pullAll(sees)
	require.Len(t, got, 3)
	for _, f := range got {
		require.Equal(t, frames.GapRevisionMismatch, f.(*frames.Gap).Reason)
	}
	require.Equal(t, frames.CodeCursorInvalid, frames.CodeOf(b.applyReplay(sees, begin, 1, 1)), "the replay is void")
	require.NoError(t, b.applySnapshot(sees, reserved, 1, plentyBytes), "the snapshot is valid as of its cut")
	b.changeAdmin()
	b.m.fanOut()
	require.Empty(t, b.pullAll(sees), "paused ones get no second")

	_, _, err = b.openReplay(sees, id, sees.find(id).last)
	require.Equal(t, frames.CodeCursorInvalid, frames.CodeOf(err), "only a snapshot heals")
	stale := b.subscribe(sees, b.head()-1, 10, plentyBytes)
	require.Equal(t, &frames.Gap{SubscriptionID: stale, LastEvent: b.head() - 1, Reason: frames.GapRevisionMismatch}, b.gapOf(b.pullAll(sees)))
	b.subscribe(sees, b.head(), 10, plentyBytes)
	b.write(1)
	require.Len(t, b.sequences(b.pullAll(sees)), 1, "a cut behind the change is good")
	healed := b.reserve(sees, id)
	require.NoError(t, b.applySnapshot(sees, healed, 1, plentyBytes))
}

func TestAnEventAboveTheSelectedLimits(t *testing.T) {
	b := newBench(t)
	small := func(l *frames.Limits) { l.TypedPayload = 1000 }
	s := b.session(small)
	id := b.subscribe(s, b.head(), 10, plentyBytes)
	zero := b.subscribe(s, b.head(), 0, 0)
	b.write(1)
	b.put(newID[frames.ObjectID](t), 1, 1200)
	b.write(1)
	got := b.pullAll(s)
	require.Len(t, got, 2)
	require.EqualValues(t, 1, got[0].(*frames.CoordEvent).Sequence, "what comes before it is delivered")
	require.Equal(t, &frames.Gap{SubscriptionID: id, LastDelivery: 1, LastEvent: 1, Observed: 2, Reason: frames.GapInternal}, got[1])
	require.NoError(t, s.Credit(&frames.Credit{SubscriptionID: zero, AddCount: 1, AddBytes: 100_000}))
	got = b.pullAll(s)
	require.Equal(t, &frames.Gap{SubscriptionID: zero, LastDelivery: 1, LastEvent: 1, Observed: 2, Reason: frames.GapInternal}, got[1], "when it is reached")

	_, _, err := b.openReplay(s, id, 1)
	require.Equal(t, frames.CodeResourceExhausted, frames.CodeOf(err))
	require.Empty(t, b.pullAll(s), "the request was refused; it is paused as before")
	require.Zero(t, b.m.Open())
	begin := b.reserve(s, id)
	require.NoError(t, b.applySnapshot(s, begin, 5, plentyBytes))
	b.write(1)
	require.Len(t, b.sequences(b.pullAll(s)), 1)

	first := b.subscribe(s, 1, 0, 0) // it is the next, and no credit is needed to know
	require.Equal(t, &frames.Gap{SubscriptionID: first, LastEvent: 1, Observed: 2, Reason: frames.GapInternal}, b.gapOf(b.pullAll(s)))
}

func TestTheEndOfALeasePausesItsSubscription(t *testing.T) {
	b := newBench(t)
	s := b.session()
	id, gap := b.paused(s)
	gapped := b.reserve(s, frames.SubscriptionID{})
	b.write(frames.UnsentFrames + 1)
	b.gapOf(b.pullAll(s))
	reserved := b.reserve(s, frames.SubscriptionID{})
	begin, _, err := b.openReplay(s, id, gap.LastEvent)
	require.NoError(t, err)
	require.Equal(t, 3, b.m.Open())
	b.clock.Advance(leaseTime - 1)
	b.m.expire()
	require.Equal(t, 3, b.m.Open())
	b.clock.Advance(1)
	require.Equal(t, frames.CodeCursorInvalid, frames.CodeOf(b.applySnapshot(s, reserved, 1, 1)), "at the instant, whoever looks first")
	b.m.expire()
	require.Zero(t, b.m.Open())
	got := b.pullAll(s)
	require.Len(t, got, 2, "the one that had gapped gets nothing")
	for _, f := range got {
		require.Equal(t, frames.GapCursorInvalid, f.(*frames.Gap).Reason)
		require.NotEqual(t, gapped.SubscriptionID, f.(*frames.Gap).SubscriptionID)
	}
	require.Equal(t, frames.CodeCursorInvalid, frames.CodeOf(b.applyReplay(s, begin, 1, 1)))
	require.Equal(t, frames.CodeCursorInvalid, frames.CodeOf(b.applySnapshot(s, gapped, 0, 0)))
	_, _, err = b.openReplay(s, id, gap.LastEvent)
	require.NoError(t, err, "it can be replayed again")
}

func TestARefusedExtensionPausesTheReservedSubscription(t *testing.T) {
	b := newBench(t)
	b.quota(func(l *quota.Limits) { l[quota.OfPrincipal][quota.PinnedBytes] = quota.Reservation })
	ids := b.fill(12)
	s := b.session()
	r, err := s.Open(t.Context(), &frames.OpenSnapshot{RequestID: 1, Reserve: true})
	require.NoError(t, err)
	r.Sent()
	for _, id := range ids {
		b.put(id, 2, large)
	}
	require.Zero(t, b.m.Open())
	gap := b.gapOf(b.pullAll(s))
	require.Equal(t, frames.GapInternal, gap.Reason)
	_, err = next(s, r.Frames[0].(*frames.SnapshotBegin))
	require.Equal(t, frames.CodeCursorInvalid, frames.CodeOf(err))
	require.Equal(t, frames.CodeCursorInvalid, frames.CodeOf(b.applySnapshot(s, r.Frames[0].(*frames.SnapshotBegin), 0, 0)))
}

// TestAppliedOfAReservedSnapshot names each way in which it can be wrong.
func TestAppliedOfAReservedSnapshot(t *testing.T) {
	b := newBench(t)
	b.write(1)
	for _, tt := range []struct {
		name   string
		change func(*frames.SnapshotApplied)
		want   frames.Code
	}{
		{"no subscription", func(m *frames.SnapshotApplied) { m.SubscriptionID = frames.SubscriptionID{} }, frames.CodeMalformedMessage},
		{"another subscription", func(m *frames.SnapshotApplied) { m.SubscriptionID[0]++ }, frames.CodeMalformedMessage},
		{"too many events", func(m *frames.SnapshotApplied) { m.CreditCount = plentyEvents + 1 }, frames.CodeMalformedMessage},
		{"too many bytes", func(m *frames.SnapshotApplied) { m.CreditBytes = plentyBytes + 1 }, frames.CodeMalformedMessage},
		{"another snapshot", func(m *frames.SnapshotApplied) { m.SnapshotID[0]++ }, frames.CodeCursorInvalid},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := b.session()
			defer s.Close()
			begin := b.reserve(s, frames.SubscriptionID{})
			m := &frames.SnapshotApplied{RequestID: 1, SnapshotID: begin.SnapshotID, SubscriptionID: begin.SubscriptionID}
			tt.change(m)
			_, err := s.Applied(m)
			require.Equal(t, tt.want, frames.CodeOf(err))
			require.NoError(t, b.applySnapshot(s, begin, 0, 0), "it changed nothing")
			require.Equal(t, frames.CodeCursorInvalid, frames.CodeOf(b.applySnapshot(s, begin, 0, 0)), "and that was the only one")
		})
	}
	s := b.session()
	r, err := s.Open(t.Context(), &frames.OpenSnapshot{RequestID: 1, Reserve: true})
	require.NoError(t, err)
	require.Equal(t, frames.CodeProtocolError, frames.CodeOf(b.applySnapshot(s, r.Frames[0].(*frames.SnapshotBegin), 0, 0)), "before END")
}

// TestNoEventBeforeTheAck applies a snapshot behind which events wait.
func TestNoEventBeforeTheAck(t *testing.T) {
	b := newBench(t)
	s := b.session()
	begin := b.reserve(s, frames.SubscriptionID{})
	b.write(3)
	r, err := s.Applied(&frames.SnapshotApplied{
		RequestID: 1, SnapshotID: begin.SnapshotID, SubscriptionID: begin.SubscriptionID, CreditCount: 10, CreditBytes: plentyBytes,
	})
	require.NoError(t, err)
	b.write(1)
	require.Empty(t, b.pull(s))
	require.NoError(t, s.Credit(&frames.Credit{SubscriptionID: begin.SubscriptionID, AddCount: 1}), "it is live all the same")
	r.Sent()
	require.Len(t, b.sequences(b.pullAll(s)), 4)
}

func TestFinalTellsEverySubscription(t *testing.T) {
	b := newBench(t)
	s := b.session()
	paused, _ := b.paused(s)
	alive := b.subscribe(s, b.head(), 1, plentyBytes)
	begin := b.reserve(s, frames.SubscriptionID{})
	unknown, err := s.Subscribe(&frames.Subscribe{RequestID: 1, After: b.head()})
	require.NoError(t, err)
	b.write(1)
	var raw []byte
	s.Final(frames.GapEpochChanged, func(frame []byte) { raw = append(raw, frame...) })
	var told []frames.SubscriptionID
	for _, f := range b.decode(raw) {
		require.Equal(t, frames.GapEpochChanged, f.(*frames.Gap).Reason)
		told = append(told, f.(*frames.Gap).SubscriptionID)
	}
	require.ElementsMatch(t, []frames.SubscriptionID{alive, paused, begin.SubscriptionID}, told)
	require.NotContains(t, told, unknown.Frames[0].(*frames.Subscribed).SubscriptionID, "nobody has heard of it")
	require.False(t, slices.Contains(told, frames.SubscriptionID{}))
}
