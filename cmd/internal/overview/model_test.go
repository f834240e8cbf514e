package overview

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"coordinator/client"
	"coordinator/frames"
)

// TestOrder puts what wants attention first in every table.
func TestOrder(t *testing.T) {
	g := newRig(t, Options{})
	g.reread(client.RereadFirst)
	g.refresh()
	g.objective(1, "zebra", frames.ObjectiveActive)
	g.objective(2, "ended", frames.ObjectiveCompleted)
	g.objective(3, "idle", frames.ObjectiveActive)
	g.objective(4, "busy", frames.ObjectiveActive)
	g.objective(5, "failed", frames.ObjectiveActive)
	g.life(1, 1, frames.RunPaused)
	g.life(2, 4, frames.RunRunning)
	g.life(3, 5, frames.RunFailed)
	g.life(4, 2, frames.RunCompleted)
	g.life(5, 4, frames.RunPlanned)
	g.signal(1, 3, frames.SignalEvidenceGap, frames.SignalOpen, "no seal")
	g.signal(2, 3, frames.SignalExecutionFailed, frames.SignalAcknowledged, "exit 3")
	g.now = g.now.Add(time.Second)
	g.signal(3, 2, frames.SignalExecutionBlocked, frames.SignalResolved, "was blocked")
	g.signal(4, 3, frames.SignalExecutionFailed, frames.SignalOpen, "younger")
	g.now = g.now.Add(-time.Minute)
	g.signal(5, 3, frames.SignalExecutionFailed, frames.SignalOpen, "older")
	g.operation(1, frames.OperationResult{State: frames.OperationSucceeded, Sequence: 5})
	g.operation(2, frames.OperationResult{State: frames.OperationPending, Epoch: 1, Sequence: 4})
	g.operation(3, frames.OperationResult{State: frames.OperationIndeterminate})
	g.operation(4, frames.OperationResult{State: frames.OperationRejected, Sequence: 6, Code: frames.CodeNotFound, Message: "gone"})
	g.operation(5, frames.OperationResult{State: frames.OperationPending, Epoch: 1, Sequence: 3})
	g.refresh()
	require.Equal(t, []byte{5, 4, 1, 2, 3}, ids(g.m.Signals(0), (*Signal).row), "open by severity and age, then the others")
	require.Equal(t, []byte{1, 5, 4, 3, 2}, ids(g.m.Objectives(0), (*Objective).row), "stuck, with signals, with live runs, active, ended")
	require.Equal(t, []byte{1, 2, 5}, ids(g.m.Runs(3), (*Run).row), "stuck, running, planned")
	require.Equal(t, []byte{5, 2, 3, 4, 1}, ids(g.m.Operations(0), (*Operation).row), "pending, indeterminate, the others, the latest first")
	require.Equal(t, Counts{Signals: 5, OpenSignals: 3, Objectives: 5, Runs: 5, LiveRuns: 3, StuckRuns: 1, Operations: 5, Pending: 2, Indeterminate: 1}, g.m.State().Counts)
	busy := g.m.Objective(id(frames.KindObjective, 4))
	require.Equal(t, RunCounts{Planned: 1, Running: 1}, busy.Runs)
	require.Equal(t, "3", g.runRow(3).Exit)
	require.EqualValues(t, 3, *g.runRow(3).ExitStatus)
}

// TestStuck says why a run does not go on by itself, from what the records say.
func TestStuck(t *testing.T) {
	blocked := func(state frames.SignalState) func(*rig) {
		return func(g *rig) { g.signal(1, 1, frames.SignalExecutionBlocked, state, "m") }
	}
	failing := func(g *rig) { g.signal(1, 1, frames.SignalExecutionFailed, frames.SignalOpen, "m") }
	for _, tt := range []struct {
		name  string
		state frames.RunState
		with  func(*rig)
		after time.Duration
		want  Stuck
	}{
		{"just planned", frames.RunPlanned, nil, 14 * time.Second, ""},
		{"planned for long", frames.RunPlanned, nil, 15 * time.Second, StuckOwnerSilent},
		{"its start is indeterminate", frames.RunPlanned, blocked(frames.SignalOpen), 0, StuckStartUnknown},
		{"and acknowledged", frames.RunPlanned, blocked(frames.SignalAcknowledged), 0, StuckStartUnknown},
		{"and suppressed", frames.RunPlanned, blocked(frames.SignalSuppressed), time.Hour, StuckStartUnknown},
		{"running", frames.RunRunning, nil, time.Hour, ""},
		{"blocked", frames.RunRunning, blocked(frames.SignalOpen), 0, StuckBlocked},
		{"blocked, and somebody knows", frames.RunRunning, blocked(frames.SignalAcknowledged), time.Hour, ""},
		{"failing", frames.RunRunning, failing, 0, StuckFailing},
		{"paused", frames.RunPaused, nil, 0, StuckPaused},
		{"paused while blocked", frames.RunPaused, blocked(frames.SignalOpen), 0, StuckBlocked},
		{"failed", frames.RunFailed, failing, time.Hour, ""},
		{"cancelled with a doubt", frames.RunCancelled, blocked(frames.SignalOpen), time.Hour, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := newRig(t, Options{})
			g.reread(client.RereadFirst)
			g.refresh()
			g.objective(1, "o", frames.ObjectiveActive)
			g.life(1, 1, tt.state)
			if tt.with != nil {
				tt.with(g)
			}
			g.refresh()
			g.now = g.now.Add(tt.after)
			g.refresh()
			require.Equal(t, tt.want, g.runRow(1).Stuck)
			require.Equal(t, tt.want == "", g.runRow(1).StuckText == "")
			require.Equal(t, one(tt.want != ""), g.m.Objective(id(frames.KindObjective, 1)).Stuck)
		})
	}
}

