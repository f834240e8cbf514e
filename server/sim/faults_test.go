package sim

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"coordinator/codec"
	"coordinator/frames"
	"coordinator/server/commit"
	"coordinator/server/work"
)

// pauseFor draws the length of a pause. Where no wall clock is ever stepped it may be one
// that stays unseen and that the margin of a lease must cover (protocol.md §4 [D-9]); with
// steps, no clock could tell such a pause from a step that makes up for it.
func (w *world) pauseFor() time.Duration {
	if w.steady && w.rng.IntN(2) == 0 {
		return time.Duration(w.rng.IntN(2000)) * time.Millisecond
	}
	return 2100*time.Millisecond + time.Duration(w.rng.IntN(14000))*time.Millisecond
}

// delay draws how long a request or its reply is under way, mostly not at all.
func (w *world) delay() time.Duration {
	return time.Duration(max(0, w.rng.IntN(9000)-5000)) * time.Millisecond
}

// pause stops the machine of n for d as a hypervisor does: nothing runs on it and its
// BOOTTIME stands still, and when it wakes its wall clock is set right.
func (w *world) pause(n *node, d time.Duration) {
	c := n.clock
	before, shown := w.base.Now().Boot, c.Now()
	var cut []*node
	for _, o := range w.nodes {
		if o.clock == c && !o.link.cut {
			o.link.cut = true
			cut = append(cut, o)
		}
	}
	w.say("machine of %s: paused", n.name)
	c.paused = &shown
	w.advance(d)
	w.rival(n, d, func(o *node) bool { return o.clock != c })
	c.paused = nil
	c.lost += w.base.Now().Boot - before
	for _, o := range cut {
		o.link.cut = false
		if w.rng.IntN(2) == 0 { // or the renewal is there before anybody acts
			o.link.back = 500 * time.Millisecond
		}
	}
	w.look(c)
	w.say("machine of %s: wakes %v later", n.name, w.base.Now().Boot-before)
}

// brink cuts n off from the witness and has it work on until its lease has run out.
func (w *world) brink(n *node) {
	if !n.up() {
		return
	}
	w.say("%s: works on without the witness", n.name)
	n.link.cut = true
	for range 6 * int(w.lease) {
		if r, err := w.newRequest(); err != nil {
			w.fault("request: %v", err)
		} else {
			w.order = append(w.order, r)
			n.propose(r)
		}
		if n.step(); !n.up() {
			return
		}
		w.advance(200 * time.Millisecond)
	}
}

// look lets whatever runs on a machine read its clocks, so that no later step makes up for
// an earlier one before anybody has seen either.
func (w *world) look(c *machineClock) {
	for _, o := range w.nodes {
		if o.up() && o.clock == c {
			_ = o.fence.Check() // what it says is for whoever acts next
		}
	}
	w.settle()
}

var everything = work.Viewer{Principal: principal, Scope: frames.AllScopes, Capabilities: work.Capabilities}

// served runs fn, which waits for the writer, while n steps. It reports false when fn was
// given up, because the writer could not serve it.
func (n *node) served(fn func(context.Context)) bool {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan struct{})
	go func() { defer close(done); fn(ctx) }()
	for range 6 {
		n.w.settle()
		select {
		case <-done:
			return true
		default:
			n.step()
		}
	}
	cancel()
	<-done
	return false
}

// lookup asks for an operation. What a client was shown must stay, and what was acknowledged
// must be there.
func (w *world) lookup(n *node) {
	if !n.up() || len(w.order) == 0 {
		return
	}
	id := w.order[w.rng.IntN(len(w.order))].cmd.OperationID
	var res frames.OperationResult
	var err error
	writer := n.writer
	_, acked := n.lineage.acked[id] // what is acknowledged from here on, it need not show
	n.served(func(ctx context.Context) { res, err = writer.Lookup(ctx, id, everything) })
	if err != nil || !n.up() {
		return
	}
	w.actsNow(n, "answered a lookup")
	if !acked && res.State == frames.OperationUnknown {
		return
	}
	if known, ok := n.lineage.acked[id]; ok && !sameResult(known, res) {
		w.fault("%s: operation %v: acknowledged as %v at %d, looked up as %v at %d", n.name, id, known.State, known.Sequence, res.State, res.Sequence)
	}
	n.lineage.acked[id] = res
}

// intrude sends an operation id that is known to be taken, from another principal or with
// another document: whatever comes back, it is no result.
func (w *world) intrude(n *node) {
	if !n.up() || len(n.lineage.acked) == 0 {
		return
	}
	var ids []frames.OperationID
	for id := range n.lineage.acked {
		if !w.aged[id] { // whose id may be free again
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return
	}
	slices.SortFunc(ids, func(a, b frames.OperationID) int { return slices.Compare(a[:], b[:]) })
	r := w.asked[ids[w.rng.IntN(len(ids))]]
	cmd, from := r.cmd, everything
	if w.rng.IntN(2) == 0 {
		from.Principal = frames.KeyID{99}
	} else {
		var err error
		id, err := frames.NewID[frames.ObjectiveID](w.bytes)
		if err == nil {
			cmd.Kind = frames.CommandCreateObjective
			cmd.Payload, err = codec.Encode(nil, &frames.CreateObjective{ObjectiveID: id, Schema: 1, Document: []byte("another")})
		}
		if err != nil {
			w.fault("request: %v", err)
			return
		}
	}
	parsed, err := work.Parse(&cmd, from, frames.ReferenceLimits().TypedPayload)
	if err != nil {
		w.fault("%s: parse: %v", n.name, err)
		return
	}
	_ = n.writer.Propose(&commit.Proposal{ // refused when the writer has stopped
		Command: parsed, Guard: n.fence.Guard(), Grant: eternal{},
		Done: func(_ frames.OperationResult, err error) {
			if errors.Is(err, commit.ErrUnacknowledged) {
				return
			}
			var refusal *work.Refusal
			if !errors.As(err, &refusal) || refusal.Code != frames.CodeOperationConflict {
				w.fault("%s: operation %v of another principal or digest: %v", n.name, cmd.OperationID, err)
			}
		},
	})
}

// registry loads another set of keys, as a reload of the file does.
func (w *world) registry(n *node) {
	if !n.up() || n.synced {
		return
	}
	var loaded []frames.Credential
	next := maps.Clone(n.lineage.keys)
	for id, c := range next {
		if c.RevokedAt == nil {
			c.RevokedAt = new(uint64) // unless it is loaded again
		}
		if n.lineage.unsure {
			c.ScopeCeiling = 0
		}
		next[id] = c
	}
	for k := range byte(5) {
		if w.rng.IntN(2) == 0 {
			continue
		}
		c := frames.Credential{KeyID: frames.KeyID{200, k}, ScopeCeiling: frames.Scope(1 + w.rng.IntN(3)), ExpiresAt: 1 << 40}
		if w.rng.IntN(4) == 0 {
			at := uint64(1)
			c.RevokedAt = &at
		}
		loaded = append(loaded, c)
		next[c.KeyID] = c
	}
	err := errors.New("given up")
	writer := n.writer
	n.synced = !n.served(func(ctx context.Context) { err = writer.SyncCredentials(ctx, loaded) })
	if err != nil {
		n.lineage.unsure = true
		for _, c := range loaded {
			n.lineage.maybe[c.KeyID] = true
		}
		return
	}
	n.lineage.keys, n.lineage.unsure = next, false
}
