package client

import (
	"fmt"

	"coordinator/codec"
	"coordinator/frames"
)

// A Record is one object at one revision, as a [View] holds it. It never changes and may be
// kept and shared; what its methods give is the caller's own.
type Record struct {
	payload  string
	parent   frames.ObjectID // zero: none
	id       frames.ObjectID
	revision frames.ObjectRevision
	sequence frames.EventSequence
	kind     frames.ObjectKind
	schema   uint16
	open     bool // a signal that nobody has dealt with
}

// recordBytes is what a record costs beside its payload: the struct, what the allocation of
// its payload is rounded up by, and its places in up to three trees. BenchmarkReplicaMemory
// measures 105 bytes.
const recordBytes = 112

func (r *Record) size() int64 { return recordBytes + int64(len(r.payload)) }

// Ref names the object.
func (r *Record) Ref() frames.ObjectRef { return frames.ObjectRef{Kind: r.kind, ID: r.id} }

// Kind is the object's family.
func (r *Record) Kind() frames.ObjectKind { return r.kind }

// ID is the object's id.
func (r *Record) ID() frames.ObjectID { return r.id }

// Revision is the object's revision.
func (r *Record) Revision() frames.ObjectRevision { return r.revision }

// Sequence is the event that brought this revision; zero says that a snapshot did.
func (r *Record) Sequence() frames.EventSequence { return r.sequence }

// Parent names what the object belongs to: of a run its objective, of a work session its
// run, of a manifest its artifact, of everything else beneath a session that session.
func (r *Record) Parent() (ref frames.ObjectRef, ok bool) {
	if r.parent == (frames.ObjectID{}) {
		return ref, false
	}
	return frames.ObjectRef{Kind: kindTable[r.kind].parent, ID: r.parent}, true
}

// Snapshot is the record in the form of the wire (protocol.md §7.1).
func (r *Record) Snapshot() frames.SnapshotRecord {
	return frames.SnapshotRecord{Kind: r.kind, ID: r.id, Revision: r.revision, Schema: r.schema, Payload: []byte(r.payload)}
}

// Decode is the payload as the type of its kind, a pointer such as *[frames.Run]. A schema
// that this client does not know is an error, and the record is still there as bytes.
func (r *Record) Decode() (codec.Message, error) {
	s := r.Snapshot()
	return s.DecodePayload()
}

// kindTable says of each family what its records belong to.
var kindTable = [frames.KindArtifactManifest + 1]struct {
	parent frames.ObjectKind // zero: nothing
	of     func(codec.Message) frames.ObjectID
}{
	frames.KindRun: {frames.KindObjective, func(m codec.Message) frames.ObjectID { return frames.ObjectID(m.(*frames.Run).ObjectiveID) }},
	frames.KindWorkSession: {frames.KindRun, func(m codec.Message) frames.ObjectID {
		return frames.ObjectID(m.(*frames.WorkSession).RunID)
	}},
	frames.KindBinding: {frames.KindWorkSession, func(m codec.Message) frames.ObjectID {
		return frames.ObjectID(m.(*frames.Binding).Binding.WorkSessionID)
	}},
	frames.KindArtifact: {frames.KindWorkSession, func(m codec.Message) frames.ObjectID {
		return frames.ObjectID(m.(*frames.Artifact).WorkSessionID)
	}},
	frames.KindSignal: {frames.KindWorkSession, func(m codec.Message) frames.ObjectID {
		return frames.ObjectID(m.(*frames.Signal).WorkSessionID)
	}},
	frames.KindEvidence: {frames.KindWorkSession, func(m codec.Message) frames.ObjectID {
		return frames.ObjectID(m.(*frames.Evidence).WorkSessionID)
	}},
	frames.KindArtifactManifest: {frames.KindArtifact, func(m codec.Message) frames.ObjectID {
		return frames.ObjectID(m.(*frames.ArtifactManifest).ArtifactID)
	}},
}

// newRecord takes a record of the wire in. Its payload must be what its kind and schema
// say; one of another schema is kept as it is.
func newRecord(s *frames.SnapshotRecord, seq frames.EventSequence) (*Record, error) {
	r := &Record{payload: string(s.Payload), id: s.ID, revision: s.Revision, sequence: seq, kind: s.Kind, schema: s.Schema}
	if s.Schema != frames.RecordSchema {
		return r, nil
	}
	m, err := s.DecodePayload()
	if err != nil {
		return nil, fmt.Errorf("%w: %v: %w", ErrProtocol, s.Ref(), err)
	}
	if of := kindTable[s.Kind].of; of != nil {
		r.parent = of(m)
	}
	if sig, ok := m.(*frames.Signal); ok {
		r.open = sig.State == frames.SignalOpen
	}
	return r, nil
}

// same reports whether r is what s says.
func (r *Record) same(s *frames.SnapshotRecord) bool {
	return r != nil && r.revision == s.Revision && r.schema == s.Schema && r.payload == string(s.Payload)
}
