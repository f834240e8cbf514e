package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/codec"
	"coordinator/frames"
)

func TestReplicaFollows(t *testing.T) {
	w := newWorld(t)
	m := newModel(w)
	m.write()
	r := attended(t, w, m, ReplicaOptions{})
	changes := mirrored(t, r, 0, nil)
	first := reaches(t, r, m)
	require.Equal(t, ReplicaCurrent, r.State().Phase)
	require.Equal(t, start, r.State().LastContact.In(start.Location()))
	for range 20 {
		m.write()
	}
	second := reaches(t, r, m)
	require.Equal(t, 1, first.Len(), "a view does not change")
	require.Greater(t, second.Cut, first.Cut)
	for n, there := range m.at(second.Cut) {
		require.NotZero(t, there)
		m.remove(n.ID[1])
		break
	}
	third := reaches(t, r, m)
	require.Equal(t, second.Len()-1, third.Len())
	m.restart()
	m.drop()
	m.write()
	fourth := reaches(t, r, m)
	require.Equal(t, w.epoch, fourth.Guard.Epoch)
	require.Equal(t, w.incarnation, fourth.Incarnation)
	changes.agrees(fourth)
	require.Equal(t, map[RereadReason]int{RereadFirst: 1}, changes.rereads)

	require.NoError(t, r.Close())
	require.Equal(t, ReplicaClosed, r.State().Phase)
	require.False(t, r.View().Current)
	require.Equal(t, shows(fourth), shows(r.View()))
	_, err := r.WaitFor(t.Context(), func(*View) bool { return true })
	require.ErrorIs(t, err, ErrClosed)
	require.Eventually(t, func() bool {
		changes.mu.Lock()
		defer changes.mu.Unlock()
		return changes.end != nil
	}, time.Minute, time.Millisecond)
	require.ErrorIs(t, changes.end, ErrClosed)
}

// TestC13_ReplicaSurvivesEveryCut does to a replica what TestC13_FollowSurvivesEveryCut does
// to a follower: every publication on the way is whole, and its feed says the same.
func TestC13_ReplicaSurvivesEveryCut(t *testing.T) {
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
		"gap":              func(c *modelConn) bool { c.gap(frames.GapQueueOverflow); return false },
		"gap of retention": func(c *modelConn) bool { c.gap(frames.GapRetention); return false },
	}
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for at := 1; at < 40; at++ {
				w := newWorld(t)
				m := newModel(w)
				for range 4 {
					m.write()
				}
				m.fault = func(n int, c *modelConn) bool {
					if n > 3 && n < 30 {
						switch live := m.at(m.head()); {
						case n%7 == 0 && len(live) > 2:
							for ref := range live {
								m.remove(ref.ID[1])
								break
							}
						case n%2 == 0:
							m.write()
						}
					}
					// The second one, a little later, meets whatever heals the first.
					return (n == at || n == at+5) && fault(c)
				}
				r := attended(t, w, m, ReplicaOptions{SubscribeOptions: SubscribeOptions{CreditCount: 3}})
				changes := mirrored(t, r, 0, nil)
				for {
					v := reaches(t, r, m)
					m.mu.Lock()
					done := m.sent >= 50
					m.mu.Unlock()
					if changes.agrees(v); done {
						break
					}
					m.write()
				}
				require.NoError(t, r.Close())
				changes.feed.Close()
				w.wg.Wait()
			}
		})
	}
}

