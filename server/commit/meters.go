package commit

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"coordinator/internal/meter"
	"coordinator/server/authority"
)

// Meters count what the writer does. They may be read from any goroutine.
type Meters struct {
	// Commit has the nanoseconds from the first decision of a batch until its replies are
	// out, of batches that wrote something; a wait for diverged clocks in between included.
	Commit *meter.Histogram
	// Batch has the items, commands and the server's own changes, that one commit decided.
	Batch *meter.Histogram
	// Refetched counts items whose prefetch had gone stale.
	Refetched atomic.Uint64
}

func newMeters() *Meters {
	return &Meters{
		Commit: meter.NewDurations(meter.FlushBounds...),
		Batch:  meter.New(1, 2, 4, 8, 16, 32, 64, 128, 256, maxProposals),
	}
}

// Meters are the writer's own counts.
func (w *Writer) Meters() *Meters { return w.meters }

// note counts a round that is out.
func (m *Meters) note(r *round) {
	if !r.durable {
		return
	}
	m.Commit.Took(time.Since(r.began))
	m.Batch.Observe(uint64(len(r.items)))
}

// A Depth is what waits for the writer at a moment.
type Depth struct {
	Queued      int // prefetched, for the next commit
	Stale       int // to be prefetched again
	Calls       int // to be run between two commits
	Outstanding int // proposals that are not answered yet, queued and stale ones included
	Limit       int // of Outstanding
}

// Depth reads what waits.
func (w *Writer) Depth() Depth {
	w.mu.Lock()
	defer w.mu.Unlock()
	return Depth{Queued: len(w.queue), Stale: len(w.stale), Calls: len(w.calls), Outstanding: w.outstanding, Limit: w.o.QueueLimit}
}

// Ping is Turn, but returns nil at once when the writer waits for a renewal of the lease
// because the clocks have diverged, which is not its fault.
func (w *Writer) Ping(ctx context.Context) error {
	if errors.Is(w.o.Fence.Check(), authority.ErrDiverged) {
		return nil
	}
	return w.Turn(ctx)
}
