package authority

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
	"coordinator/internal/clock"
	"coordinator/witness"
)

// kept is a running keeper in a bubble.
type kept struct {
	clk    *shifted
	w      *fakeWitness
	fence  *Fence
	keeper *Keeper
	lock   *goodLock
	done   chan error // result of Run

	mu      sync.Mutex
	renewed []frames.Certificate
}

// keep runs f beside a keeper with a lease of 15 s, from the moment of its activation.
func keep(t *testing.T, f func(t *testing.T, k *kept)) {
	synctest.Test(t, func(t *testing.T) {
		k := &kept{clk: &shifted{Clock: clock.Runtime()}, lock: &goodLock{}, done: make(chan error, 1)}
		k.w = newFakeWitness(k.clk)
		a, _, err := start(t, k.w, func(o *ActivateOptions) { o.LeaseSeconds = 15 })
		require.NoError(t, err)
		k.fence = NewFence(a, k.clk)
		k.keeper = NewKeeper(KeeperOptions{
			Fence: k.fence, Authority: k.w, Clock: k.clk, Lock: k.lock,
			OnRenewed: func(c frames.Certificate) {
				k.mu.Lock()
				defer k.mu.Unlock()
				k.renewed = append(k.renewed, c)
			},
		})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { k.done <- k.keeper.Run(ctx) })
		synctest.Wait()
		defer running.Wait()
		defer cancel()
		f(t, k)
	})
}

func (k *kept) certificates() []frames.Certificate {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.renewed
}

// after lets d pass in the bubble and everything that it wakes settle.
func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestKeeperRenewsAtAThird(t *testing.T) {
	keep(t, func(t *testing.T, k *kept) {
		after(5*time.Second - 1)
		require.Zero(t, k.w.count("renew"))
		first := k.fence.Changed()
		after(1)
		require.Equal(t, 1, k.w.count("renew"))
		select {
		case <-first:
		default:
			t.Error("the renewal did not announce itself")
		}
		after(time.Hour)
		require.NoError(t, k.fence.Check())
		require.Equal(t, 1+720, k.w.count("renew"))
		certs := k.certificates()
		require.Len(t, certs, 1+720)
		for i := 1; i < len(certs); i++ {
			require.Greater(t, certs[i].ExpiresAt, certs[i-1].ExpiresAt)
		}
		require.Equal(t, certs[len(certs)-1], k.fence.Current())
		require.Equal(t, certs[0].Guard(), k.fence.Guard())
	})
}

// The witness is behind silent loss: it accepts and never answers.
func TestC05_SilentWitnessFencesAtTheDeadline(t *testing.T) {
	keep(t, func(t *testing.T, k *kept) {
		after(5 * time.Second) // renewed: the lease counts from here
		k.w.set(func() { k.w.hang = true })
		after(13*time.Second - 1)
		require.NoError(t, k.fence.Check())
		require.Greater(t, k.w.count("renew"), 2, "it is asked again and again")
		after(1)
		require.ErrorIs(t, <-k.done, ErrLeaseEnded)
		require.ErrorIs(t, k.fence.Check(), ErrFenced)
		_, err := k.fence.Enter()
		require.ErrorIs(t, err, ErrFenced)
	})
}

func TestKeeperRecoversFromAFaultBeforeTheDeadline(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fault func(w *fakeWitness)
	}{
		{"silent", func(w *fakeWitness) { w.hang = true }},
		{"down", func(w *fakeWitness) { w.err = errNetwork }},
		{"busy", func(w *fakeWitness) { w.err = &witness.RefusedError{Code: frames.CodeResourceExhausted} }},
		{"another key", func(w *fakeWitness) { w.err = witness.ErrImpostor }},
		{"another lineage's certificate", func(w *fakeWitness) {
			w.change = func(c *frames.Certificate) { c.Token[0]++ }
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			keep(t, func(t *testing.T, k *kept) {
				k.w.set(func() { tt.fault(k.w) })
				after(11 * time.Second)
				require.NoError(t, k.fence.Check())
				require.Greater(t, k.w.count("renew"), 1)
				require.Empty(t, k.certificates())
				k.w.set(func() { k.w.hang, k.w.err, k.w.change = false, nil, nil })
				after(time.Minute)
				require.NoError(t, k.fence.Check())
			})
		})
	}
}

