package frames

import "coordinator/codec"

// Subscribe opens a direct subscription (protocol.md §10).
//
//	1 request_id  2 authority_guard  3 after_event_sequence:EventCut
//	4 initial_credit_count:u32  5 initial_credit_bytes:u32
type Subscribe struct {
	RequestID   RequestID
	Guard       AuthorityGuard
	After       EventCut
	CreditCount uint32
	CreditBytes uint32
}

func (*Subscribe) Type() Type { return TypeSubscribe }

func (m *Subscribe) Layout(b *codec.Body) {
	codec.NonzeroU32(b, 1, &m.RequestID)
	guardField(b, 2, &m.Guard)
	codec.U64(b, 3, &m.After)
	codec.U32(b, 4, &m.CreditCount)
	codec.U32(b, 5, &m.CreditBytes)
}

// Subscribed answers [Subscribe] (§10).
//
//	1 request_id  2 subscription_id:bytes16  3 next_delivery_sequence:u64
type Subscribed struct {
	RequestID      RequestID
	SubscriptionID SubscriptionID
	NextDelivery   DeliverySequence
}

func (*Subscribed) Type() Type { return TypeSubscribed }

func (m *Subscribed) Layout(b *codec.Body) {
	codec.NonzeroU32(b, 1, &m.RequestID)
	codec.ID16(b, 2, &m.SubscriptionID)
	codec.NonzeroU64(b, 3, &m.NextDelivery)
}

// CoordEvent delivers one event to one subscription (§10).
//
//	1 subscription_id  2 delivery_sequence:u64  3 event_sequence:u64  4 event_id:bytes16
//	5 event_kind:u16  6 object:ObjectRef  7 object_revision:u64  8 schema:u16  9 payload:bytes
type CoordEvent struct {
	SubscriptionID SubscriptionID
	Delivery       DeliverySequence
	Sequence       EventSequence
	EventID        EventID
	Kind           EventKind
	Object         ObjectRef
	Revision       ObjectRevision
	Schema         uint16
	Payload        []byte
}

func (*CoordEvent) Type() Type { return TypeCoordEvent }

func (m *CoordEvent) Layout(b *codec.Body) {
	codec.ID16(b, 1, &m.SubscriptionID)
	codec.NonzeroU64(b, 2, &m.Delivery)
	codec.NonzeroU64(b, 3, &m.Sequence)
	codec.ID16(b, 4, &m.EventID)
	codec.U16(b, 5, &m.Kind)
	b.Check(b.Failed() || m.Kind.Known(), 5, codec.ErrTag)
	codec.Nested(b, 6, &m.Object, 18)
	codec.NonzeroU64(b, 7, &m.Revision)
	codec.U16(b, 8, &m.Schema)
	codec.Bytes(b, 9, &m.Payload, MaxTypedPayload)
}

// Credit adds to both balances of a subscription (§10).
//
//	1 subscription_id  2 add_count:u32  3 add_bytes:u32
type Credit struct {
	SubscriptionID SubscriptionID
	AddCount       uint32
	AddBytes       uint32
}

func (*Credit) Type() Type { return TypeCredit }

func (m *Credit) Layout(b *codec.Body) {
	codec.ID16(b, 1, &m.SubscriptionID)
	codec.U32(b, 2, &m.AddCount)
	codec.U32(b, 3, &m.AddBytes)
}

// GapReason says why a subscription paused (§10).
type GapReason uint8

const (
	GapQueueOverflow    GapReason = 0
	GapRetention        GapReason = 1
	GapEpochChanged     GapReason = 2
	GapSourceGap        GapReason = 3
	GapCursorInvalid    GapReason = 4
	GapRevisionMismatch GapReason = 5
	GapGrantRevoked     GapReason = 6
	GapInternal         GapReason = 7
)

// String is the protocol's name of the reason.
func (r GapReason) String() string {
	return enumName(uint8(r), "QUEUE_OVERFLOW", "RETENTION", "EPOCH_CHANGED", "SOURCE_GAP", "CURSOR_INVALID",
		"REVISION_MISMATCH", "GRANT_REVOKED", "INTERNAL")
}

// Gap says that a subscription has missed something and is paused (§10 [D-39]).
//
//	1 subscription_id  2 last_contiguous_delivery:DeliveryCut
//	3 last_contiguous_event:EventCut  4 observed_event:optional<u64>  5 reason:u8
type Gap struct {
	SubscriptionID SubscriptionID
	LastDelivery   DeliveryCut
	LastEvent      EventCut
	Observed       EventSequence // zero: absent
	Reason         GapReason
}

func (*Gap) Type() Type { return TypeGap }

func (m *Gap) Layout(b *codec.Body) {
	codec.ID16(b, 1, &m.SubscriptionID)
	codec.U64(b, 2, &m.LastDelivery)
	codec.U64(b, 3, &m.LastEvent)
	codec.OptNonzeroU64(b, 4, &m.Observed)
	codec.Enum8(b, 5, &m.Reason, GapInternal)
}

// OpenReplay asks to heal a paused subscription from the log (§10).
//
//	1 request_id  2 authority_guard  3 subscription_id  4 after_event_sequence
type OpenReplay struct {
	RequestID      RequestID
	Guard          AuthorityGuard
	SubscriptionID SubscriptionID
	After          EventCut
}

func (*OpenReplay) Type() Type { return TypeOpenReplay }

func (m *OpenReplay) Layout(b *codec.Body) {
	codec.NonzeroU32(b, 1, &m.RequestID)
	guardField(b, 2, &m.Guard)
	codec.ID16(b, 3, &m.SubscriptionID)
	codec.U64(b, 4, &m.After)
}

