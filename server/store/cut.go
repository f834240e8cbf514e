package store

import (
	"maps"
	"sync"
	"sync/atomic"

	"coordinator/frames"
)

// A Cut is the store as of one commit, for as long as it is open. Making one copies two
// tree roots. Any goroutine may page through it.
type Cut struct {
	s      *Store
	live   *rowTree
	active *changeTree
	frozen *changeTree // or nil
	commit uint64
	state  State
	ops    *opTree

	superseded atomic.Uint64
	closed     atomic.Bool
}

// pageRows bounds the history rows that one bbolt transaction visits, and pageBytes the
// bytes that one Page returns beyond its first row.
const (
	pageRows  = 8192
	pageBytes = 1 << 20
)

// cutSet is the open cuts. The checkpoint asks it what it may overwrite.
type cutSet struct {
	mu   sync.Mutex
	open map[*Cut]struct{} // guarded by mu
}

// charge adds weight to every open cut that sees a version of commit old and not the one
// of commit now, and reports whether there is any.
func (cs *cutSet) charge(old, now, weight uint64) (held bool) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for c := range cs.open {
		if old <= c.commit && c.commit < now {
			c.superseded.Add(weight)
			held = true
		}
	}
	return held
}

// Cut makes a cut of the last commit. Writer only, between transactions, and while nothing is
// applied that has not landed.
func (s *Store) Cut() *Cut {
	s.onGround("a cut")
	c := &Cut{
		s: s, live: s.mem.live.Copy(), active: s.mem.active.tree.Copy(),
		commit: s.state.Commit, state: s.state,
		ops: s.mem.counts.ops.Copy(),
	}
	c.state.Counts = maps.Clone(s.mem.counts.kinds)
	if s.mem.frozen != nil {
		c.frozen = s.mem.frozen.tree
	}
	s.cuts.mu.Lock()
	s.cuts.open[c] = struct{}{}
	s.cuts.mu.Unlock()
	return c
}

// Close gives back what the cut held. It may be called twice, and while a Page runs.
func (c *Cut) Close() {
	if c.closed.Swap(true) {
		return
	}
	c.s.cuts.mu.Lock()
	delete(c.s.cuts.open, c)
	c.s.cuts.mu.Unlock()
}

// Seq is the event cut: the head when the cut was made.
func (c *Cut) Seq() frames.EventCut { return c.state.Head }

// State is the store's state when the cut was made.
func (c *Cut) State() State { return c.state }

// Count is how many rows of a kind the cut has, of every principal.
func (c *Cut) Count(kind frames.ObjectKind) uint64 { return c.state.Counts[kind] }

// OperationsOf is how many OPERATION rows of one principal the cut has.
func (c *Cut) OperationsOf(principal frames.KeyID) uint64 {
	n, _ := c.ops.Get(opCount{principal: principal})
	return n.n
}

// Superseded is the bytes of row versions that commits have replaced since the cut and
// that exist for its sake, or held back for it (protocol.md §2.3 [D-5]).
func (c *Cut) Superseded() uint64 { return c.superseded.Load() }

// Visible decides whether a reader sees rows of a kind and, for OPERATION rows, of a
// principal (zero for other kinds). It is called while a read transaction is open and must
// not block.
type Visible func(kind frames.ObjectKind, principal frames.KeyID) bool

// Page returns visible rows in key order, behind after (the zero Key: from the start): at
// least one unless none is left, at most maxRows, and no more once they exceed 1 MiB. Done
// means that nothing visible follows; without it, nothing may follow all the same. The
// rows are shared and must not be changed.
func (c *Cut) Page(after Key, visible Visible, maxRows int) (rows []Row, done bool, err error) {
	return c.PageIn(nil, after, visible, maxRows)
}

