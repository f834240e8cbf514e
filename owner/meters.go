package owner

import (
	"sync/atomic"

	"coordinator/frames"
	"coordinator/internal/meter"
)

// Meters count what an owner does. They may be read from any goroutine.
type Meters struct {
	Started, Ended atomic.Uint64    // processes whose start, whose end is durable
	Rejected       atomic.Uint64    // processes that were not started
	Output         atomic.Uint64    // bytes that processes wrote and facts cover
	Unstored       atomic.Uint64    // bindings whose output could not be stored any more
	Journal        *meter.Histogram // nanoseconds of one transaction of the journal
}

// Meters are the owner's own counts.
func (o *Owner) Meters() *Meters { return o.meters }

// A Census is what the journal holds at a moment.
type Census struct {
	Live    int    // bindings whose process runs, or is being started
	Waiting int    // bindings that have ended and whose facts are not all acknowledged
	Closed  int    // bindings that have ended, of which nothing waits
	Lost    int    // bindings of former incarnations, of which nothing waits
	Unread  uint64 // facts that are not acknowledged
	Output  uint64 // bytes that facts cover, of all bindings
	// Effects counts attempts by state; those that were never seen are under [NeverSeen].
	Effects map[frames.EffectState]int
}

// Census reads the whole journal, which takes a moment when it is large.
func (o *Owner) Census() (Census, error) {
	c := Census{Effects: make(map[frames.EffectState]int)}
	err := o.j.view(func(t *txn) error {
		var b bindingRow
		t.each(bucketBindings, &b, func([]byte) { c.binding(&b) })
		var a attemptRow
		t.each(bucketAttempts, &a, func([]byte) { c.Effects[a.State]++ })
		return nil
	})
	return c, err
}

func (c *Census) binding(b *bindingRow) {
	c.Output += b.Output
	if b.unacked() {
		c.Unread += b.Last - b.Acked
	}
	switch {
	case b.State == bindingHeld || b.State == bindingLive:
		c.Live++
	case b.unacked():
		c.Waiting++
	case b.State == bindingLost:
		c.Lost++
	default:
		c.Closed++
	}
}

// MaxProcesses is how many may run at once.
func (o *Owner) MaxProcesses() int { return o.opt.MaxProcesses }
