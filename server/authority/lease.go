package authority

import (
	"fmt"
	"math"
	"time"

	"coordinator/frames"
	"coordinator/internal/clock"
)

const (
	// leaseMargin lies between the deadline and the end of the lease, because a pause of
	// this length can stay unseen (protocol.md §4 [D-9]).
	leaseMargin = 2 * time.Second
	// maxDivergence is how far the two clocks may move apart before nothing passes [D-9].
	maxDivergence = 2 * time.Second
	// renewFraction of the lease after which it is renewed [D-9].
	renewFraction = 3
	// maxCertificateLife bounds expires_at - issued_at (protocol.md §4).
	maxCertificateLife = 60
)

// A Lease is the state machine of one activation's lease. Readings go in, decisions come
// out; it owns no clock, no goroutine and no lock.
//
// A certificate counts from the pair of clocks read when the request that it answers was
// sent. The wall clock neither ends nor extends it.
type Lease struct {
	cert     frames.Certificate
	sent     clock.Reading // the pair that cert counts from
	length   time.Duration // expires_at - issued_at
	fenced   error         // final once set; wraps ErrFenced
	diverged bool
	// seen is when the clocks were last seen to have moved apart, from the pair that counts
	// or again from here. Only a renewal sent at or after it ends the divergence.
	seen clock.Reading
}

// NewLease starts the lease that cert grants to a request sent at the reading sent.
func NewLease(cert frames.Certificate, sent clock.Reading) (*Lease, error) {
	length, err := certificateLength(cert)
	if err != nil {
		return nil, err
	}
	return &Lease{cert: cert, sent: sent, length: length}, nil
}

func certificateLength(cert frames.Certificate) (time.Duration, error) {
	if cert.ExpiresAt <= cert.IssuedAt || cert.ExpiresAt-cert.IssuedAt > maxCertificateLife {
		return 0, fmt.Errorf("certificate: life from %d to %d is not 1 to %d seconds", cert.IssuedAt, cert.ExpiresAt, maxCertificateLife)
	}
	return time.Duration(cert.ExpiresAt-cert.IssuedAt) * time.Second, nil
}

// Current is the certificate in force, the newest one that was accepted.
func (l *Lease) Current() frames.Certificate { return l.cert }

// Deadline is the boot reading from which on nothing is started or acknowledged.
func (l *Lease) Deadline() time.Duration { return l.sent.Boot + l.length - leaseMargin }

// RenewAt is the boot reading at which a renewal is due; it is due at once while the
// clocks have diverged.
func (l *Lease) RenewAt() time.Duration {
	if l.diverged {
		return math.MinInt64
	}
	return l.sent.Boot + l.length/renewFraction
}

// Check reports whether the process may act at now: nil, [ErrDiverged], or an error that
// wraps [ErrFenced] and stays.
func (l *Lease) Check(now clock.Reading) error {
	if err := l.alive(now); err != nil {
		return err
	}
	if !l.diverged && apart(l.sent, now) || l.diverged && apart(l.seen, now) {
		l.diverged, l.seen = true, now
	}
	if l.diverged {
		return ErrDiverged
	}
	return nil
}

// alive fences at the deadline and gives the final error, if any.
func (l *Lease) alive(now clock.Reading) error {
	if l.fenced == nil && now.Boot >= l.Deadline() {
		l.Fence(ErrLeaseEnded)
	}
	return l.fenced
}

// apart reports whether wall clock and BOOTTIME have advanced by amounts that differ too
// much since the reading from.
func apart(from, now clock.Reading) bool {
	d := now.Wall.Sub(from.Wall) - (now.Boot - from.Boot)
	return d > maxDivergence || d < -maxDivergence
}

// Renewed takes the certificate that answers a renewal sent at the reading sent, at now.
// Epoch, activation, token and holder must be those in force. An answer that comes after
// the deadline comes too late and fences.
func (l *Lease) Renewed(cert frames.Certificate, sent, now clock.Reading) error {
	if err := l.alive(now); err != nil {
		return err
	}
	if err := sameAuthority(l.cert, cert); err != nil {
		return err
	}
	length, err := certificateLength(cert)
	if err != nil {
		return err
	}
	l.cert, l.sent, l.length = cert, sent, length
	if l.diverged && sent.Boot >= l.seen.Boot {
		l.diverged = false
	}
	return l.alive(now)
}

// sameAuthority refuses a certificate that is not a renewal of have.
func sameAuthority(have, got frames.Certificate) error {
	switch {
	case got.WitnessID != have.WitnessID || got.WitnessKeyID != have.WitnessKeyID:
		return fmt.Errorf("renewed certificate: is of another witness")
	case got.CoordinatorID != have.CoordinatorID:
		return fmt.Errorf("renewed certificate: names another coordinator")
	case got.Epoch != have.Epoch || got.Activation != have.Activation:
		return fmt.Errorf("renewed certificate: is of epoch %d and activation %d, not %d and %d",
			got.Epoch, got.Activation, have.Epoch, have.Activation)
	case got.IncarnationID != have.IncarnationID || got.Token != have.Token:
		return fmt.Errorf("renewed certificate: names another holder")
	}
	return nil
}

// Fence ends the lease for this process, once and for all, for the reason cause.
func (l *Lease) Fence(cause error) {
	if l.fenced == nil {
		l.fenced = fmt.Errorf("%w: %w", ErrFenced, cause)
	}
}

// Fenced gives the final error, or nil while the lease may still be held.
func (l *Lease) Fenced() error { return l.fenced }
