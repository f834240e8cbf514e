package quicnet

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"reflect"
	"syscall"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/stretchr/testify/require"
)

// TestC03_OneStreamOnly: one bidirectional stream, opened by the client, and
// nothing else; whoever tries more loses the connection.
func TestC03_OneStreamOnly(t *testing.T) {
	hello := func(t *testing.T, qc *quic.Conn) *quic.Stream {
		st, err := qc.OpenStream()
		require.NoError(t, err)
		_, err = st.Write([]byte("hello"))
		require.NoError(t, err)
		return st
	}
	t.Run("no second stream is offered", func(t *testing.T) {
		l := listen(t, Options{})
		qc := rawClient(t, l.Addr(), nil)
		hello(t, qc)
		c, err := l.Accept()
		require.NoError(t, err)
		defer c.Close()
		var limit *quic.StreamLimitReachedError
		_, err = qc.OpenStream()
		require.ErrorAs(t, err, &limit)
		_, err = qc.OpenUniStream()
		require.ErrorAs(t, err, &limit)
		require.Error(t, qc.SendDatagram([]byte("x")))
	})
	t.Run("no room comes free", func(t *testing.T) {
		l := listen(t, Options{Linger: within})
		qc := rawClient(t, l.Addr(), nil)
		st := hello(t, qc)
		require.NoError(t, st.Close())
		c, err := l.Accept()
		require.NoError(t, err)
		defer c.Close()
		_, err = io.ReadAll(c)
		require.NoError(t, err)
		require.NoError(t, c.CloseWrite())
		_, err = io.ReadAll(st)
		require.NoError(t, err)
		_, err = c.Export("label", nil, 32) // the connection is still there
		require.NoError(t, err)
		_, err = qc.OpenStream()
		var limit *quic.StreamLimitReachedError
		require.ErrorAs(t, err, &limit)
		require.NoError(t, c.Close())
	})
	t.Run("a server may open none", func(t *testing.T) {
		l := listen(t, Options{})
		_, server := pair(t, l)
		var limit *quic.StreamLimitReachedError
		_, err := server.qc.OpenStream()
		require.ErrorAs(t, err, &limit)
		_, err = server.qc.OpenUniStream()
		require.ErrorAs(t, err, &limit)
	})
}

// TestC03_ViolationsEndTheConnection: a client that opens what it was not offered
// loses the connection, and the stream with it.
func TestC03_ViolationsEndTheConnection(t *testing.T) {
	for _, tt := range []struct {
		name  string
		limit string // the client's own, which is lifted
		do    func(*quic.Conn) error
	}{
		{"second stream", "outgoingBidiStreams", func(qc *quic.Conn) error {
			st, err := qc.OpenStream()
			if err == nil {
				_, err = st.Write([]byte("x"))
			}
			return err
		}},
		{"unidirectional stream", "outgoingUniStreams", func(qc *quic.Conn) error {
			st, err := qc.OpenUniStream()
			if err == nil {
				_, err = st.Write([]byte("x"))
			}
			return err
		}},
		{"datagram", "", func(qc *quic.Conn) error { return qc.SendDatagram([]byte("x")) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := listen(t, Options{})
			qc := rawClient(t, l.Addr(), &quic.Config{EnableDatagrams: true})
			st, err := qc.OpenStream()
			require.NoError(t, err)
			_, err = st.Write([]byte("x"))
			require.NoError(t, err)
			server, err := l.Accept()
			require.NoError(t, err)
			defer server.Close()
			require.NoError(t, server.SetDeadline(time.Now().Add(within)))
			lift(qc, tt.limit)
			require.NoError(t, tt.do(qc))
			_, err = io.ReadAll(server)
			require.ErrorIs(t, err, ErrViolation)
			<-qc.Context().Done()
			_, err = st.Read(make([]byte, 1))
			require.ErrorIs(t, explain(err), ErrRefused)
		})
	}
}

// lift makes a client forget a limit that the server has set: quic-go keeps to
// them and has no switch for it.
func lift(qc *quic.Conn, limit string) {
	conn := reflect.ValueOf(qc).Elem()
	if limit == "" {
		params := conn.FieldByName("peerParams").Elem().FieldByName("MaxDatagramFrameSize")
		*(*int64)(params.Addr().UnsafePointer()) = 1200
		return
	}
	streams := conn.FieldByName("streamsMap").Elem().FieldByName(limit).Elem()
	*(*int64)(streams.FieldByName("maxStream").Addr().UnsafePointer()) = 1 << 20
}

