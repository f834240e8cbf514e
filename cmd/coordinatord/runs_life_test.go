package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/client"
	"coordinator/codec"
	"coordinator/frames"
)

// begun starts argv and waits until it runs.
func (r *ownerRig) begun(c *client.Conn, document map[string]any) *started {
	r.t.Helper()
	s := r.startWith(c, document)
	r.send(c, s.cmd)
	require.Equal(r.t, frames.OperationSucceeded, r.result(c, s.op).State)
	return s
}

func (r *ownerRig) bindingOf(c *client.Conn, s *started) *frames.Binding {
	r.t.Helper()
	b, ok := r.records(c)[ref(frames.KindBinding, s.PendingBindingID)].(*frames.Binding)
	require.True(r.t, ok, "the binding is there")
	return b
}

// forever is a process that does not end by itself.
func forever(script string) map[string]any {
	return map[string]any{"argv": []string{"/bin/sh", "-c", script + "; while :; do sleep 0.05; done"}, "grace_secs": 1}
}

// [D-29] on real processes, one that ignores SIGTERM among them.
func TestD29_CancelAndEndRealProcesses(t *testing.T) {
	t.Parallel()
	r := withOwner(t)
	r.serve().ready()
	c := r.dial()
	defer c.Close()
	for _, tt := range []struct {
		name   string
		script string
		kind   frames.CommandKind
		body   func(*started) codec.Message
		reason frames.EndReason
		run    frames.RunState
		status int32
	}{
		{"cancel", "echo on", frames.CommandCancelRun, func(s *started) codec.Message { return &frames.RunCommand{RunID: s.RunID} },
			frames.EndCancelled, frames.RunCancelled, -15},
		{"cancel what ignores SIGTERM", "trap '' TERM; echo on", frames.CommandCancelRun,
			func(s *started) codec.Message { return &frames.RunCommand{RunID: s.RunID} }, frames.EndCancelled, frames.RunCancelled, -9},
		{"end as completed", "echo on", frames.CommandEndBinding, func(s *started) codec.Message {
			return &frames.EndBinding{BindingID: frames.BindingID(s.PendingBindingID), Reason: frames.EndCompleted}
		}, frames.EndCompleted, frames.RunCompleted, -15},
		{"end as failed", "echo on", frames.CommandEndBinding, func(s *started) codec.Message {
			return &frames.EndBinding{BindingID: frames.BindingID(s.PendingBindingID), Reason: frames.EndFailed}
		}, frames.EndFailed, frames.RunFailed, -15},
	} {
		s := r.begun(c, forever(tt.script))
		require.Eventually(t, func() bool { // its trap is set once it has spoken
			return strings.Contains(r.read(s), "on")
		}, waitFor, tick, tt.name)
		got, err := r.command(c, tt.kind, tt.body(s))
		require.NoError(t, err, tt.name)
		require.Equal(t, frames.OperationSucceeded, got.State, tt.name)
		require.Equal(t, frames.ResultNone, got.Kind, tt.name)
		run := r.ended(c, s)
		require.Equal(t, tt.run, run.State, tt.name)
		require.Equal(t, tt.reason, *r.bindingOf(c, s).Reason, tt.name)
		var closed frames.Closed
		require.NoError(t, codec.DecodeImage(&closed, run.Outcome))
		require.Equal(t, frames.Closed{Known: true, Status: tt.status}, closed, tt.name)
		_, sealed := r.records(c)[ref(frames.KindEvidence, s.PendingBindingID)]
		require.True(t, sealed, tt.name)
	}
}

// read is the stored output of a run so far.
func (r *ownerRig) read(s *started) string {
	r.t.Helper()
	c := r.look()
	defer c.Close()
	var out strings.Builder
	err := c.ReadOutput(r.t.Context(), frames.BindingID(s.PendingBindingID), 0, 0, false, func(_ uint64, data []byte) error {
		out.Write(data)
		return nil
	})
	require.NoError(r.t, err)
	return out.String()
}

