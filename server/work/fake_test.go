package work

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/codec"
	"coordinator/frames"
)

// state is a View that applies changes to a map, and checks as it goes what every
// transaction must obey.
type state struct {
	t       testing.TB
	rows    map[frames.ObjectRef]Stored
	live    map[frames.ObjectRef]bool
	head    frames.EventCut
	ids     uint64
	events  []Change // that have one, in order, since a test last looked
	log     []Change // all of them
	pending map[frames.KeyID]int
	env     Env // Head, NewEventID and Epoch are filled in
	room    Room
}

func newState(t testing.TB) *state {
	s := &state{t: t, rows: map[frames.ObjectRef]Stored{}, live: map[frames.ObjectRef]bool{}, pending: map[frames.KeyID]int{}}
	genesis, err := GenesisRetention(frames.Retention{
		OperationResultSecs: DefaultOperationResultSecs, EventBytes: DefaultEventBytes, ArtifactBytes: DefaultArtifactBytes,
	})
	require.NoError(t, err)
	s.rows[genesis.Ref()] = genesis.Stored
	return s
}

func (s *state) Record(ref frames.ObjectRef) (Stored, bool, error) {
	r, ok := s.rows[ref]
	return r, ok, nil
}

// do parses and applies a command as the writer does.
func (s *state) do(cmd *frames.CoordCommand, from Viewer) (Outcome, error) {
	s.t.Helper()
	c, err := Parse(cmd, from, frames.MaxTypedPayload)
	if err != nil {
		return Outcome{}, err
	}
	return s.apply(c)
}

// now is what the writer would pass in.
func (s *state) now() Env {
	env := s.env
	env.Head, env.Epoch, env.Coordinator = s.head, 3, coordinator
	if env.Activation == 0 {
		env.Activation = 2
	}
	if env.Now == 0 {
		env.Now = 1_800_000_000
	}
	env.NewEventID = func() (frames.EventID, error) {
		s.ids++
		var id frames.EventID
		binary.BigEndian.PutUint64(id[:], s.ids)
		return id, nil
	}
	return env
}

func (s *state) apply(c *Command) (Outcome, error) {
	s.t.Helper()
	ids := s.ids
	out, err := Apply(s, c, s.now())
	s.sameInRoom(c, out, err, ids)
	if err != nil {
		require.Empty(s.t, out, "a refused command leaves nothing")
		return out, err
	}
	if out.Duplicate {
		require.Empty(s.t, out.Changes)
		return out, nil
	}
	s.commit(c, out)
	return out, nil
}

// sameInRoom decides c once more, with the ids from ids on, in a room that has seen all before
// it: that changes nothing.
func (s *state) sameInRoom(c *Command, want Outcome, wantErr error, ids uint64) {
	s.t.Helper()
	after := s.ids
	s.ids = ids
	env := s.now()
	env.Room = &s.room
	out, err := Apply(s, c, env)
	require.Equal(s.t, wantErr, err)
	require.Equal(s.t, want, out)
	s.ids = after
}

// commit checks the shape of an outcome and takes it over.
func (s *state) commit(c *Command, out Outcome) {
	s.t.Helper()
	events := s.take(out)
	require.NotZero(s.t, events)
	require.LessOrEqual(s.t, events, c.Events())
	last := out.Changes[events-1]
	require.Equal(s.t, frames.EventOperationChanged, last.Event)
	require.Equal(s.t, c.Ref(), last.Ref())
	require.Equal(s.t, c.From.Principal, last.Principal)
	pending := out.Result.State == frames.OperationPending
	require.Equal(s.t, pending, last.Live, "a finished operation is history")
	var op frames.Operation
	require.NoError(s.t, codec.Decode(&op, last.Record.Payload))
	require.Equal(s.t, frames.Operation{Principal: c.From.Principal, Result: out.Result}, op)
	require.EqualValues(s.t, s.head, out.Result.Sequence, "the sequence of its OPERATION_CHANGED")
	size := 0
	for _, ch := range out.Changes {
		if !ch.Removed {
			size += ch.Record.Size() + len(ch.Annex) + len(ch.Fact)
		}
	}
	require.LessOrEqual(s.t, size, c.Size())
}