// TestSlowThingsAreNoticedWithoutAnyEvent and only when they are due.
func TestSlowThingsAreNoticedWithoutAnyEvent(t *testing.T) {
	g := newRig(t, Options{})
	g.reread(client.RereadFirst)
	g.refresh()
	require.Zero(t, g.m.Due())
	g.objective(1, "o", frames.ObjectiveActive)
	g.life(1, 1, frames.RunPlanned)
	g.signal(1, 1, frames.SignalPolicy, frames.SignalOpen, "m")
	g.now = g.now.Add(time.Second)
	g.operation(1, frames.OperationResult{State: frames.OperationPending, Epoch: 1, Sequence: 3})
	g.refresh()
	require.Equal(t, begin.Add(15*time.Second), g.m.Due())
	g.now = g.m.Due()
	d := g.refresh()
	require.Len(t, d.Runs, 1)
	require.Len(t, d.Objectives, 1)
	require.Empty(t, d.Operations)
	require.Equal(t, begin.Add(16*time.Second), g.m.Due())
	g.now = g.m.Due()
	d = g.refresh()
	require.Len(t, d.Operations, 1)
	require.Equal(t, StuckOwnerSilent, d.Operations[0].Stuck)
	require.Equal(t, begin.Add(10*time.Minute), g.m.Due())
	g.now = g.m.Due()
	require.True(t, g.refresh().Signals[0].Overdue)
	require.Zero(t, g.m.Due())
	d = g.refresh()
	require.True(t, d.Empty(), "%+v", d)
}

// TestAgesAreNotInvented: what was there before anybody looked is older than that, and so is
// what changed while nobody could look.
func TestAgesAreNotInvented(t *testing.T) {
	g := newRig(t, Options{Owners: map[frames.Fingerprint]string{{9}: "local"}})
	g.objective(1, "o", frames.ObjectiveActive)
	g.life(1, 1, frames.RunRunning)
	g.reread(client.RereadFirst)
	g.refresh()
	require.True(t, g.runRow(1).SinceAtLeast)
	require.Equal(t, begin, g.runRow(1).Since.Time)
	require.Nil(t, g.runRow(1).LastFact)
	require.Equal(t, "local", g.runRow(1).Owner)

	g.now = g.now.Add(time.Minute)
	g.fact(id(frames.KindBinding, 1), frames.TerminalSourceFact{Source: frames.TerminalSourceRef{BindingID: id(frames.KindBinding, 1), OwnerIncarnation: frames.IncarnationID{8}, Sequence: 1},
		Kind: frames.FactAttention, Schema: 1, Payload: []byte{0, 1}})
	g.run(1, 1, frames.RunPaused)
	g.refresh()
	require.False(t, g.runRow(1).SinceAtLeast)
	require.Equal(t, g.now, g.runRow(1).Since.Time)
	require.Equal(t, g.now, g.runRow(1).LastFact.Time)

	g.state = client.ReplicaState{Phase: client.ReplicaStale, Reason: client.StaleDisconnected, Gap: &client.Gap{Cause: errors.New("no \x1b[2J way")}}
	g.m.Notice(&g.state, g.now)
	g.refresh()
	g.run(1, 1, frames.RunRunning)
	g.refresh()
	require.True(t, g.runRow(1).SinceAtLeast, "it came with the healing of a gap")
	g.state = client.ReplicaState{Phase: client.ReplicaCurrent, Healed: &client.Healed{Replayed: true}}
	g.m.Notice(&g.state, g.now)
	g.refresh()
	g.run(1, 1, frames.RunPaused)
	g.refresh()
	require.False(t, g.runRow(1).SinceAtLeast)
	var kinds []string
	for _, a := range g.m.Activity() {
		kinds = append(kinds, a.Kind)
		require.NotContains(t, a.Text, "\x1b")
	}
	require.Contains(t, strings.Join(kinds, " "), "RUN_CHANGED GAP RUN_CHANGED HEALED RUN_CHANGED")
}

