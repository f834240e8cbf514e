package stream

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
	"coordinator/server/quota"
	"coordinator/server/store"
)

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
	require.Zero(t, b.used(quota.Leases), "what was refused is not charged")
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

	leases := b.used(quota.Leases)
	_, _, err = b.openReplay(sees, id, sees.find(id).last)
	require.Equal(t, frames.CodeCursorInvalid, frames.CodeOf(err), "only a snapshot heals")
	require.Equal(t, leases, b.used(quota.Leases))
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

// TestFinalDuringAReplay ends a connection whose REPLAY_BEGIN is not on its way yet: the
// subscription is one that the peer knows.
func TestFinalDuringAReplay(t *testing.T) {
	b := newBench(t)
	s := b.session()
	id, gap := b.paused(s)
	_, err := s.OpenReplay(&frames.OpenReplay{RequestID: 1, SubscriptionID: id, After: gap.LastEvent})
	require.NoError(t, err)
	var raw []byte
	s.Final(frames.GapGrantRevoked, func(frame []byte) { raw = append(raw, frame...) })
	require.Equal(t, &frames.Gap{
		SubscriptionID: id, LastDelivery: gap.LastDelivery, LastEvent: gap.LastEvent, Reason: frames.GapGrantRevoked,
	}, b.gapOf(b.decode(raw)))
}

// TestASubscriptionOutlivesItsSnapshot: it gapped before APPLIED and was replayed. What
// becomes of the snapshot is no business of its any more [D-61].
func TestASubscriptionOutlivesItsSnapshot(t *testing.T) {
	for _, tt := range []struct {
		name string
		end  func(b *bench, s *Session, begin *frames.SnapshotBegin)
	}{
		{"expiry", func(b *bench, s *Session, _ *frames.SnapshotBegin) {
			b.clock.Advance(leaseTime)
			b.m.expire()
		}},
		{"APPLIED", func(b *bench, s *Session, begin *frames.SnapshotBegin) {
			require.NoError(b.t, b.applySnapshot(s, begin, plentyEvents, plentyBytes))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t)
			s := b.session()
			begin := b.reserve(s, frames.SubscriptionID{})
			b.write(frames.UnsentFrames + 1)
			gap := b.gapOf(b.pullAll(s))
			require.Equal(t, begin.Base, gap.LastEvent)
			replay, _, err := b.openReplay(s, gap.SubscriptionID, gap.LastEvent)
			require.NoError(t, err)
			b.readReplay(s, replay)
			r, err := s.ReplayApplied(&frames.ReplayApplied{
				RequestID: 1, ReplayID: replay.ReplayID, SubscriptionID: gap.SubscriptionID, CreditCount: 2, CreditBytes: plentyBytes,
			})
			require.NoError(t, err)
			b.write(1)
			tt.end(b, s, begin)
			require.Empty(t, b.pullAll(s), "its own ACK is still on the way")
			r.Sent()
			b.write(2)
			require.Len(t, b.sequences(b.pullAll(s)), 2, "the credit of REPLAY_APPLIED and no other")
			require.Zero(t, b.m.Open())
		})
	}
}

// TestALeaseThatIsGoneIsSaidFirst: whether others have noticed it makes no difference.
func TestALeaseThatIsGoneIsSaidFirst(t *testing.T) {
	b := newBench(t)
	s := b.session()
	begin := b.reserve(s, frames.SubscriptionID{})
	b.clock.Advance(leaseTime)
	for range 2 {
		_, err := s.Applied(&frames.SnapshotApplied{RequestID: 1, SnapshotID: begin.SnapshotID, CreditCount: plentyEvents + 1})
		require.Equal(t, frames.CodeCursorInvalid, frames.CodeOf(err))
		s.sweep()
	}
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
