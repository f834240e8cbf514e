package authority

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"coordinator/frames"
	"coordinator/internal/clock"
)

var origin = clock.Reading{Wall: time.Unix(1_800_000_000, 0), Boot: time.Hour}

// at is the pair of clocks d after the origin, with the wall clock off by wall.
func at(d, wall time.Duration) clock.Reading {
	return clock.Reading{Wall: origin.Wall.Add(d + wall), Boot: origin.Boot + d}
}

func testCertificate(issued, secs uint64) frames.Certificate {
	return frames.Certificate{
		WitnessID: frames.WitnessID{1}, CoordinatorID: testCoordinator, Activation: 7, Epoch: 9,
		IncarnationID: frames.IncarnationID{3}, Token: [32]byte{4}, WitnessKeyID: [32]byte{5},
		IssuedAt: issued, ExpiresAt: issued + secs,
	}
}

var testCoordinator = frames.CoordinatorID{2}

func newTestLease(t testing.TB, secs uint64) *Lease {
	t.Helper()
	l, err := NewLease(testCertificate(uint64(origin.Wall.Unix()), secs), origin)
	require.NoError(t, err)
	return l
}

func TestLeaseDeadlineIsTwoSecondsBeforeItsEnd(t *testing.T) {
	for _, tt := range []struct {
		name string
		secs uint64
		when time.Duration
		pass bool
	}{
		{"at once", 15, 0, true},
		{"a moment before the deadline", 15, 13*time.Second - 1, true},
		{"at the deadline", 15, 13 * time.Second, false},
		{"long after", 15, time.Hour, false},
		{"shortest lease", 6, 4*time.Second - 1, true},
		{"shortest lease over", 6, 4 * time.Second, false},
		{"lease of no use", 2, 0, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := newTestLease(t, tt.secs).Check(at(tt.when, 0))
			if tt.pass {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, ErrFenced)
				require.ErrorIs(t, err, ErrLeaseEnded)
			}
		})
	}
}

func TestLeaseCountsFromTheRequestNotFromItsAnswer(t *testing.T) {
	l := newTestLease(t, 15)
	cert := testCertificate(uint64(origin.Wall.Unix())+9, 15)
	require.NoError(t, l.Renewed(cert, at(5*time.Second, 0), at(9*time.Second, 0)))
	require.Equal(t, origin.Boot+18*time.Second, l.Deadline())
	require.Equal(t, origin.Boot+10*time.Second, l.RenewAt())
	require.NoError(t, l.Check(at(18*time.Second-1, 0)))
	require.ErrorIs(t, l.Check(at(18*time.Second, 0)), ErrFenced)
}

func TestC05_FencedLeaseStaysFenced(t *testing.T) {
	l := newTestLease(t, 15)
	require.ErrorIs(t, l.Check(at(13*time.Second, 0)), ErrFenced)
	require.ErrorIs(t, l.Check(at(0, 0)), ErrFenced, "an earlier reading opens nothing")
	err := l.Renewed(testCertificate(uint64(origin.Wall.Unix())+13, 15), at(13*time.Second, 0), at(13*time.Second, 0))
	require.ErrorIs(t, err, ErrFenced)
	require.ErrorIs(t, l.Check(at(13*time.Second, 0)), ErrFenced)
}

func TestC05_AnswerAfterTheDeadlineIsTooLate(t *testing.T) {
	l := newTestLease(t, 15)
	cert := testCertificate(uint64(origin.Wall.Unix())+12, 15)
	require.ErrorIs(t, l.Renewed(cert, at(12*time.Second, 0), at(13*time.Second, 0)), ErrFenced)
}

