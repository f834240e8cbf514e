package codec_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/codec"
)

// letter is a message with a nested value and fields of any kind.
type letter struct {
	Name  string
	Data  []byte
	Pair  twin
	Pairs []twin
	More  []codec.Field
}

type twin struct{ A, B uint64 }

func (p *twin) Image(i *codec.Image) {
	codec.ImgU64(i, &p.A)
	codec.ImgU64(i, &p.B)
}

func (m *letter) Layout(b *codec.Body) {
	codec.Bytes(b, 1, &m.Data, 1<<20)
	codec.Nested(b, 2, &m.Pair, 16)
	codec.OptList(b, 3, &m.Pairs, 40_000, 16)
	codec.Str(b, 4, &m.Name, 100)
	b.Unknown(&m.More)
}

// TestWalksTakeNoMemory holds walks to what they return.
func TestWalksTakeNoMemory(t *testing.T) {
	m := &letter{Data: make([]byte, 600), Pair: twin{1, 2}}
	body, err := codec.Encode(nil, m)
	require.NoError(t, err)
	image, err := codec.EncodeImage(nil, &m.Pair)
	require.NoError(t, err)
	room := make([]byte, 0, 4096)
	var into letter
	for name, walk := range map[string]func() error{
		"encode":       func() error { _, err := codec.Encode(room, m); return err },
		"frame":        func() error { _, err := codec.AppendFrame(room, 9, m); return err },
		"decode":       func() error { return codec.Decode(&into, body) },
		"encode image": func() error { _, err := codec.EncodeImage(room, &m.Pair); return err },
		"decode image": func() error { return codec.DecodeImage(&into.Pair, image) },
	} {
		// A collection may empty the pool between two runs; it does not every time.
		least := 100.0
		for range 20 {
			least = min(least, testing.AllocsPerRun(50, func() {
				if err := walk(); err != nil {
					t.Error(err)
				}
			}))
		}
		require.Zero(t, least, name)
	}
	least := testing.AllocsPerRun(50, func() { codec.Encode(nil, m) }) //nolint:errcheck // as above
	require.LessOrEqual(t, least, 2.0, "what it returns, and now and then a stage")
}

// TestAWalkLeavesNothingBehind uses walkers again after walks of every outcome.
func TestAWalkLeavesNothingBehind(t *testing.T) {
	full := &letter{Name: "n", Data: make([]byte, 2000), Pair: twin{1, 2}, Pairs: []twin{{3, 4}, {5, 6}}, More: []codec.Field{{ID: 9, Value: []byte("x")}, {ID: 1000, Value: []byte("y")}}}
	body, err := codec.Encode(nil, full)
	require.NoError(t, err)
	plain := &letter{Data: []byte{}}
	least, err := codec.Encode(nil, plain)
	require.NoError(t, err)
	for range 100 {
		var got letter
		require.NoError(t, codec.Decode(&got, body))
		require.Equal(t, *full, got)
		for _, n := range []int{1, len(body) / 2, len(body) - 1} {
			require.Error(t, codec.Decode(new(letter), body[:n]))
		}
		require.Error(t, codec.Decode(new(letter), append(body[:len(body):len(body)], body...)), "every field twice")
		_, err := codec.Encode(nil, &letter{Name: "\xff"})
		require.Error(t, err)
		var empty letter
		require.NoError(t, codec.Decode(&empty, least))
		require.Equal(t, *plain, empty, "nothing of an earlier body")
		again, err := codec.Encode(nil, &got)
		require.NoError(t, err)
		require.Equal(t, body, again)
	}
}

// TestEncodeAppends holds every way of encoding to leaving what is there before, whatever
// room there is behind it.
func TestEncodeAppends(t *testing.T) {
	m := &letter{Data: make([]byte, 700), Pairs: make([]twin, 33_000)}
	whole, err := codec.Encode(nil, m)
	require.NoError(t, err)
	frame, err := codec.AppendFrame(nil, 7, m)
	require.NoError(t, err)
	require.Equal(t, whole, frame[codec.HeaderSize:])
	image, err := codec.EncodeImage(nil, &twin{7, 8})
	require.NoError(t, err)
	for _, room := range []int{0, 1, 100, 511, 512, 600, 2 << 20} {
		dst := append(make([]byte, 0, 3+room), "abc"...)
		got, err := codec.Encode(dst, m)
		require.NoError(t, err)
		require.Equal(t, append([]byte("abc"), whole...), got)
		got, err = codec.AppendFrame(dst, 7, m)
		require.NoError(t, err)
		require.Equal(t, append([]byte("abc"), frame...), got)
		got, err = codec.EncodeImage(dst, &twin{7, 8})
		require.NoError(t, err)
		require.Equal(t, append([]byte("abc"), image...), got)

		got, err = codec.AppendFrame(dst, 7, &letter{Data: make([]byte, 1<<20)})
		require.ErrorIs(t, err, codec.ErrFrameTooLarge)
		require.Equal(t, "abc", string(got))
		got, err = codec.Encode(dst, &letter{Name: "\xff"})
		require.ErrorIs(t, err, codec.ErrUTF8)
		require.Equal(t, "abc", string(got))
	}
	again, err := codec.Encode(nil, m)
	require.NoError(t, err)
	whole[0] ^= 1
	require.NotEqual(t, whole, again, "a result is the caller's alone")
}

// TestLengthsOfNested holds the header of a nested value to the least form at every length.
func TestLengthsOfNested(t *testing.T) {
	for _, n := range []int{1, 7, 8, 1023, 1024, 32_000} {
		m := &letter{Pairs: make([]twin, n)}
		body, err := codec.Encode(nil, m)
		require.NoError(t, err)
		canonical, err := codec.Canonical(body)
		require.NoError(t, err)
		require.Equal(t, canonical, body)
		var got letter
		require.NoError(t, codec.Decode(&got, body))
		require.Len(t, got.Pairs, n)
	}
}

func TestOptList(t *testing.T) {
	empty := append([]byte{1, 4, 0, 2, 4, 16}, make([]byte, 16)...)
	empty = append(empty, 3, 4, 2, 0, 0, 4, 4, 0)
	got := letter{Pairs: make([]twin, 1)}
	require.NoError(t, codec.Decode(&got, empty))
	require.Nil(t, got.Pairs, "an empty list stands for absent")
	again, err := codec.Encode(nil, &got)
	require.NoError(t, err)
	require.NotContains(t, string(again), "\x03\x04")
	for name, tail := range map[string][]byte{
		"cut":      {3, 4, 2, 0, 1},
		"trailing": {3, 4, 3, 0, 0, 0},
		"count":    {3, 4, 2, 0xff, 0xff},
	} {
		require.Error(t, codec.Decode(new(letter), append(append([]byte{1, 4, 0, 2, 4, 16}, make([]byte, 16)...), append(tail, 4, 4, 0)...)), name)
	}
	_, err = codec.Encode(nil, &letter{Pairs: make([]twin, 40_001)})
	require.ErrorIs(t, err, codec.ErrOverCap)
}
