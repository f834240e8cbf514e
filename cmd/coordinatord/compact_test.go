package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"coordinator/cmd/internal/daemon"
	"coordinator/cmd/internal/progress"
	"coordinator/frames"
)

// objectives makes n of them and gives what a snapshot shows.
func (r *rig) objectives(n int) []frames.SnapshotRecord {
	r.t.Helper()
	c := r.connect()
	defer c.Close()
	for range n {
		cmd, _ := create(r.t)
		_, err := c.Command(r.t.Context(), cmd)
		require.NoError(r.t, err)
	}
	return r.shown()
}

// shown is what a snapshot shows of work, which no start changes.
func (r *rig) shown() (recs []frames.SnapshotRecord) {
	r.t.Helper()
	c := r.connect()
	defer c.Close()
	s, err := c.Snapshot(r.t.Context())
	require.NoError(r.t, err)
	defer s.Close()
	require.NoError(r.t, s.Each(func(rec frames.SnapshotRecord) error {
		if rec.Kind != frames.KindAdmin {
			rec.Payload = bytes.Clone(rec.Payload)
			recs = append(recs, rec)
		}
		return nil
	}))
	return recs
}

func TestCompactWhileStopped(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.serve()
	p.ready()
	want := r.objectives(40)
	require.Len(t, want, 80)

	code, out, errs := run(t, coordinatord, "compact", "--state", r.dir, "-o", "json")
	require.Equal(t, daemon.ExitHeld, code)
	require.Empty(t, out)
	require.Contains(t, errs, "store.lock is held by process "+fmt.Sprint(p.cmd.Process.Pid)+"; stop that one first")
	require.Equal(t, 0, p.stop())

	db := filepath.Join(r.dir, "state.db")
	// Room that nothing uses any more: a bucket of rows is written and deleted.
	bloat(t, db)
	before, err := os.Stat(db)
	require.NoError(t, err)
	code, out, errs = run(t, coordinatord, "compact", "--state", r.dir, "-o", "json")
	require.Equal(t, 0, code, errs)
	var report compactReport
	require.NoError(t, json.Unmarshal([]byte(out), &report))
	after, err := os.Stat(db)
	require.NoError(t, err)
	require.Equal(t, compactReport{StateDir: r.dir, Before: before.Size(), After: after.Size(), Values: report.Values, SHA256: report.SHA256}, report)
	require.Less(t, report.After, report.Before/4)
	require.Greater(t, report.Values, uint64(80))
	require.Len(t, report.SHA256, 64)
	require.Contains(t, errs, "comparing the copy with "+db)
	require.Equal(t, before.Mode(), after.Mode())
	require.Equal(t, before.Sys().(*syscall.Stat_t).Uid, after.Sys().(*syscall.Stat_t).Uid)

	text := ok(t, coordinatord, "compact", "--state", r.dir)
	require.Contains(t, text, fmt.Sprintf("its %d values have sha256 %s", report.Values, report.SHA256))
	require.Contains(t, ok(t, coordinatord, "verify", "--state", r.dir), "the store is whole")
	r.serve().ready()
	require.Equal(t, want, r.shown())
}

// bloat makes free pages.
func bloat(t *testing.T, path string) {
	t.Helper()
	db, err := bolt.Open(path, 0o600, nil)
	require.NoError(t, err)
	require.NoError(t, db.Update(func(tx *bolt.Tx) error {
		b, err := tx.CreateBucket([]byte("bloat"))
		for i := range 4000 {
			if err == nil {
				err = b.Put(fmt.Appendf(nil, "%06d", i), bytes.Repeat([]byte{'x'}, 1000))
			}
		}
		return err
	}))
	require.NoError(t, db.Update(func(tx *bolt.Tx) error { return tx.DeleteBucket([]byte("bloat")) }))
	require.NoError(t, db.Close())
}

// TestCompactKilledAtEachStep: the store is whole, and the next start says what it removed.
func TestCompactKilledAtEachStep(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.serve()
	p.ready()
	want := r.objectives(5)
	require.Equal(t, 0, p.stop())
	db := filepath.Join(r.dir, "state.db")
	for _, tt := range []struct {
		point   string
		copied  bool // the copy lies there
		renamed bool
	}{{"compact-written", true, false}, {"compact-copied", true, false}, {"compact-renamed", false, true}} {
		bloat(t, db)
		before, err := os.Stat(db)
		require.NoError(t, err)
		c := launch(t, []string{"COORDINATOR_FAILPOINT=" + tt.point + "=kill"}, coordinatord, "compact", "--state", r.dir)
		require.Equal(t, -1, c.ends(), tt.point)
		after, err := os.Stat(db)
		require.NoError(t, err)
		require.Equal(t, tt.renamed, after.Size() < before.Size(), tt.point)
		if tt.copied {
			require.FileExists(t, db+".compact")
			require.Contains(t, ok(t, coordinatord, "verify", "--state", r.dir), "interrupted compact left")
			require.FileExists(t, db+".compact", "verify changes nothing")
		}
		p := r.serve()
		p.ready()
		require.NoFileExists(t, db+".compact")
		require.Equal(t, tt.copied, strings.Contains(p.output(), "removed what an interrupted compact left"), tt.point)
		require.Equal(t, want, r.shown())
		require.Equal(t, 0, p.stop())
		ok(t, coordinatord, "verify", "--state", r.dir)
	}
}

