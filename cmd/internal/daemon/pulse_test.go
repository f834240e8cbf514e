package daemon

import (
	"context"
	"errors"
	"testing"
	"time"

	"coordinator/internal/clock"

	"github.com/stretchr/testify/require"
)

const awaiting = time.Minute

func TestPulse(t *testing.T) {
	m := clock.NewManual(clock.Reading{Wall: time.Unix(1_800_000_000, 0), Boot: time.Hour})
	u := NewPulse(m)
	require.ErrorIs(t, u.Ready(), errNotServing)
	require.NoError(t, u.Healthy())
	asked := make(chan chan error)
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() {
		ran <- u.Run(ctx, "the disk", func(ctx context.Context) error {
			answer := make(chan error)
			select {
			case asked <- answer:
				return <-answer
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	(<-asked) <- nil
	u.Serves(true)
	require.NoError(t, u.Ready())

	var hanging chan error
	require.Eventually(t, func() bool {
		m.Advance(pulseEvery)
		select {
		case hanging = <-asked:
			return true
		default:
			return false
		}
	}, awaiting, time.Millisecond)
	m.Advance(stuckAfter + time.Second)
	require.ErrorContains(t, u.Healthy(), "the disk has not come round for ")
	require.ErrorContains(t, u.Ready(), "the disk has not come round for ")
	hanging <- nil
	require.Eventually(t, func() bool { return u.Healthy() == nil }, awaiting, time.Millisecond)

	broken := errors.New("it is broken")
	require.Eventually(t, func() bool {
		m.Advance(pulseEvery)
		select {
		case answer := <-asked:
			answer <- broken
		default:
		}
		return errors.Is(u.Healthy(), broken)
	}, awaiting, time.Millisecond)
	require.EqualError(t, u.Ready(), "the disk: it is broken")
	cancel()
	require.NoError(t, <-ran)
	require.NoError(t, u.Healthy(), "nobody is asked any more")
	u.Serves(false)
	require.ErrorIs(t, u.Ready(), errNotServing)
}

// TestASleepIsNoIllness: a machine that wakes, or a process that goes on after SIGSTOP, is asked
// by its supervisor before it has asked anybody itself.
func TestASleepIsNoIllness(t *testing.T) {
	m := clock.NewManual(clock.Reading{Wall: time.Unix(1_800_000_000, 0), Boot: time.Hour})
	u := NewPulse(m)
	u.Serves(true)
	ctx, cancel := context.WithCancel(t.Context())
	ran, asked := make(chan error, 1), make(chan struct{})
	go func() {
		ran <- u.Run(ctx, "the disk", func(ctx context.Context) error {
			select {
			case asked <- struct{}{}:
			case <-ctx.Done():
			}
			return nil
		})
	}()
	<-asked
	require.Eventually(t, func() bool {
		u.mu.Lock()
		defer u.mu.Unlock()
		return !u.asking
	}, awaiting, time.Millisecond)
	m.Advance(8 * time.Hour)
	require.NoError(t, u.Healthy(), "whether or not it has begun to ask again")
	require.NoError(t, u.Ready())
	<-asked
	cancel()
	require.NoError(t, <-ran)
}