// PageIn is Page for a caller with room for rows: they are put there, over what it holds, as
// far as its capacity goes.
func (c *Cut) PageIn(room []Row, after Key, visible Visible, maxRows int) (rows []Row, done bool, err error) {
	p := &page{cut: c, after: after, visible: visible, max: max(maxRows, 1), rows: room[:0]}
	for !p.full() {
		if c.closed.Load() {
			return nil, false, ErrClosed
		}
		old, through, end, err := c.s.hist.read(p)
		if err != nil {
			return nil, false, c.s.readFault(err)
		}
		if p.merge(old, through, end) {
			return p.rows, true, nil
		}
	}
	return p.rows, false, nil
}

// A page is one Page call under way: everything up to and including after is decided.
type page struct {
	cut     *Cut
	after   Key
	visible Visible
	max     int
	rows    []Row
	bytes   int
	anyOps  int8 // whether any principal's operations are visible: 0 not asked, 1 yes, -1 no
}

func (p *page) full() bool { return len(p.rows) >= p.max || p.bytes > pageBytes }

func (p *page) sees(kind frames.ObjectKind, principal frames.KeyID) bool {
	if kind != frames.KindOperation {
		principal = frames.KeyID{}
	}
	return !internal(kind) && p.visible(kind, principal)
}

// seesKind reports whether any row of a kind can be visible.
func (p *page) seesKind(kind frames.ObjectKind) bool {
	if kind != frames.KindOperation {
		return !internal(kind) && p.visible(kind, frames.KeyID{})
	}
	if p.anyOps == 0 {
		p.anyOps = -1
		p.cut.ops.Scan(func(c opCount) bool {
			if p.visible(kind, c.principal) {
				p.anyOps = 1
			}
			return p.anyOps < 0
		})
	}
	return p.anyOps > 0
}

func (p *page) add(r *row) {
	p.rows = append(p.rows, r.Row)
	p.bytes += int(r.weight())
	p.after = r.key
}

// merge takes the rows of history, which are all that the cut may see up to through (up to
// the very end if end is set), together with what memory holds in that range; memory wins.
// It reports whether everything there is has been taken.
func (p *page) merge(old []*row, through Key, end bool) bool {
	m := newMemoryWalk(p.cut, p.after)
	for {
		k, r, ok := m.peek()
		if ok && !end && through.less(k) {
			ok = false
		}
		switch {
		case p.full():
			return !ok && len(old) == 0 && end
		case len(old) > 0 && (!ok || old[0].key.less(k)):
			p.add(old[0])
			old = old[1:]
			continue
		case !ok:
			if !end {
				p.after = through
			}
			return end
		}
		if len(old) > 0 && old[0].key == k {
			old = old[1:]
		}
		if r != nil && p.sees(r.key.Kind(), r.Principal) {
			p.add(r)
		}
		m.skip(k)
	}
}

// A memoryWalk goes through the keys that a cut has in memory, in order. The live tree
// wins over the active overlay, and that over the frozen one.
type memoryWalk struct {
	live    walk[row, *row]
	overlay [2]walk[change, *change]
}

func newMemoryWalk(c *Cut, after Key) *memoryWalk {
	m := &memoryWalk{}
	m.live.start(c.live, after)
	m.overlay[0].start(c.active, after)
	if c.frozen != nil {
		m.overlay[1].start(c.frozen, after)
	}
	return m
}

// peek returns the smallest key and its row; a nil row does not exist but hides history.
func (m *memoryWalk) peek() (k Key, r *row, ok bool) {
	if m.live.ok {
		k, r, ok = m.live.item.key, m.live.item, true
	}
	for i := range m.overlay {
		if w := &m.overlay[i]; w.ok && (!ok || w.item.key.less(k)) {
			k, r, ok = w.item.key, w.item.row, true
		}
	}
	return k, r, ok
}

// skip moves every tree past k.
func (m *memoryWalk) skip(k Key) {
	if m.live.ok && m.live.item.key == k {
		m.live.next()
	}
	for i := range m.overlay {
		if w := &m.overlay[i]; w.ok && w.item.key == k {
			w.next()
		}
	}
}
