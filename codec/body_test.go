package codec_test

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"

	"coordinator/codec"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

type (
	small uint8
	id    [16]byte
	hash  [32]byte
)

// everything is a message with one field of every kind.
type everything struct {
	U8       small
	U16      uint16
	U32      uint32
	U64      uint64
	Flag     bool
	Enum     small
	OptEnum  *small
	Nonzero  uint32
	Opt32    uint32
	Opt64    uint64
	OptAny   *uint64
	ID       id
	OptID    id
	Hash     hash
	Sig      [64]byte
	Bytes    []byte
	OptBytes []byte
	Str      string
	OptStr   *string
	Nested   pair
	HasPair  bool
	OptPair  pair
	List     []pair
	Big      uint64
	Unknown  []codec.Field
}

func (m *everything) Layout(b *codec.Body) {
	codec.U8(b, 1, &m.U8)
	codec.U16(b, 2, &m.U16)
	codec.U32(b, 3, &m.U32)
	codec.U64(b, 4, &m.U64)
	codec.Bool(b, 5, &m.Flag)
	codec.Enum8(b, 6, &m.Enum, 3)
	codec.OptEnum8(b, 7, &m.OptEnum, 3)
	codec.NonzeroU32(b, 8, &m.Nonzero)
	codec.OptNonzeroU32(b, 9, &m.Opt32)
	codec.OptNonzeroU64(b, 10, &m.Opt64)
	codec.OptU64(b, 11, &m.OptAny)
	codec.ID16(b, 12, &m.ID)
	codec.OptID16(b, 13, &m.OptID)
	codec.Hash32(b, 14, &m.Hash)
	codec.Sig64(b, 15, &m.Sig)
	codec.Bytes(b, 16, &m.Bytes, 8)
	codec.OptBytes(b, 17, &m.OptBytes, 8)
	codec.Str(b, 18, &m.Str, 8)
	codec.OptStr(b, 19, &m.OptStr, 8)
	codec.Nested(b, 20, &m.Nested, 64)
	codec.OptNested(b, 21, &m.HasPair, &m.OptPair, 64)
	codec.Nested(b, 22, codec.List[pair, *pair]{Items: &m.List, Max: 3, Size: 5}, 200)
	codec.NonzeroU64(b, 24, &m.Big)
	b.Unknown(&m.Unknown)
}

// pair is a positional value.
type pair struct {
	N    uint8
	Text string
}

func (p *pair) Image(i *codec.Image) {
	codec.ImgU8(i, &p.N)
	codec.ImgStr(i, &p.Text, 60)
}

// sample is a valid message with every field present.
func sample() *everything {
	enum, any, text := small(3), uint64(0), "x"
	return &everything{
		U8: 1, U16: 0x0203, U32: 4, U64: 5, Flag: true, Enum: 2, OptEnum: &enum, Nonzero: 1, Opt32: 2, Opt64: 3,
		OptAny: &any, ID: id{1}, OptID: id{2}, Hash: hash{3}, Sig: [64]byte{4}, Bytes: []byte("bytes"),
		OptBytes: []byte{}, Str: "ü", OptStr: &text, Nested: pair{7, "nested"}, HasPair: true, OptPair: pair{8, "opt"},
		List: []pair{{1, "a"}, {2, "b"}}, Big: 9, Unknown: []codec.Field{{ID: 25, Value: []byte("u")}, {ID: 300, Value: []byte{}}},
	}
}

func TestEveryFieldRoundTrips(t *testing.T) {
	m := sample()
	body, err := codec.Encode(nil, m)
	require.NoError(t, err)
	canonical, err := codec.Canonical(body)
	require.NoError(t, err)
	require.Equal(t, body, canonical)
	again := new(everything)
	require.NoError(t, codec.Decode(again, body))
	require.Equal(t, m, again)

	fields, err := codec.ParseFields(body)
	require.NoError(t, err)
	for i, j := 0, len(fields)-1; i < j; i, j = i+1, j-1 {
		fields[i], fields[j] = fields[j], fields[i]
	}
	reversed := new(everything)
	require.NoError(t, codec.Decode(reversed, codec.AppendFields(nil, fields)), "any order of fields decodes")
	require.Equal(t, m, reversed)
}

