package main

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"

	"coordinator/cmd/internal/daemon"
	"coordinator/frames"
	"coordinator/server/store"
	"coordinator/server/work"
)

// TestVerifyTellsDamageApart puts each kind of damage on a stopped store: the exit code says
// what it is, the line names the file, and nothing is changed.
func TestVerifyTellsDamageApart(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.smallLog()
	p := r.serve()
	p.ready()
	r.objectives(20)
	require.Equal(t, 0, p.stop())
	whole := filepath.Join(r.root, "whole")
	require.NoError(t, os.Mkdir(whole, 0o700))
	segment := filepath.Join("log", "0000000000000001.seg")
	for _, name := range []string{"log/0000000000000001.seg", "state.db"} {
		copyFile(t, filepath.Join(r.dir, name), filepath.Join(whole, filepath.Base(name)))
	}
	restore := func() {
		require.NoError(t, os.RemoveAll(filepath.Join(r.dir, "log")))
		require.NoError(t, os.RemoveAll(filepath.Join(r.dir, "state.db")))
		require.NoError(t, os.Mkdir(filepath.Join(r.dir, "log"), 0o700))
		copyFile(t, filepath.Join(whole, "0000000000000001.seg"), filepath.Join(r.dir, segment))
		copyFile(t, filepath.Join(whole, "state.db"), filepath.Join(r.dir, "state.db"))
	}
	change := func(name string, f func([]byte) []byte) func() {
		return func() {
			path := filepath.Join(r.dir, name)
			data, err := os.ReadFile(path)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(path, f(data), 0o600))
		}
	}
	flip := func(at int) func([]byte) []byte { return func(b []byte) []byte { b[at] ^= 1; return b } }
	for _, tt := range []struct {
		name   string
		damage func()
		code   int
		says   string
	}{
		{"none", func() {}, 0, ""},
		{"what an interrupted compact left", func() {
			require.NoError(t, os.WriteFile(filepath.Join(r.dir, "state.db.compact"), []byte("x"), 0o600))
		}, 0, ""},
		{"a flipped bit in the header of a segment", change(segment, flip(20)), daemon.ExitCorrupt, "0000000000000001.seg"},
		{"a flipped bit in a record", change(segment, flip(400)), daemon.ExitCorrupt, "record"},
		{"a segment cut short", change(segment, func(b []byte) []byte { return b[:len(b)/2] }), daemon.ExitCorrupt, "its header says"},
		{"a segment grown", change(segment, func(b []byte) []byte { return append(b, 0) }), daemon.ExitCorrupt, "its header says"},
		{"a segment emptied", change(segment, func([]byte) []byte { return nil }), daemon.ExitCorrupt, "ends inside its header"},
		{"a lost end of the log", change(segment, func(b []byte) []byte {
			used := len(bytes.TrimRight(b, "\x00"))
			clear(b[used-2000 : used])
			return b
		}), daemon.ExitCorrupt, "the end of the log is missing"},
		{"a segment with another name", func() {
			require.NoError(t, os.Rename(filepath.Join(r.dir, segment), filepath.Join(r.dir, "log", "0000000000000002.seg")))
		}, daemon.ExitCorrupt, "the name 2"},
		{"a foreign file in the log", func() {
			require.NoError(t, os.WriteFile(filepath.Join(r.dir, "log", "notes.txt"), nil, 0o600))
		}, daemon.ExitCorrupt, "notes.txt"},
		{"an empty log", func() { require.NoError(t, os.Remove(filepath.Join(r.dir, segment))) }, daemon.ExitCorrupt, "no segment"},
		{"no log", func() { require.NoError(t, os.RemoveAll(filepath.Join(r.dir, "log"))) }, daemon.ExitCorrupt, "the log directory is missing"},
		{"no state.db", func() { require.NoError(t, os.Remove(filepath.Join(r.dir, "state.db"))) }, daemon.ExitCorrupt, "state.db: the file is missing"},
		{"neither", func() {
			require.NoError(t, os.RemoveAll(filepath.Join(r.dir, "log")))
			require.NoError(t, os.Remove(filepath.Join(r.dir, "state.db")))
		}, daemon.ExitCorrupt, "no store here"},
		{"a link for state.db", func() {
			require.NoError(t, os.Remove(filepath.Join(r.dir, "state.db")))
			require.NoError(t, os.Symlink(filepath.Join(whole, "state.db"), filepath.Join(r.dir, "state.db")))
		}, daemon.ExitCorrupt, "not a regular file"},
		{"both meta pages of state.db", change("state.db", func(b []byte) []byte { b[40] ^= 1; b[4096+40] ^= 1; return b }), daemon.ExitCorrupt, "both meta pages"},
		{"pages of state.db", change("state.db", func(b []byte) []byte { clear(b[8192:]); return b }), daemon.ExitCorrupt, "state.db"},
		{"wild pointers in state.db", change("state.db", func(b []byte) []byte {
			for at := 8192 + 16; at+8 <= len(b); at += 8 { // elements that point far away
				binary.NativeEndian.PutUint64(b[at:], binary.NativeEndian.Uint64(b[at:])^1<<30)
			}
			return b
		}), daemon.ExitCorrupt, "state.db"},
		{"a row that is gone", func() {
			db, err := bolt.Open(filepath.Join(r.dir, "state.db"), 0o600, nil)
			require.NoError(t, err)
			require.NoError(t, db.Update(func(tx *bolt.Tx) error {
				k, _ := tx.Bucket([]byte("live")).Cursor().First()
				return tx.Bucket([]byte("live")).Delete(bytes.Clone(k))
			}))
			require.NoError(t, db.Close())
		}, daemon.ExitCorrupt, "rows are lost"},
	} {
		restore()
		tt.damage()
		before := r.files()
		code, out, errs := run(t, coordinatord, "verify", "--state", r.dir)
		require.Equal(t, tt.code, code, "%s: %s %s", tt.name, out, errs)
		require.Contains(t, errs, tt.says, tt.name)
		require.Equal(t, tt.code == 0, bytes.Contains([]byte(out), []byte("the store is whole")), tt.name)
		require.Equal(t, before, r.files(), "%s: verify changed something", tt.name)
	}
	restore()
	r.serve().ready()
}

