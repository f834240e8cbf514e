package store

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Keys are ordered as their bytes are, wherever two of them part.
func TestKeyOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var a Key
		copy(a[:], rapid.SliceOfN(rapid.Byte(), len(a), len(a)).Draw(rt, "a"))
		b := a
		from := rapid.IntRange(0, len(a)).Draw(rt, "equal bytes")
		copy(b[from:], rapid.SliceOfN(rapid.Byte(), len(b), len(b)).Draw(rt, "b"))
		order := bytes.Compare(a[:], b[:])
		require.Equal(rt, order < 0, a.less(b), "%x before %x", a, b)
		require.Equal(rt, order > 0, b.less(a), "%x before %x", b, a)
	})
}

// What the writer asks the trees with is shared by all lookups: none finds what another
// asked for, a removal takes away its own key alone, and a tree that was copied stays as it
// was.
func TestMemoryLookups(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		key := func(n int) Key { return Key{1: 1, 17: byte(n)} }
		m, want := newMemory(), map[Key]*change{}
		var copies []*rowTree
		var then [][]*row
		for i := range rapid.IntRange(1, 200).Draw(rt, "changes") {
			c := &change{key: key(rapid.IntRange(0, 99).Draw(rt, "key")), commit: uint64(i)}
			if rapid.IntRange(0, 2).Draw(rt, "put") > 0 {
				c.row = &row{key: c.key, commit: c.commit}
				c.row.Live = rapid.Bool().Draw(rt, "live")
			}
			m.set(c)
			want[c.key] = c
			if m.frozen == nil && rapid.IntRange(0, 50).Draw(rt, "freeze") == 0 {
				m.frozen, m.active = m.active, newOverlay()
			}
			if rapid.IntRange(0, 20).Draw(rt, "copy") == 0 {
				copies, then = append(copies, m.live.Copy()), append(then, m.live.Items())
			}
		}
		for n := range 100 {
			r, known := m.find(key(n))
			c, changed := want[key(n)]
			require.Equal(rt, changed, known)
			if changed {
				require.Same(rt, c.row, r)
			}
		}
		for i, tree := range copies {
			require.Equal(rt, then[i], tree.Items())
		}
	})
}
