package server

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/clock"
	"coordinator/server/authority"
	"coordinator/server/quota"
	"coordinator/server/store"
	"coordinator/server/stream"
	"coordinator/server/work"
	"coordinator/witness"
)

// awaiting bounds what these tests wait for; nothing takes that long.
const awaiting = time.Minute

// watchedRig is a rig on a clock of the test's, with a monitor and a witness that can go away.
type watchedRig struct {
	*rig
	clock *clock.Manual
	m     *Monitor
	away  atomic.Bool
}

// absent is a witness that answers only while it is there.
type absent struct {
	witness.Authority
	away *atomic.Bool
}

var errAway = errors.New("nobody listens there")

func (a absent) Renew(ctx context.Context, c frames.Certificate, secs uint16) (frames.Certificate, error) {
	if a.away.Load() {
		return frames.Certificate{}, errAway
	}
	return a.Authority.Renew(ctx, c, secs)
}

func newWatchedRig(t *testing.T) *watchedRig {
	w := &watchedRig{rig: newRig(t)}
	w.clock = clock.NewManual(clock.Reading{Wall: time.Now().Round(0).Truncate(time.Second), Boot: time.Hour})
	w.opts.Clock, w.opts.LeaseSeconds = w.clock, 60
	inner := w.opts.Witness
	w.opts.Witness = func() (witness.Authority, error) {
		a, err := inner()
		return absent{a, &w.away}, err
	}
	w.m = NewMonitor(w.clock)
	w.opts.Monitor = w.m
	return w
}

// becomes waits for what the monitor says.
func (w *watchedRig) becomes(ask func() error, text string) {
	w.t.Helper()
	require.Eventually(w.t, func() bool {
		err := ask()
		if text == "" {
			return err == nil
		}
		return err != nil && strings.Contains(err.Error(), text)
	}, awaiting, time.Millisecond, "want %q", text)
}

func TestReadyIsAnUnexpiredAuthority(t *testing.T) {
	w := newWatchedRig(t)
	require.ErrorContains(t, w.m.Ready(), "starting: not begun")
	require.NoError(t, w.m.Healthy())
	_, ok := w.m.Read()
	require.False(t, ok)

	w.start()
	require.NoError(t, w.m.Ready())
	require.NoError(t, w.m.Healthy())
	r, ok := w.m.Read()
	require.True(t, ok)
	require.True(t, r.Ready)
	require.Equal(t, 58*time.Second, r.Lease)

	// The clocks diverge: nothing is committed until a renewal, which does not come.
	w.away.Store(true)
	w.clock.StepWall(time.Hour)
	w.becomes(w.m.Ready, authority.ErrDiverged.Error())
	require.NoError(t, w.m.Healthy(), "it waits for its witness, and nothing hangs")
	w.away.Store(false)
	require.Eventually(t, func() bool {
		w.clock.Advance(100 * time.Millisecond) // its next attempt
		return w.m.Ready() == nil
	}, awaiting, time.Millisecond)

	// The lease ends: it is over with this process, which says so until it is gone.
	w.away.Store(true)
	w.clock.Advance(59 * time.Second)
	require.ErrorContains(t, w.m.Ready(), "lease ended")
	err := <-w.done
	w.cancel = nil
	require.ErrorIs(t, err, authority.ErrLeaseEnded)
	require.ErrorContains(t, w.m.Ready(), "ended: ")
	require.NoError(t, w.m.Healthy())
	_, ok = w.m.Read()
	require.False(t, ok)
}

func TestAStopIsNotReady(t *testing.T) {
	w := newWatchedRig(t)
	w.start()
	require.NoError(t, w.stop())
	require.ErrorContains(t, w.m.Ready(), "ended: it was told to")
}

// TestHealthTellsAWriterThatStands holds the writer between two commits, as a disk that does
// not answer would.
func TestHealthTellsAWriterThatStands(t *testing.T) {
	w := newWatchedRig(t)
	w.start()
	w.hold()
	w.clock.Advance(stuckAfter)
	require.NoError(t, w.m.Healthy())
	w.clock.Advance(time.Second)
	require.ErrorContains(t, w.m.Healthy(), "the commit writer has not come round for 11s")
	require.NoError(t, w.m.Ready(), "the authority holds: what is stuck is another question")
	w.release()
	require.Eventually(t, func() bool {
		w.clock.Advance(0)
		return w.m.Healthy() == nil
	}, awaiting, time.Millisecond)
}

