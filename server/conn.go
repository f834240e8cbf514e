package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"coordinator/codec"
	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/clock"
	"coordinator/internal/text"
	"coordinator/server/quota"
	"coordinator/server/stream"
	"coordinator/server/work"
)

// Times of one connection (protocol.md §2.3 [D-7], §5.5, §7 [D-13]).
const (
	firstFrameTime = 5 * time.Second  // accept to the first whole frame
	helloTime      = 10 * time.Second // accept to HELLO_OK
	responseTime   = 5 * time.Second  // challenge to response
	pingAfter      = 15 * time.Second // of silence
	closeAfter     = 45 * time.Second // of silence
	// grantTick is how often an idle connection looks at its grant. The registry may have
	// brought its end forward, or somebody have set the wall clock past it (§5.5).
	grantTick = time.Second
	// lingerTime is how long a connection that is ending may still take its
	// last bytes and send what the server then discards [D-1].
	lingerTime = time.Second
	// stuckTime is lingerTime for a write that is under way when the grant ends. With the
	// time in which the registry's file is read and judged bad it makes less than the 2 s
	// in which the last byte must have left.
	stuckTime = 400 * time.Millisecond
)

// readBuffer is the fixed storage that frames are read through. It is all that
// a peer costs before its header was checked.
const readBuffer = 8 << 10

// Texts of the errors that must not be told apart or that are sent in more than
// one place.
const (
	textLate       = "the handshake took too long"
	textGrantEnded = "authentication failed"
	textFenced     = "this coordinator is no longer the authority; reconnect"
)

// Reasons that end a connection without a frame of their own.
var (
	errAborted    = errors.New("connection aborted")
	errPeerError  = errors.New("peer sent COORD_ERROR")
	errGrantEnded = errors.New("grant revoked or expired")
	errSilent     = errors.New("peer silent")
)

// connState is what a connection may receive next.
type connState uint8

const (
	awaitHello connState = iota
	awaitResponse
	active
)

// conn is one connection from accept to close. Its reader, its writer and its
// supervisor are three goroutines; serve returns once all have ended.
type conn struct {
	srv       *Server
	nc        net.Conn
	channel   handshake.Channel
	log       *slog.Logger
	lanes     *lanes
	ctx       context.Context // ends when the connection is cut
	cancel    context.CancelFunc
	gone      <-chan struct{} // ctx.Done()
	failed    chan struct{}   // closed when its last frame is queued
	welcomed  chan struct{}   // closed when HELLO_OK is queued
	number    uint64          // of the connection, rising
	process   uint64          // at the other end of a Unix socket, else 0
	transport handshake.Transport
	settled   bool // guarded by srv.mu: no longer counts as unauthenticated

	// Owned by readLoop.
	state    connState
	hello    frames.CoordHello
	exchange *handshake.Exchange
	limits   *frames.Limits // nil before COORD_HELLO_OK
	caps     frames.Capability
	viewer   work.Viewer
	streams  *stream.Session
	account  *quota.Account
	granted  *handshake.Grant
	requests uint64       // accepted ones
	claimed  frames.KeyID // of a proof that was refused
	denied   string       // why; for this side alone

	grant   atomic.Pointer[handshake.Grant] // nil before COORD_HELLO_OK
	feed    atomic.Pointer[stream.Session]  // what writeLoop pulls from; nil before the proof
	heardAt atomic.Int64                    // boot reading of the last bytes read
	first   atomic.Bool                     // a whole frame has been read
	asked   atomic.Int64                    // boot reading at which the challenge was queued, negative before
	stuck   atomic.Bool                     // a write waits for the peer
	refused atomic.Uint64                   // COORD_ERRORs queued

	mu       sync.Mutex
	occupied map[frames.RequestID]struct{} // guarded by mu: requests without a terminal reply
	ready    bool                          // guarded by mu: HELLO_OK is queued
	failOnce sync.Once
	failure  error // what failed was closed for; written before it is closed
}

func newConn(s *Server, nc net.Conn, ch handshake.Channel, id uint64) *conn {
	ctx, cancel := context.WithCancel(context.Background())
	c := &conn{
		srv: s, nc: nc, channel: ch,
		number: id, log: s.log.With("conn", id), transport: handshake.TransportOf(ch),
		lanes: newLanes(int(s.quotas.Limits()[quota.OfConnection][quota.Requests]) + spareReplies),
		ctx:   ctx, cancel: cancel, gone: ctx.Done(),
		failed:   make(chan struct{}),
		welcomed: make(chan struct{}),
		occupied: make(map[frames.RequestID]struct{}),
	}
	c.asked.Store(-1)
	return c
}

