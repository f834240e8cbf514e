package frames_test

import (
	"strings"
	"testing"

	"coordinator/codec"
	"coordinator/frames"

	"github.com/stretchr/testify/require"
)

// The numbers of protocol.md §7.1, §8, §10 and §12. They are on disk and on the wire for
// good, so each is written down a second time here.
func TestKindNumbers(t *testing.T) {
	for n, name := range strings.Fields("OBJECTIVE RUN WORK_SESSION BINDING ARTIFACT SIGNAL OPERATION EVIDENCE ADMIN ARTIFACT_MANIFEST") {
		k := frames.ObjectKind(n + 1)
		require.Equal(t, name, k.String())
		require.True(t, k.Known())
	}
	require.False(t, frames.ObjectKind(0).Known())
	require.False(t, frames.ObjectKind(11).Known())

	commands := strings.Fields(`CREATE_OBJECTIVE UPDATE_OBJECTIVE START_RUN CANCEL_RUN PAUSE_RUN RESUME_RUN ACK_SIGNAL
		SUPPRESS_SIGNAL REGISTER_ARTIFACT_MANIFEST END_BINDING CHANGE_RETENTION`)
	for n, name := range commands {
		require.Equal(t, name, frames.CommandKind(n+1).String())
	}
	require.Equal(t, "ARCHIVE_OBJECTIVE", frames.CommandKind(0x4000).String())

	events := strings.Fields(`OBJECTIVE_CHANGED RUN_CHANGED WORK_SESSION_CHANGED BINDING_OPENED BINDING_ENDED
		ARTIFACT_REVISION_ADDED SIGNAL_RAISED SIGNAL_ACKNOWLEDGED SIGNAL_SUPPRESSED SIGNAL_RESOLVED OPERATION_CHANGED
		SOURCE_FACT_ADMITTED SOURCE_GAP EVIDENCE_SEALED`)
	for n, name := range events {
		k := frames.EventKind(n + 1)
		require.Equal(t, name, k.String())
		require.True(t, k.Known())
		require.Equal(t, n+1 != 12 && n+1 != 13, k.CarriesRecord(), "%v", k)
	}
	require.Equal(t, "OBJECT_REMOVED", frames.EventKind(0x4000).String())
	require.True(t, frames.EventKind(0x4000).Known())
	require.False(t, frames.EventKind(0x4000).CarriesRecord())
	require.False(t, frames.EventKind(0).Known())
	require.False(t, frames.EventKind(15).Known())

	for n, name := range strings.Fields("PENDING SUCCEEDED REJECTED INDETERMINATE TOMBSTONED UNKNOWN") {
		require.Equal(t, name, frames.OperationState(n).String())
		require.Equal(t, n != 0 && n != 5, frames.OperationState(n).Final())
	}
	for n, name := range strings.Fields("TARGET_OUTCOME_UNKNOWN TARGET_DEDUPE_UNAVAILABLE RECOVERY_STATE_INVALID") {
		require.Equal(t, name, frames.IndeterminateReason(n).String())
	}
	for n, name := range strings.Fields(`QUEUE_OVERFLOW RETENTION EPOCH_CHANGED SOURCE_GAP CURSOR_INVALID REVISION_MISMATCH
		GRANT_REVOKED INTERNAL`) {
		require.Equal(t, name, frames.GapReason(n).String())
	}
	for n, name := range strings.Fields("Planned Running Paused Completed Cancelled Failed") {
		require.Equal(t, name, frames.RunState(n).String())
		require.Equal(t, n >= 3, frames.RunState(n).Terminal())
	}
	require.Equal(t, "OBJECT_11", frames.ObjectKind(11).String())
	require.Equal(t, "COMMAND_0", frames.CommandKind(0).String())
}

func TestBits(t *testing.T) {
	require.EqualValues(t, 0x1f, frames.CapEventReplay|frames.CapTerminalBindings|frames.CapArtifactManifests|frames.CapSignals|frames.CapAdministration)
	require.EqualValues(t, 1<<32, frames.CapObjectiveLifecycle)
	require.EqualValues(t, 1<<33, frames.CapWithoutOperations)
	require.EqualValues(t, 1<<34, frames.CapArchive)
	require.EqualValues(t, 0x3f, frames.ScopeWorkRead|frames.ScopeWorkCommand|frames.ScopeTerminalControl|frames.ScopeArtifactRead|frames.ScopeSignalAck|frames.ScopeAdmin)
	require.False(t, frames.ScopeAdmin.Has(frames.ScopeWorkRead), "ADMIN implies nothing")
	require.True(t, frames.AllScopes.Has(frames.ScopeAdmin|frames.ScopeWorkRead))
}

// The payload of a record decodes to the type of its kind, and to nothing under another
// schema.
func TestDecodePayload(t *testing.T) {
	record := sampleRecord(1)
	record.Payload = tlv(t, 1, u16(1), 2, []byte("{}"), 3, []byte{0})
	m, err := record.DecodePayload()
	require.NoError(t, err)
	require.Equal(t, &frames.Objective{DocumentSchema: 1, Document: []byte("{}")}, m)

	record.Schema = 2
	_, err = record.DecodePayload()
	require.Equal(t, frames.CodeCapabilityRequired, frames.CodeOf(err))
	record.Schema, record.Kind = 1, 11
	_, err = record.DecodePayload()
	require.Equal(t, frames.CodeMalformedMessage, frames.CodeOf(err))

	built, err := frames.NewRecord(frames.ObjectRef{Kind: frames.KindObjective, ID: record.ID}, 3, m)
	require.NoError(t, err)
	record.Kind = frames.KindObjective
	require.Equal(t, record, built)
	require.Equal(t, record.Ref(), frames.ObjectRef{Kind: 1, ID: record.ID})
	_, err = frames.NewRecord(record.Ref(), 1, &frames.Objective{State: 3})
	require.ErrorIs(t, err, codec.ErrTag)

	for kind, want := range map[frames.AdminKind]codec.Message{
		frames.AdminActivation: new(frames.Activation), frames.AdminRetention: new(frames.Retention), frames.AdminCredential: new(frames.Credential),
	} {
		for _, sample := range sampleMessages() {
			body, err := codec.Encode(nil, sample)
			require.NoError(t, err)
			admin := frames.Admin{Kind: kind, Payload: body}
			if got, err := admin.DecodePayload(); err == nil {
				require.IsType(t, want, got)
			}
		}
	}
	_, err = (&frames.Admin{Kind: 4}).DecodePayload()
	require.Equal(t, frames.CodeMalformedMessage, frames.CodeOf(err))
}

// Refs are in (kind, id) order as bytes.
func TestObjectRefOrder(t *testing.T) {
	ref := func(kind frames.ObjectKind, first, last byte) frames.ObjectRef {
		var id frames.ObjectID
		id[0], id[15] = first, last
		return frames.ObjectRef{Kind: kind, ID: id}
	}
	sorted := []frames.ObjectRef{ref(1, 0, 1), ref(1, 0, 255), ref(1, 1, 0), ref(1, 255, 0), ref(2, 0, 1), ref(10, 0, 1)}
	for i, x := range sorted {
		for j, y := range sorted {
			got := x.Compare(y)
			require.Equal(t, i < j, got < 0, "%v and %v", x, y)
			require.Equal(t, i == j, got == 0, "%v and %v", x, y)
		}
	}
}
