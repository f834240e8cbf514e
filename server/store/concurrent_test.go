package store_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"coordinator/frames"
	"coordinator/internal/failpoint"
	"coordinator/server/store"
)

// diskBed is a store on the real file system with its goroutines.
func diskBed(t *testing.T) *bed {
	b := &bed{t: t, dir: t.TempDir(), opts: store.Options{
		SegmentBytes: 64 << 10, CheckpointOps: 40, CheckpointKeys: 16, EventBytes: 128 << 10, UnsafeNoSync: true,
	}}
	require.NoError(t, store.Create(b.dir, store.Genesis{CoordinatorID: testID, Rows: []store.Row{retention()}, CreatedAt: testTime}, b.opts))
	b.open()
	return b
}

// TestCutsStandStillWhileCheckpointsRun: readers page slowly through cuts and read events
// and history while the writer commits and checkpoints run in the background.
func TestCutsStandStillWhileCheckpointsRun(t *testing.T) {
	b := diskBed(t)
	ctx, cancel := context.WithCancel(t.Context())
	g, ctx := errgroup.WithContext(ctx)
	var read, head atomic.Uint64
	type view struct {
		cut  *store.Cut
		want string
	}
	cuts := make(chan view, 4)
	for range 2 {
		g.Go(func() error {
			for v := range cuts {
				var rows []store.Row
				for after, done := (store.Key{}), false; !done; {
					var page []store.Row
					var err error
					if page, done, err = v.cut.Page(after, everything, 3); err != nil {
						return err
					}
					if rows = append(rows, page...); len(page) > 0 {
						after = page[len(page)-1].Key()
					}
				}
				if got := dump(rows); got != v.want {
					return fmt.Errorf("cut at %d reads\n%swant\n%s", v.cut.Seq(), got, v.want)
				}
				v.cut.Close()
				read.Add(1)
			}
			return nil
		})
	}
	g.Go(func() error { // a follower of the log
		for after := frames.EventCut(0); ctx.Err() == nil || uint64(after) < head.Load(); {
			events, err := b.s.Events(after, 50, 1<<20)
			if gone := (*store.RetentionError)(nil); asRetention(err, &gone) {
				after = frames.EventCut(gone.First - 1)
				continue
			} else if err != nil {
				return err
			}
			for _, ev := range events {
				if frames.EventCut(ev.Sequence) != after+1 {
					return fmt.Errorf("event %d follows %d", ev.Sequence, after)
				}
				after++
			}
		}
		return nil
	})
	rows := map[store.Key]store.Row{ptr(retention()).Key(): retention()}
	for i := range uint64(1500) {
		id := i*i%61 + 1
		r := ref(frames.KindObjective, id)
		tx := b.begin(r)
		prev, _, err := tx.Get(r)
		require.NoError(t, err)
		row := makeRow(frames.KindObjective, id, uint64(prev.Record.Revision)+1, fmt.Sprint("payload ", i), i%7 == 0)
		row.Seq = tx.Emit(frames.EventObjectiveChanged, eventID(i), row)
		b.commit(tx)
		rows[store.KeyOf(r)] = row
		head.Store(uint64(b.s.State().Head))
		if i%10 == 0 {
			m := &model{rows: rows}
			select {
			case cuts <- view{b.s.Cut(), dump(m.sorted(everything))}:
			case <-ctx.Done():
			}
		}
	}
	close(cuts)
	cancel()
	require.NoError(t, g.Wait())
	require.NotZero(t, read.Load())
	stats, err := b.s.Stats()
	require.NoError(t, err)
	require.Positive(t, stats.StateBytes)
	require.Less(t, stats.LogSegments, 8, "retention unlinked nothing")
	want := b.dump()
	require.NoError(t, b.s.Close())
	b.open()
	require.Equal(t, want, b.dump())
	require.NoError(t, b.s.Close())
	require.NoError(t, store.Verify(b.dir, b.opts))
}

func asRetention(err error, target **store.RetentionError) bool {
	e, ok := err.(*store.RetentionError)
	*target = e
	return ok
}

