package main

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/codec"
	"coordinator/frames"
)

const runID = "02abcd00000000000000000000000001"

// aRun is the run of the tests in some state and revision.
func aRun(t *testing.T, revision byte, state frames.RunState, outcome ...byte) frames.SnapshotRecord {
	r := record(t, frames.KindRun, 1, &frames.Run{ObjectiveID: frames.ObjectiveID{1}, Attempt: 1, State: state, Outcome: outcome})
	r.Revision = frames.ObjectRevision(revision)
	return r
}

// begin runs a command line against the fake in the background.
func (f *fake) begin(args ...string) <-chan ran {
	done := make(chan ran, 1)
	go func() { done <- f.cli(args...) }()
	return done
}

// whileFollowed waits until n clients follow.
func (f *fake) whileFollowed(n int) {
	f.t.Helper()
	eventually(f.t, "it is followed", func() bool { return f.followers() == n })
}

func TestWaitForWhatIsAlreadyTrue(t *testing.T) {
	f := newFake(t)
	f.records = oneOfEach(t) // the run is Failed
	f.listen()
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"run", "02abcd", "--for", "ended"}, "run " + runID + " is Failed\n"},
		{[]string{"run", "02abcd", "--for", "state=failed"}, "run " + runID + " is Failed\n"},
		{[]string{"run", "02abcd", "--for", "state=Completed", "--for", "state=Failed"}, "run " + runID + " is Failed\n"},
		{[]string{"run", "02abcd", "--for", "state=Completed|Failed"}, "run " + runID + " is Failed\n"},
		{[]string{"run", "02abcd", "--for", "jsonpath={.payload.attempt}=2"}, "run " + runID + " is Failed\n"},
		{[]string{"run", "02abcd", "--for", "jsonpath={.payload.outcome}"}, "run " + runID + " is Failed\n"},
		{[]string{"signal", "06abcd", "--for", "state=Open"}, "signal 06abcd00000000000000000000000001 is Open\n"},
		{[]string{"operation", "07abcd00000000000000000000000002", "--for", "ended"}, "operation 07abcd00000000000000000000000002 is REJECTED\n"},
		{[]string{"artifact", "05abcd", "--for", "jsonpath={.payload.latest_revision}=4"}, "artifact 05abcd00000000000000000000000001 is there\n"},
		{[]string{"run", "02abcd", "--for", "ended", "-o", "jsonpath={.payload.state}"}, "Failed\n"},
	} {
		r := f.cli(append([]string{"wait"}, tt.args...)...)
		require.Equal(t, 0, r.code, "%v: %s", tt.args, r.errout)
		require.Equal(t, tt.want, r.out)
		require.Empty(t, r.errout)
	}
	var got map[string]any
	f.cli("wait", "run", "02abcd", "--for", "ended", "-o", "json").decode(t, &got)
	require.Equal(t, runID, got["id"])
}

func TestWaitForWhatCannotComeEndsAtOnce(t *testing.T) {
	f := newFake(t)
	f.records = oneOfEach(t)
	f.listen()
	for _, args := range [][]string{
		{"run", "02abcd", "--for", "state=Completed"},
		{"run", "02abcd", "--for", "state=Running", "--for", "state=Paused"},
		{"run", "02abcd", "--for", "jsonpath={.payload.outcome.exit_status}=0"},
		{"objective", "01abcd00000000000000000000000002", "--for", "state=Active"},
		{"binding", "04abcd", "--for", "state=Active"},
		{"operation", "07abcd00000000000000000000000001", "--for", "state=REJECTED"},
	} {
		r := f.cli(append([]string{"wait", "--timeout", "1h"}, args...)...)
		require.Equal(t, exitOther, r.code, "%v: %s", args, r.errout)
		require.Empty(t, r.out)
		require.Contains(t, r.errout, "cannot come any more", "%v", args)
	}
	require.Contains(t, f.cli("wait", "run", "02abcd", "--for", "state=Completed").errout, "run "+runID+" is Failed: state=Completed cannot come any more")
}

