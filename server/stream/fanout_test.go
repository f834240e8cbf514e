package stream

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"coordinator/frames"
	"coordinator/server/quota"
	"coordinator/server/store"
	"coordinator/server/work"
)

// as makes a session of another principal.
func (b *bench) as(p byte) *Session {
	b.t.Helper()
	was := b.viewer
	defer func() { b.viewer = was }()
	b.viewer.Principal = frames.KeyID{p}
	return b.session()
}

// hold opens a subscription that holds n events back.
func (b *bench) hold(s *Session, n int) frames.SubscriptionID {
	b.t.Helper()
	return b.subscribe(s, b.head()-frames.EventCut(n), 0, 0)
}

// gapped gives the subscriptions of a session that get a GAP for an overflow.
func (b *bench) gapped(s *Session) (out []frames.SubscriptionID) {
	b.t.Helper()
	for _, f := range b.pullAll(s) {
		if g, ok := f.(*frames.Gap); ok {
			require.Equal(b.t, frames.GapQueueOverflow, g.Reason)
			out = append(out, g.SubscriptionID)
		}
	}
	return out
}

func TestC14_AFullPrincipalQuotaTakesItsHeaviest(t *testing.T) {
	b := newBench(t)
	b.quota(func(l *quota.Limits) { l[quota.OfPrincipal][quota.UnsentFrames] = 100 })
	b.write(90)
	s, other := b.as(1), b.as(1)
	b.hold(s, 20)
	heavy := b.hold(other, 60)
	b.hold(s, 15)
	foreign := b.as(2)
	b.hold(foreign, 80) // heavier, and another principal's
	b.write(1)
	require.Empty(t, b.gapped(s), "98 frames")
	b.write(1)
	require.Empty(t, b.gapped(s))
	require.Equal(t, []frames.SubscriptionID{heavy}, b.gapped(other))
	require.Empty(t, b.gapped(foreign))
	used, _ := b.quotas.Use(quota.Principal{1}, quota.UnsentFrames)
	require.EqualValues(t, 20+15+2*2, used)

	// A new one that the quota cannot take is the heaviest itself.
	id := b.subscribe(s, 0, 0, 0)
	require.Equal(t, []frames.SubscriptionID{id}, b.gapped(s))
	require.Empty(t, b.gapped(other))
}

func TestC14_AFullServerQuotaTakesTheHeaviestPrincipals(t *testing.T) {
	b := newBench(t)
	b.quota(func(l *quota.Limits) {
		l[quota.OfServer][quota.UnsentFrames] = 200
		l[quota.OfPrincipal][quota.UnsentFrames] = 200
	})
	b.write(90)
	one, two := b.as(1), b.as(2)
	single := b.hold(one, 70) // the heaviest subscription, of a lighter principal
	b.hold(two, 50)
	heavy := b.hold(two, 55)
	third := b.as(3)
	b.hold(third, 20)
	b.write(1) // 199
	require.Empty(t, b.gapped(two))
	b.write(1)
	require.Equal(t, []frames.SubscriptionID{heavy}, b.gapped(two))
	require.Empty(t, b.gapped(one), single)
	require.Empty(t, b.gapped(third))

	// Whose event is the one too many makes no difference.
	fourth := b.as(4)
	b.hold(fourth, 50) // 196
	b.hold(third, 10)
	require.Equal(t, []frames.SubscriptionID{single}, b.gapped(one))
	require.Empty(t, b.gapped(two))
	require.Empty(t, b.gapped(third))
	require.Empty(t, b.gapped(fourth))
}

// TestC14_BytesRunOutBeforeFrames fills the quota of bytes.
func TestC14_BytesRunOutBeforeFrames(t *testing.T) {
	b := newBench(t)
	b.quota(func(l *quota.Limits) { l[quota.OfPrincipal][quota.UnsentBytes] = 300 << 10 })
	few, many := b.as(1), b.as(1)
	id := b.subscribe(few, b.head(), 0, 0)
	b.put(newID[frames.ObjectID](t), 1, 100<<10)
	b.write(1)
	b.hold(many, 1)
	b.write(50)
	require.Empty(t, b.gapped(few))
	b.put(newID[frames.ObjectID](t), 1, 110<<10) // for both of them
	b.m.fanOut()
	require.Equal(t, []frames.SubscriptionID{id}, b.gapped(few))
	require.Empty(t, b.gapped(many))
}

