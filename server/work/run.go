package work

import (
	"coordinator/codec"
	"coordinator/frames"
)

type cancelRun struct{ p frames.RunCommand }

func parseCancelRun(payload []byte, _ Viewer) (action, error) {
	a := &cancelRun{}
	return a, codec.Decode(&a.p, payload)
}

func (a *cancelRun) refs() []frames.ObjectRef { return []frames.ObjectRef{runRef(a.p.RunID)} }

// changes are the run with its session and its binding.
func (a *cancelRun) changes(t *txn) ([]frames.ObjectRef, error) {
	r, found, err := t.run(a.p.RunID)
	if err != nil || !found {
		return a.refs(), err
	}
	return []frames.ObjectRef{r.ref, sessionRef(r.meta.Session), bindingRef(r.meta.Binding)}, nil
}

// apply ends a run as far as its state allows [D-17]: an unresolved SPAWN is waited for
// ([D-24] [D-30]), an active binding is killed [D-29], and a run that has neither ends at
// once.
func (a *cancelRun) apply(t *txn) (Outcome, error) {
	r, err := t.needRun(a.p.RunID)
	if err != nil {
		return Outcome{}, err
	}
	if r.State.Terminal() {
		return Outcome{}, frames.Refuse(frames.CodeRevisionConflict, "the run has ended")
	}
	if r.meta.Cancel != (frames.OperationID{}) {
		return Outcome{}, frames.Refuse(frames.CodeRevisionConflict, "the run is being cancelled already")
	}
	if r.meta.Spawn != (frames.EffectAttemptID{}) {
		return a.waitForSpawn(t, r)
	}
	b, bound, err := t.binding(r.meta.Binding)
	if err != nil {
		return Outcome{}, err
	}
	if bound && b.active() {
		if b.meta.Kill != (frames.EffectAttemptID{}) {
			return Outcome{}, frames.Refuse(frames.CodeRevisionConflict, "the run's binding is being ended already")
		}
		if err := mayControl(t); err != nil {
			return Outcome{}, err
		}
		return t.kill(b, frames.EndCancelled)
	}
	if err := t.session(r.meta.Session, frames.StateEnded, frames.BindingID{}); err != nil {
		return Outcome{}, err
	}
	if err := t.endRun(r, frames.RunCancelled, nil); err != nil {
		return Outcome{}, err
	}
	if err := t.unclaim(r); err != nil {
		return Outcome{}, err
	}
	return t.finish(noResult())
}

// mayControl is the scope that CANCEL_RUN needs when a process is in question; it is checked
// last [D-34].
func mayControl(t *txn) error {
	if !t.cmd.From.Scope.Has(frames.ScopeTerminalControl) {
		return frames.Refuse(frames.CodeScopeDenied, "the run has a process, or may have one; ending it needs TERMINAL_CONTROL")
	}
	return nil
}

// waitForSpawn leaves the command PENDING until the SPAWN is resolved. A READY one is not
// sent any more but looked up, since a restored store may have sent it before.
func (a *cancelRun) waitForSpawn(t *txn, r *run) (Outcome, error) {
	if err := mayControl(t); err != nil {
		return Outcome{}, err
	}
	effect, found, err := t.effect(r.meta.Spawn)
	if err != nil {
		return Outcome{}, err
	}
	if found && effect.Attempt.State == frames.EffectReady {
		effect.Attempt.State, effect.Mode = frames.EffectDispatched, EffectVoided
		if err := t.keepEffect(effect); err != nil {
			return Outcome{}, err
		}
	}
	r.meta.Cancel = t.cmd.ID
	if err := t.remember(r); err != nil {
		return Outcome{}, err
	}
	return t.pend()
}

// moveRun is PAUSE_RUN and RESUME_RUN: one state for another and nothing else.
type moveRun struct {
	p        frames.RunCommand
	from, to frames.RunState
	refusal  string
}

func parsePauseRun(payload []byte, _ Viewer) (action, error) {
	a := &moveRun{from: frames.RunRunning, to: frames.RunPaused, refusal: "the run is not running"}
	return a, codec.Decode(&a.p, payload)
}

func parseResumeRun(payload []byte, _ Viewer) (action, error) {
	a := &moveRun{from: frames.RunPaused, to: frames.RunRunning, refusal: "the run is not paused"}
	return a, codec.Decode(&a.p, payload)
}

func (a *moveRun) refs() []frames.ObjectRef { return []frames.ObjectRef{runRef(a.p.RunID)} }

func (a *moveRun) apply(t *txn) (Outcome, error) {
	r, err := t.needRun(a.p.RunID)
	if err != nil {
		return Outcome{}, err
	}
	if r.State != a.from {
		return Outcome{}, frames.Refuse(frames.CodeRevisionConflict, "%s", a.refusal)
	}
	r.State = a.to
	if err := t.putRun(r); err != nil {
		return Outcome{}, err
	}
	return t.finish(noResult())
}
