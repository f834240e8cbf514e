package client

import (
	"bytes"
	"fmt"

	"github.com/tidwall/btree"

	"coordinator/codec"
	"coordinator/frames"
)

// A tree is a copy-on-write tree of records and the copy of it that readers have.
type tree struct {
	live   *btree.BTreeG[*Record]
	shared *btree.BTreeG[*Record] // nil when live has changed since
}

func newTree(less func(a, b *Record) bool) *tree {
	return &tree{live: btree.NewBTreeGOptions(less, btree.Options{NoLocks: true})}
}

func (t *tree) set(r *Record) {
	t.live.Set(r)
	t.shared = nil
}

func (t *tree) remove(r *Record) {
	t.live.Delete(r)
	t.shared = nil
}

// share gives a copy that never changes.
func (t *tree) share() *btree.BTreeG[*Record] {
	if t.shared == nil {
		t.shared = t.live.Copy()
	}
	return t.shared
}

// byID is the order of snapshots (protocol.md §9).
func byID(a, b *Record) bool {
	if a.kind != b.kind {
		return a.kind < b.kind
	}
	return bytes.Compare(a.id[:], b.id[:]) < 0
}

// byParent keeps those of one kind and parent together.
func byParent(a, b *Record) bool {
	if a.kind != b.kind {
		return a.kind < b.kind
	}
	if c := bytes.Compare(a.parent[:], b.parent[:]); c != 0 {
		return c < 0
	}
	return bytes.Compare(a.id[:], b.id[:]) < 0
}

// A table is the replica's knowledge: every visible record. What readers are shown are
// copies of it.
type table struct {
	records *tree // all, by kind and id
	below   *tree // those that have a parent, by kind, parent and id
	open    *tree // open signals, by id
	counts  [len(kindTable)]int
	bytes   int64
	loaded  int // operations in the snapshot
	limits  tableLimits
	last    Change // the last one applied
}

// tableLimits are the caps of a table.
type tableLimits struct {
	records int
	bytes   int64
}

func newTable(limits tableLimits) *table {
	return &table{records: newTree(byID), below: newTree(byParent), open: newTree(byID), limits: limits}
}

func (t *table) get(ref frames.ObjectRef) *Record {
	r, _ := t.records.live.Get(&Record{kind: ref.Kind, id: ref.ID})
	return r
}

// load makes the table of a snapshot. What stands in before unchanged is shared with it, so
// that a replacement costs what has changed.
func load(s *Snapshot, before *table, limits tableLimits) (*table, error) {
	t := newTable(limits)
	err := s.Each(func(sr frames.SnapshotRecord) error {
		var r *Record
		if before != nil {
			r = before.get(sr.Ref())
		}
		if !r.same(&sr) {
			var err error
			if r, err = newRecord(&sr, 0); err != nil {
				return err
			}
		}
		return t.replace(nil, r)
	})
	t.loaded = t.counts[frames.KindOperation]
	return t, err
}

// outgrown implements [knowledge]. Only operations go without an event.
func (t *table) outgrown() bool { return outgrown(t.counts[frames.KindOperation], t.loaded) }

// replace puts now in the place of old; either may be nil. It changes nothing when a cap is
// reached.
func (t *table) replace(old, now *Record) error {
	count, size := t.records.live.Len(), t.bytes
	if old != nil {
		count--
		size -= old.size()
	}
	if now != nil {
		count++
		size += now.size()
	}
	if count > t.limits.records || size > t.limits.bytes {
		return &ReplicaFullError{Records: count, Bytes: size, MaxRecords: t.limits.records, MaxBytes: t.limits.bytes}
	}
	t.bytes = size
	if old != nil {
		t.counts[old.kind]--
		if now == nil {
			t.records.remove(old)
		}
		if old.parent != (frames.ObjectID{}) && (now == nil || now.parent != old.parent) {
			t.below.remove(old)
		}
		if old.open && (now == nil || !now.open) {
			t.open.remove(old)
		}
	}
	if now != nil {
		t.counts[now.kind]++
		t.records.set(now)
		if now.parent != (frames.ObjectID{}) {
			t.below.set(now)
		}
		if now.open {
			t.open.set(now)
		}
	}
	return nil
}

// apply implements [knowledge]: an event is applied only when it takes its object to the
// next revision (protocol.md §10), and when what it carries is what its kind says.
func (t *table) apply(e *Event) error {
	old := t.get(e.Object)
	have := frames.ObjectRevision(0)
	if old != nil {
		have = old.revision
	}
	if e.Revision != have+1 {
		return &RevisionError{Sequence: e.Sequence, Object: e.Object, Have: have, Got: e.Revision}
	}
	if err := carries(e, new(frames.SnapshotRecord)); err != nil {
		return fmt.Errorf("%w: event %d: %w", ErrProtocol, e.Sequence, err)
	}
	now, err := t.after(e, old)
	if err != nil {
		return err
	}
	if err := t.replace(old, now); err != nil {
		if t.counts[frames.KindOperation] > t.loaded { // some may be gone: a snapshot tells
			return fmt.Errorf("%w: %v", errOutgrown, err)
		}
		return err
	}
	t.last = Change{Event: e, Old: old, New: now}
	return nil
}

// after is the record that e leaves behind, nil when that is none.
func (t *table) after(e *Event, old *Record) (*Record, error) {
	if e.Kind.CarriesRecord() {
		var r frames.SnapshotRecord
		if err := codec.DecodeImage(&r, e.Payload); err != nil {
			return nil, fmt.Errorf("%w: event %d: record: %w", ErrProtocol, e.Sequence, err)
		}
		return newRecord(&r, e.Sequence)
	}
	if old == nil {
		return nil, fmt.Errorf("%w: event %d is a %v of %v, which is not there", ErrProtocol, e.Sequence, e.Kind, e.Object)
	}
	if e.Kind == frames.EventObjectRemoved {
		return nil, nil
	}
	now := *old // source facts and gaps raise the revision and leave the payload [D-16]
	now.revision, now.sequence = e.Revision, e.Sequence
	return &now, nil
}