func TestC05_RefusedRenewalFencesAtOnce(t *testing.T) {
	keep(t, func(t *testing.T, k *kept) {
		k.w.set(func() { k.w.activation++ }) // somebody else holds the lease
		after(5 * time.Second)
		require.ErrorIs(t, <-k.done, ErrSuperseded)
		require.ErrorIs(t, k.fence.Check(), ErrFenced)
		require.Equal(t, 1, k.w.count("renew"))
	})
}

func TestC05_LostStoreLockFencesAtTheNextRenewal(t *testing.T) {
	keep(t, func(t *testing.T, k *kept) {
		k.lock.lose()
		after(5 * time.Second)
		require.ErrorIs(t, <-k.done, ErrLockLost)
		require.ErrorIs(t, k.fence.Check(), ErrFenced)
		require.Zero(t, k.w.count("renew"), "no renewal without the lock")
	})
}

func TestKeeperRenewsAtOnceWhenTheClocksDiverge(t *testing.T) {
	for name, seen := range map[string]bool{"seen by somebody": true, "while idle": false} {
		t.Run(name, func(t *testing.T) {
			keep(t, func(t *testing.T, k *kept) {
				after(time.Second)
				k.clk.stepWall(time.Hour)
				if seen {
					require.ErrorIs(t, k.fence.Check(), ErrDiverged)
					_, err := k.fence.Enter()
					require.ErrorIs(t, err, ErrDiverged)
					synctest.Wait()
				} else {
					after(watchEvery)
				}
				require.Equal(t, 1, k.w.count("renew"))
				require.NoError(t, k.fence.Check())
				after(time.Minute)
				require.NoError(t, k.fence.Check())
			})
		})
	}
}

func TestNothingPassesWhileTheClocksAreApartAndTheWitnessIsAway(t *testing.T) {
	keep(t, func(t *testing.T, k *kept) {
		k.w.set(func() { k.w.err = errNetwork })
		k.clk.stepWall(-time.Hour)
		for range 12 {
			after(time.Second)
			require.ErrorIs(t, k.fence.Check(), ErrDiverged)
		}
		after(time.Second)
		require.ErrorIs(t, <-k.done, ErrLeaseEnded)
		require.ErrorIs(t, k.fence.Check(), ErrFenced)
	})
}

// A process that was stopped past its lease finds its timers unfired and must not pass.
func TestC05_StoppedProcessThatWakesAfterItsLease(t *testing.T) {
	keep(t, func(t *testing.T, k *kept) {
		after(time.Second)
		leave, err := k.fence.Enter()
		require.NoError(t, err)
		k.clk.sleep(45 * time.Second)
		require.ErrorIs(t, k.fence.Check(), ErrFenced, "the work that had passed must not be acknowledged")
		leave()
		require.ErrorIs(t, <-k.done, ErrLeaseEnded)
		require.Zero(t, k.w.count("renew"), "and nothing is renewed")
		require.Error(t, k.keeper.Relinquish(t.Context()))
		require.Zero(t, k.w.count("relinquish"))
	})
}

func TestStopWaitsForWhatHadPassedAndThenRelinquishes(t *testing.T) {
	keep(t, func(t *testing.T, k *kept) {
		one, err := k.fence.Enter()
		require.NoError(t, err)
		two, err := k.fence.Enter()
		require.NoError(t, err)
		stopped := make(chan error, 1)
		go func() { stopped <- k.fence.Stop(t.Context()) }()
		synctest.Wait()
		_, err = k.fence.Enter()
		require.ErrorIs(t, err, ErrFenced, "nothing new passes")
		require.ErrorIs(t, err, ErrStopped)
		require.NoError(t, <-k.done, "a stop is no failure of the keeper")
		one()
		synctest.Wait()
		require.Empty(t, stopped)
		require.Error(t, k.keeper.Relinquish(t.Context()), "somebody is still inside")
		two()
		require.NoError(t, <-stopped)
		require.Zero(t, k.w.count("relinquish"))
		require.NoError(t, k.keeper.Relinquish(t.Context()))
		require.Equal(t, 1, k.w.spent)
	})
}

