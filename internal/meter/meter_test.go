package meter

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestBuckets(t *testing.T) {
	h := New(1, 10, 100)
	for _, v := range []uint64{0, 1, 2, 10, 11, 100, 101, 1 << 40} {
		h.Observe(v)
	}
	s := h.Snapshot()
	require.Equal(t, []uint64{2, 2, 2}, s.Counts)
	require.Equal(t, uint64(8), s.Count)
	require.Equal(t, uint64(0+1+2+10+11+100+101+1<<40), s.Sum)
	require.Equal(t, []uint64{1, 10, 100}, s.Bounds)
	require.Panics(t, func() { New(1, 1) })
	require.NotPanics(t, func() { (*Histogram)(nil).Observe(1) })
}

func TestDurations(t *testing.T) {
	h := NewDurations(time.Millisecond, time.Second)
	h.Took(time.Millisecond)
	h.Took(-time.Second)
	h.Took(2 * time.Second)
	s := h.Snapshot()
	require.Equal(t, []uint64{2, 0}, s.Counts)
	require.Equal(t, uint64(3), s.Count)
	require.Equal(t, uint64(2*time.Second+time.Millisecond), s.Sum)
	for _, bounds := range [][]time.Duration{FlushBounds, WorkBounds} {
		require.NotPanics(t, func() { NewDurations(bounds...) })
	}
}

// A snapshot agrees with a list of all that was observed.
func TestAgainstAList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := New(3, 7, 20)
		values := rapid.SliceOf(rapid.Uint64Range(0, 30)).Draw(t, "values")
		want := Snapshot{Counts: make([]uint64, 3)}
		for _, v := range values {
			h.Observe(v)
			want.Count++
			want.Sum += v
			switch {
			case v <= 3:
				want.Counts[0]++
			case v <= 7:
				want.Counts[1]++
			case v <= 20:
				want.Counts[2]++
			}
		}
		want.Bounds = []uint64{3, 7, 20}
		require.Equal(t, want, h.Snapshot())
	})
}

func TestNothingIsLostOrAllocated(t *testing.T) {
	h := New(10, 1000)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range uint64(10_000) {
				h.Observe(i)
			}
		})
	}
	wg.Wait()
	require.Equal(t, uint64(40_000), h.Snapshot().Count)
	require.Zero(t, testing.AllocsPerRun(100, func() { h.Observe(5) }))
}

func BenchmarkObserve(b *testing.B) {
	h := NewDurations(FlushBounds...)
	b.ReportAllocs()
	for b.Loop() {
		h.Took(3 * time.Millisecond)
	}
}
