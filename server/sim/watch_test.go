package sim

import (
	"fmt"

	"coordinator/frames"
)

// A watch reads along on one wire and holds what the coordinator sends against the rules
// that need no knowledge of its state: deliveries are exact-next, every event is covered by
// credit that has arrived, and nothing follows a GAP that is not healed (protocol.md §10).
// Its fields are guarded by the wire's mu.
type watch struct {
	wire    *wire
	subs    map[frames.SubscriptionID]*watched
	asked   map[frames.RequestID]frames.Frame // requests without a terminal reply
	certain map[frames.RequestID]bool         // lookups of what had been acknowledged
	acts    []string                          // what only the authority in force may do, since the last look
	told    []told                            // results, since the last look
	fault   error
	gaps    int // since the last look
}

// told is an operation result that the coordinator put on the wire.
type told struct {
	op     frames.OperationID
	result frames.OperationResult
	acked  bool // it had been acknowledged when it was looked up
}

// watched is one subscription.
type watched struct {
	live     bool
	gapped   bool // since the last BEGIN
	opened   bool // it has been live
	delivery frames.DeliveryCut
	event    frames.EventCut
	count    uint64
	bytes    uint64
	applied  frames.EventCut // of the replay under way
}

func (v *watch) init(w *wire) {
	v.wire, v.subs = w, map[frames.SubscriptionID]*watched{}
	v.asked, v.certain = map[frames.RequestID]frames.Frame{}, map[frames.RequestID]bool{}
}

func (v *watch) failf(format string, args ...any) {
	if v.fault == nil {
		v.fault = fmt.Errorf("connection %d: "+format, append([]any{v.wire.id}, args...)...)
	}
}

// arrived takes a frame that has reached the coordinator.
func (v *watch) arrived(frame []byte) {
	f, err := frames.Decode(frames.Type(frame[4]), frame[5:])
	if err != nil {
		v.failf("the client sent %v, which does not decode: %v", frames.Type(frame[4]), err)
		return
	}
	switch f := f.(type) {
	case *frames.CoordCommand:
		v.asked[f.RequestID] = f
	case *frames.GetOperationResult:
		v.asked[f.RequestID] = f
		_, v.certain[f.RequestID] = v.wire.lineage.acked[f.OperationID]
	case *frames.OpenSnapshot:
		v.asked[f.RequestID] = f
	case *frames.SnapshotApplied:
		v.asked[f.RequestID] = f
	case *frames.Subscribe:
		v.asked[f.RequestID] = f
	case *frames.OpenReplay:
		v.asked[f.RequestID] = f
	case *frames.ReplayApplied:
		v.asked[f.RequestID] = f
	case *frames.SnapshotNext:
		v.asked[f.RequestID] = f
	case *frames.ReplayNext:
		v.asked[f.RequestID] = f
	case *frames.Credit:
		if s := v.subs[f.SubscriptionID]; s != nil && s.live {
			s.count += uint64(f.AddCount)
			s.bytes += uint64(f.AddBytes)
		}
	}
}

// sent takes a frame that the coordinator has handed to the network.
func (v *watch) sent(frame []byte) {
	f, err := frames.Decode(frames.Type(frame[4]), frame[5:])
	if err != nil {
		v.failf("the coordinator sent %v, which does not decode: %v", frames.Type(frame[4]), err)
		return
	}
	switch f := f.(type) {
	case *frames.CoordError, *frames.Ping, *frames.Pong, *frames.AuthorityRenewed, *frames.WorkloadChallenge:
		if e, ok := f.(*frames.CoordError); ok {
			delete(v.asked, e.RequestID)
		}
		return
	case *frames.Gap:
		v.gap(f)
		return
	case *frames.CoordEvent:
		v.event(f, uint64(len(frame)))
	case *frames.Subscribed:
		v.subscribed(f)
	case *frames.SnapshotBegin:
		v.snapshot(f)
	case *frames.SnapshotPage:
		v.answered(f.RequestID, f.NextCursor != nil) // else END does
	case *frames.SnapshotEnd:
		v.answered(f.RequestID, true)
	case *frames.ReplayPage:
		v.answered(f.RequestID, f.NextCursor != nil)
	case *frames.ReplayEnd:
		v.answered(f.RequestID, true)
	case *frames.ReplayBegin:
		v.answered(f.RequestID, f.FirstCursor != nil)
		if s := v.subs[f.SubscriptionID]; s == nil || s.live {
			v.failf("a replay of a subscription that is not paused")
		} else {
			s.gapped, s.applied = false, f.Cut
		}
	case *frames.Ack:
		v.acked(f)
	case *frames.CoordCommandResult:
		if q, ok := v.asked[f.RequestID].(*frames.CoordCommand); ok {
			v.told = append(v.told, told{op: q.OperationID, result: f.Operation})
		} else {
			v.failf("a result of request %d, which is no command", f.RequestID)
		}
		delete(v.asked, f.RequestID)
	case *frames.OperationResultFrame:
		if q, ok := v.asked[f.RequestID].(*frames.GetOperationResult); ok {
			v.told = append(v.told, told{q.OperationID, f.Operation, v.certain[f.RequestID]})
		} else {
			v.failf("a result of request %d, which is no lookup", f.RequestID)
		}
		delete(v.asked, f.RequestID)
	}
	v.acts = append(v.acts, f.Type().String())
}

