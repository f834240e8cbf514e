package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"

	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/quicnet"
	"coordinator/server/authority"
)

// maxRemoteUnauthenticated is the share of maxUnauthenticated that remote peers
// may take up, TLS handshakes included: whatever they do, the operator at the
// Unix socket gets in.
const maxRemoteUnauthenticated = maxUnauthenticated * 3 / 4

// A remote is the QUIC side of the endpoint; nil when it is off.
type remote struct {
	l         *quicnet.Listener
	accepting *task
	log       *slog.Logger
}

// openRemote binds the QUIC side and accepts on it, if there is to be one. Its
// certificates are made for this start (protocol.md §1.1 [D-1]).
func (s *Server) openRemote(o Options) (*remote, error) {
	if o.QUIC == "" {
		return nil, nil
	}
	key := s.handshake.Authority
	alpn := handshake.Service{Name: frames.Service}.ALPN()
	conf, err := handshake.ServerTLS(key, alpn, o.Rand, o.Clock.Now().Wall)
	if err != nil {
		return nil, fmt.Errorf("quic: %w", err)
	}
	reset, err := handshake.ResetKey(key)
	if err != nil {
		return nil, fmt.Errorf("quic: %w", err)
	}
	l, err := quicnet.Listen(o.QUIC, quicnet.Options{
		TLS: conf, ResetKey: reset, MaxPending: maxRemoteUnauthenticated, Logger: o.Logger,
	})
	if err != nil {
		return nil, err
	}
	accepting := start(func(context.Context) error {
		if err := s.acceptRemote(l); err != nil {
			s.breakdown(fmt.Errorf("accept: %w", err))
		}
		return nil
	})
	return &remote{l, accepting, o.Logger}, nil
}

// acceptRemote takes connections until the listener is closed.
func (s *Server) acceptRemote(l *quicnet.Listener) error {
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		if !s.Serve(c, handshake.TLSExporter{Export: c.Export}) {
			s.refusedOn(handshake.QUIC, errCrowded)
			c.Close()
		}
	}
}

// addr says where it listens, or nothing.
func (r *remote) addr() string {
	if r == nil {
		return ""
	}
	return r.l.Addr().String()
}

// close ends accepting; the connections go on.
func (r *remote) close() {
	if r == nil {
		return
	}
	r.l.Close()        //nolint:errcheck // always nil
	r.accepting.stop() //nolint:errcheck // it reports through breakdown
}

// finish waits for the last bytes of connections that have ended and frees the
// socket.
func (r *remote) finish() {
	if r == nil {
		return
	}
	if err := r.l.Finish(); err != nil {
		r.log.Warn("quic socket not closed", "err", err)
	}
}

// settle tells a transport that counts its unauthenticated connections itself
// that this one no longer is.
func settle(nc net.Conn) {
	if c, ok := nc.(interface{ Settled() }); ok {
		c.Settled()
	}
}

// pushStream is push for transports that make the system calls themselves. One
// that offers it asks the fence for each packet that it fills.
func (c *conn) pushStream(bufs net.Buffers) error {
	gated, ok := c.nc.(interface {
		WriteGated(bufs net.Buffers, goOn func() bool) error
	})
	if !ok {
		_, err := bufs.WriteTo(c.nc)
		return err
	}
	err := gated.WriteGated(bufs, func() bool { return c.srv.fence.Check() == nil })
	if errors.Is(err, quicnet.ErrGate) {
		if err := c.srv.fence.Check(); err != nil {
			return err
		}
		return authority.ErrDiverged // and renewed meanwhile
	}
	return err
}
