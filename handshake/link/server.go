package link

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/clock"
	"coordinator/internal/lograte"
	"coordinator/internal/sock"
)

// Defaults of [ServerOptions] and the fixed times of a connection (protocol.md [D-7], [D-13]).
const (
	// DefaultUnauthenticated is how many connections may be before HELLO_OK.
	DefaultUnauthenticated = 64
	defaultConnections     = 256
	defaultPerKey          = 16

	firstFrameWait = 5 * time.Second  // accept to the first frame
	helloWait      = 10 * time.Second // accept to HELLO_OK
	responseWait   = 5 * time.Second  // challenge to response (§5.5)
	pingAfter      = 15 * time.Second // of silence
	closeAfter     = 45 * time.Second // of silence

	// acceptPause is how long accepting rests when descriptors or memory have run out.
	acceptPause = 100 * time.Millisecond
)

// ServerOptions configure [NewServer].
type ServerOptions struct {
	// Namespace is the link that is spoken.
	Namespace *Namespace
	// Open makes the session of a connection that was just proved, and the HELLO_OK that
	// tells its peer so. It must not send.
	Open func(c *Conn) (HelloOK, Session)
	// Failed, when it is not nil, is what an error matches after which the whole server must
	// stop.
	Failed error
	// Handshake proves both sides; its Service must be that of the Namespace.
	Handshake *handshake.Server
	Clock     clock.Clock
	// MaxUnauthenticated bounds connections before HELLO_OK; more are closed at accept.
	// Zero means 64.
	MaxUnauthenticated int
	// MaxConnections bounds the authenticated ones, MaxPerKey those of one key. More are
	// RESOURCE_EXHAUSTED. Zero means 256 and 16.
	MaxConnections, MaxPerKey int
	// Logger gets a line per connection. Nil discards.
	Logger *slog.Logger
}

// A Server speaks a link. It knows no transport: [Server.Serve] feeds it from a Unix socket,
// [Server.ServeQUIC] from QUIC, and another one may call [Server.ServeConn].
type Server struct {
	opt    ServerOptions
	log    *slog.Logger
	set    *lograte.Set
	lines  lograte.Connections
	meters meters
	number atomic.Uint64 // of the last connection

	mu      sync.Mutex
	pending int                  // guarded by mu; connections before HELLO_OK
	settled int                  // guarded by mu; connections after it
	perKey  map[frames.KeyID]int // guarded by mu; of the settled ones
}

// NewServer makes a server.
func NewServer(o ServerOptions) (*Server, error) {
	if o.Namespace == nil || o.Open == nil || o.Handshake == nil || o.Clock == nil {
		return nil, errors.New("link server: namespace, sessions, handshake or clock is missing")
	}
	if o.MaxUnauthenticated == 0 {
		o.MaxUnauthenticated = DefaultUnauthenticated
	}
	if o.MaxConnections == 0 {
		o.MaxConnections = defaultConnections
	}
	if o.MaxPerKey == 0 {
		o.MaxPerKey = defaultPerKey
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	set := lograte.NewSet(o.Clock)
	return &Server{opt: o, log: o.Logger, set: set, lines: set.Connections(), perKey: map[frames.KeyID]int{}}, nil
}

// A Listener is what Serve accepts from; *sock.Listener is one.
type Listener interface {
	Accept() (*net.UnixConn, error)
	Close() error
}

// Serve accepts connections of this process's own user until ctx ends, then closes l and all
// connections and returns nil once every goroutine has ended. It returns an error matching
// Failed as soon as a session does, and the listener's error when that fails for good.
func (s *Server) Serve(ctx context.Context, l Listener) error {
	return s.serve(ctx, l, func() (func(context.Context) error, error) {
		c, err := l.Accept()
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context) error { return s.serveUnix(ctx, c) }, nil
	})
}

// serve is the accept loop of any transport. next waits for a connection and returns what
// serves it and closes it, even when its context has already ended; closing l ends next.
func (s *Server) serve(ctx context.Context, l io.Closer, next func() (func(context.Context) error, error)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	wg.Go(func() { <-ctx.Done(); l.Close() })
	wg.Go(func() { s.set.Run(ctx, s.log) })
	for {
		one, err := next()
		switch {
		case err == nil:
			wg.Go(func() {
				if err := one(ctx); s.failed(err) {
					cancel(err)
				}
			})
		case ctx.Err() != nil:
			if cause := context.Cause(ctx); s.failed(cause) {
				return cause
			}
			return nil
		case exhausted(err):
			s.lines.Refused.Say(s.log, slog.LevelWarn, "accepting pauses", "err", err)
			s.pause(ctx, acceptPause)
		default:
			return fmt.Errorf("%s server: accept: %w", s.opt.Namespace.Service.Name, err)
		}
	}
}

func (s *Server) failed(err error) bool { return s.opt.Failed != nil && errors.Is(err, s.opt.Failed) }

// serveUnix serves one accepted connection if its peer may speak at all.
func (s *Server) serveUnix(ctx context.Context, c *net.UnixConn) error {
	cred, err := sock.SameUser(c)
	if err != nil {
		s.meters.Foreign()
		s.lines.Refused.Say(s.log, slog.LevelWarn, "connection refused", "transport", handshake.Unix.String(), "reason", err)
		return c.Close()
	}
	return s.ServeConn(ctx, c, handshake.UDSPeer{Cred: cred})
}

// exhausted reports whether accept failed for want of something that comes back.
func exhausted(err error) bool {
	for _, e := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED, syscall.EPERM} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func (s *Server) pause(ctx context.Context, d time.Duration) {
	t := s.opt.Clock.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C():
	case <-ctx.Done():
	}
}

// Connections returns how many connections are before and after HELLO_OK.
func (s *Server) Connections() (unauthenticated, authenticated int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pending, s.settled
}

// enter admits a connection that has proved nothing yet.
func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending >= s.opt.MaxUnauthenticated {
		return false
	}
	s.pending++
	return true
}

// settle moves a connection from the unauthenticated to those of its key.
func (s *Server) settle(k frames.KeyID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.settled >= s.opt.MaxConnections || s.perKey[k] >= s.opt.MaxPerKey {
		return false
	}
	s.pending--
	s.settled++
	s.perKey[k]++
	return true
}

// leave undoes enter, and settle when k is not nil.
func (s *Server) leave(k *frames.KeyID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k == nil {
		s.pending--
		return
	}
	s.settled--
	if s.perKey[*k]--; s.perKey[*k] == 0 {
		delete(s.perKey, *k)
	}
}
