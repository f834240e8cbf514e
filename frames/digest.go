package frames

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"sync"

	"coordinator/codec"
)

// Domains of the digests. Each names its purpose and its version.
const (
	domainOperation = "phux-coordinator-operation/v1\x00"
	domainEffect    = "phux-coordinator-effect/v1\x00"
	domainSnapshot  = "phux-coordinator-snapshot/v1\x00"
	domainReplay    = "phux-coordinator-replay/v1\x00"
	domainEvidence  = "phux-coordinator-evidence/v1\x00"
	domainAdmin     = "phux-coordinator-admin/v1\x00"
)

// OperationDigest is the digest that makes two commands the same (protocol.md §8): kind,
// canonical payload, preconditions and extensions; not the request id, the guard or the
// operation id. It fails when the payload is not TLV.
func OperationDigest(m *CoordCommand) ([32]byte, error) {
	room := preimages.Get().(*[]byte)
	b, err := appendOperation((*room)[:0], m)
	var digest [32]byte
	if err == nil {
		digest = sha256.Sum256(b)
	}
	if cap(b) <= maxPreimage {
		*room = b
	}
	preimages.Put(room)
	return digest, err
}

// preimages is room for what operation digests run over: one at every command.
var preimages = sync.Pool{New: func() any { return new([]byte) }}

// maxPreimage bounds the room that is kept; most commands are far smaller.
const maxPreimage = 64 << 10

func appendOperation(b []byte, m *CoordCommand) ([]byte, error) {
	b = append(b, domainOperation...)
	b = binary.BigEndian.AppendUint16(b, VersionMajor)
	b = binary.BigEndian.AppendUint16(b, VersionMinor)
	b = binary.BigEndian.AppendUint16(b, uint16(m.Kind))
	at := len(b)
	b, err := codec.AppendCanonical(append(b, 0, 0, 0, 0), m.Payload)
	if err != nil {
		return b, fmt.Errorf("command payload: %w", err)
	}
	binary.BigEndian.PutUint32(b[at:], uint32(len(b)-at-4))
	conditions := sortedPreconditions(m.Preconditions)
	b = binary.BigEndian.AppendUint16(b, uint16(len(conditions)))
	for k := range conditions {
		if b, err = codec.EncodeImage(b, &conditions[k]); err != nil {
			return b, fmt.Errorf("precondition: %w", err)
		}
	}
	at = len(b)
	b = codec.AppendFields(append(b, 0, 0, 0, 0), m.Extensions)
	binary.BigEndian.PutUint32(b[at:], uint32(len(b)-at-4))
	return b, nil
}

// EffectDigest is what an owner dedupes on beside the attempt id (§8.1).
func EffectDigest(kind EffectKind, target *EffectTarget, payload []byte) ([32]byte, error) {
	image, err := codec.EncodeImage(nil, target)
	if err != nil {
		return [32]byte{}, fmt.Errorf("effect target: %w", err)
	}
	h := sha256.New()
	h.Write([]byte(domainEffect))
	h.Write([]byte{byte(kind)})
	putSized(h, image)
	putSized(h, payload)
	return sum(h), nil
}

// SnapshotDigest runs over the records of one snapshot in order (§9).
type SnapshotDigest struct {
	h   hash.Hash
	buf []byte
}

// NewSnapshotDigest begins the digest of a snapshot of count records at base.
func NewSnapshotDigest(g AuthorityGuard, base EventCut, count uint64) *SnapshotDigest {
	h := sha256.New()
	h.Write([]byte(domainSnapshot))
	h.Write(g.CoordinatorID[:])
	putU64(h, uint64(g.Epoch))
	putU64(h, uint64(g.Activation))
	putU64(h, uint64(base))
	putU64(h, count)
	return &SnapshotDigest{h: h}
}

// Add takes the next record.
func (d *SnapshotDigest) Add(r *SnapshotRecord) error {
	raw, err := codec.EncodeImage(d.buf[:0], r)
	if err != nil {
		return err
	}
	d.buf = raw
	d.h.Write(raw)
	return nil
}

// AddImages takes the images of the next records, one behind the other, as they were decoded
// or encoded before: it does not look at them.
func (d *SnapshotDigest) AddImages(images []byte) { d.h.Write(images) }

