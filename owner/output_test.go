package owner

import (
	"crypto/sha256"
	"os"
	"path/filepath"
	"testing"
	"time"

	"coordinator/frames"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// However the bytes come and whenever they are taken: the ranges cover all of them once, and
// the file holds what the cap allows.
func TestOutputRangesCoverEverything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "output")
		require.NoError(t, err)
		defer os.RemoveAll(dir)
		require.NoError(t, os.Mkdir(outputPath(dir, frames.BindingID{})[:len(dir)+1+len(outputDir)], 0o700))
		limit := rapid.SampledFrom([]uint64{1, 100, 70_000, 1 << 30}).Draw(t, "cap")
		o, err := createOutput(dir, frames.BindingID{1}, limit)
		require.NoError(t, err)
		var all []byte
		var got []frames.OutputRange
		for range rapid.IntRange(1, 12).Draw(t, "writes") {
			p := make([]byte, rapid.SampledFrom([]int{1, 10, rangeBytes - 1, rangeBytes, 3*rangeBytes + 5}).Draw(t, "n"))
			for i := range p {
				p[i] = byte(len(all) + i)
			}
			all = append(all, p...)
			full := o.write(p)
			require.Equal(t, full, len(o.ranges) > 0)
			if rapid.Bool().Draw(t, "take") {
				r, _ := o.take()
				got = append(got, r...)
			}
		}
		r, _ := o.take()
		got = append(got, r...)
		require.NoError(t, o.sync())
		at := uint64(0)
		for _, r := range got {
			require.Equal(t, at+1, r.First)
			require.Equal(t, r.Last-at, r.ByteCount)
			require.LessOrEqual(t, r.ByteCount, uint64(rangeBytes))
			require.Equal(t, sha256.Sum256(all[at:r.Last]), r.Content)
			at = r.Last
		}
		require.EqualValues(t, len(all), at)
		stored, _, end := o.state()
		require.Equal(t, min(limit, uint64(len(all))), stored)
		require.False(t, end)
		require.NoError(t, o.finish())
		file, err := os.ReadFile(outputPath(dir, frames.BindingID{1}))
		require.NoError(t, err)
		require.Equal(t, all[:stored], file)
		_, err = createOutput(dir, frames.BindingID{1}, limit)
		require.ErrorIs(t, err, os.ErrExist, "a file is never written twice")
	})
}

// A process that writes faster than its facts become durable waits: what is kept of it here is
// bounded.
func TestWritingWaitsForRoom(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, outputDir), 0o700))
	o, err := createOutput(dir, frames.BindingID{1}, 1)
	require.NoError(t, err)
	chunk := make([]byte, rangeBytes)
	for range maxRanges {
		require.True(t, o.write(chunk))
	}
	written := make(chan struct{})
	go func() {
		defer close(written)
		o.write(chunk)
	}()
	require.Never(t, func() bool {
		select {
		case <-written:
			return true
		default:
			return false
		}
	}, 50*time.Millisecond, 5*time.Millisecond)
	ranges, _ := o.take()
	require.Len(t, ranges, maxRanges)
	<-written
	require.NoError(t, o.finish())
}

func TestBellsAreNotTitles(t *testing.T) {
	long := make([]byte, maxCommand)
	for _, tt := range []struct {
		text string
		want int
	}{
		{"\a", 1}, {"a\ab\a", 2}, {"\x1b]0;title\a", 0}, {"\x1b]0;title\x1b\\\a", 1}, {"\x1b]0;a\a\a", 1},
		{"\x1b[31m\a", 1}, {"\x1b\a", 1}, {"\x1b]x\x18\a", 1}, {"\x1b]x\x1b\x1b\\\a", 1},
		{"\x1b]" + string(long) + "x\a", 1}, // a command that nobody ended
	} {
		var whole, bytewise bells
		require.Equal(t, tt.want, whole.count([]byte(tt.text)), "%.20q", tt.text)
		n := 0
		for i := range tt.text {
			n += bytewise.count([]byte{tt.text[i]})
		}
		require.Equal(t, tt.want, n, "%.20q in pieces", tt.text)
	}
}
