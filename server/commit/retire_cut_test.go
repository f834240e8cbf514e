package commit

import (
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
	"coordinator/server/store"
)

// A snapshot that was opened before shows every result as it was then, counted as it is, while
// they become tombstones and go, whatever of it memory has given up.
func TestRetirementBehindACut(t *testing.T) {
	b := newBed(t)
	for n := 1; n <= 10; n++ {
		require.NoError(t, b.do(create(t, 2*n-1, n, "{}"), alice).err)
		require.NoError(t, b.do(finish(t, 2*n, n), alice).err)
	}
	now := b.clk.Now().Unix()
	type version struct {
		id  frames.ObjectID
		rev frames.ObjectRevision
	}
	operations := func(c *store.Cut) (out []version) {
		var after store.Key
		for done := false; !done; {
			rows, end, err := c.Page(after, func(k frames.ObjectKind, p frames.KeyID) bool {
				return k == frames.KindOperation && p == alice.Principal
			}, 3)
			require.NoError(t, err)
			for i := range rows {
				after = rows[i].Key()
				out = append(out, version{rows[i].Record.ID, rows[i].Record.Revision})
			}
			done = end
		}
		require.EqualValues(t, c.OperationsOf(alice.Principal), len(out))
		require.EqualValues(t, c.Count(frames.KindOperation), len(out))
		return out
	}
	cuts := map[*store.Cut][]version{}
	cut := func() {
		c := b.store.Cut()
		cuts[c] = operations(c)
	}
	for _, step := range []func() error{
		func() error { return nil },
		func() error { b.checkpoint(); return nil },
		func() error { _, err := b.retire(now + month); return err },
		func() error { b.checkpoint(); return nil },
		func() error { _, err := b.retire(now + 2*month); return err },
		func() error { b.checkpoint(); return nil },
		func() error { return b.do(archive(t, 100, 4), alice).err },
		func() error { _, err := b.retire(now + 3*month); return err },
		func() error { b.checkpoint(); return nil },
	} {
		require.NoError(t, step())
		cut()
		for c, want := range cuts {
			require.Equal(t, want, operations(c))
		}
	}
	for c := range cuts {
		c.Close()
	}
	require.EqualValues(t, 10-1+1, b.count(frames.KindOperation), "those of objectives that remain, and that of the archive")
}
