package overview

import (
	"reflect"

	"github.com/tidwall/btree"

	"coordinator/frames"
)

// A table keeps rows by id and in order.
type table[T any] struct {
	rows  map[frames.ObjectID]*T
	order *btree.Map[string, *T]
	head  func(*T) *Row
}

func newTable[T any](head func(*T) *Row) *table[T] {
	return &table[T]{rows: map[frames.ObjectID]*T{}, order: new(btree.Map[string, *T]), head: head}
}

// put puts row in the place of what there is of id, nil removes it, and reports whether that
// makes a difference.
func (t *table[T]) put(id frames.ObjectID, row *T) bool {
	before := t.rows[id]
	switch {
	case before == nil && row == nil, before != nil && row != nil && reflect.DeepEqual(before, row):
		return false
	case before != nil:
		t.order.Delete(t.head(before).Sort)
	}
	if row == nil {
		delete(t.rows, id)
		return true
	}
	t.rows[id] = row
	t.order.Set(t.head(row).Sort, row)
	return true
}

// list gives the first rows, at most limit; zero is all.
func (t *table[T]) list(limit int) []*T {
	if limit <= 0 || limit > len(t.rows) {
		limit = len(t.rows)
	}
	out := make([]*T, 0, limit)
	t.order.Scan(func(_ string, row *T) bool {
		if len(out) == limit {
			return false
		}
		out = append(out, row)
		return true
	})
	return out
}
