package stream

import (
	"sync/atomic"

	"coordinator/frames"
)

// Meters count what the sessions of a manager are given. They may be read from any goroutine.
type Meters struct {
	Gaps [frames.GapInternal + 1]atomic.Uint64 // GAPs handed over, by reason

	Events atomic.Uint64 // live events handed over, each delivery

	Snapshots, SnapshotsEnded         atomic.Uint64 // opened, and sent to their END
	SnapshotPages, SnapshotRecords    atomic.Uint64
	Replays, ReplaysEnded             atomic.Uint64
	ReplayPages, ReplayEvents         atomic.Uint64
	Subscriptions, LeasesCut, Expired atomic.Uint64 // opened; cuts ended for what they hold back; leases out of time
}

// Meters are the manager's own counts.
func (m *Manager) Meters() *Meters { return &m.meters }

// States of a subscription, in the order of [Use].States.
var StateNames = [...]string{reserved: "reserved", live: "live", paused: "paused", replaying: "replaying"}

// A Use is what sessions hold at a moment.
type Use struct {
	States        [replaying + 1]uint64 // subscriptions by state, see [StateNames]
	Starved       uint64                // live ones whose next event no credit covers
	CreditEvents  uint64                // credit that live ones have left
	CreditBytes   uint64
	PendingEvents uint64 // visible events that are not sent
	PendingBytes  uint64

	Snapshots, Replays uint64 // open leases
	// Uncounted are published events that no subscription has been told of yet.
	Uncounted uint64
}

// Use reads what sessions hold.
func (m *Manager) Use() Use {
	var u Use
	m.mu.Lock()
	for _, sessions := range m.groups {
		for s := range sessions {
			u.add(s)
		}
	}
	m.mu.Unlock()
	m.leases.mu.Lock()
	for e := m.leases.open.Front(); e != nil; e = e.Next() {
		if e.Value.(*lease).cut != nil {
			u.Snapshots++
		} else {
			u.Replays++
		}
	}
	m.leases.mu.Unlock()
	counted, published := m.counted.Load(), uint64(m.window.published())
	u.Uncounted = max(published, counted) - counted
	return u
}

func (u *Use) add(s *Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.subs {
		if b.state > replaying {
			continue
		}
		u.States[b.state]++
		u.PendingEvents += b.pending.frames
		u.PendingBytes += b.pending.bytes
		if b.state == live {
			u.CreditEvents += uint64(b.count)
			u.CreditBytes += uint64(b.bytes)
			if b.starved {
				u.Starved++
			}
		}
	}
}

// Counted is the newest event that every subscription has been told of, and whether there
// are newer ones: one that stays where it is while there are means that the manager stands.
func (m *Manager) Counted() (at frames.EventCut, behind bool) {
	at = frames.EventCut(m.counted.Load())
	return at, m.window.published() > at
}