func TestWaitRefusals(t *testing.T) {
	f := newFake(t)
	f.records = oneOfEach(t)
	f.listen()
	for name, tt := range map[string]struct {
		args []string
		code int
		text string
	}{
		"nothing to wait for":  {[]string{"run", "02abcd"}, exitUsage, "--for state=Completed"},
		"no such record":       {[]string{"run", "02ffff", "--for", "ended"}, exitRefused, "NOT_FOUND"},
		"several records":      {[]string{"objective", "01abcd", "--for", "ended"}, exitUsage, "2 OBJECTIVE records"},
		"no such family":       {[]string{"thing", "02abcd", "--for", "ended"}, exitUsage, "no kind of record"},
		"no such state":        {[]string{"run", "02abcd", "--for", "state=Done"}, exitUsage, "they are Planned, Running, Paused, Completed, Cancelled, Failed"},
		"no such condition":    {[]string{"run", "02abcd", "--for", "Done"}, exitUsage, "it is state=NAME, ended, removed or jsonpath={PATH}=TEXT\n"},
		"a state alone":        {[]string{"run", "02abcd", "--for", "failed"}, exitUsage, "did you mean state=Failed?"},
		"a state mistyped":     {[]string{"run", "02abcd", "--for", "state=Complete"}, exitUsage, "did you mean Completed?"},
		"a family without one": {[]string{"artifact", "05abcd", "--for", "ended"}, exitUsage, "ARTIFACT records have no states"},
		"a wrong template":     {[]string{"run", "02abcd", "--for", "jsonpath={.a[}=1"}, exitUsage, "wrong at character"},
		"an id too short":      {[]string{"run", "02", "--for", "ended"}, exitUsage, "characters long"},
		"too few words":        {[]string{"run"}, exitUsage, "takes a kind and an id"},
		"a coordinator's":      {[]string{"coordinator", "--for", "ended"}, exitUsage, "takes no --for"},
	} {
		r := f.cli(append([]string{"wait"}, tt.args...)...)
		require.Equal(t, tt.code, r.code, "%s: %s", name, r.errout)
		require.Contains(t, r.errout, tt.text, name)
	}
}

// TestWaitSeesEachChange although it was short, over a lost connection too.
func TestWaitSeesEachChange(t *testing.T) {
	f := newFake(t)
	f.records = []frames.SnapshotRecord{aRun(t, 1, frames.RunPlanned)}
	f.listen()
	running := f.begin("wait", "run", "02abcd", "--for", "state=Running")
	exit := f.begin("wait", "run", "02abcd", "--for", "jsonpath={.payload.outcome.exit_status}=3", "-o", "yaml")
	never := f.begin("wait", "run", "02abcd", "--for", "state=Paused", "--for", "state=Completed")
	gone := f.begin("wait", "run", "02abcd", "--for", "removed")
	never2 := f.begin("wait", "run", "02abcd", "--for", "state=Completed", "--for", "jsonpath={.payload.attempt}=9")
	f.whileFollowed(5)
	f.cut()
	f.whileFollowed(5)
	f.happen(frames.EventRunChanged, aRun(t, 2, frames.RunRunning))
	f.happen(frames.EventRunChanged, aRun(t, 3, frames.RunFailed, 1, 0, 0, 0, 3))
	f.happen(frames.EventObjectRemoved, aRun(t, 4, frames.RunFailed))
	require.Equal(t, ran{code: 0, out: "run " + runID + " is Running\n"}, <-running)
	r := <-exit
	require.Equal(t, 0, r.code, r.errout)
	require.Contains(t, r.out, "exit_status: 3\n")
	for _, c := range []<-chan ran{never, never2} {
		r = <-c
		require.Equal(t, exitOther, r.code)
		require.Contains(t, r.errout, "is Failed: state=")
	}
	require.Equal(t, ran{code: 0, out: "run " + runID + " is gone\n"}, <-gone)
}

// TestAnInterruptedWaitIsNoSuccess: what stands behind it in a script must not begin.
func TestAnInterruptedWaitIsNoSuccess(t *testing.T) {
	f := newFake(t)
	f.records = []frames.SnapshotRecord{aRun(t, 1, frames.RunRunning),
		record(t, frames.KindOperation, 1, &frames.Operation{Result: frames.OperationResult{State: frames.OperationPending, Epoch: 7, Sequence: 5}})}
	f.listen()
	for _, args := range [][]string{{"wait", "run", "02abcd", "--for", "ended"}, {"op", "get", f.records[1].ID.String(), "-w"}} {
		ctx, interrupt := context.WithCancelCause(t.Context())
		a := &app{stdin: strings.NewReader(""), stdout: new(safeBuffer), stderr: new(safeBuffer)}
		root := a.root()
		root.SetArgs(append([]string{"--context", f.path}, args...))
		done := make(chan error, 1)
		go func() { done <- root.ExecuteContext(ctx) }()
		f.whileFollowed(1)
		interrupt(errInterrupted)
		err := <-done
		require.ErrorIs(t, err, errInterrupted, "%v", args)
		require.Equal(t, exitUnavailable, a.explain(err).code)
		f.whileFollowed(0)
	}
}

