package witness

import (
	"testing"
	"time"

	"coordinator/frames"

	"github.com/stretchr/testify/require"
)

func TestMetersAndCensus(t *testing.T) {
	clk := startClock()
	w, _ := newWitness(t, clk)
	require.Equal(t, Census{}, w.Census())
	a, err := w.Activate(holderA, coordA, 1, incA, 15)
	require.NoError(t, err)
	_, err = w.Activate(holderB, coordB, 1, incB, 30)
	require.NoError(t, err)
	_, err = w.Activate(holderB, coordB, 2, incB, 30)
	requireCode(t, frames.CodeResourceExhausted, err) // granted nothing
	require.Equal(t, Census{Live: 2, Soonest: 15 * time.Second}, w.Census())

	clk.Advance(10 * time.Second)
	_, err = w.Renew(coordA, a.Epoch, a.Activation, incA, a.Token, 15)
	require.NoError(t, err)
	require.Equal(t, Census{Live: 2, Soonest: 15 * time.Second}, w.Census())
	clk.Advance(20 * time.Second)
	require.Equal(t, Census{Ended: 2}, w.Census())
	require.NoError(t, w.Relinquish(holderA, coordA, a.Token, incA))
	require.NoError(t, w.Relinquish(holderA, coordA, a.Token, incA)) // again changes nothing
	require.Equal(t, Census{Ended: 1, Relinquished: 1}, w.Census())
	m := w.Meters()
	require.EqualValues(t, 2, m.Granted.Load())
	require.EqualValues(t, 1, m.Renewed.Load())
	require.EqualValues(t, 1, m.Relinquished.Load())
	require.EqualValues(t, 4, m.Store.Snapshot().Count)
}
