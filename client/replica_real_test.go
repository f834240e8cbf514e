package client

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"coordinator/frames"
	"coordinator/handshake"
)

// TestReplicaOfARealCoordinator follows one over each transport while work is made, its
// connections are cut at many places and the coordinator is started again.
func TestReplicaOfARealCoordinator(t *testing.T) {
	s := serve(t)
	session := s.session(s.writer)
	defer session.Close()
	for transport, offered := range map[string]frames.Capability{"unix": 0, "quic": frames.CapAdministration} {
		t.Run(transport, func(t *testing.T) {
			cutter := newCutter(s)
			o := s.options()
			if o.Offered = offered; offered != 0 {
				o.Key = s.writer // who sees the operations of everybody, and ADMIN records
			}
			o.Transport = cutter.transport
			r, err := OpenReplica(s.over(transport), ReplicaOptions{Options: o, Backoff: quickly})
			require.NoError(t, err)
			changes := mirrored(t, r, 0, nil)
			changes.agrees(s.settles(r))
			for n := range 25 {
				cutter.budget(300+97*n, 2000+211*n)
				require.NoError(t, s.busy(session, 4, 2, 1+n%4))
				cutter.cut()
				if n%10 == 5 {
					s.restart()
				}
			}
			v := s.settles(r)
			changes.agrees(v)
			require.NoError(t, r.Close())
			require.NoError(t, s.stop())
			s.inStore(o.Key, v)
			s.run()
		})
	}
}

// TestReplicaUnderRandomFaults does anything in any order to a replica of a real
// coordinator. When it is left alone it is what the coordinator's snapshot says, and in the
// end what its store holds.
func TestReplicaUnderRandomFaults(t *testing.T) {
	t.Parallel()
	s := serve(t)
	mine, theirs := s.session(s.reader), s.session(s.writer)
	defer mine.Close()
	defer theirs.Close()
	var last *View
	rapid.Check(t, func(t *rapid.T) {
		cutter := newCutter(s)
		o := s.options()
		o.Transport = cutter.transport
		o.Offered = rapid.SampledFrom([]frames.Capability{0, frames.CapWithoutOperations}).Draw(t, "offered")
		r, err := OpenReplica(s.over(rapid.SampledFrom([]string{"unix", "quic"}).Draw(t, "transport")), ReplicaOptions{Options: o, Backoff: quickly,
			SubscribeOptions: SubscribeOptions{CreditCount: uint32(rapid.SampledFrom([]int{0, 1, 2, 7}).Draw(t, "credit"))}})
		require.NoError(t, err)
		defer func() { require.NoError(t, r.Close()) }()
		for range rapid.IntRange(1, 6).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0:
				s.restart()
			case 1, 2:
				cutter.cut()
			case 3, 4:
				cutter.budget(rapid.SliceOfN(rapid.IntRange(1, 6000), 1, 4).Draw(t, "budgets")...)
				cutter.cut()
			case 5:
				release := cutter.hold()
				defer release()
				require.NoError(t, s.busy(theirs, 2, 3, 4))
				release()
			default:
				session := mine
				if rapid.Bool().Draw(t, "hidden") {
					session = theirs
				}
				require.NoError(t, s.busy(session, 3, rapid.IntRange(1, 4).Draw(t, "lives"), rapid.IntRange(1, 4).Draw(t, "length")))
			}
		}
		last = s.settles(r)
	})
	require.NoError(t, s.stop())
	s.inStore(s.reader, last)
}

