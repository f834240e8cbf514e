package owner

import (
	"context"
	"errors"
	"slices"
	"syscall"

	"coordinator/codec"
	"coordinator/frames"
	"coordinator/internal/failpoint"
)

// A hand is an effect that is journaled and being carried out.
type hand struct {
	coordinator frames.CoordinatorID
	place       bool          // guarded by the owner's mu; it counts as a process
	done        chan struct{} // closed when its outcome is durable, or never will be
}

// An outcome is what an attempt has come to.
type outcome struct {
	state    frames.EffectState
	resource *frames.ResourceID
	message  string
}

func outcomeOf(r *attemptRow) outcome {
	out := outcome{state: r.State, message: r.Message}
	if r.HasResource {
		res := r.Resource
		out.resource = &res
	}
	return out
}

// Texts of outcomes, for people.
const (
	textVoid      = "this attempt was declared never seen"
	textUsed      = "the operation or the binding was journaled under another attempt"
	textElsewhere = "the target is not this owner, this incarnation or a group that it serves"
	textNoBinding = "the target is not a live binding of this owner"
	textTooMany   = "the owner runs as many processes as it may"
	textSchema    = "the executor schema is unknown"
	textEnded     = "the process has ended"
)

// An admission is what the journal decided about a dispatch.
type admission struct {
	fresh *hand                   // the effect is ours to carry out
	same  *frames.EffectAttemptID // the outcome is, or will be, this attempt's
	doc   *Document               // of a fresh SPAWN
	spawn frames.SpawnPayload     // of a fresh SPAWN
}

// dispatch journals an effect, carries it out and returns its outcome; one that is journaled
// already returns the journaled outcome. Its errors are a *frames.Refusal, errFenced,
// [ErrFailed] or the context's; the effect goes on when ctx ends.
func (o *Owner) dispatch(ctx context.Context, cl *claim, f *DispatchEffect) (outcome, error) {
	digest, err := frames.EffectDigest(f.Kind, &f.Target, f.Payload)
	if err != nil || digest != f.Digest {
		return outcome{}, frames.Refuse(frames.CodeMalformedMessage, "the digest is not that of the effect")
	}
	failpoint.Hit("owner-dispatch")
	var a admission
	err = o.j.update(func(t *txn) error {
		a = admission{}
		return o.admit(t, cl, f, &a)
	})
	if a.fresh != nil {
		if err == nil {
			failpoint.Hit("owner-intent")
			go o.carryOut(f, &a) // joined by Close, through wg
		} else {
			o.finishHand(f.Attempt, a.fresh)
		}
	}
	if err != nil {
		return outcome{}, err
	}
	out, err := o.await(ctx, *a.same)
	if err == nil && out.state == NeverSeen {
		out = outcome{state: frames.EffectRejected, message: textVoid} // [D-51]
	}
	return out, err
}

// admit decides about a dispatch within the journal's transaction.
func (o *Owner) admit(t *txn, cl *claim, f *DispatchEffect, a *admission) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.admittedLocked(cl); err != nil {
		return err
	}
	if row, ok := t.attempt(f.Attempt); ok {
		a.same = &f.Attempt
		return sameAttempt(&row, cl.coordinator, f.Digest)
	}
	a.same = &f.Attempt
	row := attemptRow{
		Coordinator: cl.coordinator, Operation: f.OperationID, Digest: f.Digest, Kind: f.Kind,
		Binding: targetBinding(&f.Target), Incarnation: o.opt.Incarnation, State: frames.EffectDispatched,
	}
	if f.Kind == frames.EffectSpawn {
		other, used, err := o.usedBefore(t, cl.coordinator, f)
		switch {
		case err != nil:
			return err
		case other != nil:
			a.same = other
			return nil
		case used:
			row.State, row.Message = frames.EffectIndeterminate, textUsed
			t.putAttempt(f.Attempt, &row)
			return nil
		}
	}
	if reason := o.judge(t, cl.coordinator, f, a); reason != "" {
		row.State, row.Message = frames.EffectRejected, clip(reason)
	}
	t.putAttempt(f.Attempt, &row)
	if f.Kind == frames.EffectSpawn {
		t.put(bucketIndex, operationKey(cl.coordinator, f.OperationID), &indexRow{f.Attempt})
		t.put(bucketIndex, bindingKey(row.Binding), &indexRow{f.Attempt})
	}
	t.put(bucketIndex, digestKey(cl.coordinator, f.Digest), &indexRow{f.Attempt})
	if row.State == frames.EffectDispatched {
		a.fresh = &hand{coordinator: cl.coordinator, place: f.Kind == frames.EffectSpawn, done: make(chan struct{})}
		o.inHand[f.Attempt] = a.fresh
		if a.fresh.place {
			o.places++
		}
		o.wg.Add(1)
	}
	return nil
}

