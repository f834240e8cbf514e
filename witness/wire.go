package witness

import (
	"bufio"
	"errors"
	"io"
	"net"

	"coordinator/codec"
	"coordinator/frames"
)

// frameReader reads whole frames off one connection. Nothing is allocated for a frame before
// its length, its type and its place in the conversation have been accepted.
type frameReader struct {
	r   *bufio.Reader
	hdr [codec.HeaderSize]byte
}

func newFrameReader(c net.Conn) *frameReader {
	return &frameReader{r: bufio.NewReaderSize(c, 4<<10)}
}

// next reads one frame of a type that accept allows. Errors of the peer's making are a
// *frames.Refusal or a *codec.Error; all others are those of the connection.
func (r *frameReader) next(accept func(frames.Type) bool) (frames.Frame, error) {
	length, typ, err := codec.ReadHeader(r.r, &r.hdr)
	if errors.Is(err, codec.ErrFrameTooLarge) {
		return nil, frames.Refuse(frames.CodeFrameTooLarge, "frame length is zero or above %d", MaxFrameBytes)
	} else if err != nil {
		return nil, err
	}
	t := frames.Type(typ)
	if !accept(t) {
		return nil, frames.Refuse(frames.CodeProtocolError, "frame type %#02x is unknown or not allowed here", typ)
	}
	if length > MaxFrameBytes {
		return nil, frames.Refuse(frames.CodeFrameTooLarge, "frame length is zero or above %d", MaxFrameBytes)
	}
	body := make([]byte, length-1)
	if _, err := io.ReadFull(r.r, body); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	if t == TypeLinkHello {
		// Version first: a difference is told before anything else is parsed (protocol.md §5.5).
		if v, ok := frames.HelloVersion(body); ok && !v.Compatible(frames.CurrentVersion()) {
			return nil, frames.Refuse(frames.CodeVersionIncompatible, "this side speaks %d.%d", frames.VersionMajor, frames.VersionMinor)
		}
	}
	return DecodeFrame(t, body)
}

// peerFault reports whether the peer caused err and can be told so.
func peerFault(err error) bool {
	var r *frames.Refusal
	var e *codec.Error
	return errors.As(err, &r) || errors.As(err, &e)
}

// types makes an accept function of a few types.
func types(ts ...frames.Type) func(frames.Type) bool {
	return func(t frames.Type) bool {
		for _, have := range ts {
			if have == t {
				return true
			}
		}
		return false
	}
}
