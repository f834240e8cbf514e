package client

import (
	"fmt"

	"coordinator/codec"
	"coordinator/frames"
)

// An Update is what a [Subscription] or [Follow] tells its consumer: an *[Event], a *[Gap],
// or, from Follow alone, a *[Synced] or a *[Healed].
type Update interface{ update() }

// An Event is one change, applied in order: its sequence follows that of the event before,
// and its object's revision is the one after that last seen (protocol.md §10).
type Event struct {
	Sequence frames.EventSequence
	ID       frames.EventID
	Kind     frames.EventKind
	Object   frames.ObjectRef
	Revision frames.ObjectRevision
	Schema   uint16
	// Payload is what the kind says: one SnapshotRecord image, a TerminalSourceFact, a
	// source gap, or for a removal the ObjectRef (protocol.md §7.1).
	Payload []byte
	// Delivery counts the events of one subscription; zero says that this one came by
	// replay.
	Delivery frames.DeliverySequence
}

func (*Event) update() {}

// Record is the record that the event carries. ok is false for the kinds that carry none:
// source facts, source gaps and removals.
func (e *Event) Record() (r frames.SnapshotRecord, ok bool, err error) {
	if !e.Kind.CarriesRecord() {
		return r, false, nil
	}
	if err := codec.DecodeImage(&r, e.Payload); err != nil {
		return r, false, fmt.Errorf("event %d: record: %w", e.Sequence, err)
	}
	return r, true, nil
}

// A Gap says that the view may have missed something since Last and is not current until
// it is healed. A subscription is paused by it; a connection that ends is one too.
type Gap struct {
	// Reason is the coordinator's; it counts when Cause is nil.
	Reason frames.GapReason
	// Last is the last event that was delivered, or the cut that the view began with.
	Last frames.EventCut
	// Observed is the first visible event that was dropped; zero when it is not known.
	Observed frames.EventSequence
	// Cause is why there is no connection; nil for a gap that the coordinator declared.
	Cause error
	// Attempt counts the failed attempts to connect again; zero for the gap itself.
	Attempt int
}

func (*Gap) update() {}

// String words the gap in one line.
func (g *Gap) String() string {
	if g.Cause != nil {
		return fmt.Sprintf("no connection since event %d: %v", g.Last, g.Cause)
	}
	if g.Observed != 0 {
		return fmt.Sprintf("%v after event %d, dropped from event %d on", g.Reason, g.Last, g.Observed)
	}
	return fmt.Sprintf("%v after event %d", g.Reason, g.Last)
}

// A Healed ends a gap without loss: every visible event after Last follows, once.
type Healed struct {
	// Replayed says that the log was replayed; otherwise the coordinator went on from Last.
	Replayed bool
	Last     frames.EventCut
	// Guard is the authority that the view now follows. Another one than before has been
	// verified with a snapshot, which showed that Last lies in its history.
	Guard frames.AuthorityGuard
}

func (*Healed) update() {}

// A Synced replaces the view by a verified snapshot: at the beginning, or where nothing
// less heals a gap. It is valid until the next update is asked for.
type Synced struct {
	*Snapshot
	// First is true at the beginning, when there was no view yet.
	First bool

	before map[frames.ObjectRef]frames.ObjectRevision
	now    map[frames.ObjectRef]frames.ObjectRevision
}

func (*Synced) update() {}

// Was is the revision of an object in the view that was replaced; zero says that it was
// not there.
func (s *Synced) Was(ref frames.ObjectRef) frames.ObjectRevision { return s.before[ref] }

// Removed visits the objects that were in the view before and are not in the snapshot, in
// no order.
func (s *Synced) Removed(visit func(frames.ObjectRef)) {
	for ref := range s.before {
		if _, there := s.now[ref]; !there {
			visit(ref)
		}
	}
}

// A ReplayError says in what way a replay contradicts itself. The connection is closed
// (protocol.md §10 [D-61]); nothing of the replay was shown. It matches [ErrProtocol].
type ReplayError struct{ Problem string }

func (e *ReplayError) Error() string        { return "replay does not verify: " + e.Problem }
func (e *ReplayError) Is(target error) bool { return target == ErrProtocol }

func badReplay(format string, a ...any) error { return &ReplayError{fmt.Sprintf(format, a...)} }

// A RevisionError says that an event does not follow what is known of its object. The
// connection is closed (protocol.md §10). It matches [ErrProtocol].
type RevisionError struct {
	Sequence  frames.EventSequence
	Object    frames.ObjectRef
	Have, Got frames.ObjectRevision
}

func (e *RevisionError) Error() string {
	return fmt.Sprintf("event %d takes %v from revision %d to %d", e.Sequence, e.Object, e.Have, e.Got)
}

// Is matches [ErrProtocol].
func (e *RevisionError) Is(target error) bool { return target == ErrProtocol }
