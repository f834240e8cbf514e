package witness

import (
	"context"
	"crypto/rand"
	"errors"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/handshake/link"
	"coordinator/internal/clock"
	"coordinator/internal/quicnet"
	"coordinator/internal/sock"

	"github.com/stretchr/testify/require"
)

// waitLimit bounds what a test on real sockets waits for.
const waitLimit = 10 * time.Second

// A transport is one way to a witness.
type transport struct {
	name   string
	listen func(*testing.T, *rig) (serve func(context.Context) error, dial func(context.Context) (net.Conn, handshake.Channel, error))
}

var transports = []transport{
	{"unix", func(t *testing.T, r *rig) (func(context.Context) error, func(context.Context) (net.Conn, handshake.Channel, error)) {
		path := filepath.Join(privateDir(t), "w.sock")
		l, err := sock.Listen(path)
		require.NoError(t, err)
		return func(ctx context.Context) error { return r.srv.Serve(ctx, l) },
			func(ctx context.Context) (net.Conn, handshake.Channel, error) {
				c, err := sock.Dial(ctx, path)
				return c, handshake.UDSPeer{Cred: sock.SelfCred()}, err
			}
	}},
	{"quic", func(t *testing.T, r *rig) (func(context.Context) error, func(context.Context) (net.Conn, handshake.Channel, error)) {
		l, err := r.srv.ListenQUIC("127.0.0.1:0", rand.Reader)
		require.NoError(t, err)
		return func(ctx context.Context) error { return r.srv.ServeQUIC(ctx, l) },
			QUICDialer(l.Addr().String(), handshake.FingerprintOf(signKey.Public()), clock.System())
	}},
}

// station is a witness that serves one transport on real sockets.
type station struct {
	*rig
	dial func(context.Context) (net.Conn, handshake.Channel, error)
	stop func() error
}

func newStation(t *testing.T, tr transport, records ...handshake.Record) *station {
	t.Helper()
	r := newRig(t, nil, records...)
	serve, dial := tr.listen(t, r)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- serve(ctx) }()
	stop := sync.OnceValue(func() error {
		cancel()
		return <-served
	})
	t.Cleanup(func() { require.NoError(t, stop()) })
	return &station{rig: r, dial: dial, stop: stop}
}

// peer dials by hand; the channel is what its proof is bound to.
func (s *station) peer(t *testing.T) (*peer, handshake.Channel) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	nc, ch, err := s.dial(ctx)
	require.NoError(t, err)
	t.Cleanup(func() { nc.Close() })
	require.NoError(t, nc.SetDeadline(time.Now().Add(waitLimit)))
	return newPeer(t, nc), ch
}

