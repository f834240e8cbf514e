package store_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"coordinator/codec"
	"coordinator/frames"
	"coordinator/server/store"
	"coordinator/server/store/simfs"
)

func objectives(kind frames.ObjectKind, _ frames.KeyID) bool { return kind == frames.KindObjective }

func operationsOf(p byte) store.Visible {
	return func(kind frames.ObjectKind, principal frames.KeyID) bool {
		return kind == frames.KindOperation && principal == frames.KeyID{p}
	}
}

// mixed fills a bed with n commits over several segments: an objective, an operation of one
// of three principals, a hidden sequence and a fact each, which are four sequences.
func (b *bed) mixed(n uint64) {
	b.t.Helper()
	for range n {
		st := b.s.State()
		id := uint64(st.Head)/4 + 1
		tx := b.begin()
		tx.Emit(frames.EventObjectiveChanged, eventID(id), makeRow(frames.KindObjective, id, 1, strings.Repeat("o", int(id%50)*8), id%2 == 0))
		op := makeRow(frames.KindOperation, id, 1, "operation", false)
		op.Principal = frames.KeyID{byte(id % 3)}
		op.Annex = []byte("annex")
		tx.Emit(frames.EventOperationChanged, eventID(id), op)
		tx.Hidden()
		tx.EmitEvent(frames.ReplayEvent{ID: eventID(id), Kind: frames.EventSourceGap, Object: ref(frames.KindBinding, id), Revision: 1, Schema: 1, Payload: []byte("fact")})
		b.commit(tx)
	}
}

func (b *bed) replay(after, through frames.EventCut) *store.Replay {
	b.t.Helper()
	r, err := b.s.Replay(after, through)
	require.NoError(b.t, err)
	return r
}

// sameImages holds a page's images against its events.
func sameImages(r *store.Replay, page []store.Event, after frames.EventCut, done bool, visible store.Visible, maxEvents, maxBytes int) error {
	want := []byte("before")
	for i := range page {
		var err error
		if want, err = codec.EncodeImage(want, &page[i].ReplayEvent); err != nil {
			return err
		}
	}
	got, n, last, end, err := r.Images([]byte("before"), after, visible, maxEvents, maxBytes)
	switch {
	case err != nil:
		return err
	case n != len(page) || end != done || !bytes.Equal(got, want):
		return fmt.Errorf("%d images that are not those of the page's %d events", n, len(page))
	case n > 0 && last != page[n-1].Sequence:
		return fmt.Errorf("the images end with event %d, the page with %d", last, page[n-1].Sequence)
	}
	return nil
}

// readPages reads a whole replay and holds its pages against their limits, and against their
// images.
func readPages(r *store.Replay, after frames.EventCut, visible store.Visible, maxEvents, maxBytes int) (events []store.Event, err error) {
	for done := false; !done; {
		var page []store.Event
		if page, done, err = r.Page(after, visible, maxEvents, maxBytes); err != nil {
			return nil, err
		}
		if err := sameImages(r, page, after, done, visible, maxEvents, maxBytes); err != nil {
			return nil, err
		}
		size := 0
		for _, ev := range page {
			size += ev.Size()
		}
		switch {
		case len(page) > maxEvents || size > maxBytes && len(page) > 1:
			return nil, fmt.Errorf("a page of %d events and %d bytes", len(page), size)
		case len(page) == 0 && (!done || len(events) > 0):
			return nil, errors.New("a page is empty, and the one before promised more or this one does")
		case len(page) > 0:
			after = frames.EventCut(page[len(page)-1].Sequence)
		}
		events = append(events, page...)
	}
	return events, nil
}

func texts(events []store.Event) (t []string) {
	for _, ev := range events {
		t = append(t, eventText(ev))
	}
	return t
}

