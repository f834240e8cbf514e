//go:build linux

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"coordinator/cmd/internal/daemon"
	"coordinator/frames"
)

// A loopDisk is a file system of its own that can be made to fail as one on a bad disk does.
type loopDisk struct {
	t      *testing.T
	image  string
	device string // "loop0"
	dir    string
}

// newLoopDisk mounts a fresh ext4 at dir, with everything that dir had.
func newLoopDisk(t *testing.T, dir, size string) *loopDisk {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can mount a file system")
	}
	mkfs, err := exec.LookPath("mkfs.ext4")
	if err != nil {
		t.Skip("there is no mkfs.ext4 here")
	}
	l := &loopDisk{t: t, image: filepath.Join(t.TempDir(), "image"), dir: dir}
	require.NoError(t, os.WriteFile(l.image, nil, 0o600))
	system(t, "truncate", "-s", size, l.image)
	system(t, mkfs, "-q", "-m", "0", l.image)
	was := filepath.Join(t.TempDir(), "was")
	system(t, "cp", "-a", dir, was)
	if out, err := exec.Command("mount", "-o", "loop,errors=remount-ro", l.image, dir).CombinedOutput(); err != nil {
		t.Skipf("no loop device here: %v: %s", err, out)
	}
	l.find()
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) }) //nolint:errcheck // the test may have done so
	require.NoError(t, os.Remove(filepath.Join(dir, "lost+found")))
	system(t, "cp", "-a", was+"/.", dir)
	require.NoError(t, os.Chmod(dir, 0o700))
	system(t, "sync", "-f", dir) // what was there before is not what the test is about
	return l
}

func system(t *testing.T, name string, args ...string) {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	require.NoError(t, err, "%s %v: %s", name, args, out)
}

// mounted is the line of /proc/mounts for the disk.
func (l *loopDisk) mounted() []string {
	raw, err := os.ReadFile("/proc/mounts")
	require.NoError(l.t, err)
	for line := range strings.Lines(string(raw)) {
		if f := strings.Fields(line); len(f) > 3 && f[1] == l.dir {
			return f
		}
	}
	return nil
}

func (l *loopDisk) find() {
	l.t.Helper()
	f := l.mounted()
	require.NotNil(l.t, f)
	l.device = filepath.Base(f[0])
	require.True(l.t, strings.HasPrefix(l.device, "loop"), "never touch another device: %v", f)
}

// fails reports an error of the disk to the file system, which makes itself read-only.
func (l *loopDisk) fails() {
	l.t.Helper()
	if err := os.WriteFile(filepath.Join("/sys/fs/ext4", l.device, "trigger_fs_error"), []byte("a test says so"), 0); err != nil {
		l.t.Skipf("this kernel cannot be told of an error: %v", err)
	}
}

// mends unmounts it, repairs it as an operator does, and mounts it again: as another disk with
// the same bytes, because any process with mounts of its own that began meanwhile keeps the
// failed one mounted, and the kernel would give that one again.
func (l *loopDisk) mends() {
	l.t.Helper()
	require.NoError(l.t, unix.Unmount(l.dir, 0))
	failed := l.image
	l.image += "-mended"
	system(l.t, "cp", "--sparse=always", failed, l.image)
	out, err := exec.Command("fsck.ext4", "-fy", l.image).CombinedOutput()
	if code := exitCode(err); code > 1 { // 1: errors were corrected
		l.t.Fatalf("fsck: %v: %s", err, out)
	}
	system(l.t, "mount", "-o", "loop,errors=remount-ro", l.image, l.dir)
	l.find()
}

func exitCode(err error) int {
	if exit, ok := err.(*exec.ExitError); ok {
		return exit.ExitCode()
	}
	return 0
}

