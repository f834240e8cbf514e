package server

import (
	"log/slog"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTheReserveIsReachedBelowIt asks at its edges, and finds one line for each change.
func TestTheReserveIsReachedBelowIt(t *testing.T) {
	var said strings.Builder
	free := uint64(0)
	r := &reserve{free: func() uint64 { return free }, bytes: 1000, log: slog.New(slog.NewTextHandler(&said, nil))}
	for _, tt := range []struct {
		free  uint64
		is    bool
		lines int
	}{{1001, false, 0}, {1000, false, 0}, {999, true, 1}, {0, true, 1}, {999, true, 1}, {1000, false, 2}, {math.MaxUint64, false, 2}, {1, true, 3}} {
		free = tt.free
		require.Equal(t, tt.is, r.reached(), "%d free", tt.free)
		require.Equal(t, tt.lines, strings.Count(said.String(), "\n"), "%d free", tt.free)
	}
	require.Contains(t, said.String(), "level=WARN")
	require.Contains(t, said.String(), "free=999 reserve=1000")
}
