package client

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"coordinator/codec"
	"coordinator/frames"
)

// family makes records of every kind, numbered so that each has a parent among a few.
func family(t require.TestingT, kind frames.ObjectKind, n byte, revision frames.ObjectRevision, parent byte) frames.SnapshotRecord {
	objective, run, session, artifact := frames.ObjectiveID{1, parent}, frames.RunID{2, parent}, frames.WorkSessionID{3, parent}, frames.ArtifactID{5, n}
	var payload codec.Message
	switch kind {
	case frames.KindObjective:
		payload = &frames.Objective{DocumentSchema: 1, Document: fmt.Appendf(nil, "%d", revision)}
	case frames.KindRun:
		payload = &frames.Run{ObjectiveID: objective, Attempt: uint32(revision), State: frames.RunRunning}
	case frames.KindWorkSession:
		payload = &frames.WorkSession{RunID: run}
	case frames.KindBinding:
		payload = &frames.Binding{Binding: frames.TerminalBindingRef{BindingID: frames.BindingID{4, n}, WorkSessionID: session, Owner: frames.Fingerprint{1},
			OwnerIncarnation: frames.IncarnationID{2}, Resource: frames.ResourceID{ID: 3}}}
	case frames.KindArtifact:
		payload = &frames.Artifact{WorkSessionID: session, LatestRevision: revision}
	case frames.KindSignal:
		payload = &frames.Signal{WorkSessionID: session, Kind: frames.SignalExecutionFailed, State: frames.SignalState(revision % 3), Message: "m"}
	case frames.KindOperation:
		payload = &frames.Operation{Result: succeeded(frames.EventSequence(revision))}
	case frames.KindEvidence:
		payload = &frames.Evidence{WorkSessionID: session, ArtifactID: artifact}
	case frames.KindArtifactManifest:
		payload = &frames.ArtifactManifest{ArtifactID: artifact, Revision: revision, Schema: 1, Manifest: []byte("{}")}
	case frames.KindAdmin:
		payload = &frames.Admin{Kind: frames.AdminRetention, Payload: []byte{}}
	}
	r, err := frames.NewRecord(frames.ObjectRef{Kind: kind, ID: frames.ObjectID{byte(kind), n}}, revision, payload)
	require.NoError(t, err)
	return r
}

// carrying is an event of a kind's family that carries r.
func carrying(t require.TestingT, seq frames.EventSequence, r frames.SnapshotRecord) *Event {
	kinds := map[frames.ObjectKind]frames.EventKind{frames.KindObjective: frames.EventObjectiveChanged, frames.KindRun: frames.EventRunChanged,
		frames.KindWorkSession: frames.EventWorkSessionChanged, frames.KindBinding: frames.EventBindingOpened, frames.KindArtifact: frames.EventArtifactRevisionAdded,
		frames.KindArtifactManifest: frames.EventArtifactRevisionAdded, frames.KindSignal: frames.EventSignalRaised, frames.KindOperation: frames.EventOperationChanged,
		frames.KindEvidence: frames.EventEvidenceSealed, frames.KindAdmin: frames.EventOperationChanged}
	image, err := codec.EncodeImage(nil, &r)
	require.NoError(t, err)
	return &Event{Sequence: seq, Kind: kinds[r.Kind], Object: r.Ref(), Revision: r.Revision, Schema: r.Schema, Payload: image}
}

// view is what the table now holds.
func (t *table) view() *View {
	return &View{records: t.records.share(), below: t.below.share(), open: t.open.share(), counts: t.counts, bytes: t.bytes}
}

