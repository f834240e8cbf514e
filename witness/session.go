package witness

import (
	"context"
	"errors"
	"fmt"
	"net"

	"coordinator/frames"
	"coordinator/handshake"
)

// A session is one proved connection of a Client.
type session struct {
	nc        net.Conn
	authority [32]byte // the witness's public key; its fingerprint is the pin
	maxLease  uint16

	write   chan struct{}         // holds one token: the right to write
	wanted  chan frames.RequestID // one slot: the id that a reply may have
	replies chan frames.Frame     // one slot: the reply to it
	ended   chan struct{}         // closed when the reader has ended
	err     error                 // why; read after ended
}

// open dials and proves both sides. It returns by the context's end whatever the other side
// does, and leaves no goroutine behind when it fails.
func (c *Client) open(ctx context.Context) (*session, error) {
	nc, ch, err := c.opt.Dial(ctx)
	if errors.Is(err, ErrImpostor) {
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("%w; is witnessd running there?", err)
	}
	stop := abortOnDone(ctx, nc)
	s, r, err := c.shake(nc, ch)
	if aborted := stop(); err == nil && aborted {
		err = context.Cause(ctx)
	}
	if err != nil {
		nc.Close()
		return nil, err
	}
	go s.readLoop(r) // joined by close
	return s, nil
}

// abortOnDone closes nc when ctx ends. The returned function undoes that, waits until the
// closing is over if it had begun, and reports whether it had.
func abortOnDone(ctx context.Context, nc net.Conn) func() bool {
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

// shake is the client's side of the handshake.
func (c *Client) shake(nc net.Conn, ch handshake.Channel) (*session, *frameReader, error) {
	prover := handshake.Client{Service: HandshakeService(), Key: c.opt.Key, Pin: c.opt.Pin}
	offer, err := prover.NewOffer(c.opt.Rand)
	if err != nil {
		return nil, nil, err
	}
	hello := &LinkHello{Version: frames.CurrentVersion(), Name: c.opt.Name, HasOffer: true, Offer: offer, CoordinatorID: c.opt.CoordinatorID}
	if err := writeFrame(nc, hello); err != nil {
		return nil, nil, err
	}
	r := newFrameReader(nc)
	f, err := expect(r, frames.TypeWorkloadChallenge)
	if err != nil {
		return nil, nil, err
	}
	challenge := f.(*frames.WorkloadChallenge)
	expiry := c.opt.Clock.Now().Unix() + grantYears*365*24*3600
	response, err := prover.Respond(&offer, challenge, ch, ScopeAll, expiry)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrImpostor, err)
	}
	if err := writeFrame(nc, response); err != nil {
		return nil, nil, err
	}
	if f, err = expect(r, TypeWitnessHelloOK); err != nil {
		return nil, nil, err
	}
	ok := f.(*WitnessHelloOK)
	switch {
	case !ok.Version.Compatible(frames.CurrentVersion()):
		return nil, nil, fmt.Errorf("%w: the hello has another version", ErrImpostor)
	case ok.WitnessID != c.opt.WitnessID:
		return nil, nil, fmt.Errorf("%w: it calls itself witness %s, pinned is %s", ErrImpostor, ok.WitnessID, c.opt.WitnessID)
	}
	if err := prover.CheckHelloOK(challenge, response, &ok.Grant, challenge.Incarnation); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrImpostor, err)
	}
	s := &session{
		nc: nc, authority: challenge.AuthorityKey, maxLease: ok.MaxLeaseSecs,
		write: make(chan struct{}, 1), wanted: make(chan frames.RequestID, 1),
		replies: make(chan frames.Frame, 1), ended: make(chan struct{}),
	}
	s.write <- struct{}{}
	return s, r, nil
}

// expect reads the one frame that may come next in the handshake, or the error in its place.
func expect(r *frameReader, t frames.Type) (frames.Frame, error) {
	f, err := r.next(types(t, frames.TypeCoordError))
	if err != nil {
		return nil, err
	}
	if e, ok := f.(*frames.CoordError); ok {
		return nil, &RefusedError{Code: e.Code, Message: e.Message}
	}
	return f, nil
}

func writeFrame(nc net.Conn, f frames.Frame) error {
	b, err := AppendFrame(nil, f)
	if err == nil {
		_, err = nc.Write(b)
	}
	return err
}

// roundTrip sends one request and waits for its reply, the end of the connection or of ctx.
// Only the client's turn calls it, so one request is outstanding. After an error that is not
// a refusal the session is of no more use.
func (s *session) roundTrip(ctx context.Context, id frames.RequestID, f frames.Frame) (frames.Frame, error) {
	stop := abortOnDone(ctx, s.nc)
	defer stop()
	s.wanted <- id // the slot is free: the reader emptied it for the last reply
	if err := s.send(f); err != nil {
		return nil, s.cause(err)
	}
	var reply frames.Frame
	select {
	case reply = <-s.replies:
	case <-s.ended:
		select { // the reply may have come just before the end
		case reply = <-s.replies:
		default:
			return nil, s.cause(errEnded)
		}
	}
	if e, ok := reply.(*frames.CoordError); ok {
		return nil, &RefusedError{Code: e.Code, Message: e.Message}
	}
	return reply, nil
}

// cause prefers what the reader knows about the end of the connection.
func (s *session) cause(err error) error {
	select {
	case <-s.ended:
		return s.err
	default:
		return err
	}
}

// send writes a frame. The caller's context closes the connection, which frees a blocked write.
func (s *session) send(f frames.Frame) error {
	<-s.write
	defer func() { s.write <- struct{}{} }()
	return writeFrame(s.nc, f)
}

var acceptFromWitness = types(TypeCertificate, TypeStatus, frames.TypeAck, frames.TypePing, frames.TypePong, frames.TypeCoordError)

// readLoop is the sole reader: it answers pings, so that an idle connection lives, and hands
// over the reply to the one outstanding request.
func (s *session) readLoop(r *frameReader) {
	defer close(s.ended)
	for s.err == nil {
		s.err = s.readOne(r)
	}
	s.nc.Close()
}

func (s *session) readOne(r *frameReader) error {
	f, err := r.next(acceptFromWitness)
	if err != nil {
		return err
	}
	switch f := f.(type) {
	case *frames.Ping:
		return s.send(&frames.Pong{Nonce: f.Nonce})
	case *frames.Pong:
		return nil
	case *frames.CoordError:
		if f.RequestID == 0 { // of the connection as a whole
			return &RefusedError{Code: f.Code, Message: f.Message}
		}
		return s.deliver(f.RequestID, f)
	case *frames.Ack:
		return s.deliver(f.RequestID, f)
	case *CertificateReply:
		return s.deliver(f.RequestID, f)
	case *StatusReply:
		return s.deliver(f.RequestID, f)
	}
	panic(fmt.Sprintf("witness: accepted frame type %#02x has no case", uint8(f.Type())))
}

var errUnasked = errors.New("a reply to no outstanding request")

// deliver hands a reply to the caller that waits for this id.
func (s *session) deliver(id frames.RequestID, f frames.Frame) error {
	select {
	case want := <-s.wanted:
		if want != id {
			return errUnasked
		}
	default:
		return errUnasked
	}
	s.replies <- f // the slot is free: one request is outstanding
	return nil
}

// close ends the connection and joins the reader.
func (s *session) close() {
	s.nc.Close()
	<-s.ended
}
