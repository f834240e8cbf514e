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

	// glance is how often a heap that was collected is looked at, until it is at rest: nothing
	// was collected for heapRest, and no more than quietBytes were allocated since the last
	// glance.
	glance     = time.Second
	quietBytes = 1 << 20
	// worthBytes is the least that must have been allocated since memory was given back, beside
	// a quarter of what lives, for a collection to be worth it.
	worthBytes = 8 << 20
)

// A Heap gives the collector room while it would run many times a second, and takes the
// room back when the load has gone: a small heap is cheap to keep small while nothing
// happens, and dear under load. At rest it collects once more and gives the memory back
// that a load has left behind; the runtime alone would keep it for minutes.
type Heap struct {
	mu      sync.Mutex
	percent int         // guarded by mu
	last    time.Time   // guarded by mu: of the last collection
	rest    *time.Timer // guarded by mu
	giving  bool        // guarded by mu: the next collection is its own
	stopped bool        // guarded by mu

	allocated uint64 // guarded by mu: up to the last glance
	given     uint64 // guarded by mu: had been allocated when memory was last given back
}

// TendHeap begins to tend the heap of this process, until it is stopped. It does nothing
// when GOGC says what is wanted.
func TendHeap() *Heap {
	h := &Heap{percent: tightPercent}
	if os.Getenv("GOGC") != "" {
		return h
	}
	h.mu.Lock()
	h.rest = time.AfterFunc(glance, func() { h.glance(time.Now()) })
	h.mu.Unlock()
	h.watch()
	return h
}

// Stop leaves the heap as the runtime would have it.
func (h *Heap) Stop() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.setLocked(tightPercent)
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
	stopped, own := h.stopped, h.giving
	h.giving = false
	if !stopped && !own {
		h.rest.Reset(glance)
	}
	h.mu.Unlock()
	switch {
	case stopped:
		return
	case often && !own:
		h.set(roomFor(look().live))
	}
	h.watch()
}

// glance looks whether the heap is at rest, and comes again while it is not.
func (h *Heap) glance(now time.Time) {
	u := look()
	h.mu.Lock()
	quiet := u.allocated-h.allocated <= quietBytes
	h.allocated = u.allocated
	rested := now.Sub(h.last) >= heapRest
	giving := rested && quiet && u.worth(h.given) && !h.stopped
	h.giving = giving
	if giving {
		h.given = u.allocated
	}
	if !h.stopped && !(rested && quiet) {
		h.rest.Reset(glance)
	}
	h.mu.Unlock()
	if rested {
		h.set(tightPercent)
	}
	if giving {
		debug.FreeOSMemory()
	}
}

// A use is what the runtime says of the heap, in bytes.
type use struct {
	live      uint64 // found by the last collection
	allocated uint64 // ever
}

// worth reports whether a collection may give much back, when memory was given back at given.
// How much lived at the last collection is no measure of that: what a load has let go since,
// such as the changes of a checkpoint, is still part of it.
func (u use) worth(given uint64) bool { return u.allocated-given > max(u.live/4, worthBytes) }

func look() (u use) {
	s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s)
	for i := range s {
		if s[i].Value.Kind() != metrics.KindUint64 {
			return use{live: heapRoom} // a runtime that does not say it gets no room, and nothing is worth it
		}
	}
	return use{live: s[0].Value.Uint64(), allocated: s[1].Value.Uint64()}
}

// roomFor is the percentage that gives a heap its room.
func roomFor(live uint64) int {
	return int(max(tightPercent, min(roomyPercent, heapRoom*100/max(live, 1))))
}

func (h *Heap) set(percent int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.setLocked(percent)
}

// setLocked changes the percentage where that makes a difference: it stops the world for a
// moment. It holds mu.
func (h *Heap) setLocked(percent int) {
	if d := percent - h.percent; h.stopped || d == 0 || percent != tightPercent && d*d < 400 {
		return
	}
	h.percent = percent
	debug.SetGCPercent(percent)
}