// TestTable applies random events and holds every view against a plain map, at once and
// after all that followed: what was shared does not change.
func TestTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tab := newTable(tableLimits{records: 1 << 20, bytes: 1 << 40})
		model := map[frames.ObjectRef]frames.SnapshotRecord{}
		type taken struct {
			view *View
			want map[frames.ObjectRef]frames.SnapshotRecord
		}
		var views []taken
		for seq := range frames.EventSequence(rapid.IntRange(1, 60).Draw(t, "events")) {
			seq++
			kind := frames.ObjectKind(rapid.IntRange(1, 10).Draw(t, "kind"))
			ref := frames.ObjectRef{Kind: kind, ID: frames.ObjectID{byte(kind), byte(rapid.IntRange(0, 4).Draw(t, "n"))}}
			have, there := model[ref]
			e := carrying(t, seq, family(t, kind, ref.ID[1], have.Revision+1, byte(rapid.IntRange(1, 3).Draw(t, "parent"))))
			after := map[frames.ObjectRef]frames.SnapshotRecord{}
			for k, v := range model {
				after[k] = v
			}
			r, _, err := e.Record()
			require.NoError(t, err)
			after[ref] = r
			switch what := rapid.IntRange(0, 5).Draw(t, "what"); {
			case what == 0 && there:
				image, err := codec.EncodeImage(nil, &ref)
				require.NoError(t, err)
				e.Kind, e.Payload = frames.EventObjectRemoved, image
				delete(after, ref)
			case what == 1 && there && kind == frames.KindBinding:
				e.Kind, e.Payload = frames.EventSourceFactAdmitted, nil
				have.Revision++
				after[ref] = have
			case what == 2:
				e.Revision += frames.ObjectRevision(rapid.IntRange(1, 3).Draw(t, "jump"))
				require.Error(t, tab.apply(e))
				continue
			}
			require.NoError(t, tab.apply(e))
			require.Equal(t, e, tab.last.Event)
			model = after
			v := tab.view()
			holds(t, v, model)
			views = append(views, taken{v, model})
		}
		for i, old := range views {
			holds(t, old.view, old.want)
			differs(t, views[len(views)-1].view, old.view)
			differs(t, old.view, views[len(views)-1-i].view)
		}
	})
}

// holds holds everything that a view says against a plain map of records.
func holds(t require.TestingT, v *View, want map[frames.ObjectRef]frames.SnapshotRecord) {
	refs := make([]frames.ObjectRef, 0, len(want))
	for ref := range want {
		refs = append(refs, ref)
	}
	slices.SortFunc(refs, frames.ObjectRef.Compare)
	var all, kinds, open []frames.ObjectRef
	for r := range v.All() {
		all = append(all, r.Ref())
		require.Equal(t, want[r.Ref()], r.Snapshot())
	}
	require.Len(t, all, len(refs))
	require.Len(t, all, v.Len())
	children := map[frames.ObjectRef][]frames.ObjectRef{}
	var bytes int64
	for kind := frames.KindObjective; kind <= frames.KindArtifactManifest; kind++ {
		n := 0
		for r := range v.Kind(kind) {
			n++
			kinds = append(kinds, r.Ref())
			bytes += r.size()
			if parent, ok := r.Parent(); ok {
				children[parent] = append(children[parent], r.Ref())
			}
			if m, err := r.Decode(); err == nil {
				if s, ok := m.(*frames.Signal); ok && s.State == frames.SignalOpen {
					open = append(open, r.Ref())
				}
			}
		}
		require.Equal(t, v.Count(kind), n)
	}
	require.Equal(t, bytes, v.Bytes())
	for i, ref := range refs {
		require.Equal(t, ref, all[i])
		require.Equal(t, ref, kinds[i])
	}
	for parent, want := range children {
		var got []frames.ObjectRef
		for kind := frames.KindObjective; kind <= frames.KindArtifactManifest; kind++ {
			if kindTable[kind].parent == parent.Kind {
				for r := range v.Below(parent.ID, kind) {
					got = append(got, r.Ref())
				}
			}
		}
		require.Equal(t, want, got)
	}
	var got []frames.ObjectRef
	for r := range v.OpenSignals() {
		got = append(got, r.Ref())
	}
	require.Equal(t, open, got)
}

// differs holds what Since says of two views against both.
func differs(t require.TestingT, now, before *View) {
	rebuilt := map[frames.ObjectRef]*Record{}
	for r := range before.All() {
		rebuilt[r.Ref()] = r
	}
	var last frames.ObjectRef
	for c := range now.Since(before) {
		require.NotSame(t, c.Old, c.New)
		ref := frames.ObjectRef{}
		if c.New != nil {
			ref = c.New.Ref()
		} else {
			ref = c.Old.Ref()
		}
		require.Same(t, rebuilt[ref], c.Old)
		require.Positive(t, ref.Compare(last))
		if last, rebuilt[ref] = ref, c.New; c.New == nil {
			delete(rebuilt, ref)
		}
	}
	require.Len(t, rebuilt, now.Len())
	for r := range now.All() {
		require.Same(t, r, rebuilt[r.Ref()])
	}
	for range now.Since(before) {
		break
	}
}

