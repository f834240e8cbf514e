package client

import (
	"context"
	"errors"
	"net"
	"time"

	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/clock"
	"coordinator/internal/quicnet"
)

// contextTransport dials whichever of socket and quic the context gives.
func contextTransport(clk clock.Clock) Transport {
	return func(ctx context.Context, c *Context) (net.Conn, handshake.Channel, error) {
		if c.QUIC != "" {
			return dialQUIC(ctx, c, clk)
		}
		return unixTransport(ctx, c)
	}
}

// dialQUIC connects to the context's remote endpoint. The server must show the pinned
// authority key in its certificates before a byte is sent on the stream; the proof is then
// bound to that TLS session (protocol.md §1.1 [D-1], §5.4).
func dialQUIC(ctx context.Context, c *Context, clk clock.Clock) (net.Conn, handshake.Channel, error) {
	now := func() time.Time { return clk.Now().Wall }
	alpn := handshake.Service{Name: frames.Service}.ALPN()
	nc, err := quicnet.Dial(ctx, c.QUIC, quicnet.Options{TLS: handshake.ClientTLS(c.Authority, alpn, now)})
	switch {
	case err == nil:
		return nc, handshake.TLSExporter{Export: nc.Export}, nil
	case errors.Is(err, handshake.ErrServerCertificate):
		return nil, nil, &PeerError{What: "server certificates", Detail: err.Error(), Cause: err}
	}
	return nil, nil, peerError(err)
}
