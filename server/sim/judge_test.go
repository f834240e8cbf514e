package sim

import (
	"errors"
	"time"

	"coordinator/client"
	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/server/quota"
	"coordinator/server/work"
)

// limits draws what connections may hold. With few unsent frames subscriptions gap often.
func (w *world) limits() {
	w.quotas, w.eventBytes = quota.Defaults(), 0
	if w.rng.IntN(2) == 0 {
		for level := range w.quotas {
			w.quotas[level][quota.UnsentFrames] = uint64(2 + w.rng.IntN(6))
		}
		w.quotas[quota.OfPrincipal][quota.UnsentFrames] = w.quotas[quota.OfConnection][quota.UnsentFrames]
		w.quotas[quota.OfServer][quota.UnsentFrames] = w.quotas[quota.OfConnection][quota.UnsentFrames] + 3
	}
	if w.rng.IntN(2) == 0 {
		w.eventBytes = 20 << 10
	}
	if w.rng.IntN(2) == 0 {
		w.window = 2 << 10 // what is older is read from the log
	}
}

// registryOf is the registry of a coordinator: all have the same keys.
func (w *world) registryOf(*node) *handshake.Registry {
	var records []handshake.Record
	for _, c := range w.clients {
		records = append(records, c.record())
	}
	return handshake.StaticRegistry(records)
}

// inspect looks at what the goroutines did in this instant.
func (w *world) inspect() {
	w.net.mu.Lock()
	wires := append([]*wire(nil), w.net.wires...)
	w.net.mu.Unlock()
	for _, wire := range wires {
		wire.mu.Lock()
		acts, results, fault := wire.watch.acts, wire.watch.told, wire.watch.fault
		w.seen.gaps += wire.watch.gaps
		wire.watch.acts, wire.watch.told, wire.watch.gaps = nil, nil, 0
		wire.mu.Unlock()
		if fault != nil {
			w.fault("%s: %v", wire.node.name, fault)
		}
		if len(acts) > 0 && wire.node.fence != nil {
			w.actsNow(wire.node, "sent "+acts[0])
		}
		for _, t := range results {
			w.told(wire, t)
		}
	}
	for _, c := range w.clients {
		w.judgeClient(c)
	}
}

// told judges a result that was put on the wire.
func (w *world) told(wire *wire, t told) {
	l := wire.lineage
	known, acked := l.acked[t.op]
	if t.result.State == frames.OperationUnknown {
		if t.acked {
			w.fault("%s: operation %v: acknowledged as %v at %d, looked up as unknown", wire.node.name, t.op, known.State, known.Sequence)
		}
		return
	}
	if acked && !sameResult(known, t.result) {
		w.fault("%s: operation %v: acknowledged as %v at %d, and told as %v at %d", wire.node.name, t.op, known.State, known.Sequence, t.result.State, t.result.Sequence)
	}
	l.acked[t.op] = t.result
	w.seen.acked++
	w.seen.results++
}

