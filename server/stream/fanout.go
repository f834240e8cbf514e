package stream

import (
	"errors"

	"coordinator/frames"
	"coordinator/server/quota"
	"coordinator/server/store"
)

// Publish takes in one commit, on the writer's goroutine and in commit order. It
// charges every open cut for what the commit superseded, which never refuses the
// commit: a cut that cannot be charged ends alone (protocol.md §2.3 [D-5]), and what
// it gives back may be what the next one needs. It waits for nothing but other
// goroutines' computations.
func (m *Manager) Publish(b store.Batch) {
	for l := m.leases.uncovered(); l != nil; l = m.leases.uncovered() {
		m.o.Logger.Warn("snapshot ended: its cut holds back more than its principal or the server may pin")
		m.meters.LeasesCut.Add(1)
		l.abort(frames.GapInternal)
	}
	admin := false
	for i := range b.Silent {
		if c := &b.Silent[i]; c.Ref.Kind == frames.KindAdmin {
			admin = true
			m.adminHead.Store(uint64(c.Seq))
		}
	}
	for i := range b.Events {
		if ev := &b.Events[i]; ev.Class&store.ClassRemoved != 0 {
			m.removedAt(ev.Object.Kind, ev.Sequence)
		}
	}
	full := m.window.append(b, admin, frames.EventCut(m.counted.Load()))
	switch {
	case full:
		// Counting has fallen behind by a whole window: the writer does it itself.
		m.fanOut()
	case m.listeners.Load() > 0:
		signal(m.published)
	default:
		m.counted.Store(uint64(b.Last))
	}
}

// fanOut counts for every subscription what was published since the last count,
// and wakes the connections that have something to send.
func (m *Manager) fanOut() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.countLocked()
}

// countLocked brings every subscription up to what is published now, which it
// returns. No subscription is added meanwhile, and none is behind another.
func (m *Manager) countLocked() frames.EventCut {
	from := frames.EventCut(m.counted.Load())
	if len(m.groups) == 0 {
		from = m.window.published()
		m.counted.Store(uint64(from))
		m.window.shrink(from)
		return from
	}
	var head frames.EventCut
	m.entries, head = m.window.since(from, m.entries[:0])
	if head == from {
		return head
	}
	now := m.o.Clock.Now().Boot
	for a, sessions := range m.groups {
		m.tally.count(&a, m.entries, from, now)
		if m.tally.all.frames == 0 && !m.tally.blind {
			continue
		}
		for s := range sessions {
			for _, b := range s.count(&m.tally) {
				m.settle(b)
			}
		}
	}
	clear(m.entries)
	if cap(m.entries) > 8*scanStep {
		m.entries, m.tally.sizes = nil, nil // one burst must not hold its memory for good
	}
	m.counted.Store(uint64(head))
	m.window.shrink(head)
	return head
}

// settle charges what b owes. While an aggregate quota is full the subscription
// that holds most of it gets the GAP (protocol.md §10 [D-58]). The caller holds mu
// and no session's lock.
func (m *Manager) settle(b *subscription) {
	for {
		b.s.mu.Lock()
		err := b.payLocked()
		b.s.mu.Unlock()
		if err == nil {
			return
		}
		victim := m.heaviest(b, err)
		victim.s.mu.Lock()
		victim.fail(frames.GapQueueOverflow)
		victim.s.mu.Unlock()
		if victim == b {
			return
		}
	}
}

// heaviest is the subscription that holds most of what ran out: among those of
// b's principal when that is full, and otherwise among those of the principal that
// holds most. It is b when nobody holds any.
func (m *Manager) heaviest(b *subscription, full *quota.Exceeded) *subscription {
	type holder struct {
		sum, most uint64
		sub       *subscription
	}
	holders := make(map[quota.Principal]*holder)
	for _, sessions := range m.groups {
		for s := range sessions {
			p := s.o.Account.Principal()
			h := holders[p]
			if h == nil {
				h = new(holder)
				holders[p] = h
			}
			s.mu.Lock()
			for _, c := range s.subs {
				held := c.charged.plus(c.owed).frames
				if full.Resource == quota.UnsentBytes {
					held = c.charged.plus(c.owed).bytes
				}
				if h.sum += held; held > h.most {
					h.most, h.sub = held, c
				}
			}
			s.mu.Unlock()
		}
	}
	found := holders[b.s.o.Account.Principal()]
	if full.Level == quota.OfServer {
		for _, h := range holders {
			if found == nil || h.sum > found.sum {
				found = h
			}
		}
	}
	if found == nil || found.sub == nil {
		return b
	}
	return found.sub
}

// join makes a session count from now on, at the position that it returns. The
// caller holds mu.
func (m *Manager) joinLocked(s *Session) frames.EventCut {
	if !s.joined {
		s.joined = true
		m.listeners.Add(1)
	}
	head := m.countLocked()
	g := m.groups[s.audience]
	if g == nil {
		g = make(map[*Session]struct{})
		m.groups[s.audience] = g
	}
	g[s] = struct{}{}
	return head
}

// leave ends that for good.
func (m *Manager) leave(s *Session) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !s.joined {
		return
	}
	s.joined = false
	m.listeners.Add(-1)
	g := m.groups[s.audience]
	if delete(g, s); len(g) == 0 {
		delete(m.groups, s.audience)
	}
}

// aggregate gives the refusal of a principal's or the server's quota, as opposed to
// the subscription's own.
func aggregate(err error) *quota.Exceeded {
	var full *quota.Exceeded
	if errors.As(err, &full) && full.Level != quota.OfConnection {
		return full
	}
	return nil
}
