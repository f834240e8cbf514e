package server

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
	"coordinator/server/store"
	"coordinator/server/store/simfs"
)

// trimRig is a rig whose log has small segments, and a checkpoint after each commit.
type trimRig struct {
	*rig
	disk *simfs.FS
	head map[uint64]frames.EventCut // after each commit that create made
}

func newTrimRig(t *testing.T) *trimRig {
	r := &trimRig{disk: simfs.New(), head: make(map[uint64]frames.EventCut)}
	r.rig = newRigOn(t, r.disk)
	r.opts.Store.SegmentBytes = 16 << 10
	r.opts.Store.CheckpointOps = 1
	r.opts.Quotas = tight(t)
	return r
}

// fill leaves a few small segments behind the first one, which is large, and ends with the
// first events of a new segment.
func (r *trimRig) fill(p *peer) {
	r.t.Helper()
	for r.segments() < 2 {
		r.make(p, 50<<10)
	}
	for n := r.segments(); r.segments() < n+4; {
		r.make(p, 1<<10)
	}
	for range 3 {
		r.make(p, 10)
	}
}

func (r *trimRig) make(p *peer, size int) {
	r.t.Helper()
	p.create(`"` + strings.Repeat("d", size) + `"`)
	st := r.srv.store.State()
	r.head[st.Commit] = st.Head
}

func (r *trimRig) segments() int { return len(r.names()) }

// names are the segments in the log, oldest first.
func (r *trimRig) names() (names []string) {
	r.t.Helper()
	entries, err := r.disk.List(filepath.Join(r.dir, "log"))
	require.NoError(r.t, err)
	for _, e := range entries {
		if e.Name != "spare.seg" {
			names = append(names, e.Name)
		}
	}
	return names
}

// openBase is the cut behind which the open segment begins.
func (r *trimRig) openBase() frames.EventCut {
	r.t.Helper()
	names := r.names()
	var first uint64
	_, err := fmt.Sscanf(names[len(names)-1], "%x.seg", &first)
	require.NoError(r.t, err)
	base, ok := r.head[first-1]
	require.True(r.t, ok, "commit %d was not one of ours", first-1)
	return base
}

// bound sets the bound of the event log by a command.
func (r *trimRig) bound(n uint64) {
	r.t.Helper()
	admin := r.connect(r.keys[1])
	defer admin.close()
	_, err := admin.command(frames.CommandChangeRetention, newID[frames.OperationID](r.t),
		&frames.ChangeRetention{Retention: frames.Retention{OperationResultSecs: frames.MinOperationRetained, EventBytes: n, ArtifactBytes: 1 << 20}})
	require.NoError(r.t, err)
}

// trimmed waits until nothing before the cut is retained, and all behind it is.
func (r *trimRig) trimmed(to frames.EventCut) {
	r.t.Helper()
	require.Eventually(r.t, func() bool { return r.srv.store.FirstRetained() == frames.EventSequence(to)+1 }, time.Minute, 5*time.Millisecond)
}

// pausedAt makes a subscription that waits for its replay from a cut: it has no credit for
// the backlog, which is more than its queue may have.
func (p *peer) pausedAt(cut frames.EventCut) *frames.Gap {
	p.t.Helper()
	id := p.subscribe(cut, 0, 0)
	gap, events := p.gap()
	require.Zero(p.t, events)
	require.Equal(p.t, frames.GapQueueOverflow, gap.Reason)
	require.Equal(p.t, id, gap.SubscriptionID)
	require.Equal(p.t, cut, gap.LastEvent)
	return gap
}

// edges subscribes one before, at and one after the trim point.
func (r *trimRig) edges(base frames.EventCut) {
	r.t.Helper()
	r.trimmed(base)
	head := r.srv.store.State().Head
	for _, after := range []frames.EventCut{base - 1, base, base + 1} {
		p := r.connect(r.keys[0], following)
		id := p.subscribe(after, plentyEvents, plentyBytes)
		if after < base {
			gap, events := p.gap()
			require.Zero(r.t, events)
			require.Equal(r.t, &frames.Gap{SubscriptionID: id, LastEvent: after, Reason: frames.GapRetention}, gap)
			p.close()
			continue
		}
		want, err := r.srv.store.Events(after, 10_000, 1<<24)
		require.NoError(r.t, err)
		require.NotEmpty(r.t, want)
		for _, ev := range want {
			require.Equal(r.t, ev.Sequence, p.event().Sequence)
		}
		require.LessOrEqual(r.t, frames.EventCut(want[len(want)-1].Sequence), head)
		p.close()
	}
}