// TestHealthNamesOnlyWhatStands: what waits behind a writer that stands is not called ill, and
// neither is a writer that was asked just before it had to wait for a renewal.
func TestHealthNamesOnlyWhatStands(t *testing.T) {
	w := newWatchedRig(t)
	w.start()
	w.hold()
	require.Eventually(t, func() bool {
		w.clock.Advance(100 * time.Millisecond)
		return w.m.Healthy() != nil
	}, awaiting, time.Millisecond)
	w.clock.Advance(stuckAfter)
	require.Eventually(t, func() bool {
		err := w.m.Healthy()
		return err != nil && strings.HasPrefix(err.Error(), "the commit writer") && !strings.Contains(err.Error(), "fan-out")
	}, awaiting, time.Millisecond, "the pulse waits for the writer: %v", w.m.Healthy())

	w.away.Store(true)
	w.clock.StepWall(time.Hour)
	w.release()
	w.becomes(w.m.Ready, authority.ErrDiverged.Error())
	for range 12 {
		w.clock.Advance(time.Second)
	}
	w.becomes(w.m.Healthy, "")
}

// TestHealthTellsAFanOutThatStands watches a manager that nobody runs: what is published stays
// uncounted for the subscription that waits for it.
func TestHealthTellsAFanOutThatStands(t *testing.T) {
	w := newWatchedRig(t)
	w.start()
	s := &Server{clock: w.clock, fence: w.srv.fence, store: w.srv.store, writer: w.srv.writer}
	s.streams = stream.New(stream.Options{Clock: w.clock, Rand: rand.Reader, Store: s.store, Do: s.writer.Do, Guard: s.fence.Guard()})
	account, err := w.srv.quotas.Connect(quota.Principal{9})
	require.NoError(t, err)
	defer account.Close()
	session := s.streams.NewSession(stream.SessionOptions{
		Viewer: work.Viewer{Scope: frames.AllScopes, Capabilities: work.Capabilities}, Limits: frames.ReferenceLimits(), Account: account,
	})
	defer session.Close()
	head := s.store.State().Head
	_, err = session.Subscribe(&frames.Subscribe{RequestID: 1, Guard: s.fence.Guard(), After: head})
	require.NoError(t, err)

	m := NewMonitor(w.clock)
	m.watch(s, authority.NewKeeper(authority.KeeperOptions{Fence: s.fence, Clock: w.clock}), &w.opts)
	defer m.unwatch()
	m.serving()
	next := frames.EventSequence(head) + 1
	s.streams.Publish(store.Batch{First: next, Last: next})
	require.Eventually(t, func() bool {
		w.clock.Advance(100 * time.Millisecond)
		err := m.Healthy()
		return err != nil && strings.HasPrefix(err.Error(), "the fan-out of events has not come round")
	}, awaiting, time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	ran := start(func(context.Context) error { return s.streams.Run(ctx) })
	defer ran.stop() //nolint:errcheck // always nil
	defer cancel()
	require.Eventually(t, func() bool {
		w.clock.Advance(100 * time.Millisecond)
		err := m.Healthy()
		return err == nil || !strings.Contains(err.Error(), "fan-out")
	}, awaiting, time.Millisecond)
}

func TestReadingsFollowTheClients(t *testing.T) {
	w := newWatchedRig(t)
	w.start()
	p := w.connect(w.keys[0])
	p.create("x")
	p.snapshot()
	_, err := p.nextPage(newID[frames.SnapshotID](t), make([]byte, 32))
	require.Equal(t, frames.CodeCursorInvalid, frames.CodeOf(err))
	r, _ := w.m.Read()
	require.EqualValues(t, 1, r.Conns.Accepted[handshake.Unix])
	require.EqualValues(t, 1, r.Conns.Authenticated[handshake.Unix])
	require.Zero(t, r.Conns.Strangers[handshake.Unix])
	require.EqualValues(t, 1, r.Conns.Requests[frames.TypeCoordCommand])
	require.EqualValues(t, 1, r.Conns.Requests[frames.TypeOpenSnapshot])
	require.EqualValues(t, 1, r.Conns.Refusals[frames.CodeCursorInvalid])
	require.Contains(t, r.Conns.Refusals, frames.CodeInternal, "codes without refusals are there")
	require.EqualValues(t, 1, r.Streams.SnapshotsEnded.Load())
	require.Positive(t, r.Writer.Commit.Snapshot().Count)
	require.Equal(t, r.Writer.Commit.Snapshot().Count, r.Writer.Batch.Snapshot().Count)
	require.GreaterOrEqual(t, r.Disk.Flush.Snapshot().Count, r.Writer.Commit.Snapshot().Count)
	require.NoError(t, r.StatsErr)
	require.Positive(t, r.Stats.LogBytes)
	require.Equal(t, 2, r.Enrolled)
	require.False(t, r.Emptied)
	q := w.raw()
	q.write([]byte("garbage of a stranger"))
	q.ended()
	q.close()
	require.Eventually(t, func() bool {
		r, _ := w.m.Read()
		return r.Conns.Accepted[handshake.Unix] == 2 && r.Conns.Strangers[handshake.Unix] == 0
	}, awaiting, time.Millisecond)
}
