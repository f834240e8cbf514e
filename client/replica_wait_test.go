package client

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
)

// TestReplicaIsBehindWhileEventsWait applies a burst of events that has come whole before
// the first of it is: what shows on the way does not say that it is current.
func TestReplicaIsBehindWhileEventsWait(t *testing.T) {
	const burst = 3*publishEvery + 7
	w := newWorld(t)
	m := newModel(w)
	m.write()
	opts := ReplicaOptions{Options: w.options(m.serve)}
	opts.Clock = &hasty{Manual: w.clock}
	r, err := newReplica(w.pins, opts)
	require.NoError(t, err)
	changes := mirrored(t, r, 0, nil)
	r.gathers(burst)
	yield := r.follower.yield
	r.follower.yield = func(u Update, err error) bool {
		before, more := r.now.Load(), yield(u, err)
		if p := r.now.Load(); p != before && p.state.Phase == ReplicaCurrent && r.follower.sub.waiting() {
			t.Errorf("current at event %d while others wait", p.view.Cut)
		}
		return more
	}
	r.start()
	defer func() { require.NoError(t, r.Close()) }()
	reaches(t, r, m)
	m.mu.Lock()
	for range burst {
		m.writeLocked(3)
	}
	m.mu.Unlock()
	changes.agrees(reaches(t, r, m))
	behind := 0
	for _, s := range changes.states {
		if s.Reason == StaleBehind {
			behind++
			require.Equal(t, ReplicaStale, s.Phase)
		}
	}
	require.Equal(t, 1, behind, "%v", changes.states)
	require.Equal(t, burst, changes.changes)
	require.Equal(t, ReplicaCurrent, r.State().Phase)
}

// gathers holds the replica at its first event until so many have come.
func (r *Replica) gathers(events int) {
	yield, held := r.follower.yield, false
	r.follower.yield = func(u Update, err error) bool {
		if _, first := u.(*Event); first && !held {
			for held = true; r.follower.sub.queued() < events-1; {
				<-r.follower.sub.wake
			}
		}
		return yield(u, err)
	}
}

// TestReplicaKeepsWhatCameBeforeAGap has three events wait of which the last cannot be
// applied. The others are, and are told before the gap; a feed that was opened in between
// is told that it has missed them.
func TestReplicaKeepsWhatCameBeforeAGap(t *testing.T) {
	for _, early := range []bool{false, true} {
		t.Run(fmt.Sprintf("early=%v", early), func(t *testing.T) { keepsWhatCame(t, early) })
	}
}

func keepsWhatCame(t *testing.T, early bool) {
	w := newWorld(t)
	m := newModel(w)
	m.mu.Lock()
	m.appendLocked(1, 1)
	m.mangle = func(e *frames.CoordEvent) []byte {
		if e.Sequence == 4 {
			e.Revision++
		}
		return nil
	}
	m.mu.Unlock()
	r, err := newReplica(w.pins, ReplicaOptions{Options: bubbled(t, w, m)})
	require.NoError(t, err)
	r.opts.Clock = w.clock
	r.follower.opts.Clock = &hasty{Manual: w.clock}
	r.gathers(3)
	yield := r.follower.yield
	var changes *mirror
	if early {
		changes = mirrored(t, r, 0, nil)
	}
	var late *Feed
	var seen []string
	r.follower.yield = func(u Update, err error) bool {
		more := yield(u, err)
		switch e, event := u.(*Event); {
		case event && e.Sequence == 2 && !early:
			late = r.Changes(0)
			n, err := late.Next(t.Context())
			if reread, ok := n.(*Reread); err != nil || !ok || reread.View.Cut != 1 {
				t.Errorf("%v %v", n, err)
			}
		case !event && late != nil && len(seen) == 0: // the gap
			n, err := late.Next(t.Context())
			if reread, ok := n.(*Reread); err != nil || !ok || reread.Reason != RereadMissed || reread.View.Cut != 3 || reread.View.Current {
				t.Errorf("%v %v", n, err)
			}
			seen = append(seen, r.State().String())
		}
		return more
	}
	r.start()
	reaches(t, r, m)
	m.mu.Lock()
	for seq := range uint64(3) {
		m.appendLocked(2+seq, 1)
	}
	m.mu.Unlock()
	v := reaches(t, r, m)
	if early {
		changes.agrees(v)
		require.Equal(t, 2, changes.changes)
		require.NoError(t, r.Close())
		return
	}
	require.NoError(t, r.Close())
	require.Len(t, seen, 1)
	require.Contains(t, seen[0], "Stale: no connection since event 3")
	late.Close()
}

func (s *Subscription) queued() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.batch) + len(s.queue)
}

