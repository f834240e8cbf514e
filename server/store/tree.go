package store

import (
	"bytes"
	"encoding/binary"

	"github.com/tidwall/btree"

	"coordinator/frames"
)

// A Key orders rows as snapshots do (protocol.md §9): kind:u16 || id. The zero Key is
// before every row.
type Key [18]byte

// KeyOf is the key of an object.
func KeyOf(ref frames.ObjectRef) Key {
	var k Key
	binary.BigEndian.PutUint16(k[:], uint16(ref.Kind))
	copy(k[2:], ref.ID[:])
	return k
}

// Kind is the kind in the key.
func (k Key) Kind() frames.ObjectKind { return frames.ObjectKind(binary.BigEndian.Uint16(k[:])) }

// Ref is the object with this key.
func (k Key) Ref() frames.ObjectRef {
	return frames.ObjectRef{Kind: k.Kind(), ID: frames.ObjectID(k[2:])}
}

func (k Key) less(o Key) bool { return placeOf(&k).before(placeOf(&o)) }

// A place is a key as integers, which compare as its bytes do.
type place struct {
	hi, lo uint64
	tail   uint16
}

func placeOf(k *Key) place {
	return place{binary.BigEndian.Uint64(k[:8]), binary.BigEndian.Uint64(k[8:16]), binary.BigEndian.Uint16(k[16:])}
}

func (p place) before(o place) bool {
	if p.hi != o.hi {
		return p.hi < o.hi
	}
	if p.lo != o.lo {
		return p.lo < o.lo
	}
	return p.tail < o.tail
}

// A Row is one record and what the store keeps with it. Slices of a row that the store
// returns are shared and must not be changed.
type Row struct {
	Record frames.SnapshotRecord
	// Seq is the event sequence of this version. The store sets it.
	Seq frames.EventSequence
	// Live rows stay in memory; the others become history. The caller decides.
	Live bool
	// Principal is the originating principal of an OPERATION row, zero otherwise.
	Principal frames.KeyID
	// Annex is opaque to the store and kept with the row.
	Annex []byte
}

// Key is the row's key.
func (r *Row) Key() Key {
	return KeyOf(frames.ObjectRef{Kind: r.Record.Kind, ID: r.Record.ID})
}

// rowOverhead is what a row weighs beyond its two byte strings: key, header and the
// structures around it.
const rowOverhead = 200

// A row is a Row with its key and the commit that wrote it. Commits order versions more
// finely than sequences: a change without an event consumes none. A row is immutable.
type row struct {
	Row
	key    Key
	commit uint64
	bulk   int // bytes of a payload that was left out
}

func (r *row) weight() uint64 {
	return rowOverhead + uint64(len(r.Record.Payload)+r.bulk+len(r.Annex))
}

// A change is what the trees hold for a key that changed: the new row, or nil for a
// removal.
type change struct {
	key    Key
	row    *row // nil: removed
	commit uint64
	// fresh says that state.db has nothing of the key: its first row was written since the
	// last checkpoint, by this process. A checkpoint then need not look for what it replaces.
	fresh bool
}

func (c *change) weight() uint64 {
	if c.row == nil {
		return rowOverhead
	}
	return c.row.weight()
}

// A tree has items by their keys, and is copied by its root.
type tree[T any] struct{ t *btree.BTreeG[leaf[T]] }

// A leaf has the key beside the item: whoever looks for one then reads the nodes of the tree,
// and not items that lie all over memory.
type leaf[T any] struct {
	at   place
	item *T
}

type (
	rowTree    = tree[row]
	changeTree = tree[change]
	opTree     = btree.BTreeG[opCount]
)

func newTree[T any]() *tree[T] {
	return &tree[T]{btree.NewBTreeGOptions(func(a, b leaf[T]) bool { return a.at.before(b.at) }, treeOptions)}
}

// Get gives the item of a key.
func (t *tree[T]) Get(k *Key) (*T, bool) {
	l, ok := t.t.Get(leaf[T]{at: placeOf(k)})
	return l.item, ok
}

// Set puts an item under its key, and gives the one that was there.
func (t *tree[T]) Set(k *Key, item *T) (old *T, replaced bool) {
	l, replaced := t.t.Set(leaf[T]{placeOf(k), item})
	return l.item, replaced
}

// Delete takes an item away and reports whether it was there.
func (t *tree[T]) Delete(k *Key) bool {
	_, found := t.t.Delete(leaf[T]{at: placeOf(k)})
	return found
}

// Copy is the tree as it is now, for good.
func (t *tree[T]) Copy() *tree[T] { return &tree[T]{t.t.Copy()} }

// Len is how many items there are.
func (t *tree[T]) Len() int { return t.t.Len() }

// Ascend visits the items from a key on, in order, until visit returns false.
func (t *tree[T]) Ascend(from *Key, visit func(*T) bool) {
	t.t.Ascend(leaf[T]{at: placeOf(from)}, func(l leaf[T]) bool { return visit(l.item) })
}

// Items lists everything in order.
func (t *tree[T]) Items() []*T {
	items := make([]*T, 0, t.Len())
	t.Ascend(new(Key), func(item *T) bool {
		items = append(items, item)
		return true
	})
	return items
}

// An opCount is how many OPERATION rows a principal has.
type opCount struct {
	principal frames.KeyID
	n         uint64
}

var treeOptions = btree.Options{NoLocks: true}

func newOpTree() *opTree {
	return btree.NewBTreeGOptions(func(a, b opCount) bool {
		return bytes.Compare(a.principal[:], b.principal[:]) < 0
	}, treeOptions)
}

// tallies are the counts that a snapshot needs before its first page. They follow from
// the log alone: every item of a record says whether it created its row.
type tallies struct {
	kinds map[frames.ObjectKind]uint64
	ops   *opTree
}

func newTallies() tallies {
	return tallies{kinds: make(map[frames.ObjectKind]uint64), ops: newOpTree()}
}

func (t *tallies) add(kind frames.ObjectKind, principal frames.KeyID) {
	if internal(kind) {
		return
	}
	t.kinds[kind]++
	if kind == frames.KindOperation {
		c, _ := t.ops.Get(opCount{principal: principal})
		t.ops.Set(opCount{principal, c.n + 1})
	}
}

// sub reports false when there is nothing to take away.
func (t *tallies) sub(kind frames.ObjectKind, principal frames.KeyID) bool {
	if internal(kind) {
		return true
	}
	if t.kinds[kind] == 0 {
		return false
	}
	if t.kinds[kind]--; t.kinds[kind] == 0 {
		delete(t.kinds, kind)
	}
	if kind != frames.KindOperation {
		return true
	}
	c, ok := t.ops.Get(opCount{principal: principal})
	if !ok {
		return false
	}
	if c.n--; c.n == 0 {
		t.ops.Delete(c)
	} else {
		t.ops.Set(c)
	}
	return true
}
