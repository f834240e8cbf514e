//go:build !linux

package sock

import (
	"fmt"
	"net"
	"runtime"
)

// An UnsupportedError says what a platform lacks: without user, group and process id of a
// peer no proof can be bound to a Unix socket.
type UnsupportedError struct{ Platform string }

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("%s does not tell user, group and process id of a socket's peer; run this on Linux, or reach a coordinator over QUIC", e.Platform)
}

func supported() error { return &UnsupportedError{Platform: runtime.GOOS} }

// PeerCred fails: this platform has no such credentials.
func PeerCred(*net.UnixConn) (Cred, error) { return Cred{}, supported() }

func probe(string) error { return supported() }
