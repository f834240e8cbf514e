package store_test

import (
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
	"coordinator/server/store"
)

// newFileBed is a bed whose log lies in files, as a copy needs it.
func newFileBed(t *testing.T) *bed {
	t.Helper()
	o := bedOptions(nil)
	o.FS = nil
	o.Rand = nil
	b := &bed{t: t, dir: t.TempDir(), opts: o}
	require.NoError(t, store.Create(b.dir, store.Genesis{
		CoordinatorID: testID, Incarnation: frames.IncarnationID{7}, Rows: []store.Row{retention()}, CreatedAt: testTime,
	}, o))
	b.open()
	t.Cleanup(func() { b.s.Close() })
	return b
}

// write puts what a copy gives into a directory, as its taker would.
func write(t *testing.T, c *store.Copy) (dir string) {
	t.Helper()
	dir = t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, store.LogDir), 0o700))
	for _, f := range c.Log() {
		in, err := f.Open()
		require.NoError(t, err)
		out, err := os.Create(filepath.Join(dir, f.Name))
		require.NoError(t, err)
		_, err = io.Copy(out, io.NewSectionReader(in, 0, f.Bytes))
		require.NoError(t, errors.Join(err, out.Truncate(f.Size), out.Close(), in.Close()))
	}
	c.ReleaseLog()
	out, err := os.Create(filepath.Join(dir, store.StateFile))
	require.NoError(t, err)
	require.NoError(t, errors.Join(c.WriteState(out), out.Close()))
	return dir
}

// TestACopyIsTheStoreAtItsCut takes copies at every stage of checkpoints, with commits
// between their steps, and opens each: it holds what the cut held, and nothing else.
func TestACopyIsTheStoreAtItsCut(t *testing.T) {
	b := newFileBed(t)
	b.s.SetEventBytes(16 << 10) // so that segments go
	draw := rand.New(rand.NewPCG(1, 2))
	revs := make(map[uint64]uint64)
	commits := func(n int) {
		for range n {
			id := draw.Uint64N(40) + 1
			revs[id]++
			b.put(frames.KindObjective, id, revs[id], string(make([]byte, draw.IntN(300))), draw.IntN(2) == 0)
		}
	}
	steps := func(n int) {
		for range n {
			_, err := b.s.CheckpointStep()
			require.NoError(t, err)
		}
		b.s.Maintain()
	}
	for range 60 {
		commits(draw.IntN(8))
		steps(draw.IntN(6))
		c, err := b.s.BeginCopy()
		require.NoError(t, err)
		commits(draw.IntN(4))
		steps(draw.IntN(6))
		c.Cut()
		want, state := b.dump(), b.s.State()
		require.Equal(t, state, c.State())
		commits(draw.IntN(8))
		steps(draw.IntN(6))
		dir := write(t, c)
		c.Close()
		c.Close()

		have, err := store.Inspect(dir, store.Options{})
		require.NoError(t, err)
		require.Equal(t, state.Commit, have.Commit)
		require.Equal(t, state.Head, have.Head)
		require.Equal(t, frames.IncarnationID{7}, have.Incarnation)
		copied := &bed{t: t, dir: dir, opts: b.opts}
		copied.open()
		require.Equal(t, want, copied.dump())
		copied.put(frames.KindObjective, 99, 1, "and it goes on", true)
		require.NoError(t, copied.s.Close())
	}
	require.NotContains(t, first(t, b.dir), "0000000000000001", "segments have gone meanwhile")
	st, err := b.s.Stats()
	require.NoError(t, err)
	require.Zero(t, st.OpenReplays, "nothing is held any more")
}

// first is the name of the oldest segment.
func first(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(dir, store.LogDir))
	require.NoError(t, err)
	return entries[0].Name()
}

// TestACopyKeepsItsLog: what state.db says that the log must have stays until the copy has
// it, whatever retention wants.
func TestACopyKeepsItsLog(t *testing.T) {
	b := newFileBed(t)
	for rev := range uint64(60) {
		b.put(frames.KindObjective, 1, rev+1, string(make([]byte, 500)), true)
	}
	oldest := first(t, b.dir)
	c, err := b.s.BeginCopy()
	require.NoError(t, err)
	b.s.SetEventBytes(1)
	b.checkpoint()
	b.checkpoint()
	require.Equal(t, oldest, first(t, b.dir))
	c.Cut()
	dir := write(t, c)
	b.put(frames.KindObjective, 1, 61, "", true)
	b.checkpoint()
	require.NotEqual(t, oldest, first(t, b.dir), "which goes once the copy has it open")
	require.NoError(t, store.Verify(dir, store.Options{}))
	c.Close()
}

func TestACopyOfAClosedStore(t *testing.T) {
	b := newFileBed(t)
	require.NoError(t, b.s.Close())
	_, err := b.s.BeginCopy()
	require.ErrorIs(t, err, store.ErrClosed)
	simulated := newBed(t, t.TempDir())
	_, err = simulated.s.BeginCopy()
	require.ErrorContains(t, err, "cannot be copied")
	require.NoError(t, simulated.s.Close())
}

// TestRenew: a store that goes on by itself has a name of its own, and nothing else changes.
func TestRenew(t *testing.T) {
	b := newFileBed(t)
	b.put(frames.KindObjective, 1, 1, "x", true)
	want := b.dump()
	require.NoError(t, b.s.Close())
	require.NoError(t, store.Renew(b.dir, frames.IncarnationID{8}))
	require.NoError(t, store.Verify(b.dir, store.Options{}))
	b.open()
	require.Equal(t, frames.IncarnationID{8}, b.s.State().Incarnation)
	require.Equal(t, want, b.dump())
	require.NoError(t, b.s.Close())
	_, err := store.Compact(b.dir, store.Options{})
	require.NoError(t, err)
	b.open()
	require.Equal(t, frames.IncarnationID{8}, b.s.State().Incarnation, "compact keeps it")
	require.Error(t, store.Renew(t.TempDir(), frames.IncarnationID{8}))
}