func TestStopThatEndsAfterTheDeadlineDoesNotRelinquish(t *testing.T) {
	keep(t, func(t *testing.T, k *kept) {
		leave, err := k.fence.Enter()
		require.NoError(t, err)
		began := k.clk.Now().Boot
		require.ErrorIs(t, k.fence.Stop(t.Context()), ErrLeaseEnded)
		require.Equal(t, 13*time.Second, k.clk.Now().Boot-began)
		leave()
		require.ErrorIs(t, k.keeper.Relinquish(t.Context()), ErrLeaseEnded)
		require.Zero(t, k.w.count("relinquish"))
	})
}

func TestStopEndsWithItsContext(t *testing.T) {
	keep(t, func(t *testing.T, k *kept) {
		leave, err := k.fence.Enter()
		require.NoError(t, err)
		defer leave()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, k.fence.Stop(ctx), context.DeadlineExceeded)
	})
}

func TestFencedByTheWitnessIsNeverRelinquished(t *testing.T) {
	keep(t, func(t *testing.T, k *kept) {
		k.w.set(func() { k.w.activation++ })
		after(5 * time.Second)
		require.Error(t, <-k.done)
		require.NoError(t, k.fence.Stop(t.Context()))
		require.Error(t, k.keeper.Relinquish(t.Context()))
		require.Zero(t, k.w.count("relinquish"))
	})
}

func TestSilentWitnessCannotHoldARelinquishPastTheDeadline(t *testing.T) {
	keep(t, func(t *testing.T, k *kept) {
		require.NoError(t, k.fence.Stop(t.Context()))
		k.w.set(func() { k.w.hang = true })
		require.Error(t, k.keeper.Relinquish(t.Context()))
		require.Equal(t, 13*time.Second, k.clk.Now().Boot)
	})
}

func TestCertificateThatDoesNotExpireLaterIsNotAnnounced(t *testing.T) {
	keep(t, func(t *testing.T, k *kept) {
		k.clk.stepWall(-time.Hour) // the next certificates carry earlier wall times
		after(2 * time.Second)
		require.NoError(t, k.fence.Check(), "the length counts, not the wall time")
		require.Empty(t, k.certificates())
		k.clk.stepWall(time.Hour + 10*time.Second)
		after(2 * time.Second)
		require.Len(t, k.certificates(), 1)
	})
}

func TestLeavingTwiceIsOurBug(t *testing.T) {
	keep(t, func(t *testing.T, k *kept) {
		leave, err := k.fence.Enter()
		require.NoError(t, err)
		leave()
		require.Panics(t, leave)
	})
}

func TestLockStoreExcludesASecond(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	require.NoError(t, os.Mkdir(dir, 0o700))
	first, err := LockStore(dir)
	require.NoError(t, err)
	_, err = LockStore(dir)
	require.Error(t, err)
	require.NoError(t, first.Release())
	second, err := LockStore(dir)
	require.NoError(t, err)
	require.NoError(t, second.Release())
}

// What became of the renewals is counted, and the keeper is seen to come round.
func TestRenewalsAreCounted(t *testing.T) {
	keep(t, func(t *testing.T, k *kept) {
		require.Equal(t, 13*time.Second, k.fence.Remaining())
		after(5 * time.Second)
		require.Equal(t, Renewals{Renewed: 1}, k.keeper.Renewals())
		require.Equal(t, 13*time.Second, k.fence.Remaining())
		require.Equal(t, k.clk.Now().Boot, k.keeper.Turned())
		k.w.set(func() { k.w.err = errNetwork })
		after(6 * time.Second)
		require.Less(t, k.clk.Now().Boot-k.keeper.Turned(), 2*watchEvery, "it comes round whatever the witness does")
		require.Positive(t, k.keeper.Renewals().Unanswered)
		k.w.set(func() { k.w.err, k.w.activation = nil, k.w.activation+1 })
		after(2 * time.Second)
		require.ErrorIs(t, <-k.done, ErrSuperseded)
		require.EqualValues(t, 1, k.keeper.Renewals().Refused)
		require.Zero(t, k.fence.Remaining(), "the certificate would last, but may not be used")
	})
}
