package store_test

import (
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
	"coordinator/server/store"
)

func TestCommitIsVisibleAndSurvives(t *testing.T) {
	b := newBed(t, t.TempDir())
	require.Equal(t, testID, b.s.State().CoordinatorID)
	require.Equal(t, testTime.Unix(), b.s.State().CreatedAt.Unix())

	tx := b.begin(ref(frames.KindObjective, 1), ref(frames.KindOperation, 2))
	_, found, err := tx.Get(ref(frames.KindObjective, 1))
	require.NoError(t, err)
	require.False(t, found)
	op := makeRow(frames.KindOperation, 2, 1, "result", false)
	op.Principal, op.Annex = frames.KeyID{7}, []byte("digest")
	require.EqualValues(t, 1, tx.Emit(frames.EventObjectiveChanged, eventID(1), makeRow(frames.KindObjective, 1, 1, "title", true)))
	require.EqualValues(t, 2, tx.Emit(frames.EventOperationChanged, eventID(2), op))
	tx.Install(5, 3, [32]byte{9})
	require.EqualValues(t, 3, tx.Hidden())
	got, found, err := tx.Get(ref(frames.KindOperation, 2))
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, "digest", string(got.Annex))
	batch := b.commit(tx)

	require.EqualValues(t, 2, batch.Commit)
	require.EqualValues(t, 1, batch.First)
	require.EqualValues(t, 3, batch.Last)
	require.Len(t, batch.Events, 2)
	require.Equal(t, frames.KeyID{7}, batch.Events[1].Principal)
	require.Equal(t, frames.KindOperation, batch.Events[1].Class)

	check := func() {
		st := b.s.State()
		require.EqualValues(t, 5, st.Epoch)
		require.EqualValues(t, 3, st.Activation)
		require.Equal(t, [32]byte{9}, st.TokenSHA256)
		require.EqualValues(t, 3, st.Head)
		require.Equal(t, []frames.ActivationBase{{Activation: 3, Base: 0}}, st.Bases)
		require.Equal(t, map[frames.ObjectKind]uint64{1: 1, 7: 1, 9: 1}, st.Counts)
		c := b.s.Cut()
		defer c.Close()
		require.EqualValues(t, 1, c.OperationsOf(frames.KeyID{7}))
		require.EqualValues(t, 0, c.OperationsOf(frames.KeyID{8}))
		events, err := b.s.Events(0, 10, 1<<20)
		require.NoError(t, err)
		require.Equal(t, batch.Events, events)
	}
	check()
	before := b.dump()
	b.crash(0)
	b.open()
	check()
	require.Equal(t, before, b.dump())
	require.NoError(t, b.s.Close())
	require.NoError(t, b.s.Close(), "closing twice")
	b.open()
	check()
	require.Equal(t, before, b.dump())
	require.NoError(t, b.s.Close())
	require.NoError(t, store.Verify(b.dir, b.opts))
}

func TestUnknownRowsAreNotGuessed(t *testing.T) {
	b := newBed(t, t.TempDir())
	defer b.s.Close()
	b.put(frames.KindObjective, 1, 1, "old", false)
	b.checkpoint()

	tx := b.s.Begin()
	_, _, err := tx.Get(ref(frames.KindObjective, 1))
	require.ErrorIs(t, err, store.ErrNotLoaded)
	tx.Put(makeRow(frames.KindObjective, 1, 2, "new", false))
	_, err = b.s.Commit(tx, testTime)
	require.ErrorIs(t, err, store.ErrNotLoaded)
	tx = b.s.Begin()
	tx.Remove(ref(frames.KindObjective, 1))
	_, err = b.s.Commit(tx, testTime)
	require.ErrorIs(t, err, store.ErrNotLoaded)
	require.NoError(t, b.s.Err(), "a refused transaction ended the store")

	b.put(frames.KindObjective, 1, 2, "new", false)
	require.EqualValues(t, 1, b.s.State().Counts[frames.KindObjective])
}

func TestPrefetchGoesStaleWhenTheOverlayIsDropped(t *testing.T) {
	b := newBed(t, t.TempDir())
	defer b.s.Close()
	r := ref(frames.KindObjective, 1)
	l, err := b.s.Prefetch([]frames.ObjectRef{r})
	require.NoError(t, err)
	b.put(frames.KindObjective, 1, 1, "one", false)
	tx := b.s.Begin()
	require.True(t, tx.Use(l), "the overlay still has the change")
	row, found, err := tx.Get(r)
	require.NoError(t, err)
	require.True(t, found, "the overlay wins over what was prefetched")
	require.Equal(t, "one", string(row.Record.Payload))

	b.checkpoint()
	tx = b.s.Begin()
	require.False(t, tx.Use(l))
	tx = b.begin(r)
	row, found, err = tx.Get(r)
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, "one", string(row.Record.Payload))
}

