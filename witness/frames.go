package witness

import (
	"coordinator/codec"
	"coordinator/frames"
	"coordinator/handshake/link"
)

// Names and limits of the witness link (links.md).
const (
	// ALPN is the application label on QUIC.
	ALPN = "phux-witness/1"
	// Service is the name in the transcripts of the workload proof.
	Service = "phux-witness"
	// MaxFrameBytes caps `length` in every state of the link.
	MaxFrameBytes = 16 << 10
)

// Scope bits of the witness link, which have nothing to do with those of the endpoint.
const (
	ScopeActivate uint64 = 1 << iota // ACTIVATE, RENEW, RELINQUISH
	ScopeStatus                      // GET_STATUS
	// ScopeAll is both; ScopeActivate alone does not include the other.
	ScopeAll = ScopeActivate | ScopeStatus
)

// ScopeNames are the scopes as the registry and the command line spell them.
func ScopeNames() map[string]uint64 {
	return map[string]uint64{"activate": ScopeActivate, "status": ScopeStatus}
}

// Type numbers of the link's own frames. Proof, ACK, PING, PONG and ERROR have the numbers
// and the form of the endpoint's.
const (
	TypeLinkHello                  = link.TypeHello
	TypeActivate       frames.Type = 0x10
	TypeRenew          frames.Type = 0x11
	TypeRelinquish     frames.Type = 0x12
	TypeGetStatus      frames.Type = 0x14
	TypeWitnessHelloOK frames.Type = 0x80
	TypeCertificate    frames.Type = 0x90
	TypeStatus         frames.Type = 0x91
)

// LinkHello opens the link, client to server; both internal links have it.
type LinkHello = link.Hello

// WitnessHelloOK ends the handshake, server to client.
//
//	1 protocol_major u16    4 witness_id bytes16
//	2 protocol_minor u16    5 workload_grant WorkloadGrant
//	3 protocol_patch u16    6 max_lease_secs u16 (1..60)
type WitnessHelloOK struct {
	Version      frames.Version
	WitnessID    frames.WitnessID
	Grant        frames.WorkloadGrant
	MaxLeaseSecs uint16
}

func (*WitnessHelloOK) Type() frames.Type { return TypeWitnessHelloOK }

// Answer is what every HELLO_OK of a link carries.
func (m *WitnessHelloOK) Answer() (frames.Version, *frames.WorkloadGrant) { return m.Version, &m.Grant }

func (m *WitnessHelloOK) Layout(b *codec.Body) {
	m.Version.Layout(b)
	codec.ID16(b, 4, &m.WitnessID)
	codec.Nested(b, 5, &m.Grant, frames.MaxHandshakeBytes)
	codec.U16(b, 6, &m.MaxLeaseSecs)
	b.Check(b.Failed() || m.MaxLeaseSecs >= 1 && m.MaxLeaseSecs <= MaxLeaseSecs, 6, codec.ErrInvalid)
}

// Activate asks for a new activation.
//
//	1 request_id u32         4 incarnation_id bytes16
//	2 coordinator_id bytes16 5 lease_secs u16
//	3 proposed_epoch u64
type Activate struct {
	RequestID     frames.RequestID
	CoordinatorID frames.CoordinatorID
	Epoch         frames.AuthorityEpoch
	IncarnationID frames.IncarnationID
	LeaseSecs     uint16
}

func (*Activate) Type() frames.Type { return TypeActivate }

func (m *Activate) Layout(b *codec.Body) {
	codec.NonzeroU32(b, 1, &m.RequestID)
	codec.ID16(b, 2, &m.CoordinatorID)
	codec.NonzeroU64(b, 3, &m.Epoch)
	codec.ID16(b, 4, &m.IncarnationID)
	codec.U16(b, 5, &m.LeaseSecs)
}

// Renew prolongs a live lease.
//
//	1 request_id u32          5 incarnation_id bytes16
//	2 coordinator_id bytes16  6 fencing_token bytes32
//	3 authority_epoch u64     7 lease_secs u16
//	4 activation_sequence u64
type Renew struct {
	RequestID     frames.RequestID
	CoordinatorID frames.CoordinatorID
	Epoch         frames.AuthorityEpoch
	Activation    frames.ActivationSequence
	IncarnationID frames.IncarnationID
	Token         [32]byte
	LeaseSecs     uint16
}

