package store_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
)

// TestMeters counts a flush for each commit that writes and a checkpoint for each that ends.
func TestMeters(t *testing.T) {
	b := newBed(t, t.TempDir())
	m := b.s.Meters()
	for i := range uint64(5) {
		b.put(frames.KindObjective, i+1, 1, "x", true)
	}
	b.commit(b.begin()) // empty: nothing to flush
	require.EqualValues(t, 5, m.Flush.Snapshot().Count)
	require.Zero(t, m.Checkpoint.Snapshot().Count)
	b.checkpoint()
	b.checkpoint() // nothing is left to do
	require.EqualValues(t, 1, m.Checkpoint.Snapshot().Count)
	require.Zero(t, m.Behind.Load())
	require.NoError(t, b.s.Close())
	require.EqualValues(t, 6, m.Flush.Snapshot().Count, "the clean mark")
}
