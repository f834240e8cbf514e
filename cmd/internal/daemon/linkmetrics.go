package daemon

import (
	"strings"

	"coordinator/frames"
	"coordinator/handshake/link"
)

// LinkFamilies are the metrics of a daemon that serves one of the internal links.
type LinkFamilies struct{ conns, accepted, refused, requests, refusals Family }

// NewLinkFamilies declares them under a prefix such as witness_.
func NewLinkFamilies(prefix string) LinkFamilies {
	return LinkFamilies{
		conns:    Gauge(prefix+"connections", "Open connections.", "transport", "state"),
		accepted: Counter(prefix+"connections_total", "Connections that were served.", "transport"),
		refused:  Counter(prefix+"connections_refused_total", "Connections closed at accept.", "reason"),
		requests: Counter(prefix+"requests_total", "Requests of authenticated peers.", "type"),
		refusals: Counter(prefix+"refusals_total", "COORD_ERROR frames.", "code"),
	}
}

// Put gives them their values. Types names every request that the link has.
func (f LinkFamilies) Put(s *Scrape, c link.Counts, types map[frames.Type]string) {
	for _, t := range []link.Transport{link.Unix, link.QUIC} {
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
