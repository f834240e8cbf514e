package authority

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"coordinator/frames"
	"coordinator/internal/clock"
	"coordinator/witness"
)

const (
	// watchEvery is the longest the keeper sleeps: an idle process too must see that its
	// clocks diverged, and be renewed before the first command asks.
	watchEvery = time.Second
	// First and longest pause between renewals that were not answered.
	firstBackoff = 100 * time.Millisecond
	maxBackoff   = time.Second
	// attemptFraction of the requested lease bounds one renewal, so that a witness that
	// accepts and stays silent leaves room for several attempts before the deadline.
	attemptFraction = 6
)

// KeeperOptions is what [NewKeeper] needs.
type KeeperOptions struct {
	Fence     *Fence
	Authority witness.Authority
	Clock     clock.Clock
	// Lock is compared with its file at each renewal. Losing it fences.
	Lock LockChecker
	// LeaseSeconds as in [ActivateOptions].
	LeaseSeconds uint16
	// OnRenewed is called on the keeper's goroutine with each certificate that expires
	// later than the one before. It must not block. Connections may instead watch
	// [Fence.Changed]. Nil is ignored.
	OnRenewed func(frames.Certificate)
	// Logger gets a line for each renewal that failed and one for the fencing. Nil discards.
	Logger *slog.Logger
}

// A Keeper renews the lease at one third of it, again and again, and fences when the
// witness refuses, the store lock is lost or the deadline passes (protocol.md §4 [D-9]).
type Keeper struct {
	o        KeeperOptions
	asked    chan struct{} // taken by Run each time it comes round
	backoff  time.Duration // owned by Run
	retryAt  time.Duration // boot reading; owned by Run
	notified uint64        // expires_at that clients were told of; owned by Run

	turned                    atomic.Int64 // boot reading at which Run last came round
	renewals, unheard, denied atomic.Uint64
}

// Renewals are the renewals that a keeper has sent, by how they ended.
type Renewals struct {
	Renewed    uint64 // a certificate came
	Unanswered uint64 // no answer, or none that proves anything
	Refused    uint64 // the lease is another's, which is final
}

// Renewals reads the counts.
func (k *Keeper) Renewals() Renewals {
	return Renewals{Renewed: k.renewals.Load(), Unanswered: k.unheard.Load(), Refused: k.denied.Load()}
}

// Turned is the boot reading at which Run last came round, which it does every second, or
// after a renewal that gets no answer; the reading of [NewKeeper] before.
func (k *Keeper) Turned() time.Duration { return time.Duration(k.turned.Load()) }

// NewKeeper returns a keeper that does nothing until Run.
func NewKeeper(o KeeperOptions) *Keeper {
	if o.LeaseSeconds == 0 {
		o.LeaseSeconds = DefaultLeaseSeconds
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	k := &Keeper{o: o, asked: make(chan struct{}), notified: o.Fence.Current().ExpiresAt}
	k.turned.Store(int64(o.Clock.Now().Boot))
	return k
}

// Turn returns nil once Run has come round after the call, so that the lease is looked after.
// It waits for as long as Run does not, or until ctx ends.
func (k *Keeper) Turn(ctx context.Context) error {
	select {
	case k.asked <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Run keeps the lease until ctx is cancelled or [Fence.Stop] is called (nil), or until the
// fence closes for another reason (its final error). It starts nothing that outlives it.
func (k *Keeper) Run(ctx context.Context) error {
	timer := k.o.Clock.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-k.o.Fence.Fenced():
			return k.fenced()
		case <-k.o.Fence.urgent:
		case <-k.asked:
		case <-timer.C():
		}
		now := k.o.Clock.Now()
		k.turned.Store(int64(now.Boot))
		if err := k.o.Fence.Check(); errors.Is(err, ErrFenced) {
			return k.fenced()
		}
		renewAt, deadline := k.o.Fence.schedule()
		if due := max(renewAt, k.retryAt); now.Boot >= due {
			k.renew(ctx, deadline-now.Boot)
			select {
			case <-k.asked: // an attempt that is followed at once keeps nobody waiting for longer
			default:
			}
		}
		timer.Reset(k.pause())
	}
}

// pause is how long Run may sleep.
func (k *Keeper) pause() time.Duration {
	now := k.o.Clock.Now().Boot
	renewAt, deadline := k.o.Fence.schedule()
	return max(0, min(watchEvery, max(renewAt, k.retryAt)-now, deadline-now))
}

// renew makes one attempt. What is final about its outcome, Run finds at the fence.
func (k *Keeper) renew(ctx context.Context, left time.Duration) {
	if err := k.o.Lock.Check(); err != nil {
		k.o.Fence.Close(fmt.Errorf("%w: %w", ErrLockLost, err))
		return
	}
	attempt := min(left, time.Duration(k.o.LeaseSeconds)*time.Second/attemptFraction)
	rctx, cancel := withTimeout(ctx, k.o.Clock, attempt)
	defer cancel()
	sent := k.o.Clock.Now()
	cert, err := k.o.Authority.Renew(rctx, k.o.Fence.Current(), k.o.LeaseSeconds)
	var refused *witness.RefusedError
	if errors.As(err, &refused) && refused.Code == frames.CodeStaleAuthority {
		k.denied.Add(1)
		k.o.Fence.Close(ErrSuperseded)
		return
	}
	later := false
	if err == nil {
		later, err = k.o.Fence.renewed(cert, sent)
	}
	if err != nil {
		k.unanswered(sent, err)
		return
	}
	k.renewals.Add(1)
	k.backoff, k.retryAt = 0, 0
	if later && cert.ExpiresAt > k.notified {
		k.notified = cert.ExpiresAt
		if k.o.OnRenewed != nil {
			k.o.OnRenewed(cert)
		}
	}
}

// unanswered plans the next attempt after one that was sent at sent and proves nothing. The
// pause counts from there: an attempt that took its whole time is followed at once.
func (k *Keeper) unanswered(sent clock.Reading, err error) {
	k.unheard.Add(1)
	_, deadline := k.o.Fence.schedule()
	k.backoff = min(max(2*k.backoff, firstBackoff), maxBackoff)
	k.retryAt = sent.Boot + k.backoff
	k.o.Logger.Warn("lease renewal got no answer", "err", err, "deadline_in", max(0, deadline-k.o.Clock.Now().Boot))
}

// fenced logs and returns the final error; a stop of our own is none.
func (k *Keeper) fenced() error {
	err := k.o.Fence.Err()
	if errors.Is(err, ErrStopped) {
		return nil
	}
	k.o.Logger.Error("fenced", "err", err)
	return err
}

// Relinquish gives the lease back, after [Fence.Stop] returned nil, every connection is
// closed and Run has returned. It refuses when somebody is still inside the fence, when the
// process was fenced for another reason than its own stop, and past the deadline: in all
// of them the lease must run out by itself (protocol.md §4 [D-48]).
func (k *Keeper) Relinquish(ctx context.Context) error {
	f := k.o.Fence
	if err := f.Err(); !errors.Is(err, ErrStopped) {
		return fmt.Errorf("relinquish: not fenced by a stop: %v", err)
	}
	if !f.idle() {
		return fmt.Errorf("relinquish: work that had passed the fence is still running")
	}
	left := f.remaining()
	if left <= 0 {
		return fmt.Errorf("relinquish: %w", ErrLeaseEnded)
	}
	rctx, cancel := withTimeout(ctx, k.o.Clock, left)
	defer cancel()
	if err := k.o.Authority.Relinquish(rctx, f.Current()); err != nil {
		return fmt.Errorf("relinquish: %w", err)
	}
	return nil
}