// TestRetentionIsExactOnTheWire trims under subscriptions that are paused one before, at and
// one after the place where the log will begin, and asks again after a restart.
func TestRetentionIsExactOnTheWire(t *testing.T) {
	r := newTrimRig(t)
	r.start()
	w := r.connect(r.keys[0], following)
	r.fill(w)
	for len(r.names()) < 6 {
		r.make(w, 1<<10)
	}
	for range 12 { // a backlog behind the trim point that is more than a queue may have
		r.make(w, 10)
	}
	base := r.openBase()
	for r.srv.store.State().Head < base+24 {
		r.make(w, 10)
	}
	require.Equal(t, base, r.openBase(), "a segment has room for the backlog")
	p := r.connect(r.keys[0], following)
	before, at, after := p.pausedAt(base-1), p.pausedAt(base), p.pausedAt(base+1)
	bytes := r.logBytes()
	r.bound(1)
	require.Equal(t, base, r.openBase())
	r.trimmed(base)
	require.Less(t, r.logBytes(), bytes-4*16<<10)
	require.Equal(t, 1, r.segments())

	p.send(&frames.OpenReplay{RequestID: p.id(), Guard: p.guard, SubscriptionID: before.SubscriptionID, After: before.LastEvent})
	gap, events := p.gap()
	require.Zero(t, events)
	require.Equal(t, frames.GapRetention, gap.Reason)
	require.Equal(t, before.LastEvent, gap.LastEvent)
	p.refused(frames.CodeCursorInvalid)
	for _, g := range []*frames.Gap{at, after} {
		_, events := p.replayed(g, plentyEvents, plentyBytes)
		want, err := r.srv.store.Events(g.LastEvent, 10_000, 1<<24)
		require.NoError(t, err)
		require.Len(t, events, len(want))
		for i := range want {
			require.Equal(t, want[i].Sequence, events[i].Sequence)
		}
	}
	p.close()
	w.close()
	r.edges(base)
	require.NoError(t, r.stop())
	r.start()
	r.edges(base)
}

func (r *trimRig) logBytes() (n int64) {
	r.t.Helper()
	stats, err := r.srv.store.Stats()
	require.NoError(r.t, err)
	return stats.LogBytes
}

// TestALiveReplayHoldsItsSegments opens a replay over the wire, lowers the bound, and reads
// the replay to its end and its digest; then the connection goes, and the disk is free.
func TestALiveReplayHoldsItsSegments(t *testing.T) {
	r := newTrimRig(t)
	r.start()
	w := r.connect(r.keys[0], following)
	r.fill(w)
	p := r.connect(r.keys[0], following)
	gap := p.pausedAt(3)
	p.send(&frames.OpenReplay{RequestID: p.id(), Guard: p.guard, SubscriptionID: gap.SubscriptionID, After: gap.LastEvent})
	f, err := p.next()
	require.NoError(t, err)
	begin := f.(*frames.ReplayBegin)
	bytes := r.logBytes()
	r.bound(1)
	r.make(w, 10) // each commit begins a checkpoint, which would trim
	require.EqualValues(t, 1, r.srv.store.FirstRetained())
	require.GreaterOrEqual(t, r.logBytes(), bytes)
	var events []frames.ReplayEvent
	made := 0
	for cursor := begin.FirstCursor; cursor != nil; {
		p.send(&frames.ReplayNext{RequestID: p.id(), ReplayID: begin.ReplayID, Cursor: cursor})
		f, err := p.next()
		require.NoError(t, err)
		page := f.(*frames.ReplayPage)
		events = append(events, page.Events...)
		cursor = page.NextCursor
		if made++; made < 5 { // fewer than the subscription may be owed
			r.make(w, 10)
		}
	}
	f, err = p.next()
	require.NoError(t, err)
	d := frames.NewReplayDigest(p.guard, gap.SubscriptionID, gap.LastEvent, begin.Cut, uint64(len(events)))
	for i := range events {
		require.NoError(t, d.Add(&events[i]))
	}
	require.Equal(t, begin.Cut, frames.EventCut(events[len(events)-1].Sequence))
	require.Equal(t, d.Sum(), f.(*frames.ReplayEnd).Digest)
	require.EqualValues(t, 1, r.srv.store.FirstRetained(), "until REPLAY_APPLIED or the end of the lease")
	p.close()
	require.Eventually(t, func() bool {
		r.make(w, 10) // a commit, which an idle server waits some seconds for
		return r.srv.store.FirstRetained() > 1 && r.logBytes() < bytes/4
	}, time.Minute, 20*time.Millisecond)
}