// judgeClient holds what a client says of its view against what was there.
func (w *world) judgeClient(c *simClient) {
	if c.replica != nil {
		w.judgeReplica(c)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.judged == c.version {
		return
	}
	c.judged = c.version
	for _, t := range c.turns {
		w.judgeTurn(c, t)
	}
	c.turns = nil
	if c.ended != nil && c.stop != nil && !c.stopping {
		w.fault("%s: its follower has ended: %v", c.name, c.ended)
	}
	if c.view != nil && c.view.exact {
		w.judgeView(c, c.view, c.viewer())
	}
}

// judgeView holds a view that says that it is exact against what the store had.
func (w *world) judgeView(c *simClient, v *view, viewer work.Viewer) {
	w.seen.views++
	l := w.lineages[v.guard.Activation]
	if l == nil {
		w.fault("%s: a view under activation %d, which was never granted", c.name, v.guard.Activation)
	} else if err := l.judge(v.records, v.cut, viewer); err != nil {
		w.fault("%s: its view of activation %d is not exact: %v", c.name, v.guard.Activation, err)
	}
}

// judgeTurn expects a client to be told that history is lost when the authority that it has
// turned to does not hold what it was shown (protocol.md §4 [D-26]), and not without reason:
// another part of the client may have been shown more.
func (w *world) judgeTurn(c *simClient, t turn) {
	if t.to < t.from {
		w.fault("%s: went back from activation %d to %d", c.name, t.from, t.to)
	}
	l := w.lineages[t.to]
	held := t.cut == 0 || l.shown[t.from] >= t.cut
	reason := !held
	for a := range c.met {
		reason = reason || l.shown[a] < w.lineages[a].shown[a]
	}
	if !held && !t.lost || t.lost && !reason {
		w.fault("%s: turned from activation %d at event %d to %d: lost=%v, held=%v", c.name, t.from, t.cut, t.to, t.lost, held)
	}
	if t.lost {
		w.seen.losses++
	}
}

// judgeQuotas expects nobody to hold more than a limit allows, and nothing once every
// connection has ended.
func (w *world) judgeQuotas(n *node, ended bool) {
	asked := map[*simClient]int{} // and not answered
	for _, wire := range w.net.inUse() {
		if wire.node == n {
			wire.mu.Lock()
			asked[wire.client] += len(wire.watch.asked)
			wire.mu.Unlock()
		}
	}
	for _, c := range w.clients {
		if own, _ := n.server.Quotas().Use(quota.Principal(c.viewer().Principal), quota.Requests); own > uint64(asked[c]) {
			w.fault("%s: %s holds %d requests, and only %d are not answered", n.name, c.name, own, asked[c])
		}
		for r := quota.Connections; r <= quota.Pending; r++ {
			own, all := n.server.Quotas().Use(quota.Principal(c.viewer().Principal), r)
			if own > w.quotas[quota.OfPrincipal][r] || all > w.quotas[quota.OfServer][r] {
				w.fault("%s: %s holds %d %v, all hold %d", n.name, c.name, own, r, all)
			}
			if ended && (own != 0 || all != 0) {
				w.fault("%s: no connection is left, and %s still holds %d %v, all hold %d", n.name, c.name, own, r, all)
			}
		}
	}
}

// begins notes the beginning of a deed.
func (w *world) begins(client int, r *request, tried *lineage) *deed {
	w.tick++
	d := &deed{client: client, r: r, call: w.tick, tried: map[*lineage]bool{}}
	if tried != nil {
		d.tried[tried] = true
	}
	w.deeds = append(w.deeds, d)
	return d
}

// ends notes what a deed came to. A refusal for any other reason than the state of the
// object says nothing of an earlier attempt.
func (w *world) ends(d *deed, on *lineage, result frames.OperationResult, err error) {
	w.tick++
	d.ret, d.on = w.tick, on
	var refused *client.RefusedError
	var refusal *work.Refusal
	code := frames.Code(0)
	if errors.As(err, &refused) && !errors.As(err, new(*client.OutcomeUnknownError)) && !errors.Is(err, client.ErrNotSent) {
		code = refused.Code
	} else if errors.As(err, &refusal) {
		code = refusal.Code
	}
	switch {
	case err == nil && result.State == frames.OperationSucceeded:
		d.out, d.seq = succeeded, result.Sequence
	case err == nil && result.State == frames.OperationUnknown && d.r.looks:
		d.out = absent
	case !d.r.looks && (code == frames.CodeRevisionConflict || code == frames.CodeNotFound):
		d.out = conflicts
	}
}

// concluded takes what a client learned of its command.
func (w *world) concluded(c *simClient, j *job) {
	w.ends(j.deed, j.on, j.result, j.err)
	if !j.r.looks && errors.As(j.err, new(*client.OutcomeUnknownError)) {
		c.open = append(c.open, j.r)
	}
	w.say("%s: %v ended as %v: %v", c.name, j.r.cmd.OperationID, j.result.State, j.err)
}

// serve lets time pass while every coordinator that is up does its work.
func (w *world) serve(d time.Duration) {
	end := w.base.Now().Boot + d
	for !w.over() && w.base.Now().Boot < end {
		for _, n := range w.nodes {
			if n.up() && !n.stepping && !n.asleep() {
				n.step()
			}
		}
		w.net.run(16)
		w.collect()
		w.advance(min(time.Duration(20+w.rng.IntN(60))*time.Millisecond, end-w.base.Now().Boot))
	}
}

func (w *world) collect() {
	for _, c := range w.clients {
		c.collect()
	}
}

// actClients does one random thing to a client or its connections.
func (w *world) actClients(k int) {
	c := w.clients[w.rng.IntN(len(w.clients))]
	wires := w.net.inUse()
	var wire *wire
	if len(wires) > 0 {
		wire = wires[w.rng.IntN(len(wires))]
	}
	if w.rng.IntN(8) == 0 {
		w.healClients()
	}
	switch {
	case k < 60:
		w.serve(time.Duration(w.rng.IntN(1500)) * time.Millisecond)
	case k < 90:
		c.give()
	case k < 93:
		if c.job != nil {
			w.say("%s: gives up waiting", c.name)
			c.job.cancel()
			w.settle()
		}
	case k < 97 && wire != nil:
		w.say("connection %d: cut", wire.id)
		wire.cut()
	case k < 101 && wire != nil:
		side := w.rng.IntN(2)
		wire.mu.Lock()
		wire.frozen[side] = !wire.frozen[side]
		w.say("connection %d: frozen %v", wire.id, wire.frozen)
		wire.mu.Unlock()
	case k < 104:
		n := w.nodes[w.rng.IntN(len(w.nodes))]
		c.apart[n] = !c.apart[n]
		w.say("%s: apart from %s: %v", c.name, n.name, c.apart[n])
		for _, wire := range wires {
			if wire.client == c && wire.node == n {
				wire.mu.Lock()
				wire.frozen = [2]bool{c.apart[n], c.apart[n]}
				wire.mu.Unlock()
			}
		}
	case k < 109:
		c.mu.Lock()
		slow := !c.slow
		c.mu.Unlock()
		w.say("%s: takes nothing: %v", c.name, slow)
		c.hold(slow)
		w.settle()
	case k < 111:
		w.say("%s: starts anew", c.name)
		c.end()
		c.begin()
	case k < 112 && w.ages:
		w.age()
	}
	w.collect()
}

// age lets weeks pass in which nobody runs. Nobody asks again then for what he asked before:
// an operation whose result has gone for good would run anew.
func (w *world) age() {
	for _, c := range w.clients {
		c.end()
		c.asked, c.open = nil, nil
	}
	for _, n := range w.nodes {
		w.stopNode(n)
		if n.up() {
			n.die()
		}
	}
	for id := range w.asked {
		w.aged[id] = true
	}
	w.order = nil
	w.advance(time.Duration(16+w.rng.IntN(20)) * 24 * time.Hour)
	w.say("weeks have passed")
	for _, c := range w.clients {
		c.begin()
	}
}

// healClients lets every client reach everybody.
func (w *world) healClients() {
	for _, c := range w.clients {
		clear(c.apart)
		c.hold(false)
	}
	for _, wire := range w.net.inUse() {
		wire.mu.Lock()
		wire.frozen = [2]bool{}
		wire.mu.Unlock()
	}
	w.settle()
}

// converge expects every client to see soon what n holds, and every command to end.
func (w *world) converge(n *node) {
	for range 240 {
		w.serve(500 * time.Millisecond)
		if w.over() || !n.up() || w.converged(n) == "" {
			break
		}
	}
	if late := w.converged(n); !w.over() && late != "" {
		w.fault("%s: two minutes after its start %s", n.name, late)
	}
	w.serve(time.Second)
	if w.over() || !n.up() {
		return
	}
	for _, c := range w.clients { // nothing is under way any more
		for _, r := range []quota.Resource{quota.Requests, quota.Leases, quota.PinnedBytes, quota.UnsentFrames, quota.UnsentBytes} {
			if own, _ := n.server.Quotas().Use(quota.Principal(c.viewer().Principal), r); own != 0 {
				w.fault("%s: %s has all that it asked for and still holds %d %v", n.name, c.name, own, r)
			}
		}
	}
}

// converged names a client that is not there yet.
func (w *world) converged(n *node) string {
	for _, c := range w.clients {
		if c.job != nil {
			return c.name + " still waits for a command"
		}
		v := c.exactly()
		if v == nil || v.guard != n.fence.Guard() {
			return c.name + " has no exact view of it"
		}
		if err := n.lineage.judge(v.records, n.lineage.head, c.viewer()); err != nil {
			return c.name + " is not up to date: " + err.Error()
		}
		if c.replica != nil && !c.fedAs(v) {
			return c.name + " was not fed what its view shows"
		}
	}
	return ""
}