// TestC13_ReplicaHealsWhatCannotBeApplied sends events that contradict what is known, or
// themselves. None is applied, and only a snapshot heals: going on from the cut would meet
// the same event again.
func TestC13_ReplicaHealsWhatCannotBeApplied(t *testing.T) {
	image := func(v codec.Value) []byte {
		b, err := codec.EncodeImage(nil, v)
		require.NoError(t, err)
		return b
	}
	record := func(e *frames.CoordEvent, change func(*frames.SnapshotRecord)) {
		var r frames.SnapshotRecord
		require.NoError(t, codec.DecodeImage(&r, e.Payload))
		change(&r)
		e.Payload = image(&r)
	}
	nobody := frames.ObjectRef{Kind: frames.KindBinding, ID: frames.ObjectID{7}}
	for name, mangle := range map[string]func(*frames.CoordEvent){
		"a revision too far": func(e *frames.CoordEvent) {
			e.Revision++
			record(e, func(r *frames.SnapshotRecord) { r.Revision++ })
		},
		"a revision again": func(e *frames.CoordEvent) {
			e.Revision--
			record(e, func(r *frames.SnapshotRecord) { r.Revision-- })
		},
		"an object that should not be there yet": func(e *frames.CoordEvent) {
			e.Object.ID = frames.ObjectID{9, 9}
			record(e, func(r *frames.SnapshotRecord) { r.ID = e.Object.ID })
		},
		"the record of another object":    func(e *frames.CoordEvent) { e.Object = objectRef(19) },
		"a record at another revision":    func(e *frames.CoordEvent) { record(e, func(r *frames.SnapshotRecord) { r.Revision += 2 }) },
		"a payload that is none":          func(e *frames.CoordEvent) { e.Payload = []byte{1} },
		"a record that is not its kind's": func(e *frames.CoordEvent) { record(e, func(r *frames.SnapshotRecord) { r.Payload = []byte{0xff} }) },
		"the removal of nothing": func(e *frames.CoordEvent) {
			ref := objectRef(19)
			e.Kind, e.Object, e.Revision, e.Payload = frames.EventObjectRemoved, ref, 1, image(&ref)
		},
		"a removal of something else": func(e *frames.CoordEvent) {
			ref := objectRef(19)
			e.Kind, e.Payload = frames.EventObjectRemoved, image(&ref)
		},
		"a fact of no binding": func(e *frames.CoordEvent) {
			e.Kind, e.Object, e.Revision = frames.EventSourceFactAdmitted, nobody, 1
		},
		"a fact of an objective":   func(e *frames.CoordEvent) { e.Kind = frames.EventSourceFactAdmitted },
		"a kind that nobody knows": nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			m := newModel(w)
			m.mu.Lock()
			m.appendLocked(1, 1)
			m.appendLocked(2, 1)
			m.mu.Unlock()
			mangled := 0
			m.mangle = func(e *frames.CoordEvent) []byte {
				if mangled++; mangle == nil {
					return ofNoKind(t, e)
				}
				mangle(e)
				return nil
			}
			r := attended(t, w, m, ReplicaOptions{})
			changes := mirrored(t, r, 0, nil)
			v := reaches(t, r, m)
			changes.agrees(v)
			m.mu.Lock()
			m.appendLocked(5, 1)
			m.mu.Unlock()
			changes.agrees(reaches(t, r, m))
			require.Equal(t, 1, changes.rereads[RereadSnapshot], "it was not gone on from the cut")
			m.mu.Lock()
			m.mangle = nil
			m.appendLocked(9, 1)
			m.mu.Unlock()
			changes.agrees(reaches(t, r, m))
			require.Equal(t, 1, mangled)
			require.Equal(t, 1, changes.rereads[RereadSnapshot])
		})
	}
}