// A message that is decoded into twice holds nothing of the first time.
func TestDecodeResetsAbsentFields(t *testing.T) {
	m := sample()
	bare := &everything{Nonzero: 1, ID: id{1}, Big: 1}
	body, err := codec.Encode(nil, bare)
	require.NoError(t, err)
	require.NoError(t, codec.Decode(m, body))
	require.Nil(t, m.OptEnum)
	require.Zero(t, m.Opt32)
	require.Zero(t, m.Opt64)
	require.Nil(t, m.OptAny)
	require.Zero(t, m.OptID)
	require.Nil(t, m.OptBytes)
	require.Nil(t, m.OptStr)
	require.False(t, m.HasPair)
	require.Nil(t, m.List)
	require.Nil(t, m.Unknown)
}

// with is the sample's body with field n replaced by value, or without it.
func with(t *testing.T, n uint32, value []byte) []byte {
	t.Helper()
	body, err := codec.Encode(nil, sample())
	require.NoError(t, err)
	fields, err := codec.ParseFields(body)
	require.NoError(t, err)
	var out []codec.Field
	for _, f := range fields {
		if f.ID == n {
			f.Value = value
		}
		if f.Value != nil {
			out = append(out, f)
		}
	}
	return codec.AppendFields(nil, out)
}

func TestDecodeRefuses(t *testing.T) {
	for _, tt := range []struct {
		name  string
		id    uint32
		value []byte
		want  error
	}{
		{"u8 empty", 1, []byte{}, codec.ErrWidth},
		{"u8 missing", 1, nil, codec.ErrMissing},
		{"u16 of three bytes", 2, make([]byte, 3), codec.ErrWidth},
		{"u32 of two bytes", 3, make([]byte, 2), codec.ErrWidth},
		{"u64 of nine bytes", 4, make([]byte, 9), codec.ErrWidth},
		{"bool of 2", 5, []byte{2}, codec.ErrBool},
		{"bool of 255", 5, []byte{255}, codec.ErrBool},
		{"enum above its values", 6, []byte{4}, codec.ErrTag},
		{"optional enum above its values", 7, []byte{4}, codec.ErrTag},
		{"optional enum empty", 7, []byte{}, codec.ErrWidth},
		{"nonzero of zero", 8, make([]byte, 4), codec.ErrZero},
		{"optional nonzero of zero", 9, make([]byte, 4), codec.ErrZero},
		{"optional nonzero u64 of zero", 10, make([]byte, 8), codec.ErrZero},
		{"optional u64 of seven bytes", 11, make([]byte, 7), codec.ErrWidth},
		{"id of zero", 12, make([]byte, 16), codec.ErrZero},
		{"id of 15 bytes", 12, make([]byte, 15), codec.ErrWidth},
		{"optional id of zero", 13, make([]byte, 16), codec.ErrZero},
		{"hash of 33 bytes", 14, make([]byte, 33), codec.ErrWidth},
		{"signature of 63 bytes", 15, make([]byte, 63), codec.ErrWidth},
		{"bytes over their cap", 16, make([]byte, 9), codec.ErrOverCap},
		{"bytes missing", 16, nil, codec.ErrMissing},
		{"optional bytes over their cap", 17, make([]byte, 9), codec.ErrOverCap},
		{"string over its cap", 18, []byte("123456789"), codec.ErrOverCap},
		{"string not UTF-8", 18, []byte{0xc3, 0x28}, codec.ErrUTF8},
		{"string of a surrogate", 18, []byte{0xed, 0xa0, 0x80}, codec.ErrUTF8},
		{"optional string not UTF-8", 19, []byte{0xff}, codec.ErrUTF8},
		{"nested short", 20, []byte{1, 0, 0, 0}, codec.ErrTruncated},
		{"nested with a trailing byte", 20, []byte{1, 0, 0, 0, 0, 0}, codec.ErrTrailing},
		{"nested over its cap", 20, make([]byte, 65), codec.ErrOverCap},
		{"nested string not UTF-8", 20, []byte{1, 0, 0, 0, 1, 0xff}, codec.ErrUTF8},
		{"optional nested empty", 21, []byte{}, codec.ErrTruncated},
		{"list without a count", 22, []byte{0}, codec.ErrTruncated},
		{"list of more than its cap", 22, append([]byte{0, 4}, make([]byte, 20)...), codec.ErrOverCap},
		{"list past the end", 22, []byte{0, 1, 0, 0, 0, 0}, codec.ErrTruncated},
		{"list with a trailing byte", 22, []byte{0, 0, 0}, codec.ErrTrailing},
		{"nonzero u64 of zero", 24, make([]byte, 8), codec.ErrZero},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := codec.Decode(new(everything), with(t, tt.id, tt.value))
			require.ErrorIs(t, err, tt.want)
			var e *codec.Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, int(tt.id), e.Field, "the error names the field")
		})
	}
}

