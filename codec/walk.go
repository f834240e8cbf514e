package codec

import (
	"encoding/binary"
	"slices"
	"unicode/utf8"
)

// The walks of single fields. Each is one line of a layout, for both directions: it appends
// the field when the walk encodes and reads it when the walk decodes.

// fixed gives the value of a required field of exactly n bytes, or nil.
func (b *Body) fixed(id, n int) []byte {
	if b.walk(id) && b.has(id) {
		if s := b.known[id]; int(s.to-s.from) == n {
			return b.in[s.from:s.to:s.to]
		}
		b.Fail(id, ErrWidth)
		return nil
	}
	b.Fail(id, ErrMissing)
	return nil
}

// room writes the header of a field of n bytes in an encode, n being less than 0x80, and gives
// the place of its value; nil after a failure.
func (b *Body) room(id, n int) []byte {
	if !b.walk(id) {
		return nil
	}
	b.fields++
	at := len(b.out)
	b.out = grow(b.out, 3+n)
	v := b.out[at : at+3+n]
	v[0], v[1], v[2] = byte(id), wireBytes, byte(n)
	return v[3:]
}

// grow makes b longer by n bytes, whose content is what was there.
func grow(b []byte, n int) []byte {
	if cap(b)-len(b) < n {
		b = slices.Grow(b, n)
	}
	return b[:len(b)+n]
}

// U8 walks a required one-byte integer.
func U8[T ~uint8](b *Body, id int, v *T) {
	if b.enc {
		if room := b.room(id, 1); room != nil {
			room[0] = byte(*v)
		}
	} else if raw := b.fixed(id, 1); raw != nil {
		*v = T(raw[0])
	}
}

// Enum8 walks a required one-byte enum whose values are 0..max.
func Enum8[T ~uint8](b *Body, id int, v *T, max T) {
	U8(b, id, v)
	b.Check(*v <= max, id, ErrTag)
}

// OptEnum8 walks an optional one-byte enum whose values are 0..max; nil is absent.
func OptEnum8[T ~uint8](b *Body, id int, v **T, max T) {
	if !present(b, id, v) {
		return
	}
	Enum8(b, id, *v, max)
}

// present decides whether an optional field that a pointer stands for is walked, and
// makes the pointer in a decode.
func present[T any](b *Body, id int, v **T) bool {
	if b.enc {
		return *v != nil
	}
	if !b.has(id) {
		b.walk(id)
		*v = nil
		return false
	}
	*v = new(T)
	return true
}

// Bool walks a required bool, 0 or 1.
func Bool(b *Body, id int, v *bool) {
	var n uint8
	if *v {
		n = 1
	}
	U8(b, id, &n)
	b.Check(n <= 1, id, ErrBool)
	if !b.enc {
		*v = n == 1
	}
}

// U16 walks a required big-endian u16.
func U16[T ~uint16](b *Body, id int, v *T) {
	if b.enc {
		if room := b.room(id, 2); room != nil {
			binary.BigEndian.PutUint16(room, uint16(*v))
		}
	} else if raw := b.fixed(id, 2); raw != nil {
		*v = T(binary.BigEndian.Uint16(raw))
	}
}

// U32 walks a required big-endian u32.
func U32[T ~uint32](b *Body, id int, v *T) {
	if b.enc {
		if room := b.room(id, 4); room != nil {
			binary.BigEndian.PutUint32(room, uint32(*v))
		}
	} else if raw := b.fixed(id, 4); raw != nil {
		*v = T(binary.BigEndian.Uint32(raw))
	}
}

// U64 walks a required big-endian u64.
func U64[T ~uint64](b *Body, id int, v *T) {
	if b.enc {
		if room := b.room(id, 8); room != nil {
			binary.BigEndian.PutUint64(room, uint64(*v))
		}
	} else if raw := b.fixed(id, 8); raw != nil {
		*v = T(binary.BigEndian.Uint64(raw))
	}
}