func TestC14_WhatIsCoveredIsNotHeldBack(t *testing.T) {
	b := newBench(t)
	s := b.session()
	id := b.subscribe(s, b.head(), 5, plentyBytes)
	b.write(5)
	require.Zero(t, b.unsent(), "the writer is about to send them")
	b.write(3)
	require.EqualValues(t, 3, b.unsent(), "credit does not cover these")
	require.Len(t, b.pullAll(s), 5)
	require.EqualValues(t, 3, b.unsent())
	require.NoError(t, s.Credit(&frames.Credit{SubscriptionID: id, AddCount: 100}))
	require.Len(t, b.pullAll(s), 3)
	require.Zero(t, b.unsent())

	s.Stalled(true)
	b.write(2)
	require.Zero(t, b.unsent(), "a moment is not a peer that does not read")
	b.clock.Advance(stallTime)
	b.write(1)
	require.EqualValues(t, 3, b.unsent())
	s.Stalled(false)
	require.Len(t, b.pullAll(s), 3)
	require.Zero(t, b.unsent())
	s.Stalled(true)
	b.clock.Advance(stallTime)
	b.write(frames.UnsentFrames)
	require.EqualValues(t, frames.UnsentFrames, b.unsent())
	b.write(1)
	s.Stalled(false)
	gap := b.gapOf(b.pullAll(s))
	require.Equal(t, frames.GapQueueOverflow, gap.Reason)
	require.EqualValues(t, 11, gap.LastDelivery)
	require.Zero(t, b.unsent(), "a GAP holds nothing")
}

// TestC14_CreditEndsTheHolding: what credit covers is about to be sent, so that it
// leaves the queue's room to what comes next.
func TestC14_CreditEndsTheHolding(t *testing.T) {
	b := newBench(t)
	s := b.session()
	id := b.subscribe(s, b.head(), 0, 0)
	grant := func(n uint32) {
		t.Helper()
		require.NoError(t, s.Credit(&frames.Credit{SubscriptionID: id, AddCount: n, AddBytes: n * 1000}))
	}
	b.write(3)
	grant(2)
	require.EqualValues(t, 3, b.unsent(), "part of it is still held back")
	grant(1)
	require.Zero(t, b.unsent())
	b.write(frames.UnsentFrames)
	require.EqualValues(t, frames.UnsentFrames, b.unsent())
	require.Len(t, b.sequences(b.pullAll(s)), 3, "no GAP: the queue holds what it may")
	s.Stalled(true)
	b.clock.Advance(stallTime)
	require.NoError(t, s.Credit(&frames.Credit{SubscriptionID: id, AddCount: frames.UnsentFrames, AddBytes: plentyBytes - 10_000}))
	require.EqualValues(t, frames.UnsentFrames, b.unsent(), "a peer that does not read gets nothing sent")
	s.Stalled(false)
	require.Len(t, b.sequences(b.pullAll(s)), frames.UnsentFrames)
	require.Zero(t, b.unsent())

	begin := b.reserve(s, frames.SubscriptionID{})
	b.write(frames.UnsentFrames)
	require.EqualValues(t, 2*frames.UnsentFrames, b.unsent(), "held back from both")
	require.NoError(t, b.applySnapshot(s, begin, plentyEvents, plentyBytes))
	require.EqualValues(t, frames.UnsentFrames, b.unsent())
}

