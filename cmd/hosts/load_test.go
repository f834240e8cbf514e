//go:build linux

package hosts

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/internal/netlab"
)

// A working is a client that runs on a host.
type working struct {
	t    *testing.T
	cmd  *exec.Cmd
	in   io.Closer
	done chan struct{}

	mu    sync.Mutex
	lines []line // guarded by mu
}

// begin starts a client.
func (s *system) begin(h *netlab.Host, context, does string) *working {
	s.t.Helper()
	w := &working{t: s.t, cmd: h.Command(os.Args[0]), done: make(chan struct{})}
	w.cmd.Env = append(os.Environ(), clientContext+"="+context, clientDoes+"="+does)
	w.cmd.Stderr = os.Stderr
	in, err := w.cmd.StdinPipe()
	require.NoError(s.t, err)
	out, err := w.cmd.StdoutPipe()
	require.NoError(s.t, err)
	w.in = in
	require.NoError(s.t, w.cmd.Start())
	go func() {
		defer close(w.done)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var l line
			if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
				l.Error = err.Error()
			}
			w.mu.Lock()
			w.lines = append(w.lines, l)
			w.mu.Unlock()
		}
	}()
	s.t.Cleanup(func() {
		w.cmd.Process.Kill() //nolint:errcheck // it may have ended
		<-w.done
		w.cmd.Wait() //nolint:errcheck // it may have been waited for
	})
	return w
}

// said is what the client has said so far.
func (w *working) said() []line {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lines[:len(w.lines):len(w.lines)]
}

// saysFrom waits for a line behind the first n of which ok is true, and gives how many lines
// there then are up to it.
func (w *working) saysFrom(n int, what string, ok func(line) bool) int {
	w.t.Helper()
	at := n
	eventually(w.t, what, func() bool {
		for said := w.said(); at < len(said); {
			if at++; ok(said[at-1]) {
				return true
			}
		}
		return false
	})
	return at
}

// goesOn waits until commands are acknowledged that were not before the call.
func (w *working) goesOn() {
	w.t.Helper()
	before := len(w.said())
	eventually(w.t, "the work goes on", func() bool { return len(w.said()) >= before+2*workers })
}

// stop ends the client and gives what it said; none of it is an error.
func (w *working) stop() []line {
	w.t.Helper()
	require.NoError(w.t, w.in.Close())
	<-w.done
	require.NoError(w.t, w.cmd.Wait())
	for _, l := range w.lines {
		require.Empty(w.t, l.Error, "%+v", l)
	}
	return w.lines
}

// stopped is stop of a client that worked: the objectives that were acknowledged to it.
func (w *working) stopped() map[string]int {
	w.t.Helper()
	acked := make(map[string]int)
	for _, l := range w.stop() {
		acked[l.Objective]++
	}
	require.NotEmpty(w.t, acked)
	return acked
}

// objectives are those that a verified snapshot shows, each once, without those of runs.
func (s *system) objectives() map[string]int {
	s.t.Helper()
	var records []struct {
		ID      string
		Payload struct{ Document map[string]any }
	}
	s.get(&records, "objective")
	out := make(map[string]int)
	for _, r := range records {
		if _, is := r.Payload.Document["number"]; is {
			out[r.ID]++
		}
	}
	return out
}

// get reads the records of one kind, as JSON shows them.
func (s *system) get(into any, kind string) {
	s.t.Helper()
	got := s.ctl("get", kind, "-o", "json", "--wait", "60s", "--timeout", "60s")
	require.Zero(s.t, got.code, got.errs)
	require.NoError(s.t, json.Unmarshal([]byte(got.out), into))
}
