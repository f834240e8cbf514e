package commit

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"coordinator/frames"
	"coordinator/server/authority"
	"coordinator/server/store"
	"coordinator/server/store/simfs"
	"coordinator/server/work"
)

// inTheAir proposes cmd and leaves its round in flight.
func inTheAir(t *testing.T, b *bed, cmd *frames.CoordCommand) chan answer {
	t.Helper()
	got := b.propose(cmd, alice)
	worked, err := b.writer.StepAhead()
	require.NoError(t, err)
	require.True(t, worked)
	require.NotNil(t, b.writer.flying)
	return got
}

// atFlush runs fn once, in the next flush of the log.
func atFlush(b *bed, fn func() error) {
	done := false
	b.disk.Hook(func(op simfs.Op) error {
		if op.Kind != "sync" || done {
			return nil
		}
		done = true
		return fn()
	})
}

// What flies is known to the round that is built upon it, and to nobody else.
func TestWhatFliesIsNotShown(t *testing.T) {
	b := newBed(t)
	before := b.store.State()
	one := inTheAir(t, b, create(t, 1, 1, "a"))
	require.Equal(t, before, b.store.State())
	require.Empty(t, b.published)
	require.True(t, none(one))
	require.Panics(t, func() { b.store.Cut() }, "no cut is made of it")
	require.Panics(t, func() { b.store.View() }, "nor is it looked at")

	again := b.propose(create(t, 1, 1, "a"), alice)
	two := b.propose(update(t, 2, 1, "b"), alice)
	other := b.propose(create(t, 3, 1, "c"), alice)
	atFlush(b, func() error {
		require.NotNil(t, b.writer.open, "the next round is decided while this one is flushed")
		require.Len(t, b.writer.open.items, 3)
		require.Equal(t, before, b.store.State())
		for _, c := range []chan answer{one, again, two, other} {
			require.True(t, none(c))
		}
		return nil
	})
	require.NoError(t, b.step())
	first := <-one
	require.NoError(t, first.err)
	require.Equal(t, first, <-again, "it waited for the commit that it rests on")
	require.NoError(t, (<-two).err)
	require.Equal(t, frames.CodeRevisionConflict, code(t, (<-other).err))
	require.Equal(t, []string{"published", "replied", "published", "replied", "replied", "replied"}, b.trace)
	require.Equal(t, before.Commit+2, b.store.State().Commit)
}

// A call waits until nothing flies, and then sees what is out.
func TestCallsRunWhenNothingFlies(t *testing.T) {
	b := newBed(t)
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- b.writer.Run(ctx) }()
	const commands = 400
	answered := make(chan answer, commands)
	go func() {
		for i := range commands {
			p, _ := b.proposal(create(t, i+1, i+1, "a"), alice)
			p.Done = func(r frames.OperationResult, err error) { answered <- answer{r, err} }
			if err := b.writer.Propose(p); err != nil {
				answered <- answer{err: err}
			}
		}
	}()
	for left := commands; left > 0; {
		for i := min(left, 20); i > 0; i-- {
			require.NoError(t, (<-answered).err)
			left--
		}
		require.NoError(t, b.writer.Do(ctx, func(s *store.Store) error {
			b.mu.Lock()
			defer b.mu.Unlock()
			last := b.published[len(b.published)-1]
			require.Equal(t, last.Commit, s.State().Commit)
			cut := s.Cut()
			defer cut.Close()
			require.EqualValues(t, last.Last, cut.Seq())
			return nil
		}))
	}
	cancel()
	require.NoError(t, <-ran)
	require.EqualValues(t, commands, b.count(frames.KindObjective))
}

// A grant that ends between the decision and the commit ends what was decided under it, and
// nothing else (protocol.md §5.5).
func TestAGrantThatEndsWhileItsRoundWaitsIsRefused(t *testing.T) {
	b := newBed(t)
	one := inTheAir(t, b, create(t, 1, 1, "a"))
	p, revoked := b.proposal(create(t, 2, 2, "a"), alice)
	require.NoError(t, b.writer.Propose(p))
	good := b.propose(update(t, 3, 1, "b"), alice)
	rests := b.propose(update(t, 4, 2, "c"), alice) // on what is revoked
	atFlush(b, func() error {
		require.Len(t, b.writer.open.items, 3)
		p.Grant.(*grant).revoke()
		return nil
	})
	require.NoError(t, b.step())
	require.NoError(t, (<-one).err)
	require.Equal(t, frames.CodeAuthenticationFailed, code(t, (<-revoked).err))
	require.NoError(t, (<-good).err)
	require.Equal(t, frames.CodeNotFound, code(t, (<-rests).err))
	require.EqualValues(t, 1, b.count(frames.KindObjective))
}

