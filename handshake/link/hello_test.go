package link

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"

	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/sock"

	"github.com/stretchr/testify/require"
)

func TestBothSidesAreProved(t *testing.T) {
	r := newRig(t, nil)
	p := r.dial()
	require.Equal(t, start, p.Challenge.Incarnation)
	_, grant := p.HelloOK.Answer()
	require.EqualValues(t, 1, grant.Scope)
	c := r.session(0).c
	require.Equal(t, coordA, c.Coordinator())
	require.EqualValues(t, 1, c.Scope())
	require.Equal(t, handshake.KeyIDOf(clientKey.Public()), c.Key())
	before, after := r.srv.Connections()
	require.Equal(t, []int{0, 1}, []int{before, after})
	for i := range frames.RequestID(3) { // in order, each with its own id
		p.ask(i+1, string('a'+rune(i)))
	}
	for i := range frames.RequestID(3) {
		require.Equal(t, &answer{ID: i + 1, Text: []byte{'a' + byte(i)}}, p.next())
	}
	require.Equal(t, []string{"a", "b", "c"}, r.session(0).texts())
}

// A hello that is refused is told why, and nothing more is said of it.
func TestHellosThatAreRefused(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*Hello)
		code   frames.Code
	}{
		{"major", func(h *Hello) { h.Version.Major++ }, frames.CodeVersionIncompatible},
		{"minor", func(h *Hello) { h.Version.Minor++ }, frames.CodeVersionIncompatible},
		{"no offer", func(h *Hello) { h.HasOffer = false }, frames.CodeAuthenticationFailed},
		{"other profile", func(h *Hello) { h.Offer.Profile = "phux-workload/v2" }, frames.CodeAuthenticationFailed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, nil)
			nc := r.connect()
			require.NoError(t, WriteFrame(nc, r.hello(tt.change)))
			text := ""
			if tt.code == frames.CodeAuthenticationFailed {
				text = AuthFailed
			}
			requireEnd(t, NewReader(nc, testLink), tt.code, text)
		})
	}
	t.Run("a patch may differ", func(t *testing.T) {
		r := newRig(t, nil)
		nc := r.connect()
		require.NoError(t, WriteFrame(nc, r.hello(func(h *Hello) { h.Version.Patch += 9 })))
		f, err := NewReader(nc, testLink).Next(anyFrame)
		require.NoError(t, err)
		require.IsType(t, new(frames.WorkloadChallenge), f)
	})
	for _, tt := range []struct {
		name  string
		other uint16
		code  frames.Code
	}{{"bad form", 0, frames.CodeMalformedMessage}, {"bad form of another version", 1, frames.CodeVersionIncompatible}} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, nil)
			nc := r.connect()
			raw, err := Append(nil, r.hello(func(h *Hello) { h.Version.Minor += tt.other }))
			require.NoError(t, err)
			raw = raw[:len(raw)-5]
			binary.BigEndian.PutUint32(raw, uint32(len(raw)-4))
			_, err = nc.Write(raw)
			require.NoError(t, err)
			requireEnd(t, NewReader(nc, testLink), tt.code, "")
		})
	}
}

// Whatever is wrong with a proof, the answer is the same, and nothing is granted.
func TestC04_ProofsThatAreRefused(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*Prover)
	}{
		{"key not enrolled", func(p *Prover) { p.Key = serverKey }},
		{"key of another coordinator", func(p *Prover) { p.Key = otherKey }},
		{"another coordinator than the key's", func(p *Prover) { p.CoordinatorID = coordB }},
		{"scope beyond the key's", func(p *Prover) { p.Scope = 2 }},
		{"unknown scope", func(p *Prover) { p.Scope = 5 }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, nil)
			p := r.prover()
			tt.change(p)
			_, _, err := p.Connect(t.Context(), func(context.Context) (net.Conn, handshake.Channel, error) {
				return r.connect(), handshake.UDSPeer{Cred: sock.SelfCred()}, nil
			})
			var refused *RefusedError
			require.ErrorAs(t, err, &refused)
			require.Equal(t, &RefusedError{frames.CodeAuthenticationFailed, AuthFailed}, refused)
			require.Empty(t, r.sessions)
		})
	}
}

