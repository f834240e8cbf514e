package work

import (
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
)

func endCommand(t testing.TB, op, id byte, reason frames.EndReason) *frames.CoordCommand {
	return command(t, op, frames.CommandEndBinding, &frames.EndBinding{BindingID: frames.BindingID{id}, Reason: reason})
}

// [D-29]: how far the KILL had come decides what the end of the process means.
func TestD29_KillAndClosed(t *testing.T) {
	ready := func(*state, frames.EffectAttemptID) {}
	send := func(s *state, id frames.EffectAttemptID) { require.Equal(s.t, DispatchSend, s.dispatch(id, false)) }
	earlier := func(s *state, _ frames.EffectAttemptID) { s.env.Activation = 9 }
	answer := func(f Finding) func(*state, frames.EffectAttemptID) {
		return func(s *state, id frames.EffectAttemptID) { send(s, id); s.finding(id, f) }
	}
	cancel := func(t testing.TB) *frames.CoordCommand { return runCommand(t, 1, frames.CommandCancelRun, 7) }
	end := func(r frames.EndReason) func(testing.TB) *frames.CoordCommand {
		return func(t testing.TB) *frames.CoordCommand { return endCommand(t, 1, 7, r) }
	}
	for _, tt := range []struct {
		name   string
		cmd    func(testing.TB) *frames.CoordCommand
		before func(*state, frames.EffectAttemptID)
		status int32
		reason frames.EndReason
		run    frames.RunState
		op     string
		failed bool // EXECUTION_FAILED is raised
	}{
		{"cancel, DISPATCHED", cancel, send, -15, frames.EndCancelled, frames.RunCancelled, "SUCCEEDED", false},
		{"cancel, SUCCEEDED", cancel, answer(Finding{State: frames.EffectSucceeded}), -9, frames.EndCancelled, frames.RunCancelled, "SUCCEEDED", false},
		{"cancel, READY", cancel, ready, 3, frames.EndFailed, frames.RunFailed, "REJECTED/REVISION_CONFLICT", true},
		{"cancel, READY, exit 0", cancel, ready, 0, frames.EndCompleted, frames.RunCompleted, "REJECTED/REVISION_CONFLICT", false},
		{"cancel, READY of an earlier activation", cancel, earlier, 3, frames.EndCancelled, frames.RunCancelled, "SUCCEEDED", false},
		{"end as completed", end(frames.EndCompleted), send, -15, frames.EndCompleted, frames.RunCompleted, "SUCCEEDED", false},
		{"end as failed", end(frames.EndFailed), send, 0, frames.EndFailed, frames.RunFailed, "SUCCEEDED", false},
		{"end as cancelled", end(frames.EndCancelled), send, 0, frames.EndCancelled, frames.RunCancelled, "SUCCEEDED", false},
		{"kill rejected", cancel, answer(Finding{State: frames.EffectRejected}), 1, frames.EndFailed, frames.RunFailed, "REJECTED/NOT_FOUND", true},
		{"kill never seen", cancel, answer(Finding{Never: true}), 0, frames.EndCompleted, frames.RunCompleted, "REJECTED/NOT_FOUND", false},
		{"kill indeterminate", cancel, answer(Finding{State: frames.EffectIndeterminate}), 0, frames.EndCompleted, frames.RunCompleted, "INDETERMINATE/TARGET_OUTCOME_UNKNOWN", false},
		{"kill denied", cancel, func(s *state, id frames.EffectAttemptID) {
			require.Equal(s.t, DispatchLookUp, s.dispatch(id, true))
			s.finding(id, Finding{Never: true})
		}, 0, frames.EndCompleted, frames.RunCompleted, "REJECTED/SCOPE_DENIED", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := withRuns(t)
			s.running(7)
			out, err := s.do(tt.cmd(t), alice)
			require.NoError(t, err)
			require.Equal(t, frames.OperationPending, out.Result.State)
			require.Equal(t, []string{"OPERATION_CHANGED"}, s.seen())
			kill := s.effect(frames.EffectKill)
			tt.before(s, kill.Attempt.ID)
			require.Equal(t, frames.StateActive, s.bindingOf(7).State, "a KILL ends nothing by itself")
			require.Equal(t, frames.RunRunning, s.runState(7))

			require.Equal(t, []Verdict{FactAdmitted}, s.admit(exit(t, 7, 1, tt.status)))
			b := s.bindingOf(7)
			require.Equal(t, frames.StateEnded, b.State)
			require.Equal(t, tt.reason, *b.Reason)
			require.Equal(t, tt.run, s.runState(7))
			require.Equal(t, tt.op, s.opState(1))
			require.Contains(t, s.rows, evidenceRef(frames.BindingID{7}), "it is sealed all the same")
			want := map[string]int{}
			if tt.failed {
				want["2/Open"] = 1
			}
			require.Equal(t, want, s.signalsOf(7))
			s.settled()
		})
	}
}

