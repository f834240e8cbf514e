package work

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/codec"
	"coordinator/frames"
)

func TestD17_StartRunIsAdmitted(t *testing.T) {
	s := withRuns(t)
	out, err := s.do(startCommand(t, 1, 7), alice)
	require.NoError(t, err)
	require.Equal(t, frames.OperationPending, out.Result.State)
	require.EqualValues(t, 3, out.Result.Epoch)
	require.Equal(t, []string{"RUN_CHANGED", "WORK_SESSION_CHANGED", "OPERATION_CHANGED"}, s.seen(), "[D-35]")
	require.Equal(t, frames.Run{ObjectiveID: frames.ObjectiveID{1}, Attempt: 1, State: frames.RunPlanned}, *read(s, runRef(frames.RunID{7}), new(frames.Run)))
	require.Equal(t, frames.WorkSession{RunID: frames.RunID{7}, State: frames.StateActive}, s.sessionOf(7))
	for _, ref := range []frames.ObjectRef{runRef(frames.RunID{7}), sessionRef(frames.WorkSessionID{7})} {
		require.True(t, s.live[ref])
	}
	require.Equal(t, 2, s.pending[alice.Principal], "one operation and one attempt")

	e := s.effect(frames.EffectSpawn)
	require.Equal(t, frames.EffectReady, e.Attempt.State)
	require.Equal(t, frames.OperationID{1}, e.Attempt.OperationID)
	require.Equal(t, frames.EffectTarget{
		Tag: frames.TargetPendingSpawn, PendingBindingID: frames.PendingBindingID{7}, Owner: theOwner, OwnerIncarnation: life, Group: 1,
	}, e.Attempt.Target)
	var payload frames.SpawnPayload
	require.NoError(t, codec.DecodeImage(&payload, e.Attempt.Payload))
	require.Equal(t, frames.SpawnPayload{WorkSessionID: frames.WorkSessionID{7}, ExecutorSchema: 1, Document: []byte(`{"argv":["true"]}`)}, payload)
	digest, err := frames.EffectDigest(frames.EffectSpawn, &e.Attempt.Target, e.Attempt.Payload)
	require.NoError(t, err)
	require.Equal(t, digest, e.Attempt.Digest)

	again, err := s.do(startCommand(t, 1, 7), alice)
	require.NoError(t, err)
	require.True(t, again.Duplicate)
	require.Equal(t, out.Result, again.Result, "PENDING until it is finished")
	_, err = s.do(startCommand(t, 2, 8), alice)
	require.NoError(t, err)
	require.EqualValues(t, 2, read(s, runRef(frames.RunID{8}), new(frames.Run)).Attempt)
}

func TestD34_StartRunRefusals(t *testing.T) {
	for name, tt := range map[string]struct {
		edit func(*state, *frames.StartRun)
		want frames.Code
	}{
		"no objective": {func(_ *state, p *frames.StartRun) { p.ObjectiveID[0] = 9 }, frames.CodeNotFound},
		"ended objective": {func(s *state, _ *frames.StartRun) {
			must2(s.do(update(s.t, 0xee, 1, "", ptr(frames.ObjectiveCompleted)), alice))
		}, frames.CodeRevisionConflict},
		"run id used":               {func(s *state, p *frames.StartRun) { p.RunID[0] = 5 }, frames.CodeRevisionConflict},
		"session id used":           {func(s *state, p *frames.StartRun) { p.WorkSessionID[0] = 5 }, frames.CodeRevisionConflict},
		"binding id used":           {func(s *state, p *frames.StartRun) { p.PendingBindingID[0] = 5 }, frames.CodeRevisionConflict},
		"other owner":               {func(_ *state, p *frames.StartRun) { p.Owner[0] = 9 }, frames.CodeNotFound},
		"other incarnation":         {func(_ *state, p *frames.StartRun) { p.OwnerIncarnation[0] = 9 }, frames.CodeNotFound},
		"other group":               {func(_ *state, p *frames.StartRun) { p.Group = 2 }, frames.CodeNotFound},
		"owner down":                {func(s *state, _ *frames.StartRun) { s.env.Owners = nil }, frames.CodeNotFound},
		"used ids before the owner": {func(s *state, p *frames.StartRun) { p.RunID[0], p.Group = 5, 2 }, frames.CodeRevisionConflict},
		"low disk":                  {func(s *state, _ *frames.StartRun) { s.env.LowDisk = true }, frames.CodeResourceExhausted},
	} {
		t.Run(name, func(t *testing.T) {
			s := withRuns(t)
			if name != "ended objective" {
				s.running(5)
			}
			p := &frames.StartRun{}
			require.NoError(t, codec.Decode(p, startCommand(t, 1, 7).Payload))
			tt.edit(s, p)
			_, err := s.do(command(t, 1, frames.CommandStartRun, p), alice)
			require.Equal(t, tt.want, code(t, err))
		})
	}
	s := withRuns(t)
	_, err := s.do(startCommand(t, 1, 7, func(p *frames.StartRun) { p.ExecutorSchema = 2 }), alice)
	require.Equal(t, frames.CodeCapabilityRequired, code(t, err))
}

