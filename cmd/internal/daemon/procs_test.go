package daemon

import (
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// One more goroutine may run while commits are made for many, and no longer.
func TestProcsFollowTheLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int32
		p := tendProcs(func() { n.Add(1) }, func() { n.Store(0) })
		defer p.Stop()
		commits := func(items int, d time.Duration) {
			for end := time.Now().Add(d); time.Now().Before(end); {
				time.Sleep(10 * time.Millisecond)
				p.Commit(items)
			}
		}
		commits(1, 5*time.Second)
		require.Zero(t, n.Load(), "commands that come one at a time")
		commits(32, procsLook+20*time.Millisecond)
		require.EqualValues(t, 1, n.Load())
		commits(32, 5*time.Second)
		require.EqualValues(t, 1, n.Load(), "it is raised once")
		commits(1, procsRest+procsLook)
		require.Zero(t, n.Load(), "the crowd has gone")
		commits(32, time.Second)
		require.EqualValues(t, 1, n.Load())
		time.Sleep(procsRest + procsLook)
		require.Zero(t, n.Load(), "nothing happens any more")
		commits(32, time.Second)
		p.Stop()
		require.Zero(t, n.Load())
		commits(32, time.Second)
		require.Zero(t, n.Load())
	})
}

func TestProcsOfThisProcess(t *testing.T) {
	t.Setenv("GOMAXPROCS", "")
	usual := runtime.GOMAXPROCS(0)
	p := TendProcs()
	defer p.Stop()
	require.Eventually(t, func() bool { p.Commit(100); return runtime.GOMAXPROCS(0) == usual+1 }, time.Minute, time.Millisecond)
	p.Stop()
	require.Equal(t, usual, runtime.GOMAXPROCS(0))

	t.Setenv("GOMAXPROCS", "7") // whoever says what he wants gets it
	p = TendProcs()
	for end := time.Now().Add(2 * procsLook); time.Now().Before(end); {
		p.Commit(100)
	}
	p.Stop()
	require.Equal(t, usual, runtime.GOMAXPROCS(0))
}