// TestAnExpiredReplayLetsGo waits out the lease of a replay that nobody reads.
func TestAnExpiredReplayLetsGo(t *testing.T) {
	bubble(t, func(t *testing.T, b *bed) {
		p := b.raw()
		require.NoError(t, p.shake(b.r, b.r.keys[0], uint64(frames.AllScopes), b.channel(), following))
		for range 100 { // more than a queue may have
			p.create(`"` + strings.Repeat("d", 50<<10) + `"`)
		}
		sub := p.subscribe(1, 0, 0)
		gap, _ := p.gap()
		require.Equal(t, sub, gap.SubscriptionID)
		trim := func() (first frames.EventSequence) {
			require.NoError(t, b.s.writer.Do(context.Background(), func(s *store.Store) error {
				s.SetEventBytes(1)
				for more := true; more; {
					var err error
					if more, err = s.CheckpointStep(); err != nil {
						return err
					}
				}
				s.Maintain()
				return nil
			}))
			return b.s.store.FirstRetained()
		}
		p.send(&frames.OpenReplay{RequestID: p.id(), Guard: p.guard, SubscriptionID: sub, After: gap.LastEvent})
		f, err := p.next()
		require.NoError(t, err)
		require.IsType(t, &frames.ReplayBegin{}, f)
		const lease = frames.LeaseSeconds * time.Second
		for range frames.LeaseSeconds - 1 {
			time.Sleep(time.Second)
			p.create("{}") // the peer is alive
			require.EqualValues(t, 1, trim())
		}
		time.Sleep(2 * time.Second)
		require.Greater(t, trim(), frames.EventSequence(1), "after %v", lease)
	})
}

var errPulled = errors.New("the plug is pulled")

// TestACrashInTheMiddleOfTrimming stops the disk of a running coordinator between two
// unlinks, or between an unlink and the flush of its directory, loses what was not flushed,
// and starts again.
func TestACrashInTheMiddleOfTrimming(t *testing.T) {
	for _, kind := range []string{"remove", "syncdir"} {
		for seed := range uint64(4) {
			t.Run(fmt.Sprint(kind, seed), func(t *testing.T) {
				r := newTrimRig(t)
				r.start()
				w := r.connect(r.keys[0], following)
				r.fill(w)
				w.close()
				base := r.openBase()
				before := r.segments()
				removed, pulled := 0, false
				r.disk.Hook(func(op simfs.Op) error {
					if pulled {
						return errPulled
					}
					if op.Kind == "remove" && !strings.Contains(op.Path, "spare") {
						removed++
					}
					pulled = op.Kind == kind && (kind == "remove" && removed == 3 || kind == "syncdir" && removed == 2)
					if pulled {
						return errPulled
					}
					return nil
				})
				r.bound(1)
				require.ErrorIs(t, <-r.done, errPulled)
				r.cancel = nil
				r.disk.Crash(seed)
				require.Less(t, r.segments(), before, "the first unlink was flushed")
				require.Greater(t, r.segments(), 2)
				r.start()
				r.edges(base)
				require.NoError(t, r.stop())
				require.NoError(t, store.Verify(r.dir, store.Options{FS: r.disk}))
			})
		}
	}
}
