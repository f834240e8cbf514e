package limits

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"
	"golang.org/x/sync/errgroup"

	"coordinator/bench/internal/measure"
)

// runSink connects so often to a Unix socket and reads each connection to its end.
func runSink(args []string) error {
	n, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	var readers sync.WaitGroup
	for range n {
		c, err := net.Dial("unix", args[0])
		if err != nil {
			return err
		}
		readers.Go(func() {
			defer c.Close()
			discard(c)
		})
	}
	if err := measure.Serving(nil); err != nil {
		return err
	}
	readers.Wait()
	return nil
}

// discard reads like a client does, by a buffer of its own.
func discard(r io.Reader) {
	b := make([]byte, 64<<10)
	for {
		if _, err := r.Read(b); err != nil {
			return
		}
	}
}

// unixFan measures what the sockets alone allow: ready events to n connections, so many in
// one write.
func unixFan(ctx context.Context, e *measure.Env) error {
	for _, l := range []struct{ conns, batch int }{{100, 1}, {100, 64}, {500, 1}, {500, 8}, {500, 64}} {
		name := fmt.Sprintf("rawfan.n%d.batch%d", l.conns, l.batch)
		for range 3 {
			if err := unixFanOnce(ctx, e, name, l.conns, l.batch); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return nil
}

func unixFanOnce(ctx context.Context, e *measure.Env, name string, n, batch int) error {
	dir, err := e.TempDir("fan")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	sock := filepath.Join(dir, "fan.sock")
	l, err := net.Listen("unix", sock)
	if err != nil {
		return err
	}
	accepted := make(chan net.Conn, n)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // closed below
			}
			accepted <- c
		}
	}()
	defer l.Close()
	child, err := measure.StartChild(ctx, "sink", sock, strconv.Itoa(n))
	if err != nil {
		return err
	}
	defer child.Stop()
	outs := make([]fanOut, n)
	for i := range outs {
		c := (<-accepted).(*net.UnixConn)
		defer c.Close()
		outs[i] = fanOut{
			write: c.Write,
			finish: func() error { // until the sink has read it all
				if err := c.CloseWrite(); err != nil {
					return err
				}
				_, err := io.Copy(io.Discard, c)
				return err
			},
		}
	}
	return fanOnce(ctx, e, name, child.PID(), batch, outs)
}

// A fanOut is one connection to a sink.
type fanOut struct {
	write  func([]byte) (int, error)
	finish func() error
}

// fanOnce writes to all sinks for one window, and waits until they have everything.
func fanOnce(ctx context.Context, e *measure.Env, name string, pid, batch int, outs []fanOut) error {
	events := measure.Payload(4, measure.ValueSize*batch)
	before := e.Probe(pid)
	end := before.At.Add(e.Window(400))
	var sent atomic.Int64
	var g errgroup.Group
	for _, o := range outs {
		g.Go(func() error {
			n := 0
			for ; time.Now().Before(end); n += batch {
				if _, err := o.write(events); err != nil {
					return err
				}
			}
			sent.Add(int64(n))
			return o.finish()
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	after := e.Probe(pid)
	n := float64(sent.Load())
	e.Rec.Add(name, "events/s", n/after.At.Sub(before.At).Seconds())
	e.Rec.Add(name+".server_cpu", "µs/event", (after.Self-before.Self).Seconds()*1e6/n)
	e.Rec.Add(name+".client_cpu", "µs/event", (after.Server-before.Server).Seconds()*1e6/n)
	return ctx.Err()
}

// quicSinks is how many connections the fan-out over QUIC has.
const quicSinks = 100

// runQUICSink opens QUIC connections and reads every stream that is opened on them to its
// end, then closes its own side.
func runQUICSink(args []string) error {
	n, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	t, err := measure.TLSConfig(args[0], "client", true, "fan")
	if err != nil {
		return err
	}
	for range n {
		c, err := quic.DialAddr(context.Background(), args[1], t, quicConfig())
		if err != nil {
			return err
		}
		go func() {
			for {
				s, err := c.AcceptStream(context.Background())
				if err != nil {
					return
				}
				discard(s)
				s.Close() //nolint:errcheck // the other end sees it
			}
		}()
	}
	return measure.Serving(nil)
}

func quicFan(ctx context.Context, e *measure.Env) error {
	if err := measure.MakeCerts(e.Dir); err != nil {
		return err
	}
	t, err := measure.TLSConfig(e.Dir, "server", true, "fan")
	if err != nil {
		return err
	}
	l, err := quic.ListenAddr("127.0.0.1:0", t, quicConfig())
	if err != nil {
		return err
	}
	defer l.Close()
	accepted := make(chan *quic.Conn, quicSinks)
	go func() {
		for {
			c, err := l.Accept(ctx)
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	child, err := measure.StartChild(ctx, "quicsink", e.Dir, l.Addr().String(), strconv.Itoa(quicSinks))
	if err != nil {
		return err
	}
	defer child.Stop()
	conns := make([]*quic.Conn, quicSinks)
	for i := range conns {
		conns[i] = <-accepted
	}
	for _, batch := range []int{1, 8, 64} {
		name := fmt.Sprintf("rawfan_quic.n%d.batch%d", quicSinks, batch)
		for range 3 {
			outs, err := openStreams(ctx, conns)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if err := fanOnce(ctx, e, name, child.PID(), batch, outs); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return nil
}

func openStreams(ctx context.Context, conns []*quic.Conn) ([]fanOut, error) {
	outs := make([]fanOut, len(conns))
	for i, c := range conns {
		s, err := c.OpenStreamSync(ctx)
		if err != nil {
			return nil, err
		}
		outs[i] = fanOut{
			write: s.Write,
			finish: func() error {
				if err := s.Close(); err != nil {
					return err
				}
				_, err := io.Copy(io.Discard, s)
				return err
			},
		}
	}
	return outs, nil
}
