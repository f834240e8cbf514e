package clock

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var start = Reading{Wall: time.Unix(1_800_000_000, 0), Boot: time.Hour}

func TestSystemReadsBothClocks(t *testing.T) {
	c := System()
	a := c.Now()
	b := c.Now()
	require.Greater(t, a.Boot, time.Duration(0))
	require.GreaterOrEqual(t, b.Boot, a.Boot)
	require.WithinDuration(t, time.Now(), b.Wall, time.Minute)
	require.Equal(t, a.Wall.Round(0), a.Wall, "the wall half keeps a monotonic part, which hides steps")
}

func TestSystemTimerFires(t *testing.T) {
	timer := System().NewTimer(time.Hour)
	require.True(t, timer.Stop())
	timer.Reset(0)
	<-timer.C()
	require.False(t, timer.Stop())
}

func TestRuntimeMovesInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := Runtime()
		a := c.Now()
		<-c.NewTimer(90 * time.Second).C()
		b := c.Now()
		require.Equal(t, 90*time.Second, b.Boot-a.Boot)
		require.Equal(t, 90*time.Second, b.Wall.Sub(a.Wall))
	})
}

func TestBootID(t *testing.T) {
	a, err := BootID()
	require.NoError(t, err)
	require.Len(t, a, 36)
	b, err := BootID()
	require.NoError(t, err)
	require.Equal(t, a, b)
}

func TestReadingUnix(t *testing.T) {
	require.Equal(t, uint64(1_800_000_000), start.Unix())
	require.Equal(t, uint64(0), Reading{Wall: time.Unix(-5, 0)}.Unix())
}

func TestManualStepMovesTheWallAlone(t *testing.T) {
	m := NewManual(start)
	timer := m.NewTimer(time.Second)
	m.StepWall(-time.Hour)
	require.Equal(t, start.Boot, m.Now().Boot)
	require.Equal(t, start.Wall.Add(-time.Hour), m.Now().Wall)
	require.Empty(t, timer.C())
	m.Advance(time.Second)
	require.Len(t, timer.C(), 1)
}

func TestManualTimersFireInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := NewManual(start)
		delays := rapid.SliceOfN(rapid.IntRange(1, 20), 1, 12).Draw(t, "delays")
		timers := make([]Timer, len(delays))
		for i, d := range delays {
			timers[i] = m.NewTimer(time.Duration(d) * time.Second)
		}
		limit := rapid.IntRange(0, 25).Draw(t, "limit")
		m.Advance(time.Duration(limit) * time.Second)
		for i, d := range delays {
			select {
			case at := <-timers[i].C():
				if d > limit || !at.Equal(start.Wall.Add(time.Duration(d)*time.Second)) {
					t.Fatalf("timer of %d s fired at %v after %d s", d, at, limit)
				}
			default:
				if d <= limit {
					t.Fatalf("timer of %d s did not fire after %d s", d, limit)
				}
			}
		}
		late := slices.DeleteFunc(slices.Clone(delays), func(d int) bool { return d <= limit })
		require.Equal(t, len(late), m.Timers())
	})
}

func TestManualStopAndResetLeaveNoStaleValue(t *testing.T) {
	m := NewManual(start)
	timer := m.NewTimer(time.Second)
	m.Advance(time.Second)
	require.False(t, timer.Stop(), "already fired")
	require.Empty(t, timer.C())
	timer.Reset(2 * time.Second)
	require.True(t, timer.Stop())
	m.Advance(time.Minute)
	require.Empty(t, timer.C())
	timer.Reset(0)
	require.Len(t, timer.C(), 1)
	require.Zero(t, m.Timers())
}
