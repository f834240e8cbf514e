package frames

import (
	"unicode"

	"coordinator/codec"
)

// GroupID names a terminal group of an owner; its image is one u32 (protocol.md §11).
type GroupID uint32

func (g *GroupID) Image(i *codec.Image) { codec.ImgU32(i, g) }

// ResourceID names a terminal resource at its owner (§11). Host empty is a local one.
//
//	u8 0 || u32 id  |  u8 1 || str host (1..=255 bytes, no control characters) || u32 id
type ResourceID struct {
	Host string
	ID   uint32
}

func (r *ResourceID) Image(i *codec.Image) {
	tag := uint8(0)
	if r.Host != "" {
		tag = 1
	}
	codec.ImgEnum8(i, &tag, 0, 1)
	if i.Decoding() {
		r.Host = ""
	}
	if tag == 1 {
		codec.ImgStr(i, &r.Host, MaxSatelliteHost)
		i.Check(i.Failed() || r.Host != "", codec.ErrUnderMin)
		for _, c := range r.Host {
			i.Check(!unicode.IsControl(c), codec.ErrInvalid)
		}
	}
	codec.ImgU32(i, &r.ID)
}

// TerminalBindingRef is one binding in full (§11).
//
//	BindingId || WorkSessionId || owner_authority_fingerprint:32 || owner_incarnation:16 ||
//	u32 len || ResourceId image
type TerminalBindingRef struct {
	BindingID        BindingID
	WorkSessionID    WorkSessionID
	Owner            Fingerprint
	OwnerIncarnation IncarnationID
	Resource         ResourceID
}

const maxBindingRef = 16 + 16 + 32 + 16 + 4 + MaxResourceImage

func (r *TerminalBindingRef) Image(i *codec.Image) {
	codec.ImgID16(i, &r.BindingID)
	codec.ImgID16(i, &r.WorkSessionID)
	codec.ImgHash32(i, &r.Owner)
	codec.ImgID16(i, &r.OwnerIncarnation)
	codec.ImgSized(i, &r.Resource, MaxResourceImage)
}

// TerminalSourceRef names one fact of one binding (§11).
//
//	BindingId || owner_authority_fingerprint:32 || owner_incarnation:16 || SourceSequence:u64
type TerminalSourceRef struct {
	BindingID        BindingID
	Owner            Fingerprint
	OwnerIncarnation IncarnationID
	Sequence         SourceSequence
}

func (r *TerminalSourceRef) Image(i *codec.Image) {
	codec.ImgID16(i, &r.BindingID)
	codec.ImgHash32(i, &r.Owner)
	codec.ImgID16(i, &r.OwnerIncarnation)
	codec.ImgNonzeroU64(i, &r.Sequence)
}

// SourceFactKind says what a fact states (§11).
type SourceFactKind uint16

const (
	FactOpened       SourceFactKind = 1
	FactClosed       SourceFactKind = 2
	FactInputResult  SourceFactKind = 3
	FactSignalResult SourceFactKind = 4
	FactOutputRange  SourceFactKind = 5
	FactAttention    SourceFactKind = 6
)

// FactSchema is the schema of every fact payload in this version.
const FactSchema = 1

// TerminalSourceFact is one fact of a terminal owner (§11). The payload is held to the
// form of its kind.
//
//	TerminalSourceRef || kind:u16 || schema:u16 || u32 len || payload
type TerminalSourceFact struct {
	Source  TerminalSourceRef
	Kind    SourceFactKind
	Schema  uint16
	Payload []byte
}

func (f *TerminalSourceFact) Image(i *codec.Image) {
	f.Source.Image(i)
	codec.ImgU16(i, &f.Kind)
	codec.ImgU16(i, &f.Schema)
	codec.ImgBytes(i, &f.Payload, MaxTypedPayload)
	if i.Failed() {
		return
	}
	v, err := f.newPayload()
	if err == nil {
		err = codec.DecodeImage(v, f.Payload)
	}
	if err != nil {
		i.Fail(err)
	}
}

// DecodePayload decodes the payload to *[Opened], *[Closed], *[InputResult],
// *[SignalResult], *[OutputRange] or *[Attention].
func (f *TerminalSourceFact) DecodePayload() (codec.Value, error) {
	v, err := f.newPayload()
	if err != nil {
		return nil, err
	}
	return v, codec.DecodeImage(v, f.Payload)
}

