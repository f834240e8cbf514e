package daemon

import (
	"strings"

	"coordinator/frames"
	"coordinator/handshake"
)

// ConnFamilies are the metrics of the connections of a daemon.
type ConnFamilies struct{ conns, accepted, refused, requests, refusals Family }

// NewConnFamilies declares them under a prefix such as witness_.
func NewConnFamilies(prefix string) ConnFamilies {
	return ConnFamilies{
		conns:    Gauge(prefix+"connections", "Open connections.", "transport", "state"),
		accepted: Counter(prefix+"connections_total", "Connections that were served.", "transport"),
		refused:  Counter(prefix+"connections_refused_total", "Connections closed at accept.", "reason"),
		requests: Counter(prefix+"requests_total", "Requests of authenticated peers.", "type"),
		refusals: Counter(prefix+"refusals_total", "COORD_ERROR frames.", "code"),
	}
}

// Put gives them their values. Types names every request that its peers may send.
func (f ConnFamilies) Put(s *Scrape, c handshake.ConnCounts, types map[frames.Type]string) {
	for _, t := range []handshake.Transport{handshake.Unix, handshake.QUIC} {
		s.Put(f.conns, float64(c.Strangers[t]), t.String(), "unauthenticated")
		s.Put(f.conns, float64(c.Authenticated[t]), t.String(), "authenticated")
		s.Put(f.accepted, float64(c.Accepted[t]), t.String())
	}
	s.Put(f.refused, float64(c.Crowded), "crowded")
	s.Put(f.refused, float64(c.Foreign), "foreign_user")
	for t, name := range types {
		s.Put(f.requests, float64(c.Requests[t]), name)
	}
	for code, n := range c.Refusals {
		s.Put(f.refusals, float64(n), strings.ToLower(code.String()))
	}
}