// TestAFileSystemThatTurnsReadOnlyEndsTheProcess: the kernel meets an error of the disk and
// takes no more writes. What is read is still right; the first command after it has no
// answer, the process ends with its own code and says why, and once the disk is mended
// everything acknowledged is there.
func TestAFileSystemThatTurnsReadOnlyEndsTheProcess(t *testing.T) {
	r := newRig(t)
	r.reserve()
	disk := newLoopDisk(t, r.dir, "300m")
	p := r.serve()
	p.ready()
	r.prepared(segmentBytes)
	c := r.connect()
	known, id := create(t)
	_, err := c.Command(t.Context(), known)
	require.NoError(t, err)

	disk.fails()
	op, err := c.Lookup(t.Context(), known.OperationID)
	require.NoError(t, err, "what is committed can be read")
	require.Equal(t, frames.OperationSucceeded, op.State)
	lost, lostID := create(t)
	_, err = c.Command(t.Context(), lost)
	require.Error(t, err)
	require.False(t, refusedWith(err, frames.CodeResourceExhausted), "nobody knows, and no refusal says otherwise: %v", err)
	require.Equal(t, daemon.ExitWriteFailed, p.ends())
	require.Contains(t, p.output(), "read-only file system")
	require.Contains(t, p.output(), r.dir)

	p = r.serve() // nobody can serve there
	require.NotEqual(t, 0, p.ends())
	require.Contains(t, p.output(), "read-only file system")

	disk.mends()
	ok(t, coordinatord, "verify", "--state", r.dir)
	r.serve().ready()
	shown := map[frames.ObjectID]bool{}
	for _, o := range r.shown() {
		shown[o.ID] = true
	}
	require.True(t, shown[frames.ObjectID(id)])
	c = r.connect()
	op, err = c.Lookup(t.Context(), lost.OperationID)
	require.NoError(t, err)
	require.Equal(t, shown[frames.ObjectID(lostID)], op.State == frames.OperationSucceeded, "whole or not at all: %v", op.State)
	_, err = c.Command(t.Context(), lost)
	require.NoError(t, err, "sent again, it is done once")
}

// TestAWitnessOnAReadOnlyDiskGrantsNothing: what it cannot write it does not sign. It ends with
// its own code, and the coordinator with its lease; mended, they go on under a higher epoch.
func TestAWitnessOnAReadOnlyDiskGrantsNothing(t *testing.T) {
	r := newRig(t)
	var disk *loopDisk
	r.restartWitness(func(dir string) { disk = newLoopDisk(t, dir, "32m") })
	p := r.serve()
	before, _ := p.authority()
	disk.fails()
	require.Equal(t, daemon.ExitWriteFailed, r.witness.ends())
	require.Contains(t, r.witness.output(), "read-only file system")
	require.Equal(t, daemon.ExitFenced, p.ends())

	disk.mends()
	r.witness = launch(t, nil, witnessd, "serve", "--state", r.witnessDir())
	r.witness.ready()
	after, _ := r.serve().authority()
	require.Greater(t, after, before)
}

// TestAnOwnerOnAReadOnlyDiskStartsNothing: it ends with its own code and with it what it ran,
// and starts nothing that it could not write down.
func TestAnOwnerOnAReadOnlyDiskStartsNothing(t *testing.T) {
	r := withOwner(t)
	require.Equal(t, 0, r.process.stop())
	disk := newLoopDisk(t, r.odir, "32m")
	r.startOwner()
	r.serve().ready()
	c := r.dial()
	running := r.start(c, "/bin/sh", "-c", "exec sleep 1000")
	r.send(c, running.cmd)
	require.Equal(t, frames.OperationSucceeded, r.result(c, running.op).State)

	started := filepath.Join(t.TempDir(), "started")
	second := r.start(c, "/bin/sh", "-c", "touch "+started)
	disk.fails()
	r.send(c, second.cmd)
	require.Equal(t, daemon.ExitWriteFailed, r.process.ends())
	require.Contains(t, r.process.output(), "read-only file system")
	require.NoFileExists(t, started)

	disk.mends()
	r.startOwner()
	require.NotEqual(t, frames.RunCompleted, r.ended(c, running).State, "its process went with the owner")
}