// sameAttempt holds a request to the row of its attempt ([D-60], §8.1).
func sameAttempt(row *attemptRow, c frames.CoordinatorID, digest [32]byte) error {
	switch {
	case row.Coordinator != c:
		return frames.Refuse(frames.CodeNotFound, "no such attempt")
	case row.Digest != digest:
		return frames.Refuse(frames.CodeOperationConflict, "the attempt was journaled with another digest")
	}
	return nil
}

// usedBefore looks for a SPAWN's operation and binding under another attempt ([D-47]): the one
// with the same effect if there is such, or only that they are used.
func (o *Owner) usedBefore(t *txn, c frames.CoordinatorID, f *DispatchEffect) (same *frames.EffectAttemptID, used bool, err error) {
	for _, key := range [][]byte{operationKey(c, f.OperationID), bindingKey(frames.BindingID(f.Target.PendingBindingID))} {
		id, ok := t.indexed(key)
		if !ok {
			continue
		}
		row, ok := t.attempt(id)
		switch {
		case !ok:
		case row.Coordinator != c:
			return nil, false, frames.Refuse(frames.CodeNotFound, "no such binding")
		case row.Digest == f.Digest:
			return &id, true, nil
		default:
			used = true
		}
	}
	return nil, used, nil
}

// judge says why an effect is rejected, or nothing.
func (o *Owner) judge(t *txn, c frames.CoordinatorID, f *DispatchEffect, a *admission) string {
	if f.Kind != frames.EffectSpawn {
		row, ok := t.binding(f.Target.Binding.BindingID)
		if !ok || row.Coordinator != c || row.Incarnation != o.opt.Incarnation ||
			row.ref(f.Target.Binding.BindingID, o.opt.Fingerprint) != f.Target.Binding ||
			row.State != bindingLive && row.State != bindingClosed {
			return textNoBinding
		}
		return ""
	}
	if f.Target.Owner != o.opt.Fingerprint || f.Target.OwnerIncarnation != o.opt.Incarnation ||
		!slices.Contains(o.opt.Groups, f.Target.Group) {
		return textElsewhere
	}
	if err := codec.DecodeImage(&a.spawn, f.Payload); err != nil {
		return "the payload is malformed"
	}
	if a.spawn.ExecutorSchema != ExecutorSchema {
		return textSchema
	}
	doc, err := ParseDocument(a.spawn.Document)
	if err != nil {
		return err.Error()
	}
	if o.places >= o.opt.MaxProcesses {
		return textTooMany
	}
	a.doc = doc
	return ""
}

func targetBinding(t *frames.EffectTarget) frames.BindingID {
	if t.Tag == frames.TargetPendingSpawn {
		return frames.BindingID(t.PendingBindingID)
	}
	return t.Binding.BindingID
}

// clip keeps a text within what a frame carries.
func clip(s string) string {
	for i := range s {
		if i > frames.MaxText-4 {
			return s[:i]
		}
	}
	return s
}

// await returns an attempt's outcome once it has one. The attempt is journaled.
func (o *Owner) await(ctx context.Context, id frames.EffectAttemptID) (outcome, error) {
	for {
		o.mu.Lock()
		h := o.inHand[id]
		o.mu.Unlock()
		if h != nil {
			select {
			case <-h.done:
			case <-ctx.Done():
				return outcome{}, ctx.Err()
			}
			continue
		}
		var row attemptRow
		err := o.j.view(func(t *txn) error {
			row, _ = t.attempt(id)
			return nil
		})
		if err != nil {
			return outcome{}, err
		}
		if row.State == frames.EffectDispatched {
			// Not in hand and no outcome: the journal failed before one was durable.
			select {
			case <-o.j.failing:
				return outcome{}, o.j.failed
			case <-ctx.Done():
				return outcome{}, ctx.Err()
			}
		}
		return outcomeOf(&row), nil
	}
}