// A server that is not the pinned one, or does not keep to the proof, is an impostor.
func TestC04_ServersThatAreRefused(t *testing.T) {
	for _, tt := range []struct {
		name   string
		server func(*ServerOptions)
		client func(*Prover)
	}{
		{name: "other pin", client: func(p *Prover) { p.Pin[0]++ }},
		{name: "other service", server: func(o *ServerOptions) { o.Handshake.Service.Name = "phux-other" }},
		{name: "other version of the service", server: func(o *ServerOptions) { o.Handshake.Service.Minor++ }},
		{name: "hello ok of another version", server: changedHello(func(h *helloOK) { h.Version.Minor++ })},
		{name: "grant of another scope", server: changedHello(func(h *helloOK) { h.Grant.Scope = 2 })},
		{name: "grant without an end", server: changedHello(func(h *helloOK) { h.Grant.ExpiresAt = 1<<64 - 1 })},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, tt.server)
			p := r.prover()
			if tt.client != nil {
				tt.client(p)
			}
			nc := r.connect()
			_, _, err := p.Connect(t.Context(), func(context.Context) (net.Conn, handshake.Channel, error) {
				return nc, handshake.UDSPeer{Cred: sock.SelfCred()}, nil
			})
			require.ErrorIs(t, err, ErrImpostor)
			require.ErrorContains(t, err, "not the pinned test server")
			_, err = nc.Write([]byte{0})
			require.ErrorIs(t, err, io.ErrClosedPipe, "it is not left open")
		})
	}
}

func changedHello(change func(*helloOK)) func(*ServerOptions) {
	return func(o *ServerOptions) {
		open := o.Open
		o.Open = func(c *Conn) (HelloOK, Session) {
			h, s := open(c)
			change(h.(*helloOK))
			return h, s
		}
	}
}

// shaken is a whole handshake of ours, as the two sides wrote it.
func (r *rig) shaken() (client, server []byte) {
	a, b := net.Pipe()
	r.serve(b)
	var sent, got bytes.Buffer
	_, err := r.prover().Shake(&tapped{Conn: a, r: io.TeeReader(a, &got), w: io.MultiWriter(a, &sent)}, handshake.UDSPeer{Cred: sock.SelfCred()})
	require.NoError(r.t, err)
	a.Close()
	return sent.Bytes(), got.Bytes()
}

type tapped struct {
	net.Conn
	r io.Reader
	w io.Writer
}

func (c *tapped) Read(p []byte) (int, error)  { return c.r.Read(p) }
func (c *tapped) Write(p []byte) (int, error) { return c.w.Write(p) }

// A client that ends after any byte leaves nothing behind at the server.
func TestClientCutAtAnyByte(t *testing.T) {
	r := newRig(t, nil)
	client, _ := r.shaken()
	for n := range len(client) { // the proof is of another nonce, so the last byte would change nothing
		nc := r.connect()
		go io.Copy(io.Discard, nc) //nolint:errcheck // ends with the connection
		nc.Write(client[:n])       //nolint:errcheck // the server may have had enough
		nc.Close()
	}
	r.eventually("all are given back", func() bool {
		before, after := r.srv.Connections()
		return before+after == 0
	})
	require.Len(t, r.sessions, 1)
}

// A server that ends after any byte is no server: no proof comes of it, and no goroutine stays.
func TestServerCutAtAnyByte(t *testing.T) {
	r := newRig(t, nil)
	_, server := r.shaken()
	for n := range len(server) {
		nc, err := r.dialThrough(func(w io.Writer) io.Writer { return &cutter{w: w, left: n} })
		require.Error(t, err, "cut at %d", n)
		require.NotErrorIs(t, err, ErrImpostor, "cut at %d", n)
		require.Nil(t, nc)
	}
}

// A byte that is changed on the way ends the handshake. Of a length alone more could be waited
// for, which the context bounds.
func TestC04_ServerAlteredAtAnyByte(t *testing.T) {
	r := newRig(t, nil)
	_, server := r.shaken()
	lengths := map[int]bool{}
	for at := 0; at < len(server); {
		for k := range 4 {
			lengths[at+k] = true
		}
		at += 4 + int(binary.BigEndian.Uint32(server[at:]))
	}
	const patch, end = 2, 8 // bytes that nobody can judge: the patch version, and an end of the grant before the requested one
	accepted := 0
	for n := range len(server) {
		if lengths[n] {
			continue
		}
		nc, err := r.dialThrough(func(w io.Writer) io.Writer { return &flipper{w: w, at: n} })
		if err == nil {
			accepted++
			nc.Close()
		}
	}
	require.LessOrEqual(t, accepted, patch+end)
}

