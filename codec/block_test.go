package codec_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"coordinator/codec"
)

// stamped has one block, as a field and inside a positional value.
type stamped struct {
	Own   [5]byte
	Value stamp
}

type stamp struct{ Raw [5]byte }

func walkStamp(raw []byte, decode bool, v *[5]byte) {
	switch {
	case raw == nil:
	case decode:
		*v = [5]byte(raw)
	default:
		copy(raw, v[:])
	}
}

func (s *stamp) Image(i *codec.Image) { walkStamp(i.Block(len(s.Raw)), i.Decoding(), &s.Raw) }

func (m *stamped) Layout(b *codec.Body) {
	walkStamp(codec.Block(b, 1, len(m.Own)), b.Decoding(), &m.Own)
	codec.Nested(b, 2, &m.Value, len(m.Value.Raw))
}

// TestBlock holds a block to the bytes and the faults of a value that is walked in parts.
func TestBlock(t *testing.T) {
	m := &stamped{Own: [5]byte{1, 2, 3, 4, 5}, Value: stamp{[5]byte{6, 7, 8, 9, 10}}}
	body, err := codec.Encode([]byte("x"), m)
	require.NoError(t, err)
	require.Equal(t, []byte{'x', 1, 4, 5, 1, 2, 3, 4, 5, 2, 4, 5, 6, 7, 8, 9, 10}, body)
	var again stamped
	require.NoError(t, codec.Decode(&again, body[1:]))
	require.Equal(t, *m, again)
	for _, tt := range []struct {
		size int // -1: no field
		want error
	}{{-1, codec.ErrMissing}, {0, codec.ErrTruncated}, {4, codec.ErrTruncated}, {6, codec.ErrOverCap}, {200, codec.ErrOverCap}} {
		for id := range uint32(2) {
			fields := []codec.Field{{ID: 1, Value: make([]byte, 5)}, {ID: 2, Value: make([]byte, 5)}}
			if fields[id].Value = make([]byte, max(tt.size, 0)); tt.size < 0 {
				fields = append(fields[:id], fields[id+1:]...)
			}
			err := codec.Decode(new(stamped), codec.AppendFields(nil, fields))
			require.ErrorIs(t, err, tt.want, "field %d of %d bytes", id+1, tt.size)
			var fault *codec.Error
			require.ErrorAs(t, err, &fault)
			require.Equal(t, int(id)+1, fault.Field)
		}
	}
}

// loose names no field of its own.
type loose struct{ All []codec.Field }

func (m *loose) Layout(b *codec.Body) { b.Unknown(&m.All) }

// TestBodiesSplitAlike holds the walk over a whole body to the reading of its fields one by one,
// for heads of every form.
func TestBodiesSplitAlike(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var body []byte
		for range rapid.IntRange(0, 5).Draw(t, "fields") {
			head := []byte{byte(rapid.IntRange(0, 30).Draw(t, "id")), 4}
			size := rapid.SampledFrom([]int{0, 1, 2, 0x7e, 0x7f, 0x80, 0x81, 0x100, 0x3fff, 0x4000}).Draw(t, "size")
			body = append(codec.AppendVarint(append(body, head...), uint64(size)), make([]byte, size)...)
		}
		if len(body) > 0 {
			at := rapid.IntRange(0, min(8, len(body)-1)).Draw(t, "at")
			body[at] ^= rapid.SampledFrom([]byte{0, 0, 0x80, 1, 0xff}).Draw(t, "damage")
			body = body[:len(body)-rapid.SampledFrom([]int{0, 0, 0, 1}).Draw(t, "cut")]
		}
		want, refused := codec.ParseFields(body)
		var got loose
		err := codec.Decode(&got, body)
		require.Equal(t, refused == nil, err == nil, "%v, and %v", refused, err)
		if err == nil {
			require.Equal(t, want, got.All)
		}
	})
}
