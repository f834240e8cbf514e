package codec_test

import (
	"math"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"coordinator/codec"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// parts is a positional value with one part of every kind.
type parts struct {
	Enum  small
	Flag  bool
	U16   uint16
	I32   int32
	Big   uint64
	Raw   id
	ID    id
	Hash  hash
	Sig   [64]byte
	Bytes []byte
	Str   string
	Sized pair
	Opt   id
	List  []pair
}

func (p *parts) Image(i *codec.Image) {
	codec.ImgEnum8(i, &p.Enum, 1, 3)
	codec.ImgBool(i, &p.Flag)
	codec.ImgU16(i, &p.U16)
	codec.ImgI32(i, &p.I32)
	codec.ImgNonzeroU64(i, &p.Big)
	codec.ImgRaw16(i, &p.Raw)
	codec.ImgID16(i, &p.ID)
	codec.ImgHash32(i, &p.Hash)
	codec.ImgSig64(i, &p.Sig)
	codec.ImgBytes(i, &p.Bytes, 8)
	codec.ImgStr(i, &p.Str, 8)
	codec.ImgSized(i, &p.Sized, 20)
	codec.ImgOptID16(i, &p.Opt)
	codec.List[pair, *pair]{Items: &p.List, Max: 3, Size: 5}.Image(i)
}

func sampleParts() *parts {
	return &parts{
		Enum: 1, Flag: true, U16: 2, I32: -9, Big: 1, Raw: id{}, ID: id{1}, Hash: hash{2}, Sig: [64]byte{3},
		Bytes: []byte("ab"), Str: "é", Sized: pair{1, "sized"}, Opt: id{9}, List: []pair{{1, "a"}, {2, ""}},
	}
}

func TestEveryPartRoundTrips(t *testing.T) {
	p := sampleParts()
	image, err := codec.EncodeImage([]byte("x"), p)
	require.NoError(t, err)
	image = image[1:]
	again := new(parts)
	require.NoError(t, codec.DecodeImage(again, image))
	require.Equal(t, p, again)
	for n := range image {
		require.ErrorIs(t, codec.DecodeImage(new(parts), image[:n]), codec.ErrTruncated, "cut to %d bytes", n)
	}
	require.ErrorIs(t, codec.DecodeImage(new(parts), append(image, 0)), codec.ErrTrailing)
}

func TestImageRefuses(t *testing.T) {
	image, err := codec.EncodeImage(nil, sampleParts())
	require.NoError(t, err)
	const (
		flag = 1
		big  = 1 + 1 + 2 + 4
		ids  = big + 8 + 16
		size = ids + 16 + 32 + 64 // of Bytes
	)
	for _, tt := range []struct {
		name string
		at   int
		to   []byte
		want error
	}{
		{"enum below its values", 0, []byte{0}, codec.ErrTag},
		{"enum above its values", 0, []byte{4}, codec.ErrTag},
		{"bool of 2", flag, []byte{2}, codec.ErrBool},
		{"nonzero of zero", big, make([]byte, 8), codec.ErrZero},
		{"id of zero", ids, make([]byte, 16), codec.ErrZero},
		{"bytes over their cap", size, []byte{0, 0, 0, 9}, codec.ErrOverCap},
		{"bytes of 2 GiB", size, []byte{0x80, 0, 0, 0}, codec.ErrOverCap},
		{"bytes of 4 GiB less one", size, []byte{0xff, 0xff, 0xff, 0xff}, codec.ErrOverCap},
		{"string not UTF-8", size + 6 + 4, []byte{0xc3, 0x28}, codec.ErrUTF8},
		{"sized value over its cap", size + 12, []byte{0, 0, 0, 21}, codec.ErrOverCap},
		{"sized value one byte short", size + 12, []byte{0, 0, 0, 9}, codec.ErrTruncated},
		{"sized value one byte long", size + 12, []byte{0, 0, 0, 11}, codec.ErrTrailing},
		{"optional of 2", size + 26, []byte{2}, codec.ErrBool},
		{"optional id of zero", size + 27, make([]byte, 16), codec.ErrZero},
		{"list count over its cap", size + 43, []byte{0, 4}, codec.ErrOverCap},
		{"list count of 65535", size + 43, []byte{0xff, 0xff}, codec.ErrOverCap},
		{"list count past the end", size + 43, []byte{0, 3}, codec.ErrTruncated},
		{"list count one less", size + 43, []byte{0, 1}, codec.ErrTrailing},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bad := append([]byte(nil), image...)
			copy(bad[tt.at:], tt.to)
			require.ErrorIs(t, codec.DecodeImage(new(parts), bad), tt.want)
		})
	}
}