// TestC13_ReplicaShowsNothingOfABadReplay is given a replay whose digest is right and whose
// events do not follow each other: what went before them is not shown either, and a
// snapshot heals.
func TestC13_ReplicaShowsNothingOfABadReplay(t *testing.T) {
	w := newWorld(t)
	m := newModel(w)
	m.mu.Lock()
	m.appendLocked(1, 1)
	m.mu.Unlock()
	r := attended(t, w, m, ReplicaOptions{})
	changes := mirrored(t, r, 0, nil)
	changes.agrees(reaches(t, r, m))
	m.mu.Lock()
	m.staged = func(events []frames.ReplayEvent) {
		m.staged = nil
		events[3] = change(events[3].Sequence, 1, events[3].Revision+1)
	}
	m.fault = func(_ int, c *modelConn) bool { m.setFault(nil); return c.gap(frames.GapQueueOverflow) }
	for seq := range uint64(8) {
		m.appendLocked(2+seq, 1)
	}
	m.mu.Unlock()
	changes.agrees(reaches(t, r, m))
	require.Nil(t, m.staged)
	require.Equal(t, 1, changes.count(RereadSnapshot))
	require.Zero(t, changes.changes, "of the replay nothing was told")
	require.True(t, told(changes, func(s ReplicaState) bool {
		return s.Phase == ReplicaStale && s.Gap.Cause != nil && errors.As(s.Gap.Cause, new(*RevisionError))
	}), "%v", changes.states)
}

// ofNoKind is the frame of e with a kind that no encoder of ours would write.
func ofNoKind(t *testing.T, e *frames.CoordEvent) []byte {
	a, err := frames.Append(nil, e)
	require.NoError(t, err)
	e.Kind++
	b, err := frames.Append(nil, e)
	require.NoError(t, err)
	for i := range a {
		if a[i] != b[i] {
			a[i] = 0x7f
			return a
		}
	}
	t.Fatal("the kind is not in the frame")
	return nil
}

// TestReplicaNeverWaitsForASlowConsumer lets a feed lie while far more happens than it
// holds: it is told so once, and what it derives from then on is right.
func TestReplicaNeverWaitsForASlowConsumer(t *testing.T) {
	w := newWorld(t)
	m := newModel(w)
	m.write()
	r := attended(t, w, m, ReplicaOptions{})
	held, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	slow := mirrored(t, r, 8, func(n Notice) {
		if _, ok := n.(*Reread); ok {
			once.Do(func() { close(held); <-release })
		}
	})
	quick := mirrored(t, r, 0, nil)
	reaches(t, r, m)
	<-held
	for range 200 {
		m.write()
	}
	v := reaches(t, r, m)
	quick.agrees(v)
	slow.mu.Lock()
	require.Zero(t, slow.changes)
	slow.mu.Unlock()
	close(release)
	slow.agrees(v)
	require.Equal(t, map[RereadReason]int{RereadFirst: 1, RereadMissed: 1}, slow.rereads)
	m.write()
	v = reaches(t, r, m)
	slow.agrees(v)
	quick.agrees(v)
	require.Equal(t, 1, slow.changes)
}

// TestReplicaTellsALateFeed opens a feed in the middle, where nobody listened before.
func TestReplicaTellsALateFeed(t *testing.T) {
	w := newWorld(t)
	m := newModel(w)
	m.write()
	r := attended(t, w, m, ReplicaOptions{})
	for range 50 {
		m.write()
		late := mirrored(t, r, 0, nil)
		m.write()
		late.agrees(reaches(t, r, m))
		late.feed.Close()
	}
	f := r.Changes(0)
	f.Close()
	_, err := f.Next(t.Context())
	require.ErrorIs(t, err, ErrClosed)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errStopped)
	_, err = r.Changes(0).Next(ctx)
	require.ErrorIs(t, err, errStopped)
	_, err = r.WaitFor(ctx, func(*View) bool { return false })
	require.ErrorIs(t, err, errStopped)
}