func TestTransactionsAreCheckedBeforeAnythingIsWritten(t *testing.T) {
	b := newBed(t, t.TempDir())
	defer b.s.Close()
	for _, tt := range []struct {
		name string
		do   func(tx *store.Tx)
		want error
	}{
		{"no revision", func(tx *store.Tx) { tx.Put(makeRow(1, 1, 0, "", true)) }, nil},
		{"no event id", func(tx *store.Tx) { tx.Emit(1, frames.EventID{}, makeRow(1, 1, 1, "", true)) }, nil},
		{"event kind without record", func(tx *store.Tx) { tx.Emit(12, eventID(1), makeRow(1, 1, 1, "", true)) }, nil},
		{"record as fact", func(tx *store.Tx) { tx.EmitEvent(frames.ReplayEvent{Kind: 1, ID: eventID(1)}) }, nil},
		{"payload over its cap", func(tx *store.Tx) {
			tx.Emit(1, eventID(1), makeRow(1, 1, 1, strings.Repeat("x", frames.MaxTypedPayload), true))
		}, nil},
		{"epoch goes back", func(tx *store.Tx) { tx.Install(0, 1, [32]byte{}) }, nil},
		{"over 64 MiB", func(tx *store.Tx) {
			for i := uint64(1); i < 300; i++ {
				tx.Put(makeRow(1, i, 1, strings.Repeat("x", frames.MaxTypedPayload), true))
			}
		}, store.ErrTooLarge},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := b.fs.Ops()
			tx := b.s.Begin()
			tt.do(tx)
			_, err := b.s.Commit(tx, testTime)
			require.Error(t, err)
			if tt.want != nil {
				require.ErrorIs(t, err, tt.want)
			}
			require.NotErrorIs(t, err, store.ErrOutcomeUnknown)
			require.Equal(t, before, b.fs.Ops())
		})
	}
	b.put(frames.KindObjective, 1, 1, "still works", true)
}

func TestEmptyTransactionWritesNothing(t *testing.T) {
	b := newBed(t, t.TempDir())
	defer b.s.Close()
	before := b.fs.Ops()
	batch := b.commit(b.s.Begin())
	require.Empty(t, batch.Events)
	require.Greater(t, batch.First, batch.Last)
	require.Equal(t, before, b.fs.Ops())
}

func TestRecordLargerThanASegment(t *testing.T) {
	b := newBed(t, t.TempDir())
	b.put(frames.KindObjective, 1, 1, "small", true)
	b.put(frames.KindObjective, 2, 1, strings.Repeat("L", 40_000), true)
	b.put(frames.KindObjective, 3, 1, "after", true)
	want := b.dump()
	b.crash(1)
	b.open()
	require.Equal(t, want, b.dump())
	require.NoError(t, b.s.Close())
}

func TestFactsAndSilentChanges(t *testing.T) {
	b := newBed(t, t.TempDir())
	b.put(frames.KindBinding, 1, 1, "binding", true)
	tx := b.begin(ref(frames.KindBinding, 1))
	seq := tx.EmitEvent(frames.ReplayEvent{ID: eventID(7), Kind: frames.EventSourceFactAdmitted, Object: ref(frames.KindBinding, 1), Revision: 2, Schema: 1, Payload: []byte("fact")})
	tx.Put(makeRow(frames.KindBinding, 1, 2, "binding", true))
	tx.Put(makeRow(frames.KindAdmin, 2, 1, "credential", true))
	batch := b.commit(tx)
	require.Len(t, batch.Events, 1)
	require.Equal(t, "fact", string(batch.Events[0].Payload))
	require.Equal(t, []store.Silent{
		{Ref: ref(frames.KindBinding, 1), Seq: seq}, {Ref: ref(frames.KindAdmin, 2), Seq: seq},
	}, batch.Silent)
	require.EqualValues(t, seq, b.s.State().AdminHead)

	tx = b.begin(ref(frames.KindBinding, 1))
	tx.Remove(ref(frames.KindBinding, 1))
	tx.Remove(ref(frames.KindBinding, 1))
	require.True(t, b.commit(tx).Silent[0].Removed)
	require.Zero(t, b.s.State().Counts[frames.KindBinding])
	b.checkpoint()
	b.crash(3)
	b.open()
	require.EqualValues(t, seq, b.s.State().AdminHead)
	events, err := b.s.Events(1, 10, 1<<20)
	require.NoError(t, err)
	require.Equal(t, batch.Events, events)
	require.NoError(t, b.s.Close())
}

