package witness

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestATurnWaitsForWhatIsStored proves nothing while a grant is on its way to the disk, and
// fails after the end.
func TestATurnWaitsForWhatIsStored(t *testing.T) {
	w, _ := newWitness(t, startClock())
	require.NoError(t, w.Turn(t.Context()))
	w.mu.Lock() // as storeLocked has it
	turned := make(chan error, 1)
	go func() { turned <- w.Turn(t.Context()) }()
	require.Empty(t, turned)
	w.mu.Unlock()
	require.NoError(t, <-turned)
	w.mu.Lock()
	w.failed = ErrFailed
	w.mu.Unlock()
	require.ErrorIs(t, w.Turn(t.Context()), ErrFailed)
	require.NoError(t, w.Close())
	w.mu.Lock()
	w.failed = nil
	w.mu.Unlock()
	require.ErrorIs(t, w.Turn(t.Context()), ErrClosed)
}
