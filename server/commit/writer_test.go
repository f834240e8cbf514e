package commit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
	"coordinator/server/authority"
	"coordinator/server/store"
	"coordinator/server/store/simfs"
	"coordinator/server/work"
)

func TestProposalIsDurablePublishedAndThenAnswered(t *testing.T) {
	b := newBed(t)
	got := b.propose(create(t, 1, 1, "a"), alice)
	require.True(t, none(got))
	require.NoError(t, b.step())
	a := <-got
	require.NoError(t, a.err)
	require.Equal(t, frames.OperationSucceeded, a.result.State)
	require.Equal(t, []string{"published", "replied"}, b.trace)
	require.Len(t, b.published, 1)
	p := b.published[0]
	require.Len(t, p.Events, 2)
	require.Equal(t, frames.EventObjectiveChanged, p.Events[0].Kind)
	require.Equal(t, frames.EventOperationChanged, p.Events[1].Kind)
	require.Equal(t, a.result.Sequence, p.Events[1].Sequence)
	require.Equal(t, alice.Principal, p.Events[1].Principal)

	b.restart(func() { b.disk.Crash(1) })
	again := b.do(create(t, 1, 1, "a"), alice)
	require.NoError(t, again.err)
	require.Equal(t, a.result, again.result, "a lost reply is found again")
	require.EqualValues(t, 1, b.count(frames.KindObjective))
}

func TestC08_FiftySendersOfOneOperation(t *testing.T) {
	b := newBed(t)
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- b.writer.Run(ctx) }()
	var senders sync.WaitGroup
	answers := make([]answer, 50)
	for i := range answers {
		senders.Go(func() {
			p, got := b.proposal(create(t, 1, 1, "a"), alice)
			if err := b.writer.Propose(p); err != nil {
				answers[i].err = err
				return
			}
			answers[i] = <-got
		})
	}
	senders.Wait()
	for _, a := range answers {
		require.NoError(t, a.err)
		require.Equal(t, answers[0].result, a.result)
	}
	cancel()
	require.NoError(t, <-ran)
	require.EqualValues(t, 1, b.count(frames.KindObjective))
	require.EqualValues(t, 1, b.count(frames.KindOperation))
	require.EqualValues(t, 2, b.store.State().Head)
}

func TestWaitingProposalsShareACommit(t *testing.T) {
	b := newBed(t)
	before := b.store.State().Commit
	var got []chan answer
	for i := range 600 {
		got = append(got, b.propose(create(t, i+1, i+1, "a"), alice))
	}
	worked, err := b.writer.Step()
	require.True(t, worked)
	require.NoError(t, err)
	require.Equal(t, before+1, b.store.State().Commit)
	require.EqualValues(t, maxEvents/2, b.count(frames.KindObjective), "no more events than one commit may have")
	require.NoError(t, b.step())
	require.Equal(t, before+3, b.store.State().Commit)
	for i, c := range got {
		a := <-c
		require.NoError(t, a.err)
		require.EqualValues(t, 2*(i+1), a.result.Sequence, "in the order in which they came")
	}
}

func TestLargeProposalsAreSplitByBytes(t *testing.T) {
	b := newBed(t)
	before := b.store.State().Commit
	document := string(make([]byte, 100<<10))
	var got []chan answer
	for i := range 25 {
		got = append(got, b.propose(create(t, i+1, i+1, document), alice))
	}
	require.NoError(t, b.step())
	require.Equal(t, before+3, b.store.State().Commit, "ten of 100 KiB fit into 1 MiB")
	for _, c := range got {
		require.NoError(t, (<-c).err)
	}
}

func TestRefusalsWaitForTheCommitThatTheyRestOn(t *testing.T) {
	b := newBed(t)
	one := b.propose(create(t, 1, 1, "a"), alice)
	two := b.propose(create(t, 2, 1, "b"), alice) // in use only because of the first
	b.disk.Hook(func(op simfs.Op) error {
		if op.Kind == "sync" {
			require.True(t, none(one))
			require.True(t, none(two))
		}
		return nil
	})
	require.NoError(t, b.step())
	require.NoError(t, (<-one).err)
	require.Equal(t, frames.CodeRevisionConflict, code(t, (<-two).err))
}

