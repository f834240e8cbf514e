package sock

import (
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Cred is what the kernel says of the process that connected: its effective
// user and group and its id, as they were at connect.
type Cred struct{ UID, GID, PID uint64 }

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

// SelfCred returns what a peer's PeerCred says of this process.
func SelfCred() Cred {
	return Cred{UID: uint64(os.Geteuid()), GID: uint64(os.Getegid()), PID: uint64(os.Getpid())}
}

// A ForeignPeerError refuses a peer of another user.
type ForeignPeerError struct{ UID, Want uint64 }

func (e *ForeignPeerError) Error() string {
	return fmt.Sprintf("peer runs as uid %d, only uid %d may connect", e.UID, e.Want)
}

// SameUser is PeerCred for a connection whose peer must run as this process's
// own user; another one is a *ForeignPeerError.
func SameUser(c *net.UnixConn) (Cred, error) {
	cred, err := PeerCred(c)
	if err != nil {
		return Cred{}, err
	}
	if want := SelfCred().UID; cred.UID != want {
		return Cred{}, &ForeignPeerError{UID: cred.UID, Want: want}
	}
	return cred, nil
}
