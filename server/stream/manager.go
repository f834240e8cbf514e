package stream

import (
	"container/list"
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"coordinator/frames"
	"coordinator/internal/clock"
	"coordinator/server/quota"
	"coordinator/server/store"
	"coordinator/server/work"
)

// leaseTime is the life of every lease, exactly (protocol.md §2.3, §9).
const leaseTime = frames.LeaseSeconds * time.Second

// Capabilities are those that this package serves (protocol.md §5.6).
const Capabilities = frames.CapEventReplay

// Options is what a [Manager] needs.
type Options struct {
	Clock clock.Clock
	Rand  io.Reader // ids and cursors
	// Store is where older events are read. Everything that it holds when the
	// manager is made counts as published.
	Store *store.Store
	// Do runs f on the writer between two batches and returns after it has run,
	// or an error when it never will.
	Do func(ctx context.Context, f func(*store.Store) error) error
	// Guard of this process; it never changes while the process lives.
	Guard frames.AuthorityGuard
	// WindowBytes bounds the newest events that are kept in memory, shared by all
	// subscriptions. Zero means 64 MiB.
	WindowBytes int
	// Logger gets a line for each lease or subscription that a fault ends. Nil
	// discards.
	Logger *slog.Logger
}

// A Manager holds the leases and subscriptions of all connections. Its methods are
// safe for concurrent use.
//
// Locks are taken in this order: mu, the mu of one session, and then those of the
// lease list, the window and the quota accounts, which hold no other.
type Manager struct {
	o      Options
	window *window
	head   [headSize]byte // of a COORD_EVENT, see [subscription.next]

	// listeners counts the sessions in groups. It is raised before the first
	// count that includes them, so that no publication goes unnoticed.
	listeners atomic.Int64
	published chan struct{} // holds one token when there may be something to count
	counted   atomic.Uint64 // event sequence up to which everybody has counted
	adminHead atomic.Uint64 // newest published change of an ADMIN record [D-12]
	// removed is the newest published removal of an object of each kind (§12).
	removed [frames.KindArtifactManifest + 1]atomic.Uint64

	mu      sync.Mutex
	groups  map[audience]map[*Session]struct{} // guarded by mu: sessions with subscriptions
	entries []*image                           // guarded by mu: scratch
	tally   tally                              // guarded by mu: scratch

	leases leaseList
	ahead  atomic.Int64 // pages that wait for their NEXT
	meters Meters
}

// New returns a manager without leases and subscriptions. Nothing may commit meanwhile.
func New(o Options) *Manager {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.WindowBytes == 0 {
		o.WindowBytes = defaultWindowBytes
	}
	state := o.Store.State()
	m := &Manager{
		o: o, window: newWindow(o.WindowBytes, state.Head), head: newHead(), published: make(chan struct{}, 1),
		groups: make(map[audience]map[*Session]struct{}),
		leases: leaseList{wake: make(chan struct{}, 1)},
	}
	m.counted.Store(uint64(state.Head))
	m.adminHead.Store(uint64(state.AdminHead))
	m.loadRemovals(uint64(state.Head))
	return m
}

// loadRemovals learns where objects were removed before this process began. When that
// cannot be read, every cut before the head counts as one before a removal.
func (m *Manager) loadRemovals(head uint64) {
	m.o.Store.LiveRows(work.RemovalsKind, func(r store.Row) bool {
		newest, err := work.DecodeRemovals(r.Annex)
		if err != nil {
			m.o.Logger.Error("who has not negotiated ARCHIVE needs a snapshot", "err", err)
			for kind := range m.removed {
				m.removed[kind].Store(head)
			}
			return false
		}
		for _, n := range newest {
			m.removedAt(n.Kind, n.Sequence)
		}
		return true
	})
}

func (m *Manager) removedAt(kind frames.ObjectKind, seq frames.EventSequence) {
	if kind.Known() {
		m.removed[kind].Store(uint64(seq))
	}
}

// Run counts what is published and ends leases when their time is up, until ctx is
// cancelled. It starts nothing that outlives it.
func (m *Manager) Run(ctx context.Context) error {
	timer := m.o.Clock.NewTimer(leaseTime)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-m.published:
			m.fanOut()
			continue
		case <-m.leases.wake:
		case <-timer.C():
		}
		timer.Reset(m.expire())
	}
}

// expire ends every lease whose time is up and says when to look again.
func (m *Manager) expire() time.Duration {
	for {
		now := m.o.Clock.Now().Boot
		first := m.leases.first()
		if first == nil {
			return leaseTime
		}
		if left := first.expires - now; left > 0 {
			return left
		}
		m.meters.Expired.Add(1)
		first.abort(frames.GapCursorInvalid)
	}
}

// Open is the number of open leases, for status output and tests.
func (m *Manager) Open() int {
	m.leases.mu.Lock()
	defer m.leases.mu.Unlock()
	return m.leases.open.Len()
}

