package client

import "time"

// What follows runs on the replica's goroutine: the follower gives its updates, and what
// they make of the table is published.

// learn makes the table of a snapshot that has verified. It is published when the
// subscription behind it has been accepted.
func (r *Replica) learn(s *Snapshot) (knowledge, error) {
	if s.Lost != nil {
		r.lost(s.Lost)
	}
	return load(s, r.work, tableLimits{records: r.opts.MaxRecords, bytes: r.opts.MaxBytes})
}

// connected implements [attendant].
func (r *Replica) connected(c *Conn) {
	if c == nil {
		r.contact = time.Unix(0, r.conn.heard.Load())
		r.conn = nil // what is published is held against the connection until the gap is told
		return
	}
	r.conn = c
	r.enter(func(s *ReplicaState) {
		switch v := r.follower.view; {
		case v == nil:
			s.Phase, s.Gap = ReplicaSyncing, nil // the attempts before it are over
		case v.guard != c.guard && s.Phase == ReplicaStale:
			s.Reason = StaleAuthority
		}
	})
}

// lost implements [attendant].
func (r *Replica) lost(l *LostHistory) {
	r.enter(func(s *ReplicaState) {
		s.Lost = l
		if r.work != nil {
			s.Phase, s.Reason = ReplicaLostHistory, StaleNone
		}
	})
}

// take is what the follower tells.
func (r *Replica) take(u Update, err error) {
	switch u := u.(type) {
	case *Synced:
		r.synced(u)
	case *Healed:
		r.healing = u
		if sub := r.follower.sub; !sub.pending() && !sub.waiting() {
			r.healed()
		}
	case *Event:
		r.event()
	case *Gap:
		r.gap(u)
	case nil:
		r.end(err)
	}
}

// event takes in an event that the table has applied. A replay is published as one, and
// live events together with those that wait behind them.
func (r *Replica) event() {
	r.applied++
	r.note()
	switch sub := r.follower.sub; {
	case sub.pending(): // a replay stays back until its end
	case sub.waiting() && r.applied < publishEvery:
	case r.healing != nil:
		r.healed()
	default:
		r.current(nil, nil)
	}
}

// note keeps the change just applied for the feeds.
func (r *Replica) note() {
	c := r.work.last
	r.work.last = Change{}
	if r.skipped || r.listening.Load() == 0 {
		r.skipped = true
		return
	}
	r.untold = append(r.untold, c)
	if r.bytes += c.size(); len(r.untold) > maxUntold || r.bytes > feedBytes {
		r.untold, r.skipped = nil, true
	}
}

// healed publishes what a gap held back.
func (r *Replica) healed() {
	h := r.healing
	r.healing = nil
	r.current(nil, func(s *ReplicaState) { s.Healed = h })
}

// synced puts the table of a snapshot in the place of what there was.
func (r *Replica) synced(snap *Synced) {
	r.work = r.follower.sub.seen.(*table)
	r.forget()
	r.healing = nil
	r.current(snap, func(s *ReplicaState) {
		s.Healed = nil
		if snap.Lost != nil {
			s.Lost = snap.Lost
		}
	})
}

// current publishes the table. The view is current where the coordinator could send more
// (protocol.md §10 [D-20]) and nothing that it has sent waits.
func (r *Replica) current(snap *Synced, edit func(*ReplicaState)) {
	f, s := r.follower, r.now.Load().state
	if edit != nil {
		edit(&s)
	}
	// A write that fails ends the connection, which the follower tells next.
	covered, err := f.sub.settle(r.ctx)
	s.Gap = nil
	if s.Phase, s.Reason = ReplicaCurrent, StaleNone; !covered || err != nil || f.sub.waiting() {
		s.Phase, s.Reason = ReplicaStale, StaleBehind
	}
	info := &f.conn.hello
	v := &View{Guard: f.view.guard, Incarnation: info.IncarnationID, Capabilities: info.Capabilities, Scope: info.Grant.Scope,
		Current: s.Phase == ReplicaCurrent}
	st := r.fill(&s, v)
	if snap != nil {
		st.reread = &Reread{Reason: RereadSnapshot, View: v, State: s}
	}
	r.publish(s, v, st)
}

// gap keeps the view and says that it is stale. What was applied before the gap is
// published with it, unless it is part of a replay: that stays back until the gap is healed.
func (r *Replica) gap(g *Gap) {
	old := r.now.Load()
	s := old.state
	s.Gap = g
	if r.work == nil {
		s.Phase = ReplicaConnecting
		r.publish(s, nil, step{})
		return
	}
	s.Phase, s.Reason = ReplicaStale, StaleGap
	if g.Cause != nil {
		s.Reason = StaleDisconnected
	}
	v := *old.view
	v.Current = false
	st := step{}
	if r.applied > 0 && r.healing == nil {
		st = r.fill(&s, &v)
		st.earlier = true
	}
	r.publish(s, &v, st)
}

// end is the end of the replica.
func (r *Replica) end(err error) {
	r.enter(func(s *ReplicaState) { s.Phase, s.Reason, s.Err = finalPhase(err), StaleNone, err })
}

// enter publishes another state of the same view.
func (r *Replica) enter(edit func(*ReplicaState)) {
	old := r.now.Load()
	s, v := old.state, old.view
	edit(&s)
	if v != nil && v.Current && s.Phase != ReplicaCurrent {
		stale := *v
		stale.Current = false
		v = &stale
	}
	r.publish(s, v, step{})
}

// fill gives v the table's records as they now stand, and takes what feeds are told of it.
func (r *Replica) fill(s *ReplicaState, v *View) step {
	t := r.work
	v.Cut = r.follower.view.cut
	v.records, v.below, v.open = t.records.share(), t.below.share(), t.open.share()
	v.counts, v.bytes = t.counts, t.bytes
	s.Guard, s.Cut = v.Guard, v.Cut
	st := step{changes: r.untold, incomplete: r.skipped}
	r.forget()
	return st
}

// forget begins a new publication.
func (r *Replica) forget() { r.untold, r.bytes, r.skipped, r.applied = nil, 0, false, 0 }

// publish shows readers one state and one view, and tells the feeds, at once.
func (r *Replica) publish(s ReplicaState, v *View, st step) {
	old := r.now.Load()
	if s.Phase != old.state.Phase || s.Reason != old.state.Reason {
		s.Since = r.wall()
	}
	if s.LastContact = r.contact; r.conn != nil {
		s.LastContact = time.Unix(0, r.conn.heard.Load())
	}
	if s.differs(&old.state) {
		told := s
		st.state = &told
	}
	st.viewed = v != nil
	p := &published{state: s, view: v, conn: r.conn, next: make(chan struct{})}
	r.mu.Lock()
	r.now.Store(p)
	for f := range r.feeds {
		f.step(&st)
	}
	r.mu.Unlock()
	close(old.next)
}
