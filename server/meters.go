package server

import "coordinator/handshake"

// counts reads what connections have asked for and been told, and how many there are.
func (s *Server) counts() handshake.ConnCounts {
	c := s.meters.Counts()
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
