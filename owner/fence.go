package owner

import (
	"context"
	"errors"
	"sync"
	"time"

	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/clock"
)

// A fence holds one coordinator's connections to its highest authority ([D-49]).
type fence struct {
	turn chan struct{} // holds one token: the right to raise the authority

	// The rest is guarded by the owner's mu.
	highest authorityRow        // as journaled; zero when none was seen yet
	raising bool                // a higher one is being taken: nothing else is admitted
	holders map[holder]struct{} // connections under highest
}

// A holder is a connection that acts under an authority.
type holder interface {
	// fenced ends the connection, which a higher authority has replaced. It does not wait.
	fenced()
	// Done is closed when it has ended.
	Done() <-chan struct{}
}

func newFence(highest authorityRow) *fence {
	f := &fence{turn: make(chan struct{}, 1), highest: highest, holders: map[holder]struct{}{}}
	f.turn <- struct{}{}
	return f
}

// A claim is the authority that one connection has shown, for as long as its certificate lasts.
type claim struct {
	coordinator frames.CoordinatorID
	authority   authorityRow
	guard       frames.AuthorityGuard

	mu       sync.Mutex
	expires  uint64        // guarded by mu; Unix seconds
	deadline time.Duration // guarded by mu; BOOTTIME
}

func newClaim(cert *frames.Certificate, now clock.Reading) *claim {
	c := &claim{
		coordinator: cert.CoordinatorID, guard: cert.Guard(),
		authority: authorityRow{Epoch: cert.Epoch, Activation: cert.Activation, Incarnation: cert.IncarnationID,
			TokenSHA256: cert.Guard().TokenSHA256},
	}
	c.extend(cert, now)
	return c
}

// extend takes the times of a certificate of the same activation. Both clocks bound it: the
// wall clock because the certificate says so, BOOTTIME because the wall clock may be set back.
func (c *claim) extend(cert *frames.Certificate, now clock.Reading) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if cert.ExpiresAt < c.expires {
		return // an older certificate takes nothing back
	}
	c.expires = cert.ExpiresAt
	c.deadline = now.Boot
	if left := cert.ExpiresAt - now.Unix(); cert.ExpiresAt > now.Unix() {
		c.deadline += time.Duration(left) * time.Second
	}
}

// valid says whether the certificate lasts. The owner acts for no expired one.
func (c *claim) valid(now clock.Reading) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return now.Unix() < c.expires && now.Boot < c.deadline
}

// verify checks a certificate against the pins, its connection's coordinator and the clock.
func (o *Owner) verify(cert *frames.Certificate, coordinator frames.CoordinatorID, now clock.Reading) error {
	pins := handshake.Pins{WitnessID: o.opt.WitnessID, WitnessPublicKey: o.opt.WitnessPublicKey, CoordinatorID: coordinator}
	err := handshake.VerifyCertificate(cert, pins, now.Unix())
	switch {
	case err == nil:
		return nil
	case errors.Is(err, handshake.ErrCertificateExpired), errors.Is(err, handshake.ErrCertificateEarly):
		return frames.Refuse(frames.CodeStaleAuthority, "the certificate is not valid at this owner's time")
	}
	return frames.Refuse(frames.CodeAuthenticationFailed, "the certificate is not the pinned witness's for this coordinator")
}

// claimAuthority makes h a holder of the certificate's authority. A higher authority than the
// last first ends every connection of that one and waits for the outcome of what it had
// journaled; a lower one is STALE_AUTHORITY.
func (o *Owner) claimAuthority(ctx context.Context, h holder, cl *claim) error {
	o.mu.Lock()
	f := o.fences[cl.coordinator]
	if f == nil {
		f = newFence(authorityRow{})
		o.fences[cl.coordinator] = f
	}
	o.mu.Unlock()
	select {
	case <-f.turn:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { f.turn <- struct{}{} }()

	o.mu.Lock()
	switch {
	case f.highest == cl.authority:
		f.holders[h] = struct{}{}
		o.mu.Unlock()
		return nil
	case !cl.authority.above(&f.highest):
		o.mu.Unlock()
		return frames.Refuse(frames.CodeStaleAuthority, "a later activation has been here")
	}
	f.raising = true
	var lower []holder
	for old := range f.holders {
		lower = append(lower, old)
	}
	var hands []*hand
	for _, hd := range o.inHand {
		if hd.coordinator == cl.coordinator {
			hands = append(hands, hd)
		}
	}
	o.mu.Unlock()

	err := o.supersede(ctx, lower, hands)
	if err == nil {
		err = o.j.update(func(t *txn) error {
			if !cl.valid(o.opt.Clock.Now()) {
				return frames.Refuse(frames.CodeStaleAuthority, "the certificate has run out")
			}
			t.put(bucketAuthorities, cl.coordinator[:], &cl.authority)
			return nil
		})
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	f.raising = false
	if err != nil {
		return err
	}
	f.highest = cl.authority
	f.holders = map[holder]struct{}{h: {}}
	o.log.Info("authority taken", "coordinator", cl.coordinator.String(), "epoch", uint64(cl.authority.Epoch),
		"activation", uint64(cl.authority.Activation), "connections_ended", len(lower))
	return nil
}

// supersede ends the connections of a lower authority and waits for its effects.
func (o *Owner) supersede(ctx context.Context, lower []holder, hands []*hand) error {
	for _, old := range lower {
		old.fenced()
	}
	for _, old := range lower {
		select {
		case <-old.Done():
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for _, hd := range hands {
		select {
		case <-hd.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// leave forgets a holder whose connection has ended.
func (o *Owner) leave(h holder, c frames.CoordinatorID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if f := o.fences[c]; f != nil {
		delete(f.holders, h)
	}
}

// admittedLocked says whether a claim may act now. It is asked within the journal's
// transaction.
func (o *Owner) admittedLocked(cl *claim) error {
	f := o.fences[cl.coordinator]
	switch {
	case o.closed:
		return ErrClosed
	case f == nil || f.raising || f.highest != cl.authority:
		return errFenced
	case !cl.valid(o.opt.Clock.Now()):
		return frames.Refuse(frames.CodeStaleAuthority, "the certificate has run out")
	}
	return nil
}

// admitted is admittedLocked for callers without mu.
func (o *Owner) admitted(cl *claim) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.admittedLocked(cl)
}
