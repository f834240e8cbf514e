package store_test

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
	"coordinator/server/store"
	"coordinator/server/store/simfs"
)

// script is a fixed run with every kind of change: commits over several segments, an
// oversized one, updates, removals, moves between live and history, checkpoints, a cut that
// holds changes back and a retention that unlinks. It calls after with the number of
// acknowledged commits and stops at the first error.
func (b *bed) script(after func(commits int)) error {
	var cut *store.Cut
	defer func() {
		if cut != nil {
			cut.Close()
		}
	}()
	for i := range 26 {
		id := uint64(i%7 + 1)
		kind := frames.ObjectKind(i%3 + 1)
		refs := []frames.ObjectRef{ref(kind, id), ref(frames.KindOperation, uint64(i+1)), ref(kind, uint64(i%5+1))}
		l, err := b.s.Prefetch(refs)
		if err != nil {
			return err
		}
		tx := b.s.Begin()
		if !tx.Use(l) {
			return errors.New("stale at once")
		}
		prev, _, err := tx.Get(refs[0])
		if err != nil {
			return err
		}
		size := 200
		if i == 11 {
			size = 20_000
		}
		tx.Emit(frames.EventRunChanged, eventID(uint64(i)), makeRow(kind, id, uint64(prev.Record.Revision)+1, strings.Repeat("s", size), i%4 == 0))
		op := makeRow(frames.KindOperation, uint64(i+1), 1, fmt.Sprint("op ", i), false)
		op.Principal = frames.KeyID{byte(i % 3)}
		tx.Emit(frames.EventOperationChanged, eventID(uint64(i)), op)
		if i%6 == 5 {
			tx.Remove(refs[2])
			tx.Hidden()
		}
		if i%9 == 0 {
			tx.Install(frames.AuthorityEpoch(i+1), frames.ActivationSequence(i+1), [32]byte{byte(i)})
		}
		if _, err := b.s.Commit(tx, testTime); err != nil {
			return err
		}
		after(i + 1)
		if i == 8 {
			cut = b.s.Cut()
		}
		if i == 20 {
			cut.Close()
		}
		if i%5 == 4 {
			for more := true; more; {
				if more, err = b.s.CheckpointStep(); err != nil {
					return err
				}
			}
		}
	}
	return b.s.Close()
}

// scriptStates runs the script undisturbed and returns the state after each commit.
func scriptStates(t *testing.T) []string {
	b := newBed(t, t.TempDir())
	b.s.SetEventBytes(4000)
	states := []string{b.state()}
	require.NoError(t, b.script(func(int) { states = append(states, b.state()) }))
	b.open()
	require.Equal(t, states[len(states)-1], b.state())
	require.NoError(t, b.s.Close())
	require.NoError(t, store.Verify(b.dir, b.opts))
	return states
}

// state is the rows and everything that a commit may change beside them. Commit numbers
// are left out: a clean stop consumes one.
func (b *bed) state() string {
	st := b.s.State()
	c := b.s.Cut()
	defer c.Close()
	var w strings.Builder
	fmt.Fprintf(&w, "head=%d admin=%d epoch=%d activation=%d token=%x bases=%v counts=%v ops=", st.Head, st.AdminHead, st.Epoch, st.Activation, st.TokenSHA256[:1], st.Bases, st.Counts)
	for i := range byte(4) {
		fmt.Fprintf(&w, "%d,", c.OperationsOf(frames.KeyID{i}))
	}
	return w.String() + "\n" + dump(pages(b.t, c, everything, 7))
}

// TestCrashAfterEveryWrite stops the disk after its k-th operation, for every k until the
// run completes, and then loses what was not flushed in several ways. What was acknowledged
// is there; the commit under way is there as a whole or not at all.
func TestCrashAfterEveryWrite(t *testing.T) {
	states := scriptStates(t)
	for k := 0; ; k++ {
		for seed := range uint64(3) {
			b := newBed(t, t.TempDir())
			b.s.SetEventBytes(4000)
			b.fs.StopAfter(k)
			commits := 0
			err := b.script(func(n int) { commits = n })
			if err == nil {
				require.Greater(t, k, 50, "the run has few operations")
				return
			}
			require.Error(t, b.s.Err())
			b.crash(seed) // seed 0 keeps everything
			b.open()
			got := b.state()
			if commits+1 < len(states) && got == states[commits+1] {
				require.NoError(t, b.s.Abandon())
				continue
			}
			require.Equal(t, states[commits], got, "k=%d seed=%d after %d commits", k, seed, commits)
			// It goes on from there, and closes cleanly.
			b.put(frames.KindSignal, 1, 1, "after the crash", true)
			want := b.state()
			require.NoError(t, b.s.Close())
			b.open()
			require.Equal(t, want, b.state())
			require.NoError(t, b.s.Close())
			require.NoError(t, store.Verify(b.dir, b.opts))
		}
	}
}