// serve runs the connection and returns once its goroutines have ended.
func (c *conn) serve() {
	accepted := c.srv.clock.Now().Boot
	c.heardAt.Store(int64(accepted))
	read, written := make(chan error, 1), make(chan error, 1)
	go func() { read <- c.readLoop() }()
	go func() { written <- c.writeLoop() }()
	cause := c.supervise(accepted, read, written)
	c.release()
	c.tellEnd(accepted, cause)
}

// supervise watches the connection's times and waits for both loops. It returns
// what ended the connection first.
func (c *conn) supervise(accepted time.Duration, read, written chan error) (cause error) {
	timer := c.srv.clock.NewTimer(firstFrameTime)
	defer timer.Stop()
	fenced, failed, welcomed := c.srv.fence.Fenced(), c.failed, c.welcomed
	var revoked <-chan struct{}
	var pinged time.Duration
	ending := false
	var last time.Duration // boot reading by which everything that is left must be over
	end := func(err error) {
		if cause == nil {
			cause = err
		}
		if !ending {
			ending, last = true, c.srv.clock.Now().Boot+lingerTime
			timer.Reset(c.patience())
		}
	}
	for read != nil || written != nil {
		select {
		case err := <-read:
			read = nil
			c.lanes.finish()
			end(err)
			if written == nil {
				c.cut()
			}
		case err := <-written:
			written = nil
			end(err)
			c.closeWrite()
			if read == nil || err != nil && !errors.Is(err, errFenced) && !errors.Is(err, errGrantEnded) {
				c.cut()
			}
		case <-fenced:
			fenced = nil
			end(errFenced)
		case <-welcomed:
			welcomed, revoked = nil, c.grant.Load().Revoked()
			if !ending {
				timer.Reset(0)
			}
		case <-revoked:
			revoked = nil
			c.fail(0, frames.Refuse(frames.CodeAuthenticationFailed, textGrantEnded))
		case <-failed:
			failed = nil
			end(c.failure)
		case <-c.gone:
			c.cutNow()
			drain(read)
			drain(written)
			return cause
		case <-timer.C():
			if ending {
				if left := last - c.srv.clock.Now().Boot; left > 0 && !c.stuck.Load() {
					timer.Reset(left)
				} else {
					c.cut()
				}
				continue
			}
			next, err := c.tick(accepted, &pinged)
			if err != nil {
				end(err)
				continue
			}
			timer.Reset(next)
		}
	}
	c.cut()
	return cause
}

// patience is how long a write that is under way may take once the connection is ending.
func (c *conn) patience() time.Duration {
	if g := c.grant.Load(); g != nil && g.Err(c.srv.clock.Now()) != nil {
		return stuckTime
	}
	return lingerTime
}

// drain waits for a loop that has not been waited for yet.
func drain(ch chan error) {
	if ch != nil {
		<-ch
	}
}

// tick looks at the connection's deadlines and says when to look again.
func (c *conn) tick(accepted time.Duration, pinged *time.Duration) (next time.Duration, err error) {
	now := c.srv.clock.Now()
	g := c.grant.Load()
	if g == nil {
		return c.tickHello(now.Boot, accepted)
	}
	if g.Err(now) != nil {
		c.fail(0, frames.Refuse(frames.CodeAuthenticationFailed, textGrantEnded))
		return 0, errGrantEnded
	}
	heard := time.Duration(c.heardAt.Load())
	silent := now.Boot - heard
	if silent >= closeAfter {
		c.cut()
		return 0, errSilent
	}
	if silent >= pingAfter && now.Boot-*pinged >= pingAfter {
		*pinged = now.Boot
		frame, err := frames.Append(nil, &frames.Ping{Nonce: uint64(now.Boot)})
		if err == nil {
			err = c.lanes.putControl(frame)
		}
		if err != nil {
			return 0, err
		}
	}
	next = heard + pingAfter - now.Boot
	if next <= 0 {
		next = min(*pinged+pingAfter, heard+closeAfter) - now.Boot
	}
	return min(next, untilExpiry(g, now), grantTick), nil
}

// untilExpiry is how long the grant lasts on the wall clock, at least a tick.
func untilExpiry(g *handshake.Grant, now clock.Reading) time.Duration {
	const tick = time.Millisecond
	if g.ExpiresAt > uint64(1)<<40 { // beyond any duration
		return closeAfter
	}
	return max(time.Unix(int64(g.ExpiresAt), 0).Sub(now.Wall), tick)
}

func (c *conn) tickHello(now, accepted time.Duration) (time.Duration, error) {
	deadline := accepted + helloTime
	if asked := time.Duration(c.asked.Load()); asked >= 0 {
		deadline = min(deadline, asked+responseTime)
	} else if !c.first.Load() {
		deadline = min(deadline, accepted+firstFrameTime)
	}
	if now >= deadline {
		c.fail(0, frames.Refuse(frames.CodeProtocolError, textLate))
		return 0, errors.New("handshake timed out")
	}
	return deadline - now, nil
}