func TestReplayCountsAndPages(t *testing.T) {
	b := newBed(t, t.TempDir())
	defer func() { b.s.Close() }()
	b.mixed(60)
	require.Greater(t, len(b.segments()), 3)
	all, err := b.s.Events(0, 1000, 1<<20)
	require.NoError(t, err)
	require.Len(t, all, 180)
	for round := range 2 { // with the index in memory, and read from the files
		for _, span := range [][2]frames.EventCut{{0, 240}, {0, 0}, {240, 240}, {1, 1}, {3, 4}, {7, 233}, {100, 101}, {102, 103}} {
			for name, visible := range map[string]store.Visible{
				"all": everything, "objectives": objectives, "nobody's": operationsOf(0), "operations": operationsOf(2), "foreign": operationsOf(9),
			} {
				var want []store.Event
				var sum store.Totals
				for _, ev := range all {
					p := ev.Principal
					if ev.Class != frames.KindOperation {
						p = frames.KeyID{}
					}
					if cut := frames.EventCut(ev.Sequence); cut > span[0] && cut <= span[1] && visible(ev.Class, p) {
						want = append(want, ev)
						if sum.Last = ev.Sequence; sum.Events == 0 {
							sum.First = ev.Sequence
						}
						sum.Events++
						sum.Bytes += uint64(ev.Size())
						sum.Largest = max(sum.Largest, len(ev.Payload))
					}
				}
				msg := fmt.Sprint(name, span, round)
				r := b.replay(span[0], span[1])
				got, err := r.Count(visible)
				require.NoError(t, err, msg)
				require.Equal(t, sum, got, msg)
				for _, limit := range [][2]int{{1, 1 << 20}, {7, 1 << 20}, {1000, 1}, {1000, 700}, {1000, 1 << 20}} {
					events, err := readPages(r, 0, visible, limit[0], limit[1])
					require.NoError(t, err, msg)
					require.Equal(t, texts(want), texts(events), msg)
				}
				i := 0
				require.NoError(t, r.Walk(0, visible, func(e store.IndexedEvent) bool {
					ev := want[i]
					require.Equal(t, store.IndexedEvent{Sequence: ev.Sequence, Class: ev.Class, Principal: ev.Principal, Size: ev.Size(), Payload: len(ev.Payload)}, e, msg)
					i++
					return i < 10
				}))
				require.Equal(t, min(10, len(want)), i)
				r.Close()
			}
		}
		require.NoError(t, b.s.Close())
		b.open()
	}
}

func TestReplayRefusesWhatIsNotCommitted(t *testing.T) {
	b := newBed(t, t.TempDir())
	b.mixed(2)
	for _, span := range [][2]frames.EventCut{{0, 9}, {9, 9}, {9, 10}, {5, 4}, {^frames.EventCut(0), ^frames.EventCut(0)}} {
		r, err := b.s.Replay(span[0], span[1])
		require.ErrorIs(t, err, store.ErrBeyondHead, "%v", span)
		require.Nil(t, r)
	}
	r := b.replay(0, 8)
	b.mixed(3)
	got, err := r.Count(everything)
	require.NoError(t, err)
	require.EqualValues(t, 6, got.Events, "commits after it are not in it")
	r.Close()
	r.Close()
	_, err = r.Count(everything)
	require.ErrorIs(t, err, store.ErrClosed)
	open := b.replay(0, 8)
	require.NoError(t, b.s.Close())
	_, _, err = open.Page(0, everything, 1, 1)
	require.ErrorIs(t, err, store.ErrClosed)
	open.Close()
	_, err = b.s.Replay(0, 1)
	require.ErrorIs(t, err, store.ErrClosed)
}

// TestRetentionIsExactAtItsEdges: the cut before the oldest event is the first that can be
// replayed from; and what ADMIN changed at is not trimmed with the events.
func TestRetentionIsExactAtItsEdges(t *testing.T) {
	b := newBed(t, t.TempDir())
	tx := b.begin(ptr(retention()).Key().Ref())
	tx.Hidden()
	tx.Put(makeRow(frames.KindAdmin, 1, 2, "retention", true))
	admin := frames.EventCut(tx.Head())
	b.commit(tx)
	b.put(frames.KindObjective, 1<<40, 1, "x", false)
	tx = b.begin()
	tx.Hidden()
	tx.Hidden()
	b.commit(tx) // so that the head is a multiple of four
	b.mixed(60)
	b.s.SetEventBytes(1)
	b.checkpoint()
	first := b.s.FirstRetained()
	require.Greater(t, first, frames.EventSequence(150))
	head := b.s.State().Head
	for _, reopened := range []bool{false, true} {
		for after := frames.EventCut(0); after <= head; after++ {
			r, err := b.s.Replay(after, head)
			if after+1 >= frames.EventCut(first) {
				require.NoError(t, err, "after %d", after)
				r.Close()
				continue
			}
			var gone *store.RetentionError
			require.ErrorAs(t, err, &gone, "after %d", after)
			require.Equal(t, uint64(first), gone.First)
			require.Nil(t, r)
		}
		require.Equal(t, admin, b.s.State().AdminHead)
		if !reopened {
			require.NoError(t, b.s.Close())
			b.open()
			require.Equal(t, first, b.s.FirstRetained())
		}
	}
	require.NoError(t, b.s.Close())
}

