package owner

import (
	"coordinator/codec"
	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/handshake/link"
)

// Names and limits of the owner link (links.md).
const (
	// ALPN is the application label on QUIC.
	ALPN = "phux-owner/1"
	// Service is the name in the transcripts of the workload proof.
	Service = "phux-owner"
	// MaxFrameBytes caps `length` once the handshake is over.
	MaxFrameBytes = 512 << 10
	// MaxChunkBytes is the most output that one OUTPUT_CHUNK carries.
	MaxChunkBytes = 256 << 10
	// MaxGroups is how many terminal groups an owner may serve: its HELLO_OK fits the
	// handshake's cap.
	MaxGroups = 1024
	// maxBindingList is how many bindings one BINDINGS names; more come in another one.
	maxBindingList = 16384
	// maxSpawnPayload bounds the payload of a SPAWN.
	maxSpawnPayload = 16 + 2 + 4 + frames.MaxTypedPayload
	// maxTarget bounds an EffectTarget's image.
	maxTarget = 1 + 16 + 16 + 32 + 16 + 4 + frames.MaxResourceImage
	maxFact   = 16 + 32 + 16 + 8 + 2 + 2 + 4 + frames.MaxTypedPayload
)

// Scope bits of the owner link.
const (
	ScopeEffects uint64 = 1 << iota // AUTHORITY, DISPATCH_EFFECT, GET_EFFECT
	ScopeFacts                      // AUTHORITY, OPEN_FACTS, FACT_ACK; BINDINGS come with it
	ScopeOutput                     // READ_OUTPUT
	// ScopeAll is all three; none includes another.
	ScopeAll = ScopeEffects | ScopeFacts | ScopeOutput
)

// ScopeNames are the scopes as the registry and the command line spell them.
func ScopeNames() map[string]uint64 {
	return map[string]uint64{"effects": ScopeEffects, "facts": ScopeFacts, "output": ScopeOutput}
}

// HandshakeService is the owner link as the handshake knows it.
func HandshakeService() handshake.Service {
	return handshake.Service{Name: Service, Major: frames.VersionMajor, Minor: frames.VersionMinor, Scopes: ScopeAll}
}

// Type numbers of the link's own frames. Proof, ACK, PING, PONG and ERROR have the numbers
// and the form of the endpoint's.
const (
	TypeDispatchEffect frames.Type = 0x10
	TypeGetEffect      frames.Type = 0x11
	TypeAuthority      frames.Type = 0x13
	TypeOpenFacts      frames.Type = 0x20
	TypeFactAck        frames.Type = 0x21
	TypeReadOutput     frames.Type = 0x30
	TypeOwnerHelloOK   frames.Type = 0x80
	TypeEffectResult   frames.Type = 0x90
	TypeBindings       frames.Type = 0x91
	TypeOutputChunk    frames.Type = 0xa0
	TypeSourceFact     frames.Type = 0xb0
	TypeFactsEnd       frames.Type = 0xb1
)

// NeverSeen is the state of an EFFECT_RESULT for an attempt that this owner never started and
// never will: it is journaled void (protocol.md [D-51]).
const NeverSeen frames.EffectState = 255

// AckAll is the sequence with which a coordinator gives a binding up: all its facts are
// acknowledged, and a process that still lives under it is killed ([D-45]).
const AckAll uint64 = 1<<64 - 1

const guardBytes = 64

// OwnerHelloOK ends the handshake, server to client.
//
//	1 protocol_major u16    4 groups list<GroupId:u32>
//	2 protocol_minor u16    5 workload_grant WorkloadGrant
//	3 protocol_patch u16
type OwnerHelloOK struct {
	Version frames.Version
	Groups  []frames.GroupID
	Grant   frames.WorkloadGrant
}

// Type is OWNER_HELLO_OK.
func (*OwnerHelloOK) Type() frames.Type { return TypeOwnerHelloOK }

