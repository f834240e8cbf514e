package witness

import (
	"context"
	"errors"
	"fmt"
	"net"

	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/handshake/link"
)

// A clientSession is one proved connection of a Client.
type clientSession struct {
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
func (c *Client) open(ctx context.Context) (*clientSession, error) {
	prover := link.Prover{
		Namespace: namespace, Pin: c.opt.Pin, CoordinatorID: c.opt.CoordinatorID, Key: c.opt.Key,
		Name: c.opt.Name, Scope: ScopeAll, Clock: c.opt.Clock, Rand: c.opt.Rand,
	}
	nc, proof, err := prover.Connect(ctx, func(ctx context.Context) (net.Conn, handshake.Channel, error) {
		nc, ch, err := c.opt.Dial(ctx)
		if err != nil && !errors.Is(err, ErrImpostor) {
			err = fmt.Errorf("%w; is witnessd running there?", err)
		}
		return nc, ch, err
	})
	var refused *link.RefusedError
	if errors.As(err, &refused) {
		return nil, &RefusedError{Code: refused.Code, Message: refused.Message}
	}
	if err != nil {
		return nil, err
	}
	ok := proof.HelloOK.(*WitnessHelloOK)
	if ok.WitnessID != c.opt.WitnessID {
		nc.Close()
		return nil, impostor("it calls itself witness %s, pinned is %s", ok.WitnessID, c.opt.WitnessID)
	}
	s := &clientSession{
		nc: nc, authority: proof.Challenge.AuthorityKey, maxLease: ok.MaxLeaseSecs,
		write: make(chan struct{}, 1), wanted: make(chan frames.RequestID, 1),
		replies: make(chan frames.Frame, 1), ended: make(chan struct{}),
	}
	s.write <- struct{}{}
	go s.readLoop(proof.Reader) // joined by close
	return s, nil
}

// roundTrip sends one request and waits for its reply, the end of the connection or of ctx.
// Only the client's turn calls it, so one request is outstanding. After an error that is not
// a refusal the session is of no more use.
func (s *clientSession) roundTrip(ctx context.Context, id frames.RequestID, f frames.Frame) (frames.Frame, error) {
	stop := link.AbortOnDone(ctx, s.nc)
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
			return nil, s.cause(errSessionEnded)
		}
	}
	if e, ok := reply.(*frames.CoordError); ok {
		return nil, &RefusedError{Code: e.Code, Message: e.Message}
	}
	return reply, nil
}

// cause prefers what the reader knows about the end of the connection.
func (s *clientSession) cause(err error) error {
	select {
	case <-s.ended:
		return s.err
	default:
		return err
	}
}

// send writes a frame. The caller's context closes the connection, which frees a blocked write.
func (s *clientSession) send(f frames.Frame) error {
	<-s.write
	defer func() { s.write <- struct{}{} }()
	return link.WriteFrame(s.nc, f)
}

var acceptFromWitness = link.Types(TypeCertificate, TypeStatus, frames.TypeAck, frames.TypePing, frames.TypePong, frames.TypeCoordError)

// readLoop is the sole reader: it answers pings, so that an idle connection lives, and hands
// over the reply to the one outstanding request.
func (s *clientSession) readLoop(r *link.Reader) {
	defer close(s.ended)
	for s.err == nil {
		s.err = s.readOne(r)
	}
	s.nc.Close()
}

func (s *clientSession) readOne(r *link.Reader) error {
	f, err := r.Next(acceptFromWitness)
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

// errSessionEnded stands for a connection that ended before a reply came.
var errSessionEnded = errors.New("connection was ended")

var errUnasked = errors.New("a reply to no outstanding request")

// deliver hands a reply to the caller that waits for this id.
func (s *clientSession) deliver(id frames.RequestID, f frames.Frame) error {
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
func (s *clientSession) close() {
	s.nc.Close()
	<-s.ended
}
