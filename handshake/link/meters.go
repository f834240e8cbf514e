package link

import (
	"sync/atomic"

	"coordinator/frames"
	"coordinator/handshake"
)

// meters count what connections ask for and are told, and how many are open.
type meters struct {
	handshake.ConnMeters
	open [handshake.Transports][2]atomic.Int64
}

// Indexes of meters.open.
const (
	stranger = 0
	proved   = 1
)

// Counts reads what connections have asked for and been told, and how many there are.
func (s *Server) Counts() handshake.ConnCounts {
	c := s.meters.Counts()
	for t := range s.meters.open {
		c.Strangers[t] = uint64(max(s.meters.open[t][stranger].Load(), 0))
		c.Authenticated[t] = uint64(max(s.meters.open[t][proved].Load(), 0))
	}
	return c
}

// encode makes the bytes of a frame and counts a refusal.
func (c *Conn) encode(f frames.Frame) ([]byte, error) {
	if e, ok := f.(*frames.CoordError); ok {
		c.refused.Add(1)
		c.srv.meters.Refusal(e.Code)
	}
	return Append(nil, f)
}
