// Package codec reads and writes the primitive values of the wire format: the outer
// envelope, varints, TLV bodies and positional images (protocol.md §2).
//
// A type states its layout once, in a method that walks its fields over a [Body] or an
// [Image]; the same walk encodes and decodes, so an encoder refuses exactly what its
// decoder refuses and both agree on order, width and caps. Encoding is canonical.
//
// The package knows no message types (package frames does), starts no goroutines and
// takes no memory that a length or count on the wire asks for before that number has been
// held against its cap and against the bytes that are really there.
package codec

import (
	"errors"
	"fmt"
)

// Causes of an [Error]. All of them are MALFORMED_MESSAGE on the wire except
// [ErrFrameTooLarge], which is FRAME_TOO_LARGE.
var (
	ErrTruncated     = errors.New("value ends too early")
	ErrTrailing      = errors.New("bytes after the value")
	ErrOverCap       = errors.New("over its cap")
	ErrUnderMin      = errors.New("under its minimum")
	ErrDuplicate     = errors.New("field given twice")
	ErrMissing       = errors.New("required field missing")
	ErrWireType      = errors.New("wire type is not BYTES")
	ErrVarint        = errors.New("varint not minimal or too long")
	ErrFieldID       = errors.New("field id out of range")
	ErrTooManyFields = errors.New("too many fields")
	ErrWidth         = errors.New("wrong width")
	ErrUTF8          = errors.New("not UTF-8")
	ErrBool          = errors.New("bool is neither 0 nor 1")
	ErrTag           = errors.New("unknown tag or value")
	ErrZero          = errors.New("zero where nonzero is required")
	ErrOrder         = errors.New("fields or elements out of order")
	ErrUnknownField  = errors.New("unknown field")
	ErrInvalid       = errors.New("not allowed")
	ErrFrameTooLarge = errors.New("frame length is zero or above its cap")
)

// An Error says which field of a body failed and why. Field is the TLV field id, or 0
// for a positional value or the body as a whole. It never holds bytes of the peer.
type Error struct {
	Field int
	Cause error
}

func (e *Error) Error() string {
	if e.Field == 0 {
		return e.Cause.Error()
	}
	return fmt.Sprintf("field %d: %v", e.Field, e.Cause)
}

// Unwrap gives the cause, one of the Err values of this package.
func (e *Error) Unwrap() error { return e.Cause }

// A Message lays out a TLV body. Fields must be walked in increasing id order.
type Message interface{ Layout(b *Body) }

// A Value lays out a positional image.
type Value interface{ Image(i *Image) }

// Encode appends the canonical body of m to dst. It fails where Decode would refuse the
// result; dst is returned unchanged then. It only reads m.
func Encode(dst []byte, m Message) ([]byte, error) {
	b := takeBody()
	b.begin(dst)
	m.Layout(b)
	out, err := b.end(dst)
	b.give()
	return out, err
}

// Decode parses a whole TLV body into m. Byte slices in m alias body. After an error the
// content of m is meaningless.
func Decode(m Message, body []byte) error {
	b := takeBody()
	err := b.parse(body)
	if err == nil {
		m.Layout(b)
		err = b.finish()
	}
	b.give()
	return err
}

// EncodeImage appends the positional image of v to dst; like [Encode].
func EncodeImage(dst []byte, v Value) ([]byte, error) {
	b := takeBody()
	b.begin(dst)
	i := &b.image
	*i = Image{enc: true, buf: b.out}
	v.Image(i)
	if b.out = i.buf; i.err != nil {
		b.err = &Error{Cause: i.err}
	}
	out, err := b.end(dst)
	b.give()
	return out, err
}

// DecodeImage parses the whole of b, no byte more or less, into v. Slices alias b.
func DecodeImage(v Value, b []byte) error {
	w := takeBody()
	i := &w.image
	*i = Image{buf: b}
	v.Image(i)
	err := i.close()
	w.give()
	if err != nil {
		return &Error{Cause: err}
	}
	return nil
}
