package codec

import (
	"encoding/binary"
	"math"
	"math/bits"
	"slices"
	"unicode/utf8"
)

const (
	wireBytes  = 4         // the only wire type
	maxFieldID = 1<<31 - 1 // protocol.md §2.1 [D-2]
	// maxFields is the most fields one body may have [D-2].
	maxFields = 128
	// maxKnown is the largest field id that any layout names.
	maxKnown = 24
)

// A Field is one TLV field as it stands on the wire.
type Field struct {
	ID    uint32
	Value []byte
}

// A Body walks one TLV body, encoding or decoding. The first failure sticks: later calls
// do nothing. The functions that take a Body name the field by its id; in a decode they
// fill their pointer, in an encode they write it.
type Body struct {
	enc  bool
	err  error
	last int // highest id walked, to hold layouts to increasing order

	out    []byte // encode: what has been written
	fields int    // encode: how many fields that is
	stage  []byte // room that is kept from walk to walk
	staged bool   // encode: out lies in stage, and is appended to its destination at the end

	image Image // of the field that is being walked; a value walks one field at a time

	in       []byte             // decode: the body
	known    [maxKnown + 1]span // decode: where the values of given ids lie in it
	given    uint32             // decode: bit per known id that is there
	walked   uint32             // decode: bit per known id that the layout asked for
	unknown  []Field            // decode: fields above maxKnown
	unsorted bool               // decode: some id did not increase
}

// A span is a part of the body that is being decoded. It holds no pointer, so that a walker
// that is used again need not forget it.
type span struct{ from, to uint32 }

// value is the value of a known id that is given. It has no spare capacity.
func (b *Body) value(id int) []byte {
	s := b.known[id]
	return b.in[s.from:s.to:s.to]
}

// has reports whether a known id is given.
func (b *Body) has(id int) bool { return b.given&(1<<id) != 0 }

// Decoding says which way the walk goes, for the few checks that only one side can make.
func (b *Body) Decoding() bool { return !b.enc }

// Failed reports whether an earlier field failed.
func (b *Body) Failed() bool { return b.err != nil }

// Fail records cause for field id unless something failed before.
func (b *Body) Fail(id int, cause error) {
	if b.err == nil {
		b.err = &Error{Field: id, Cause: cause}
	}
}

// Check fails field id with cause unless ok.
func (b *Body) Check(ok bool, id int, cause error) {
	if !ok {
		b.Fail(id, cause)
	}
}

// parse splits body into fields. Values alias body.
func (b *Body) parse(body []byte) error {
	if uint64(len(body)) > math.MaxUint32 {
		return &Error{Cause: ErrOverCap} // no frame comes near
	}
	b.in = body
	last := uint64(0)
	for n := 0; len(body) > 0; n++ {
		if n == maxFields {
			return &Error{Cause: ErrTooManyFields}
		}
		f, rest, err := readField(body)
		if err != nil {
			return err
		}
		body = rest
		if uint64(f.ID) <= last {
			b.unsorted = true
		}
		last = uint64(f.ID)
		if f.ID <= maxKnown {
			if b.has(int(f.ID)) {
				return &Error{Field: int(f.ID), Cause: ErrDuplicate}
			}
			b.given |= 1 << f.ID
			end := uint32(len(b.in) - len(rest))
			b.known[f.ID] = span{end - uint32(len(f.Value)), end}
			continue
		}
		for i := range b.unknown {
			if b.unknown[i].ID == f.ID {
				return &Error{Field: int(f.ID), Cause: ErrDuplicate}
			}
		}
		b.unknown = append(b.unknown, f)
	}
	return nil
}

// readField reads one field. Its value is never nil and has no spare capacity.
func readField(body []byte) (Field, []byte, error) {
	// Nearly every field: an id and a length of one byte each.
	if len(body) >= 3 && body[0]-1 < 0x7f && body[1] == wireBytes && body[2] < 0x80 && int(body[2]) <= len(body)-3 {
		n := 3 + int(body[2])
		return Field{ID: uint32(body[0]), Value: body[3:n:n]}, body[n:], nil
	}
	id, rest, err := readVarint(body)
	if err != nil {
		return Field{}, nil, &Error{Cause: err}
	}
	if id == 0 || id > maxFieldID {
		return Field{}, nil, &Error{Cause: ErrFieldID}
	}
	if len(rest) == 0 {
		return Field{}, nil, &Error{Field: int(id), Cause: ErrTruncated}
	}
	if rest[0] != wireBytes {
		return Field{}, nil, &Error{Field: int(id), Cause: ErrWireType}
	}
	n, rest, err := readVarint(rest[1:])
	if err != nil {
		return Field{}, nil, &Error{Field: int(id), Cause: err}
	}
	if n > uint64(len(rest)) {
		return Field{}, nil, &Error{Field: int(id), Cause: ErrTruncated}
	}
	return Field{ID: uint32(id), Value: rest[:n:n]}, rest[n:], nil
}

