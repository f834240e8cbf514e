package store_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"

	"coordinator/frames"
	"coordinator/internal/failpoint"
	"coordinator/server/store"
)

func (b *bed) statePath() string { return filepath.Join(b.dir, "state.db") }
func (b *bed) copyPath() string  { return filepath.Join(b.dir, "state.db.compact") }

func fileSize(t fataler, path string) int64 {
	info, err := os.Stat(path)
	require.NoError(t, err)
	return info.Size()
}

// emptied leaves a stopped store on the real disk that once had n rows and has the last
// tenth of them.
func emptied(t *testing.T, n uint64) (b *bed, state string) {
	b = diskBed(t)
	b.fillHistory(1, n)
	b.removeHistory(1, n-n/10)
	b.put(frames.KindSignal, 1, 1, "alive", true)
	state = b.state()
	require.NoError(t, b.s.Close())
	return b, state
}

func (b *bed) fillHistory(from, through uint64) {
	b.t.Helper()
	for id := from; id <= through; {
		tx := b.s.Begin()
		for ; id <= through && tx.Size() < 1<<20; id++ {
			tx.Put(makeRow(frames.KindOperation, id*0x9e3779b9%1_000_003, 1, strings.Repeat("r", 300), false))
		}
		b.commit(tx)
	}
}

func (b *bed) removeHistory(from, through uint64) {
	b.t.Helper()
	for id := from; id <= through; {
		var refs []frames.ObjectRef
		for ; id <= through && len(refs) < 1000; id++ {
			refs = append(refs, ref(frames.KindOperation, id*0x9e3779b9%1_000_003))
		}
		tx := b.begin(refs...)
		for _, r := range refs {
			tx.Remove(r)
		}
		b.commit(tx)
	}
}

// TestCompactKeepsAllAndShrinks compacts a store that has lost most of its rows, twice.
func TestCompactKeepsAllAndShrinks(t *testing.T) {
	b, want := emptied(t, 20_000)
	require.NoError(t, os.Chmod(b.statePath(), 0o640))
	before := fileSize(t, b.statePath())
	require.NoError(t, os.WriteFile(b.copyPath(), []byte("of an earlier one"), 0o600))
	var told []string
	opts := b.opts
	opts.Progress = func(line string) { told = append(told, line) }
	done, err := store.Compact(b.dir, opts)
	require.NoError(t, err)
	require.Equal(t, before, done.Before)
	require.Equal(t, fileSize(t, b.statePath()), done.After)
	require.Less(t, done.After, before/4)
	require.EqualValues(t, 2000+1+1+4, done.Values, "operations, retention, a signal, and what the store knows of itself")
	require.NoFileExists(t, b.copyPath())
	require.Contains(t, told[0], "state.db.compact, which an interrupted compact left")
	require.Contains(t, told, fmt.Sprintf("copying: %d bytes written", done.After))
	info, err := os.Stat(b.statePath())
	require.NoError(t, err)
	require.EqualValues(t, 0o640, info.Mode())

	require.NoError(t, store.Verify(b.dir, b.opts))
	again, err := store.Compact(b.dir, b.opts)
	require.NoError(t, err)
	require.Equal(t, done.Values, again.Values)
	require.Equal(t, done.SHA256, again.SHA256)
	require.LessOrEqual(t, again.After, again.Before)
	b.open()
	require.Equal(t, want, b.state())
	b.fillHistory(30_000, 31_000)
	want = b.state()
	require.NoError(t, b.s.Close())
	more, err := store.Compact(b.dir, b.opts)
	require.NoError(t, err)
	require.NotEqual(t, done.SHA256, more.SHA256)
	b.open()
	require.Equal(t, want, b.state())
	require.NoError(t, b.s.Close())
}

