// Package durable reads and replaces the small files that a daemon's safety
// rests on: keys, registries, configuration, lock files.
//
// It knows paths, owners, modes and fsync, and nothing of what the files hold.
package durable

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"path/filepath"
	"strconv"

	"coordinator/internal/shell"

	"golang.org/x/sys/unix"
)

// Modes of private material: a file only its owner can read or write, in a
// directory only its owner can enter (protocol.md §5.1).
const (
	PrivateFile os.FileMode = 0o600
	PrivateDir  os.FileMode = 0o700
)

// An UnsafeFileError refuses a file or directory for what it is, not for what
// it holds. Mend is what the operator can do about it.
type UnsafeFileError struct{ Path, Problem, Mend string }

func (e *UnsafeFileError) Error() string {
	return fmt.Sprintf("%s %s; %s", e.Path, e.Problem, e.Mend)
}

// ErrUnstable reports a file that was written while it was read.
var ErrUnstable = errors.New("file changed while it was read")

// ReadPrivate reads the whole file at path, which must be a regular file of
// this user with mode 0600, not reached by a symbolic link, in a directory of
// this user with mode 0700, and at most max bytes long. A breach of any of
// these is an *UnsafeFileError; a missing file matches fs.ErrNotExist; one
// that changes under the read matches ErrUnstable and can be read again.
func ReadPrivate(path string, max int64) ([]byte, error) {
	return readFile(path, max, checkDir)
}

// ReadOwned is ReadPrivate for a file of a client, which may lie in any
// directory that nobody else can change: see [CheckOwnedDir].
func ReadOwned(path string, max int64) ([]byte, error) {
	return readFile(path, max, checkOwnedDir)
}

func readFile(path string, max int64, rule dirRule) ([]byte, error) {
	dir, err := openDir(filepath.Dir(path), rule)
	if err != nil {
		return nil, err
	}
	defer dir.Close()

	// NONBLOCK: a FIFO in the file's place must not hang the open.
	fd, err := openat(int(dir.Fd()), filepath.Base(path), unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC)
	if err != nil {
		if errors.Is(err, unix.ELOOP) {
			return nil, &UnsafeFileError{path, "is a symbolic link", "put the file itself there"}
		}
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()

	var before unix.Stat_t
	if err := unix.Fstat(fd, &before); err != nil {
		return nil, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if err := checkPrivateFile(path, &before, max); err != nil {
		return nil, err
	}
	data := make([]byte, 0, before.Size+1) // one over, to see growth without a second buffer
	for len(data) < cap(data) {
		n, err := f.Read(data[len(data):cap(data)])
		data = data[:len(data)+n]
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	var after, named unix.Stat_t
	if err := unix.Fstat(fd, &after); err != nil {
		return nil, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if err := unix.Fstatat(int(dir.Fd()), filepath.Base(path), &named, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, ErrUnstable)
	}
	if int64(len(data)) != before.Size || !sameVersion(&before, &after) || !sameVersion(&before, &named) {
		return nil, fmt.Errorf("read %s: %w", path, ErrUnstable)
	}
	return data, nil
}

func openat(dirfd int, name string, flags int) (int, error) {
	for {
		fd, err := unix.Openat(dirfd, name, flags, 0)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

func sameVersion(a, b *unix.Stat_t) bool {
	return a.Dev == b.Dev && a.Ino == b.Ino && a.Size == b.Size && a.Mode == b.Mode && a.Uid == b.Uid &&
		a.Mtim == b.Mtim && a.Ctim == b.Ctim
}

func checkPrivateFile(path string, st *unix.Stat_t, max int64) error {
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return &UnsafeFileError{path, "is not a regular file", "move it away and put the file there"}
	case st.Uid != uint32(os.Geteuid()):
		return foreign(path, st.Uid)
	case os.FileMode(st.Mode&0o7777) != PrivateFile:
		return &UnsafeFileError{path, fmt.Sprintf("has mode %04o", st.Mode&0o7777), "run: chmod 600 " + shell.Quote(path)}
	case st.Size > max:
		return &UnsafeFileError{path, fmt.Sprintf("holds %d bytes, more than the %d allowed", st.Size, max), "put the right file there"}
	}
	return nil
}

// foreign refuses what belongs to another user. Root is where it should not be, most likely:
// to take a daemon's files away from its user would keep that from its next start.
func foreign(path string, uid uint32) error {
	e := &UnsafeFileError{Path: path, Problem: fmt.Sprintf("belongs to uid %d, not to uid %d", uid, os.Geteuid())}
	if os.Geteuid() != 0 {
		e.Mend = fmt.Sprintf("run: chown %d %s", os.Geteuid(), shell.Quote(path))
	} else if u, err := user.LookupId(strconv.FormatUint(uint64(uid), 10)); err == nil {
		e.Mend = fmt.Sprintf("run this as that user: runuser -u %s -- …", shell.Quote(u.Username))
	} else {
		e.Mend = fmt.Sprintf("run this as that user, or if nobody needs it any more: chown 0 %s", shell.Quote(path))
	}
	return e
}

// A dirRule says what is wrong with a directory.
type dirRule func(dir string, st *unix.Stat_t) error

// openDir opens dir and holds it to rule.
func openDir(dir string, rule dirRule) (*os.File, error) {
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		if errors.Is(err, unix.ENOTDIR) {
			return nil, &UnsafeFileError{dir, "is not a directory", "move it away"}
		}
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		f.Close()
		return nil, &os.PathError{Op: "stat", Path: dir, Err: err}
	}
	if err := rule(dir, &st); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func checkDir(dir string, st *unix.Stat_t) error {
	switch {
	case st.Uid != uint32(os.Geteuid()):
		return foreign(dir, st.Uid)
	case os.FileMode(st.Mode&0o777) != PrivateDir: // a set-group-id bit inherited from above is harmless
		return &UnsafeFileError{dir, fmt.Sprintf("has mode %04o", st.Mode&0o7777), "run: chmod 700 " + shell.Quote(dir)}
	}
	return nil
}

// checkOwnedDir lets through a directory in which nobody but this user and root can remove
// or rename this user's files. In a sticky one, as /tmp is, others only add their own.
func checkOwnedDir(dir string, st *unix.Stat_t) error {
	switch {
	case st.Uid != 0 && st.Uid != uint32(os.Geteuid()):
		return &UnsafeFileError{dir, fmt.Sprintf("belongs to uid %d, who can replace what is in it", st.Uid), "use a directory of your own"}
	case st.Mode&0o022 != 0 && st.Mode&unix.S_ISVTX == 0:
		return &UnsafeFileError{dir, fmt.Sprintf("has mode %04o, so that others can replace what is in it", st.Mode&0o7777), "run: chmod go-w " + shell.Quote(dir)}
	}
	return nil
}

// CheckPrivateDir refuses a directory that is not this user's or whose mode is
// not 0700.
func CheckPrivateDir(dir string) error {
	return checkDirAt(dir, checkDir)
}

// CheckOwnedDir refuses a directory in which somebody else could replace this
// user's files: one that belongs to neither this user nor root, or that group
// or others may write without the sticky bit.
func CheckOwnedDir(dir string) error { return checkDirAt(dir, checkOwnedDir) }

func checkDirAt(dir string, rule dirRule) error {
	f, err := openDir(dir, rule)
	if err != nil {
		return err
	}
	return f.Close()
}
