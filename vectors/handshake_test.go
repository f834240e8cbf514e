package vectors_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"testing"
	"time"

	"coordinator/codec"
	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/clock"
	"coordinator/internal/sock"
	"coordinator/vectors"
)

// recorder is a signer that keeps what it was asked to sign.
type recorder struct {
	handshake.Signer
	signed []byte
}

func (r *recorder) Sign(msg []byte) ([64]byte, error) {
	r.signed = bytes.Clone(msg)
	return r.Signer.Sign(msg)
}

// exchange is one case of handshake.json set up on both sides.
type exchange struct {
	server    handshake.Server
	client    handshake.Client
	authority recorder
	workload  recorder
	channel   handshake.UDSPeer
	offer     frames.WorkloadOffer
}

func newExchange(t *testing.T, v *vectors.Handshake) *exchange {
	t.Helper()
	x := &exchange{
		authority: recorder{Signer: handshake.NewKey(fixed32(t, v.AuthoritySeed))},
		workload:  recorder{Signer: handshake.NewKey(fixed32(t, v.WorkloadSeed))},
		channel:   handshake.UDSPeer{Cred: sock.Cred{UID: uint64(v.Peer.UID), GID: uint64(v.Peer.GID), PID: uint64(v.Peer.PID)}},
		offer:     frames.WorkloadOffer{Profile: frames.Profile, ClientNonce: fixed32(t, v.ClientNonce)},
	}
	service := handshake.Service{
		Name: v.Service, Major: frames.VersionMajor, Minor: frames.VersionMinor, Scopes: uint64(frames.AllScopes),
	}
	expiry := uint64(v.RequestedExpiry)
	x.server = handshake.Server{
		Service: service, Authority: &x.authority, Incarnation: fixed16(t, v.Incarnation),
		Registry: handshake.StaticRegistry([]handshake.Record{{
			PublicKey: x.workload.Public(), Scope: uint64(frames.AllScopes), ExpiresAt: expiry + 1000, Label: "vector",
		}}),
		Rand:  bytes.NewReader(v.ServerNonce),
		Clock: clock.NewManual(clock.Reading{Wall: time.Unix(int64(expiry)-60, 0)}),
	}
	x.client = handshake.Client{Service: service, Key: &x.workload, Pin: handshake.FingerprintOf(x.authority.Public())}
	return x
}

// challenge makes the server's half.
func (x *exchange) challenge(t *testing.T) (*handshake.Exchange, *frames.WorkloadChallenge) {
	t.Helper()
	pending, challenge, err := x.server.Challenge(&x.offer, x.channel)
	if err != nil {
		t.Fatal(err)
	}
	return pending, challenge
}

func sameBytes(t *testing.T, what string, got []byte, want vectors.Hex) {
	t.Helper()
	if !bytes.Equal(got, want) {
		t.Errorf("%s is\n%x, want\n%x", what, got, []byte(want))
	}
}

func handshakes(s *vectors.Set) []vectors.Handshake { return s.Handshakes }

func TestHandshakes(t *testing.T) {
	each(t, handshakes, func(v *vectors.Handshake) string { return v.Service }, func(t *testing.T, _ *vectors.Set, v *vectors.Handshake) {
		x := newExchange(t, v)
		authority, workload := x.authority.Public(), x.workload.Public()
		keyID := handshake.KeyIDOf(workload)
		sameBytes(t, "authority_public_key", authority[:], v.AuthorityPublicKey)
		sameBytes(t, "workload_public_key", workload[:], v.WorkloadPublicKey)
		sameBytes(t, "key_id", keyID[:], v.KeyID)
		if got := handshake.FormatFingerprint(x.client.Pin); got != v.FingerprintText {
			t.Errorf("fingerprint_text is %s, want %s", got, v.FingerprintText)
		}
		if got, err := handshake.ParseFingerprint(v.FingerprintText); err != nil || got != x.client.Pin {
			t.Errorf("fingerprint_text parses to %v, %v", got, err)
		}

		pending, challenge := x.challenge(t)
		sameBytes(t, "uds_binding", challenge.Binding[:], v.UDSBinding)
		sameBytes(t, "server_transcript", x.authority.signed, v.ServerTranscript)
		sameBytes(t, "authority_proof", challenge.Proof[:], v.AuthorityProof)

		if len(v.ScopeBytes) != 8 {
			t.Fatalf("scope_bytes are %d bytes long", len(v.ScopeBytes))
		}
		var scope frames.Scope
		for _, b := range v.ScopeBytes {
			scope = scope<<8 | frames.Scope(b)
		}
		response, err := x.client.Respond(&x.offer, challenge, x.channel, uint64(scope), uint64(v.RequestedExpiry))
		if err != nil {
			t.Fatal(err)
		}
		sameBytes(t, "scope_bytes", response.ScopeBytes, v.ScopeBytes)
		sameBytes(t, "client_transcript", x.workload.signed, v.ClientTranscript)
		sameBytes(t, "workload_proof", response.Proof[:], v.WorkloadProof)

		grant, err := pending.Finish(response)
		if err != nil {
			t.Fatalf("%v: %s", err, pending.Reason())
		}
		if grant.Scope != uint64(scope) || grant.ExpiresAt != uint64(v.RequestedExpiry) || grant.KeyID != keyID {
			t.Errorf("grant is %+v", grant.Wire())
		}
	})
}

