package work

import (
	"coordinator/codec"
	"coordinator/frames"
)

// A Dispatch says what to do with an attempt.
type Dispatch uint8

const (
	// DispatchNothing: the attempt is finished, or waits for its binding's end.
	DispatchNothing Dispatch = iota
	// DispatchSend: it is DISPATCHED by this decision and may be sent, once.
	DispatchSend
	// DispatchLookUp: it was, or may have been, sent, or must not be.
	DispatchLookUp
)

// MarkDispatched makes a READY attempt DISPATCHED, which must be durable before the first
// byte of it leaves (protocol.md §8.1). denied says that its principal no longer holds the
// scopes: it is then looked up and not sent [D-46].
func MarkDispatched(v View, id frames.EffectAttemptID, denied bool, env Env) (Outcome, Dispatch, error) {
	t := newTxn(v, env)
	effect, found, err := t.effect(id)
	switch {
	case err != nil || !found || !effect.Open():
		return Outcome{}, DispatchNothing, err
	case effect.Attempt.State == frames.EffectDispatched:
		return Outcome{}, DispatchLookUp, nil
	}
	effect.Attempt.State = frames.EffectDispatched
	what := DispatchSend
	if denied {
		effect.Mode, what = EffectDenied, DispatchLookUp
	}
	out, err := t.amended(t.keepEffect(effect))
	return out, what, err
}

// A Finding is what an owner says of an attempt, or what is known without asking it.
type Finding struct {
	// State is SUCCEEDED, REJECTED or INDETERMINATE; with Never it does not count.
	State frames.EffectState
	// Never says that the owner has never seen the attempt and never will [D-51].
	Never bool
	// Resource of a SPAWN that succeeded.
	Resource frames.ResourceID
	// Reason of INDETERMINATE.
	Reason frames.IndeterminateReason
	// Message of the owner, diagnostic only.
	Message string
}

// ApplyFinding finishes an attempt: the result, the binding that it creates and the final
// operation are one transaction (protocol.md §8.1). An attempt that is not in the outbox, or
// not open, changes nothing.
func ApplyFinding(v View, id frames.EffectAttemptID, f Finding, env Env) (Outcome, error) {
	t := newTxn(v, env)
	effect, found, err := t.effect(id)
	if err != nil || !found || !effect.Open() {
		return Outcome{}, err
	}
	sound, err := t.sound(effect)
	if err != nil {
		return Outcome{}, err
	}
	if !sound {
		return t.amended(t.invalid(effect))
	}
	if effect.Attempt.Kind == frames.EffectSpawn {
		return t.amended(t.spawned(effect, f))
	}
	return t.amended(t.killed(effect, f))
}

// CheckEffect finishes an attempt of an earlier activation that its run, its binding or its
// operation contradicts, as RECOVERY_STATE_INVALID [D-34]. It changes nothing else.
func CheckEffect(v View, id frames.EffectAttemptID, env Env) (Outcome, error) {
	t := newTxn(v, env)
	effect, found, err := t.effect(id)
	if err != nil || !found {
		return Outcome{}, err
	}
	sound, err := t.sound(effect)
	if err != nil || sound {
		return Outcome{}, err
	}
	return t.amended(t.invalid(effect))
}

// sound reports whether operation, run and binding are what the effect was made for.
func (t *txn) sound(e *Effect) (bool, error) {
	var op frames.Operation
	_, found, err := t.load(OperationRef(e.Attempt.OperationID), &op, nil)
	if err != nil || !found || op.Result.State != frames.OperationPending {
		return false, err
	}
	r, found, err := t.run(e.Run)
	if err != nil || !found || r.State.Terminal() {
		return false, err
	}
	if e.Attempt.Kind == frames.EffectSpawn {
		return r.meta.Spawn == e.Attempt.ID && r.State == frames.RunPlanned, nil
	}
	b, found, err := t.binding(r.meta.Binding)
	if err != nil || !found {
		return false, err
	}
	return b.active() && b.meta.Kill == e.Attempt.ID && b.Binding.Binding == e.Attempt.Target.Binding, nil
}