// TestRetentionNeverCutsUnderAReplay: a replay keeps its first segment and all behind it,
// and no more; once it is closed the next checkpoint takes them.
func TestRetentionNeverCutsUnderAReplay(t *testing.T) {
	b := newBed(t, t.TempDir())
	defer func() { b.s.Close() }()
	b.mixed(60)
	whole, late := b.replay(0, 240), b.replay(150, 200)
	again := b.replay(160, 200)
	want, err := readPages(whole, 0, everything, 50, 1<<20)
	require.NoError(t, err)
	segments := len(b.segments())
	stats, err := b.s.Stats()
	require.NoError(t, err)
	require.Equal(t, 3, stats.OpenReplays)

	b.s.SetEventBytes(1)
	b.checkpoint()
	require.Len(t, b.segments(), segments)
	require.EqualValues(t, 1, b.s.FirstRetained())
	whole.Close()
	b.mixed(1)
	b.checkpoint()
	first := b.s.FirstRetained()
	require.Greater(t, first, frames.EventSequence(1), "what it held goes")
	require.LessOrEqual(t, first, frames.EventSequence(151))
	_, err = b.s.Replay(0, 240)
	var gone *store.RetentionError
	require.ErrorAs(t, err, &gone)

	late.Close()
	late.Close() // holds nothing twice
	b.mixed(1)
	b.checkpoint()
	got, err := readPages(again, 0, everything, 50, 1<<20)
	require.NoError(t, err)
	var part []store.Event
	for _, ev := range want {
		if ev.Sequence > 160 && ev.Sequence <= 200 {
			part = append(part, ev)
		}
	}
	require.Equal(t, texts(part), texts(got))
	// A hold is not durable: a crash loses it, and the start trims what it kept.
	b.crash(3)
	b.open()
	require.Greater(t, b.s.FirstRetained(), frames.EventSequence(160))
	_, err = again.Count(everything)
	require.ErrorIs(t, err, store.ErrClosed)
	again.Close()
}

// TestReplayOfARecordLargerThanASegment: a segment of its own size has room for its index.
func TestReplayOfARecordLargerThanASegment(t *testing.T) {
	b := newBed(t, t.TempDir())
	tx := b.begin()
	for i := range uint64(300) {
		op := makeRow(frames.KindOperation, 1<<30+i, 1, strings.Repeat("x", int(i)), false)
		op.Principal = frames.KeyID{1, byte(i), byte(i >> 8)}
		tx.Emit(frames.EventOperationChanged, eventID(i), op)
	}
	b.commit(tx)
	b.mixed(20)
	all, err := b.s.Events(0, 1000, 1<<20)
	require.NoError(t, err)
	for range 2 {
		r := b.replay(0, b.s.State().Head)
		got, err := readPages(r, 0, everything, 64, 10_000)
		require.NoError(t, err)
		require.Equal(t, texts(all), texts(got))
		r.Close()
		b.crash(0)
		b.open()
		requireIndexed(t, b)
	}
	require.NoError(t, b.s.Close())
}

// requireIndexed checks that every sealed segment has a sound index that agrees with its
// records. The store is open; Verify needs state.db for itself.
func requireIndexed(t fataler, b *bed) {
	t.Helper()
	require.NoError(t, b.s.Abandon())
	opts := b.opts
	var told []string
	opts.Progress = func(line string) { told = append(told, line) }
	require.NoError(t, store.Verify(b.dir, opts))
	for _, line := range told {
		require.NotContains(t, line, "no sound index")
	}
	b.open()
}

// TestDamagedIndexIsMadeAnew changes every byte of an index: the start finds the same events
// and puts the same bytes back, and a running store finds them too.
func TestDamagedIndexIsMadeAnew(t *testing.T) {
	b := newBed(t, t.TempDir())
	b.mixed(40)
	head := b.s.State().Head
	require.NoError(t, b.s.Close())
	b.open()
	count := func() store.Totals {
		r := b.replay(0, head)
		defer r.Close()
		total, err := r.Count(operationsOf(1))
		require.NoError(t, err)
		return total
	}
	want := count()
	path := b.segments()[1]
	good, err := b.fs.ReadFile(path)
	require.NoError(t, err)
	var last int
	for _, sp := range b.records() {
		if sp.path == path {
			last = sp.to
		}
	}
	start := last
	for good[start] == 0 {
		start++
	}
	require.Less(t, start, len(good)-200)
	check := func(bad []byte, msg string) {
		require.NoError(t, b.s.Abandon())
		b.open() // over the good index
		require.NoError(t, b.fs.WriteFile(path, bad))
		require.Equal(t, want, count(), "%s, while running", msg)
		require.NoError(t, b.s.Abandon())
		require.NoError(t, store.Verify(b.dir, b.opts), msg)
		b.open()
		require.Equal(t, want, count(), msg)
		now, err := b.fs.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, good, now, "%s: the index was not put back", msg)
	}
	for at := start; at < len(good); at++ {
		bad := append([]byte(nil), good...)
		bad[at] ^= 1 << (at % 8)
		check(bad, fmt.Sprint("flip at ", at))
	}
	for at := start; at < len(good); at += 37 { // an unfinished write
		bad := append([]byte(nil), good...)
		clear(bad[at:])
		check(bad, fmt.Sprint("cut at ", at))
		bad = append([]byte(nil), good...)
		clear(bad[start : at+1])
		check(bad, fmt.Sprint("lost up to ", at))
	}
	require.NoError(t, b.s.Close())
}

