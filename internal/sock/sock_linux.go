package sock

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// supported says whether this platform can pair a Unix socket.
func supported() error { return nil }

// PeerCred returns the credentials of the process at the other end of c. On an
// accepted connection that is the one that connected.
func PeerCred(c *net.UnixConn) (Cred, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return Cred{}, fmt.Errorf("peer credentials: %w", err)
	}
	var u *unix.Ucred
	var uerr error
	if err := raw.Control(func(fd uintptr) {
		u, uerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return Cred{}, fmt.Errorf("peer credentials: %w", err)
	}
	if uerr != nil {
		return Cred{}, fmt.Errorf("peer credentials: %w", uerr)
	}
	if u.Pid <= 0 { // the peer lives outside this pid namespace
		return Cred{}, fmt.Errorf("peer credentials: the kernel names no process id")
	}
	return Cred{UID: uint64(u.Uid), GID: uint64(u.Gid), PID: uint64(u.Pid)}, nil
}

// probe connects once without waiting.
func probe(path string) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Connect(fd, &unix.SockaddrUnix{Name: path})
}
