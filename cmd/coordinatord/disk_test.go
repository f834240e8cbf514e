package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/client"
	"coordinator/cmd/internal/daemon"
	"coordinator/frames"
	"coordinator/server/store"
)

const (
	reserveBytes = 16 << 20 // the least that may be configured
	segmentBytes = 64 << 20
)

// reserve writes the smallest reserve into coordinator.toml.
func (r *rig) reserve() {
	r.t.Helper()
	file := filepath.Join(r.dir, configFile)
	text, err := os.ReadFile(file)
	require.NoError(r.t, err)
	small := strings.Replace(string(text), "low_disk_reserve_bytes = 268435456", "low_disk_reserve_bytes = 16777216", 1)
	require.NotEqual(r.t, string(text), small)
	require.NoError(r.t, os.WriteFile(file, []byte(small), 0o600))
}

// prepared waits until the segment made ahead has this size.
func (r *rig) prepared(size int64) {
	r.t.Helper()
	require.Eventually(r.t, func() bool {
		info, err := os.Stat(filepath.Join(r.dir, "log", "spare.seg"))
		return err == nil && info.Size() == size
	}, waitFor, tick)
}

// TestLowDisk fills the file system of a whole coordinator, owner and witness up to the
// reserve. New work is refused; what is read, cancelled or reported goes on, over a restart
// too; and new work is taken once there is room, without one.
func TestLowDisk(t *testing.T) {
	disk := smallDisk(t, "240m")
	t.Setenv("TMPDIR", disk) // where newRig makes everything
	r := withOwner(t)
	r.reserve()
	p := r.serve()
	p.ready()
	c, admin := r.dial(), r.connect()
	s := r.start(c, "/bin/sh", "-c", "echo hello; exec sleep 1000")
	r.send(c, s.cmd)
	require.Equal(t, frames.OperationSucceeded, r.result(c, s.op).State)
	r.prepared(segmentBytes)

	full := filepath.Join(disk, "full")
	leaveFree(t, full, reserveBytes-4<<20)
	refused := func() {
		t.Helper()
		cmd, _ := create(t)
		_, err := c.Command(t.Context(), cmd)
		require.True(t, refusedWith(err, frames.CodeResourceExhausted), "%v", err)
		got, err := c.Lookup(t.Context(), cmd.OperationID)
		require.NoError(t, err)
		require.Equal(t, frames.OperationUnknown, got.State, "a refusal leaves no record")
	}
	refused()
	require.Contains(t, p.output(), "the disk reserve is reached")
	_, err := c.Command(t.Context(), s.cmd)
	require.NoError(t, err, "the answer to an operation that is known is a look-up")
	require.Equal(t, frames.OperationSucceeded, r.result(c, s.op).State)
	require.Equal(t, frames.RunRunning, r.run(c, s).State)
	_, err = admin.Command(t.Context(), retain(t, frames.MinOperationRetained+1))
	require.NoError(t, err)

	// It stops and starts on the reserve. The segment made ahead is given back then, so that
	// the disk is filled once more.
	c.Close()
	admin.Close()
	require.Equal(t, 0, p.stop())
	p = r.serve()
	p.ready()
	leaveFree(t, full, reserveBytes-4<<20)
	c = r.dial()
	refused()
	cancel, err := client.NewCommand(fresh[frames.OperationID](t), frames.CommandCancelRun, &frames.RunCommand{RunID: s.RunID})
	require.NoError(t, err)
	r.send(c, cancel)
	run := r.ended(c, s)
	require.Equal(t, frames.RunCancelled, run.State)
	require.NotNil(t, run.Outcome, "the facts of its end came in")
	require.Equal(t, frames.OperationSucceeded, r.result(c, cancel.OperationID).State)
	events := r.replayed(c, func(e *client.Event) bool { return e.Kind == frames.EventEvidenceSealed })
	require.NotEmpty(t, events)
	refused()
	require.EqualValues(t, frames.MinOperationRetained+1, r.retention())

	require.NoError(t, os.Remove(full))
	cmd, _ := create(t)
	_, err = c.Command(t.Context(), cmd)
	require.NoError(t, err, "without a restart")
	require.Contains(t, p.output(), "there is room on the disk again")
	require.Equal(t, 0, p.stop())
	ok(t, coordinatord, "verify", "--state", r.dir)
}

