package owner

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/handshake/link"
	"coordinator/internal/clock"
)

const (
	// defaultDialTimeout bounds dial and proof beside the context.
	defaultDialTimeout = 10 * time.Second
	// clientPing is the silence after which the client asks whether the owner is there, and
	// clientClose that after which it gives the connection up. On a way that loses everything
	// nothing else tells: no frame that is sent unasked has a reply, and what was dispatched
	// waits for one.
	clientPing  = 5 * time.Second
	clientClose = 20 * time.Second
	// readWindow is how much output is asked for at once: what a slow caller of ReadOutput makes
	// this side keep, so that the connection's reader never waits for it.
	readWindow = 1 << 20
)

// A RefusedError is the owner's own answer no. Any other error of a request means that there
// is no answer: what was asked for may or may not have been done.
type RefusedError struct {
	Code    frames.Code
	Message string // diagnostic only
}

func (e *RefusedError) Error() string { return fmt.Sprintf("owner refused: %v: %s", e.Code, e.Message) }

// Causes that callers of a [Client] match.
var (
	// ErrImpostor says that the other side is not the pinned owner.
	ErrImpostor = link.ErrImpostor
	// ErrClosed says that the client was closed.
	ErrClosed = errors.New("closed")

	errUnasked = errors.New("a reply to no outstanding request")
	errSilent  = fmt.Errorf("nothing has come from the owner for %v: it is stopped, or what is sent to it is lost", clientClose)
)

// ClientOptions configure [Dial].
type ClientOptions struct {
	// Socket is the path of the owner's Unix socket. Dial, such as a [QUICDialer], replaces it.
	Socket string
	Dial   link.Dialer
	// Pin is the fingerprint of the owner's authority key. Anybody else is [ErrImpostor].
	Pin frames.Fingerprint
	// CoordinatorID is whom this client acts or reads for, and Key its own key in the owner's
	// registry.
	CoordinatorID frames.CoordinatorID
	Key           handshake.Signer
	// Scope is what is asked for. Zero means [ScopeAll]; [ScopeOutput] alone needs no
	// certificate.
	Scope uint64
	// Name is the client_name of the hello. Empty means "coordinator".
	Name string
	// Timeout bounds dial and proof beside the context. Zero means 10 s.
	Timeout time.Duration
	// Clock is the time. Nil means the system's.
	Clock clock.Clock
	// Rand is the source of nonces. Nil means crypto/rand.
	Rand io.Reader

	// OnBindings, OnFact and OnFactsEnd are called for what the owner sends unasked, in its
	// order and by the connection's one reader: they must not wait, above all not for a reply.
	// How many facts may come is the credit that was given. Slices are the callee's to keep.
	OnBindings func([]frames.BindingID)
	OnFact     func(*frames.TerminalSourceFact)
	OnFactsEnd func(binding frames.BindingID, last uint64)
}

// A Result is what became of an effect. State is SUCCEEDED, REJECTED, INDETERMINATE or
// [NeverSeen]; Resource is set for a SPAWN that succeeded.
type Result struct {
	Attempt     frames.EffectAttemptID
	State       frames.EffectState
	HasResource bool
	Resource    frames.ResourceID
	Message     string // diagnostic only
}

// A Client is one proved connection to an owner. It does not dial again: when [Client.Done] is
// closed its user dials another. Its methods may be called from any goroutine.
type Client struct {
	opt   ClientOptions
	nc    net.Conn
	proof *link.Proof

	write chan struct{} // holds one token: the right to write
	ended chan struct{} // closed when the reader has ended
	err   error         // why; read after ended
	join  sync.WaitGroup

	mu      sync.Mutex
	next    frames.RequestID              // guarded by mu
	waiting map[frames.RequestID]*request // guarded by mu; nil once ended
	heard   time.Duration                 // guarded by mu; BOOTTIME of the last frame
	closed  bool                          // guarded by mu
	silent  bool                          // guarded by mu: given up because nothing came
}

