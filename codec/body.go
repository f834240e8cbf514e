package codec

import (
	"math"
	"math/bits"
	"slices"
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
	last := 0
	for n, rest := 0, body; len(rest) > 0; n++ {
		if n == maxFields {
			return &Error{Cause: ErrTooManyFields}
		}
		id, from, to := quickField(rest)
		if to == 0 {
			f, after, err := readField(rest)
			if err != nil {
				return err
			}
			id, to = int(f.ID), len(rest)-len(after)
			from = to - len(f.Value)
			if id > maxKnown {
				if b.hasUnknown(f.ID) {
					return &Error{Field: id, Cause: ErrDuplicate}
				}
				b.unknown = append(b.unknown, f)
			}
		}
		if id <= last {
			b.unsorted = true
		}
		last = id
		if id <= maxKnown {
			if b.has(id) {
				return &Error{Field: id, Cause: ErrDuplicate}
			}
			b.given |= 1 << id
			at := len(body) - len(rest)
			b.known[id] = span{uint32(at + from), uint32(at + to)}
		}
		rest = rest[to:]
	}
	return nil
}

// hasUnknown reports whether a field above maxKnown was there before.
func (b *Body) hasUnknown(id uint32) bool {
	return slices.ContainsFunc(b.unknown, func(f Field) bool { return f.ID == id })
}

// quickField finds the value of the first field of body where its head is like nearly every
// one: a known id, and a length of at most two bytes. Otherwise to is zero.
func quickField(body []byte) (id, from, to int) {
	if len(body) < 4 || body[0]-1 >= maxKnown || body[1] != wireBytes {
		return 0, 0, 0
	}
	from, to = 3, 3+int(body[2])
	if body[2] >= 0x80 {
		if body[3]-1 >= 0x7f { // it goes on, or is not minimal
			return 0, 0, 0
		}
		from, to = 4, 4+int(body[2]&0x7f)+int(body[3])<<7
	}
	if to > len(body) {
		return 0, 0, 0
	}
	return int(body[0]), from, to
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