// TestReplicaResumesBehind comes back to a coordinator that has gone on: it does not say
// that it is current before it has what the coordinator sends behind its cut.
func TestReplicaResumesBehind(t *testing.T) {
	w := newWorld(t)
	m := newModel(w)
	m.write()
	r := attended(t, w, m, ReplicaOptions{})
	reaches(t, r, m)
	m.setFault(func(int, *modelConn) bool { panic(errScript) })
	m.down.Store(true)
	m.write() // which the fault meets
	enters(t, r, "disconnected", func(s ReplicaState) bool { return s.Reason == StaleDisconnected })
	asked := false
	m.setFault(func(_ int, c *modelConn) bool {
		if _, pong := c.sending.(*frames.Pong); pong && !asked {
			asked = true
			for c.pending() {
				c.pump()
			}
		}
		return c.sending == nil && !asked // it is slow to send, but it does so before it answers
	})
	for range 5 {
		m.write()
	}
	head := m.head()
	states := make(chan ReplicaState, 64)
	go func() {
		defer close(states)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for s := range r.States(ctx) {
			states <- s
			if s.Phase == ReplicaCurrent {
				return
			}
		}
	}()
	m.down.Store(false)
	var last ReplicaState
	for last = range states {
	}
	require.Equal(t, ReplicaCurrent, last.Phase)
	require.Equal(t, head, last.Cut, "current where it left off")
	require.NotNil(t, last.Healed)
	require.False(t, last.Healed.Replayed)
}

// TestReplicaLetsGoOfWhatWasPruned reaches its cap through tombstones of which the
// coordinator has pruned some without an event: a new snapshot makes room. When there is
// nothing to let go of, the replica is full.
func TestReplicaLetsGoOfWhatWasPruned(t *testing.T) {
	for _, pruned := range []bool{true, false} {
		w := newWorld(t)
		m := newModel(w)
		m.writeTo(1)
		opts := ReplicaOptions{Options: w.options(m.serve), MaxRecords: 4}
		opts.Clock = &hasty{Manual: w.clock}
		r, err := OpenReplica(w.pins, opts)
		require.NoError(t, err)
		at := func(records int) *View {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			v, err := r.WaitFor(ctx, func(v *View) bool { return v.Cut == m.head() && v.Len() == records })
			require.NoError(t, err, "%v", r.State())
			return v
		}
		at(1)
		for n := byte(modelOperations); n < modelOperations+3; n++ {
			m.writeTo(n)
		}
		at(4)
		if pruned {
			m.prune(modelOperations)
			m.prune(modelOperations + 1)
			at(4) // nothing tells
		}
		m.writeTo(2)
		if pruned {
			require.Equal(t, 1, at(3).Count(frames.KindOperation))
			m.writeTo(3)
			at(4)
		} else {
			s := enters(t, r, "full", func(s ReplicaState) bool { return s.Phase.Final() })
			require.ErrorAs(t, s.Err, new(*ReplicaFullError))
		}
		require.NoError(t, r.Close())
	}
}

// TestKnowledgeIsRenewed says when a view has grown so much that a new snapshot replaces it.
func TestKnowledgeIsRenewed(t *testing.T) {
	require.False(t, outgrown(outgrowth, 0))
	require.True(t, outgrown(outgrowth+1, 0))
	require.False(t, outgrown(outgrowth+20, 10))
	require.True(t, outgrown(outgrowth+21, 10))

	w := newWorld(t)
	m := newModel(w)
	m.writeTo(1)
	opts := FollowOptions{Options: w.options(m.serve)}
	opts.Clock = &hasty{Manual: w.clock}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	state, err := OpenState(w.pins)
	require.NoError(t, err)
	opts.State = state
	f := &follower{c: w.pins, opts: opts}
	f.opts.Options.defaults()
	f.pauses = newPauses(Backoff{}, &f.opts.Options)
	var told []string
	f.yield = func(u Update, err error) bool {
		told = append(told, fmt.Sprintf("%T", u))
		switch u := u.(type) {
		case *Synced:
			if !u.First {
				return false
			}
			f.sub.seen.(*revisions).loaded = -outgrowth // as if a million had come since
			m.writeTo(2)
		case *Gap:
			require.ErrorIs(t, u.Cause, errOutgrown)
		}
		return true
	}
	f.run(ctx)
	require.Equal(t, []string{"*client.Synced", "*client.Event", "*client.Gap", "*client.Synced"}, told)
}

// TestWhoFindsTheCertificateExpiredEndsTheConnection: what a reader was not shown as current
// is not current a moment later by a renewal that nobody is told of.
func TestWhoFindsTheCertificateExpiredEndsTheConnection(t *testing.T) {
	w := newWorld(t)
	m := newModel(w)
	m.write()
	r := attended(t, w, m, ReplicaOptions{})
	reaches(t, r, m)
	m.down.Store(true)
	c := r.now.Load().conn
	l := *c.lease.Load()
	l.deadline = 0
	c.lease.Store(&l)
	require.False(t, r.View().Current)
	require.ErrorIs(t, c.Err(), ErrExpired)
	enters(t, r, "disconnected", func(s ReplicaState) bool { return s.Reason == StaleDisconnected })
	m.down.Store(false)
	reaches(t, r, m)
}
