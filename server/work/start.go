package work

import (
	"bytes"
	"math"

	"coordinator/codec"
	"coordinator/frames"
)

type startRun struct{ p frames.StartRun }

func parseStartRun(payload []byte, _ Viewer) (action, error) {
	a := &startRun{}
	if err := codec.Decode(&a.p, payload); err != nil {
		return nil, err
	}
	return a, checkSchema(a.p.ExecutorSchema)
}

// binding is the id that the run's binding will have.
func (a *startRun) binding() frames.BindingID { return frames.BindingID(a.p.PendingBindingID) }

func (a *startRun) refs() []frames.ObjectRef {
	run, session, binding := runRef(a.p.RunID), sessionRef(a.p.WorkSessionID), bindingRef(a.binding())
	return []frames.ObjectRef{
		objectiveRef(a.p.ObjectiveID), run, session, binding, claimRef(a.binding()), runsRef(a.p.ObjectiveID),
		usedRef(run), usedRef(session), usedRef(binding),
	}
}

// changes leaves the objective out, which the command decides on and does not change.
func (a *startRun) changes(*txn) ([]frames.ObjectRef, error) {
	return []frames.ObjectRef{runRef(a.p.RunID), sessionRef(a.p.WorkSessionID), bindingRef(a.binding())}, nil
}

// apply admits a run: RUN Planned, WORK_SESSION Active, the SPAWN READY in the outbox and
// the operation PENDING (protocol.md §7.2 [D-17] [D-35]).
func (a *startRun) apply(t *txn) (Outcome, error) {
	counts, err := a.check(t)
	if err != nil {
		return Outcome{}, err
	}
	effect, err := a.spawn(t)
	if err != nil {
		return Outcome{}, err
	}
	counts.Runs++
	counts.Unfinished++
	run := frames.Run{ObjectiveID: a.p.ObjectiveID, Attempt: counts.Runs, State: frames.RunPlanned}
	meta := runMeta{Session: a.p.WorkSessionID, Binding: a.binding(), Spawn: effect.Attempt.ID}
	if err := t.putRecord(frames.EventRunChanged, true, runRef(a.p.RunID), 1, &run, &meta); err != nil {
		return Outcome{}, err
	}
	session := frames.WorkSession{RunID: a.p.RunID, State: frames.StateActive}
	if err := t.putRecord(frames.EventWorkSessionChanged, true, sessionRef(a.p.WorkSessionID), 1, &session, nil); err != nil {
		return Outcome{}, err
	}
	claim := Claim{Run: a.p.RunID, Owner: a.p.Owner, Incarnation: a.p.OwnerIncarnation}
	if err := t.keep(claimRef(a.binding()), false, &claim); err != nil {
		return Outcome{}, err
	}
	if err := t.list(a.p.ObjectiveID, &counts, runRef(a.p.RunID)); err != nil {
		return Outcome{}, err
	}
	if err := t.keepCounts(a.p.ObjectiveID, &counts); err != nil {
		return Outcome{}, err
	}
	if err := t.keepEffect(effect); err != nil {
		return Outcome{}, err
	}
	t.charge(effect.Principal, 1)
	return t.pend()
}

// check is everything that START_RUN needs, in the order of [D-17].
func (a *startRun) check(t *txn) (counts runCounts, err error) {
	var obj frames.Objective
	_, found, err := t.load(objectiveRef(a.p.ObjectiveID), &obj, nil)
	switch {
	case err != nil:
		return counts, err
	case !found:
		return counts, frames.Refuse(frames.CodeNotFound, "no such objective")
	case obj.State != frames.ObjectiveActive:
		return counts, frames.Refuse(frames.CodeRevisionConflict, "the objective is no longer active")
	}
	for _, id := range []struct {
		ref  frames.ObjectRef
		what string
	}{
		{runRef(a.p.RunID), "run"}, {sessionRef(a.p.WorkSessionID), "work session"},
		{bindingRef(a.binding()), "binding"}, {claimRef(a.binding()), "binding"},
	} {
		taken, err := t.taken(id.ref)
		if err != nil {
			return counts, err
		}
		if taken {
			return counts, frames.Refuse(frames.CodeRevisionConflict, "the %s id is in use", id.what)
		}
	}
	if !t.env.owners().Serves(a.p.Owner, a.p.OwnerIncarnation, a.p.Group) {
		return counts, frames.Refuse(frames.CodeNotFound,
			"that owner is not connected in that incarnation, or does not serve that group; dial it to learn both")
	}
	if counts, err = t.counts(a.p.ObjectiveID); err != nil {
		return counts, err
	}
	if counts.Runs == math.MaxUint32 {
		return counts, ErrWrapped
	}
	return counts, nil
}

// spawn makes the effect of fields 3 to 9.
func (a *startRun) spawn(t *txn) (*Effect, error) {
	target := frames.EffectTarget{
		Tag: frames.TargetPendingSpawn, PendingBindingID: a.p.PendingBindingID,
		Owner: a.p.Owner, OwnerIncarnation: a.p.OwnerIncarnation, Group: a.p.Group,
	}
	payload, err := codec.EncodeImage(nil, &frames.SpawnPayload{
		WorkSessionID: a.p.WorkSessionID, ExecutorSchema: a.p.ExecutorSchema, Document: bytes.Clone(a.p.ExecutorDocument),
	})
	if err != nil {
		return nil, err
	}
	return t.newEffect(frames.EffectSpawn, target, payload, t.cmd.ID, t.cmd.From.Principal, a.p.RunID)
}

// newEffect makes a READY effect of a fresh attempt.
func (t *txn) newEffect(kind frames.EffectKind, target frames.EffectTarget, payload []byte, op frames.OperationID, principal frames.KeyID, run frames.RunID) (*Effect, error) {
	digest, err := frames.EffectDigest(kind, &target, payload)
	if err != nil {
		return nil, err
	}
	id, err := t.fresh()
	if err != nil {
		return nil, err
	}
	return &Effect{
		Attempt: frames.EffectAttempt{
			ID: id, OperationID: op, Kind: kind, Target: target, Digest: digest, Payload: payload, State: frames.EffectReady,
		},
		Principal: principal, Activation: t.env.Activation, Run: run,
	}, nil
}

func (t *txn) keepEffect(e *Effect) error { return t.keep(EffectRef(e.Attempt.ID), true, e) }

// dropEffect takes an effect out of the outbox: its operation is finished.
func (t *txn) dropEffect(e *Effect) {
	t.drop(EffectRef(e.Attempt.ID))
	t.charge(e.Principal, -1)
}

func (t *txn) effect(id frames.EffectAttemptID) (*Effect, bool, error) {
	e := new(Effect)
	found, err := t.kept("an effect", EffectRef(id), e)
	return e, found, err
}
