package work

import (
	"bytes"
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"coordinator/codec"
	"coordinator/frames"
)

func ptr[T any](v T) *T { return &v }

// The order of checks in [D-18]: what is wrong first is what is answered.
func TestParseChecksInOrder(t *testing.T) {
	good := body(t, &frames.CreateObjective{ObjectiveID: frames.ObjectiveID{1}, Schema: 1})
	otherSchema := body(t, &frames.CreateObjective{ObjectiveID: frames.ObjectiveID{1}, Schema: 2})
	retain := body(t, &frames.ChangeRetention{Retention: frames.Retention{OperationResultSecs: 2_592_000, EventBytes: 1, ArtifactBytes: 1}})
	state := func(v byte) []byte {
		return codec.AppendFields(body(t, &frames.UpdateObjective{ObjectiveID: frames.ObjectiveID{1}, Schema: 1}),
			[]codec.Field{{ID: 4, Value: []byte{v}}})
	}
	none := alice.with(0).offering(0)
	for _, tt := range []struct {
		name    string
		kind    frames.CommandKind
		payload []byte
		from    Viewer
		want    frames.Code
	}{
		{"kind zero", 0, nil, none, frames.CodeMalformedMessage},
		{"unknown kind", 12, nil, none, frames.CodeCapabilityRequired},
		{"last kind", math.MaxUint16, good, alice, frames.CodeCapabilityRequired},
		{"archive without its capability", frames.CommandArchiveObjective, good, alice.offering(Capabilities &^ frames.CapArchive), frames.CodeCapabilityRequired},
		{"archive without its scope", frames.CommandArchiveObjective, good, alice.with(frames.ScopeWorkRead | frames.ScopeAdmin), frames.CodeScopeDenied},
		{"archive of another form", frames.CommandArchiveObjective, []byte{1, 4, 1, 0}, alice, frames.CodeMalformedMessage},
		{"start run without its capability", frames.CommandStartRun, good, alice.offering(Capabilities &^ frames.CapTerminalBindings), frames.CodeCapabilityRequired},
		{"start run without its scope", frames.CommandStartRun, good, alice.with(frames.ScopeWorkRead | frames.ScopeAdmin), frames.CodeScopeDenied},
		{"start run of another form", frames.CommandStartRun, []byte{1, 4, 1, 0}, alice, frames.CodeMalformedMessage},
		{"ack signal without its capability", frames.CommandAckSignal, good, alice.offering(Capabilities &^ frames.CapSignals), frames.CodeCapabilityRequired},
		{"ack signal without its scope", frames.CommandAckSignal, good, alice.with(frames.ScopeWorkRead | frames.ScopeAdmin), frames.CodeScopeDenied},
		{"ack signal of another form", frames.CommandAckSignal, []byte{1, 4, 1, 0}, alice, frames.CodeMalformedMessage},
		{"suppress signal without its capability", frames.CommandSuppressSignal, good, alice.offering(Capabilities &^ frames.CapSignals), frames.CodeCapabilityRequired},
		{"suppress signal without its scope", frames.CommandSuppressSignal, good, alice.with(frames.ScopeWorkRead | frames.ScopeAdmin), frames.CodeScopeDenied},
		{"suppress signal of another form", frames.CommandSuppressSignal, []byte{1, 4, 1, 0}, alice, frames.CodeMalformedMessage},
		{"register manifest without its capability", frames.CommandRegisterArtifactManifest, good, alice.offering(Capabilities &^ frames.CapArtifactManifests), frames.CodeCapabilityRequired},
		{"register manifest without its scope", frames.CommandRegisterArtifactManifest, good, alice.with(frames.ScopeWorkRead | frames.ScopeAdmin), frames.CodeScopeDenied},
		{"register manifest of another form", frames.CommandRegisterArtifactManifest, []byte{1, 4, 1, 0}, alice, frames.CodeMalformedMessage},
		{"end binding without its capability", frames.CommandEndBinding, good, alice.offering(Capabilities &^ frames.CapTerminalBindings), frames.CodeCapabilityRequired},
		{"end binding without its scope", frames.CommandEndBinding, good, alice.with(frames.ScopeWorkRead | frames.ScopeAdmin), frames.CodeScopeDenied},
		{"end binding of another form", frames.CommandEndBinding, []byte{1, 4, 1, 0}, alice, frames.CodeMalformedMessage},
		{"capability before scope", frames.CommandChangeRetention, nil, none, frames.CodeCapabilityRequired},
		{"scope before payload", frames.CommandChangeRetention, nil, none.offering(frames.CapAdministration), frames.CodeScopeDenied},
		{"admin implies nothing", frames.CommandCreateObjective, good, alice.with(frames.ScopeAdmin), frames.CodeScopeDenied},
		{"command implies no admin", frames.CommandChangeRetention, retain, alice.with(frames.ScopeWorkCommand), frames.CodeScopeDenied},
		{"empty payload", frames.CommandCreateObjective, nil, alice, frames.CodeMalformedMessage},
		{"not TLV", frames.CommandCreateObjective, []byte{0xff}, alice, frames.CodeMalformedMessage},
		{"id zero", frames.CommandCreateObjective, bytes.Replace(good, []byte{1, 4, 16, 1}, []byte{1, 4, 16, 0}, 1), alice, frames.CodeMalformedMessage},
		{"form before schema", frames.CommandCreateObjective, otherSchema[:len(otherSchema)-1], alice, frames.CodeMalformedMessage},
		{"schema 2", frames.CommandCreateObjective, otherSchema, alice, frames.CodeCapabilityRequired},
		{"state without lifecycle", frames.CommandUpdateObjective, state(1), alice.offering(frames.CapAdministration), frames.CodeCapabilityRequired},
		{"state Active", frames.CommandUpdateObjective, state(0), alice, frames.CodeMalformedMessage},
		{"state unknown", frames.CommandUpdateObjective, state(3), alice, frames.CodeMalformedMessage},
		{"run id missing", frames.CommandCancelRun, nil, alice, frames.CodeMalformedMessage},
		{"retention too short", frames.CommandChangeRetention, bytes.Replace(retain, []byte{0x27, 0x8d, 0x00}, []byte{0x27, 0x8c, 0xff}, 1), alice, frames.CodeMalformedMessage},
		{"over the selected payload", frames.CommandCreateObjective, append(bytes.Clone(good), make([]byte, 4096)...), alice, frames.CodeMalformedMessage},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Parse(&frames.CoordCommand{OperationID: frames.OperationID{1}, Kind: tt.kind, Payload: tt.payload}, tt.from, 4096)
			require.Equal(t, tt.want, code(t, err))
		})
	}
	_, err := Parse(&frames.CoordCommand{OperationID: frames.OperationID{1}, Kind: 1, Payload: good}, alice, 4096)
	require.NoError(t, err)
}

