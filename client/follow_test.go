package client

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
)

// followed runs Follow against the model until its view has reached the model's head and
// the model has sent at least so many frames.
func followed(t *testing.T, w *world, m *model, frames int, opts FollowOptions, between func(n int, u Update)) *watcher {
	opts.Options = w.options(m.serve)
	opts.Offered = 0x0f // ADMIN records would ask for a snapshot under each authority [D-12]
	opts.Clock = &hasty{Manual: w.clock}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	v, n := newWatcher(t), 0
	for u, err := range Follow(ctx, w.pins, opts) {
		require.NoError(t, err)
		v.take(u)
		if n++; between != nil {
			between(n, u)
		}
		m.mu.Lock()
		behind := !v.current || v.last != m.headLocked()
		done := m.sent >= frames
		m.mu.Unlock()
		if !behind && done {
			break
		}
		if !behind {
			m.write()
		}
	}
	v.agrees(m)
	return v
}

// TestC13_FollowSurvivesEveryCut cuts the connection instead of the n-th frame, for every
// n until a run completes; then the same with half a frame, and with each kind of gap.
func TestC13_FollowSurvivesEveryCut(t *testing.T) {
	cut := func(c *modelConn) bool { panic(errScript) }
	faults := map[string]func(c *modelConn) bool{
		"cut": cut,
		"half a frame": func(c *modelConn) bool {
			c.nc.Write([]byte{0, 0, 0, 60, byte(frames.TypeCoordEvent), 1, 4, 16}) //nolint:errcheck // the client may have gone
			return cut(c)
		},
		"overflow then cut": func(c *modelConn) bool { c.gap(frames.GapQueueOverflow); return cut(c) },
		"fenced": func(c *modelConn) bool {
			c.m.restart()
			c.gap(frames.GapEpochChanged)
			c.send(&frames.CoordError{Code: frames.CodeAuthorityFenced})
			return cut(c)
		},
	}
	for _, reason := range []frames.GapReason{frames.GapQueueOverflow, frames.GapRetention, frames.GapSourceGap,
		frames.GapCursorInvalid, frames.GapRevisionMismatch, frames.GapInternal} {
		faults["gap "+reason.String()] = func(c *modelConn) bool { c.gap(reason); return false }
	}
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for at := 1; at < 60; at++ {
				w := newWorld(t)
				m := newModel(w)
				for range 4 {
					m.write()
				}
				m.fault = func(n int, c *modelConn) bool {
					if n > 3 && n < 30 && n%2 == 0 {
						m.write()
					}
					// The second one, a little later, meets whatever heals the first.
					return (n == at || n == at+5) && fault(c)
				}
				opts := FollowOptions{SubscribeOptions: SubscribeOptions{CreditCount: 3}, Wait: true}
				followed(t, w, m, 70, opts, nil)
				w.wg.Wait()
			}
		})
	}
}

// TestC13_ReplayOfRetentionAtItsEdges trims exactly at, before and after the view's cut.
func TestFollowAcrossRetention(t *testing.T) {
	for _, tt := range []struct {
		name   string
		beyond int // events behind the cut that are gone too
		synced int
	}{{"before the cut", -1, 1}, {"at the cut", 0, 1}, {"one after the cut", 1, 2}} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			m := newModel(w)
			for range 6 {
				m.write()
			}
			cut := false
			m.fault = func(n int, c *modelConn) bool {
				if n > 8 && !cut && len(c.subs) > 0 {
					cut = true
					m.mu.Lock()
					for i, e := range m.log {
						for _, s := range c.subs {
							if e.Sequence == frames.EventSequence(s.last) {
								m.kept = i + 1 + tt.beyond
							}
						}
					}
					m.mu.Unlock()
					panic(errScript)
				}
				return false
			}
			v := followed(t, w, m, 14, FollowOptions{}, func(n int, _ Update) {
				if n < 10 {
					m.write()
				}
			})
			require.True(t, cut)
			require.Equal(t, tt.synced, v.synced, "%v", v.gaps)
			require.Equal(t, tt.synced-1, v.gaps["RETENTION"])
		})
	}
}

func TestFollowUnderAHigherAuthority(t *testing.T) {
	w := newWorld(t)
	m := newModel(w)
	m.write()
	v := followed(t, w, m, 20, FollowOptions{}, func(n int, u Update) {
		if n < 12 {
			m.write()
		}
		if n == 5 {
			m.restart()
			m.drop()
		}
	})
	require.Equal(t, 1, v.synced, "what was missed comes as events")
	require.Equal(t, 1, v.healed, "%v", v.causes)
	require.Zero(t, v.lost)
}