func must2(_ Outcome, err error) {
	if err != nil {
		panic(err)
	}
}

// An id that an admission named is used for ever, also when nothing came of it.
func TestD54_APendingIDIsUsedForEver(t *testing.T) {
	s := withRuns(t)
	_, err := s.do(startCommand(t, 1, 7), alice)
	require.NoError(t, err)
	e := s.effect(frames.EffectSpawn)
	s.finding(e.Attempt.ID, Finding{State: frames.EffectRejected})
	_, err = s.do(startCommand(t, 2, 8, func(p *frames.StartRun) { p.PendingBindingID = frames.PendingBindingID{7} }), alice)
	require.Equal(t, frames.CodeRevisionConflict, code(t, err))
}

func TestD17_SpawnSucceeds(t *testing.T) {
	s := withRuns(t)
	_, err := s.do(startCommand(t, 1, 7), alice)
	require.NoError(t, err)
	s.events = nil
	e := s.effect(frames.EffectSpawn)
	require.Equal(t, DispatchSend, s.dispatch(e.Attempt.ID, false))
	require.Equal(t, DispatchLookUp, s.dispatch(e.Attempt.ID, false), "it is sent once")
	s.finding(e.Attempt.ID, Finding{State: frames.EffectSucceeded, Resource: frames.ResourceID{ID: 4}})
	require.Equal(t, []string{"BINDING_OPENED", "WORK_SESSION_CHANGED", "RUN_CHANGED", "OPERATION_CHANGED"}, s.seen())
	require.Equal(t, frames.Binding{Binding: frames.TerminalBindingRef{
		BindingID: frames.BindingID{7}, WorkSessionID: frames.WorkSessionID{7}, Owner: theOwner, OwnerIncarnation: life, Resource: frames.ResourceID{ID: 4},
	}}, s.bindingOf(7))
	require.Equal(t, frames.BindingID{7}, s.sessionOf(7).ActiveBinding)
	require.Equal(t, frames.RunRunning, s.runState(7))
	result := s.op(1)
	require.Equal(t, frames.ResultStarted, result.Kind)
	require.EqualValues(t, s.head, result.Sequence)
	row := s.rows[OperationRef(frames.OperationID{1})]
	require.EqualValues(t, 2, row.Record.Revision)
	meta, err := DecodeOpMeta(row.Annex)
	require.NoError(t, err)
	require.Equal(t, []frames.ObjectRef{runRef(frames.RunID{7}), sessionRef(frames.WorkSessionID{7}), bindingRef(frames.BindingID{7})}, meta.Created)
	require.Zero(t, s.pending[alice.Principal])
	require.Equal(t, DispatchNothing, s.dispatch(e.Attempt.ID, false))
	require.Empty(t, s.finding(e.Attempt.ID, Finding{State: frames.EffectRejected}).Changes, "the first outcome stands")
}