// Answer is what every HELLO_OK of a link carries.
func (m *OwnerHelloOK) Answer() (frames.Version, *frames.WorkloadGrant) { return m.Version, &m.Grant }

// Layout walks the fields.
func (m *OwnerHelloOK) Layout(b *codec.Body) {
	m.Version.Layout(b)
	codec.Nested(b, 4, codec.List[frames.GroupID, *frames.GroupID]{Items: &m.Groups, Max: MaxGroups, Size: 4}, 2+4*MaxGroups)
	codec.Nested(b, 5, &m.Grant, frames.MaxHandshakeBytes)
}

// Authority shows the coordinator's certificate: the first frame after the hello, and at each
// renewal. It has no reply.
//
//	1 activation_certificate bytes209
type Authority struct{ Certificate frames.Certificate }

// Type is AUTHORITY.
func (*Authority) Type() frames.Type { return TypeAuthority }

// Layout walks the field.
func (m *Authority) Layout(b *codec.Body) { frames.CertificateField(b, 1, &m.Certificate) }

// DispatchEffect asks for one effect, once (protocol.md §8.1). Target and payload must fit the
// kind.
//
//	1 request_id u32              5 effect_kind u8
//	2 authority_guard             6 target EffectTarget
//	3 effect_attempt_id bytes16   7 effect_digest bytes32
//	4 operation_id bytes16        8 payload bytes
type DispatchEffect struct {
	RequestID   frames.RequestID
	Guard       frames.AuthorityGuard
	Attempt     frames.EffectAttemptID
	OperationID frames.OperationID
	Kind        frames.EffectKind
	Target      frames.EffectTarget
	Digest      [32]byte
	Payload     []byte
}

// Type is DISPATCH_EFFECT.
func (*DispatchEffect) Type() frames.Type { return TypeDispatchEffect }

// Layout walks the fields.
func (m *DispatchEffect) Layout(b *codec.Body) {
	codec.NonzeroU32(b, 1, &m.RequestID)
	codec.Nested(b, 2, &m.Guard, guardBytes)
	codec.ID16(b, 3, &m.Attempt)
	codec.ID16(b, 4, &m.OperationID)
	codec.U8(b, 5, &m.Kind)
	codec.Nested(b, 6, &m.Target, maxTarget)
	codec.Hash32(b, 7, &m.Digest)
	codec.Bytes(b, 8, &m.Payload, maxSpawnPayload)
	if b.Failed() {
		return
	}
	if err := frames.CheckEffect(m.Kind, &m.Target, m.Payload); err != nil {
		b.Fail(8, codec.ErrInvalid)
	}
}

// GetEffect asks what became of an attempt.
//
//	1 request_id u32    3 effect_attempt_id bytes16
//	2 authority_guard   4 effect_digest bytes32
type GetEffect struct {
	RequestID frames.RequestID
	Guard     frames.AuthorityGuard
	Attempt   frames.EffectAttemptID
	Digest    [32]byte
}

// Type is GET_EFFECT.
func (*GetEffect) Type() frames.Type { return TypeGetEffect }

// Layout walks the fields.
func (m *GetEffect) Layout(b *codec.Body) {
	codec.NonzeroU32(b, 1, &m.RequestID)
	codec.Nested(b, 2, &m.Guard, guardBytes)
	codec.ID16(b, 3, &m.Attempt)
	codec.Hash32(b, 4, &m.Digest)
}

// EffectResult answers both. State is SUCCEEDED, REJECTED or INDETERMINATE, or [NeverSeen];
// Resource is set for a SPAWN that succeeded.
//
//	1 request_id u32              4 resource_id optional<ResourceId>
//	2 effect_attempt_id bytes16   5 message optional<str<=1024>
//	3 state u8
type EffectResult struct {
	RequestID   frames.RequestID
	Attempt     frames.EffectAttemptID
	State       frames.EffectState
	HasResource bool
	Resource    frames.ResourceID
	Message     *string
}

