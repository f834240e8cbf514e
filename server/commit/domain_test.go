package commit

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/codec"
	"coordinator/frames"
	"coordinator/server/store"
	"coordinator/server/store/simfs"
	"coordinator/server/work"
)

var (
	ownerPin = frames.Fingerprint{0xaa}
	life     = frames.IncarnationID{0x11}
)

// up is an owner whose link is always up.
type up struct{}

func (up) Connected(f frames.Fingerprint, i frames.IncarnationID) bool {
	return f == ownerPin && i == life
}

func (up) Serves(f frames.Fingerprint, i frames.IncarnationID, _ frames.GroupID) bool {
	return f == ownerPin && i == life
}

// withOwner is a bed with the objective 1, on which runs can be started.
func withOwner(t testing.TB) *bed {
	b := newBed(t)
	b.options.Owners = up{}
	b.restart(func() {})
	require.NoError(t, b.do(create(t, 0xffff, 1, "{}"), alice).err)
	return b
}

func raw(t testing.TB, op int, kind frames.CommandKind, m codec.Message) *frames.CoordCommand {
	payload, err := codec.Encode(nil, m)
	require.NoError(t, err)
	return &frames.CoordCommand{RequestID: 1, OperationID: id16[frames.OperationID](op), Kind: kind, Payload: payload}
}

// start is the command that starts run n.
func start(t testing.TB, op, n int) *frames.CoordCommand {
	return raw(t, op, frames.CommandStartRun, &frames.StartRun{
		ObjectiveID: id16[frames.ObjectiveID](1), RunID: id16[frames.RunID](n), WorkSessionID: id16[frames.WorkSessionID](n),
		ExecutorSchema: 1, ExecutorDocument: []byte("{}"), PendingBindingID: id16[frames.PendingBindingID](n),
		Owner: ownerPin, OwnerIncarnation: life, Group: 1,
	})
}

// amend runs one decision to its reply.
func (b *bed) amend(fn Decide) error {
	b.t.Helper()
	done := make(chan error, 2)
	require.NoError(b.t, b.writer.Amend(Domain(nil, 0, 0, fn), func(err error) { done <- err }))
	require.NoError(b.t, b.step())
	return <-done
}

// effects are the attempts in the outbox.
func (b *bed) effects() (out []work.Effect) {
	b.store.LiveRows(work.EffectKind, func(r store.Row) bool {
		e, err := work.DecodeEffect(r.Annex)
		require.NoError(b.t, err)
		out = append(out, e)
		return true
	})
	return out
}

func (b *bed) succeed(id frames.EffectAttemptID) {
	b.t.Helper()
	require.NoError(b.t, b.amend(func(v work.View, env work.Env) (work.Outcome, error) {
		out, _, err := work.MarkDispatched(v, id, false, env)
		return out, err
	}))
	require.NoError(b.t, b.amend(func(v work.View, env work.Env) (work.Outcome, error) {
		return work.ApplyFinding(v, id, work.Finding{State: frames.EffectSucceeded}, env)
	}))
}

// A PENDING reply is durable with its effect; the end of it finds everything, also what only
// state.db has, and survives a crash at any point.
func TestC08_PendingUntilTheEffectIsKnown(t *testing.T) {
	b := withOwner(t)
	first := b.do(start(t, 1, 7), alice)
	require.NoError(t, first.err)
	require.Equal(t, frames.OperationPending, first.result.State)
	b.restart(func() { b.disk.Crash(2) })
	require.Equal(t, first, b.do(start(t, 1, 7), alice), "the same reply")
	require.Equal(t, frames.CodeOperationConflict, code(t, b.do(start(t, 1, 8), alice).err))
	require.Len(t, b.effects(), 1, "and no second effect")

	b.succeed(b.effects()[0].Attempt.ID)
	require.Empty(t, b.effects())
	done := b.do(start(t, 1, 7), alice)
	require.Equal(t, frames.OperationSucceeded, done.result.State)
	b.restart(func() { b.disk.Crash(3) })
	require.Equal(t, done, b.do(start(t, 1, 7), alice))
}

