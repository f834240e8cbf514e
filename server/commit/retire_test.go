package commit

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/codec"
	"coordinator/frames"
	"coordinator/server/store"
	"coordinator/server/store/simfs"
	"coordinator/server/work"
)

// month is after how long a result is sure to have stayed for its retention, in whole seconds.
const month = work.DefaultOperationResultSecs + 1

func finish(t testing.TB, op, object int) *frames.CoordCommand {
	state := frames.ObjectiveCompleted
	return raw(t, op, frames.CommandUpdateObjective,
		&frames.UpdateObjective{ObjectiveID: id16[frames.ObjectiveID](object), Schema: 1, Document: []byte("{}"), State: &state})
}

func archive(t testing.TB, op, object int) *frames.CoordCommand {
	return raw(t, op, frames.CommandArchiveObjective, &frames.ArchiveObjective{ObjectiveID: id16[frames.ObjectiveID](object)})
}

// checkpoint takes everything that is not live out of memory.
func (b *bed) checkpoint() {
	b.t.Helper()
	for range 2 {
		for more := true; more; {
			var err error
			more, err = b.store.CheckpointStep()
			require.NoError(b.t, err)
		}
		b.store.Maintain()
	}
}

// ran starts run n beneath the objective 1 and lets it exit with a status, so that it leaves
// evidence, and a signal unless the status is zero. Operation n starts it.
func (b *bed) ran(n int, status int32) { b.ranBeneath(1, n, status) }

func (b *bed) ranBeneath(objective, n int, status int32) {
	b.t.Helper()
	require.NoError(b.t, b.do(raw(b.t, n, frames.CommandStartRun, &frames.StartRun{
		ObjectiveID: id16[frames.ObjectiveID](objective), RunID: id16[frames.RunID](n), WorkSessionID: id16[frames.WorkSessionID](n),
		ExecutorSchema: 1, ExecutorDocument: []byte("{}"), PendingBindingID: id16[frames.PendingBindingID](n),
		Owner: ownerPin, OwnerIncarnation: life, Group: 1,
	}), alice).err)
	b.succeedWith(b.effects()[0].Attempt.ID, n)
	payload, err := codec.EncodeImage(nil, &frames.Closed{Known: true, Status: status})
	require.NoError(b.t, err)
	fact := &frames.TerminalSourceFact{
		Source: frames.TerminalSourceRef{BindingID: id16[frames.BindingID](n), Owner: ownerPin, OwnerIncarnation: life, Sequence: 1},
		Kind:   frames.FactClosed, Schema: frames.FactSchema, Payload: payload,
	}
	var verdicts []work.Verdict
	require.NoError(b.t, b.amend(func(v work.View, env work.Env) (out work.Outcome, err error) {
		out, verdicts, err = work.AdmitFacts(v, ownerPin, []*frames.TerminalSourceFact{fact}, env)
		return out, err
	}))
	require.Equal(b.t, []work.Verdict{work.FactAdmitted}, verdicts)
}

func (b *bed) succeedWith(id frames.EffectAttemptID, resource int) {
	b.t.Helper()
	require.NoError(b.t, b.amend(func(v work.View, env work.Env) (work.Outcome, error) {
		out, _, err := work.MarkDispatched(v, id, false, env)
		return out, err
	}))
	require.NoError(b.t, b.amend(func(v work.View, env work.Env) (work.Outcome, error) {
		return work.ApplyFinding(v, id, work.Finding{State: frames.EffectSucceeded, Resource: frames.ResourceID{ID: uint32(resource)}}, env)
	}))
}

// retire is Writer.Retire for whoever steps the writer. It counts the amendments.
func (b *bed) retire(now uint64) (batches int, err error) {
	var after store.Key
	for done := false; !done; {
		cut := b.store.Cut()
		var rows []store.Row
		rows, after, done, err = Due(cut, after, now)
		cut.Close()
		if err != nil {
			return batches, err
		}
		require.LessOrEqual(b.t, len(rows), retireBatch)
		if len(rows) == 0 {
			continue
		}
		a, err := Retirement(rows, now)
		require.NoError(b.t, err)
		ended := make(chan error, 1)
		if err := b.writer.Amend(a, func(err error) { ended <- err }); err != nil {
			return batches, err
		}
		if err := b.step(); err != nil {
			return batches, err
		}
		if err := <-ended; err != nil {
			return batches, err
		}
		batches++
	}
	return batches, nil
}

