package authority

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"coordinator/frames"
	"coordinator/internal/clock"
	"coordinator/witness"
)

// Lease lengths of protocol.md §4 [D-59].
const (
	DefaultLeaseSeconds = 15
	MinLeaseSeconds     = 6
	MaxLeaseSeconds     = 60
)

const (
	// pollEvery is how often a live lease is looked at. It is well under a third of the
	// shortest lease, so that no renewal by its holder goes unseen.
	pollEvery = time.Second
	// maxRises under one activation end the wait [D-59].
	maxRises = 3
	// reportEvery polls of an unchanged wait another line is reported.
	reportEvery = 5
	// maxUnanswered requests in a row end a start: a supervisor tries again, and says so.
	maxUnanswered = 3
	retryAfter    = 500 * time.Millisecond
	// maxRestarts bounds how often lost races and late certificates start over, so that a
	// witness which always refuses cannot hold a start for ever in silence.
	maxRestarts = 16
	// requestTimeout bounds one request, so that a witness which accepts and never answers
	// counts as one that gave no answer.
	requestTimeout = 5 * time.Second
)

// ActivateOptions is what [Activate] needs.
type ActivateOptions struct {
	Authority     witness.Authority
	Clock         clock.Clock
	Rand          io.Reader // source of the incarnation
	CoordinatorID frames.CoordinatorID
	// Epoch and Activation are what the store last installed; zero in a new store. The
	// certificate must lie above both [D-10].
	Epoch      frames.AuthorityEpoch
	Activation frames.ActivationSequence
	// LeaseSeconds is MinLeaseSeconds..MaxLeaseSeconds. Zero means DefaultLeaseSeconds.
	LeaseSeconds uint16
	// Progress gets a line for people each time a wait begins, rises or goes on. Nil
	// discards.
	Progress func(string)
}

// An Activation is one granted activation, ready to be installed and fenced.
type Activation struct {
	Certificate frames.Certificate
	lease       *Lease
}

// Activate obtains the certificate of a fresh incarnation at an epoch above store and
// witness (protocol.md §4). A live lease is waited for while its remaining time falls
// [D-59]. Errors: *[LeaseHeldError], *[RolledBackError], one that wraps
// [ErrWitnessUnavailable], or ctx's.
//
// The caller holds the store lock and has validated the store.
func Activate(ctx context.Context, o ActivateOptions) (*Activation, error) {
	if o.LeaseSeconds == 0 {
		o.LeaseSeconds = DefaultLeaseSeconds
	}
	if o.LeaseSeconds < MinLeaseSeconds || o.LeaseSeconds > MaxLeaseSeconds {
		return nil, fmt.Errorf("activate: lease of %d seconds is not %d to %d", o.LeaseSeconds, MinLeaseSeconds, MaxLeaseSeconds)
	}
	inc, err := frames.NewID[frames.IncarnationID](o.Rand)
	if err != nil {
		return nil, fmt.Errorf("activate: %w", err)
	}
	a := &activator{o: o, incarnation: inc}
	act, err := a.run(ctx)
	if err != nil {
		return nil, fmt.Errorf("activate: %w", err)
	}
	return act, nil
}

// activator is one start's conversation with the witness.
type activator struct {
	o           ActivateOptions
	incarnation frames.IncarnationID

	unanswered int // requests in a row without an answer
	restarts   int // lost races and late certificates

	// The lease that is waited for.
	holder  frames.ActivationSequence
	waiting bool
	last    time.Duration // what remained at the last poll
	rises   int
	polls   int
}

func (a *activator) run(ctx context.Context) (*Activation, error) {
	for {
		status, err := a.status(ctx)
		if err != nil {
			return nil, err
		}
		if status == nil { // no answer this time
			continue
		}
		if err := a.notBehind(status.LastEpoch, status.Activation, false); err != nil {
			return nil, err
		}
		if status.LeaseRemaining > 0 {
			if err := a.wait(ctx, status); err != nil {
				return nil, err
			}
			continue
		}
		act, err := a.attempt(ctx, status.LastEpoch)
		if act != nil || err != nil {
			return act, err
		}
	}
}

// status asks the witness. Both results are nil when it gave no answer but may be asked
// again.
func (a *activator) status(ctx context.Context) (*witness.Status, error) {
	rctx, cancel := withTimeout(ctx, a.o.Clock, requestTimeout)
	defer cancel()
	s, err := a.o.Authority.Status(rctx)
	if err != nil {
		return nil, a.noAnswer(ctx, err)
	}
	a.unanswered = 0
	return &s, nil
}

// noAnswer counts a request that was not answered, or was refused for a reason that has
// nothing to do with the lease. Nil means: try again.
func (a *activator) noAnswer(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	a.unanswered++
	var refused *witness.RefusedError
	final := errors.As(err, &refused) || errors.Is(err, witness.ErrImpostor)
	if final || a.unanswered >= maxUnanswered {
		return fmt.Errorf("%w: %w", ErrWitnessUnavailable, err)
	}
	a.say("no answer from the witness (%v); asking again", err)
	return sleep(ctx, a.o.Clock, retryAfter)
}

