package daemon

import (
	"runtime"
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
