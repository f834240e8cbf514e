package work

import (
	"coordinator/codec"
	"coordinator/frames"
)

func runRef(id frames.RunID) frames.ObjectRef {
	return frames.ObjectRef{Kind: frames.KindRun, ID: frames.ObjectID(id)}
}

func sessionRef(id frames.WorkSessionID) frames.ObjectRef {
	return frames.ObjectRef{Kind: frames.KindWorkSession, ID: frames.ObjectID(id)}
}

func bindingRef(id frames.BindingID) frames.ObjectRef {
	return frames.ObjectRef{Kind: frames.KindBinding, ID: frames.ObjectID(id)}
}

func signalRef(id frames.SignalID) frames.ObjectRef {
	return frames.ObjectRef{Kind: frames.KindSignal, ID: frames.ObjectID(id)}
}

func artifactRef(id frames.ArtifactID) frames.ObjectRef {
	return frames.ObjectRef{Kind: frames.KindArtifact, ID: frames.ObjectID(id)}
}

func manifestRef(id frames.ArtifactID) frames.ObjectRef {
	return frames.ObjectRef{Kind: frames.KindArtifactManifest, ID: frames.ObjectID(id)}
}

func evidenceRef(id frames.BindingID) frames.ObjectRef {
	return frames.ObjectRef{Kind: frames.KindEvidence, ID: frames.ObjectID(id)}
}

// A run is a RUN with its annex, in a transaction.
type run struct {
	ref frames.ObjectRef
	rev frames.ObjectRevision
	frames.Run
	meta runMeta
}

func (t *txn) run(id frames.RunID) (*run, bool, error) {
	r := &run{ref: runRef(id)}
	stored, found, err := t.load(r.ref, &r.Run, &r.meta)
	r.rev = stored.Record.Revision
	return r, found, err
}

// needRun is run for a command that names it.
func (t *txn) needRun(id frames.RunID) (*run, error) {
	r, found, err := t.run(id)
	if err == nil && !found {
		err = frames.Refuse(frames.CodeNotFound, "no such run")
	}
	return r, err
}

// putRun announces the run's next version.
func (t *txn) putRun(r *run) (err error) {
	if r.rev, err = nextRevision(r.rev); err != nil {
		return err
	}
	return t.putRecord(frames.EventRunChanged, !r.State.Terminal(), r.ref, r.rev, &r.Run, &r.meta)
}

// remember changes the run's annex alone.
func (t *txn) remember(r *run) error {
	stored, _, err := t.Record(r.ref)
	if err != nil {
		return err
	}
	return t.rewrite(stored, !r.State.Terminal(), &r.meta)
}

// endRun puts the run into a terminal state and counts it as finished. Only CLOSED gives it
// an outcome [D-35].
func (t *txn) endRun(r *run, state frames.RunState, outcome []byte) error {
	r.State, r.Outcome = state, outcome
	r.meta.Spawn, r.meta.Cancel = frames.EffectAttemptID{}, frames.OperationID{}
	if err := t.putRun(r); err != nil {
		return err
	}
	counts, err := t.counts(r.ObjectiveID)
	if err != nil {
		return err
	}
	if counts.Unfinished > 0 {
		counts.Unfinished--
	}
	return t.keepCounts(r.ObjectiveID, &counts)
}

// unclaim marks what a run that ends without a binding leaves at its owner [D-45].
func (t *txn) unclaim(r *run) error {
	var claim Claim
	found, err := t.kept("a claim", claimRef(r.meta.Binding), &claim)
	if err != nil || !found {
		return err
	}
	claim.Ended = true
	return t.keep(claimRef(r.meta.Binding), false, &claim)
}

// session changes a WORK_SESSION's state and active binding.
func (t *txn) session(id frames.WorkSessionID, state frames.ActivityState, active frames.BindingID) error {
	var s frames.WorkSession
	ref := sessionRef(id)
	stored, found, err := t.load(ref, &s, nil)
	if err != nil || !found {
		return err
	}
	rev, err := nextRevision(stored.Record.Revision)
	if err != nil {
		return err
	}
	s.State, s.ActiveBinding = state, active
	return t.putRecord(frames.EventWorkSessionChanged, state == frames.StateActive, ref, rev, &s, nil)
}

// A binding is a BINDING with its annex, in a transaction.
type binding struct {
	ref frames.ObjectRef
	rev frames.ObjectRevision
	frames.Binding
	meta bindingMeta
}

func (t *txn) binding(id frames.BindingID) (*binding, bool, error) {
	b := &binding{ref: bindingRef(id)}
	stored, found, err := t.load(b.ref, &b.Binding, &b.meta)
	b.rev = stored.Record.Revision
	return b, found, err
}

func (b *binding) id() frames.BindingID { return b.Binding.Binding.BindingID }

func (b *binding) active() bool { return b.State == frames.StateActive }

// putBinding announces the binding's next version.
func (t *txn) putBinding(event frames.EventKind, b *binding) (err error) {
	if b.rev, err = nextRevision(b.rev); err != nil {
		return err
	}
	return t.putRecord(event, b.active(), b.ref, b.rev, &b.Binding, &b.meta)
}

// touch raises the binding's revision by an event that carries no record [D-16].
func (t *txn) touch(event frames.EventKind, b *binding, fact codec.Value) (err error) {
	if b.rev, err = nextRevision(b.rev); err != nil {
		return err
	}
	raw, err := codec.EncodeImage(nil, fact)
	if err != nil {
		return err
	}
	record, err := frames.NewRecord(b.ref, b.rev, &b.Binding)
	if err != nil {
		return err
	}
	annex, err := codec.EncodeImage(nil, &b.meta)
	if err != nil {
		return err
	}
	return t.emit(Change{Event: event, Fact: raw, Stored: Stored{Record: record, Annex: annex}, Live: true})
}

// rewriteBinding changes the binding's annex alone.
func (t *txn) rewriteBinding(b *binding) error {
	stored, _, err := t.Record(b.ref)
	if err != nil {
		return err
	}
	return t.rewrite(stored, b.active(), &b.meta)
}
