package frames

import (
	"fmt"

	"coordinator/codec"
)

// Type is the type byte of a frame of the coordinator endpoint (protocol.md §7). The
// internal links reuse some numbers in namespaces of their own.
type Type uint8

const (
	TypeCoordHello         Type = 0x01
	TypeWorkloadResponse   Type = 0x04
	TypeCoordCommand       Type = 0x10
	TypeGetOperationResult Type = 0x11
	TypeOpenSnapshot       Type = 0x20
	TypeSnapshotNext       Type = 0x21
	TypeSnapshotApplied    Type = 0x22
	TypeSubscribe          Type = 0x23
	TypeCredit             Type = 0x24
	TypeOpenReplay         Type = 0x25
	TypeReplayNext         Type = 0x26
	TypeReplayApplied      Type = 0x27
	TypePing               Type = 0x7f
	TypeCoordHelloOK       Type = 0x80
	TypeAck                Type = 0x82
	TypeAuthorityRenewed   Type = 0x83
	TypeWorkloadChallenge  Type = 0x84
	TypeCoordCommandResult Type = 0x90
	TypeOperationResult    Type = 0x91
	TypeSnapshotBegin      Type = 0xa0
	TypeSnapshotPage       Type = 0xa1
	TypeSnapshotEnd        Type = 0xa2
	TypeSubscribed         Type = 0xa3
	TypeReplayBegin        Type = 0xa4
	TypeReplayPage         Type = 0xa5
	TypeReplayEnd          Type = 0xa6
	TypeCoordEvent         Type = 0xb0
	TypeGap                Type = 0xb1
	TypeCoordError         Type = 0xc0
	TypePong               Type = 0xff
)

// A Frame is one frame of the endpoint.
type Frame interface {
	codec.Message
	// Type is the frame's type byte.
	Type() Type
}

// typeInfo is one row of the frame table.
type typeInfo struct {
	name       string
	fromClient bool
	fromServer bool
	make       func() Frame
}

var types = map[Type]typeInfo{
	TypeCoordHello:         {"COORD_HELLO", true, false, func() Frame { return new(CoordHello) }},
	TypeWorkloadResponse:   {"WORKLOAD_RESPONSE", true, false, func() Frame { return new(WorkloadResponse) }},
	TypeCoordCommand:       {"COORD_COMMAND", true, false, func() Frame { return new(CoordCommand) }},
	TypeGetOperationResult: {"GET_OPERATION_RESULT", true, false, func() Frame { return new(GetOperationResult) }},
	TypeOpenSnapshot:       {"OPEN_SNAPSHOT", true, false, func() Frame { return new(OpenSnapshot) }},
	TypeSnapshotNext:       {"SNAPSHOT_NEXT", true, false, func() Frame { return new(SnapshotNext) }},
	TypeSnapshotApplied:    {"SNAPSHOT_APPLIED", true, false, func() Frame { return new(SnapshotApplied) }},
	TypeSubscribe:          {"SUBSCRIBE", true, false, func() Frame { return new(Subscribe) }},
	TypeCredit:             {"CREDIT", true, false, func() Frame { return new(Credit) }},
	TypeOpenReplay:         {"OPEN_REPLAY", true, false, func() Frame { return new(OpenReplay) }},
	TypeReplayNext:         {"REPLAY_NEXT", true, false, func() Frame { return new(ReplayNext) }},
	TypeReplayApplied:      {"REPLAY_APPLIED", true, false, func() Frame { return new(ReplayApplied) }},
	TypePing:               {"COORD_PING", true, true, func() Frame { return new(Ping) }},
	TypePong:               {"COORD_PONG", true, true, func() Frame { return new(Pong) }},
	TypeCoordError:         {"COORD_ERROR", true, true, func() Frame { return new(CoordError) }},
	TypeCoordHelloOK:       {"COORD_HELLO_OK", false, true, func() Frame { return new(CoordHelloOK) }},
	TypeAck:                {"ACK", false, true, func() Frame { return new(Ack) }},
	TypeAuthorityRenewed:   {"COORD_AUTHORITY_RENEWED", false, true, func() Frame { return new(AuthorityRenewed) }},
	TypeWorkloadChallenge:  {"WORKLOAD_CHALLENGE", false, true, func() Frame { return new(WorkloadChallenge) }},
	TypeCoordCommandResult: {"COORD_COMMAND_RESULT", false, true, func() Frame { return new(CoordCommandResult) }},
	TypeOperationResult:    {"OPERATION_RESULT", false, true, func() Frame { return new(OperationResultFrame) }},
	TypeSnapshotBegin:      {"SNAPSHOT_BEGIN", false, true, func() Frame { return new(SnapshotBegin) }},
	TypeSnapshotPage:       {"SNAPSHOT_PAGE", false, true, func() Frame { return new(SnapshotPage) }},
	TypeSnapshotEnd:        {"SNAPSHOT_END", false, true, func() Frame { return new(SnapshotEnd) }},
	TypeSubscribed:         {"SUBSCRIBED", false, true, func() Frame { return new(Subscribed) }},
	TypeReplayBegin:        {"REPLAY_BEGIN", false, true, func() Frame { return new(ReplayBegin) }},
	TypeReplayPage:         {"REPLAY_PAGE", false, true, func() Frame { return new(ReplayPage) }},
	TypeReplayEnd:          {"REPLAY_END", false, true, func() Frame { return new(ReplayEnd) }},
	TypeCoordEvent:         {"COORD_EVENT", false, true, func() Frame { return new(CoordEvent) }},
	TypeGap:                {"GAP", false, true, func() Frame { return new(Gap) }},
}

