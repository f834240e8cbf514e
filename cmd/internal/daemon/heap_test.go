package daemon

import (
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func (h *Heap) now() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.percent
}

// TestHeapGetsRoomUnderLoad collects again and again, as a load makes the runtime do: the
// heap gets room, and gives it back when the collections come seldom.
func TestHeapGetsRoomUnderLoad(t *testing.T) {
	t.Setenv("GOGC", "")
	h := TendHeap()
	defer h.Stop()
	require.Equal(t, tightPercent, h.now())
	require.Eventually(t, func() bool { runtime.GC(); return h.now() == roomyPercent }, time.Minute, time.Millisecond)
	require.Eventually(t, func() bool { return h.now() == tightPercent }, time.Minute, 10*time.Millisecond)
	require.Eventually(t, func() bool { runtime.GC(); return h.now() == roomyPercent }, time.Minute, time.Millisecond)
	h.Stop()
	require.Equal(t, tightPercent, h.now())
	runtime.GC()
	require.Equal(t, tightPercent, h.now())
}

// TestHeapGivesBackAtRest leaves garbage behind that nothing would collect for minutes: what
// was allocated since the last collection, and what was let go since.
func TestHeapGivesBackAtRest(t *testing.T) {
	t.Setenv("GOGC", "")
	old := debug.SetGCPercent(tightPercent)
	defer debug.SetGCPercent(old)
	h := TendHeap()
	defer h.Stop()
	const mib = 1 << 20
	live := make([]byte, 128*mib) // so that the garbage is no reason to collect
	garbage = make([]byte, 32*mib)
	runtime.GC()
	for range 32 {
		garbage = make([]byte, mib)
	}
	garbage = nil
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	forced := m.NumForcedGC
	require.Eventually(t, func() bool {
		runtime.ReadMemStats(&m)
		return m.NumForcedGC > forced && m.HeapReleased > 32*mib && m.HeapAlloc < 144*mib
	}, time.Minute, 10*time.Millisecond)
	runtime.KeepAlive(live)
	require.Equal(t, forced+1, m.NumForcedGC)
}

// garbage keeps what is assigned to it from living on a stack.
var garbage []byte

func TestWorth(t *testing.T) {
	require.False(t, use{}.worth(0))
	require.False(t, use{live: 100, allocated: worthBytes}.worth(0))
	require.True(t, use{live: 100, allocated: worthBytes + 1}.worth(0))
	require.False(t, use{live: 100, allocated: worthBytes + 1}.worth(1))
	require.False(t, use{live: 1 << 30, allocated: 1 << 28}.worth(0))
	require.True(t, use{live: 1 << 30, allocated: 1<<28 + 1}.worth(0))
}

func TestHeapRoom(t *testing.T) {
	require.Equal(t, roomyPercent, roomFor(0))
	require.Equal(t, roomyPercent, roomFor(heapRoom/4))
	require.Equal(t, 200, roomFor(heapRoom/2))
	require.Equal(t, tightPercent, roomFor(heapRoom))
	require.Equal(t, tightPercent, roomFor(100*heapRoom))

	t.Setenv("GOGC", "50") // whoever says what he wants gets it
	h := TendHeap()
	runtime.GC()
	require.Nil(t, h.rest)
	h.Stop()
}
