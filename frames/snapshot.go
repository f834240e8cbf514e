package frames

import "coordinator/codec"

// OpenSnapshot asks for a whole-authority snapshot (protocol.md §9).
//
//	1 request_id  2 authority_guard  3 selector:WholeAuthoritySelector (u8 0)
//	4 reserve_subscription:bool  5 replace_paused_subscription:optional<SubscriptionId>
type OpenSnapshot struct {
	RequestID RequestID
	Guard     AuthorityGuard
	Reserve   bool
	Replace   SubscriptionID // zero: absent
}

func (*OpenSnapshot) Type() Type { return TypeOpenSnapshot }

func (m *OpenSnapshot) Layout(b *codec.Body) {
	codec.NonzeroU32(b, 1, &m.RequestID)
	guardField(b, 2, &m.Guard)
	codec.Nested(b, 3, wholeAuthority{}, 16)
	codec.Bool(b, 4, &m.Reserve)
	codec.OptID16(b, 5, &m.Replace)
}

// wholeAuthority is the one selector of this version: tag 0 and nothing behind it.
type wholeAuthority struct{}

func (wholeAuthority) Image(i *codec.Image) {
	var tag uint8
	codec.ImgEnum8(i, &tag, 0, 0)
}

// ActivationBase says at which event head an activation began [D-26].
//
//	activation:u64 || base:EventCut
type ActivationBase struct {
	Activation ActivationSequence
	Base       EventCut
}

func (a *ActivationBase) Image(i *codec.Image) {
	codec.ImgNonzeroU64(i, &a.Activation)
	codec.ImgU64(i, &a.Base)
}

// SnapshotBegin fixes a cut (§9).
//
//	1 request_id  2 snapshot_id:bytes16  3 authority_guard  4 base_event_sequence:EventCut
//	5 first_cursor:optional<bytes>  6 subscription_id:optional<bytes16>  7 lease_expires_at:u64
//	8 activation_bases:optional<list<ActivationBase>>, newest 64, in ascending order
type SnapshotBegin struct {
	RequestID      RequestID
	SnapshotID     SnapshotID
	Guard          AuthorityGuard
	Base           EventCut
	FirstCursor    []byte           // nil: absent, the snapshot is empty
	SubscriptionID SubscriptionID   // zero: absent
	LeaseExpiresAt uint64           // Unix seconds
	Bases          []ActivationBase // nil: absent; an empty list is one that lists nothing
}

func (*SnapshotBegin) Type() Type { return TypeSnapshotBegin }

func (m *SnapshotBegin) Layout(b *codec.Body) {
	codec.NonzeroU32(b, 1, &m.RequestID)
	codec.ID16(b, 2, &m.SnapshotID)
	guardField(b, 3, &m.Guard)
	codec.U64(b, 4, &m.Base)
	codec.OptBytes(b, 5, &m.FirstCursor, MaxCursor)
	codec.OptID16(b, 6, &m.SubscriptionID)
	codec.U64(b, 7, &m.LeaseExpiresAt)
	use := m.Bases != nil
	list := codec.List[ActivationBase, *ActivationBase]{Items: &m.Bases, Max: MaxActivationBases, Size: 16}
	codec.OptNested(b, 8, &use, list, 2+MaxActivationBases*16)
	if b.Decoding() && !use {
		m.Bases = nil
	} else if b.Decoding() && m.Bases == nil {
		m.Bases = []ActivationBase{}
	}
	for k := 1; k < len(m.Bases); k++ {
		b.Check(m.Bases[k-1].Activation < m.Bases[k].Activation && m.Bases[k-1].Base <= m.Bases[k].Base, 8, codec.ErrOrder)
	}
}

// SnapshotNext asks for one page (§9).
//
//	1 request_id  2 snapshot_id  3 cursor:bytes
type SnapshotNext struct {
	RequestID  RequestID
	SnapshotID SnapshotID
	Cursor     []byte
}

func (*SnapshotNext) Type() Type { return TypeSnapshotNext }

func (m *SnapshotNext) Layout(b *codec.Body) {
	codec.NonzeroU32(b, 1, &m.RequestID)
	codec.ID16(b, 2, &m.SnapshotID)
	codec.Bytes(b, 3, &m.Cursor, MaxCursor)
}

// SnapshotPage is one page of records, in (kind, id) order and without repeats (§9).
//
//	1 request_id  2 snapshot_id  3 cursor:bytes (the one used)  4 page_index:u32
//	5 records:list<SnapshotRecord>  6 next_cursor:optional<bytes>
type SnapshotPage struct {
	RequestID  RequestID
	SnapshotID SnapshotID
	Cursor     []byte
	Index      uint32
	Records    []SnapshotRecord
	NextCursor []byte // nil: absent, the last page
}

func (*SnapshotPage) Type() Type { return TypeSnapshotPage }

func (m *SnapshotPage) Layout(b *codec.Body) {
	codec.NonzeroU32(b, 1, &m.RequestID)
	codec.ID16(b, 2, &m.SnapshotID)
	codec.Bytes(b, 3, &m.Cursor, MaxCursor)
	codec.U32(b, 4, &m.Index)
	list := codec.List[SnapshotRecord, *SnapshotRecord]{Items: &m.Records, Max: MaxPageRecords, Size: minRecordImage}
	codec.Nested(b, 5, list, MaxPageBytes)
	for k := 1; k < len(m.Records); k++ {
		b.Check(m.Records[k-1].Ref().Compare(m.Records[k].Ref()) < 0, 5, codec.ErrOrder)
	}
	codec.OptBytes(b, 6, &m.NextCursor, MaxCursor)
}

// SnapshotEnd closes a snapshot with its totals and digest (§9).
//
//	1 request_id  2 snapshot_id  3 page_count:u32  4 record_count:u64
//	5 canonical_sha256:bytes32
type SnapshotEnd struct {
	RequestID   RequestID
	SnapshotID  SnapshotID
	PageCount   uint32
	RecordCount uint64
	Digest      [32]byte
}

func (*SnapshotEnd) Type() Type { return TypeSnapshotEnd }

func (m *SnapshotEnd) Layout(b *codec.Body) {
	codec.NonzeroU32(b, 1, &m.RequestID)
	codec.ID16(b, 2, &m.SnapshotID)
	codec.U32(b, 3, &m.PageCount)
	codec.U64(b, 4, &m.RecordCount)
	codec.Hash32(b, 5, &m.Digest)
}

// SnapshotApplied says that a snapshot was verified and published (§9).
//
//	1 request_id  2 snapshot_id  3 subscription_id:optional<bytes16>
//	4 initial_credit_count:u32  5 initial_credit_bytes:u32
type SnapshotApplied struct {
	RequestID      RequestID
	SnapshotID     SnapshotID
	SubscriptionID SubscriptionID // zero: absent
	CreditCount    uint32
	CreditBytes    uint32
}

func (*SnapshotApplied) Type() Type { return TypeSnapshotApplied }

func (m *SnapshotApplied) Layout(b *codec.Body) {
	codec.NonzeroU32(b, 1, &m.RequestID)
	codec.ID16(b, 2, &m.SnapshotID)
	codec.OptID16(b, 3, &m.SubscriptionID)
	codec.U32(b, 4, &m.CreditCount)
	codec.U32(b, 5, &m.CreditBytes)
}
