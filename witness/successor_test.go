package witness

import (
	"crypto/rand"
	"io/fs"
	"math"
	"testing"
	"time"

	"coordinator/frames"
	"coordinator/internal/clock"

	"github.com/stretchr/testify/require"
)

// TestC05_ASuccessorGrantsNothingEarlyOrLow: whatever the lost witness granted last is over
// before its successor grants anything, and that is above it.
func TestC05_ASuccessorGrantsNothingEarlyOrLow(t *testing.T) {
	clk := startClock()
	dir := privateDir(t)
	require.NoError(t, CreateSuccessor(dir, testWitness, Predecessor{coordA, 7, 9}, bootOne, clk.Now(), rand.Reader))
	w := openWitness(t, dir, options(clk, bootOne))
	s, err := w.Status(coordA)
	require.NoError(t, err)
	require.Equal(t, Status{LastEpoch: 7, Activation: 9, LeaseRemaining: MaxLeaseSecs * time.Second}, s)
	_, err = w.Activate(holderA, coordA, 7, incA, 15)
	requireCode(t, frames.CodeStaleAuthority, err)
	_, err = w.Activate(holderA, coordA, 8, incA, 15)
	requireCode(t, frames.CodeResourceExhausted, err)
	_, err = w.Renew(coordA, 7, 9, frames.IncarnationID{}, [32]byte{}, 15)
	requireCode(t, frames.CodeStaleAuthority, err)

	clk.Advance(MaxLeaseSecs*time.Second - time.Millisecond)
	_, err = w.Activate(holderA, coordA, 8, incA, 15)
	requireCode(t, frames.CodeResourceExhausted, err)
	clk.Advance(time.Millisecond)
	cert, err := w.Activate(holderA, coordA, 8, incA, 15)
	require.NoError(t, err)
	require.Equal(t, frames.AuthorityEpoch(8), cert.Epoch)
	require.Equal(t, frames.ActivationSequence(10), cert.Activation)

	// Another coordinator begins as anywhere.
	other, err := w.Activate(holderB, coordB, 1, incB, 15)
	require.NoError(t, err)
	require.Equal(t, frames.ActivationSequence(1), other.Activation)
}

func TestCreateSuccessorRefuses(t *testing.T) {
	dir := privateDir(t)
	for _, p := range []Predecessor{
		{frames.CoordinatorID{}, 1, 1}, {coordA, 0, 1}, {coordA, 1, 0}, {coordA, math.MaxUint64, 1}, {coordA, 1, math.MaxUint64},
	} {
		require.Error(t, CreateSuccessor(dir, testWitness, p, bootOne, clock.Reading{}, rand.Reader))
	}
	require.Error(t, CreateSuccessor(dir, frames.WitnessID{}, Predecessor{coordA, 1, 1}, bootOne, clock.Reading{}, rand.Reader))
	require.NoError(t, Create(dir, testWitness))
	require.ErrorIs(t, CreateSuccessor(dir, testWitness, Predecessor{coordA, 1, 1}, bootOne, clock.Reading{}, rand.Reader), fs.ErrExist)
}
