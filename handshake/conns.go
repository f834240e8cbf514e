package handshake

import (
	"sync/atomic"

	"coordinator/frames"
)

// A Transport is what a connection came in on.
type Transport uint8

// The transports of every server that authenticates its peers.
const (
	Unix Transport = iota
	QUIC
	Transports // how many there are
)

// String names it in metrics and log lines.
func (t Transport) String() string {
	if t == Unix {
		return "unix"
	}
	return "quic"
}

// TransportOf tells by what the proof is bound to.
func TransportOf(ch Channel) Transport {
	if _, ok := ch.(UDSPeer); ok {
		return Unix
	}
	return QUIC
}

// ConnMeters count what the connections of a server ask for and are told. The zero value is
// ready; the methods may be called from any goroutine.
type ConnMeters struct {
	accepted         [Transports]atomic.Uint64
	crowded, foreign atomic.Uint64
	requests         [256]atomic.Uint64 // by type
	refusals         [256]atomic.Uint64 // by code
}

// Accepted counts a connection that is served.
func (m *ConnMeters) Accepted(t Transport) { m.accepted[t].Add(1) }

// Crowded counts one that was closed at accept because there are too many.
func (m *ConnMeters) Crowded() { m.crowded.Add(1) }

// Foreign counts one that was closed at accept because of the process at its other end.
func (m *ConnMeters) Foreign() { m.foreign.Add(1) }

// Request counts a frame of an authenticated peer.
func (m *ConnMeters) Request(t frames.Type) { m.requests[t].Add(1) }

// Refusal counts a COORD_ERROR.
func (m *ConnMeters) Refusal(c frames.Code) {
	if int(c) < len(m.refusals) {
		m.refusals[c].Add(1)
	}
}

// ConnCounts are what connections have asked for and been told since the start, and how many
// there are.
type ConnCounts struct {
	Accepted         [Transports]uint64 // that were served
	Crowded, Foreign uint64             // closed at accept
	// Open connections, before and after their proof. A server fills them in.
	Strangers, Authenticated [Transports]uint64
	Requests                 map[frames.Type]uint64 // those that came
	Refusals                 map[frames.Code]uint64 // every code
}

// Counts reads what was counted.
func (m *ConnMeters) Counts() ConnCounts {
	c := ConnCounts{
		Crowded: m.crowded.Load(), Foreign: m.foreign.Load(),
		Requests: make(map[frames.Type]uint64), Refusals: make(map[frames.Code]uint64),
	}
	for t := range m.accepted {
		c.Accepted[t] = m.accepted[t].Load()
	}
	for t := range m.requests {
		if n := m.requests[t].Load(); n > 0 {
			c.Requests[frames.Type(t)] = n
		}
	}
	for n := range m.refusals {
		if code := frames.Code(n); code.Known() {
			c.Refusals[code] = m.refusals[n].Load()
		}
	}
	return c
}
