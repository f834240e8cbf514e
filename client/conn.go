package client

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/clock"
)

const (
	// defaultGrant is the requested life of a connection's grant; the registry's expiry
	// cuts it.
	defaultGrant = 24 * time.Hour
	// handshakeLimit matches the server's own limit from accept to HELLO_OK (§2.3 [D-7]).
	handshakeLimit = 10 * time.Second
	// pongQueue bounds the pings that wait to be answered; a peer that sends more without
	// reading its answers ends the connection.
	pongQueue = 32
	// expiryTick is how often an idle connection looks at its certificate.
	expiryTick = time.Second
)

// Options say how to dial. The zero value asks for every scope and no capability.
type Options struct {
	// Key proves this client. Nil loads the context's key_file.
	Key handshake.Signer
	// State is the memory to use. Nil opens the one beside the context file.
	State *State
	// Name is the client_name of the hello, at most 128 bytes. Empty means "client".
	Name string
	// Scope is what to ask for; the registry's ceiling cuts it. Zero means every scope.
	Scope frames.Scope
	// Offered and Required are capability bits. ADMINISTRATION is for showing ADMIN
	// records only, and WITHOUT_OPERATIONS for whoever shows no operations.
	Offered, Required frames.Capability
	// Grant is how long the grant should live. Zero means 24 h.
	Grant time.Duration
	// Limits is the offer of the hello. The zero value means the reference offer.
	Limits frames.Limits
	// MaxRequests caps the requests outstanding at once; further calls wait. Zero means 128,
	// which is what a server serves.
	MaxRequests int
	// Journal makes every command's OperationId durable before it is sent, so that a
	// process that dies in between can still be asked what became of it.
	Journal bool
	// Progress is told often how far a snapshot, its file or a reading of the event log has come, by
	// the goroutine that called for it. It must not wait. Nil tells nobody.
	Progress func(Progress)
	// Clock is the time. Nil means the system's.
	Clock clock.Clock
	// Rand is the source of nonces. Nil means crypto/rand.
	Rand io.Reader
	// Transport reaches the server. Nil dials the context's Unix socket or QUIC endpoint.
	Transport Transport
}

// A Transport opens a channel to the coordinator and says what binds a proof to it
// (protocol.md §5.4).
type Transport func(ctx context.Context, c *Context) (net.Conn, handshake.Channel, error)

func (o *Options) defaults() {
	if o.Name == "" {
		o.Name = "client"
	}
	if o.Scope == 0 {
		o.Scope = frames.AllScopes
	}
	if o.Grant == 0 {
		o.Grant = defaultGrant
	}
	if o.Limits == (frames.Limits{}) {
		o.Limits = frames.ReferenceLimits()
	}
	if o.MaxRequests == 0 {
		o.MaxRequests = frames.RequestsPerConnection
	}
	if o.Clock == nil {
		o.Clock = clock.System()
	}
	if o.Rand == nil {
		o.Rand = rand.Reader
	}
	if o.Transport == nil {
		o.Transport = contextTransport(o.Clock)
	}
}

// A Conn is one authenticated connection. Its calls may be made from any goroutine and
// end when their context does. Close must be called once it is no longer needed.
type Conn struct {
	nc    net.Conn
	opts  Options
	pins  *Context
	state *State
	keyID frames.KeyID
	hello frames.CoordHelloOK
	guard frames.AuthorityGuard

	lease    atomic.Pointer[lease] // the certificate in force
	heard    atomic.Int64          // when the last frame came, by the wall clock, in Unix nanoseconds
	verified atomic.Bool           // a snapshot has verified under this authority (D-44)

	slots chan struct{} // one element per request that may still be sent
	wlock chan struct{} // holds one element while somebody writes
	wbuf  []byte        // owned by whoever holds wlock: frames that wait to be written
	added int           // owned by whoever holds wlock: how many those are
	// flushed counts how often they were written. Owned by whoever holds wlock.
	flushed uint64
	wnow    *direct     // owned by whoever holds wlock; nil where there is no socket
	rests   chan []byte // write to finishWrites, and wlock with it
	pongs   chan uint64 // readLoop to answerPings

	// Owned by readLoop.
	reading *Subscription // that of the last event
	fresh   *Subscription // has events that its consumer has not been told of

	mu     sync.Mutex
	calls  map[frames.RequestID]*call              // guarded by mu
	subs   map[frames.SubscriptionID]*Subscription // guarded by mu; those of this connection
	pings  map[uint64]chan struct{}                // guarded by mu
	lastID frames.RequestID                        // guarded by mu
	nonce  uint64                                  // guarded by mu; of the last ping
	cause  error                                   // guarded by mu; why the connection ended
	unkept error                                   // guarded by mu; why what results showed could not be made durable

	done chan struct{} // closed once cause is set
	wg   sync.WaitGroup
}

