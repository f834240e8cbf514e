package clock

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAnchorWorksOutBoottime(t *testing.T) {
	base := time.Now()
	a := (*anchor)(nil).next(base, time.Hour)
	for _, passed := range []time.Duration{0, 1, time.Microsecond, anchorLife, -anchorLife} {
		r, ok := a.reading(base.Add(passed))
		require.True(t, ok, "%v", passed)
		require.Equal(t, time.Hour+passed, r.Boot)
		require.True(t, r.Wall.Equal(base.Round(0).Add(passed)))
		require.Equal(t, r.Wall.Round(0), r.Wall, "the wall half keeps a monotonic part, which hides steps")
	}
}

func TestAnchorAsksTheSystem(t *testing.T) {
	base := time.Now()
	at := func(slept time.Duration) *anchor { // what was anchored before the wall clock went that far ahead
		a := (*anchor)(nil).next(base, time.Hour)
		a.wall = a.wall.Add(-slept)
		return a
	}
	for name, c := range map[string]struct {
		a   *anchor
		now time.Time
	}{
		"nothing anchored":  {nil, base},
		"too long ago":      {at(0), base.Add(anchorLife + 1)},
		"asleep":            {at(anchorSlip + 1), base.Add(time.Millisecond)},
		"the wall set back": {at(-anchorSlip - 1), base.Add(time.Millisecond)},
	} {
		_, ok := c.a.reading(c.now)
		require.False(t, ok, name)
	}
	for _, slip := range []time.Duration{anchorSlip, -anchorSlip} {
		_, ok := at(slip).reading(base)
		require.True(t, ok, "slewing is none of these")
	}
}

func TestAnchorsAgreeUnlessThereWasSleep(t *testing.T) {
	base := time.Now()
	a := (*anchor)(nil).next(base, time.Hour)
	later := base.Add(time.Minute)
	for _, read := range []time.Duration{-anchorSlip, -maxAnchorGap, 0, maxAnchorGap, anchorSlip} {
		require.Equal(t, time.Hour+time.Minute, a.next(later, time.Hour+time.Minute+read).boot, "%v", read)
	}
	require.Equal(t, 2*time.Hour, a.next(later, 2*time.Hour).boot, "an hour but a minute was slept")
	require.Equal(t, time.Hour+time.Minute, a.least(later))
	require.Zero(t, (*anchor)(nil).least(later))
}

func TestSystemNeverGoesBack(t *testing.T) {
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			var last Reading
			for end := time.Now().Add(3 * anchorLife); time.Now().Before(end); {
				low := bootTime()
				r := System().Now()
				high := bootTime()
				if r.Boot < last.Boot || r.Boot < low-anchorSlip || r.Boot > high+anchorSlip {
					t.Errorf("read %v after %v, between %v and %v", r.Boot, last.Boot, low, high)
					return
				}
				last = r
			}
		})
	}
	readers.Wait()
}
