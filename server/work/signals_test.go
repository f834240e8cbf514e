package work

import (
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/codec"
	"coordinator/frames"
)

func signalCommand(t testing.TB, op byte, kind frames.CommandKind, id frames.SignalID) *frames.CoordCommand {
	return command(t, op, kind, &frames.SignalCommand{SignalID: id, Note: ptr("seen")})
}

// open is the one open signal of session id.
func (s *state) open(id byte) frames.SignalID {
	s.t.Helper()
	var out []frames.SignalID
	for ref := range s.rows {
		if ref.Kind != frames.KindSignal {
			continue
		}
		if sig := read(s, ref, new(frames.Signal)); sig.State == frames.SignalOpen && sig.WorkSessionID == (frames.WorkSessionID{id}) {
			out = append(out, frames.SignalID(ref.ID))
		}
	}
	require.Len(s.t, out, 1)
	return out[0]
}

func TestD17_AckAndSuppress(t *testing.T) {
	s := withRuns(t)
	s.running(7)
	s.admit(exit(t, 7, 1, 1))
	id := s.open(7)
	for _, tt := range []struct {
		op    byte
		kind  frames.CommandKind
		want  frames.Code
		event string
		state frames.SignalState
	}{
		{1, frames.CommandAckSignal, 0, "SIGNAL_ACKNOWLEDGED", frames.SignalAcknowledged},
		{2, frames.CommandAckSignal, frames.CodeRevisionConflict, "", frames.SignalAcknowledged},
		{3, frames.CommandSuppressSignal, 0, "SIGNAL_SUPPRESSED", frames.SignalSuppressed},
		{4, frames.CommandSuppressSignal, frames.CodeRevisionConflict, "", frames.SignalSuppressed},
		{5, frames.CommandAckSignal, frames.CodeRevisionConflict, "", frames.SignalSuppressed},
	} {
		s.events = nil
		out, err := s.do(signalCommand(t, tt.op, tt.kind, id), alice)
		require.Equal(t, tt.state, read(s, signalRef(id), new(frames.Signal)).State)
		if tt.want != 0 {
			require.Equal(t, tt.want, code(t, err))
			continue
		}
		require.NoError(t, err)
		require.Equal(t, []string{tt.event, "OPERATION_CHANGED"}, s.seen())
		require.Equal(t, frames.ResultObjectRef, out.Result.Kind)
		ref := signalRef(id)
		require.Equal(t, must(t)(codec.EncodeImage(nil, &ref)), out.Result.Payload)
	}
	_, err := s.do(signalCommand(t, 6, frames.CommandAckSignal, frames.SignalID{0xee}), alice)
	require.Equal(t, frames.CodeNotFound, code(t, err))
}

func register(t testing.TB, op, id byte, rev uint64, manifest string, conds ...frames.Precondition) *frames.CoordCommand {
	return command(t, op, frames.CommandRegisterArtifactManifest, &frames.RegisterArtifactManifest{
		ArtifactID: frames.ArtifactID{id}, Revision: frames.ObjectRevision(rev), Schema: 1, Manifest: []byte(manifest),
	}, conds...)
}

