//go:build linux

package main

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
	"coordinator/internal/shell"
)

// TestRevocationWithoutAnInotifyInstance: whoever else runs under this user has taken every
// inotify instance. The coordinator says that it polls, and a revoked key is cut off all the
// same.
func TestRevocationWithoutAnInotifyInstance(t *testing.T) {
	r := newRig(t)
	p := withoutInotify(t, coordinatord, "serve", "--state", r.dir)
	p.ready()
	require.Eventually(t, func() bool {
		return strings.Contains(p.output(), "cannot be watched; changes are found by polling")
	}, waitFor, tick)
	c := r.connect()
	ok(t, coordinatord, "keys", "--state", r.dir, "revoke", "tester")
	select {
	case <-c.Done():
	case <-time.After(waitFor):
		t.Fatal("the revoked key is still connected")
	}
	require.ErrorContains(t, c.Err(), frames.CodeAuthenticationFailed.String())
	require.Equal(t, 0, p.stop())
}

// withoutInotify starts a daemon in a user namespace whose limit of inotify instances is
// none, which is what a machine looks like where others have taken them all.
func withoutInotify(t *testing.T, program string, args ...string) *process {
	t.Helper()
	line := "echo 0 > /proc/sys/user/max_inotify_instances && exec " + shell.Quote(program)
	for _, a := range args {
		line += " " + shell.Quote(a)
	}
	attr := &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getuid(), HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getgid(), HostID: os.Getgid(), Size: 1}},
	}
	probe := exec.Command("/bin/sh", "-c", "echo 0 > /proc/sys/user/max_inotify_instances")
	probe.SysProcAttr = attr
	if out, err := probe.CombinedOutput(); err != nil {
		t.Skipf("no user namespace with limits of its own here: %v: %s", err, out)
	}
	return launchIn(t, attr, nil, "/bin/sh", "-c", line)
}
