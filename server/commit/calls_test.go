package commit

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
	"coordinator/server/authority"
	"coordinator/server/store"
	"coordinator/server/store/simfs"
	"coordinator/server/work"
)

// running runs the bed's writer until the test ends.
func running(t *testing.T, b *bed) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.writer.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
}

func TestCallsSeeOnlyWhatIsPublished(t *testing.T) {
	b := newBed(t)
	var seen []frames.EventCut
	calls := make(chan error, 1)
	entered := make(chan struct{})
	b.disk.Hook(func(op simfs.Op) error {
		if op.Kind == "sync" && len(seen) == 0 {
			select {
			case <-entered:
			default:
				close(entered)
				go func() {
					calls <- b.writer.Do(context.Background(), func(s *store.Store) error {
						b.mu.Lock()
						defer b.mu.Unlock()
						seen = append(seen, s.State().Head)
						if len(b.published) != 1 {
							return errors.New("ran before the publication")
						}
						return nil
					})
				}()
			}
		}
		return nil
	})
	running(t, b)
	got := b.propose(create(t, 1, 1, "a"), alice)
	require.NoError(t, <-calls)
	require.NoError(t, (<-got).err)
	require.Equal(t, []frames.EventCut{2}, seen)
}

func TestCallGivesBackItsError(t *testing.T) {
	b := newBed(t)
	running(t, b)
	mine := errors.New("mine")
	require.ErrorIs(t, b.writer.Do(t.Context(), func(*store.Store) error { return mine }), mine)
}

func TestCancelledCallIsNotRun(t *testing.T) {
	b := newBed(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	ran := false
	require.ErrorIs(t, b.writer.Do(ctx, func(*store.Store) error { ran = true; return nil }), context.Canceled)
	require.NoError(t, b.step())
	require.False(t, ran)
}

func TestCallsAreBounded(t *testing.T) {
	b := newBed(t)
	b.options.QueueLimit = 1
	b.restart(b.disk.Kill)
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() { first <- b.writer.Do(ctx, func(*store.Store) error { return nil }) }()
	require.Eventually(t, func() bool {
		b.writer.mu.Lock()
		defer b.writer.mu.Unlock()
		return len(b.writer.calls) == 1
	}, 10*time.Second, time.Millisecond)
	require.Equal(t, frames.CodeResourceExhausted, code(t, b.writer.Do(ctx, func(*store.Store) error { return nil })))
	cancel()
	require.ErrorIs(t, <-first, context.Canceled)
	for range 3 { // whoever gives up leaves its place
		require.ErrorIs(t, b.writer.Do(ctx, func(*store.Store) error { return nil }), context.Canceled)
	}
}

func TestCallsWaitWhileTheClocksAreApart(t *testing.T) {
	b := newBed(t)
	b.clk.StepWall(time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	called := make(chan error, 1)
	go func() { called <- b.writer.Do(ctx, func(*store.Store) error { return nil }) }()
	require.Eventually(t, func() bool {
		_, err := b.writer.Step()
		return errors.Is(err, authority.ErrDiverged)
	}, 10*time.Second, time.Millisecond)
	require.Empty(t, called)
	b.renew()
	require.NoError(t, b.step())
	require.NoError(t, <-called)
	cancel()
}

func TestLookupFindsHistoryAndHidesWhatIsForeign(t *testing.T) {
	b := newBed(t)
	a := b.do(create(t, 1, 1, "a"), alice)
	require.NoError(t, a.err)
	for more := true; more; { // the operation moves to disk
		var err error
		more, err = b.store.CheckpointStep()
		require.NoError(t, err)
	}
	running(t, b)
	for _, tt := range []struct {
		name string
		id   int
		from work.Viewer
		want frames.OperationState
	}{
		{"own", 1, alice, frames.OperationSucceeded},
		{"foreign", 1, bob, frames.OperationUnknown},
		{"absent", 2, alice, frames.OperationUnknown},
	} {
		got, err := b.writer.Lookup(t.Context(), id16[frames.OperationID](tt.id), tt.from)
		require.NoError(t, err, tt.name)
		require.Equal(t, tt.want, got.State, tt.name)
		if tt.want == frames.OperationSucceeded {
			require.Equal(t, a.result, got)
		}
	}
	_, err := b.writer.Lookup(t.Context(), id16[frames.OperationID](1), work.Viewer{Principal: alice.Principal})
	require.Equal(t, frames.CodeNotFound, code(t, err))
	r, err := b.writer.Retention(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, work.DefaultEventBytes, r.EventBytes)
}
