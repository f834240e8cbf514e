package link

import (
	"bufio"
	"errors"
	"io"

	"coordinator/codec"
	"coordinator/frames"
)

// A Reader reads whole frames of one link off one connection. Nothing is allocated for a frame
// before its length, its type and its place in the conversation have been accepted.
type Reader struct {
	ns  *Namespace
	max uint32
	r   *bufio.Reader
	hdr [codec.HeaderSize]byte
}

// NewReader reads frames of n from r, under the cap of the handshake.
func NewReader(r io.Reader, n *Namespace) *Reader {
	return &Reader{ns: n, max: min(n.MaxFrame, frames.MaxHandshakeBytes), r: bufio.NewReaderSize(r, 4<<10)}
}

// Proved lifts the cap to the link's own: the handshake is over.
func (r *Reader) Proved() { r.max = r.ns.MaxFrame }

// Next reads one frame of a type that accept allows. Errors of the peer's making are a
// *frames.Refusal or a *codec.Error; all others are those of the connection.
func (r *Reader) Next(accept func(frames.Type) bool) (frames.Frame, error) {
	length, typ, err := codec.ReadHeader(r.r, &r.hdr)
	if errors.Is(err, codec.ErrFrameTooLarge) {
		return nil, r.tooLarge()
	} else if err != nil {
		return nil, err
	}
	t := frames.Type(typ)
	if !accept(t) {
		return nil, frames.Refuse(frames.CodeProtocolError, "frame type %#02x is unknown or not allowed here", typ)
	}
	if length > r.max {
		return nil, r.tooLarge()
	}
	body := make([]byte, length-1)
	if _, err := io.ReadFull(r.r, body); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	if t == TypeHello {
		// Version first: a difference is told before anything else is parsed (protocol.md §5.5).
		if v, ok := frames.HelloVersion(body); ok && !v.Compatible(frames.CurrentVersion()) {
			return nil, frames.Refuse(frames.CodeVersionIncompatible, "this side speaks %d.%d", frames.VersionMajor, frames.VersionMinor)
		}
	}
	return r.ns.Decode(t, body)
}

func (r *Reader) tooLarge() error {
	return frames.Refuse(frames.CodeFrameTooLarge, "frame length is zero or above %d", r.max)
}

// WriteFrame writes one frame.
func WriteFrame(w io.Writer, f frames.Frame) error {
	b, err := Append(nil, f)
	if err == nil {
		_, err = w.Write(b)
	}
	return err
}

// peerFault reports whether the peer caused err and can be told so.
func peerFault(err error) bool {
	var r *frames.Refusal
	var e *codec.Error
	return errors.As(err, &r) || errors.As(err, &e)
}

// Types makes an accept function of a few types.
func Types(ts ...frames.Type) func(frames.Type) bool {
	return func(t frames.Type) bool {
		for _, have := range ts {
			if have == t {
				return true
			}
		}
		return false
	}
}
