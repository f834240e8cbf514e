package durable

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// MkdirPrivate makes path, and what is missing above it, with mode 0700. A
// path that exists must already be a directory of this user with that mode:
// it is never adjusted, because something else may rely on what it is.
func MkdirPrivate(path string) error {
	path = filepath.Clean(path)
	err := os.Mkdir(path, PrivateDir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := mkdirParents(filepath.Dir(path)); err != nil {
			return err
		}
		return MkdirPrivate(path)
	case errors.Is(err, fs.ErrExist):
	case err != nil:
		return err
	default:
		if err := SyncDir(filepath.Dir(path)); err != nil {
			return err
		}
	}
	return CheckPrivateDir(path)
}

func mkdirParents(path string) error {
	err := os.Mkdir(path, PrivateDir)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if errors.Is(err, fs.ErrNotExist) && filepath.Dir(path) != path {
		if err := mkdirParents(filepath.Dir(path)); err != nil {
			return err
		}
		return mkdirParents(path)
	}
	if err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// fsync flushes a file or a directory. It is a variable because nothing but a power cut shows
// that a flush is missing: tests look at the calls.
var fsync = (*os.File).Sync

// SyncDir makes the names in a directory durable.
func SyncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	return fsync(d)
}

// Replace makes data the content of path: under the directory's lock a
// temporary file is written and synced, renamed over path, and the directory
// synced. Readers see the old file or the new one. On an error before the
// rename the old file stands; after it the new one does, perhaps not durably.
func Replace(path string, data []byte, perm os.FileMode) error {
	unlock, err := lockDir(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer unlock()
	return install(path, data, perm, os.Rename)
}

// Create is Replace for a path that must not exist: an error that matches
// fs.ErrExist leaves what is there untouched. The name appears only once the
// content is durable, so that a crash never leaves half a key behind.
func Create(path string, data []byte, perm os.FileMode) error {
	unlock, err := lockDir(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer unlock()
	return install(path, data, perm, linkNew)
}

// linkNew gives tmp its name; unlike a rename it refuses an existing one.
func linkNew(tmp, path string) error {
	if err := os.Link(tmp, path); err != nil {
		return err
	}
	return os.Remove(tmp)
}

// CreateOwned makes a private file like Create, in a directory that only has to
// pass CheckOwnedDir. It takes no lock, which in a shared directory anybody
// could hold: the name appears in one step or not at all.
func CreateOwned(path string, data []byte) error {
	if err := CheckOwnedDir(filepath.Dir(path)); err != nil {
		return err
	}
	return install(path, data, PrivateFile, linkNew)
}

// Update replaces a private file by what edit makes of its content, with the
// directory locked from before the read until after the rename, so that two
// editors never lose each other's change. The file must pass ReadPrivate; a
// missing one is edited from nil. If edit fails nothing is written.
func Update(path string, max int64, edit func(old []byte) ([]byte, error)) error {
	return update(path, max, ReadPrivate, edit)
}

// UpdateOwned is Update for a file that must pass ReadOwned.
func UpdateOwned(path string, max int64, edit func(old []byte) ([]byte, error)) error {
	return update(path, max, ReadOwned, edit)
}

func update(path string, max int64, read func(string, int64) ([]byte, error), edit func(old []byte) ([]byte, error)) error {
	unlock, err := lockDir(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer unlock()
	old, err := read(path, max)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	data, err := edit(old)
	if err != nil {
		return err
	}
	if int64(len(data)) > max {
		return fmt.Errorf("update %s: %d bytes are more than the %d allowed", path, len(data), max)
	}
	return install(path, data, PrivateFile, os.Rename)
}

// install writes a synced temporary file beside path and lets place give it
// the name.
func install(path string, data []byte, perm os.FileMode, place func(tmp, path string) error) (err error) {
	var suffix [8]byte
	rand.Read(suffix[:]) // never fails; only keeps the name unique
	dir := filepath.Dir(path)
	tmp := filepath.Join(dir, "."+filepath.Base(path)+"."+hex.EncodeToString(suffix[:])+".tmp")
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, perm)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(tmp)
		}
	}()
	if err := writeSynced(f, data, perm); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := place(tmp, path); err != nil {
		return err
	}
	return SyncDir(dir)
}

func writeSynced(f *os.File, data []byte, perm os.FileMode) error {
	_, err := f.Write(data)
	if err == nil {
		err = f.Chmod(perm) // whatever the umask took away
	}
	if err == nil {
		err = fsync(f)
	}
	return errors.Join(err, f.Close())
}

// lockDir takes the exclusive lock of a directory: an flock on the directory
// itself, so that no lock files gather beside the files they guard.
func lockDir(dir string) (unlock func(), err error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := flock(d, unix.LOCK_EX); err != nil {
		d.Close()
		return nil, &os.PathError{Op: "lock", Path: dir, Err: err}
	}
	return func() { d.Close() }, nil
}

func flock(f *os.File, how int) error {
	for {
		err := unix.Flock(int(f.Fd()), how)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