// TestForeignSegmentIsCorruption: two copies of a store that went different ways have
// segments of the same names, commits and events, each whole with its index.
func TestForeignSegmentIsCorruption(t *testing.T) {
	fill := func(seed byte) *bed {
		b := newBed(t, t.TempDir())
		b.opts.Rand = rand.NewChaCha8([32]byte{seed})
		require.NoError(t, b.s.Close())
		b.open()
		for i := uint64(1); i <= 40; i++ {
			b.put(frames.KindObjective, i, 1, strings.Repeat(string('a'+rune(seed)), 900), i%2 == 0)
		}
		require.NoError(t, b.s.Close())
		return b
	}
	a, b := fill(1), fill(2)
	segments := a.segments()
	require.Greater(t, len(segments), 4)
	for i := 1; i < len(segments); i++ {
		require.Equal(t, filepath.Base(segments[i]), filepath.Base(b.segments()[i]))
		good, err := a.fs.ReadFile(segments[i])
		require.NoError(t, err)
		foreign, err := b.fs.ReadFile(b.segments()[i])
		require.NoError(t, err)
		require.NoError(t, a.fs.WriteFile(segments[i], foreign))
		before := a.fingerprint()
		requireCorrupt(t, a.openError(), "log", segments[i])
		require.Equal(t, before, a.fingerprint())
		require.NoError(t, a.fs.WriteFile(segments[i], good))
	}
	a.open()
	require.NoError(t, a.s.Close())
}

// TestCrashWhileSealing stops the disk after its k-th operation from just before a segment
// is sealed, for every k. What was acknowledged is there, and every sealed segment has its
// index again.
func TestCrashWhileSealing(t *testing.T) {
	sealed := false
	for k := 0; !sealed; k++ {
		for seed := range uint64(4) {
			b := newBed(t, t.TempDir())
			for len(b.segments()) < 3 { // then the last is fresh
				b.mixed(1)
			}
			for range 6 {
				b.mixed(1)
			}
			segments := len(b.segments())
			b.fs.StopAfter(k)
			acknowledged, err := b.s.State().Head, error(nil)
			for err == nil && len(b.segments()) < segments+2 {
				tx := b.s.Begin()
				tx.Emit(1, eventID(uint64(tx.Head())), makeRow(frames.KindObjective, 1<<30+uint64(tx.Head()), 1, strings.Repeat("s", 2500), false))
				if _, err = b.s.Commit(tx, testTime); err == nil {
					acknowledged = b.s.State().Head
				}
			}
			sealed = err == nil
			b.crash(seed)
			b.open()
			requireIndexed(t, b)
			head := b.s.State().Head
			require.Contains(t, []frames.EventCut{acknowledged, acknowledged + 1}, head)
			r := b.replay(0, head)
			events, err := readPages(r, 0, everything, 40, 1<<20)
			require.NoError(t, err)
			r.Close()
			all, err := b.s.Events(0, 10_000, 1<<22)
			require.NoError(t, err)
			require.Equal(t, texts(all), texts(events))
			require.Equal(t, head, frames.EventCut(events[len(events)-1].Sequence))
			b.put(frames.KindSignal, 1, 1, strings.Repeat("on", 2000), true)
			b.put(frames.KindSignal, 2, 1, strings.Repeat("on", 2000), true)
			require.NoError(t, b.s.Close())
			require.NoError(t, store.Verify(b.dir, b.opts))
		}
	}
}

