package owner

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"coordinator/frames"
	"coordinator/internal/clock"
)

type netConn = net.Conn

// fakeLauncher makes processes that do only what a test says.
type fakeLauncher struct {
	beforeHold func()
	started    func(argv []string)
	holds      atomic.Int32
	releases   atomic.Int32

	mu       sync.Mutex
	next     uint32
	children map[uint32]*fakeChild
	ended    []identity
}

func newFakeLauncher() *fakeLauncher { return &fakeLauncher{children: map[uint32]*fakeChild{}} }

func (l *fakeLauncher) hold(uint16, uint16) (held, error) {
	l.holds.Add(1)
	if l.beforeHold != nil {
		l.beforeHold()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next++
	return &fakeHeld{l, l.next}, nil
}

func (l *fakeLauncher) endFormer(id identity) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = append(l.ended, id)
	return nil
}

// child is the process of a group.
func (l *fakeLauncher) child(group uint32) *fakeChild {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.children[group]
}

type fakeHeld struct {
	l *fakeLauncher
	n uint32
}

func (h *fakeHeld) id() identity { return identity{h.n, uint64(h.n) * 1000} }
func (h *fakeHeld) abandon()     {}

func (h *fakeHeld) release(c command) (child, error) {
	if c.argv[0] == "missing" {
		return nil, &startError{"argv[0]: no such file or directory"}
	}
	h.l.releases.Add(1)
	if h.l.started != nil {
		h.l.started(c.argv)
	}
	ch := &fakeChild{exited: make(chan frames.Closed, 1)}
	ch.r, ch.w = io.Pipe()
	h.l.mu.Lock()
	defer h.l.mu.Unlock()
	h.l.children[h.n] = ch
	return ch, nil
}

type fakeChild struct {
	r      *io.PipeReader
	w      *io.PipeWriter
	exited chan frames.Closed
	once   sync.Once
	asked  chan struct{} // nil: a descendant has the terminal; else told of each question
	hears  chan<- syscall.Signal
}

func (c *fakeChild) Read(p []byte) (int, error) { return c.r.Read(p) }
func (c *fakeChild) wait() frames.Closed        { return <-c.exited }
func (c *fakeChild) cut()                       { c.r.Close() }
func (c *fakeChild) hangup()                    { c.r.Close() }

func (c *fakeChild) held() bool {
	if c.asked == nil {
		return true
	}
	c.asked <- struct{}{}
	return false
}

// end lets the process end with a status.
func (c *fakeChild) end(status frames.Closed) {
	c.once.Do(func() {
		c.exited <- status
		c.w.Close()
	})
}

func (c *fakeChild) signal(sig syscall.Signal) error {
	if c.hears != nil { // it ignores what can be ignored
		if sig != syscall.SIGCONT && sig != 0 {
			c.hears <- sig
		}
		if sig != syscall.SIGKILL {
			return nil
		}
	}
	if sig == syscall.SIGTERM || sig == syscall.SIGKILL {
		c.end(frames.Closed{Known: true, Status: -int32(sig)})
	}
	return nil
}

// shifted is a clock whose wall is ahead.
type shifted struct {
	clock.Clock
	by time.Duration
}

func (s *shifted) Now() clock.Reading {
	now := s.Clock.Now()
	now.Wall = now.Wall.Add(s.by)
	return now
}
