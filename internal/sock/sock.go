// Package sock listens on and dials Unix stream sockets with the care a
// daemon's front door needs: nobody's live socket or stray file is removed,
// and the kernel says who the peer is.
//
// It knows nothing of what is spoken over the connections.
package sock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"

	"coordinator/internal/durable"

	"golang.org/x/sys/unix"
)

// MaxPath is the longest path that fits sockaddr_un with its final NUL.
const MaxPath = 107

// A PathTooLongError refuses a socket path that the kernel cannot hold.
type PathTooLongError struct {
	Path     string
	Len, Max int
}

func (e *PathTooLongError) Error() string {
	return fmt.Sprintf("socket path %s is %d bytes long, the limit is %d; choose a shorter state directory", e.Path, e.Len, e.Max)
}

// An OccupiedError says that the path holds something which is not a stale
// socket. Live is set when a process answers there or may still.
type OccupiedError struct {
	Path, Problem, Mend string
	Live                bool
}

func (e *OccupiedError) Error() string { return fmt.Sprintf("%s %s; %s", e.Path, e.Problem, e.Mend) }

func checkPath(path string) error {
	if len(path) > MaxPath {
		return &PathTooLongError{Path: path, Len: len(path), Max: MaxPath}
	}
	if path == "" || path[0] == '@' || strings.ContainsRune(path, 0) {
		return fmt.Errorf("socket path %q is not the path of a file", path)
	}
	return nil
}

// A Listener accepts connections on one socket file.
type Listener struct {
	l    *net.UnixListener
	path string
	dev  uint64
	ino  uint64
}

// Listen binds path with mode 0600 in a directory that must be this user's and
// 0700. A socket file left there is removed only after a connect to it was
// refused; the caller holds the lock that keeps a second process from doing
// the same at once. A path over 107 bytes is a *PathTooLongError, anything
// else in the way an *OccupiedError.
func Listen(path string) (*Listener, error) {
	if err := supported(); err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	if err := checkPath(path); err != nil {
		return nil, err
	}
	if err := durable.CheckPrivateDir(filepath.Dir(path)); err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	if err := removeStale(path); err != nil {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // by name it could remove a successor's socket
	var st unix.Stat_t
	if err = os.Chmod(path, durable.PrivateFile); err == nil {
		err = unix.Lstat(path, &st)
	}
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		err = fmt.Errorf("listen %s: the socket was replaced while it was bound", path)
	}
	if err != nil {
		l.Close()
		return nil, err
	}
	return &Listener{l: l, path: path, dev: uint64(st.Dev), ino: st.Ino}, nil
}

// removeStale clears path of a socket that no process listens on.
func removeStale(path string) error {
	var before, after unix.Stat_t
	if err := unix.Lstat(path, &before); err != nil {
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		return &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if before.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return &OccupiedError{Path: path, Problem: "is not a socket", Mend: "move it away"}
	}
	// A stopped or busy server has a full backlog (EAGAIN) and is alive; only a
	// refusal says that the socket has no owner left.
	err := probe(path)
	switch {
	case err == nil, errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINPROGRESS):
		return &OccupiedError{Path: path, Problem: "is in use by a running process", Mend: "stop that one first", Live: true}
	case !errors.Is(err, unix.ECONNREFUSED):
		return &OccupiedError{Path: path, Problem: fmt.Sprintf("cannot be shown to be unused (%v)", err), Mend: "find out who owns it, then remove it", Live: true}
	}
	if err := unix.Lstat(path, &after); err != nil || after.Dev != before.Dev || after.Ino != before.Ino {
		return &OccupiedError{Path: path, Problem: "changed while it was looked at", Mend: "try again", Live: true}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Accept waits for the next connection.
func (l *Listener) Accept() (*net.UnixConn, error) { return l.l.AcceptUnix() }

// Addr returns the path listened on.
func (l *Listener) Addr() net.Addr { return l.l.Addr() }

// Close ends Accept. The socket file is removed only while it is still the
// one this listener made.
func (l *Listener) Close() error {
	// Before the close: while the socket is open its inode cannot be reused.
	var st unix.Stat_t
	if err := unix.Lstat(l.path, &st); err == nil && uint64(st.Dev) == l.dev && st.Ino == l.ino {
		if err := os.Remove(l.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return errors.Join(err, l.l.Close())
		}
	}
	return l.l.Close()
}

// Dial connects to path. A path over 107 bytes is a *PathTooLongError.
func Dial(ctx context.Context, path string) (*net.UnixConn, error) {
	if err := checkPath(path); err != nil {
		return nil, err
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	return c.(*net.UnixConn), nil
}
