//go:build linux

package owner

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// foreign starts a process in a session of its own, as an owner that has died would have left
// it, and returns its identity. Its first line of output is returned too.
func foreign(t *testing.T, line string) (*exec.Cmd, identity, string) {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", line)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	st, err := readStat(cmd.Process.Pid)
	require.NoError(t, err)
	text, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	return cmd, identity{group: uint32(st.pid), start: st.start}, strings.TrimSpace(text)
}

// TestC16_FormerProcessesAreKnownByGroupAndStart: never by a number alone.
func TestC16_FormerProcessesAreKnownByGroupAndStart(t *testing.T) {
	cmd, id, _ := foreign(t, "echo up; sleep 60 & sleep 60")
	for _, start := range []uint64{id.start - 1, id.start + 1, 0} {
		list, err := members(identity{id.group, start})
		require.NoError(t, err)
		require.Empty(t, list, "another process with that number")
		require.NoError(t, ptyLauncher{}.endFormer(identity{id.group, start}))
	}
	st, err := readStat(cmd.Process.Pid)
	require.NoError(t, err)
	require.True(t, st.alive(), "somebody else's process is left alone")
	require.NoError(t, ptyLauncher{}.endFormer(id))
	list, err := members(id)
	require.NoError(t, err)
	require.Empty(t, list)
	require.Error(t, cmd.Wait())
	require.NoError(t, ptyLauncher{}.endFormer(id), "nobody is left")
}

// What is left of a group whose first process has gone is found by its session.
func TestMembersOutliveTheFirstProcess(t *testing.T) {
	cmd, id, text := foreign(t, `(trap "" HUP; exec sleep 60) & echo $!; exit 0`)
	require.NoError(t, cmd.Wait())
	pid, err := strconv.Atoi(text)
	require.NoError(t, err)
	list, err := members(id)
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, pid, list[0].pid)
	list, err = members(identity{id.group, list[0].start + 1})
	require.NoError(t, err)
	require.Empty(t, list, "it started before what is looked for")
	n, err := signalMembers(id, syscall.SIGTERM)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Eventually(t, func() bool {
		list, err := members(id)
		return err == nil && len(list) == 0
	}, waitLimit, time.Millisecond)
}

func TestStatOfAStrangeName(t *testing.T) {
	dir := t.TempDir()
	name := dir + "/a) R 1 (x"
	data, err := os.ReadFile("/bin/sleep")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(name, data, 0o700))
	cmd := exec.Command(name, "60")
	require.NoError(t, cmd.Start())
	defer cmd.Wait()
	defer cmd.Process.Kill()
	st, err := readStat(cmd.Process.Pid)
	require.NoError(t, err)
	require.Equal(t, os.Getpid(), st.parent)
	require.Equal(t, cmd.Process.Pid, st.pid)
}

// TestOrphansAreReapedAndNobodyElse: field case 26, an owner that is process 1.
func TestOrphansAreReapedAndNobodyElse(t *testing.T) {
	require.NoError(t, unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
	defer unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- ReapOrphans(ctx) }()
	c := newStation(t, nil).coordinator(1)
	for range 20 { // double forks, whose middle process ends at once
		c.shell(`(setsid sh -c "exec </dev/null >/dev/null 2>&1; sleep 0.1; exit 5" &); exit 17`).requireExit(17)
		err := exec.Command("/bin/sh", "-c", "exit 41").Run()
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit)
		require.Equal(t, 41, exit.ExitCode())
	}
	require.Eventually(t, func() bool {
		children := 0
		err := eachProcess(func(st procStat) {
			if st.parent == os.Getpid() {
				children++
			}
		})
		return err == nil && children == 0
	}, waitLimit, 20*time.Millisecond)
	cancel()
	require.NoError(t, <-done)
}

// A held process ends with its owner and starts nothing.
func TestHeldProcessEndsWithItsOwner(t *testing.T) {
	l := ptyLauncher{}
	h, err := l.hold(24, 80)
	require.NoError(t, err)
	held := h.(*heldProcess)
	st, err := readStat(held.process.Pid)
	require.NoError(t, err)
	require.Equal(t, identity{uint32(st.pid), st.start}, h.id())
	require.Equal(t, st.pid, st.session)
	require.NoError(t, held.orders.Close()) // as the kernel does when the owner dies
	state, err := held.process.Wait()
	require.NoError(t, err)
	require.Equal(t, heldOrphaned, state.ExitCode())
	ownChildren.Delete(held.process.Pid)
	held.report.Close()
	held.pidfd.Close()
	held.term.close()
}

// Numbers of processes compare within one boot and one pid namespace: a container that is
// started again has neither the processes of the last one nor their numbers.
func TestBootIDNamesThePIDNamespace(t *testing.T) {
	boot, err := BootID()
	require.NoError(t, err)
	require.LessOrEqual(t, len(boot), maxBootID)
	again, err := BootID()
	require.NoError(t, err)
	require.Equal(t, boot, again)
	if os.Geteuid() != 0 {
		t.Skip("only root can make a pid namespace")
	}
	cmd := exec.Command("unshare", "--fork", "--pid", "--mount-proc", os.Args[0])
	cmd.Env = append(os.Environ(), "OWNER_TEST_BOOT=1")
	out, err := cmd.Output()
	if err != nil {
		t.Skipf("no pid namespace here: %v", err)
	}
	text, found := strings.CutSuffix(strings.TrimSpace(string(out)), " <nil>")
	require.True(t, found, "%s", out)
	require.NotEqual(t, boot, text)
}
