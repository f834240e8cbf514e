package frames

import (
	"fmt"

	"coordinator/codec"
)

// RecordSchema is the schema of every record payload in this version (protocol.md §7.1).
const RecordSchema = 1

// SnapshotRecord is one object at one revision (§7.1).
//
//	kind:u16 || id:bytes16 || revision:u64 || schema:u16 || payload_len:u32 || payload
type SnapshotRecord struct {
	Kind     ObjectKind
	ID       ObjectID
	Revision ObjectRevision
	Schema   uint16
	Payload  []byte
}

func (r *SnapshotRecord) Image(i *codec.Image) {
	codec.ImgU16(i, &r.Kind)
	i.Check(r.Kind.Known(), codec.ErrTag)
	codec.ImgID16(i, &r.ID)
	codec.ImgNonzeroU64(i, &r.Revision)
	codec.ImgU16(i, &r.Schema)
	codec.ImgBytes(i, &r.Payload, MaxTypedPayload)
}

// Ref names the record's object.
func (r *SnapshotRecord) Ref() ObjectRef { return ObjectRef{Kind: r.Kind, ID: r.ID} }

// Size is the length of the record's image.
func (r *SnapshotRecord) Size() int { return minRecordImage + len(r.Payload) }

// NewRecord encodes payload as the record of one object.
func NewRecord(ref ObjectRef, revision ObjectRevision, payload codec.Message) (SnapshotRecord, error) {
	raw, err := codec.Encode(nil, payload)
	if err != nil {
		return SnapshotRecord{}, fmt.Errorf("%v record: %w", ref.Kind, err)
	}
	return SnapshotRecord{Kind: ref.Kind, ID: ref.ID, Revision: revision, Schema: RecordSchema, Payload: raw}, nil
}

var recordPayloads = map[ObjectKind]func() codec.Message{
	KindObjective:        func() codec.Message { return new(Objective) },
	KindRun:              func() codec.Message { return new(Run) },
	KindWorkSession:      func() codec.Message { return new(WorkSession) },
	KindBinding:          func() codec.Message { return new(Binding) },
	KindArtifact:         func() codec.Message { return new(Artifact) },
	KindArtifactManifest: func() codec.Message { return new(ArtifactManifest) },
	KindSignal:           func() codec.Message { return new(Signal) },
	KindOperation:        func() codec.Message { return new(Operation) },
	KindEvidence:         func() codec.Message { return new(Evidence) },
	KindAdmin:            func() codec.Message { return new(Admin) },
}

// DecodePayload decodes the record's payload to the type of its kind, a pointer such as
// *[Objective].
func (r *SnapshotRecord) DecodePayload() (codec.Message, error) {
	newPayload, ok := recordPayloads[r.Kind]
	if !ok {
		return nil, &codec.Error{Cause: codec.ErrTag}
	}
	if r.Schema != RecordSchema {
		return nil, Refuse(CodeCapabilityRequired, "%v record of schema %d", r.Kind, r.Schema)
	}
	m := newPayload()
	if err := codec.Decode(m, r.Payload); err != nil {
		return nil, fmt.Errorf("%v record: %w", r.Kind, err)
	}
	return m, nil
}

// ObjectiveState is the state of an objective.
type ObjectiveState uint8

const (
	ObjectiveActive    ObjectiveState = 0
	ObjectiveCompleted ObjectiveState = 1
	ObjectiveCancelled ObjectiveState = 2
)

func (s ObjectiveState) String() string {
	return enumName(uint8(s), "Active", "Completed", "Cancelled")
}

// Objective is the payload of an OBJECTIVE record.
//
//	1 document_schema:u16  2 document:bytes  3 state:u8
type Objective struct {
	DocumentSchema uint16
	Document       []byte
	State          ObjectiveState
}

func (m *Objective) Layout(b *codec.Body) {
	codec.U16(b, 1, &m.DocumentSchema)
	codec.Bytes(b, 2, &m.Document, MaxTypedPayload)
	codec.Enum8(b, 3, &m.State, ObjectiveCancelled)
}

// RunState is the state of a run.
type RunState uint8

const (
	RunPlanned   RunState = 0
	RunRunning   RunState = 1
	RunPaused    RunState = 2
	RunCompleted RunState = 3
	RunCancelled RunState = 4
	RunFailed    RunState = 5
)

// Terminal reports whether the run has ended.
func (s RunState) Terminal() bool { return s >= RunCompleted }

func (s RunState) String() string {
	return enumName(uint8(s), "Planned", "Running", "Paused", "Completed", "Cancelled", "Failed")
}

// Run is the payload of a RUN record; Outcome nil is absent.
//
//	1 objective_id:bytes16  2 attempt:u32  3 state:u8  4 outcome:optional<bytes>
type Run struct {
	ObjectiveID ObjectiveID
	Attempt     uint32
	State       RunState
	Outcome     []byte
}

