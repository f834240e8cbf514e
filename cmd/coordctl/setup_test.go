package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestClearingStaysInItsDirectory: the name of a state directory may look like a pattern that
// others match.
func TestClearingStaysInItsDirectory(t *testing.T) {
	root := t.TempDir()
	other := filepath.Join(root, "a", freshPrefix+"1")
	require.NoError(t, os.MkdirAll(other, 0o700))
	for _, name := range []string{"[ab]", "[", "*"} {
		dir := filepath.Join(root, name)
		left := filepath.Join(dir, freshPrefix+"2")
		kept := filepath.Join(dir, "coordinator")
		require.NoError(t, os.MkdirAll(left, 0o700))
		require.NoError(t, os.MkdirAll(kept, 0o700))
		require.NoError(t, (&setup{dir: dir}).clear(), name)
		require.NoDirExists(t, left, name)
		require.DirExists(t, kept, name)
		require.DirExists(t, other, name)
	}
}
