package work

import (
	"bytes"

	"coordinator/codec"
	"coordinator/frames"
)

func objectiveRef(id frames.ObjectiveID) frames.ObjectRef {
	return frames.ObjectRef{Kind: frames.KindObjective, ID: frames.ObjectID(id)}
}

type createObjective struct{ p frames.CreateObjective }

func parseCreateObjective(payload []byte, _ Viewer) (action, error) {
	a := &createObjective{}
	if err := codec.Decode(&a.p, payload); err != nil {
		return nil, err
	}
	return a, checkSchema(a.p.Schema)
}

func (a *createObjective) refs() []frames.ObjectRef {
	ref := objectiveRef(a.p.ObjectiveID)
	return []frames.ObjectRef{ref, usedRef(ref)}
}

func (a *createObjective) apply(t *txn) (Outcome, error) {
	ref := objectiveRef(a.p.ObjectiveID)
	taken, err := t.taken(ref)
	if err != nil {
		return Outcome{}, err
	}
	if taken {
		return Outcome{}, frames.Refuse(frames.CodeRevisionConflict, "the objective id is in use")
	}
	obj := frames.Objective{DocumentSchema: a.p.Schema, Document: bytes.Clone(a.p.Document), State: frames.ObjectiveActive}
	return t.putObjective(ref, 1, obj)
}

type updateObjective struct{ p frames.UpdateObjective }

func parseUpdateObjective(payload []byte, from Viewer) (action, error) {
	a := &updateObjective{}
	if err := codec.Decode(&a.p, payload); err != nil {
		return nil, err
	}
	if a.p.State != nil && !from.Capabilities.Has(frames.CapObjectiveLifecycle) {
		return nil, frames.Refuse(frames.CodeCapabilityRequired, "the state of an objective needs OBJECTIVE_LIFECYCLE")
	}
	return a, checkSchema(a.p.Schema)
}

func (a *updateObjective) refs() []frames.ObjectRef {
	return []frames.ObjectRef{objectiveRef(a.p.ObjectiveID), runsRef(a.p.ObjectiveID)}
}

func (a *updateObjective) apply(t *txn) (Outcome, error) {
	ref := objectiveRef(a.p.ObjectiveID)
	var obj frames.Objective
	stored, found, err := t.load(ref, &obj, nil)
	if err != nil {
		return Outcome{}, err
	}
	if !found {
		return Outcome{}, frames.Refuse(frames.CodeNotFound, "no such objective")
	}
	if obj.State != frames.ObjectiveActive {
		return Outcome{}, frames.Refuse(frames.CodeRevisionConflict, "the objective is no longer active")
	}
	if a.p.State != nil {
		counts, err := t.counts(a.p.ObjectiveID)
		if err != nil {
			return Outcome{}, err
		}
		if counts.Unfinished > 0 {
			return Outcome{}, frames.Refuse(frames.CodeRevisionConflict, "the objective has runs that have not ended")
		}
		obj.State = *a.p.State
	}
	rev, err := nextRevision(stored.Record.Revision)
	if err != nil {
		return Outcome{}, err
	}
	obj.DocumentSchema, obj.Document = a.p.Schema, bytes.Clone(a.p.Document)
	return t.putObjective(ref, rev, obj)
}

// putObjective writes a version of an objective; active ones are live.
func (t *txn) putObjective(ref frames.ObjectRef, rev frames.ObjectRevision, obj frames.Objective) (Outcome, error) {
	live := obj.State == frames.ObjectiveActive
	if err := t.putRecord(frames.EventObjectiveChanged, live, ref, rev, &obj, nil); err != nil {
		return Outcome{}, err
	}
	result, err := objectResult(ref)
	if err != nil {
		return Outcome{}, err
	}
	return t.finish(result)
}
