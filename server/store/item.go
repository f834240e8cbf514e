package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"coordinator/codec"
	"coordinator/frames"
)

// The body of a record is a version byte and then items in the order in which the
// transaction made them. An event that carries a record is stored as its row: the image
// that subscribers get is laid out from it.
//
//	body    = version:u8 item*
//	item    = 1 event:  kind:u16 || event_id:16 || row
//	        | 2 fact:   kind:u16 || event_id:16 || ref:18 || revision:u64 || schema:u16 || bytes
//	        | 3 hidden
//	        | 4 row:    seq:u64 || row
//	        | 5 remove: ref:18 || flags:u8 || principal:32
//	        | 6 install: epoch:u64 || activation:u64 || base:u64 || token_sha256:32
//	row     = flags:u8 || ref:18 || revision:u64 || schema:u16 || principal:32 if flagged
//	          || bytes (payload) || bytes (annex)
//	bytes   = length:u32 || that many bytes
const (
	bodyVersion = 1

	itemEvent   = 1
	itemFact    = 2
	itemHidden  = 3
	itemRow     = 4
	itemRemove  = 5
	itemInstall = 6

	rowLive      = 1 // belongs into the live tree
	rowCreated   = 2 // the key had no row before; of a removal: the key had one
	rowPrincipal = 4 // an originating principal follows
)

// An item is one step of a commit, as recorded and as applied.
type item struct {
	op      uint8
	off     int                  // in the body of the record
	seq     frames.EventSequence // event, fact, hidden, row
	kind    frames.EventKind     // event, fact
	eventID frames.EventID       // event, fact
	row     *row                 // event, row
	created bool                 // event, row: no row before; remove: a row before
	fresh   bool                 // event, row: and no change of the key in memory; never after a decode
	image   []byte               // event: the SnapshotRecord image; fact: the payload

	ref      frames.ObjectRef // fact, remove
	revision frames.ObjectRevision
	schema   uint16

	principal frames.KeyID // remove: of the OPERATION row that goes; fact: of the object
	install   *install

	prev *row // what the item supersedes, if known; not recorded
}

// An install is an activation as the store keeps it.
type install struct {
	epoch      frames.AuthorityEpoch
	activation frames.ActivationSequence
	base       frames.EventCut
	token      [32]byte
}

var errBody = errors.New("record body is malformed")

func appendBytes(b, v []byte) []byte {
	return append(binary.BigEndian.AppendUint32(b, uint32(len(v))), v...)
}

func appendRef(b []byte, ref frames.ObjectRef) []byte {
	return append(binary.BigEndian.AppendUint16(b, uint16(ref.Kind)), ref.ID[:]...)
}

func (it *item) append(b []byte) []byte {
	b = append(b, it.op)
	switch it.op {
	case itemEvent:
		b = binary.BigEndian.AppendUint16(b, uint16(it.kind))
		b = append(b, it.eventID[:]...)
		b = appendRow(b, it.row, it.created)
	case itemFact:
		b = binary.BigEndian.AppendUint16(b, uint16(it.kind))
		b = append(b, it.eventID[:]...)
		b = appendRef(b, it.ref)
		b = binary.BigEndian.AppendUint64(b, uint64(it.revision))
		b = binary.BigEndian.AppendUint16(b, it.schema)
		b = appendBytes(b, it.image)
	case itemRow:
		b = binary.BigEndian.AppendUint64(b, uint64(it.seq))
		b = appendRow(b, it.row, it.created)
	case itemRemove:
		b = appendRef(b, it.ref)
		b = append(b, flag(it.created, rowCreated))
		b = append(b, it.principal[:]...)
	case itemInstall:
		b = binary.BigEndian.AppendUint64(b, uint64(it.install.epoch))
		b = binary.BigEndian.AppendUint64(b, uint64(it.install.activation))
		b = binary.BigEndian.AppendUint64(b, uint64(it.install.base))
		b = append(b, it.install.token[:]...)
	}
	return b
}

func flag(set bool, bit uint8) uint8 {
	if set {
		return bit
	}
	return 0
}

// rowBytes is the most that appendRow takes beside payload and annex.
const rowBytes = 1 + 18 + 8 + 2 + 32 + 4 + 4