func (s *station) client(t *testing.T, change func(*ClientOptions)) *Client {
	t.Helper()
	o := clientOptions(nil)
	o.Dial, o.Clock = s.dial, clock.System()
	if change != nil {
		change(&o)
	}
	c, err := NewClient(o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// TestLinkOverBothTransports runs the same cases over each.
func TestLinkOverBothTransports(t *testing.T) {
	for _, tr := range transports {
		t.Run(tr.name, func(t *testing.T) {
			t.Run("a lease", func(t *testing.T) {
				s := newStation(t, tr, linkRecord(ScopeAll))
				c := s.client(t, nil)
				cert, err := c.Activate(t.Context(), 1, incA, 15)
				require.NoError(t, err)
				require.NoError(t, handshake.VerifySigned(&cert, pinsFor(coordA)))
				cert, err = c.Renew(t.Context(), cert, 15)
				require.NoError(t, err)
				require.NoError(t, c.Relinquish(t.Context(), cert))
				st, err := c.Status(t.Context())
				require.NoError(t, err)
				require.EqualValues(t, 1, st.LastEpoch)
			})
			t.Run("an unknown key", func(t *testing.T) {
				s := newStation(t, tr)
				var refused *RefusedError
				require.ErrorAs(t, s.client(t, nil).Connect(t.Context()), &refused, "the error must arrive before the end")
				require.Equal(t, frames.CodeAuthenticationFailed, refused.Code)
			})
			t.Run("a witness that ends and comes back", func(t *testing.T) {
				s := newStation(t, tr, linkRecord(ScopeAll))
				c := s.client(t, nil)
				require.NoError(t, c.Connect(t.Context()))
				require.NoError(t, s.stop())
				_, err := c.Status(t.Context())
				require.Error(t, err)
				require.NotErrorIs(t, err, ErrImpostor)
			})
			t.Run("a proof of another connection", func(t *testing.T) {
				s := newStation(t, tr, linkRecord(ScopeAll))
				a, ch := s.peer(t)
				b, _ := s.peer(t)
				answer, err := a.prover.Respond(&a.hello.Offer, a.challenge(), ch, ScopeAll, farFuture)
				require.NoError(t, err)
				b.challenge()
				b.send(answer)
				b.wantError(frames.CodeAuthenticationFailed, 0)
			})
			t.Run("a malformed frame", func(t *testing.T) {
				s := newStation(t, tr, linkRecord(ScopeAll))
				p, _ := s.peer(t)
				_, err := p.nc.Write([]byte{0xff, 0xff, 0xff, 0xff, 0x01})
				require.NoError(t, err)
				p.wantError(frames.CodeFrameTooLarge, 0)
			})
		})
	}
}

// TestC04_ProofOfAnotherTransport: a challenge of one transport answers no proof that is bound
// to the other, on either side.
func TestC04_ProofOfAnotherTransport(t *testing.T) {
	for i, tr := range transports {
		t.Run(tr.name, func(t *testing.T) {
			s := newStation(t, tr, linkRecord(ScopeAll))
			p, _ := s.peer(t)
			_, wrong := newStation(t, transports[1-i]).peer(t)
			_, err := p.prover.Respond(&p.hello.Offer, p.challenge(), wrong, ScopeAll, farFuture)
			require.ErrorIs(t, err, handshake.ErrBinding)
		})
	}
}

// TestC04_QUICImpostors: over QUIC the pin is judged before the hello is sent.
func TestC04_QUICImpostors(t *testing.T) {
	s := newStation(t, transports[1], linkRecord(ScopeAll))
	l, err := s.srv.ListenQUIC("127.0.0.1:0", rand.Reader)
	require.NoError(t, err)
	defer l.Finish()
	c := s.client(t, func(o *ClientOptions) {
		o.Dial = QUICDialer(l.Addr().String(), handshake.FingerprintOf(impostorKey.Public()), clock.System())
	})
	err = c.Connect(t.Context())
	require.ErrorIs(t, err, ErrImpostor)
	var pin *handshake.PinError
	require.ErrorAs(t, err, &pin)

	// A server of another service with the same key is none either.
	conf, err := handshake.ServerTLS(signKey, "phux-coordinator/1", rand.Reader, time.Now())
	require.NoError(t, err)
	other, err := quicnet.Listen("127.0.0.1:0", quicnet.Options{TLS: conf})
	require.NoError(t, err)
	defer other.Finish()
	_, _, err = QUICDialer(other.Addr().String(), handshake.FingerprintOf(signKey.Public()), clock.System())(t.Context())
	require.ErrorIs(t, err, quicnet.ErrLabel)
}

// Silent QUIC peers are refused beyond the limit, and a proved one is no longer counted.
func TestQUICUnauthenticatedAreBounded(t *testing.T) {
	s := newStation(t, transports[1], linkRecord(ScopeAll))
	proved := s.client(t, nil)
	require.NoError(t, proved.Connect(t.Context()))
	var busy error
	for range link.DefaultUnauthenticated {
		nc, _, err := s.dial(t.Context())
		if err != nil {
			busy = err
			break
		}
		defer nc.Close()
		_, err = nc.Write([]byte{0, 0}) // less than a frame's head
		require.NoError(t, err)
	}
	require.ErrorIs(t, busy, quicnet.ErrBusy)
	_, err := proved.Status(t.Context())
	require.NoError(t, err)
	require.False(t, errors.Is(err, ErrClosed))
}
