package quicnet

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const label = "quicnet-test/1"

// within bounds what a test waits for; nothing is judged by how long it took.
const within = 30 * time.Second

func serverTLS(t testing.TB) *tls.Config {
	t.Helper()
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, pub, key)
	require.NoError(t, err)
	return &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		NextProtos:   []string{label}, MinVersion: tls.VersionTLS13,
	}
}

func clientTLS() *tls.Config {
	return &tls.Config{NextProtos: []string{label}, MinVersion: tls.VersionTLS13, InsecureSkipVerify: true}
}

func listen(t testing.TB, o Options) *Listener {
	t.Helper()
	return listenOn(t, "127.0.0.1:0", o)
}

func listenOn(t testing.TB, addr string, o Options) *Listener {
	t.Helper()
	if o.TLS == nil {
		o.TLS = serverTLS(t)
	}
	l, err := Listen(addr, o)
	require.NoError(t, err)
	t.Cleanup(func() { l.Finish() })
	return l
}

// dial connects and closes with the test.
func dial(t testing.TB, addr string, o Options) *Conn {
	t.Helper()
	if o.TLS == nil {
		o.TLS = clientTLS()
	}
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	c, err := Dial(ctx, addr, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	require.NoError(t, c.SetDeadline(time.Now().Add(within)))
	return c
}

// pair connects two ends and says hello, so that the listener sees the stream.
func pair(t testing.TB, l *Listener) (client, server *Conn) {
	t.Helper()
	client = dial(t, l.Addr().String(), Options{})
	_, err := client.Write([]byte("hello"))
	require.NoError(t, err)
	server, err = l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	require.NoError(t, server.SetDeadline(time.Now().Add(within)))
	got := make([]byte, 5)
	_, err = io.ReadFull(server, got)
	require.NoError(t, err)
	require.Equal(t, "hello", string(got))
	return client, server
}

// rawClient is a QUIC client that keeps to no rules of this package.
func rawClient(t testing.TB, addr net.Addr, o *quic.Config) *quic.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	udp, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	quiet()
	tr := &quic.Transport{Conn: udp}
	qc, err := tr.Dial(ctx, addr, clientTLS(), o)
	require.NoError(t, err)
	t.Cleanup(func() {
		qc.CloseWithError(0, "")
		tr.Close()
		udp.Close()
	})
	return qc
}

// A relay forwards datagrams between one client and a server, and can come to
// the server from another address, as when a client's network changes.
type relay struct {
	front  *net.UDPConn
	to     *net.UDPAddr
	client atomic.Pointer[net.UDPAddr]
	mute   atomic.Bool
	passes atomic.Int64 // the largest datagram that is passed on; zero: any

	mu   sync.Mutex
	back *net.UDPConn // guarded by mu
	wg   sync.WaitGroup
	done atomic.Bool
}

func newRelay(t testing.TB, to net.Addr) *relay {
	t.Helper()
	front, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	r := &relay{front: front, to: to.(*net.UDPAddr)}
	r.move(t)
	r.wg.Go(func() {
		b := make([]byte, 2048)
		for {
			n, from, err := front.ReadFromUDP(b)
			if err != nil {
				return
			}
			r.client.Store(from)
			r.mu.Lock()
			if r.lets(n) {
				r.back.WriteToUDP(b[:n], r.to)
			}
			r.mu.Unlock()
		}
	})
	t.Cleanup(func() {
		r.done.Store(true)
		front.Close()
		r.mu.Lock()
		r.back.Close()
		r.mu.Unlock()
		r.wg.Wait()
	})
	return r
}

func (r *relay) lets(size int) bool {
	most := int(r.passes.Load())
	return !r.mute.Load() && (most == 0 || size <= most)
}

// move makes the relay go on from a fresh address.
func (r *relay) move(t testing.TB) {
	t.Helper()
	back, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	r.mu.Lock()
	old := r.back
	r.back = back
	r.mu.Unlock()
	if old != nil {
		old.Close()
	}
	r.wg.Go(func() {
		b := make([]byte, 2048)
		for {
			n, err := back.Read(b)
			if errors.Is(err, net.ErrClosed) || err != nil && r.done.Load() {
				return
			}
			if client := r.client.Load(); err == nil && client != nil && r.lets(n) {
				r.front.WriteToUDP(b[:n], client)
			}
		}
	})
}
