package work

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/codec"
	"coordinator/frames"
)

// ownersUp are the owners whose links are up, each with group 1.
type ownersUp map[frames.Fingerprint]frames.IncarnationID

func (o ownersUp) Connected(fp frames.Fingerprint, inc frames.IncarnationID) bool {
	return inc != (frames.IncarnationID{}) && o[fp] == inc
}

func (o ownersUp) Serves(fp frames.Fingerprint, inc frames.IncarnationID, g frames.GroupID) bool {
	return o.Connected(fp, inc) && g == 1
}

var (
	theOwner = frames.Fingerprint{0xaa}
	life     = frames.IncarnationID{0x11}
	nextLife = frames.IncarnationID{0x22}
)

// withRuns is a state with the objective 1 and a connected owner.
func withRuns(t testing.TB) *state {
	s := newState(t)
	s.env.Owners = ownersUp{theOwner: life}
	_, err := s.do(create(t, 0xf0, 1, "{}"), alice)
	require.NoError(t, err)
	s.events = nil
	return s
}

// startCommand starts run id with session id and pending binding id, operation op.
func startCommand(t testing.TB, op, id byte, edit ...func(*frames.StartRun)) *frames.CoordCommand {
	p := &frames.StartRun{
		ObjectiveID: frames.ObjectiveID{1}, RunID: frames.RunID{id}, WorkSessionID: frames.WorkSessionID{id},
		ExecutorSchema: 1, ExecutorDocument: []byte(`{"argv":["true"]}`), PendingBindingID: frames.PendingBindingID{id},
		Owner: theOwner, OwnerIncarnation: life, Group: 1,
	}
	for _, f := range edit {
		f(p)
	}
	return command(t, op, frames.CommandStartRun, p)
}

// effects are the outbox, by kind.
func (s *state) effects(kind frames.EffectKind) []Effect {
	s.t.Helper()
	var out []Effect
	for ref, row := range s.rows {
		if ref.Kind != kindEffect {
			continue
		}
		require.True(s.t, s.live[ref], "the outbox is in memory")
		e, err := DecodeEffect(row.Annex)
		require.NoError(s.t, err)
		require.EqualValues(s.t, ref.ID, e.Attempt.ID)
		if e.Attempt.Kind == kind {
			out = append(out, e)
		}
	}
	return out
}

// effect is the one effect of a kind.
func (s *state) effect(kind frames.EffectKind) Effect {
	s.t.Helper()
	all := s.effects(kind)
	require.Len(s.t, all, 1)
	return all[0]
}

// amend applies a change that is no command's.
func (s *state) amend(out Outcome, err error) Outcome {
	s.t.Helper()
	require.NoError(s.t, err)
	s.take(out)
	return out
}

func (s *state) finding(id frames.EffectAttemptID, f Finding) Outcome {
	s.t.Helper()
	return s.amend(ApplyFinding(s, id, f, s.now()))
}

func (s *state) dispatch(id frames.EffectAttemptID, denied bool) Dispatch {
	s.t.Helper()
	out, what, err := MarkDispatched(s, id, denied, s.now())
	s.amend(out, err)
	require.Zero(s.t, countEvents(out), "nobody sees a dispatch")
	return what
}

func countEvents(out Outcome) (n int) {
	for _, c := range out.Changes {
		if c.Event != 0 {
			n++
		}
	}
	return n
}

// running starts run id and lets its spawn succeed. Operations are id and up.
func (s *state) running(id byte) {
	s.t.Helper()
	_, err := s.do(startCommand(s.t, id, id), alice)
	require.NoError(s.t, err)
	e := s.effect(frames.EffectSpawn)
	require.Equal(s.t, DispatchSend, s.dispatch(e.Attempt.ID, false))
	s.finding(e.Attempt.ID, Finding{State: frames.EffectSucceeded, Resource: frames.ResourceID{ID: uint32(id)}})
	s.events = nil
}

// op is the stored result of operation op.
func (s *state) op(op byte) frames.OperationResult {
	s.t.Helper()
	row, ok := s.rows[OperationRef(frames.OperationID{op})]
	require.True(s.t, ok)
	r, err := storedResult(row)
	require.NoError(s.t, err)
	meta, err := DecodeOpMeta(row.Annex)
	require.NoError(s.t, err)
	require.Equal(s.t, r.State.Final(), meta.CompletedAt != 0)
	require.Equal(s.t, !r.State.Final(), s.live[OperationRef(frames.OperationID{op})])
	return r
}

// opState names the result: its state, and code or reason.
func (s *state) opState(op byte) string {
	s.t.Helper()
	r := s.op(op)
	switch r.State {
	case frames.OperationRejected:
		return "REJECTED/" + r.Code.String()
	case frames.OperationIndeterminate:
		require.NotZero(s.t, r.Attempt)
		return "INDETERMINATE/" + r.Reason.String()
	}
	return r.State.String()
}

