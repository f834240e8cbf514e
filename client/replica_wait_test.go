package client

import (
	"fmt"
	"testing"

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
	return len(s.queue)
}