// A KILL that has succeeded waits for its binding alone: it is neither sent nor looked up
// again, and what an owner says of it later changes nothing.
func TestD29_ADeliveredKillIsLeftAlone(t *testing.T) {
	s := withRuns(t)
	s.running(7)
	_, err := s.do(runCommand(t, 1, frames.CommandCancelRun, 7), alice)
	require.NoError(t, err)
	id := s.effect(frames.EffectKill).Attempt.ID
	require.Equal(t, DispatchSend, s.dispatch(id, false))
	s.finding(id, Finding{State: frames.EffectSucceeded})
	require.Equal(t, DispatchNothing, s.dispatch(id, false))
	require.Empty(t, s.finding(id, Finding{State: frames.EffectRejected}).Changes)
	require.Equal(t, "PENDING", s.opState(1))
	s.env.Activation = 9
	require.Equal(t, DispatchNothing, s.dispatch(id, false), "after a restart neither")
	require.Empty(t, s.amend(CheckEffect(s, id, s.now())).Changes)
	require.Empty(t, s.amend(LoseEffect(s, id, s.now())).Changes, "it finishes with its binding")
	s.admit(exit(t, 7, 1, -15))
	require.Equal(t, "SUCCEEDED", s.opState(1))
	s.settled()
}

// [D-29]: a binding that ends otherwise than by CLOSED.
func TestD29_EndedOtherwise(t *testing.T) {
	for _, tt := range []struct {
		name   string
		before func(*state, frames.EffectAttemptID)
		op     string
	}{
		{"READY", func(*state, frames.EffectAttemptID) {}, "REJECTED/REVISION_CONFLICT"},
		{"READY of an earlier activation", func(s *state, _ frames.EffectAttemptID) { s.env.Activation = 9 }, "INDETERMINATE/TARGET_OUTCOME_UNKNOWN"},
		{"DISPATCHED", func(s *state, id frames.EffectAttemptID) { s.dispatch(id, false) }, "INDETERMINATE/TARGET_OUTCOME_UNKNOWN"},
		{"SUCCEEDED", func(s *state, id frames.EffectAttemptID) {
			s.dispatch(id, false)
			s.finding(id, Finding{State: frames.EffectSucceeded})
		}, "SUCCEEDED"},
	} {
		for how, end := range map[string]func(*state) (frames.EndReason, frames.RunState){
			"owner lost": func(s *state) (frames.EndReason, frames.RunState) {
				s.amend(LoseBinding(s, frames.BindingID{7}, s.now()))
				return frames.EndOwnerLost, frames.RunFailed
			},
			"END_BINDING while the owner is away": func(s *state) (frames.EndReason, frames.RunState) {
				s.env.Owners = nil
				out, err := s.do(endCommand(s.t, 2, 7, frames.EndCompleted), alice)
				require.NoError(s.t, err)
				require.Equal(s.t, frames.OperationSucceeded, out.Result.State)
				require.Equal(s.t, frames.ResultNone, out.Result.Kind)
				return frames.EndCompleted, frames.RunCompleted
			},
			"a conflict": func(s *state) (frames.EndReason, frames.RunState) {
				require.Equal(s.t, []Verdict{FactAdmitted, FactConflicted}, s.admit(output(s.t, 7, 1, 5), output(s.t, 7, 1, 6)))
				return frames.EndFailed, frames.RunFailed
			},
		} {
			t.Run(tt.name+", "+how, func(t *testing.T) {
				s := withRuns(t)
				s.running(7)
				_, err := s.do(runCommand(t, 1, frames.CommandCancelRun, 7), alice)
				require.NoError(t, err)
				tt.before(s, s.effect(frames.EffectKill).Attempt.ID)
				reason, run := end(s)
				require.Equal(t, reason, *s.bindingOf(7).Reason)
				require.Equal(t, run, s.runState(7))
				require.Nil(t, read(s, runRef(frames.RunID{7}), new(frames.Run)).Outcome, "only CLOSED gives one")
				require.Equal(t, tt.op, s.opState(1))
				require.NotContains(t, s.rows, evidenceRef(frames.BindingID{7}), "never a seal")
				s.settled()
			})
		}
	}
}

