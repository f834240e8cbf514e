package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"coordinator/internal/clock"
)

const (
	// extendEvery is how often a start that makes progress says so.
	extendEvery = 5 * time.Second
	// startExtension is how much longer a start may then take. It outlasts a disk that
	// stalls, and ends a start that hangs.
	startExtension = 90 * time.Second
	// feedsPerWatchdog is how often the loops are asked within the time that the service
	// manager allows between two signs of life.
	feedsPerWatchdog = 3
	// lastWordWait bounds what the end of the process waits for a manager that reads nothing.
	lastWordWait = time.Second
	// maxStatus bounds the text of a status line.
	maxStatus = 512
)

// Progress is what the loops of a daemon prove. Turn returns nil once each of them has come
// round after the call, and does not return before; an error, of ctx above all, proves
// nothing.
type Progress interface {
	Turn(ctx context.Context) error
}

// A ProgressFunc is a Progress.
type ProgressFunc func(context.Context) error

// Turn calls f.
func (f ProgressFunc) Turn(ctx context.Context) error { return f(ctx) }

// A Manager is the service manager that started this process, as sd_notify(3) has it:
// systemd, or whoever else set NOTIFY_SOCKET. Without one every method does nothing, and so
// do those of nil.
//
// What it is told waits for nobody: one goroutine sends, and while the manager does not
// read, what is newest takes the place of what has not been sent.
type Manager struct {
	addr     *net.UnixAddr // nil without a manager
	watchdog time.Duration // zero: no signs of life are wanted
	clock    clock.Clock
	log      *slog.Logger

	asked  context.Context // ends when the daemon is told to
	ctx    context.Context // ends with this Manager
	cancel context.CancelFunc
	wake   chan struct{}
	worked chan struct{} // one slot: a start has made progress
	joined sync.WaitGroup

	mu      sync.Mutex
	next    message  // guarded by mu: not sent yet
	begun   bool     // guarded by mu: READY=1 was said
	closing bool     // guarded by mu
	conn    net.Conn // guarded by mu: on which the sender may be waiting
}

// A message is what is to be sent; the zero one is nothing.
type message struct {
	extend, ready, stopping, alive bool
	status                         string
}

// text is the datagram.
func (m message) text() string {
	var lines []string
	add := func(is bool, line string) {
		if is {
			lines = append(lines, line)
		}
	}
	add(m.ready, "READY=1")
	add(m.stopping, "STOPPING=1")
	add(m.extend, "EXTEND_TIMEOUT_USEC="+strconv.FormatInt(startExtension.Microseconds(), 10))
	add(m.alive, "WATCHDOG=1")
	add(m.status != "", "STATUS="+m.status)
	return strings.Join(lines, "\n")
}

// ManagerOf finds the service manager in the environment of this process, for which getenv
// is os.Getenv, and begins to tell it of a start. It also tells when asked ends, which is how
// the daemon is told to stop. An address that cannot be one is [ExitConfig].
func ManagerOf(asked context.Context, getenv func(string) string, clk clock.Clock, log *slog.Logger) (*Manager, error) {
	ctx, cancel := context.WithCancel(context.Background())
	m := &Manager{clock: clk, log: log, asked: asked, ctx: ctx, cancel: cancel, wake: make(chan struct{}, 1), worked: make(chan struct{}, 1)}
	path := getenv("NOTIFY_SOCKET")
	switch {
	case path == "":
		return m, nil
	case path[0] != '/' && path[0] != '@':
		cancel()
		return nil, Exit(ExitConfig, fmt.Errorf("NOTIFY_SOCKET is %q, which is neither the path of a socket nor an abstract one", path))
	}
	// Package net makes the zero byte of an abstract address out of the @.
	m.addr = &net.UnixAddr{Name: path, Net: "unixgram"}
	var err error
	if m.watchdog, err = watchdogOf(getenv); err != nil {
		cancel()
		return nil, Exit(ExitConfig, err)
	}
	m.joined.Go(m.send)
	m.joined.Go(m.extend)
	m.joined.Go(func() {
		select {
		case <-asked.Done():
			m.Stopping(context.Cause(asked))
		case <-ctx.Done():
		}
	})
	return m, nil
}

// watchdogOf reads how often the manager wants a sign of life from this very process.
func watchdogOf(getenv func(string) string) (time.Duration, error) {
	usec, pid := getenv("WATCHDOG_USEC"), getenv("WATCHDOG_PID")
	if usec == "" || pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return 0, nil
	}
	n, err := strconv.ParseInt(usec, 10, 64)
	if err != nil || n <= 0 || n > int64(24*time.Hour/time.Microsecond) {
		return 0, fmt.Errorf("WATCHDOG_USEC is %q, which is no number of microseconds within a day", usec)
	}
	return time.Duration(n) * time.Microsecond, nil
}

