package client

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"coordinator/codec"
	"coordinator/frames"
)

// frameReader reads whole frames of a server. limits is nil before COORD_HELLO_OK.
type frameReader struct {
	r      *bufio.Reader
	limits *frames.Limits
	head   [codec.HeaderSize]byte
	outer  uint32 // 4+length of the last frame, which is what a byte credit is charged
	event  frames.CoordEvent
}

// next reads one frame; what is in pages stays images. Type, direction and cap are checked
// before memory is taken for its body, which the frame then owns; a COORD_EVENT, of which
// there are many, and what it refers to are good until the next call only. What the peer did
// wrong matches [ErrProtocol].
func (fr *frameReader) next() (frames.Frame, error) {
	length, typ, err := codec.ReadHeader(fr.r, &fr.head)
	if errors.Is(err, codec.ErrFrameTooLarge) {
		return nil, fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	if err != nil {
		return nil, err
	}
	t := frames.Type(typ)
	if !t.FromServer() {
		return nil, fmt.Errorf("%w: unexpected %v", ErrProtocol, t)
	}
	if limit := frames.FrameCap(t, fr.limits); length > limit {
		return nil, fmt.Errorf("%w: %v of %d bytes, cap %d", ErrProtocol, t, length, limit)
	}
	fr.outer = 4 + length
	if t == frames.TypeCoordEvent && fr.r.Buffered() >= int(length-1) {
		body, err := fr.r.Peek(int(length - 1))
		if err == nil {
			err = frames.DecodeInto(&fr.event, body)
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrProtocol, err)
		}
		_, err = fr.r.Discard(len(body))
		return &fr.event, err
	}
	body := make([]byte, length-1)
	if _, err := io.ReadFull(fr.r, body); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	f, err := frames.DecodeImages(t, body)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	return f, nil
}

// whole reports whether the next frame lies whole in the buffer.
func (fr *frameReader) whole() bool {
	n := fr.r.Buffered()
	if n < codec.HeaderSize {
		return false
	}
	head, err := fr.r.Peek(4)
	return err == nil && uint64(n) >= 4+uint64(binary.BigEndian.Uint32(head))
}
