package frames

import (
	"slices"

	"coordinator/codec"
)

// Precondition asks that an object be at one revision; zero asks that it be absent
// (protocol.md §7.1).
//
//	ObjectRef || expected_revision:u64
type Precondition struct {
	Object   ObjectRef
	Revision uint64
}

const preconditionSize = 26

func (p *Precondition) Image(i *codec.Image) {
	p.Object.Image(i)
	codec.ImgU64(i, &p.Revision)
}

// CoordCommand asks for one durable operation (§8).
//
//	1 request_id:u32  2 authority_guard  3 operation_id:bytes16  4 command_kind:u16
//	5 payload:bytes   6 preconditions:optional<list<Precondition>>  (>= 7: extensions)
//
// Kind is any u16, zero included: it is judged after the guard [D-18]. Preconditions are
// accepted in any order and come out sorted [D-25]; an empty list encodes as absent.
type CoordCommand struct {
	RequestID     RequestID
	Guard         AuthorityGuard
	OperationID   OperationID
	Kind          CommandKind
	Payload       []byte
	Preconditions []Precondition
	Extensions    []codec.Field
}

func (*CoordCommand) Type() Type { return TypeCoordCommand }

func (m *CoordCommand) Layout(b *codec.Body) {
	codec.NonzeroU32(b, 1, &m.RequestID)
	guardField(b, 2, &m.Guard)
	codec.ID16(b, 3, &m.OperationID)
	codec.U16(b, 4, &m.Kind)
	codec.Bytes(b, 5, &m.Payload, MaxTypedPayload)
	conditions := m.Preconditions
	if b.Decoding() {
		codec.OptList(b, 6, &m.Preconditions, MaxPreconditions, preconditionSize)
		m.Preconditions = sortedPreconditions(m.Preconditions)
		conditions = m.Preconditions
	} else {
		conditions = sortedPreconditions(conditions)
		codec.OptList(b, 6, &conditions, MaxPreconditions, preconditionSize)
	}
	for k := 1; k < len(conditions); k++ {
		b.Check(conditions[k-1].Object != conditions[k].Object, 6, codec.ErrDuplicate)
	}
	b.Unknown(&m.Extensions)
}

// sortedPreconditions returns p in (kind, id) order, without moving the caller's slice.
func sortedPreconditions(p []Precondition) []Precondition {
	if len(p) == 0 {
		return nil
	}
	order := func(x, y Precondition) int { return x.Object.Compare(y.Object) }
	if slices.IsSortedFunc(p, order) {
		return p
	}
	p = slices.Clone(p)
	slices.SortStableFunc(p, order)
	return p
}

// CoordCommandResult answers a command (§8).
//
//	1 request_id:u32  2 operation:OperationResult
type CoordCommandResult struct {
	RequestID RequestID
	Operation OperationResult
}

func (*CoordCommandResult) Type() Type { return TypeCoordCommandResult }

func (m *CoordCommandResult) Layout(b *codec.Body) {
	codec.NonzeroU32(b, 1, &m.RequestID)
	codec.Nested(b, 2, &m.Operation, maxOperationImage)
}

// GetOperationResult looks an operation up (§8).
//
//	1 request_id:u32  2 authority_guard  3 operation_id:bytes16
type GetOperationResult struct {
	RequestID   RequestID
	Guard       AuthorityGuard
	OperationID OperationID
}

func (*GetOperationResult) Type() Type { return TypeGetOperationResult }

func (m *GetOperationResult) Layout(b *codec.Body) {
	codec.NonzeroU32(b, 1, &m.RequestID)
	guardField(b, 2, &m.Guard)
	codec.ID16(b, 3, &m.OperationID)
}

// OperationResultFrame is OPERATION_RESULT, the answer to a lookup (§8).
//
//	1 request_id:u32  2 operation:OperationResult
type OperationResultFrame struct {
	RequestID RequestID
	Operation OperationResult
}

func (*OperationResultFrame) Type() Type { return TypeOperationResult }

func (m *OperationResultFrame) Layout(b *codec.Body) {
	codec.NonzeroU32(b, 1, &m.RequestID)
	codec.Nested(b, 2, &m.Operation, maxOperationImage)
}
