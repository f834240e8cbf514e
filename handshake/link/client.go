package link

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/clock"
	"coordinator/internal/sock"
)

// grantYears is how long a connection asks its grant to last; the registry's own expiry ends
// it sooner.
const grantYears = 10

// ErrImpostor says that the other side is not the pinned server, or that it signed something
// that the pinned server would not sign. What matches it is an *[ImpostorError].
var ErrImpostor = errors.New("not the pinned peer")

// An ImpostorError matches [ErrImpostor].
type ImpostorError struct {
	Peer  string // whom the pin was for: witness, owner
	Cause error
}

func (e *ImpostorError) Error() string { return fmt.Sprintf("not the pinned %s: %v", e.Peer, e.Cause) }

// Is makes the error match ErrImpostor.
func (e *ImpostorError) Is(target error) bool { return target == ErrImpostor }

// Unwrap gives the cause.
func (e *ImpostorError) Unwrap() error { return e.Cause }

func (n *Namespace) impostor(cause error) error { return &ImpostorError{n.Peer, cause} }

// A RefusedError is the server's own answer no.
type RefusedError struct {
	Code    frames.Code
	Message string // diagnostic only
}

func (e *RefusedError) Error() string { return fmt.Sprintf("refused: %v: %s", e.Code, e.Message) }

// A Prover is the client's side of the handshake on one link.
type Prover struct {
	Namespace *Namespace
	// Pin is the fingerprint of the server's authority key. Anybody else is [ErrImpostor].
	Pin frames.Fingerprint
	// CoordinatorID is whom this client acts for, and Key its own key in the registry.
	CoordinatorID frames.CoordinatorID
	Key           handshake.Signer
	// Name is the client_name of the hello.
	Name string
	// Scope is what is asked for.
	Scope uint64
	Clock clock.Clock
	Rand  io.Reader
}

// Proof is a handshake that both sides have passed.
type Proof struct {
	HelloOK   HelloOK
	Challenge *frames.WorkloadChallenge
	Reader    *Reader // of the connection, at the frame after HELLO_OK
}

// SocketDialer connects to the Unix socket at path.
func SocketDialer(path string) Dialer {
	return func(ctx context.Context) (net.Conn, handshake.Channel, error) {
		c, err := sock.Dial(ctx, path)
		if err != nil {
			return nil, nil, err
		}
		return c, handshake.UDSPeer{Cred: sock.SelfCred()}, nil
	}
}

// Connect dials and proves both sides. It returns by the context's end whatever the other side
// does, and leaves neither a connection nor a goroutine behind when it fails.
func (p *Prover) Connect(ctx context.Context, dial Dialer) (net.Conn, *Proof, error) {
	nc, ch, err := dial(ctx)
	if err != nil {
		return nil, nil, err
	}
	stop := AbortOnDone(ctx, nc)
	proof, err := p.Shake(nc, ch)
	if aborted := stop(); err == nil && aborted {
		err = context.Cause(ctx)
	}
	if err != nil {
		nc.Close()
		return nil, nil, err
	}
	return nc, proof, nil
}

// AbortOnDone closes nc when ctx ends. The returned function undoes that, waits until the
// closing is over if it had begun, and reports whether it had.
func AbortOnDone(ctx context.Context, nc net.Conn) func() bool {
	over := make(chan struct{})
	undo := context.AfterFunc(ctx, func() {
		defer close(over)
		nc.Close()
	})
	return func() bool {
		if undo() {
			return false
		}
		<-over
		return true
	}
}

// Shake is the client's side of the handshake on an open connection. Its errors are a
// *[RefusedError], one matching [ErrImpostor], or the connection's.
func (p *Prover) Shake(nc net.Conn, ch handshake.Channel) (*Proof, error) {
	prover := handshake.Client{Service: p.Namespace.Service, Key: p.Key, Pin: p.Pin}
	offer, err := prover.NewOffer(p.Rand)
	if err != nil {
		return nil, err
	}
	hello := &Hello{Version: frames.CurrentVersion(), Name: p.Name, HasOffer: true, Offer: offer, CoordinatorID: p.CoordinatorID}
	if err := WriteFrame(nc, hello); err != nil {
		return nil, err
	}
	r := NewReader(nc, p.Namespace)
	f, err := expect(r, frames.TypeWorkloadChallenge)
	if err != nil {
		return nil, err
	}
	challenge := f.(*frames.WorkloadChallenge)
	expiry := p.Clock.Now().Unix() + grantYears*365*24*3600
	response, err := prover.Respond(&offer, challenge, ch, p.Scope, expiry)
	if err != nil {
		return nil, p.Namespace.impostor(err)
	}
	if err := WriteFrame(nc, response); err != nil {
		return nil, err
	}
	if f, err = expect(r, frames.TypeCoordHelloOK); err != nil {
		return nil, err
	}
	ok, is := f.(HelloOK)
	if !is {
		panic("link: the HELLO_OK of the namespace is no HelloOK")
	}
	version, grant := ok.Answer()
	if !version.Compatible(frames.CurrentVersion()) {
		return nil, p.Namespace.impostor(errors.New("the hello has another version"))
	}
	if err := prover.CheckHelloOK(challenge, response, grant, challenge.Incarnation); err != nil {
		return nil, p.Namespace.impostor(err)
	}
	r.Proved()
	return &Proof{HelloOK: ok, Challenge: challenge, Reader: r}, nil
}

// expect reads the one frame that may come next in the handshake, or the error in its place.
func expect(r *Reader, t frames.Type) (frames.Frame, error) {
	f, err := r.Next(Types(t, frames.TypeCoordError))
	if err != nil {
		return nil, err
	}
	if e, ok := f.(*frames.CoordError); ok {
		return nil, &RefusedError{Code: e.Code, Message: e.Message}
	}
	return f, nil
}