// A lease is a certificate and how long it counts here. The wall clock ends it, as the
// protocol says, and so does the same time passed on BOOTTIME, so that a clock that is set
// back does not stretch it.
type lease struct {
	cert     frames.Certificate
	deadline time.Duration // BOOTTIME
}

func newLease(cert frames.Certificate, now clock.Reading) *lease {
	return &lease{cert, now.Boot + time.Unix(int64(cert.ExpiresAt), 0).Sub(now.Wall)}
}

func (l *lease) expired(now clock.Reading) bool {
	return now.Boot >= l.deadline || !now.Wall.Before(time.Unix(int64(l.cert.ExpiresAt), 0))
}

// Info is what the handshake settled.
type Info struct {
	Name          string
	Socket        string // empty on a QUIC connection
	QUIC          string // empty on a Unix socket
	CoordinatorID frames.CoordinatorID
	IncarnationID frames.IncarnationID
	Epoch         frames.AuthorityEpoch
	Activation    frames.ActivationSequence
	KeyID         frames.KeyID
	Capabilities  frames.Capability
	Scope         frames.Scope
	Limits        frames.Limits
	GrantExpires  uint64 // Unix seconds
	LeaseExpires  uint64 // Unix seconds; of the certificate in force
	RetentionSecs uint64 // how long operation results are kept at least
	Verified      bool   // a snapshot has verified under this authority
}

// Info tells what the handshake settled and the certificate now in force.
func (c *Conn) Info() Info {
	return Info{
		Name: c.pins.Name, Socket: c.pins.Socket, QUIC: c.pins.QUIC,
		CoordinatorID: c.hello.CoordinatorID, IncarnationID: c.hello.IncarnationID,
		Epoch: c.guard.Epoch, Activation: c.guard.Activation, KeyID: c.keyID,
		Capabilities: c.hello.Capabilities, Scope: c.hello.Grant.Scope, Limits: c.hello.Limits,
		GrantExpires: c.hello.Grant.ExpiresAt, LeaseExpires: c.lease.Load().cert.ExpiresAt,
		RetentionSecs: c.hello.RetentionSecs, Verified: c.verified.Load(),
	}
}

// State is the memory that this connection uses.
func (c *Conn) State() *State { return c.state }

// Done is closed once the connection has ended; Err then says why.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err is why the connection ended, nil while it is open.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
}

// ended is Err at the cost of a look at a channel while the connection is open.
func (c *Conn) ended() error {
	select {
	case <-c.done:
		return c.Err()
	default:
		return nil
	}
}

