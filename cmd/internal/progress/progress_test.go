package progress

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"coordinator/internal/clock"
	"coordinator/internal/vterm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A tty is a terminal of 80 columns.
type tty struct {
	*vterm.TTY
	t *testing.T
}

func open(t *testing.T) *tty {
	x, err := vterm.Open(80, 6)
	require.NoError(t, err)
	t.Cleanup(x.Close)
	return &tty{x, t}
}

// shows waits until the terminal shows text and nothing else.
func (x *tty) shows(text string) {
	x.t.Helper()
	if !x.Wait(10*time.Second, func(shown string) bool { return shown == text }) {
		x.t.Fatalf("%q is shown, not %q", x.Text(), text)
	}
}

func xterm(string) string { return "xterm" }

func TestABarComesAndGoes(t *testing.T) {
	x := open(t)
	c := clock.NewManual(clock.Reading{Wall: time.Unix(1_800_000_000, 0)})
	b := New(x.Slave, Options{Clock: c, Env: xterm})
	require.True(t, b.On())
	out := b.Over(x.Slave)
	tell := b.Begin("copying", "")
	tell(1<<20, 4<<20)
	c.Advance(after - 1)
	fmt.Fprintln(out, "a line")
	x.shows("a line")
	c.Advance(1)
	x.shows("a line\ncopying  [##########------------------------------]  25%  1.0 MiB of 4.0 MiB")
	fmt.Fprintln(out, "another")
	x.shows("a line\nanother")
	tell(3<<20, 4<<20)
	c.Advance(2 * time.Second)
	x.shows("a line\nanother\ncopying  [###############-----]  75%  3.0 MiB of 4.0 MiB  1.2 MiB/s  1s left")
	rows := b.Begin("counting the rows", "rows")
	rows(12345, 0)
	c.Advance(every)
	x.shows("a line\nanother\ncounting the rows  12,345 rows  0s")
	b.End()
	x.shows("a line\nanother")
	b.End() // once more is no more
	fmt.Fprintln(x.Slave, "the result")
	x.shows("a line\nanother\nthe result")

	b.Tell("again", "rows", 1, 2)
	b.Tell("again", "rows", 2, 2)
	c.Advance(after)
	x.shows("a line\nanother\nthe result\nagain  [########################################] 100%  2 of 2 rows")
	b.End()
	x.shows("a line\nanother\nthe result")
}

// TestNothingIsShown of what is over soon, and where nobody looks on.
func TestNothingIsShown(t *testing.T) {
	x := open(t)
	dumb := func(string) string { return "dumb" }
	var pipe bytes.Buffer
	for name, make := range map[string]func(c clock.Clock) *Bar{
		"no terminal":     func(c clock.Clock) *Bar { return New(&pipe, Options{Clock: c, Env: xterm}) },
		"a dumb terminal": func(c clock.Clock) *Bar { return New(x.Slave, Options{Clock: c, Env: dumb}) },
		"JSON":            func(c clock.Clock) *Bar { return New(x.Slave, Options{Clock: c, Env: xterm, Off: true}) },
	} {
		c := clock.NewManual(clock.Reading{})
		b := make(c)
		require.False(t, b.On(), name)
		b.Begin("work", "")(1, 2)
		b.Tell("work", "", 1, 2)
		c.Advance(time.Hour)
		require.Equal(t, io.Writer(&pipe), b.Over(&pipe), name)
		b.End()
	}
	c := clock.NewManual(clock.Reading{})
	b := New(x.Slave, Options{Clock: c, Env: xterm})
	b.Begin("soon over", "")(1, 2)
	c.Advance(after - 1)
	b.End()
	fmt.Fprintln(x.Slave, "the end")
	x.shows("the end")
	require.Equal(t, "the end\n", x.Raw())
	require.Empty(t, pipe.String())
}

// TestLines fit, and say what is known.
func TestLines(t *testing.T) {
	for _, tt := range []struct {
		what, unit  string
		done, total int64
		passed      time.Duration
		columns     int
		want        string
	}{
		{"copying", "", 0, 0, 3 * time.Second, 79, "copying  3s"},
		{"copying", "", 512, 0, 3 * time.Second, 79, "copying  512 B  171 B/s  3s"},
		{"reading", "events", 1_500_000, 3_000_000, 100 * time.Second, 100, "reading  [##########----------]  50%  1,500,000 of 3,000,000 events  15,000/s  1m40s left"},
		{"reading", "events", 1_500_000, 3_000_000, 100 * time.Second, 60, "reading   50%  1,500,000 of 3,000,000 events  15,000/s  1m40"},
		{"copying", "", 5 << 30, 4 << 30, 2 * time.Second, 200, "copying  [" + strings.Repeat("#", 40) + "] 100%  4.0 GiB of 4.0 GiB  2.0 GiB/s  0s left"},
		{"copying", "", 1, 1 << 60, time.Minute, 79, "copying  [--------------------]   0%  1 B of 1048576 TiB  0 B/s  long left"},
		{"copying", "", -5, 0, 0, 79, "copying  0s"},
		{"copying", "", 5, 10, 0, 3, "cop"},
		{"copying", "", 5, 10, 0, -1, ""},
	} {
		s := &step{what: tt.what, unit: tt.unit}
		s.done.Store(tt.done)
		s.total.Store(tt.total)
		line := s.line(tt.passed, tt.columns)
		require.Equal(t, tt.want, line)
	}
	require.Equal(t, "2h05m", lasting(2*time.Hour+5*time.Minute))
	require.Equal(t, "-1,234", grouped(-1234))
}

// TestReportsFromManyGoroutines while lines are written and steps change.
func TestReportsFromManyGoroutines(t *testing.T) {
	x := open(t)
	c := clock.NewManual(clock.Reading{})
	b := New(x.Slave, Options{Clock: c, Env: xterm})
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for n := range int64(200) {
				b.Tell(fmt.Sprintf("step %d", n/50), "things", n, 200)
				if i == 0 {
					c.Advance(every)
					fmt.Fprint(b.Over(x.Slave), "")
				}
			}
		})
	}
	all.Wait()
	b.End()
	fmt.Fprint(x.Slave, "over")
	x.shows("over")
}
