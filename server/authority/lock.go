package authority

import (
	"path/filepath"

	"coordinator/internal/durable"
)

// lockFile excludes a second process from one store. It is a file of its own, so that
// replacing a store file never replaces the lock.
const lockFile = "store.lock"

// LockStore takes the lock of the store in dir without waiting. It is the first step of a
// start (protocol.md §4) and is released last. A lock that another process holds is a
// *[durable.HeldError].
func LockStore(dir string) (*durable.Lock, error) {
	return durable.Acquire(filepath.Join(dir, lockFile))
}

// A LockChecker tells whether the store lock is still this process's own;
// *[durable.Lock] is one.
type LockChecker interface{ Check() error }
