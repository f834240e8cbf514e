package commit

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
	"coordinator/server/store"
	"coordinator/server/store/simfs"
)

func TestMetersOfTheWriter(t *testing.T) {
	b := newBed(t)
	var got []chan answer
	for i := range 600 {
		got = append(got, b.propose(create(t, i+1, i+1, "a"), alice))
	}
	require.Equal(t, Depth{Queued: 600, Outstanding: 600, Limit: DefaultQueueLimit}, b.writer.Depth())
	require.NoError(t, b.step())
	for _, c := range got {
		require.NoError(t, (<-c).err)
	}
	require.Equal(t, Depth{Limit: DefaultQueueLimit}, b.writer.Depth())
	m := b.writer.Meters()
	batches := m.Batch.Snapshot()
	require.Equal(t, uint64(600), batches.Sum)
	require.Equal(t, batches.Count, m.Commit.Snapshot().Count)
	require.Equal(t, uint64(len(b.published)), batches.Count)

	// What writes nothing is no commit.
	twice := create(t, 1, 2, "b")
	require.Equal(t, frames.CodeOperationConflict, code(t, b.do(twice, alice).err))
	require.Equal(t, batches, m.Batch.Snapshot())
}

// TestPingTellsAWriterThatStands holds a flush: nothing comes round. A writer that waits for
// its lease because the clocks have diverged does not stand.
func TestPingTellsAWriterThatStands(t *testing.T) {
	b := newBed(t)
	syncing, release := make(chan struct{}), make(chan struct{})
	first := true
	b.disk.Hook(func(op simfs.Op) error {
		if op.Kind == "sync" && first {
			first = false
			close(syncing)
			<-release
		}
		return nil
	})
	running(t, b)
	require.NoError(t, b.writer.Ping(t.Context()))
	got := b.propose(create(t, 1, 1, "a"), alice)
	<-syncing
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, b.writer.Ping(ctx), context.DeadlineExceeded)
	close(release)
	require.NoError(t, b.writer.Ping(t.Context()))
	require.NoError(t, (<-got).err)
	b.clk.StepWall(time.Hour)
	require.NoError(t, b.writer.Ping(t.Context()))
}

// TestPingBesideCallsThatFillTheQueue is answered although no client would be.
func TestPingBesideCallsThatFillTheQueue(t *testing.T) {
	b := newBed(t)
	b.options.QueueLimit = 1
	b.restart(b.disk.Kill)
	full := make(chan error, 1)
	go func() { full <- b.writer.Do(context.Background(), func(*store.Store) error { return nil }) }()
	require.Eventually(t, func() bool { return b.writer.Depth().Calls == 1 }, time.Minute, time.Millisecond)
	pinged := make(chan error, 1)
	go func() { pinged <- b.writer.Ping(context.Background()) }()
	require.Eventually(t, func() bool { return b.writer.Depth().Calls == 2 }, time.Minute, time.Millisecond)
	require.NoError(t, b.step())
	require.NoError(t, <-full)
	require.NoError(t, <-pinged)
}
