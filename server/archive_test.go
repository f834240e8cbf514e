package server

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/codec"
	"coordinator/frames"
	"coordinator/internal/clock"
)

func offering(caps frames.Capability) func(*frames.CoordHello) {
	return func(h *frames.CoordHello) { h.Offered = caps }
}

const archiving = frames.CapEventReplay | frames.CapArchive | frames.CapObjectiveLifecycle

// complete ends an objective, and archive takes it away.
func (p *peer) complete(id frames.ObjectiveID) {
	p.t.Helper()
	state := frames.ObjectiveCompleted
	res, err := p.command(frames.CommandUpdateObjective, newID[frames.OperationID](p.t),
		&frames.UpdateObjective{ObjectiveID: id, Schema: 1, Document: []byte("{}"), State: &state})
	require.NoError(p.t, err)
	require.Equal(p.t, frames.OperationSucceeded, res.State)
}

func (p *peer) archive(id frames.ObjectiveID) frames.OperationResult {
	p.t.Helper()
	res, err := p.command(frames.CommandArchiveObjective, newID[frames.OperationID](p.t), &frames.ArchiveObjective{ObjectiveID: id})
	require.NoError(p.t, err)
	return res
}

// applied gives the reserved subscription of a snapshot its credit.
func (p *peer) applied(begin *frames.SnapshotBegin) {
	p.t.Helper()
	p.send(&frames.SnapshotApplied{
		RequestID: p.id(), SnapshotID: begin.SnapshotID, SubscriptionID: begin.SubscriptionID, CreditCount: plentyEvents, CreditBytes: plentyBytes,
	})
	f, err := p.next()
	require.NoError(p.t, err)
	require.Equal(p.t, &frames.Ack{RequestID: p.last}, f)
}

// heal replaces a paused subscription by a snapshot's, after a refused replay.
func (p *peer) heal(gap *frames.Gap) *frames.SnapshotBegin {
	p.t.Helper()
	p.send(&frames.OpenReplay{RequestID: p.id(), Guard: p.guard, SubscriptionID: gap.SubscriptionID, After: gap.LastEvent})
	p.refused(frames.CodeCursorInvalid)
	begin := p.reserved(gap.SubscriptionID)
	p.applied(begin)
	return begin
}

func TestArchiveForBothKindsOfConnections(t *testing.T) {
	r := newRig(t)
	r.start()
	owner := r.connect(r.keys[0], offering(archiving))
	id := owner.create("{}")
	owner.complete(id)
	before := frames.EventCut(0)
	plain, capable := r.connect(r.keys[1], following), r.connect(r.keys[1], offering(frames.CapEventReplay|frames.CapArchive))
	for _, p := range []*peer{plain, capable} {
		begin := p.reserved(frames.SubscriptionID{})
		p.applied(begin)
		before = begin.Base
	}
	ref := objective(id)
	res := owner.archive(id)
	require.Equal(t, frames.ResultNone, res.Kind)

	ev := capable.event()
	require.Equal(t, frames.EventObjectRemoved, ev.Kind)
	require.Equal(t, ref, ev.Object)
	require.EqualValues(t, 3, ev.Revision)
	require.EqualValues(t, before+1, ev.Sequence)
	var gone frames.ObjectRef
	require.NoError(t, codec.DecodeImage(&gone, ev.Payload))
	require.Equal(t, ref, gone)
	require.Equal(t, frames.EventOperationChanged, capable.event().Kind, "keys[1] has ADMIN and sees the operation")

	gap, events := plain.gap()
	require.Zero(t, events)
	require.Equal(t, frames.GapRevisionMismatch, gap.Reason)
	require.Equal(t, before, gap.LastEvent)
	plain.heal(gap)
	require.Nil(t, plain.snapshot().find(ref))

	_, err := owner.command(frames.CommandCreateObjective, newID[frames.OperationID](t), &frames.CreateObjective{ObjectiveID: id, Schema: 1, Document: []byte("{}")})
	require.ErrorContains(t, err, "REVISION_CONFLICT")
	next := owner.create("{}")
	require.Equal(t, objective(next), plain.event().Object, "it is live again")
	require.Equal(t, objective(next), capable.event().Object)

	for _, restarted := range []bool{false, true} {
		if restarted {
			require.NoError(t, r.stop())
			r.start()
		}
		plain := r.connect(r.keys[1], following)
		sub := plain.subscribe(before, plentyEvents, plentyBytes)
		gap, events := plain.gap()
		require.Zero(t, events)
		require.Equal(t, frames.Gap{SubscriptionID: sub, LastEvent: before, Reason: frames.GapRevisionMismatch}, *gap)
		plain.heal(gap)
		plain = r.connect(r.keys[1], following)
		plain.subscribe(before+1, plentyEvents, plentyBytes)
		require.Equal(t, frames.EventOperationChanged, plain.event().Kind, "a cut behind the removal is a good one")

		capable := r.connect(r.keys[1], offering(frames.CapEventReplay|frames.CapArchive))
		capable.subscribe(before, plentyEvents, plentyBytes)
		require.Equal(t, *ev, func() frames.CoordEvent {
			again := *capable.event()
			require.EqualValues(t, 1, again.Delivery)
			again.SubscriptionID, again.Delivery = ev.SubscriptionID, ev.Delivery
			return again
		}(), "the log has the same event")
	}
}

