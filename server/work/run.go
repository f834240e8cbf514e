package work

import (
	"fmt"

	"coordinator/codec"
	"coordinator/frames"
)

func runRef(id frames.RunID) frames.ObjectRef {
	return frames.ObjectRef{Kind: frames.KindRun, ID: frames.ObjectID(id)}
}

// loadRun reads the run that a command names.
func (t *txn) loadRun(id frames.RunID) (Stored, frames.Run, error) {
	stored, found, err := t.view.Record(runRef(id))
	if err != nil {
		return Stored{}, frames.Run{}, err
	}
	if !found {
		return Stored{}, frames.Run{}, frames.Refuse(frames.CodeNotFound, "no such run")
	}
	var run frames.Run
	if err := codec.Decode(&run, stored.Record.Payload); err != nil {
		return Stored{}, frames.Run{}, fmt.Errorf("work: stored run: %w", err)
	}
	return stored, run, nil
}

type cancelRun struct{ p frames.RunCommand }

func parseCancelRun(payload []byte, _ Viewer) (action, error) {
	a := &cancelRun{}
	return a, codec.Decode(&a.p, payload)
}

func (a *cancelRun) refs() []frames.ObjectRef { return []frames.ObjectRef{runRef(a.p.RunID)} }

// apply answers for runs that are absent or have ended. Nothing in this server starts a
// run, and what ends a live one (its session, its effects and its owner) belongs to the
// capability that would have started it.
func (a *cancelRun) apply(t *txn) (success, error) {
	_, run, err := t.loadRun(a.p.RunID)
	if err != nil {
		return success{}, err
	}
	if run.State.Terminal() {
		return success{}, frames.Refuse(frames.CodeRevisionConflict, "the run has ended")
	}
	return success{}, frames.Refuse(frames.CodeCapabilityRequired, "ending a live run needs TERMINAL_BINDINGS, which this server does not offer")
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

func (a *moveRun) apply(t *txn) (success, error) {
	stored, run, err := t.loadRun(a.p.RunID)
	if err != nil {
		return success{}, err
	}
	if run.State != a.from {
		return success{}, frames.Refuse(frames.CodeRevisionConflict, "%s", a.refusal)
	}
	rev, err := nextRevision(stored.Record.Revision)
	if err != nil {
		return success{}, err
	}
	run.State = a.to
	record, err := frames.NewRecord(runRef(a.p.RunID), rev, &run)
	if err != nil {
		return success{}, err
	}
	if err := t.put(frames.EventRunChanged, true, Stored{Record: record, Annex: stored.Annex}); err != nil {
		return success{}, err
	}
	return noResult(), nil
}