// The ways in which a spawn comes to nothing: [D-24], [D-31], [D-34], [D-46], [D-51].
func TestD34_SpawnOutcomes(t *testing.T) {
	type step func(*state, frames.EffectAttemptID)
	send := func(s *state, id frames.EffectAttemptID) { s.dispatch(id, false) }
	deny := func(s *state, id frames.EffectAttemptID) { require.Equal(s.t, DispatchLookUp, s.dispatch(id, true)) }
	answer := func(f Finding) step { return func(s *state, id frames.EffectAttemptID) { s.finding(id, f) } }
	lose := func(s *state, id frames.EffectAttemptID) { s.amend(LoseEffect(s, id, s.now())) }
	restart := func(s *state, _ frames.EffectAttemptID) { s.env.Activation = 9 }
	failed, planned := frames.RunFailed, frames.RunPlanned
	for _, tt := range []struct {
		name  string
		steps []step
		op    string
		run   frames.RunState
	}{
		{"rejected by the owner", []step{send, answer(Finding{State: frames.EffectRejected, Message: "no argv"})}, "REJECTED/INTERNAL", failed},
		{"sent and never seen", []step{send, answer(Finding{Never: true})}, "REJECTED/INTERNAL", failed},
		{"late revocation, never seen", []step{deny, answer(Finding{Never: true})}, "REJECTED/SCOPE_DENIED", failed},
		{"late revocation, but it had been started", []step{deny, answer(Finding{State: frames.EffectSucceeded})}, "SUCCEEDED", frames.RunRunning},
		{"owner's incarnation gone while READY", []step{answer(Finding{Never: true})}, "REJECTED/NOT_FOUND", failed},
		{"owner removed while READY", []step{lose}, "REJECTED/NOT_FOUND", failed},
		{"owner removed, READY of an earlier activation", []step{restart, lose}, "INDETERMINATE/TARGET_OUTCOME_UNKNOWN", planned},
		{"owner removed while DISPATCHED", []step{send, lose}, "INDETERMINATE/TARGET_OUTCOME_UNKNOWN", planned},
		{"nobody knows", []step{send, answer(Finding{State: frames.EffectIndeterminate})}, "INDETERMINATE/TARGET_OUTCOME_UNKNOWN", planned},
		{"no dedupe", []step{send, answer(Finding{State: frames.EffectIndeterminate, Reason: frames.TargetDedupeUnavailable})}, "INDETERMINATE/TARGET_DEDUPE_UNAVAILABLE", planned},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := withRuns(t)
			_, err := s.do(startCommand(t, 1, 7), alice)
			require.NoError(t, err)
			s.events = nil
			e := s.effect(frames.EffectSpawn)
			for _, step := range tt.steps {
				step(s, e.Attempt.ID)
			}
			require.Equal(t, tt.op, s.opState(1))
			require.Equal(t, tt.run, s.runState(7))
			require.Empty(t, s.effects(frames.EffectSpawn))
			require.Zero(t, s.pending[alice.Principal])
			switch tt.run {
			case failed:
				require.Equal(t, []string{"WORK_SESSION_CHANGED", "RUN_CHANGED", "OPERATION_CHANGED"}, s.seen())
				require.Equal(t, frames.StateEnded, s.sessionOf(7).State)
				require.Nil(t, read(s, runRef(frames.RunID{7}), new(frames.Run)).Outcome)
				s.settled()
				s.status(7, BindingOver)
			case planned:
				require.Equal(t, []string{"SIGNAL_RAISED", "OPERATION_CHANGED"}, s.seen())
				require.Equal(t, frames.StateActive, s.sessionOf(7).State)
				require.Equal(t, map[string]int{"1/Open": 1}, s.signalsOf(7))
				s.status(7, BindingExpected)
				// [D-24]: CANCEL_RUN may close it.
				out, err := s.do(runCommand(t, 2, frames.CommandCancelRun, 7), alice.with(frames.ScopeWorkCommand))
				require.NoError(t, err, "it needs no TERMINAL_CONTROL")
				require.Equal(t, frames.OperationSucceeded, out.Result.State)
				require.Equal(t, frames.RunCancelled, s.runState(7))
				s.settled()
				s.status(7, BindingOver)
			}
		})
	}
}

func (s *state) status(id byte, want BindingState) {
	s.t.Helper()
	got, err := StatusOf(s, frames.BindingID{id})
	require.NoError(s.t, err)
	require.Equal(s.t, want, got.State)
}