func (m *Run) Layout(b *codec.Body) {
	codec.ID16(b, 1, &m.ObjectiveID)
	codec.U32(b, 2, &m.Attempt)
	codec.Enum8(b, 3, &m.State, RunFailed)
	codec.OptBytes(b, 4, &m.Outcome, MaxTypedPayload)
}

// ActivityState is the state of a work session or a binding.
type ActivityState uint8

const (
	StateActive ActivityState = 0
	StateEnded  ActivityState = 1
)

func (s ActivityState) String() string { return enumName(uint8(s), "Active", "Ended") }

// WorkSession is the payload of a WORK_SESSION record; ActiveBinding zero is absent.
//
//	1 run_id:bytes16  2 state:u8  3 active_binding:optional<bytes16>
type WorkSession struct {
	RunID         RunID
	State         ActivityState
	ActiveBinding BindingID
}

func (m *WorkSession) Layout(b *codec.Body) {
	codec.ID16(b, 1, &m.RunID)
	codec.Enum8(b, 2, &m.State, StateEnded)
	codec.OptID16(b, 3, &m.ActiveBinding)
}

// EndReason says why a binding ended.
type EndReason uint8

const (
	EndCompleted EndReason = 0
	EndOwnerLost EndReason = 1
	EndCancelled EndReason = 2
	EndFailed    EndReason = 3
)

func (r EndReason) String() string {
	return enumName(uint8(r), "Completed", "OwnerLost", "Cancelled", "Failed")
}

// Binding is the payload of a BINDING record; Reason nil is absent.
//
//	1 binding:TerminalBindingRef  2 state:u8  3 end_reason:optional<u8>
type Binding struct {
	Binding TerminalBindingRef
	State   ActivityState
	Reason  *EndReason
}

func (m *Binding) Layout(b *codec.Body) {
	codec.Nested(b, 1, &m.Binding, maxBindingRef)
	codec.Enum8(b, 2, &m.State, StateEnded)
	codec.OptEnum8(b, 3, &m.Reason, EndFailed)
}

// Artifact is the payload of an ARTIFACT record.
//
//	1 work_session_id:bytes16  2 latest_revision:u64
type Artifact struct {
	WorkSessionID  WorkSessionID
	LatestRevision ObjectRevision
}

func (m *Artifact) Layout(b *codec.Body) {
	codec.ID16(b, 1, &m.WorkSessionID)
	codec.NonzeroU64(b, 2, &m.LatestRevision)
}

// ArtifactManifest is the payload of an ARTIFACT_MANIFEST record [D-15].
//
//	1 artifact_id:bytes16  2 revision:u64  3 schema:u16  4 manifest:bytes
type ArtifactManifest struct {
	ArtifactID ArtifactID
	Revision   ObjectRevision
	Schema     uint16
	Manifest   []byte
}

func (m *ArtifactManifest) Layout(b *codec.Body) {
	codec.ID16(b, 1, &m.ArtifactID)
	codec.NonzeroU64(b, 2, &m.Revision)
	codec.U16(b, 3, &m.Schema)
	codec.Bytes(b, 4, &m.Manifest, MaxTypedPayload)
}

// SignalState is the state of a signal.
type SignalState uint8

const (
	SignalOpen         SignalState = 0
	SignalAcknowledged SignalState = 1
	SignalSuppressed   SignalState = 2
	SignalResolved     SignalState = 3
)

func (s SignalState) String() string {
	return enumName(uint8(s), "Open", "Acknowledged", "Suppressed", "Resolved")
}

// Signal is the payload of a SIGNAL record.
//
//	1 work_session_id:bytes16  2 kind:u16  3 state:u8  4 message:str<=1024
type Signal struct {
	WorkSessionID WorkSessionID
	Kind          SignalKind
	State         SignalState
	Message       string
}

func (m *Signal) Layout(b *codec.Body) {
	codec.ID16(b, 1, &m.WorkSessionID)
	codec.U16(b, 2, &m.Kind)
	b.Check(b.Failed() || m.Kind >= SignalExecutionBlocked && m.Kind <= SignalPolicy, 2, codec.ErrTag)
	codec.Enum8(b, 3, &m.State, SignalResolved)
	codec.Str(b, 4, &m.Message, MaxText)
}

// Operation is the payload of an OPERATION record.
//
//	1 principal_key_id:bytes32  2 result:OperationResult
type Operation struct {
	Principal KeyID
	Result    OperationResult
}

func (m *Operation) Layout(b *codec.Body) {
	codec.Hash32(b, 1, &m.Principal)
	codec.Nested(b, 2, &m.Result, maxOperationImage)
}

// Evidence is the payload of an EVIDENCE record; its id is its BindingId [D-35].
//
//	1 work_session_id:bytes16  2 artifact_id:bytes16  3 seal_sha256:bytes32
type Evidence struct {
	WorkSessionID WorkSessionID
	ArtifactID    ArtifactID
	Seal          [32]byte
}

func (m *Evidence) Layout(b *codec.Body) {
	codec.ID16(b, 1, &m.WorkSessionID)
	codec.ID16(b, 2, &m.ArtifactID)
	codec.Hash32(b, 3, &m.Seal)
}