// rows counts everything that a cut has, by kind.
func (b *bed) rows() map[frames.ObjectKind]int {
	b.t.Helper()
	cut := b.store.Cut()
	defer cut.Close()
	n := map[frames.ObjectKind]int{}
	var after store.Key
	for {
		rows, done, err := cut.Page(after, func(frames.ObjectKind, frames.KeyID) bool { return true }, 1024)
		require.NoError(b.t, err)
		for i := range rows {
			n[rows[i].Record.Kind]++
			after = rows[i].Key()
		}
		if done {
			break
		}
	}
	for kind, have := range n {
		require.EqualValues(b.t, cut.Count(kind), have, "%v are counted as they are", kind)
	}
	return n
}

// Commands that name new objects look for used ids among what was prefetched: none is decided
// twice.
func TestUsedIDsCostNoSecondDecision(t *testing.T) {
	b := withOwner(t)
	b.checkpoint()
	for what, cmd := range map[string]*frames.CoordCommand{
		"create": create(t, 50, 50, "{}"), "start": start(t, 51, 51), "update": update(t, 52, 1, "{}"),
	} {
		got := b.propose(cmd, alice)
		_, err := b.writer.Step()
		require.NoError(t, err)
		require.False(t, none(got), what)
		require.NoError(t, (<-got).err, what)
	}
	b.succeed(b.effects()[0].Attempt.ID)
	b.checkpoint()
	manifest := raw(t, 53, frames.CommandRegisterArtifactManifest,
		&frames.RegisterArtifactManifest{ArtifactID: frames.ArtifactID{9}, Revision: 1, Schema: 1, Manifest: []byte("{}")})
	manifest.Preconditions = []frames.Precondition{{
		Object: frames.ObjectRef{Kind: frames.KindWorkSession, ID: id16[frames.ObjectID](51)}, Revision: 2,
	}}
	got := b.propose(manifest, alice)
	_, err := b.writer.Step()
	require.NoError(t, err)
	require.False(t, none(got), "register, for a run that is live")
	require.NoError(t, (<-got).err)
}

// An archive finds everything that only state.db has, however far it looks, and what it
// removed is gone after a crash, with its ids used.
func TestArchiveOfHistory(t *testing.T) {
	b := withOwner(t)
	const runs = 40 // several pages of what is beneath
	for n := 1; n <= runs; n++ {
		b.ran(n, int32(n%2))
	}
	require.NoError(t, b.do(finish(t, 1000, 1), alice).err)
	b.checkpoint()
	before := b.rows()
	require.Equal(t, runs, before[frames.KindEvidence])
	require.Equal(t, runs/2, before[frames.KindSignal])
	old := b.store.Cut()
	defer old.Close()
	head := b.store.State().Head
	done := b.do(archive(t, 1001, 1), alice)
	require.NoError(t, done.err)
	want := 6*runs + runs/2 + 1
	require.EqualValues(t, want+1, b.store.State().Head-head, "one event for each object, and the operation's")

	check := func() {
		t.Helper()
		n := b.rows()
		require.Equal(t, map[frames.ObjectKind]int{frames.KindAdmin: 1, frames.KindOperation: runs + 3}, n)
		require.Equal(t, done, b.do(archive(t, 1001, 1), alice))
		require.Equal(t, frames.CodeRevisionConflict, code(t, b.do(create(t, 1002, 1, "{}"), alice).err))
	}
	check()
	b.checkpoint()
	check()
	held := 0
	var after store.Key
	for end := false; !end; {
		rows, done, err := old.Page(after, func(k frames.ObjectKind, _ frames.KeyID) bool { return k != frames.KindOperation }, 100)
		require.NoError(t, err)
		for i := range rows {
			held++
			after = rows[i].Key()
		}
		end = done
	}
	require.Equal(t, want+1, held, "a cut of before shows all of it [D-5]")
	old.Close()
	b.restart(func() { b.disk.Crash(4) })
	check()
	events, _, err := func() ([]store.Event, bool, error) {
		r, err := b.store.Replay(head, head+frames.EventCut(want))
		require.NoError(t, err)
		defer r.Close()
		return r.Page(head, func(class frames.ObjectKind, _ frames.KeyID) bool { return class&store.ClassRemoved != 0 }, want+1, 1<<20)
	}()
	require.NoError(t, err)
	require.Len(t, events, want)
	require.Equal(t, frames.KindBinding|store.ClassRemoved, events[0].Class)
	require.Equal(t, frames.KindObjective, events[want-1].Object.Kind)
}

