package frames

import "coordinator/codec"

// Hard caps of protocol.md §2.3. They are fixed on the wire.
const (
	MaxFrameBytes        = codec.MaxFrame // of `length`: type and payload
	MaxHandshakeBytes    = 16 << 10
	MaxPageBytes         = 512 << 10 // the list field's value [D-56]
	MaxPageRecords       = 1024
	MaxTypedPayload      = 256 << 10
	MaxCursor            = 4 << 10
	MaxName              = 128  // UTF-8 bytes
	MaxText              = 1024 // UTF-8 bytes of diagnostics and notes
	MaxCreditCount       = 4096
	MaxCreditBytes       = 8 << 20
	MaxPreconditions     = 64
	MaxActivationBases   = 64      // [D-26]
	MaxResourceImage     = 4 << 10 // GroupId and ResourceId images (§11)
	MaxSatelliteHost     = 255
	MinFrameBytes        = 2048
	MinOperationRetained = 2_592_000 // seconds, §5.6 field 15
)

// What the server enforces where the hello does not negotiate (§2.3 [D-27]).
const (
	RequestsPerConnection      = 128
	SubscriptionsPerConnection = 16
	LeasesPerConnection        = 4
	PreconditionsPerCommand    = 32
	LeaseSeconds               = 60
	ControlLaneFrames          = 32
	ControlLaneBytes           = 64 << 10
	UnsentFrames               = 1024
	UnsentBytes                = 4 << 20
)

const (
	pageMargin     = 512 // frame bytes around a page's list, and frame over page
	eventMargin    = 512 // cap of COORD_EVENT above the typed payload [D-28]
	commandMargin  = 4096
	creditMargin   = 112 // outer bytes of a maximum COORD_EVENT over its payload [D-37]
	minRecordImage = 32  // a SnapshotRecord with an empty payload
	minEventImage  = 58  // a ReplayEvent with an empty payload
)

// Limits are the six values that the hello selects (§2.3).
type Limits struct {
	FrameBytes   uint32
	PageBytes    uint32
	PageRecords  uint16
	TypedPayload uint32
	CreditCount  uint32
	CreditBytes  uint32
}

// ReferenceLimits is the reference offer of §2.3.
func ReferenceLimits() Limits {
	return Limits{
		FrameBytes: 512 << 10, PageBytes: 256 << 10, PageRecords: 512,
		TypedPayload: 128 << 10, CreditCount: 1024, CreditBytes: 4 << 20,
	}
}

// Select takes the minimum of each limit and checks how they must fit together: the
// frame holds a page and a payload, and the credit one maximum COORD_EVENT. A misfit is
// a malformed hello.
func (l Limits) Select(other Limits) (Limits, error) {
	s := Limits{
		FrameBytes:   min(l.FrameBytes, other.FrameBytes),
		PageBytes:    min(l.PageBytes, other.PageBytes),
		PageRecords:  min(l.PageRecords, other.PageRecords),
		TypedPayload: min(l.TypedPayload, other.TypedPayload),
		CreditCount:  min(l.CreditCount, other.CreditCount),
		CreditBytes:  min(l.CreditBytes, other.CreditBytes),
	}
	switch {
	case s.FrameBytes < MinFrameBytes:
		return Limits{}, Refuse(CodeMalformedMessage, "selected frame limit is under 2,048 bytes")
	case s.PageBytes > s.FrameBytes-pageMargin:
		return Limits{}, Refuse(CodeMalformedMessage, "selected page limit is above the frame limit less 512")
	case s.TypedPayload > s.FrameBytes-pageMargin:
		return Limits{}, Refuse(CodeMalformedMessage, "selected payload limit is above the frame limit less 512")
	case s.CreditBytes < s.TypedPayload+creditMargin:
		return Limits{}, Refuse(CodeMalformedMessage, "selected credit does not hold one maximum event")
	}
	return s, nil
}

// layout walks the six limits as fields first..first+5 of a hello. Zero, or above its hard cap, is
// malformed in a COORD_HELLO; a COORD_HELLO_OK carries selected values, which obey both.
func (l *Limits) layout(b *codec.Body, first int) {
	limit32(b, first, &l.FrameBytes, MaxFrameBytes)
	limit32(b, first+1, &l.PageBytes, MaxPageBytes)
	codec.U16(b, first+2, &l.PageRecords)
	b.Check(l.PageRecords != 0, first+2, codec.ErrZero)
	b.Check(l.PageRecords <= MaxPageRecords, first+2, codec.ErrOverCap)
	limit32(b, first+3, &l.TypedPayload, MaxTypedPayload)
	limit32(b, first+4, &l.CreditCount, MaxCreditCount)
	limit32(b, first+5, &l.CreditBytes, MaxCreditBytes)
}

func limit32(b *codec.Body, id int, v *uint32, max uint32) {
	codec.NonzeroU32(b, id, v)
	b.Check(*v <= max, id, codec.ErrOverCap)
}

// FrameCap is the cap of `length` for a frame of type t (§2 [D-28]). selected is nil
// before COORD_HELLO_OK.
func FrameCap(t Type, selected *Limits) uint32 {
	if selected == nil || t.handshake() {
		return MaxHandshakeBytes
	}
	switch t {
	case TypeSnapshotPage, TypeReplayPage:
		return selected.PageBytes + pageMargin
	case TypeCoordEvent:
		return selected.TypedPayload + eventMargin
	case TypeCoordCommand:
		return min(selected.FrameBytes, selected.TypedPayload+commandMargin)
	}
	return selected.FrameBytes
}

// EventBytes is the full outer length (4+length) of a COORD_EVENT with a payload of n
// bytes, which is what its byte credit is charged (§10).
func EventBytes(n int) int {
	// Header 5, ids 19+19, u64s 11+11+11, kind and schema 5+5, object 21, and the
	// payload's field id and wire type 2.
	size := 109 + n
	for v := n; ; v >>= 7 {
		size++
		if v < 0x80 {
			return size
		}
	}
}
