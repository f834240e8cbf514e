package owner

import (
	"errors"
	"log/slog"

	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/handshake/link"
	"coordinator/internal/clock"
)

// ServerOptions configure [NewServer].
type ServerOptions struct {
	Owner *Owner
	// Handshake proves both sides; its Service must be that of [HandshakeService], its
	// Authority and Incarnation the owner's.
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

// A Server speaks the owner link. Its errors match [ErrFailed] once the journal could not be
// written.
type Server struct{ *link.Server }

// A Listener is what [Server.Serve] accepts from.
type Listener = link.Listener

// NewServer makes a server over an owner, which must outlive it.
func NewServer(o ServerOptions) (*Server, error) {
	if o.Owner == nil || o.Handshake == nil {
		return nil, errors.New("owner server: owner or handshake is missing")
	}
	own := o.Owner.opt
	if o.Handshake.Incarnation != own.Incarnation || handshake.FingerprintOf(o.Handshake.Authority.Public()) != own.Fingerprint {
		return nil, errors.New("owner server: the handshake names another owner or incarnation than the journal")
	}
	s, err := link.NewServer(link.ServerOptions{
		Namespace: namespace, Failed: ErrFailed, Handshake: o.Handshake, Clock: o.Clock,
		MaxUnauthenticated: o.MaxUnauthenticated, MaxConnections: o.MaxConnections, MaxPerKey: o.MaxPerKey,
		Logger: o.Logger,
		Open: func(c *link.Conn) (link.HelloOK, link.Session) {
			return &OwnerHelloOK{Version: frames.CurrentVersion(), Groups: own.Groups, Grant: c.Grant()}, newSession(o.Owner, c)
		},
	})
	return &Server{s}, err
}
