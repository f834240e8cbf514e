package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/internal/clock"
	"coordinator/internal/vterm"
)

// TestABarWhileASnapshotComes: it is on the terminal while the records come slowly, and nothing of it
// is left. There is none without a terminal, and none beside JSON.
func TestABarWhileASnapshotComes(t *testing.T) {
	t.Setenv("TERM", "xterm")
	f := newFake(t)
	f.records = oneOfEach(t)
	c := clock.NewManual(clock.Reading{})
	var x *vterm.TTY
	seen := false
	f.paged = func() {
		seen = false
		end := time.Now().Add(10 * time.Second)
		if x == nil { // nothing will come: as long as a bar would need
			c.Advance(time.Minute)
			return
		}
		for !seen && time.Now().Before(end) {
			c.Advance(100 * time.Millisecond) // its timer is set once the first records have come
			seen = x.Shows(10*time.Millisecond, "taking a snapshot  14 records")
		}
	}
	f.listen()
	ctl := func(args ...string) int {
		var err error
		x, err = vterm.Open(100, 30)
		require.NoError(t, err)
		a := &app{stdin: strings.NewReader(""), stdout: x.Slave, stderr: x.Slave, clock: c}
		code := a.execute(append([]string{"--context", f.path}, args...))
		x.Hangup()
		return code
	}
	file := filepath.Join(t.TempDir(), "kept")
	require.Equal(t, 0, ctl("snapshot", "save", file, "--admin", "--color", "never"))
	require.True(t, seen, "%s", x.Raw())
	require.NotContains(t, x.Text(), "taking")
	require.True(t, strings.HasPrefix(x.Text(), "file "), "%s", x.Text())
	x.Close()
	require.Equal(t, 0, ctl("snapshot", "verify", file))
	require.NotContains(t, x.Raw(), "checking", "what is over at once")
	x.Close()

	x = nil
	var out, errs bytes.Buffer
	a := &app{stdin: strings.NewReader(""), stdout: &out, stderr: &errs, clock: c}
	require.Equal(t, 0, a.execute([]string{"--context", f.path, "get", "admin"}))
	require.NotContains(t, out.String()+errs.String(), "\x1b")
	require.Empty(t, errs.String())

	j, err := vterm.Open(100, 30)
	require.NoError(t, err)
	defer j.Close()
	a = &app{stdin: strings.NewReader(""), stdout: j.Slave, stderr: j.Slave, clock: c}
	require.Equal(t, 0, a.execute([]string{"--context", f.path, "get", "admin", "-o", "json"}))
	j.Hangup()
	require.NotContains(t, j.Raw(), "\x1b")
	require.NotContains(t, j.Raw(), "taking")
}
