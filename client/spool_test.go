package client

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"coordinator/frames"
)

// TestSpoolGivesBackWhatWasStaged stages images of every size, in memory and in a file, and
// reads them whole and in pieces.
func TestSpoolGivesBackWhatWasStaged(t *testing.T) {
	t.Parallel()
	const usual, most = 3, spoolMemory / frames.MaxTypedPayload // the bound of memory takes time to reach
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		s := newSpool(dir, 128<<20)
		defer s.close()
		var want [][]byte
		stage := func(payload int) {
			image := bytes.Repeat([]byte{byte(len(want))}, recordHead+payload)
			binary.BigEndian.PutUint32(image[recordHead-4:], uint32(payload))
			require.NoError(t, s.add(image))
			want = append(want, image)
		}
		for _, payload := range rapid.SliceOfN(rapid.IntRange(0, 4<<10), 0, 20).Draw(t, "small") {
			stage(payload)
		}
		for range rapid.SampledFrom([]int{0, 0, 0, 0, usual, usual, usual, usual, usual, usual, most - 2, most + 9}).Draw(t, "large") {
			stage(frames.MaxTypedPayload)
		}
		whole := bytes.Join(want, nil)
		require.Equal(t, int64(len(whole)), s.size)
		require.Equal(t, len(whole)+spoolPiece*len(want) >= spoolMemory, s.file != nil)
		for range 2 { // staged images can be read again
			i := 0
			require.NoError(t, s.each(func(image []byte) error {
				require.True(t, bytes.Equal(want[i], image), "image %d is another one", i)
				i++
				return nil
			}))
			require.Equal(t, len(want), i)
			var pieces []byte
			require.NoError(t, s.all(func(p []byte) error { pieces = append(pieces, p...); return nil }))
			require.True(t, bytes.Equal(whole, pieces))
		}
	})
}

func TestSpoolHoldsNoMoreThanItsBound(t *testing.T) {
	s := newSpool(t.TempDir(), 100)
	require.NoError(t, s.add(make([]byte, 100)))
	require.ErrorContains(t, s.add(make([]byte, 1)), "100 bytes")
	require.NoError(t, s.close())
	require.Error(t, s.all(func([]byte) error { return nil }), "it is closed")
}
