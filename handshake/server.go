package handshake

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"coordinator/frames"
	"coordinator/internal/clock"
)

// ErrAuthentication is the one answer to every failed proof. It says nothing of
// which part failed, and is what a peer may be told.
var ErrAuthentication = errors.New("authentication failed")

// ResponseTimeout is how long a client has for its one response.
const ResponseTimeout = 5 * time.Second

// Service is one profile server's name in the transcripts, its version and the
// scope bits that it knows. Both sides of a link use equal values.
type Service struct {
	Name         string
	Major, Minor uint16
	Scopes       uint64
}

// Server is the profile's server side. It is safe for concurrent use.
type Server struct {
	Service     Service
	Authority   Signer
	Incarnation frames.IncarnationID
	Registry    *Registry
	Rand        io.Reader   // the operating system's CSPRNG; safe for concurrent reads
	Clock       clock.Clock // nil means the system clock
}

func (s *Server) now() clock.Reading {
	if s.Clock == nil {
		return clock.System().Now()
	}
	return s.Clock.Now()
}

// An Exchange is one challenge waiting for its one response. It belongs to one
// connection and is used from one goroutine.
type Exchange struct {
	s      *Server
	terms  terms
	proof  [64]byte
	sentAt time.Duration // BOOTTIME
	spent  bool
	reason string
}

// Challenge answers a client's offer on its channel with a fresh nonce. A nil
// offer or one of another profile is ErrAuthentication; any other error is this
// side's own: no randomness, no channel binding, no signature.
func (s *Server) Challenge(offer *frames.WorkloadOffer, ch Channel) (*Exchange, *frames.WorkloadChallenge, error) {
	if offer == nil || offer.Profile != frames.Profile || offer.ClientNonce == [32]byte{} {
		return nil, nil, ErrAuthentication
	}
	nonce, err := newNonce(s.Rand)
	if err != nil {
		return nil, nil, fmt.Errorf("challenge: %w", err)
	}
	binding, err := ch.Binding(nonce, s.Service.Name, s.Service.Major, s.Service.Minor)
	if err != nil {
		return nil, nil, fmt.Errorf("challenge: %w", err)
	}
	x := &Exchange{s: s, sentAt: s.now().Boot, terms: terms{
		service: s.Service.Name, major: s.Service.Major, minor: s.Service.Minor,
		clientNonce: offer.ClientNonce, serverNonce: nonce, incarnation: s.Incarnation,
		bindingKind: ch.Kind(), binding: binding, authority: s.Authority.Public(),
	}}
	if x.proof, err = s.Authority.Sign(x.terms.server()); err != nil {
		return nil, nil, fmt.Errorf("challenge: %w", err)
	}
	return x, &frames.WorkloadChallenge{
		Profile: frames.Profile, Service: x.terms.service, Major: x.terms.major, Minor: x.terms.minor,
		ClientNonce: x.terms.clientNonce, ServerNonce: nonce, Incarnation: s.Incarnation,
		BindingKind: x.terms.bindingKind, Binding: binding, AuthorityKey: x.terms.authority, Proof: x.proof,
	}, nil
}

// unknownKey is verified against when a key id is not enrolled, so that the
// answer takes as long as for one that is.
var unknownKey = NewKey([32]byte{}).Public()

// Finish judges the response. Whatever is wrong with it, the error is
// ErrAuthentication and the same work was done: a scope of bad form, an unknown
// or revoked key, a bad proof, nothing granted, a time past, a second response
// or one too late. The caller must Release the grant when its connection ends.
func (x *Exchange) Finish(resp *frames.WorkloadResponse) (*Grant, error) {
	now := x.s.now()
	late := x.spent || now.Boot-x.sentAt > ResponseTimeout
	x.spent = true

	scopeBytes, requested, formOK := scopeWord(resp.ScopeBytes, x.s.Service.Scopes)
	rec, known := x.s.Registry.Lookup(resp.KeyID)
	if !known {
		rec = Record{PublicKey: unknownKey}
	}
	transcript := x.terms.client(x.proof, resp.KeyID, resp.RequestedExpiry, scopeBytes)
	proven := Verify(rec.PublicKey, transcript, resp.Proof[:])

	g := &Grant{
		KeyID: resp.KeyID, Fingerprint: FingerprintOf(x.terms.authority), Scope: requested & rec.Scope,
		ExpiresAt: min(resp.RequestedExpiry, rec.ExpiresAt), Coordinator: rec.Coordinator, Label: rec.Label,
	}
	switch {
	case late:
		x.reason = "response came late or twice"
	case !formOK:
		x.reason = "scope bytes are malformed"
	case !known:
		x.reason = "key is not enrolled"
	case !proven:
		x.reason = "proof does not verify"
	case rec.Revoked():
		x.reason = "key is revoked"
	case now.Unix() >= g.ExpiresAt:
		x.reason = "requested or enrolled expiry has passed"
	case g.Scope == 0:
		x.reason = "no requested scope is within the key's ceiling"
	case x.s.Registry.admit(g) != nil:
		x.reason = "registry changed meanwhile"
	default:
		return g, nil
	}
	return nil, ErrAuthentication
}

// Reason says why Finish refused, for this side's own log. It must not reach
// the peer.
func (x *Exchange) Reason() string { return x.reason }

// scopeWord checks the form of scope bytes: exactly 8, no unknown bit. Bytes of
// bad form come back as zeros, so that the transcript costs the same.
func scopeWord(b []byte, known uint64) (canonical []byte, bits uint64, ok bool) {
	if len(b) != 8 {
		return make([]byte, 8), 0, false
	}
	bits = binary.BigEndian.Uint64(b)
	if bits&^known != 0 {
		return make([]byte, 8), 0, false
	}
	return b, bits, true
}

func newNonce(rand io.Reader) (n [32]byte, err error) {
	for n == [32]byte{} {
		if _, err := io.ReadFull(rand, n[:]); err != nil {
			return [32]byte{}, fmt.Errorf("nonce: %w", err)
		}
	}
	return n, nil
}
