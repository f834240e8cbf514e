package server

import (
	"math"

	"golang.org/x/sys/unix"
)

// freeBytes is what this user may still write on the file system of dir. An
// error counts as plenty: the write itself then tells.
func freeBytes(dir string) uint64 {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil || st.Bsize <= 0 {
		return math.MaxUint64
	}
	return uint64(st.Bavail) * uint64(st.Bsize)
}
