package backup

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/internal/durable"
)

// TestABackupIsNotPutIntoADirectoryOfOthers: in a place where others may make names, one of
// them could have made that of the unfinished backup first, and would own what is in it.
func TestABackupIsNotPutIntoADirectoryOfOthers(t *testing.T) {
	source, place := t.TempDir(), t.TempDir()
	dest := filepath.Join(place, "b")
	left := dest + partialSuffix
	said := func(string) {}
	for name, make := range map[string]func(){
		"open to others": func() { require.NoError(t, os.Chmod(left, 0o777)) },
		"of another user": func() {
			if os.Geteuid() == 0 {
				require.NoError(t, os.Chown(left, 12345, -1))
			} else {
				require.NoError(t, os.Chmod(left, 0o711))
			}
		},
	} {
		require.NoError(t, os.Mkdir(left, 0o700))
		make()
		_, err := NewTarget(dest, source, said)
		var unsafe *durable.UnsafeFileError
		require.ErrorAs(t, err, &unsafe, name)
		require.Equal(t, left, unsafe.Path, name)
		entries, err := os.ReadDir(left)
		require.NoError(t, err)
		require.Empty(t, entries, name)
		require.NoError(t, os.Remove(left))
	}
	// Its own is taken over, and with it what an interruption left; nothing else is removed.
	require.NoError(t, os.Mkdir(left, 0o700))
	for _, name := range []string{ManifestFile + ".tmp", AuthorityFile} {
		require.NoError(t, os.WriteFile(filepath.Join(left, name), nil, 0o600))
	}
	mine := filepath.Join(left, "thesis.tmp")
	require.NoError(t, os.WriteFile(mine, nil, 0o600))
	_, err := NewTarget(dest, source, said)
	require.ErrorContains(t, err, "holds thesis.tmp, which is not of ours")
	require.FileExists(t, filepath.Join(left, AuthorityFile))
	require.NoError(t, os.Remove(mine))
	target, err := NewTarget(dest, source, said)
	require.NoError(t, err)
	require.Error(t, target.Abandon(os.ErrClosed))
	require.NoDirExists(t, left)
}

// TestARegistryThatIsEditedIsBackedUp: whoever enrols a key meanwhile does not cost the backup.
func TestARegistryThatIsEditedIsBackedUp(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "s")
	require.NoError(t, durable.MkdirPrivate(dir))
	path := filepath.Join(dir, RegistryFile)
	require.NoError(t, durable.Create(path, []byte("a"), durable.PrivateFile))
	var editing sync.WaitGroup
	var stop atomic.Bool
	defer editing.Wait()
	defer stop.Store(true)
	editing.Go(func() {
		for n := byte(0); !stop.Load(); n++ {
			tmp := path + ".next"
			if err := errors.Join(os.WriteFile(tmp, []byte{'a' + n%26}, 0o600), os.Rename(tmp, path)); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for unstable := 0; unstable < 5; { // until it would have failed so often
		if _, err := durable.ReadPrivate(path, maxConfig); errors.Is(err, durable.ErrUnstable) {
			unstable++
		}
		data, err := readConfig(path)
		require.NoError(t, err)
		require.Len(t, data, 1)
	}
}
