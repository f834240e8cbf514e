package main

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"coordinator/client"
	"coordinator/cmd/internal/daemon"
	"coordinator/frames"
	"coordinator/internal/durable"
	"coordinator/server/authority"
	"coordinator/server/backup"
)

// backUp makes a backup with a name of its own.
func (r *rig) backUp(name string) (dest string, report backupReport) {
	r.t.Helper()
	dest = filepath.Join(r.root, name)
	require.NoError(r.t, json.Unmarshal([]byte(ok(r.t, coordinatord, "backup", dest, "--state", r.dir, "-o", "json")), &report))
	return dest, report
}

// restored restores a backup into the new directory n, enrols the new link key there with
// the lines that restore printed, and makes it the rig's.
func (r *rig) restored(from string, args ...string) restoreReport {
	r.t.Helper()
	report := r.restoredIn(filepath.Join(r.root, "n"), from, args...)
	r.adopt(report.StateDir, report.Socket)
	return report
}

// restoredIn is restored for a directory of the caller's.
func (r *rig) restoredIn(dir, from string, args ...string) (report restoreReport) {
	r.t.Helper()
	require.NoError(r.t, json.Unmarshal([]byte(ok(r.t, coordinatord,
		append([]string{"restore", from, "--state", dir, "-o", "json"}, args...)...)), &report))
	for _, line := range append(report.Enrol, report.Revoke...) {
		c := exec.CommandContext(r.t.Context(), "/bin/sh", "-ec", line)
		c.Env = append(os.Environ(), "PATH="+filepath.Dir(coordinatord))
		out, err := c.CombinedOutput()
		require.NoError(r.t, err, "%s: %s", line, out)
	}
	return report
}

// adopt makes dir the rig's, and its socket that of the client.
func (r *rig) adopt(dir, socket string) {
	r.t.Helper()
	file := filepath.Join(r.root, "k", "context.toml")
	r.dir, r.ctx.Socket = dir, socket
	require.NoError(r.t, r.ctx.Save(file))
	var err error
	r.ctx, err = client.LoadContext(file)
	require.NoError(r.t, err)
}

// unknowing makes the rig's context one of the same key that has seen nothing yet.
func (r *rig) unknowing() { r.t.Helper(); r.ctx = r.contextIn("unknowing") }

// contextIn is a context of the rig's key with a memory of its own.
func (r *rig) contextIn(name string) *client.Context {
	r.t.Helper()
	dir := filepath.Join(r.root, name)
	require.NoError(r.t, durable.MkdirPrivate(dir))
	require.NoError(r.t, r.ctx.Save(filepath.Join(dir, "context.toml")))
	c, err := client.LoadContext(filepath.Join(dir, "context.toml"))
	require.NoError(r.t, err)
	return c
}

// absent checks that nothing of a backup is left at dest.
func absent(t *testing.T, dest string) {
	t.Helper()
	require.NoFileExists(t, dest)
	require.NoDirExists(t, dest)
	require.NoDirExists(t, dest+".partial")
}

// acked is what writers were told of their commands.
type acked struct {
	mu  sync.Mutex
	ops map[frames.ObjectID]frames.EventSequence // guarded by mu: by objective, when it was completed
}

// write runs n writers until stop is set; each ends with its last command acknowledged.
func (r *rig) write(n int, stop *atomic.Bool) (*acked, *sync.WaitGroup) {
	r.t.Helper()
	a := &acked{ops: make(map[frames.ObjectID]frames.EventSequence)}
	var writers sync.WaitGroup
	c := r.connect()
	for range n {
		writers.Go(func() {
			for !stop.Load() {
				cmd, id := create(r.t)
				got, err := c.Command(r.t.Context(), cmd)
				if refusedWith(err, frames.CodeResourceExhausted) {
					continue
				}
				if err != nil || got.State != frames.OperationSucceeded {
					r.t.Errorf("command: %+v, %v", got, err)
					return
				}
				a.mu.Lock()
				a.ops[frames.ObjectID(id)] = got.Sequence
				a.mu.Unlock()
			}
		})
	}
	return a, &writers
}

func (a *acked) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.ops)
}

