package store

import "testing"

// BenchmarkFlushMeter is what a commit pays for the measuring of its flush.
func BenchmarkFlushMeter(b *testing.B) {
	m := newMeters()
	b.ReportAllocs()
	for b.Loop() {
		watch := startWatch()
		watch.took(m.Flush)
	}
}
