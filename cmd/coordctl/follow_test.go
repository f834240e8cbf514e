package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/client"
	"coordinator/frames"
)

// TestSlowFollowerOfARealCoordinator makes far more events than a small window holds, stops
// taking them for a while, and kills the coordinator in between: gaps, replays and
// snapshots may come in any number, and at the end the view is exactly what there is.
func TestSlowFollowerOfARealCoordinator(t *testing.T) {
	t.Parallel()
	u := startUp(t, filepath.Join(t.TempDir(), "s")).ready()
	c, err := client.LoadContext(filepath.Join(u.state, "client", "context.toml"))
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()

	const writers, each = 16, 150
	session, err := client.OpenSession(c, client.SessionOptions{})
	require.NoError(t, err)
	var wg sync.WaitGroup
	var progress atomic.Int64
	errs := make(chan error, writers)
	for range writers {
		wg.Go(func() {
			for n := range each {
				if err := makeObjective(ctx, session, n); err != nil {
					errs <- err
					return
				}
				progress.Add(1)
			}
		})
	}
	written := make(chan struct{})
	go func() { wg.Wait(); close(written) }()

	view := map[frames.ObjectRef]frames.ObjectRevision{}
	events, kinds, killed, held := 0, map[string]int{}, false, false
	opts := client.FollowOptions{Options: client.Options{Offered: quietCaps | followCaps}, SubscribeOptions: client.SubscribeOptions{CreditCount: 8}}
	for update, err := range client.Follow(ctx, c, opts) {
		require.NoError(t, err)
		kinds[fmt.Sprintf("%T", update)]++
		switch x := update.(type) {
		case *client.Synced:
			x.Removed(func(ref frames.ObjectRef) { delete(view, ref) })
			require.NoError(t, x.Each(func(r frames.SnapshotRecord) error {
				require.Equal(t, view[r.Ref()], x.Was(r.Ref()))
				view[r.Ref()] = r.Revision
				return nil
			}))
		case *client.Event:
			events++
			require.Equal(t, view[x.Object]+1, x.Revision)
			view[x.Object] = x.Revision
		}
		if events >= 20 && !held { // until the writers are far ahead, or done
			held = true
			eventually(t, "they are far ahead", func() bool { return progress.Load() >= 1500 })
		}
		if events >= 200 && !killed {
			killed = true
			require.NoError(t, syscall.Kill(u.coordinatorPID(), syscall.SIGKILL))
		}
		if len(view) == writers*each {
			break
		}
	}
	<-written
	close(errs)
	require.NoError(t, <-errs)
	require.NoError(t, session.Close())
	require.True(t, killed)
	require.GreaterOrEqual(t, kinds["*client.Gap"], 2, "%v", kinds)
	t.Logf("%d events, %v", events, kinds)

	conn, err := client.Dial(ctx, c, client.Options{Offered: quietCaps})
	require.NoError(t, err)
	snap, err := conn.Snapshot(ctx)
	require.NoError(t, err)
	require.Equal(t, uint64(len(view)), snap.Records)
	require.NoError(t, snap.Each(func(r frames.SnapshotRecord) error {
		require.Equal(t, r.Revision, view[r.Ref()])
		return nil
	}))
	require.NoError(t, snap.Close())
	require.NoError(t, conn.Close())
}

func makeObjective(ctx context.Context, s *client.Session, n int) error {
	op, err := frames.NewID[frames.OperationID](rand.Reader)
	if err != nil {
		return err
	}
	id, err := frames.NewID[frames.ObjectiveID](rand.Reader)
	if err != nil {
		return err
	}
	cmd, err := client.NewCommand(op, frames.CommandCreateObjective, &frames.CreateObjective{ObjectiveID: id, Schema: 1, Document: fmt.Appendf(nil, `{"title":"%d"}`, n)})
	if err != nil {
		return err
	}
	r, err := s.Do(ctx, cmd)
	if err == nil && r.State != frames.OperationSucceeded {
		return fmt.Errorf("objective %d: %v", n, r.State)
	}
	return err
}