// TestABurstWhileSubscribing: what comes while the backlog is counted is covered by the
// credit of the same SUBSCRIBE.
func TestABurstWhileSubscribing(t *testing.T) {
	for _, tt := range []struct {
		name           string
		missed, during int
		credit         uint32
		unsent         uint64
		gap            bool
	}{
		{"all covered", 10, frames.UnsentFrames - 10, frames.UnsentFrames, 0, false},
		{"not covered", 10, 20, 12, 20, false},
		{"backlog not covered", 10, 20, 7, 23, false},
		{"too much", 1, frames.UnsentFrames + 1, 1, 0, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t)
			s := b.session()
			b.write(tt.missed)
			req := &frames.Subscribe{RequestID: 1, CreditCount: tt.credit, CreditBytes: plentyBytes}
			sub, err := s.newSubscription(nil)
			require.NoError(t, err)
			head, stale, err := s.enter(sub, req.After)
			require.NoError(t, err)
			require.False(t, stale)
			b.write(tt.during)
			require.Zero(t, b.unsent())
			s.catchUp(sub, req, head)
			sub.proceed()
			require.EqualValues(t, tt.unsent, b.unsent())
			got := b.pullAll(s)
			if tt.gap {
				require.Equal(t, &frames.Gap{SubscriptionID: sub.id, Observed: 1, Reason: frames.GapQueueOverflow}, b.gapOf(got))
				return
			}
			require.Len(t, b.sequences(got), min(int(tt.credit), tt.missed+tt.during))
			require.EqualValues(t, 1, b.sequences(got)[0])
		})
	}
	t.Run("the log fails", func(t *testing.T) {
		b := newBenchIn(t, t.TempDir(), 4096, 1)
		s := b.session()
		b.write(100)
		b.trim()
		req := &frames.Subscribe{RequestID: 1, CreditCount: 5, CreditBytes: plentyBytes}
		sub, err := s.newSubscription(nil)
		require.NoError(t, err)
		head, _, err := s.enter(sub, req.After)
		require.NoError(t, err)
		b.write(2)
		s.catchUp(sub, req, head)
		sub.proceed()
		require.Equal(t, &frames.Gap{SubscriptionID: sub.id, Reason: frames.GapRetention}, b.gapOf(b.pullAll(s)),
			"the first that it misses is not among the new ones")
		require.Zero(t, b.unsent())
	})
}

// TestTheLogsReaderHasItsTurn: a subscription that fills every write does not keep
// another one, which reads from the log, from its share.
func TestTheLogsReaderHasItsTurn(t *testing.T) {
	b := newBenchIn(t, t.TempDir(), 1<<20, 4*(2*100+imageOverhead))
	s := b.session()
	b.write(200)
	behind := b.subscribe(s, 0, plentyEvents, plentyBytes)
	busy := b.subscribe(s, b.head(), plentyEvents, plentyBytes)
	got := make(map[frames.SubscriptionID]int)
	for range 40 {
		b.write(2)
		for _, f := range b.pullUpTo(s, 2, plentyBytes) {
			got[f.(*frames.CoordEvent).SubscriptionID]++
		}
	}
	require.GreaterOrEqual(t, got[behind], 10, "%v", got)
	require.GreaterOrEqual(t, got[busy], 10)
	require.NoError(t, s.Credit(&frames.Credit{SubscriptionID: behind}))
	for s.Ready() {
		b.pull(s)
	}
	require.Equal(t, fetched{}, s.fetched, "an idle connection holds nothing")
}

// TestOnlyWhatIsCountedIsSent: events are in the window before they are counted.
func TestOnlyWhatIsCountedIsSent(t *testing.T) {
	b := newBench(t)
	s := b.session()
	b.subscribe(s, b.head(), plentyEvents, plentyBytes)
	b.write(2)
	b.put(newID[frames.ObjectID](t), 1, 10)
	require.Len(t, b.pullAll(s), 2)
	b.m.fanOut()
	require.Len(t, b.pullAll(s), 1)
}

// TestTheLogIsReadInPieces: events that fill more than one write come from the log, none
// left out, and a GAP between two pieces names the one that would be next.
func TestTheLogIsReadInPieces(t *testing.T) {
	const events = 30
	b := newBenchIn(t, t.TempDir(), 1<<20, 1)
	for range events {
		b.put(newID[frames.ObjectID](t), 1, 20<<10)
	}
	s := b.session()
	b.subscribe(s, 0, plentyEvents, plentyBytes)
	got := b.sequences(b.pullAll(s))
	require.Len(t, got, events)
	for i, seq := range got {
		require.EqualValues(t, i+1, seq)
	}
	for piece := 1; piece < 12; piece++ {
		id := b.subscribe(s, 0, plentyEvents, plentyBytes)
		var last frames.EventSequence
		for range piece {
			for _, f := range b.pull(s) {
				last = f.(*frames.CoordEvent).Sequence
			}
		}
		if last == events {
			break
		}
		b.m.mu.Lock()
		s.mu.Lock()
		s.find(id).fail(frames.GapQueueOverflow)
		s.mu.Unlock()
		b.m.mu.Unlock()
		require.Equal(t, &frames.Gap{
			SubscriptionID: id, LastDelivery: frames.DeliveryCut(last), LastEvent: frames.EventCut(last), Observed: last + 1,
			Reason: frames.GapQueueOverflow,
		}, b.gapOf(b.pullAll(s)))
	}
}

