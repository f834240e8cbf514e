package owner

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestATurnIsTheJournals waits behind a change that hangs, writes nothing, and fails after
// the end.
func TestATurnIsTheJournals(t *testing.T) {
	s := newStation(t, nil)
	before := s.o.j.counts
	require.NoError(t, s.o.Turn(t.Context()))
	require.Equal(t, before, s.o.j.counts)
	stuck, free, changed := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		changed <- s.o.j.update(func(*txn) error {
			close(stuck)
			<-free
			return nil
		})
	}()
	<-stuck
	turned := make(chan error, 1)
	go func() { turned <- s.o.Turn(t.Context()) }()
	require.Eventually(t, func() bool { return len(s.o.j.changes) == 1 }, 10*time.Second, time.Millisecond)
	require.Empty(t, turned)
	close(free)
	require.NoError(t, <-changed)
	require.NoError(t, <-turned)
	require.NoError(t, s.stop())
	require.ErrorIs(t, s.o.Turn(t.Context()), ErrClosed)
}
