package store

import "github.com/tidwall/btree"

// A walk is an iterator that remembers where it stands.
type walk[T keyed] struct {
	it   btree.IterG[T]
	item T
	ok   bool
}

type keyed interface{ rowKey() Key }

func (r *row) rowKey() Key    { return r.key }
func (c *change) rowKey() Key { return c.key }

// start stands on the first item behind after.
func (w *walk[T]) start(t *btree.BTreeG[T], pivot T, after Key) {
	w.it = t.Iter()
	if w.ok = w.it.Seek(pivot); w.ok {
		if w.item = w.it.Item(); w.item.rowKey() == after {
			w.next()
		}
	}
}

func (w *walk[T]) next() {
	if w.ok = w.it.Next(); w.ok {
		w.item = w.it.Item()
	}
}
