package witness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/handshake/link"
	"coordinator/internal/clock"
)

// defaultTimeout bounds one call beside its context, so that a witness that hangs never
// holds a caller that gave no deadline.
const defaultTimeout = 10 * time.Second

// ClientOptions configure [NewClient].
type ClientOptions struct {
	// Socket is the path of the witness's Unix socket. Dial, such as a [QUICDialer] of Addr,
	// replaces it; Addr is then what errors say of where the witness is.
	Socket string
	Dial   link.Dialer
	Addr   string
	// Pin is the fingerprint of the witness's key, WitnessID its id. Anybody else is
	// [ErrImpostor].
	Pin       frames.Fingerprint
	WitnessID frames.WitnessID
	// CoordinatorID is whom this client acts for, and Key its own key in the registry.
	CoordinatorID frames.CoordinatorID
	Key           handshake.Signer
	// Name is the client_name of the hello. Empty means "coordinator".
	Name string
	// Timeout bounds each call beside its context. Zero means 10 s.
	Timeout time.Duration
	Clock   clock.Clock
	Rand    io.Reader
}

// A Client is the [Authority] at the other end of a witness link. It dials when it is first
// needed and again after a connection was lost; one call is under way at a time, the others
// wait for their turn or their context. Its methods may be called from any goroutine.
type Client struct {
	opt  ClientOptions
	turn chan struct{} // holds one token; who has it owns cur and next
	done chan struct{} // closed by Close
	once sync.Once

	cur  *clientSession   // owned by the turn
	next frames.RequestID // owned by the turn
}

var _ Authority = (*Client)(nil)