func TestBasesKeepTheNewest(t *testing.T) {
	b := newBed(t, t.TempDir())
	for i := uint64(1); i <= frames.MaxActivationBases+6; i++ {
		tx := b.s.Begin()
		tx.Install(frames.AuthorityEpoch(i), frames.ActivationSequence(2*i), [32]byte{})
		tx.Hidden()
		b.commit(tx)
	}
	want := b.s.State().Bases
	require.Len(t, want, frames.MaxActivationBases)
	require.Equal(t, frames.ActivationBase{Activation: 14, Base: 6}, want[0])
	require.NoError(t, b.s.Close())
	b.open()
	require.Equal(t, want, b.s.State().Bases)
	require.NoError(t, b.s.Close())
}

func TestRetentionUnlinksWholeSegments(t *testing.T) {
	b := newBed(t, t.TempDir())
	for i := uint64(1); i <= 40; i++ {
		b.put(frames.KindObjective, i, 1, strings.Repeat("p", 900), false)
	}
	segments := len(b.segments())
	require.Greater(t, segments, 4)
	b.checkpoint()
	require.Len(t, b.segments(), segments, "without a retention everything stays")

	b.s.SetEventBytes(20_000)
	b.put(frames.KindObjective, 50, 1, "x", false)
	require.Len(t, b.segments(), segments, "segments go only with a checkpoint")
	b.checkpoint()
	require.Len(t, b.segments(), 3, "whole segments that have 20,000 bytes together")

	first := b.s.FirstRetained()
	require.Greater(t, first, frames.EventSequence(1))
	_, err := b.s.Events(frames.EventCut(first)-2, 10, 1<<20)
	var gone *store.RetentionError
	require.ErrorAs(t, err, &gone)
	require.EqualValues(t, first, gone.First)
	events, err := b.s.Events(frames.EventCut(first)-1, 1000, 1<<20)
	require.NoError(t, err)
	require.Equal(t, first, events[0].Sequence)
	require.Len(t, events, 42-int(first))

	want := b.dump()
	b.crash(5)
	b.open()
	require.Equal(t, want, b.dump())
	require.Equal(t, first, b.s.FirstRetained())
	require.NoError(t, b.s.Close())
}

func TestEventsObeyTheirLimits(t *testing.T) {
	b := newBed(t, t.TempDir())
	defer b.s.Close()
	for i := uint64(1); i <= 30; i++ {
		tx := b.begin()
		tx.Hidden()
		for k := uint64(0); k < 3; k++ {
			tx.Emit(frames.EventObjectiveChanged, eventID(i), makeRow(frames.KindObjective, 10*i+k, 1, strings.Repeat("p", 300), true))
		}
		b.commit(tx)
	}
	var all []frames.EventSequence
	for after := frames.EventCut(0); ; {
		events, err := b.s.Events(after, 7, 1<<20)
		require.NoError(t, err)
		require.LessOrEqual(t, len(events), 7)
		if len(events) == 0 {
			break
		}
		for _, ev := range events {
			all = append(all, ev.Sequence)
		}
		after = frames.EventCut(all[len(all)-1])
	}
	require.Len(t, all, 90)
	for i := 1; i < len(all); i++ {
		require.Greater(t, all[i], all[i-1])
	}
	events, err := b.s.Events(50, 100, 1)
	require.NoError(t, err)
	require.Len(t, events, 1, "one event however small the limit")
	require.EqualValues(t, 51, events[0].Sequence)
	events, err = b.s.Events(120, 100, 1)
	require.NoError(t, err)
	require.Empty(t, events)
}