// answered notes that a reply was the last one of its request.
func (v *watch) answered(id frames.RequestID, last bool) {
	if last {
		delete(v.asked, id)
	}
}

func (v *watch) subscribed(f *frames.Subscribed) {
	q, ok := v.asked[f.RequestID].(*frames.Subscribe)
	if !ok || v.subs[f.SubscriptionID] != nil || f.NextDelivery != 1 {
		v.failf("SUBSCRIBED out of turn: %+v", f)
		return
	}
	delete(v.asked, f.RequestID)
	v.subs[f.SubscriptionID] = &watched{live: true, opened: true, event: q.After, count: uint64(q.CreditCount), bytes: uint64(q.CreditBytes)}
}

func (v *watch) snapshot(f *frames.SnapshotBegin) {
	q, ok := v.asked[f.RequestID].(*frames.OpenSnapshot)
	if !ok {
		v.failf("SNAPSHOT_BEGIN out of turn: %+v", f)
		return
	}
	v.answered(f.RequestID, f.FirstCursor != nil)
	if q.Reserve != (f.SubscriptionID != frames.SubscriptionID{}) || v.subs[f.SubscriptionID] != nil {
		v.failf("SNAPSHOT_BEGIN reserves %v", f.SubscriptionID)
		return
	}
	if q.Reserve {
		delete(v.subs, q.Replace)
		v.subs[f.SubscriptionID] = &watched{event: f.Base}
	}
}

// acked makes a subscription live again, unless a GAP came since BEGIN [D-61].
func (v *watch) acked(f *frames.Ack) {
	var id frames.SubscriptionID
	var count, bytes uint32
	applied := frames.EventCut(0)
	switch q := v.asked[f.RequestID].(type) {
	case *frames.SnapshotApplied:
		id, count, bytes = q.SubscriptionID, q.CreditCount, q.CreditBytes
	case *frames.ReplayApplied:
		id, count, bytes = q.SubscriptionID, q.CreditCount, q.CreditBytes
		if s := v.subs[id]; s != nil {
			applied = s.applied
		}
	default:
		v.failf("ACK of request %d, which has none", f.RequestID)
	}
	delete(v.asked, f.RequestID)
	if s := v.subs[id]; s != nil && !s.gapped {
		s.live, s.opened, s.event = true, true, max(s.event, applied)
		s.count, s.bytes = uint64(count), uint64(bytes)
	}
}

func (v *watch) event(f *frames.CoordEvent, size uint64) {
	s := v.subs[f.SubscriptionID]
	switch {
	case s == nil:
		v.failf("event %d for no subscription", f.Sequence)
	case !s.live:
		v.failf("event %d after a GAP or before a beginning", f.Sequence)
	case f.Delivery != frames.DeliverySequence(s.delivery)+1:
		v.failf("delivery %d after %d", f.Delivery, s.delivery)
	case f.Sequence <= frames.EventSequence(s.event):
		v.failf("event %d after %d", f.Sequence, s.event)
	case s.count == 0 || s.bytes < size:
		v.failf("event %d is not covered by credit: %d events and %d bytes are left", f.Sequence, s.count, s.bytes)
	default:
		s.delivery, s.event = frames.DeliveryCut(f.Delivery), frames.EventCut(f.Sequence)
		s.count--
		s.bytes -= size
	}
}

func (v *watch) gap(f *frames.Gap) {
	s := v.subs[f.SubscriptionID]
	if s == nil {
		v.failf("a GAP of no subscription")
		return
	}
	if s.live && (f.LastDelivery != s.delivery || f.LastEvent != s.event) {
		v.failf("a GAP after delivery %d of event %d, and the last one was %d of %d", f.LastDelivery, f.LastEvent, s.delivery, s.event)
	}
	s.live, s.gapped = false, true
	v.gaps++
}