// invalid finishes what cannot be acted on. Nothing waits for the attempt any more, and a run
// that has not ended asks for attention as after any unknown outcome [D-24].
func (t *txn) invalid(e *Effect) error {
	const reason = frames.RecoveryStateInvalid
	var created []frames.ObjectRef
	r, found, err := t.run(e.Run)
	if err != nil {
		return err
	}
	if found && r.meta.Spawn == e.Attempt.ID {
		if r.meta.Cancel != (frames.OperationID{}) {
			t.complete(r.meta.Cancel, indeterminate(reason, e.Attempt.ID))
		}
		r.meta.Spawn, r.meta.Cancel = frames.EffectAttemptID{}, frames.OperationID{}
		if err := t.remember(r); err != nil {
			return err
		}
	}
	if found && !r.State.Terminal() && e.Attempt.Kind == frames.EffectSpawn {
		signal, err := t.raise(frames.SignalExecutionBlocked, r.meta.Session, frames.BindingID{},
			"the store contradicts itself about this run ("+reason.String()+"); cancelling the run closes it")
		if err != nil {
			return err
		}
		created = append(created, signalRef(signal))
	}
	if e.Attempt.Kind != frames.EffectSpawn {
		b, found, err := t.binding(e.Attempt.Target.Binding.BindingID)
		if err != nil {
			return err
		}
		if found && b.meta.Kill == e.Attempt.ID {
			b.meta.Kill = frames.EffectAttemptID{}
			if err := t.rewriteBinding(b); err != nil {
				return err
			}
		}
	}
	t.dropEffect(e)
	t.complete(e.Attempt.OperationID, indeterminate(reason, e.Attempt.ID), created...)
	return nil
}

// spawned finishes a SPAWN.
func (t *txn) spawned(e *Effect, f Finding) error {
	r, _, err := t.run(e.Run)
	if err != nil {
		return err
	}
	switch {
	case f.Never:
		code, why := frames.CodeInternal, "the owner never saw the spawn"
		switch {
		case e.Mode == EffectVoided:
			code, why = frames.CodeRevisionConflict, "the run was cancelled before it was started"
		case e.Mode == EffectDenied:
			code, why = frames.CodeScopeDenied, "the grant no longer held the scopes when the run was to be started"
		case e.Attempt.State == frames.EffectReady:
			code, why = frames.CodeNotFound, "the owner's incarnation was gone before the run was started"
		}
		return t.spawnRejected(e, r, code, why)
	case f.State == frames.EffectSucceeded:
		return t.spawnSucceeded(e, r, f.Resource)
	case f.State == frames.EffectRejected:
		return t.spawnRejected(e, r, frames.CodeInternal, explain("the owner refused to start the process", f.Message))
	}
	return t.spawnUnknown(e, r, f.Reason)
}

// explain adds what the owner said, which is diagnostic and never trusted to be short.
func explain(what, owner string) string {
	if owner == "" {
		return what
	}
	return what + ": " + owner
}

// spawnSucceeded makes the binding under the pending id. A CANCEL_RUN that waited for it gets
// its KILL in the same transaction [D-30].
func (t *txn) spawnSucceeded(e *Effect, r *run, resource frames.ResourceID) error {
	target := &e.Attempt.Target
	ref := frames.TerminalBindingRef{
		BindingID: r.meta.Binding, WorkSessionID: r.meta.Session, Owner: target.Owner,
		OwnerIncarnation: target.OwnerIncarnation, Resource: resource,
	}
	place, err := resourceRef(&ref)
	if err != nil {
		return err
	}
	if _, taken, err := t.Record(place); err != nil {
		return err
	} else if taken { // two processes cannot be one resource: the answer proves nothing
		return t.spawnUnknown(e, r, frames.TargetOutcomeUnknown)
	}
	seal, err := frames.NewEvidenceSeal(t.env.Coordinator, ref.BindingID).AppendState(nil)
	if err != nil {
		return err
	}
	b := &binding{
		ref: bindingRef(ref.BindingID), Binding: frames.Binding{Binding: ref, State: frames.StateActive},
		meta: bindingMeta{Run: e.Run, Seal: seal},
	}
	if r.meta.Cancel != (frames.OperationID{}) {
		cancel, _, err := t.Record(OperationRef(r.meta.Cancel))
		if err != nil {
			return err
		}
		if err := t.addKill(b, frames.EndCancelled, r.meta.Cancel, cancel.Principal); err != nil {
			return err
		}
	}
	if err := t.putBinding(frames.EventBindingOpened, b); err != nil {
		return err
	}
	if err := t.session(r.meta.Session, frames.StateActive, ref.BindingID); err != nil {
		return err
	}
	r.State, r.meta.Spawn, r.meta.Cancel = frames.RunRunning, frames.EffectAttemptID{}, frames.OperationID{}
	if err := t.putRun(r); err != nil {
		return err
	}
	if err := t.keep(place, true, &signalMeta{Binding: ref.BindingID}); err != nil {
		return err
	}
	t.drop(claimRef(ref.BindingID))
	t.dropEffect(e)
	started, err := codec.EncodeImage(nil, &frames.Started{Run: e.Run, Session: r.meta.Session, Binding: ref.BindingID})
	if err != nil {
		return err
	}
	t.complete(e.Attempt.OperationID, success{kind: frames.ResultStarted, payload: started}.result(), b.ref)
	return nil
}