// TestReplicaNamesLostHistory restores a backup under the replica.
func TestReplicaNamesLostHistory(t *testing.T) {
	for n := range 4 {
		whole, admin := n&1 != 0, n&2 != 0
		t.Run(fmt.Sprintf("whole=%v admin=%v", whole, admin), func(t *testing.T) {
			w := newWorld(t)
			m := newModel(w)
			m.admin = admin
			for range 10 {
				m.write()
			}
			r := attended(t, w, m, ReplicaOptions{})
			changes := mirrored(t, r, 0, nil)
			old := reaches(t, r, m)
			m.mu.Lock()
			m.log, m.restored = m.log[:4], w.activation
			m.revs = map[byte]frames.ObjectRevision{}
			for _, e := range m.log {
				m.revs[e.Object.ID[1]] = e.Revision
			}
			m.mu.Unlock()
			m.restart()
			if whole {
				m.bases = nil // a coordinator without the list (D-26)
			}
			m.drop()
			s := enters(t, r, "current after the loss", func(s ReplicaState) bool { return s.Phase == ReplicaCurrent && s.Lost != nil })
			require.Equal(t, old.Cut, s.Lost.Cut)
			v := reaches(t, r, m)
			require.Less(t, v.Cut, old.Cut)
			changes.agrees(v)
			require.Equal(t, 1, changes.rereads[RereadSnapshot])
			named := false
			for _, s := range changes.states {
				named = named || s.Phase == ReplicaLostHistory && s.Lost != nil && s.Cut == old.Cut
			}
			require.True(t, named, "%v", changes.states)
			require.NotNil(t, r.State().Lost, "it stays")
		})
	}
}

// TestReplicaIsStaleWithoutAConnection has no coordinator for a while, and then another
// authority.
func TestReplicaIsStaleWithoutAConnection(t *testing.T) {
	w := newWorld(t)
	m := newModel(w)
	m.write()
	r := attended(t, w, m, ReplicaOptions{})
	changes := mirrored(t, r, 0, nil)
	v := reaches(t, r, m)
	w.clock.StepWall(3 * time.Second)
	m.down.Store(true)
	m.drop()
	s := enters(t, r, "stale", func(s ReplicaState) bool { return s.Phase == ReplicaStale && s.Gap.Attempt > 2 })
	require.Equal(t, StaleDisconnected, s.Reason)
	require.ErrorIs(t, s.Gap.Cause, syscall.ECONNREFUSED)
	require.Equal(t, start.Add(3*time.Second).Unix(), s.Since.Unix())
	require.Equal(t, start.Unix(), s.LastContact.Unix())
	require.False(t, r.View().Current)
	require.Equal(t, v.Cut, r.View().Cut)
	require.True(t, v.Current, "what was taken before stays as it was taken")
	m.restart()
	m.write()
	m.down.Store(false)
	changes.agrees(reaches(t, r, m))
	verified := false
	for _, s := range changes.states {
		verified = verified || s.Phase == ReplicaStale && s.Reason == StaleAuthority
	}
	require.True(t, verified, "%v", changes.states)
	require.Equal(t, map[RereadReason]int{RereadFirst: 1}, changes.rereads)
	require.Equal(t, start.Add(3*time.Second).Unix(), r.State().LastContact.Unix())
}

// TestReplicaOutlivesNoCertificate hears nothing for longer than its certificate lives: it
// is not current from that instant on, whoever asks first.
func TestReplicaOutlivesNoCertificate(t *testing.T) {
	w := newWorld(t)
	m := newModel(w)
	m.write()
	r := attended(t, w, m, ReplicaOptions{})
	reaches(t, r, m)
	require.True(t, r.View().Current)
	m.hangs.Store(true)                                    // what is seen then stays
	w.clock.StepWall(time.Duration(w.lease) * time.Second) // which no timer sees
	require.False(t, r.View().Current)
	s := r.State()
	require.Equal(t, ReplicaStale, s.Phase)
	require.Equal(t, StaleDisconnected, s.Reason)
	require.ErrorIs(t, s.Gap.Cause, ErrExpired)
	require.Equal(t, start.Unix(), s.LastContact.Unix())
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errStopped)
	_, err := r.WaitFor(ctx, func(*View) bool { return true })
	require.ErrorIs(t, err, errStopped)
}