// Of archives that need very many rows one holds them at a time, whoever asks, and each is
// answered.
func TestWideArchivesTakeTurns(t *testing.T) {
	for name, drive := range map[string]func(*testing.T, *bed){
		"stepped": func(t *testing.T, b *bed) {
			// Who needs many rows learns of more once it has them: the others do not.
			most, waited := 0, 0
			for worked := true; worked; {
				var err error
				worked, err = b.writer.Step()
				require.NoError(t, err)
				for _, it := range b.writer.stale {
					if it == b.writer.wide {
						most = max(most, len(it.needs.heads))
					} else if b.writer.wide != nil && it.needs.wide() {
						waited = max(waited, len(it.needs.heads))
					}
				}
			}
			require.NotZero(t, waited)
			require.Greater(t, most, waited)
			require.Nil(t, b.writer.wide)
		},
		"running": func(t *testing.T, b *bed) {
			ran := make(chan error, 1)
			ctx, stop := context.WithCancel(context.Background())
			go func() { ran <- b.writer.Run(ctx) }()
			t.Cleanup(func() { stop(); require.NoError(t, <-ran) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := withOwner(t)
			const runs = wideNeeds/3 + 1 // three objects each beside the run
			for n := 1; n <= runs; n++ {
				b.ran(n, 0)
			}
			require.NoError(t, b.do(finish(t, 1000, 1), alice).err)
			b.checkpoint()
			var waiting []chan answer
			for n := range 5 {
				waiting = append(waiting, b.propose(archive(t, 2000+n, 1), alice))
			}
			other := b.propose(create(t, 3000, 3000, "{}"), alice)
			drive(t, b)
			require.NoError(t, (<-other).err)
			done := 0
			for _, w := range waiting {
				if a := <-w; a.err == nil {
					done++
				} else {
					require.Equal(t, frames.CodeNotFound, code(t, a.err))
				}
			}
			require.Equal(t, 1, done)
		})
	}
}

// crashAnywhere lets act meet a disk that stops at each of its operations in turn, crashes,
// and looks at what a new start finds. check says whether act is done by now.
func crashAnywhere(t *testing.T, prepare func(*bed), act func(*bed) error, check func(*bed) (done bool)) {
	t.Helper()
	all, none := false, false
	for stop := 0; !all && !t.Failed(); stop++ {
		t.Run(fmt.Sprintf("stop after %d", stop), func(t *testing.T) {
			b := withOwner(t)
			prepare(b)
			b.disk.StopAfter(stop)
			err := act(b)
			b.restart(func() { b.disk.Crash(uint64(stop)) })
			done := check(b)
			require.True(t, done || err != nil, "what was answered is durable")
			none = none || !done
			all = err == nil
			if !done {
				require.NoError(t, act(b))
				require.True(t, check(b))
			}
		})
	}
	require.True(t, none, "some stop came before the commit")
}

func TestArchiveIsWholeOrNotAtAll(t *testing.T) {
	crashAnywhere(t, func(b *bed) {
		b.ran(1, 1)
		require.NoError(b.t, b.do(finish(b.t, 1000, 1), alice).err)
		b.checkpoint()
	}, func(b *bed) error {
		p, got := b.proposal(archive(b.t, 1001, 1), alice)
		if err := b.writer.Propose(p); err != nil {
			return err
		}
		if err := b.step(); err != nil {
			return err
		}
		return (<-got).err
	}, func(b *bed) bool {
		switch n := b.rows(); n[frames.KindObjective] {
		case 1:
			require.Equal(b.t, 1, n[frames.KindSignal])
			require.Equal(b.t, 3, n[frames.KindOperation])
			return false
		default:
			require.Equal(b.t, map[frames.ObjectKind]int{frames.KindAdmin: 1, frames.KindOperation: 4}, n)
			return true
		}
	})
}

// tombstones counts results and tombstones, each of the one revision that it can have.
func (b *bed) tombstones() (bodies, stones int) {
	b.t.Helper()
	cut := b.store.Cut()
	defer cut.Close()
	var after store.Key
	for {
		rows, done, err := cut.Page(after, func(k frames.ObjectKind, _ frames.KeyID) bool { return k == frames.KindOperation }, 1024)
		require.NoError(b.t, err)
		for i := range rows {
			after = rows[i].Key()
			var op frames.Operation
			require.NoError(b.t, codec.Decode(&op, rows[i].Record.Payload))
			if op.Result.State == frames.OperationTombstoned {
				stones++
				require.EqualValues(b.t, 2, rows[i].Record.Revision)
			} else {
				bodies++
				require.EqualValues(b.t, 1, rows[i].Record.Revision)
			}
		}
		if done {
			return bodies, stones
		}
	}
}

func TestRetirementGoesInBatches(t *testing.T) {
	b := newBed(t)
	const ops = 2*retireBatch + 10
	now := b.clk.Now().Unix()
	for n := 1; n <= ops; n += 2 {
		require.NoError(t, b.do(create(t, n, n, "{}"), alice).err)
		require.NoError(t, b.do(finish(t, n+1, n), alice).err)
		if n == 101 {
			b.checkpoint() // some due rows are in state.db, and some in memory
		}
	}
	batches, err := b.retire(now + month - 1)
	require.NoError(t, err)
	require.Zero(t, batches)
	head := b.store.State().Head
	batches, err = b.retire(now + month)
	require.NoError(t, err)
	require.Equal(t, 3, batches)
	require.EqualValues(t, ops, b.store.State().Head-head, "one event for each")
	bodies, stones := b.tombstones()
	require.Equal(t, []int{0, ops}, []int{bodies, stones})
	b.checkpoint()
	batches, err = b.retire(now + month)
	require.NoError(t, err)
	require.Zero(t, batches, "each is looked at once")

	head = b.store.State().Head
	batches, err = b.retire(now + 2*month)
	require.NoError(t, err)
	require.Equal(t, 3, batches)
	require.Equal(t, head, b.store.State().Head, "no event")
	require.EqualValues(t, ops/2, b.count(frames.KindOperation), "those stay whose objectives do")
	b.restart(func() { b.disk.Crash(3) })
	require.EqualValues(t, ops/2, b.count(frames.KindOperation))
	batches, err = b.retire(now + 100*month)
	require.NoError(t, err)
	require.Zero(t, batches, "what waits for its objective costs nothing")
}

func TestRetirementIsWholeOrNotAtAll(t *testing.T) {
	const ops = retireBatch + 20
	var due uint64
	crashAnywhere(t, func(b *bed) {
		for n := 1; n < ops; n++ {
			require.NoError(b.t, b.do(create(b.t, n, n+1, "{}"), alice).err)
		}
		due = b.clk.Now().Unix() + month
	}, func(b *bed) error {
		_, err := b.retire(due)
		return err
	}, func(b *bed) bool {
		bodies, stones := b.tombstones()
		require.Contains(b.t, []int{0, retireBatch, ops}, stones, "whole batches")
		require.Equal(b.t, ops, bodies+stones)
		cut := b.store.Cut()
		defer cut.Close()
		waiting := 0
		var after store.Key
		for done := false; !done; {
			var rows []store.Row
			var err error
			rows, after, done, err = Due(cut, after, due+month)
			require.NoError(b.t, err)
			waiting += len(rows)
		}
		require.Equal(b.t, ops, waiting, "each is due again once")
		return bodies == 0
	})
}

// Retire works beside commands, and stops with the writer.
func TestRetireBesideCommands(t *testing.T) {
	b := newBed(t)
	const ops = 3 * retireBatch
	for n := 1; n <= ops; n++ {
		require.NoError(t, b.do(create(t, n, n, "{}"), alice).err)
	}
	now := b.clk.Now().Unix()
	ctx, stop := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- b.writer.Run(ctx) }()
	retired := make(chan error, 1)
	go func() { retired <- b.writer.Retire(ctx, now+month) }()
	for n := ops + 1; n <= ops+50; n++ {
		p, got := b.proposal(create(t, n, n, "{}"), alice)
		require.NoError(t, b.writer.Propose(p))
		require.NoError(t, (<-got).err)
	}
	require.NoError(t, <-retired)
	// What was completed meanwhile was due at the same second.
	require.NoError(t, b.writer.Retire(ctx, now+month))
	stop()
	require.NoError(t, <-ran)
	_, stones := b.tombstones()
	require.Equal(t, ops+50, stones)
	require.Equal(t, frames.CodeAuthorityFenced, code(t, b.writer.Retire(context.Background(), now+month)))
}