// Type is EFFECT_RESULT.
func (*EffectResult) Type() frames.Type { return TypeEffectResult }

// Layout walks the fields.
func (m *EffectResult) Layout(b *codec.Body) {
	codec.NonzeroU32(b, 1, &m.RequestID)
	codec.ID16(b, 2, &m.Attempt)
	codec.U8(b, 3, &m.State)
	b.Check(b.Failed() || m.State == NeverSeen || m.State <= frames.EffectIndeterminate, 3, codec.ErrTag)
	codec.OptNested(b, 4, &m.HasResource, &m.Resource, frames.MaxResourceImage)
	codec.OptStr(b, 5, &m.Message, frames.MaxText)
}

// OpenFacts asks for a binding's facts above a sequence; ACK answers, then SOURCE_FACTs come
// as far as the credit goes. Opening a binding again moves its stream.
//
//	1 request_id u32     4 after_source_sequence u64
//	2 authority_guard    5 credit_count u32
//	3 binding_id bytes16
type OpenFacts struct {
	RequestID frames.RequestID
	Guard     frames.AuthorityGuard
	BindingID frames.BindingID
	After     uint64
	Credit    uint32
}

// Type is OPEN_FACTS.
func (*OpenFacts) Type() frames.Type { return TypeOpenFacts }

// Layout walks the fields.
func (m *OpenFacts) Layout(b *codec.Body) {
	codec.NonzeroU32(b, 1, &m.RequestID)
	codec.Nested(b, 2, &m.Guard, guardBytes)
	codec.ID16(b, 3, &m.BindingID)
	codec.U64(b, 4, &m.After)
	codec.U32(b, 5, &m.Credit)
}

// SourceFact carries one fact and takes one credit of its stream.
//
//	1 fact TerminalSourceFact
type SourceFact struct{ Fact frames.TerminalSourceFact }

// Type is SOURCE_FACT.
func (*SourceFact) Type() frames.Type { return TypeSourceFact }

// Layout walks the field.
func (m *SourceFact) Layout(b *codec.Body) { codec.Nested(b, 1, &m.Fact, maxFact) }

// Bindings follows the first AUTHORITY of a connection: every binding of the coordinator with
// a live process or facts that were not acknowledged ([D-45]). More than 16,384 come in
// several frames.
//
//	1 bindings list<BindingId>
type Bindings struct{ Bindings []frames.BindingID }

// Type is BINDINGS.
func (*Bindings) Type() frames.Type { return TypeBindings }

// Layout walks the field.
func (m *Bindings) Layout(b *codec.Body) {
	list := codec.List[bindingID, *bindingID]{Max: maxBindingList, Size: 16}
	var items []bindingID
	for _, id := range m.Bindings {
		items = append(items, bindingID(id))
	}
	list.Items = &items
	codec.Nested(b, 1, list, 2+16*maxBindingList)
	if b.Decoding() && !b.Failed() {
		m.Bindings = make([]frames.BindingID, len(items))
		for i, id := range items {
			m.Bindings[i] = frames.BindingID(id)
		}
	}
}

// bindingID is a BindingID as an element of a list.
type bindingID frames.BindingID

// Image walks the id.
func (v *bindingID) Image(i *codec.Image) { codec.ImgID16(i, v) }

// FactsEnd follows the last fact of a binding of a former incarnation ([D-53]).
//
//	1 binding_id bytes16   2 last_source_sequence u64 (0: none)
type FactsEnd struct {
	BindingID frames.BindingID
	Last      uint64
}

// Type is FACTS_END.
func (*FactsEnd) Type() frames.Type { return TypeFactsEnd }

// Layout walks the fields.
func (m *FactsEnd) Layout(b *codec.Body) {
	codec.ID16(b, 1, &m.BindingID)
	codec.U64(b, 2, &m.Last)
}