// TestABackupUnderWritersIsOneCut takes backups while 64 writers run. What comes back from
// each holds every command that was acknowledged up to its cut, and nothing of any other.
func TestABackupUnderWritersIsOneCut(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.smallLog() // many segments
	p := r.serve()
	p.ready()
	var stop atomic.Bool
	told, writers := r.write(64, &stop)
	defer writers.Wait()
	defer stop.Store(true)
	var backups []backupReport
	for i, least := range []int{200, 1200, 3000} {
		require.Eventually(t, func() bool { return told.count() >= least }, waitFor, tick)
		_, report := r.backUp("b" + string(rune('0'+i)))
		require.True(t, report.Online)
		backups = append(backups, report)
	}
	more := told.count() + 64
	require.Eventually(t, func() bool { return told.count() >= more }, waitFor, tick)
	stop.Store(true)
	writers.Wait()
	require.Equal(t, 0, p.stop())

	for i, b := range backups {
		out := ok(t, coordinatord, "verify", "--backup", b.Backup)
		require.Contains(t, out, "the backup is whole")
		if i != 1 {
			continue // one of them is brought back, in the middle of it all
		}
		r.restored(b.Backup)
		r.serve().ready()
		r.unknowing()
		require.NotZero(t, b.EventCut)
		want := make(map[frames.ObjectID]bool)
		for id, seq := range told.ops {
			if uint64(seq) <= b.EventCut {
				want[id] = true
			}
		}
		require.Less(t, len(want), len(told.ops), "the cut lies in the middle")
		have, operations := make(map[frames.ObjectID]bool), 0
		for _, rec := range r.shown() {
			switch rec.Kind {
			case frames.KindObjective:
				require.EqualValues(t, 1, rec.Revision)
				have[rec.ID] = true
			case frames.KindOperation:
				operations++
			}
		}
		require.Equal(t, want, have)
		require.Equal(t, len(want), operations, "each with its result, and no result without its object")
	}
}

// TestABackupHoldsNoLinkKey: what is in a backup, and how it may be read.
func TestABackupHoldsNoLinkKey(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.serve()
	p.ready()
	r.objectives(3)
	dest, report := r.backUp("b")
	st := r.status()
	require.Equal(t, st.CoordinatorID, report.CoordinatorID)
	require.Equal(t, st.Head, report.EventCut)
	require.Equal(t, st.Epoch, report.Epoch)
	require.Equal(t, r.report.LinkPublicKey, report.LinkKey)
	link, err := os.ReadFile(filepath.Join(r.dir, linkKey))
	require.NoError(t, err)
	names := map[string]bool{}
	require.NoError(t, filepath.WalkDir(dest, func(path string, d os.DirEntry, err error) error {
		require.NoError(t, err)
		info, err := d.Info()
		require.NoError(t, err)
		if d.IsDir() {
			require.Equal(t, durable.PrivateDir, info.Mode().Perm(), path)
			return nil
		}
		require.Equal(t, durable.PrivateFile, info.Mode().Perm(), path)
		name, err := filepath.Rel(dest, path)
		require.NoError(t, err)
		names[name] = true
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		require.NotContains(t, string(data), string(link), path)
		return nil
	}))
	require.Equal(t, map[string]bool{
		"manifest.json": true, "coordinator.toml": true, "workload-authority.ed25519": true, "workload-keys": true,
		"state.db": true, "log/0000000000000001.seg": true,
	}, names)
	// The command shows people how far it is, and programs nothing.
	_, _, errs := run(t, coordinatord, "backup", filepath.Join(r.root, "b2"), "--state", r.dir)
	require.Empty(t, errs)

	// A stopped coordinator is copied too.
	require.Equal(t, 0, p.stop())
	stopped, offline := r.backUp("b3")
	require.False(t, offline.Online)
	require.Equal(t, report.EventCut, offline.EventCut)
	out := ok(t, coordinatord, "verify", "--backup", stopped)
	require.Contains(t, out, "the backup is whole")
	require.NotContains(t, out, "warning")

	// Who copies it without its modes is told.
	key := filepath.Join(stopped, backup.AuthorityFile)
	require.NoError(t, os.Chmod(key, 0o644))
	require.NotContains(t, ok(t, coordinatord, "verify", "--backup", stopped), "warning", "its directory keeps others out")
	require.NoError(t, os.Chmod(stopped, 0o755))
	out = ok(t, coordinatord, "verify", "--backup", stopped)
	require.Contains(t, out, "warning: "+key+" has mode 0644")
	require.Contains(t, out, "run: chmod -R go= "+stopped+"\n")

	// While somebody else is at the store, as a coordinator that still starts, nobody is to be
	// stopped for a backup.
	lock, err := authority.LockStore(r.dir)
	require.NoError(t, err)
	defer lock.Release() //nolint:errcheck // the test is over
	busy := filepath.Join(r.root, "busy")
	code, _, errs := run(t, coordinatord, "backup", busy, "--state", r.dir)
	require.Equal(t, daemon.ExitHeld, code)
	require.Contains(t, errs, "a coordinator that starts gives a backup once it serves")
	absent(t, busy)
}