func TestViewTyped(t *testing.T) {
	tab := newTable(tableLimits{records: 100, bytes: 1 << 20})
	for kind := frames.KindObjective; kind <= frames.KindArtifactManifest; kind++ {
		require.NoError(t, tab.apply(carrying(t, frames.EventSequence(kind), family(t, kind, 7, 1, 7))))
	}
	foreign := family(t, frames.KindObjective, 8, 1, 1)
	foreign.Schema = 2
	foreign.Payload = []byte("of a schema to come")
	e := carrying(t, 20, foreign)
	require.NoError(t, tab.apply(e))
	v := tab.view()
	require.Equal(t, "1", string(v.Objective(frames.ObjectiveID{1, 7}).Document))
	require.Equal(t, frames.ObjectiveID{1, 7}, v.Run(frames.RunID{2, 7}).ObjectiveID)
	require.Equal(t, frames.RunID{2, 7}, v.WorkSession(frames.WorkSessionID{3, 7}).RunID)
	require.Equal(t, frames.WorkSessionID{3, 7}, v.Binding(frames.BindingID{4, 7}).Binding.WorkSessionID)
	require.EqualValues(t, 1, v.Artifact(frames.ArtifactID{5, 7}).LatestRevision)
	require.Equal(t, frames.SignalAcknowledged, v.Signal(frames.SignalID{6, 7}).State)
	require.Equal(t, frames.OperationSucceeded, v.Operation(frames.OperationID{7, 7}).Result.State)
	require.Equal(t, frames.ArtifactID{5, 7}, v.Evidence(frames.BindingID{8, 7}).ArtifactID)
	require.Equal(t, "{}", string(v.Manifest(frames.ArtifactID{10, 7}).Manifest))
	require.Nil(t, v.Run(frames.RunID{2, 8}))
	require.Nil(t, v.Objective(frames.ObjectiveID{1, 8}), "not what this client knows")
	r := v.Get(frames.KindObjective, frames.ObjectID{1, 8})
	require.Equal(t, foreign, r.Snapshot(), "and there all the same")
	require.EqualValues(t, 20, r.Sequence())
	_, err := r.Decode()
	require.Error(t, err)
	for name, seq := range map[string]func(func(*Record) bool){"runs": v.RunsOf(frames.ObjectiveID{1, 7}), "sessions": v.SessionsOf(frames.RunID{2, 7}),
		"bindings": v.BindingsOf(frames.WorkSessionID{3, 7}), "artifacts": v.ArtifactsOf(frames.WorkSessionID{3, 7}),
		"signals": v.SignalsOf(frames.WorkSessionID{3, 7}), "evidence": v.EvidenceOf(frames.WorkSessionID{3, 7})} {
		n := 0
		for range seq {
			n++
		}
		require.Equal(t, 1, n, name)
	}
	o := v.Objective(frames.ObjectiveID{1, 7})
	o.Document[0] = 'x'
	require.Equal(t, "1", string(v.Objective(frames.ObjectiveID{1, 7}).Document), "what is given is the caller's own")
}

func TestReplicaWords(t *testing.T) {
	for p := ReplicaConnecting; p <= ReplicaClosed; p++ {
		require.NotContains(t, p.String(), "phase")
		require.NotEmpty(t, ReplicaState{Phase: p, Lost: &LostHistory{}}.String())
		require.Equal(t, p >= ReplicaQuarantined, p.Final())
	}
	require.Equal(t, "phase 99", ReplicaPhase(99).String())
	require.Equal(t, "reason 99", StaleReason(99).String())
	require.Equal(t, "Current at event 7", ReplicaState{Phase: ReplicaCurrent, Cut: 7}.String())
	require.Equal(t, "Stale: QUEUE_OVERFLOW after event 7", ReplicaState{Phase: ReplicaStale, Reason: StaleGap, Gap: &Gap{Last: 7}}.String())
	require.Equal(t, "Stale at event 7: behind", ReplicaState{Phase: ReplicaStale, Reason: StaleBehind, Cut: 7}.String())
	require.Equal(t, "Closed: "+ErrClosed.Error(), ReplicaState{Phase: ReplicaClosed, Err: ErrClosed}.String())
}

