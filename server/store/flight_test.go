package store_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
	"coordinator/server/store"
)

// takeOff applies a commit that is neither written nor landed.
func (b *bed) takeOff() *store.Flight {
	b.t.Helper()
	tx := b.begin()
	tx.Put(makeRow(frames.KindObjective, 1, 1, "a", true))
	f, err := b.s.Seal(tx, testTime)
	require.NoError(b.t, err)
	b.s.Apply(f)
	return f
}

// What is applied and has not landed is shown to nobody, and nothing can be sealed upon it.
func TestAFlightIsNotThereUntilItLands(t *testing.T) {
	b := newBed(t, t.TempDir())
	defer b.s.Abandon()
	before := b.s.State()
	f := b.takeOff()
	require.Equal(t, before, b.s.State())
	require.Panics(t, func() { b.s.Cut() })
	require.Panics(t, func() { b.s.View() })
	require.Panics(t, func() { b.s.LiveRows(frames.KindObjective, func(store.Row) bool { return true }) })
	require.Panics(t, func() { b.s.Land(f) }, "it is not written")
	next := b.s.Begin()
	next.Put(makeRow(frames.KindObjective, 2, 1, "b", true))
	require.Panics(t, func() { b.s.Seal(next, testTime) }) //nolint:errcheck // it does not return

	require.NoError(t, f.Write())
	require.Equal(t, before, b.s.State())
	require.Equal(t, before.Commit+1, b.s.Land(f).Commit)
	require.Equal(t, before.Commit+1, b.s.State().Commit)
	f, err := b.s.Seal(next, testTime)
	require.NoError(t, err, "what was built meanwhile is good")
	require.NoError(t, f.Write())
	b.s.Apply(f)
	b.s.Land(f)
	require.EqualValues(t, 2, b.s.State().Counts[frames.KindObjective])
}

// A store that is closed with a flight is as after a crash: what the log has counts, and no
// checkpoint has begun with more.
func TestCloseLeavesAFlightToRecovery(t *testing.T) {
	for _, written := range []bool{false, true} {
		b := newBed(t, t.TempDir())
		want := b.s.State().Commit
		f := b.takeOff()
		if written {
			require.NoError(t, f.Write())
			want++
		}
		_, err := b.s.CheckpointStep()
		require.NoError(t, err)
		require.NoError(t, b.s.Close())
		b.open()
		require.Equal(t, want, b.s.State().Commit)
		require.Equal(t, written, b.s.State().Counts[frames.KindObjective] == 1)
		require.NoError(t, b.s.Close())
	}
}