// FactAck says that the coordinator has committed, or refused, all facts through a sequence,
// and gives their stream more credit. It has no reply. [AckAll] gives the binding up.
//
//	1 binding_id bytes16   2 through_source_sequence u64   3 add_count u32
type FactAck struct {
	BindingID frames.BindingID
	Through   uint64
	Add       uint32
}

// Type is FACT_ACK.
func (*FactAck) Type() frames.Type { return TypeFactAck }

// Layout walks the fields.
func (m *FactAck) Layout(b *codec.Body) {
	codec.ID16(b, 1, &m.BindingID)
	codec.U64(b, 2, &m.Through)
	codec.U32(b, 3, &m.Add)
}

// ReadOutput asks for stored output: Offset bytes precede it, MaxBytes is the total of this
// request (0: all), and Follow waits for more until the process has ended.
//
//	1 request_id u32       4 max_bytes u32
//	2 binding_id bytes16   5 follow bool
//	3 offset u64
type ReadOutput struct {
	RequestID frames.RequestID
	BindingID frames.BindingID
	Offset    uint64
	MaxBytes  uint32
	Follow    bool
}

// Type is READ_OUTPUT.
func (*ReadOutput) Type() frames.Type { return TypeReadOutput }

// Layout walks the fields.
func (m *ReadOutput) Layout(b *codec.Body) {
	codec.NonzeroU32(b, 1, &m.RequestID)
	codec.ID16(b, 2, &m.BindingID)
	codec.U64(b, 3, &m.Offset)
	codec.U32(b, 4, &m.MaxBytes)
	codec.Bool(b, 5, &m.Follow)
}

// OutputChunk is a piece of stored output. End marks the request's last chunk.
//
//	1 request_id u32   2 offset u64   3 data bytes<=256 KiB   4 end bool
type OutputChunk struct {
	RequestID frames.RequestID
	Offset    uint64
	Data      []byte
	End       bool
}

// Type is OUTPUT_CHUNK.
func (*OutputChunk) Type() frames.Type { return TypeOutputChunk }

// Layout walks the fields.
func (m *OutputChunk) Layout(b *codec.Body) {
	codec.NonzeroU32(b, 1, &m.RequestID)
	codec.U64(b, 2, &m.Offset)
	codec.Bytes(b, 3, &m.Data, MaxChunkBytes)
	codec.Bool(b, 4, &m.End)
}

// namespace is the owner link.
var namespace = &link.Namespace{
	Service: HandshakeService(), Peer: "owner", MaxFrame: MaxFrameBytes,
	Frames: map[frames.Type]func() frames.Frame{
		TypeDispatchEffect: func() frames.Frame { return new(DispatchEffect) },
		TypeGetEffect:      func() frames.Frame { return new(GetEffect) },
		TypeAuthority:      func() frames.Frame { return new(Authority) },
		TypeOpenFacts:      func() frames.Frame { return new(OpenFacts) },
		TypeFactAck:        func() frames.Frame { return new(FactAck) },
		TypeReadOutput:     func() frames.Frame { return new(ReadOutput) },
		TypeOwnerHelloOK:   func() frames.Frame { return new(OwnerHelloOK) },
		TypeEffectResult:   func() frames.Frame { return new(EffectResult) },
		TypeBindings:       func() frames.Frame { return new(Bindings) },
		TypeOutputChunk:    func() frames.Frame { return new(OutputChunk) },
		TypeSourceFact:     func() frames.Frame { return new(SourceFact) },
		TypeFactsEnd:       func() frames.Frame { return new(FactsEnd) },
	},
}

// DecodeFrame parses the body of a frame of the owner link. A type that the link does not have
// is PROTOCOL_ERROR; byte slices alias body.
func DecodeFrame(t frames.Type, body []byte) (frames.Frame, error) { return namespace.Decode(t, body) }

// AppendFrame appends f as a whole outer frame; it fails where DecodeFrame would refuse it.
func AppendFrame(dst []byte, f frames.Frame) ([]byte, error) { return link.Append(dst, f) }