// [D-31] [D-53]: an owner that restarts ends what it ran, after its facts; while it is away
// nothing changes, and END_BINDING may end what nobody can be asked about.
func TestC16_ARestartedOwnerLosesItsProcesses(t *testing.T) {
	t.Parallel()
	r := withOwner(t)
	r.serve().ready()
	c := r.dial()
	defer c.Close()
	lost, ended := r.begun(c, forever("echo lost")), r.begun(c, forever("echo ended"))
	end := &frames.EndBinding{BindingID: frames.BindingID(ended.PendingBindingID), Reason: frames.EndOwnerLost}
	_, err := r.command(c, frames.CommandEndBinding, end)
	require.True(t, refusedWith(err, frames.CodeRevisionConflict), "its owner is there: %v", err)
	r.process.kill()
	require.Eventually(t, func() bool {
		got, err := r.command(c, frames.CommandEndBinding, end)
		if refusedWith(err, frames.CodeRevisionConflict) {
			return false // the link is not yet known to be down
		}
		require.NoError(t, err)
		require.Equal(t, frames.OperationSucceeded, got.State)
		return true
	}, waitFor, tick)
	require.Equal(t, frames.RunFailed, r.run(c, ended).State)
	require.Equal(t, frames.RunRunning, r.run(c, lost).State, "a link that is down ends nothing")
	other := r.startFrom(c, lost)
	_, err = c.Command(t.Context(), other)
	require.True(t, refusedWith(err, frames.CodeNotFound), "no owner, no run: %v", err)

	r.startOwner()
	require.Equal(t, frames.RunFailed, r.ended(c, lost).State)
	b := r.bindingOf(c, lost)
	require.Equal(t, frames.EndOwnerLost, *b.Reason)
	require.Nil(t, r.run(c, lost).Outcome)
	_, sealed := r.records(c)[ref(frames.KindEvidence, lost.PendingBindingID)]
	require.False(t, sealed)
	_, err = c.Command(t.Context(), other)
	require.True(t, refusedWith(err, frames.CodeNotFound), "the incarnation is gone: %v", err)
}

// startFrom is a START_RUN like another one's, under fresh ids.
func (r *ownerRig) startFrom(_ *client.Conn, s *started) client.Command {
	r.t.Helper()
	p := s.StartRun
	p.RunID, p.WorkSessionID, p.PendingBindingID = fresh[frames.RunID](r.t), fresh[frames.WorkSessionID](r.t), fresh[frames.PendingBindingID](r.t)
	cmd, err := client.NewCommand(fresh[frames.OperationID](r.t), frames.CommandStartRun, &p)
	require.NoError(r.t, err)
	return cmd
}

// What a real owner refuses to start ends the run and says why.
func TestD34_RejectedSpawns(t *testing.T) {
	t.Parallel()
	r := withOwner(t)
	r.serve().ready()
	c := r.dial()
	defer c.Close()
	for name, document := range map[string]map[string]any{
		"no argv":        {},
		"no such file":   {"argv": []string{"/no/such/program"}},
		"no such cwd":    {"argv": []string{"/bin/true"}, "cwd": "/no/such/directory"},
		"unknown member": {"argv": []string{"/bin/true"}, "shell": true},
	} {
		s := r.startWith(c, document)
		r.send(c, s.cmd)
		got := r.result(c, s.op)
		require.Equal(t, frames.OperationRejected, got.State, name)
		require.Equal(t, frames.CodeInternal, got.Code, name)
		require.Equal(t, frames.RunFailed, r.run(c, s).State, name)
	}
	s := r.begun(c, forever("echo x"))
	for name, edit := range map[string]func(*frames.StartRun){
		"group":       func(p *frames.StartRun) { p.Group = 99 },
		"incarnation": func(p *frames.StartRun) { p.OwnerIncarnation = fresh[frames.IncarnationID](t) },
		"owner":       func(p *frames.StartRun) { p.Owner[0]++ },
	} {
		p := s.StartRun
		p.RunID, p.WorkSessionID, p.PendingBindingID = fresh[frames.RunID](t), fresh[frames.WorkSessionID](t), fresh[frames.PendingBindingID](t)
		edit(&p)
		_, err := r.command(c, frames.CommandStartRun, &p)
		require.True(t, refusedWith(err, frames.CodeNotFound), "%s: %v", name, err)
	}
	// A mebibyte of environment fits no payload: it is refused before it is sent, and the
	// connection goes on.
	p := s.StartRun
	p.ExecutorDocument = []byte(`{"argv":["/bin/true"],"env":{"X":"` + strings.Repeat("x", 1<<20) + `"}}`)
	_, err := client.NewCommand(fresh[frames.OperationID](t), frames.CommandStartRun, &p)
	require.Error(t, err)
	require.Equal(t, frames.RunRunning, r.run(c, s).State)
}

