package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/internal/clock"
)

// A manager is the other end: a real datagram socket, and what came there.
type managerRig struct {
	t    *testing.T
	conn *net.UnixConn
	env  map[string]string
	clk  *clock.Manual
	stop context.CancelCauseFunc
	m    *Manager
}

func newManagerRig(t *testing.T, socket string, env ...string) *managerRig {
	t.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	r := &managerRig{t: t, conn: conn, env: map[string]string{"NOTIFY_SOCKET": socket}, clk: clock.NewManual(clock.Reading{Wall: time.Unix(1, 0)})}
	for _, e := range env {
		k, v, _ := strings.Cut(e, "=")
		r.env[k] = v
	}
	ctx, stop := context.WithCancelCause(t.Context())
	r.stop = stop
	r.m, err = ManagerOf(ctx, r.getenv, r.clk, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(func() { r.m.End(nil) })
	return r
}

func (r *managerRig) getenv(name string) string { return r.env[name] }

// reads gives the next datagram.
func (r *managerRig) reads() string {
	r.t.Helper()
	buf := make([]byte, 4096)
	require.NoError(r.t, r.conn.SetReadDeadline(time.Now().Add(time.Minute)))
	n, err := r.conn.Read(buf)
	require.NoError(r.t, err)
	return string(buf[:n])
}

// hears passes over datagrams until one has all these lines.
func (r *managerRig) hears(lines ...string) {
	r.t.Helper()
	for {
		got := strings.Split(r.reads(), "\n")
		all := true
		for _, l := range lines {
			found := false
			for _, g := range got {
				found = found || g == l
			}
			all = all && found
		}
		if all {
			return
		}
	}
}

// pass moves the clock by d once somebody waits for it.
func (r *managerRig) pass(timers int, d time.Duration) {
	r.t.Helper()
	require.Eventually(r.t, func() bool { return r.clk.Timers() >= timers }, time.Minute, time.Millisecond)
	r.clk.Advance(d)
}

func sockets(t *testing.T) map[string]string {
	dir, err := os.MkdirTemp("", "nt")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return map[string]string{
		"path":     filepath.Join(dir, "n"),
		"abstract": fmt.Sprintf("@coordinator-test-%d-%d", os.Getpid(), time.Now().UnixNano()),
	}
}

func TestTheManagerHearsOfAWholeLife(t *testing.T) {
	for kind, socket := range sockets(t) {
		t.Run(kind, func(t *testing.T) {
			r := newManagerRig(t, socket)
			r.m.Status("replaying the log\nREADY=1")
			require.Equal(t, "EXTEND_TIMEOUT_USEC=90000000\nSTATUS=replaying the log READY=1", r.reads(), "a line is a line")
			r.m.Ready("serving", nil)
			require.Equal(t, "READY=1\nSTATUS=serving", r.reads())
			r.m.Ready("serving again", nil)
			r.stop(errors.New("told to"))
			require.Equal(t, "STOPPING=1\nEXTEND_TIMEOUT_USEC=90000000\nSTATUS=told to", r.reads(), "and Ready counts once")
			r.m.End(nil)
			r.m.Status("after the end")
			require.Contains(t, r.reads(), "STOPPING=1")
			require.NoError(t, r.conn.SetReadDeadline(time.Now()))
			_, err := r.conn.Read(make([]byte, 1))
			require.ErrorIs(t, err, os.ErrDeadlineExceeded, "nothing is told after the end")
		})
	}
}

// TestAStartThatFailsSaysWhy and is not ready.
func TestAStartThatFailsSaysWhy(t *testing.T) {
	r := newManagerRig(t, sockets(t)["path"])
	r.m.End(errors.New("no authority"))
	require.Equal(t, "STOPPING=1\nEXTEND_TIMEOUT_USEC=90000000\nSTATUS=no authority", r.reads())
}

// TestAStartIsExtendedByWorkAlone: time that passes proves nothing.
func TestAStartIsExtendedByWorkAlone(t *testing.T) {
	r := newManagerRig(t, sockets(t)["path"])
	r.pass(1, extendEvery)
	r.pass(0, time.Hour)
	r.m.Status("mark")
	require.Equal(t, "EXTEND_TIMEOUT_USEC=90000000\nSTATUS=mark", r.reads(), "nothing came before it")
	r.m.Working()
	require.Equal(t, "EXTEND_TIMEOUT_USEC=90000000", r.reads())
	r.m.Working()
	r.m.Working()
	r.pass(1, extendEvery)
	require.Equal(t, "EXTEND_TIMEOUT_USEC=90000000", r.reads())
	r.m.Ready("serving", nil)
	r.hears("READY=1")
	r.m.Working()
	r.pass(1, extendEvery)
	r.m.Stopping(nil)
	require.NotContains(t, r.reads(), "READY", "and what works is no longer told")
}

// TestTheWatchdogIsFedByProgress and by nothing else: neither before the daemon is ready, nor
// by time, nor by a turn that fails.
func TestTheWatchdogIsFedByProgress(t *testing.T) {
	r := newManagerRig(t, sockets(t)["path"], "WATCHDOG_USEC=30000000", fmt.Sprintf("WATCHDOG_PID=%d", os.Getpid()))
	turns := make(chan error)
	r.pass(1, time.Hour)
	r.m.Status("mark")
	require.NotContains(t, r.reads(), "WATCHDOG")
	r.m.Ready("serving", ProgressFunc(func(ctx context.Context) error {
		select {
		case err := <-turns:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}))
	r.hears("READY=1", "STATUS=serving")
	turns <- nil
	require.Equal(t, "WATCHDOG=1", r.reads())
	r.pass(1, 10*time.Second)
	r.clk.Advance(time.Hour) // it hangs
	r.m.Status("mark")
	require.Equal(t, "EXTEND_TIMEOUT_USEC=90000000\nSTATUS=mark", r.reads())
	turns <- errors.New("no")
	r.pass(1, 10*time.Second)
	turns <- nil // comes only after the one that failed has been dealt with
	require.Equal(t, "WATCHDOG=1", r.reads())
	r.m.Status("mark")
	require.Equal(t, "EXTEND_TIMEOUT_USEC=90000000\nSTATUS=mark", r.reads(), "one sign for one turn")
}

// TestAnothersWatchdogIsNotFed: the variables may be inherited.
func TestAnothersWatchdogIsNotFed(t *testing.T) {
	r := newManagerRig(t, sockets(t)["path"], "WATCHDOG_USEC=30000000", "WATCHDOG_PID=1")
	require.Zero(t, r.m.watchdog)
}

func TestWhatTheManagerMayNotBe(t *testing.T) {
	for _, env := range []map[string]string{
		{"NOTIFY_SOCKET": "relative"},
		{"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "soon"},
		{"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "0"},
		{"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "-5"},
		{"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "90000000000"},
	} {
		_, err := ManagerOf(t.Context(), func(k string) string { return env[k] }, clock.System(), slog.New(slog.DiscardHandler))
		require.Equal(t, ExitConfig, Code(err), "%v", env)
	}
}

// TestNoManager is the common case on a terminal: nothing is told, and nothing runs.
func TestNoManager(t *testing.T) {
	m, err := ManagerOf(t.Context(), func(string) string { return "" }, clock.System(), slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	m.Status("x")
	m.Working()
	m.Ready("x", ProgressFunc(func(context.Context) error { panic("asked") }))
	m.Stopping(nil)
	m.End(nil)
}

// TestAManagerThatIsGone costs one line in the log.
func TestAManagerThatIsGone(t *testing.T) {
	var log syncBuffer
	env := map[string]string{"NOTIFY_SOCKET": filepath.Join(t.TempDir(), "none")}
	m, err := ManagerOf(t.Context(), func(k string) string { return env[k] }, clock.System(), slog.New(slog.NewTextHandler(&log, nil)))
	require.NoError(t, err)
	for i := range 3 {
		m.Status(fmt.Sprint(i))
		require.Eventually(t, func() bool { return strings.Contains(log.String(), "service manager not told") }, time.Minute, time.Millisecond)
	}
	m.End(nil)
	require.Equal(t, 1, strings.Count(log.String(), "\n"), log.String())
}

// TestAManagerThatReadsNothing holds nobody up: what cannot be sent is replaced by what is
// newer, and the end of the daemon waits a little only.
func TestAManagerThatReadsNothing(t *testing.T) {
	r := newManagerRig(t, sockets(t)["path"])
	for full := false; !full; { // until the queue of the socket is full and the sender waits
		r.m.Status("filling")
		r.m.mu.Lock()
		full = r.m.conn != nil && r.m.next != (message{})
		r.m.mu.Unlock()
	}
	r.m.Ready("serving", nil)
	r.m.End(nil) // returns
	require.Contains(t, r.reads(), "filling")
}

// syncBuffer is a buffer that may be read while it is written to.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

var _ io.Writer = (*syncBuffer)(nil)
