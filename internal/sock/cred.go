package sock

import (
	"fmt"
	"net"
	"os"
)

// Cred is what the kernel says of the process that connected: its effective
// user and group and its id, as they were at connect.
type Cred struct{ UID, GID, PID uint64 }

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
