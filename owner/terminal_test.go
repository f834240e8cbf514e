//go:build linux

package owner

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"syscall"
	"testing"

	"coordinator/frames"
	"coordinator/internal/clock"

	"github.com/stretchr/testify/require"
)

// releasedChild starts a line of sh without an owner around it.
func releasedChild(t *testing.T, line string) *ptyChild {
	t.Helper()
	h, err := ptyLauncher{}.hold(24, 80)
	require.NoError(t, err)
	c, err := h.release(command{argv: []string{"/bin/sh", "-c", line}, env: []string{"PATH=/usr/bin:/bin"}, cwd: "/"})
	require.NoError(t, err)
	t.Cleanup(c.hangup)
	return c.(*ptyChild)
}

// What the process wrote is its output even when a descendant has to be cut off, and even when
// nobody had come to read it yet.
func TestOutputBeforeTheCutIsKept(t *testing.T) {
	c := releasedChild(t, `printf abc; setsid sh -c 'trap "" HUP; echo $$ >&9; exec sleep 60' 9>&1 & sleep 0.3; exit 3`)
	require.Equal(t, frames.Closed{Known: true, Status: 3}, c.wait())
	require.True(t, c.held())
	c.cut()
	out, err := io.ReadAll(c)
	require.NoError(t, err)
	text, found := strings.CutPrefix(string(out), "abc")
	require.True(t, found, "%q", out)
	var pid int
	_, err = fmt.Sscan(text, &pid)
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
}

// A descendant that goes on writing does not prolong the reading behind the cut.
func TestReadingBehindTheCutIsBounded(t *testing.T) {
	c := releasedChild(t, `setsid sh -c 'trap "" HUP; echo $$ >&9; exec yes' 9>&1 & sleep 0.3; exit 0`)
	reading := make(chan string)
	go func() {
		out, _ := io.ReadAll(c)
		reading <- string(out)
	}()
	require.Equal(t, frames.Closed{Known: true}, c.wait())
	require.True(t, c.held())
	c.cut()
	out := <-reading
	require.LessOrEqual(t, c.late, maxLate)
	c.late = maxLate - 1
	rest, err := io.ReadAll(c)
	require.NoError(t, err)
	require.LessOrEqual(t, len(rest), 1)
	var pid int
	_, err = fmt.Sscan(out, &pid)
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
}

// Once everybody has let go nobody holds the terminal, whatever is still to be read.
func TestTerminalThatNobodyHolds(t *testing.T) {
	c := releasedChild(t, `printf abc`)
	require.Equal(t, frames.Closed{Known: true}, c.wait())
	require.False(t, c.held())
	out, err := io.ReadAll(c)
	require.NoError(t, err)
	require.Equal(t, "abc", string(out))
}

// The grace is a descendant's. A process that leaves no descendant is read to its end and is
// not reported, however short the grace is and however slow this side.
func TestNoGraceTruncatesNothing(t *testing.T) {
	c := newStation(t, nil).coordinator(1)
	var all sync.WaitGroup
	runs := make(chan *running, 24)
	for range cap(runs) {
		all.Go(func() {
			runs <- c.run(&Document{Argv: []string{"/bin/sh", "-c", "stty -onlcr; seq 1 4000"}, GraceSecs: secs(0)})
		})
	}
	all.Wait()
	close(runs)
	for r := range runs {
		r.requireExit(0)
		_, facts := r.closed()
		require.Empty(t, attentions(t, facts))
		out := r.output()
		require.True(t, strings.HasSuffix(string(out), "\n3999\n4000\n"), "%d bytes", len(out))
		require.EqualValues(t, len(out), ranges(t, facts, out))
	}
}

// The same where the order is given: the alarm rings before anything was read.
func TestSlowReadingIsNoDescendant(t *testing.T) {
	fake := newFakeLauncher()
	clk := clock.NewManual(clock.System().Now())
	s := newStation(t, func(o *Options) { o.launch, o.Clock = fake, clk })
	c := s.coordinator(1)
	a := c.newSpawn(&Document{Argv: []string{"x"}})
	require.Equal(t, frames.EffectSucceeded, c.dispatch(a).State)
	id := frames.BindingID(a.Target.PendingBindingID)
	ch := fake.child(1)
	ch.asked = make(chan struct{})
	before := clk.Timers()
	ch.exited <- frames.Closed{Known: true}
	c.eventually("the alarm is set", func() bool { return clk.Timers() == before+1 })
	for range 2 { // whenever it rings
		clk.Advance(defaultGraceSecs * 1e9)
		<-ch.asked
		c.eventually("the alarm is set again", func() bool { return clk.Timers() == before+1 })
	}
	_, err := ch.w.Write([]byte("late"))
	require.NoError(t, err)
	require.NoError(t, ch.w.Close())
	c.eventually("the end", func() bool { return s.o.Processes() == 0 })
	require.NoError(t, c.OpenFacts(t.Context(), c.guard(), id, 0, 100))
	c.eventually("CLOSED", func() bool { return len(c.in.of(id)) == 3 })
	facts := c.in.of(id)
	require.EqualValues(t, 4, ranges(t, facts, []byte("late")))
	require.Equal(t, frames.FactClosed, facts[2].Kind)
}