// The reserve is not for tombstones [D-41].
func TestRetireLeavesTheReserveAlone(t *testing.T) {
	b := newBed(t)
	low := false
	b.options.LowDisk = func() bool { return low }
	b.restart(func() {})
	require.NoError(t, b.do(create(t, 1, 1, "{}"), alice).err)
	require.NoError(t, b.do(finish(t, 2, 1), alice).err)
	low = true
	require.NoError(t, b.writer.Retire(t.Context(), b.clk.Now().Unix()+month))
	_, stones := b.tombstones()
	require.Zero(t, stones)
	require.Equal(t, frames.CodeResourceExhausted, code(t, b.do(create(t, 3, 3, "{}"), alice).err))
	require.NoError(t, b.do(archive(t, 4, 1), alice).err)
}

// A damaged due row is an error and no retirement of something else.
func TestRetirementOfDamage(t *testing.T) {
	_, err := Retirement([]store.Row{{Record: frames.SnapshotRecord{Kind: work.DueKind, ID: frames.ObjectID{1}}, Annex: []byte{9}}}, 1)
	require.Error(t, err)
	b := newBed(t)
	require.NoError(t, b.do(create(t, 1, 1, "{}"), alice).err)
	b.disk.Hook(func(op simfs.Op) error {
		if op.Kind == "write" {
			return errors.New("no")
		}
		return nil
	})
	_, err = b.retire(b.clk.Now().Unix() + month)
	require.Error(t, err)
}

