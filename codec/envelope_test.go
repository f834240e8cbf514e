package codec_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"testing"
	"testing/iotest"

	"coordinator/codec"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestReadHeader(t *testing.T) {
	for _, tt := range []struct {
		name   string
		stream []byte
		length uint32
		typ    uint8
		want   error
		taken  int
	}{
		{"nothing", nil, 0, 0, io.EOF, 0},
		{"half a length", []byte{0, 0}, 0, 0, io.ErrUnexpectedEOF, 2},
		{"length zero", []byte{0, 0, 0, 0, 9}, 0, 0, codec.ErrFrameTooLarge, 4},
		{"length one", []byte{0, 0, 0, 1, 9, 7}, 1, 9, nil, 5},
		{"length of 1 MiB", []byte{0, 0x10, 0, 0, 9, 7}, 1 << 20, 9, nil, 5},
		{"length of 1 MiB and one", []byte{0, 0x10, 0, 1, 9, 7}, 1<<20 + 1, 0, codec.ErrFrameTooLarge, 4},
		{"length of 2 GiB", []byte{0x80, 0, 0, 0, 9}, 1 << 31, 0, codec.ErrFrameTooLarge, 4},
		{"length of 4 GiB less one", []byte{0xff, 0xff, 0xff, 0xff, 9}, math.MaxUint32, 0, codec.ErrFrameTooLarge, 4},
		{"no type", []byte{0, 0, 0, 5}, 5, 0, io.ErrUnexpectedEOF, 4},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := bytes.NewReader(tt.stream)
			var header [codec.HeaderSize]byte
			length, typ, err := codec.ReadHeader(iotest.OneByteReader(in), &header)
			require.Equal(t, tt.want, err)
			require.Equal(t, tt.taken, len(tt.stream)-in.Len(), "bytes taken")
			require.Equal(t, tt.length, length)
			require.Equal(t, tt.typ, typ)
		})
	}
}

func TestReadHeaderReturnsTheReadersError(t *testing.T) {
	broken := errors.New("broken")
	var header [codec.HeaderSize]byte
	for _, got := range [][]byte{nil, {0, 0, 0, 2}} {
		_, _, err := codec.ReadHeader(io.MultiReader(bytes.NewReader(got), iotest.ErrReader(broken)), &header)
		require.ErrorIs(t, err, broken)
	}
}

func TestC02_ReadHeaderAllocatesNothing(t *testing.T) {
	for _, n := range []uint32{0, 1, codec.MaxFrame, codec.MaxFrame + 1, 1 << 31, math.MaxUint32} {
		stream := binary.BigEndian.AppendUint32(nil, n)
		stream = append(stream, 0x10)
		in := bytes.NewReader(stream)
		header := new([codec.HeaderSize]byte)
		allocs := testing.AllocsPerRun(100, func() {
			in.Reset(stream)
			_, _, _ = codec.ReadHeader(in, header)
		})
		require.Zero(t, allocs, "length %d", n)
	}
}

// blob is a message of one field.
type blob []byte

func (m blob) Layout(b *codec.Body) { codec.Bytes(b, 1, (*[]byte)(&m), math.MaxInt) }

func TestAppendFrame(t *testing.T) {
	frame, err := codec.AppendFrame([]byte("before"), 0x42, blob("value"))
	require.NoError(t, err)
	require.Equal(t, "before\x00\x00\x00\x09\x42\x01\x04\x05value", string(frame))

	largest := blob(make([]byte, codec.MaxFrame-1-2-3))
	frame, err = codec.AppendFrame(nil, 1, largest)
	require.NoError(t, err)
	require.Len(t, frame, 4+codec.MaxFrame)
	var header [codec.HeaderSize]byte
	length, _, err := codec.ReadHeader(bytes.NewReader(frame), &header)
	require.NoError(t, err)
	require.EqualValues(t, codec.MaxFrame, length)

	dst := []byte("dst")
	out, err := codec.AppendFrame(dst, 1, append(largest, 0))
	require.ErrorIs(t, err, codec.ErrFrameTooLarge)
	require.Equal(t, dst, out)
}

func TestVarints(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Uint64().Draw(t, "n") >> rapid.IntRange(0, 63).Draw(t, "shift")
		// A field's length is a varint whose value shows in how much may follow.
		body := codec.AppendVarint([]byte{1, 4}, n)
		want, size := binary.Uvarint(body[2:])
		if want != n || size != len(body)-2 {
			t.Fatalf("%d is written as %x", n, body[2:])
		}
		if n > 4096 {
			if _, err := codec.ParseFields(body); err == nil {
				t.Fatalf("length %d past the end is accepted", n)
			}
			return
		}
		fields, err := codec.ParseFields(append(body, make([]byte, n)...))
		if err != nil || len(fields[0].Value) != int(n) {
			t.Fatalf("length %d: %v", n, err)
		}
	})
}

// Canonical is idempotent, and only moves fields.
func TestCanonical(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ids := rapid.SliceOfNDistinct(rapid.Uint32Range(1, 1<<31-1), 0, 20, rapid.ID).Draw(t, "ids")
		var fields []codec.Field
		for _, id := range ids {
			fields = append(fields, codec.Field{ID: id, Value: rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(t, "value")})
		}
		body := codec.AppendFields(nil, fields)
		canonical, err := codec.Canonical(body)
		if err != nil || len(canonical) != len(body) {
			t.Fatalf("%d bytes become %d, %v", len(body), len(canonical), err)
		}
		sorted, err := codec.ParseFields(canonical)
		if err != nil || len(sorted) != len(fields) {
			t.Fatalf("%d fields become %d, %v", len(fields), len(sorted), err)
		}
		if again, err := codec.Canonical(canonical); err != nil || !bytes.Equal(again, canonical) {
			t.Fatalf("canonical %x has canonical %x, %v", canonical, again, err)
		}
	})
}
