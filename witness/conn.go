package witness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/failpoint"

	"golang.org/x/sync/errgroup"
)

const (
	// outFrames bounds what a connection may be owed; requests are answered one by one, so
	// more than a few means that the peer does not read, and it is closed ([D-40]).
	outFrames = 32
	// drainWait is how long a last error may take to reach a peer.
	drainWait = time.Second
	// grantTick is how often an idle connection looks at its key's expiry and its silence.
	grantTick = time.Second
)

// authFailed is the one text of every failed authentication (protocol.md §5.5).
const authFailed = "authentication failed"

var (
	errOtherCoordinator = errors.New("the key may act for another coordinator only")

	errSilent  = errors.New("peer was silent for too long")
	errStalled = errors.New("peer does not read its replies")
	errTooSlow = errors.New("handshake or ending took too long")
	// errEnded ends the writer after the last frame; conn.fault holds the cause.
	errEnded = errors.New("connection was ended")
)

// A stage is how far a connection has come; it decides what may be waited for.
type stage uint32

const (
	stageNew        stage = iota // nothing received
	stageHello                   // some frame was received
	stageChallenged              // the challenge was queued
	stageReady                   // HELLO_OK was queued
	stageEnding                  // the last error was queued
)

// conn is one connection of the witness link.
type conn struct {
	srv   *Server
	nc    net.Conn
	ch    handshake.Channel
	out   chan outFrame // reader and watcher send and never wait; the writer receives
	moved chan stage    // reader to watcher, which always listens

	heard atomic.Int64                    // BOOTTIME of the last whole frame
	grant atomic.Pointer[handshake.Grant] // set once, before HELLO_OK is queued
	fault atomic.Pointer[fatalError]      // the first error that was queued as the last frame

	coordinator frames.CoordinatorID // owned by the reader; read after serve
	settled     *frames.KeyID        // owned by the reader; read after serve
}

// outFrame is an encoded frame. last marks the error that ends the connection, which is sent
// even when the grant is gone.
type outFrame struct {
	b    []byte
	last bool
}

// ServeConn speaks the witness link on one connection until it ends, and closes it. ch is what
// the transport contributes to the proof. The returned error is nil for an ordinary end and
// matches [ErrFailed] when the process must stop.
func (s *Server) ServeConn(ctx context.Context, nc net.Conn, ch handshake.Channel) error {
	if !s.enter() {
		return nc.Close()
	}
	c := &conn{srv: s, nc: nc, ch: ch, out: make(chan outFrame, outFrames), moved: make(chan stage)}
	c.heard.Store(int64(s.opt.Clock.Now().Boot))
	err := c.serve(ctx)
	if g := c.grant.Load(); g != nil {
		g.Release()
	}
	s.leave(c.settled)
	if errors.Is(err, ErrFailed) {
		return err
	}
	s.log.Debug("connection ended", "coordinator", c.coordinator.String(), "cause", err)
	return nil
}

// serve runs the connection and returns once all its goroutines have. Each of the first three
// ends with a non-nil reason, so the first to end ends the rest.
func (c *conn) serve(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.readLoop(ctx) })                 // sole reader; answers in order
	g.Go(func() error { return c.writeLoop(ctx) })                // sole writer; drains c.out
	g.Go(func() error { return c.watch(ctx) })                    // deadlines, keepalive, revocation
	g.Go(func() error { <-ctx.Done(); c.nc.Close(); return nil }) // frees blocked reads and writes
	err := g.Wait()
	if f := c.fault.Load(); f != nil {
		return f
	}
	return err
}

// readLoop takes the conversation to its end. When the peer is at fault, or its grant is gone,
// the error is queued and the writer ends the connection once it is sent.
func (c *conn) readLoop(ctx context.Context) error {
	r := newFrameReader(c.nc)
	err := c.shake(ctx, r)
	for err == nil {
		err = c.request(r)
	}
	var fatal *fatalError
	switch {
	case errors.As(err, &fatal):
	case peerFault(err):
		fatal = &fatalError{code: frames.CodeOf(err), text: "malformed frame", cause: err}
		var refusal *frames.Refusal
		if errors.As(err, &refusal) {
			fatal.text = refusal.Message
		}
	default:
		return err
	}
	if err := c.finish(fatal); err != nil {
		return err
	}
	c.advance(ctx, stageEnding)
	<-ctx.Done()
	return fatal
}

// finish queues the error that ends the connection.
func (c *conn) finish(e *fatalError) error {
	c.fault.CompareAndSwap(nil, e)
	b, err := AppendFrame(nil, &frames.CoordError{RequestID: e.request, Code: e.code, Message: e.text})
	if err != nil {
		return err
	}
	select {
	case c.out <- outFrame{b, true}:
		return nil
	default: // full: the peer does not read, so it cannot be told
		return errStalled
	}
}

