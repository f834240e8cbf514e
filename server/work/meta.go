package work

import (
	"encoding/binary"
	"fmt"
	"slices"

	"coordinator/codec"
	"coordinator/frames"
)

// metaVersion begins every annex. A reader refuses what it does not know; the store checks
// the bytes themselves.
const metaVersion = 1

// maxCreated bounds the objects that one operation may have created.
const maxCreated = 16

// OpMeta is the annex of an OPERATION row: what the record itself does not say.
//
//	version:u8(1) || digest:bytes32 || command_kind:u16 || epoch:u64 || completed_at:u64 ||
//	final_sequence:u64 || retention_secs:u64 || created:list<ObjectRef>
type OpMeta struct {
	Digest [32]byte
	Kind   frames.CommandKind
	// Epoch under which the operation was admitted.
	Epoch frames.AuthorityEpoch
	// CompletedAt is the wall time of completion in Unix seconds; zero while PENDING.
	CompletedAt uint64
	// FinalSequence is that of the OPERATION_CHANGED with the final result; zero while
	// PENDING.
	FinalSequence frames.EventSequence
	// RetentionSecs was advertised at completion. [RetentionPromise] adds what was
	// advertised since.
	RetentionSecs uint64
	// Created names the objects that came into being with the operation; its tombstone
	// stays while any of them remains (protocol.md §8).
	Created []frames.ObjectRef
}

// Image lays the annex out.
func (m *OpMeta) Image(i *codec.Image) {
	version := uint8(metaVersion)
	codec.ImgEnum8(i, &version, metaVersion, metaVersion)
	codec.ImgHash32(i, &m.Digest)
	codec.ImgU16(i, &m.Kind)
	codec.ImgNonzeroU64(i, &m.Epoch)
	codec.ImgU64(i, &m.CompletedAt)
	codec.ImgU64(i, &m.FinalSequence)
	codec.ImgU64(i, &m.RetentionSecs)
	codec.List[frames.ObjectRef, *frames.ObjectRef]{Items: &m.Created, Max: maxCreated, Size: 18}.Image(i)
	i.Check((m.CompletedAt == 0) == (m.FinalSequence == 0), codec.ErrInvalid)
}

// Encode gives the annex. It fails where [DecodeOpMeta] would.
func (m *OpMeta) Encode() ([]byte, error) { return codec.EncodeImage(nil, m) }

// DecodeOpMeta reads the annex of an OPERATION row.
func DecodeOpMeta(annex []byte) (OpMeta, error) {
	var m OpMeta
	if err := codec.DecodeImage(&m, annex); err != nil {
		return OpMeta{}, fmt.Errorf("work: annex of an operation: %w", err)
	}
	return m, nil
}

// An advert is one retention that was advertised from the sequence From on.
type advert struct {
	From frames.EventSequence
	Secs uint64
}

// maxAdverts bounds the history. Beyond it, neighbours are merged to the longer promise.
const maxAdverts = 64

// retentionMeta is the annex of the RETENTION record: the retentions advertised in the
// course of time, oldest first, less those that a later one exceeds. Sequences ascend and
// seconds descend, so the longest promise since any point is one entry.
//
//	version:u8(1) || count:u16 || each(from:u64 || secs:u64)
type retentionMeta struct{ adverts []advert }

// advertise adds a retention that takes effect at seq.
func (m *retentionMeta) advertise(seq frames.EventSequence, secs uint64) {
	for n := len(m.adverts); n > 0 && m.adverts[n-1].Secs <= secs; n-- {
		m.adverts = m.adverts[:n-1]
	}
	m.adverts = append(m.adverts, advert{From: seq, Secs: secs})
	if len(m.adverts) > maxAdverts {
		// The second takes the first one's longer promise.
		m.adverts[1].Secs = m.adverts[0].Secs
		m.adverts = slices.Delete(m.adverts, 0, 1)
	}
}

// longestSince gives the longest retention advertised at or after seq; zero when none was.
func (m *retentionMeta) longestSince(seq frames.EventSequence) uint64 {
	for _, a := range m.adverts {
		if a.From >= seq {
			return a.Secs
		}
	}
	return 0
}

func (m *retentionMeta) encode() []byte {
	out := append(make([]byte, 0, 3+16*len(m.adverts)), metaVersion)
	out = binary.BigEndian.AppendUint16(out, uint16(len(m.adverts)))
	for _, a := range m.adverts {
		out = binary.BigEndian.AppendUint64(out, uint64(a.From))
		out = binary.BigEndian.AppendUint64(out, a.Secs)
	}
	return out
}

func decodeRetentionMeta(annex []byte) (retentionMeta, error) {
	bad := fmt.Errorf("work: annex of the retention record has a form that this version does not know")
	if len(annex) < 3 || annex[0] != metaVersion {
		return retentionMeta{}, bad
	}
	n := int(binary.BigEndian.Uint16(annex[1:]))
	if n > maxAdverts || len(annex) != 3+16*n {
		return retentionMeta{}, bad
	}
	var m retentionMeta
	for b := annex[3:]; len(b) > 0; b = b[16:] {
		m.adverts = append(m.adverts, advert{
			From: frames.EventSequence(binary.BigEndian.Uint64(b)),
			Secs: binary.BigEndian.Uint64(b[8:]),
		})
	}
	return m, nil
}
