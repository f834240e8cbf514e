package client

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
)

// replica opens a replica of the model, closed with the test.
func replica(t *testing.T, w *world, m *model, opts ReplicaOptions) *Replica {
	opts.Options = w.options(m.serve)
	if opts.Clock = w.clock; opts.Backoff == (Backoff{}) {
		opts.Clock = &hasty{Manual: w.clock}
	}
	r, err := OpenReplica(w.pins, opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

// reaches waits until the replica is current at the model's head, and holds the view
// against the model.
func reaches(t *testing.T, r *Replica, m *model) *View {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	v, err := r.WaitFor(ctx, func(v *View) bool { return v.Cut >= m.head() })
	require.NoError(t, err, "%v", r.State())
	m.mu.Lock()
	defer m.mu.Unlock()
	require.Equal(t, len(m.revs), v.Len())
	require.Equal(t, v.Len(), v.Count(frames.KindObjective))
	for n, rev := range m.revs {
		got := v.Get(frames.KindObjective, objectRef(n).ID)
		require.NotNil(t, got)
		require.Equal(t, rev, got.Revision())
	}
	return v
}

func TestReplicaFollows(t *testing.T) {
	w := newWorld(t)
	m := newModel(w)
	m.write()
	r := replica(t, w, m, ReplicaOptions{})
	first := reaches(t, r, m)
	require.Equal(t, ReplicaCurrent, r.State().Phase)
	for range 20 {
		m.write()
	}
	second := reaches(t, r, m)
	require.Equal(t, 1, first.Len(), "a view does not change")
	require.Greater(t, second.Cut, first.Cut)
	m.restart()
	m.drop()
	m.write()
	third := reaches(t, r, m)
	require.Equal(t, m.w.epoch, third.Guard.Epoch)
	require.NoError(t, r.Close())
	require.Equal(t, ReplicaClosed, r.State().Phase)
	require.False(t, r.View().Current)
	_, err := r.WaitFor(t.Context(), func(*View) bool { return true })
	require.ErrorIs(t, err, ErrClosed)
}