func TestEncodeRefuses(t *testing.T) {
	bad := small(4)
	badText := "\xff"
	for _, tt := range []struct {
		name   string
		change func(*everything)
		want   error
	}{
		{"enum above its values", func(m *everything) { m.Enum = 4 }, codec.ErrTag},
		{"optional enum above its values", func(m *everything) { m.OptEnum = &bad }, codec.ErrTag},
		{"nonzero of zero", func(m *everything) { m.Nonzero = 0 }, codec.ErrZero},
		{"id of zero", func(m *everything) { m.ID = id{} }, codec.ErrZero},
		{"bytes over their cap", func(m *everything) { m.Bytes = make([]byte, 9) }, codec.ErrOverCap},
		{"optional bytes over their cap", func(m *everything) { m.OptBytes = make([]byte, 9) }, codec.ErrOverCap},
		{"string over its cap", func(m *everything) { m.Str = "123456789" }, codec.ErrOverCap},
		{"string not UTF-8", func(m *everything) { m.Str = badText }, codec.ErrUTF8},
		{"optional string not UTF-8", func(m *everything) { m.OptStr = &badText }, codec.ErrUTF8},
		{"nested over the cap of its part", func(m *everything) { m.Nested.Text = strings.Repeat("x", 61) }, codec.ErrOverCap},
		{"nested over its cap", func(m *everything) { m.Nested.Text = strings.Repeat("x", 60) }, codec.ErrOverCap},
		{"list over its cap", func(m *everything) { m.List = make([]pair, 4) }, codec.ErrOverCap},
		{"list of more than a count can say", func(m *everything) { m.List = make([]pair, 65536+2) }, codec.ErrOverCap},
		{"nonzero u64 of zero", func(m *everything) { m.Big = 0 }, codec.ErrZero},
		{"unknown field with a known id", func(m *everything) { m.Unknown = []codec.Field{{ID: 24}} }, codec.ErrOrder},
		{"unknown fields descending", func(m *everything) { m.Unknown = []codec.Field{{ID: 31}, {ID: 30}} }, codec.ErrOrder},
		{"unknown field twice", func(m *everything) { m.Unknown = []codec.Field{{ID: 30}, {ID: 30}} }, codec.ErrOrder},
		{"unknown field above the largest id", func(m *everything) { m.Unknown = []codec.Field{{ID: 1 << 31}} }, codec.ErrOrder},
		{"more than 128 fields", func(m *everything) { m.Unknown = manyFields(128 - 23 + 1) }, codec.ErrTooManyFields},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := sample()
			tt.change(m)
			dst := []byte("dst")
			out, err := codec.Encode(dst, m)
			require.ErrorIs(t, err, tt.want)
			require.Equal(t, "dst", string(out), "dst comes back as it was")
		})
	}
}

func manyFields(n int) (fields []codec.Field) {
	for k := range n {
		fields = append(fields, codec.Field{ID: uint32(100 + k), Value: []byte{}})
	}
	return fields
}

func TestBodyOfExactly128Fields(t *testing.T) {
	m := sample()
	m.Unknown = manyFields(128 - 23)
	body, err := codec.Encode(nil, m)
	require.NoError(t, err)
	require.NoError(t, codec.Decode(new(everything), body))
	require.ErrorIs(t, codec.Decode(new(everything), append(body, 0x80, 0x80, 0x04, 4, 0)), codec.ErrTooManyFields)
}