// TestCompactRefuses leaves the file as it was, and nothing beside it.
func TestCompactRefuses(t *testing.T) {
	b, want := emptied(t, 3000)
	refuse := func(opts store.Options) error {
		t.Helper()
		before, err := os.ReadFile(b.statePath())
		require.NoError(t, err)
		_, err = store.Compact(b.dir, opts)
		require.Error(t, err)
		require.NoFileExists(t, b.copyPath())
		after, rerr := os.ReadFile(b.statePath())
		require.NoError(t, rerr)
		require.True(t, bytes.Equal(before, after), "the file was changed")
		return err
	}
	b.open()
	require.ErrorIs(t, refuse(b.opts), store.ErrInUse)
	require.NoError(t, b.s.Close())
	good, err := os.ReadFile(b.statePath())
	require.NoError(t, err)

	full := b.opts
	full.FreeBytes = func() uint64 { return 1 << 20 }
	err = refuse(full)
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.Contains(t, err.Error(), "1048576 are free")

	requireCorrupt(t, func() error {
		b.editState(func(tx *bolt.Tx) error {
			h := tx.Bucket([]byte("history"))
			k, v := h.Cursor().Last()
			v = bytes.Clone(v)
			v[len(v)-1] ^= 1
			return h.Put(k, v)
		})
		return refuse(b.opts)
	}(), "state.db")
	require.NoError(t, os.WriteFile(b.statePath(), good[:len(good)-8192], 0o600))
	requireCorrupt(t, refuse(b.opts), "state.db")
	require.NoError(t, os.WriteFile(b.statePath(), good, 0o600))

	// What is found in the copy, and a directory in its place.
	for name, edit := range map[string]func(tx *bolt.Tx) error{
		"a value is another": func(tx *bolt.Tx) error {
			c := tx.Bucket([]byte("history")).Cursor()
			k, _ := c.First()
			_, v := c.Next()
			return tx.Bucket([]byte("history")).Put(bytes.Clone(k), bytes.Clone(v))
		},
		"a value is gone": func(tx *bolt.Tx) error {
			k, _ := tx.Bucket([]byte("history")).Cursor().Last()
			return tx.Bucket([]byte("history")).Delete(bytes.Clone(k))
		},
		"a value is new": func(tx *bolt.Tx) error {
			return tx.Bucket([]byte("meta")).Put([]byte("zz"), []byte("1"))
		},
		"a bucket is new": func(tx *bolt.Tx) error {
			_, err := tx.CreateBucket([]byte("zz"))
			return err
		},
		"a bucket is gone": func(tx *bolt.Tx) error { return tx.DeleteBucket([]byte("live")) },
		"a sequence":       func(tx *bolt.Tx) error { return tx.Bucket([]byte("live")).SetSequence(7) },
	} {
		opts := b.opts
		opts.PageCheck = func(path string) error {
			if path != b.copyPath() {
				return store.CheckFile(path)
			}
			db, err := bolt.Open(path, 0o600, nil)
			require.NoError(t, err)
			require.NoError(t, db.Update(edit), name)
			return db.Close()
		}
		require.Contains(t, refuse(opts).Error(), "the copy is not what it was made from", name)
	}
	opts := b.opts
	opts.PageCheck = func(path string) error {
		if path == b.copyPath() {
			return fmt.Errorf("signal: bus error")
		}
		return nil
	}
	requireCorrupt(t, refuse(opts), "state.db.compact")
	require.NoError(t, os.Mkdir(b.copyPath(), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(b.copyPath(), "x"), nil, 0o600))
	_, err = store.Compact(b.dir, b.opts)
	require.ErrorContains(t, err, "remove "+b.copyPath())
	require.NoError(t, os.RemoveAll(b.copyPath()))

	b.open()
	require.Equal(t, want, b.state())
	require.NoError(t, b.s.Close())
	none := t.TempDir()
	_, err = store.Compact(none, b.opts)
	require.ErrorIs(t, err, store.ErrNoStore)
	require.NoError(t, os.Remove(b.statePath()))
	_, err = store.Compact(b.dir, b.opts)
	requireCorrupt(t, err, "state.db")
}

