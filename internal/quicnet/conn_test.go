package quicnet

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/stretchr/testify/require"
)

func TestBothWays(t *testing.T) {
	client, server := pair(t, listen(t, Options{}))
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<16) // a frame of the largest size
	sent := make(chan error, 1)
	go func() { _, err := server.Write(big); sent <- err }()
	got := make([]byte, len(big))
	_, err := io.ReadFull(client, got)
	require.NoError(t, err)
	require.NoError(t, <-sent)
	require.True(t, bytes.Equal(big, got))

	require.NoError(t, client.CloseWrite())
	rest, err := io.ReadAll(server)
	require.NoError(t, err)
	require.Empty(t, rest)
	_, err = server.Write([]byte("still"))
	require.NoError(t, err)
	require.NoError(t, server.CloseWrite())
	rest, err = io.ReadAll(client)
	require.NoError(t, err)
	require.Equal(t, "still", string(rest))
}

// What a listener's side wrote last arrives although it closed at once.
func TestLastWordsArrive(t *testing.T) {
	for _, half := range []bool{false, true} {
		client, server := pair(t, listen(t, Options{Linger: within}))
		last := bytes.Repeat([]byte("sorry"), 3000)
		_, err := server.Write(last)
		require.NoError(t, err)
		if half {
			require.NoError(t, server.CloseWrite())
		}
		require.NoError(t, server.Close())
		got, err := io.ReadAll(client)
		require.NoError(t, err)
		require.True(t, bytes.Equal(last, got))
	}
}

// A peer that never closes does not hold a closed connection up.
func TestLingerEnds(t *testing.T) {
	l := listen(t, Options{Linger: time.Millisecond})
	client, server := pair(t, l)
	require.NoError(t, server.Close())
	<-client.qc.Context().Done() // closed by the listener's side
	require.NoError(t, l.Finish())
}

// When the sending side was ended long ago there is nothing left to wait for.
func TestLingerCountsFromTheEndOfSending(t *testing.T) {
	client, server := pair(t, listen(t, Options{Linger: within}))
	require.NoError(t, server.CloseWrite())
	server.finAt = server.finAt.Add(-2 * within)
	require.NoError(t, server.Close())
	require.Error(t, server.qc.Context().Err(), "Close must have closed the connection itself")
	_, err := io.ReadAll(client)
	require.NoError(t, err)
}

func TestCloseFreesBlockedCalls(t *testing.T) {
	client, server := pair(t, listen(t, Options{}))
	reading, writing := make(chan error, 1), make(chan error, 1)
	go func() { _, err := server.Read(make([]byte, 1)); reading <- err }()
	go func() { // the client reads nothing, so this outlasts its window
		_, err := server.Write(make([]byte, 4*maxWindow))
		writing <- err
	}()
	require.NoError(t, server.Close())
	require.ErrorIs(t, <-reading, net.ErrClosed)
	require.ErrorIs(t, <-writing, net.ErrClosed)
	_, err := server.Write([]byte("x"))
	require.ErrorIs(t, err, net.ErrClosed)
	require.ErrorIs(t, server.SetDeadline(time.Time{}), net.ErrClosed)
	require.NoError(t, server.Close())

	go func() { _, err := client.Read(make([]byte, 1<<20)); reading <- err }()
	require.NoError(t, client.Close())
	for {
		// A stream that was cut is not given an end that looks like a good one.
		if err := <-reading; err != nil {
			require.NotErrorIs(t, err, io.EOF)
			break
		}
		go func() { _, err := client.Read(make([]byte, 1<<20)); reading <- err }()
	}
}

func TestDeadlines(t *testing.T) {
	client, server := pair(t, listen(t, Options{}))
	require.NoError(t, server.SetReadDeadline(time.Unix(1, 0)))
	_, err := server.Read(make([]byte, 1))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	var ne net.Error
	require.True(t, errors.As(err, &ne) && ne.Timeout())
	require.NoError(t, server.SetReadDeadline(time.Now().Add(within)))
	_, err = client.Write([]byte("x"))
	require.NoError(t, err)
	_, err = server.Read(make([]byte, 1))
	require.NoError(t, err, "a deadline that passed and was moved must not stick")
}

func TestPeerCloses(t *testing.T) {
	client, server := pair(t, listen(t, Options{}))
	require.NoError(t, client.Close())
	_, err := server.Read(make([]byte, 1))
	require.Equal(t, io.EOF, err)
	_, err = server.Write([]byte("x"))
	require.ErrorIs(t, err, ErrPeerClosed)
	require.NotErrorIs(t, err, net.ErrClosed, "this side has not closed")
}

func TestGateStopsWrites(t *testing.T) {
	client, server := pair(t, listen(t, Options{}))
	var open atomic.Bool
	require.ErrorIs(t, server.WriteGated(net.Buffers{{1}}, open.Load), ErrGate)

	open.Store(true)
	require.NoError(t, server.WriteGated(net.Buffers{[]byte("ab"), []byte("cd")}, open.Load))
	got := make([]byte, 4)
	_, err := io.ReadFull(client, got)
	require.NoError(t, err)
	require.Equal(t, "abcd", string(got))

	// A write that waits for a reader stops when the gate closes meanwhile.
	var asked atomic.Int64
	stopped := make(chan error, 1)
	go func() {
		stopped <- server.WriteGated(net.Buffers{make([]byte, 4*maxWindow)}, func() bool {
			asked.Add(1)
			return open.Load()
		})
	}()
	require.Eventually(t, func() bool { return asked.Load() > 10 }, within, time.Millisecond)
	open.Store(false)
	go io.Copy(io.Discard, client) //nolint:errcheck // ends with the client
	require.ErrorIs(t, <-stopped, ErrGate)
	require.True(t, server.cut)
}

func TestExport(t *testing.T) {
	l := listen(t, Options{})
	client, server := pair(t, l)
	a, err := client.Export("label", []byte("context"), 32)
	require.NoError(t, err)
	b, err := server.Export("label", []byte("context"), 32)
	require.NoError(t, err)
	require.Equal(t, a, b)
	other, err := client.Export("label", []byte("another"), 32)
	require.NoError(t, err)
	require.NotEqual(t, a, other)

	client2, _ := pair(t, l)
	c, err := client2.Export("label", []byte("context"), 32)
	require.NoError(t, err)
	require.NotEqual(t, a, c, "two connections must never share keying material")
}

// TestC03_NoExportBeforeFinished: while the handshake is under way there is
// nothing to bind a proof to, on the server's side of it either.
func TestC03_NoExportBeforeFinished(t *testing.T) {
	udp, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	defer udp.Close()
	tune(udp)
	tr := &quic.Transport{Conn: udp}
	defer tr.Close()
	early, err := tr.ListenEarly(serverTLS(t), &quic.Config{})
	require.NoError(t, err)
	defer early.Close()

	// The client's last flight never arrives: its own check of the server holds it up.
	verifying, release := make(chan struct{}), make(chan struct{})
	conf := clientTLS()
	conf.VerifyConnection = func(tls.ConnectionState) error {
		close(verifying)
		<-release
		return errors.New("enough")
	}
	dialled := make(chan error, 1)
	go func() {
		_, err := Dial(context.Background(), udp.LocalAddr().String(), Options{TLS: conf, HandshakeTimeout: within})
		dialled <- err
	}()
	qc, err := early.Accept(t.Context())
	require.NoError(t, err)
	<-verifying
	_, err = (&Conn{qc: qc}).Export("label", nil, 32)
	require.ErrorIs(t, err, ErrNotComplete)
	close(release)
	require.ErrorContains(t, <-dialled, "enough")
}
