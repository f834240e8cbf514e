package client

import (
	"iter"

	"github.com/tidwall/btree"

	"coordinator/frames"
)

// A View is everything that the key may see, at one event cut. It is immutable: any number
// of goroutines may read it for as long as they like, and what they keep of it stays as it
// is. Every View is whole; one that was not current when it was taken says so.
//
// A command may make several events, which the wire does not bracket: a run may be in a view
// whose work session comes with the next. [Replica.WaitFor] waits for what belongs together.
type View struct {
	// Guard is the authority that the view was obtained under, and Incarnation its process.
	Guard       frames.AuthorityGuard
	Incarnation frames.IncarnationID
	// Cut is the last event that the view holds, or its snapshot's cut.
	Cut frames.EventCut
	// Current says that the replica was current when the view was taken.
	Current bool
	// Capabilities and Scope are what the view was obtained with, and so what it can show.
	Capabilities frames.Capability
	Scope        frames.Scope

	records, below, open *btree.BTreeG[*Record]
	counts               [len(kindTable)]int
	bytes                int64
}

// NewView makes a view of records that came in another way than a [Replica]'s, such as from
// a kept [Snapshot]. Records that before holds unchanged are shared with it; it may be nil.
// The view is not current.
func NewView(guard frames.AuthorityGuard, cut frames.EventCut, records iter.Seq[frames.SnapshotRecord], before *View) (*View, error) {
	t := newTable(tableLimits{records: defaultMaxRecords, bytes: defaultMaxBytes})
	for sr := range records {
		var r *Record
		if before != nil {
			r = before.Get(sr.Kind, sr.ID)
		}
		if !r.same(&sr) {
			var err error
			if r, err = newRecord(&sr, 0); err != nil {
				return nil, err
			}
		}
		if err := t.replace(t.get(sr.Ref()), r); err != nil {
			return nil, err
		}
	}
	return &View{Guard: guard, Cut: cut, records: t.records.share(), below: t.below.share(), open: t.open.share(), counts: t.counts, bytes: t.bytes}, nil
}

// Len is the number of records.
func (v *View) Len() int { return v.records.Len() }

// Count is the number of records of a kind.
func (v *View) Count(kind frames.ObjectKind) int {
	if !kind.Known() {
		return 0
	}
	return v.counts[kind]
}

// Bytes is about what the records take in memory.
func (v *View) Bytes() int64 { return v.bytes }

// Get gives one record, nil when it is not there or not visible.
func (v *View) Get(kind frames.ObjectKind, id frames.ObjectID) *Record {
	r, _ := v.records.Get(&Record{kind: kind, id: id})
	return r
}

// All ranges over every record by kind and id, the order of snapshots.
func (v *View) All() iter.Seq[*Record] { return v.records.Scan }

// Kind ranges over the records of a kind by id.
func (v *View) Kind(kind frames.ObjectKind) iter.Seq[*Record] {
	return func(yield func(*Record) bool) {
		v.records.Ascend(&Record{kind: kind}, func(r *Record) bool { return r.kind == kind && yield(r) })
	}
}

// Below ranges over the records of a kind that belong to one parent, by id; which kind of
// parent that is, [Record.Parent] says.
func (v *View) Below(parent frames.ObjectID, kind frames.ObjectKind) iter.Seq[*Record] {
	return func(yield func(*Record) bool) {
		v.below.Ascend(&Record{kind: kind, parent: parent}, func(r *Record) bool {
			return r.kind == kind && r.parent == parent && yield(r)
		})
	}
}

// OpenSignals ranges over the signals that nobody has dealt with, by id.
func (v *View) OpenSignals() iter.Seq[*Record] { return v.open.Scan }

// Digest is the snapshot digest of the view's records as at its own cut (protocol.md §9).
func (v *View) Digest() ([32]byte, error) { return v.DigestAt(v.Guard, v.Cut) }

// DigestAt is the digest that a snapshot under guard with this base would have if the view's
// records were its own. A snapshot's base may lie above the view's cut, since events that
// are not visible move the one and not the other.
func (v *View) DigestAt(guard frames.AuthorityGuard, base frames.EventCut) ([32]byte, error) {
	d := frames.NewSnapshotDigest(guard, base, uint64(v.Len()))
	for r := range v.All() {
		s := r.Snapshot()
		if err := d.Add(&s); err != nil {
			return [32]byte{}, err
		}
	}
	return d.Sum(), nil
}