// A commit that does not become durable admits nothing.
func TestC08_ALostCommitAdmitsNothing(t *testing.T) {
	b := withOwner(t)
	b.disk.Hook(func(op simfs.Op) error {
		if op.Kind == "sync" {
			return errors.New("no")
		}
		return nil
	})
	got := b.propose(start(t, 1, 7), alice)
	require.Error(t, b.step())
	require.ErrorIs(t, (<-got).err, ErrUnacknowledged)
	b.restart(func() { b.disk.Crash(5) })
	b.disk.Hook(nil)
	again := b.do(start(t, 1, 7), alice)
	require.NoError(t, again.err)
	require.Len(t, b.effects(), 1)
}

// What a decision needs and nobody prefetched is fetched, and the decision made again.
func TestDecisionsFindWhatIsInHistory(t *testing.T) {
	b := withOwner(t)
	require.NoError(t, b.do(start(t, 1, 7), alice).err)
	b.succeed(b.effects()[0].Attempt.ID)
	binding := id16[frames.BindingID](7)
	bell, err := codec.EncodeImage(nil, &frames.Attention{Kind: frames.AttentionBell})
	require.NoError(t, err)
	fact := &frames.TerminalSourceFact{
		Source: frames.TerminalSourceRef{BindingID: binding, Owner: ownerPin, OwnerIncarnation: life, Sequence: 1},
		Kind:   frames.FactAttention, Schema: frames.FactSchema, Payload: bell,
	}
	admit := func() (v []work.Verdict) {
		require.NoError(t, b.amend(func(view work.View, env work.Env) (out work.Outcome, err error) {
			out, v, err = work.AdmitFacts(view, ownerPin, []*frames.TerminalSourceFact{fact}, env)
			return out, err
		}))
		return v
	}
	require.Equal(t, []work.Verdict{work.FactAdmitted}, admit())
	for more := true; more; { // the digest leaves memory
		more, err = b.store.CheckpointStep()
		require.NoError(t, err)
	}
	b.store.Maintain()
	require.Equal(t, []work.Verdict{work.FactDuplicate}, admit())

	var status work.BindingStatus
	go b.writer.Run(t.Context()) //nolint:errcheck // ends with the test
	require.NoError(t, b.writer.Read(t.Context(), nil, func(v work.View) (err error) {
		status, err = work.StatusOf(v, binding)
		return err
	}))
	require.Equal(t, work.BindingActive, status.State)
	require.EqualValues(t, 1, status.After)
	require.NoError(t, b.writer.Read(t.Context(), nil, func(v work.View) (err error) {
		status, err = work.StatusOf(v, id16[frames.BindingID](99))
		return err
	}))
	require.Equal(t, work.BindingForeign, status.State)
}

// Pending operations and attempts are counted across restarts, and a batch that is not
// committed counts nothing.
func TestC14_PendingIsCountedAcrossRestarts(t *testing.T) {
	b := withOwner(t)
	b.options.MaxPending = 4
	b.restart(func() {})
	require.NoError(t, b.do(start(t, 1, 1), alice).err)
	require.NoError(t, b.do(start(t, 2, 2), alice).err)
	require.Equal(t, frames.CodeResourceExhausted, code(t, b.do(start(t, 3, 3), alice).err))
	b.restart(func() { b.disk.Crash(9) })
	require.Equal(t, frames.CodeResourceExhausted, code(t, b.do(start(t, 3, 3), alice).err))
	b.succeed(b.effects()[0].Attempt.ID)
	require.NoError(t, b.do(start(t, 3, 3), alice).err)
	require.Equal(t, frames.CodeResourceExhausted, code(t, b.do(start(t, 4, 4), alice).err))

	// One batch may not take more than there is room for.
	b.succeed(b.effects()[0].Attempt.ID)
	one, two := b.propose(start(t, 5, 5), alice), b.propose(start(t, 6, 6), alice)
	require.NoError(t, b.step())
	require.NoError(t, (<-one).err)
	require.Equal(t, frames.CodeResourceExhausted, code(t, (<-two).err))
}