// The contexts of the TLS exporter, of the endpoint and of the witness's link.
func TestTLSContexts(t *testing.T) {
	each(t, handshakes, func(v *vectors.Handshake) string { return v.Service }, func(t *testing.T, _ *vectors.Set, v *vectors.Handshake) {
		for _, tt := range []struct {
			service string
			want    vectors.Hex
		}{{v.Service, v.TLSContext}, {"phux-witness", v.TLSContextWitness}} {
			exported := [32]byte{1, 2, 3}
			channel := handshake.TLSExporter{Export: func(label string, context []byte, n int) ([]byte, error) {
				if label != frames.Profile || n != 32 {
					t.Errorf("exporter asked for %d bytes of %q", n, label)
				}
				sameBytes(t, tt.service+" context", context, tt.want)
				return exported[:], nil
			}}
			got, err := channel.Binding(fixed32(t, v.ServerNonce), tt.service, frames.VersionMajor, frames.VersionMinor)
			if err != nil || got != exported {
				t.Errorf("binding is %x, %v", got, err)
			}
		}
	})
}

// The two proof frames of frames.json belong to the case of handshake.json: both sides
// accept them, and any change of the response is refused alike.
func TestC04_HandshakeVectorFrames(t *testing.T) {
	s := vectors.Load(t)[0]
	v := &s.Handshakes[0]
	_, challenge := newExchange(t, v).challenge(t)
	want := frameOf(t, s, frames.TypeWorkloadChallenge)
	if got, err := frames.Append(nil, challenge); err != nil || !bytes.Equal(got, want) {
		t.Errorf("WORKLOAD_CHALLENGE is\n%x, %v, want\n%x", got, err, want)
	}
	_, body := split(t, frameOf(t, s, frames.TypeWorkloadResponse))
	var good frames.WorkloadResponse
	if err := codec.Decode(&good, body); err != nil {
		t.Fatal(err)
	}
	if err := respond(t, v, &good); err != nil {
		t.Fatalf("the response as it is: %v", err)
	}
	for name, change := range map[string]func(*frames.WorkloadResponse){
		"another key id":    func(r *frames.WorkloadResponse) { r.KeyID[0] ^= 1 },
		"more scope":        func(r *frames.WorkloadResponse) { r.ScopeBytes[7] ^= 0x20 },
		"a later expiry":    func(r *frames.WorkloadResponse) { r.RequestedExpiry++ },
		"a flipped proof":   func(r *frames.WorkloadResponse) { r.Proof[40] ^= 0x80 },
		"scope of 7 bytes":  func(r *frames.WorkloadResponse) { r.ScopeBytes = r.ScopeBytes[1:] },
		"unknown scope bit": func(r *frames.WorkloadResponse) { r.ScopeBytes[7] |= 0x40 },
	} {
		bad := good
		bad.ScopeBytes = bytes.Clone(good.ScopeBytes)
		change(&bad)
		if err := respond(t, v, &bad); !errors.Is(err, handshake.ErrAuthentication) {
			t.Errorf("%s: %v, want a failed authentication", name, err)
		}
	}
}

// respond gives r to a fresh exchange of the case.
func respond(t *testing.T, v *vectors.Handshake, r *frames.WorkloadResponse) error {
	t.Helper()
	pending, _ := newExchange(t, v).challenge(t)
	grant, err := pending.Finish(r)
	if err == nil {
		grant.Release()
	}
	return err
}

// frameOf is the set's first frame of a type.
func frameOf(t *testing.T, s *vectors.Set, typ frames.Type) []byte {
	t.Helper()
	for _, v := range allFrames(s) {
		if v.Type == uint8(typ) {
			return v.Frame
		}
	}
	t.Fatalf("%s has no frame %v", s.Dir, typ)
	return nil
}

// The principal's text form is the fingerprint form of its hash.
func TestKeyIDText(t *testing.T) {
	each(t, handshakes, func(v *vectors.Handshake) string { return v.Service }, func(t *testing.T, _ *vectors.Set, v *vectors.Handshake) {
		if got, want := handshake.FormatKeyID(fixed32(t, v.KeyID)), "sha256:"+hex.EncodeToString(v.KeyID); got != want {
			t.Errorf("key id is %s, want %s", got, want)
		}
	})
}