// ReplayBegin fixes the end of a replay (§10).
//
//	1 request_id  2 replay_id:bytes16  3 subscription_id  4 first_event:optional<u64>
//	5 replay_cut:EventCut  6 first_cursor:optional<bytes>  7 lease_expires_at:u64
type ReplayBegin struct {
	RequestID      RequestID
	ReplayID       ReplayID
	SubscriptionID SubscriptionID
	FirstEvent     EventSequence // zero: absent
	Cut            EventCut
	FirstCursor    []byte // nil: absent
	LeaseExpiresAt uint64 // Unix seconds
}

func (*ReplayBegin) Type() Type { return TypeReplayBegin }

func (m *ReplayBegin) Layout(b *codec.Body) {
	codec.NonzeroU32(b, 1, &m.RequestID)
	codec.ID16(b, 2, &m.ReplayID)
	codec.ID16(b, 3, &m.SubscriptionID)
	codec.OptNonzeroU64(b, 4, &m.FirstEvent)
	codec.U64(b, 5, &m.Cut)
	codec.OptBytes(b, 6, &m.FirstCursor, MaxCursor)
	codec.U64(b, 7, &m.LeaseExpiresAt)
}

// ReplayNext asks for one page of events (§10).
//
//	1 request_id  2 replay_id  3 cursor:bytes
type ReplayNext struct {
	RequestID RequestID
	ReplayID  ReplayID
	Cursor    []byte
}

func (*ReplayNext) Type() Type { return TypeReplayNext }

func (m *ReplayNext) Layout(b *codec.Body) {
	codec.NonzeroU32(b, 1, &m.RequestID)
	codec.ID16(b, 2, &m.ReplayID)
	codec.Bytes(b, 3, &m.Cursor, MaxCursor)
}

// ReplayEvent is one event of a page (§10).
//
//	event_sequence:u64 || event_id:16 || event_kind:u16 || ObjectRef || object_revision:u64 ||
//	schema:u16 || u32 len || payload
type ReplayEvent struct {
	Sequence EventSequence
	ID       EventID
	Kind     EventKind
	Object   ObjectRef
	Revision ObjectRevision
	Schema   uint16
	Payload  []byte
}

func (e *ReplayEvent) Image(i *codec.Image) {
	codec.ImgNonzeroU64(i, &e.Sequence)
	codec.ImgID16(i, &e.ID)
	codec.ImgU16(i, &e.Kind)
	i.Check(e.Kind.Known(), codec.ErrTag)
	e.Object.Image(i)
	codec.ImgNonzeroU64(i, &e.Revision)
	codec.ImgU16(i, &e.Schema)
	codec.ImgBytes(i, &e.Payload, MaxTypedPayload)
}

// Size is the length of the event's image.
func (e *ReplayEvent) Size() int { return minEventImage + len(e.Payload) }

// ReplayPage is one page of events in ascending sequence (§10).
//
//	1 request_id  2 replay_id  3 cursor (the one used)  4 page_index:u32
//	5 events:list<ReplayEvent>  6 next_cursor:optional<bytes>
type ReplayPage struct {
	RequestID  RequestID
	ReplayID   ReplayID
	Cursor     []byte
	Index      uint32
	Events     []ReplayEvent
	NextCursor []byte // nil: absent, the last page
}

func (*ReplayPage) Type() Type { return TypeReplayPage }

func (m *ReplayPage) Layout(b *codec.Body) {
	codec.NonzeroU32(b, 1, &m.RequestID)
	codec.ID16(b, 2, &m.ReplayID)
	codec.Bytes(b, 3, &m.Cursor, MaxCursor)
	codec.U32(b, 4, &m.Index)
	list := codec.List[ReplayEvent, *ReplayEvent]{Items: &m.Events, Max: MaxPageRecords, Size: minEventImage}
	codec.Nested(b, 5, list, MaxPageBytes)
	for k := 1; k < len(m.Events); k++ {
		b.Check(m.Events[k-1].Sequence < m.Events[k].Sequence, 5, codec.ErrOrder)
	}
	codec.OptBytes(b, 6, &m.NextCursor, MaxCursor)
}

// ReplayEnd closes a replay with its totals and digest (§10).
//
//	1 request_id  2 replay_id  3 page_count:u32  4 event_count:u64  5 canonical_sha256:bytes32
type ReplayEnd struct {
	RequestID  RequestID
	ReplayID   ReplayID
	PageCount  uint32
	EventCount uint64
	Digest     [32]byte
}

func (*ReplayEnd) Type() Type { return TypeReplayEnd }

func (m *ReplayEnd) Layout(b *codec.Body) {
	codec.NonzeroU32(b, 1, &m.RequestID)
	codec.ID16(b, 2, &m.ReplayID)
	codec.U32(b, 3, &m.PageCount)
	codec.U64(b, 4, &m.EventCount)
	codec.Hash32(b, 5, &m.Digest)
}

// ReplayApplied says that a replay was verified and published (§10).
//
//	1 request_id  2 replay_id  3 subscription_id
//	4 initial_credit_count:u32  5 initial_credit_bytes:u32
type ReplayApplied struct {
	RequestID      RequestID
	ReplayID       ReplayID
	SubscriptionID SubscriptionID
	CreditCount    uint32
	CreditBytes    uint32
}

func (*ReplayApplied) Type() Type { return TypeReplayApplied }

func (m *ReplayApplied) Layout(b *codec.Body) {
	codec.NonzeroU32(b, 1, &m.RequestID)
	codec.ID16(b, 2, &m.ReplayID)
	codec.ID16(b, 3, &m.SubscriptionID)
	codec.U32(b, 4, &m.CreditCount)
	codec.U32(b, 5, &m.CreditBytes)
}