func appendRow(b []byte, r *row, created bool) []byte {
	hasPrincipal := r.Principal != frames.KeyID{}
	b = append(b, flag(r.Live, rowLive)|flag(created, rowCreated)|flag(hasPrincipal, rowPrincipal))
	b = append(b, r.key[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(r.Record.Revision))
	b = binary.BigEndian.AppendUint16(b, r.Record.Schema)
	if hasPrincipal {
		b = append(b, r.Principal[:]...)
	}
	b = appendBytes(b, r.Record.Payload)
	return appendBytes(b, r.Annex)
}

// A cursor reads the pieces of a record body or a stored value. The first failure sticks.
// Byte strings alias the input.
type cursor struct {
	b    []byte
	bad  bool
	room *row // where the next row is read to; nil: into one of its own
}

func (c *cursor) take(n int) []byte {
	if c.bad || n > len(c.b) {
		c.bad = true
		return nil
	}
	v := c.b[:n:n]
	c.b = c.b[n:]
	return v
}

func (c *cursor) u8() uint8 {
	if v := c.take(1); v != nil {
		return v[0]
	}
	return 0
}

func (c *cursor) u16() uint16 {
	if v := c.take(2); v != nil {
		return binary.BigEndian.Uint16(v)
	}
	return 0
}

func (c *cursor) u32() uint32 {
	if v := c.take(4); v != nil {
		return binary.BigEndian.Uint32(v)
	}
	return 0
}

func (c *cursor) u64() uint64 {
	if v := c.take(8); v != nil {
		return binary.BigEndian.Uint64(v)
	}
	return 0
}

func (c *cursor) fixed(dst []byte) { copy(dst, c.take(len(dst))) }

func (c *cursor) bytes() []byte {
	n := c.u32()
	if n > math.MaxInt32 {
		c.bad = true
		return nil
	}
	return c.take(int(n))
}

func (c *cursor) ref() frames.ObjectRef {
	var k Key
	c.fixed(k[:])
	return k.Ref()
}

func (c *cursor) row(commit uint64) (r *row, created bool) {
	if r = c.room; r == nil {
		r = new(row)
	}
	*r, c.room = row{commit: commit}, nil
	flags := c.u8()
	r.Live = flags&rowLive != 0
	c.fixed(r.key[:])
	ref := r.key.Ref()
	r.Record.Kind, r.Record.ID = ref.Kind, ref.ID
	r.Record.Revision = frames.ObjectRevision(c.u64())
	r.Record.Schema = c.u16()
	if flags&rowPrincipal != 0 {
		c.fixed(r.Principal[:])
	}
	r.Record.Payload = c.bytes()
	r.Annex = c.bytes()
	return r, flags&rowCreated != 0
}

// decodeBody reads the items of a record. Byte strings alias body.
func decodeBody(h recordHead, body []byte) ([]item, error) {
	c := &cursor{b: body}
	if h.flags&flagClean != 0 && len(body) == 0 {
		return nil, nil
	}
	if c.u8() != bodyVersion {
		return nil, errBody
	}
	var items []item
	head := h.base
	for !c.bad && len(c.b) > 0 {
		off := len(body) - len(c.b)
		it := c.item(h.commit)
		it.off = off
		if it.op == 0 { // padding
			for _, p := range c.b {
				c.bad = c.bad || p != 0
			}
			break
		}
		if it.op <= itemHidden {
			head++
			it.seq = frames.EventSequence(head)
		}
		if it.row != nil {
			it.row.Seq = it.seq
		}
		items = append(items, it)
	}
	if c.bad || head != h.base+uint64(h.count) {
		return nil, errBody
	}
	return items, nil
}

// decodeRecord is decodeBody for the record at off of segment s.
func decodeRecord(s *segment, off int64, h recordHead, body []byte) ([]item, error) {
	items, err := decodeBody(h, body)
	if err != nil {
		return nil, &CorruptError{File: s.path, Offset: off, Problem: fmt.Sprintf("record %d", h.commit), Err: err}
	}
	return items, nil
}

// item reads one item, or the op 0 of the padding. Sequences are the caller's to count.
func (c *cursor) item(commit uint64) (it item) {
	it.op = c.u8()
	switch it.op {
	case 0, itemHidden:
	case itemEvent:
		it.kind = frames.EventKind(c.u16())
		c.fixed(it.eventID[:])
		it.row, it.created = c.row(commit)
	case itemFact:
		it.kind = frames.EventKind(c.u16())
		c.fixed(it.eventID[:])
		it.ref = c.ref()
		it.revision = frames.ObjectRevision(c.u64())
		it.schema = c.u16()
		it.image = c.bytes()
	case itemRow:
		it.seq = frames.EventSequence(c.u64())
		it.row, it.created = c.row(commit)
	case itemRemove:
		it.ref = c.ref()
		it.created = c.u8()&rowCreated != 0
		c.fixed(it.principal[:])
	case itemInstall:
		it.install = new(install)
		it.install.epoch = frames.AuthorityEpoch(c.u64())
		it.install.activation = frames.ActivationSequence(c.u64())
		it.install.base = frames.EventCut(c.u64())
		c.fixed(it.install.token[:])
	default:
		c.bad = true
	}
	return it
}

// isEvent reports whether subscribers can get the item.
func (it *item) isEvent() bool { return it.op == itemEvent || it.op == itemFact }

// ClassRemoved is added to the kind of the object in the class of an OBJECT_REMOVED, which
// not everybody gets who sees the object (protocol.md §12).
const ClassRemoved frames.ObjectKind = 0x4000

// class is what visibility goes by: the kind of an event's object, and whether it is removed.
func (it *item) class() frames.ObjectKind {
	switch {
	case it.op == itemEvent:
		return it.row.key.Kind()
	case it.kind == frames.EventObjectRemoved:
		return it.ref.Kind | ClassRemoved
	}
	return it.ref.Kind
}

// author is the principal that decides who sees an event: that of an OPERATION.
func (it *item) author() frames.KeyID {
	if it.op == itemEvent && it.row.key.Kind() == frames.KindOperation {
		return it.row.Principal
	}
	return frames.KeyID{}
}

// imageSize is the size of an event's ReplayEvent image.
func (it *item) imageSize() int {
	if it.op == itemEvent {
		return eventOverhead + minImage + len(it.row.Record.Payload)
	}
	return eventOverhead + len(it.image)
}

// own gives the row byte strings of its own, so that it pins no record buffer.
func (r *row) own() {
	b := make([]byte, 0, len(r.Record.Payload)+len(r.Annex))
	b = append(append(b, r.Record.Payload...), r.Annex...)
	n := len(r.Record.Payload)
	r.Record.Payload, r.Annex = b[:n:n], b[n:]
}

// recordImage is the SnapshotRecord image that an event carries.
func recordImage(r *row) ([]byte, error) {
	return codec.EncodeImage(make([]byte, 0, minImage+len(r.Record.Payload)), &r.Record)
}

// minImage is a SnapshotRecord image with an empty payload.
const minImage = 2 + 16 + 8 + 2 + 4

// appendImage appends the ReplayEvent image of an event, which [item.event] would give.
func (it *item) appendImage(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, uint64(it.seq))
	b = append(b, it.eventID[:]...)
	b = binary.BigEndian.AppendUint16(b, uint16(it.kind))
	if it.op == itemFact {
		b = appendRef(b, it.ref)
		b = binary.BigEndian.AppendUint64(b, uint64(it.revision))
		b = binary.BigEndian.AppendUint16(b, it.schema)
		return appendBytes(b, it.image)
	}
	r := &it.row.Record
	b = append(b, it.row.key[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(r.Revision))
	b = binary.BigEndian.AppendUint16(b, r.Schema)
	b = binary.BigEndian.AppendUint32(b, uint32(minImage+len(r.Payload)))
	b = append(b, it.row.key[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(r.Revision))
	b = binary.BigEndian.AppendUint16(b, r.Schema)
	return appendBytes(b, r.Payload)
}

// event is the item as subscribers see it; false for the ones without an event.
func (it *item) event() (Event, bool, error) {
	ev := Event{ReplayEvent: frames.ReplayEvent{Sequence: it.seq, ID: it.eventID, Kind: it.kind}}
	switch it.op {
	case itemEvent:
		if it.image == nil {
			image, err := recordImage(it.row)
			if err != nil {
				return Event{}, false, err
			}
			it.image = image
		}
		ev.Object = it.row.key.Ref()
		ev.Revision, ev.Schema, ev.Payload = it.row.Record.Revision, it.row.Record.Schema, it.image
		ev.Principal = it.row.Principal
	case itemFact:
		ev.Object, ev.Revision, ev.Schema, ev.Payload = it.ref, it.revision, it.schema, it.image
	default:
		return Event{}, false, nil
	}
	ev.Class = it.class()
	return ev, true, nil
}
