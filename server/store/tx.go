package store

import (
	"fmt"

	"coordinator/frames"
)

// A Tx collects one commit. It belongs to the writer and lives until the next Begin, or until
// it is sealed. Nothing of it is visible or durable before Commit returns nil; a Tx that is not
// committed leaves nothing behind.
//
// The first failure sticks and Commit returns it before anything is written.
type Tx struct {
	s      *Store
	buf    []byte // recordHeader free bytes, then the body
	items  []item
	own    map[Key]*row // this transaction's rows; nil: removed
	loaded *Loaded      // what was read of state.db for the command at hand
	asked  [8]answer    // what memory said last; it does not change below a transaction
	turn   int          // the next of asked to go
	base   frames.EventCut
	head   frames.EventCut
	commit uint64
	err    error
}

// An answer is what memory said of a key. A command asks for the same few again and again.
type answer struct {
	key   Key
	row   *row
	known bool
}

// keptBytes, keptItems and keptRows are the room that a transaction leaves to the next: one large
// commit must not hold its memory for good.
const (
	keptBytes = 4 << 20
	keptItems = 4096
	keptRows  = 512
)

func (tx *Tx) reset(s *Store) {
	tx.s = s
	if cap(tx.buf) > keptBytes {
		tx.buf = nil
	}
	tx.buf = append(tx.buf[:0], make([]byte, recordHeader)...)
	tx.buf = append(tx.buf, bodyVersion)
	if cap(tx.items) > keptItems {
		tx.items = nil
	}
	clear(tx.items) // nothing keeps an item; what it points to may be large
	tx.items = tx.items[:0]
	if tx.own == nil || len(tx.own) > keptRows {
		tx.own = make(map[Key]*row)
	}
	clear(tx.own)
	tx.loaded = nothingLoaded
	clear(tx.asked[:])
	tx.base, tx.head = s.state.Head, s.state.Head
	tx.commit = s.state.Commit + 1
	tx.err = nil
}

// Use makes prefetched rows known to Get, in the place of those before. It reports false when
// they are stale: a checkpoint has since taken changes out of memory that the read may have
// missed. The caller prefetches again.
func (tx *Tx) Use(l *Loaded) bool {
	if l.pos < tx.s.dropped {
		return false
	}
	tx.loaded = l
	return true
}

// Get returns the row of ref, this transaction's own writes included. It fails with
// ErrNotLoaded when only state.db could tell and ref was not prefetched.
func (tx *Tx) Get(ref frames.ObjectRef) (Row, bool, error) {
	r, known := tx.find(KeyOf(ref))
	switch {
	case !known:
		return Row{}, false, fmt.Errorf("%v: %w", ref, ErrNotLoaded)
	case r == nil:
		return Row{}, false, nil
	}
	return r.Row, true, nil
}

func (tx *Tx) find(k Key) (*row, bool) {
	if r, ok := tx.own[k]; ok {
		return r, true
	}
	if r, known := tx.inMemory(k); known {
		return r, true
	}
	return tx.loaded.rows.find(k)
}

// inMemory is what memory says of a key, without what this transaction writes.
func (tx *Tx) inMemory(k Key) (*row, bool) {
	for i := range tx.asked {
		if a := &tx.asked[i]; a.key == k {
			return a.row, a.known
		}
	}
	r, known := tx.s.mem.find(k)
	tx.asked[tx.turn] = answer{k, r, known}
	tx.turn = (tx.turn + 1) % len(tx.asked)
	return r, known
}

// Emit puts a row with the event that carries it, and returns the event's sequence. The
// store copies the row's bytes.
func (tx *Tx) Emit(kind frames.EventKind, id frames.EventID, r Row) frames.EventSequence {
	seq := tx.next()
	it := item{op: itemEvent, seq: seq, kind: kind, eventID: id}
	tx.put(&it, r)
	if tx.err != nil {
		return seq
	}
	image, err := recordImage(it.row)
	switch {
	case err != nil:
		tx.fail("%v: %w", it.row.key.Ref(), err)
	case len(image) > frames.MaxTypedPayload:
		tx.fail("%v: event payload is %d bytes, at most %d fit", it.row.key.Ref(), len(image), frames.MaxTypedPayload)
	case !kind.CarriesRecord() || id == frames.EventID{}:
		tx.fail("event kind %v carries no record, or its id is zero", kind)
	default:
		// The row shares the bytes of the image that its subscribers get.
		it.image = image
		it.row.Record.Payload = image[minImage:len(image):len(image)]
		tx.add(it)
	}
	return seq
}

