package link

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"coordinator/codec"
	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/clock"
	"coordinator/internal/sock"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	// waitFor bounds what a test waits for; nothing is expected to take so long.
	waitFor = 120 * time.Second

	farFuture = 4_000_000_000 // Unix seconds
	maxFrame  = 64 << 10
)

var (
	serverKey = handshake.NewKey(sha256.Sum256([]byte("server")))
	clientKey = handshake.NewKey(sha256.Sum256([]byte("client")))
	otherKey  = handshake.NewKey(sha256.Sum256([]byte("other")))
	serverPin = handshake.FingerprintOf(serverKey.Public())
	coordA    = frames.CoordinatorID{0: 0xa}
	coordB    = frames.CoordinatorID{0: 0xb}
	start     = frames.IncarnationID{0: 7}
)

// A link of two frames beside what every link has: a request and its reply.
const (
	typeAsk    frames.Type = 0x10
	typeAnswer frames.Type = 0x90
)

type helloOK struct {
	Version frames.Version
	Grant   frames.WorkloadGrant
}

func (*helloOK) Type() frames.Type                                 { return frames.TypeCoordHelloOK }
func (m *helloOK) Answer() (frames.Version, *frames.WorkloadGrant) { return m.Version, &m.Grant }
func (m *helloOK) Layout(b *codec.Body) {
	m.Version.Layout(b)
	codec.Nested(b, 4, &m.Grant, frames.MaxHandshakeBytes)
}

type ask struct {
	ID   frames.RequestID
	Text []byte
}

func (*ask) Type() frames.Type { return typeAsk }
func (m *ask) Layout(b *codec.Body) {
	codec.NonzeroU32(b, 1, &m.ID)
	codec.Bytes(b, 2, &m.Text, maxFrame)
}

type answer struct {
	ID   frames.RequestID
	Text []byte
}

func (*answer) Type() frames.Type { return typeAnswer }
func (m *answer) Layout(b *codec.Body) {
	codec.NonzeroU32(b, 1, &m.ID)
	codec.Bytes(b, 2, &m.Text, maxFrame)
}

var testLink = &Namespace{
	Service: handshake.Service{Name: "phux-test", Minor: 1, Scopes: 3}, Peer: "test server", MaxFrame: maxFrame,
	Frames: map[frames.Type]func() frames.Frame{
		frames.TypeCoordHelloOK: func() frames.Frame { return new(helloOK) },
		typeAsk:                 func() frames.Frame { return new(ask) },
		typeAnswer:              func() frames.Frame { return new(answer) },
	},
}

var errFailed = errors.New("the whole server must stop")

// A recorder is a session that does what the text of a request says.
type recorder struct {
	c      *Conn
	mu     sync.Mutex
	asked  []string
	closed bool // Conn.Done, when Ended was called
	ended  chan struct{}
}

func (s *recorder) Accepts(t frames.Type) bool { return t == typeAsk }

func (s *recorder) Handle(ctx context.Context, f frames.Frame) error {
	a := f.(*ask)
	s.mu.Lock()
	s.asked = append(s.asked, string(a.Text))
	s.mu.Unlock()
	switch string(a.Text) {
	case "fatal":
		return &FatalError{Request: a.ID, Code: frames.CodeStaleAuthority, Text: "as asked"}
	case "refuse":
		return frames.Refuse(frames.CodeNotFound, "as asked")
	case "codec":
		return codec.Decode(new(ask), nil)
	case "break":
		return errors.New("private")
	case "fail":
		return errFailed
	case "beside":
		s.c.Go(func(context.Context) error { return frames.Refuse(frames.CodeInternal, "beside") })
		return nil
	case "stream":
		s.c.Go(func(ctx context.Context) error { // until the connection ends
			for {
				if err := s.c.SendBulk(ctx, &answer{ID: a.ID, Text: make([]byte, 32<<10)}); err != nil {
					return err
				}
			}
		})
		return nil
	case "stay":
		s.c.Go(func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		return nil
	}
	return s.c.Send(&answer{ID: a.ID, Text: a.Text})
}

func (s *recorder) Ended() {
	select {
	case <-s.c.Done():
		s.closed = true
	default:
	}
	close(s.ended)
}

func (s *recorder) texts() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.asked...)
}

// rig is a server of the test link; connections are pipes.
type rig struct {
	t   testing.TB
	clk *clock.Manual
	srv *Server
	ctx context.Context
	wg  sync.WaitGroup

	mu       sync.Mutex
	sessions []*recorder
	results  []error
}