func TestC14_SubscriptionsAreCounted(t *testing.T) {
	b := newBench(t)
	s := b.session()
	for range frames.SubscriptionsPerConnection {
		b.subscribe(s, b.head(), 1, plentyBytes)
	}
	_, err := s.Subscribe(&frames.Subscribe{RequestID: 1, After: b.head()})
	require.Equal(t, frames.CodeResourceExhausted, frames.CodeOf(err))
	_, err = s.Open(t.Context(), &frames.OpenSnapshot{RequestID: 1, Reserve: true})
	require.Equal(t, frames.CodeResourceExhausted, frames.CodeOf(err))
	require.Zero(t, b.m.Open(), "and what the snapshot took is given back")
	require.Zero(t, pinned(b))
	b.write(1)
	require.Len(t, b.pullAll(s), frames.SubscriptionsPerConnection, "each of them gets it")
	s.Close()
	used, _ := b.quotas.Use(quota.Principal(b.viewer.Principal), quota.Subscriptions)
	require.Zero(t, used)
	require.Empty(t, b.m.groups)
	b.put(newID[frames.ObjectID](t), 1, 1)
	require.Equal(t, b.head(), frames.EventCut(b.m.counted.Load()), "nobody listens")
}

func TestC14_ReplaysAreLeases(t *testing.T) {
	b := newBench(t)
	s := b.session()
	id, gap := b.paused(s)
	for range frames.LeasesPerConnection {
		b.open(s)
	}
	_, _, err := b.openReplay(s, id, gap.LastEvent)
	require.Equal(t, frames.CodeResourceExhausted, frames.CodeOf(err))
	require.Equal(t, paused, s.find(id).state)
	b.clock.Advance(leaseTime)
	begin, _, err := b.openReplay(s, id, gap.LastEvent)
	require.NoError(t, err, "those that have expired are swept")
	s.Close()
	require.Zero(t, b.m.Open())
	stats, err := b.store.Stats()
	require.NoError(t, err)
	require.Zero(t, stats.OpenReplays, "and the log is free, %v", begin.ReplayID)
}

// TestC10_AudiencesArePredicates compares the form that is counted by with the
// predicate itself.
func TestC10_AudiencesArePredicates(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := work.Viewer{
			Principal:    frames.KeyID{1},
			Scope:        frames.Scope(rapid.Uint64Range(0, uint64(frames.AllScopes)).Draw(t, "scope")),
			Capabilities: frames.Capability(rapid.Uint64Range(0, 0x1f).Draw(t, "caps")),
		}
		if rapid.Bool().Draw(t, "without operations") {
			v.Capabilities |= frames.CapWithoutOperations
		}
		a := audienceOf(v)
		for kind := frames.ObjectKind(0); kind < 70; kind++ {
			for _, owner := range []frames.KeyID{{}, {1}, {2}} {
				require.Equal(t, work.Visible(kind, owner, v), a.sees(kind, owner), "%v of %v", kind, owner)
			}
		}
	})
}

// TestC10_OnePredicateOnEverySurface shows one history by snapshot, subscription and
// replay to viewers of every sort.
func TestC10_OnePredicateOnEverySurface(t *testing.T) {
	b := newBench(t)
	start := b.head()
	id := newID[frames.ObjectID](t)
	b.put(id, 1, 10)
	b.commit(func(tx *store.Tx) { b.operation(tx, frames.KeyID{1}) })
	b.commit(func(tx *store.Tx) { b.operation(tx, frames.KeyID{2}) })
	b.put(id, 2, 10)
	all := frames.AllScopes
	none := b.viewer.Capabilities &^ frames.CapAdministration
	for _, tt := range []struct {
		name  string
		scope frames.Scope
		caps  frames.Capability
		want  []frames.EventSequence
	}{
		{"everything", all, none, []frames.EventSequence{1, 2, 3, 4}},
		{"without ADMIN, its own operations", all &^ frames.ScopeAdmin, none, []frames.EventSequence{1, 2, 4}},
		{"without operations", all, none | frames.CapWithoutOperations, []frames.EventSequence{1, 4}},
		{"commands only", frames.ScopeWorkCommand, none, []frames.EventSequence{2}},
		{"operations of all and nothing else", frames.ScopeAdmin, none, []frames.EventSequence{2, 3}},
		{"nothing", frames.ScopeSignalAck, none, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b.viewer.Scope, b.viewer.Capabilities = tt.scope, tt.caps
			s := b.session()
			defer s.Close()
			sub := b.subscribe(s, start, 100, plentyBytes)
			require.Equal(t, tt.want, b.sequences(b.pullAll(s)))

			objects := make(map[frames.ObjectRef]bool)
			for _, seq := range tt.want {
				objects[b.events[seq-1].Object] = true
			}
			begin := b.open(s)
			records := b.readSnapshot(s, begin)
			require.Len(t, records, len(objects))
			for i := range records {
				require.True(t, objects[records[i].Ref()])
			}

			s.find(sub).last = start // as if nothing had been sent
			s.Final(frames.GapInternal, func([]byte) {})
			replay, _, err := b.openReplay(s, sub, start)
			require.NoError(t, err)
			events, _ := b.readReplay(s, replay)
			var seen []frames.EventSequence
			for i := range events {
				seen = append(seen, events[i].Sequence)
			}
			require.Equal(t, tt.want, seen)
		})
	}
}

