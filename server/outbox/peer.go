package outbox

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"regexp"
	"slices"
	"sync"
	"time"

	"coordinator/frames"
	"coordinator/server/authority"
	"coordinator/server/work"
)

// A peer is one configured owner: what the store wants of it, and its link when it is up.
type peer struct {
	b   *Outbox
	own Owner
	log *slog.Logger

	effectWake, factWake chan struct{} // one slot each

	mu       sync.Mutex
	up       bool                                    // guarded by mu
	why      string                                  // guarded by mu: of the last link's end, or of its refusal
	inc      frames.IncarnationID                    // guarded by mu; while up
	groups   []frames.GroupID                        // guarded by mu; while up
	effects  map[frames.EffectAttemptID]*work.Effect // guarded by mu: open ones
	unseen   map[frames.EffectAttemptID]struct{}     // guarded by mu: not yet looked at in this session
	bindings map[frames.BindingID]frames.IncarnationID
	fresh    map[frames.BindingID]struct{} // guarded by mu: bindings that the session does not know yet
	over     map[frames.BindingID]struct{} // guarded by mu: to be given up while the link is up
}

func newPeer(b *Outbox, own Owner) *peer {
	return &peer{
		b: b, own: own, log: b.o.Logger.With("owner", own.Name),
		effectWake: make(chan struct{}, 1), factWake: make(chan struct{}, 1),
		effects: make(map[frames.EffectAttemptID]*work.Effect), unseen: make(map[frames.EffectAttemptID]struct{}),
		bindings: make(map[frames.BindingID]frames.IncarnationID),
		fresh:    make(map[frames.BindingID]struct{}), over: make(map[frames.BindingID]struct{}),
	}
}

// signal fills a one-slot channel.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (p *peer) serves(inc frames.IncarnationID, group *frames.GroupID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.up && p.inc == inc && (group == nil || slices.Contains(p.groups, *group))
}

func (p *peer) putEffect(e *work.Effect) {
	p.mu.Lock()
	defer p.mu.Unlock()
	id := e.Attempt.ID
	if !e.Open() {
		delete(p.effects, id)
		delete(p.unseen, id)
		return
	}
	p.effects[id] = e
	p.unseen[id] = struct{}{}
	signal(p.effectWake)
}

func (p *peer) dropEffect(id frames.EffectAttemptID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.effects, id)
	delete(p.unseen, id)
}

func (p *peer) putBinding(ref *frames.TerminalBindingRef, active bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if active {
		p.bindings[ref.BindingID] = ref.OwnerIncarnation
		p.fresh[ref.BindingID] = struct{}{}
	} else {
		delete(p.bindings, ref.BindingID)
		delete(p.fresh, ref.BindingID)
		p.giveUpLocked(ref.BindingID)
	}
	signal(p.factWake)
}

// giveUp notes that a run has ended whose process may live [D-45]. What ends while the link
// is down is in the next link's BINDINGS, if the owner still knows it.
func (p *peer) giveUp(id frames.BindingID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.giveUpLocked(id)
	signal(p.factWake)
}

func (p *peer) giveUpLocked(id frames.BindingID) {
	if p.up {
		p.over[id] = struct{}{}
	}
}

// connect notes a link that is up: everything is to be looked at anew.
func (p *peer) connect(l Link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.up, p.why, p.inc, p.groups = true, "", l.Incarnation(), l.Groups()
	clear(p.over)
	for id := range p.effects {
		p.unseen[id] = struct{}{}
	}
	for id := range p.bindings {
		p.fresh[id] = struct{}{}
	}
	signal(p.effectWake)
	signal(p.factWake)
}

func (p *peer) disconnect() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.up, p.groups = false, nil
	clear(p.over)
}

// ended notes why there is no link.
func (p *peer) ended(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.why = err.Error()
}

// nextEffect takes one attempt that is to be looked at.
func (p *peer) nextEffect() (e *work.Effect, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id := range p.unseen {
		delete(p.unseen, id)
		if e := p.effects[id]; e != nil {
			return e, true
		}
	}
	return nil, false
}

// takeBindings gives the active bindings that the session does not know, and what is to be
// given up.
func (p *peer) takeBindings() (fresh map[frames.BindingID]frames.IncarnationID, over []frames.BindingID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fresh = make(map[frames.BindingID]frames.IncarnationID, len(p.fresh))
	for id := range p.fresh {
		fresh[id] = p.bindings[id]
	}
	over = keys(p.over)
	clear(p.fresh)
	clear(p.over)
	return fresh, over
}

// active gives the incarnation of a binding that has not ended.
func (p *peer) active(id frames.BindingID) (inc frames.IncarnationID, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	inc, ok = p.bindings[id]
	return inc, ok
}

// ephemeral is the port of this side in what package net says of a packet that got no answer,
// as of one that asked for the owner's address: another one at each try.
var ephemeral = regexp.MustCompile(`:[0-9]+->`)

// run dials, serves the link and dials again until ctx ends.
func (p *peer) run(ctx context.Context) {
	wait := firstRedial
	var last string
	for {
		up, err := p.session(ctx)
		if ctx.Err() != nil || errors.Is(err, authority.ErrFenced) {
			return
		}
		if up {
			wait = firstRedial
		}
		p.ended(err)
		if text := ephemeral.ReplaceAllString(err.Error(), ":*->"); up || text != last { // once, not at each try
			p.log.Warn("owner link down", "err", err)
			last = text
		}
		if !p.rest(ctx, wait) {
			return
		}
		wait = min(2*wait, lastRedial)
	}
}

// rest waits for half of d and a random part of the other half, so that coordinators do not
// dial a restarted owner in step. It reports false when ctx ended.
func (p *peer) rest(ctx context.Context, d time.Duration) bool {
	var raw [8]byte
	if _, err := io.ReadFull(p.b.o.Rand, raw[:]); err == nil {
		d = d/2 + time.Duration(binary.BigEndian.Uint64(raw[:])%uint64(d/2+1))
	}
	t := p.b.o.Clock.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C():
		return true
	case <-ctx.Done():
		return false
	}
}