// What QUIC says of a violation or an end, in this package's words.
func TestViolationsInWords(t *testing.T) {
	for _, tt := range []struct {
		name string
		err  error
		want error
		text string
	}{
		{"stream limit", &quic.TransportError{ErrorCode: quic.StreamLimitError, ErrorMessage: "peer's words"}, ErrViolation, "STREAM_LIMIT_ERROR"},
		{"datagram", &quic.TransportError{ErrorCode: quic.ProtocolViolation}, ErrViolation, "PROTOCOL_VIOLATION"},
		{"reset of the stream", &quic.StreamError{Remote: true}, ErrViolation, "reset"},
		{"refused by the peer", &quic.TransportError{Remote: true, ErrorCode: quic.StreamLimitError, ErrorMessage: "peer's words"}, ErrRefused, "STREAM_LIMIT_ERROR"},
		{"closed with a code", &quic.ApplicationError{Remote: true, ErrorCode: 7, ErrorMessage: "peer's words"}, ErrRefused, "code 7"},
		{"closed", &quic.ApplicationError{Remote: true, ErrorMessage: "peer's words"}, ErrPeerClosed, ""},
		{"idle", &quic.IdleTimeoutError{}, ErrLost, "nothing has arrived"},
		{"reset of the connection", &quic.StatelessResetError{}, ErrLost, "does not know"},
		{"alert", &quic.TransportError{Remote: true, ErrorCode: 0x100 + 42}, ErrRefused, "bad certificate"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := explain(tt.err)
			require.ErrorIs(t, err, tt.want)
			require.ErrorContains(t, err, tt.text)
			require.NotContains(t, err.Error(), "peer's words")
			require.NotErrorIs(t, err, net.ErrClosed)
		})
	}
}

// TestC03_NoEarlyData: a server gives no ticket that early data could use, and
// takes none.
func TestC03_NoEarlyData(t *testing.T) {
	l := listen(t, Options{TLS: serverTLS(t)})
	cache := tls.NewLRUClientSessionCache(4)
	conf := clientTLS()
	conf.ClientSessionCache = &countingCache{ClientSessionCache: cache, t: t}
	for range 2 {
		udp, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		require.NoError(t, err)
		tr := &quic.Transport{Conn: udp}
		qc, err := tr.DialEarly(t.Context(), l.Addr(), conf, &quic.Config{})
		require.NoError(t, err)
		st, err := qc.OpenStream()
		require.NoError(t, err)
		_, err = st.Write([]byte("early"))
		require.NoError(t, err)
		c, err := l.Accept()
		require.NoError(t, err)
		require.False(t, c.qc.ConnectionState().Used0RTT)
		require.False(t, c.qc.ConnectionState().TLS.DidResume)
		<-qc.HandshakeComplete()
		require.NoError(t, c.SetDeadline(time.Now().Add(within)))
		_, err = io.ReadFull(c, make([]byte, 5))
		require.NoError(t, err)
		_, err = c.Write([]byte("x")) // a ticket would come before this
		require.NoError(t, err)
		_, err = io.ReadFull(st, make([]byte, 1))
		require.NoError(t, err)
		require.NoError(t, qc.CloseWithError(0, ""))
		require.NoError(t, c.Close())
		tr.Close()
		udp.Close()
	}
}

// countingCache fails the test when a session is put into it.
type countingCache struct {
	tls.ClientSessionCache
	t *testing.T
}

func (c *countingCache) Put(key string, s *tls.ClientSessionState) {
	if s != nil {
		c.t.Error("the server sent a session ticket")
	}
	c.ClientSessionCache.Put(key, s)
}

// Peers that stop in the handshake, or before their stream, are dropped in time
// and hold no more than their share meanwhile.
func TestSilentPeers(t *testing.T) {
	l := listen(t, Options{HandshakeTimeout: 300 * time.Millisecond, MaxPending: 40, MaxPendingPerHost: 8})
	var clients []*quic.Conn
	for range 2 { // below the number from which addresses must be shown
		clients = append(clients, rawClient(t, l.Addr(), nil))
	}
	for _, qc := range clients { // handshake complete, but no stream ever
		<-qc.Context().Done()
		require.ErrorContains(t, context.Cause(qc.Context()), "Application error 0x0")
	}
	require.Eventually(t, func() bool { return l.Pending() == 0 }, within, time.Millisecond)

	// First packets alone, from many sockets that never answer.
	first := firstPacket(t)
	for range 100 {
		udp, err := net.DialUDP("udp4", nil, l.Addr().(*net.UDPAddr))
		require.NoError(t, err)
		_, err = udp.Write(first)
		require.NoError(t, err)
		require.NoError(t, udp.Close())
		require.LessOrEqual(t, l.Pending(), 8)
	}
	require.Eventually(t, func() bool { return l.Pending() == 0 }, within, time.Millisecond)
	client, _ := pair(t, l)
	require.NoError(t, client.Close())
}