// TestCompactInterrupted takes the directory as it stands at each of its steps: every one of
// them opens with the same state, without what the interrupted copy left, and says so.
func TestCompactInterrupted(t *testing.T) {
	b, want := emptied(t, 5000)
	taken := map[string]string{}
	take := func(step string) {
		to := t.TempDir()
		require.NoError(t, os.CopyFS(to, os.DirFS(b.dir)))
		taken[step] = to
	}
	for _, name := range []string{"compact-written", "compact-copied", "compact-renamed"} {
		defer failpoint.Set(name, func() { take(name) })()
	}
	opts := b.opts
	opts.Progress = func(line string) { take(fmt.Sprintf("%d %s", len(taken), line)) }
	opts.PageCheck = func(path string) error {
		take(fmt.Sprintf("%d check of %s", len(taken), path))
		return store.CheckFile(path)
	}
	before := fileSize(t, b.statePath())
	_, err := store.Compact(b.dir, opts)
	require.NoError(t, err)
	take("the end")
	require.GreaterOrEqual(t, len(taken), 6)
	if failpoint.Enabled {
		require.GreaterOrEqual(t, len(taken), 9)
	}
	copies := 0
	check := func(dir, step string) {
		c := &bed{t: t, dir: dir, opts: b.opts}
		_, err := os.Stat(c.copyPath())
		copied := err == nil
		if copied {
			copies++
			require.Equal(t, before, fileSize(t, c.statePath()), step)
		}
		require.NoError(t, store.Verify(dir, b.opts), step)
		var said strings.Builder
		c.opts.Logger = newLogger(&said)
		c.open()
		require.Equal(t, want, c.state(), step)
		require.NoFileExists(t, c.copyPath())
		require.Equal(t, copied, strings.Contains(said.String(), "removed what an interrupted compact left"), step)
		require.NoError(t, c.s.Close())
		_, err = store.Compact(dir, b.opts)
		require.NoError(t, err, step)
	}
	for step, dir := range taken {
		check(dir, step)
	}
	require.GreaterOrEqual(t, copies, 3)
	// A copy that was cut anywhere is as useless and as harmless.
	for _, size := range []int64{0, 1, 4096, 8192, 10_000} {
		data := bytes.Repeat([]byte{0xa5}, int(size))
		require.NoError(t, os.WriteFile(b.copyPath(), data, 0o600))
		require.NoError(t, store.Verify(b.dir, b.opts))
		b.open()
		require.NoFileExists(t, b.copyPath())
		require.Equal(t, want, b.state())
		require.NoError(t, b.s.Close())
	}
}

// TestTheFileStopsGrowing removes and makes again what a store has, several times: state.db
// uses its free pages again and stays within growthFactor of its first size, and a compact
// brings it down to what is there.
func TestTheFileStopsGrowing(t *testing.T) {
	const rows, rounds, growthFactor = 20_000, 6, 2
	b := diskBed(t)
	size := func() int64 {
		stats, err := b.s.Stats()
		require.NoError(t, err)
		return stats.StateBytes
	}
	restart := func() { // the checkpoint of a clean stop
		require.NoError(t, b.s.Close())
		b.open()
	}
	b.fillHistory(1, rows)
	restart()
	first := size()
	require.Greater(t, first, int64(rows*300))
	for round := range uint64(rounds) {
		b.removeHistory(round*rows+1, (round+1)*rows)
		restart()
		stats, err := b.s.Stats()
		require.NoError(t, err)
		require.Greater(t, stats.FreeBytes, stats.StateBytes/2, "pages of removed rows are free")
		b.fillHistory((round+1)*rows+1, (round+2)*rows)
		restart()
		require.LessOrEqual(t, size(), growthFactor*first, "round %d", round)
	}
	want := b.state()
	b.removeHistory(rounds*rows+1, (rounds+1)*rows)
	require.NotEqual(t, want, b.state())
	want = b.state()
	require.NoError(t, b.s.Close())
	done, err := store.Compact(b.dir, b.opts)
	require.NoError(t, err)
	require.Less(t, done.After, first/20)
	b.open()
	require.Equal(t, want, b.state())
	require.NoError(t, b.s.Close())
}