func TestD15_RegisterManifest(t *testing.T) {
	s := withRuns(t)
	s.running(7)
	session := at(frames.KindWorkSession, 7, 2)
	out, err := s.do(register(t, 1, 5, 1, "one", session), alice)
	require.NoError(t, err)
	require.Equal(t, []string{"ARTIFACT_REVISION_ADDED", "ARTIFACT_REVISION_ADDED", "OPERATION_CHANGED"}, s.seen())
	require.Equal(t, frames.KindArtifact, out.Changes[0].Record.Kind, "the stub, then the manifest")
	require.Equal(t, frames.KindArtifactManifest, out.Changes[1].Record.Kind)
	ref := artifactRef(frames.ArtifactID{5})
	require.Equal(t, must(t)(codec.EncodeImage(nil, &ref)), out.Result.Payload)
	require.Equal(t, frames.Artifact{WorkSessionID: frames.WorkSessionID{7}, LatestRevision: 1}, *read(s, ref, new(frames.Artifact)))
	_, err = s.do(register(t, 2, 5, 2, "two"), alice)
	require.NoError(t, err, "a later revision names no session")
	require.Equal(t, frames.ArtifactManifest{ArtifactID: frames.ArtifactID{5}, Revision: 2, Schema: 1, Manifest: []byte("two")},
		*read(s, manifestRef(frames.ArtifactID{5}), new(frames.ArtifactManifest)))
	s.admit(exit(t, 7, 1, 0))
	evidence := read(s, evidenceRef(frames.BindingID{7}), new(frames.Evidence)).ArtifactID

	for _, tt := range []struct {
		name string
		cmd  *frames.CoordCommand
		want frames.Code
	}{
		{"the same again", register(t, 3, 5, 2, "x"), frames.CodeRevisionConflict},
		{"one left out", register(t, 3, 5, 4, "x"), frames.CodeRevisionConflict},
		{"first of a used id", register(t, 3, 5, 1, "x", at(frames.KindWorkSession, 7, 3)), frames.CodeRevisionConflict},
		{"second of none", register(t, 3, 6, 2, "x"), frames.CodeRevisionConflict},
		{"evidence", register(t, 3, 9, 2, "x"), frames.CodeRevisionConflict},
		{"no session", register(t, 3, 6, 1, "x"), frames.CodeMalformedMessage},
		{"two sessions", register(t, 3, 6, 1, "x", at(frames.KindWorkSession, 7, 3), at(frames.KindWorkSession, 8, 0)), frames.CodeMalformedMessage},
		{"session absent", register(t, 3, 6, 1, "x", at(frames.KindWorkSession, 8, 0)), frames.CodeNotFound},
		{"session moved on", register(t, 3, 6, 1, "x", session), frames.CodeRevisionConflict},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.name == "evidence" {
				tt.cmd.Payload = body(t, &frames.RegisterArtifactManifest{ArtifactID: evidence, Revision: 2, Schema: 1})
			}
			_, err := s.do(tt.cmd, alice)
			require.Equal(t, tt.want, code(t, err))
		})
	}
	blind := alice.with(frames.ScopeWorkCommand)
	_, err = s.do(register(t, 4, 6, 1, "x", at(frames.KindWorkSession, 7, 3)), blind)
	require.Equal(t, frames.CodeRevisionConflict, code(t, err), "[D-55]: what nobody may see counts as absent")
	_, err = s.do(register(t, 4, 6, 1, "x", at(frames.KindWorkSession, 7, 0)), blind)
	require.Equal(t, frames.CodeNotFound, code(t, err), "and is")
	other := register(t, 4, 6, 1, "x", at(frames.KindWorkSession, 7, 3))
	other.Payload = body(t, &frames.RegisterArtifactManifest{ArtifactID: frames.ArtifactID{6}, Revision: 1, Schema: 2})
	_, err = s.do(other, alice)
	require.Equal(t, frames.CodeCapabilityRequired, code(t, err))
}

// [D-42]: artifact_bytes bounds the sum of the latest manifests; what replaces a manifest by
// a smaller one always fits, and a seal is never refused.
func TestD42_ArtifactBytes(t *testing.T) {
	s := withRuns(t)
	s.running(7)
	session := at(frames.KindWorkSession, 7, 2)
	_, err := s.do(command(t, 1, frames.CommandChangeRetention, &frames.ChangeRetention{Retention: frames.Retention{
		OperationResultSecs: frames.MinOperationRetained, EventBytes: 1, ArtifactBytes: 10,
	}}), alice)
	require.NoError(t, err)
	_, err = s.do(register(t, 2, 5, 1, "123456", session), alice)
	require.NoError(t, err)
	_, err = s.do(register(t, 3, 6, 1, "12345", session), alice)
	require.Equal(t, frames.CodeResourceExhausted, code(t, err))
	_, err = s.do(register(t, 3, 6, 1, "1234", session), alice)
	require.NoError(t, err, "exactly full")
	_, err = s.do(register(t, 4, 5, 2, "1234567"), alice)
	require.Equal(t, frames.CodeResourceExhausted, code(t, err))
	_, err = s.do(register(t, 4, 5, 2, "1"), alice)
	require.NoError(t, err, "only the latest counts")
	_, err = s.do(register(t, 5, 6, 2, "123456789"), alice)
	require.NoError(t, err)
	s.admit(exit(t, 7, 1, 0))
	require.Contains(t, s.rows, evidenceRef(frames.BindingID{7}))
	_, err = s.do(register(t, 6, 6, 3, "12345678"), alice)
	require.NoError(t, err, "less than before is no growth")
}
