package sim

import (
	"context"

	"coordinator/client"
	"coordinator/frames"
	"coordinator/server/work"
)

// replicate keeps the client's view by a replica, and a copy of it by what the replica's
// feed tells.
func (c *simClient) replicate(ctx context.Context, opts client.FollowOptions) {
	r, err := client.OpenReplica(c.pins, client.ReplicaOptions{Options: opts.Options, SubscribeOptions: opts.SubscribeOptions})
	if err != nil {
		c.w.fault("%s: replica: %v", c.name, err)
		c.done["view"] <- nil
		return
	}
	c.replica, c.lastView, c.fed = r, nil, nil
	feed := r.Changes(1 + c.w.rng.IntN(20))
	go func() {
		defer feed.Close()
		for n, err := range feed.All(ctx) {
			c.mu.Lock()
			for c.slow && ctx.Err() == nil {
				c.changed.Wait()
			}
			if err == nil {
				c.take(n)
			}
			c.mu.Unlock()
		}
		c.done["view"] <- nil
	}()
}

// take applies a notice to what was fed; mu is held.
func (c *simClient) take(n client.Notice) {
	switch n := n.(type) {
	case *client.Reread:
		c.fed = map[frames.ObjectRef]*client.Record{}
		for r := range n.View.All() {
			c.fed[r.Ref()] = r
		}
	case *client.Change:
		old := n.Old
		if n.Old == nil {
			old = n.New
		}
		if have := c.fed[old.Ref()]; have != n.Old {
			c.w.fault("%s: a change of %v from %v, and it was fed %v", c.name, old.Ref(), n.Old, have)
		}
		delete(c.fed, old.Ref())
		if n.New != nil {
			c.fed[n.New.Ref()] = n.New
		}
	}
}

// judgeReplica holds what the replica shows against what was there.
func (w *world) judgeReplica(c *simClient) {
	v := c.replica.View()
	if state := c.replica.State(); state.Phase.Final() && !c.stopping {
		w.fault("%s: its replica has ended in the phase %v: %v", c.name, state.Phase, state.Err)
	}
	if s := c.replica.State(); s.Phase == client.ReplicaCurrent && (v == nil || !v.Current) {
		w.fault("%s: its replica says that it is current, and that its view is not", c.name)
	}
	if v == nil || v == c.lastView {
		return
	}
	if before := c.lastView; before != nil && before.Guard.Activation != v.Guard.Activation {
		lost := c.replica.State().Lost
		w.judgeTurn(c, turn{before.Guard.Activation, v.Guard.Activation, before.Cut, lost != nil && lost.Found == v.Guard.Activation})
	}
	if c.lastView == nil {
		c.mu.Lock()
		c.resumed(v.Guard.Activation)
		turns := c.turns
		c.turns = nil
		c.mu.Unlock()
		for _, t := range turns {
			w.judgeTurn(c, t)
		}
	}
	c.lastView = v
	if v.Current {
		w.judgeView(c, viewOf(v), work.Viewer{Principal: c.viewer().Principal, Scope: v.Scope, Capabilities: v.Capabilities})
	}
}

// viewOf is a replica's view in the form of a follower's.
func viewOf(v *client.View) *view {
	out := &view{records: copyOf{}, guard: v.Guard, cut: v.Cut, exact: v.Current}
	for r := range v.All() {
		record := r.Snapshot()
		out.records[r.Ref()] = &record
	}
	return out
}

// exactly is the view that the client has, if it says that it is exact.
func (c *simClient) exactly() *view {
	if c.replica != nil {
		if v := c.replica.View(); v != nil && v.Current {
			return viewOf(v)
		}
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.view == nil || !c.view.exact {
		return nil
	}
	return c.view
}

// fedAs reports whether what the feed told adds up to a view.
func (c *simClient) fedAs(v *view) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.fed) != len(v.records) {
		return false
	}
	for ref, r := range c.fed {
		record := r.Snapshot()
		if have := v.records[ref]; have == nil || !sameRecord(have, &record) {
			return false
		}
	}
	return true
}
