package daemon

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"
)

const (
	// restful is how far apart collections lie that are no burden.
	restful = time.Second
	// heapRest is how long after the last of many collections the heap is kept tight again.
	heapRest = 3 * time.Second
	// heapRoom is what a heap under load may grow by between two collections, beyond what it
	// holds, up to roomyPercent of that.
	heapRoom     = 256 << 20
	roomyPercent = 400
	tightPercent = 100
)

// A Heap gives the collector room while it would run many times a second, and takes the
// room back when the load has gone: a small heap is cheap to keep small while nothing
// happens, and dear under load.
type Heap struct {
	mu      sync.Mutex
	percent int         // guarded by mu
	last    time.Time   // guarded by mu: of the last collection
	rest    *time.Timer // guarded by mu
	stopped bool        // guarded by mu
}

// TendHeap begins to tend the heap of this process, until it is stopped. It does nothing
// when GOGC says what is wanted.
func TendHeap() *Heap {
	h := &Heap{percent: tightPercent}
	if os.Getenv("GOGC") != "" {
		return h
	}
	h.rest = time.AfterFunc(heapRest, func() { h.set(tightPercent) })
	h.watch()
	return h
}

// Stop leaves the heap as the runtime would have it.
func (h *Heap) Stop() {
	h.set(tightPercent)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stopped = true
	if h.rest != nil {
		h.rest.Stop()
	}
}

// A cycle is garbage from the beginning, so that its cleanup runs after each collection.
type cycle struct{ _ *byte }

func (h *Heap) watch() {
	runtime.AddCleanup(&cycle{new(byte)}, func(h *Heap) { h.collected(time.Now()) }, h)
}

// collected is called after each collection.
func (h *Heap) collected(now time.Time) {
	h.mu.Lock()
	often := now.Sub(h.last) < restful
	h.last = now
	stopped := h.stopped
	if !stopped {
		h.rest.Reset(heapRest)
	}
	h.mu.Unlock()
	switch {
	case stopped:
		return
	case often:
		h.set(roomFor(liveHeap()))
	}
	h.watch()
}

// roomFor is the percentage that gives a heap its room.
func roomFor(live uint64) int {
	return int(max(tightPercent, min(roomyPercent, heapRoom*100/max(live, 1))))
}

func liveHeap() uint64 {
	s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(s)
	if s[0].Value.Kind() != metrics.KindUint64 {
		return heapRoom
	}
	return s[0].Value.Uint64()
}

// set changes the percentage where that makes a difference: it stops the world for a moment.
func (h *Heap) set(percent int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if d := percent - h.percent; h.stopped || d == 0 || percent != tightPercent && d*d < 400 {
		return
	}
	h.percent = percent
	debug.SetGCPercent(percent)
}