// A replay gives OBJECT_REMOVED to those who negotiated it, and a snapshot that was opened
// before an archive shows what it removed.
func TestArchiveUnderAnOpenSnapshotAndReplay(t *testing.T) {
	r := newRig(t)
	r.opts.Quotas = tight(t)
	r.start()
	owner := r.connect(r.keys[0], offering(archiving))
	ids := make([]frames.ObjectiveID, 8)
	for i := range ids {
		ids[i] = owner.create("{}")
		owner.complete(ids[i])
	}
	reader := r.connect(r.keys[1], offering(frames.CapEventReplay|frames.CapArchive), func(h *frames.CoordHello) { h.Limits.PageRecords = 1 })
	follower := r.connect(r.keys[1], offering(frames.CapEventReplay|frames.CapArchive))
	begin, err := reader.open()
	require.NoError(t, err)
	sub := follower.subscribe(begin.Base, 2, plentyBytes)
	for i := range ids {
		owner.archive(ids[i])
	}
	for range 20 { // what the follower's queue cannot hold
		owner.create("{}")
	}
	records := uint64(0)
	for cursor := begin.FirstCursor; cursor != nil; records++ {
		page, err := reader.nextPage(begin.SnapshotID, cursor)
		require.NoError(t, err)
		cursor = page.NextCursor
	}
	f, err := reader.next()
	require.NoError(t, err)
	end := f.(*frames.SnapshotEnd)
	require.Equal(t, end.RecordCount, records)
	require.EqualValues(t, 8+16, records, "8 objectives and the operations so far")

	gap, n := follower.gap()
	require.Equal(t, sub, gap.SubscriptionID)
	require.Equal(t, frames.GapQueueOverflow, gap.Reason)
	_, events := follower.replayed(gap, plentyEvents, plentyBytes)
	removed := 0
	for _, ev := range events {
		if ev.Kind == frames.EventObjectRemoved {
			removed++
		}
	}
	require.Equal(t, 8-(n+1)/2, removed, "two events for each archive, %d were delivered", n)
}

// daysAgo is a clock that is so many days behind.
type daysAgo struct {
	clock.Clock
	days int
}

func (c daysAgo) Now() clock.Reading {
	r := c.Clock.Now()
	r.Wall = r.Wall.AddDate(0, 0, -c.days)
	return r
}

// lookup asks for a result.
func (p *peer) lookup(op frames.OperationID) frames.OperationResult {
	p.t.Helper()
	p.send(&frames.GetOperationResult{RequestID: p.id(), Guard: p.guard, OperationID: op})
	f, err := p.next()
	require.NoError(p.t, err)
	return f.(*frames.OperationResultFrame).Operation
}

// becomes waits until an operation is in a state.
func (p *peer) becomes(op frames.OperationID, state frames.OperationState) frames.OperationResult {
	p.t.Helper()
	var last frames.OperationResult
	require.Eventually(p.t, func() bool {
		last = p.lookup(op)
		return last.State == state
	}, time.Minute, 20*time.Millisecond)
	return last
}

func TestResultsEndWithTheirRetention(t *testing.T) {
	r := newRig(t)
	r.opts.Clock = daysAgo{clock.System(), 62}
	r.start()
	p := r.connect(r.keys[0], offering(archiving))
	create, end := newID[frames.OperationID](t), newID[frames.OperationID](t)
	id := newID[frames.ObjectiveID](t)
	made := &frames.CreateObjective{ObjectiveID: id, Schema: 1, Document: []byte("{}")}
	_, err := p.command(frames.CommandCreateObjective, create, made)
	require.NoError(t, err)
	state := frames.ObjectiveCancelled
	_, err = p.command(frames.CommandUpdateObjective, end, &frames.UpdateObjective{ObjectiveID: id, Schema: 1, Document: []byte("{}"), State: &state})
	require.NoError(t, err)
	head := p.snapshot().begin.Base
	require.NoError(t, r.stop())

	r.opts.Clock = daysAgo{clock.System(), 31}
	r.start()
	p = r.connect(r.keys[0], offering(archiving))
	stone := p.becomes(create, frames.OperationTombstoned)
	require.Equal(t, frames.OperationSucceeded, stone.Final)
	p.becomes(end, frames.OperationTombstoned)
	got, err := p.command(frames.CommandCreateObjective, create, made)
	require.NoError(t, err)
	require.Equal(t, stone, got, "a retry learns that it was done")
	made.Document = []byte("[]")
	_, err = p.command(frames.CommandCreateObjective, create, made)
	require.ErrorContains(t, err, "OPERATION_CONFLICT")
	follower := r.connect(r.keys[0], following)
	follower.subscribe(head, plentyEvents, plentyBytes)
	for _, op := range []frames.OperationID{create, end} {
		ev := follower.event()
		require.Equal(t, frames.EventOperationChanged, ev.Kind)
		require.EqualValues(t, op, ev.Object.ID)
		require.EqualValues(t, 2, ev.Revision)
	}
	require.NoError(t, r.stop())

	r.opts.Clock = daysAgo{clock.System(), 0}
	r.start()
	p = r.connect(r.keys[0], offering(archiving))
	p.becomes(end, frames.OperationUnknown)
	require.Equal(t, frames.OperationTombstoned, p.lookup(create).State, "the objective remains")
	p.archive(id)
	p.becomes(create, frames.OperationUnknown)
	s := p.snapshot()
	require.Len(t, s.records, 1, "only the ARCHIVE is left")
	require.Equal(t, frames.KindOperation, s.records[0].Kind)
}