// So it is with what else a decision rests on.
func TestWhatADecisionRestsOnIsAskedAgain(t *testing.T) {
	b := newBed(t)
	inTheAir(t, b, create(t, 1, 1, "a"))
	good, decided := true, []bool{}
	done := make(chan error, 2)
	a := Domain(nil, 0, 0, func(work.View, work.Env) (work.Outcome, error) {
		decided = append(decided, good)
		return work.Outcome{}, nil
	})
	a.still = func() bool { return decided[len(decided)-1] == good }
	require.NoError(t, b.writer.Amend(a, func(err error) { done <- err }))
	atFlush(b, func() error {
		require.Equal(t, []bool{true}, decided)
		good = false
		return nil
	})
	require.NoError(t, b.step())
	require.NoError(t, <-done)
	require.Equal(t, []bool{true, false}, decided)
}

// What was decided while a flush stalled is decided again, as of then.
func TestWhatWasDecidedLongAgoIsDecidedAgain(t *testing.T) {
	b := newBed(t)
	inTheAir(t, b, create(t, 1, 1, "a"))
	b.propose(create(t, 2, 2, "a"), alice)
	var first *round
	atFlush(b, func() error {
		first = b.writer.open
		b.clk.Advance(decidedFor + 1)
		return nil
	})
	require.NoError(t, b.step())
	require.Len(t, b.published, 2)
	require.NotNil(t, first)
	require.Nil(t, first.flight, "it never left")
}

// The fence closes while a round flies: that one is durable and may not be told, and what was
// decided upon it is never written [D-9].
func TestC05_FenceThatClosesInFlightEndsWhatFollows(t *testing.T) {
	b := newBed(t)
	one := inTheAir(t, b, create(t, 1, 1, "a"))
	two := b.propose(update(t, 2, 1, "b"), alice)
	ops := 0
	atFlush(b, func() error {
		b.clk.Advance(3 * leaseSeconds * time.Second)
		ops = b.disk.Ops()
		return nil
	})
	require.ErrorIs(t, b.writer.Run(t.Context()), authority.ErrFenced)
	require.ErrorIs(t, (<-one).err, ErrUnacknowledged)
	require.ErrorIs(t, (<-two).err, ErrStopped, "it certainly did not run")
	require.Empty(t, b.published)
	require.LessOrEqual(t, b.disk.Ops(), ops+1, "nothing is written behind it")
	require.NoError(t, b.store.Close())

	b.restart(b.disk.Kill)
	require.EqualValues(t, 1, b.count(frames.KindObjective))
	require.EqualValues(t, 1, b.count(frames.KindOperation))
}

// A flush that fails leaves the outcome of its own round open, and of no other.
func TestAFlightThatFailsTakesDownWhatFollows(t *testing.T) {
	for _, kind := range []string{"write", "sync"} {
		t.Run(kind, func(t *testing.T) {
			b := newBed(t)
			one := inTheAir(t, b, create(t, 1, 1, "a"))
			two := b.propose(update(t, 2, 1, "b"), alice)
			broken := errors.New("input/output error")
			b.disk.Hook(func(op simfs.Op) error {
				if op.Kind == kind {
					return broken
				}
				return nil
			})
			err := b.writer.Run(t.Context())
			require.ErrorIs(t, err, store.ErrOutcomeUnknown)
			require.ErrorIs(t, err, broken)
			require.ErrorIs(t, (<-one).err, ErrUnacknowledged)
			require.ErrorIs(t, (<-two).err, ErrStopped)
			require.Empty(t, b.published)
			require.NoError(t, b.fence.Stop(t.Context()), "nobody is left inside the fence")
		})
	}
}

// The clocks diverge while a round flies: it is held, and what was decided upon it is decided
// again once the lease is renewed.
func TestDivergenceInFlightHoldsWhatFollows(t *testing.T) {
	b := newBed(t)
	one := inTheAir(t, b, create(t, 1, 1, "a"))
	two := b.propose(update(t, 2, 1, "b"), alice)
	atFlush(b, func() error {
		b.clk.StepWall(-time.Hour)
		return nil
	})
	for range 3 {
		require.ErrorIs(t, b.step(), authority.ErrDiverged)
		require.True(t, none(one))
		require.True(t, none(two))
	}
	require.Empty(t, b.published)
	b.renew()
	require.NoError(t, b.step())
	require.NoError(t, (<-one).err)
	require.NoError(t, (<-two).err)
	require.Equal(t, []string{"published", "replied", "published", "replied"}, b.trace)
}

// A stop lands what flies and commits what is queued behind it.
func TestStopLandsWhatFlies(t *testing.T) {
	b := newBed(t)
	one := inTheAir(t, b, create(t, 1, 1, "a"))
	two := b.propose(update(t, 2, 1, "b"), alice)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, b.writer.Run(ctx))
	require.NoError(t, (<-one).err)
	require.NoError(t, (<-two).err)
	require.NoError(t, b.fence.Stop(t.Context()), "nobody is left inside the fence")
}

