package codec

import (
	"encoding/binary"
	"unicode/utf8"
)

// An Image walks one positional value (protocol.md §2.2), encoding or decoding. The
// first failure sticks. Byte slices of a decode alias the image.
type Image struct {
	enc bool
	err error
	buf []byte // encode: what has been written; decode: what is left
}

// Decoding says which way the walk goes.
func (i *Image) Decoding() bool { return !i.enc }

// Failed reports whether an earlier part failed.
func (i *Image) Failed() bool { return i.err != nil }

// Fail records cause unless something failed before.
func (i *Image) Fail(cause error) {
	if i.err == nil {
		i.err = cause
	}
}

// Check fails the image with cause unless ok.
func (i *Image) Check(ok bool, cause error) {
	if !ok {
		i.Fail(cause)
	}
}

// Left is the number of bytes not yet read in a decode.
func (i *Image) Left() int { return len(i.buf) }

// close ends a decode: nothing may be left.
func (i *Image) close() error {
	i.Check(len(i.buf) == 0, ErrTrailing)
	return i.err
}

// take reads n bytes in a decode.
func (i *Image) take(n int) ([]byte, bool) {
	if i.err != nil {
		return nil, false
	}
	if n > len(i.buf) {
		i.err = ErrTruncated
		return nil, false
	}
	v := i.buf[:n:n]
	i.buf = i.buf[n:]
	return v, true
}

// Block gives n bytes that the caller reads in a decode, or writes in an encode; nil after a
// failure. It is for fixed parts without a value that must be refused.
func (i *Image) Block(n int) []byte {
	if !i.enc {
		raw, _ := i.take(n)
		return raw
	}
	at := len(i.buf)
	i.buf = grow(i.buf, n)
	return i.buf[at:]
}

// ImgU8 walks one byte.
func ImgU8[T ~uint8](i *Image, v *T) {
	if i.enc {
		i.buf = append(i.buf, byte(*v))
	} else if raw, ok := i.take(1); ok {
		*v = T(raw[0])
	}
}

// ImgEnum8 walks a one-byte enum or tag whose values are min..max.
func ImgEnum8[T ~uint8](i *Image, v *T, min, max T) {
	ImgU8(i, v)
	i.Check(*v >= min && *v <= max, ErrTag)
}

// ImgBool walks a bool, 0 or 1.
func ImgBool(i *Image, v *bool) {
	var n uint8
	if *v {
		n = 1
	}
	ImgU8(i, &n)
	i.Check(n <= 1, ErrBool)
	if !i.enc {
		*v = n == 1
	}
}

// ImgU16 walks a big-endian u16.
func ImgU16[T ~uint16](i *Image, v *T) {
	if i.enc {
		i.buf = binary.BigEndian.AppendUint16(i.buf, uint16(*v))
	} else if raw, ok := i.take(2); ok {
		*v = T(binary.BigEndian.Uint16(raw))
	}
}

// ImgU32 walks a big-endian u32.
func ImgU32[T ~uint32](i *Image, v *T) {
	if i.enc {
		i.buf = binary.BigEndian.AppendUint32(i.buf, uint32(*v))
	} else if raw, ok := i.take(4); ok {
		*v = T(binary.BigEndian.Uint32(raw))
	}
}

// ImgI32 walks a big-endian two's complement i32.
func ImgI32(i *Image, v *int32) {
	u := uint32(*v)
	ImgU32(i, &u)
	if !i.enc {
		*v = int32(u)
	}
}

// ImgU64 walks a big-endian u64 of any value.
func ImgU64[T ~uint64](i *Image, v *T) {
	if i.enc {
		i.buf = binary.BigEndian.AppendUint64(i.buf, uint64(*v))
	} else if raw, ok := i.take(8); ok {
		*v = T(binary.BigEndian.Uint64(raw))
	}
}

// ImgNonzeroU64 walks a u64 that is never zero.
func ImgNonzeroU64[T ~uint64](i *Image, v *T) {
	ImgU64(i, v)
	i.Check(*v != 0, ErrZero)
}

// ImgRaw16 walks 16 bytes of any content.
func ImgRaw16[T ~[16]byte](i *Image, v *T) {
	if i.enc {
		raw := [16]byte(*v)
		i.buf = append(i.buf, raw[:]...)
	} else if raw, ok := i.take(16); ok {
		*v = T([16]byte(raw))
	}
}

// ImgID16 walks a 16-byte id, never all zero.
func ImgID16[T ~[16]byte](i *Image, v *T) {
	ImgRaw16(i, v)
	i.Check([16]byte(*v) != [16]byte{}, ErrZero)
}

// ImgHash32 walks 32 bytes of any content.
func ImgHash32[T ~[32]byte](i *Image, v *T) {
	if i.enc {
		raw := [32]byte(*v)
		i.buf = append(i.buf, raw[:]...)
	} else if raw, ok := i.take(32); ok {
		*v = T([32]byte(raw))
	}
}