func TestLeaseDivergence(t *testing.T) {
	const s = time.Second
	renewed := func(l *Lease, sent, now clock.Reading) error {
		return l.Renewed(testCertificate(uint64(sent.Wall.Unix()), 15), sent, now)
	}
	t.Run("two seconds are allowed", func(t *testing.T) {
		l := newTestLease(t, 15)
		require.NoError(t, l.Check(at(s, 2*s)))
		require.NoError(t, l.Check(at(s, -2*s)))
	})
	for name, step := range map[string]time.Duration{"forwards": 2*s + 1, "backwards": -2*s - 1, "by years": 9e16} {
		t.Run("step "+name, func(t *testing.T) {
			l := newTestLease(t, 15)
			require.ErrorIs(t, l.Check(at(s, step)), ErrDiverged)
			require.Less(t, l.RenewAt(), origin.Boot, "a renewal is due at once")
			require.ErrorIs(t, l.Check(at(2*s, 0)), ErrDiverged, "stepping back proves nothing")
			require.NoError(t, renewed(l, at(3*s, 0), at(4*s, 0)))
			require.NoError(t, l.Check(at(4*s, 0)))
		})
		t.Run("step that stays "+name, func(t *testing.T) {
			l := newTestLease(t, 15)
			require.ErrorIs(t, l.Check(at(s, step)), ErrDiverged)
			sent := at(2*s, step)
			require.ErrorIs(t, l.Check(at(3*s, step)), ErrDiverged)
			require.NoError(t, renewed(l, sent, at(4*s, step)))
			require.NoError(t, l.Check(at(4*s, step)))
		})
		t.Run("unseen step "+name, func(t *testing.T) {
			l := newTestLease(t, 15)
			require.NoError(t, renewed(l, at(5*s, step), at(6*s, step)), "sent after it, so it never mattered")
			require.NoError(t, l.Check(at(6*s, step)))
		})
	}
	t.Run("a renewal sent before does not count", func(t *testing.T) {
		l := newTestLease(t, 15)
		sent := at(5*s, 0)
		require.ErrorIs(t, l.Check(at(6*s, 10*s)), ErrDiverged)
		require.NoError(t, renewed(l, sent, at(7*s, 10*s)))
		require.ErrorIs(t, l.Check(at(7*s, 10*s)), ErrDiverged)
	})
	t.Run("nor one that shows it only by its answer", func(t *testing.T) {
		l := newTestLease(t, 15)
		require.NoError(t, renewed(l, at(5*s, 0), at(7*s, 10*s)))
		require.ErrorIs(t, l.Check(at(7*s, 10*s)), ErrDiverged)
	})
	t.Run("a second step in flight is not forgiven", func(t *testing.T) {
		l := newTestLease(t, 15)
		require.ErrorIs(t, l.Check(at(s, 10*s)), ErrDiverged)
		sent := at(2*s, 10*s)
		require.ErrorIs(t, l.Check(at(3*s, 20*s)), ErrDiverged)
		require.ErrorIs(t, l.Check(at(4*s, 10*s)), ErrDiverged)
		require.NoError(t, renewed(l, sent, at(5*s, 10*s)))
		require.ErrorIs(t, l.Check(at(5*s, 10*s)), ErrDiverged)
		require.NoError(t, renewed(l, at(6*s, 10*s), at(7*s, 10*s)))
		require.NoError(t, l.Check(at(7*s, 10*s)))
	})
	t.Run("the deadline goes on meanwhile", func(t *testing.T) {
		l := newTestLease(t, 15)
		require.ErrorIs(t, l.Check(at(s, time.Hour)), ErrDiverged)
		require.ErrorIs(t, l.Check(at(13*s, time.Hour)), ErrFenced)
	})
	t.Run("the wall clock alone ends nothing", func(t *testing.T) {
		l := newTestLease(t, 15)
		err := l.Check(at(s, 100*time.Hour))
		require.ErrorIs(t, err, ErrDiverged)
		require.NotErrorIs(t, err, ErrFenced)
	})
}