// finishHand takes an effect out of hand: its outcome is durable, or the journal has failed.
func (o *Owner) finishHand(id frames.EffectAttemptID, h *hand) {
	o.mu.Lock()
	delete(o.inHand, id)
	if h.place {
		o.places--
	}
	close(h.done)
	o.mu.Unlock()
	o.wg.Done()
}

// lookUp answers GET_EFFECT. An attempt that was never seen is void from then on ([D-51]),
// unless its effect is journaled under another attempt ([D-47]).
func (o *Owner) lookUp(ctx context.Context, cl *claim, id frames.EffectAttemptID, digest [32]byte) (outcome, error) {
	at := id
	err := o.j.update(func(t *txn) error {
		at = id
		if err := o.admitted(cl); err != nil {
			return err
		}
		if row, ok := t.attempt(id); ok {
			return sameAttempt(&row, cl.coordinator, digest)
		}
		if other, ok := t.indexed(digestKey(cl.coordinator, digest)); ok {
			at = other
			return nil
		}
		t.putAttempt(id, &attemptRow{Coordinator: cl.coordinator, Digest: digest, Incarnation: o.opt.Incarnation, State: NeverSeen})
		return nil
	})
	if err != nil {
		return outcome{}, err
	}
	return o.await(ctx, at)
}

// carryOut does what is journaled as an intent and journals the outcome.
func (o *Owner) carryOut(f *DispatchEffect, a *admission) {
	var err error
	switch f.Kind {
	case frames.EffectSpawn:
		err = o.spawn(f, a)
	default:
		err = o.act(f)
	}
	if err != nil {
		o.log.Error("an effect has no outcome", "attempt", f.Attempt.String(), "cause", err)
	} else {
		failpoint.Hit("owner-outcome")
	}
	o.finishHand(f.Attempt, a.fresh)
}

// settle journals an outcome, with more in the same transaction.
func (o *Owner) settle(id frames.EffectAttemptID, out outcome, more func(*txn)) error {
	return o.j.update(func(t *txn) error {
		row, ok := t.attempt(id)
		if !ok || row.State != frames.EffectDispatched {
			panic("owner: an outcome without an intent")
		}
		row.State, row.Message = out.state, clip(out.message)
		if out.resource != nil {
			row.HasResource, row.Resource = true, *out.resource
		}
		t.putAttempt(id, &row)
		if more != nil {
			more(t)
		}
		return nil
	})
}

var processSignals = map[frames.ProcessSignal]syscall.Signal{
	frames.ProcessInterrupt: syscall.SIGINT,
	frames.ProcessTerminate: syscall.SIGTERM,
	frames.ProcessKill:      syscall.SIGKILL,
}

// act carries out a KILL or a PROCESS_SIGNAL.
func (o *Owner) act(f *DispatchEffect) error {
	id := f.Target.Binding.BindingID
	o.mu.Lock()
	b := o.live[id]
	o.mu.Unlock()
	err := errNoProcess
	if f.Kind == frames.EffectKill {
		if b != nil {
			err = b.kill()
		}
		if err == nil || errors.Is(err, errNoProcess) { // delivered, or already reaped ([D-29])
			return o.settle(f.Attempt, outcome{state: frames.EffectSucceeded}, nil)
		}
		return o.settle(f.Attempt, outcome{state: frames.EffectRejected, message: err.Error()}, nil)
	}
	var p frames.SignalPayload
	if derr := codec.DecodeImage(&p, f.Payload); derr != nil {
		panic("owner: an admitted payload does not decode")
	}
	if b != nil {
		err = b.child.signal(processSignals[p.Signal])
	}
	out, result := outcome{state: frames.EffectSucceeded}, frames.OutcomeApplied
	if err != nil {
		out, result = outcome{state: frames.EffectRejected, message: textEnded}, frames.OutcomeRejected
	}
	serr := o.settle(f.Attempt, out, func(t *txn) {
		if row, ok := t.binding(id); ok && row.State == bindingLive {
			t.addFacts(id, &row, fact(frames.FactSignalResult, &frames.SignalResult{Attempt: f.Attempt, Outcome: result}))
			t.putBinding(id, &row)
		}
	})
	o.factsCame(id)
	return serr
}
