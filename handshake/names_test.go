package handshake

import (
	"testing"

	"coordinator/frames"

	"github.com/stretchr/testify/require"
)

func TestNamesOfPrincipals(t *testing.T) {
	a, b, c := frames.KeyID{1, 2, 3, 4, 5, 6, 7}, frames.KeyID{2}, frames.KeyID{3}
	s := Snapshot{Records: []Record{{KeyID: a, Label: "alice"}, {KeyID: b}}}
	require.Equal(t, "alice", s.NameOf(a))
	require.Equal(t, "020000000000", s.NameOf(b), "without a label")
	require.Equal(t, "030000000000", s.NameOf(c), "not in the registry")
	require.Equal(t, "010203040506", ShortKey(a))
}