// TestLargeHistoryIsReadInShortTransactions pages through more rows than one transaction
// may visit, most of them invisible.
func TestLargeHistoryIsReadInShortTransactions(t *testing.T) {
	b := diskBed(t)
	defer b.s.Close()
	for i := uint64(0); i < 20_000; {
		tx := b.s.Begin()
		for range 2000 {
			i++
			op := makeRow(frames.KindOperation, i, 1, "", false)
			op.Principal = frames.KeyID{1}
			if i%9000 == 0 {
				op.Principal = frames.KeyID{2}
			}
			tx.Put(op)
		}
		b.commit(tx)
	}
	for id := uint64(1); id <= 20; id++ {
		b.put(frames.KindArtifactManifest, id, 1, "manifest", false)
	}
	c := b.s.Cut()
	defer c.Close()
	two := func(kind frames.ObjectKind, p frames.KeyID) bool {
		return kind == frames.KindOperation && p == frames.KeyID{2}
	}
	require.Len(t, pages(t, c, two, 100), 2)
	require.EqualValues(t, 2, c.OperationsOf(frames.KeyID{2}))
	none := func(kind frames.ObjectKind, p frames.KeyID) bool { return kind == frames.KindArtifactManifest }
	require.Len(t, pages(t, c, none, 7), 20)
	require.Len(t, pages(t, c, everything, 1024), 20_021)
}

func TestSupersededBytesAreCharged(t *testing.T) {
	b := newBed(t, t.TempDir())
	defer b.s.Close()
	b.put(frames.KindObjective, 1, 1, string(make([]byte, 5000)), true)
	b.put(frames.KindObjective, 2, 1, string(make([]byte, 3000)), false)
	b.checkpoint()
	old := b.s.Cut()
	defer old.Close()
	b.put(frames.KindObjective, 3, 1, "new rows supersede nothing", true)
	require.Zero(t, old.Superseded())
	b.put(frames.KindObjective, 1, 2, "small", true)
	one := old.Superseded()
	require.GreaterOrEqual(t, one, uint64(5000))
	require.Less(t, one, uint64(6000))
	young := b.s.Cut()
	defer young.Close()
	b.put(frames.KindObjective, 1, 3, "small", true)
	require.Equal(t, one, old.Superseded(), "a version made after the cut is not held for it")
	require.NotZero(t, young.Superseded())
	b.put(frames.KindObjective, 2, 2, "small", false)
	two := old.Superseded()
	require.GreaterOrEqual(t, two, one+3000)
	b.checkpoint()
	held := old.Superseded()
	require.Greater(t, held, two, "a change held back is charged")
	b.put(frames.KindObjective, 4, 1, "x", false)
	b.checkpoint()
	require.Equal(t, held, old.Superseded(), "and charged once")
}

// TestRealDiskTornTail: the same on the operating system's files.
func TestRealDiskTornTail(t *testing.T) {
	b := diskBed(t)
	b.put(frames.KindObjective, 1, 1, "kept", true)
	want := b.dump()
	b.put(frames.KindObjective, 1, 2, "torn", true)
	require.NoError(t, b.s.Abandon())
	path := filepath.Join(b.dir, "log", "0000000000000001.seg")
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	at := bytes.LastIndex(data, []byte("torn"))
	data[at] = 0
	require.NoError(t, os.WriteFile(path, data, 0o600))
	b.open()
	require.Equal(t, want, b.dump())
	require.NoError(t, b.s.Close())
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.EqualValues(t, 0o600, info.Mode().Perm())
}

func TestFailpointsSitAroundTheRecord(t *testing.T) {
	if !failpoint.Enabled {
		t.Skip("built without the failpoint tag")
	}
	b := newBed(t, t.TempDir())
	defer b.s.Close()
	var hits []string
	for _, name := range []string{"record-built", "record-written", "record-synced"} {
		defer failpoint.Set(name, func() { hits = append(hits, fmt.Sprintf("%s+%d", name, b.fs.Ops())) })()
	}
	n := b.fs.Ops()
	b.put(frames.KindObjective, 1, 1, "x", true)
	require.Equal(t, []string{fmt.Sprintf("record-built+%d", n), fmt.Sprintf("record-written+%d", n+1), fmt.Sprintf("record-synced+%d", n+2)}, hits)
}