// NewClient makes a client. It does not dial.
func NewClient(o ClientOptions) (*Client, error) {
	switch {
	case o.Socket == "" && o.Dial == nil:
		return nil, errors.New("witness client: no socket to dial")
	case o.WitnessID == (frames.WitnessID{}) || o.Pin == (frames.Fingerprint{}):
		return nil, errors.New("witness client: the witness is not pinned")
	case o.CoordinatorID == (frames.CoordinatorID{}):
		return nil, errors.New("witness client: the coordinator id is missing")
	case o.Key == nil || o.Clock == nil || o.Rand == nil:
		return nil, errors.New("witness client: key, clock or randomness is missing")
	}
	if o.Name == "" {
		o.Name = "coordinator"
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	if o.Dial == nil {
		o.Dial = link.SocketDialer(o.Socket)
	}
	c := &Client{opt: o, turn: make(chan struct{}, 1), done: make(chan struct{})}
	c.turn <- struct{}{}
	return c, nil
}

// QUICDialer is a Dial for [ClientOptions] that connects to addr, host:port, where the witness
// must show the pinned key.
func QUICDialer(addr string, pin frames.Fingerprint, clk clock.Clock) link.Dialer {
	return namespace.QUICDialer(addr, pin, clk)
}

// Dial makes a client and connects it, so that a wrong pin, key or path shows at once.
func Dial(ctx context.Context, o ClientOptions) (*Client, error) {
	c, err := NewClient(o)
	if err != nil {
		return nil, err
	}
	if err := c.Connect(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Connect dials unless the client is connected.
func (c *Client) Connect(ctx context.Context) error {
	return c.exclusive(ctx, func(ctx context.Context) error {
		_, _, err := c.session(ctx)
		return err
	})
}

// Close ends the connection and joins its goroutine. A call under way fails.
func (c *Client) Close() error {
	c.once.Do(func() { close(c.done) })
	<-c.turn // a call under way sees done and gives its turn back
	c.drop()
	c.turn <- struct{}{}
	return nil
}

// Activate sends ACTIVATE. It is sent once: when the answer is lost the epoch may be taken and
// the lease may run under a token that nobody holds.
func (c *Client) Activate(ctx context.Context, epoch frames.AuthorityEpoch, inc frames.IncarnationID, leaseSecs uint16) (frames.Certificate, error) {
	var cert frames.Certificate
	err := c.call(ctx, "activate", false, leaseSecs, func(id frames.RequestID) frames.Frame {
		return &Activate{RequestID: id, CoordinatorID: c.opt.CoordinatorID, Epoch: epoch, IncarnationID: inc, LeaseSecs: leaseSecs}
	}, func(s *clientSession, f frames.Frame) error {
		var err error
		cert, err = c.certificate(s, f)
		if err == nil && (cert.Epoch != epoch || cert.IncarnationID != inc) {
			err = impostor("the certificate is for another request")
		}
		return err
	})
	return cert, err
}

// Renew sends RENEW for the lease of cur.
func (c *Client) Renew(ctx context.Context, cur frames.Certificate, leaseSecs uint16) (frames.Certificate, error) {
	var cert frames.Certificate
	err := c.call(ctx, "renew", true, leaseSecs, func(id frames.RequestID) frames.Frame {
		return &Renew{RequestID: id, CoordinatorID: c.opt.CoordinatorID, Epoch: cur.Epoch, Activation: cur.Activation,
			IncarnationID: cur.IncarnationID, Token: cur.Token, LeaseSecs: leaseSecs}
	}, func(s *clientSession, f frames.Frame) error {
		var err error
		cert, err = c.certificate(s, f)
		if err == nil && (cert.Epoch != cur.Epoch || cert.Activation != cur.Activation ||
			cert.IncarnationID != cur.IncarnationID || cert.Token != cur.Token) {
			err = impostor("the certificate is for another activation")
		}
		return err
	})
	return cert, err
}

// Relinquish sends RELINQUISH for the lease of cur.
func (c *Client) Relinquish(ctx context.Context, cur frames.Certificate) error {
	return c.call(ctx, "relinquish", true, 1, func(id frames.RequestID) frames.Frame {
		return &Relinquish{RequestID: id, CoordinatorID: c.opt.CoordinatorID, Token: cur.Token, IncarnationID: cur.IncarnationID}
	}, func(_ *clientSession, f frames.Frame) error {
		if _, ok := f.(*frames.Ack); !ok {
			return errWrongReply
		}
		return nil
	})
}

// Status sends GET_STATUS.
func (c *Client) Status(ctx context.Context) (Status, error) {
	var s Status
	err := c.call(ctx, "status", true, 1, func(id frames.RequestID) frames.Frame {
		return &GetStatus{RequestID: id, CoordinatorID: c.opt.CoordinatorID}
	}, func(_ *clientSession, f frames.Frame) error {
		r, ok := f.(*StatusReply)
		if !ok {
			return errWrongReply
		}
		// A live lease never has more left; a larger number would be waited for.
		if r.LeaseRemaining > MaxLeaseSecs {
			return impostor("a lease of %d s", r.LeaseRemaining)
		}
		s = Status{LastEpoch: r.LastEpoch, Activation: r.Activation, LeaseRemaining: time.Duration(r.LeaseRemaining) * time.Second}
		return nil
	})
	return s, err
}

var errWrongReply = errors.New("the reply has the wrong type")

// certificate checks a CERTIFICATE against the pins. The wall clock has no part in it: the
// coordinator counts on BOOTTIME from its own request ([D-9]).
func (c *Client) certificate(s *clientSession, f frames.Frame) (frames.Certificate, error) {
	r, ok := f.(*CertificateReply)
	if !ok {
		return frames.Certificate{}, errWrongReply
	}
	pins := handshake.Pins{WitnessID: c.opt.WitnessID, WitnessPublicKey: s.authority, CoordinatorID: c.opt.CoordinatorID}
	if err := handshake.VerifySigned(&r.Certificate, pins); err != nil {
		return frames.Certificate{}, impostor("%w", err)
	}
	return r.Certificate, nil
}

// exclusive runs fn in this client's turn, under the call's own timeout, and ends the context
// when the client is closed.
func (c *Client) exclusive(ctx context.Context, fn func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, c.opt.Timeout)
	defer cancel()
	select {
	case <-c.turn:
	case <-ctx.Done():
		return ctx.Err()
	case <-c.done:
		return ErrClosed
	}
	defer func() { c.turn <- struct{}{} }()
	closed := make(chan struct{})
	ended := make(chan struct{})
	go func() { // joined below
		defer close(closed)
		select {
		case <-c.done:
			cancel()
		case <-ended:
		}
	}()
	defer func() { close(ended); <-closed }()
	select {
	case <-c.done:
		return ErrClosed
	case <-ctx.Done(): // it may have ended before the turn was taken
		return ctx.Err()
	default:
	}
	err := fn(ctx)
	select {
	case <-c.done:
		if err != nil {
			return errors.Join(ErrClosed, err)
		}
	default:
	}
	return err
}

// call sends one request and checks its reply. A connection that broke since it was last used
// is replaced; a request that may be repeated is then sent once more.
func (c *Client) call(ctx context.Context, op string, again bool, leaseSecs uint16, request func(frames.RequestID) frames.Frame, check func(*clientSession, frames.Frame) error) error {
	err := c.exclusive(ctx, func(ctx context.Context) error {
		for {
			s, fresh, err := c.session(ctx)
			if err != nil {
				return err
			}
			if leaseSecs == 0 || leaseSecs > s.maxLease {
				return fmt.Errorf("a lease of %d s was asked for, the witness grants 1 to %d; correct lease_secs or the witness's max_lease_secs",
					leaseSecs, s.maxLease)
			}
			if c.next++; c.next == 0 {
				c.next = 1
			}
			reply, err := s.roundTrip(ctx, c.next, request(c.next))
			if err == nil {
				err = check(s, reply)
			}
			var refused *RefusedError
			switch {
			case err == nil:
				return nil
			case errors.As(err, &refused) && !refused.Code.Fatal():
				return err
			}
			c.drop() // whatever it still says answers nobody
			if refused == nil && again && !fresh && ctx.Err() == nil && !errors.Is(err, ErrImpostor) {
				continue
			}
			if cause := context.Cause(ctx); cause != nil && refused == nil && !errors.Is(err, ErrImpostor) {
				err = &unansweredError{c.opt.Socket, c.opt.Addr, cause}
			}
			return err
		}
	})
	if err != nil {
		return fmt.Errorf("witness %s: %w", op, err)
	}
	return nil
}

// session returns the connection, a fresh one when there is none that works.
func (c *Client) session(ctx context.Context) (s *clientSession, fresh bool, err error) {
	if c.cur != nil {
		select {
		case <-c.cur.ended:
			c.drop()
		default:
			return c.cur, false, nil
		}
	}
	s, err = c.open(ctx)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil && !errors.Is(err, ErrImpostor) && !errors.As(err, new(*RefusedError)) {
			err = &unansweredError{c.opt.Socket, c.opt.Addr, cause} // err is only that the connection was given up
		}
		return nil, false, fmt.Errorf("connect: %w", err)
	}
	c.cur = s
	return s, true, nil
}

// drop closes the connection, if any, and joins its reader.
func (c *Client) drop() {
	if c.cur != nil {
		c.cur.close()
		c.cur = nil
	}
}

// An unansweredError is the end of a wait. The cause names a timer or a stop, which is
// nothing to a reader who wants to know what to look at.
type unansweredError struct {
	socket, addr string
	cause        error
}

func (e *unansweredError) Error() string {
	if e.addr != "" {
		return "no answer from " + e.addr + " in the time there was; is the witness stopped or overloaded, or does something between the hosts lose UDP packets?"
	}
	return "no answer at " + e.socket + " in the time there was; is the witness stopped or overloaded?"
}

// Unwrap gives what ended the wait.
func (e *unansweredError) Unwrap() error { return e.cause }