// Unknown fields are found below, between and above the ids that a layout names.
func TestUnknownFieldsAnywhere(t *testing.T) {
	body := codec.AppendFields(nil, []codec.Field{
		{ID: 1, Value: []byte("below")}, {ID: 2, Value: []byte{7}}, {ID: 3, Value: []byte("between")}, {ID: 4, Value: []byte{8}},
		{ID: 24, Value: []byte("last small")}, {ID: 25, Value: []byte("first large")}, {ID: 1<<31 - 1, Value: []byte{}},
	})
	m := new(sparse)
	require.NoError(t, codec.Decode(m, body))
	require.Equal(t, &sparse{A: 7, B: 8, Unknown: []codec.Field{
		{ID: 1, Value: []byte("below")}, {ID: 3, Value: []byte("between")}, {ID: 24, Value: []byte("last small")},
		{ID: 25, Value: []byte("first large")}, {ID: 1<<31 - 1, Value: []byte{}},
	}}, m)

	var skipping skipper
	require.NoError(t, codec.Decode(&skipping, body), "a layout that asks for no unknown field skips them")
	for _, again := range []uint32{1, 3, 24, 25, 1<<31 - 1} {
		twice := append(bytes.Clone(body), codec.AppendFields(nil, []codec.Field{{ID: again, Value: []byte("x")}})...)
		require.ErrorIs(t, codec.Decode(m, twice), codec.ErrDuplicate)
		require.ErrorIs(t, codec.Decode(&skipping, twice), codec.ErrDuplicate, "unknown field %d twice", again)
	}
}

// sparse names two ids of the known range.
type sparse struct {
	A, B    uint8
	Unknown []codec.Field
}

func (s *sparse) Layout(b *codec.Body) {
	codec.U8(b, 2, &s.A)
	codec.U8(b, 4, &s.B)
	b.Unknown(&s.Unknown)
}

type skipper struct{ A, B uint8 }

func (s *skipper) Layout(b *codec.Body) {
	codec.U8(b, 2, &s.A)
	codec.U8(b, 4, &s.B)
}

type strict struct{ skipper }

func (s *strict) Layout(b *codec.Body) {
	s.skipper.Layout(b)
	b.Strict()
}

func TestStrict(t *testing.T) {
	two, four := codec.Field{ID: 2, Value: []byte{1}}, codec.Field{ID: 4, Value: []byte{2}}
	for _, tt := range []struct {
		name   string
		fields []codec.Field
		want   error
	}{
		{"as it should be", []codec.Field{two, four}, nil},
		{"descending", []codec.Field{four, two}, codec.ErrOrder},
		{"a field missing", []codec.Field{two}, codec.ErrMissing},
		{"a field twice", []codec.Field{two, two, four}, codec.ErrDuplicate},
		{"an unknown field below", []codec.Field{{ID: 1}, two, four}, codec.ErrUnknownField},
		{"an unknown field between", []codec.Field{two, {ID: 3}, four}, codec.ErrUnknownField},
		{"an unknown field of the known range above", []codec.Field{two, four, {ID: 24}}, codec.ErrUnknownField},
		{"an unknown field far above", []codec.Field{two, four, {ID: 1 << 30}}, codec.ErrUnknownField},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := codec.Decode(new(strict), codec.AppendFields(nil, tt.fields))
			if tt.want == nil {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, tt.want)
		})
	}
}

// The first failure stays, whatever fails after it.
func TestFirstFailureSticks(t *testing.T) {
	body := with(t, 5, []byte{2}) // the bool
	fields, err := codec.ParseFields(body)
	require.NoError(t, err)
	fields = append(fields[:5], fields[8:]...) // and the fields behind it are gone
	var e *codec.Error
	require.ErrorAs(t, codec.Decode(new(everything), codec.AppendFields(nil, fields)), &e)
	require.Equal(t, 5, e.Field)
	require.Equal(t, codec.ErrBool, e.Cause)
}