// firstPacket records what a client sends first.
func firstPacket(t *testing.T) []byte {
	udp, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	defer udp.Close()
	ctx, cancel := context.WithCancel(t.Context())
	dialled := make(chan error, 1)
	go func() {
		_, err := Dial(ctx, udp.LocalAddr().String(), Options{TLS: clientTLS(), HandshakeTimeout: within})
		dialled <- err
	}()
	b := make([]byte, 2048)
	for {
		require.NoError(t, udp.SetDeadline(time.Now().Add(within)))
		n, err := udp.Read(b)
		require.NoError(t, err)
		if n >= 1200 { // the probe's byte may come before it
			cancel()
			require.ErrorIs(t, <-dialled, context.Canceled)
			return b[:n]
		}
	}
}

func TestPending(t *testing.T) {
	addr := func(s string) net.Addr { return net.UDPAddrFromAddrPort(netip.MustParseAddrPort(s)) }
	p := pending{limit: 6, perHost: 4, byHost: map[netip.Prefix]int{}}
	require.False(t, p.crowded())
	var free []func()
	for _, from := range []string{"10.0.0.1:1", "[::ffff:10.0.0.1]:2", "10.0.0.1:3", "10.0.0.1:4"} {
		r := p.take(addr(from))
		require.NotNil(t, r)
		require.True(t, p.crowded())
		free = append(free, r)
	}
	require.Nil(t, p.take(addr("10.0.0.1:5")), "one host has used up its share")
	for _, from := range []string{"[2001:db8::1]:1", "[2001:db8::2]:1"} {
		r := p.take(addr(from))
		require.NotNil(t, r)
		free = append(free, r)
	}
	require.Equal(t, 2, p.byHost[netip.MustParsePrefix("2001:db8::/64")])
	require.Nil(t, p.take(addr("10.0.0.2:1")), "no room for anybody")
	for _, f := range free {
		f()
		f()
	}
	require.Zero(t, p.count())
	require.Empty(t, p.byHost)
}

// A settled connection no longer counts.
func TestSettled(t *testing.T) {
	l := listen(t, Options{MaxPending: 2, MaxPendingPerHost: 2, HandshakeTimeout: time.Second})
	_, one := pair(t, l)
	_, two := pair(t, l)
	require.Equal(t, 2, l.Pending())
	_, err := Dial(t.Context(), l.Addr().String(), Options{TLS: clientTLS()})
	require.ErrorIs(t, err, ErrBusy)
	one.Settled()
	one.Settled()
	// A late packet of a client that was refused may hold the place for a while.
	require.Eventually(t, func() bool {
		three, err := Dial(t.Context(), l.Addr().String(), Options{TLS: clientTLS()})
		if err != nil {
			require.ErrorIs(t, err, ErrBusy)
			return false
		}
		return three.Close() == nil
	}, within, 10*time.Millisecond)
	for _, c := range []*Conn{one, two} {
		require.NoError(t, c.Close())
	}
}

