package client

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"syscall"
	"time"

	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/clock"
)

const (
	defaultFirstPause = 100 * time.Millisecond
	defaultMaxPause   = 5 * time.Second
	// steadyAfter is how long a connection must have served before the pauses begin anew:
	// one that is accepted and cut again and again is met more and more slowly.
	steadyAfter = 10 * time.Second
)

// Backoff says how long to wait between attempts to connect. Each pause is up to twice the
// one before, and a random part of it, at least half, is waited.
type Backoff struct {
	// First is the first pause. Zero means 100 ms.
	First time.Duration
	// Max caps the pauses. Zero means 5 s.
	Max time.Duration
}

// pauses counts attempts. It belongs to one goroutine.
type pauses struct {
	Backoff
	opts *Options
	n    int
}

func newPauses(b Backoff, opts *Options) pauses {
	if b.First <= 0 {
		b.First = defaultFirstPause
	}
	if b.Max <= 0 {
		b.Max = defaultMaxPause
	}
	return pauses{Backoff: b, opts: opts}
}

// next is the pause before the next attempt.
func (p *pauses) next() time.Duration {
	d := p.First
	for i := 0; i < p.n && d < p.Max; i++ {
		d *= 2
	}
	d = min(d, p.Max)
	p.n++
	var raw [8]byte
	if _, err := io.ReadFull(p.opts.Rand, raw[:]); err != nil {
		return d
	}
	return d/2 + time.Duration(binary.BigEndian.Uint64(raw[:])%uint64(d/2+1))
}

// wait sleeps on the injected clock; its error is the cause of ctx.
func (p *pauses) wait(ctx context.Context) error {
	return clock.Wait(ctx, p.opts.Clock, p.next())
}

// served begins the pauses anew when a connection has served long enough.
func (p *pauses) served(since time.Duration) {
	if p.opts.Clock.Now().Boot-since >= steadyAfter {
		p.n = 0
	}
}

// permanent reports whether err stays as it is however often one connects again: the pins,
// the key or this client's memory stand against it, not the moment.
func permanent(err error) bool {
	var (
		file       *ContextError
		state      *StateError
		key        *KeyError
		quarantine *QuarantineError
		auth       *AuthenticationError
		peer       *PeerError
		refused    *RefusedError
		ind        *IndeterminateError
		other      *OtherCommandError
		full       *ReplicaFullError
	)
	switch {
	case errors.As(err, &quarantine), errors.As(err, &ind), errors.As(err, &other):
		return true
	case errors.As(err, &state) && (errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)):
		return false // the disk below it may be given room
	case errors.As(err, &file), errors.As(err, &state), errors.As(err, &key), errors.As(err, &full),
		errors.Is(err, ErrTransport), errors.Is(err, ErrJournalFull), errors.Is(err, fs.ErrPermission):
		return true
	case errors.As(err, &auth):
		// A connection that was cut may only have outlived its grant, which is shorter than a
		// key's life: the next hello tells whether the key is still accepted, and for what.
		return !auth.Revoked
	case errors.As(err, &peer):
		// A certificate that has just run out, or is early, is a matter of moments.
		return !errors.Is(err, handshake.ErrCertificateExpired) && !errors.Is(err, handshake.ErrCertificateEarly)
	case errors.As(err, &refused):
		switch refused.Code {
		case frames.CodeVersionIncompatible, frames.CodeCapabilityRequired, frames.CodeMalformedMessage, frames.CodeScopeDenied,
			frames.CodeFrameTooLarge: // but no PROTOCOL_ERROR: a handshake that took too long is one
			return true
		}
	}
	return false
}
