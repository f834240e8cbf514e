package work

import (
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
)

// TestC10_OnePredicate states §6 once more, row by row, against every combination of scope
// and capability bits that matter.
func TestC10_OnePredicate(t *testing.T) {
	owner := frames.KeyID{1}
	caps := []frames.Capability{frames.CapTerminalBindings, frames.CapArtifactManifests, frames.CapSignals, frames.CapAdministration, frames.CapWithoutOperations}
	for scope := frames.Scope(0); scope <= frames.AllScopes; scope++ {
		for bits := range 1 << len(caps) {
			var have frames.Capability
			for i, c := range caps {
				if bits&(1<<i) != 0 {
					have |= c
				}
			}
			read, artifact, admin := scope&1 != 0, scope&8 != 0, scope&32 != 0
			work := scope&3 != 0
			for _, tt := range []struct {
				kind  frames.ObjectKind
				owner frames.KeyID
				want  bool
			}{
				{frames.KindObjective, frames.KeyID{}, read},
				{frames.KindRun, frames.KeyID{}, read},
				{frames.KindWorkSession, frames.KeyID{}, read},
				{frames.KindArtifact, frames.KeyID{}, read},
				{frames.KindBinding, frames.KeyID{}, read && have.Has(frames.CapTerminalBindings)},
				{frames.KindSignal, frames.KeyID{}, read && have.Has(frames.CapSignals)},
				{frames.KindArtifactManifest, frames.KeyID{}, artifact && have.Has(frames.CapArtifactManifests)},
				{frames.KindEvidence, frames.KeyID{}, artifact && have.Has(frames.CapArtifactManifests)},
				{frames.KindAdmin, frames.KeyID{}, admin && have.Has(frames.CapAdministration)},
				{frames.KindOperation, owner, work || admin},
				{frames.KindOperation, frames.KeyID{2}, admin},
				{0, owner, false},
				{11, owner, false},
			} {
				v := Viewer{Principal: owner, Scope: scope, Capabilities: have}
				want := tt.want
				if VisibleToLookup(tt.kind, tt.owner, v) != want {
					t.Fatalf("VisibleToLookup(%v, scope %#x, caps %#x) is not %v", tt.kind, scope, have, want)
				}
				if tt.kind == frames.KindOperation && have.Has(frames.CapWithoutOperations) {
					want = false
				}
				if Visible(tt.kind, tt.owner, v) != want {
					t.Fatalf("Visible(%v, scope %#x, caps %#x) is not %v", tt.kind, scope, have, want)
				}
			}
		}
	}
}

func TestLookup(t *testing.T) {
	s := newState(t)
	out, err := s.do(create(t, 1, 1, "a"), bob)
	require.NoError(t, err)
	for _, tt := range []struct {
		name string
		from Viewer
		id   byte
		want frames.OperationState
		code frames.Code
	}{
		{"own", bob, 1, frames.OperationSucceeded, 0},
		{"own with WORK_READ", bob.with(frames.ScopeWorkRead), 1, frames.OperationSucceeded, 0},
		{"own without operations on the connection", bob.offering(Capabilities), 1, frames.OperationSucceeded, 0},
		{"foreign with ADMIN", alice.with(frames.ScopeAdmin).offering(0), 1, frames.OperationSucceeded, 0},
		{"foreign", alice.with(frames.ScopeWorkRead | frames.ScopeWorkCommand), 1, frames.OperationUnknown, 0},
		{"absent", bob, 2, frames.OperationUnknown, 0},
		{"no scope that counts", bob.with(frames.ScopeSignalAck | frames.ScopeArtifactRead | frames.ScopeTerminalControl), 1, 0, frames.CodeNotFound},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Lookup(s, frames.OperationID{tt.id}, tt.from)
			if tt.code != 0 {
				require.Equal(t, tt.code, code(t, err))
				return
			}
			require.NoError(t, err)
			require.Equal(t, tt.want, got.State)
			if tt.want == frames.OperationSucceeded {
				require.Equal(t, out.Result, got)
			}
		})
	}
}