// wait lets a live lease run down, counting how often its remaining time rises [D-59].
func (a *activator) wait(ctx context.Context, s *witness.Status) error {
	remaining, holder := s.LeaseRemaining, s.Activation
	switch {
	case !a.waiting || holder != a.holder:
		a.waiting, a.holder, a.rises, a.polls = true, holder, 0, 0
		a.say("waiting for the lease of activation %d at epoch %d: %v remain", holder, s.LastEpoch, remaining)
	case remaining > a.last:
		a.rises++
		a.say("the lease of activation %d at epoch %d rose to %v (%d of %d)", holder, s.LastEpoch, remaining, a.rises, maxRises)
	case a.polls%reportEvery == 0:
		a.say("still waiting for the lease of activation %d at epoch %d: %v remain", holder, s.LastEpoch, remaining)
	}
	a.polls++
	a.last = remaining
	if a.rises >= maxRises {
		return &LeaseHeldError{Epoch: s.LastEpoch, Activation: holder}
	}
	return sleep(ctx, a.o.Clock, pollEvery)
}

// attempt sends one ACTIVATE. Both results are nil when the start goes over again.
func (a *activator) attempt(ctx context.Context, last frames.AuthorityEpoch) (*Activation, error) {
	floor := max(last, a.o.Epoch)
	if floor == math.MaxUint64 {
		return nil, fmt.Errorf("authority epochs are used up")
	}
	epoch := floor + 1
	rctx, cancel := withTimeout(ctx, a.o.Clock, requestTimeout)
	defer cancel()
	sent := a.o.Clock.Now()
	cert, err := a.o.Authority.Activate(rctx, epoch, a.incarnation, a.o.LeaseSeconds)
	var refused *witness.RefusedError
	switch {
	case err == nil:
		a.unanswered = 0
		return a.accept(ctx, cert, epoch, sent)
	case errors.As(err, &refused) && refused.Code == frames.CodeStaleAuthority:
		return nil, a.again(ctx, "the witness has meanwhile granted a higher epoch")
	case errors.As(err, &refused) && refused.Code == frames.CodeResourceExhausted:
		// A lease with less than a second left, or one granted since the status.
		a.unanswered = 0
		return nil, sleep(ctx, a.o.Clock, retryAfter)
	}
	// The request may have been granted and its certificate lost. The next status then
	// shows a lease that nobody can renew, and it is waited for like any other.
	return nil, a.noAnswer(ctx, err)
}

// accept checks a granted certificate against what was asked and what is installed.
func (a *activator) accept(ctx context.Context, cert frames.Certificate, epoch frames.AuthorityEpoch, sent clock.Reading) (*Activation, error) {
	if cert.CoordinatorID != a.o.CoordinatorID || cert.IncarnationID != a.incarnation || cert.Epoch != epoch {
		return nil, fmt.Errorf("%w: its certificate is for another coordinator, incarnation or epoch than was asked for", ErrWitnessUnavailable)
	}
	if err := a.notBehind(cert.Epoch, cert.Activation, true); err != nil {
		return nil, err
	}
	lease, err := NewLease(cert, sent)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrWitnessUnavailable, err)
	}
	if a.o.Clock.Now().Boot >= lease.Deadline() {
		return nil, a.again(ctx, "the certificate came after its own deadline")
	}
	return &Activation{Certificate: cert, lease: lease}, nil
}

// notBehind is D-10: a witness that knows less than the store installed, or (granted) gives
// no more than that, was rolled back.
func (a *activator) notBehind(epoch frames.AuthorityEpoch, act frames.ActivationSequence, granted bool) error {
	if granted && (epoch <= a.o.Epoch || act <= a.o.Activation) ||
		!granted && (epoch < a.o.Epoch || act < a.o.Activation) {
		return &RolledBackError{
			StoreEpoch: a.o.Epoch, StoreActivation: a.o.Activation,
			WitnessEpoch: epoch, WitnessActivation: act,
		}
	}
	return nil
}

// again starts the conversation over, the count of rises included.
func (a *activator) again(ctx context.Context, why string) error {
	a.waiting = false
	a.restarts++
	if a.restarts >= maxRestarts {
		return fmt.Errorf("%w: %s, %d times in a row", ErrWitnessUnavailable, why, a.restarts)
	}
	a.say("%s; starting over", why)
	return sleep(ctx, a.o.Clock, retryAfter)
}

func (a *activator) say(format string, args ...any) {
	if a.o.Progress != nil {
		a.o.Progress(fmt.Sprintf(format, args...))
	}
}

// sleep waits for d on clk.
func sleep(ctx context.Context, clk clock.Clock, d time.Duration) error {
	t := clk.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// withTimeout is context.WithTimeout on the injected clock. cancel joins its goroutine.
func withTimeout(ctx context.Context, clk clock.Clock, d time.Duration) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	t := clk.NewTimer(d)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer t.Stop()
		select {
		case <-t.C():
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		cancel()
		<-done
	}
}
