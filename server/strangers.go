package server

import (
	"net"

	"coordinator/handshake"
)

// Serve runs one connection of any transport on goroutines of the server, with
// the channel that its proof is bound to. It reports false, and takes nothing,
// when too many connections are unauthenticated or the server is stopping; the
// caller then closes nc. It does not wait for the connection's end.
func (s *Server) Serve(nc net.Conn, ch handshake.Channel) bool {
	return s.serve(nc, ch, func() {})
}

// serve is Serve with a function that is called once the connection is closed.
func (s *Server) serve(nc net.Conn, ch handshake.Channel, closed func()) bool {
	s.mu.Lock()
	process := processOf(ch)
	if s.stopping || s.waiting >= maxUnauthenticated && !s.makeRoomLocked(process) {
		s.mu.Unlock()
		return false
	}
	s.lastConn++
	c := newConn(s, nc, ch, s.lastConn)
	c.process = process
	s.conns[c] = struct{}{}
	s.meters.Accepted(c.transport)
	s.waiting++
	if process != 0 {
		s.waitingOf[process]++
	}
	s.running.Add(1)
	s.mu.Unlock()
	go func() {
		defer s.running.Done()
		c.serve()
		s.forget(c)
		closed()
	}()
	return true
}

// processOf is the process at the other end of a Unix connection; 0 is a remote peer,
// whose share the transport bounds by itself.
func processOf(ch handshake.Channel) uint64 {
	if peer, ok := ch.(handshake.UDSPeer); ok {
		return peer.PID
	}
	return 0
}

// makeRoomLocked closes the oldest unauthenticated connection of the process that has most
// of them, for another process that has fewer all the same once it has one more. So no
// single process keeps the operator out. The caller holds mu.
func (s *Server) makeRoomLocked(process uint64) bool {
	if process == 0 {
		return false
	}
	var greediest uint64
	for p, n := range s.waitingOf {
		if n > s.waitingOf[greediest] {
			greediest = p
		}
	}
	if s.waitingOf[greediest] <= s.waitingOf[process]+1 {
		return false
	}
	var oldest *conn
	for c := range s.conns {
		if !c.settled && c.process == greediest && (oldest == nil || c.number < oldest.number) {
			oldest = c
		}
	}
	s.settleLocked(oldest)
	oldest.cut()
	return true
}

// authenticated takes a connection out of the count of those that are not.
func (s *Server) authenticated(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settleLocked(c)
	settle(c.nc)
}

// forget drops a connection that has ended.
func (s *Server) forget(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settleLocked(c)
	delete(s.conns, c)
}

// settleLocked counts c among the unauthenticated ones no more. The caller holds mu.
func (s *Server) settleLocked(c *conn) {
	if c.settled {
		return
	}
	c.settled = true
	s.waiting--
	if c.process == 0 {
		return
	}
	if s.waitingOf[c.process]--; s.waitingOf[c.process] == 0 {
		delete(s.waitingOf, c.process)
	}
}
