package frames

import (
	"encoding/binary"

	"coordinator/codec"
)

// A SnapshotImages is a SNAPSHOT_PAGE whose records stay images: what is checked of them is
// what a [SnapshotPage] checks, and what they take is the body that they came in. It is for
// who passes records on, or keeps them for later.
type SnapshotImages struct {
	RequestID   RequestID
	SnapshotID  SnapshotID
	Cursor      []byte
	Index       uint32
	Count       int
	First, Last ObjectRef // set by a decode, unless the page is empty
	Images      []byte    // one behind the other, as digests run over them
	NextCursor  []byte    // nil: absent, the last page
}

func (*SnapshotImages) Type() Type { return TypeSnapshotPage }

func (m *SnapshotImages) Layout(b *codec.Body) {
	codec.NonzeroU32(b, 1, &m.RequestID)
	codec.ID16(b, 2, &m.SnapshotID)
	codec.Bytes(b, 3, &m.Cursor, MaxCursor)
	codec.U32(b, 4, &m.Index)
	first, last, seen := ObjectRef{}, ObjectRef{}, false
	codec.Nested(b, 5, codec.Scan[SnapshotRecord, *SnapshotRecord]{
		Count: &m.Count, Images: &m.Images, Max: MaxPageRecords, Size: minRecordImage,
		Each: func(r *SnapshotRecord) error {
			ref := r.Ref()
			if !seen {
				first, seen = ref, true
			} else if last.Compare(ref) >= 0 {
				return codec.ErrOrder
			}
			last = ref
			return nil
		},
	}, MaxPageBytes)
	if b.Decoding() {
		m.First, m.Last = first, last
	}
	codec.OptBytes(b, 6, &m.NextCursor, MaxCursor)
}

// A ReplayImages is to a [ReplayPage] what a [SnapshotImages] is to a SNAPSHOT_PAGE.
type ReplayImages struct {
	RequestID   RequestID
	ReplayID    ReplayID
	Cursor      []byte
	Index       uint32
	Count       int
	First, Last EventSequence // set by a decode, unless the page is empty
	Images      []byte        // one behind the other, as digests run over them
	NextCursor  []byte        // nil: absent, the last page
}

func (*ReplayImages) Type() Type { return TypeReplayPage }

func (m *ReplayImages) Layout(b *codec.Body) {
	codec.NonzeroU32(b, 1, &m.RequestID)
	codec.ID16(b, 2, &m.ReplayID)
	codec.Bytes(b, 3, &m.Cursor, MaxCursor)
	codec.U32(b, 4, &m.Index)
	first, last := EventSequence(0), EventSequence(0) // which no event has
	codec.Nested(b, 5, codec.Scan[ReplayEvent, *ReplayEvent]{
		Count: &m.Count, Images: &m.Images, Max: MaxPageRecords, Size: minEventImage,
		Each: func(e *ReplayEvent) error {
			if e.Sequence <= last {
				return codec.ErrOrder
			}
			if last == 0 {
				first = e.Sequence
			}
			last = e.Sequence
			return nil
		},
	}, MaxPageBytes)
	if b.Decoding() {
		m.First, m.Last = first, last
	}
	codec.OptBytes(b, 6, &m.NextCursor, MaxCursor)
}

// DecodeImages is [Decode], except that pages are a *[SnapshotImages] or a *[ReplayImages].
func DecodeImages(t Type, body []byte) (Frame, error) {
	var f Frame
	switch t {
	case TypeSnapshotPage:
		f = new(SnapshotImages)
	case TypeReplayPage:
		f = new(ReplayImages)
	default:
		return Decode(t, body)
	}
	if err := DecodeInto(f, body); err != nil {
		return nil, err
	}
	return f, nil
}

// Readdress makes a whole frame, as [Append] encoded it, one that answers another request. Its
// first field must be the request id.
func Readdress(frame []byte, id RequestID) {
	binary.BigEndian.PutUint32(frame[codec.HeaderSize+3:], uint32(id)) // behind field id, wire type and length
}
