package server

import (
	"crypto/rand"
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
	"coordinator/internal/clock"
	"coordinator/internal/quicnet"
	"coordinator/server/authority"
)

// lapsingClock reads right until it is asked once too often; then the machine has been
// stopped for ten seconds in which BOOTTIME did not run.
type lapsingClock struct {
	*clock.Manual
	left int
}

func (c *lapsingClock) Now() clock.Reading {
	r := c.Manual.Now()
	if c.left--; c.left < 0 {
		r.Wall = r.Wall.Add(10 * time.Second)
	}
	return r
}

// gatedConn asks before each buffer, as a QUIC connection does before each packet.
type gatedConn struct{ net.Conn }

func (c gatedConn) WriteGated(bufs net.Buffers, goOn func() bool) error {
	for _, b := range bufs {
		if !goOn() {
			return quicnet.ErrGate
		}
		if _, err := c.Write(b); err != nil {
			return err
		}
	}
	return nil
}

// A machine that was stopped in the middle of a write may no longer be the authority when
// it wakes. What was not handed over before stays here.
func TestAWriteDoesNotGoOnOnceTheClocksHaveDiverged(t *testing.T) {
	for _, tt := range []struct {
		name string
		wrap func(net.Conn) net.Conn
		sent int // by one check
	}{
		{"socket", func(nc net.Conn) net.Conn { return nc }, maxVectors},
		{"packets", func(nc net.Conn) net.Conn { return gatedConn{nc} }, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
			require.NoError(t, err)
			defer l.Close()
			peer, err := net.Dial("unix", l.Addr().String())
			require.NoError(t, err)
			defer peer.Close()
			nc, err := l.Accept()
			require.NoError(t, err)

			clk := &lapsingClock{clock.NewManual(clock.Reading{Wall: time.Now().Round(0).Truncate(time.Second), Boot: time.Hour}), 1 << 30}
			act, err := authority.Activate(t.Context(), authority.ActivateOptions{
				Authority: granting{id: frames.CoordinatorID{1}}, Clock: clk, Rand: rand.Reader, CoordinatorID: frames.CoordinatorID{1}, LeaseSeconds: 60,
			})
			require.NoError(t, err)
			c := &conn{srv: &Server{fence: authority.NewFence(act, clk)}, nc: tt.wrap(nc)}
			var bufs net.Buffers
			for range 2*maxVectors + 1 {
				bufs = append(bufs, []byte{7})
			}
			clk.left = 1
			require.ErrorIs(t, c.push(bufs), authority.ErrDiverged)
			require.NoError(t, nc.Close())
			got, err := io.ReadAll(peer)
			require.NoError(t, err)
			require.Len(t, got, tt.sent)
		})
	}
}
