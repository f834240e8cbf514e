package store_test

import (
	"fmt"
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