// dialThrough dials with what the server says altered on the way; what ends the way ends the
// connection.
func (r *rig) dialThrough(wrap func(io.Writer) io.Writer) (net.Conn, error) {
	near, way := net.Pipe()
	far := r.connect()
	r.wg.Go(func() {
		io.Copy(far, way) //nolint:errcheck // ends with either side
		far.Close()
	})
	r.wg.Go(func() {
		io.Copy(wrap(way), far) //nolint:errcheck // ends with either side
		way.Close()
	})
	nc, _, err := r.prover().Connect(r.t.Context(), func(context.Context) (net.Conn, handshake.Channel, error) {
		return near, handshake.UDSPeer{Cred: sock.SelfCred()}, nil
	})
	return nc, err
}

var errCut = errors.New("cut")

// cutter passes so many bytes on.
type cutter struct {
	w    io.Writer
	left int
}

func (c *cutter) Write(p []byte) (int, error) {
	n := min(len(p), c.left)
	if n > 0 {
		if _, err := c.w.Write(p[:n]); err != nil {
			return 0, err
		}
	}
	if c.left -= n; c.left == 0 {
		return n, errCut
	}
	return n, nil
}

// flipper changes one bit.
type flipper struct {
	w  io.Writer
	at int
}

func (f *flipper) Write(p []byte) (int, error) {
	p = bytes.Clone(p)
	if f.at >= 0 && f.at < len(p) {
		p[f.at] ^= 1
	}
	f.at -= len(p)
	return f.w.Write(p)
}

// A server that says nothing, or stops in the middle, is left when the context ends.
func TestConnectEndsWithItsContext(t *testing.T) {
	r := newRig(t, nil)
	for _, said := range []int{0, 1, 3} {
		near, far := net.Pipe()
		ctx, cancel := context.WithCancel(t.Context())
		r.wg.Go(func() {
			NewReader(far, testLink).Next(anyFrame) //nolint:errcheck // the hello
			far.Write(make([]byte, said))           //nolint:errcheck // not a whole header
			cancel()
		})
		_, _, err := r.prover().Connect(ctx, func(context.Context) (net.Conn, handshake.Channel, error) {
			return near, handshake.UDSPeer{Cred: sock.SelfCred()}, nil
		})
		require.Error(t, err)
		_, err = far.Write([]byte{0})
		require.Error(t, err, "nothing is left open")
		far.Close()
	}
}

// The same over a Unix socket, where the kernel says who the peer is.
func TestUnixSocket(t *testing.T) {
	r := newRig(t, nil)
	path := filepath.Join(shortDir(t), "s")
	l, err := sock.Listen(path)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- r.srv.Serve(ctx, l) }()
	nc, proof, err := r.prover().Connect(t.Context(), SocketDialer(path))
	require.NoError(t, err)
	p := &peer{Conn: nc, Proof: proof, t: t}
	p.ask(1, "hello")
	require.Equal(t, &answer{ID: 1, Text: []byte("hello")}, p.next())

	wrong := sock.SelfCred() // a binding that is not the kernel's
	wrong.PID++
	c, err := sock.Dial(t.Context(), path)
	require.NoError(t, err)
	_, err = r.prover().Shake(c, handshake.UDSPeer{Cred: wrong})
	require.ErrorIs(t, err, ErrImpostor)
	require.NoError(t, c.Close())

	cancel()
	require.NoError(t, <-served)
	_, err = p.Reader.Next(anyFrame)
	require.ErrorIs(t, err, io.EOF, "it ends with its server")
	require.NoError(t, nc.Close())
}

// shortDir is a private directory whose path leaves room for a socket's name.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "link")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// And over QUIC, where the pin is held against the certificate too.
func TestQUIC(t *testing.T) {
	r := newRig(t, nil)
	l, err := r.srv.ListenQUIC("127.0.0.1:0", rand.Reader)
	require.NoError(t, err)
	addr := l.Addr().String()
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- r.srv.ServeQUIC(ctx, l) }()
	nc, proof, err := r.prover().Connect(t.Context(), testLink.QUICDialer(addr, serverPin, r.clk))
	require.NoError(t, err)
	p := &peer{Conn: nc, Proof: proof, t: t}
	p.ask(1, "hello")
	require.Equal(t, &answer{ID: 1, Text: []byte("hello")}, p.next())
	other := serverPin
	other[0]++
	_, _, err = testLink.QUICDialer(addr, other, r.clk)(t.Context())
	require.ErrorIs(t, err, ErrImpostor)
	stranger := *testLink
	stranger.Service.Name = "phux-other"
	_, _, err = stranger.QUICDialer(addr, serverPin, r.clk)(t.Context())
	require.Error(t, err, "another link's ALPN")
	cancel()
	require.NoError(t, <-served)
	require.NoError(t, nc.Close())
}
