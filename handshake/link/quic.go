package link

import (
	"context"
	"errors"
	"io"
	"net"
	"time"

	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/clock"
	"coordinator/internal/quicnet"
)

// ListenQUIC makes the link's listener on addr, host:port, for [Server.ServeQUIC]. Its
// certificates are made for this start and signed by the server's authority key.
func (s *Server) ListenQUIC(addr string, rand io.Reader) (*quicnet.Listener, error) {
	key := s.opt.Handshake.Authority
	conf, err := handshake.ServerTLS(key, s.opt.Namespace.Service.ALPN(), rand, s.opt.Clock.Now().Wall)
	if err != nil {
		return nil, err
	}
	reset, err := handshake.ResetKey(key)
	if err != nil {
		return nil, err
	}
	return quicnet.Listen(addr, quicnet.Options{TLS: conf, ResetKey: reset, MaxPending: s.opt.MaxUnauthenticated, Logger: s.log})
}

// ServeQUIC is [Server.Serve] for QUIC connections, whose peers no kernel vouches for. It may
// run beside it.
func (s *Server) ServeQUIC(ctx context.Context, l *quicnet.Listener) error {
	err := s.serve(ctx, l, func() (func(context.Context) error, error) {
		c, err := l.Accept()
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context) error {
			return s.ServeConn(ctx, c, handshake.TLSExporter{Export: c.Export})
		}, nil
	})
	return errors.Join(err, l.Finish())
}

// A Dialer connects to a link's server and gives what the channel contributes to the proof.
type Dialer func(ctx context.Context) (net.Conn, handshake.Channel, error)

// QUICDialer connects to addr, host:port, where the server must show the pinned key; anybody
// else is [ErrImpostor].
func (n *Namespace) QUICDialer(addr string, pin frames.Fingerprint, clk clock.Clock) Dialer {
	now := func() time.Time { return clk.Now().Wall }
	return func(ctx context.Context) (net.Conn, handshake.Channel, error) {
		c, err := quicnet.Dial(ctx, addr, quicnet.Options{TLS: handshake.ClientTLS(pin, n.Service.ALPN(), now)})
		var other *handshake.PinError
		if errors.As(err, &other) || errors.Is(err, handshake.ErrServerCertificate) {
			return nil, nil, n.impostor(err)
		}
		if err != nil {
			return nil, nil, err
		}
		return c, handshake.TLSExporter{Export: c.Export}, nil
	}
}