func TestDialFailures(t *testing.T) {
	t.Run("nothing listens", func(t *testing.T) {
		udp, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		require.NoError(t, err)
		addr := udp.LocalAddr().String()
		require.NoError(t, udp.Close())
		_, err = Dial(t.Context(), addr, Options{TLS: clientTLS(), HandshakeTimeout: within})
		require.ErrorIs(t, err, ErrNobody)
		require.ErrorContains(t, err, addr)
	})
	t.Run("no answer", func(t *testing.T) {
		udp, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		require.NoError(t, err)
		defer udp.Close()
		_, err = Dial(t.Context(), udp.LocalAddr().String(), Options{TLS: clientTLS(), HandshakeTimeout: 20 * time.Millisecond})
		require.ErrorIs(t, err, ErrNoAnswer)
		require.ErrorContains(t, err, "MTU")
	})
	t.Run("cancelled", func(t *testing.T) {
		udp, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		require.NoError(t, err)
		defer udp.Close()
		why := errors.New("no longer wanted")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(why)
		_, err = Dial(ctx, udp.LocalAddr().String(), Options{TLS: clientTLS()})
		require.Error(t, err)
	})
	t.Run("another protocol", func(t *testing.T) {
		l := listen(t, Options{})
		conf := clientTLS()
		conf.NextProtos = []string{"something/1"}
		_, err := Dial(t.Context(), l.Addr().String(), Options{TLS: conf})
		require.ErrorIs(t, err, ErrLabel)
	})
	t.Run("own check fails", func(t *testing.T) {
		l := listen(t, Options{})
		why := errors.New("not the one")
		conf := clientTLS()
		conf.VerifyConnection = func(tls.ConnectionState) error { return why }
		_, err := Dial(t.Context(), l.Addr().String(), Options{TLS: conf})
		require.ErrorIs(t, err, why)
	})
	t.Run("bad configuration", func(t *testing.T) {
		conf := clientTLS()
		conf.MinVersion = tls.VersionTLS12
		_, err := Dial(t.Context(), "127.0.0.1:1", Options{TLS: conf})
		require.Error(t, err)
		_, err = Listen("127.0.0.1:0", Options{})
		require.Error(t, err)
	})
	t.Run("address taken", func(t *testing.T) {
		l := listen(t, Options{})
		_, err := Listen(l.Addr().String(), Options{TLS: serverTLS(t)})
		require.ErrorIs(t, err, syscall.EADDRINUSE)
		require.ErrorContains(t, err, "another process listens there")
		require.ErrorIs(t, CanListen(l.Addr().String()), syscall.EADDRINUSE)
		require.NoError(t, l.Finish())
		require.NoError(t, CanListen(l.Addr().String()))
	})
	t.Run("address of another machine", func(t *testing.T) {
		err := CanListen("192.0.2.1:7740")
		require.ErrorIs(t, err, syscall.EADDRNOTAVAIL)
		require.ErrorContains(t, err, "this machine has no address 192.0.2.1")
	})
}

// A way that loses what is larger than a link of 1,280 bytes carries, and tells nobody, takes
// connections and all that goes over them.
func TestPacketsBeginSmall(t *testing.T) {
	l := listen(t, Options{})
	r := newRelay(t, l.Addr())
	r.passes.Store(1280 - 20 - 8)
	client := dial(t, r.front.LocalAddr().String(), Options{HandshakeTimeout: within})
	want := make([]byte, 100<<10)
	_, err := client.Write(want)
	require.NoError(t, err)
	server, err := l.Accept()
	require.NoError(t, err)
	defer server.Close()
	require.NoError(t, server.SetDeadline(time.Now().Add(within)))
	_, err = io.ReadFull(server, make([]byte, len(want)))
	require.NoError(t, err)
}

// A name whose first address is not served is tried at its next.
func TestDialTriesAddresses(t *testing.T) {
	l := listen(t, Options{})
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	c := dial(t, net.JoinHostPort("localhost", port), Options{})
	require.NoError(t, c.Close())
}

// A client whose address changes goes on, mid-stream.
func TestAddressChange(t *testing.T) {
	l := listen(t, Options{})
	r := newRelay(t, l.Addr())
	client := dial(t, r.front.LocalAddr().String(), Options{})
	say := func(s string) {
		_, err := client.Write([]byte(s))
		require.NoError(t, err)
	}
	say("one")
	server, err := l.Accept()
	require.NoError(t, err)
	defer server.Close()
	require.NoError(t, server.SetDeadline(time.Now().Add(within)))
	hear := func(c *Conn, want string) {
		got := make([]byte, len(want))
		_, err := io.ReadFull(c, got)
		require.NoError(t, err)
		require.Equal(t, want, string(got))
	}
	hear(server, "one")
	before := server.RemoteAddr().String()
	secret, err := server.Export("label", nil, 32)
	require.NoError(t, err)
	for range 3 {
		r.move(t)
		say("again")
		hear(server, "again")
		_, err = server.Write([]byte("heard"))
		require.NoError(t, err)
		hear(client, "heard")
	}
	require.Eventually(t, func() bool { return server.RemoteAddr().String() != before }, within, time.Millisecond)
	same, err := client.Export("label", nil, 32)
	require.NoError(t, err)
	require.Equal(t, secret, same)
}

// A client learns at once that its server was killed and is another process now.
func TestRestartedServer(t *testing.T) {
	conf := serverTLS(t)
	key := [32]byte{1}
	first := listen(t, Options{TLS: conf, ResetKey: key})
	client, server := pair(t, first)
	addr := first.Addr().String()
	// Killed: the socket goes without a word.
	require.NoError(t, first.udp.Close())
	server.Close()
	first.tr.Close()

	second := listenOn(t, addr, Options{TLS: conf, ResetKey: key})
	_, err := client.Write(make([]byte, 100)) // QUIC answers no packet that is as short as a reset itself
	require.NoError(t, err)
	_, err = client.Read(make([]byte, 1))
	require.ErrorIs(t, err, ErrLost)
	again, _ := pair(t, second)
	require.NoError(t, again.Close())
}

