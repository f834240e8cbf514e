package work

import (
	"coordinator/codec"
	"coordinator/frames"
)

type endBinding struct{ p frames.EndBinding }

func parseEndBinding(payload []byte, _ Viewer) (action, error) {
	a := &endBinding{}
	return a, codec.Decode(&a.p, payload)
}

func (a *endBinding) refs() []frames.ObjectRef {
	return []frames.ObjectRef{bindingRef(a.p.BindingID)}
}

// changes are the binding with its session and its run.
func (a *endBinding) changes(t *txn) ([]frames.ObjectRef, error) {
	b, found, err := t.binding(a.p.BindingID)
	if err != nil || !found {
		return a.refs(), err
	}
	return []frames.ObjectRef{b.ref, sessionRef(b.Binding.Binding.WorkSessionID), runRef(b.meta.Run)}, nil
}

// apply kills the process of a connected owner, and ends the binding at once when nobody can
// be asked to [D-17].
func (a *endBinding) apply(t *txn) (Outcome, error) {
	b, found, err := t.binding(a.p.BindingID)
	if err != nil {
		return Outcome{}, err
	}
	if !found {
		return Outcome{}, frames.Refuse(frames.CodeNotFound, "no such binding")
	}
	if !b.active() {
		return Outcome{}, frames.Refuse(frames.CodeRevisionConflict, "the binding has ended")
	}
	ref := &b.Binding.Binding
	connected := t.env.owners().Connected(ref.Owner, ref.OwnerIncarnation)
	switch {
	case !connected:
		if err := t.endOtherwise(b, a.p.Reason); err != nil {
			return Outcome{}, err
		}
		return t.finish(noResult())
	case a.p.Reason == frames.EndOwnerLost:
		return Outcome{}, frames.Refuse(frames.CodeRevisionConflict, "the binding's owner is connected")
	case b.meta.Kill != (frames.EffectAttemptID{}):
		return Outcome{}, frames.Refuse(frames.CodeRevisionConflict, "the binding is being ended already")
	}
	return t.kill(b, a.p.Reason)
}

// kill leaves the command PENDING behind a KILL that is READY.
func (t *txn) kill(b *binding, reason frames.EndReason) (Outcome, error) {
	if err := t.addKill(b, reason, t.cmd.ID, t.cmd.From.Principal); err != nil {
		return Outcome{}, err
	}
	if err := t.rewriteBinding(b); err != nil {
		return Outcome{}, err
	}
	return t.pend()
}

// addKill makes the KILL of a command and notes it in the annex of b, which the caller puts.
func (t *txn) addKill(b *binding, reason frames.EndReason, op frames.OperationID, principal frames.KeyID) error {
	target := frames.EffectTarget{Tag: frames.TargetActiveBinding, Binding: b.Binding.Binding}
	effect, err := t.newEffect(frames.EffectKill, target, []byte{}, op, principal, b.meta.Run)
	if err != nil {
		return err
	}
	effect.Reason = reason
	b.meta.Kill = effect.Attempt.ID
	t.charge(principal, 1)
	return t.keepEffect(effect)
}

// runStateOf is what a run becomes when its binding ends for a reason [D-17].
func runStateOf(reason frames.EndReason) frames.RunState {
	switch reason {
	case frames.EndCompleted:
		return frames.RunCompleted
	case frames.EndCancelled:
		return frames.RunCancelled
	}
	return frames.RunFailed
}

// endOtherwise ends a binding without CLOSED: the gap that says so, then binding, session and
// run, and what waited for a KILL [D-29].
func (t *txn) endOtherwise(b *binding, reason frames.EndReason) error {
	gap := frames.SourceGap{BindingID: b.id(), Expected: b.meta.Last + 1, Observed: b.meta.Last, Reason: frames.SourceGapEnded}
	if gap.Expected == 0 {
		return ErrWrapped
	}
	if err := t.touch(frames.EventSourceGap, b, &gap); err != nil {
		return err
	}
	kill := b.meta.Kill
	if err := t.endBinding(b, reason, nil); err != nil {
		return err
	}
	effect, found, err := t.effect(kill)
	if err != nil || !found {
		return err
	}
	result := indeterminate(frames.TargetOutcomeUnknown, kill)
	switch {
	case effect.Attempt.State == frames.EffectSucceeded:
		result = noResult().result()
	case !effect.begun(t.env.Activation):
		result = rejected(frames.CodeRevisionConflict, "the binding ended before its process was asked to")
	}
	t.dropEffect(effect)
	t.complete(effect.Attempt.OperationID, result)
	return nil
}

// endBinding puts the end of binding, session and run, and forgets what only an active
// binding needs. The outcome is that of CLOSED, nil without it.
func (t *txn) endBinding(b *binding, reason frames.EndReason, outcome []byte) error {
	for n := range min(b.meta.Count, RetainedDigests) {
		t.drop(digestRef(b.id(), n))
	}
	ref, err := resourceRef(&b.Binding.Binding)
	if err != nil {
		return err
	}
	t.drop(ref)
	b.State, b.Reason = frames.StateEnded, &reason
	b.meta.Kill, b.meta.Blocked, b.meta.Failed = frames.EffectAttemptID{}, frames.SignalID{}, frames.SignalID{}
	b.meta.Seal, b.meta.Spans = nil, nil
	if err := t.putBinding(frames.EventBindingEnded, b); err != nil {
		return err
	}
	if err := t.session(b.Binding.Binding.WorkSessionID, frames.StateEnded, frames.BindingID{}); err != nil {
		return err
	}
	r, found, err := t.run(b.meta.Run)
	if err != nil || !found || r.State.Terminal() {
		return err
	}
	return t.endRun(r, runStateOf(reason), outcome)
}

// LoseBinding ends a binding whose owner is gone for good, once nothing of its facts is left
// to come [D-31] [D-53]. One that has ended stays as it is.
func LoseBinding(v View, id frames.BindingID, env Env) (Outcome, error) {
	t := newTxn(v, env)
	b, found, err := t.binding(id)
	if err != nil || !found || !b.active() {
		return Outcome{}, err
	}
	return t.amended(t.endOtherwise(b, frames.EndOwnerLost))
}
