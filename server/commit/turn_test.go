package commit

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/server/store"
)

// TestATurnIsProvedByTheWriterAlone neither before it comes round nor for want of room.
func TestATurnIsProvedByTheWriterAlone(t *testing.T) {
	b := newBed(t)
	b.options.QueueLimit = 1
	b.restart(b.disk.Kill)
	calls := make(chan error, 2)
	go func() { calls <- b.writer.Do(t.Context(), func(*store.Store) error { return nil }) }()
	waiting := func(n int) func() bool {
		return func() bool {
			b.writer.mu.Lock()
			defer b.writer.mu.Unlock()
			return len(b.writer.calls) == n
		}
	}
	require.Eventually(t, waiting(1), 10*time.Second, time.Millisecond)
	go func() { calls <- b.writer.Turn(t.Context()) }()
	require.Eventually(t, waiting(2), 10*time.Second, time.Millisecond)
	require.Empty(t, calls)
	require.NoError(t, b.step())
	require.NoError(t, <-calls)
	require.NoError(t, <-calls)
}