func TestObjectiveLife(t *testing.T) {
	s := newState(t)
	out, err := s.do(create(t, 1, 1, "a"), alice)
	require.NoError(t, err)
	var ref frames.ObjectRef
	require.Equal(t, frames.ResultObjectRef, out.Result.Kind)
	require.NoError(t, codec.DecodeImage(&ref, out.Result.Payload))
	require.Equal(t, objectiveRef(frames.ObjectiveID{1}), ref)
	require.Equal(t, []frames.EventKind{frames.EventObjectiveChanged, frames.EventOperationChanged},
		[]frames.EventKind{out.Changes[0].Event, out.Changes[1].Event})
	require.True(t, s.live[ref])

	_, err = s.do(update(t, 2, 1, "b", nil), bob)
	require.NoError(t, err)
	o, rev := objective(t, s, 1)
	require.Equal(t, frames.Objective{DocumentSchema: 1, Document: []byte("b"), State: frames.ObjectiveActive}, o)
	require.EqualValues(t, 2, rev)

	_, err = s.do(update(t, 3, 1, "c", ptr(frames.ObjectiveCompleted)), alice)
	require.NoError(t, err)
	o, rev = objective(t, s, 1)
	require.Equal(t, frames.ObjectiveCompleted, o.State)
	require.EqualValues(t, 3, rev)
	require.False(t, s.live[ref], "a completed objective is history")

	_, err = s.do(update(t, 4, 1, "d", nil), alice)
	require.Equal(t, frames.CodeRevisionConflict, code(t, err))
	_, err = s.do(create(t, 5, 1, "e"), alice)
	require.Equal(t, frames.CodeRevisionConflict, code(t, err), "an id is used for ever")
	require.EqualValues(t, 6, s.head)
}