func TestQueueIsBoundedAndNeverBlocks(t *testing.T) {
	b := newBed(t)
	b.options.QueueLimit = 3
	b.restart(b.disk.Kill)
	for i := range 3 {
		b.propose(create(t, i+1, i+1, "a"), alice)
	}
	p, got := b.proposal(create(t, 4, 4, "a"), alice)
	require.Equal(t, frames.CodeResourceExhausted, code(t, b.writer.Propose(p)))
	require.NoError(t, b.step())
	require.True(t, none(got))
	require.NoError(t, b.do(create(t, 4, 4, "a"), alice).err, "and has room again")
}

func TestGrantAndGuardAreCheckedAtTheCommit(t *testing.T) {
	b := newBed(t)
	p, revoked := b.proposal(create(t, 1, 1, "a"), alice)
	require.NoError(t, b.writer.Propose(p))
	q, foreign := b.proposal(create(t, 2, 2, "a"), alice)
	q.Guard.Epoch++
	require.NoError(t, b.writer.Propose(q))
	good := b.propose(create(t, 3, 3, "a"), bob)
	p.Grant.(*grant).revoke()
	require.NoError(t, b.step())
	require.Equal(t, frames.CodeAuthenticationFailed, code(t, (<-revoked).err))
	require.Equal(t, frames.CodeStaleAuthority, code(t, (<-foreign).err))
	require.NoError(t, (<-good).err)
	require.EqualValues(t, 1, b.count(frames.KindObjective))
}

func TestC05_ExpiredLeaseCommitsNothing(t *testing.T) {
	b := newBed(t)
	got := b.propose(create(t, 1, 1, "a"), alice)
	before := b.disk.Ops()
	b.clk.Advance((leaseSeconds - 2) * time.Second)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	err := b.writer.Run(ctx)
	require.ErrorIs(t, err, authority.ErrFenced)
	require.Equal(t, before, b.disk.Ops(), "nothing was written")
	a := <-got
	require.ErrorIs(t, a.err, ErrStopped)
	require.Equal(t, frames.CodeAuthorityFenced, code(t, a.err), "it certainly did not run")
	p, _ := b.proposal(create(t, 2, 2, "a"), alice)
	require.ErrorIs(t, b.writer.Propose(p), ErrStopped)
	require.ErrorIs(t, b.writer.Do(ctx, func(*store.Store) error { return nil }), ErrStopped)
}

// The process is stopped, or its disk stalls, inside the flush, and wakes after its lease.
func TestC05_FlushThatEndsPastTheDeadlineIsNotAcknowledged(t *testing.T) {
	b := newBed(t)
	in := b.propose(create(t, 1, 1, "a"), alice)
	b.disk.Hook(func(op simfs.Op) error {
		if op.Kind == "sync" {
			b.clk.Advance(3 * leaseSeconds * time.Second)
		}
		return nil
	})
	require.ErrorIs(t, b.writer.Run(t.Context()), authority.ErrFenced)
	a := <-in
	require.ErrorIs(t, a.err, ErrUnacknowledged)
	require.Zero(t, a.result)
	var refusal *work.Refusal
	require.False(t, errors.As(a.err, &refusal), "it is not told to be refused either")
	require.Empty(t, b.published)

	b.restart(func() { b.disk.Crash(3) })
	again := b.do(create(t, 1, 1, "a"), alice)
	require.NoError(t, again.err)
	require.EqualValues(t, 2, again.result.Sequence, "it had been committed, and is found")
	require.EqualValues(t, 1, b.count(frames.KindObjective))
}

func TestDivergedClocksHoldTheBatch(t *testing.T) {
	b := newBed(t)
	got := b.propose(create(t, 1, 1, "a"), alice)
	b.clk.StepWall(time.Hour)
	for range 3 {
		require.ErrorIs(t, b.step(), authority.ErrDiverged)
	}
	require.True(t, none(got))
	require.Zero(t, b.count(frames.KindObjective))
	b.renew()
	require.NoError(t, b.step())
	require.NoError(t, (<-got).err)
}

