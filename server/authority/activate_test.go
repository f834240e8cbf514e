package authority

import (
	"context"
	"crypto/rand"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
	"coordinator/internal/clock"
	"coordinator/witness"
)

// start is one activation attempt in a bubble, with its progress lines.
func start(t *testing.T, w *fakeWitness, change func(*ActivateOptions)) (*Activation, []string, error) {
	t.Helper()
	var mu sync.Mutex
	var said []string
	o := ActivateOptions{
		Authority: w, Clock: w.clk, Rand: rand.Reader, CoordinatorID: testCoordinator, LeaseSeconds: 6,
		Progress: func(s string) { mu.Lock(); defer mu.Unlock(); said = append(said, s) },
	}
	if change != nil {
		change(&o)
	}
	a, err := Activate(t.Context(), o)
	return a, said, err
}

func bubble(t *testing.T, f func(t *testing.T, w *fakeWitness)) {
	synctest.Test(t, func(t *testing.T) { f(t, newFakeWitness(clock.Runtime())) })
}

func TestActivateChoosesAnEpochAboveStoreAndWitness(t *testing.T) {
	for _, tt := range []struct {
		name           string
		store, witness frames.AuthorityEpoch
		want           frames.AuthorityEpoch
	}{
		{"both new", 0, 0, 1},
		{"witness ahead, a grant was lost", 3, 8, 9},
		{"equal", 4, 4, 5},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *fakeWitness) {
				w.epoch, w.activation = tt.witness, frames.ActivationSequence(tt.witness)
				a, _, err := start(t, w, func(o *ActivateOptions) {
					o.Epoch, o.Activation = tt.store, frames.ActivationSequence(tt.store)
				})
				require.NoError(t, err)
				require.Equal(t, tt.want, a.Certificate.Epoch)
				require.NotZero(t, a.Certificate.IncarnationID)
			})
		})
	}
}

func TestC06_EachActivationHasANewIncarnation(t *testing.T) {
	bubble(t, func(t *testing.T, w *fakeWitness) {
		a, _, err := start(t, w, nil)
		require.NoError(t, err)
		w.set(func() { w.live = false })
		b, _, err := start(t, w, func(o *ActivateOptions) {
			o.Epoch, o.Activation = a.Certificate.Epoch, a.Certificate.Activation
		})
		require.NoError(t, err)
		require.Greater(t, b.Certificate.Epoch, a.Certificate.Epoch)
		require.Greater(t, b.Certificate.Activation, a.Certificate.Activation)
		require.NotEqual(t, a.Certificate.IncarnationID, b.Certificate.IncarnationID)
	})
}

func TestC05_LiveLeaseIsWaitedForWhileItFalls(t *testing.T) {
	bubble(t, func(t *testing.T, w *fakeWitness) {
		_, _, err := start(t, w, func(o *ActivateOptions) { o.LeaseSeconds = 15 })
		require.NoError(t, err)
		began := w.clk.Now().Boot
		a, said, err := start(t, w, nil)
		require.NoError(t, err)
		require.GreaterOrEqual(t, w.clk.Now().Boot-began, 15*time.Second, "the old lease ran out first")
		require.EqualValues(t, 2, a.Certificate.Activation)
		require.NotEmpty(t, said)
		require.Contains(t, said[0], "activation 1 at epoch 1")
	})
}

// scripted answers each status from a list and then says that the lease is gone.
func scripted(w *fakeWitness, list []witness.Status) {
	n := 0
	w.status = func() (witness.Status, error) {
		if n < len(list) {
			n++
			return list[n-1], nil
		}
		return witness.Status{LastEpoch: w.epoch, Activation: w.activation}, nil
	}
}

func remaining(act frames.ActivationSequence, secs ...int) []witness.Status {
	var out []witness.Status
	for _, s := range secs {
		out = append(out, witness.Status{LastEpoch: 40 + frames.AuthorityEpoch(act), Activation: act, LeaseRemaining: time.Duration(s) * time.Second})
	}
	return out
}

func TestC05_RenewedLeaseEndsTheWaitAfterThreeRises(t *testing.T) {
	for _, tt := range []struct {
		name string
		list []witness.Status
		held frames.ActivationSequence // zero: activates in the end
	}{
		{"three rises", remaining(5, 6, 5, 6, 5, 6, 5, 6), 5},
		{"two rises, then it runs out", remaining(5, 6, 5, 6, 5, 6, 5, 4, 3, 2, 1), 0},
		{"a lease that only falls", remaining(5, 6, 6, 5, 5, 4, 3, 2, 1), 0},
		{"another activation restarts the count", append(remaining(5, 6, 5, 6, 5, 6), remaining(6, 15, 14, 15, 14, 15, 14, 1)...), 0},
		{"and is named when it is the one", append(remaining(5, 6, 5, 6, 5, 6), remaining(6, 1, 2, 3, 4)...), 6},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *fakeWitness) {
				w.epoch, w.activation = 50, 6
				scripted(w, tt.list)
				_, said, err := start(t, w, nil)
				if tt.held == 0 {
					require.NoError(t, err)
					return
				}
				var held *LeaseHeldError
				require.ErrorAs(t, err, &held)
				require.Equal(t, tt.held, held.Activation)
				require.Equal(t, 40+frames.AuthorityEpoch(tt.held), held.Epoch)
				require.Contains(t, strings.Join(said, "\n"), "rose to")
				require.Zero(t, w.count("activate"), "it asked for nothing meanwhile")
			})
		})
	}
}