func TestObjectiveWithUnfinishedRunsStaysOpen(t *testing.T) {
	s := newState(t)
	_, err := s.do(create(t, 1, 1, "a"), alice)
	require.NoError(t, err)
	counts := runsRef(frames.ObjectiveID{1})
	s.rows[counts] = Stored{Record: frames.SnapshotRecord{Kind: counts.Kind, ID: counts.ID, Revision: 1}, Annex: image(t, &runCounts{Runs: 2, Unfinished: 1})}
	_, err = s.do(update(t, 2, 1, "b", ptr(frames.ObjectiveCancelled)), alice)
	require.Equal(t, frames.CodeRevisionConflict, code(t, err))
	_, err = s.do(update(t, 3, 1, "b", nil), alice)
	require.NoError(t, err)
	s.rows[counts] = Stored{Record: s.rows[counts].Record, Annex: image(t, &runCounts{Runs: 2})}
	_, err = s.do(update(t, 4, 1, "b", ptr(frames.ObjectiveCancelled)), alice)
	require.NoError(t, err)
}

func TestC08_DuplicatesAndConflicts(t *testing.T) {
	s := newState(t)
	first, err := s.do(create(t, 1, 1, "a", at(frames.KindObjective, 1, 0)), alice)
	require.NoError(t, err)
	head := s.head
	for _, tt := range []struct {
		name string
		cmd  *frames.CoordCommand
		from Viewer
		want frames.Code // zero: the stored result
	}{
		{"the same again", create(t, 1, 1, "a", at(frames.KindObjective, 1, 0)), alice, 0},
		{"from a narrower grant", create(t, 1, 1, "a", at(frames.KindObjective, 1, 0)), alice.with(frames.ScopeWorkCommand).offering(0), 0},
		{"another principal", create(t, 1, 1, "a", at(frames.KindObjective, 1, 0)), bob, frames.CodeOperationConflict},
		{"another document", create(t, 1, 1, "b", at(frames.KindObjective, 1, 0)), alice, frames.CodeOperationConflict},
		{"another object", create(t, 1, 2, "a", at(frames.KindObjective, 1, 0)), alice, frames.CodeOperationConflict},
		{"without its precondition", create(t, 1, 1, "a"), alice, frames.CodeOperationConflict},
		{"another precondition", create(t, 1, 1, "a", at(frames.KindObjective, 1, 5)), alice, frames.CodeOperationConflict},
		{"another kind", update(t, 1, 1, "a", nil), alice, frames.CodeOperationConflict},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out, err := s.do(tt.cmd, tt.from)
			if tt.want != 0 {
				require.Equal(t, tt.want, code(t, err))
				require.NotContains(t, err.Error(), frames.ObjectiveID{1}.String(), "nothing is disclosed")
			} else {
				require.NoError(t, err)
				require.True(t, out.Duplicate)
				require.Equal(t, first.Result, out.Result)
			}
			require.Equal(t, head, s.head)
		})
	}
}

func TestC08_RefusedCommandLeavesItsIDFree(t *testing.T) {
	s := newState(t)
	_, err := s.do(update(t, 1, 1, "a", nil), alice)
	require.Equal(t, frames.CodeNotFound, code(t, err))
	got, err := Lookup(s, frames.OperationID{1}, alice)
	require.NoError(t, err)
	require.Equal(t, frames.OperationUnknown, got.State)
	s.env.LowDisk = true
	_, err = s.do(create(t, 1, 1, "a"), alice)
	require.Equal(t, frames.CodeResourceExhausted, code(t, err))
	s.env.LowDisk = false
	_, err = s.do(create(t, 1, 1, "a"), alice)
	require.NoError(t, err, "the fault has passed and the same id runs, once")
}