// cut ends the connection at once: both loops fail.
func (c *conn) cut() { c.cancel() }

// cutNow closes the transport after cut.
func (c *conn) cutNow() {
	c.lanes.finish()
	c.nc.Close()
}

// closeWrite ends the sending half where the transport has one, so that the
// peer reads everything and then the end.
func (c *conn) closeWrite() {
	if hc, ok := c.nc.(interface{ CloseWrite() error }); ok {
		hc.CloseWrite() //nolint:errcheck // the connection is ending either way
	}
}

// release gives back what the connection held.
func (c *conn) release() {
	c.cut()
	c.nc.Close()
	if c.streams != nil {
		c.streams.Close()
	}
	if c.account != nil {
		c.account.Close()
	}
	if c.granted != nil {
		c.granted.Release()
	}
}

// heard stamps every read, so that the supervisor knows how long the peer has
// been silent.
type heard struct{ c *conn }

func (h heard) Read(p []byte) (int, error) {
	n, err := h.c.nc.Read(p)
	if n > 0 {
		h.c.heardAt.Store(int64(h.c.srv.clock.Now().Boot))
	}
	return n, err
}

// readLoop is the connection's sole reader. After a fatal error it discards
// what still comes, so that the error arrives, until the peer closes or the
// connection is cut.
func (c *conn) readLoop() error {
	in := bufio.NewReaderSize(heard{c}, readBuffer)
	var header [codec.HeaderSize]byte
	for {
		if !c.lanes.waitRoom(c.gone) {
			return errAborted
		}
		if c.hasFailed() { // another goroutine ended it
			io.Copy(io.Discard, in) //nolint:errcheck // ends with the connection
			return errAborted
		}
		req, err := c.readFrame(in, &header)
		var refused *frames.Refusal
		if errors.As(err, &refused) {
			c.fail(req, refused)
			io.Copy(io.Discard, in) //nolint:errcheck // ends with the connection
			return err
		}
		if err != nil {
			return err
		}
	}
}

// readFrame reads and handles one frame. A *frames.Refusal in the error is fatal
// and is to be told to the peer, under req when that is not zero [D-23].
func (c *conn) readFrame(in *bufio.Reader, header *[codec.HeaderSize]byte) (req frames.RequestID, err error) {
	length, raw, err := codec.ReadHeader(in, header)
	if errors.Is(err, codec.ErrFrameTooLarge) {
		return 0, frames.Refuse(frames.CodeFrameTooLarge, "frame length is zero or above 1 MiB")
	}
	if err != nil {
		return 0, err
	}
	t := frames.Type(raw)
	if err := c.admit(t); err != nil {
		return 0, err
	}
	if limit := frames.FrameCap(t, c.limits); length > limit {
		return 0, frames.Refuse(frames.CodeFrameTooLarge, "frame length is above the %d bytes of its type", limit)
	}
	body := make([]byte, length-1)
	if _, err := io.ReadFull(in, body); err != nil {
		return 0, fmt.Errorf("frame cut short: %w", err)
	}
	c.first.Store(true)
	if c.state != active {
		return 0, c.handleHandshake(t, body)
	}
	return c.handle(t, body)
}

// admit checks a frame's type, direction and state from its header alone.
func (c *conn) admit(t frames.Type) error {
	if !t.Known() || !t.FromClient() {
		return frames.Refuse(frames.CodeProtocolError, "unknown frame type or wrong direction")
	}
	ok := false
	switch c.state {
	case awaitHello:
		ok = t == frames.TypeCoordHello || t == frames.TypePing || t == frames.TypePong
	case awaitResponse:
		ok = t == frames.TypeWorkloadResponse
	case active:
		ok = t != frames.TypeCoordHello && t != frames.TypeWorkloadResponse
	}
	if !ok && t != frames.TypeCoordError {
		return frames.Refuse(frames.CodeProtocolError, "frame is not allowed in this state")
	}
	return nil
}

// fail queues the connection's last frame.
func (c *conn) fail(req frames.RequestID, r *frames.Refusal) {
	c.failOnce.Do(func() {
		c.failure = r
		c.lanes.putFinal(c.errorFrame(req, r.Code, r.Message))
		close(c.failed)
	})
}

// hasFailed reports whether the last frame is queued.
func (c *conn) hasFailed() bool {
	select {
	case <-c.failed:
		return true
	default:
		return false
	}
}

// errorFrame encodes a COORD_ERROR whose text fits the selected frame cap [D-40].
func (c *conn) errorFrame(req frames.RequestID, code frames.Code, message string) []byte {
	c.refused.Add(1)
	c.srv.meters.Refusal(code)
	frame, err := frames.Append(nil, &frames.CoordError{RequestID: req, Code: code, Message: text.Clip(message, frames.MaxText)})
	if err != nil {
		panic(fmt.Sprintf("server: encode an error frame: %v", err))
	}
	return frame
}