func TestD29_OneAtATime(t *testing.T) {
	s := withRuns(t)
	s.running(7)
	_, err := s.do(runCommand(t, 1, frames.CommandCancelRun, 7), alice)
	require.NoError(t, err)
	for op, cmd := range map[string]*frames.CoordCommand{
		"cancel": runCommand(t, 2, frames.CommandCancelRun, 7), "end": endCommand(t, 3, 7, frames.EndFailed),
	} {
		_, err := s.do(cmd, alice)
		require.Equal(t, frames.CodeRevisionConflict, code(t, err), op)
	}
	kill := s.effect(frames.EffectKill)
	s.dispatch(kill.Attempt.ID, false)
	s.finding(kill.Attempt.ID, Finding{State: frames.EffectRejected})
	_, err = s.do(endCommand(t, 4, 7, frames.EndFailed), alice)
	require.NoError(t, err, "the first is finished")
}

func TestD17_EndBinding(t *testing.T) {
	s := withRuns(t)
	_, err := s.do(endCommand(t, 1, 7, frames.EndFailed), alice)
	require.Equal(t, frames.CodeNotFound, code(t, err))
	s.running(7)
	_, err = s.do(endCommand(t, 1, 7, frames.EndOwnerLost), alice)
	require.Equal(t, frames.CodeRevisionConflict, code(t, err), "its owner is there")
	s.env.Owners = ownersUp{theOwner: nextLife}
	s.admit(output(t, 7, 1, 5), output(t, 7, 2, 5))
	s.events = nil
	_, err = s.do(endCommand(t, 1, 7, frames.EndOwnerLost), alice)
	require.NoError(t, err, "another incarnation is there")
	require.Equal(t, []string{"SOURCE_GAP/2 3 2", "BINDING_ENDED", "WORK_SESSION_CHANGED", "RUN_CHANGED", "OPERATION_CHANGED"}, s.seen(), "[D-35]")
	require.Zero(t, s.sessionOf(7).ActiveBinding)
	require.Equal(t, frames.StateEnded, s.sessionOf(7).State)
	require.Equal(t, frames.RunFailed, s.runState(7))
	_, err = s.do(endCommand(t, 2, 7, frames.EndFailed), alice)
	require.Equal(t, frames.CodeRevisionConflict, code(t, err))
	require.Empty(t, s.amend(LoseBinding(s, frames.BindingID{7}, s.now())).Changes, "an end is an end")
	s.settled()
}

// [D-31] [D-53]: a binding whose owner is gone ends as lost, with what is known of it.
func TestC16_OwnerLossEndsABinding(t *testing.T) {
	s := withRuns(t)
	s.running(7)
	s.admit(output(t, 7, 1, 5))
	s.events = nil
	s.amend(LoseBinding(s, frames.BindingID{7}, s.now()))
	require.Equal(t, []string{"SOURCE_GAP/2 2 1", "BINDING_ENDED", "WORK_SESSION_CHANGED", "RUN_CHANGED"}, s.seen())
	require.Equal(t, frames.EndOwnerLost, *s.bindingOf(7).Reason)
	s.status(7, BindingOver)
	require.Equal(t, []Verdict{FactRefused}, s.admit(output(t, 7, 2, 5)), "nothing continues it")
	_, err := s.do(startCommand(t, 1, 8, func(p *frames.StartRun) { p.PendingBindingID = frames.PendingBindingID{7} }), alice)
	require.Equal(t, frames.CodeRevisionConflict, code(t, err), "nor takes its name")
	s.settled()

	s.running(9)
	s.amend(LoseBinding(s, frames.BindingID{9}, s.now()))
	require.Equal(t, "SOURCE_GAP/2 1 0", s.seen()[0], "observed 0 means none")
}

func TestD17_PauseAndResume(t *testing.T) {
	s := withRuns(t)
	s.running(7)
	_, err := s.do(runCommand(t, 1, frames.CommandPauseRun, 7), alice)
	require.NoError(t, err)
	require.Equal(t, []Verdict{FactAdmitted}, s.admit(output(t, 7, 1, 5)), "facts are still admitted")
	require.Equal(t, frames.RunPaused, s.runState(7))
	_, err = s.do(runCommand(t, 2, frames.CommandCancelRun, 7), alice)
	require.NoError(t, err, "a paused run can be cancelled")
	s.dispatch(s.effect(frames.EffectKill).Attempt.ID, false)
	s.admit(exit(t, 7, 2, -15))
	require.Equal(t, frames.RunCancelled, s.runState(7))
	s.settled()
}

func TestD17_CancelNeedsControlOfAProcess(t *testing.T) {
	s := withRuns(t)
	s.running(7)
	_, err := s.do(runCommand(t, 1, frames.CommandCancelRun, 7), alice.with(frames.ScopeWorkCommand))
	require.Equal(t, frames.CodeScopeDenied, code(t, err))
	s.env.LowDisk = true
	_, err = s.do(runCommand(t, 1, frames.CommandCancelRun, 7), alice)
	require.NoError(t, err, "[D-41]: it lives on the reserve")
}
