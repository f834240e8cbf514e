package stream

import (
	"runtime"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
	"coordinator/server/store"
)

// TestTheBacklogIsTheSameInWindowAndLog holds the two ways of counting what a new
// subscription has missed to each other, for every cut, head and credit.
func TestTheBacklogIsTheSameInWindowAndLog(t *testing.T) {
	b := newBench(t)
	b.viewer.Scope &^= frames.ScopeAdmin
	s := b.session()
	for n := range 70 {
		b.write(1)
		b.commit(func(tx *store.Tx) { b.operation(tx, frames.KeyID{byte(1 + n%3)}) }) // some of others
	}
	last := b.head()
	b.write(3) // behind every head
	for _, head := range []frames.EventCut{0, 1, 63, last - 1, last} {
		for after := frames.EventCut(0); after <= head; after++ {
			for _, credit := range []volume{{}, {1, plentyBytes}, {10, plentyBytes}, {plentyEvents, 1000}, {plentyEvents, plentyBytes}} {
				got, ok := s.recent(after, head, credit)
				require.True(t, ok)
				want, err := s.logged(after, head, credit)
				require.NoError(t, err)
				require.Equal(t, want, got, "events from %d to %d, credit %v", after, head, credit)
			}
		}
	}
	small := newBenchIn(t, t.TempDir(), 1<<20, 1)
	small.write(5)
	_, ok := small.session().recent(1, small.head(), volume{})
	require.False(t, ok, "the window begins later")
}

// TestAnIdleSubscriptionIsSmall bounds what one takes, its share of lists included, and what
// is left for the collector once it is made: of memory that does not shrink, both are.
func TestAnIdleSubscriptionIsSmall(t *testing.T) {
	require.LessOrEqual(t, unsafe.Sizeof(subscription{}), uintptr(176))
	b := newBench(t)
	b.write(3)
	s := b.session()
	const n = 3
	req := &frames.Subscribe{RequestID: 1, CreditCount: 1, CreditBytes: plentyBytes}
	b.subscribe(s, 0, 1, plentyBytes)
	least := uint64(1 << 20)
	for range 5 { // other goroutines of the test may allocate
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range n {
			_, err := s.Subscribe(req)
			require.NoError(t, err)
		}
		runtime.ReadMemStats(&after)
		least = min(least, (after.TotalAlloc-before.TotalAlloc)/n)
	}
	require.LessOrEqual(t, least, uint64(400))
}