func TestC07_EqualFormsHaveOneDigest(t *testing.T) {
	base := create(t, 1, 1, "a", at(frames.KindObjective, 1, 0), at(frames.KindRun, 9, 0))
	digest := func(c *frames.CoordCommand) [32]byte {
		cmd, err := Parse(c, alice, frames.MaxTypedPayload)
		require.NoError(t, err)
		return cmd.Digest
	}
	want := digest(base)
	same := map[string]func(c *frames.CoordCommand){
		"another request id":   func(c *frames.CoordCommand) { c.RequestID = 77 },
		"another guard":        func(c *frames.CoordCommand) { c.Guard.Epoch = 12; c.Guard.TokenSHA256[3] = 1 },
		"another operation id": func(c *frames.CoordCommand) { c.OperationID[5] = 1 },
		"reordered conditions": func(c *frames.CoordCommand) {
			p := c.Preconditions
			c.Preconditions = []frames.Precondition{p[1], p[0]}
		},
		"reordered payload": func(c *frames.CoordCommand) { c.Payload = reversed(t, c.Payload) },
	}
	for name, change := range same {
		c := *base
		change(&c)
		require.Equal(t, want, digest(&c), name)
	}
	other := map[string]func(c *frames.CoordCommand){
		"an extension": func(c *frames.CoordCommand) { c.Extensions = []codec.Field{{ID: 9, Value: []byte("x")}} },
		"an unknown payload field": func(c *frames.CoordCommand) {
			c.Payload = codec.AppendFields(bytes.Clone(c.Payload), []codec.Field{{ID: 50, Value: []byte("x")}})
		},
		"one condition less": func(c *frames.CoordCommand) { c.Preconditions = c.Preconditions[:1] },
	}
	for name, change := range other {
		c := *base
		change(&c)
		require.NotEqual(t, want, digest(&c), name)
	}
	c := *base
	c.Preconditions = nil
	d := *base
	d.Preconditions = []frames.Precondition{}
	require.Equal(t, digest(&c), digest(&d), "absent and empty mean the same")
}

func reversed(t testing.TB, payload []byte) []byte {
	fields, err := codec.ParseFields(payload)
	require.NoError(t, err)
	var out []byte
	for i := len(fields) - 1; i >= 0; i-- {
		out = codec.AppendFields(out, fields[i:i+1])
	}
	require.NotEqual(t, payload, out)
	return out
}

func TestPreconditions(t *testing.T) {
	s := newState(t)
	for _, cmd := range []*frames.CoordCommand{create(t, 1, 1, "a"), update(t, 2, 1, "b", nil), create(t, 3, 2, "c")} {
		_, err := s.do(cmd, alice)
		require.NoError(t, err)
	}
	s.putRun(1, frames.RunRunning)
	writer := bob.with(frames.ScopeWorkCommand) // reads nothing
	retain := retentionRef
	for _, tt := range []struct {
		name  string
		from  Viewer
		conds []frames.Precondition
		ok    bool
	}{
		{"holds", alice, []frames.Precondition{at(frames.KindObjective, 1, 2), at(frames.KindObjective, 2, 1)}, true},
		{"older revision", alice, []frames.Precondition{at(frames.KindObjective, 1, 1)}, false},
		{"newer revision", alice, []frames.Precondition{at(frames.KindObjective, 1, 3)}, false},
		{"absent as asked", alice, []frames.Precondition{at(frames.KindObjective, 9, 0)}, true},
		{"absent and expected", alice, []frames.Precondition{at(frames.KindObjective, 9, 1)}, false},
		{"there and not expected", alice, []frames.Precondition{at(frames.KindObjective, 2, 0)}, false},
		{"one of many fails", alice, []frames.Precondition{at(frames.KindObjective, 1, 2), at(frames.KindRun, 1, 2)}, false},
		{"invisible counts as absent", writer, []frames.Precondition{at(frames.KindObjective, 2, 0), at(frames.KindRun, 1, 0)}, true},
		{"invisible is not told apart", writer, []frames.Precondition{at(frames.KindObjective, 2, 1)}, false},
		{"but the object that it changes counts", writer, []frames.Precondition{at(frames.KindObjective, 1, 2)}, true},
		{"and must not be absent", writer, []frames.Precondition{at(frames.KindObjective, 1, 0)}, false},
		{"own operation", writer, []frames.Precondition{at(frames.KindOperation, 3, 0)}, true},
		{"foreign operation as admin", alice, []frames.Precondition{at(frames.KindOperation, 3, 1)}, true},
		{"operation on a connection without operations", alice.offering(Capabilities), []frames.Precondition{at(frames.KindOperation, 3, 1)}, true},
		{"ADMIN record", alice, []frames.Precondition{{Object: retain, Revision: 1}}, true},
		{"ADMIN record without ADMIN", bob, []frames.Precondition{{Object: retain, Revision: 0}}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := Parse(update(t, 99, 1, "x", nil, tt.conds...), tt.from, frames.MaxTypedPayload)
			require.NoError(t, err)
			for _, p := range tt.conds {
				require.Contains(t, c.Refs(), p.Object, "it is prefetched")
			}
			_, err = Apply(s, c, Env{Head: s.head, Now: 1, Epoch: 1, NewEventID: func() (frames.EventID, error) { return frames.EventID{1}, nil }})
			if tt.ok {
				require.NoError(t, err)
			} else {
				require.Equal(t, frames.CodeRevisionConflict, code(t, err))
			}
		})
	}
}