// A connection costs no descriptor, so running out of them stops no accepting; a
// dial says so and leaves nothing behind.
func TestOutOfDescriptors(t *testing.T) {
	l := listen(t, Options{})
	udp, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	defer udp.Close()
	tr := &quic.Transport{Conn: udp}
	defer tr.Close()

	var limit syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	none := limit
	none.Cur = 3 // more are open already, and stay open
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none))
	defer syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit) //nolint:errcheck // it was so before

	qc, err := tr.Dial(t.Context(), l.Addr(), clientTLS(), nil)
	require.NoError(t, err)
	defer qc.CloseWithError(0, "")
	st, err := qc.OpenStream()
	require.NoError(t, err)
	_, err = st.Write([]byte("x"))
	require.NoError(t, err)
	server, err := l.Accept()
	require.NoError(t, err)
	require.NoError(t, server.Close())
	_, err = Dial(t.Context(), l.Addr().String(), Options{TLS: clientTLS()})
	require.ErrorIs(t, err, syscall.EMFILE)
}

func TestIdle(t *testing.T) {
	l := listen(t, Options{})
	r := newRelay(t, l.Addr())
	client := dial(t, r.front.LocalAddr().String(), Options{IdleTimeout: time.Second}) // far above any pause of this process
	r.mute.Store(true)
	_, err := client.Read(make([]byte, 1))
	require.ErrorIs(t, err, ErrLost)
}

func TestCloseEndsAccept(t *testing.T) {
	l := listen(t, Options{})
	client, server := pair(t, l)
	accepted := make(chan error, 1)
	go func() { _, err := l.Accept(); accepted <- err }()
	require.NoError(t, l.Close())
	require.ErrorIs(t, <-accepted, net.ErrClosed)
	// What was accepted before goes on.
	_, err := server.Write([]byte("x"))
	require.NoError(t, err)
	_, err = io.ReadFull(client, make([]byte, 1))
	require.NoError(t, err)
	require.NoError(t, server.Close())
	require.NoError(t, client.Close())
	require.NoError(t, l.Finish())
}

// A socket that fails is no orderly end: Accept does not say net.ErrClosed.
func TestSocketFails(t *testing.T) {
	l, err := Listen("127.0.0.1:0", Options{TLS: serverTLS(t)})
	require.NoError(t, err)
	require.NoError(t, l.udp.Close())
	_, err = l.Accept()
	require.Error(t, err)
	require.NotErrorIs(t, err, net.ErrClosed)
	l.Finish() //nolint:errcheck // the socket is closed already
}

func TestProblemsNameTheSetting(t *testing.T) {
	require.Contains(t, bufferProblem("receive", "net.core.rmem_max", 416<<10), "sysctl -w net.core.rmem_max=7340032")
	require.Contains(t, packetProblem("wg0", 1000, net.IPv4(10, 0, 0, 1)), "ip link set dev wg0 mtu 1280")
	require.NotEmpty(t, packetProblem("wg0", 1279, net.ParseIP("2001:db8::1")))
	require.Empty(t, packetProblem("eth0", 1280, net.ParseIP("2001:db8::1")))
	require.Empty(t, packetProblem("eth0", 1228, net.IPv4(10, 0, 0, 1)))
	require.Empty(t, packetProblems(net.IPv4(127, 0, 0, 1)))

	var log bytes.Buffer
	l := listen(t, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	raw, err := l.udp.SyscallConn()
	require.NoError(t, err)
	size := 0
	require.NoError(t, raw.Control(func(fd uintptr) {
		size, err = syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF)
	}))
	require.NoError(t, err)
	require.Equal(t, size < wantBuffer, bytes.Contains(log.Bytes(), []byte("net.core.rmem_max")), "%d bytes, log %s", size, &log)
}

func TestCheckAddr(t *testing.T) {
	for _, good := range []string{"127.0.0.1:4433", ":4433", "[::1]:65535", "host.example:1"} {
		require.NoError(t, CheckAddr(good), good)
	}
	for _, bad := range []string{"", "host", "host:", "host:0", "host:65536", "::1:4433x", "host:http", "1.2.3.4:-1"} {
		require.Error(t, CheckAddr(bad), bad)
	}
}
