package store_test

import (
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"coordinator/frames"
	"coordinator/internal/clock"
	"coordinator/server/store"
	"coordinator/server/store/simfs"
)

// requireTrimmedTo checks both readers of the log one before, at and one after the cut that
// events are retained behind.
func (b *bed) requireTrimmedTo(first frames.EventCut) {
	b.t.Helper()
	require.EqualValues(b.t, first, b.s.FirstRetained())
	head := b.s.State().Head
	var gone *store.RetentionError
	if first > 1 {
		_, err := b.s.Replay(first-2, head)
		require.ErrorAs(b.t, err, &gone, "one before")
		require.EqualValues(b.t, first, gone.First)
		_, err = b.s.Events(first-2, 1, 1)
		require.ErrorAs(b.t, err, &gone, "one before")
	}
	for _, after := range []frames.EventCut{first - 1, min(first, head)} {
		r := b.replay(after, head)
		events, err := readPages(r, 0, everything, 1000, 1<<20)
		require.NoError(b.t, err)
		r.Close()
		same, err := b.s.Events(after, 10_000, 1<<24)
		require.NoError(b.t, err)
		require.Equal(b.t, texts(same), texts(events))
	}
}

// logBytes is what the files of the log take.
func (b *bed) logBytes() (n int64) {
	for _, path := range b.segments() {
		data, err := b.fs.ReadFile(path)
		require.NoError(b.t, err)
		n += int64(len(data))
	}
	return n
}

// TestALoweredBoundIsKeptAtOnce lowers the bound step by step, at each byte where it
// matters, on a store that gets no commit meanwhile.
func TestALoweredBoundIsKeptAtOnce(t *testing.T) {
	const file = 8192
	b := newBed(t, t.TempDir())
	b.mixed(110)
	b.checkpoint()
	spans := b.records()
	open := uint64(spans[len(spans)-1].to)
	segments := uint64(len(b.segments()))
	require.Greater(t, segments, uint64(5))
	lowest := frames.EventCut(1)
	for n := segments; n >= 1; n-- { // sealed segments, each counting whole, and the open one
		edge := open + (n-1)*file
		for _, bound := range []uint64{edge + 1, edge, edge - 1} {
			want := n
			if bound > edge {
				want = min(n+1, segments)
			}
			b.s.SetEventBytes(bound)
			b.checkpoint()
			require.Len(t, b.segments(), int(want), "bound %d, open %d", bound, open)
			stats, err := b.s.Stats()
			require.NoError(t, err)
			require.EqualValues(t, want*file, b.logBytes())
			require.Equal(t, b.logBytes(), stats.LogBytes)
			require.Less(t, b.logBytes(), int64(bound)+2*file)
			require.GreaterOrEqual(t, frames.EventCut(b.s.FirstRetained()), lowest)
			lowest = frames.EventCut(b.s.FirstRetained())
			b.requireTrimmedTo(lowest)
			more, err := b.s.CheckpointStep()
			require.NoError(t, err)
			require.False(t, more)
		}
	}
	require.Len(t, b.segments(), 1)
	want := b.state()
	b.crash(2)
	b.open()
	require.Equal(t, want, b.state())
	b.requireTrimmedTo(lowest)
	// A higher bound brings nothing back, and keeps what comes.
	b.s.SetEventBytes(1 << 30)
	b.mixed(40)
	b.checkpoint()
	b.requireTrimmedTo(lowest)
	require.NoError(t, b.s.Close())
}

// TestRetentionStopsAtTheCheckpoint: what state.db does not have yet stays, however small
// the bound is.
func TestRetentionStopsAtTheCheckpoint(t *testing.T) {
	b := newBed(t, t.TempDir())
	b.s.SetEventBytes(1)
	b.mixed(20)
	more, err := b.s.CheckpointStep() // begun with 20 commits, ends after 60
	require.NoError(t, err)
	require.True(t, more)
	applied := b.s.State().Head
	b.mixed(40)
	for more {
		more, err = b.s.CheckpointStep()
		require.NoError(t, err)
	}
	first := frames.EventCut(b.s.FirstRetained())
	require.Greater(t, first, frames.EventCut(1))
	require.LessOrEqual(t, first, applied+1)
	require.Greater(t, len(b.segments()), 2)
	want := b.state()
	b.crash(4)
	b.open()
	require.Equal(t, want, b.state())
	b.requireTrimmedTo(first)
	require.NoError(t, b.s.Close())
}

