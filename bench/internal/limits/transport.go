package limits

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"
	"golang.org/x/sync/errgroup"

	"coordinator/bench/internal/measure"
)

// pingSize is what goes back and forth.
const pingSize = 64

// startEcho starts the other end and makes the certificates for it.
func startEcho(ctx context.Context, e *measure.Env) (*measure.Child, error) {
	if err := measure.MakeCerts(e.Dir); err != nil {
		return nil, err
	}
	dir, err := e.TempDir("echo")
	if err != nil {
		return nil, err
	}
	return measure.StartChild(ctx, "echo", dir, e.Dir)
}

// unixPing measures round trips on one connection and on 64 at once.
func unixPing(ctx context.Context, e *measure.Env) error {
	child, err := startEcho(ctx, e)
	if err != nil {
		return err
	}
	defer child.Stop()
	for _, n := range []int{1, 64} {
		conns := make([]io.ReadWriter, n)
		for i := range conns {
			c, err := net.Dial("unix", child.Ready["unix"])
			if err != nil {
				return err
			}
			defer c.Close()
			conns[i] = c
		}
		if err := pingAll(ctx, e, fmt.Sprintf("unix.ping.c%d", n), conns); err != nil {
			return err
		}
	}
	return nil
}

// pingAll pings on all connections at once.
func pingAll(ctx context.Context, e *measure.Env, name string, conns []io.ReadWriter) error {
	for range 3 {
		h := new(measure.Hist)
		var trips atomic.Int64
		var g errgroup.Group
		began := time.Now()
		end := began.Add(e.Window(300))
		for _, c := range conns {
			g.Go(func() error { return ping(c, end, h, &trips) })
		}
		if err := g.Wait(); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		e.Rec.Add(name, "RTTs/s", float64(trips.Load())/time.Since(began).Seconds())
		e.Rec.Add(name+".p50", "µs", h.Quantile(.5)/1e3)
		e.Rec.Add(name+".p99", "µs", h.Quantile(.99)/1e3)
	}
	return ctx.Err()
}

func ping(c io.ReadWriter, end time.Time, h *measure.Hist, trips *atomic.Int64) error {
	out, in := bytes.Repeat([]byte{'x'}, pingSize), make([]byte, pingSize)
	for began := time.Now(); began.Before(end); began = time.Now() {
		if _, err := c.Write(out); err != nil {
			return err
		}
		if _, err := io.ReadFull(c, in); err != nil {
			return err
		}
		h.Record(int64(time.Since(began)))
		trips.Add(1)
	}
	return nil
}

// A quicPeer dials the echo's QUIC endpoint.
type quicPeer struct {
	addr  string
	certs string
}

// open makes a connection and a stream on which one round trip was made.
func (p *quicPeer) open(ctx context.Context) (*quic.Conn, *quic.Stream, error) {
	t, err := measure.TLSConfig(p.certs, "client", true, "echo")
	if err != nil {
		return nil, nil, err
	}
	c, err := quic.DialAddr(ctx, p.addr, t, quicConfig())
	if err != nil {
		return nil, nil, err
	}
	s, err := c.OpenStreamSync(ctx)
	if err == nil {
		_, err = s.Write([]byte("ping"))
	}
	if err == nil {
		_, err = io.ReadFull(s, make([]byte, len("ping")))
	}
	if err != nil {
		c.CloseWithError(0, "") //nolint:errcheck // the first error counts
		return nil, nil, err
	}
	return c, s, nil
}

// closer closes a QUIC connection.
type closer struct{ *quic.Conn }

func (c closer) Close() error { return c.CloseWithError(0, "") }

// quicLimits measures the mutual handshake with a first reply, round trips, and bulk.
func quicLimits(ctx context.Context, e *measure.Env) error {
	child, err := startEcho(ctx, e)
	if err != nil {
		return err
	}
	defer child.Stop()
	peer := &quicPeer{addr: child.Ready["quic"], certs: e.Dir}
	err = e.Connects(ctx, "quic.connect", func() (io.Closer, error) {
		c, _, err := peer.open(ctx)
		return closer{c}, err
	})
	if err != nil {
		return err
	}
	for _, n := range []int{1, 64} {
		streams := make([]io.ReadWriter, n)
		for i := range streams {
			c, s, err := peer.open(ctx)
			if err != nil {
				return err
			}
			defer closer{c}.Close()
			streams[i] = s
		}
		if err := pingAll(ctx, e, fmt.Sprintf("quic.ping.c%d", n), streams); err != nil {
			return err
		}
	}
	return quicBulk(ctx, e, peer)
}

// quicBulk measures one stream in one direction until its last byte has arrived.
func quicBulk(ctx context.Context, e *measure.Env, peer *quicPeer) error {
	c, _, err := peer.open(ctx)
	if err != nil {
		return err
	}
	defer closer{c}.Close()
	block := make([]byte, 64<<10)
	block[0] = swallow
	for range 5 {
		s, err := c.OpenStreamSync(ctx)
		if err != nil {
			return err
		}
		began, sent := time.Now(), 0
		for end := began.Add(e.Window(300)); time.Now().Before(end); {
			n, err := s.Write(block)
			if err != nil {
				return err
			}
			sent += n
		}
		if err := s.Close(); err != nil {
			return err
		}
		if _, err := io.ReadFull(s, block[:1]); err != nil {
			return err
		}
		block[0] = swallow
		e.Rec.Add("quic.bulk", "MB/s", float64(sent)/1e6/time.Since(began).Seconds())
	}
	return nil
}