// Close ends the connection and returns once its goroutines have. Requests without a reply
// end as they would on any disconnect. Its error says that something which results showed
// could not be made durable in the [State]; the connection has ended all the same.
func (c *Conn) Close() error {
	c.fail(ErrClosed)
	c.wg.Wait()
	if err := c.state.Flush(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.unkept
}

// fail ends the connection for the first reason that it is given.
func (c *Conn) fail(cause error) {
	c.mu.Lock()
	first := c.cause == nil
	if first {
		c.cause = cause
		close(c.done)
	}
	c.mu.Unlock()
	if first {
		c.state.detach(c)
		c.nc.Close()
	}
}

// live tests, before anything is acted on, that the connection may still act: that it has
// not ended and that its certificate has not expired.
func (c *Conn) live() error { return c.liveAt(c.opts.Clock.Now()) }

func (c *Conn) liveAt(now clock.Reading) error {
	if err := c.ended(); err != nil {
		return err
	}
	if c.lease.Load().expired(now) {
		return ErrExpired
	}
	return nil
}

// start runs the goroutines of an accepted connection.
func (c *Conn) start(r *bufio.Reader) {
	c.wg.Go(func() { c.fail(c.readLoop(r)) })
	c.wg.Go(c.answerPings)
	c.wg.Go(c.finishWrites)
	c.wg.Go(c.expire)
}

// answerPings keeps the reader from waiting for a peer that does not read.
func (c *Conn) answerPings() {
	for {
		select {
		case nonce := <-c.pongs:
			if _, err := c.write(context.Background(), &frames.Pong{Nonce: nonce}); err != nil {
				c.fail(err)
				return
			}
		case <-c.done:
			return
		}
	}
}

// finishWrites writes the rest of frames whose callers gave up in the middle, so that one
// call given up does not end the connection of all others.
func (c *Conn) finishWrites() {
	for {
		select {
		case rest := <-c.rests:
			_, err := c.nc.Write(rest)
			<-c.wlock
			if err != nil {
				c.fail(fmt.Errorf("write: %w", err))
				return
			}
		case <-c.done:
			return
		}
	}
}

// expire closes the connection when its certificate has run out (§4), whatever the others
// wait for.
func (c *Conn) expire() {
	timer := c.opts.Clock.NewTimer(expiryTick)
	defer timer.Stop()
	for {
		select {
		case <-c.done:
			return
		case <-timer.C():
		}
		if err := c.live(); err != nil {
			c.fail(err)
			return
		}
		timer.Reset(expiryTick)
	}
}

// gatherBytes is how much of what waits to be written more is added to.
const gatherBytes = 64 << 10

// write sends one frame. started reports whether any of its bytes may have left. A write
// that fails ends the connection; one that is given up after its first byte is finished by
// [Conn.finishWrites], because the stream must not be cut inside a frame.
//
// While other requests are outstanding a frame waits for those that are ready to be sent as
// well: replies come in batches, and so do the requests that follow them. One system call,
// and one waking of the server, then carry them all. Whoever added a frame sees to it that
// what waits is written.
func (c *Conn) write(ctx context.Context, f frames.Frame) (started bool, err error) {
	if err := c.lock(ctx); err != nil {
		return false, err
	}
	if err := c.add(ctx, f); err != nil {
		<-c.wlock
		return false, err
	}
	if mine := c.flushed; len(c.slots) > 1 && len(c.wbuf) < gatherBytes {
		<-c.wlock
		runtime.Gosched()
		select {
		case c.wlock <- struct{}{}: // its frame is in, so ctx does not matter
		case <-c.done:
			return true, nil // it may have left, and been answered: whoever awaits the reply finds out
		}
		if c.flushed != mine { // somebody else has written it, and those that wait now are not ours
			<-c.wlock
			return true, nil
		}
	}
	started, handed, err := c.flush(ctx)
	if !handed {
		<-c.wlock
	}
	return started, err
}

// lock takes wlock.
func (c *Conn) lock(ctx context.Context) error {
	select {
	case c.wlock <- struct{}{}: // mostly; to wait for three things costs more than the write
		return nil
	default:
	}
	select {
	case c.wlock <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-c.done:
		return c.Err()
	}
}

// add encodes a frame behind those that wait. The caller holds wlock.
func (c *Conn) add(ctx context.Context, f frames.Frame) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := c.live(); err != nil {
		return err
	}
	before := len(c.wbuf)
	buf, err := frames.Append(c.wbuf, f)
	if err != nil {
		return err
	}
	c.wbuf = buf
	if n, limit := len(buf)-before-4, frames.FrameCap(f.Type(), &c.hello.Limits); uint64(n) > uint64(limit) {
		c.wbuf = buf[:before]
		return frames.Refuse(frames.CodeFrameTooLarge, "the request is %d bytes, this connection carries %d", n, limit)
	}
	c.added++
	return nil
}

// flush writes the frames that wait, the caller's among them. handed says that wlock has gone
// to [Conn.finishWrites]. The caller holds wlock.
func (c *Conn) flush(ctx context.Context) (started, handed bool, err error) {
	buf, alone := c.wbuf, c.added == 1
	c.wbuf, c.added = buf[:0], 0
	c.flushed++
	n, gaveUp, err := c.writeBytes(ctx, buf)
	started = n > 0
	switch {
	case err == nil:
	case !gaveUp:
		c.fail(fmt.Errorf("write: %w", err))
	case n < len(buf) && (started || !alone): // the others' frames are to go out in any case
		started = true
		select {
		case c.rests <- buf[n:]:
			handed = true
		case <-c.done:
		}
	}
	return started, handed, err
}

// writeBytes writes buf and gives up when ctx ends. gaveUp says that this and nothing else
// ended the write.
func (c *Conn) writeBytes(ctx context.Context, buf []byte) (n int, gaveUp bool, err error) {
	if c.wnow != nil {
		if n, err = c.wnow.write(buf); err != nil || n == len(buf) {
			return n, false, err
		}
	}
	rest, gaveUp, err := c.writeWaiting(ctx, buf[n:])
	return n + rest, gaveUp, err
}

