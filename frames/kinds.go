package frames

import (
	"fmt"

	"coordinator/codec"
)

// ObjectKind is the family of an object (protocol.md §7.1).
type ObjectKind uint16

const (
	KindObjective        ObjectKind = 1
	KindRun              ObjectKind = 2
	KindWorkSession      ObjectKind = 3
	KindBinding          ObjectKind = 4
	KindArtifact         ObjectKind = 5
	KindSignal           ObjectKind = 6
	KindOperation        ObjectKind = 7
	KindEvidence         ObjectKind = 8
	KindAdmin            ObjectKind = 9
	KindArtifactManifest ObjectKind = 10
)

var objectKindNames = []string{"", "OBJECTIVE", "RUN", "WORK_SESSION", "BINDING", "ARTIFACT", "SIGNAL",
	"OPERATION", "EVIDENCE", "ADMIN", "ARTIFACT_MANIFEST"}

// Known reports whether the protocol defines the kind.
func (k ObjectKind) Known() bool { return k >= KindObjective && k <= KindArtifactManifest }

func (k ObjectKind) String() string { return kindName("OBJECT", uint16(k), objectKindNames) }

// CommandKind is the kind of a COORD_COMMAND (§7.1). An unknown one is well-formed on the
// wire [D-18].
type CommandKind uint16

const (
	CommandCreateObjective          CommandKind = 1
	CommandUpdateObjective          CommandKind = 2
	CommandStartRun                 CommandKind = 3
	CommandCancelRun                CommandKind = 4
	CommandPauseRun                 CommandKind = 5
	CommandResumeRun                CommandKind = 6
	CommandAckSignal                CommandKind = 7
	CommandSuppressSignal           CommandKind = 8
	CommandRegisterArtifactManifest CommandKind = 9
	CommandEndBinding               CommandKind = 10
	CommandChangeRetention          CommandKind = 11
	// CommandArchiveObjective is the extension of capability ARCHIVE (§12).
	CommandArchiveObjective CommandKind = 0x4000
)

var commandKindNames = []string{"", "CREATE_OBJECTIVE", "UPDATE_OBJECTIVE", "START_RUN", "CANCEL_RUN",
	"PAUSE_RUN", "RESUME_RUN", "ACK_SIGNAL", "SUPPRESS_SIGNAL", "REGISTER_ARTIFACT_MANIFEST", "END_BINDING",
	"CHANGE_RETENTION"}

func (k CommandKind) String() string {
	if k == CommandArchiveObjective {
		return "ARCHIVE_OBJECTIVE"
	}
	return kindName("COMMAND", uint16(k), commandKindNames)
}

// EventKind is the kind of an event (§7.1).
type EventKind uint16

const (
	EventObjectiveChanged      EventKind = 1
	EventRunChanged            EventKind = 2
	EventWorkSessionChanged    EventKind = 3
	EventBindingOpened         EventKind = 4
	EventBindingEnded          EventKind = 5
	EventArtifactRevisionAdded EventKind = 6
	EventSignalRaised          EventKind = 7
	EventSignalAcknowledged    EventKind = 8
	EventSignalSuppressed      EventKind = 9
	EventSignalResolved        EventKind = 10
	EventOperationChanged      EventKind = 11
	EventSourceFactAdmitted    EventKind = 12
	EventSourceGap             EventKind = 13
	EventEvidenceSealed        EventKind = 14
	// EventObjectRemoved is the extension of capability ARCHIVE (§12).
	EventObjectRemoved EventKind = 0x4000
)

var eventKindNames = []string{"", "OBJECTIVE_CHANGED", "RUN_CHANGED", "WORK_SESSION_CHANGED", "BINDING_OPENED",
	"BINDING_ENDED", "ARTIFACT_REVISION_ADDED", "SIGNAL_RAISED", "SIGNAL_ACKNOWLEDGED", "SIGNAL_SUPPRESSED",
	"SIGNAL_RESOLVED", "OPERATION_CHANGED", "SOURCE_FACT_ADMITTED", "SOURCE_GAP", "EVIDENCE_SEALED"}

// Known reports whether the protocol defines the kind, extensions included.
func (k EventKind) Known() bool {
	return k >= EventObjectiveChanged && k <= EventEvidenceSealed || k == EventObjectRemoved
}

// CarriesRecord reports whether an event of this kind carries one whole SnapshotRecord.
func (k EventKind) CarriesRecord() bool {
	return k >= EventObjectiveChanged && k <= EventOperationChanged || k == EventEvidenceSealed
}

func (k EventKind) String() string {
	if k == EventObjectRemoved {
		return "OBJECT_REMOVED"
	}
	return kindName("EVENT", uint16(k), eventKindNames)
}

func kindName(family string, k uint16, names []string) string {
	if k > 0 && int(k) < len(names) {
		return names[k]
	}
	return fmt.Sprintf("%s_%d", family, k)
}

// Capability is a bit of the capability word (§5.6, §12).
type Capability uint64

const (
	CapEventReplay        Capability = 0x01
	CapTerminalBindings   Capability = 0x02
	CapArtifactManifests  Capability = 0x04
	CapSignals            Capability = 0x08
	CapAdministration     Capability = 0x10
	CapObjectiveLifecycle Capability = 1 << 32
	CapWithoutOperations  Capability = 1 << 33
	CapArchive            Capability = 1 << 34
)

// Has reports whether every bit of want is set.
func (c Capability) Has(want Capability) bool { return c&want == want }

// Scope is a set of scope bits (§5.6). The bits are independent: ADMIN implies nothing.
type Scope uint64

const (
	ScopeWorkRead        Scope = 0x01
	ScopeWorkCommand     Scope = 0x02
	ScopeTerminalControl Scope = 0x04
	ScopeArtifactRead    Scope = 0x08
	ScopeSignalAck       Scope = 0x10
	ScopeAdmin           Scope = 0x20
	// AllScopes is every scope of the coordinator endpoint.
	AllScopes Scope = 0x3f
)

// Has reports whether every bit of want is set.
func (s Scope) Has(want Scope) bool { return s&want == want }

// SignalKind says what a signal is about (§7.1).
type SignalKind uint16

const (
	SignalExecutionBlocked SignalKind = 1
	SignalExecutionFailed  SignalKind = 2
	SignalEvidenceGap      SignalKind = 3
	SignalPolicy           SignalKind = 4
)

// AdminKind is the kind inside an ADMIN record (§7.1).
type AdminKind uint16

const (
	AdminActivation AdminKind = 1
	AdminRetention  AdminKind = 2
	AdminCredential AdminKind = 3
)

// ObjectRef names one object (§7.1).
//
//	kind:u16 || id:bytes16
type ObjectRef struct {
	Kind ObjectKind
	ID   ObjectID
}

func (r *ObjectRef) Image(i *codec.Image) {
	codec.ImgU16(i, &r.Kind)
	i.Check(r.Kind.Known(), codec.ErrTag)
	codec.ImgID16(i, &r.ID)
}

func (r ObjectRef) String() string { return r.Kind.String() + " " + r.ID.String() }

// Compare orders refs by (kind, id) as bytes, the order of snapshots and preconditions.
func (r ObjectRef) Compare(o ObjectRef) int {
	if r.Kind != o.Kind {
		return int(r.Kind) - int(o.Kind)
	}
	return compare16(r.ID, o.ID)
}

func compare16(a, b [16]byte) int {
	for i := range a {
		if a[i] != b[i] {
			return int(a[i]) - int(b[i])
		}
	}
	return 0
}
