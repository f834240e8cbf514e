package durable

import (
	"math"

	"golang.org/x/sys/unix"
)

// FreeBytes is what this user may still write on the file system of dir. One that does not
// say counts as plenty, math.MaxUint64: the write itself then tells.
func FreeBytes(dir string) uint64 {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil || st.Bsize <= 0 || st.Bavail > math.MaxInt64 {
		return math.MaxUint64
	}
	return uint64(st.Bavail) * uint64(st.Bsize)
}