func (f *TerminalSourceFact) newPayload() (codec.Value, error) {
	if f.Schema != FactSchema {
		return nil, codec.ErrInvalid
	}
	switch f.Kind {
	case FactOpened:
		return new(Opened), nil
	case FactClosed:
		return new(Closed), nil
	case FactInputResult:
		return new(InputResult), nil
	case FactSignalResult:
		return new(SignalResult), nil
	case FactOutputRange:
		return new(OutputRange), nil
	case FactAttention:
		return new(Attention), nil
	}
	return nil, codec.ErrTag
}

// Opened is the empty payload of OPENED.
type Opened struct{}

func (*Opened) Image(*codec.Image) {}

// Closed is the payload of CLOSED: 0..255 is the exit code, -n killed by signal n, and
// Known false says that the status is not known.
//
//	optional<i32> exit_status
type Closed struct {
	Known  bool
	Status int32
}

func (c *Closed) Image(i *codec.Image) {
	codec.ImgBool(i, &c.Known)
	if c.Known {
		codec.ImgI32(i, &c.Status)
	}
}

// DeliveryOutcome says what became of an effect inside the terminal.
type DeliveryOutcome uint8

const (
	OutcomeApplied  DeliveryOutcome = 0 // for a signal: Delivered
	OutcomeRejected DeliveryOutcome = 1
	OutcomeUnknown  DeliveryOutcome = 2
)

// InputResult is the payload of INPUT_RESULT.
//
//	EffectAttemptId || u8 (Applied=0 Rejected=1 Unknown=2)
type InputResult struct {
	Attempt EffectAttemptID
	Outcome DeliveryOutcome
}

func (r *InputResult) Image(i *codec.Image) {
	codec.ImgID16(i, &r.Attempt)
	codec.ImgEnum8(i, &r.Outcome, OutcomeApplied, OutcomeUnknown)
}

// SignalResult is the payload of SIGNAL_RESULT.
//
//	EffectAttemptId || u8 (Delivered=0 Rejected=1 Unknown=2)
type SignalResult struct {
	Attempt EffectAttemptID
	Outcome DeliveryOutcome
}

func (r *SignalResult) Image(i *codec.Image) {
	codec.ImgID16(i, &r.Attempt)
	codec.ImgEnum8(i, &r.Outcome, OutcomeApplied, OutcomeUnknown)
}

// OutputRange is the payload of OUTPUT_RANGE.
//
//	first:u64 || last:u64 || byte_count:u64 || content_sha256:32
type OutputRange struct {
	First, Last, ByteCount uint64
	Content                [32]byte
}

func (r *OutputRange) Image(i *codec.Image) {
	codec.ImgU64(i, &r.First)
	codec.ImgU64(i, &r.Last)
	codec.ImgU64(i, &r.ByteCount)
	codec.ImgHash32(i, &r.Content)
}

// AttentionKind says why a terminal wants attention.
type AttentionKind uint16

const (
	AttentionBell    AttentionKind = 1
	AttentionBlocked AttentionKind = 2
	AttentionFailed  AttentionKind = 3
)

// Attention is the payload of ATTENTION.
//
//	u16 (Bell=1 Blocked=2 Failed=3)
type Attention struct{ Kind AttentionKind }

func (a *Attention) Image(i *codec.Image) {
	codec.ImgU16(i, &a.Kind)
	i.Check(a.Kind >= AttentionBell && a.Kind <= AttentionFailed, codec.ErrTag)
}

// SourceGapReason says what broke a binding's facts (§7.1).
type SourceGapReason uint8

const (
	SourceGapJump     SourceGapReason = 0
	SourceGapConflict SourceGapReason = 1
	SourceGapEnded    SourceGapReason = 2
)

// SourceGap is the payload of a SOURCE_GAP event (§7.1). Observed zero means none, which
// only Ended may say [D-35].
//
//	binding_id:bytes16 || expected:u64 || observed:u64 || reason:u8
type SourceGap struct {
	BindingID BindingID
	Expected  uint64
	Observed  uint64
	Reason    SourceGapReason
}

func (g *SourceGap) Image(i *codec.Image) {
	codec.ImgID16(i, &g.BindingID)
	codec.ImgNonzeroU64(i, &g.Expected)
	codec.ImgU64(i, &g.Observed)
	codec.ImgEnum8(i, &g.Reason, SourceGapJump, SourceGapEnded)
	i.Check(g.Observed != 0 || g.Reason == SourceGapEnded, codec.ErrZero)
}
