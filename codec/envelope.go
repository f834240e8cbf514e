package codec

import (
	"encoding/binary"
	"io"
)

// Sizes of the outer envelope `u32_be length || u8 type || payload` (protocol.md §2).
const (
	// HeaderSize is the length word and the type byte.
	HeaderSize = 5
	// MaxFrame is the hard cap of length, which counts type and payload.
	MaxFrame = 1 << 20
)

// ReadHeader reads the length word, holds it against 1..[MaxFrame], and only then reads
// the type byte; nothing else is read and nothing is allocated. length counts the type
// byte. A length out of range is [ErrFrameTooLarge]; errors of r are returned as they are,
// io.EOF only when not one byte came.
func ReadHeader(r io.Reader, buf *[HeaderSize]byte) (length uint32, typ uint8, err error) {
	if _, err := io.ReadFull(r, buf[:4]); err != nil {
		return 0, 0, err
	}
	length = binary.BigEndian.Uint32(buf[:4])
	if length == 0 || length > MaxFrame {
		return length, 0, ErrFrameTooLarge
	}
	if _, err := io.ReadFull(r, buf[4:]); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return length, 0, err
	}
	return length, buf[4], nil
}

// AppendFrame appends a whole outer frame of type typ with the body of m.
func AppendFrame(dst []byte, typ uint8, m Message) ([]byte, error) {
	b := takeBody()
	b.begin(dst)
	start := len(b.out)
	b.out = append(b.out, 0, 0, 0, 0, typ)
	m.Layout(b)
	n := len(b.out) - start - 4
	if b.err == nil && n > MaxFrame {
		b.err = ErrFrameTooLarge
	}
	if b.err == nil {
		binary.BigEndian.PutUint32(b.out[start:], uint32(n))
	}
	out, err := b.end(dst)
	b.give()
	return out, err
}
