// Package quota keeps the accounts of protocol.md §2.3: what one connection,
// one principal and the whole server hold at this moment, against a limit each.
//
// It knows what is counted and where the limits lie. It does not know why
// something is charged, does no I/O, starts no goroutine and reads no clock. A
// charge is taken before the thing it pays for exists and is released exactly
// once; a refused charge changes nothing and never evicts an older one.
package quota

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"sync"
)

// Reservation is what opening a lease reserves of [PinnedBytes], and Step is
// what one extension adds to it [D-5].
const (
	Reservation = 2 * mib
	Step        = 1 * mib
)

// Principal is the workload key id that an account belongs to. The server's own
// work uses no principal.
type Principal [32]byte

// Exceeded refuses a charge: taking it would have passed Limit at Level.
type Exceeded struct {
	Resource Resource
	Level    Level
	Limit    uint64
}

// Error says which limit was reached. It names no principal.
func (e *Exceeded) Error() string {
	return fmt.Sprintf("quota: limit of %d %s per %s reached", e.Limit, e.Resource, e.Level)
}

// counts is what one holder has charged.
type counts [resources]uint64

// Server is the root account. Its methods are safe for concurrent use.
type Server struct {
	limits Limits

	mu         sync.Mutex
	total      counts                // guarded by mu
	principals map[Principal]*counts // guarded by mu; an entry exists while it holds something
}

// New returns an empty server account. It returns the *[LimitError] of
// [Limits.Validate].
func New(l Limits) (*Server, error) {
	if err := l.Validate(); err != nil {
		return nil, err
	}
	return &Server{limits: l, principals: make(map[Principal]*counts)}, nil
}

// Limits returns the limits that the server was made with.
func (s *Server) Limits() Limits { return s.limits }

// A Use is what one holder has of a resource at this moment, and its limit.
type Use struct {
	Resource  Resource
	Level     Level     // OfPrincipal or OfServer
	Principal Principal // zero at OfServer
	Held      uint64
	Limit     uint64
}

// Uses lists every resource of the server and, for each principal that holds something,
// what it holds, all read in one instant. Principals come by id. [Pending] is not in it:
// the writer counts it, inside its transactions.
func (s *Server) Uses() []Use {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Use
	for r := range Pending {
		out = append(out, Use{Resource: r, Level: OfServer, Held: s.total[r], Limit: s.limits[OfServer][r]})
	}
	ids := slices.SortedFunc(maps.Keys(s.principals), func(a, b Principal) int { return bytes.Compare(a[:], b[:]) })
	for _, p := range ids {
		for r, held := range s.principals[p] {
			if held > 0 {
				out = append(out, Use{Resource(r), OfPrincipal, p, held, s.limits[OfPrincipal][r]})
			}
		}
	}
	return out
}

// Use returns what the principal and the server hold of r.
func (s *Server) Use(p Principal, r Resource) (principal, server uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.principals[p]; c != nil {
		principal = c[r]
	}
	return principal, s.total[r]
}

// Connect charges one connection of p and returns its account. The error is an
// *[Exceeded].
func (s *Server) Connect(p Principal) (*Account, error) {
	a := &Account{server: s, principal: p}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.takeLocked(p, &a.own, amount{Connections, 1}); err != nil {
		return nil, err
	}
	return a, nil
}

// amount is so much of one resource.
type amount struct {
	r Resource
	n uint64
}

// takeLocked charges every amount at all three levels, or none of them. own is
// the counter of the lowest level, whose refusal comes first: others are not asked to
// make room for what could not be taken anyway.
func (s *Server) takeLocked(p Principal, own *counts, amounts ...amount) error {
	held := s.principals[p]
	if held == nil {
		held = new(counts)
	}
	for level, used := range [levels]*counts{own, held, &s.total} {
		for _, a := range amounts {
			limit := s.limits[level][a.r]
			if a.n > limit || used[a.r] > limit-a.n {
				return &Exceeded{Resource: a.r, Level: Level(level), Limit: limit}
			}
		}
	}
	for _, a := range amounts {
		own[a.r] += a.n
		held[a.r] += a.n
		s.total[a.r] += a.n
	}
	if *held != (counts{}) { // a charge of nothing leaves no entry behind
		s.principals[p] = held
	}
	return nil
}

// giveLocked returns charged amounts. More than was taken is our own bug.
func (s *Server) giveLocked(p Principal, own *counts, amounts ...amount) {
	held := s.principals[p]
	for _, a := range amounts {
		if held == nil || own[a.r] < a.n || held[a.r] < a.n || s.total[a.r] < a.n {
			panic(fmt.Sprintf("quota: %d %s released that were never charged", a.n, a.r))
		}
		own[a.r] -= a.n
		held[a.r] -= a.n
		s.total[a.r] -= a.n
	}
	if held != nil && *held == (counts{}) {
		delete(s.principals, p)
	}
}