// memoryKinds is the mix of records that BenchmarkReplicaMemory measures: a run with its
// session, binding, two artifacts and a signal, under one objective, and four operations.
var memoryKinds = []frames.ObjectKind{frames.KindObjective, frames.KindRun, frames.KindWorkSession, frames.KindBinding, frames.KindArtifact,
	frames.KindArtifactManifest, frames.KindSignal, frames.KindOperation, frames.KindOperation, frames.KindOperation, frames.KindOperation}

// BenchmarkReplicaMemory reports what a typical record takes in a replica's memory, beside
// its payload and in all.
func BenchmarkReplicaMemory(b *testing.B) {
	const n = 200_000
	for b.Loop() {
		tab := newTable(tableLimits{records: 1 << 30, bytes: 1 << 50})
		random := rand.New(rand.NewPCG(1, 2))
		before := heap()
		payload := 0
		for i := range n {
			kind := memoryKinds[i%len(memoryKinds)]
			sr := family(b, kind, byte(i), 1, byte(i>>8))
			binary.BigEndian.PutUint64(sr.ID[:], random.Uint64())
			payload += len(sr.Payload)
			r, err := newRecord(&sr, 1)
			if err != nil {
				b.Fatal(err)
			}
			if err := tab.replace(nil, r); err != nil {
				b.Fatal(err)
			}
			if i%64 == 0 {
				tab.view() // as publications do
			}
		}
		all := float64(heap()-before) / n
		b.ReportMetric(all, "bytes/record")
		b.ReportMetric(all-float64(payload)/n, "overhead/record")
		b.ReportMetric(float64(tab.bytes)/n, "counted/record")
		runtime.KeepAlive(tab)
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// BenchmarkReplicaApply reports what one event costs, publication included, in a replica of
// a hundred thousand records.
func BenchmarkReplicaApply(b *testing.B) {
	tab := newTable(tableLimits{records: 1 << 30, bytes: 1 << 50})
	const n = 100_000
	refs := make([]frames.SnapshotRecord, n)
	for i := range refs {
		sr := family(b, frames.KindRun, byte(i), 1, byte(i>>8))
		sr.ID = frames.ObjectID{byte(i), byte(i >> 8), byte(i >> 16), 9: 1}
		refs[i] = sr
		r, err := newRecord(&sr, 1)
		require.NoError(b, err)
		require.NoError(b, tab.replace(nil, r))
	}
	i := 0
	begin := time.Now()
	for b.Loop() {
		sr := &refs[i*7919%n]
		sr.Revision++
		if err := tab.apply(carrying(b, 2, *sr)); err != nil {
			b.Fatal(err)
		}
		tab.view()
		i++
	}
	b.ReportMetric(float64(i)/time.Since(begin).Seconds(), "events/s")
}

// TestNewView makes views of records, and shares with the one before what has not changed.
func TestNewView(t *testing.T) {
	records := []frames.SnapshotRecord{family(t, frames.KindObjective, 1, 1, 1), family(t, frames.KindRun, 1, 1, 1), family(t, frames.KindSignal, 1, 3, 1)}
	guard := frames.AuthorityGuard{Epoch: 2}
	one, err := NewView(guard, 7, slices.Values(records), nil)
	require.NoError(t, err)
	require.Equal(t, 3, one.Len())
	require.Equal(t, guard, one.Guard)
	require.EqualValues(t, 7, one.Cut)
	require.False(t, one.Current)
	require.Equal(t, records[1], one.Get(frames.KindRun, records[1].ID).Snapshot())
	require.Len(t, slices.Collect(one.OpenSignals()), 1)
	records[0] = family(t, frames.KindObjective, 1, 2, 1)
	two, err := NewView(guard, 8, slices.Values(records), one)
	require.NoError(t, err)
	require.Same(t, one.Get(frames.KindRun, records[1].ID), two.Get(frames.KindRun, records[1].ID))
	require.Len(t, slices.Collect(two.Since(one)), 1)
	records[0].Payload = []byte{1}
	_, err = NewView(guard, 8, slices.Values(records), one)
	require.ErrorIs(t, err, ErrProtocol)
}
