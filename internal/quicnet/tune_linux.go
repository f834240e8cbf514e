package quicnet

import "golang.org/x/sys/unix"

// Options by which root may exceed the system's limits for socket buffers.
const (
	forceReceive = unix.SO_RCVBUFFORCE
	forceSend    = unix.SO_SNDBUFFORCE
)