// writeWaiting is writeBytes for what the socket does not take at once.
func (c *Conn) writeWaiting(ctx context.Context, buf []byte) (n int, gaveUp bool, err error) {
	cut := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(cut)
		c.nc.SetWriteDeadline(time.Unix(1, 0)) // long past: frees the write
	})
	n, err = c.nc.Write(buf)
	if !stop() {
		<-cut // the deadline is set by now, and lifted for the next writer
		c.nc.SetWriteDeadline(time.Time{})
	}
	if gaveUp = errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() != nil; gaveUp {
		err = context.Cause(ctx)
	}
	return n, gaveUp, err
}

// readLoop is the sole reader. It ends with the reason that ends the connection.
//
// An event that lay whole in the buffer was received when the socket was last read, and is
// judged by the clock as it was then: it only waits here, and is judged once more when
// Next hands it out. Every other frame is acted on now and judged now.
func (c *Conn) readLoop(r *bufio.Reader) error {
	fr := frameReader{r: r, limits: &c.hello.Limits}
	var now clock.Reading
	for {
		if c.fresh != nil && !fr.whole() {
			c.fresh.nudge()
			c.fresh = nil
		}
		buffered := r.Buffered()
		f, err := fr.next()
		if err != nil {
			if cause := c.Err(); cause != nil {
				return cause
			}
			return disconnected(err)
		}
		if f.Type() != frames.TypeCoordEvent || now == (clock.Reading{}) || buffered < int(fr.outer) {
			now = c.opts.Clock.Now()
		}
		if err := c.liveAt(now); err != nil {
			return err
		}
		c.heard.Store(now.Wall.UnixNano())
		if err := c.dispatch(f, fr.outer); err != nil {
			return err
		}
	}
}

// disconnected names the ways in which a stream ends.
func disconnected(err error) error {
	if errors.Is(err, ErrProtocol) {
		return err
	}
	if errors.Is(err, io.EOF) {
		return ErrDisconnected
	}
	return fmt.Errorf("%w: %w", ErrDisconnected, err)
}

// dispatch acts on one frame, whose outer length is given.
func (c *Conn) dispatch(f frames.Frame, outer uint32) error {
	switch f := f.(type) {
	case *frames.Ping:
		select {
		case c.pongs <- f.Nonce:
			return nil
		default:
			return fmt.Errorf("%w: pings are not being taken", ErrProtocol)
		}
	case *frames.Pong:
		c.pong(f.Nonce)
		return nil
	case *frames.AuthorityRenewed:
		return c.renew(&f.Certificate)
	case *frames.CoordError:
		return c.refused(f)
	case *frames.CoordCommandResult:
		return c.deliver(f.RequestID, f, true)
	case *frames.OperationResultFrame:
		return c.deliver(f.RequestID, f, true)
	case *frames.Ack:
		return c.deliver(f.RequestID, f, true)
	case *frames.SnapshotBegin:
		return c.deliver(f.RequestID, f, f.FirstCursor != nil)
	case *frames.SnapshotImages:
		return c.deliver(f.RequestID, f, f.NextCursor != nil)
	case *frames.SnapshotEnd:
		return c.deliver(f.RequestID, f, true)
	case *frames.Subscribed:
		return c.deliver(f.RequestID, f, true)
	case *frames.ReplayBegin:
		return c.deliver(f.RequestID, f, f.FirstCursor != nil)
	case *frames.ReplayImages:
		return c.deliver(f.RequestID, f, f.NextCursor != nil)
	case *frames.ReplayEnd:
		return c.deliver(f.RequestID, f, true)
	case *frames.CoordEvent:
		return c.event(f, outer)
	case *frames.Gap:
		return c.gap(f)
	}
	return fmt.Errorf("%w: unexpected %v", ErrProtocol, f.Type())
}

// renew replaces the certificate in force by a later one of the same authority (§4).
func (c *Conn) renew(cert *frames.Certificate) error {
	old := c.lease.Load().cert
	now := c.opts.Clock.Now()
	if err := c.pins.checkCertificate(cert, now, c.state); err != nil {
		return err
	}
	if cert.Guard() != c.guard || cert.IncarnationID != old.IncarnationID {
		return &PeerError{What: "activation certificate", Detail: "the renewal belongs to another authority"}
	}
	if cert.ExpiresAt <= old.ExpiresAt {
		return &PeerError{What: "activation certificate", Detail: "the renewal expires no later than the one in force"}
	}
	c.lease.Store(newLease(*cert, now))
	return nil
}