// Positional values have one encoding: whatever decodes is what encodes.
func TestImagesAreUnique(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := sampleParts()
		p.Enum = small(rapid.ByteRange(0, 4).Draw(t, "enum"))
		p.Big = rapid.Uint64Range(0, 2).Draw(t, "big")
		p.ID = id{rapid.ByteRange(0, 3).Draw(t, "id")}
		p.I32 = rapid.Int32().Draw(t, "i32")
		p.Bytes = rapid.SliceOfN(rapid.Byte(), 0, 9).Draw(t, "bytes")
		p.Str = drawText(t, "str")
		p.Sized.Text = rapid.StringN(0, -1, 17).Draw(t, "sized")
		p.Opt = id{rapid.ByteRange(0, 1).Draw(t, "opt")}
		p.List = make([]pair, rapid.IntRange(0, 4).Draw(t, "list"))
		valid := p.Enum >= 1 && p.Enum <= 3 && p.Big != 0 && p.ID != id{} && len(p.Bytes) <= 8 && fits(p.Str, 8) &&
			fits(p.Sized.Text, 15) && len(p.List) <= 3
		image, err := codec.EncodeImage(nil, p)
		if (err == nil) != valid {
			t.Fatalf("EncodeImage says %v of a value that is valid: %v", err, valid)
		}
		if err != nil {
			return
		}
		if len(p.Bytes) == 0 {
			p.Bytes = []byte{}
		}
		if len(p.List) == 0 {
			p.List = nil
		}
		again := new(parts)
		if err := codec.DecodeImage(again, image); err != nil || !reflect.DeepEqual(again, p) {
			t.Fatalf("%+v comes back as %+v, %v", p, again, err)
		}
	})
}

// allocated is how many bytes f takes from the heap.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// lengths are what a hostile peer claims.
var lengths = []uint64{1 << 31, math.MaxUint32, 1 << 32, 1 << 63, math.MaxUint64}

// unbounded is a message whose own caps would let a length through.
type unbounded struct {
	Bytes []byte
	Text  string
	List  []pair
}

func (m *unbounded) Layout(b *codec.Body) {
	codec.Bytes(b, 1, &m.Bytes, math.MaxInt)
	codec.Str(b, 2, &m.Text, math.MaxInt)
	codec.Nested(b, 3, m, math.MaxInt)
}

func (m *unbounded) Image(i *codec.Image) {
	codec.ImgBytes(i, &m.Bytes, math.MaxInt)
	codec.ImgStr(i, &m.Text, math.MaxInt)
	codec.List[pair, *pair]{Items: &m.List, Max: math.MaxUint16, Size: 5}.Image(i)
}

func TestC02_LengthsTakeNoMemory(t *testing.T) {
	var bodies, values [][]byte // bad as TLV, and good TLV with a bad value
	for _, n := range lengths {
		bodies = append(bodies, codec.AppendVarint(nil, n)) // as a field id
		for field := range byte(3) {
			header := codec.AppendVarint([]byte{field + 1, 4}, n)
			bodies = append(bodies, header, append(header, make([]byte, 100)...))
		}
		word := []byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}
		if uint32(n) == 0 { // above what a positional length can say
			word = []byte{0x7f, 0xff, 0xff, 0xff}
		}
		for _, value := range [][]byte{word, append(make([]byte, 4), word...), append(make([]byte, 8), 0xff, 0xff)} {
			values = append(values, codec.AppendFields(nil, []codec.Field{{ID: 1}, {ID: 2}, {ID: 3, Value: value}}))
		}
	}
	taken := allocated(func() {
		for _, body := range append(bodies, values...) {
			if codec.Decode(new(unbounded), body) == nil {
				t.Errorf("%x is accepted", body)
			}
		}
		for _, body := range bodies {
			if _, err := codec.ParseFields(body); err == nil {
				t.Errorf("%x is accepted as TLV", body)
			}
		}
	})
	if limit := uint64(len(bodies)+len(values)) * 4096; taken > limit {
		t.Errorf("the refusals took %d bytes, at most %d are fine", taken, limit)
	}
}

// Nesting does not recurse further than a layout does, so depth on the wire is data.
func TestDeepNestingIsData(t *testing.T) {
	body := []byte{}
	for range 10_000 {
		if len(body) > codec.MaxFrame-16 {
			break
		}
		body = append(codec.AppendVarint([]byte{1, 4}, uint64(len(body))), body...)
	}
	fields, err := codec.ParseFields(body)
	require.NoError(t, err)
	require.Len(t, fields, 1)
	require.Error(t, codec.Decode(new(everything), body))
}

func TestEncodeImageRefuses(t *testing.T) {
	p := sampleParts()
	p.List = make([]pair, 1<<16+1)
	dst := []byte("dst")
	out, err := codec.EncodeImage(dst, p)
	require.ErrorIs(t, err, codec.ErrOverCap)
	require.Equal(t, dst, out)
	p = sampleParts()
	p.Sized.Text = strings.Repeat("s", 16)
	_, err = codec.EncodeImage(nil, p)
	require.ErrorIs(t, err, codec.ErrOverCap)
}
