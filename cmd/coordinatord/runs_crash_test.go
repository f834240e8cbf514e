package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/client"
	"coordinator/codec"
	"coordinator/frames"
)

// counting is a run whose process says that it was started by adding a line to a file.
func (r *ownerRig) counting(c *client.Conn) (s *started, lines func() int) {
	r.t.Helper()
	file := filepath.Join(r.root, "started")
	s = r.start(c, "/bin/sh", "-c", fmt.Sprintf("echo x >> %q; echo output", file))
	return s, func() int {
		raw, err := os.ReadFile(file)
		if os.IsNotExist(err) {
			return 0
		}
		require.NoError(r.t, err)
		return strings.Count(string(raw), "\n")
	}
}

// judge checks that what the store says of a run agrees with what its process did.
func (r *ownerRig) judge(c *client.Conn, s *started, lines func() int) frames.OperationState {
	r.t.Helper()
	result := r.result(c, s.op)
	var closed frames.Closed
	switch result.State {
	case frames.OperationSucceeded:
		run := r.ended(c, s)
		if run.Outcome == nil { // its owner died with it, perhaps before its first line
			require.LessOrEqual(r.t, lines(), 1)
			require.Equal(r.t, frames.RunFailed, run.State)
			break
		}
		require.Equal(r.t, 1, lines())
		require.NoError(r.t, codec.DecodeImage(&closed, run.Outcome))
		if run.State != frames.RunCompleted {
			require.NotEqual(r.t, frames.Closed{Known: true}, closed)
		}
		events := r.replayed(c, func(e *client.Event) bool { return e.Kind == frames.EventEvidenceSealed })
		require.Equal(r.t, resealed(r.t, r.ctx.CoordinatorID, frames.BindingID(s.PendingBindingID), events), sealOf(r.t, events))
	case frames.OperationRejected:
		require.Zero(r.t, lines(), "%v %s", result.Code, result.Message)
		require.Equal(r.t, frames.RunFailed, r.run(c, s).State)
	case frames.OperationIndeterminate:
		require.LessOrEqual(r.t, lines(), 1)
		require.Equal(r.t, frames.RunPlanned, r.run(c, s).State, "nobody knows")
		_, err := r.command(c, frames.CommandCancelRun, &frames.RunCommand{RunID: s.RunID})
		require.NoError(r.t, err)
		require.Equal(r.t, frames.RunCancelled, r.run(c, s).State)
	}
	again, err := c.Command(r.t.Context(), s.cmd)
	require.NoError(r.t, err)
	require.Equal(r.t, result, again, "the same id gives the same answer")
	return result.State
}

// Wherever the coordinator dies in a run, the process is started at most once, and the next
// start tells the truth.
func TestC09_TheCoordinatorDiesInARun(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		point string
		want  frames.OperationState
	}{
		// The commits before the run are those of the activation, the registry and the objective.
		{"record-built=kill@4", frames.OperationSucceeded},
		{"record-synced=kill@4", frames.OperationSucceeded},
		{"published=kill@4", frames.OperationSucceeded},
		{"effect-marked=kill", frames.OperationRejected},
		{"effect-answered=kill", frames.OperationSucceeded},
		{"record-synced=kill@6", frames.OperationSucceeded},
		{"effect-applied=kill", frames.OperationSucceeded},
		{"facts-committed=kill", frames.OperationSucceeded},
		{"facts-acknowledged=kill", frames.OperationSucceeded},
	} {
		t.Run(tt.point, func(t *testing.T) {
			t.Parallel()
			r := withOwner(t)
			p := r.serve("COORDINATOR_FAILPOINT=" + tt.point)
			p.ready()
			c := r.dial()
			s, lines := r.counting(c)
			require.Eventually(t, func() bool {
				_, err := c.Command(t.Context(), s.cmd)
				return !refusedWith(err, frames.CodeNotFound) // the link is up
			}, waitFor, tick)
			require.Equal(t, -1, p.ends(), "the point was met")
			c.Close()
			r.serve().ready()
			c = r.dial()
			defer c.Close()
			r.send(c, s.cmd)
			require.Equal(t, tt.want, r.judge(c, s, lines))
		})
	}
}

// A coordinator that dies behind its second batch of facts has already shown the first.
func TestC09_TheCoordinatorDiesBehindLaterFacts(t *testing.T) {
	t.Parallel()
	r := withOwner(t)
	p := r.serve("COORDINATOR_FAILPOINT=facts-committed=kill@2")
	p.ready()
	c := r.dial()
	started, gate := filepath.Join(r.root, "started"), filepath.Join(r.root, "go")
	s := r.start(c, "/bin/sh", "-c", fmt.Sprintf("echo x >> %q; until test -e %q; do sleep 0.02; done", started, gate))
	r.send(c, s.cmd)
	r.replayed(c, func(e *client.Event) bool { return e.Kind == frames.EventSourceFactAdmitted })
	require.NoError(t, os.WriteFile(gate, nil, 0o600)) // what it does from here is a second batch
	require.Equal(t, -1, p.ends(), "the point was met")
	c.Close()
	r.serve().ready()
	c = r.dial()
	defer c.Close()
	lines := func() int {
		raw, err := os.ReadFile(started)
		require.NoError(t, err)
		return strings.Count(string(raw), "\n")
	}
	require.Equal(t, frames.OperationSucceeded, r.judge(c, s, lines))
}

// Wherever the owner dies in a run, likewise.
func TestC09_TheOwnerDiesInARun(t *testing.T) {
	t.Parallel()
	for _, point := range []string{
		"owner-dispatch", "owner-intent", "owner-forked", "owner-held", "owner-released", "owner-outcome", "owner-exited",
	} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			r := withOwner(t)
			require.Equal(t, 0, r.process.stop())
			r.startOwner("COORDINATOR_FAILPOINT=" + point + "=kill")
			r.serve().ready()
			c := r.dial()
			defer c.Close()
			s, lines := r.counting(c)
			r.send(c, s.cmd)
			require.Equal(t, -1, r.process.ends(), "the point was met")
			r.startOwner()
			r.judge(c, s, lines)
		})
	}
}

// A coordinator that is killed while the process runs finds it running.
func TestC06_ARunOutlivesItsCoordinator(t *testing.T) {
	t.Parallel()
	r := withOwner(t)
	p := r.serve()
	p.ready()
	c := r.dial()
	gate := filepath.Join(r.root, "go")
	s := r.start(c, "/bin/sh", "-c", fmt.Sprintf("echo before; until test -e %q; do sleep 0.02; done; echo after", gate))
	r.send(c, s.cmd)
	require.Equal(t, frames.OperationSucceeded, r.result(c, s.op).State)
	c.Close()
	p.kill()
	require.NoError(t, os.WriteFile(gate, nil, 0o600)) // it ends while nobody listens
	r.serve().ready()
	c = r.dial()
	defer c.Close()
	require.Equal(t, frames.RunCompleted, r.ended(c, s).State)
	events := r.replayed(c, func(e *client.Event) bool { return e.Kind == frames.EventEvidenceSealed })
	require.Equal(t, resealed(t, r.ctx.CoordinatorID, frames.BindingID(s.PendingBindingID), events), sealOf(t, events))
}