// TestWhereABackupCannotBe: each place is refused in words, and nothing is left there.
func TestWhereABackupCannotBe(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.serve().ready()
	file := filepath.Join(r.root, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	empty := filepath.Join(r.root, "empty")
	require.NoError(t, os.Mkdir(empty, 0o700))
	inside := filepath.Join(r.root, "inside")
	require.NoError(t, os.Symlink(r.dir, inside))
	taken, _ := r.backUp("taken")
	foreign := filepath.Join(r.root, "foreign")
	require.NoError(t, os.Mkdir(foreign+".partial", 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(foreign+".partial", "thesis.txt"), []byte("x"), 0o600))
	busy := filepath.Join(r.root, "busy")
	require.NoError(t, os.Mkdir(busy+".partial", 0o700))
	lock, err := os.Open(busy + ".partial")
	require.NoError(t, err)
	defer lock.Close()
	require.NoError(t, unix.Flock(int(lock.Fd()), unix.LOCK_EX))
	for _, tt := range []struct{ name, dest, says string }{
		{"a file", file, "exists; a backup makes its own directory"},
		{"an empty directory", empty, "exists; a backup makes its own directory"},
		{"a backup", taken, "is a backup already"},
		{"in the state directory", filepath.Join(r.dir, "b"), "lies in the state directory"},
		{"in its log", filepath.Join(r.dir, "log", "b"), "lies in the state directory"},
		{"in it by another name", filepath.Join(inside, "b"), "lies in the state directory"},
		{"nowhere", filepath.Join(r.root, "no", "b"), "has no directory to be made in"},
		{"over somebody's work", foreign, "holds thesis.txt, which is not of ours"},
		{"beside another backup", busy, "is being written by another process"},
	} {
		before := r.files()
		code, out, errs := run(t, coordinatord, "backup", tt.dest, "--state", r.dir)
		require.Equal(t, daemon.ExitFailure, code, tt.name)
		require.Empty(t, out, tt.name)
		require.Contains(t, errs, tt.says, tt.name)
		require.Equal(t, before, r.files(), tt.name)
	}
	require.FileExists(t, filepath.Join(foreign+".partial", "thesis.txt"))
	absent(t, filepath.Join(r.dir, "b"))
	ok(t, coordinatord, "verify", "--backup", taken)
}

// TestABackupTargetFillsUp: whether it is seen before or only in the middle, the coordinator
// goes on, the words say what there is room for, and nothing is left.
func TestABackupTargetFillsUp(t *testing.T) {
	disk := smallDisk(t, "8m")
	r := newRig(t)
	p := r.serve()
	p.ready()
	r.objectives(3)
	leaveFree(t, filepath.Join(disk, "full"), 8<<10)
	dest := filepath.Join(disk, "b")
	code, _, errs := run(t, coordinatord, "backup", dest, "--state", r.dir)
	require.Equal(t, daemon.ExitFailure, code)
	require.Contains(t, errs, dest+" cannot be written: it needs ")
	require.Contains(t, errs, "no space left on device")
	absent(t, dest)

	// What fills the disk comes later: there are bytes enough, and soon no more names.
	require.NoError(t, os.Remove(filepath.Join(disk, "full")))
	require.NoError(t, unix.Mount("tmpfs", disk, "tmpfs", unix.MS_REMOUNT, "size=8m,nr_inodes=5"))
	code, _, errs = run(t, coordinatord, "backup", dest, "--state", r.dir)
	require.Equal(t, daemon.ExitFailure, code)
	require.Contains(t, errs, dest+" cannot be written: ")
	require.Contains(t, errs, "no space left on device")
	absent(t, dest)

	// And a restore into such a place leaves nothing either.
	whole, _ := r.backUp("whole")
	require.Equal(t, 0, p.stop())
	into := filepath.Join(disk, "n")
	code, _, errs = run(t, coordinatord, "restore", whole, "--state", into)
	require.Equal(t, daemon.ExitFailure, code)
	require.Contains(t, errs, "no space left on device")
	require.NoDirExists(t, into)
}

// TestASlowTargetHoldsNothing stops the command that writes a backup. The coordinator goes
// on: its log is trimmed and its file does not grow with what was replaced; and what the
// command has in hand is still one whole backup.
func TestASlowTargetHoldsNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.smallLog()
	p := r.serve()
	p.ready()
	r.objectives(300)
	bounded := r.connect()
	dest := filepath.Join(r.root, "b")
	slow := launch(t, []string{"COORDINATOR_FAILPOINT=backup-file=stop"}, coordinatord, "backup", dest, "--state", r.dir, "-o", "json")
	require.Eventually(t, func() bool { return stopped(slow) }, waitFor, tick)

	cmd, err := client.NewCommand(fresh[frames.OperationID](t), frames.CommandChangeRetention, &frames.ChangeRetention{
		Retention: frames.Retention{OperationResultSecs: frames.MinOperationRetained, EventBytes: 1, ArtifactBytes: defaultArtifactBytes},
	})
	require.NoError(t, err)
	_, err = bounded.Command(t.Context(), cmd)
	require.NoError(t, err)
	first := filepath.Join(r.dir, "log", "0000000000000001.seg")
	require.Eventually(t, func() bool { // the segments of the backup are unlinked under it
		r.objectives(50)
		_, err := os.Lstat(first)
		return errors.Is(err, os.ErrNotExist)
	}, waitFor, tick)
	_, second := r.backUp("b2") // nor does it keep another one from being made
	slow.signal(unix.SIGCONT)
	require.Equal(t, 0, slow.ends(), slow.output())
	require.Contains(t, ok(t, coordinatord, "verify", "--backup", dest), "the backup is whole")
	m, err := backup.ReadManifest(dest)
	require.NoError(t, err)
	require.Less(t, m.EventCut, second.EventCut)
}