// EmitEvent appends an event that carries no record (kinds 12, 13 and OBJECT_REMOVED) and
// returns the sequence that it gives it. A record that it changes is put or removed by the
// caller afterwards.
func (tx *Tx) EmitEvent(ev frames.ReplayEvent) frames.EventSequence {
	ev.Sequence = tx.next()
	if ev.Kind.CarriesRecord() || ev.ID == (frames.EventID{}) || len(ev.Payload) > frames.MaxTypedPayload {
		tx.fail("event kind %v carries a record, its id is zero, or its payload is too large", ev.Kind)
	}
	tx.add(item{
		op: itemFact, seq: ev.Sequence, kind: ev.Kind, eventID: ev.ID, ref: ev.Object,
		revision: ev.Revision, schema: ev.Schema, image: append([]byte(nil), ev.Payload...),
	})
	return ev.Sequence
}

// Hidden consumes one event sequence that is never delivered (protocol.md §6 [D-12]).
func (tx *Tx) Hidden() frames.EventSequence {
	seq := tx.next()
	tx.add(item{op: itemHidden, seq: seq})
	return seq
}

// Put writes a row without an event, at the current head. The store copies its bytes.
func (tx *Tx) Put(r Row) {
	it := item{op: itemRow, seq: frames.EventSequence(tx.head)}
	tx.put(&it, r)
	if tx.err == nil {
		it.row.own()
		tx.add(it)
	}
}

// put fills in the row of it and whether it is new.
func (tx *Tx) put(it *item, r Row) {
	r.Seq = it.seq
	it.row = &row{Row: r, key: r.Key(), commit: tx.commit}
	if r.Record.Revision == 0 || r.Record.Kind == 0 {
		tx.fail("%v has no kind or no revision", it.row.key.Ref())
		return
	}
	prev, known := tx.find(it.row.key)
	// A fresh id drawn by the server needs no look-up; anything else must be known, or the
	// counts would go wrong.
	if !known && r.Record.Revision != 1 {
		tx.fail("%v: %w", it.row.key.Ref(), ErrNotLoaded)
		return
	}
	it.prev, it.created = prev, prev == nil
	if it.created {
		_, written := tx.own[it.row.key]
		_, known = tx.inMemory(it.row.key)
		it.fresh = !written && !known
	}
	tx.own[it.row.key] = it.row
}

// Remove takes a row away. Removing what does not exist does nothing.
func (tx *Tx) Remove(ref frames.ObjectRef) {
	k := KeyOf(ref)
	prev, known := tx.findHead(k)
	it := item{op: itemRemove, seq: frames.EventSequence(tx.head), ref: ref, prev: prev}
	switch {
	case known && prev == nil:
		return
	case known:
		it.created, it.principal = true, prev.Principal
	case !internal(ref.Kind): // the counts would go wrong
		tx.fail("remove %v: %w", ref, ErrNotLoaded)
		return
	}
	tx.own[k] = nil
	tx.add(it)
}

// Install records an activation (protocol.md §4) and where its events begin: behind the
// head before this transaction.
func (tx *Tx) Install(epoch frames.AuthorityEpoch, activation frames.ActivationSequence, tokenSHA256 [32]byte) {
	if epoch <= tx.s.state.Epoch || activation <= tx.s.state.Activation {
		tx.fail("install of epoch %d, activation %d over %d, %d", epoch, activation, tx.s.state.Epoch, tx.s.state.Activation)
		return
	}
	tx.add(item{op: itemInstall, install: &install{epoch: epoch, activation: activation, base: tx.base, token: tokenSHA256}})
}

// Head is the event head that a commit now would leave.
func (tx *Tx) Head() frames.EventCut { return tx.head }

// Empty reports whether a commit would write nothing.
func (tx *Tx) Empty() bool { return len(tx.items) == 0 }

// Size is the bytes of the record so far.
func (tx *Tx) Size() int { return len(tx.buf) }

// Events is the number of sequences consumed so far.
func (tx *Tx) Events() int { return int(tx.head - tx.base) }

// Err is the failure that sticks, or nil.
func (tx *Tx) Err() error { return tx.err }

// next consumes a sequence. Running out of them ends the writer (protocol.md §3).
func (tx *Tx) next() frames.EventSequence {
	if tx.head+1 == 0 {
		tx.fail("event sequence is exhausted")
		return frames.EventSequence(tx.head)
	}
	tx.head++
	return frames.EventSequence(tx.head)
}

func (tx *Tx) add(it item) {
	if tx.err != nil {
		return
	}
	it.off = len(tx.buf) - recordHeader
	tx.items = append(tx.items, it)
	tx.buf = it.append(tx.buf)
	if len(tx.buf)+8 > maxRecord {
		tx.err = ErrTooLarge
	}
}

func (tx *Tx) fail(format string, args ...any) {
	if tx.err == nil {
		tx.err = fmt.Errorf("store: transaction: "+format, args...)
	}
}