func TestTheWindowIsBounded(t *testing.T) {
	const bound = 64 << 10
	b := newBenchIn(t, t.TempDir(), 4<<20, bound)
	w := b.m.window
	s := b.session()
	b.subscribe(s, b.head(), plentyEvents, plentyBytes)
	for i := range 300 {
		b.put(newID[frames.ObjectID](t), 1, 100*(i%9))
		require.LessOrEqual(t, w.bytes, bound, "whoever counts")
	}
	require.Greater(t, w.base, frames.EventCut(0))
	b.m.fanOut()
	got := b.sequences(b.pullAll(s))
	require.Len(t, got, 300, "older ones come from the log")
	for i, seq := range got {
		require.EqualValues(t, i+1, seq)
	}
	// One commit that is larger than the window is in it until it is counted.
	b.commit(func(tx *store.Tx) {
		for range 100 {
			b.emit(tx, newID[frames.ObjectID](t), 1, 1000)
		}
	})
	require.LessOrEqual(t, w.bytes, bound)
	require.Len(t, b.pullAll(s), 100)
}

// TestImagesAreShared sends one event to two subscriptions: the frames end in the
// same memory, and are what the codec would make.
func TestImagesAreShared(t *testing.T) {
	b := newBench(t)
	s := b.session()
	var ids []frames.SubscriptionID
	for range 2 {
		ids = append(ids, b.subscribe(s, b.head(), 1, plentyBytes))
	}
	b.put(newID[frames.ObjectID](t), 1, 300)
	b.m.fanOut()
	var tails [][]byte
	var whole [][]byte
	s.Pull(Batch{Frames: 10, Bytes: 1 << 20, Emit: func(head, tail []byte) {
		require.Len(t, head, headSize)
		tails = append(tails, tail)
		whole = append(whole, append(append([]byte(nil), head...), tail...))
	}})
	require.Len(t, tails, 2)
	require.Same(t, &tails[0][0], &tails[1][0])
	var i image
	i.set(b.events[0])
	for k, id := range ids {
		want, err := frames.Append(nil, i.frame(id, 1))
		require.NoError(t, err)
		require.Equal(t, want, whole[k])
		require.Len(t, want, int(i.size))
	}
}

// TestOnlyWhoHasSomethingIsWoken counts the wakes of connections with nothing to
// send.
func TestOnlyWhoHasSomethingIsWoken(t *testing.T) {
	b := newBench(t)
	var woken [4]atomic.Int64
	make := func(i int) *Session {
		account, err := b.quotas.Connect(quota.Principal(b.viewer.Principal))
		require.NoError(t, err)
		t.Cleanup(account.Close)
		s := b.m.NewSession(SessionOptions{
			Viewer: b.viewer, Limits: frames.ReferenceLimits(), Account: account, Wake: func() { woken[i].Add(1) },
		})
		t.Cleanup(s.Close)
		return s
	}
	ready, starved, idle := make(0), make(1), make(2)
	b.viewer.Scope = frames.ScopeSignalAck
	blind := make(3)
	b.subscribe(ready, b.head(), 100, plentyBytes)
	b.subscribe(starved, b.head(), 0, 0)
	b.subscribe(blind, b.head(), 100, plentyBytes)
	b.write(1)
	b.pullAll(ready)
	b.pullAll(starved) // it has seen that credit is short
	for i := range woken {
		woken[i].Store(0)
	}
	for range 20 {
		b.write(1)
		b.pullAll(ready)
	}
	require.EqualValues(t, 20, woken[0].Load())
	require.Zero(t, woken[1].Load())
	require.Zero(t, woken[2].Load())
	require.Zero(t, woken[3].Load())
	require.False(t, idle.Ready())
}