// watch holds the connection to its times and its grant: the deadlines of the handshake, then
// pings for silence, and at every tick and change of the registry a look at the key.
func (c *conn) watch(ctx context.Context) error {
	clk := c.srv.opt.Clock
	start := clk.Now().Boot
	st, deadline := stageNew, start+firstFrameWait
	pinged := int64(-1)         // value of c.heard that a ping was sent for
	var revoked <-chan struct{} // nil until there is a grant
	t := clk.NewTimer(firstFrameWait)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case st = <-c.moved:
			switch now := clk.Now().Boot; st {
			case stageHello:
				deadline = start + helloWait
			case stageChallenged:
				deadline = min(start+helloWait, now+responseWait)
			case stageReady:
				revoked = c.grant.Load().Revoked()
			case stageEnding:
				deadline = now + drainWait
			}
		case <-revoked:
			revoked = nil
		case <-t.C():
		}
		now := clk.Now().Boot
		if st != stageReady {
			if now >= deadline {
				return errTooSlow
			}
			t.Reset(deadline - now)
			continue
		}
		if err := c.checkGrant(); err != nil {
			if ferr := c.finish(err); ferr != nil {
				return ferr
			}
			st, deadline = stageEnding, now+drainWait
			t.Reset(drainWait)
			continue
		}
		heard := c.heard.Load()
		silent := now - time.Duration(heard)
		if silent >= closeAfter {
			return errSilent
		}
		if silent >= pingAfter && pinged != heard {
			pinged = heard
			if err := c.send(&frames.Ping{Nonce: uint64(now)}); err != nil {
				return err
			}
		}
		t.Reset(grantTick)
	}
}

// A fatalError ends the connection with COORD_ERROR.
type fatalError struct {
	request frames.RequestID
	code    frames.Code
	text    string
	cause   error
}

func (e *fatalError) Error() string { return fmt.Sprintf("%v: %s", e.code, e.text) }
func (e *fatalError) Unwrap() error { return e.cause }

// shake is the handshake: hello, challenge, response, hello ok.
func (c *conn) shake(ctx context.Context, r *frameReader) error {
	hello, err := c.readHello(ctx, r)
	if err != nil {
		return err
	}
	if !hello.HasOffer || hello.Offer.Profile != frames.Profile {
		return &fatalError{code: frames.CodeAuthenticationFailed, text: authFailed}
	}
	x, challenge, err := c.srv.opt.Handshake.Challenge(&hello.Offer, c.ch)
	if err != nil {
		return &fatalError{code: frames.CodeInternal, text: "no challenge could be made", cause: err}
	}
	if err := c.send(challenge); err != nil {
		return err
	}
	c.advance(ctx, stageChallenged)
	f, err := c.read(r, types(frames.TypeWorkloadResponse))
	if err != nil {
		return err
	}
	grant, err := x.Finish(f.(*frames.WorkloadResponse))
	if err == nil && grant.Coordinator != hello.CoordinatorID {
		grant.Release()
		err = errOtherCoordinator
	}
	if err != nil {
		c.srv.log.Warn("authentication refused", "coordinator", hello.CoordinatorID.String(), "cause", err, "reason", x.Reason())
		return &fatalError{code: frames.CodeAuthenticationFailed, text: authFailed, cause: err}
	}
	if !c.srv.settle(grant.KeyID) {
		grant.Release()
		return &fatalError{code: frames.CodeResourceExhausted, text: "too many connections"}
	}
	key := grant.KeyID
	c.settled, c.coordinator = &key, hello.CoordinatorID
	if nc, ok := c.nc.(interface{ Settled() }); ok {
		nc.Settled() // its listener counts it among the unauthenticated so far
	}
	c.grant.Store(grant)
	c.srv.log.Debug("authenticated", "coordinator", c.coordinator.String(), "key", shortKey(key), "client", hello.Name)
	w := c.srv.opt.Witness
	ok := &WitnessHelloOK{
		Version: frames.CurrentVersion(), WitnessID: w.ID(), MaxLeaseSecs: w.MaxLeaseSecs(), Grant: grant.Wire(),
	}
	if err := c.send(ok); err != nil {
		return err
	}
	c.advance(ctx, stageReady)
	return nil
}

// readHello answers pings until the hello comes.
func (c *conn) readHello(ctx context.Context, r *frameReader) (*LinkHello, error) {
	for first := true; ; first = false {
		f, err := c.read(r, types(TypeLinkHello, frames.TypePing, frames.TypeCoordError))
		if err != nil {
			return nil, err
		}
		if first {
			c.advance(ctx, stageHello)
		}
		switch f := f.(type) {
		case *LinkHello:
			if !f.Version.Compatible(frames.CurrentVersion()) {
				return nil, frames.Refuse(frames.CodeVersionIncompatible, "this side speaks %d.%d", frames.VersionMajor, frames.VersionMinor)
			}
			return f, nil
		case *frames.Ping:
			if err := c.send(&frames.Pong{Nonce: f.Nonce}); err != nil {
				return nil, err
			}
		default:
			return nil, io.EOF // an error from a client closes ([D-40])
		}
	}
}