// Since ranges, by kind and id, over what differs from an earlier view; nil is one without
// records. The changes carry no event.
func (v *View) Since(before *View) iter.Seq[Change] {
	return func(yield func(Change) bool) {
		now, stopNow := iter.Pull(v.All())
		defer stopNow()
		old, stopOld := iter.Pull(before.all())
		defer stopOld()
		n, haveN := now()
		o, haveO := old()
		for haveN || haveO {
			var c Change
			switch {
			case !haveO || haveN && byID(n, o):
				c.New = n
				n, haveN = now()
			case !haveN || byID(o, n):
				c.Old = o
				o, haveO = old()
			default:
				c.Old, c.New = o, n
				n, haveN = now()
				o, haveO = old()
			}
			if c.Old != c.New && !yield(c) {
				return
			}
		}
	}
}

func (v *View) all() iter.Seq[*Record] {
	if v == nil {
		return func(func(*Record) bool) {}
	}
	return v.All()
}

// typed is the payload of one record, nil when it is not there, or not of a schema that
// this client knows.
func typed[T any](v *View, kind frames.ObjectKind, id frames.ObjectID) *T {
	r := v.Get(kind, id)
	if r == nil {
		return nil
	}
	m, err := r.Decode()
	if err != nil {
		return nil
	}
	t, _ := m.(any).(*T)
	return t
}

// Objective gives an objective, nil when it is not there.
func (v *View) Objective(id frames.ObjectiveID) *frames.Objective {
	return typed[frames.Objective](v, frames.KindObjective, frames.ObjectID(id))
}

// Run gives a run, nil when it is not there.
func (v *View) Run(id frames.RunID) *frames.Run {
	return typed[frames.Run](v, frames.KindRun, frames.ObjectID(id))
}

// WorkSession gives a work session, nil when it is not there.
func (v *View) WorkSession(id frames.WorkSessionID) *frames.WorkSession {
	return typed[frames.WorkSession](v, frames.KindWorkSession, frames.ObjectID(id))
}

// Binding gives a binding, nil when it is not there.
func (v *View) Binding(id frames.BindingID) *frames.Binding {
	return typed[frames.Binding](v, frames.KindBinding, frames.ObjectID(id))
}

// Artifact gives an artifact, nil when it is not there.
func (v *View) Artifact(id frames.ArtifactID) *frames.Artifact {
	return typed[frames.Artifact](v, frames.KindArtifact, frames.ObjectID(id))
}

// Manifest gives the latest manifest of an artifact, nil when it is not there.
func (v *View) Manifest(id frames.ArtifactID) *frames.ArtifactManifest {
	return typed[frames.ArtifactManifest](v, frames.KindArtifactManifest, frames.ObjectID(id))
}

// Signal gives a signal, nil when it is not there.
func (v *View) Signal(id frames.SignalID) *frames.Signal {
	return typed[frames.Signal](v, frames.KindSignal, frames.ObjectID(id))
}

// Operation gives an operation, nil when it is not there.
func (v *View) Operation(id frames.OperationID) *frames.Operation {
	return typed[frames.Operation](v, frames.KindOperation, frames.ObjectID(id))
}

// Evidence gives the evidence of a binding, nil when it is not there.
func (v *View) Evidence(id frames.BindingID) *frames.Evidence {
	return typed[frames.Evidence](v, frames.KindEvidence, frames.ObjectID(id))
}

// RunsOf ranges over the runs of an objective.
func (v *View) RunsOf(id frames.ObjectiveID) iter.Seq[*Record] {
	return v.Below(frames.ObjectID(id), frames.KindRun)
}

// SessionsOf ranges over the work sessions of a run.
func (v *View) SessionsOf(id frames.RunID) iter.Seq[*Record] {
	return v.Below(frames.ObjectID(id), frames.KindWorkSession)
}

// BindingsOf ranges over the bindings of a work session.
func (v *View) BindingsOf(id frames.WorkSessionID) iter.Seq[*Record] {
	return v.Below(frames.ObjectID(id), frames.KindBinding)
}

// ArtifactsOf ranges over the artifacts of a work session.
func (v *View) ArtifactsOf(id frames.WorkSessionID) iter.Seq[*Record] {
	return v.Below(frames.ObjectID(id), frames.KindArtifact)
}

// SignalsOf ranges over the signals of a work session.
func (v *View) SignalsOf(id frames.WorkSessionID) iter.Seq[*Record] {
	return v.Below(frames.ObjectID(id), frames.KindSignal)
}

// EvidenceOf ranges over the evidence of a work session.
func (v *View) EvidenceOf(id frames.WorkSessionID) iter.Seq[*Record] {
	return v.Below(frames.ObjectID(id), frames.KindEvidence)
}
