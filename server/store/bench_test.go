package store_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
	"coordinator/server/store"
)

// BenchmarkReplay measures what a replay of a million events costs before its first page,
// the page itself, and a start over the same log.
func BenchmarkReplay(b *testing.B) {
	const events, perCommit = 1_000_000, 500
	bed := &bed{t: b, dir: b.TempDir(), opts: store.Options{UnsafeNoSync: true}}
	require.NoError(b, store.Create(bed.dir, store.Genesis{CoordinatorID: testID, CreatedAt: testTime}, bed.opts))
	bed.open()
	for n := uint64(0); n < events; {
		tx := bed.s.Begin()
		for range perCommit {
			n++
			row := makeRow(frames.KindOperation, n, 1, "a payload of some forty bytes, as they are", false)
			row.Principal = frames.KeyID{byte(n % 100), 1}
			if n%4 == 0 {
				row = makeRow(frames.KindObjective, n, 1, "a payload of some forty bytes, as they are", false)
			}
			tx.Emit(frames.EventOperationChanged, eventID(n), row)
		}
		bed.commit(tx)
	}
	require.NoError(b, bed.s.Close())
	bed.open()
	r := bed.replay(0, events)
	for name, visible := range map[string]store.Visible{
		"everything": everything,
		"one principal": func(kind frames.ObjectKind, p frames.KeyID) bool {
			return kind != frames.KindOperation || p == frames.KeyID{7, 1}
		},
	} {
		b.Run(fmt.Sprintf("count a million, %s visible", name), func(b *testing.B) {
			for b.Loop() {
				total, err := r.Count(visible)
				require.NoError(b, err)
				require.NotZero(b, total.Events)
			}
		})
		b.Run(fmt.Sprintf("page of 512, %s visible", name), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				page, done, err := r.Page(events/2, visible, 512, 256<<10)
				require.NoError(b, err)
				require.Len(b, page, 512)
				require.False(b, done)
			}
		})
	}
	r.Close()
	require.NoError(b, bed.s.Close())
	b.Run("start", func(b *testing.B) {
		for b.Loop() {
			bed.open()
			require.NoError(b, bed.s.Abandon())
		}
	})
}

// BenchmarkCommit measures commands as the store sees them: each reads an object twice,
// changes it and leaves an operation behind. A commit takes sixteen. A TMPDIR in memory leaves
// the disk out.
func BenchmarkCommit(b *testing.B) {
	const objects, commands = 200_000, 16
	payload := "a payload of some forty bytes, as they are"
	bed := &bed{t: b, dir: b.TempDir(), opts: store.Options{UnsafeNoSync: true, CheckpointOps: 1 << 30, CheckpointEvery: 1 << 40}}
	require.NoError(b, store.Create(bed.dir, store.Genesis{CoordinatorID: testID, CreatedAt: testTime}, bed.opts))
	bed.open()
	place := func(n uint64) uint64 { return n * 0x9e3779b97f4a7c15 } // ids are spread, as random ones are
	for n := uint64(0); n < objects; {
		tx := bed.s.Begin()
		for range 500 {
			n++
			tx.Emit(frames.EventObjectiveChanged, eventID(n), makeRow(frames.KindObjective, place(n), 1, payload, true))
		}
		bed.commit(tx)
	}
	n := uint64(0)
	b.ReportAllocs()
	for b.Loop() {
		tx := bed.s.Begin()
		for range commands {
			n++
			id := place(n*7919%objects + 1)
			for range 2 {
				row, found, err := tx.Get(ref(frames.KindObjective, id))
				require.NoError(b, err)
				require.True(b, found)
				require.NotZero(b, row.Seq)
			}
			tx.Emit(frames.EventObjectiveChanged, eventID(objects+2*n), makeRow(frames.KindObjective, id, n+1, payload, true))
			op := makeRow(frames.KindOperation, place(n), 1, payload, false)
			op.Principal = frames.KeyID{byte(n % 100), 1}
			tx.Emit(frames.EventOperationChanged, eventID(objects+2*n+1), op)
		}
		bed.commit(tx)
	}
	require.NoError(b, bed.s.Abandon())
}

// BenchmarkCheckpoint measures checkpoints of so many finished operations into a store of so
// many, per row.
func BenchmarkCheckpoint(b *testing.B) {
	payload := strings.Repeat("x", 120)
	for _, size := range []struct{ history, rows int }{{100_000, 65_536}, {1_000_000, 65_536}, {1_000_000, 262_144}} {
		b.Run(fmt.Sprintf("%d into %d", size.rows, size.history), func(b *testing.B) {
			bed := &bed{t: b, dir: b.TempDir(), opts: store.Options{UnsafeNoSync: true, Manual: true}}
			require.NoError(b, store.Create(bed.dir, store.Genesis{CoordinatorID: testID, CreatedAt: testTime}, bed.opts))
			bed.open()
			n := uint64(0)
			fill := func(rows int) {
				for ; rows > 0; rows -= 512 {
					tx := bed.s.Begin()
					for range 512 {
						n++
						tx.Emit(frames.EventOperationChanged, eventID(n), makeRow(frames.KindOperation, n*0x9e3779b97f4a7c15, 1, payload, false))
					}
					bed.commit(tx)
				}
			}
			for rows := size.history; rows > 0; rows -= size.rows {
				fill(size.rows)
				bed.checkpoint()
			}
			for b.Loop() {
				b.StopTimer()
				fill(size.rows)
				b.StartTimer()
				bed.checkpoint()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*size.rows), "ns/row")
			require.NoError(b, bed.s.Abandon())
		})
	}
}