// NonzeroU32 walks a required u32 that is never zero, such as a request id.
func NonzeroU32[T ~uint32](b *Body, id int, v *T) {
	U32(b, id, v)
	b.Check(*v != 0, id, ErrZero)
}

// NonzeroU64 walks a required u64 that is never zero, such as an epoch or a sequence.
func NonzeroU64[T ~uint64](b *Body, id int, v *T) {
	U64(b, id, v)
	b.Check(*v != 0, id, ErrZero)
}

// OptNonzeroU32 walks an optional u32 for which zero stands for absent.
func OptNonzeroU32[T ~uint32](b *Body, id int, v *T) {
	if absent(b, id, *v == 0) {
		reset(b, v)
		return
	}
	NonzeroU32(b, id, v)
}

// OptNonzeroU64 walks an optional u64 for which zero stands for absent.
func OptNonzeroU64[T ~uint64](b *Body, id int, v *T) {
	if absent(b, id, *v == 0) {
		reset(b, v)
		return
	}
	NonzeroU64(b, id, v)
}

// OptU64 walks an optional u64 of any value; nil is absent.
func OptU64[T ~uint64](b *Body, id int, v **T) {
	if present(b, id, v) {
		U64(b, id, *v)
	}
}

// absent decides whether an optional field is skipped: empty says so in an encode, the
// body in a decode.
func absent(b *Body, id int, empty bool) bool {
	if b.enc {
		return empty
	}
	if !b.has(id) {
		b.walk(id)
		return true
	}
	return false
}

// reset empties the value of an absent field in a decode. An encode only reads its
// message, so that one message may be encoded by many goroutines.
func reset[T any](b *Body, v *T) {
	if !b.enc {
		*v = *new(T)
	}
}

// ID16 walks a required 16-byte id, never all zero (protocol.md §3).
func ID16[T ~[16]byte](b *Body, id int, v *T) {
	if b.enc {
		if room := b.room(id, 16); room != nil {
			*(*[16]byte)(room) = *v
		}
	} else if raw := b.fixed(id, 16); raw != nil {
		*v = T([16]byte(raw))
	}
	b.Check([16]byte(*v) != [16]byte{}, id, ErrZero)
}

// OptID16 walks an optional 16-byte id; the zero id stands for absent.
func OptID16[T ~[16]byte](b *Body, id int, v *T) {
	if absent(b, id, [16]byte(*v) == [16]byte{}) {
		reset(b, v)
		return
	}
	ID16(b, id, v)
}

// Hash32 walks a required 32-byte value of any content.
func Hash32[T ~[32]byte](b *Body, id int, v *T) {
	if b.enc {
		if room := b.room(id, 32); room != nil {
			*(*[32]byte)(room) = *v
		}
	} else if raw := b.fixed(id, 32); raw != nil {
		*v = T([32]byte(raw))
	}
}

// Sig64 walks a required 64-byte signature.
func Sig64(b *Body, id int, v *[64]byte) {
	if b.enc {
		if room := b.room(id, 64); room != nil {
			copy(room, v[:])
		}
	} else if raw := b.fixed(id, 64); raw != nil {
		*v = [64]byte(raw)
	}
}

// Bytes walks a required byte string of at most max bytes; it aliases the body.
func Bytes(b *Body, id int, v *[]byte, max int) {
	if b.enc {
		b.Check(len(*v) <= max, id, ErrOverCap)
		if b.header(id, len(*v)) {
			b.out = append(b.out, *v...)
		}
	} else if raw, ok := b.need(id); ok {
		b.Check(len(raw) <= max, id, ErrOverCap)
		*v = raw
	}
}

// OptBytes walks an optional byte string; nil stands for absent, empty is present.
func OptBytes(b *Body, id int, v *[]byte, max int) {
	if absent(b, id, *v == nil) {
		reset(b, v)
		return
	}
	Bytes(b, id, v, max)
}