// EvidenceManifest is the manifest that a seal's artifact carries, schema 1 [D-22];
// ExitStatus nil is absent.
//
//	1 binding_id:bytes16  2 fact_count:u64  3 output_bytes:u64
//	4 exit_status:optional<i32>  5 seal_sha256:bytes32
type EvidenceManifest struct {
	BindingID   BindingID
	FactCount   uint64
	OutputBytes uint64
	ExitStatus  *int32
	Seal        [32]byte
}

func (m *EvidenceManifest) Layout(b *codec.Body) {
	codec.ID16(b, 1, &m.BindingID)
	codec.U64(b, 2, &m.FactCount)
	codec.U64(b, 3, &m.OutputBytes)
	status := exitStatus{}
	use := m.ExitStatus != nil
	if use && !b.Decoding() {
		status.v = *m.ExitStatus
	}
	codec.OptNested(b, 4, &use, &status, 4)
	if b.Decoding() {
		m.ExitStatus = nil
		if use {
			m.ExitStatus = &status.v
		}
	}
	codec.Hash32(b, 5, &m.Seal)
}

// exitStatus is an i32 as a positional value.
type exitStatus struct{ v int32 }

func (s *exitStatus) Image(i *codec.Image) { codec.ImgI32(i, &s.v) }

// Admin is the payload of an ADMIN record [D-14]. Payload is the TLV body of
// [Activation], [Retention] or [Credential].
//
//	1 admin_kind:u16  2 payload:bytes
type Admin struct {
	Kind    AdminKind
	Payload []byte
}

func (m *Admin) Layout(b *codec.Body) {
	codec.U16(b, 1, &m.Kind)
	b.Check(b.Failed() || m.Kind >= AdminActivation && m.Kind <= AdminCredential, 1, codec.ErrTag)
	codec.Bytes(b, 2, &m.Payload, MaxTypedPayload)
}

// DecodePayload decodes the payload to *[Activation], *[Retention] or *[Credential].
func (m *Admin) DecodePayload() (codec.Message, error) {
	var p codec.Message
	switch m.Kind {
	case AdminActivation:
		p = new(Activation)
	case AdminRetention:
		p = new(Retention)
	case AdminCredential:
		p = new(Credential)
	default:
		return nil, &codec.Error{Field: 1, Cause: codec.ErrTag}
	}
	if err := codec.Decode(p, m.Payload); err != nil {
		return nil, fmt.Errorf("ADMIN payload: %w", err)
	}
	return p, nil
}

// Activation is the payload of ADMIN/ACTIVATION [D-14].
//
//	1 epoch:u64  2 activation:u64  3 incarnation:bytes16  4 witness_id:bytes16
//	5 witness_key_id:bytes32  6 activated_at:u64 (Unix seconds)
type Activation struct {
	Epoch        AuthorityEpoch
	Activation   ActivationSequence
	Incarnation  IncarnationID
	WitnessID    WitnessID
	WitnessKeyID [32]byte
	ActivatedAt  uint64
}

func (m *Activation) Layout(b *codec.Body) {
	codec.NonzeroU64(b, 1, &m.Epoch)
	codec.NonzeroU64(b, 2, &m.Activation)
	codec.ID16(b, 3, &m.Incarnation)
	codec.ID16(b, 4, &m.WitnessID)
	codec.Hash32(b, 5, &m.WitnessKeyID)
	codec.U64(b, 6, &m.ActivatedAt)
}

// Retention is the payload of ADMIN/RETENTION [D-14] [D-42].
//
//	1 operation_result_secs:u64 (>= 2,592,000)  2 event_bytes:u64 (nonzero)
//	3 artifact_bytes:u64 (nonzero)
type Retention struct {
	OperationResultSecs uint64
	EventBytes          uint64
	ArtifactBytes       uint64
}

func (m *Retention) Layout(b *codec.Body) {
	codec.U64(b, 1, &m.OperationResultSecs)
	b.Check(m.OperationResultSecs >= MinOperationRetained, 1, codec.ErrUnderMin)
	codec.NonzeroU64(b, 2, &m.EventBytes)
	codec.NonzeroU64(b, 3, &m.ArtifactBytes)
}

// Credential is the payload of ADMIN/CREDENTIAL [D-14]; RevokedAt nil is absent.
//
//	1 key_id:bytes32  2 scope_ceiling:u64  3 expires_at:u64  4 revoked_at:optional<u64>
type Credential struct {
	KeyID        KeyID
	ScopeCeiling Scope
	ExpiresAt    uint64
	RevokedAt    *uint64
}

func (m *Credential) Layout(b *codec.Body) {
	codec.Hash32(b, 1, &m.KeyID)
	codec.U64(b, 2, &m.ScopeCeiling)
	codec.U64(b, 3, &m.ExpiresAt)
	codec.OptU64(b, 4, &m.RevokedAt)
}

func enumName(v uint8, names ...string) string {
	if int(v) < len(names) {
		return names[v]
	}
	return fmt.Sprintf("state %d", v)
}