func TestScanFields(t *testing.T) {
	first, second := codec.Field{ID: 1, Value: []byte("a")}, codec.Field{ID: 2, Value: []byte("b")}
	good := codec.AppendFields(nil, []codec.Field{second, {ID: 9, Value: []byte("skip")}, first})
	low := func(id uint32) bool { return id <= 2 }
	for _, tt := range []struct {
		name string
		body []byte
		want []codec.Field
	}{
		{"nothing", nil, nil},
		{"any order, others skipped", good, []codec.Field{second, first}},
		{"junk behind", append(bytes.Clone(good), 0xff, 0xff, 0xff), []codec.Field{second, first}},
		{"stops at junk", append(codec.AppendFields(nil, []codec.Field{second}), append([]byte{3, 0}, good...)...), []codec.Field{second}},
		{"stops at a repeated field", codec.AppendFields(nil, []codec.Field{first, first, second}), []codec.Field{first}},
		{"stops at a length past the end", []byte{1, 4, 0xff, 0xff, 0xff, 0xff, 0x0f}, nil},
		{"looks at 128 fields", append(codec.AppendFields(nil, manyFields(128)), good...), nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			require.Equal(t, tt.want, codec.ScanFields(tt.body, low))
		})
	}
}

// Appending to a decoded slice never writes into the body or a neighbour.
func TestDecodedSlicesHaveNoSpareCapacity(t *testing.T) {
	body, err := codec.Encode(nil, sample())
	require.NoError(t, err)
	before := bytes.Clone(body)
	m := new(everything)
	require.NoError(t, codec.Decode(m, body))
	for _, b := range [][]byte{m.Bytes, m.OptBytes, m.Unknown[0].Value, m.Unknown[1].Value} {
		require.Equal(t, len(b), cap(b))
		_ = append(b, "overwritten"...)
	}
	require.Equal(t, before, body)
}

// Encode into a buffer with room to spare writes behind dst only, nested lengths of
// more than one byte included.
func TestEncodeIntoSpareCapacity(t *testing.T) {
	m := &long{strings.Repeat("n", 300), 5}
	want, err := codec.Encode(nil, m)
	require.NoError(t, err)
	again := new(long)
	require.NoError(t, codec.Decode(again, want))
	require.Equal(t, m, again)
	for spare := range 330 {
		dst := append(make([]byte, 0, 3+spare), "abc"...)
		got, err := codec.Encode(dst, m)
		require.NoError(t, err)
		require.Equal(t, "abc"+string(want), string(got))
	}
}

// long has a nested value whose length takes two bytes, and a field behind it.
type long struct {
	Text string
	N    uint8
}

func (m *long) Layout(b *codec.Body) {
	codec.Nested(b, 1, (*text)(&m.Text), 1000)
	codec.U8(b, 2, &m.N)
}

type text string

func (s *text) Image(i *codec.Image) { codec.ImgStr(i, (*string)(s), 900) }

// An encode only reads its message: many goroutines may share one. Run under -race.
func TestConcurrentEncodes(t *testing.T) {
	m := sample()
	m.OptEnum, m.OptID, m.OptBytes, m.HasPair, m.Opt32, m.Opt64 = nil, id{}, nil, false, 0, 0
	want, err := codec.Encode(nil, m)
	require.NoError(t, err)
	results := make(chan []byte)
	for range 4 {
		go func() {
			out, _ := codec.Encode(nil, m)
			results <- out
		}()
	}
	for range 4 {
		require.Equal(t, want, <-results)
	}
}