// A leaseList has the open leases by expiry, which is by age.
type leaseList struct {
	mu   sync.Mutex
	open list.List     // guarded by mu: *lease
	wake chan struct{} // holds one token when the first lease was added
}

// first is the open lease that expires next, or nil.
func (ll *leaseList) first() *lease {
	ll.mu.Lock()
	defer ll.mu.Unlock()
	if e := ll.open.Front(); e != nil {
		return e.Value.(*lease)
	}
	return nil
}

// add begins a lease's time and links it into the order of expiry.
func (ll *leaseList) add(l *lease) {
	ll.mu.Lock()
	defer ll.mu.Unlock()
	l.expires = l.s.m.o.Clock.Now().Boot + leaseTime
	l.element = ll.open.PushBack(l)
	if ll.open.Len() == 1 {
		signal(ll.wake)
	}
}

// remove unlinks a lease; a second call does nothing.
func (ll *leaseList) remove(l *lease) {
	ll.mu.Lock()
	defer ll.mu.Unlock()
	if l.element != nil {
		ll.open.Remove(l.element)
		l.element = nil
	}
}

// finish makes a lease complete. From here on its cut is charged for nothing.
func (ll *leaseList) finish(l *lease) {
	ll.mu.Lock()
	defer ll.mu.Unlock()
	l.complete.Store(true)
}

// uncovered gives the oldest lease whose cut could not be charged for what it holds
// back, or nil.
func (ll *leaseList) uncovered() *lease {
	ll.mu.Lock()
	defer ll.mu.Unlock()
	for e := ll.open.Front(); e != nil; e = e.Next() {
		if l := e.Value.(*lease); !l.cover() {
			return l
		}
	}
	return nil
}

// signal leaves a token in c unless one is there.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// A lease is one open snapshot or replay: an id, a cursor with one successor and
// sixty seconds (protocol.md §9). Only the session's own goroutine pages through
// it; the manager may end it at any time.
type lease struct {
	s       *Session
	slot    *quota.Charge
	expires time.Duration // boot reading; set once it is in the lease list
	element *list.Element // guarded by the lease list
	sub     *subscription // that a snapshot reserved, or that is replayed; nil if none

	cut    *store.Cut    // of a snapshot
	pinned *quota.Charge // of a snapshot
	log    *store.Replay // of a replay

	// Owned by the session's goroutine.
	make   func() *made // the page after the lease's position
	cursor []byte       // the one that the next NEXT must carry
	spare  []byte       // the one of the page behind that: drawn before, so that making a page ahead draws nothing
	pages  uint32       // answered
	sent   uint64       // in pages that were made
	ahead  *made        // the next page, if it was made before it is asked for

	complete atomic.Bool // END is made; only APPLIED may follow
	ended    atomic.Bool
}

// open reports whether the lease still runs.
func (l *lease) open() bool {
	return !l.ended.Load() && l.s.m.o.Clock.Now().Boot < l.expires
}

// end ends the lease for good and gives back what it held. It may be called from
// any goroutine, more than once, and while a page is read: the page then fails. It
// reports whether this call did it.
func (l *lease) end() bool {
	if l.ended.Swap(true) {
		return false
	}
	l.s.m.leases.remove(l)
	l.unpin()
	if l.log != nil {
		l.log.Close()
	}
	l.slot.Release()
	return true
}

// unpin gives back the cut.
func (l *lease) unpin() {
	if l.cut != nil {
		l.cut.Close()
		l.pinned.Release()
	}
}

// abort ends a lease that has not been applied, and pauses the subscription that
// depends on it.
func (l *lease) abort(reason frames.GapReason) {
	if !l.end() || l.sub == nil {
		return
	}
	s := l.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.sub.lease == l {
		l.sub.fail(reason)
	}
}

// cover extends the reservation until it holds what the cut holds back. It
// reports false when the extension was refused. The lease list is locked meanwhile, so that
// what it takes is not taken after the end has given everything back.
func (l *lease) cover() bool {
	if l.cut == nil || l.ended.Load() {
		return true
	}
	held := l.cut.Superseded()
	have := l.pinned.Amount()
	if held <= have || l.complete.Load() {
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
	// Wake is called when the session has something to send. It must not block.
	Wake func()
}

// NewSession returns the connection's own leases and subscriptions, none so far.
func (m *Manager) NewSession(o SessionOptions) *Session {
	if o.Wake == nil {
		o.Wake = func() {}
	}
	return &Session{
		m: m, o: o, audience: audienceOf(o.Viewer), head: m.head,
		snapshots: make(map[frames.SnapshotID]*snapshot), replays: make(map[frames.ReplayID]*replay),
	}
}

// randomCursor draws a cursor nobody can guess.
func (m *Manager) randomCursor() ([]byte, error) {
	c := make([]byte, cursorSize)
	if _, err := io.ReadFull(m.o.Rand, c); err != nil {
		return nil, fmt.Errorf("cursor: %w", err)
	}
	return c, nil
}
