package server

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
	"coordinator/server/store/simfs"
)

// TestAStuckCommitIsNoProgress holds the writer in a sync that does not return: nothing is
// proved until the disk answers, although the lease is kept all the while.
func TestAStuckCommitIsNoProgress(t *testing.T) {
	disk := simfs.New()
	r := newRigOn(t, disk)
	r.start()
	require.NoError(t, r.info.Turn(t.Context()))
	require.NoError(t, r.info.Turn(t.Context()), "it can be asked again and again")

	stuck, free := make(chan struct{}), make(chan struct{})
	disk.Hook(func(op simfs.Op) error {
		if op.Kind == "sync" {
			select {
			case <-stuck:
			default:
				close(stuck)
				<-free
			}
		}
		return nil
	})
	p := r.connect(r.keys[0])
	p.sendCommand(frames.CommandCreateObjective, newID[frames.OperationID](t),
		&frames.CreateObjective{ObjectiveID: newID[frames.ObjectiveID](t), Schema: 1, Document: []byte("x")})
	<-stuck
	ctx, cancel := context.WithCancel(t.Context())
	turned := make(chan error, 2)
	go func() { turned <- r.info.Turn(ctx) }()
	go func() { turned <- r.info.Turn(t.Context()) }()
	cancel()
	require.ErrorIs(t, <-turned, context.Canceled)
	require.Empty(t, turned)
	close(free)
	require.NoError(t, <-turned)
	require.NoError(t, r.stop())
	require.Error(t, r.info.Turn(t.Context()), "nothing goes on after the end")
}

// TestTheEndOfServiceIsSaid names no cause after a stop that was asked for, and the fault
// otherwise.
func TestTheEndOfServiceIsSaid(t *testing.T) {
	r := newRig(t)
	said := make(chan error, 1)
	r.opts.Stopping = func(cause error) { said <- cause }
	r.start()
	require.NoError(t, r.stop())
	require.NoError(t, <-said)
	r.start()
	r.srv.breakdown(ErrStoreFailed)
	require.ErrorIs(t, <-said, ErrStoreFailed)
	err := <-r.done
	r.cancel = nil
	require.ErrorIs(t, err, ErrStoreFailed)
}
