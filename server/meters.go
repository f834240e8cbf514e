package server

import (
	"sync/atomic"

	"coordinator/frames"
	"coordinator/handshake"
)

// A Transport is what a connection came in on.
type Transport uint8

// The transports of the endpoint.
const (
	Unix Transport = iota
	QUIC
	transports // how many there are
)

// String names it in metrics and log lines.
func (t Transport) String() string {
	if t == Unix {
		return "unix"
	}
	return "quic"
}

// transportOf tells by what the proof is bound to.
func transportOf(ch handshake.Channel) Transport {
	if _, ok := ch.(handshake.UDSPeer); ok {
		return Unix
	}
	return QUIC
}

// meters count what the connections of a server ask for and are told.
type meters struct {
	accepted [transports]atomic.Uint64 // connections that were served
	crowded  atomic.Uint64             // closed at accept: too many unauthenticated, or a stop
	foreign  atomic.Uint64             // closed at accept: a process of another user, or none to be known
	requests [256]atomic.Uint64        // frames of authenticated peers, by type
	refusals [256]atomic.Uint64        // COORD_ERRORs that were queued, by code
}

// refusal counts a COORD_ERROR.
func (m *meters) refusal(c frames.Code) {
	if int(c) < len(m.refusals) {
		m.refusals[c].Add(1)
	}
}

// Counts are what connections have asked for and been told since the start, and how many
// there are.
type Counts struct {
	Accepted         [transports]uint64
	Crowded, Foreign uint64 // closed at accept
	// Open connections by transport, before and after HELLO_OK.
	Strangers, Authenticated [transports]uint64
	Requests                 map[frames.Type]uint64 // every type that a client may send
	Refusals                 map[frames.Code]uint64 // every code
}

// counts reads them.
func (s *Server) counts() Counts {
	c := Counts{
		Crowded: s.meters.crowded.Load(), Foreign: s.meters.foreign.Load(),
		Requests: make(map[frames.Type]uint64), Refusals: make(map[frames.Code]uint64),
	}
	for t := range transports {
		c.Accepted[t] = s.meters.accepted[t].Load()
	}
	for n := range s.meters.requests {
		if t := frames.Type(n); t.Known() && t.FromClient() {
			c.Requests[t] = s.meters.requests[n].Load()
		}
	}
	for n := range s.meters.refusals {
		if code := frames.Code(n); code.Known() {
			c.Refusals[code] = s.meters.refusals[n].Load()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for conn := range s.conns {
		if conn.grant.Load() != nil {
			c.Authenticated[conn.transport]++
		} else {
			c.Strangers[conn.transport]++
		}
	}
	return c
}