// Str walks a required UTF-8 string of at most max bytes.
func Str(b *Body, id int, v *string, max int) {
	if b.enc {
		b.Check(len(*v) <= max, id, ErrOverCap)
		b.Check(utf8.ValidString(*v), id, ErrUTF8)
		if b.header(id, len(*v)) {
			b.out = append(b.out, *v...)
		}
	} else if raw, ok := b.need(id); ok {
		if len(raw) > max {
			b.Fail(id, ErrOverCap)
		} else if !utf8.Valid(raw) {
			b.Fail(id, ErrUTF8)
		} else {
			*v = string(raw)
		}
	}
}

// OptStr walks an optional UTF-8 string; nil stands for absent.
func OptStr(b *Body, id int, v **string, max int) {
	if present(b, id, v) {
		Str(b, id, *v, max)
	}
}

// Block walks a required field that is one block of n bytes, less than 0x80 ([Image.Block]).
// It fails as [Nested] does.
func Block(b *Body, id, n int) []byte {
	if b.enc {
		return b.room(id, n)
	}
	raw, ok := b.need(id)
	switch {
	case !ok:
		return nil
	case len(raw) < n:
		b.Fail(id, ErrTruncated)
		return nil
	case len(raw) > n:
		b.Fail(id, ErrOverCap)
		return nil
	}
	return raw
}

// Nested walks a required field that holds exactly one positional value of at most max
// bytes.
func Nested(b *Body, id int, v Value, max int) {
	if i := b.open(id, max); i != nil {
		v.Image(i)
		b.close(id, max)
	}
}

// open begins a field that holds one positional value: in a decode with its bytes, in an
// encode behind room for its header. Nil says that there is nothing to walk.
func (b *Body) open(id, max int) *Image {
	i := &b.image
	i.enc = b.enc
	if !b.enc {
		raw, ok := b.need(id)
		if ok && len(raw) > max {
			b.Fail(id, ErrOverCap)
		}
		if b.err != nil {
			return nil
		}
		i.buf = raw
		return i
	}
	if !b.walk(id) {
		return nil
	}
	b.fields++
	at := len(b.out)
	i.buf = grow(b.out, 2+varintLen(uint64(max)))
	i.buf[at], i.buf[at+1] = byte(id), wireBytes
	return i
}

// close ends a field that open began. The length of a nested value has got the room that the
// longest one allowed takes, which is right for most long ones.
func (b *Body) close(id, max int) {
	i := &b.image
	if !b.enc {
		if err := i.close(); err != nil {
			b.Fail(id, err)
		}
		return
	}
	if i.err != nil {
		b.Fail(id, i.err)
		return
	}
	room := varintLen(uint64(max))
	at := len(b.out) + 2
	n := len(i.buf) - at - room
	if n > max {
		b.Fail(id, ErrOverCap)
		return
	}
	out := i.buf
	if head := varintLen(uint64(n)); head < room {
		copy(out[at+head:], out[at+room:])
		out = out[:at+head+n]
	}
	AppendVarint(out[at:at], uint64(n))
	b.out = out
}

// OptNested walks an optional positional value; use says in an encode whether it is
// written, and is set in a decode.
func OptNested(b *Body, id int, use *bool, v Value, max int) {
	if absent(b, id, !*use) {
		reset(b, use)
		return
	}
	if !b.enc {
		*use = true
	}
	Nested(b, id, v, max)
}

// OptList walks an optional list of up to most elements of at least size bytes each; an
// empty one stands for absent, and is accepted where it is given.
func OptList[T any, P interface {
	*T
	Value
}](b *Body, id int, items *[]T, most, size int) {
	if absent(b, id, len(*items) == 0) {
		reset(b, items)
		return
	}
	max := 2 + most*size
	if i := b.open(id, max); i != nil {
		List[T, P]{Items: items, Max: most, Size: size}.Image(i)
		b.close(id, max)
	}
}