// A precondition is checked before the condition of the command, and both after the
// duplicate.
func TestPreconditionsComeBeforeConditions(t *testing.T) {
	s := newState(t)
	_, err := s.do(update(t, 1, 1, "x", nil, at(frames.KindObjective, 1, 4)), alice)
	require.Equal(t, frames.CodeRevisionConflict, code(t, err), "and not NOT_FOUND")
	_, err = s.do(create(t, 2, 1, "x", at(frames.KindObjective, 1, 0)), alice)
	require.NoError(t, err)
	out, err := s.do(create(t, 2, 1, "x", at(frames.KindObjective, 1, 0)), alice)
	require.NoError(t, err, "the duplicate's precondition no longer holds and does not matter")
	require.True(t, out.Duplicate)
}

func TestTooManyPreconditionsAreRefusedByQuota(t *testing.T) {
	s := newState(t)
	var conds []frames.Precondition
	for i := range byte(frames.PreconditionsPerCommand) {
		conds = append(conds, at(frames.KindRun, i+1, 0))
	}
	_, err := s.do(create(t, 1, 1, "a", conds...), alice)
	require.NoError(t, err)
	_, err = s.do(create(t, 2, 2, "a", append(conds, at(frames.KindSignal, 1, 0))...), alice)
	require.Equal(t, frames.CodeResourceExhausted, code(t, err))
}

func TestResultThatNoEventCouldCarryIsRefused(t *testing.T) {
	s := newState(t)
	s.env.MaxPayload = 1000
	record := func(n int) int {
		r, err := frames.NewRecord(objectiveRef(frames.ObjectiveID{1}), 1, &frames.Objective{DocumentSchema: 1, Document: make([]byte, n)})
		require.NoError(t, err)
		return r.Size()
	}
	fits := 1000 - record(1000) + 1000
	require.Equal(t, 1000, record(fits))
	_, err := s.do(create(t, 1, 1, string(make([]byte, fits+1))), alice)
	require.Equal(t, frames.CodeResourceExhausted, code(t, err))
	_, err = s.do(create(t, 1, 1, string(make([]byte, fits))), alice)
	require.NoError(t, err)
}

func TestRunCommands(t *testing.T) {
	kinds := []frames.CommandKind{frames.CommandCancelRun, frames.CommandPauseRun, frames.CommandResumeRun}
	for _, kind := range kinds {
		_, err := newState(t).do(runCommand(t, 1, kind, 1), alice)
		require.Equal(t, frames.CodeNotFound, code(t, err), kind)
		for _, st := range []frames.RunState{frames.RunCompleted, frames.RunCancelled, frames.RunFailed} {
			s := newState(t)
			s.putRun(1, st)
			_, err := s.do(runCommand(t, 1, kind, 1), alice)
			require.Equal(t, frames.CodeRevisionConflict, code(t, err), "%v of a run that is %v", kind, st)
		}
	}
	s := newState(t)
	s.putRun(1, frames.RunRunning)
	state := func() frames.RunState {
		var r frames.Run
		require.NoError(t, codec.Decode(&r, s.rows[runRef(frames.RunID{1})].Record.Payload))
		return r.State
	}
	_, err := s.do(runCommand(t, 1, frames.CommandResumeRun, 1), alice)
	require.Equal(t, frames.CodeRevisionConflict, code(t, err))
	out, err := s.do(runCommand(t, 2, frames.CommandPauseRun, 1), alice)
	require.NoError(t, err)
	require.Equal(t, frames.ResultNone, out.Result.Kind)
	require.Equal(t, frames.EventRunChanged, out.Changes[0].Event)
	require.Equal(t, frames.RunPaused, state())
	_, err = s.do(runCommand(t, 3, frames.CommandPauseRun, 1), alice)
	require.Equal(t, frames.CodeRevisionConflict, code(t, err))
	_, err = s.do(runCommand(t, 4, frames.CommandResumeRun, 1), alice)
	require.NoError(t, err)
	require.Equal(t, frames.RunRunning, state())
	_, err = s.do(runCommand(t, 5, frames.CommandCancelRun, 1), alice)
	require.NoError(t, err, "a run without a binding ends at once")
	require.Equal(t, frames.RunCancelled, state())
}