// [D-24] and [D-30]: what a CANCEL_RUN that waits for the spawn becomes.
func TestD30_CancelDuringSpawn(t *testing.T) {
	for _, tt := range []struct {
		name       string
		dispatched bool
		finding    Finding
		start, end string
		run        frames.RunState
	}{
		{"READY, never seen", false, Finding{Never: true}, "REJECTED/REVISION_CONFLICT", "SUCCEEDED", frames.RunCancelled},
		{"READY, but a restored store had sent it", false, Finding{State: frames.EffectSucceeded}, "SUCCEEDED", "PENDING", frames.RunRunning},
		{"READY, rejected", false, Finding{State: frames.EffectRejected}, "REJECTED/INTERNAL", "SUCCEEDED", frames.RunCancelled},
		{"READY, nobody knows", false, Finding{State: frames.EffectIndeterminate}, "INDETERMINATE/TARGET_OUTCOME_UNKNOWN", "INDETERMINATE/TARGET_OUTCOME_UNKNOWN", frames.RunPlanned},
		{"DISPATCHED, succeeded", true, Finding{State: frames.EffectSucceeded}, "SUCCEEDED", "PENDING", frames.RunRunning},
		{"DISPATCHED, rejected", true, Finding{State: frames.EffectRejected}, "REJECTED/INTERNAL", "SUCCEEDED", frames.RunCancelled},
		{"DISPATCHED, never seen", true, Finding{Never: true}, "REJECTED/INTERNAL", "SUCCEEDED", frames.RunCancelled},
		{"DISPATCHED, nobody knows", true, Finding{State: frames.EffectIndeterminate}, "INDETERMINATE/TARGET_OUTCOME_UNKNOWN", "INDETERMINATE/TARGET_OUTCOME_UNKNOWN", frames.RunPlanned},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := withRuns(t)
			_, err := s.do(startCommand(t, 1, 7), alice)
			require.NoError(t, err)
			e := s.effect(frames.EffectSpawn)
			if tt.dispatched {
				s.dispatch(e.Attempt.ID, false)
			}
			_, err = s.do(runCommand(t, 2, frames.CommandCancelRun, 7), bob.with(frames.ScopeWorkCommand))
			require.Equal(t, frames.CodeScopeDenied, code(t, err), "[D-34]: checked last, and here it is needed")
			out, err := s.do(runCommand(t, 2, frames.CommandCancelRun, 7), bob)
			require.NoError(t, err)
			require.Equal(t, frames.OperationPending, out.Result.State)
			require.Equal(t, frames.RunPlanned, s.runState(7))
			_, err = s.do(runCommand(t, 3, frames.CommandCancelRun, 7), alice)
			require.Equal(t, frames.CodeRevisionConflict, code(t, err), "a second one meanwhile")
			require.Equal(t, DispatchLookUp, s.dispatch(e.Attempt.ID, false), "it is not sent any more")

			s.finding(e.Attempt.ID, tt.finding)
			require.Equal(t, tt.start, s.opState(1))
			require.Equal(t, tt.end, s.opState(2))
			require.Equal(t, tt.run, s.runState(7))
			switch tt.run {
			case frames.RunCancelled:
				s.settled()
			case frames.RunPlanned:
				_, err := s.do(runCommand(t, 4, frames.CommandCancelRun, 7), alice)
				require.NoError(t, err)
				require.Equal(t, frames.RunCancelled, s.runState(7))
				s.settled()
			case frames.RunRunning:
				kill := s.effect(frames.EffectKill)
				require.Equal(t, frames.EffectReady, kill.Attempt.State)
				require.Equal(t, bob.Principal, kill.Principal)
				require.Equal(t, s.bindingOf(7).Binding, kill.Attempt.Target.Binding)
				s.dispatch(kill.Attempt.ID, false)
				s.admit(exit(t, 7, 1, -15))
				require.Equal(t, "SUCCEEDED", s.opState(2))
				require.Equal(t, frames.RunCancelled, s.runState(7))
				s.settled()
			}
		})
	}
}

// A row of the outbox that its run, binding or operation contradicts is never acted on.
func TestD34_ContradictedEffects(t *testing.T) {
	for name, spoil := range map[string]func(*state){
		"run ended": func(s *state) {
			r := read(s, runRef(frames.RunID{7}), new(frames.Run))
			r.State = frames.RunFailed
			row := s.rows[runRef(frames.RunID{7})]
			row.Record.Payload = body(s.t, r)
			s.rows[runRef(frames.RunID{7})] = row
		},
		"run gone": func(s *state) { delete(s.rows, runRef(frames.RunID{7})) },
		"run running already": func(s *state) {
			r := read(s, runRef(frames.RunID{7}), new(frames.Run))
			r.State = frames.RunRunning
			row := s.rows[runRef(frames.RunID{7})]
			row.Record.Payload = body(s.t, r)
			s.rows[runRef(frames.RunID{7})] = row
		},
		"another attempt": func(s *state) {
			row := s.rows[runRef(frames.RunID{7})]
			row.Annex = image(s.t, &runMeta{Session: frames.WorkSessionID{7}, Binding: frames.BindingID{7}, Spawn: frames.EffectAttemptID{0xff}})
			s.rows[runRef(frames.RunID{7})] = row
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := withRuns(t)
			_, err := s.do(startCommand(t, 1, 7), alice)
			require.NoError(t, err)
			e := s.effect(frames.EffectSpawn)
			require.Empty(t, s.amend(CheckEffect(s, e.Attempt.ID, s.now())).Changes, "a sound one stays")
			spoil(s)
			s.amend(CheckEffect(s, e.Attempt.ID, s.now()))
			require.Equal(t, "INDETERMINATE/RECOVERY_STATE_INVALID", s.opState(1))
			require.Empty(t, s.effects(frames.EffectSpawn))
			require.Zero(t, s.pending[alice.Principal])
			if name == "run running already" {
				require.Equal(t, map[string]int{"1/Open": 1}, s.signalsOf(7))
				meta, err := DecodeOpMeta(s.rows[OperationRef(frames.OperationID{1})].Annex)
				require.NoError(t, err)
				require.Contains(t, meta.Created, signalRef(s.open(7)), "its tombstone stays as long as the signal")
				_, err = s.do(runCommand(t, 2, frames.CommandCancelRun, 7), alice)
				require.NoError(t, err, "nothing waits for the attempt")
				require.Equal(t, frames.RunCancelled, s.runState(7))
			}
		})
	}
}

