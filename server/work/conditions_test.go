package work

import (
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
)

// [D-55]: what a principal can neither see nor change by its command counts as revision 0;
// what the command changes counts as it is, also when the payload does not name it.
func TestD55_WhatABlindPrincipalMayExpect(t *testing.T) {
	blind := bob.with(frames.ScopeWorkCommand | frames.ScopeTerminalControl)
	rev := func(s *state, ref frames.ObjectRef) frames.Precondition {
		return frames.Precondition{Object: ref, Revision: uint64(s.rows[ref].Record.Revision)}
	}
	start := func(*state) *frames.CoordCommand { return startCommand(t, 1, 8) }
	cancel := func(*state) *frames.CoordCommand { return runCommand(t, 1, frames.CommandCancelRun, 7) }
	pause := func(*state) *frames.CoordCommand { return runCommand(t, 1, frames.CommandPauseRun, 7) }
	end := func(*state) *frames.CoordCommand { return endCommand(t, 1, 7, frames.EndFailed) }
	run, session, binding := runRef(frames.RunID{7}), sessionRef(frames.WorkSessionID{7}), bindingRef(frames.BindingID{7})
	for _, tt := range []struct {
		name    string
		cmd     func(*state) *frames.CoordCommand
		on      frames.ObjectRef
		changes bool
	}{
		{"START_RUN decides on the objective", start, objectiveRef(frames.ObjectiveID{1}), false},
		{"START_RUN and another run", start, run, false},
		{"CANCEL_RUN changes its run", cancel, run, true},
		{"CANCEL_RUN changes its session", cancel, session, true},
		{"CANCEL_RUN changes its binding", cancel, binding, true},
		{"CANCEL_RUN and another session", cancel, sessionRef(frames.WorkSessionID{9}), false},
		{"CANCEL_RUN and the objective", cancel, objectiveRef(frames.ObjectiveID{1}), false},
		{"PAUSE_RUN changes its run", pause, run, true},
		{"PAUSE_RUN and its session", pause, session, false},
		{"END_BINDING changes its binding", end, binding, true},
		{"END_BINDING changes the run", end, run, true},
		{"END_BINDING changes the session", end, session, true},
		{"END_BINDING and another run", end, runRef(frames.RunID{9}), false},
		{"CANCEL_RUN and an operation of somebody else", cancel, OperationRef(frames.OperationID{0xf0}), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, absent := range []bool{false, true} {
				s := withRuns(t)
				s.running(7)
				s.running(9)
				cmd := tt.cmd(s)
				cond := rev(s, tt.on)
				require.NotZero(t, cond.Revision)
				if absent {
					cond.Revision = 0
				}
				cmd.Preconditions = []frames.Precondition{cond}
				_, err := s.do(cmd, blind)
				if absent == tt.changes {
					require.Equal(t, frames.CodeRevisionConflict, code(t, err))
				} else {
					require.NoError(t, err)
				}
				cmd.OperationID[0]++
				cmd.Preconditions[0].Revision += 9
				_, err = s.do(cmd, blind)
				require.Equal(t, frames.CodeRevisionConflict, code(t, err), "and no other revision")
			}
		})
	}
	// A run that is not there changes nothing.
	s := withRuns(t)
	s.running(7)
	for _, cmd := range []*frames.CoordCommand{runCommand(t, 1, frames.CommandCancelRun, 5), endCommand(t, 1, 5, frames.EndFailed)} {
		cmd.Preconditions = []frames.Precondition{{Object: session}}
		_, err := s.do(cmd, blind)
		require.Equal(t, frames.CodeNotFound, code(t, err))
	}
}

// A fact at the last sequence would leave its binding without a next one, so that neither
// CLOSED nor an end could be recorded. It is refused and nothing of the binding changes.
func TestC15_TheLastSequenceIsRefused(t *testing.T) {
	s := withRuns(t)
	s.running(7)
	require.Equal(t, []Verdict{FactAdmitted, FactRefused}, s.admit(output(t, 7, 1, 1), output(t, 7, math.MaxUint64, 1)))
	require.Equal(t, []string{"SOURCE_FACT_ADMITTED"}, s.seen())
	require.Equal(t, []Verdict{FactJumped}, s.admit(output(t, 7, math.MaxUint64-1, 1)))
	s.events = nil
	s.amend(LoseBinding(s, frames.BindingID{7}, s.now()))
	require.Equal(t, "SOURCE_GAP/2 18446744073709551615 18446744073709551614", s.seen()[0])
	s.settled()
}

// What an owner says of a refusal is kept as far as a result may carry it, and is text.
func TestAnOwnersMessageIsCutToText(t *testing.T) {
	for _, said := range []string{
		strings.Repeat("é", frames.MaxText), "x" + strings.Repeat("é", frames.MaxText), strings.Repeat("\xff", 2*frames.MaxText), "\xc3",
	} {
		s := withRuns(t)
		_, err := s.do(startCommand(t, 1, 7), alice)
		require.NoError(t, err)
		s.finding(s.effect(frames.EffectSpawn).Attempt.ID, Finding{State: frames.EffectRejected, Message: said})
		got := s.op(1).Message
		require.True(t, utf8.ValidString(got))
		require.Contains(t, got, "refused to start the process: ")
		require.LessOrEqual(t, len(got), frames.MaxText)
		if utf8.ValidString(said) {
			require.GreaterOrEqual(t, len(got), frames.MaxText-3, "and no more is cut than has to be")
		}
	}
}

// [D-22]: what became of input and signals is recorded and sealed, and does nothing else; it is
// no sign of life either, so that what was blocked stays open.
func TestD22_ResultsOnlyRecord(t *testing.T) {
	s := withRuns(t)
	s.running(7)
	s.admit(attention(t, 7, 1, frames.AttentionBlocked))
	s.events = nil
	require.Equal(t, []Verdict{FactAdmitted, FactAdmitted, FactAdmitted}, s.admit(
		fact(t, 7, 2, frames.FactSignalResult, &frames.SignalResult{Attempt: frames.EffectAttemptID{1}, Outcome: frames.OutcomeRejected}),
		fact(t, 7, 3, frames.FactInputResult, &frames.InputResult{Attempt: frames.EffectAttemptID{2}, Outcome: frames.OutcomeUnknown}),
		fact(t, 7, 4, frames.FactOpened, &frames.Opened{})))
	require.Equal(t, []string{"SOURCE_FACT_ADMITTED", "SOURCE_FACT_ADMITTED", "SOURCE_FACT_ADMITTED"}, s.seen())
	require.Equal(t, map[string]int{"1/Open": 1}, s.signalsOf(7))
	require.Equal(t, frames.RunRunning, s.runState(7))
	s.admit(exit(t, 7, 5, 0))
	require.Equal(t, map[string]int{"1/Resolved": 1}, s.signalsOf(7), "CLOSED resolves it")
	s.evidence(7, 0, exit(t, 7, 5, 0))
	s.settled()
}