// byType is types as a table: every frame that comes or goes is looked up.
var byType = func() (table [256]typeInfo) {
	for t, i := range types {
		table[t] = i
	}
	return table
}()

// Types lists every type of the endpoint, in no particular order.
func Types() []Type {
	out := make([]Type, 0, len(types))
	for t := range types {
		out = append(out, t)
	}
	return out
}

// Known reports whether the endpoint has a frame of this type.
func (t Type) Known() bool { return byType[t].make != nil }

// FromClient reports whether a client may send this type.
func (t Type) FromClient() bool { return byType[t].fromClient }

// FromServer reports whether a server may send this type.
func (t Type) FromServer() bool { return byType[t].fromServer }

// handshake reports whether the type belongs to the handshake, whose cap never widens.
func (t Type) handshake() bool {
	switch t {
	case TypeCoordHello, TypeCoordHelloOK, TypeWorkloadChallenge, TypeWorkloadResponse:
		return true
	}
	return false
}

func (t Type) String() string {
	if i, ok := types[t]; ok {
		return i.name
	}
	return fmt.Sprintf("TYPE_%#02x", uint8(t))
}

// Append appends f as a whole outer frame. It fails where a decoder would refuse f; caps
// that a connection selected are the sender's to keep ([FrameCap]).
func Append(dst []byte, f Frame) ([]byte, error) {
	out, err := codec.AppendFrame(dst, uint8(f.Type()), f)
	if err == nil {
		err = checkSize(f.Type(), len(out)-len(dst)-codec.HeaderSize)
	}
	if err != nil {
		return dst, fmt.Errorf("encode %v: %w", f.Type(), err)
	}
	return out, nil
}

// checkSize holds a body of n bytes to the cap that its type has in every state.
func checkSize(t Type, n int) error {
	limit := MaxFrameBytes
	if t.handshake() {
		limit = MaxHandshakeBytes
	}
	if n >= limit { // the type byte counts too
		return codec.ErrFrameTooLarge
	}
	return nil
}

// Decode parses the body of a frame of type t. An unknown type is PROTOCOL_ERROR.
func Decode(t Type, body []byte) (Frame, error) {
	if !t.Known() {
		return nil, Refuse(CodeProtocolError, "unknown frame type")
	}
	if err := checkSize(t, len(body)); err != nil {
		return nil, fmt.Errorf("%v: %w", t, err)
	}
	f := byType[t].make()
	if err := codec.Decode(f, body); err != nil {
		return nil, fmt.Errorf("%v: %w", t, err)
	}
	return f, nil
}

// DecodeInto is [Decode] into a frame of the type, whose former content is lost.
func DecodeInto(f Frame, body []byte) error {
	t := f.Type()
	err := checkSize(t, len(body))
	if err == nil {
		err = codec.Decode(f, body)
	}
	if err != nil {
		return fmt.Errorf("%v: %w", t, err)
	}
	return nil
}