func (c *conn) read(r *frameReader, accept func(frames.Type) bool) (frames.Frame, error) {
	f, err := r.next(accept)
	if err == nil {
		c.heard.Store(int64(c.srv.opt.Clock.Now().Boot))
	}
	return f, err
}

var acceptReady = types(TypeActivate, TypeRenew, TypeRelinquish, TypeGetStatus,
	frames.TypePing, frames.TypePong, frames.TypeCoordError)

// request reads one frame of a proved connection and answers it.
func (c *conn) request(r *frameReader) error {
	f, err := c.read(r, acceptReady)
	if err != nil {
		return err
	}
	switch f := f.(type) {
	case *frames.Ping:
		return c.send(&frames.Pong{Nonce: f.Nonce})
	case *frames.Pong:
		return nil
	case *frames.CoordError:
		return io.EOF
	default:
		return c.answer(f)
	}
}

// answer carries out one request and queues its reply.
func (c *conn) answer(f frames.Frame) error {
	id, coordinator, scope := describe(f)
	if gone := c.checkGrant(); gone != nil {
		gone.request = id
		return gone
	}
	var reply frames.Frame
	var err error
	switch {
	case coordinator != c.coordinator:
		return &fatalError{request: id, code: frames.CodeAuthenticationFailed, text: authFailed}
	case uint64(c.grant.Load().Scope)&scope == 0:
		err = refuse(frames.CodeScopeDenied, "the key has not the scope for this request")
	default:
		reply, err = c.execute(f)
	}
	var refused *RefusedError
	switch {
	case err == nil:
	case !errors.As(err, &refused):
		// The witness's own trouble; its text may name files and is not for the peer.
		return &fatalError{request: id, code: frames.CodeInternal, text: "the witness cannot answer", cause: err}
	case refused.Code.Fatal():
		return &fatalError{request: id, code: refused.Code, text: refused.Message}
	default:
		reply = &frames.CoordError{RequestID: id, Code: refused.Code, Message: refused.Message}
	}
	failpoint.Hit("witness-reply")
	return c.send(reply)
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
func (c *conn) execute(f frames.Frame) (frames.Frame, error) {
	w, key := c.srv.opt.Witness, c.grant.Load().KeyID
	switch f := f.(type) {
	case *Activate:
		cert, err := w.Activate(key, f.CoordinatorID, f.Epoch, f.IncarnationID, f.LeaseSecs)
		return &CertificateReply{RequestID: f.RequestID, Certificate: cert}, err
	case *Renew:
		cert, err := w.Renew(f.CoordinatorID, f.Epoch, f.Activation, f.IncarnationID, f.Token, f.LeaseSecs)
		return &CertificateReply{RequestID: f.RequestID, Certificate: cert}, err
	case *Relinquish:
		return &frames.Ack{RequestID: f.RequestID}, w.Relinquish(key, f.CoordinatorID, f.Token, f.IncarnationID)
	case *GetStatus:
		s, err := w.Status(f.CoordinatorID)
		return &StatusReply{RequestID: f.RequestID, LastEpoch: s.LastEpoch, Activation: s.Activation,
			LeaseRemaining: roundUp(s.LeaseRemaining)}, err
	}
	panic(fmt.Sprintf("witness: no request has type %#02x", uint8(f.Type())))
}

// checkGrant is nil while the proved key is still good; before the proof there is none.
func (c *conn) checkGrant() *fatalError {
	if g := c.grant.Load(); g != nil {
		if err := g.Err(c.srv.opt.Clock.Now()); err != nil {
			return &fatalError{code: frames.CodeAuthenticationFailed, text: authFailed, cause: err}
		}
	}
	return nil
}

// send queues a frame for the writer.
func (c *conn) send(f frames.Frame) error {
	b, err := AppendFrame(nil, f)
	if err != nil {
		return err
	}
	select {
	case c.out <- outFrame{b: b}:
		return nil
	default:
		return errStalled
	}
}

// advance tells the watcher how far the conversation has come.
func (c *conn) advance(ctx context.Context, s stage) {
	select {
	case c.moved <- s:
	case <-ctx.Done():
	}
}

// writeLoop writes what is queued. The grant is looked at before each write, so that nothing
// goes to a key that was revoked after its request was carried out (protocol.md [D-48]).
func (c *conn) writeLoop(ctx context.Context) error {
	for {
		var f outFrame
		select {
		case <-ctx.Done():
			return ctx.Err()
		case f = <-c.out:
		}
		if gone := c.checkGrant(); gone != nil && !f.last {
			c.fault.CompareAndSwap(nil, gone)
			var err error
			f.last = true
			if f.b, err = AppendFrame(nil, &frames.CoordError{Code: gone.code, Message: gone.text}); err != nil {
				return err
			}
		}
		if _, err := c.nc.Write(f.b); err != nil {
			return err
		}
		if f.last {
			return errEnded
		}
	}
}
