package link

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"coordinator/frames"
	"coordinator/handshake"

	"golang.org/x/sync/errgroup"
)

const (
	// outFrames bounds what a connection may be owed in replies. A peer that is owed more does
	// not read, and it is closed (protocol.md [D-40]).
	outFrames = 32
	// drainWait is how long a last error may take to reach a peer.
	drainWait = time.Second
	// grantTick is how often an idle connection looks at its key's expiry and its silence.
	grantTick = time.Second
)

// AuthFailed is the one text of every failed authentication (protocol.md §5.5).
const AuthFailed = "authentication failed"

var (
	errCrowded          = errors.New("too many unauthenticated connections")
	errOtherCoordinator = errors.New("the key may act for another coordinator only")

	errSilent  = errors.New("peer was silent for too long")
	errStalled = errors.New("peer does not read its replies")
	errTooSlow = errors.New("handshake or ending took too long")
	// errEnded ends the writer after the last frame; Conn.fault holds the cause.
	errEnded = errors.New("connection was ended")
)

// A Session is what one proved connection does with its frames.
type Session interface {
	// Accepts says whether a frame of the link's own may come now. It is asked before the
	// frame's body is read.
	Accepts(t frames.Type) bool
	// Handle carries out one frame on the connection's reader, in the order in which they
	// came; slices in f are the session's to keep. A [*FatalError], a *frames.Refusal or a
	// *codec.Error ends the connection with COORD_ERROR, any other error without.
	Handle(ctx context.Context, f frames.Frame) error
	// Ended is called once when the connection has ended and its goroutines are joined.
	Ended()
}

// A stage is how far a connection has come; it decides what may be waited for.
type stage uint32

const (
	stageNew        stage = iota // nothing received
	stageHello                   // some frame was received
	stageChallenged              // the challenge was queued
	stageReady                   // HELLO_OK was queued
	stageEnding                  // the last error was queued
)

// Conn is one connection of a link, server side. Its exported methods may be called from any
// goroutine once its session exists.
type Conn struct {
	srv   *Server
	nc    net.Conn
	ch    handshake.Channel
	out   chan outFrame // sent to without waiting; the writer receives
	bulk  chan outFrame // sent to with waiting; received when out is empty
	moved chan stage    // to the watcher, which always listens
	done  chan struct{} // closed when everything has ended
	group *errgroup.Group
	ctx   context.Context // of group; ends with the connection

	heard atomic.Int64                    // BOOTTIME of the last whole frame
	grant atomic.Pointer[handshake.Grant] // set once, before HELLO_OK is queued
	fault atomic.Pointer[FatalError]      // the first error that was queued as the last frame

	transport handshake.Transport
	log       *slog.Logger
	refused   atomic.Uint64 // COORD_ERRORs queued

	requests uint64       // owned by the reader; read after serve
	claimed  frames.KeyID // owned by the reader: of a proof that was refused
	denied   string       // owned by the reader: why, for this side alone

	hello   *Hello        // owned by the reader; constant once the session exists
	settled *frames.KeyID // owned by the reader; read after serve
	session Session       // owned by the reader; read after serve
}

// outFrame is an encoded frame. last marks the error that ends the connection, which is sent
// even when the grant is gone.
type outFrame struct {
	b    []byte
	last bool
}

// A FatalError ends the connection with COORD_ERROR.
type FatalError struct {
	Request frames.RequestID // that caused it; 0 for none
	Code    frames.Code
	Text    string
	Cause   error // for this side's log only; may be nil
}

func (e *FatalError) Error() string { return fmt.Sprintf("%v: %s", e.Code, e.Text) }

// Unwrap gives the cause.
func (e *FatalError) Unwrap() error { return e.Cause }

// ServeConn speaks the link on one connection until it ends, and closes it. ch is what the
// transport contributes to the proof. The returned error is nil for an ordinary end and
// matches the server's Failed when the process must stop.
func (s *Server) ServeConn(ctx context.Context, nc net.Conn, ch handshake.Channel) error {
	if !s.enter() {
		s.meters.Crowded()
		s.lines.Refused.Say(s.log, slog.LevelWarn, "connection refused", "transport", handshake.TransportOf(ch).String(), "reason", errCrowded)
		return nc.Close()
	}
	c := &Conn{
		srv: s, nc: nc, ch: ch, transport: handshake.TransportOf(ch), log: s.log.With("conn", s.number.Add(1)), out: make(chan outFrame, outFrames), bulk: make(chan outFrame),
		moved: make(chan stage), done: make(chan struct{}),
	}
	began := s.opt.Clock.Now().Boot
	c.heard.Store(int64(began))
	s.meters.Accepted(c.transport)
	s.meters.open[c.transport][stranger].Add(1)
	err := c.serve(ctx)
	s.meters.open[c.transport][c.standing()].Add(-1)
	if g := c.grant.Load(); g != nil {
		g.Release()
	}
	close(c.done)
	if c.session != nil {
		c.session.Ended()
	}
	s.leave(c.settled)
	c.tellEnd(s.opt.Clock.Now().Boot-began, err)
	if !s.failed(err) {
		return nil
	}
	// What the peer was told leaves out what this process must say of its end.
	var fatal *FatalError
	if errors.As(err, &fatal) && s.failed(fatal.Cause) {
		return fatal.Cause
	}
	return err
}

