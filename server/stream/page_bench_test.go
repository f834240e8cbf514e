package stream

import (
	"crypto/sha256"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
	"coordinator/server/store"
)

// BenchmarkSnapshot makes the pages of a whole snapshot. It is measured against SHA-256
// over the same bytes, the part that no encoder can save.
func BenchmarkSnapshot(b *testing.B) {
	bed := newBenchIn(b, b.TempDir(), 64<<20, 0)
	for range 40 {
		bed.commit(func(tx *store.Tx) {
			for range 500 {
				bed.emit(tx, newID[frames.ObjectID](b), 1, 150)
			}
		})
	}
	s := bed.session()
	var made, hashed time.Duration
	b.ReportAllocs()
	for b.Loop() {
		size, start := 0, time.Now()
		begin := bed.open(s)
		for l := s.snapshots[begin.SnapshotID]; !l.complete.Load(); {
			r, err := s.Next(&frames.SnapshotNext{RequestID: 2, SnapshotID: l.id, Cursor: l.cursor})
			require.NoError(b, err)
			if r.Sent != nil {
				r.Sent()
			}
			read := time.Now()
			sha256.Sum256(r.Page)
			size += len(r.Page)
			Recycle(r.Page)
			hash := time.Since(read)
			hashed, start = hashed+hash, start.Add(hash)
		}
		made += time.Since(start)
		b.SetBytes(int64(size))
	}
	b.ReportMetric(float64(made)/float64(hashed), "times-SHA256")
}