// A document larger than the connection carries is refused before it is decided on: nothing is
// recorded, the operation id stays free, and other connections do not notice.
func TestD18_AHugeEnvironmentIsRefused(t *testing.T) {
	t.Parallel()
	r := withOwner(t)
	r.serve().ready()
	c := r.dial()
	defer c.Close()
	for size, said := range map[int]string{
		129 << 10: "MALFORMED_MESSAGE: START_RUN: payload is over the selected limit", // by the coordinator
		255 << 10: "not sent: FRAME_TOO_LARGE",                                        // by the client, which cannot encode much more
	} {
		big := r.dial()
		s := r.startWith(big, map[string]any{"argv": []string{"/bin/true"}, "env": map[string]string{"A": strings.Repeat("x", size)}})
		_, err := big.Command(t.Context(), s.cmd)
		require.ErrorContains(t, err, said)
		got, err := c.Lookup(t.Context(), s.op)
		require.NoError(t, err)
		require.Equal(t, frames.OperationUnknown, got.State)
		require.NotContains(t, r.records(c), ref(frames.KindRun, s.RunID))
		big.Close() //nolint:errcheck // it has failed

		s.ExecutorDocument = []byte(`{"argv":["/bin/true"]}`)
		s.cmd, err = client.NewCommand(s.op, frames.CommandStartRun, &s.StartRun)
		require.NoError(t, err)
		r.send(c, s.cmd)
		require.Equal(t, frames.RunCompleted, r.ended(c, s).State, "under the same operation id")
	}
}

// families is what a connection with these scopes and capabilities is shown of one finished
// run, by snapshot and by replay, as kinds of objects and of events.
func (r *ownerRig) families(caps frames.Capability, scope frames.Scope) (records map[frames.ObjectKind]bool, events map[string]bool) {
	r.t.Helper()
	c, err := client.Dial(r.t.Context(), r.ctx, client.Options{Offered: caps, Scope: scope})
	require.NoError(r.t, err)
	defer c.Close()
	records, events = map[frames.ObjectKind]bool{}, map[string]bool{}
	for at := range r.records(c) {
		records[at.Kind] = true
	}
	for _, e := range r.replayed(c, func(e *client.Event) bool { return e.Object.Kind == frames.KindObjective && e.Revision == 2 }) {
		events[fmt.Sprint(e.Kind, " of ", e.Object.Kind)] = true
	}
	return records, events
}