// Dial connects to an owner and proves both sides. Errors: *[RefusedError] (above all
// AUTHENTICATION_FAILED: the key is not enrolled for this coordinator), one matching
// [ErrImpostor], or that nobody answered.
func Dial(ctx context.Context, o ClientOptions) (*Client, error) {
	switch {
	case o.Socket == "" && o.Dial == nil:
		return nil, errors.New("owner client: no socket to dial")
	case o.Pin == (frames.Fingerprint{}):
		return nil, errors.New("owner client: the owner is not pinned")
	case o.CoordinatorID == (frames.CoordinatorID{}):
		return nil, errors.New("owner client: the coordinator id is missing")
	case o.Key == nil:
		return nil, errors.New("owner client: the key is missing")
	}
	if o.Clock == nil {
		o.Clock = clock.System()
	}
	if o.Rand == nil {
		o.Rand = rand.Reader
	}
	if o.Scope == 0 {
		o.Scope = ScopeAll
	}
	if o.Name == "" {
		o.Name = "coordinator"
	}
	if o.Timeout == 0 {
		o.Timeout = defaultDialTimeout
	}
	if o.Dial == nil {
		o.Dial = link.SocketDialer(o.Socket)
	}
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	prover := link.Prover{
		Namespace: namespace, Pin: o.Pin, CoordinatorID: o.CoordinatorID, Key: o.Key,
		Name: o.Name, Scope: o.Scope, Clock: o.Clock, Rand: o.Rand,
	}
	nc, proof, err := prover.Connect(ctx, o.Dial)
	var refused *link.RefusedError
	if errors.As(err, &refused) {
		return nil, fmt.Errorf("owner connect: %w", &RefusedError{Code: refused.Code, Message: refused.Message})
	}
	if err != nil {
		return nil, fmt.Errorf("owner connect: %w", err)
	}
	c := &Client{
		opt: o, nc: nc, proof: proof, write: make(chan struct{}, 1), ended: make(chan struct{}),
		waiting: map[frames.RequestID]*request{}, heard: o.Clock.Now().Boot,
	}
	c.write <- struct{}{}
	c.join.Go(c.readLoop)
	c.join.Go(c.watch)
	return c, nil
}

// QUICDialer is a Dial for [ClientOptions] that connects to addr, host:port, where the owner
// must show the pinned key. A nil clock is the system's.
func QUICDialer(addr string, pin frames.Fingerprint, clk clock.Clock) link.Dialer {
	if clk == nil {
		clk = clock.System()
	}
	return namespace.QUICDialer(addr, pin, clk)
}

// Fingerprint and Incarnation are what effects and bindings of this owner name.
func (c *Client) Fingerprint() frames.Fingerprint { return c.opt.Pin }

// Incarnation is the owner's, fresh at each of its starts.
func (c *Client) Incarnation() frames.IncarnationID { return c.proof.Challenge.Incarnation }

// Groups are the terminal groups that the owner serves.
func (c *Client) Groups() []frames.GroupID { return c.proof.HelloOK.(*OwnerHelloOK).Groups }

// Scope is what was granted of the scope that was asked for.
func (c *Client) Scope() uint64 { return uint64(c.proof.HelloOK.(*OwnerHelloOK).Grant.Scope) }

// Done is closed when the connection has ended. [Client.Err] then says why.
func (c *Client) Done() <-chan struct{} { return c.ended }

// Err is why the connection has ended; nil while it lasts.
func (c *Client) Err() error {
	select {
	case <-c.ended:
		return c.err
	default:
		return nil
	}
}

// Close ends the connection and joins its goroutines. Requests under way fail.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.nc.Close()
	c.join.Wait()
	return nil
}

// Authority shows the certificate in force: first after the dial, then at each renewal. It has
// no reply; an owner that refuses it ends the connection.
func (c *Client) Authority(ctx context.Context, cert frames.Certificate) error {
	return c.wrap("authority", c.send(ctx, &Authority{Certificate: cert}))
}

// Dispatch sends one effect and waits for its outcome. It is sent once: after any error but a
// *[RefusedError] the attempt must be looked up, never sent again.
func (c *Client) Dispatch(ctx context.Context, guard frames.AuthorityGuard, a *frames.EffectAttempt) (Result, error) {
	return c.effect(ctx, "dispatch", a.ID, func(id frames.RequestID) frames.Frame {
		return &DispatchEffect{RequestID: id, Guard: guard, Attempt: a.ID, OperationID: a.OperationID,
			Kind: a.Kind, Target: a.Target, Digest: a.Digest, Payload: a.Payload}
	})
}

// GetEffect asks what became of an attempt. [NeverSeen] is final: the owner refuses it from
// then on.
func (c *Client) GetEffect(ctx context.Context, guard frames.AuthorityGuard, id frames.EffectAttemptID, digest [32]byte) (Result, error) {
	return c.effect(ctx, "get effect", id, func(r frames.RequestID) frames.Frame {
		return &GetEffect{RequestID: r, Guard: guard, Attempt: id, Digest: digest}
	})
}

