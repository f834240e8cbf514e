package stream

import (
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
)

// TestMetersFollowASubscription through its gap, its replay and back, with a snapshot beside.
func TestMetersFollowASubscription(t *testing.T) {
	b := newBench(t)
	s := b.session()
	require.Equal(t, Use{}, b.m.Use())
	id := b.subscribe(s, 0, 5, 4096)
	u := b.m.Use()
	require.EqualValues(t, 1, u.States[live])
	require.EqualValues(t, 5, u.CreditEvents)
	require.EqualValues(t, 4096, u.CreditBytes)

	b.write(7)
	require.Len(t, b.sequences(b.pullAll(s)), 5)
	u = b.m.Use()
	require.EqualValues(t, 1, u.Starved)
	require.EqualValues(t, 2, u.PendingEvents)
	require.Positive(t, u.PendingBytes)
	require.Zero(t, u.CreditEvents)
	require.Zero(t, u.Uncounted)
	m := b.m.Meters()
	require.EqualValues(t, 5, m.Events.Load())

	b.write(frames.UnsentFrames)
	gap := b.gapOf(b.pullAll(s))
	require.EqualValues(t, 1, m.Gaps[frames.GapQueueOverflow].Load())
	require.EqualValues(t, 1, b.m.Use().States[paused])

	begin, _, err := b.openReplay(s, id, gap.LastEvent)
	require.NoError(t, err)
	u = b.m.Use()
	require.EqualValues(t, 1, u.States[replaying])
	require.EqualValues(t, 1, u.Replays)
	events, pages := b.readReplay(s, begin)
	require.EqualValues(t, 1, m.Replays.Load())
	require.EqualValues(t, 1, m.ReplaysEnded.Load())
	require.EqualValues(t, len(events), m.ReplayEvents.Load())
	require.EqualValues(t, pages, m.ReplayPages.Load())
	require.NoError(t, b.applyReplay(s, begin, 1, 1024))
	require.EqualValues(t, 1, b.m.Use().States[live])

	snapshot := b.open(s)
	require.EqualValues(t, 1, b.m.Use().Snapshots)
	records := b.readSnapshot(s, snapshot)
	require.EqualValues(t, len(records), m.SnapshotRecords.Load())
	require.Positive(t, m.SnapshotPages.Load())
	require.EqualValues(t, 1, m.Snapshots.Load())
	require.EqualValues(t, 1, m.SnapshotsEnded.Load())
	b.open(s)
	b.clock.Advance(leaseTime)
	b.m.expire()
	require.EqualValues(t, 1, m.Expired.Load())
	require.EqualValues(t, 1, m.Subscriptions.Load())
	s.Close()
	require.Equal(t, Use{}, b.m.Use())
}

// TestCountedTellsWhoIsBehind: nobody counts until somebody does.
func TestCountedTellsWhoIsBehind(t *testing.T) {
	b := newBench(t)
	s := b.session()
	b.subscribe(s, 0, 1, 4096)
	b.put(newID[frames.ObjectID](t), 1, 10)
	at, behind := b.m.Counted()
	require.Zero(t, at)
	require.True(t, behind)
	require.EqualValues(t, 1, b.m.Use().Uncounted)
	b.m.fanOut()
	at, behind = b.m.Counted()
	require.EqualValues(t, 1, at)
	require.False(t, behind)
}
