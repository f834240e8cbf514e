package limits

import (
	"context"
	"io"
	"net"
	"path/filepath"

	"github.com/quic-go/quic-go"

	"coordinator/bench/internal/measure"
)

// swallow is the first byte of a QUIC stream whose bytes are not echoed but counted as
// arrived, by one byte at its end.
const swallow = 'B'

// serveEcho echoes what comes on a Unix socket and on QUIC with mutual authentication. It
// ends with its process, so nobody waits for its goroutines.
func serveEcho(args []string) error {
	dir, certs := args[0], args[1]
	sock := filepath.Join(dir, "echo.sock")
	l, err := net.Listen("unix", sock)
	if err != nil {
		return err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go echo(c)
		}
	}()
	t, err := measure.TLSConfig(certs, "server", true, "echo")
	if err != nil {
		return err
	}
	q, err := quic.ListenAddr("127.0.0.1:0", t, quicConfig())
	if err != nil {
		return err
	}
	go func() {
		for {
			c, err := q.Accept(context.Background())
			if err != nil {
				return
			}
			go echoStreams(c)
		}
	}()
	return measure.Serving(map[string]string{"unix": sock, "quic": q.Addr().String()})
}

func echo(c net.Conn) {
	defer c.Close()
	b := make([]byte, 64<<10)
	for {
		n, err := c.Read(b)
		if err != nil {
			return
		}
		if _, err := c.Write(b[:n]); err != nil {
			return
		}
	}
}

func echoStreams(c *quic.Conn) {
	for {
		s, err := c.AcceptStream(context.Background())
		if err != nil {
			return
		}
		go echoStream(s)
	}
}

func echoStream(s *quic.Stream) {
	defer s.Close()
	b := make([]byte, 64<<10)
	for first := true; ; first = false {
		n, err := s.Read(b)
		if first && n > 0 && b[0] == swallow {
			if _, err := io.Copy(io.Discard, s); err == nil {
				s.Write([]byte{swallow}) //nolint:errcheck // the peer sees the end of the stream
			}
			return
		}
		if _, werr := s.Write(b[:n]); werr != nil || err != nil {
			return
		}
	}
}
