package server

import (
	"context"

	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/server/authority"
	"coordinator/server/commit"
	"coordinator/server/quota"
	"coordinator/server/store"
	"coordinator/server/stream"
)

// Parts is what a caller brings that starts a coordinator itself, step by step, where [Run]
// would. The simulation does: it has neither sockets nor a file system to watch, and it
// decides when the writer may go on.
type Parts struct {
	Store      *store.Store
	Activation *authority.Activation
	Key        *handshake.Key
	Registry   *handshake.Registry
	// Committed is called for each commit that is published, before anybody else learns
	// of it. Nil is ignored.
	Committed func(store.Batch)
	// WindowBytes bounds the newest events that are kept in memory. Zero means 64 MiB.
	WindowBytes int
}

// Assemble makes the server of an activation that was granted and is not installed yet. It
// starts nothing; [Server.Serve] runs the connections that it is given. The caller installs
// the activation through [Server.Writer] first, keeps the lease, runs the parts below, and
// ends with [Server.Cut] or, once the fence is closed, [Server.Wait].
func Assemble(o Options, p Parts) (*Server, error) {
	o = o.withDefaults()
	s, err := newServer(o, p.Store)
	if err != nil {
		return nil, err
	}
	s.registry, s.committed, s.window = p.Registry, p.Committed, p.WindowBytes
	s.activate(o, p.Activation, p.Key)
	return s, nil
}

// Fence is what every act of the server passes.
func (s *Server) Fence() *authority.Fence { return s.fence }

// Writer commits what connections propose, when it is run or stepped.
func (s *Server) Writer() *commit.Writer { return s.writer }

// Streams must run for leases to expire and for events to reach their subscriptions.
func (s *Server) Streams() *stream.Manager { return s.streams }

// Quotas are the accounts of all connections.
func (s *Server) Quotas() *quota.Server { return s.quotas }

// Tend keeps the store in order until ctx ends.
func (s *Server) Tend(ctx context.Context) error { return s.tend(ctx) }

// Renewed tells every authenticated connection of a certificate that is in force.
func (s *Server) Renewed(cert frames.Certificate) { s.announce(cert) }

// Cut ends every connection at once, as the end of the process would, and waits for them.
func (s *Server) Cut() {
	s.refuse()
	s.each((*conn).cut)
	s.running.Wait()
}

// Wait takes no more connections and waits until those there are have ended, as each does
// soon after the fence has closed.
func (s *Server) Wait() {
	s.refuse()
	s.running.Wait()
}

// refuse takes no connection from here on.
func (s *Server) refuse() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopping = true
}