// TestAnIdleStoreTrims is on the real disk, with the goroutine that checkpoints: a bound
// that is lowered, and a replay that is closed, free the disk without any commit.
func TestAnIdleStoreTrims(t *testing.T) {
	fake := clock.NewManual(clock.Reading{Wall: testTime})
	b := &bed{t: t, dir: t.TempDir(), opts: store.Options{SegmentBytes: 64 << 10, UnsafeNoSync: true, Clock: fake}}
	require.NoError(t, store.Create(b.dir, store.Genesis{CoordinatorID: testID, Rows: []store.Row{retention()}, CreatedAt: testTime}, b.opts))
	b.open()
	for i := range uint64(600) {
		b.put(frames.KindObjective, i+1, 1, strings.Repeat("p", 900), false)
	}
	segments := func() int {
		fake.Advance(time.Minute)
		b.s.Maintain()
		stats, err := b.s.Stats()
		require.NoError(t, err)
		return stats.LogSegments
	}
	disk := func() (n int64) {
		paths, err := filepath.Glob(filepath.Join(b.dir, "log", "0*.seg"))
		require.NoError(t, err)
		for _, path := range paths {
			var st unix.Stat_t
			if err := unix.Stat(path, &st); err == nil { // else it has just gone
				n += st.Blocks * 512
			}
		}
		return n
	}
	checkpointed := func() bool {
		segments()
		stats, err := b.s.Stats()
		require.NoError(t, err)
		return stats.StateBytes > 500<<10 // all in one transaction
	}
	require.Eventually(t, checkpointed, time.Minute, time.Millisecond)
	before := disk()
	require.Greater(t, before, int64(8*64<<10))

	r := b.replay(1, 500)
	b.s.SetEventBytes(3 * 64 << 10)
	segments()
	require.EqualValues(t, 1, b.s.FirstRetained())
	total, err := r.Count(everything)
	require.NoError(t, err)
	require.EqualValues(t, 499, total.Events)
	r.Close()
	falls := func(to int64) func() bool {
		return func() bool { segments(); return disk() <= to }
	}
	require.Eventually(t, falls(5*64<<10), time.Minute, time.Millisecond)

	b.s.SetEventBytes(1)
	require.Eventually(t, falls(2*64<<10-1), time.Minute, time.Millisecond)
	require.Equal(t, 1, segments())
	require.NoError(t, b.s.Close())
	b.open()
	require.NoError(t, b.s.Close())
}

// TestANewBoundWaitsForNoTimer: the clock stands still, and no checkpoint is due.
func TestANewBoundWaitsForNoTimer(t *testing.T) {
	b := &bed{t: t, dir: t.TempDir(), opts: store.Options{
		SegmentBytes: 64 << 10, UnsafeNoSync: true, Clock: clock.NewManual(clock.Reading{Wall: testTime}),
	}}
	require.NoError(t, store.Create(b.dir, store.Genesis{CoordinatorID: testID, Rows: []store.Row{retention()}, CreatedAt: testTime}, b.opts))
	b.open()
	for i := range uint64(200) {
		b.put(frames.KindObjective, i+1, 1, strings.Repeat("p", 900), false)
	}
	b.s.Maintain()
	require.EqualValues(t, 1, b.s.FirstRetained())
	b.s.SetEventBytes(1)
	require.Eventually(t, func() bool { b.s.Maintain(); return b.s.FirstRetained() > 100 }, time.Minute, time.Millisecond)
	require.NoError(t, b.s.Close())
}

// scarceBed is a store whose disk has a limit, with a segment size that is above the one
// for a scarce disk.
func scarceBed(t *testing.T, reserve uint64) *bed {
	fs := simfs.New()
	b := &bed{t: t, dir: t.TempDir(), fs: fs, opts: store.Options{
		FS: fs, SegmentBytes: 4 << 20, Manual: true, UnsafeNoSync: true, Rand: rand.NewChaCha8([32]byte{1}),
		FreeBytes: fs.Free, ReserveBytes: reserve,
	}}
	require.NoError(t, store.Create(b.dir, store.Genesis{CoordinatorID: testID, Rows: []store.Row{retention()}, CreatedAt: testTime}, b.opts))
	b.open()
	return b
}