// Status is what the start or the stop is about now. It proves that it goes on: the manager
// gives it more time.
func (m *Manager) Status(line string) {
	m.tell(func(n *message) { n.status, n.extend = oneLine(line), true })
}

// Working proves that the start goes on, without a word for people. It is cheap: loops that
// have much to do call it often, and the manager hears of it every few seconds.
func (m *Manager) Working() {
	if m != nil {
		poke(m.worked)
	}
}

// Ready says that the daemon does what it is there for. From here on the manager gets its
// signs of life, each after p has proved one more turn of every loop.
func (m *Manager) Ready(line string, p Progress) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.begun || m.closing || m.addr == nil {
		return
	}
	m.begun = true
	m.next.status, m.next.ready, m.next.extend = oneLine(line), true, false
	poke(m.wake)
	if m.watchdog > 0 {
		m.joined.Go(func() { m.feed(p) })
	}
}

// Stopping says that the daemon ends, and why.
func (m *Manager) Stopping(why error) {
	m.tell(func(n *message) {
		n.stopping, n.extend = true, true
		if why != nil {
			n.status = oneLine(why.Error())
		}
	})
}

// End says that the daemon has ended, with the error that it returns, waits a little for the
// manager to take that, and joins all goroutines. Nothing is told after it.
func (m *Manager) End(err error) {
	if m == nil {
		return
	}
	if err == nil {
		err = context.Cause(m.asked)
	}
	m.Stopping(err)
	m.mu.Lock()
	m.closing = true
	if m.conn != nil {
		m.conn.SetWriteDeadline(time.Now().Add(lastWordWait)) //nolint:errcheck // the write then fails by itself
	}
	m.mu.Unlock()
	m.cancel()
	m.joined.Wait()
}

// tell changes the message that is sent next.
func (m *Manager) tell(change func(*message)) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.addr == nil || m.closing {
		return
	}
	change(&m.next)
	poke(m.wake)
}

// poke fills a one-slot channel.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// oneLine keeps a status within its line and its bound.
func oneLine(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' {
			return ' '
		}
		return r
	}, s)
	return strings.ToValidUTF8(s[:min(len(s), maxStatus)], "")
}

// extend turns what [Manager.Working] says into more time for a start.
func (m *Manager) extend() {
	timer := m.clock.NewTimer(extendEvery)
	defer timer.Stop()
	for {
		select {
		case <-m.ctx.Done():
			return
		case <-timer.C():
		}
		select {
		case <-m.ctx.Done():
			return
		case <-m.worked: // at once when there was any since the last time
		}
		m.mu.Lock()
		begun := m.begun
		m.mu.Unlock()
		if begun {
			return
		}
		m.tell(func(n *message) { n.extend = true })
		timer.Reset(extendEvery)
	}
}

// feed gives signs of life. It waits for the loops and nothing waits for it: a loop that
// hangs holds the sign back, and the manager does what it is configured to.
func (m *Manager) feed(p Progress) {
	timer := m.clock.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-m.ctx.Done():
			return
		case <-timer.C():
		}
		if err := p.Turn(m.ctx); err == nil {
			m.tell(func(n *message) { n.alive = true })
		}
		timer.Reset(m.watchdog / feedsPerWatchdog)
	}
}

// send is the one sender.
func (m *Manager) send() {
	failed := false
	for closing := false; !closing; {
		select {
		case <-m.wake:
		case <-m.ctx.Done():
			closing = true // once more, for what was said last
		}
		m.mu.Lock()
		next := m.next
		m.next = message{}
		m.mu.Unlock()
		if next == (message{}) {
			continue
		}
		if err := m.write(next.text()); err != nil && !failed {
			failed = true // once: nobody listens, and the work goes on
			m.log.Warn("service manager not told", "socket", m.addr.Name, "err", err)
		}
	}
}

// write sends one datagram on a socket of its own, so that a manager that was replaced is
// found again.
func (m *Manager) write(text string) error {
	conn, err := net.DialUnix(m.addr.Net, nil, m.addr)
	if err != nil {
		return err
	}
	m.mu.Lock()
	m.conn = conn
	if m.closing {
		conn.SetWriteDeadline(time.Now().Add(lastWordWait)) //nolint:errcheck // the write then fails by itself
	}
	m.mu.Unlock()
	_, err = conn.Write([]byte(text))
	m.mu.Lock()
	m.conn = nil
	m.mu.Unlock()
	conn.Close() //nolint:errcheck // it was written to or not
	return err
}
