package outbox

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
)

func TestMetersOfARun(t *testing.T) {
	b := newBed(t)
	b.startRun(7)
	require.Equal(t, frames.RunCompleted, b.ended(7))
	b.until("everything is counted", func() bool {
		u := b.outbox.Use()
		m := b.outbox.Meters()
		return u.Ready+u.Dispatched+u.Bindings == 0 && m.Outcomes[frames.EffectSucceeded].Load() == 1 && m.Facts.Load() > 0
	})
	m := b.outbox.Meters()
	require.EqualValues(t, 1, m.Links.Load())
	require.EqualValues(t, 1, m.Dispatched.Load())
	require.Zero(t, m.LookedUp.Load())
	require.Positive(t, m.Facts.Load())
	require.Zero(t, m.Notable.Load())
	u := b.outbox.Use()
	require.Equal(t, Use{Owners: 1, Up: 1}, u)
}

// TestUseTellsWhatWaits of an effect that no owner takes: its owner is away.
func TestUseTellsWhatWaits(t *testing.T) {
	b := newBed(t)
	b.diesReady()
	b.stop()
	away := func(context.Context, Handlers) (Link, error) { return nil, errors.New("nobody is there") }
	b.owners = []Owner{{Name: "away", Fingerprint: ownerPin, Dial: away}}
	b.start()
	require.Equal(t, Use{Owners: 1, Ready: 1}, b.outbox.Use())
}
