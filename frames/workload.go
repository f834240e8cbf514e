package frames

import (
	"encoding/binary"

	"coordinator/codec"
)

// WorkloadOffer is the hello's part of the workload proof (protocol.md §5.2).
//
//	profile:str || client_nonce:bytes32 (nonzero)
//
// The profile has no cap but the frame's: whatever is not ours is a failed authentication
// and not a bad form [D-38].
type WorkloadOffer struct {
	Profile     string
	ClientNonce [32]byte
}

func (o *WorkloadOffer) Image(i *codec.Image) {
	codec.ImgStr(i, &o.Profile, MaxHandshakeBytes)
	nonce(i, &o.ClientNonce)
}

func nonce(i *codec.Image, v *[32]byte) {
	codec.ImgHash32(i, v)
	i.Check(*v != [32]byte{}, codec.ErrZero)
}

// WorkloadGrant is what the server granted (§5.2).
//
//	key_id:bytes32 || authority_fingerprint:bytes32 || expires_at:u64 ||
//	effective_scope_bytes:bytes (8)
type WorkloadGrant struct {
	KeyID       KeyID
	Fingerprint Fingerprint
	ExpiresAt   uint64 // Unix seconds
	Scope       Scope
}

func (g *WorkloadGrant) Image(i *codec.Image) {
	codec.ImgHash32(i, &g.KeyID)
	codec.ImgHash32(i, &g.Fingerprint)
	codec.ImgU64(i, &g.ExpiresAt)
	scope := ScopeBytes(uint64(g.Scope))
	codec.ImgBytes(i, &scope, 8)
	if i.Failed() {
		return
	}
	i.Check(len(scope) == 8, codec.ErrWidth)
	if i.Decoding() && len(scope) == 8 {
		g.Scope = Scope(binary.BigEndian.Uint64(scope))
	}
}

// ScopeBytes is the 8-byte form of a scope word.
func ScopeBytes(scope uint64) []byte { return binary.BigEndian.AppendUint64(nil, scope) }

// WorkloadChallenge is the server's half of the proof (§5.2). Both frames of the proof
// are strict: every field, once, ascending, and nothing else.
//
//	1 profile str*              7 server_incarnation bytes16
//	2 service str*              8 channel_binding_kind u8
//	3 negotiated_major u16      9 channel_binding bytes32
//	4 negotiated_minor u16     10 authority_public_key bytes32
//	5 client_nonce bytes32     11 authority_proof bytes64
//	6 server_nonce bytes32
//
// (*) with its positional u32 length inside the value, here and in the response only.
type WorkloadChallenge struct {
	Profile      string
	Service      string
	Major, Minor uint16
	ClientNonce  [32]byte
	ServerNonce  [32]byte
	Incarnation  IncarnationID
	BindingKind  BindingKind
	Binding      [32]byte
	AuthorityKey [32]byte
	Proof        [64]byte
}

// BindingKind says what a proof is bound to (§5.4).
type BindingKind uint8

const (
	BindingTLSExporter BindingKind = 0
	BindingUDSPeer     BindingKind = 1
)

func (*WorkloadChallenge) Type() Type { return TypeWorkloadChallenge }

func (m *WorkloadChallenge) Layout(b *codec.Body) {
	codec.Nested(b, 1, lengthStr{&m.Profile}, MaxHandshakeBytes)
	codec.Nested(b, 2, lengthStr{&m.Service}, MaxHandshakeBytes)
	b.Check(b.Failed() || m.Profile == Profile, 1, codec.ErrInvalid)
	codec.U16(b, 3, &m.Major)
	codec.U16(b, 4, &m.Minor)
	nonceField(b, 5, &m.ClientNonce)
	nonceField(b, 6, &m.ServerNonce)
	codec.ID16(b, 7, &m.Incarnation)
	codec.Enum8(b, 8, &m.BindingKind, BindingUDSPeer)
	codec.Hash32(b, 9, &m.Binding)
	codec.Hash32(b, 10, &m.AuthorityKey)
	codec.Sig64(b, 11, &m.Proof)
	b.Strict()
}

// WorkloadResponse is the client's half of the proof (§5.2); strict like the challenge.
//
//	1 key_id bytes32                 3 requested_expiry u64 (Unix seconds)
//	2 requested_scope_bytes bytes*   4 workload_proof bytes64
//
// The form of the scope bytes is judged by the handshake: a bad one is a failed
// authentication and not a malformed frame (§5.5).
type WorkloadResponse struct {
	KeyID           KeyID
	ScopeBytes      []byte
	RequestedExpiry uint64
	Proof           [64]byte
}

func (*WorkloadResponse) Type() Type { return TypeWorkloadResponse }

func (m *WorkloadResponse) Layout(b *codec.Body) {
	codec.Hash32(b, 1, &m.KeyID)
	codec.Nested(b, 2, lengthBytes{&m.ScopeBytes}, MaxHandshakeBytes)
	codec.U64(b, 3, &m.RequestedExpiry)
	codec.Sig64(b, 4, &m.Proof)
	b.Strict()
}

func nonceField(b *codec.Body, id int, v *[32]byte) {
	codec.Hash32(b, id, v)
	b.Check(*v != [32]byte{}, id, codec.ErrZero)
}

// lengthStr is a str that keeps its positional length inside a TLV value.
type lengthStr struct{ v *string }

func (s lengthStr) Image(i *codec.Image) { codec.ImgStr(i, s.v, MaxHandshakeBytes) }

// lengthBytes is the same for bytes.
type lengthBytes struct{ v *[]byte }

func (s lengthBytes) Image(i *codec.Image) { codec.ImgBytes(i, s.v, MaxHandshakeBytes) }
