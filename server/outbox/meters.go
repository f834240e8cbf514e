package outbox

import (
	"sync/atomic"

	"coordinator/frames"
	"coordinator/server/work"
)

// Meters count what goes to owners and comes from them. They may be read from any goroutine.
type Meters struct {
	Links      atomic.Uint64 // links that came up
	Dispatched atomic.Uint64 // attempts sent
	LookedUp   atomic.Uint64 // attempts whose outcome was asked for
	// Outcomes counts findings that were made durable, by the state that they lead to;
	// Never those that an owner never saw.
	Outcomes [frames.EffectIndeterminate + 1]atomic.Uint64
	Never    atomic.Uint64
	Facts    atomic.Uint64 // source facts that were decided and acknowledged
	Notable  atomic.Uint64 // of those, neither admitted nor duplicates: conflicts, jumps, late ones
}

// Meters are the outbox's own counts.
func (b *Outbox) Meters() *Meters { return &b.meters }

// outcome counts one finding.
func (m *Meters) outcome(f work.Finding) {
	if f.Never {
		m.Never.Add(1)
	} else if int(f.State) < len(m.Outcomes) {
		m.Outcomes[f.State].Add(1)
	}
}

// A Use is what the outbox holds at a moment.
type Use struct {
	Owners, Up        int // configured, and of those with a link that serves
	Ready, Dispatched int // open attempts by their durable state
	Homeless          int // open attempts of owners that are not configured
	Bindings          int // active ones of configured owners
}

// Use reads what is open.
func (b *Outbox) Use() Use {
	u := Use{Owners: len(b.peers)}
	for _, p := range b.peers {
		p.mu.Lock()
		if p.up {
			u.Up++
		}
		for _, e := range p.effects {
			if e.Attempt.State == frames.EffectReady {
				u.Ready++
			} else {
				u.Dispatched++
			}
		}
		u.Bindings += len(p.bindings)
		p.mu.Unlock()
	}
	b.mu.Lock()
	u.Homeless = len(b.lost)
	b.mu.Unlock()
	return u
}

// A LinkState is how the link to one owner stands.
type LinkState struct {
	Name string `json:"name"` // of the owner, in coordinator.toml
	Up   bool   `json:"up"`
	Why  string `json:"why,omitempty"` // it is not up; empty until the first try has ended
}

// Links reads how the links stand, in the order in which the owners are configured.
func (b *Outbox) Links() []LinkState {
	out := make([]LinkState, 0, len(b.o.Owners))
	for _, o := range b.o.Owners {
		p := b.peers[o.Fingerprint]
		p.mu.Lock()
		out = append(out, LinkState{Name: o.Name, Up: p.up, Why: p.why})
		p.mu.Unlock()
	}
	return out
}
