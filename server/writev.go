//go:build linux || darwin

package server

import "golang.org/x/sys/unix"

// writev writes many buffers in one system call.
func writev(fd int, bufs [][]byte) (int, error) { return unix.Writev(fd, bufs) }