// stopped reports whether a process has been stopped by a signal.
func stopped(p *process) bool {
	text, err := os.ReadFile(filepath.Join("/proc", itoa(p.cmd.Process.Pid), "stat"))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	return strings.HasPrefix(rest, "T")
}

// TestABackupKilledAtEachStep kills the command, and then the coordinator, in the middle.
// Nothing that is not whole has the name of a backup, and the next one takes over.
func TestABackupKilledAtEachStep(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.smallLog()
	p := r.serve()
	p.ready()
	r.objectives(300)
	dest := filepath.Join(r.root, "b")
	for _, point := range []string{"backup-file=kill", "backup-file=kill@2", "backup-written=kill", "backup-sealed=kill"} {
		c := launch(t, []string{"COORDINATOR_FAILPOINT=" + point}, coordinatord, "backup", dest, "--state", r.dir)
		require.Equal(t, -1, c.ends(), "%s was not reached", point)
		require.NoDirExists(t, dest, point)
		require.DirExists(t, dest+".partial", point)
		if point != "backup-sealed=kill" { // which is whole and lacks its name
			for _, args := range [][]string{{"verify", "--backup", dest + ".partial"}, {"restore", dest + ".partial", "--state", filepath.Join(r.root, "n")}} {
				code, _, errs := run(t, coordinatord, args...)
				require.Equal(t, daemon.ExitCorrupt, code, point)
				require.Contains(t, errs, "interrupted before its end", point)
			}
		}
	}
	code, _, errs := run(t, coordinatord, "backup", dest, "--state", r.dir)
	require.Equal(t, 0, code, errs)
	require.Contains(t, errs, "removed what an interrupted backup left in "+dest+".partial")
	require.NoDirExists(t, dest+".partial")
	ok(t, coordinatord, "verify", "--backup", dest)

	require.Equal(t, 0, p.stop())
	p = r.serve("COORDINATOR_FAILPOINT=backup-cut=kill")
	p.ready()
	gone := filepath.Join(r.root, "gone")
	code, _, errs = run(t, coordinatord, "backup", gone, "--state", r.dir)
	require.Equal(t, daemon.ExitFailure, code)
	require.Contains(t, errs, "the coordinator ended the backup without a word")
	absent(t, gone)
	require.Equal(t, -1, p.ends())
	require.NoFileExists(t, filepath.Join(r.dir, "state.db.backup"))
	r.serve().ready()
}
