package overview

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/client"
	"coordinator/codec"
	"coordinator/frames"
)

var begin = time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.UTC)

// A rig is records as a coordinator would hold them, and a model that is told of each change.
type rig struct {
	t       require.TestingT
	records map[frames.ObjectRef]frames.SnapshotRecord
	view    *client.View
	seq     frames.EventSequence
	state   client.ReplicaState
	m       *Model
	now     time.Time
}

func newRig(t require.TestingT, opts Options) *rig {
	g := &rig{t: t, records: map[frames.ObjectRef]frames.SnapshotRecord{}, m: New(opts), now: begin}
	g.state = client.ReplicaState{Phase: client.ReplicaCurrent, Since: begin, LastContact: begin}
	return g
}

// at gives the view of what there is now.
func (g *rig) at() *client.View {
	refs := make([]frames.ObjectRef, 0, len(g.records))
	for ref := range g.records {
		refs = append(refs, ref)
	}
	slices.SortFunc(refs, frames.ObjectRef.Compare)
	v, err := client.NewView(frames.AuthorityGuard{CoordinatorID: frames.CoordinatorID{7}, Epoch: 3, Activation: 4}, frames.EventCut(g.seq),
		func(yield func(frames.SnapshotRecord) bool) {
			for _, ref := range refs {
				if !yield(g.records[ref]) {
					return
				}
			}
		}, g.view)
	require.NoError(g.t, err)
	v.Scope, v.Current = frames.AllScopes, g.state.Phase == client.ReplicaCurrent
	g.view = v
	return v
}

func (g *rig) reread(why client.RereadReason) {
	g.m.Notice(&client.Reread{Reason: why, View: g.at(), State: g.state}, g.now)
}

func (g *rig) refresh() *Delta { return g.m.Refresh(g.at(), g.state, g.now) }

var eventKinds = map[frames.ObjectKind]frames.EventKind{frames.KindObjective: frames.EventObjectiveChanged, frames.KindRun: frames.EventRunChanged,
	frames.KindWorkSession: frames.EventWorkSessionChanged, frames.KindBinding: frames.EventBindingOpened, frames.KindSignal: frames.EventSignalRaised,
	frames.KindOperation: frames.EventOperationChanged, frames.KindEvidence: frames.EventEvidenceSealed}

// set makes p the record of an object; set tells the model, put does not.
func (g *rig) put(kind frames.ObjectKind, id [16]byte, p codec.Message) (old, now *client.Record, e *client.Event) {
	ref := frames.ObjectRef{Kind: kind, ID: id}
	before := g.at()
	r, err := frames.NewRecord(ref, g.records[ref].Revision+1, p)
	require.NoError(g.t, err)
	g.seq++
	g.records[ref] = r
	image, err := codec.EncodeImage(nil, &r)
	require.NoError(g.t, err)
	return before.Get(kind, id), g.at().Get(kind, id), &client.Event{Sequence: g.seq, ID: frames.EventID{byte(g.seq)}, Kind: eventKinds[kind], Object: ref, Revision: r.Revision, Schema: 1, Payload: image}
}

func (g *rig) set(kind frames.ObjectKind, id [16]byte, p codec.Message) {
	old, now, e := g.put(kind, id, p)
	g.m.Notice(&client.Change{Event: e, Old: old, New: now}, g.now)
}

func (g *rig) remove(ref frames.ObjectRef) {
	old := g.at().Get(ref.Kind, ref.ID)
	if old == nil {
		return
	}
	g.seq++
	delete(g.records, ref)
	image, err := codec.EncodeImage(nil, &ref)
	require.NoError(g.t, err)
	g.m.Notice(&client.Change{Old: old, Event: &client.Event{Sequence: g.seq, ID: frames.EventID{1}, Kind: frames.EventObjectRemoved, Object: ref,
		Revision: old.Revision() + 1, Payload: image}}, g.now)
}

// fact admits a source fact of a binding.
func (g *rig) fact(binding [16]byte, f frames.TerminalSourceFact) {
	ref := frames.ObjectRef{Kind: frames.KindBinding, ID: binding}
	old := g.at().Get(ref.Kind, ref.ID)
	r := g.records[ref]
	r.Revision++
	g.records[ref] = r
	g.seq++
	image, err := codec.EncodeImage(nil, &f)
	require.NoError(g.t, err)
	g.m.Notice(&client.Change{Old: old, New: g.at().Get(ref.Kind, ref.ID), Event: &client.Event{Sequence: g.seq, ID: frames.EventID{1},
		Kind: frames.EventSourceFactAdmitted, Object: ref, Revision: r.Revision, Schema: 1, Payload: image}}, g.now)
}

// The n-th object of a kind.
func id(kind frames.ObjectKind, n byte) [16]byte { return [16]byte{byte(kind), n, 15: 1} }

func (g *rig) objective(n byte, title string, state frames.ObjectiveState) {
	document, err := json.Marshal(map[string]string{"title": title})
	require.NoError(g.t, err)
	g.set(frames.KindObjective, id(frames.KindObjective, n), &frames.Objective{DocumentSchema: 1, Document: document, State: state})
}

// life is a run, its session and its binding.
func (g *rig) life(n, objective byte, state frames.RunState) {
	g.run(n, objective, state)
	g.set(frames.KindWorkSession, id(frames.KindWorkSession, n), &frames.WorkSession{RunID: id(frames.KindRun, n)})
	if state != frames.RunPlanned {
		g.set(frames.KindBinding, id(frames.KindBinding, n), bindingOf(n, frames.StateActive, nil))
	}
}

func (g *rig) run(n, objective byte, state frames.RunState) {
	r := &frames.Run{ObjectiveID: id(frames.KindObjective, objective), Attempt: 1, State: state}
	if state == frames.RunFailed {
		r.Outcome = []byte{1, 0, 0, 0, 3}
	}
	g.set(frames.KindRun, id(frames.KindRun, n), r)
}

func bindingOf(session byte, state frames.ActivityState, why *frames.EndReason) *frames.Binding {
	return &frames.Binding{State: state, Reason: why, Binding: frames.TerminalBindingRef{BindingID: id(frames.KindBinding, session),
		WorkSessionID: id(frames.KindWorkSession, session), Owner: frames.Fingerprint{9}, OwnerIncarnation: frames.IncarnationID{8}}}
}

func (g *rig) signal(n, session byte, kind frames.SignalKind, state frames.SignalState, message string) {
	g.set(frames.KindSignal, id(frames.KindSignal, n), &frames.Signal{WorkSessionID: id(frames.KindWorkSession, session), Kind: kind, State: state, Message: message})
}

func (g *rig) operation(n byte, r frames.OperationResult) {
	g.set(frames.KindOperation, id(frames.KindOperation, n), &frames.Operation{Principal: frames.KeyID{1}, Result: r})
}

func (g *rig) runRow(n byte) *Run { return g.m.Run(id(frames.KindRun, n)) }

func ids[T any](rows []*T, head func(*T) *Row) (out []byte) {
	for _, r := range rows {
		raw, err := frames.ParseID[frames.ObjectID](head(r).ID)
		if err != nil {
			panic(err)
		}
		out = append(out, raw[1])
	}
	return out
}