// smallLog makes the store anew with a first segment that is quick to read.
func (r *rig) smallLog() {
	r.t.Helper()
	require.NoError(r.t, os.RemoveAll(filepath.Join(r.dir, "log")))
	require.NoError(r.t, os.Remove(filepath.Join(r.dir, "state.db")))
	change, err := work.GenesisRetention(frames.Retention{
		OperationResultSecs: frames.MinOperationRetained, EventBytes: defaultEventBytes, ArtifactBytes: defaultArtifactBytes,
	})
	require.NoError(r.t, err)
	require.NoError(r.t, store.Create(r.dir, store.Genesis{
		CoordinatorID: r.ctx.CoordinatorID, CreatedAt: time.Now(),
		Rows: []store.Row{{Record: change.Record, Live: change.Live, Annex: change.Annex}},
	}, store.Options{SegmentBytes: 128 << 10}))
}

// files are the sizes and first bytes of what is in the state directory.
func (r *rig) files() map[string]string {
	r.t.Helper()
	all := map[string]string{}
	require.NoError(r.t, filepath.WalkDir(r.dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || filepath.Base(path) == lockFile {
			return err
		}
		data, err := os.ReadFile(path)
		all[path] = string(bytes.TrimRight(data, "\x00"))
		return err
	}))
	return all
}

// copyFile copies a file without writing its zeros.
func copyFile(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(to, bytes.TrimRight(data, "\x00"), 0o600))
	require.NoError(t, os.Truncate(to, int64(len(data))))
}