func TestRenewalOfAnotherAuthorityIsNotTaken(t *testing.T) {
	for name, change := range map[string]func(*frames.Certificate){
		"witness":     func(c *frames.Certificate) { c.WitnessID[0]++ },
		"witness key": func(c *frames.Certificate) { c.WitnessKeyID[0]++ },
		"coordinator": func(c *frames.Certificate) { c.CoordinatorID[0]++ },
		"epoch":       func(c *frames.Certificate) { c.Epoch++ },
		"activation":  func(c *frames.Certificate) { c.Activation++ },
		"incarnation": func(c *frames.Certificate) { c.IncarnationID[0]++ },
		"token":       func(c *frames.Certificate) { c.Token[0]++ },
		"no life":     func(c *frames.Certificate) { c.ExpiresAt = c.IssuedAt },
		"long life":   func(c *frames.Certificate) { c.ExpiresAt = c.IssuedAt + 61 },
		"ends first":  func(c *frames.Certificate) { c.ExpiresAt = c.IssuedAt - 1 },
	} {
		t.Run(name, func(t *testing.T) {
			l := newTestLease(t, 15)
			cert := testCertificate(uint64(origin.Wall.Unix())+5, 15)
			change(&cert)
			require.Error(t, l.Renewed(cert, at(5*time.Second, 0), at(5*time.Second, 0)))
			require.Equal(t, origin.Boot+13*time.Second, l.Deadline(), "nothing was taken over")
			require.NoError(t, l.Check(at(6*time.Second, 0)))
		})
	}
}

// TestLeaseAgainstAModelOfTime compares the lease with what the two clocks and the witness
// really did: passing is allowed only inside the newest answered request's life, and never
// between a divergence that was seen and the answer to a request sent afterwards.
func TestLeaseAgainstAModelOfTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		secs := rapid.Uint64Range(6, 60).Draw(t, "lease")
		lease, err := NewLease(testCertificate(uint64(origin.Wall.Unix()), secs), origin)
		if err != nil {
			t.Fatal(err)
		}
		var (
			now      = origin
			end      = origin.Boot + time.Duration(secs)*time.Second // of what the witness granted
			offset   time.Duration                                   // wall against boot, now
			counted  time.Duration                                   // that offset in the pair that counts
			dead     bool
			tainted  bool          // a divergence was seen and no later request was answered
			seen     time.Duration // offset when it was seen last
			seenAt   time.Duration // boot reading then
			inFlight *clock.Reading
			flightOf time.Duration // offset when it was sent
		)
		far := func(d time.Duration) bool { return d > 2*time.Second || d < -2*time.Second }
		look := func() error {
			dead = dead || now.Boot >= end-2*time.Second
			if !dead && (!tainted && far(offset-counted) || tainted && far(offset-seen)) {
				tainted, seen, seenAt = true, offset, now.Boot
			}
			switch {
			case dead:
				return ErrFenced
			case tainted:
				return ErrDiverged
			}
			return nil
		}
		t.Repeat(map[string]func(*rapid.T){
			"advance": func(t *rapid.T) {
				d := time.Duration(rapid.Int64Range(0, 9_000).Draw(t, "ms")) * time.Millisecond
				now = clock.Reading{Wall: now.Wall.Add(d), Boot: now.Boot + d}
			},
			"step": func(t *rapid.T) {
				d := time.Duration(rapid.Int64Range(-5_000, 5_000).Draw(t, "ms")) * time.Millisecond
				offset += d
				now.Wall = now.Wall.Add(d)
			},
			"send": func(*rapid.T) {
				sent := now
				inFlight, flightOf = &sent, offset
			},
			"answer": func(t *rapid.T) {
				if inFlight == nil {
					t.Skip()
				}
				dead = dead || now.Boot >= end-2*time.Second
				err := lease.Renewed(testCertificate(uint64(inFlight.Wall.Unix()), secs), *inFlight, now)
				if !dead {
					end, counted = inFlight.Boot+time.Duration(secs)*time.Second, flightOf
					tainted = tainted && inFlight.Boot < seenAt
					dead = now.Boot >= end-2*time.Second
				}
				if fenced := errors.Is(err, ErrFenced); fenced != dead || err != nil && !fenced {
					t.Fatalf("Renewed: %v, model says fenced: %v", err, dead)
				}
				inFlight = nil
			},
			"check": func(t *rapid.T) {
				want := look()
				if err := lease.Check(now); !errors.Is(err, want) || want == nil && err != nil {
					t.Fatalf("Check at %v (off by %v): %v, model says %v", now.Boot-origin.Boot, offset, err, want)
				}
			},
		})
	})
}