// finish ends a decode.
func (b *Body) finish() error { return b.err }

// walk notes that the layout names id. It reports whether the caller should go on.
func (b *Body) walk(id int) bool {
	if id <= b.last || id > maxKnown {
		panic("codec: layout walks its field ids out of order")
	}
	b.last = id
	b.walked |= 1 << id
	return b.err == nil
}

// take returns the value of id in a decode; false when absent or after a failure.
func (b *Body) take(id int) ([]byte, bool) {
	if !b.walk(id) {
		return nil, false
	}
	if !b.has(id) {
		return nil, false
	}
	return b.value(id), true
}

// need is take for a required field.
func (b *Body) need(id int) ([]byte, bool) {
	v, ok := b.take(id)
	if !ok {
		b.Fail(id, ErrMissing)
	}
	return v, ok
}

// header writes the field header for a value of n bytes in an encode.
func (b *Body) header(id, n int) bool {
	if !b.walk(id) {
		return false
	}
	b.fields++
	if n < 0x80 && id < 0x80 {
		b.out = append(b.out, byte(id), wireBytes, byte(n))
		return true
	}
	b.out = AppendVarint(b.out, uint64(id))
	b.out = append(b.out, wireBytes)
	b.out = AppendVarint(b.out, uint64(n))
	return true
}

// Strict refuses unknown fields and fields that do not ascend, as the two frames of the
// workload proof demand (protocol.md §5.2). It is called last in a layout.
func (b *Body) Strict() {
	if b.enc {
		return
	}
	b.Check(!b.unsorted, 0, ErrOrder)
	if len(b.unknown) > 0 {
		b.Fail(int(b.unknown[0].ID), ErrUnknownField)
	}
	if extra := b.given &^ b.walked; extra != 0 {
		b.Fail(bits.TrailingZeros32(extra), ErrUnknownField)
	}
}

// Unknown hands over, in ascending order, the fields that the layout does not name, or
// writes them. It is called last in a layout; every id must exceed the layout's own.
func (b *Body) Unknown(fields *[]Field) {
	if b.err != nil {
		return
	}
	if b.enc {
		b.appendUnknown(*fields)
		return
	}
	*fields = nil
	extra := b.given &^ b.walked
	if extra == 0 && len(b.unknown) == 0 {
		return
	}
	var out []Field
	for ; extra != 0; extra &= extra - 1 {
		id := bits.TrailingZeros32(extra)
		out = append(out, Field{ID: uint32(id), Value: b.value(id)})
	}
	out = append(out, b.unknown...)
	slices.SortFunc(out, func(x, y Field) int { return int(int64(x.ID) - int64(y.ID)) })
	*fields = out
}

func (b *Body) appendUnknown(fields []Field) {
	if len(fields) > maxFields-b.fields {
		b.Fail(0, ErrTooManyFields)
		return
	}
	last := uint32(b.last)
	for _, f := range fields {
		if f.ID <= last || f.ID > maxFieldID {
			b.Fail(int(f.ID), ErrOrder)
			return
		}
		last = f.ID
		b.out = appendField(b.out, f)
	}
}

func appendField(dst []byte, f Field) []byte {
	dst = AppendVarint(dst, uint64(f.ID))
	dst = append(dst, wireBytes)
	dst = AppendVarint(dst, uint64(len(f.Value)))
	return append(dst, f.Value...)
}

// AppendFields appends fields, which must be in ascending id order, as a TLV body.
func AppendFields(dst []byte, fields []Field) []byte {
	for _, f := range fields {
		dst = appendField(dst, f)
	}
	return dst
}

// ParseFields splits any TLV body into its fields, sorted by id. Values alias body.
func ParseFields(body []byte) ([]Field, error) {
	var fields []Field
	sorted := true
	for len(body) > 0 {
		if len(fields) == maxFields {
			return nil, &Error{Cause: ErrTooManyFields}
		}
		f, rest, err := readField(body)
		if err != nil {
			return nil, err
		}
		sorted = sorted && (len(fields) == 0 || fields[len(fields)-1].ID < f.ID)
		fields = append(fields, f)
		body = rest
	}
	if sorted {
		return fields, nil
	}
	slices.SortStableFunc(fields, func(x, y Field) int { return int(int64(x.ID) - int64(y.ID)) })
	for i := 1; i < len(fields); i++ {
		if fields[i].ID == fields[i-1].ID {
			return nil, &Error{Field: int(fields[i].ID), Cause: ErrDuplicate}
		}
	}
	return fields, nil
}