// §6: each family is shown to whom it is for, and to nobody else, on every surface.
func TestC10_FamiliesOfARunAreShownToWhomTheyAreFor(t *testing.T) {
	t.Parallel()
	r := withOwner(t)
	r.serve().ready()
	c := r.dial()
	defer c.Close()
	s := r.begun(c, map[string]any{"argv": []string{"/bin/false"}})
	require.Equal(t, frames.RunFailed, r.ended(c, s).State)
	_, err := r.command(c, frames.CommandUpdateObjective, &frames.UpdateObjective{ObjectiveID: s.ObjectiveID, Schema: 1, Document: []byte("{}")})
	require.NoError(t, err)

	base := []frames.ObjectKind{frames.KindObjective, frames.KindRun, frames.KindWorkSession, frames.KindArtifact}
	all := frames.CapTerminalBindings | frames.CapArtifactManifests | frames.CapSignals
	bindings := []string{"BINDING_OPENED of BINDING", "BINDING_ENDED of BINDING", "SOURCE_FACT_ADMITTED of BINDING"}
	manifests := []string{"ARTIFACT_REVISION_ADDED of ARTIFACT_MANIFEST", "EVIDENCE_SEALED of EVIDENCE"}
	signals := []string{"SIGNAL_RAISED of SIGNAL"}
	const readOnly = frames.ScopeWorkRead
	for _, tt := range []struct {
		name   string
		caps   frames.Capability
		scope  frames.Scope
		kinds  []frames.ObjectKind
		shown  []string
		hidden []string
	}{
		{"nothing negotiated", 0, readOnly | frames.ScopeArtifactRead, base, nil, append(append(append([]string{}, bindings...), manifests...), signals...)},
		{"bindings", frames.CapTerminalBindings, readOnly, append(base, frames.KindBinding), bindings, append(append([]string{}, manifests...), signals...)},
		{"signals", frames.CapSignals, readOnly, append(base, frames.KindSignal), signals, append(append([]string{}, manifests...), bindings...)},
		{"manifests without ARTIFACT_READ", frames.CapArtifactManifests, readOnly, base, nil, manifests},
		{"manifests", frames.CapArtifactManifests, readOnly | frames.ScopeArtifactRead,
			append(base, frames.KindArtifactManifest, frames.KindEvidence), manifests, append(append([]string{}, bindings...), signals...)},
		{"everything", all, readOnly | frames.ScopeArtifactRead,
			append(base, frames.KindBinding, frames.KindSignal, frames.KindArtifactManifest, frames.KindEvidence),
			append(append(append([]string{}, bindings...), manifests...), signals...), nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			records, events := r.families(tt.caps|frames.CapWithoutOperations, tt.scope)
			want := map[frames.ObjectKind]bool{}
			for _, k := range tt.kinds {
				want[k] = true
			}
			require.Equal(t, want, records)
			for _, e := range append([]string{"RUN_CHANGED of RUN", "ARTIFACT_REVISION_ADDED of ARTIFACT"}, tt.shown...) {
				require.Contains(t, events, e)
			}
			for _, e := range tt.hidden {
				require.NotContains(t, events, e)
			}
		})
	}
}

// Artifacts and signals of a real run, by command.
func TestArtifactsAndSignalsOfARun(t *testing.T) {
	t.Parallel()
	r := withOwner(t)
	r.serve().ready()
	c := r.dial()
	defer c.Close()
	s := r.begun(c, map[string]any{"argv": []string{"/bin/false"}})
	r.ended(c, s)
	var id frames.SignalID
	for at, m := range r.records(c) {
		if sig, ok := m.(*frames.Signal); ok && sig.WorkSessionID == s.WorkSessionID {
			id = frames.SignalID(at.ID)
		}
	}
	for _, kind := range []frames.CommandKind{frames.CommandAckSignal, frames.CommandSuppressSignal} {
		got, err := r.command(c, kind, &frames.SignalCommand{SignalID: id})
		require.NoError(t, err)
		require.Equal(t, frames.OperationSucceeded, got.State)
	}
	require.Equal(t, frames.SignalSuppressed, r.records(c)[ref(frames.KindSignal, id)].(*frames.Signal).State)

	artifact := fresh[frames.ArtifactID](t)
	for rev := frames.ObjectRevision(1); rev <= 2; rev++ {
		var pre []frames.Precondition
		if rev == 1 {
			pre = append(pre, frames.Precondition{Object: ref(frames.KindWorkSession, s.WorkSessionID), Revision: 3})
		}
		_, err := r.command(c, frames.CommandRegisterArtifactManifest, &frames.RegisterArtifactManifest{
			ArtifactID: artifact, Revision: rev, Schema: 1, Manifest: []byte(fmt.Sprint("revision ", rev)),
		}, pre...)
		require.NoError(t, err)
	}
	m, ok := r.records(c)[ref(frames.KindArtifactManifest, artifact)].(*frames.ArtifactManifest)
	require.True(t, ok)
	require.Equal(t, "revision 2", string(m.Manifest))
	require.EqualValues(t, 2, m.Revision)
}
