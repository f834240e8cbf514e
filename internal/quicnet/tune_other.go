//go:build !linux

package quicnet

import "golang.org/x/sys/unix"

// No option exceeds the system's limits for socket buffers here.
const (
	forceReceive = unix.SO_RCVBUF
	forceSend    = unix.SO_SNDBUF
)
