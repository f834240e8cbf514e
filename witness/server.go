package witness

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/handshake/link"
	"coordinator/internal/clock"
	"coordinator/internal/failpoint"
)

// ServerOptions configure [NewServer].
type ServerOptions struct {
	Witness *Witness
	// Handshake proves both sides; its Service must be that of [HandshakeService].
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

// HandshakeService is the witness link as the handshake knows it.
func HandshakeService() handshake.Service {
	return handshake.Service{Name: Service, Major: frames.VersionMajor, Minor: frames.VersionMinor, Scopes: ScopeAll}
}

// A Server speaks the witness link. Its errors match [ErrFailed] once the witness could not
// store a grant.
type Server struct{ *link.Server }

// A Listener is what [Server.Serve] accepts from.
type Listener = link.Listener

// NewServer makes a server over w.
func NewServer(o ServerOptions) (*Server, error) {
	if o.Witness == nil {
		return nil, errors.New("witness server: the witness is missing")
	}
	s, err := link.NewServer(link.ServerOptions{
		Namespace: namespace, Failed: ErrFailed, Handshake: o.Handshake, Clock: o.Clock,
		MaxUnauthenticated: o.MaxUnauthenticated, MaxConnections: o.MaxConnections, MaxPerKey: o.MaxPerKey,
		Logger: o.Logger,
		Open: func(c *link.Conn) (link.HelloOK, link.Session) {
			return &WitnessHelloOK{
				Version: frames.CurrentVersion(), WitnessID: o.Witness.ID(),
				MaxLeaseSecs: o.Witness.MaxLeaseSecs(), Grant: c.Grant(),
			}, &session{w: o.Witness, c: c}
		},
	})
	return &Server{s}, err
}

// session answers the requests of one proved connection, one after the other.
type session struct {
	w *Witness
	c *link.Conn
}

// Accepts says which requests there are.
func (*session) Accepts(t frames.Type) bool {
	return t == TypeActivate || t == TypeRenew || t == TypeRelinquish || t == TypeGetStatus
}

// Ended has nothing to undo.
func (*session) Ended() {}

// Handle carries out one request and queues its reply.
func (s *session) Handle(_ context.Context, f frames.Frame) error {
	id, coordinator, scope := describe(f)
	if gone := s.c.CheckGrant(); gone != nil {
		gone.Request = id
		return gone
	}
	var reply frames.Frame
	var err error
	switch {
	case coordinator != s.c.Coordinator():
		return &link.FatalError{Request: id, Code: frames.CodeAuthenticationFailed, Text: link.AuthFailed}
	case s.c.Scope()&scope == 0:
		err = refuse(frames.CodeScopeDenied, "the key has not the scope for this request")
	default:
		reply, err = s.execute(f)
	}
	var refused *RefusedError
	switch {
	case err == nil:
	case !errors.As(err, &refused):
		// The witness's own trouble; its text may name files and is not for the peer.
		return &link.FatalError{Request: id, Code: frames.CodeInternal, Text: "the witness cannot answer", Cause: err}
	case refused.Code.Fatal():
		return &link.FatalError{Request: id, Code: refused.Code, Text: refused.Message}
	default:
		reply = &frames.CoordError{RequestID: id, Code: refused.Code, Message: refused.Message}
	}
	failpoint.Hit("witness-reply")
	return s.c.Send(reply)
}

// describe names a request's id and coordinator and the scope that it needs.
func describe(f frames.Frame) (frames.RequestID, frames.CoordinatorID, uint64) {
	switch f := f.(type) {
	case *Activate:
		return f.RequestID, f.CoordinatorID, ScopeActivate
	case *Renew:
		return f.RequestID, f.CoordinatorID, ScopeActivate
	case *Relinquish:
		return f.RequestID, f.CoordinatorID, ScopeActivate
	case *GetStatus:
		return f.RequestID, f.CoordinatorID, ScopeStatus
	}
	panic(fmt.Sprintf("witness: no request has type %#02x", uint8(f.Type())))
}

// execute runs one request against the state machine.
func (s *session) execute(f frames.Frame) (frames.Frame, error) {
	switch f := f.(type) {
	case *Activate:
		cert, err := s.w.Activate(s.c.Key(), f.CoordinatorID, f.Epoch, f.IncarnationID, f.LeaseSecs)
		return &CertificateReply{RequestID: f.RequestID, Certificate: cert}, err
	case *Renew:
		cert, err := s.w.Renew(f.CoordinatorID, f.Epoch, f.Activation, f.IncarnationID, f.Token, f.LeaseSecs)
		return &CertificateReply{RequestID: f.RequestID, Certificate: cert}, err
	case *Relinquish:
		return &frames.Ack{RequestID: f.RequestID}, s.w.Relinquish(s.c.Key(), f.CoordinatorID, f.Token, f.IncarnationID)
	case *GetStatus:
		st, err := s.w.Status(f.CoordinatorID)
		return &StatusReply{RequestID: f.RequestID, LastEpoch: st.LastEpoch, Activation: st.Activation,
			LeaseRemaining: roundUp(st.LeaseRemaining)}, err
	}
	panic(fmt.Sprintf("witness: no request has type %#02x", uint8(f.Type())))
}
