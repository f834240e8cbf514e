package authority

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestAKeeperThatWaitsForItsWitnessComesRoundLater proves no turn before the attempt ends.
func TestAKeeperThatWaitsForItsWitnessComesRoundLater(t *testing.T) {
	keep(t, func(t *testing.T, k *kept) {
		require.NoError(t, k.keeper.Turn(t.Context()))
		k.w.set(func() { k.w.hang = true })
		after(5 * time.Second) // a third of the lease: it asks, and there is no answer
		turned := make(chan error, 1)
		go func() { turned <- k.keeper.Turn(t.Context()) }()
		synctest.Wait()
		require.Empty(t, turned)
		after(15 * time.Second / attemptFraction)
		require.NoError(t, <-turned)
		k.fence.Stop(t.Context())
		require.NoError(t, <-k.done)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, k.keeper.Turn(ctx), context.Canceled, "it has ended")
	})
}