// TestCrashWhileTrimming stops the disk after its k-th operation of a checkpoint that trims,
// for every k: the store opens, with the same rows and a log without a hole.
func TestCrashWhileTrimming(t *testing.T) {
	trimmed := false
	for k := 0; !trimmed; k++ {
		for seed := range uint64(6) {
			b := newBed(t, t.TempDir())
			b.mixed(60)
			want := b.state()
			b.s.SetEventBytes(1)
			b.fs.StopAfter(k)
			var err error
			for more := true; more && err == nil; {
				more, err = b.s.CheckpointStep()
			}
			trimmed = err == nil
			b.crash(seed)
			b.open()
			require.Equal(t, want, b.state(), "k=%d seed=%d", k, seed)
			first, head := frames.EventCut(b.s.FirstRetained()), b.s.State().Head
			require.Greater(t, first, frames.EventCut(150), "the start ends the trim")
			for range 2 { // after the crash, and after a clean stop
				b.requireTrimmedTo(first)
				r := b.replay(first-1, head)
				total, err := r.Count(everything)
				require.NoError(t, err)
				require.EqualValues(t, (head-first+1)/4*3, total.Events)
				r.Close()
				require.NoError(t, b.s.Close())
				b.open()
			}
			requireIndexed(t, b)
			require.NoError(t, b.s.Close())
		}
		require.Less(t, k, 1000)
	}
}

// TestAnIndexThatCannotBeWrittenCostsNoCommit: only the next start pays for it.
func TestAnIndexThatCannotBeWrittenCostsNoCommit(t *testing.T) {
	for _, kind := range []string{"write", "sync"} {
		b := newBed(t, t.TempDir())
		var logged strings.Builder
		b.opts.Logger = slog.New(slog.NewTextHandler(&logged, nil))
		require.NoError(t, b.s.Abandon())
		b.open()
		path, armed := b.segments()[0], false
		b.fs.Hook(func(op simfs.Op) error {
			// The file that seals is no longer the newest.
			if armed = armed || op.Kind == "rename"; armed && op.Kind == kind && op.Path != "" && filepath.Base(op.Path) != "spare.seg" && op.Path == path {
				return syscall.EIO
			}
			return nil
		})
		b.mixed(60)
		require.Contains(t, logged.String(), "index of a sealed segment")
		all, err := b.s.Events(0, 1000, 1<<20)
		require.NoError(t, err)
		for range 2 {
			r := b.replay(0, b.s.State().Head)
			events, err := readPages(r, 0, everything, 1000, 1<<20)
			require.NoError(t, err)
			require.Equal(t, texts(all), texts(events))
			r.Close()
			b.crash(7)
			b.open()
			requireIndexed(t, b)
		}
		require.NoError(t, b.s.Close())
	}
}

// TestReplaysRunBesideCommitsAndRetention: readers replay spans of what is there while the
// writer commits, seals and trims.
func TestReplaysRunBesideCommitsAndRetention(t *testing.T) {
	b := diskBed(t)
	g, ctx := errgroup.WithContext(t.Context())
	stop := make(chan struct{})
	for n := range 2 {
		g.Go(func() error {
			rng := rand.New(rand.NewPCG(uint64(n), 1))
			for done := false; !done; {
				select {
				case <-stop:
					done = true // once more, on what is there in the end
				case <-ctx.Done():
					return ctx.Err()
				default:
				}
				through := b.s.State().Head
				after := through - min(through, frames.EventCut(rng.IntN(400)))
				r, err := b.s.Replay(after, through)
				if gone := (*store.RetentionError)(nil); errors.As(err, &gone) && frames.EventCut(gone.First) > after+1 {
					continue
				} else if err != nil {
					return err
				}
				total, err := r.Count(everything)
				if err != nil {
					return err
				}
				events, err := readPages(r, after, everything, 100, 20_000)
				if err != nil {
					return err
				}
				r.Close()
				if len(events) != int(through-after) || total.Events != uint64(len(events)) {
					return fmt.Errorf("%d events and a count of %d in (%d, %d]", len(events), total.Events, after, through)
				}
				for i, ev := range events {
					if frames.EventCut(ev.Sequence) != after+1+frames.EventCut(i) || !strings.Contains(string(ev.Payload), fmt.Sprintf("payload %d ", ev.Sequence)) {
						return fmt.Errorf("event %d is %q", after+1+frames.EventCut(i), ev.Payload)
					}
				}
			}
			return nil
		})
	}
	for i := range uint64(1200) {
		b.put(frames.KindObjective, i+1, 1, fmt.Sprintf("payload %d %s", i+1, strings.Repeat("p", int(i%300))), i%5 == 0)
	}
	close(stop)
	require.NoError(t, g.Wait())
	require.Greater(t, b.s.FirstRetained(), frames.EventSequence(300), "nothing was trimmed")
	stats, err := b.s.Stats()
	require.NoError(t, err)
	require.Zero(t, stats.OpenReplays)
	require.NoError(t, b.s.Close())
	b.open()
	requireIndexed(t, b)
	require.NoError(t, b.s.Close())
}
