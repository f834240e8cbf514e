package commit

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	"coordinator/frames"
	"coordinator/server/store"
	"coordinator/server/work"
)

// A Decide is a change of the domain that is no client's command: a dispatch, an effect's
// result, source facts, an owner that is gone. It may run more than once; only what its last
// run gave counts, and it has happened when the reply comes with nil.
type Decide func(v work.View, env work.Env) (work.Outcome, error)

// domainSize and domainEvents estimate a small change; facts are estimated by their number.
const (
	domainSize   = 4 << 10
	domainEvents = 8
)

// Domain makes an amendment of fn. refs are what it may read and is known beforehand; what
// else it reads is found out when it does. n is the number of facts in it, zero when it has
// none, and bytes what they take.
func Domain(refs []frames.ObjectRef, n, bytes int, fn Decide) *Amendment {
	return &Amendment{refs: refs, size: domainSize*(n+1) + bytes, events: domainEvents + 4*n, decide: fn}
}

// Change applies fn and waits until what it changes is durable and published. A ctx that ends
// first leaves the outcome unknown.
func (w *Writer) Change(ctx context.Context, refs []frames.ObjectRef, fn Decide) error {
	return w.amend(ctx, Domain(refs, 0, 0, fn))
}

// ChangeWhile is Change for a decision that rests on more than records, such as a grant. A
// decision may wait for the flush of the commit before; then still is asked immediately before
// its own is written, on the same goroutine as fn, and unless it reports true fn decides anew.
// It must not block.
func (w *Writer) ChangeWhile(ctx context.Context, refs []frames.ObjectRef, still func() bool, fn Decide) error {
	a := Domain(refs, 0, 0, fn)
	a.still = still
	return w.amend(ctx, a)
}

// Read runs fn between two commits on a view that finds everything, and prefetches again for
// as long as it has not: what fn sees is durable and published. fn may run more than once.
func (w *Writer) Read(ctx context.Context, refs []frames.ObjectRef, fn func(work.View) error) error {
	return w.read(ctx, refs, fn)
}

// Scan gives visit every live row of a kind, between two commits, until it returns false.
func (w *Writer) Scan(ctx context.Context, kind frames.ObjectKind, visit func(store.Row) bool) error {
	return w.Do(ctx, func(s *store.Store) error {
		s.LiveRows(kind, visit)
		return nil
	})
}

// view is a transaction as the domain reads it. A row that only state.db can tell ends the
// decision; it is then made again with that row at hand.
type view struct {
	tx     *store.Tx
	missed needs
}

// needs are rows to prefetch: those of heads without their payloads.
type needs struct{ refs, heads []frames.ObjectRef }

// wideNeeds is how many heads are many: as many as all that wait may hold at once.
const wideNeeds = 256

func (n *needs) wide() bool { return len(n.heads) > wideNeeds }

func (v *view) Record(ref frames.ObjectRef) (work.Stored, bool, error) {
	row, found, err := v.tx.Get(ref)
	if errors.Is(err, store.ErrNotLoaded) {
		v.missed.refs = append(v.missed.refs, ref)
	}
	if err != nil || !found {
		return work.Stored{}, false, err
	}
	return work.Stored{Record: row.Record, Principal: row.Principal, Annex: row.Annex}, true, nil
}

// Heads makes the view a [work.HeadView]: everything that is missing is missed at once.
func (v *view) Heads(refs []frames.ObjectRef) ([]work.Head, error) {
	out := make([]work.Head, 0, len(refs))
	var missing error
	for _, ref := range refs {
		row, found, err := v.tx.GetHead(ref)
		switch {
		case errors.Is(err, store.ErrNotLoaded):
			v.missed.heads = append(v.missed.heads, ref)
			missing = err
		case err != nil:
			return nil, err
		case found:
			out = append(out, work.Head{Ref: ref, Revision: row.Record.Revision, Annex: row.Annex})
		}
	}
	return out, missing
}

// miss reports that a decision ended because v had not everything at hand, and adds what was
// missing to known. Every round adds some, and a decision reads only so many.
func (v *view) miss(err error, known *needs) bool {
	if !errors.Is(err, store.ErrNotLoaded) || len(v.missed.refs)+len(v.missed.heads) == 0 {
		return false
	}
	// The caller's slices are not written to.
	known.refs = append(slices.Clip(known.refs), v.missed.refs...)
	known.heads = append(slices.Clip(known.heads), v.missed.heads...)
	return true
}

// pending counts operations and effect attempts that are not finished (protocol.md §2.3). It
// belongs to the stepping goroutine. What the open round adds is kept apart until it is
// launched, and what others are told until it has landed.
type pending struct {
	of, open map[frames.KeyID]int
	all      int
	openAll  int

	mu    sync.Mutex
	shown map[frames.KeyID]int // guarded by mu: as of the last round that has landed
}

// Pending tells how many operations and effect attempts of each principal are not finished,
// as of the last commit (protocol.md §2.3). Those without any are left out.
func (w *Writer) Pending() map[frames.KeyID]uint64 {
	p := &w.pending
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make(map[frames.KeyID]uint64, len(p.shown))
	for k, n := range p.shown {
		out[k] = uint64(max(n, 0))
	}
	return out
}

// load counts what the store holds, before the first round.
func (p *pending) load(s *store.Store) error {
	if p.of != nil {
		return nil
	}
	p.of, p.open = make(map[frames.KeyID]int), make(map[frames.KeyID]int)
	s.LiveRows(frames.KindOperation, func(r store.Row) bool {
		p.of[r.Principal]++
		p.all++
		return true
	})
	var bad error
	s.LiveRows(work.EffectKind, func(r store.Row) bool {
		e, err := work.DecodeEffect(r.Annex)
		bad = errors.Join(bad, err)
		p.of[e.Principal]++
		p.all++
		return true
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shown = maps.Clone(p.of)
	return bad
}

// forget forgets what a round that is not launched would have added.
func (p *pending) forget() {
	clear(p.open)
	p.openAll = 0
}

func (p *pending) add(changes []work.PendingChange) {
	for _, c := range changes {
		p.open[c.Principal] += c.N
		p.openAll += c.N
	}
}

// apply makes what the open round added count for good.
func (p *pending) apply() {
	for k, n := range p.open {
		addTo(p.of, k, n)
	}
	p.all += p.openAll
	p.forget()
}

// land shows what a round changed.
func (p *pending) land(r *round) {
	if len(r.pending) == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range r.pending {
		addTo(p.shown, c.Principal, c.N)
	}
}

// addTo keeps a map without zeros.
func addTo(m map[frames.KeyID]int, k frames.KeyID, n int) {
	if m[k] += n; m[k] == 0 {
		delete(m, k)
	}
}

func (p *pending) count(k frames.KeyID) (own, all uint64) {
	return uint64(max(p.of[k]+p.open[k], 0)), uint64(max(p.all+p.openAll, 0))
}