// TestFollowNamesLostHistory restores a backup under the follower.
func TestFollowNamesLostHistory(t *testing.T) {
	w := newWorld(t)
	m := newModel(w)
	for range 10 {
		m.write()
	}
	restored := false
	v := followed(t, w, m, 24, FollowOptions{}, func(n int, u Update) {
		if n < 8 || restored && n < 14 {
			m.write()
		}
		if n == 8 {
			restored = true
			m.mu.Lock()
			m.log = m.log[:9]
			m.revs = map[byte]frames.ObjectRevision{}
			for _, e := range m.log {
				m.revs[e.Object.ID[1]] = e.Revision
			}
			m.mu.Unlock()
			m.restart()
			m.drop()
		}
	})
	require.Equal(t, 1, v.lost)
	require.Equal(t, 2, v.synced)
}

// TestFollowMeetsALowerAuthority is refused by it and goes on with the higher one.
func TestFollowMeetsALowerAuthority(t *testing.T) {
	w := newWorld(t)
	m := newModel(w)
	m.write()
	w.epoch, w.activation = 9, 9
	m.bases = []frames.ActivationBase{{Activation: 9}}
	incarnation := w.incarnation
	opts := FollowOptions{Options: w.options(m.serve)}
	h := &hasty{Manual: w.clock}
	opts.Clock = h
	h.each = func(n int) {
		if n == 4 { // the current one is back
			w.epoch, w.activation, w.incarnation = 9, 9, incarnation
			m.write()
		}
	}
	v := newWatcher(t)
	var lower *LowerAuthorityError
	for u, err := range Follow(t.Context(), w.pins, opts) {
		require.NoError(t, err)
		v.take(u)
		if _, ok := u.(*Synced); ok {
			w.epoch, w.activation, w.incarnation = 7, 7, id[frames.IncarnationID](t)
			m.drop()
		}
		if g, ok := u.(*Gap); ok && errors.As(g.Cause, &lower) {
			require.Equal(t, frames.AuthorityEpoch(7), lower.GotEpoch)
			require.Zero(t, v.last-g.Last)
		}
		if _, ok := u.(*Event); ok {
			break
		}
	}
	require.NotNil(t, lower)
	require.Equal(t, 1, v.synced)
	v.agrees(m)
}

// refuseKey answers a response like a coordinator that does not accept its key.
func refuseKey(stage string, p *peer) bool {
	if stage == "response" {
		p.send(&frames.CoordError{Code: frames.CodeAuthenticationFailed, Message: "authentication failed"})
	}
	return stage == "response"
}

// A grant that has ended, while its key is still accepted, costs a follower a connection.
func TestFollowOutlivesItsGrant(t *testing.T) {
	w := newWorld(t)
	m := newModel(w)
	m.write()
	opts := FollowOptions{Options: w.options(m.serve)}
	opts.Clock = &hasty{Manual: w.clock}
	v := newWatcher(t)
	for u, err := range Follow(t.Context(), w.pins, opts) {
		require.NoError(t, err)
		v.take(u)
		switch u.(type) {
		case *Synced:
			m.setFault(func(n int, c *modelConn) bool {
				m.setFault(nil)
				c.gap(frames.GapGrantRevoked)
				c.send(&frames.CoordError{Code: frames.CodeAuthenticationFailed})
				panic(errScript)
			})
			m.write()
			continue
		case *Healed:
			m.write()
			continue
		case *Event:
			if v.current && v.last == m.head() {
				require.NotEmpty(t, v.gaps, "the grant has ended")
				require.Equal(t, 1, v.synced, "and no snapshot was needed")
				v.agrees(m)
				return
			}
		}
	}
	t.Fatal("the follower ended without a word")
}

func TestFollowEndsWhereNoAttemptHelps(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(w *world, c *modelConn)
		want any
	}{
		{"revoked", func(w *world, c *modelConn) {
			w.instead = refuseKey
			c.gap(frames.GapGrantRevoked)
			c.send(&frames.CoordError{Code: frames.CodeAuthenticationFailed})
		}, new(*AuthenticationError)},
		{"another incarnation claims the same authority", func(w *world, c *modelConn) { w.incarnation = id[frames.IncarnationID](w.t) }, new(*QuarantineError)},
		{"another authority key", func(w *world, c *modelConn) { w.authority = key(w.t) }, new(*PeerError)},
		{"another witness", func(w *world, c *modelConn) { w.witness = key(w.t) }, new(*PeerError)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			m := newModel(w)
			m.write()
			opts := FollowOptions{Options: w.options(m.serve)}
			opts.Clock = &hasty{Manual: w.clock}
			v := newWatcher(t)
			var end error
			for u, err := range Follow(t.Context(), w.pins, opts) {
				if end = err; err != nil {
					break
				}
				v.take(u)
				if _, ok := u.(*Synced); ok {
					m.setFault(func(_ int, c *modelConn) bool { tt.do(w, c); panic(errScript) })
					m.write()
				}
			}
			require.ErrorAs(t, end, tt.want)
			require.False(t, v.current, "it ended without a gap told: %v", v.gaps)
		})
	}
}

