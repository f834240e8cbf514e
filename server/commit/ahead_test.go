package commit

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
	"coordinator/server/authority"
	"coordinator/server/store"
	"coordinator/server/store/simfs"
	"coordinator/server/work"
)

// stall makes the next flush take longer than a decision may wait.
func stall(b *bed) {
	atFlush(b, func() error {
		b.clk.Advance(decidedFor + 1)
		return nil
	})
}

// A call goes before what was decided while it waited, however much of that there always is.
func TestACallWaitsForOneFlightAlone(t *testing.T) {
	b := newBed(t)
	inTheAir(t, b, create(t, 1, 1, "a"))
	two := b.propose(create(t, 2, 2, "a"), alice)
	called := make(chan error, 1)
	go func() {
		called <- b.writer.Do(context.Background(), func(s *store.Store) error {
			require.EqualValues(t, 1, b.count(frames.KindObjective))
			return nil
		})
	}()
	require.Eventually(t, func() bool { return b.writer.Depth().Calls == 1 }, time.Minute, time.Millisecond)
	_, err := b.writer.StepAhead()
	require.NoError(t, err)
	require.Zero(t, b.writer.Depth().Calls)
	require.NoError(t, <-called)
	require.True(t, none(two))
}

// Who stops waits for what is in the air [D-48].
func TestAStopWaitsForWhatFlies(t *testing.T) {
	b := newBed(t)
	one := inTheAir(t, b, create(t, 1, 1, "a"))
	now, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, b.fence.Stop(now), context.Canceled)
	require.ErrorIs(t, b.step(), authority.ErrFenced)
	require.ErrorIs(t, (<-one).err, ErrUnacknowledged)
	require.NoError(t, b.fence.Stop(t.Context()))
}

// What is decided again keeps its order, before what had no room.
func TestWhatIsDecidedAgainKeepsItsOrder(t *testing.T) {
	b := newBed(t)
	inTheAir(t, b, create(t, 1, 1, "a"))
	var got []chan answer
	for i := range maxEvents/2 + 20 {
		got = append(got, b.propose(create(t, i+2, i+2, "a"), alice))
	}
	stall(b)
	require.NoError(t, b.step())
	for i, c := range got {
		a := <-c
		require.NoError(t, a.err)
		require.EqualValues(t, 2*(i+2), a.result.Sequence)
	}
}

// A round has no more items than one may have, also of those that write nothing.
func TestRefusalsAreBoundedPerRound(t *testing.T) {
	b := newBed(t)
	var got []chan answer
	for i := range maxProposals + 30 {
		got = append(got, b.propose(update(t, i+1, i+1, "a"), alice))
	}
	_, err := b.writer.Step()
	require.NoError(t, err)
	for i, c := range got {
		require.Equal(t, i >= maxProposals, none(c), i)
	}
	require.NoError(t, b.step())
	require.Equal(t, frames.CodeNotFound, code(t, (<-got[maxProposals]).err))
}

// What is pending counts once for whoever decides, however often it was decided, and is shown
// when it is durable.
func TestPendingOfRoundsThatAreDecidedAgain(t *testing.T) {
	b := withOwner(t)
	counts := func() int { own, _ := b.writer.pending.count(alice.Principal); return int(own) }
	inTheAir(t, b, start(t, 1, 7))
	require.Equal(t, 2, counts(), "the operation and its attempt")
	require.Empty(t, b.writer.Pending())
	two := b.propose(start(t, 2, 8), alice)
	stall(b)
	require.NoError(t, b.step())
	require.Equal(t, frames.OperationPending, (<-two).result.State)
	require.Equal(t, 4, counts())
	require.Equal(t, map[frames.KeyID]uint64{alice.Principal: 4}, b.writer.Pending())
}

// What joins a round later is decided by the time that it is then.
func TestARoundTakesTheTimeAgain(t *testing.T) {
	b := newBed(t)
	var times []uint64
	note := func() {
		err := b.writer.Amend(Domain(nil, 0, 0, func(_ work.View, env work.Env) (work.Outcome, error) {
			times = append(times, env.Now)
			return work.Outcome{}, nil
		}), func(error) {})
		require.NoError(t, err)
	}
	b.clk.Advance(time.Second / 2)
	inTheAir(t, b, create(t, 1, 1, "a"))
	note()
	atFlush(b, func() error {
		b.clk.Advance(decidedFor - time.Second/10)
		note()
		return nil
	})
	require.NoError(t, b.step())
	require.Len(t, times, 2)
	require.Equal(t, times[0]+1, times[1])
}

// Run decides what comes while it flushes, and not only what was there before.
func TestRunDecidesWhileItFlushes(t *testing.T) {
	b := newBed(t)
	decided := make(chan struct{})
	first := true
	b.disk.Hook(func(op simfs.Op) error {
		if op.Kind != "sync" || !first {
			return nil
		}
		first = false
		err := b.writer.Amend(Domain(nil, 0, 0, func(work.View, work.Env) (work.Outcome, error) {
			close(decided)
			return work.Outcome{}, nil
		}), func(error) {})
		if err != nil {
			return err // which ends the writer; no test fails on a goroutine that is not its own
		}
		<-decided
		return nil
	})
	for i := range loneItems + 1 {
		b.propose(create(t, i+1, i+1, "a"), alice)
	}
	running(t, b)
	<-decided // before the test ends, and Run with it
	require.NoError(t, b.writer.Turn(t.Context()))
}

// A stop in the middle of a divergence leaves open what has landed, and refuses what was
// decided upon it.
func TestStopWhileDivergedAnswersWhatHasLanded(t *testing.T) {
	b := newBed(t)
	one := inTheAir(t, b, create(t, 1, 1, "a"))
	two := b.propose(update(t, 2, 1, "b"), alice)
	atFlush(b, func() error {
		b.clk.StepWall(-time.Hour)
		return nil
	})
	require.ErrorIs(t, b.step(), authority.ErrDiverged)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, b.writer.Run(ctx))
	require.Len(t, one, 1)
	require.ErrorIs(t, (<-one).err, ErrUnacknowledged)
	require.ErrorIs(t, (<-two).err, ErrStopped)
	require.NoError(t, b.fence.Stop(t.Context()), "nobody is left inside the fence")
}

// A store that fails while a round is decided has nothing of it.
func TestAStoreThatFailsBeforeTheSealRefuses(t *testing.T) {
	b := newBed(t)
	b.options.LowDisk = func() bool { b.store.Abandon(); return false } //nolint:errcheck // it is meant to be gone
	b.restart(b.disk.Kill)
	got := b.propose(create(t, 1, 1, "a"), alice)
	require.ErrorIs(t, b.step(), store.ErrFailed)
	require.Len(t, got, 1)
	require.ErrorIs(t, (<-got).err, ErrStopped)
	require.NoError(t, b.fence.Stop(t.Context()), "nobody is left inside the fence")
}

// A refusal shows what is there: it passes the fence like what is written.
func TestC05_RefusalPastTheDeadlineIsNotTold(t *testing.T) {
	b := newBed(t)
	b.options.LowDisk = func() bool { b.clk.Advance(leaseSeconds * time.Second); return false }
	b.restart(b.disk.Kill)
	got := b.propose(update(t, 1, 1, "a"), alice)
	require.ErrorIs(t, b.step(), authority.ErrFenced)
	require.Len(t, got, 1)
	require.ErrorIs(t, (<-got).err, ErrUnacknowledged)
}
