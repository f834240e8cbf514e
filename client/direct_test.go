package client

import (
	"bytes"
	"context"
	"io"
	"net"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// sockets are both ends of a Unix socket.
func sockets(t *testing.T) (ours, theirs net.Conn) {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	require.NoError(t, err)
	defer l.Close()
	ours, err = net.Dial("unix", l.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { ours.Close() })
	theirs, err = l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { theirs.Close() })
	return ours, theirs
}

// What a socket does not take at once is written by whoever waits, without a byte more or
// less, and a caller that gives up is told how much had left.
func TestAWriteGoesOnWhereTheSocketWasFull(t *testing.T) {
	ours, theirs := sockets(t)
	c := &Conn{nc: ours, wnow: newDirect(ours)}
	require.NotNil(t, c.wnow)
	sent := bytes.Repeat([]byte("0123456789abcdef"), 256<<10) // more than any socket holds
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan int)
	go func() {
		n, gaveUp, err := c.writeBytes(ctx, sent)
		if !gaveUp || err == nil {
			n = -1
		}
		gone <- n
	}()
	head := make([]byte, 1)
	_, err := io.ReadFull(theirs, head) // it has begun, and stands
	require.NoError(t, err)
	cancel()
	n := <-gone
	require.Positive(t, n)
	require.Less(t, n, len(sent))
	go func() {
		rest, _, err := c.writeBytes(context.Background(), sent[n:])
		if err != nil || rest != len(sent)-n {
			rest = -1
		}
		ours.Close()
		gone <- rest
	}()
	got, err := io.ReadAll(theirs)
	require.NoError(t, err)
	require.Equal(t, len(sent)-n, <-gone)
	require.True(t, bytes.Equal(sent, append(head, got...)))
	_, _, err = c.writeBytes(t.Context(), sent)
	require.ErrorIs(t, err, net.ErrClosed)
}

// A socket whose peer has gone is an error at once.
func TestAWriteToAPeerThatHasGoneFails(t *testing.T) {
	ours, theirs := sockets(t)
	require.NoError(t, theirs.Close())
	c := &Conn{nc: ours, wnow: newDirect(ours)}
	_, gaveUp, err := c.writeBytes(t.Context(), []byte("frame"))
	require.Error(t, err)
	require.False(t, gaveUp)
}

// Where there is no socket of one's own everything waits.
func TestATransportWithoutASocketIsWrittenToAsEver(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	defer ours.Close()
	require.Nil(t, newDirect(ours))
}