func TestActivityIsBounded(t *testing.T) {
	g := newRig(t, Options{Activity: 4})
	g.reread(client.RereadFirst)
	g.refresh()
	for range 11 {
		g.objective(1, "o", frames.ObjectiveActive)
	}
	require.Len(t, g.refresh().Activity, 4)
	g.objective(1, "o", frames.ObjectiveActive)
	require.Len(t, g.refresh().Activity, 1)
	got := g.m.Activity()
	require.Len(t, got, 4)
	require.EqualValues(t, 12, got[3].N)
	require.EqualValues(t, 12, got[3].Sequence)
}

// TestStateSaysWhatToBelieve is every phase in words, and what a screen shows of it.
func TestStateSaysWhatToBelieve(t *testing.T) {
	g := newRig(t, Options{})
	view := g.at()
	gap := &client.Gap{Cause: errors.New("connection refused\x07"), Last: 9, Attempt: 3}
	var out strings.Builder
	for _, s := range []struct {
		v *client.View
		s client.ReplicaState
	}{
		{nil, client.ReplicaState{}},
		{nil, client.ReplicaState{Gap: gap}},
		{nil, client.ReplicaState{Phase: client.ReplicaSyncing}},
		{view, client.ReplicaState{Phase: client.ReplicaCurrent}},
		{view, client.ReplicaState{Phase: client.ReplicaStale, Reason: client.StaleBehind}},
		{view, client.ReplicaState{Phase: client.ReplicaStale, Reason: client.StaleAuthority}},
		{view, client.ReplicaState{Phase: client.ReplicaStale, Reason: client.StaleDisconnected, Gap: gap}},
		{view, client.ReplicaState{Phase: client.ReplicaStale, Reason: client.StaleGap, Gap: &client.Gap{Reason: frames.GapQueueOverflow, Last: 7, Observed: 9}}},
		{view, client.ReplicaState{Phase: client.ReplicaLostHistory, Lost: &client.LostHistory{}}},
		{view, client.ReplicaState{Phase: client.ReplicaRevoked, Err: errors.New("revoked")}},
		{view, client.ReplicaState{Phase: client.ReplicaClosed}},
	} {
		got := New(Options{}).stateOf(s.v, &s.s, begin)
		require.Equal(t, s.s.Phase != client.ReplicaCurrent, got.Stale)
		require.Equal(t, s.v == nil, got.Authority == nil)
		require.NotContains(t, got.Summary, "\x07")
		out.WriteString(got.Summary + "\n")
	}
	expired := *view
	expired.Current = false
	got := New(Options{}).stateOf(&expired, &client.ReplicaState{Phase: client.ReplicaCurrent}, begin)
	require.True(t, got.Stale)
	golden(t, "states.txt", out.String())
}

// TestRowsAsJSON is the form that the page reads.
func TestRowsAsJSON(t *testing.T) {
	g := newRig(t, Options{Owners: map[frames.Fingerprint]string{{9}: "local"}})
	g.objective(1, "Title \x1b[31m\u202e", frames.ObjectiveActive)
	g.life(1, 1, frames.RunRunning)
	g.signal(1, 1, frames.SignalExecutionBlocked, frames.SignalOpen, "yes/no?")
	g.operation(1, frames.OperationResult{State: frames.OperationPending, Epoch: 1, Sequence: 3})
	g.reread(client.RereadFirst)
	raw, err := json.MarshalIndent(g.refresh(), "", "  ")
	require.NoError(t, err)
	golden(t, "delta.json", string(raw)+"\n")
	var back Delta
	require.NoError(t, json.Unmarshal(raw, &back))
}

func golden(t *testing.T, name, got string) {
	path := "testdata/" + name
	if os.Getenv("UPDATE_GOLDEN") != "" {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), got)
}

