package stream

import (
	"container/list"
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"coordinator/frames"
	"coordinator/internal/clock"
	"coordinator/server/quota"
	"coordinator/server/store"
	"coordinator/server/work"
)

// leaseTime is the life of every lease, exactly (protocol.md §2.3, §9).
const leaseTime = frames.LeaseSeconds * time.Second

// Options is what a [Manager] needs.
type Options struct {
	Clock clock.Clock
	Rand  io.Reader // ids and cursors
	// Do runs f on the writer between two batches and returns after it has run,
	// or an error when it never will.
	Do func(ctx context.Context, f func(*store.Store) error) error
	// Guard of this process; it never changes while the process lives.
	Guard frames.AuthorityGuard
	// Logger gets a line for each lease that ends before its time. Nil discards.
	Logger *slog.Logger
}

// A Manager holds the leases of all connections. Its methods are safe for
// concurrent use.
type Manager struct {
	o Options

	mu   sync.Mutex
	open list.List     // guarded by mu: *lease, by expiry, which is by age
	wake chan struct{} // holds one token when the first lease was added
}

// New returns a manager without leases.
func New(o Options) *Manager {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Manager{o: o, wake: make(chan struct{}, 1)}
}

// Run ends leases when their time is up, until ctx is cancelled. It starts
// nothing that outlives it.
func (m *Manager) Run(ctx context.Context) error {
	timer := m.o.Clock.NewTimer(leaseTime)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-m.wake:
		case <-timer.C():
		}
		timer.Reset(m.expire())
	}
}

// expire ends every lease whose time is up and says when to look again.
func (m *Manager) expire() time.Duration {
	for {
		now := m.o.Clock.Now().Boot
		first := m.first()
		if first == nil {
			return leaseTime
		}
		if left := first.expires - now; left > 0 {
			return left
		}
		first.end()
	}
}

// first is the open lease that expires next, or nil.
func (m *Manager) first() *lease {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.open.Front(); e != nil {
		return e.Value.(*lease)
	}
	return nil
}

// add links a lease into the order of expiry.
func (m *Manager) add(l *lease) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l.element = m.open.PushBack(l)
	if m.open.Len() == 1 {
		select {
		case m.wake <- struct{}{}:
		default:
		}
	}
}

// remove unlinks a lease; a second call does nothing.
func (m *Manager) remove(l *lease) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if l.element != nil {
		m.open.Remove(l.element)
		l.element = nil
	}
}

// Open is the number of open leases, for status output and tests.
func (m *Manager) Open() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.open.Len()
}

// Committed charges every open cut for what the last commit superseded. It runs
// on the writer and never refuses it: a cut that cannot be charged ends alone
// (protocol.md §2.3 [D-5]).
func (m *Manager) Committed() {
	m.mu.Lock()
	var ended []*lease
	for e := m.open.Front(); e != nil; e = e.Next() {
		if l := e.Value.(*lease); !l.cover() {
			ended = append(ended, l)
		}
	}
	m.mu.Unlock()
	for _, l := range ended {
		m.o.Logger.Warn("snapshot ended: its cut holds back more than its principal or the server may pin", "snapshot", l.id)
		l.end()
	}
}

// cover extends the reservation until it holds what the cut holds back. It
// reports false when the extension was refused.
func (l *lease) cover() bool {
	held := l.cut.Superseded()
	have := l.pinned.Amount()
	if held <= have {
		return true
	}
	steps := (held - have + quota.Step - 1) / quota.Step
	return l.pinned.Extend(steps*quota.Step) == nil
}

// SessionOptions is what one connection brings.
type SessionOptions struct {
	Viewer  work.Viewer   // fixed at the hello [D-55]
	Limits  frames.Limits // selected at the hello
	Account *quota.Account
}

// NewSession returns the connection's own leases, none so far.
func (m *Manager) NewSession(o SessionOptions) *Session {
	return &Session{m: m, o: o, leases: make(map[frames.SnapshotID]*lease)}
}

// randomCursor draws a cursor nobody can guess.
func (m *Manager) randomCursor() ([]byte, error) {
	c := make([]byte, cursorSize)
	if _, err := io.ReadFull(m.o.Rand, c); err != nil {
		return nil, fmt.Errorf("cursor: %w", err)
	}
	return c, nil
}