func TestDivergenceDuringTheFlushHoldsTheReply(t *testing.T) {
	b := newBed(t)
	got := b.propose(create(t, 1, 1, "a"), alice)
	stepped := false
	b.disk.Hook(func(op simfs.Op) error {
		if op.Kind == "sync" && !stepped {
			stepped = true
			b.clk.StepWall(-time.Hour)
		}
		return nil
	})
	for range 3 {
		require.ErrorIs(t, b.step(), authority.ErrDiverged)
	}
	require.EqualValues(t, 1, b.count(frames.KindObjective), "it is durable")
	require.True(t, none(got))
	require.Empty(t, b.published)
	next := b.propose(update(t, 2, 1, "b"), alice)
	b.renew()
	require.NoError(t, b.step())
	require.NoError(t, (<-got).err)
	require.NoError(t, (<-next).err)
	require.Equal(t, []string{"published", "replied", "published", "replied"}, b.trace)
}

func TestRunResumesAfterADivergence(t *testing.T) {
	b := newBed(t)
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	b.clk.StepWall(time.Hour)
	require.ErrorIs(t, b.fence.Check(), authority.ErrDiverged)
	got := b.propose(create(t, 1, 1, "a"), alice)
	go func() { ran <- b.writer.Run(ctx) }()
	b.renew()
	require.NoError(t, (<-got).err)
	cancel()
	require.NoError(t, <-ran)
}

func TestStopWhileDivergedRefusesWhatIsQueued(t *testing.T) {
	b := newBed(t)
	b.clk.StepWall(time.Hour)
	got := b.propose(create(t, 1, 1, "a"), alice)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, b.writer.Run(ctx))
	require.ErrorIs(t, (<-got).err, ErrStopped)
	require.Zero(t, b.count(frames.KindObjective))
}

func TestStopFinishesWhatIsQueued(t *testing.T) {
	b := newBed(t)
	var got []chan answer
	for i := range 700 {
		got = append(got, b.propose(create(t, i+1, i+1, "a"), alice))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, b.writer.Run(ctx))
	for _, c := range got {
		require.NoError(t, (<-c).err)
	}
	require.EqualValues(t, 700, b.count(frames.KindObjective))
	require.NoError(t, b.fence.Stop(t.Context()), "nobody is left inside the fence")
}

func TestFailedWriteOrSyncStopsTheWriter(t *testing.T) {
	for _, kind := range []string{"write", "sync"} {
		t.Run(kind, func(t *testing.T) {
			b := newBed(t)
			one := b.propose(create(t, 1, 1, "a"), alice)
			var later chan answer
			broken := errors.New("no space left on device")
			b.disk.Hook(func(op simfs.Op) error {
				if op.Kind != kind {
					return nil
				}
				if later == nil {
					later = b.propose(create(t, 2, 2, "a"), alice) // queued behind it
				}
				return broken
			})
			err := b.writer.Run(t.Context())
			require.ErrorIs(t, err, store.ErrOutcomeUnknown)
			require.ErrorIs(t, err, broken)
			require.ErrorIs(t, (<-one).err, ErrUnacknowledged)
			require.ErrorIs(t, (<-later).err, ErrStopped)
			require.Empty(t, b.published)

			b.restart(func() { b.disk.Crash(9) })
			for op := range 2 {
				require.NoError(t, b.do(create(t, op+1, op+1, "a"), alice).err)
			}
			require.EqualValues(t, 2, b.count(frames.KindObjective), "each ran once")
			require.EqualValues(t, 2, b.count(frames.KindOperation))
		})
	}
}

func TestStalePrefetchIsReadAgain(t *testing.T) {
	checkpoint := func(b *bed) {
		for more := true; more; {
			var err error
			more, err = b.store.CheckpointStep()
			require.NoError(t, err)
		}
		b.store.Maintain()
	}
	t.Run("by Step alone", func(t *testing.T) {
		b := newBed(t)
		require.NoError(t, b.do(create(t, 1, 1, "a"), alice).err)
		// Prefetched while the operation is only in memory, applied when it is only on disk.
		got := b.propose(create(t, 1, 1, "a"), alice)
		checkpoint(b)
		require.NoError(t, b.step())
		a := <-got
		require.NoError(t, a.err)
		require.EqualValues(t, 2, a.result.Sequence)
		require.EqualValues(t, 1, b.count(frames.KindOperation))
	})
	t.Run("by the reader of Run", func(t *testing.T) {
		b := newBed(t)
		require.NoError(t, b.do(create(t, 1, 1, "a"), alice).err)
		got := b.propose(create(t, 1, 1, "a"), alice)
		checkpoint(b)
		ctx, cancel := context.WithCancel(t.Context())
		ran := make(chan error, 1)
		go func() { ran <- b.writer.Run(ctx) }()
		require.EqualValues(t, 2, (<-got).result.Sequence)
		cancel()
		require.NoError(t, <-ran)
	})
}

