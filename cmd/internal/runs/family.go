package runs

import (
	"context"
	"fmt"

	"coordinator/client"
	"coordinator/codec"
	"coordinator/frames"
)

// A Family is a run and all that belongs to it, as one snapshot or view shows it.
type Family struct {
	ID  frames.RunID
	Run frames.Run
	// Members are the records of the family, the run included, and their revisions.
	Members  map[frames.ObjectRef]frames.ObjectRevision
	Bindings []frames.Binding
	Evidence map[frames.BindingID]frames.Evidence
	Manifest map[frames.ArtifactID]frames.ArtifactManifest
	// Through, unless zero, is an event that History reads on to although every member has its
	// revision: facts that no record shows may follow it. If the key does not see that very event,
	// History ends once nothing more comes.
	Through frames.EventSequence
}

func newFamily(id frames.RunID) *Family {
	return &Family{ID: id, Members: map[frames.ObjectRef]frames.ObjectRevision{},
		Evidence: map[frames.BindingID]frames.Evidence{}, Manifest: map[frames.ArtifactID]frames.ArtifactManifest{}}
}

// Has reports whether a record belongs to the run: by itself or through what it names.
func (f *Family) Has(ref frames.ObjectRef, p codec.Message) bool {
	if ref == Ref(frames.KindRun, f.ID) {
		return true
	}
	if op, ok := p.(*frames.Operation); ok {
		for member := range f.Members {
			if Concerns(op.Result, member) {
				return true
			}
		}
		return false
	}
	if _, ok := p.(*frames.Run); ok {
		return false // another one, of the same objective
	}
	for _, parent := range Parents(p) {
		if _, ok := f.Members[parent]; ok {
			return true
		}
	}
	return false
}

// take takes a record that belongs to the run.
func (f *Family) take(ref frames.ObjectRef, revision frames.ObjectRevision, p codec.Message) {
	f.Members[ref] = revision
	switch p := p.(type) {
	case *frames.Run:
		f.Run = *p
	case *frames.Binding:
		f.Bindings = append(f.Bindings, *p)
	case *frames.Evidence:
		f.Evidence[frames.BindingID(ref.ID)] = *p
	case *frames.ArtifactManifest:
		f.Manifest[p.ArtifactID] = *p
	}
}

