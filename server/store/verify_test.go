package store_test

import (
	"bytes"
	"encoding/binary"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"

	"coordinator/frames"
	"coordinator/server/store"
)

// wholeStore is a stopped store with all buckets in use: live rows, history over several
// pages, and several segments.
func wholeStore(t *testing.T) *bed {
	b := newBed(t, t.TempDir())
	b.mixed(80)
	b.checkpoint()
	b.mixed(3)
	require.NoError(t, b.s.Close())
	return b
}

// TestAPageThatHidesRowsIsFound lowers and raises the number of elements of every page in
// use, by one and by a bit.
func TestAPageThatHidesRowsIsFound(t *testing.T) {
	b := wholeStore(t)
	good, err := os.ReadFile(b.statePath())
	require.NoError(t, err)
	size := os.Getpagesize()
	var pages []int
	db, err := bolt.Open(b.statePath(), 0o600, &bolt.Options{ReadOnly: true, PreLoadFreelist: true})
	require.NoError(t, err)
	require.NoError(t, db.View(func(tx *bolt.Tx) error {
		for id := 0; ; id++ {
			info, err := tx.Page(id)
			if err != nil || info == nil {
				return err
			}
			if info.Type == "leaf" && info.Count > 0 {
				pages = append(pages, id)
			}
		}
	}))
	require.NoError(t, db.Close())
	require.Greater(t, len(pages), 4)
	require.NoError(t, store.CheckFile(b.statePath()))
	for _, id := range pages {
		count := binary.NativeEndian.Uint16(good[id*size+10:])
		for _, wrong := range []uint16{count - 1, count / 2, count + 1, count ^ 4, 0x7fff} {
			if wrong == count || wrong == 0 {
				continue
			}
			bad := bytes.Clone(good)
			binary.NativeEndian.PutUint16(bad[id*size+10:], wrong)
			require.NoError(t, os.WriteFile(b.statePath(), bad, 0o600))
			if wrong < count { // more would be read out of bounds, which ends the process
				requireCorrupt(t, store.CheckFile(b.statePath()), "state.db", "page %d with %d elements for %d", id, wrong, count)
				requireCorrupt(t, store.Verify(b.dir, b.opts), "state.db")
			}
		}
	}
	require.NoError(t, os.WriteFile(b.statePath(), good, 0o600))
	require.NoError(t, store.Verify(b.dir, b.opts))
}

// TestRowsAreCounted changes rows in ways that every checksum passes.
func TestRowsAreCounted(t *testing.T) {
	for name, edit := range map[string]func(tx *bolt.Tx) error{
		"an operation is gone": func(tx *bolt.Tx) error {
			k, _ := tx.Bucket([]byte("history")).Cursor().Seek([]byte{0, byte(frames.KindOperation)})
			return tx.Bucket([]byte("history")).Delete(bytes.Clone(k))
		},
		"a live row is gone": func(tx *bolt.Tx) error {
			k, _ := tx.Bucket([]byte("live")).Cursor().First()
			return tx.Bucket([]byte("live")).Delete(bytes.Clone(k))
		},
	} {
		b := wholeStore(t)
		require.NoError(t, store.Verify(b.dir, b.opts), name)
		b.editState(edit)
		require.NoError(t, store.CheckFile(b.statePath()), name)
		err := store.Verify(b.dir, b.opts)
		requireCorrupt(t, err, "state.db", name)
		require.Contains(t, err.Error(), "rows are lost", name)
	}
}

// TestVerifyFindsEveryDamage flips a bit in every part of every file of the log. What is not reported, or noted as what the next start mends,
// changes nothing that can be read.
func TestVerifyFindsEveryDamage(t *testing.T) {
	b := wholeStore(t)
	b.open()
	want := b.state()
	all, err := b.s.Events(0, 10_000, 1<<24)
	require.NoError(t, err)
	require.NoError(t, b.s.Close())
	found, noted := 0, 0
	for _, path := range b.segments() {
		good, err := b.fs.ReadFile(path)
		require.NoError(t, err)
		for at := 0; at < len(good); at += 83 {
			bad := bytes.Clone(good)
			bad[at] ^= 1 << (at % 8)
			require.NoError(t, b.fs.WriteFile(path, bad))
			notes := 0
			opts := b.opts
			opts.Progress = func(line string) {
				if strings.Contains(line, "the next start will") {
					notes++
				}
			}
			if err := store.Verify(b.dir, opts); err != nil {
				requireCorrupt(t, err, "log", "%s at %d", path, at)
				found++
				continue
			}
			if noted += notes; notes > 0 && at%5 != 0 {
				continue // a start costs more than a check
			}
			b.open()
			require.Equal(t, want, b.state(), "%s at %d", path, at)
			events, err := b.s.Events(0, 10_000, 1<<24)
			require.NoError(t, err, "%s at %d", path, at)
			require.Equal(t, texts(all), texts(events), "%s at %d", path, at)
			require.NoError(t, b.s.Abandon())
		}
		require.NoError(t, b.fs.WriteFile(path, good))
	}
	require.Positive(t, noted)
	require.Greater(t, found, noted)
	require.NoError(t, store.Verify(b.dir, b.opts))
}

// TestAdvance: every step of a check tells how far it is, never more than there is, and never less than
// before.
func TestAdvance(t *testing.T) {
	b := wholeStore(t)
	var steps []string
	var last store.Advance
	o := b.opts
	o.Advance = func(a store.Advance) {
		if a.Step != last.Step {
			steps = append(steps, a.Step)
		} else {
			require.GreaterOrEqual(t, a.Done, last.Done, a.Step)
		}
		if a.Total > 0 && a.Unit == "" {
			require.LessOrEqual(t, a.Done, a.Total, a.Step)
		}
		last = a
	}
	_, err := store.Inspect(b.dir, o)
	require.NoError(t, err)
	require.Equal(t, []string{"reading the log", "checking the pages of state.db", "checking the elements of state.db", "checking the values of state.db",
		"loading state.db", "replaying the log", "counting the rows"}, steps)
	require.Equal(t, last.Total, last.Done, "every row was counted")
	steps = nil
	_, err = store.Compact(b.dir, o)
	require.NoError(t, err)
	require.Contains(t, steps, "copying state.db")
	require.Contains(t, steps, "comparing the copy")
}
