package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/cmd/internal/daemon"
	"coordinator/server"
)

// A notified is a service manager: a real datagram socket, and every message that came there.
type notified struct {
	t      *testing.T
	socket string

	mu   sync.Mutex
	said []string // guarded by mu
}

func newNotified(t *testing.T, socket string) *notified {
	t.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	require.NoError(t, err)
	n := &notified{t: t, socket: socket}
	var reading sync.WaitGroup
	reading.Go(func() {
		buf := make([]byte, 4096)
		for {
			k, err := conn.Read(buf)
			if err != nil {
				return
			}
			n.mu.Lock()
			n.said = append(n.said, string(buf[:k]))
			n.mu.Unlock()
		}
	})
	t.Cleanup(func() {
		conn.Close()
		reading.Wait()
	})
	return n
}

func (n *notified) env(more ...string) []string {
	return append([]string{"NOTIFY_SOCKET=" + n.socket}, more...)
}

// count is how many messages have that line, or one that begins with it when it ends in *.
func (n *notified) count(line string) (count int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	prefix, begins := strings.CutSuffix(line, "*")
	for _, m := range n.said {
		for l := range strings.SplitSeq(m, "\n") {
			if l == line || begins && strings.HasPrefix(l, prefix) {
				count++
			}
		}
	}
	return count
}

// hears waits until count is at least so much.
func (n *notified) hears(line string, count int) {
	n.t.Helper()
	require.Eventually(n.t, func() bool { return n.count(line) >= count }, waitFor, 10*time.Millisecond, "%q in %q", line, n.all())
}

func (n *notified) all() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]string(nil), n.said...)
}

const (
	isReady  = "READY=1"
	isAlive  = "WATCHDOG=1"
	isEnding = "STOPPING=1"
	hasTime  = "EXTEND_TIMEOUT_USEC=90000000"
)

// TestReadyMeansServing over a path and an abstract socket: the connection succeeds at the
// first attempt once READY=1 has come.
func TestReadyMeansServing(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"path", "abstract"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			socket := filepath.Join(r.root, "n")
			if kind == "abstract" {
				socket = fmt.Sprintf("@coordinatord-test-%d", os.Getpid())
			}
			n := newNotified(t, socket)
			p := r.serve(n.env("WATCHDOG_USEC=600000")...)
			n.hears(isReady, 1)
			r.connect()
			n.hears("STATUS=serving, epoch 1 activation 1", 1)
			n.hears(isAlive, 3)
			require.Equal(t, 0, p.stop())
			n.hears(isEnding, 1)
			n.hears("STATUS=stopped by terminated", 1)
			require.Equal(t, 1, n.count(isReady))
			all := n.all()
			require.NotContains(t, all[0], isReady, "the start had a status first")
		})
	}
}

// TestNotReadyWithoutTheLease: while the witness grants nothing there is no READY=1, and the
// wait says that it goes on.
func TestNotReadyWithoutTheLease(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	first := r.serve()
	first.ready()
	first.kill() // its lease runs on
	n := newNotified(t, filepath.Join(r.root, "n"))
	p := r.serve(n.env("WATCHDOG_USEC=600000")...)
	n.hears("STATUS=waiting for the lease of activation 1 at epoch 1*", 1)
	require.Zero(t, n.count(isReady))
	require.Zero(t, n.count(isAlive), "a start is no service that could be alive")
	require.Positive(t, n.count(hasTime))
	p.says("waiting for the lease") // and it is the lease that it waits for
	n.hears(isReady, 1)
	p.ready()
	require.Equal(t, 0, p.stop())

	// A witness that stands answers nobody: the start fails, and was never ready.
	r.witness.signal(syscall.SIGSTOP)
	n = newNotified(t, filepath.Join(r.root, "m"))
	p = r.serve(n.env()...)
	n.hears("STATUS=no answer from the witness*", 1)
	require.Equal(t, daemon.ExitWitness, p.ends())
	n.hears(isEnding, 1)
	require.Zero(t, n.count(isReady))
	r.witness.signal(syscall.SIGCONT)
}