// spawnRejected ends a run that never had a process: Failed, or Cancelled when a CANCEL_RUN
// waited for it [D-30] [D-34].
func (t *txn) spawnRejected(e *Effect, r *run, code frames.Code, why string) error {
	cancel := r.meta.Cancel
	state := frames.RunFailed
	if cancel != (frames.OperationID{}) {
		state = frames.RunCancelled
	}
	if err := t.session(r.meta.Session, frames.StateEnded, frames.BindingID{}); err != nil {
		return err
	}
	if err := t.endRun(r, state, nil); err != nil {
		return err
	}
	if err := t.unclaim(r); err != nil {
		return err
	}
	t.dropEffect(e)
	t.complete(e.Attempt.OperationID, rejected(code, "%s", why))
	if cancel != (frames.OperationID{}) {
		t.complete(cancel, noResult().result())
	}
	return nil
}

// spawnUnknown leaves the run Planned and its session Active, because nobody knows, and asks
// for attention [D-24].
func (t *txn) spawnUnknown(e *Effect, r *run, reason frames.IndeterminateReason) error {
	cancel := r.meta.Cancel
	r.meta.Spawn, r.meta.Cancel = frames.EffectAttemptID{}, frames.OperationID{}
	if err := t.remember(r); err != nil {
		return err
	}
	signal, err := t.raise(frames.SignalExecutionBlocked, r.meta.Session, frames.BindingID{},
		"nobody can tell whether the process was started ("+reason.String()+"); cancelling the run closes it")
	if err != nil {
		return err
	}
	t.dropEffect(e)
	t.complete(e.Attempt.OperationID, indeterminate(reason, e.Attempt.ID), signalRef(signal))
	if cancel != (frames.OperationID{}) {
		t.complete(cancel, indeterminate(reason, e.Attempt.ID))
	}
	return nil
}

// killed takes the outcome of a KILL, which ends nothing by itself [D-29].
func (t *txn) killed(e *Effect, f Finding) error {
	if !f.Never && f.State == frames.EffectSucceeded {
		e.Attempt.State = frames.EffectSucceeded
		return t.keepEffect(e)
	}
	b, _, err := t.binding(e.Attempt.Target.Binding.BindingID)
	if err != nil {
		return err
	}
	b.meta.Kill = frames.EffectAttemptID{}
	if err := t.rewriteBinding(b); err != nil {
		return err
	}
	t.dropEffect(e)
	result := indeterminate(f.Reason, e.Attempt.ID)
	switch {
	case f.Never && e.Mode == EffectDenied:
		result = rejected(frames.CodeScopeDenied, "the grant no longer held the scopes when the process was to be ended")
	case f.Never:
		result = rejected(frames.CodeNotFound, "the owner never saw the kill")
	case f.State == frames.EffectRejected:
		result = rejected(frames.CodeNotFound, "%s", explain("the owner has no such process", f.Message))
	}
	t.complete(e.Attempt.OperationID, result)
	return nil
}

// LoseEffect finishes an attempt whose owner was removed from the configuration [D-31]: what
// may have left is INDETERMINATE, what certainly did not is REJECTED. A KILL finishes with
// its binding.
func LoseEffect(v View, id frames.EffectAttemptID, env Env) (Outcome, error) {
	t := newTxn(v, env)
	e, found, err := t.effect(id)
	if err != nil || !found || !e.Open() || e.Attempt.Kind != frames.EffectSpawn {
		return Outcome{}, err
	}
	sound, err := t.sound(e)
	if err != nil {
		return Outcome{}, err
	}
	if !sound {
		return t.amended(t.invalid(e))
	}
	r, _, err := t.run(e.Run)
	if err != nil {
		return Outcome{}, err
	}
	if e.begun(env.Activation) {
		return t.amended(t.spawnUnknown(e, r, frames.TargetOutcomeUnknown))
	}
	return t.amended(t.spawnRejected(e, r, frames.CodeNotFound, "the owner was removed before the run was started"))
}
