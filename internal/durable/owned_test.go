package durable

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// dirOf makes a directory of that mode.
func dirOf(t *testing.T, mode os.FileMode) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "it's a dir")
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, os.Chmod(dir, mode))
	return dir
}

func TestOwnedFilesLieWhereNobodyElseCanReplaceThem(t *testing.T) {
	for _, mode := range []os.FileMode{0o700, 0o755, 0o711, 0o777 | os.ModeSticky, 0o775 | os.ModeSticky} {
		path := filepath.Join(dirOf(t, mode), "key")
		require.NoError(t, CreateOwned(path, []byte("one")), mode)
		require.ErrorIs(t, CreateOwned(path, []byte("two")), fs.ErrExist)
		got, err := ReadOwned(path, 16)
		require.NoError(t, err, mode)
		require.Equal(t, "one", string(got))
		require.NoError(t, UpdateOwned(path, 16, func(old []byte) ([]byte, error) { return append(old, '+'), nil }))
		got, err = ReadOwned(path, 16)
		require.NoError(t, err)
		require.Equal(t, "one+", string(got))
		entries, err := os.ReadDir(filepath.Dir(path))
		require.NoError(t, err)
		require.Len(t, entries, 1, "a temporary file is left")

		require.NoError(t, os.Chmod(path, 0o640))
		var unsafe *UnsafeFileError
		_, err = ReadOwned(path, 16)
		require.ErrorAs(t, err, &unsafe, "the file's own mode counts as ever")
		require.Equal(t, path, unsafe.Path)
	}
}

func TestOwnedFilesAreRefusedWhereOthersCanReplaceThem(t *testing.T) {
	for _, mode := range []os.FileMode{0o777, 0o770, 0o702, 0o720} {
		path := filepath.Join(dirOf(t, mode), "key")
		var unsafe *UnsafeFileError
		require.ErrorAs(t, CreateOwned(path, nil), &unsafe, mode)
		require.Equal(t, filepath.Dir(path), unsafe.Path)
		require.NoFileExists(t, path)
		require.NoError(t, os.WriteFile(path, nil, 0o600))
		_, err := ReadOwned(path, 16)
		require.ErrorAs(t, err, &unsafe, mode)
		require.Contains(t, unsafe.Mend, `run: chmod go-w '`, "a path with a space is one word")
		require.ErrorAs(t, UpdateOwned(path, 16, nil), &unsafe)
	}
	if os.Geteuid() != 0 {
		t.Skip("only root can give a directory away")
	}
	dir := dirOf(t, 0o755)
	require.NoError(t, os.Chown(dir, 12345, -1))
	require.ErrorContains(t, CheckOwnedDir(dir), "uid 12345")
}