func TestLowDiskIsAskedPerBatch(t *testing.T) {
	b := newBed(t)
	low := true
	b.options.LowDisk = func() bool { return low }
	b.restart(b.disk.Kill)
	require.Equal(t, frames.CodeResourceExhausted, code(t, b.do(create(t, 1, 1, "a"), alice).err))
	low = false
	require.NoError(t, b.do(create(t, 1, 1, "a"), alice).err)
}

// The disk stops at every operation around a commit in turn; after the restart the same
// operation is sent again. However it went, there is one effect, and what was acknowledged
// is what is found.
func TestC08_CrashAtEveryDiskOperation(t *testing.T) {
	for _, crash := range []bool{false, true} {
		t.Run(fmt.Sprintf("power=%v", crash), func(t *testing.T) {
			finished := false
			for k := 0; !finished; k++ {
				b := newBed(t)
				require.NoError(t, b.do(create(t, 1, 1, "before"), alice).err)
				b.disk.StopAfter(k)
				got := b.propose(create(t, 2, 2, "a"), alice)
				err := b.step()
				first := <-got
				finished = err == nil
				if finished {
					require.NoError(t, first.err)
				} else {
					require.ErrorIs(t, err, store.ErrOutcomeUnknown)
					require.ErrorIs(t, first.err, ErrUnacknowledged)
				}
				b.restart(func() {
					if crash {
						b.disk.Crash(uint64(k))
					} else {
						b.disk.Kill()
					}
				})
				again := b.do(create(t, 2, 2, "a"), alice)
				require.NoError(t, again.err, k)
				if finished {
					require.Equal(t, first.result, again.result)
				}
				require.EqualValues(t, 2, b.count(frames.KindObjective), k)
				require.EqualValues(t, 2, b.count(frames.KindOperation), k)
				require.EqualValues(t, 4, b.store.State().Head, k)
			}
		})
	}
}

// The process stalls between entering the fence and the write.
func TestC05_BatchThatIsBuiltPastTheDeadlineIsNotWritten(t *testing.T) {
	b := newBed(t)
	b.options.LowDisk = func() bool { b.clk.Advance(leaseSeconds * time.Second); return false }
	b.restart(b.disk.Kill)
	got := b.propose(create(t, 1, 1, "a"), alice)
	before := b.disk.Ops()
	require.ErrorIs(t, b.writer.Run(t.Context()), authority.ErrFenced)
	require.Equal(t, before, b.disk.Ops())
	require.ErrorIs(t, (<-got).err, ErrStopped)
}

func TestDivergenceWhileBuildingForgetsTheTransaction(t *testing.T) {
	b := newBed(t)
	stepped := false
	b.options.LowDisk = func() bool {
		if !stepped {
			stepped = true
			b.clk.StepWall(time.Hour)
		}
		return false
	}
	b.restart(b.disk.Kill)
	p, revoked := b.proposal(create(t, 1, 1, "a"), alice)
	require.NoError(t, b.writer.Propose(p))
	kept := b.propose(create(t, 2, 2, "a"), alice)
	before := b.disk.Ops()
	require.ErrorIs(t, b.step(), authority.ErrDiverged)
	require.Equal(t, before, b.disk.Ops())
	p.Grant.(*grant).revoke() // while it waited
	b.renew()
	require.NoError(t, b.step())
	require.Equal(t, frames.CodeAuthenticationFailed, code(t, (<-revoked).err))
	a := <-kept
	require.NoError(t, a.err)
	require.EqualValues(t, 2, a.result.Sequence)
}
