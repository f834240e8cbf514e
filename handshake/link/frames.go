package link

import (
	"fmt"

	"coordinator/codec"
	"coordinator/frames"
	"coordinator/handshake"
)

// TypeHello is LINK_HELLO, the first frame of a client on either link.
const TypeHello frames.Type = 0x01

// Hello opens an internal link, client to server (LINK_HELLO).
//
//	1 protocol_major u16    4 client_name str<=128
//	2 protocol_minor u16    5 workload_offer WorkloadOffer
//	3 protocol_patch u16    6 coordinator_id bytes16
//
// As with COORD_HELLO an absent offer decodes, because it is a failed authentication and not
// a bad form (protocol.md [D-38]).
type Hello struct {
	Version       frames.Version
	Name          string
	HasOffer      bool
	Offer         frames.WorkloadOffer
	CoordinatorID frames.CoordinatorID
}

// Type is LINK_HELLO.
func (*Hello) Type() frames.Type { return TypeHello }

// Layout walks the fields.
func (m *Hello) Layout(b *codec.Body) {
	m.Version.Layout(b)
	codec.Str(b, 4, &m.Name, frames.MaxName)
	codec.OptNested(b, 5, &m.HasOffer, &m.Offer, frames.MaxHandshakeBytes)
	codec.ID16(b, 6, &m.CoordinatorID)
}

// HelloOK is the frame that ends a link's handshake, whatever else it says.
type HelloOK interface {
	frames.Frame
	// Answer is the version and the grant that the frame carries.
	Answer() (frames.Version, *frames.WorkloadGrant)
}

// shared are the frames of every link, with the numbers and the form of the endpoint's.
var shared = map[frames.Type]func() frames.Frame{
	TypeHello:                    func() frames.Frame { return new(Hello) },
	frames.TypeWorkloadChallenge: func() frames.Frame { return new(frames.WorkloadChallenge) },
	frames.TypeWorkloadResponse:  func() frames.Frame { return new(frames.WorkloadResponse) },
	frames.TypeAck:               func() frames.Frame { return new(frames.Ack) },
	frames.TypePing:              func() frames.Frame { return new(frames.Ping) },
	frames.TypePong:              func() frames.Frame { return new(frames.Pong) },
	frames.TypeCoordError:        func() frames.Frame { return new(frames.CoordError) },
}

// A Namespace is one link: who its server is to the handshake, and which frames it has.
type Namespace struct {
	Service handshake.Service
	// Peer is the server's name in errors: witness, owner.
	Peer string
	// MaxFrame caps `length` once the handshake is over; before it the cap is 16 KiB.
	MaxFrame uint32
	// Frames are the link's own, HELLO_OK included; those that every link has are known.
	Frames map[frames.Type]func() frames.Frame
}

// Has says whether the link has a frame of type t.
func (n *Namespace) Has(t frames.Type) bool { return n.fresh(t) != nil }

func (n *Namespace) fresh(t frames.Type) func() frames.Frame {
	if f := n.Frames[t]; f != nil {
		return f
	}
	return shared[t]
}

// Decode parses the body of a frame of this link. A type that the link does not have is
// PROTOCOL_ERROR; byte slices alias body.
func (n *Namespace) Decode(t frames.Type, body []byte) (frames.Frame, error) {
	fresh := n.fresh(t)
	if fresh == nil {
		return nil, frames.Refuse(frames.CodeProtocolError, "unknown frame type")
	}
	f := fresh()
	if err := codec.Decode(f, body); err != nil {
		return nil, fmt.Errorf("frame %#02x: %w", uint8(t), err)
	}
	return f, nil
}

// Append appends f as a whole outer frame; it fails where a decoder would refuse it.
func Append(dst []byte, f frames.Frame) ([]byte, error) {
	out, err := codec.AppendFrame(dst, uint8(f.Type()), f)
	if err != nil {
		return dst, fmt.Errorf("encode frame %#02x: %w", uint8(f.Type()), err)
	}
	return out, nil
}
