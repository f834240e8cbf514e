package backup

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// wholeBackup makes a directory that passes Check.
func wholeBackup(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "b")
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "log"), 0o700))
	m := someManifest()
	for i, f := range m.Files {
		content := []byte(f.Name)
		sum := sha256.Sum256(content)
		m.Files[i].Bytes, m.Files[i].SHA256 = int64(len(content)), hex.EncodeToString(sum[:])
		require.NoError(t, os.WriteFile(filepath.Join(dir, f.Name), content, 0o600))
	}
	data, err := m.encode()
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, ManifestFile), data, 0o600))
	return dir
}

// TestALinkToABackupIsCheckedLikeTheBackup: a name such as "latest" hides nothing.
func TestALinkToABackupIsCheckedLikeTheBackup(t *testing.T) {
	dir := wholeBackup(t)
	link := filepath.Join(t.TempDir(), "latest")
	require.NoError(t, os.Symlink(dir, link))
	for _, name := range []string{dir, link} {
		_, err := Check(t.Context(), name, nil)
		require.NoError(t, err)
	}
	added := filepath.Join(dir, "link.ed25519")
	require.NoError(t, os.WriteFile(added, []byte("x"), 0o600))
	for _, name := range []string{dir, link} {
		_, err := Check(t.Context(), name, nil)
		var damage *DamageError
		require.ErrorAs(t, err, &damage)
		require.Equal(t, DamageError{added, "is not in the manifest"}, *damage)
	}
	require.NoError(t, os.Remove(added))
	require.NoError(t, os.Rename(filepath.Join(dir, "log"), dir+".log"))
	require.NoError(t, os.Symlink(dir+".log", filepath.Join(dir, "log")))
	for _, name := range []string{dir, link} {
		_, err := Check(t.Context(), name, nil)
		require.ErrorContains(t, err, filepath.Join(dir, "log")+" is not in the manifest")
	}
}

// TestACheckCanBeStopped: a backup may take hours to read.
func TestACheckCanBeStopped(t *testing.T) {
	dir := wholeBackup(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	told := errors.New("told to")
	files := 0
	_, err := Check(ctx, dir, func(int64, int64) {
		files++
		cancel(told)
	})
	require.ErrorIs(t, err, told)
	require.Equal(t, 1, files)
}
