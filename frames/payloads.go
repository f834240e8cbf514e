package frames

import "coordinator/codec"

// Command payloads of protocol.md §7.2: canonical TLV, ids chosen by the client. Unknown
// fields are skipped here and kept, for the digest, in the command's payload bytes.

// CreateObjective is the payload of CREATE_OBJECTIVE.
//
//	1 objective_id:bytes16  2 schema:u16  3 document:bytes
type CreateObjective struct {
	ObjectiveID ObjectiveID
	Schema      uint16
	Document    []byte
}

func (m *CreateObjective) Layout(b *codec.Body) {
	codec.ID16(b, 1, &m.ObjectiveID)
	codec.U16(b, 2, &m.Schema)
	codec.Bytes(b, 3, &m.Document, MaxTypedPayload)
}

// UpdateObjective is the payload of UPDATE_OBJECTIVE. State, from OBJECTIVE_LIFECYCLE
// (§12), is Completed or Cancelled; nil is absent.
//
//	1 objective_id:bytes16  2 schema:u16  3 document:bytes  4 state:optional<u8>
type UpdateObjective struct {
	ObjectiveID ObjectiveID
	Schema      uint16
	Document    []byte
	State       *ObjectiveState
}

func (m *UpdateObjective) Layout(b *codec.Body) {
	codec.ID16(b, 1, &m.ObjectiveID)
	codec.U16(b, 2, &m.Schema)
	codec.Bytes(b, 3, &m.Document, MaxTypedPayload)
	codec.OptEnum8(b, 4, &m.State, ObjectiveCancelled)
	b.Check(m.State == nil || *m.State != ObjectiveActive, 4, codec.ErrTag)
}

// StartRun is the payload of START_RUN. Fields 3-9 are the SPAWN's payload and target.
//
//	1 objective_id  2 run_id  3 work_session_id (bytes16)  4 executor_schema:u16
//	5 executor_document:bytes  6 pending_binding_id:bytes16
//	7 owner_authority_fingerprint:bytes32  8 owner_incarnation:bytes16
//	9 terminal_group:bytes (a GroupId image)
type StartRun struct {
	ObjectiveID      ObjectiveID
	RunID            RunID
	WorkSessionID    WorkSessionID
	ExecutorSchema   uint16
	ExecutorDocument []byte
	PendingBindingID PendingBindingID
	Owner            Fingerprint
	OwnerIncarnation IncarnationID
	Group            GroupID
}

func (m *StartRun) Layout(b *codec.Body) {
	codec.ID16(b, 1, &m.ObjectiveID)
	codec.ID16(b, 2, &m.RunID)
	codec.ID16(b, 3, &m.WorkSessionID)
	codec.U16(b, 4, &m.ExecutorSchema)
	codec.Bytes(b, 5, &m.ExecutorDocument, MaxTypedPayload)
	codec.ID16(b, 6, &m.PendingBindingID)
	codec.Hash32(b, 7, &m.Owner)
	codec.ID16(b, 8, &m.OwnerIncarnation)
	codec.U32(b, 9, &m.Group)
}

// RunCommand is the payload of CANCEL_RUN, PAUSE_RUN and RESUME_RUN.
//
//	1 run_id:bytes16
type RunCommand struct{ RunID RunID }

func (m *RunCommand) Layout(b *codec.Body) { codec.ID16(b, 1, &m.RunID) }

// SignalCommand is the payload of ACK_SIGNAL and SUPPRESS_SIGNAL; Note nil is absent.
//
//	1 signal_id:bytes16  2 note:optional<str<=1024>
type SignalCommand struct {
	SignalID SignalID
	Note     *string
}

func (m *SignalCommand) Layout(b *codec.Body) {
	codec.ID16(b, 1, &m.SignalID)
	codec.OptStr(b, 2, &m.Note, MaxText)
}

// RegisterArtifactManifest is the payload of REGISTER_ARTIFACT_MANIFEST.
//
//	1 artifact_id:bytes16  2 revision:u64  3 schema:u16  4 manifest:bytes
type RegisterArtifactManifest struct {
	ArtifactID ArtifactID
	Revision   ObjectRevision
	Schema     uint16
	Manifest   []byte
}

func (m *RegisterArtifactManifest) Layout(b *codec.Body) {
	codec.ID16(b, 1, &m.ArtifactID)
	codec.NonzeroU64(b, 2, &m.Revision)
	codec.U16(b, 3, &m.Schema)
	codec.Bytes(b, 4, &m.Manifest, MaxTypedPayload)
}

// EndBinding is the payload of END_BINDING.
//
//	1 binding_id:bytes16  2 reason:u8
type EndBinding struct {
	BindingID BindingID
	Reason    EndReason
}

func (m *EndBinding) Layout(b *codec.Body) {
	codec.ID16(b, 1, &m.BindingID)
	codec.Enum8(b, 2, &m.Reason, EndFailed)
}

// ChangeRetention is the payload of CHANGE_RETENTION; its three values are those of the
// RETENTION record [D-42].
//
//	1 operation_result_secs:u64 (>= 2,592,000)  2 event_bytes:u64  3 artifact_bytes:u64
type ChangeRetention struct{ Retention }

// ArchiveObjective is the payload of ARCHIVE_OBJECTIVE (§12).
//
//	1 objective_id:bytes16
type ArchiveObjective struct{ ObjectiveID ObjectiveID }

func (m *ArchiveObjective) Layout(b *codec.Body) { codec.ID16(b, 1, &m.ObjectiveID) }
