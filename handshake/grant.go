package handshake

import (
	"errors"
	"sync/atomic"

	"coordinator/frames"
	"coordinator/internal/clock"
)

// Reasons why a grant no longer authorises anything. Both are final.
var (
	ErrRevoked = errors.New("grant revoked")
	ErrExpired = errors.New("grant expired")
)

// A Grant is what one connection's proof earned: the principal, its effective
// scope and how long it holds. The registry watches over it until Release.
type Grant struct {
	KeyID       frames.KeyID
	Fingerprint frames.Fingerprint // of the authority that granted it
	Scope       uint64             // effective: requested AND ceiling
	ExpiresAt   uint64             // Unix seconds, as told to the client
	Coordinator frames.CoordinatorID
	Label       string // the registry's, for logs

	end     atomic.Uint64 // ExpiresAt, or earlier if the registry shortened it
	revoked atomic.Bool   // never cleared
	done    chan struct{} // closed once by whoever sets revoked
	reg     *Registry
}

// Err says whether the grant still holds at now. It is cheap, and runs before
// every transaction, dispatch and transport write (protocol.md §5.5). Once it
// has failed it fails for ever, wherever the clock is set.
func (g *Grant) Err(now clock.Reading) error {
	if g.revoked.Load() {
		return ErrRevoked
	}
	end := g.end.Load()
	if now.Unix() < end {
		return nil
	}
	g.end.Store(0) // an expired grant stays so when the wall clock is set back
	return ErrExpired
}

// Revoked is closed when the registry revokes the grant, so that an idle
// connection learns of it. Expiry does not close it.
func (g *Grant) Revoked() <-chan struct{} { return g.done }

// Release ends the registry's watch, when the connection is gone. It may be
// called more than once.
func (g *Grant) Release() { g.reg.release(g) }

// Wire is the grant as COORD_HELLO_OK and the links' hellos carry it.
func (g *Grant) Wire() frames.WorkloadGrant {
	return frames.WorkloadGrant{KeyID: g.KeyID, Fingerprint: g.Fingerprint, ExpiresAt: g.ExpiresAt, Scope: frames.Scope(g.Scope)}
}

// revoke is called with the registry's lock held, which makes it happen once.
func (g *Grant) revoke() {
	if !g.revoked.Swap(true) {
		close(g.done)
	}
}

// shorten brings the end forward.
func (g *Grant) shorten(end uint64) {
	for {
		have := g.end.Load()
		if have <= end || g.end.CompareAndSwap(have, end) {
			return
		}
	}
}
