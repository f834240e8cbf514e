package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/cmd/internal/daemon"
	"coordinator/frames"
)

// rewrite changes a configuration file.
func rewrite(t *testing.T, file string, change func(string) string) {
	t.Helper()
	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, []byte(change(string(raw))), 0o600))
}

// An owner on another host is reached over QUIC, and found again after it was away.
func TestAnOwnerOverQUIC(t *testing.T) {
	t.Parallel()
	r := withOwner(t)
	require.Equal(t, 0, r.process.stop())
	free, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := free.LocalAddr().String()
	require.NoError(t, free.Close())
	rewrite(t, filepath.Join(r.odir, "owner.toml"), func(s string) string { return fmt.Sprintf("quic = %q\n", addr) + s })
	rewrite(t, filepath.Join(r.dir, configFile), func(s string) string {
		return strings.Replace(s, fmt.Sprintf("socket = %q\nauthority", r.socket), fmt.Sprintf("quic = %q\nauthority", addr), 1)
	})
	r.serve().ready() // it does not wait for its owners
	r.startOwner()
	c := r.dial()
	defer c.Close()
	for range 2 {
		s := r.start(c, "/bin/true")
		r.send(c, s.cmd)
		require.Equal(t, frames.RunCompleted, r.ended(c, s).State)
		require.Equal(t, 0, r.process.stop())
		r.startOwner()
	}
}

// A coordinator that was stopped past its lease with an effect in its hand does not send it
// any more: the fence is asked once more before the first byte (protocol.md §4 [D-48]).
func TestC05_AStoppedCoordinatorDispatchesNothing(t *testing.T) {
	t.Parallel()
	r := withOwner(t)
	const sleep = 10 * time.Second // in which it must be stopped, however busy the machine is
	p := r.serve(fmt.Sprintf("COORDINATOR_FAILPOINT=effect-marked=sleep:%v", sleep))
	p.ready()
	c := r.dial()
	defer c.Close()
	s, lines := r.counting(c)
	require.Eventually(t, func() bool {
		_, err := c.Command(t.Context(), s.cmd)
		return !refusedWith(err, frames.CodeNotFound)
	}, waitFor, tick)
	p.says("failpoint sleeps") // DISPATCHED is durable, and the first byte has not left
	p.signal(syscall.SIGSTOP)
	expires := time.Now().Add(max(lease*time.Second, sleep)) // when it goes on it would send at once
	require.Eventually(t, func() bool { return time.Now().After(expires) }, waitFor, tick)
	p.signal(syscall.SIGCONT)
	require.Equal(t, daemon.ExitFenced, p.ends())
	require.Zero(t, lines())

	r.serve().ready()
	again := r.dial()
	defer again.Close()
	require.Equal(t, frames.OperationRejected, r.judge(again, s, lines), "the owner never saw it")
}

// A key that the owner lets do half of it makes no link: a run would start and never tell.
func TestAnOwnerThatGrantsHalfIsNotUsed(t *testing.T) {
	t.Parallel()
	r := withOwner(t)
	require.Equal(t, 0, r.process.stop())
	rewrite(t, filepath.Join(r.odir, "workload-keys"), func(s string) string {
		require.Contains(t, s, "effects,facts")
		return strings.Replace(s, "effects,facts", "effects", 1)
	})
	r.startOwner()
	p := r.serve()
	p.ready()
	require.Eventually(t, func() bool { return strings.Contains(p.output(), "has not the scope facts at the owner") }, waitFor, tick)
	require.Regexp(t, `(?m)^owner        local is down: .*has not the scope facts at the owner`, ok(t, coordinatord, "status", "--state", r.dir))
	c := r.dial()
	defer c.Close()
	s, lines := r.counting(c)
	_, err := c.Command(t.Context(), s.cmd)
	require.True(t, refusedWith(err, frames.CodeNotFound), "%v", err)
	require.Zero(t, lines())
}