// Account is one connection's share. Its methods are safe for concurrent use.
type Account struct {
	server    *Server
	principal Principal

	own    counts // guarded by server.mu
	closed bool   // guarded by server.mu
}

// Principal returns the key id that the account belongs to.
func (a *Account) Principal() Principal { return a.principal }

// Take charges n of r at every level and returns the charge. The error is an
// *[Exceeded], or an *[Exceeded] with limit zero once the account is closed.
func (a *Account) Take(r Resource, n uint64) (*Charge, error) {
	a.server.mu.Lock()
	defer a.server.mu.Unlock()
	if a.closed {
		return nil, &Exceeded{Resource: r, Level: OfConnection}
	}
	if err := a.server.takeLocked(a.principal, &a.own, amount{r, n}); err != nil {
		return nil, err
	}
	return &Charge{account: a, what: r, n: n}, nil
}

// Close releases everything that the connection still holds, the connection
// itself included. Charges of it that are released later change nothing.
func (a *Account) Close() {
	a.server.mu.Lock()
	defer a.server.mu.Unlock()
	if a.closed {
		return
	}
	a.closed = true
	var all []amount
	for r := range resources {
		if a.own[r] > 0 {
			all = append(all, amount{r, a.own[r]})
		}
	}
	a.server.giveLocked(a.principal, &a.own, all...)
}

// Charge is an amount of one resource that is paid for until it is released.
type Charge struct {
	account *Account
	what    Resource
	n       uint64 // guarded by account.server.mu
}

// Amount returns what the charge holds now.
func (c *Charge) Amount() uint64 {
	c.account.server.mu.Lock()
	defer c.account.server.mu.Unlock()
	return c.n
}

// Extend adds n to the charge, or changes nothing and returns an *[Exceeded].
func (c *Charge) Extend(n uint64) error {
	a := c.account
	a.server.mu.Lock()
	defer a.server.mu.Unlock()
	if a.closed {
		return &Exceeded{Resource: c.what, Level: OfConnection}
	}
	if err := a.server.takeLocked(a.principal, &a.own, amount{c.what, n}); err != nil {
		return err
	}
	c.n += n
	return nil
}

// Release gives the charge back. A second call, or one after the account was
// closed, does nothing.
func (c *Charge) Release() {
	a := c.account
	a.server.mu.Lock()
	defer a.server.mu.Unlock()
	if n := c.n; n > 0 && !a.closed {
		a.server.giveLocked(a.principal, &a.own, amount{c.what, n})
	}
	c.n = 0
}

// Queue is the account of one subscription's unsent frames. The lowest level of
// its limits is the subscription itself.
type Queue struct {
	account *Account
	frames  uint64 // guarded by account.server.mu
	bytes   uint64 // guarded by account.server.mu
}

// NewQueue returns an empty queue of the account, which must not be copied once it is used.
// Its frames count against the connection's principal and the server, not against its other
// queues.
func (a *Account) NewQueue() Queue { return Queue{account: a} }

// Push charges frames and bytes together, or changes nothing and returns an
// *[Exceeded].
func (q *Queue) Push(frames, bytes uint64) error {
	a := q.account
	a.server.mu.Lock()
	defer a.server.mu.Unlock()
	if a.closed {
		return &Exceeded{Resource: UnsentFrames, Level: OfConnection}
	}
	own := q.counts()
	err := a.server.takeLocked(a.principal, &own, amount{UnsentFrames, frames}, amount{UnsentBytes, bytes})
	if err != nil {
		return err
	}
	q.frames, q.bytes = own[UnsentFrames], own[UnsentBytes]
	// The account carries its queues' sums so that Close returns them too.
	a.own[UnsentFrames] += frames
	a.own[UnsentBytes] += bytes
	return nil
}

// counts is what the queue holds. The caller holds account.server.mu.
func (q *Queue) counts() counts { return counts{UnsentFrames: q.frames, UnsentBytes: q.bytes} }

// Pop returns what was sent or dropped. Popping more than was pushed panics.
func (q *Queue) Pop(frames, bytes uint64) {
	a := q.account
	a.server.mu.Lock()
	defer a.server.mu.Unlock()
	q.popLocked(frames, bytes)
}

// Clear returns all that the queue still holds.
func (q *Queue) Clear() {
	a := q.account
	a.server.mu.Lock()
	defer a.server.mu.Unlock()
	q.popLocked(q.frames, q.bytes)
}

func (q *Queue) popLocked(frames, bytes uint64) {
	a := q.account
	if a.closed { // Close has returned it
		q.frames, q.bytes = 0, 0
		return
	}
	own := q.counts()
	a.server.giveLocked(a.principal, &own, amount{UnsentFrames, frames}, amount{UnsentBytes, bytes})
	q.frames, q.bytes = own[UnsentFrames], own[UnsentBytes]
	a.own[UnsentFrames] -= frames
	a.own[UnsentBytes] -= bytes
}
