package store

import "github.com/tidwall/btree"

// walkAhead is how many items a walk takes from its tree at a time.
const walkAhead = 32

// A walk is an iterator that remembers where it stands. Rows lie all over memory, so it takes
// several from the tree at once and looks at each: the processor fetches them side by side
// then, and not one after another when their turn comes.
type walk[T any, P touched[T]] struct {
	it    btree.IterG[leaf[T]]
	ahead [walkAhead]*T
	i, n  int // ahead[i:n] comes next
	warm  byte
	item  *T
	ok    bool
}

type touched[T any] interface {
	*T
	// touch reads a byte of the item, and touchBytes some of what it refers to.
	touch() byte
	touchBytes() byte
}

func (r *row) touch() byte { return r.key[0] + byte(len(r.Record.Payload)) }

func (r *row) touchBytes() (b byte) {
	p := r.Record.Payload
	for at := 0; at < len(p) && at < walkBytes; at += cacheLines {
		b += p[at]
	}
	return b
}

// What is touched of a payload: the first of two cache lines, which come together, of as much
// as the processor would not fetch ahead by itself.
const (
	cacheLines = 128
	walkBytes  = 4 * cacheLines
)

func (c *change) touch() byte { return c.key[0] }

func (c *change) touchBytes() byte {
	if c.row == nil {
		return 0
	}
	return c.row.touch()
}

// start stands on the first item behind after.
func (w *walk[T, P]) start(t *tree[T], after Key) {
	w.it = t.t.Iter()
	from := placeOf(&after)
	if w.ok = w.it.Seek(leaf[T]{at: from}); w.ok {
		first := w.it.Item()
		if w.item = first.item; first.at == from {
			w.next()
		}
	}
}

func (w *walk[T, P]) next() {
	if w.i == w.n {
		w.take()
	}
	if w.ok = w.i < w.n; w.ok {
		w.item = w.ahead[w.i]
		w.i++
	}
}

// take fetches the next items.
func (w *walk[T, P]) take() {
	w.i, w.n = 0, 0
	for w.n < walkAhead && w.it.Next() {
		w.ahead[w.n] = w.it.Item().item
		w.n++
	}
	for _, item := range w.ahead[:w.n] {
		w.warm += P(item).touch()
	}
	for _, item := range w.ahead[:w.n] {
		w.warm += P(item).touchBytes()
	}
}
