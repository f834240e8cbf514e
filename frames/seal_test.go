package frames

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// A seal that is kept and resumed between any two facts is the seal that never stopped.
func TestC15_ASealResumesWhereItWasKept(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		whole := NewEvidenceSeal(CoordinatorID{1}, BindingID{2})
		kept := NewEvidenceSeal(CoordinatorID{1}, BindingID{2})
		n := rapid.IntRange(0, 12).Draw(t, "facts")
		for i := range n {
			f := &TerminalSourceFact{
				Source: TerminalSourceRef{BindingID: BindingID{2}, Owner: Fingerprint{3}, OwnerIncarnation: IncarnationID{4}, Sequence: SourceSequence(i + 1)},
				Kind:   FactAttention, Schema: FactSchema, Payload: []byte{0, byte(rapid.IntRange(1, 3).Draw(t, "kind"))},
			}
			require.NoError(t, whole.Add(f))
			require.NoError(t, kept.Add(f))
			if rapid.Bool().Draw(t, "restart") {
				state, err := kept.AppendState(nil)
				require.NoError(t, err)
				kept, err = ResumeEvidenceSeal(state)
				require.NoError(t, err)
			}
		}
		require.Equal(t, whole.Sum(), kept.Sum())
		require.EqualValues(t, n, kept.Count())
	})
}

func TestResumeRefusesWhatNobodyKept(t *testing.T) {
	state, err := NewEvidenceSeal(CoordinatorID{1}, BindingID{2}).AppendState(nil)
	require.NoError(t, err)
	for name, bad := range map[string][]byte{
		"empty": nil, "count alone": state[:8], "cut": state[:len(state)-1], "long": append(state[:len(state):len(state)], 0),
	} {
		_, err := ResumeEvidenceSeal(bad)
		require.ErrorIs(t, err, errSealState, name)
	}
}
