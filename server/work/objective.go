package work

import (
	"bytes"
	"fmt"

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
	return []frames.ObjectRef{objectiveRef(a.p.ObjectiveID)}
}

func (a *createObjective) apply(t *txn) (success, error) {
	ref := objectiveRef(a.p.ObjectiveID)
	_, found, err := t.view.Record(ref)
	if err != nil {
		return success{}, err
	}
	if found {
		return success{}, frames.Refuse(frames.CodeRevisionConflict, "the objective id is in use")
	}
	obj := frames.Objective{DocumentSchema: a.p.Schema, Document: bytes.Clone(a.p.Document), State: frames.ObjectiveActive}
	return t.putObjective(ref, 1, obj, objectiveMeta{})
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
	return []frames.ObjectRef{objectiveRef(a.p.ObjectiveID)}
}

func (a *updateObjective) apply(t *txn) (success, error) {
	ref := objectiveRef(a.p.ObjectiveID)
	stored, found, err := t.view.Record(ref)
	if err != nil {
		return success{}, err
	}
	if !found {
		return success{}, frames.Refuse(frames.CodeNotFound, "no such objective")
	}
	var obj frames.Objective
	if err := codec.Decode(&obj, stored.Record.Payload); err != nil {
		return success{}, fmt.Errorf("work: stored objective: %w", err)
	}
	meta, err := decodeObjectiveMeta(stored.Annex)
	if err != nil {
		return success{}, err
	}
	if obj.State != frames.ObjectiveActive {
		return success{}, frames.Refuse(frames.CodeRevisionConflict, "the objective is no longer active")
	}
	if a.p.State != nil {
		if meta.Unfinished > 0 {
			return success{}, frames.Refuse(frames.CodeRevisionConflict, "the objective has runs that have not ended")
		}
		obj.State = *a.p.State
	}
	rev, err := nextRevision(stored.Record.Revision)
	if err != nil {
		return success{}, err
	}
	obj.DocumentSchema, obj.Document = a.p.Schema, bytes.Clone(a.p.Document)
	return t.putObjective(ref, rev, obj, meta)
}

// putObjective writes a version of an objective; active ones are live.
func (t *txn) putObjective(ref frames.ObjectRef, rev frames.ObjectRevision, obj frames.Objective, meta objectiveMeta) (success, error) {
	record, err := frames.NewRecord(ref, rev, &obj)
	if err != nil {
		return success{}, err
	}
	live := obj.State == frames.ObjectiveActive
	if err := t.put(frames.EventObjectiveChanged, live, Stored{Record: record, Annex: meta.encode()}); err != nil {
		return success{}, err
	}
	return objectResult(ref)
}