// TestAStuckWriterIsNotAlive holds the one writer behind a sync that does not return. The
// process lives, and its lease is renewed again and again, without one more sign of life.
func TestAStuckWriterIsNotAlive(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := newNotified(t, filepath.Join(r.root, "n"))
	p := r.serve(n.env("WATCHDOG_USEC=300000", "COORDINATOR_FAILPOINT=record-synced=sleep:1h@8")...)
	n.hears(isAlive, 1)
	c := r.connect()
	ctx, cancel := context.WithCancel(t.Context())
	sending := make(chan struct{})
	go func() {
		defer close(sending)
		for ctx.Err() == nil {
			cmd, _ := create(t)
			c.Command(ctx, cmd) //nolint:errcheck // one of them is never answered
		}
	}()
	defer func() {
		cancel()
		<-sending
	}()
	p.says("failpoint sleeps")
	expiry := func() uint64 {
		st, err := server.ReadStatus(t.Context(), filepath.Join(r.dir, server.StatusFile))
		if err != nil {
			return 0
		}
		return st.LeaseExpiresAt
	}
	first := expiry()
	require.NotZero(t, first)
	before := n.count(isAlive)
	require.Eventually(t, func() bool { return expiry() >= first+2*lease }, waitFor, tick, "the lease is kept")
	require.LessOrEqual(t, n.count(isAlive), before+1, "one may have been on its way")
	p.kill()
}

// TestTheOtherDaemonsTellToo: the witness and the owner, from READY to the end.
func TestTheOtherDaemonsTellToo(t *testing.T) {
	t.Parallel()
	r := withOwner(t)
	require.Equal(t, 0, r.witness.stop())
	require.Equal(t, 0, r.process.stop())
	for name, start := range map[string]func(env []string) *process{
		"witnessd": func(env []string) *process {
			return launch(t, env, witnessd, "serve", "--state", filepath.Join(r.root, "w"))
		},
		"ownerd": func(env []string) *process {
			return launch(t, env, ownerd, "serve", "--state", r.odir)
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNotified(t, filepath.Join(r.root, name))
			p := start(n.env("WATCHDOG_USEC=300000"))
			n.hears(isReady, 1)
			n.hears(isAlive, 3)
			p.ready()
			p.signal(syscall.SIGTERM)
			require.Equal(t, 0, p.ends())
			n.hears(isEnding, 1)
			require.Equal(t, 1, n.count(isReady))
			require.Equal(t, 1, n.count("STATUS=serving at *"))
		})
	}
}

// TestAFailedStartWasNeverReady: a second instance, and a configuration that is none.
func TestAFailedStartWasNeverReady(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.serve().ready()
	n := newNotified(t, filepath.Join(r.root, "n"))
	require.Equal(t, daemon.ExitHeld, r.serve(n.env()...).ends())
	n.hears(isEnding, 1)
	require.Zero(t, n.count(isReady))
	p := r.serve("NOTIFY_SOCKET=relative")
	require.Equal(t, daemon.ExitConfig, p.ends())
	require.Contains(t, p.output(), "NOTIFY_SOCKET")
}

// TestChildrenThatWorkProveIt: one that computes does, one that sleeps does not.
func TestChildrenThatWorkProveIt(t *testing.T) {
	if _, err := os.Stat(fmt.Sprintf("/proc/self/task/%d/children", os.Getpid())); err != nil {
		t.Skip("this kernel does not list the children of a process")
	}
	worked := make(chan struct{}, 100)
	require.NoError(t, whileChildrenWork(func() {
		select {
		case worked <- struct{}{}:
		default:
		}
	}, func() error {
		busy := launch(t, nil, "sh", "-c", "while :; do :; done")
		for range 2 {
			<-worked
		}
		busy.kill()
		return nil
	}))
}