// standing is where the connection counts once it has ended.
func (c *Conn) standing() int {
	if c.settled == nil {
		return stranger
	}
	return proved
}

// Coordinator is the one that the peer acts for; its key's record names it.
func (c *Conn) Coordinator() frames.CoordinatorID { return c.hello.CoordinatorID }

// Key is the proved key.
func (c *Conn) Key() frames.KeyID { return c.grant.Load().KeyID }

// Scope is the proved key's effective scope.
func (c *Conn) Scope() uint64 { return c.grant.Load().Scope }

// Grant is the grant in the form of a HELLO_OK.
func (c *Conn) Grant() frames.WorkloadGrant { return c.grant.Load().Wire() }

// Done is closed when the connection has ended and all its goroutines with it.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Go runs f until the connection ends, which waits for it; its context then ends. It is called
// from the session's Handle or from another f. A non-nil error ends the connection.
func (c *Conn) Go(f func(ctx context.Context) error) {
	c.group.Go(func() error {
		err := f(c.ctx)
		if err == nil {
			return nil
		}
		return c.endWith(c.ctx, err)
	})
}

// End ends the connection with an error, from outside of it. It does not wait.
func (c *Conn) End(e *FatalError) {
	if c.finish(e) != nil {
		c.nc.Close() // the peer does not read, so it cannot be told
		return
	}
	select {
	case c.moved <- stageEnding:
	case <-c.ctx.Done():
	}
}

