// Package meter counts for whoever watches a running daemon: histograms with fixed buckets
// beside the plain atomic integers that need no package.
//
// It knows nothing of how counts leave the process. To observe allocates nothing, takes no
// lock and reads no clock: it costs two atomic additions.
package meter

import (
	"sync/atomic"
	"time"
)

// A Histogram counts whole numbers (nanoseconds, items) in buckets. The zero value counts in
// one bucket without bounds, and nil counts nothing; [New] makes others. Its methods may be
// called from any goroutine.
type Histogram struct {
	bounds []uint64 // ascending; a bucket holds what is at most its bound
	counts []atomic.Uint64
	rest   atomic.Uint64 // above every bound
	sum    atomic.Uint64
}

// New makes a histogram whose buckets end at the given bounds, which ascend.
func New(bounds ...uint64) *Histogram {
	for i := 1; i < len(bounds); i++ {
		if bounds[i] <= bounds[i-1] {
			panic("meter: the bounds of a histogram do not ascend")
		}
	}
	return &Histogram{bounds: bounds, counts: make([]atomic.Uint64, len(bounds))}
}

// NewDurations is New for durations.
func NewDurations(bounds ...time.Duration) *Histogram {
	whole := make([]uint64, len(bounds))
	for i, b := range bounds {
		whole[i] = uint64(b)
	}
	return New(whole...)
}

// Observe counts one value.
func (h *Histogram) Observe(v uint64) {
	if h == nil {
		return
	}
	h.sum.Add(v)
	for i, b := range h.bounds { // a dozen or so: searching would not be faster
		if v <= b {
			h.counts[i].Add(1)
			return
		}
	}
	h.rest.Add(1)
}

// Took counts a duration; one below zero, which only a clock of a test has, counts as none.
func (h *Histogram) Took(d time.Duration) { h.Observe(uint64(max(d, 0))) }

// A Snapshot is what a histogram holds at a moment. Values that are counted meanwhile may be
// in Sum and not yet in a bucket.
type Snapshot struct {
	Bounds []uint64 // shared; not to be changed
	Counts []uint64 // of each bucket alone, not of those below it
	Count  uint64   // of all values
	Sum    uint64
}

// Snapshot reads the histogram.
func (h *Histogram) Snapshot() Snapshot {
	s := Snapshot{Bounds: h.bounds, Counts: make([]uint64, len(h.bounds)), Sum: h.sum.Load()}
	for i := range h.counts {
		s.Counts[i] = h.counts[i].Load()
		s.Count += s.Counts[i]
	}
	s.Count += h.rest.Load()
	return s
}

// Bounds of durations that several rooms measure.
var (
	// FlushBounds suit one write and flush of a disk, from memory to a disk in trouble.
	FlushBounds = []time.Duration{
		50 * time.Microsecond, 100 * time.Microsecond, 250 * time.Microsecond, 500 * time.Microsecond,
		time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond,
		50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond,
		time.Second, 2500 * time.Millisecond, 5 * time.Second,
	}
	// WorkBounds suit what runs in the background, up to minutes.
	WorkBounds = []time.Duration{
		time.Millisecond, 5 * time.Millisecond, 25 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond,
		500 * time.Millisecond, time.Second, 2500 * time.Millisecond, 5 * time.Second, 10 * time.Second, 30 * time.Second, time.Minute,
	}
)