// FamilyIn finds what belongs to a run in a snapshot. A snapshot is in order of kinds, and only
// operations and manifests name what may come behind them or lies several steps off, so that
// it is gone through until nothing more is found.
func FamilyIn(snap *client.Snapshot, id frames.RunID) (*Family, error) {
	f := newFamily(id)
	for before := -1; before != len(f.Members); {
		before = len(f.Members)
		err := snap.Each(func(r frames.SnapshotRecord) error {
			if _, have := f.Members[r.Ref()]; have {
				return nil
			}
			r.Payload = append([]byte(nil), r.Payload...)
			p, err := r.DecodePayload()
			if err != nil {
				return fmt.Errorf("%v: %w", r.Ref(), err)
			}
			if f.Has(r.Ref(), p) {
				f.take(r.Ref(), r.Revision, p)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return f, nil
}

// FamilyOf is what a view holds of a run, without operations; nil when the run is not in it.
func FamilyOf(v *client.View, id frames.RunID) (*Family, error) {
	run := v.Get(frames.KindRun, frames.ObjectID(id))
	if run == nil {
		return nil, nil
	}
	f := newFamily(id)
	var err error
	take := func(r *client.Record) bool {
		p, derr := r.Decode()
		if derr != nil {
			err = fmt.Errorf("%v: %w", r.Ref(), derr)
			return false
		}
		f.take(r.Ref(), r.Revision(), p)
		return true
	}
	take(run)
	for session := range v.SessionsOf(id) {
		take(session)
		for _, kind := range []frames.ObjectKind{frames.KindBinding, frames.KindArtifact, frames.KindSignal, frames.KindEvidence} {
			for r := range v.Below(session.ID(), kind) {
				if !take(r) {
					return nil, err
				}
			}
		}
		for artifact := range v.Below(session.ID(), frames.KindArtifact) {
			for r := range v.Below(artifact.ID(), frames.KindArtifactManifest) {
				if !take(r) {
					return nil, err
				}
			}
		}
	}
	return f, err
}

// Binding is the run's binding: the active one, or the last where it had several. A run
// without one gives a *[client.RefusedError] with NOT_FOUND.
func (f *Family) Binding() (frames.Binding, error) {
	if len(f.Bindings) == 0 {
		return frames.Binding{}, &client.RefusedError{Code: frames.CodeNotFound,
			Message: fmt.Sprintf("run %v is %v and has no process: none was started, or this key may not see it", f.ID, f.Run.State)}
	}
	for _, b := range f.Bindings {
		if b.State == frames.StateActive {
			return b, nil
		}
	}
	return f.Bindings[len(f.Bindings)-1], nil
}

// History reads the event log up to where every member of the family has its revision, and
// visits each event with its record, nil for those that carry none. after is zero when the
// log is retained from its beginning; else what lies at or below is gone.
func (f *Family) History(ctx context.Context, c *client.Context, opts client.Options, visit func(*client.Event, *frames.SnapshotRecord) error) (after frames.EventCut, err error) {
	waiting := make(map[frames.ObjectRef]frames.ObjectRevision, len(f.Members))
	for ref, revision := range f.Members {
		waiting[ref] = revision
	}
	atRest := func() bool { return f.Through > 0 && len(waiting) == 0 }
	return client.ReadHistoryToRest(ctx, c, opts, atRest, func(e *client.Event) (bool, error) {
		r, carries, err := e.Record()
		if err != nil {
			return false, err
		}
		record := &r
		if !carries {
			record = nil
		}
		if err := visit(e, record); err != nil {
			return false, err
		}
		if want, ok := waiting[e.Object]; ok && e.Revision >= want {
			delete(waiting, e.Object)
		}
		return len(waiting) == 0 && e.Sequence >= f.Through, nil
	})
}

// Ledger is what the event log says about one binding of the family.
func (f *Family) Ledger(ctx context.Context, c *client.Context, opts client.Options, binding frames.BindingID) (l *client.Ledger, after frames.EventCut, err error) {
	l = client.NewLedger(c.CoordinatorID, binding)
	after, err = f.History(ctx, c, opts, func(e *client.Event, _ *frames.SnapshotRecord) error { return l.Take(e) })
	return l, after, err
}

// A TimelineEvent is one event of a run in words.
type TimelineEvent struct {
	Sequence frames.EventSequence
	Kind     frames.EventKind
	Object   frames.ObjectRef
	Text     string
	// Event is the event itself. It is the callee's to read and not to keep.
	Event *client.Event
}

// Timeline reads what happened to the run from the event log, and says what of it retention
// has removed. Events bear no time of day: their order is the log's.
func (f *Family) Timeline(ctx context.Context, c *client.Context, opts client.Options, tell func(TimelineEvent) error) (after frames.EventCut, err error) {
	seen := newFamily(f.ID)
	for ref := range f.Members {
		seen.Members[ref] = 0
	}
	return f.History(ctx, c, opts, func(e *client.Event, r *frames.SnapshotRecord) error {
		text := ""
		if r == nil {
			if _, mine := seen.Members[e.Object]; !mine {
				return nil
			}
			if text, err = FactText(e); err != nil {
				return err
			}
		} else {
			p, err := r.DecodePayload()
			if err != nil {
				return fmt.Errorf("event %d: %w", e.Sequence, err)
			}
			if _, mine := seen.Members[e.Object]; !mine && !seen.Has(e.Object, p) {
				return nil
			}
			seen.Members[e.Object] = 0
			text = RecordText(r, p)
		}
		return tell(TimelineEvent{e.Sequence, e.Kind, e.Object, text, e})
	})
}

// Ref names an object of a kind by its typed id.
func Ref[T ~[16]byte](kind frames.ObjectKind, id T) frames.ObjectRef {
	return frames.ObjectRef{Kind: kind, ID: frames.ObjectID(id)}
}

// Concerns reports whether a result names an object.
func Concerns(r frames.OperationResult, ref frames.ObjectRef) bool {
	if r.State != frames.OperationSucceeded {
		return false
	}
	switch r.Kind {
	case frames.ResultObjectRef:
		var named frames.ObjectRef
		return codec.DecodeImage(&named, r.Payload) == nil && named == ref
	case frames.ResultStarted:
		var s frames.Started
		if codec.DecodeImage(&s, r.Payload) != nil {
			return false
		}
		return ref == Ref(frames.KindRun, s.Run) || ref == Ref(frames.KindWorkSession, s.Session) || ref == Ref(frames.KindBinding, s.Binding)
	}
	return false
}

// Parents are the objects that a record says it belongs to.
func Parents(p codec.Message) []frames.ObjectRef {
	switch p := p.(type) {
	case *frames.Run:
		return []frames.ObjectRef{Ref(frames.KindObjective, p.ObjectiveID)}
	case *frames.WorkSession:
		return []frames.ObjectRef{Ref(frames.KindRun, p.RunID)}
	case *frames.Binding:
		return []frames.ObjectRef{Ref(frames.KindWorkSession, p.Binding.WorkSessionID)}
	case *frames.Artifact:
		return []frames.ObjectRef{Ref(frames.KindWorkSession, p.WorkSessionID)}
	case *frames.ArtifactManifest:
		return []frames.ObjectRef{Ref(frames.KindArtifact, p.ArtifactID)}
	case *frames.Signal:
		return []frames.ObjectRef{Ref(frames.KindWorkSession, p.WorkSessionID)}
	case *frames.Evidence:
		return []frames.ObjectRef{Ref(frames.KindWorkSession, p.WorkSessionID), Ref(frames.KindArtifact, p.ArtifactID)}
	}
	return nil
}
