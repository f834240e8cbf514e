package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"coordinator/client"
	"coordinator/cmd/internal/daemon"
)

// redial is how long one of a flood stays away once it was cut.
const redial = 100 * time.Millisecond

// A flood keeps so many silent connections at a socket, or tries to.
type flood struct {
	cancel context.CancelFunc
	ended  sync.WaitGroup
}

func startFlood(t *testing.T, socket string, n int) *flood {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	f := &flood{cancel: cancel}
	for range n {
		f.ended.Go(func() {
			for ctx.Err() == nil {
				var d net.Dialer
				c, err := d.DialContext(ctx, "unix", socket)
				if err == nil {
					stop := context.AfterFunc(ctx, func() { c.Close() })
					c.Read(make([]byte, 1)) //nolint:errcheck // it returns when the server has had enough
					stop()
					c.Close()
				}
				select {
				case <-ctx.Done():
				case <-time.After(redial):
				}
			}
		})
	}
	t.Cleanup(f.stop)
	return f
}

func (f *flood) stop() {
	f.cancel()
	f.ended.Wait()
}

// logs waits for a log line that holds a text, and gives it.
func (p *process) logs(text string) (line string) {
	p.t.Helper()
	require.Eventually(p.t, func() bool {
		for l := range strings.SplitSeq(p.output(), "\n") {
			if strings.Contains(l, text) {
				line = l
				return true
			}
		}
		return false
	}, waitFor, tick, text)
	return line
}

// patient has the lease last long enough for a slow machine. It is renewed all the same.
func (r *rig) patient() {
	rewrite(r.t, filepath.Join(r.dir, configFile), func(s string) string {
		return strings.Replace(s, fmt.Sprintf("lease_secs = %d", lease), "lease_secs = 30", 1)
	})
}

// works has a client do something, while its lease goes on past what it was.
func works(t *testing.T, c *client.Conn) {
	t.Helper()
	had := c.Info().LeaseExpires
	require.Eventually(t, func() bool {
		cmd, _ := create(t)
		_, err := c.Command(t.Context(), cmd)
		require.NoError(t, err)
		return c.Info().LeaseExpires > had
	}, waitFor, tick)
}

// TestC02_ASocketFloodLeavesDescriptors floods the socket of a coordinator that may open few
// files, with more connections than would fit. What is connected works on, a witness that
// restarts is reached again, the operator is answered; afterwards others get in.
func TestC02_ASocketFloodLeavesDescriptors(t *testing.T) {
	t.Parallel()
	const files = 104
	r := newRig(t)
	r.patient()
	p := launch(t, nil, "/bin/sh", "-c", fmt.Sprintf(`ulimit -n %d; exec "$0" serve --state "$1"`, files), coordinatord, r.dir)
	p.ready()
	p.logs("limit of open files")
	c := r.connect()
	f := startFlood(t, r.report.Socket, 2*files)
	room := r.status().MaxLocal
	require.Less(t, room, 64, "the descriptors run out before the places of strangers do")
	require.Eventually(t, func() bool { return r.status().Connections == room }, waitFor, tick)
	r.witness.kill()
	r.witness = launch(t, nil, witnessd, "serve", "--state", filepath.Join(r.root, "w"))
	r.witness.ready()
	works(t, c)
	st := r.status()
	require.LessOrEqual(t, st.Connections, room)
	require.NotContains(t, p.output(), "accepting pauses", "no accept has failed")
	f.stop()
	r.connect().Close()
	require.Eventually(t, func() bool { return r.status().Connections == 1 }, waitFor, tick)
	require.Equal(t, 0, p.stop())
}

// TestTooFewDescriptorsAreNamed starts with a limit that leaves nothing for clients.
func TestTooFewDescriptorsAreNamed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := launch(t, nil, "/bin/sh", "-c", `ulimit -n 60; exec "$0" serve --state "$1"`, coordinatord, r.dir)
	require.Equal(t, daemon.ExitConfig, p.ends())
	require.Contains(t, p.output(), "the limit of open files (ulimit -n, LimitNOFILE=) is 60")
	r.serve().ready() // at once: no lease was taken
}

// TestAcceptingSurvivesRealExhaustion takes a running coordinator's descriptors away until
// accept fails. It pauses without spinning, everything else has the spare ones, and with new
// descriptors it accepts again.
func TestAcceptingSurvivesRealExhaustion(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.patient()
	p := r.serve()
	p.ready()
	c := r.connect()
	pid := p.cmd.Process.Pid
	var had unix.Rlimit
	require.NoError(t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &had))
	const left = 4
	require.NoError(t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: limitFor(t, pid, left), Max: had.Max}, nil))
	begun := time.Now()
	f := startFlood(t, r.report.Socket, left+32)
	p.logs("accepting pauses")
	before := cpu(t, pid)
	works(t, c)
	st := r.status()
	require.Equal(t, 1+st.Unauthenticated, st.Connections)
	t.Logf("a flood without descriptors cost %v of processor in %v", cpu(t, pid)-before, time.Since(begun))
	f.stop()
	require.NoError(t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, &had, nil))
	line := p.logs("accepting goes on")
	paused := time.Since(begun)
	m := regexp.MustCompile(`tries=(\d+)`).FindStringSubmatch(line)
	require.Len(t, m, 2)
	tries, err := strconv.Atoi(m[1])
	require.NoError(t, err)
	require.LessOrEqual(t, tries, int(paused/(100*time.Millisecond))+1, "it did not spin")
	r.connect().Close()
	works(t, c)
	require.Equal(t, 0, p.stop())
}

// limitFor is the limit of descriptors under which a process can open so many more.
func limitFor(t *testing.T, pid, left int) (limit uint64) {
	t.Helper()
	for free := 0; ; limit++ {
		if _, err := os.Lstat(fmt.Sprintf("/proc/%d/fd/%d", pid, limit)); err == nil {
			continue
		}
		if free++; free > left {
			return limit
		}
	}
}

// cpu is the processor time that a process has used.
func cpu(t *testing.T, pid int) time.Duration {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	require.NoError(t, err)
	fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	user, err := strconv.Atoi(fields[11])
	require.NoError(t, err)
	system, err := strconv.Atoi(fields[12])
	require.NoError(t, err)
	return time.Duration(user+system) * 10 * time.Millisecond // of which the kernel counts a hundred in a second
}