// An authority that creates, completes and archives for ever stays as small as its live work:
// what memory, a snapshot and state.db hold comes back to where it was. Only the ids that were
// used are kept, one small row each.
func TestLongLivedAuthorityStaysBounded(t *testing.T) {
	b := withOwner(t)
	type size struct {
		live, snapshot int
		internal       map[frames.ObjectKind]int
	}
	measure := func() (s size) {
		b.checkpoint()
		s.internal = map[frames.ObjectKind]int{}
		for kind := store.InternalKind; kind < store.InternalKind+0x1100; kind++ {
			b.store.LiveRows(kind, func(store.Row) bool { s.live++; return true })
		}
		for kind, n := range b.rows() {
			s.snapshot += n
			b.store.LiveRows(kind, func(store.Row) bool { s.live++; return true })
		}
		cut := b.store.Cut()
		defer cut.Close()
		for kind := store.InternalKind; kind < store.InternalKind+0x1100; kind++ {
			var after store.Key
			for done := false; !done; {
				var rows []store.Row
				var err error
				rows, after, done, err = cut.Internal(frames.ObjectRef{Kind: kind, ID: lastID}, after, 1000)
				require.NoError(t, err)
				if len(rows) > 0 {
					s.internal[kind] += len(rows)
				}
			}
		}
		return s
	}
	now := b.clk.Now().Unix()
	round := func(n int) {
		const per = 20
		for i := range per {
			id := 10_000 + n*per + i
			require.NoError(t, b.do(create(t, 4*id, id, "{}"), alice).err)
			b.ranBeneath(id, 4*id+1, int32(i%2))
			require.NoError(t, b.do(finish(t, 4*id+2, id), alice).err)
			require.NoError(t, b.do(archive(t, 4*id+3, id), alice).err)
		}
		_, err := b.retire(now + month) // as if each round took a month
		require.NoError(t, err)
		_, err = b.retire(now + 3*month)
		require.NoError(t, err)
	}
	round(0)
	base := measure()
	for n := 1; n <= 10; n++ {
		round(n)
	}
	after := measure()
	require.Equal(t, base.live, after.live)
	require.Equal(t, base.snapshot, after.snapshot)
	for _, kind := range []frames.ObjectKind{frames.KindObjective, frames.KindRun, frames.KindWorkSession, frames.KindBinding, frames.KindArtifact} {
		used := 0x8100 + kind
		require.Equal(t, 11*20, after.internal[used], "%v", kind)
		delete(base.internal, used)
		delete(after.internal, used)
	}
	require.Equal(t, base.internal, after.internal)
	require.Empty(t, after.internal[work.DueKind])
}

var lastID = func() (id frames.ObjectID) {
	for i := range id {
		id[i] = 0xff
	}
	return id
}()
