package client

import (
	"fmt"

	"coordinator/codec"
	"coordinator/frames"
)

// knowledge is what the consumer of a subscription knows of each object: at least enough to
// tell that no event is missing. It belongs to that consumer.
type knowledge interface {
	// apply holds an event against what is known and takes it in.
	apply(*Event) error
	// outgrown reports whether so much was added since the snapshot that a new one should
	// replace it: what the coordinator has pruned since is told by nothing else.
	outgrown() bool
}

// outgrowth is how much knowledge may always grow, and beyond that to twice what it was.
const outgrowth = 1 << 20

func outgrown(now, loaded int) bool { return now > 2*loaded+outgrowth }

// known is what a follower that keeps revisions alone knows; another's is nil.
func known(k knowledge) map[frames.ObjectRef]frames.ObjectRevision {
	if r, ok := k.(*revisions); ok {
		return r.known
	}
	return nil
}

// revisions is the knowledge of a consumer that keeps no records.
type revisions struct {
	known map[frames.ObjectRef]frames.ObjectRevision
	// whole says that an object which is not known does not exist. Otherwise the first
	// event of an object sets its revision.
	whole  bool
	loaded int                   // how many the snapshot had
	record frames.SnapshotRecord // scratch of apply
}

func newRevisions(whole bool) *revisions {
	return &revisions{known: map[frames.ObjectRef]frames.ObjectRevision{}, whole: whole}
}

// revisionsOf is what a snapshot shows.
func revisionsOf(s *Snapshot) (*revisions, error) {
	r := &revisions{known: make(map[frames.ObjectRef]frames.ObjectRevision, min(s.Records, 1<<20)), whole: true}
	err := s.Each(func(rec frames.SnapshotRecord) error {
		r.known[rec.Ref()] = rec.Revision
		return nil
	})
	r.loaded = len(r.known)
	return r, err
}

// outgrown implements [knowledge].
func (r *revisions) outgrown() bool { return outgrown(len(r.known), r.loaded) }

// apply holds an event against the view and takes it in (protocol.md §10): the revision
// must be the next one. Source facts and gaps raise it like any other event [D-16].
func (r *revisions) apply(e *Event) error {
	have, known := r.known[e.Object]
	if (known || r.whole) && e.Revision != have+1 {
		return &RevisionError{Sequence: e.Sequence, Object: e.Object, Have: have, Got: e.Revision}
	}
	if err := carries(e, &r.record); err != nil {
		return fmt.Errorf("%w: event %d: %w", ErrProtocol, e.Sequence, err)
	}
	r.record.Payload = nil // which is the event's
	if e.Kind == frames.EventObjectRemoved {
		delete(r.known, e.Object)
		return nil
	}
	r.known[e.Object] = e.Revision
	return nil
}

// carries checks that a record inside an event is that of the event's object and revision.
// It is decoded into r.
func carries(e *Event, r *frames.SnapshotRecord) error {
	switch {
	case e.Kind.CarriesRecord():
		if err := codec.DecodeImage(r, e.Payload); err != nil {
			return fmt.Errorf("record: %w", err)
		}
		if r.Ref() != e.Object || r.Revision != e.Revision {
			return fmt.Errorf("it carries %v at revision %d", r.Ref(), r.Revision)
		}
	case e.Kind == frames.EventObjectRemoved:
		var ref frames.ObjectRef
		if err := codec.DecodeImage(&ref, e.Payload); err != nil {
			return fmt.Errorf("removed object: %w", err)
		}
		if ref != e.Object {
			return fmt.Errorf("it removes %v", ref)
		}
	case e.Object.Kind != frames.KindBinding:
		return fmt.Errorf("a %v of %v", e.Kind, e.Object) // [D-16]
	}
	return nil
}
