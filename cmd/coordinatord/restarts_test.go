package main

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"coordinator/client"
	"coordinator/frames"
)

// Fifty orderly restarts in a row under load: each command is carried out once and no caller
// sees more of it than a delay, and a follower is told every event once, with its gaps.
func TestFiftyRestartsUnderLoad(t *testing.T) {
	t.Parallel()
	const restarts, workers = 50, 8
	r := newRig(t)
	p := r.serve()
	p.ready()
	fast := client.Backoff{First: 5 * time.Millisecond, Max: 50 * time.Millisecond}

	session, err := client.OpenSession(r.ctx, client.SessionOptions{Backoff: fast})
	require.NoError(t, err)
	defer session.Close()
	var over atomic.Bool
	made := make([][]frames.ObjectiveID, workers)
	var done, total atomic.Int64
	total.Store(-1) // until the load is over
	following, stop := context.WithCancel(t.Context())
	defer stop()
	told := make(map[frames.ObjectiveID]int)
	synced, begun := make(chan struct{}), false
	var follow errgroup.Group
	follow.Go(func() error {
		for u, err := range client.Follow(following, r.ctx, client.FollowOptions{Options: client.Options{State: session.State()}, Backoff: fast}) {
			if err != nil {
				return err
			}
			switch u := u.(type) {
			case *client.Synced:
				if begun {
					t.Errorf("a new snapshot where events were to be had: %+v", u)
					continue
				}
				begun = true
				close(synced)
			case *client.Event:
				if u.Kind == frames.EventObjectiveChanged {
					told[frames.ObjectiveID(u.Object.ID)]++
				}
			}
			if int64(len(told)) == total.Load() {
				return nil
			}
		}
		return nil
	})
	<-synced // from here on every objective comes as an event

	load, ctx := errgroup.WithContext(t.Context())
	for i := range workers {
		load.Go(func() error {
			for !over.Load() {
				cmd, id := create(t)
				result, err := session.Do(ctx, cmd)
				if err != nil {
					return err
				}
				if result.State != frames.OperationSucceeded {
					t.Errorf("operation %s: %+v", cmd.OperationID, result)
				}
				made[i] = append(made[i], id)
				done.Add(1)
			}
			return nil
		})
	}

	for range restarts {
		before := done.Load()
		require.Eventually(t, func() bool { return done.Load() > before || ctx.Err() != nil }, waitFor, time.Millisecond)
		require.NoError(t, context.Cause(ctx))
		require.Equal(t, 0, p.stop())
		p = r.serve()
		p.ready()
	}
	over.Store(true)
	require.NoError(t, load.Wait())
	total.Store(done.Load() + 1)
	last, id := create(t) // the event that wakes the follower for the last time
	_, err = session.Do(t.Context(), last)
	require.NoError(t, err)
	made[0] = append(made[0], id)
	require.NoError(t, follow.Wait())

	want := make(map[frames.ObjectiveID]int)
	for _, ids := range made {
		for _, id := range ids {
			want[id] = 1
		}
	}
	require.Equal(t, want, told, "each once")
	t.Logf("%d commands over %d restarts", len(want), restarts)
}