// TestCompactToldToStop: what a signal ends in the middle is not called damage.
func TestCompactToldToStop(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("told to stop"))
	_, err := compact(ctx, r.dir, &teller{out: io.Discard, bar: progress.New(io.Discard, progress.Options{})})
	require.EqualError(t, err, "state.db is as it was: told to stop")
	require.Equal(t, daemon.ExitFailure, daemon.Code(err))
	require.NoFileExists(t, filepath.Join(r.dir, "state.db.compact"))
	ok(t, coordinatord, "compact", "--state", r.dir)
}

func TestCompactRefusals(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	db := filepath.Join(r.dir, "state.db")
	good, err := os.ReadFile(db)
	require.NoError(t, err)
	empty := t.TempDir()
	file := filepath.Join(empty, "none", "such")
	for _, tt := range []struct {
		name   string
		args   []string
		change func([]byte) []byte
		code   int
		says   string
	}{
		{"no --state", []string{"compact"}, nil, daemon.ExitUsage, "--state is missing"},
		{"an output", []string{"compact", "--state", r.dir, "-o", "xml"}, nil, daemon.ExitUsage, "table or json"},
		{"no directory", []string{"compact", "--state", file}, nil, daemon.ExitConfig, file},
		{"no store", []string{"compact", "--state", empty}, nil, daemon.ExitCorrupt, "no store here"},
		{"zeroed pages", nil, func(b []byte) []byte { clear(b[8192:]); return b }, daemon.ExitCorrupt, db},
		{"cut short", nil, func(b []byte) []byte { return b[:8192] }, daemon.ExitCorrupt, db},
		{"empty", nil, func([]byte) []byte { return nil }, daemon.ExitCorrupt, db},
	} {
		args := tt.args
		if args == nil {
			args = []string{"compact", "--state", r.dir}
		}
		bad := good
		if tt.change != nil {
			bad = tt.change(bytes.Clone(good))
			require.NoError(t, os.WriteFile(db, bad, 0o600))
		}
		code, _, errs := run(t, coordinatord, args...)
		require.Equal(t, tt.code, code, "%s: %s", tt.name, errs)
		require.Contains(t, errs, tt.says, tt.name)
		left, err := os.ReadFile(db)
		require.NoError(t, err)
		require.True(t, bytes.Equal(bad, left), "%s: the file was changed", tt.name)
		require.NoFileExists(t, db+".compact")
		require.NoError(t, os.WriteFile(db, good, 0o600))
	}
	entries, err := os.ReadDir(empty)
	require.NoError(t, err)
	require.Empty(t, entries, "nothing is made where no store is")
}

// TestCompactNeedsRoom is refused before it begins, on a disk that has no room for both.
func TestCompactNeedsRoom(t *testing.T) {
	disk := smallDisk(t, "140m")
	t.Setenv("TMPDIR", disk) // where newRig makes everything
	r := newRig(t)
	db := filepath.Join(r.dir, "state.db")
	before, err := os.ReadFile(db)
	require.NoError(t, err)
	full := leaveFree(t, filepath.Join(disk, "full"), 1<<20)
	code, _, errs := run(t, coordinatord, "compact", "--state", r.dir)
	require.Equal(t, daemon.ExitFailure, code)
	require.Contains(t, errs, "bytes beside it and")
	require.Contains(t, errs, "no space left on device")
	require.NoFileExists(t, db+".compact")
	after, err := os.ReadFile(db)
	require.NoError(t, err)
	require.True(t, bytes.Equal(before, after))
	require.NoError(t, os.Remove(full))
	ok(t, coordinatord, "compact", "--state", r.dir)
	r.serve().ready()
}

// smallDisk mounts a file system of that size, or says why it cannot.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can mount a small file system")
	}
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "mode=700,size="+size); err != nil {
		t.Skipf("no small file system here: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(disk, unix.MNT_DETACH)) })
	return disk
}

// leaveFree adds to a file until no more than n bytes are free.
func leaveFree(t *testing.T, path string, n uint64) string {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(t, err)
	defer f.Close()
	for chunk := make([]byte, 64<<10); freeOn(t, path) > n; {
		_, err := f.Write(chunk)
		require.NoError(t, err)
	}
	return path
}

func freeOn(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Statfs_t
	require.NoError(t, unix.Statfs(path, &st))
	return st.Bavail * uint64(st.Bsize)
}
