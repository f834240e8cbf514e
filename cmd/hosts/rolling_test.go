//go:build linux

package hosts

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"coordinator/internal/netlab"
)

// Each daemon in turn is stopped in order, and killed, while clients on another host create
// objectives and start processes. No command fails for whoever gave it, each that was
// acknowledged is there once, and no process is started twice.
func TestRollingRestarts(t *testing.T) {
	t.Parallel()
	s := newSystem(t, shortLease, netlab.Options{})
	s.lab.Fault(netlab.Faults{Delay: 5 * time.Millisecond, Loss: 0.01})
	dir := t.TempDir()
	started := filepath.Join(dir, "started")
	objectives := s.begin(s.user, s.context, doesLoad)

	var over atomic.Bool
	var admitted atomic.Int64
	var runs errgroup.Group
	const runners = 2
	for i := range runners {
		runs.Go(func() error {
			for n := i; !over.Load(); n += runners {
				// An append of a short line is whole.
				got, err := s.tryCtl("run", "--cwd", dir, "--detach", "--wait", "60s", "--timeout", "90s", "--title", "rolling",
					"--", "sh", "-c", fmt.Sprintf("echo %d >>%s", n, started))
				if err != nil {
					return err
				}
				if got.code != 0 {
					return fmt.Errorf("run %d ended with %d: %s", n, got.code, got.errs)
				}
				admitted.Add(1)
			}
			return nil
		})
	}
	goOn := func() {
		t.Helper()
		acked, before := len(objectives.said()), admitted.Load()
		eventually(t, "objectives and runs go on", func() bool {
			s.tend() // a witness that was away for too long ended it
			return len(objectives.said()) >= acked+2*workers && admitted.Load() > before
		})
	}
	goOn()
	for _, program := range []string{"witnessd", "ownerd", "coordinatord"} {
		d := s.daemons[program]
		d.stop()
		d = s.start(program)
		goOn()
		d.kill()
		s.start(program)
		goOn()
	}
	over.Store(true)
	require.NoError(t, runs.Wait())
	acked := objectives.stopped()
	require.Equal(t, acked, s.objectives())

	s.settled()
	raw, err := os.ReadFile(started)
	require.NoError(t, err)
	times := make(map[string]int)
	for line := range strings.Lines(string(raw)) {
		times[strings.TrimSpace(line)]++
	}
	for n, count := range times {
		require.Equal(t, 1, count, "run %s", n)
		_, err := strconv.Atoi(n)
		require.NoError(t, err)
	}
	// A run whose process ended with its owner has failed, as has one that the owner never saw.
	// One that the owner was killed in the middle of starting stays planned: nobody knows.
	states := s.runStates()
	require.EqualValues(t, admitted.Load(), states["Completed"]+states["Failed"]+states["Planned"], "%v", states)
	require.GreaterOrEqual(t, len(times), states["Completed"], "a run that completed has run")
	require.LessOrEqual(t, states["Planned"], 2*runners, "of the two restarts of the owner")
	t.Logf("%d objectives, %d runs admitted, %d started, %v", len(acked), admitted.Load(), len(times), states)
}

// settled waits until the coordinator has nothing more to learn of any run.
func (s *system) settled() {
	s.t.Helper()
	eventually(s.t, "every effect has its outcome and every process its end", func() bool {
		for _, series := range []string{`coordinator_outbox_effects{state="ready"}`, `coordinator_outbox_effects{state="dispatched"}`, "coordinator_bindings_active"} {
			if s.metric("coordinatord", series) != "0" {
				return false
			}
		}
		return true
	})
}

// runStates counts runs by their state.
func (s *system) runStates() map[string]int {
	s.t.Helper()
	var records []struct {
		Payload struct{ State string }
	}
	s.get(&records, "run")
	out := make(map[string]int)
	for _, r := range records {
		out[r.Payload.State]++
	}
	return out
}