// AddPage takes the records of the next SNAPSHOT_PAGE, a whole frame as [Append] made it: what is
// hashed is what goes out.
func (d *SnapshotDigest) AddPage(frame []byte) error {
	const records, count = 5, 2 // the field of the list, and the bytes before its images
	if len(frame) < codec.HeaderSize || Type(frame[codec.HeaderSize-1]) != TypeSnapshotPage {
		return errNoPage
	}
	list := codec.ScanFields(frame[codec.HeaderSize:], func(id uint32) bool { return id == records })
	if len(list) != 1 || len(list[0].Value) < count {
		return errNoPage
	}
	d.AddImages(list[0].Value[count:])
	return nil
}

var errNoPage = errors.New("digest: not a SNAPSHOT_PAGE with a list of records")

// Sum is the digest of what was added.
func (d *SnapshotDigest) Sum() [32]byte { return sum(d.h) }

// ReplayDigest runs over the events of one replay in order (§10).
type ReplayDigest struct {
	h   hash.Hash
	buf []byte
}

// NewReplayDigest begins the digest of a replay of count events in (after, cut].
func NewReplayDigest(g AuthorityGuard, sub SubscriptionID, after, cut EventCut, count uint64) *ReplayDigest {
	h := sha256.New()
	h.Write([]byte(domainReplay))
	h.Write(g.CoordinatorID[:])
	putU64(h, uint64(g.Epoch))
	putU64(h, uint64(g.Activation))
	h.Write(sub[:])
	putU64(h, uint64(after))
	putU64(h, uint64(cut))
	putU64(h, count)
	return &ReplayDigest{h: h}
}

// Add takes the next event.
func (d *ReplayDigest) Add(e *ReplayEvent) error {
	raw, err := codec.EncodeImage(d.buf[:0], e)
	if err != nil {
		return err
	}
	d.buf = raw
	d.h.Write(raw)
	return nil
}

// AddImages takes the images of the next events, one behind the other, as they were decoded
// or encoded before: it does not look at them.
func (d *ReplayDigest) AddImages(images []byte) { d.h.Write(images) }

// Sum is the digest of what was added.
func (d *ReplayDigest) Sum() [32]byte { return sum(d.h) }

// EvidenceSeal is the running hash over a binding's facts (§11 [D-22]).
type EvidenceSeal struct {
	h     hash.Hash
	count uint64
}

// NewEvidenceSeal begins the seal of one binding.
func NewEvidenceSeal(c CoordinatorID, b BindingID) *EvidenceSeal {
	h := sha256.New()
	h.Write([]byte(domainEvidence))
	h.Write(c[:])
	h.Write(b[:])
	return &EvidenceSeal{h: h}
}

// Add takes the next admitted fact.
func (s *EvidenceSeal) Add(f *TerminalSourceFact) error {
	raw, err := codec.EncodeImage(nil, f)
	if err != nil {
		return err
	}
	s.h.Write(raw)
	s.count++
	return nil
}

// Count is the number of facts taken.
func (s *EvidenceSeal) Count() uint64 { return s.count }

// Sum is the seal over what was added; more may be added afterwards.
func (s *EvidenceSeal) Sum() [32]byte {
	tail := binary.BigEndian.AppendUint64(nil, s.count)
	return [32]byte(appendedSum(s.h, tail))
}

// AdminRecordID is the id of an ADMIN record (§7.1 [D-14]): subject is empty for
// ACTIVATION and RETENTION, and the key id for CREDENTIAL.
func AdminRecordID(kind AdminKind, subject []byte) ObjectID {
	h := sha256.New()
	h.Write([]byte(domainAdmin))
	putU16(h, uint16(kind))
	h.Write(subject)
	full := sum(h)
	return ObjectID(full[:16])
}

func sum(h hash.Hash) [32]byte { return [32]byte(h.Sum(nil)) }

// appendedSum is the sum of h with tail behind, leaving h as it was.
func appendedSum(h hash.Hash, tail []byte) []byte {
	c, err := h.(hash.Cloner).Clone()
	if err != nil {
		panic("frames: SHA-256 state cannot be cloned: " + err.Error())
	}
	c.Write(tail)
	return c.Sum(nil)
}

func putU16(h hash.Hash, v uint16) { h.Write(binary.BigEndian.AppendUint16(nil, v)) }
func putU64(h hash.Hash, v uint64) { h.Write(binary.BigEndian.AppendUint64(nil, v)) }

func putSized(h hash.Hash, b []byte) {
	h.Write(binary.BigEndian.AppendUint32(nil, uint32(len(b))))
	h.Write(b)
}
