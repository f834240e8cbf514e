package link

import (
	"sync/atomic"

	"coordinator/frames"
	"coordinator/handshake"
)

// A Transport is what a connection came in on.
type Transport uint8

// The transports of a link.
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

// meters count what connections ask for and are told.
type meters struct {
	accepted [transports]atomic.Uint64
	crowded  atomic.Uint64      // closed at accept: too many unauthenticated
	foreign  atomic.Uint64      // closed at accept: a process of another user
	requests [256]atomic.Uint64 // frames of the link's own, by type
	refusals [256]atomic.Uint64 // COORD_ERRORs that were queued, by code
	open     [transports][2]atomic.Int64
}

// Indexes of meters.open.
const (
	stranger = 0
	proved   = 1
)

// Counts are what connections have asked for and been told since the start, and how many
// there are.
type Counts struct {
	Accepted                 [transports]uint64
	Crowded, Foreign         uint64 // closed at accept
	Strangers, Authenticated [transports]uint64
	Requests                 map[frames.Type]uint64 // every type that was asked for
	Refusals                 map[frames.Code]uint64 // every code
}

// Counts reads them.
func (s *Server) Counts() Counts {
	c := Counts{
		Crowded: s.meters.crowded.Load(), Foreign: s.meters.foreign.Load(),
		Requests: make(map[frames.Type]uint64), Refusals: make(map[frames.Code]uint64),
	}
	for t := range transports {
		c.Accepted[t] = s.meters.accepted[t].Load()
		c.Strangers[t] = uint64(max(s.meters.open[t][stranger].Load(), 0))
		c.Authenticated[t] = uint64(max(s.meters.open[t][proved].Load(), 0))
	}
	for n := range s.meters.requests {
		if v := s.meters.requests[n].Load(); v > 0 {
			c.Requests[frames.Type(n)] = v
		}
	}
	for n := range s.meters.refusals {
		if code := frames.Code(n); code.Known() {
			c.Refusals[code] = s.meters.refusals[n].Load()
		}
	}
	return c
}

// encode makes the bytes of a frame and counts a refusal.
func (c *Conn) encode(f frames.Frame) ([]byte, error) {
	if e, ok := f.(*frames.CoordError); ok {
		c.refused.Add(1)
		if int(e.Code) < len(c.srv.meters.refusals) {
			c.srv.meters.refusals[e.Code].Add(1)
		}
	}
	return Append(nil, f)
}
