//go:build !linux && !darwin

package server

import "golang.org/x/sys/unix"

// writev writes the first buffer: this platform has no vectored write to call.
func writev(fd int, bufs [][]byte) (int, error) { return unix.Write(fd, bufs[0]) }