func newRig(t testing.TB, change func(*ServerOptions)) *rig {
	t.Helper()
	r := &rig{t: t, clk: clock.NewManual(clock.System().Now())}
	o := ServerOptions{
		Namespace: testLink, Clock: r.clk, Failed: errFailed, Logger: slog.New(slog.DiscardHandler),
		Handshake: &handshake.Server{
			Service: testLink.Service, Authority: serverKey, Incarnation: start, Rand: rand.Reader, Clock: r.clk,
			Registry: handshake.StaticRegistry([]handshake.Record{
				{PublicKey: clientKey.Public(), Scope: 1, ExpiresAt: farFuture, Coordinator: coordA, Label: "client"},
				{PublicKey: otherKey.Public(), Scope: 3, ExpiresAt: farFuture, Coordinator: coordB, Label: "other"},
			}),
		},
		Open: func(c *Conn) (HelloOK, Session) {
			s := &recorder{c: c, ended: make(chan struct{})}
			r.mu.Lock()
			r.sessions = append(r.sessions, s)
			r.mu.Unlock()
			return &helloOK{Version: frames.CurrentVersion(), Grant: c.Grant()}, s
		},
	}
	if change != nil {
		change(&o)
	}
	var err error
	r.srv, err = NewServer(o)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	r.ctx = ctx
	t.Cleanup(func() {
		cancel()
		r.wg.Wait()
		before, after := r.srv.Connections()
		require.Zero(t, before+after, "every connection is given back")
		for _, s := range r.sessions {
			<-s.ended
			require.True(t, s.closed, "the connection is done before its session ends")
		}
	})
	return r
}

// connect gives the client's end of a fresh connection.
func (r *rig) connect() net.Conn {
	client, server := net.Pipe()
	r.serve(server)
	r.t.Cleanup(func() { client.Close() })
	return client
}

func (r *rig) serve(server net.Conn) {
	r.wg.Go(func() {
		err := r.srv.ServeConn(r.ctx, server, handshake.UDSPeer{Cred: sock.SelfCred()})
		r.mu.Lock()
		defer r.mu.Unlock()
		r.results = append(r.results, err)
	})
}

func (r *rig) session(n int) *recorder {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sessions[n]
}

func (r *rig) prover() *Prover {
	return &Prover{Namespace: testLink, Pin: serverPin, CoordinatorID: coordA, Key: clientKey, Name: "test", Scope: 1, Clock: r.clk, Rand: rand.Reader}
}

// peer is a proved client.
type peer struct {
	net.Conn
	*Proof
	t testing.TB
}

func (r *rig) dial() *peer {
	r.t.Helper()
	nc, proof, err := r.prover().Connect(r.t.Context(), func(context.Context) (net.Conn, handshake.Channel, error) {
		return r.connect(), handshake.UDSPeer{Cred: sock.SelfCred()}, nil
	})
	require.NoError(r.t, err)
	return &peer{Conn: nc, Proof: proof, t: r.t}
}

// dialReady is dial, and the server's watcher has come as far.
func (r *rig) dialReady() *peer {
	r.t.Helper()
	p := r.dial()
	r.eventually("the watcher looks at the key", func() bool {
		at, armed := r.clk.Next()
		return armed && at == r.clk.Now().Boot+grantTick
	})
	return p
}

var anyFrame = func(frames.Type) bool { return true }

func (p *peer) ask(id frames.RequestID, text string) {
	p.t.Helper()
	require.NoError(p.t, WriteFrame(p, &ask{ID: id, Text: []byte(text)}))
}

func (p *peer) next() frames.Frame {
	p.t.Helper()
	f, err := p.Reader.Next(anyFrame)
	require.NoError(p.t, err)
	return f
}

// requireEnd reads to the connection's end, which must be this error.
func (p *peer) requireEnd(code frames.Code, text string) {
	p.t.Helper()
	requireEnd(p.t, p.Reader, code, text)
}

func requireEnd(t testing.TB, r *Reader, code frames.Code, text string) {
	t.Helper()
	f, err := r.Next(anyFrame)
	require.NoError(t, err)
	e, is := f.(*frames.CoordError)
	require.True(t, is, "%T", f)
	require.Equal(t, code, e.Code, e.Message)
	if text != "" {
		require.Equal(t, text, e.Message)
	}
	_, err = r.Next(anyFrame)
	require.ErrorIs(t, err, io.EOF, "nothing follows the error")
}

func header(length uint32, t frames.Type) []byte {
	return append(binary.BigEndian.AppendUint32(nil, length), byte(t))
}

func (r *rig) eventually(what string, cond func() bool) {
	r.t.Helper()
	require.Eventually(r.t, cond, waitFor, time.Millisecond, what)
}

// hello is what a client of ours opens with.
func (r *rig) hello(change func(*Hello)) *Hello {
	r.t.Helper()
	offer, err := (&handshake.Client{Service: testLink.Service, Key: clientKey, Pin: serverPin}).NewOffer(rand.Reader)
	require.NoError(r.t, err)
	h := &Hello{Version: frames.CurrentVersion(), Name: "test", HasOffer: true, Offer: offer, CoordinatorID: coordA}
	if change != nil {
		change(h)
	}
	return h
}