// Canonical re-encodes any TLV body with ascending ids and minimal varints, unknown
// fields included (protocol.md §8, operation digest).
func Canonical(body []byte) ([]byte, error) {
	return AppendCanonical(make([]byte, 0, len(body)), body)
}

// AppendCanonical appends to dst what [Canonical] gives. A body that is canonical already,
// as those of our own encoder are, is copied as it stands.
func AppendCanonical(dst, body []byte) ([]byte, error) {
	last := uint32(0)
	for rest, n := body, 0; len(rest) > 0; n++ {
		if n == maxFields {
			return dst, &Error{Cause: ErrTooManyFields}
		}
		f, after, err := readField(rest) // which refuses varints that are not minimal
		if err != nil {
			return dst, err
		}
		if f.ID <= last {
			return appendSorted(dst, body)
		}
		last, rest = f.ID, after
	}
	return append(dst, body...), nil
}

func appendSorted(dst, body []byte) ([]byte, error) {
	fields, err := ParseFields(body)
	if err != nil {
		return dst, err
	}
	return AppendFields(dst, fields), nil
}

// fixed gives the value of a required field of exactly n bytes.
func (b *Body) fixed(id, n int) ([]byte, bool) {
	v, ok := b.need(id)
	if ok && len(v) != n {
		b.Fail(id, ErrWidth)
		return nil, false
	}
	return v, ok
}

// U8 walks a required one-byte integer.
func U8[T ~uint8](b *Body, id int, v *T) {
	if b.enc {
		if b.header(id, 1) {
			b.out = append(b.out, byte(*v))
		}
	} else if raw, ok := b.fixed(id, 1); ok {
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
		if b.header(id, 2) {
			b.out = binary.BigEndian.AppendUint16(b.out, uint16(*v))
		}
	} else if raw, ok := b.fixed(id, 2); ok {
		*v = T(binary.BigEndian.Uint16(raw))
	}
}

// U32 walks a required big-endian u32.
func U32[T ~uint32](b *Body, id int, v *T) {
	if b.enc {
		if b.header(id, 4) {
			b.out = binary.BigEndian.AppendUint32(b.out, uint32(*v))
		}
	} else if raw, ok := b.fixed(id, 4); ok {
		*v = T(binary.BigEndian.Uint32(raw))
	}
}

// U64 walks a required big-endian u64.
func U64[T ~uint64](b *Body, id int, v *T) {
	if b.enc {
		if b.header(id, 8) {
			b.out = binary.BigEndian.AppendUint64(b.out, uint64(*v))
		}
	} else if raw, ok := b.fixed(id, 8); ok {
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
		if b.header(id, 16) {
			raw := [16]byte(*v)
			b.out = append(b.out, raw[:]...)
		}
	} else if raw, ok := b.fixed(id, 16); ok {
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
		if b.header(id, 32) {
			raw := [32]byte(*v)
			b.out = append(b.out, raw[:]...)
		}
	} else if raw, ok := b.fixed(id, 32); ok {
		*v = T([32]byte(raw))
	}
}

// Sig64 walks a required 64-byte signature.
func Sig64(b *Body, id int, v *[64]byte) {
	if b.enc {
		if b.header(id, 64) {
			b.out = append(b.out, v[:]...)
		}
	} else if raw, ok := b.fixed(id, 64); ok {
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
	if !b.enc {
		raw, ok := b.need(id)
		if ok && len(raw) > max {
			b.Fail(id, ErrOverCap)
		}
		if b.err != nil {
			return nil
		}
		b.image = Image{buf: raw}
		return &b.image
	}
	if !b.walk(id) {
		return nil
	}
	b.fields++
	b.out = AppendVarint(b.out, uint64(id))
	b.out = append(b.out, wireBytes)
	b.image = Image{enc: true, buf: append(b.out, headRoom[:varintLen(uint64(max))]...)}
	return &b.image
}

// headRoom stands where the length of a nested value will: as long as that of the longest
// one allowed, which most long ones have.
var headRoom [maxVarint]byte

// close ends a field that open began.
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
	at := len(b.out)
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

// ScanFields reads fields from the head of a body up to the first fault and returns, in
// the order found and once each, those whose id want accepts. It stops as soon as nothing
// can follow that it would return: at a repeated id.
func ScanFields(body []byte, want func(id uint32) bool) []Field {
	var out []Field
	for n := 0; n < maxFields && len(body) > 0; n++ {
		f, rest, err := readField(body)
		if err != nil {
			return out
		}
		body = rest
		if !want(f.ID) {
			continue
		}
		if slices.ContainsFunc(out, func(o Field) bool { return o.ID == f.ID }) {
			return out
		}
		out = append(out, f)
	}
	return out
}