// serve runs the connection and returns once all its goroutines have. Each of the first three
// ends with a non-nil reason, so the first to end ends the rest.
func (c *Conn) serve(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	c.group, c.ctx = g, ctx
	g.Go(func() error { return c.readLoop(ctx) })                 // sole reader; handles in order
	g.Go(func() error { return c.writeLoop(ctx) })                // sole writer; drains c.out and c.bulk
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
func (c *Conn) readLoop(ctx context.Context) error {
	r := NewReader(c.nc, c.srv.opt.Namespace)
	err := c.shake(ctx, r)
	for err == nil {
		err = c.request(ctx, r)
	}
	return c.endWith(ctx, err)
}

// endWith tells the peer of err if that is its business, and returns when the connection has
// ended.
func (c *Conn) endWith(ctx context.Context, err error) error {
	var fatal *FatalError
	switch {
	case errors.As(err, &fatal):
	case peerFault(err):
		fatal = &FatalError{Code: frames.CodeOf(err), Text: "malformed frame", Cause: err}
		var refusal *frames.Refusal
		if errors.As(err, &refusal) {
			fatal.Text = refusal.Message
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
func (c *Conn) finish(e *FatalError) error {
	c.fault.CompareAndSwap(nil, e)
	b, err := c.encode(&frames.CoordError{RequestID: e.Request, Code: e.Code, Message: e.Text})
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
func (c *Conn) watch(ctx context.Context) error {
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
		case next := <-c.moved:
			if st == stageEnding {
				continue // a later fault prolongs no ending
			}
			st = next
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
		if err := c.CheckGrant(); err != nil {
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
			if err := c.Send(&frames.Ping{Nonce: uint64(now)}); err != nil {
				return err
			}
		}
		t.Reset(grantTick)
	}
}

// shake is the handshake: hello, challenge, response, hello ok.
func (c *Conn) shake(ctx context.Context, r *Reader) error {
	hello, err := c.readHello(ctx, r)
	if err != nil {
		return err
	}
	if !hello.HasOffer || hello.Offer.Profile != frames.Profile {
		return &FatalError{Code: frames.CodeAuthenticationFailed, Text: AuthFailed}
	}
	x, challenge, err := c.srv.opt.Handshake.Challenge(&hello.Offer, c.ch)
	if err != nil {
		return &FatalError{Code: frames.CodeInternal, Text: "no challenge could be made", Cause: err}
	}
	if err := c.Send(challenge); err != nil {
		return err
	}
	c.advance(ctx, stageChallenged)
	f, err := c.read(r, Types(frames.TypeWorkloadResponse))
	if err != nil {
		return err
	}
	response := f.(*frames.WorkloadResponse)
	grant, err := x.Finish(response)
	if err == nil && grant.Coordinator != hello.CoordinatorID {
		grant.Release()
		err = errOtherCoordinator
	}
	if err != nil {
		if c.claimed, c.denied = response.KeyID, x.Reason(); c.denied == "" {
			c.denied = err.Error()
		}
		return &FatalError{Code: frames.CodeAuthenticationFailed, Text: AuthFailed, Cause: err}
	}
	if !c.srv.settle(grant.KeyID) {
		grant.Release()
		return &FatalError{Code: frames.CodeResourceExhausted, Text: "too many connections"}
	}
	key := grant.KeyID
	c.settled, c.hello = &key, hello
	if nc, ok := c.nc.(interface{ Settled() }); ok {
		nc.Settled() // its listener counts it among the unauthenticated so far
	}
	c.grant.Store(grant)
	c.srv.meters.open[c.transport][stranger].Add(-1)
	c.srv.meters.open[c.transport][proved].Add(1)
	var ok HelloOK
	ok, c.session = c.srv.opt.Open(c)
	if err := c.Send(ok); err != nil {
		return err
	}
	r.Proved()
	c.advance(ctx, stageReady)
	return nil
}

// readHello answers pings until the hello comes.
func (c *Conn) readHello(ctx context.Context, r *Reader) (*Hello, error) {
	for first := true; ; first = false {
		f, err := c.read(r, Types(TypeHello, frames.TypePing, frames.TypeCoordError))
		if err != nil {
			return nil, err
		}
		if first {
			c.advance(ctx, stageHello)
		}
		switch f := f.(type) {
		case *Hello:
			if !f.Version.Compatible(frames.CurrentVersion()) {
				return nil, frames.Refuse(frames.CodeVersionIncompatible, "this side speaks %d.%d", frames.VersionMajor, frames.VersionMinor)
			}
			return f, nil
		case *frames.Ping:
			if err := c.Send(&frames.Pong{Nonce: f.Nonce}); err != nil {
				return nil, err
			}
		default:
			return nil, io.EOF // an error from a client closes ([D-40])
		}
	}
}

func (c *Conn) read(r *Reader, accept func(frames.Type) bool) (frames.Frame, error) {
	f, err := r.Next(accept)
	if err == nil {
		c.heard.Store(int64(c.srv.opt.Clock.Now().Boot))
	}
	return f, err
}

// accepts says which frames may come on a proved connection.
func (c *Conn) accepts(t frames.Type) bool {
	switch t {
	case frames.TypePing, frames.TypePong, frames.TypeCoordError:
		return true
	}
	return shared[t] == nil && c.session.Accepts(t)
}

// request reads one frame of a proved connection and has it handled.
func (c *Conn) request(ctx context.Context, r *Reader) error {
	f, err := c.read(r, c.accepts)
	if err != nil {
		return err
	}
	switch f := f.(type) {
	case *frames.Ping:
		return c.Send(&frames.Pong{Nonce: f.Nonce})
	case *frames.Pong:
		return nil
	case *frames.CoordError:
		return io.EOF
	default:
		c.requests++
		c.srv.meters.Request(f.Type())
		return c.session.Handle(ctx, f)
	}
}

// CheckGrant is nil while the proved key is still good; before the proof there is none.
func (c *Conn) CheckGrant() *FatalError {
	if g := c.grant.Load(); g != nil {
		if err := g.Err(c.srv.opt.Clock.Now()); err != nil {
			return &FatalError{Code: frames.CodeAuthenticationFailed, Text: AuthFailed, Cause: err}
		}
	}
	return nil
}

// Send queues a reply for the writer and never waits: a peer that is owed too many does not
// read.
func (c *Conn) Send(f frames.Frame) error {
	b, err := c.encode(f)
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

// SendBulk hands a frame of a stream to the writer once it has nothing more urgent, which a
// slow peer may delay for as long as ctx.
func (c *Conn) SendBulk(ctx context.Context, f frames.Frame) error {
	b, err := c.encode(f)
	if err != nil {
		return err
	}
	select {
	case c.bulk <- outFrame{b: b}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// advance tells the watcher how far the conversation has come.
func (c *Conn) advance(ctx context.Context, s stage) {
	select {
	case c.moved <- s:
	case <-ctx.Done():
	}
}

// next is what is to be written next: replies before streams.
func (c *Conn) next(ctx context.Context) (outFrame, error) {
	select {
	case f := <-c.out:
		return f, nil
	default:
	}
	select {
	case <-ctx.Done():
		return outFrame{}, ctx.Err()
	case f := <-c.out:
		return f, nil
	case f := <-c.bulk:
		return f, nil
	}
}

// writeLoop writes what is queued. The grant is looked at before each write, so that nothing
// goes to a key that was revoked after its request was carried out (protocol.md [D-48]).
func (c *Conn) writeLoop(ctx context.Context) error {
	for {
		f, err := c.next(ctx)
		if err != nil {
			return err
		}
		if gone := c.CheckGrant(); gone != nil && !f.last {
			c.fault.CompareAndSwap(nil, gone)
			f.last = true
			if f.b, err = c.encode(&frames.CoordError{Code: gone.Code, Message: gone.Text}); err != nil {
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