// TestAnIncrementalModelIsAFreshOne changes anything in any order, with refreshes of views
// that lag behind what was told: in the end the rows are those of a model that looks for the
// first time, and what the deltas told is the rows.
func TestAnIncrementalModelIsAFreshOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := newRig(t, Options{OwnerSlow: time.Hour})
		told := newTold()
		g.reread(client.RereadFirst)
		told.take(t, g.refresh())
		n := rapid.Custom(func(t *rapid.T) byte { return rapid.ByteRange(1, 4).Draw(t, "n") })
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0:
				g.objective(n.Draw(t, "o"), rapid.SampledFrom([]string{"a", "b"}).Draw(t, "title"), rapid.SampledFrom([]frames.ObjectiveState{0, 1, 2}).Draw(t, "state"))
			case 1, 2:
				r := n.Draw(t, "r")
				g.run(r, 1+r%2, frames.RunState(rapid.IntRange(0, 5).Draw(t, "state")))
			case 3:
				s := n.Draw(t, "s")
				g.set(frames.KindWorkSession, id(frames.KindWorkSession, s), &frames.WorkSession{RunID: id(frames.KindRun, 1+s%3), State: frames.ActivityState(s % 2)})
			case 4:
				why := frames.EndFailed
				g.set(frames.KindBinding, id(frames.KindBinding, n.Draw(t, "b")), rapid.SampledFrom([]*frames.Binding{bindingOf(1, 0, nil), bindingOf(2, 1, &why), bindingOf(3, 0, nil)}).Draw(t, "binding"))
			case 5, 6:
				s := n.Draw(t, "s")
				g.signal(s, 1+s%3, frames.SignalKind(rapid.IntRange(1, 4).Draw(t, "kind")), frames.SignalState(rapid.IntRange(0, 3).Draw(t, "state")), "m")
			case 7:
				g.operation(n.Draw(t, "op"), rapid.SampledFrom([]frames.OperationResult{{State: frames.OperationPending, Epoch: 1, Sequence: 2},
					{State: frames.OperationIndeterminate}, {State: frames.OperationSucceeded, Sequence: 9}}).Draw(t, "result"))
			case 8:
				g.remove(rapid.SampledFrom([]frames.ObjectRef{{Kind: frames.KindRun, ID: id(frames.KindRun, 1)}, {Kind: frames.KindWorkSession, ID: id(frames.KindWorkSession, 2)},
					{Kind: frames.KindSignal, ID: id(frames.KindSignal, 3)}, {Kind: frames.KindObjective, ID: id(frames.KindObjective, 2)},
					{Kind: frames.KindOperation, ID: id(frames.KindOperation, 1)}, {Kind: frames.KindBinding, ID: id(frames.KindBinding, 1)}}).Draw(t, "which"))
			case 9:
				if rapid.Bool().Draw(t, "snapshot") {
					g.reread(client.RereadSnapshot)
					break
				}
				lagging := g.at()
				g.signal(4, 1, frames.SignalPolicy, frames.SignalOpen, "beyond the view")
				told.take(t, g.m.Refresh(lagging, g.state, g.now))
			}
			if rapid.Bool().Draw(t, "refresh") {
				told.take(t, g.refresh())
				g.same(t, told)
			}
		}
		told.take(t, g.refresh())
		g.same(t, told)
	})
}

// same holds the model against a fresh one, and against what its deltas told.
func (g *rig) same(t *rapid.T, told *told) {
	fresh := New(g.m.opts)
	fresh.Notice(&client.Reread{View: g.view, State: g.state}, g.now)
	fresh.Refresh(g.view, g.state, g.now)
	require.Equal(t, rowsOf(fresh), rowsOf(g.m))
	require.Equal(t, rowsOf(g.m), told.rows())
	require.Equal(t, fresh.State().Counts, g.m.State().Counts)
	require.Equal(t, fresh.tallies, g.m.tallies)
}

func rowsOf(m *Model) map[string]any {
	out := map[string]any{}
	for _, r := range m.Signals(0) {
		out[SignalsTable+r.ID] = plain(r, (*Signal).row)
	}
	for _, r := range m.Objectives(0) {
		out[ObjectivesTable+r.ID] = plain(r, (*Objective).row)
	}
	for _, r := range m.Runs(0) {
		out[RunsTable+r.ID] = plain(r, (*Run).row)
	}
	for _, r := range m.Operations(0) {
		out[OperationsTable+r.ID] = plain(r, (*Operation).row)
	}
	return out
}

// plain is a row without its age.
func plain[T any](r *T, head func(*T) *Row) T {
	out := *r
	head(&out).SinceAtLeast = false
	return out
}

// told is what deltas say.
type told struct{ now map[string]any }

func newTold() *told { return &told{map[string]any{}} }

func (x *told) rows() map[string]any { return x.now }

func (x *told) take(t *rapid.T, d *Delta) {
	for _, g := range d.Gone {
		require.Contains(t, x.now, g.Table+g.ID)
		delete(x.now, g.Table+g.ID)
	}
	for _, r := range d.Signals {
		x.now[SignalsTable+r.ID] = plain(r, (*Signal).row)
	}
	for _, r := range d.Objectives {
		x.now[ObjectivesTable+r.ID] = plain(r, (*Objective).row)
	}
	for _, r := range d.Runs {
		x.now[RunsTable+r.ID] = plain(r, (*Run).row)
	}
	for _, r := range d.Operations {
		x.now[OperationsTable+r.ID] = plain(r, (*Operation).row)
	}
}
