package server

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"syscall"
	"time"

	"coordinator/handshake"
	"coordinator/internal/lograte"
	"coordinator/internal/sock"
)

const (
	// maxUnauthenticated connections may be before their HELLO_OK at once; more
	// are closed at accept (protocol.md §2.3 [D-7]).
	maxUnauthenticated = 64
	// acceptPause is how long accepting rests when the process has no
	// descriptor or memory for another connection.
	acceptPause = 100 * time.Millisecond
)

// acceptor is the part of a listener that the accept loop needs.
type acceptor interface {
	Accept() (*net.UnixConn, error)
}

// acceptLoop hands connections to take until the listener is closed. Exhausted
// descriptors pause it; they do not end it and it does not spin. Meanwhile the spares
// are left to the rest of the process, and it accepts again once it has them back.
func (s *Server) acceptLoop(ctx context.Context, l acceptor, take func(*net.UnixConn), kept *spares) error {
	defer kept.release()
	tries := 0 // without a descriptor
	for {
		var uc *net.UnixConn
		err := kept.fill()
		if err == nil {
			uc, err = l.Accept()
		}
		switch {
		case err == nil:
			if tries > 0 {
				s.log.Info("accepting goes on", "tries", tries)
				tries = 0
			}
			take(uc)
			continue
		case ctx.Err() != nil || errors.Is(err, net.ErrClosed):
			return nil
		case !passing(err):
			return err
		}
		kept.release()
		if tries++; tries == 1 {
			s.log.Warn("accepting pauses", "err", err)
		}
		t := s.clock.NewTimer(acceptPause)
		select {
		case <-t.C():
		case <-ctx.Done():
		}
		t.Stop()
	}
}

// passing reports whether an accept error goes away by itself.
func passing(err error) bool {
	for _, e := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED, syscall.EINTR} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// errCrowded refuses a connection at accept [D-7].
var errCrowded = errors.New("too many unauthenticated connections")

// refused counts and tells of a connection of this machine that was closed at accept.
func (s *Server) refused(err error) { s.refusedOn(handshake.Unix, err) }

// refusedOn is refused on any transport.
func (s *Server) refusedOn(t handshake.Transport, err error) {
	if errors.Is(err, errCrowded) {
		s.meters.Crowded()
	} else {
		s.meters.Foreign()
	}
	s.lines.Refused.Say(s.log, slog.LevelWarn, "connection refused", "transport", t.String(), "reason", lograte.Reason(err))
}

// takeConn asks the kernel who connected and serves the connection.
func (s *Server) takeConn(uc *net.UnixConn) {
	cred, err := sock.SameUser(uc)
	if err == nil && !s.serve(uc, handshake.UDSPeer{Cred: cred}, func() { <-s.local }) {
		err = errCrowded
	}
	if err != nil {
		s.refused(err)
		uc.Close()
		<-s.local
	}
}

// each calls f for every connection there is, outside the lock.
func (s *Server) each(f func(*conn)) {
	s.mu.Lock()
	all := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		all = append(all, c)
	}
	s.mu.Unlock()
	for _, c := range all {
		f(c)
	}
}