func TestReplicaEndsWhereNoAttemptHelps(t *testing.T) {
	for _, tt := range []struct {
		name  string
		do    func(w *world, c *modelConn)
		phase ReplicaPhase
		want  any
	}{
		{"revoked", func(w *world, c *modelConn) {
			w.instead = refuseKey
			c.gap(frames.GapGrantRevoked)
			c.send(&frames.CoordError{Code: frames.CodeAuthenticationFailed})
		}, ReplicaRevoked, new(*AuthenticationError)},
		{"another incarnation claims the same authority", func(w *world, c *modelConn) { w.incarnation = id[frames.IncarnationID](w.t) },
			ReplicaQuarantined, new(*QuarantineError)},
		{"another authority key", func(w *world, c *modelConn) { w.authority = key(w.t) }, ReplicaFailed, new(*PeerError)},
		{"another witness", func(w *world, c *modelConn) { w.witness = key(w.t) }, ReplicaFailed, new(*PeerError)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			m := newModel(w)
			m.write()
			r := attended(t, w, m, ReplicaOptions{})
			changes := mirrored(t, r, 0, nil)
			v := reaches(t, r, m)
			m.setFault(func(_ int, c *modelConn) bool { tt.do(w, c); panic(errScript) })
			m.write()
			s := enters(t, r, "final", func(s ReplicaState) bool { return s.Phase.Final() })
			require.Equal(t, tt.phase, s.Phase)
			require.ErrorAs(t, s.Err, tt.want)
			require.False(t, r.View().Current)
			require.Equal(t, v.Cut, r.View().Cut)
			_, err := r.WaitFor(t.Context(), func(*View) bool { return true })
			require.ErrorAs(t, err, tt.want)
			require.Eventually(t, func() bool {
				changes.mu.Lock()
				defer changes.mu.Unlock()
				return changes.end != nil
			}, time.Minute, time.Millisecond)
			require.Equal(t, tt.phase, changes.states[len(changes.states)-1].Phase, "the feed says it before it ends")
			require.ErrorAs(t, changes.end, tt.want)
			require.NoError(t, r.Close())
			require.Equal(t, tt.phase, r.State().Phase)
		})
	}
}

// TestReplicaHoldsNoMoreThanItMay reaches a cap with its first snapshot, with an event, and
// with a snapshot that replaces the view.
func TestReplicaHoldsNoMoreThanItMay(t *testing.T) {
	four := []byte{1, 2, 3, 4}
	fill := func(m *model, objects []byte) {
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, n := range objects {
			m.appendLocked(uint64(m.headLocked())+1, n)
		}
	}
	for _, opts := range []ReplicaOptions{{MaxRecords: 3}, {MaxBytes: 3*recordBytes + 100}} {
		for _, when := range []string{"first", "event", "replacement"} {
			t.Run(fmt.Sprintf("%s %d %d", when, opts.MaxRecords, opts.MaxBytes), func(t *testing.T) {
				w := newWorld(t)
				m := newModel(w)
				if when == "first" {
					fill(m, four)
				} else {
					fill(m, four[:3])
				}
				r := attended(t, w, m, opts)
				var v *View
				if when != "first" {
					v = reaches(t, r, m)
					if when == "replacement" {
						m.setFault(func(_ int, c *modelConn) bool {
							if len(c.subs) > 0 && c.sending == nil {
								m.setFault(nil)
								c.gap(frames.GapRetention)
								return true
							}
							return false
						})
					}
					fill(m, four[3:])
				}
				s := enters(t, r, "final", func(s ReplicaState) bool { return s.Phase.Final() })
				require.Equal(t, ReplicaFull, s.Phase)
				var full *ReplicaFullError
				require.True(t, errors.As(s.Err, &full))
				require.Equal(t, 4, full.Records)
				if v == nil {
					require.Nil(t, r.View())
				} else {
					require.Equal(t, shows(v), shows(r.View()))
				}
			})
		}
	}
}
