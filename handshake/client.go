package handshake

import (
	"errors"
	"fmt"
	"io"

	"coordinator/frames"
)

// Client is the profile's client side. It is safe for concurrent use if its
// Key is.
type Client struct {
	Service Service
	Key     Signer
	Pin     frames.Fingerprint // of the one authority key that it trusts
}

// Why a client turns a server away. Each one closes the connection.
var (
	// ErrChallenge: the challenge does not answer the offer that was made.
	ErrChallenge = errors.New("challenge does not answer this client's offer")
	// ErrBinding: the challenge is bound to another channel than this one, as
	// when somebody in between relays it.
	ErrBinding = errors.New("challenge is bound to another channel")
	// ErrServerProof: the pinned authority key did not sign this challenge.
	ErrServerProof = errors.New("authority proof does not verify")
	// ErrDowngrade: the hello's answer is not what the proof was made for.
	ErrDowngrade = errors.New("hello answer does not match the proof")
)

// A PinError says that the server has another authority key than the pinned
// one. A key changes only when somebody makes a new one on purpose.
type PinError struct{ Got, Want frames.Fingerprint }

func (e *PinError) Error() string {
	return fmt.Sprintf("server authority key is %s, this client trusts %s; if the key was replaced on purpose, update the pin",
		FormatFingerprint(e.Got), FormatFingerprint(e.Want))
}

// NewOffer makes the hello's offer with a fresh nonce from rand. An offer is
// used once.
func (c *Client) NewOffer(rand io.Reader) (frames.WorkloadOffer, error) {
	nonce, err := newNonce(rand)
	if err != nil {
		return frames.WorkloadOffer{}, fmt.Errorf("offer: %w", err)
	}
	return frames.WorkloadOffer{Profile: frames.Profile, ClientNonce: nonce}, nil
}

// Respond verifies a challenge and signs the answer to it, asking for scope
// until expiry (Unix seconds). Nothing is signed before the echoed offer, the
// service, the binding, the pin and the authority's proof have all been found
// right, in this order (protocol.md §5.5).
func (c *Client) Respond(offer *frames.WorkloadOffer, ch *frames.WorkloadChallenge, channel Channel, scope, expiry uint64) (*frames.WorkloadResponse, error) {
	if err := c.checkChallenge(offer, ch, channel); err != nil {
		return nil, fmt.Errorf("workload proof: %w", err)
	}
	t := c.terms(offer, ch)
	if !Verify(ch.AuthorityKey, t.server(), ch.Proof[:]) {
		return nil, fmt.Errorf("workload proof: %w", ErrServerProof)
	}
	r := &frames.WorkloadResponse{
		KeyID:           KeyIDOf(c.Key.Public()),
		ScopeBytes:      frames.ScopeBytes(scope),
		RequestedExpiry: expiry,
	}
	var err error
	if r.Proof, err = c.Key.Sign(t.client(ch.Proof, r.KeyID, expiry, r.ScopeBytes)); err != nil {
		return nil, fmt.Errorf("workload proof: %w", err)
	}
	return r, nil
}

// terms takes from the challenge only what the server alone decides.
func (c *Client) terms(offer *frames.WorkloadOffer, ch *frames.WorkloadChallenge) terms {
	return terms{
		service: c.Service.Name, major: c.Service.Major, minor: c.Service.Minor,
		clientNonce: offer.ClientNonce, serverNonce: ch.ServerNonce, incarnation: ch.Incarnation,
		bindingKind: ch.BindingKind, binding: ch.Binding, authority: ch.AuthorityKey,
	}
}

func (c *Client) checkChallenge(offer *frames.WorkloadOffer, ch *frames.WorkloadChallenge, channel Channel) error {
	switch {
	case ch.Profile != frames.Profile || offer.Profile != frames.Profile:
		return fmt.Errorf("%w: profile", ErrChallenge)
	case !equal(ch.ClientNonce[:], offer.ClientNonce[:]) || offer.ClientNonce == [32]byte{}:
		return fmt.Errorf("%w: client_nonce", ErrChallenge)
	case ch.Service != c.Service.Name:
		return fmt.Errorf("%w: service", ErrChallenge)
	case ch.Major != c.Service.Major || ch.Minor != c.Service.Minor:
		return fmt.Errorf("%w: version", ErrChallenge)
	case ch.ServerNonce == [32]byte{}:
		return fmt.Errorf("%w: server_nonce", ErrChallenge)
	case ch.Incarnation == frames.IncarnationID{}:
		return fmt.Errorf("%w: server_incarnation", ErrChallenge)
	case ch.BindingKind != channel.Kind():
		return fmt.Errorf("%w: kind", ErrBinding)
	}
	own, err := channel.Binding(ch.ServerNonce, c.Service.Name, c.Service.Major, c.Service.Minor)
	if err != nil {
		return err
	}
	if !equal(own[:], ch.Binding[:]) {
		return ErrBinding
	}
	if got := FingerprintOf(ch.AuthorityKey); !equal(got[:], c.Pin[:]) {
		return &PinError{Got: got, Want: c.Pin}
	}
	return nil
}

// CheckHelloOK holds the hello's answer against the exchange before it: the
// challenge's incarnation, this client's key and pin, and no more scope or time
// than the response asked for. A hello answered without a challenge, or without
// a grant (nil), is a downgrade too. Every failure matches ErrDowngrade.
func (c *Client) CheckHelloOK(ch *frames.WorkloadChallenge, resp *frames.WorkloadResponse, grant *frames.WorkloadGrant, incarnation frames.IncarnationID) error {
	if ch == nil || resp == nil {
		return fmt.Errorf("%w: no challenge came before it", ErrDowngrade)
	}
	if grant == nil {
		return fmt.Errorf("%w: no grant", ErrDowngrade)
	}
	_, asked, ok := scopeWord(resp.ScopeBytes, ^uint64(0))
	key := KeyIDOf(c.Key.Public())
	switch {
	case !equal(incarnation[:], ch.Incarnation[:]):
		return fmt.Errorf("%w: incarnation_id", ErrDowngrade)
	case !equal(grant.KeyID[:], key[:]):
		return fmt.Errorf("%w: key_id", ErrDowngrade)
	case !equal(grant.Fingerprint[:], c.Pin[:]):
		return fmt.Errorf("%w: authority_fingerprint", ErrDowngrade)
	case !ok || grant.Scope == 0 || uint64(grant.Scope)&^asked != 0:
		return fmt.Errorf("%w: effective_scope_bytes", ErrDowngrade)
	case grant.ExpiresAt == 0 || grant.ExpiresAt > resp.RequestedExpiry:
		return fmt.Errorf("%w: expires_at", ErrDowngrade)
	}
	return nil
}
