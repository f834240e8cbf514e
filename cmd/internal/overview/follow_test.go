package overview

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"coordinator/client"
	"coordinator/frames"
	"coordinator/handshake"
)

// TestFollowWithoutACoordinator tells at once that nothing is known, then why, then beats,
// and ends as its context or its replica does.
func TestFollowWithoutACoordinator(t *testing.T) {
	defer goleak.VerifyNone(t)
	open := func() *client.Replica {
		dir := t.TempDir()
		key := handshake.NewKey([32]byte{1})
		r, err := client.OpenReplica(&client.Context{Path: filepath.Join(dir, "context.toml"), Name: "x", Socket: filepath.Join(dir, "none.sock"),
			CoordinatorID: frames.CoordinatorID{1}, KeyFile: "none"}, client.ReplicaOptions{Options: client.Options{Key: key}})
		require.NoError(t, err)
		return r
	}
	r := open()
	defer r.Close()
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	var states []*State
	err := Follow(ctx, r, FollowOptions{Every: time.Millisecond, Beat: 2 * time.Millisecond}, func(m *Model, d *Delta) error {
		if d.State != nil {
			states = append(states, d.State)
		}
		if m.State().Gap != nil {
			cancel(enough)
		}
		return nil
	})
	require.ErrorIs(t, err, enough)
	require.Contains(t, states[len(states)-1].Summary, "Connecting: ")
	require.Equal(t, "DISCONNECTED", states[len(states)-1].Gap.Reason)
	require.True(t, states[0].Stale)
	require.Zero(t, states[0].AsOf)

	stop := errors.New("stop")
	calls := 0
	require.ErrorIs(t, Follow(t.Context(), r, FollowOptions{Every: time.Millisecond, Beat: 2 * time.Millisecond}, func(*Model, *Delta) error {
		if calls++; calls == 5 {
			return stop
		}
		return nil
	}), stop, "it beats although nothing happens")

	closed := open()
	require.NoError(t, closed.Close())
	var last *State
	require.ErrorIs(t, Follow(t.Context(), closed, FollowOptions{}, func(m *Model, _ *Delta) error { last = m.State(); return nil }), client.ErrClosed)
	require.True(t, last.Final)
}
