package store_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
)

// TestOpenProvesThatItGoesOn with every record that it applies and every row that it loads,
// so that nobody takes a long start for one that hangs.
func TestOpenProvesThatItGoesOn(t *testing.T) {
	b := newBed(t, t.TempDir())
	const records = 20
	for i := range uint64(records) {
		r := ref(frames.KindObjective, i+1)
		tx := b.begin(r)
		tx.Emit(frames.EventObjectiveChanged, eventID(i+1), makeRow(frames.KindObjective, i+1, 1, "x", true))
		b.commit(tx)
	}
	b.crash(0)
	worked := 0
	b.opts.Working = func() { worked++ }
	b.open()
	require.GreaterOrEqual(t, worked, records, "records that were replayed")
	require.NoError(t, b.s.Close())
	worked = 0
	b.open()
	require.GreaterOrEqual(t, worked, records, "rows that were loaded, after the checkpoint of the end")
	require.NoError(t, b.s.Close())
}