// TestCheckpointInterruptedAtEveryTransaction crashes after each number of checkpoint
// transactions and checkpoints anew.
func TestCheckpointInterruptedAtEveryTransaction(t *testing.T) {
	for steps := 0; ; steps++ {
		b := newBed(t, t.TempDir())
		fill := func(rev uint64) {
			for i := uint64(1); i <= 9; i++ {
				b.put(frames.KindObjective, i, rev, fmt.Sprint("rev ", rev), i%3 == rev%3)
			}
			tx := b.begin(ref(frames.KindObjective, rev))
			tx.Remove(ref(frames.KindObjective, rev))
			b.commit(tx)
			b.put(frames.KindObjective, rev, 1, "again", rev == 2)
			tx = b.begin(ref(frames.KindObjective, 9-rev))
			tx.Remove(ref(frames.KindObjective, 9-rev))
			b.commit(tx)
			b.put(frames.KindObjective, 9-rev, rev, "once more", false)
		}
		fill(1)
		b.checkpoint()
		b.put(frames.KindObjective, 1, 2, "x", false)
		b.put(frames.KindObjective, 8, 2, "x", false)
		cut := b.s.Cut() // holds some of the next checkpoint back
		fill(3)
		want := b.state()
		more := true
		for i := 0; i < steps && more; i++ {
			var err error
			more, err = b.s.CheckpointStep()
			require.NoError(t, err)
		}
		cut.Close()
		b.crash(uint64(steps))
		b.open()
		require.Equal(t, want, b.state(), "after %d steps", steps)
		b.put(frames.KindObjective, 5, 9, "five", false)
		want = b.state()
		b.checkpoint()
		require.Equal(t, want, b.state(), "after %d steps", steps)
		require.NoError(t, b.s.Close())
		b.open()
		require.Equal(t, want, b.state(), "after %d steps", steps)
		require.NoError(t, b.s.Close())
		require.NoError(t, store.Verify(b.dir, b.opts))
		if !more {
			require.GreaterOrEqual(t, steps, 3)
			return
		}
	}
}

// TestCarriedChangesSurvive: what a cut holds back at a clean stop is applied later.
func TestCarriedChangesSurvive(t *testing.T) {
	b := newBed(t, t.TempDir())
	b.put(frames.KindObjective, 1, 1, "one", false)
	b.put(frames.KindObjective, 2, 1, "two", false)
	b.put(frames.KindObjective, 3, 1, "three", false)
	b.checkpoint()
	cut := b.s.Cut()
	b.put(frames.KindObjective, 1, 2, "one again", false)
	b.put(frames.KindObjective, 2, 2, "two lives", true)
	tx := b.begin(ref(frames.KindObjective, 3))
	tx.Remove(ref(frames.KindObjective, 3))
	b.commit(tx)
	want := b.state()
	b.checkpoint()
	require.NotZero(t, cut.Superseded())
	require.Contains(t, dump(pages(t, cut, everything, 2)), "three")
	require.Equal(t, want, b.state())
	require.NoError(t, b.s.Close())
	_, _, err := cut.Page(store.Key{}, everything, 1)
	require.ErrorIs(t, err, store.ErrClosed)

	b.open()
	require.Equal(t, want, b.state())
	b.put(frames.KindObjective, 4, 1, "four", false)
	want = b.state()
	b.checkpoint()
	require.Equal(t, want, b.state())
	require.NoError(t, b.s.Close())
	b.open()
	require.Equal(t, want, b.state())
	require.NoError(t, b.s.Close())
	require.NoError(t, store.Verify(b.dir, b.opts))
}

func TestFailedWriteOrSyncEndsTheStore(t *testing.T) {
	for _, tt := range []struct {
		kind string
		err  error
	}{
		{"write", syscall.ENOSPC}, {"write", syscall.EIO}, {"sync", syscall.EIO}, {"sync", syscall.ENOSPC},
		{"create", syscall.ENOSPC}, {"rename", syscall.EIO}, {"syncdir", syscall.EIO},
	} {
		t.Run(fmt.Sprintf("%s %v", tt.kind, tt.err), func(t *testing.T) {
			b := newBed(t, t.TempDir())
			before := b.dump()
			b.put(frames.KindObjective, 1, 1, "acknowledged", true)
			acknowledged := b.dump()
			require.NotEqual(t, before, acknowledged)
			syncs := 0
			failed := false
			b.fs.Hook(func(op simfs.Op) error {
				if failed && op.Kind == "sync" {
					syncs++
				}
				if op.Kind == tt.kind && !failed {
					failed = true
					return tt.err
				}
				return nil
			})
			tx := b.begin(ref(frames.KindObjective, 2))
			// Large enough for a segment of its own, so that every kind of operation occurs.
			tx.Emit(1, eventID(2), makeRow(frames.KindObjective, 2, 1, strings.Repeat("x", 9000), true))
			_, err := b.s.Commit(tx, testTime)
			require.ErrorIs(t, err, store.ErrOutcomeUnknown)
			require.ErrorIs(t, err, tt.err)
			var io *store.IOError
			require.ErrorAs(t, err, &io)
			select {
			case <-b.s.Done():
			default:
				t.Fatal("Done is open")
			}
			ops := b.fs.Ops()
			tx = b.s.Begin()
			tx.Put(makeRow(frames.KindObjective, 3, 1, "x", true))
			_, err = b.s.Commit(tx, testTime)
			require.ErrorIs(t, err, store.ErrFailed)
			require.NotErrorIs(t, err, store.ErrOutcomeUnknown)
			_, err = b.s.CheckpointStep()
			require.ErrorIs(t, err, store.ErrFailed)
			require.Equal(t, acknowledged, b.dump(), "an unknown commit became visible")
			require.ErrorIs(t, b.s.Close(), store.ErrOutcomeUnknown)
			require.Equal(t, ops, b.fs.Ops(), "a failed store wrote again")
			require.Zero(t, syncs, "a sync was tried again")

			b.fs.Crash(4)
			b.open()
			require.Contains(t, b.dump(), "acknowledged")
			require.NoError(t, b.s.Close())
		})
	}
}
