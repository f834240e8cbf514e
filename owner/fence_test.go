//go:build linux

package owner

import (
	"context"
	"testing"
	"time"

	"coordinator/frames"
	"coordinator/internal/clock"

	"github.com/stretchr/testify/require"
)

// slowHolder is a connection whose end a test decides.
type slowHolder struct{ told, done chan struct{} }

func newSlowHolder() *slowHolder { return &slowHolder{make(chan struct{}), make(chan struct{})} }

func (h *slowHolder) fenced()               { close(h.told) }
func (h *slowHolder) Done() <-chan struct{} { return h.done }

// claimOf is the authority of an epoch.
func (s *station) claimOf(epoch uint64) *claim {
	now := s.clk.Now()
	cert := certificate(s.t, now, coordA, epoch)
	return newClaim(&cert, now)
}

// While a higher authority is being taken nothing is admitted: not of the lower one, whose
// connections are ending, and not of the higher one, which is not journaled yet.
func TestNothingIsAdmittedWhileAnAuthorityIsTaken(t *testing.T) {
	s := newStation(t, func(o *Options) { o.launch = newFakeLauncher() })
	low, high := s.claimOf(1), s.claimOf(2)
	h := newSlowHolder()
	require.NoError(t, s.o.claimAuthority(t.Context(), h, low))
	require.NoError(t, s.o.admitted(low))
	taken := make(chan error, 1)
	go func() { taken <- s.o.claimAuthority(context.Background(), nobody{}, high) }()
	<-h.told
	id := newID[frames.EffectAttemptID](t)
	for _, cl := range []*claim{low, high} {
		require.ErrorIs(t, s.o.admitted(cl), errFenced)
		_, err := s.o.lookUp(t.Context(), cl, id, [32]byte{1})
		require.ErrorIs(t, err, errFenced)
	}
	require.Never(t, func() bool { return len(taken) > 0 }, 50*time.Millisecond, 5*time.Millisecond, "the lower connection lasts")
	close(h.done)
	require.NoError(t, <-taken)
	require.ErrorIs(t, s.o.ackFacts(low, newID[frames.BindingID](t), 0), errFenced)
	require.ErrorIs(t, s.o.admitted(low), errFenced)
	require.NoError(t, s.o.admitted(high))
}

// A taking that is given up leaves the lower authority in force.
func TestAuthorityThatIsNotTakenChangesNothing(t *testing.T) {
	s := newStation(t, func(o *Options) { o.launch = newFakeLauncher() })
	low := s.claimOf(1)
	h := newSlowHolder()
	require.NoError(t, s.o.claimAuthority(t.Context(), h, low))
	ctx, cancel := context.WithCancel(t.Context())
	taken := make(chan error, 1)
	go func() { taken <- s.o.claimAuthority(ctx, nobody{}, s.claimOf(2)) }()
	<-h.told
	cancel()
	require.ErrorIs(t, <-taken, context.Canceled)
	require.NoError(t, s.o.admitted(low))
}

// What another coordinator has in hand keeps nobody waiting.
func TestTakeoverWaitsForItsOwnEffectsAlone(t *testing.T) {
	gate := make(chan struct{})
	fake := newFakeLauncher()
	fake.beforeHold = func() { <-gate }
	s := newStation(t, func(o *Options) { o.launch = fake })
	a := s.coordinator(1)
	effect := a.newSpawn(&Document{Argv: []string{"x"}})
	dispatched := make(chan Result, 1)
	go func() {
		r, err := a.Dispatch(context.Background(), a.guard(), effect)
		if err != nil {
			t.Error(err)
		}
		dispatched <- r
	}()
	a.eventually("the hold", func() bool { return fake.holds.Load() == 1 })
	for epoch := range uint64(2) {
		b := s.dial(linkKeyB, coordB, ScopeAll)
		b.show(certificate(t, s.clk.Now(), coordB, epoch+1))
	}
	close(gate)
	require.Equal(t, frames.EffectSucceeded, (<-dispatched).State)
}

// The clocks go on while an authority is being taken: one that has run out by then is refused,
// and nothing of it stays.
func TestAuthorityThatRunsOutWhileItIsTaken(t *testing.T) {
	clk := clock.NewManual(clock.System().Now())
	s := newStation(t, func(o *Options) { o.launch, o.Clock = newFakeLauncher(), clk })
	h := newSlowHolder()
	require.NoError(t, s.o.claimAuthority(t.Context(), h, s.claimOf(1)))
	high := s.claimOf(2)
	taken := make(chan error, 1)
	go func() { taken <- s.o.claimAuthority(context.Background(), nobody{}, high) }()
	<-h.told
	clk.Advance(60 * time.Second)
	close(h.done)
	require.Equal(t, frames.CodeStaleAuthority, frames.CodeOf(<-taken))
	require.NoError(t, s.o.claimAuthority(t.Context(), nobody{}, s.claimOf(1)), "the lower one is still the highest")
}

// Both clocks bound a certificate, and an older one takes nothing back.
func TestClaimsEndByEitherClock(t *testing.T) {
	clk := clock.NewManual(clock.System().Now())
	cert := certificate(t, clk.Now(), coordA, 1)
	cl := newClaim(&cert, clk.Now())
	require.True(t, cl.valid(clk.Now()))
	clk.StepWall(61 * time.Second)
	require.False(t, cl.valid(clk.Now()), "the wall clock says that it has run out")
	clk.StepWall(-61 * time.Second)
	clk.Advance(59 * time.Second)
	require.True(t, cl.valid(clk.Now()))
	older := cert
	older.ExpiresAt -= 30
	cl.extend(&older, clk.Now())
	require.True(t, cl.valid(clk.Now()))
	clk.StepWall(-time.Hour)
	clk.Advance(time.Second)
	require.False(t, cl.valid(clk.Now()), "BOOTTIME says so")
}
