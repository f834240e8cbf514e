package measure

import (
	"math"
	"math/bits"
	"sync/atomic"
)

const (
	// subBuckets splits each power of two, which keeps the error under 1.6 %.
	subBuckets = 64
	// buckets reach beyond an hour in nanoseconds.
	buckets = 40 * subBuckets
)

// A Hist is a log-linear histogram of latencies. Record is safe for concurrent use.
type Hist struct{ count [buckets]atomic.Uint32 }

func bucket(ns int64) int {
	u := uint64(max(ns, 0))
	if u < 2*subBuckets {
		return int(u)
	}
	e := bits.Len64(u) - 7 // u>>e lies in [64, 128)
	return min(e*subBuckets+int(u>>uint(e)), buckets-1)
}

// middle is the value that stands for a bucket.
func middle(i int) float64 {
	if i < 2*subBuckets {
		return float64(i)
	}
	e := i/subBuckets - 1
	return math.Ldexp(float64(i-e*subBuckets)+0.5, e)
}

// Record counts one latency.
func (h *Hist) Record(ns int64) { h.count[bucket(ns)].Add(1) }

// Merge adds what o has counted.
func (h *Hist) Merge(o *Hist) {
	for i := range o.count {
		if n := o.count[i].Load(); n != 0 {
			h.count[i].Add(n)
		}
	}
}

// Quantile gives the q-quantile in nanoseconds, zero when nothing was counted.
func (h *Hist) Quantile(q float64) float64 {
	var total uint64
	for i := range h.count {
		total += uint64(h.count[i].Load())
	}
	want := max(uint64(math.Ceil(q*float64(total))), 1)
	var seen uint64
	for i := range h.count {
		if seen += uint64(h.count[i].Load()); seen >= want {
			return middle(i)
		}
	}
	return 0
}
