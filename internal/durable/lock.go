package durable

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// A HeldError says that another process has the lock. PID is what that
// process wrote into the file, or 0 when it has not yet.
type HeldError struct {
	Path string
	PID  int
}

func (e *HeldError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("%s is held by another process; stop that one first", e.Path)
	}
	return fmt.Sprintf("%s is held by process %d; stop that one first", e.Path, e.PID)
}

// ErrLockLost says that the file at a lock's path is no longer the locked one.
var ErrLockLost = errors.New("lock file was removed or replaced")

// A Lock is a held flock on a file that stays in place for good: unlinking it
// would let two processes lock two files of one name.
type Lock struct {
	f    *os.File
	path string
}

// Acquire takes the lock at path without waiting, making the file when it is
// missing, and writes this process's id into it for others to name. A lock
// that somebody else holds is a *HeldError.
func Acquire(path string) (*Lock, error) {
	for range 8 {
		l, err := acquire(path)
		if !errors.Is(err, ErrLockLost) {
			return l, err
		}
	}
	return nil, fmt.Errorf("lock %s: %w", path, ErrLockLost)
}

func acquire(path string) (*Lock, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, PrivateFile)
	if err != nil {
		if errors.Is(err, unix.ELOOP) {
			return nil, &UnsafeFileError{path, "is a symbolic link", "move it away"}
		}
		return nil, err
	}
	l := &Lock{f: f, path: path}
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		f.Close()
		if err != nil {
			return nil, err
		}
		return nil, &UnsafeFileError{path, "is not a regular file", "move it away"}
	}
	if err := flock(f, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, &HeldError{Path: path, PID: readPID(f)}
		}
		return nil, &os.PathError{Op: "lock", Path: path, Err: err}
	}
	// Between open and flock the file may have been replaced.
	if err := l.Check(); err != nil {
		f.Close()
		return nil, err
	}
	if err := l.writePID(); err != nil {
		f.Close()
		return nil, err
	}
	return l, nil
}

func (l *Lock) writePID() error {
	if err := l.f.Truncate(0); err != nil {
		return err
	}
	_, err := l.f.WriteAt(strconv.AppendInt(nil, int64(os.Getpid()), 10), 0)
	return err
}

func readPID(f *os.File) int {
	var buf [20]byte
	n, _ := f.ReadAt(buf[:], 0)
	pid, err := strconv.Atoi(string(bytes.TrimSpace(buf[:n])))
	if err != nil {
		return 0
	}
	return pid
}

// Check verifies that the file at the path is still the locked inode. A lock
// on a file that nobody else can find any more excludes nobody.
func (l *Lock) Check() error {
	var held, named unix.Stat_t
	if err := unix.Fstat(int(l.f.Fd()), &held); err != nil {
		return fmt.Errorf("check lock %s: %w", l.path, err)
	}
	if err := unix.Lstat(l.path, &named); err != nil {
		return fmt.Errorf("check lock %s: %w (%w)", l.path, ErrLockLost, err)
	}
	if held.Dev != named.Dev || held.Ino != named.Ino {
		return fmt.Errorf("check lock %s: %w", l.path, ErrLockLost)
	}
	return nil
}

// Release gives the lock up and leaves the file in place.
func (l *Lock) Release() error {
	return l.f.Close() // O_CLOEXEC: no child shares the descriptor, so the lock ends here
}