// take checks what every outcome obeys, takes it over and counts its events.
func (s *state) take(out Outcome) (events int) {
	s.t.Helper()
	silent := false
	for _, ch := range out.Changes {
		ref := ch.Ref()
		was, had := s.rows[ref]
		switch {
		case ch.Removed && ch.Event != 0:
			require.EqualValues(s.t, was.Record.Revision+1, ch.Record.Revision, "exact-next revision")
			require.Empty(s.t, ch.Record.Payload)
			require.Equal(s.t, image(s.t, &ref), ch.Fact)
		case ch.Removed:
			require.True(s.t, internalKind(ref.Kind) || ref.Kind == frames.KindOperation)
		case internalKind(ref.Kind):
			require.Empty(s.t, ch.Record.Payload)
			require.EqualValues(s.t, 1, ch.Record.Revision)
		case ch.Event == 0 && ref.Kind != frames.KindAdmin:
			require.True(s.t, had)
			require.Equal(s.t, was.Record, ch.Record, "nobody sees an annex change")
		default:
			require.EqualValues(s.t, was.Record.Revision+1, ch.Record.Revision, "exact-next revision")
		}
		if !internalKind(ref.Kind) && !ch.Removed {
			_, err := ch.Record.DecodePayload()
			require.NoError(s.t, err)
		}
		if ch.Event == 0 {
			silent = true
		} else {
			require.False(s.t, silent, "changes without event come last")
			require.NotZero(s.t, ch.EventID)
			require.Equal(s.t, ch.Event.CarriesRecord(), ch.Fact == nil)
			events++
			s.head++
			s.events = append(s.events, ch)
			s.log = append(s.log, ch)
		}
		if delete(s.rows, ref); !ch.Removed {
			s.rows[ref], s.live[ref] = ch.Stored, ch.Live
		}
	}
	for _, p := range out.Pending {
		s.pending[p.Principal] += p.N
		require.GreaterOrEqual(s.t, s.pending[p.Principal], 0)
	}
	return events
}

var coordinator = frames.CoordinatorID{0xc0}

var (
	alice = Viewer{Principal: frames.KeyID{1}, Scope: frames.AllScopes, Capabilities: Capabilities &^ frames.CapWithoutOperations}
	bob   = Viewer{Principal: frames.KeyID{2}, Scope: frames.AllScopes &^ frames.ScopeAdmin, Capabilities: alice.Capabilities}
)

func (v Viewer) with(scope frames.Scope) Viewer         { v.Scope = scope; return v }
func (v Viewer) offering(caps frames.Capability) Viewer { v.Capabilities = caps; return v }
func body(t testing.TB, m codec.Message) []byte         { return must(t)(codec.Encode(nil, m)) }
func must(t testing.TB) func([]byte, error) []byte {
	return func(b []byte, err error) []byte {
		t.Helper()
		require.NoError(t, err)
		return b
	}
}

func command(t testing.TB, op byte, kind frames.CommandKind, payload codec.Message, conds ...frames.Precondition) *frames.CoordCommand {
	return &frames.CoordCommand{
		RequestID: 1, OperationID: frames.OperationID{op}, Kind: kind, Payload: body(t, payload), Preconditions: conds,
	}
}

func create(t testing.TB, op, id byte, document string, conds ...frames.Precondition) *frames.CoordCommand {
	return command(t, op, frames.CommandCreateObjective,
		&frames.CreateObjective{ObjectiveID: frames.ObjectiveID{id}, Schema: 1, Document: []byte(document)}, conds...)
}

func update(t testing.TB, op, id byte, document string, state *frames.ObjectiveState, conds ...frames.Precondition) *frames.CoordCommand {
	return command(t, op, frames.CommandUpdateObjective,
		&frames.UpdateObjective{ObjectiveID: frames.ObjectiveID{id}, Schema: 1, Document: []byte(document), State: state}, conds...)
}

func retention(t testing.TB, op byte, secs uint64, conds ...frames.Precondition) *frames.CoordCommand {
	return command(t, op, frames.CommandChangeRetention,
		&frames.ChangeRetention{Retention: frames.Retention{OperationResultSecs: secs, EventBytes: 1, ArtifactBytes: 1}}, conds...)
}

func runCommand(t testing.TB, op byte, kind frames.CommandKind, id byte) *frames.CoordCommand {
	return command(t, op, kind, &frames.RunCommand{RunID: frames.RunID{id}})
}

func at(kind frames.ObjectKind, id byte, rev uint64) frames.Precondition {
	return frames.Precondition{Object: frames.ObjectRef{Kind: kind, ID: frames.ObjectID{id}}, Revision: rev}
}

// code gives the code of a refusal and fails on any other error.
func code(t testing.TB, err error) frames.Code {
	t.Helper()
	var r *Refusal
	require.ErrorAs(t, err, &r)
	require.LessOrEqual(t, len(r.Message), frames.MaxText)
	return r.Code
}

func objective(t testing.TB, s *state, id byte) (frames.Objective, frames.ObjectRevision) {
	t.Helper()
	row, ok := s.rows[objectiveRef(frames.ObjectiveID{id})]
	require.True(t, ok)
	var o frames.Objective
	require.NoError(t, codec.Decode(&o, row.Record.Payload))
	return o, row.Record.Revision
}

func image(t testing.TB, v codec.Value) []byte { return must(t)(codec.EncodeImage(nil, v)) }

// putRun plants a run that has neither session nor binding.
func (s *state) putRun(id byte, st frames.RunState) {
	s.t.Helper()
	r, err := frames.NewRecord(runRef(frames.RunID{id}), 1, &frames.Run{ObjectiveID: frames.ObjectiveID{1}, Attempt: 1, State: st})
	require.NoError(s.t, err)
	meta := runMeta{Session: frames.WorkSessionID{id}, Binding: frames.BindingID{id}}
	s.rows[r.Ref()] = Stored{Record: r, Annex: image(s.t, &meta)}
}