// The same of a KILL: what it contradicts can still be ended.
func TestD34_ContradictedKill(t *testing.T) {
	s := withRuns(t)
	s.running(7)
	_, err := s.do(runCommand(t, 1, frames.CommandCancelRun, 7), alice)
	require.NoError(t, err)
	kill := s.effect(frames.EffectKill)
	row := s.rows[OperationRef(frames.OperationID{1})]
	row.Record.Payload = body(t, &frames.Operation{Principal: alice.Principal, Result: frames.OperationResult{State: frames.OperationRejected, Sequence: 9, Code: frames.CodeInternal}})
	s.rows[OperationRef(frames.OperationID{1})] = row
	s.amend(CheckEffect(s, kill.Attempt.ID, s.now()))
	require.Empty(t, s.effects(frames.EffectKill))
	_, err = s.do(runCommand(t, 2, frames.CommandCancelRun, 7), alice)
	require.NoError(t, err)
}

// (owner, incarnation, resource) has at most one active binding: an owner that says otherwise
// proves nothing.
func TestOneBindingForEachResource(t *testing.T) {
	s := withRuns(t)
	s.running(7)
	_, err := s.do(startCommand(t, 1, 8), alice)
	require.NoError(t, err)
	e := s.effect(frames.EffectSpawn)
	s.dispatch(e.Attempt.ID, false)
	s.finding(e.Attempt.ID, Finding{State: frames.EffectSucceeded, Resource: frames.ResourceID{ID: 7}})
	require.Equal(t, "INDETERMINATE/TARGET_OUTCOME_UNKNOWN", s.opState(1))
	require.NotContains(t, s.rows, bindingRef(frames.BindingID{8}))

	// The same number at another owner, or in its next incarnation, is another resource.
	other := frames.Fingerprint{0xbb}
	s.env.Owners = ownersUp{theOwner: nextLife, other: life}
	for op, edit := range map[byte]func(*frames.StartRun){
		2: func(p *frames.StartRun) { p.OwnerIncarnation = nextLife },
		3: func(p *frames.StartRun) { p.Owner = other },
	} {
		_, err := s.do(startCommand(t, op, 10+op, edit), alice)
		require.NoError(t, err)
		s.finding(s.effect(frames.EffectSpawn).Attempt.ID, Finding{State: frames.EffectSucceeded, Resource: frames.ResourceID{ID: 7}})
		require.Equal(t, "SUCCEEDED", s.opState(op))
	}
}

// Pending operations and attempts are charged before anything is admitted (§2.3).
func TestC14_PendingIsBounded(t *testing.T) {
	s := withRuns(t)
	s.env.MaxPending, s.env.MaxPendingAll = 4, 6
	s.env.PendingOf = func(p frames.KeyID) (own, all uint64) {
		for _, n := range s.pending {
			all += uint64(n)
		}
		return uint64(s.pending[p]), all
	}
	start := func(op byte, from Viewer) error {
		_, err := s.do(startCommand(t, op, op), from)
		return err
	}
	require.NoError(t, start(1, alice))
	require.NoError(t, start(2, alice))
	require.Equal(t, frames.CodeResourceExhausted, code(t, start(3, alice)), "the principal's")
	require.NoError(t, start(4, bob))
	require.Equal(t, frames.CodeResourceExhausted, code(t, start(5, bob)), "the server's")
	_, err := s.do(startCommand(t, 1, 1), alice)
	require.NoError(t, err, "a duplicate is not charged")
	_, err = s.do(create(t, 6, 9, ""), alice)
	require.NoError(t, err, "what is finished at once is not charged")
	for _, e := range s.effects(frames.EffectSpawn) {
		s.finding(e.Attempt.ID, Finding{State: frames.EffectRejected})
	}
	s.settled()
	require.NoError(t, start(7, alice), fmt.Sprint(s.pending))
}
