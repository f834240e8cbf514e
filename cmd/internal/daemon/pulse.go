package daemon

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"coordinator/internal/clock"
)

const (
	// pulseEvery is how often the parts of a daemon are asked whether they go on.
	pulseEvery = time.Second
	// stuckAfter without a sign of life makes a part one that stands.
	stuckAfter = 10 * time.Second
)

// A Pulse remembers when the parts of a daemon last came round, so that a probe is answered
// whatever hangs. It also knows whether the daemon serves.
type Pulse struct {
	clock clock.Clock
	what  string

	serving atomic.Bool

	mu     sync.Mutex
	asked  time.Duration // guarded by mu: boot reading at which the turn under way began
	asking bool          // guarded by mu: one is under way
	err    error         // guarded by mu: why the last turn failed; nil when it did not
	on     bool          // guarded by mu: there is somebody to ask
}

// NewPulse makes a pulse that knows of nothing yet.
func NewPulse(c clock.Clock) *Pulse { return &Pulse{clock: c} }

// Run asks turn again and again until ctx ends, from when on nothing is served any more; it
// returns nil once what it asks about, which is called what in answers, has come round. Run
// waits as long as turn does.
func (u *Pulse) Run(ctx context.Context, what string, turn func(context.Context) error) error {
	stop := context.AfterFunc(ctx, func() { u.Serves(false) })
	defer stop()
	u.mu.Lock()
	u.what, u.on = what, true
	u.mu.Unlock()
	defer func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.on = false
	}()
	t := u.clock.NewTimer(pulseEvery)
	defer t.Stop()
	for {
		u.mu.Lock()
		u.asked, u.asking = u.clock.Now().Boot, true
		u.mu.Unlock()
		err := turn(ctx)
		if ctx.Err() != nil {
			return nil
		}
		u.mu.Lock()
		u.err, u.asking = err, false
		u.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil
		case <-t.C():
			t.Reset(pulseEvery)
		}
	}
}

// Serves says whether the daemon's listeners are up.
func (u *Pulse) Serves(is bool) { u.serving.Store(is) }

// Healthy is nil unless what is asked fails, or has not answered for long: a machine that slept
// between two questions has hidden nothing. A start and a stop are healthy.
func (u *Pulse) Healthy() Ailment {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch silent := u.clock.Now().Boot - u.asked; {
	case !u.on:
		return nil
	case u.err != nil:
		return fmt.Errorf("%s: %w", u.what, u.err)
	case u.asking && silent > stuckAfter:
		return fmt.Errorf("%s has not come round for %v", u.what, silent.Round(time.Second))
	}
	return nil
}

// Ready is nil while the daemon serves and is healthy.
func (u *Pulse) Ready() Ailment {
	if !u.serving.Load() {
		return errNotServing
	}
	return u.Healthy()
}

var errNotServing = errors.New("starting or stopping: the listeners are not up")
