package client

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/internal/clock"
)

// TestReplicaInABubble runs a replica on simulated time, network and memory. Time passes
// there only while every goroutine waits, so that one that spins would hang the test.
func TestReplicaInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.clock, w.lease = clock.NewManual(clock.Runtime().Now()), 60
		m := newModel(w)
		m.write()
		r, err := newReplica(w.pins, ReplicaOptions{Options: bubbled(t, w, m), Backoff: Backoff{First: time.Second, Max: 4 * time.Second}})
		require.NoError(t, err)
		r.start()
		first := reaches(t, r, m)
		require.Equal(t, ReplicaCurrent, r.State().Phase)
		m.write()
		synctest.Wait()
		require.Equal(t, m.head(), r.View().Cut, "nothing else had to happen")
		require.True(t, first.Cut < r.View().Cut)

		m.down.Store(true)
		m.drop()
		began := time.Now()
		time.Sleep(20 * time.Second)
		synctest.Wait()
		s := r.State()
		require.Equal(t, ReplicaStale, s.Phase)
		require.Equal(t, began, s.Since.In(time.Local))
		require.Equal(t, began, s.LastContact.In(time.Local))
		require.GreaterOrEqual(t, s.Gap.Attempt, 4)
		require.LessOrEqual(t, s.Gap.Attempt, 12, "it pauses between attempts")
		m.down.Store(false)
		m.write()
		reaches(t, r, m)
		require.Less(t, time.Since(began), 30*time.Second)
		require.NoError(t, r.Close())
	})
}

func bubbled(t *testing.T, w *world, m *model) Options {
	state, err := OpenStateIn(new(MemoryStore), w.pins)
	require.NoError(t, err)
	o := w.options(m.serve)
	o.Clock, o.State, o.Transport = clock.Runtime(), state, m.reached(o.Transport)
	return o
}
