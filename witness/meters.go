package witness

import (
	"sync/atomic"
	"time"

	"coordinator/internal/meter"
)

// Meters count what a witness grants. They may be read from any goroutine.
type Meters struct {
	Granted      atomic.Uint64 // activations
	Renewed      atomic.Uint64
	Relinquished atomic.Uint64
	Store        *meter.Histogram // nanoseconds in which one of them became durable
}

// Meters are the witness's own counts.
func (w *Witness) Meters() *Meters { return &w.meters }

// A Census is where the coordinators of a witness stand at a moment.
type Census struct {
	Live, Ended, Relinquished int           // leases, one for each coordinator
	Soonest                   time.Duration // what the live lease that ends first has left; zero without one
}

// Census counts. It waits for a grant that is being stored.
func (w *Witness) Census() Census {
	w.mu.Lock()
	defer w.mu.Unlock()
	var c Census
	now := w.opt.Clock.Now().Boot
	for _, l := range w.leases {
		switch {
		case l.Spent:
			c.Relinquished++
		case !l.live(now):
			c.Ended++
		default:
			c.Live++
			if left := l.Expires - now; c.Soonest == 0 || left < c.Soonest {
				c.Soonest = left
			}
		}
	}
	return c
}