// ImgSig64 walks a 64-byte signature.
func ImgSig64(i *Image, v *[64]byte) {
	if i.enc {
		i.buf = append(i.buf, v[:]...)
	} else if raw, ok := i.take(64); ok {
		*v = [64]byte(raw)
	}
}

// ImgBytes walks a u32 length and that many bytes, at most max.
func ImgBytes(i *Image, v *[]byte, max int) {
	if i.enc {
		i.Check(len(*v) <= max, ErrOverCap)
		i.buf = binary.BigEndian.AppendUint32(i.buf, uint32(len(*v)))
		i.buf = append(i.buf, *v...)
		return
	}
	var n uint32
	ImgU32(i, &n)
	if i.err != nil {
		return
	}
	if uint64(n) > uint64(max) {
		i.Fail(ErrOverCap)
		return
	}
	if raw, ok := i.take(int(n)); ok {
		*v = raw
	}
}

// ImgStr walks a u32 length and that many bytes of UTF-8, at most max.
func ImgStr(i *Image, v *string, max int) {
	if i.enc {
		i.Check(utf8.ValidString(*v), ErrUTF8)
		i.Check(len(*v) <= max, ErrOverCap)
		i.buf = binary.BigEndian.AppendUint32(i.buf, uint32(len(*v)))
		i.buf = append(i.buf, *v...)
		return
	}
	var raw []byte
	ImgBytes(i, &raw, max)
	if i.err == nil && !utf8.Valid(raw) {
		i.Fail(ErrUTF8)
		return
	}
	*v = string(raw)
}

// ImgSized walks a u32 length and exactly one value of that length, at most max.
func ImgSized(i *Image, v Value, max int) {
	if i.enc {
		at := len(i.buf)
		i.buf = append(i.buf, 0, 0, 0, 0)
		v.Image(i)
		if n := len(i.buf) - at - 4; n <= max {
			binary.BigEndian.PutUint32(i.buf[at:], uint32(n))
		} else {
			i.Fail(ErrOverCap)
		}
		return
	}
	var raw []byte
	ImgBytes(i, &raw, max)
	if i.err != nil {
		return
	}
	rest := i.buf
	i.buf = raw
	v.Image(i)
	i.Check(len(i.buf) == 0, ErrTrailing)
	i.buf = rest
}

// ImgOptID16 walks a present byte and an id; the zero id stands for absent.
func ImgOptID16[T ~[16]byte](i *Image, v *T) {
	has := [16]byte(*v) != [16]byte{}
	ImgBool(i, &has)
	if has {
		ImgID16(i, v)
	} else if i.Decoding() {
		*v = T{}
	}
}

// ImgCount walks a u16 element count. In a decode it is held against max and against the
// bytes left at size bytes an element before the caller takes memory for it.
func ImgCount(i *Image, n *int, max, size int) {
	if i.enc && *n > max {
		i.Fail(ErrOverCap)
		return
	}
	c := uint16(*n)
	ImgU16(i, &c)
	if i.err != nil {
		*n = 0
		return
	}
	*n = int(c)
	if i.enc {
		return
	}
	if *n > max {
		i.Fail(ErrOverCap)
	} else if *n*size > len(i.buf) {
		i.Fail(ErrTruncated)
	}
	if i.err != nil {
		*n = 0
	}
}

// A List is a positional list of up to Max elements of at least Size bytes each.
type List[T any, P interface {
	*T
	Value
}] struct {
	Items     *[]T
	Max, Size int
}

// Image walks the count and the elements.
func (l List[T, P]) Image(i *Image) {
	n := len(*l.Items)
	ImgCount(i, &n, l.Max, l.Size)
	if i.Decoding() {
		*l.Items = nil
		if n > 0 && !i.Failed() {
			*l.Items = make([]T, n)
		}
	}
	for k := range *l.Items {
		P(&(*l.Items)[k]).Image(i)
		if i.Failed() {
			return
		}
	}
}

// A Scan is a [List] whose elements are checked one by one and stay as they stand: Images is
// those of all, one behind the other, and aliases what was decoded. In an encode the images
// are checked as in a decode.
type Scan[T any, P interface {
	*T
	Value
}] struct {
	Count     *int
	Images    *[]byte
	Max, Size int
	// Each takes an element, which is used again for the next one, and says whether it may
	// stand there.
	Each func(P) error
}

// Image walks the count and the elements.
func (s Scan[T, P]) Image(i *Image) {
	ImgCount(i, s.Count, s.Max, s.Size)
	if i.enc {
		from := len(i.buf)
		i.buf = append(i.buf, *s.Images...)
		sub := Image{buf: i.buf[from:], err: i.err}
		s.walk(&sub)
		i.Check(sub.close() == nil, sub.err)
		return
	}
	from := i.buf
	s.walk(i)
	n := len(from) - len(i.buf)
	*s.Images = from[:n:n]
}

// walk decodes the elements.
func (s Scan[T, P]) walk(i *Image) {
	item := P(new(T))
	for range *s.Count {
		item.Image(i)
		if i.err != nil {
			return
		}
		if err := s.Each(item); err != nil {
			i.Fail(err)
			return
		}
	}
}