// A process that ends with a round in the air leaves it to recovery: whole or not there.
func TestC05_CrashInFlight(t *testing.T) {
	for seed := range uint64(8) {
		b := newBed(t)
		one := inTheAir(t, b, create(t, 1, 1, "a"))
		b.propose(update(t, 2, 1, "b"), alice)
		b.disk.StopAfter(int(seed % 3))
		b.writer.Step() //nolint:errcheck // the disk has stopped, or not yet
		b.restart(func() { b.disk.Crash(seed) })
		if !none(one) {
			if a := <-one; a.err == nil {
				require.EqualValues(t, 1, b.count(frames.KindObjective), "what was acknowledged stays")
			}
		}
		require.NoError(t, b.do(create(t, 1, 1, "a"), alice).err)
		require.NoError(t, b.do(update(t, 2, 1, "b"), alice).err)
		require.EqualValues(t, 1, b.count(frames.KindObjective))
		require.EqualValues(t, 2, b.count(frames.KindOperation))
		require.NoError(t, b.store.Abandon())
	}
}

// With flights beside checkpoints, new segments, cuts, replays and lookups: each command has
// one effect and one answer, and events go out in order and without a hole.
func TestC08_FlightsBesideAllElse(t *testing.T) {
	b := newBed(t)
	b.stored = func(o *store.Options) { o.Manual, o.CheckpointOps = false, 40 }
	b.restart(b.disk.Kill)
	before := b.store.State()
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- b.writer.Run(ctx) }()
	const senders, each = 16, 30
	results := make([]frames.OperationResult, senders*each)
	var sending errgroup.Group
	for s := range senders {
		sending.Go(func() error {
			for i := s; i < len(results); i += senders {
				p, got := b.proposal(create(t, i+1, i+1, "a"), alice)
				q, again := b.proposal(create(t, i+1, i+1, "a"), bob)
				q.Command.From = p.Command.From
				if err := errors.Join(b.writer.Propose(p), b.writer.Propose(q)); err != nil {
					return err
				}
				a, other := <-got, <-again
				if a.err != nil || other.err != nil || !reflect.DeepEqual(a, other) {
					return fmt.Errorf("%d: %v, and once more %v", i, a, other)
				}
				results[i] = a.result
				if err := b.look(ctx, id16[frames.OperationID](i+1), a.result); err != nil {
					return err
				}
			}
			return nil
		})
	}
	require.NoError(t, sending.Wait())
	cancel()
	require.NoError(t, <-ran)
	require.NoError(t, b.store.Close())
	next := before.Head
	for _, p := range b.published {
		require.EqualValues(t, next+1, p.First)
		next = frames.EventCut(p.Last)
	}
	b.start()
	require.EqualValues(t, len(results), b.count(frames.KindObjective))
	require.EqualValues(t, len(results), b.count(frames.KindOperation))
	require.Equal(t, next, b.store.State().Head)
	for i, want := range results {
		require.Equal(t, want, b.do(create(t, i+1, i+1, "a"), alice).result)
	}
}

// look finds an operation that has the result want in a lookup, and its event in a cut and a
// replay.
func (b *bed) look(ctx context.Context, op frames.OperationID, want frames.OperationResult) error {
	got, err := b.writer.Lookup(ctx, op, alice)
	if err != nil || !reflect.DeepEqual(got, want) {
		return errors.Join(err, fmt.Errorf("a lookup gives %v, want %v", got, want))
	}
	var cut *store.Cut
	if err := b.writer.Do(ctx, func(s *store.Store) error { cut = s.Cut(); return nil }); err != nil {
		return err
	}
	defer cut.Close()
	ops := 0
	all := func(frames.ObjectKind, frames.KeyID) bool { return true }
	for after, done := (store.Key{}), false; !done; {
		var rows []store.Row
		if rows, done, err = cut.Page(after, all, 100); err != nil {
			return err
		}
		for i := range rows {
			after = rows[i].Key()
			if rows[i].Record.Kind == frames.KindOperation {
				ops++
			}
		}
	}
	if n := cut.Count(frames.KindOperation); cut.Seq() < frames.EventCut(want.Sequence) || n != uint64(ops) {
		return fmt.Errorf("a cut at %d counts %d operations and has %d; one is of %d", cut.Seq(), n, ops, want.Sequence)
	}
	replay, err := b.store.Replay(0, cut.Seq())
	if err != nil {
		return err
	}
	defer replay.Close()
	total, err := replay.Count(all)
	if err == nil && uint64(total.Last) != uint64(cut.Seq()) {
		err = fmt.Errorf("a replay to %d ends at %d", cut.Seq(), total.Last)
	}
	return err
}