// TestSegmentsLeaveTheReserveAlone: a whole segment is made only when the reserve is there
// afterwards; then small ones follow until the last byte, and whole ones once there is room.
func TestSegmentsLeaveTheReserveAlone(t *testing.T) {
	const reserve = 6 << 20
	b := scarceBed(t, reserve)
	used := b.logBytes()
	require.EqualValues(t, 4<<20, used)
	b.fs.Limit(int(used) + 4<<20 + reserve) // exactly one more whole one
	sizes := func() (n []int) {
		for _, path := range b.segments() {
			data, err := b.fs.ReadFile(path)
			require.NoError(t, err)
			n = append(n, len(data))
		}
		return n
	}
	id := uint64(0)
	write := func(segments int) {
		for len(b.segments()) < segments {
			id++
			b.put(frames.KindObjective, id, 1, strings.Repeat("p", 200<<10), false)
		}
	}
	write(2)
	require.Equal(t, []int{4 << 20, 4 << 20}, sizes())
	require.EqualValues(t, reserve, b.fs.Free())
	write(4)
	require.Equal(t, []int{4 << 20, 4 << 20, 1 << 20, 1 << 20}, sizes(), "what lives on the reserve is small")
	require.EqualValues(t, reserve-2<<20, b.fs.Free())
	b.fs.Limit(int(used) + 64<<20)
	write(5)
	require.Equal(t, []int{4 << 20, 4 << 20, 1 << 20, 1 << 20, 4 << 20}, sizes())
	want := b.state()
	require.NoError(t, b.s.Close())
	require.NoError(t, store.Verify(b.dir, b.opts))
	b.open()
	require.Equal(t, want, b.state())
	b.s.SetEventBytes(1)
	b.checkpoint()
	require.NoError(t, b.s.Close())
}

// TestTheReserveIsUsedToItsEnd: commits go on until no small segment fits any more, the
// failure is that of a full disk, and what was acknowledged is there once there is room.
func TestTheReserveIsUsedToItsEnd(t *testing.T) {
	b := scarceBed(t, 6<<20)
	b.fs.Limit(int(b.logBytes()) + 5<<20 + 100)
	var err error
	for id := uint64(1); err == nil; id++ {
		tx := b.begin(ref(frames.KindObjective, id))
		tx.Emit(1, eventID(id), makeRow(frames.KindObjective, id, 1, strings.Repeat("p", 100<<10), false))
		_, err = b.s.Commit(tx, testTime)
	}
	acknowledged := b.state()
	require.ErrorIs(t, err, store.ErrOutcomeUnknown)
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.EqualValues(t, 100, b.fs.Free(), "all is used, and a segment that did not fit gives its bytes back")
	require.Len(t, b.segments(), 6)
	b.crash(3)
	b.open()
	require.Equal(t, acknowledged, b.state())
	require.NoError(t, b.s.Close())
}

// TestASegmentMadeAheadGivesWay: somebody else fills the disk while a segment is made ahead.
// It stops at the reserve, leaves nothing behind, and commits go on in a small one.
func TestASegmentMadeAheadGivesWay(t *testing.T) {
	for name, fault := range map[string]func(fs *simfs.FS, left int){
		"the reserve is reached": func(fs *simfs.FS, left int) { fs.Limit(left + 3<<20) },
		"the disk is full":       func(fs *simfs.FS, left int) { fs.Limit(left + 1<<20) },
	} {
		t.Run(name, func(t *testing.T) {
			b := scarceBed(t, 2<<20)
			if strings.Contains(name, "full") {
				b.opts.ReserveBytes = 0
			}
			require.NoError(t, b.s.Close())
			used := b.logBytes()
			var created, removed atomic.Bool
			b.fs.Hook(func(op simfs.Op) error {
				switch op.Kind {
				case "create":
					created.Store(true)
				case "remove":
					removed.Store(true)
				}
				return nil
			})
			b.opts.Manual = false
			b.opts.FreeBytes = func() uint64 {
				if created.Load() { // after the decision
					fault(b.fs, int(used))
				}
				return b.fs.Free()
			}
			b.open()
			require.Eventually(t, removed.Load, time.Minute, time.Millisecond)
			require.Eventually(t, func() bool { return b.logBytes() == used }, time.Minute, time.Millisecond)
			b.fs.Hook(nil)
			created.Store(false)
			b.fs.Limit(0)
			for id := uint64(1); len(b.segments()) < 3; id++ {
				b.put(frames.KindObjective, id, 1, strings.Repeat("p", 200<<10), false)
			}
			require.NoError(t, b.s.Close())
		})
	}
}