// TestReplicaHealsAGapStorm keeps a replica from reading while far more happens than the
// coordinator queues for it, again and again: it is told of gaps and heals them by replay.
func TestReplicaHealsAGapStorm(t *testing.T) {
	s := serve(t)
	session := s.session(s.writer)
	defer session.Close()
	cutter := newCutter(s)
	o := s.options()
	o.Transport = cutter.transport
	o.Offered = frames.CapWithoutOperations
	r, err := OpenReplica(s.pins, ReplicaOptions{Options: o, Backoff: quickly, SubscribeOptions: SubscribeOptions{CreditCount: 16}})
	require.NoError(t, err)
	defer func() { require.NoError(t, r.Close()) }()
	changes, few := mirrored(t, r, 1<<20, nil), mirrored(t, r, 16, nil)
	changes.agrees(s.settles(r))
	for range 3 {
		release := cutter.hold()
		defer release()
		require.NoError(t, s.busy(session, 16, 75, 1)) // more than 1,024 frames
		release()
		v := s.settles(r)
		changes.agrees(v)
		few.agrees(v)
	}
	require.True(t, told(changes, func(s ReplicaState) bool { return s.Reason == StaleGap && s.Gap.Reason == frames.GapQueueOverflow }))
	require.True(t, told(changes, func(s ReplicaState) bool { return s.Healed != nil && s.Healed.Replayed }), "%v", changes.states)
	require.Zero(t, changes.count(RereadMissed))
}

func told(m *mirror, ok func(ReplicaState) bool) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.states {
		if ok(s) {
			return true
		}
	}
	return false
}

func (m *mirror) count(why RereadReason) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.rereads[why]
}

// TestReplicaOfARestoredCoordinator puts an older copy of the store back.
func TestReplicaOfARestoredCoordinator(t *testing.T) {
	s := serve(t)
	session := s.session(s.writer)
	defer session.Close()
	r, err := OpenReplica(s.pins, ReplicaOptions{Options: s.options(), Backoff: quickly})
	require.NoError(t, err)
	defer func() { require.NoError(t, r.Close()) }()
	changes := mirrored(t, r, 0, nil)
	require.NoError(t, s.busy(session, 1, 3, 1))
	s.settles(r)
	require.NoError(t, s.stop())
	backup := filepath.Join(filepath.Dir(s.dir), "backup")
	require.NoError(t, os.CopyFS(backup, os.DirFS(s.dir)))
	s.run()
	require.NoError(t, s.busy(session, 1, 5, 1))
	old := s.settles(r)
	require.NoError(t, s.stop())
	for _, name := range []string{"log", "state.db"} {
		require.NoError(t, os.RemoveAll(filepath.Join(s.dir, name)))
		require.NoError(t, os.Rename(filepath.Join(backup, name), filepath.Join(s.dir, name)))
	}
	s.tighten()
	s.run()
	after := s.session(s.writer) // the other one has been shown what is gone
	defer after.Close()
	require.NoError(t, s.busy(after, 1, 2, 1))
	v := s.settles(r)
	require.Equal(t, 8, old.Count(frames.KindObjective))
	require.Equal(t, 5, v.Count(frames.KindObjective))
	lost := r.State().Lost
	require.NotNil(t, lost)
	require.Equal(t, old.Cut, lost.Cut)
	require.Equal(t, v.Guard.Activation, lost.Found)
	changes.agrees(v)
	require.True(t, told(changes, func(s ReplicaState) bool { return s.Phase == ReplicaLostHistory }))
}

// tighten gives what was copied the modes that a store must have.
func (s *served) tighten() {
	require.NoError(s.t, filepath.Walk(s.dir, func(path string, info os.FileInfo, err error) error {
		switch {
		case err != nil || info.Mode()&os.ModeType&^os.ModeDir != 0:
			return err
		case info.IsDir():
			return os.Chmod(path, 0o700)
		}
		return os.Chmod(path, 0o600)
	}))
}

// TestReplicaWithARevokedKey ends with the view that it had, and says why.
func TestReplicaWithARevokedKey(t *testing.T) {
	s := serve(t)
	session := s.session(s.writer)
	defer session.Close()
	require.NoError(t, s.busy(session, 1, 2, 1))
	r, err := OpenReplica(s.pins, ReplicaOptions{Options: s.options(), Backoff: quickly})
	require.NoError(t, err)
	defer func() { require.NoError(t, r.Close()) }()
	v := s.settles(r)
	_, err = handshake.RevokeRecord(s.registry, "reader", uint64(time.Now().Unix()), endpointRules)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err = r.WaitFor(ctx, func(*View) bool { return false })
	var auth *AuthenticationError
	require.ErrorAs(t, err, &auth)
	require.Equal(t, ReplicaRevoked, r.State().Phase)
	require.False(t, r.View().Current)
	require.Equal(t, shows(v), shows(r.View()))
}
