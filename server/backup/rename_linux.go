package backup

import (
	"errors"

	"golang.org/x/sys/unix"
)

// renameNew renames and replaces nothing.
func renameNew(from, to string) error {
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
		return renameAbsent(from, to) // the file system cannot do it in one step
	}
	return err
}