func TestLowDiskLeavesTheReserveToItsKinds(t *testing.T) {
	s := newState(t)
	s.putRun(1, frames.RunRunning)
	s.env.LowDisk = true
	for _, tt := range []struct {
		cmd  *frames.CoordCommand
		want frames.Code
	}{
		{create(t, 1, 1, "a"), frames.CodeResourceExhausted},
		{update(t, 2, 1, "a", nil), frames.CodeResourceExhausted},
		{runCommand(t, 3, frames.CommandPauseRun, 1), frames.CodeResourceExhausted},
		{runCommand(t, 4, frames.CommandCancelRun, 9), frames.CodeNotFound},
		{retention(t, 5, 3_000_000), 0},
	} {
		_, err := s.do(tt.cmd, alice)
		if tt.want == 0 {
			require.NoError(t, err, tt.cmd.Kind)
		} else {
			require.Equal(t, tt.want, code(t, err), tt.cmd.Kind)
		}
	}
}

func TestCountersAtTheirEndStopTheWriter(t *testing.T) {
	s := newState(t)
	s.head = math.MaxUint64 - 1
	c, err := Parse(create(t, 1, 1, "a"), alice, 4096)
	require.NoError(t, err)
	_, err = Apply(s, c, Env{Head: s.head, Now: 1, Epoch: 1, NewEventID: func() (frames.EventID, error) { return frames.EventID{1}, nil }})
	require.ErrorIs(t, err, ErrWrapped)
	var r *Refusal
	require.False(t, errors.As(err, &r))
}

// TestObjectivesAgainstAModel runs random commands of two principals against the simplest
// thing that could be right.
func TestObjectivesAgainstAModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := newState(t)
		type model struct {
			rev   uint64
			doc   string
			ended bool
		}
		type admitted struct {
			from   frames.KeyID
			cmd    string
			result frames.OperationResult
		}
		objectives, ops := map[byte]*model{}, map[byte]admitted{}
		rt.Repeat(map[string]func(*rapid.T){"": func(*rapid.T) {}, "command": func(rt *rapid.T) {
			op, id := rapid.ByteRange(1, 12).Draw(rt, "op"), rapid.ByteRange(1, 3).Draw(rt, "id")
			doc := rapid.SampledFrom([]string{"x", "y"}).Draw(rt, "document")
			from := rapid.SampledFrom([]Viewer{alice, bob}).Draw(rt, "from")
			var conds []frames.Precondition
			if rapid.Bool().Draw(rt, "conditional") {
				conds = append(conds, at(frames.KindObjective, id, rapid.Uint64Range(0, 4).Draw(rt, "revision")))
			}
			var cmd *frames.CoordCommand
			var end *frames.ObjectiveState
			isCreate := rapid.Bool().Draw(rt, "create")
			if isCreate {
				cmd = create(t, op, id, doc, conds...)
			} else {
				if rapid.Bool().Draw(rt, "end") {
					end = ptr(frames.ObjectiveCompleted)
				}
				cmd = update(t, op, id, doc, end, conds...)
			}
			digest, err := frames.OperationDigest(cmd)
			require.NoError(rt, err)

			o := objectives[id]
			have := uint64(0)
			if o != nil {
				have = o.rev
			}
			var want frames.Code
			was, used := ops[op]
			switch {
			case used && (was.from != from.Principal || was.cmd != string(digest[:])):
				want = frames.CodeOperationConflict
			case used:
			case len(conds) > 0 && conds[0].Revision != have:
				want = frames.CodeRevisionConflict
			case isCreate && o != nil, !isCreate && o != nil && o.ended:
				want = frames.CodeRevisionConflict
			case !isCreate && o == nil:
				want = frames.CodeNotFound
			}
			out, err := s.do(cmd, from)
			if want != 0 {
				require.Equal(rt, want, code(t, err))
				return
			}
			require.NoError(rt, err)
			require.Equal(rt, used, out.Duplicate)
			if used {
				require.Equal(rt, was.result, out.Result)
				return
			}
			ops[op] = admitted{from.Principal, string(digest[:]), out.Result}
			objectives[id] = &model{rev: have + 1, doc: doc, ended: end != nil}
			got, rev := objective(t, s, id)
			require.Equal(rt, doc, string(got.Document))
			require.EqualValues(rt, have+1, rev)
			require.Equal(rt, end != nil, got.State != frames.ObjectiveActive)
		}})
	})
}
