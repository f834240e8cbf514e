package store

import (
	"sync/atomic"
	"time"

	"coordinator/internal/meter"
)

// Meters count what a store does with its disk. They may be read from any goroutine.
type Meters struct {
	Flush      *meter.Histogram // nanoseconds of the flush of one commit
	Checkpoint *meter.Histogram // nanoseconds from the first to the last transaction of a checkpoint
	Behind     atomic.Uint64    // commits that waited because the disk was behind with a checkpoint
}

func newMeters() *Meters {
	return &Meters{Flush: meter.NewDurations(meter.FlushBounds...), Checkpoint: meter.NewDurations(meter.WorkBounds...)}
}

// Meters are the store's own counts.
func (s *Store) Meters() *Meters { return s.meters }

// A stopwatch is a reading of the machine's monotonic clock, which is no system call and tells
// of nothing but how long something took here: nothing is decided by it, so that a simulation
// does not see it.
type stopwatch struct{ began time.Time }

func startWatch() stopwatch { return stopwatch{time.Now()} }

func (w stopwatch) took(h *meter.Histogram) { h.Took(time.Since(w.began)) }