func TestCreateRefusesAndResumes(t *testing.T) {
	b := newBed(t, t.TempDir())
	b.put(frames.KindObjective, 1, 1, "x", true)
	require.NoError(t, b.s.Close())
	g := store.Genesis{CoordinatorID: testID, CreatedAt: testTime}
	require.ErrorIs(t, store.Create(b.dir, g, b.opts), store.ErrExists)
	require.NoError(t, os.Remove(filepath.Join(b.dir, "state.db")))
	require.ErrorIs(t, store.Create(b.dir, g, b.opts), store.ErrExists, "a log with commits is a store that lost state.db")

	_, err := store.Open(t.TempDir(), b.opts)
	require.ErrorIs(t, err, store.ErrNoStore)

	// A Create cut short anywhere is done again.
	for k := 0; ; k++ {
		dir := t.TempDir()
		b := &bed{t: t, dir: dir, fs: b.fs}
		b.fs.StopAfter(k)
		b.opts = bedOptions(b.fs)
		err := store.Create(dir, g, b.opts)
		if err == nil {
			require.Greater(t, k, 8)
			break
		}
		b.fs.Crash(uint64(k) + 1)
		require.NoError(t, store.Create(dir, g, b.opts), "after stopping at %d", k)
		b.open()
		require.NoError(t, b.s.Close())
	}
}

func TestInUse(t *testing.T) {
	b := newBed(t, t.TempDir())
	defer b.s.Close()
	require.ErrorIs(t, b.openError(), store.ErrInUse)
}

// A writer that has nothing to commit is told when a checkpoint has ended, and lets go of what
// it has written.
func TestAnIdleWriterLetsGoOfWhatIsWritten(t *testing.T) {
	b := &bed{t: t, dir: t.TempDir(), opts: store.Options{UnsafeNoSync: true, CheckpointOps: 8}}
	require.NoError(t, store.Create(b.dir, store.Genesis{CoordinatorID: testID, CreatedAt: testTime}, b.opts))
	b.open()
	defer func() { b.s.Abandon() }()
	for n := range uint64(8) {
		tx := b.s.Begin()
		tx.Emit(frames.EventOperationChanged, eventID(n+1), makeRow(frames.KindOperation, n+1, 1, "", false))
		b.commit(tx)
	}
	require.True(t, b.s.Held())
	<-b.s.Written()
	require.True(t, b.s.Held())
	b.s.Maintain()
	require.False(t, b.s.Held())
}

// What an open cut holds back lies in memory after the checkpoint as before. It is no reason
// for another one, which would hold it back again, at once and for as long as the cut is open.
func TestWhatACutHoldsBackBeginsNoCheckpoint(t *testing.T) {
	const rows = 8
	b := &bed{t: t, dir: t.TempDir(), opts: store.Options{UnsafeNoSync: true, CheckpointOps: rows, CheckpointEvery: time.Hour}}
	require.NoError(t, store.Create(b.dir, store.Genesis{CoordinatorID: testID, CreatedAt: testTime}, b.opts))
	b.open()
	defer func() { b.s.Abandon() }()
	write := func(from, rev uint64) {
		for n := range uint64(rows) {
			require.False(t, b.s.Held(), "a checkpoint runs before %d rows have changed", rows)
			b.put(frames.KindObjective, from+n, rev, "", false)
		}
		require.True(t, b.s.Held())
		<-b.s.Written()
		b.s.Maintain()
	}
	write(1, 1)
	cut := b.s.Cut()
	defer cut.Close()
	write(1, 2)
	require.NotZero(t, cut.Superseded())
	require.False(t, b.s.Held(), "the next one has begun for what is held back")
	write(100, 1)
}

// A checkpoint needs room on the disk for what it has gathered. It gathers less when there is
// little beside the reserve.
func TestACheckpointOnAScarceDiskIsSmall(t *testing.T) {
	const reserve = 1 << 20
	var free atomic.Uint64
	free.Store(1 << 40)
	b := &bed{t: t, dir: t.TempDir(), opts: store.Options{
		UnsafeNoSync: true, SegmentBytes: 4 << 20, CheckpointEvery: time.Hour, CheckpointBytes: 16 << 20,
		ReserveBytes: reserve, FreeBytes: free.Load,
	}}
	require.NoError(t, store.Create(b.dir, store.Genesis{CoordinatorID: testID, CreatedAt: testTime}, b.opts))
	b.open()
	defer func() { b.s.Abandon() }()
	payload := strings.Repeat("p", 100<<10)
	id := uint64(0)
	put := func() { id++; b.put(frames.KindObjective, id, 1, payload, false) }
	for range 8 {
		put()
	}
	require.False(t, b.s.Held())
	free.Store(reserve + 64<<20)
	put()
	require.False(t, b.s.Held(), "there is room for four large ones")
	free.Store(reserve + 64<<20 - 1)
	put()
	require.True(t, b.s.Held())
	<-b.s.Written()
	b.s.Maintain()
	for range 3 { // a quarter of the reserve again
		require.False(t, b.s.Held())
		put()
	}
	require.True(t, b.s.Held())
}
