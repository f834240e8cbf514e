package measure

import (
	"context"
	"fmt"
	"io"
	"time"
)

const (
	connectReps = 5
	connects    = 40 // of each repetition
)

// Connects times do, which connects and makes one request, one at a time. Closing what it
// gives is not part of the time.
func (e *Env) Connects(ctx context.Context, name string, do func() (io.Closer, error)) error {
	for range connectReps {
		h := new(Hist)
		for range e.Amount(connects, 5) {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			began := time.Now()
			c, err := do()
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			h.Record(int64(time.Since(began)))
			if err := c.Close(); err != nil {
				return fmt.Errorf("%s: close: %w", name, err)
			}
		}
		e.Rec.Add(name+".p50", "µs", h.Quantile(.5)/1e3)
		e.Rec.Add(name+".p99", "µs", h.Quantile(.99)/1e3)
	}
	return nil
}
