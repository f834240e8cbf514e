package authority

import (
	"context"
	"fmt"
	"sync"
	"time"

	"coordinator/frames"
	"coordinator/internal/clock"
)

// A Fence is the one gate of the process. Whatever has an effect outside of it, a commit,
// a dispatch or a write to a transport, enters the fence first and leaves when it has
// returned, so that a stop can wait for all of them (protocol.md §4 [D-48]).
//
// All methods may be called from any goroutine; none blocks but [Fence.Stop].
type Fence struct {
	clock clock.Clock
	guard frames.AuthorityGuard // constant: renewals keep all that it holds
	leave func()                // f.exit as a value, so that Enter allocates nothing

	mu      sync.Mutex
	lease   *Lease        // guarded by mu
	inside  int           // guarded by mu: entries not yet left
	changed chan struct{} // guarded by mu: closed and replaced at each change
	drained chan struct{} // guarded by mu: closed when inside falls to zero; nil when nobody waits
	fenced  chan struct{} // closed once fenced
	urgent  chan struct{} // one slot: the clocks were seen to diverge
}

// NewFence opens the fence for a granted activation.
func NewFence(a *Activation, clk clock.Clock) *Fence {
	f := &Fence{
		clock:   clk,
		guard:   a.Certificate.Guard(),
		lease:   a.lease,
		changed: make(chan struct{}),
		fenced:  make(chan struct{}),
		urgent:  make(chan struct{}, 1),
	}
	f.leave = f.exit
	return f
}

// Check reports whether the process may act now: nil, [ErrDiverged], or an error that
// wraps [ErrFenced].
func (f *Fence) Check() error {
	now := f.clock.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.checkLocked(now)
}

// Enter is Check for work that lasts: on nil the caller is counted inside until it calls
// leave, exactly once, after its last effect.
func (f *Fence) Enter() (leave func(), err error) {
	now := f.clock.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.checkLocked(now); err != nil {
		return nil, err
	}
	f.inside++
	return f.leave, nil
}

func (f *Fence) exit() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.inside == 0 {
		panic("authority: fence left more often than entered")
	}
	f.inside--
	if f.inside == 0 && f.drained != nil {
		close(f.drained)
		f.drained = nil
	}
}

func (f *Fence) checkLocked(now clock.Reading) error {
	was := f.lease.diverged
	err := f.lease.Check(now)
	if f.lease.Fenced() != nil {
		f.closeLocked()
	} else if err != nil && !was {
		select {
		case f.urgent <- struct{}{}: // wakes the keeper to renew at once
		default:
		}
	}
	return err
}

// closeLocked announces that the lease is fenced.
func (f *Fence) closeLocked() {
	select {
	case <-f.fenced:
	default:
		close(f.fenced)
		f.changeLocked()
	}
}

func (f *Fence) changeLocked() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// Changed gives a channel that is closed at the next renewal or when the fence closes.
// Take it before looking at [Fence.Current] or [Fence.Check], and no change is missed; a
// reader that is slow sees only the newest state.
func (f *Fence) Changed() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}

// Fenced gives a channel that is closed once the fence is final. The deadline itself is
// noticed by whoever checks first, at the latest by the running [Keeper].
func (f *Fence) Fenced() <-chan struct{} { return f.fenced }

// Err gives the final error once fenced, else nil. It reads no clock.
func (f *Fence) Err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lease.Fenced()
}

// Current gives the newest certificate.
func (f *Fence) Current() frames.Certificate {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lease.Current()
}

// Guard gives the values that every request must carry (protocol.md §3). They stay the
// same for the life of the process.
func (f *Fence) Guard() frames.AuthorityGuard { return f.guard }

// Close fences the process for the reason cause. Only the first reason counts.
func (f *Fence) Close(cause error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lease.Fence(cause)
	f.closeLocked()
}

// Stop fences the process and waits until everything that had passed the fence has left.
// An error means that this did not end before the lease deadline, or before ctx did; the
// lease must then not be relinquished.
func (f *Fence) Stop(ctx context.Context) error {
	f.Close(ErrStopped)
	f.mu.Lock()
	left := f.lease.Deadline() - f.clock.Now().Boot
	if f.inside == 0 {
		f.mu.Unlock()
		return f.beforeDeadline()
	}
	if f.drained == nil {
		f.drained = make(chan struct{})
	}
	drained := f.drained
	f.mu.Unlock()
	timer := f.clock.NewTimer(max(left, 0))
	defer timer.Stop()
	select {
	case <-drained:
		return f.beforeDeadline()
	case <-timer.C():
		return fmt.Errorf("stop: work that had passed the fence was still running: %w", ErrLeaseEnded)
	case <-ctx.Done():
		return fmt.Errorf("stop: work that had passed the fence was still running: %w", ctx.Err())
	}
}

func (f *Fence) beforeDeadline() error {
	if f.remaining() <= 0 {
		return fmt.Errorf("stop: %w", ErrLeaseEnded)
	}
	return nil
}

// remaining is the time left before the deadline, whatever the fence says.
func (f *Fence) remaining() time.Duration {
	now := f.clock.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lease.Deadline() - now.Boot
}

// Remaining is the time left before the deadline of the lease, zero once fenced.
func (f *Fence) Remaining() time.Duration {
	if f.Err() != nil {
		return 0
	}
	return max(f.remaining(), 0)
}

// idle reports whether nobody is inside.
func (f *Fence) idle() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.inside == 0
}

// renewed hands a renewal's answer to the lease. It reports whether the certificate is
// one that clients can take: a later expiry than the one they have.
func (f *Fence) renewed(cert frames.Certificate, sent clock.Reading) (later bool, err error) {
	now := f.clock.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	had := f.lease.Current().ExpiresAt
	err = f.lease.Renewed(cert, sent, now)
	if f.lease.Fenced() != nil {
		f.closeLocked()
		return false, err
	}
	if err != nil {
		return false, err
	}
	f.changeLocked()
	return cert.ExpiresAt > had, nil
}

// schedule gives the boot readings at which a renewal is due and at which all ends.
func (f *Fence) schedule() (renewAt, deadline time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lease.RenewAt(), f.lease.Deadline()
}