func (*Renew) Type() frames.Type { return TypeRenew }

func (m *Renew) Layout(b *codec.Body) {
	codec.NonzeroU32(b, 1, &m.RequestID)
	codec.ID16(b, 2, &m.CoordinatorID)
	codec.NonzeroU64(b, 3, &m.Epoch)
	codec.NonzeroU64(b, 4, &m.Activation)
	codec.ID16(b, 5, &m.IncarnationID)
	codec.Hash32(b, 6, &m.Token)
	codec.U16(b, 7, &m.LeaseSecs)
}

// Relinquish gives a lease back before its end; answered by ACK.
//
//	1 request_id u32          3 fencing_token bytes32
//	2 coordinator_id bytes16  4 incarnation_id bytes16
type Relinquish struct {
	RequestID     frames.RequestID
	CoordinatorID frames.CoordinatorID
	Token         [32]byte
	IncarnationID frames.IncarnationID
}

func (*Relinquish) Type() frames.Type { return TypeRelinquish }

func (m *Relinquish) Layout(b *codec.Body) {
	codec.NonzeroU32(b, 1, &m.RequestID)
	codec.ID16(b, 2, &m.CoordinatorID)
	codec.Hash32(b, 3, &m.Token)
	codec.ID16(b, 4, &m.IncarnationID)
}

// GetStatus asks where a coordinator stands.
//
//	1 request_id u32          2 coordinator_id bytes16
type GetStatus struct {
	RequestID     frames.RequestID
	CoordinatorID frames.CoordinatorID
}

func (*GetStatus) Type() frames.Type { return TypeGetStatus }

func (m *GetStatus) Layout(b *codec.Body) {
	codec.NonzeroU32(b, 1, &m.RequestID)
	codec.ID16(b, 2, &m.CoordinatorID)
}

// CertificateReply answers ACTIVATE and RENEW (CERTIFICATE).
//
//	1 request_id u32          2 activation_certificate bytes209
type CertificateReply struct {
	RequestID   frames.RequestID
	Certificate frames.Certificate
}

func (*CertificateReply) Type() frames.Type { return TypeCertificate }

func (m *CertificateReply) Layout(b *codec.Body) {
	codec.NonzeroU32(b, 1, &m.RequestID)
	frames.CertificateField(b, 2, &m.Certificate)
}

// StatusReply answers GET_STATUS (STATUS). Both counters are zero before the first activation.
//
//	1 request_id u32           3 activation_sequence u64
//	2 last_authority_epoch u64 4 lease_remaining_secs u64
type StatusReply struct {
	RequestID      frames.RequestID
	LastEpoch      frames.AuthorityEpoch
	Activation     frames.ActivationSequence
	LeaseRemaining uint64 // seconds, rounded up
}

func (*StatusReply) Type() frames.Type { return TypeStatus }

func (m *StatusReply) Layout(b *codec.Body) {
	codec.NonzeroU32(b, 1, &m.RequestID)
	codec.U64(b, 2, &m.LastEpoch)
	codec.U64(b, 3, &m.Activation)
	codec.U64(b, 4, &m.LeaseRemaining)
}

// namespace is the witness link.
var namespace = &link.Namespace{
	Service: HandshakeService(), Peer: "witness", MaxFrame: MaxFrameBytes,
	Frames: map[frames.Type]func() frames.Frame{
		TypeWitnessHelloOK: func() frames.Frame { return new(WitnessHelloOK) },
		TypeActivate:       func() frames.Frame { return new(Activate) },
		TypeRenew:          func() frames.Frame { return new(Renew) },
		TypeRelinquish:     func() frames.Frame { return new(Relinquish) },
		TypeGetStatus:      func() frames.Frame { return new(GetStatus) },
		TypeCertificate:    func() frames.Frame { return new(CertificateReply) },
		TypeStatus:         func() frames.Frame { return new(StatusReply) },
	},
}

// DecodeFrame parses the body of a frame of the witness link. A type that the link does not
// have is PROTOCOL_ERROR; byte slices alias body.
func DecodeFrame(t frames.Type, body []byte) (frames.Frame, error) { return namespace.Decode(t, body) }

// AppendFrame appends f as a whole outer frame; it fails where DecodeFrame would refuse it.
func AppendFrame(dst []byte, f frames.Frame) ([]byte, error) { return link.Append(dst, f) }