// TestWaitTellsOfLostHistory, which is found once, and takes what was lost for nothing that was removed.
func TestWaitTellsOfLostHistory(t *testing.T) {
	f := newFake(t)
	f.records = []frames.SnapshotRecord{aRun(t, 1, frames.RunRunning)}
	f.listen()
	require.Equal(t, exitDone, f.cli("status", "--counts").code)
	f.activate(8) // whose list does not hold activation 7
	running := f.cli("wait", "run", "02abcd", "--for", "state=Running")
	require.Equal(t, 0, running.code, running.errout)
	require.Contains(t, running.errout, "HISTORY_LOST")
	f.whileFollowed(0) // that one has left
	gone := f.begin("wait", "run", "02abcd", "--for", "removed")
	f.whileFollowed(1)
	f.mu.Lock()
	f.records = nil
	f.mu.Unlock()
	f.activate(9)
	f.cut()
	r := <-gone
	require.Equal(t, exitUnavailable, r.code, r.out)
	require.Contains(t, r.errout, "HISTORY_LOST")
	require.Empty(t, r.out)
}

func TestWaitWhoseTimeIsOver(t *testing.T) {
	f := newFake(t)
	f.records = []frames.SnapshotRecord{aRun(t, 1, frames.RunRunning)}
	r := f.cli("wait", "run", "02abcd", "--for", "ended", "--timeout", "100ms")
	require.Equal(t, exitUnavailable, r.code)
	require.Contains(t, r.errout, "no socket", "who was not there is said")
	f.listen()
	r = f.cli("wait", "run", "02abcd", "--for", "ended", "--timeout", "300ms")
	require.Equal(t, exitUnavailable, r.code)
	require.Equal(t, "coordctl: timed out after 300ms: run "+runID+" is Running\n  next: --timeout gives it longer\n", r.errout)
}

func TestWaitForACoordinator(t *testing.T) {
	f := newFake(t)
	missing := cli("--context", filepath.Join(t.TempDir(), "context.toml"), "wait", "coordinator", "--timeout", "250ms")
	require.Equal(t, exitUnavailable, missing.code)
	require.Contains(t, missing.errout, "does not exist")
	waited := f.begin("wait", "coordinator")
	f.listen()
	r := <-waited
	require.Equal(t, 0, r.code, r.errout)
	require.Contains(t, r.out, "serves at epoch 7")
	var o map[string]any
	f.cli("wait", "coordinator", "-o", "json").decode(t, &o)
	require.EqualValues(t, 7, o["authority_epoch"])
}

func TestWaitCompletes(t *testing.T) {
	require.Contains(t, cli("__complete", "wait", "").out, "coordinator")
	require.Contains(t, cli("__complete", "wait", "").out, "run\n")
	require.Contains(t, cli("__complete", "wait", "signal", "06abcd", "--for", "").out, "state=Acknowledged")
	require.NotContains(t, cli("__complete", "wait", "artifact", "05abcd", "--for", "").out, "state=")
}

// TestLivesNameEveryState that records show.
func TestLivesNameEveryState(t *testing.T) {
	payload := func(kind frames.ObjectKind, n uint8) codec.Message {
		switch kind {
		case frames.KindObjective:
			return &frames.Objective{State: frames.ObjectiveState(n)}
		case frames.KindRun:
			return &frames.Run{State: frames.RunState(n)}
		case frames.KindWorkSession:
			return &frames.WorkSession{State: frames.ActivityState(n)}
		case frames.KindBinding:
			return &frames.Binding{State: frames.ActivityState(n)}
		case frames.KindSignal:
			return &frames.Signal{State: frames.SignalState(n)}
		}
		return &frames.Operation{Result: frames.OperationResult{State: frames.OperationState(n)}}
	}
	for kind, l := range lives {
		for n, name := range l.names {
			_, state, _, err := payloadObject(payload(kind, uint8(n)))
			require.NoError(t, err)
			require.Equal(t, name, state, "%v", kind)
			for _, next := range l.next[name] {
				require.Contains(t, l.names, next)
			}
		}
		require.Subset(t, l.names, l.ended)
	}
}