func (c *Client) effect(ctx context.Context, op string, attempt frames.EffectAttemptID, frame func(frames.RequestID) frames.Frame) (Result, error) {
	f, err := c.call(ctx, frame)
	if err != nil {
		return Result{}, c.wrap(op, err)
	}
	r, ok := f.(*EffectResult)
	if !ok || r.Attempt != attempt {
		return Result{}, c.wrap(op, c.broken(errUnasked))
	}
	out := Result{Attempt: r.Attempt, State: r.State, HasResource: r.HasResource, Resource: r.Resource}
	if r.Message != nil {
		out.Message = *r.Message
	}
	return out, nil
}

// OpenFacts asks for a binding's facts above a sequence, credit of them for a start. They come
// to OnFact; [Client.FactAck] gives more credit. Refused with NOT_FOUND when the owner does not
// hold the binding.
func (c *Client) OpenFacts(ctx context.Context, guard frames.AuthorityGuard, binding frames.BindingID, after uint64, credit uint32) error {
	f, err := c.call(ctx, func(id frames.RequestID) frames.Frame {
		return &OpenFacts{RequestID: id, Guard: guard, BindingID: binding, After: after, Credit: credit}
	})
	if _, ok := f.(*frames.Ack); err == nil && !ok {
		err = c.broken(errUnasked)
	}
	return c.wrap("open facts", err)
}

// FactAck says that all facts through a sequence are committed or refused, and adds credit.
// [AckAll] gives the binding up. It has no reply.
func (c *Client) FactAck(ctx context.Context, binding frames.BindingID, through uint64, add uint32) error {
	return c.wrap("fact ack", c.send(ctx, &FactAck{BindingID: binding, Through: through, Add: add}))
}

func (c *Client) wrap(op string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("owner %s: %w", op, err)
}

// broken ends a connection whose other side does not keep to the link.
func (c *Client) broken(err error) error {
	c.nc.Close()
	return err
}

// A request is one that waits for its reply, or for the chunks of a read.
type request struct {
	reply chan frames.Frame // one slot
	read  *window           // nil for all others
}

// call sends one request and waits for its one reply.
func (c *Client) call(ctx context.Context, frame func(frames.RequestID) frames.Frame) (frames.Frame, error) {
	id, r, err := c.begin(nil)
	if err != nil {
		return nil, noAnswer(err)
	}
	defer c.finish(id)
	if err := c.send(ctx, frame(id)); err != nil {
		return nil, noAnswer(err)
	}
	select {
	case f := <-r.reply:
		return refusal(f)
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-c.ended:
	}
	select { // it may have come just before the end
	case f := <-r.reply:
		return refusal(f)
	default:
		return nil, noAnswer(c.err)
	}
}

// noAnswer is the error of a request whose connection has ended. What the owner said of the
// connection, it has not said of the request.
func noAnswer(err error) error {
	var refused *RefusedError
	if errors.As(err, &refused) {
		return fmt.Errorf("no answer: the connection ended: %v", err)
	}
	return err
}

// refusal tells an answer no from a reply.
func refusal(f frames.Frame) (frames.Frame, error) {
	if e, ok := f.(*frames.CoordError); ok {
		return nil, &RefusedError{Code: e.Code, Message: e.Message}
	}
	return f, nil
}

// begin registers a request.
func (c *Client) begin(read *window) (frames.RequestID, *request, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiting == nil {
		return 0, nil, c.err
	}
	for c.next++; c.next == 0 || c.waiting[c.next] != nil; {
		c.next++
	}
	r := &request{reply: make(chan frames.Frame, 1), read: read}
	c.waiting[c.next] = r
	return c.next, r, nil
}

// finish forgets a request. A reply that comes later is dropped.
func (c *Client) finish(id frames.RequestID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiting, id)
}

// send writes one frame. A write that has begun is finished or ends the connection, so the
// context bounds only the wait for the turn and, by ending the connection, a write that hangs.
func (c *Client) send(ctx context.Context, f frames.Frame) error {
	select {
	case <-c.write:
	case <-ctx.Done():
		return ctx.Err()
	case <-c.ended:
		return c.err
	}
	defer func() { c.write <- struct{}{} }()
	stop := link.AbortOnDone(ctx, c.nc)
	err := link.WriteFrame(c.nc, f)
	if stop() && err == nil {
		err = ctx.Err()
	}
	if err == nil {
		return nil
	}
	select {
	case <-c.ended:
		return c.err
	default:
		return err
	}
}