func read[M codec.Message](s *state, ref frames.ObjectRef, m M) M {
	s.t.Helper()
	row, ok := s.rows[ref]
	require.True(s.t, ok, "%v", ref)
	require.NoError(s.t, codec.Decode(m, row.Record.Payload))
	return m
}

func (s *state) runState(id byte) frames.RunState {
	return read(s, runRef(frames.RunID{id}), new(frames.Run)).State
}

func (s *state) sessionOf(id byte) frames.WorkSession {
	return *read(s, sessionRef(frames.WorkSessionID{id}), new(frames.WorkSession))
}

func (s *state) bindingOf(id byte) frames.Binding {
	return *read(s, bindingRef(frames.BindingID{id}), new(frames.Binding))
}

// seen names the events since the last call, in order.
func (s *state) seen() []string {
	s.t.Helper()
	var out []string
	for _, c := range s.events {
		name := c.Event.String()
		if c.Event == frames.EventSourceGap {
			var g frames.SourceGap
			require.NoError(s.t, codec.DecodeImage(&g, c.Fact))
			name += fmt.Sprintf("/%d %d %d", g.Reason, g.Expected, g.Observed)
		}
		out = append(out, name)
	}
	s.events = nil
	return out
}

// signalsOf are the signals of session id as kind/state.
func (s *state) signalsOf(id byte) map[string]int {
	s.t.Helper()
	out := map[string]int{}
	for ref := range s.rows {
		if ref.Kind != frames.KindSignal {
			continue
		}
		sig := read(s, ref, new(frames.Signal))
		require.Equal(s.t, sig.State == frames.SignalOpen, s.live[ref])
		if sig.WorkSessionID == (frames.WorkSessionID{id}) {
			out[fmt.Sprintf("%d/%v", sig.Kind, sig.State)]++
		}
	}
	return out
}

// fact makes a fact of binding id.
func fact(t testing.TB, id byte, seq uint64, kind frames.SourceFactKind, payload codec.Value) *frames.TerminalSourceFact {
	raw := image(t, payload)
	if raw == nil {
		raw = []byte{}
	}
	return &frames.TerminalSourceFact{
		Source: frames.TerminalSourceRef{BindingID: frames.BindingID{id}, Owner: theOwner, OwnerIncarnation: life, Sequence: frames.SourceSequence(seq)},
		Kind:   kind, Schema: frames.FactSchema, Payload: raw,
	}
}

func output(t testing.TB, id byte, seq, bytes uint64) *frames.TerminalSourceFact {
	return fact(t, id, seq, frames.FactOutputRange, &frames.OutputRange{First: seq, Last: seq + bytes - 1, ByteCount: bytes})
}

func exit(t testing.TB, id byte, seq uint64, status int32) *frames.TerminalSourceFact {
	return fact(t, id, seq, frames.FactClosed, &frames.Closed{Known: true, Status: status})
}

func attention(t testing.TB, id byte, seq uint64, kind frames.AttentionKind) *frames.TerminalSourceFact {
	return fact(t, id, seq, frames.FactAttention, &frames.Attention{Kind: kind})
}

// admit decides facts and gives the verdicts.
func (s *state) admit(facts ...*frames.TerminalSourceFact) []Verdict {
	s.t.Helper()
	out, verdicts, err := AdmitFacts(s, theOwner, facts, s.now())
	s.amend(out, err)
	require.Len(s.t, verdicts, len(facts))
	return verdicts
}

// settled checks that nothing is pending and nothing is left that only live work needs.
func (s *state) settled() {
	s.t.Helper()
	for p, n := range s.pending {
		require.Zero(s.t, n, "pending of %v", p)
	}
	for ref := range s.rows {
		require.NotEqual(s.t, kindEffect, ref.Kind)
		require.NotEqual(s.t, kindResource, ref.Kind)
		require.Less(s.t, ref.Kind, kindDigest, "digests go with their binding")
	}
	for ref, row := range s.rows {
		if ref.Kind == kindRuns {
			var c runCounts
			require.NoError(s.t, decodeAnnex("runs", &c, row.Annex))
			require.Zero(s.t, c.Unfinished)
		}
	}
}

// facts are the images of a binding's admitted facts, as the event log has them.
func (s *state) facts(id byte) (payloads [][]byte) {
	for _, c := range s.log {
		if c.Event == frames.EventSourceFactAdmitted && c.Ref() == bindingRef(frames.BindingID{id}) {
			payloads = append(payloads, c.Fact)
		}
	}
	return payloads
}