// TestASegmentMadeAheadIsNotTakenFromTheReserve starts where a whole segment would not leave
// the reserve: a small one is made, and new work is taken.
func TestASegmentMadeAheadIsNotTakenFromTheReserve(t *testing.T) {
	disk := smallDisk(t, "180m")
	t.Setenv("TMPDIR", disk)
	r := newRig(t)
	r.reserve()
	leaveFree(t, filepath.Join(disk, "full"), reserveBytes+40<<20)
	p := r.serve()
	p.ready()
	r.prepared(1 << 20)
	require.Greater(t, freeOn(t, disk), uint64(reserveBytes+30<<20))
	require.Len(t, r.objectives(3), 6)
	require.Equal(t, 0, p.stop())
}

// TestAStateFileThatCannotGrowEndsTheProcess fills the disk to its last page while changes
// wait for a checkpoint. The log has them already: nothing acknowledged is lost.
func TestAStateFileThatCannotGrowEndsTheProcess(t *testing.T) {
	disk := smallDisk(t, "200m")
	t.Setenv("TMPDIR", disk)
	r := newRig(t)
	r.reserve()
	p := r.serve()
	p.ready()
	r.prepared(segmentBytes)
	full, rest := filepath.Join(disk, "full"), filepath.Join(disk, "rest")
	leaveFree(t, full, reserveBytes+8<<20) // so that the rest is filled before a lease ends
	c := r.connect()
	document := []byte(`"` + strings.Repeat("d", 60_000) + `"`)
	acked := 0
	ended := func() bool {
		select {
		case <-p.exited:
			return true
		case <-time.After(30 * time.Second): // three times what a checkpoint waits
			return false
		}
	}
	for round := 0; ; round++ {
		require.Less(t, round, 4, "the checkpoint was always there first")
		for range 20 {
			cmd, err := client.NewCommand(fresh[frames.OperationID](t), frames.CommandCreateObjective,
				&frames.CreateObjective{ObjectiveID: fresh[frames.ObjectiveID](t), Schema: 1, Document: document})
			require.NoError(t, err)
			_, err = c.Command(t.Context(), cmd)
			require.NoError(t, err)
			acked++
		}
		p.signal(syscall.SIGSTOP)
		leaveFree(t, full, 128<<10)
		fillDisk(t, rest)
		p.signal(syscall.SIGCONT)
		gone := ended()
		if gone && p.ends() != daemon.ExitFenced {
			break
		}
		require.NoError(t, os.Remove(rest))
		require.NoError(t, os.Truncate(full, fileSize(t, full)-(reserveBytes+8<<20)))
		if gone { // it slept longer than its lease
			p = r.serve()
			p.ready()
			c = r.connect()
		}
	}
	require.Equal(t, daemon.ExitWriteFailed, p.ends())
	require.Contains(t, p.output(), "state.db")
	require.Contains(t, p.output(), "no space left on device")
	require.NoError(t, os.Remove(rest))
	require.NoError(t, os.Remove(full))
	ok(t, coordinatord, "verify", "--state", r.dir)
	r.serve().ready()
	require.Len(t, r.shown(), 2*acked)
}

// TestFailedWritesHaveTheirOwnExitCode, wherever the store meets them.
func TestFailedWritesHaveTheirOwnExitCode(t *testing.T) {
	t.Parallel()
	for op, code := range map[string]int{
		"create": daemon.ExitWriteFailed, "write": daemon.ExitWriteFailed, "sync": daemon.ExitWriteFailed,
		"remove": daemon.ExitWriteFailed, "rename": daemon.ExitWriteFailed, "open": daemon.ExitFailure, "read": daemon.ExitFailure,
	} {
		err := fmt.Errorf("store: %w", &store.IOError{Op: op, File: "f", Err: syscall.ENOSPC})
		require.Equal(t, code, daemon.Code(coded(err)), op)
	}
}

func fileSize(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	require.NoError(t, err)
	return info.Size()
}