// drawEverything generates messages, out-of-range values included.
func drawEverything(t *rapid.T) *everything {
	m := &everything{
		U8: small(rapid.Byte().Draw(t, "u8")), U16: rapid.Uint16().Draw(t, "u16"), U32: rapid.Uint32().Draw(t, "u32"),
		U64: rapid.Uint64().Draw(t, "u64"), Flag: rapid.Bool().Draw(t, "flag"), Enum: small(rapid.ByteRange(0, 4).Draw(t, "enum")),
		Nonzero: rapid.Uint32Range(0, 9).Draw(t, "nonzero"), Opt32: rapid.Uint32Range(0, 1).Draw(t, "opt32"),
		Opt64: rapid.Uint64Range(0, 1).Draw(t, "opt64"), ID: id{rapid.ByteRange(0, 9).Draw(t, "id")},
		OptID: id{rapid.ByteRange(0, 1).Draw(t, "optid")}, Hash: hash{rapid.Byte().Draw(t, "hash")},
		Bytes: rapid.SliceOfN(rapid.Byte(), 0, 9).Draw(t, "bytes"), Str: drawText(t, "str"),
		Nested: pair{rapid.Byte().Draw(t, "n"), rapid.StringN(0, -1, 62).Draw(t, "text")}, HasPair: rapid.Bool().Draw(t, "has"),
		Big: rapid.Uint64Range(0, 9).Draw(t, "big"),
	}
	if m.HasPair {
		m.OptPair.Text = drawText(t, "optpair")
	}
	if rapid.Bool().Draw(t, "optenum") {
		e := small(rapid.ByteRange(0, 4).Draw(t, "value"))
		m.OptEnum = &e
	}
	if rapid.Bool().Draw(t, "optbytes") {
		m.OptBytes = rapid.SliceOfN(rapid.Byte(), 0, 9).Draw(t, "value")
	}
	if rapid.Bool().Draw(t, "optstr") {
		s := drawText(t, "value")
		m.OptStr = &s
	}
	for range rapid.IntRange(0, 4).Draw(t, "list") {
		m.List = append(m.List, pair{1, drawText(t, "item")})
	}
	for range rapid.IntRange(0, 3).Draw(t, "unknown") {
		m.Unknown = append(m.Unknown, codec.Field{ID: rapid.Uint32Range(23, 30).Draw(t, "id"), Value: []byte{1}})
	}
	return m
}

// drawText is mostly text, sometimes too long or not UTF-8.
func drawText(t *rapid.T, label string) string {
	return rapid.OneOf(rapid.StringN(0, 4, 8), rapid.StringN(0, 4, 8), rapid.StringN(0, -1, 12), rapid.Just("\xc3\x28")).Draw(t, label)
}

// valid says what everything's layout demands, written apart from it.
func (m *everything) valid() bool {
	ok := m.Enum <= 3 && (m.OptEnum == nil || *m.OptEnum <= 3) && m.Nonzero != 0 && m.ID != id{} && m.Big != 0 &&
		len(m.Bytes) <= 8 && len(m.OptBytes) <= 8 && fits(m.Str, 8) && (m.OptStr == nil || fits(*m.OptStr, 8)) &&
		fits(m.Nested.Text, 59) && (!m.HasPair || fits(m.OptPair.Text, 59)) && len(m.List) <= 3
	for _, p := range m.List {
		ok = ok && fits(p.Text, 60)
	}
	last := uint32(24)
	for _, f := range m.Unknown {
		ok = ok && f.ID > last
		last = f.ID
	}
	return ok
}

func fits(s string, max int) bool {
	return len(s) <= max && strings.ToValidUTF8(s, "") == s
}

// An encoder takes exactly what its decoder takes, and what it writes comes back.
func TestEncodeTakesWhatDecodeTakes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawEverything(t)
		body, err := codec.Encode(nil, m)
		if (err == nil) != m.valid() {
			t.Fatalf("Encode says %v of a message that is valid: %v", err, m.valid())
		}
		if err != nil {
			var e *codec.Error
			if !errors.As(err, &e) {
				t.Fatalf("%v is no *codec.Error", err)
			}
			return
		}
		again := new(everything)
		if err := codec.Decode(again, body); err != nil {
			t.Fatalf("Decode refuses %x: %v", body, err)
		}
		if len(m.Bytes) == 0 {
			m.Bytes = []byte{} // required bytes are never nil after a decode
		}
		if m.OptBytes != nil && len(m.OptBytes) == 0 {
			m.OptBytes = []byte{}
		}
		if !reflect.DeepEqual(m, again) {
			t.Fatalf("%+v comes back as %+v", m, again)
		}
	})
}