func TestC05_RolledBackWitnessIsRefused(t *testing.T) {
	t.Run("seen in its status", func(t *testing.T) {
		bubble(t, func(t *testing.T, w *fakeWitness) {
			w.epoch, w.activation = 7, 3
			_, _, err := start(t, w, func(o *ActivateOptions) { o.Epoch, o.Activation = 7, 4 })
			var back *RolledBackError
			require.ErrorAs(t, err, &back)
			require.EqualValues(t, 4, back.StoreActivation)
			require.EqualValues(t, 3, back.WitnessActivation)
			require.Zero(t, w.count("activate"), "it took no lease")
		})
	})
	t.Run("seen in the certificate alone", func(t *testing.T) {
		bubble(t, func(t *testing.T, w *fakeWitness) {
			w.epoch, w.activation = 7, 4
			w.change = func(c *frames.Certificate) { c.Activation = 4 }
			_, _, err := start(t, w, func(o *ActivateOptions) { o.Epoch, o.Activation = 7, 4 })
			var back *RolledBackError
			require.ErrorAs(t, err, &back)
		})
	})
	t.Run("empty witness behind a used store", func(t *testing.T) {
		bubble(t, func(t *testing.T, w *fakeWitness) {
			_, _, err := start(t, w, func(o *ActivateOptions) { o.Epoch, o.Activation = 1, 1 })
			var back *RolledBackError
			require.ErrorAs(t, err, &back)
		})
	})
}

func TestActivateWithoutAnswers(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fault func(w *fakeWitness)
		calls int
	}{
		{"down", func(w *fakeWitness) { w.err = errNetwork }, maxUnanswered},
		{"accepts and never answers", func(w *fakeWitness) { w.hang = true }, maxUnanswered},
		{"another key", func(w *fakeWitness) { w.err = witness.ErrImpostor }, 1},
		{"refuses our key", func(w *fakeWitness) { w.err = &witness.RefusedError{Code: frames.CodeAuthenticationFailed} }, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *fakeWitness) {
				tt.fault(w)
				_, _, err := start(t, w, nil)
				require.ErrorIs(t, err, ErrWitnessUnavailable)
				require.Equal(t, tt.calls, w.count("status"))
			})
		})
	}
}

func TestActivateOutlivesAWitnessRestart(t *testing.T) {
	bubble(t, func(t *testing.T, w *fakeWitness) {
		w.err = errNetwork
		go func() {
			time.Sleep(700 * time.Millisecond)
			w.set(func() { w.err = nil })
		}()
		a, _, err := start(t, w, nil)
		require.NoError(t, err)
		require.EqualValues(t, 1, a.Certificate.Activation)
	})
}

func TestActivateStartsOverAfterALateCertificate(t *testing.T) {
	bubble(t, func(t *testing.T, w *fakeWitness) {
		w.delay = 4 * time.Second // the deadline of a lease of 6 s
		go func() {
			time.Sleep(4500 * time.Millisecond)
			w.set(func() { w.delay = 0 })
		}()
		a, said, err := start(t, w, nil)
		require.NoError(t, err)
		require.Contains(t, strings.Join(said, "\n"), "starting over")
		require.EqualValues(t, 2, a.Certificate.Activation, "the first grant was not used")
	})
}

func TestActivateStartsOverAfterALostRace(t *testing.T) {
	bubble(t, func(t *testing.T, w *fakeWitness) {
		w.epoch, w.activation = 9, 9
		stale := []witness.Status{{LastEpoch: 3, Activation: 3}}
		scripted(w, stale)
		a, said, err := start(t, w, nil)
		require.NoError(t, err)
		require.EqualValues(t, 10, a.Certificate.Epoch)
		require.Contains(t, strings.Join(said, "\n"), "starting over")
	})
}

func TestActivateGivesUpOnAWitnessThatAlwaysRefuses(t *testing.T) {
	bubble(t, func(t *testing.T, w *fakeWitness) {
		w.epoch, w.activation = 9, 9
		w.status = func() (witness.Status, error) { return witness.Status{}, nil }
		_, _, err := start(t, w, nil)
		require.ErrorIs(t, err, ErrWitnessUnavailable)
		require.Equal(t, maxRestarts, w.count("activate"))
	})
}

func TestActivateRefusesACertificateThatItDidNotAskFor(t *testing.T) {
	for name, change := range map[string]func(*frames.Certificate){
		"coordinator": func(c *frames.Certificate) { c.CoordinatorID[0]++ },
		"incarnation": func(c *frames.Certificate) { c.IncarnationID[0]++ },
		"epoch":       func(c *frames.Certificate) { c.Epoch++ },
		"no life":     func(c *frames.Certificate) { c.ExpiresAt = c.IssuedAt },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *fakeWitness) {
				w.change = change
				_, _, err := start(t, w, nil)
				require.ErrorIs(t, err, ErrWitnessUnavailable)
			})
		})
	}
}

func TestActivateEndsWithItsContext(t *testing.T) {
	bubble(t, func(t *testing.T, w *fakeWitness) {
		_, _, err := start(t, w, func(o *ActivateOptions) { o.LeaseSeconds = 60 })
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		_, err = Activate(ctx, ActivateOptions{Authority: w, Clock: w.clk, Rand: rand.Reader, CoordinatorID: testCoordinator})
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

func TestActivateRefusesALeaseOutOfRange(t *testing.T) {
	w := newFakeWitness(clock.Runtime())
	for _, secs := range []uint16{1, 5, 61} {
		_, _, err := start(t, w, func(o *ActivateOptions) { o.LeaseSeconds = secs })
		require.Error(t, err)
	}
	require.Zero(t, w.count("status"))
}
