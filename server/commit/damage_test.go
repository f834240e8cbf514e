package commit

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
	"coordinator/server/store"
)

// damaged is a bed whose first operation lies in state.db, with flipped bits.
func damaged(t *testing.T) *bed {
	b := newBed(t)
	require.NoError(t, b.do(create(t, 1, 1, "a"), alice).err)
	for more := true; more; {
		var err error
		more, err = b.store.CheckpointStep()
		require.NoError(t, err)
	}
	b.store.Maintain()
	path := filepath.Join(b.dir, "state.db")
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	require.NoError(t, err)
	defer f.Close()
	id := id16[frames.OperationID](1)
	found := 0
	for at := 0; ; found++ {
		next := bytes.Index(data[at:], id[:])
		if next < 0 {
			break
		}
		at += next + len(id)
		_, err := f.WriteAt([]byte{^data[at+4]}, int64(at+4)) // within the value behind the key
		require.NoError(t, err)
	}
	require.Positive(t, found)
	return b
}

// meet makes a request read the damage.
func meet(t *testing.T, b *bed) {
	p, _ := b.proposal(create(t, 1, 1, "a"), alice)
	require.Equal(t, frames.CodeInternal, code(t, b.writer.Propose(p)))
}

func TestDamageMetByAReadEndsRunAndIsNamed(t *testing.T) {
	requireDamage := func(t *testing.T, err error) {
		var c *store.CorruptError
		require.ErrorAs(t, err, &c)
		require.Contains(t, c.File, "state.db")
	}
	t.Run("while it waits", func(t *testing.T) {
		b := damaged(t)
		ran := make(chan error, 1)
		go func() { ran <- b.writer.Run(context.Background()) }()
		meet(t, b)
		requireDamage(t, <-ran)
	})
	t.Run("before a commit", func(t *testing.T) {
		b := damaged(t)
		queued := b.propose(create(t, 2, 2, "b"), alice)
		meet(t, b)
		requireDamage(t, b.writer.Run(context.Background()))
		require.ErrorIs(t, (<-queued).err, ErrStopped)
	})
	t.Run("during a commit", func(t *testing.T) {
		b := damaged(t)
		first := b.propose(create(t, 2, 2, "b"), alice)
		var queued chan answer
		b.onPublish = func() {
			if queued == nil {
				queued = b.propose(create(t, 3, 3, "c"), alice)
				meet(t, b)
			}
		}
		requireDamage(t, b.writer.Run(context.Background()))
		require.NoError(t, (<-first).err, "it was durable and published")
		require.ErrorIs(t, (<-queued).err, ErrStopped)
	})
	t.Run("by a lookup", func(t *testing.T) {
		b := damaged(t)
		ran := make(chan error, 1)
		go func() { ran <- b.writer.Run(context.Background()) }()
		_, err := b.writer.Lookup(t.Context(), id16[frames.OperationID](1), alice)
		require.Equal(t, frames.CodeInternal, code(t, err))
		requireDamage(t, <-ran)
	})
	t.Run("at a stop", func(t *testing.T) {
		b := damaged(t)
		meet(t, b)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		requireDamage(t, b.writer.Run(ctx))
	})
}