func TestFollowThatNeverBegan(t *testing.T) {
	w := newWorld(t)
	w.instead = func(string, *peer) bool { return true }
	n := 0
	for u, err := range Follow(t.Context(), w.pins, FollowOptions{Options: w.options(nil)}) {
		require.Nil(t, u)
		require.ErrorIs(t, err, ErrDisconnected)
		n++
	}
	require.Equal(t, 1, n)
}

// TestFollowBacksOff meets a coordinator that accepts and cuts, over and over: the pauses
// grow to their cap, and begin anew only after a connection that served for a while.
func TestFollowBacksOff(t *testing.T) {
	w := newWorld(t)
	w.lease = 60
	m := newModel(w)
	m.write()
	m.fault = func(n int, c *modelConn) bool {
		if len(c.subs) > 0 && n%2 == 0 {
			panic(errScript)
		}
		return false
	}
	h := &hasty{Manual: w.clock}
	opts := FollowOptions{Options: w.options(m.serve), Backoff: Backoff{First: 100 * time.Millisecond, Max: 2 * time.Second}, Wait: true}
	opts.Clock = h
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	h.each = func(n int) {
		if n == 12 {
			cancel()
		}
	}
	for _, err := range Follow(ctx, w.pins, opts) {
		if err != nil {
			require.ErrorIs(t, err, context.Canceled)
		}
	}
	require.Len(t, h.paused, 12)
	want := 100 * time.Millisecond
	for i, got := range h.paused {
		require.LessOrEqual(t, got, want, "pause %d", i)
		require.GreaterOrEqual(t, got, want/2, "pause %d", i)
		want = min(2*want, 2*time.Second)
	}

	p := newPauses(opts.Backoff, &opts.Options)
	p.n = 9
	p.served(h.Now().Boot)
	require.Equal(t, 9, p.n, "a connection that was cut at once")
	since := h.Now().Boot
	w.clock.Advance(steadyAfter)
	p.served(since)
	require.Zero(t, p.n)
}

// TestFollowAConsumerThatBlocks holds up the caller for five seconds again and again,
// while certificates are renewed behind its back.
func TestFollowAConsumerThatBlocks(t *testing.T) {
	w := newWorld(t)
	w.lease = 60 // longer than the window of four events lets the clock run ahead of a renewal
	m := newModel(w)
	for range 3 {
		m.write()
	}
	v := followed(t, w, m, 40, FollowOptions{SubscribeOptions: SubscribeOptions{CreditCount: 4}}, func(n int, u Update) {
		if n > 30 {
			return
		}
		for range 3 {
			m.write()
		}
		w.clock.Advance(5 * time.Second)
		if n%2 == 0 {
			m.renew()
		}
	})
	require.Equal(t, 1, v.synced)
	require.Equal(t, 1, m.dialed, fmt.Sprint(v.gaps))
}

// TestFollowGivesUpOnGapAfterGap makes a connection anew, after a pause, whose gaps do not
// stay healed; gaps that come now and then are healed without end.
func TestFollowGivesUpOnGapAfterGap(t *testing.T) {
	for _, slow := range []bool{false, true} {
		w := newWorld(t)
		w.lease = 60
		m := newModel(w)
		m.write()
		m.setFault(func(n int, c *modelConn) bool {
			if _, ack := c.sending.(*frames.Ack); ack && n < 80 {
				c.gap(frames.GapQueueOverflow)
			}
			return false
		})
		v := followed(t, w, m, 90, FollowOptions{}, func(n int, u Update) {
			if _, gap := u.(*Gap); gap && slow {
				w.clock.Advance(steadyAfter)
				m.renew()
			}
		})
		again := 0
		for _, cause := range v.causes {
			if errors.Is(cause, errUnsteady) {
				again++
			}
		}
		require.Equal(t, slow, again == 0, "%v %v", v.gaps, v.causes)
		require.Greater(t, v.gaps["QUEUE_OVERFLOW"], maxHeals)
	}
}
