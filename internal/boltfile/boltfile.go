// Package boltfile is what every bbolt file of ours needs beside bbolt: a reader that checks
// each page before bbolt follows it, a guard around its calls, and checksums for its values.
//
// bbolt trusts its pages: it has no checksum on data, silently falls back to the older of its
// two meta pages, and a damaged page can kill the process from one of its own goroutines. For
// a file that must never go back, each of these must be an error at start.
//
// The package knows nothing of what the values mean.
package boltfile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"coordinator/internal/durable"

	bolt "go.etcd.io/bbolt"
)

// fileLockWait bounds bbolt's own lock. The directory's lock is the caller's already, so only
// a foreign tool that reads the file can hold it.
const fileLockWait = time.Second

// Open opens the file at path, which must exist.
func Open(path string) (*bolt.DB, error) {
	return open(path, func(name string, flag int, perm os.FileMode) (*os.File, error) {
		return os.OpenFile(name, flag&^os.O_CREATE, perm)
	})
}

func open(path string, file func(string, int, os.FileMode) (*os.File, error)) (*bolt.DB, error) {
	var db *bolt.DB
	err := Guard(func() (err error) {
		db, err = bolt.Open(path, durable.PrivateFile, &bolt.Options{
			Timeout: fileLockWait, FreelistType: bolt.FreelistMapType, OpenFile: file,
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return db, nil
}

// Create makes a new file at path, filled by one transaction, and refuses to touch an existing
// one with an error matching fs.ErrExist. The file is there whole or not at all.
func Create(path string, fill func(*bolt.Tx) error) error {
	if _, err := os.Lstat(path); err == nil {
		return fmt.Errorf("create %s: %w", path, fs.ErrExist)
	}
	tmp := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	defer os.Remove(tmp)
	db, err := open(tmp, os.OpenFile)
	if err != nil {
		return err
	}
	err = Guard(func() error { return db.Update(fill) })
	if err = errors.Join(err, Guard(db.Close)); err != nil {
		return fmt.Errorf("create %s: %w", path, err)
	}
	if err := os.Link(tmp, path); err != nil { // unlike a rename, refuses an existing name
		return err
	}
	return durable.SyncDir(filepath.Dir(path))
}

// Guard turns a panic or a memory fault inside bbolt into an error.
func Guard(fn func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("bbolt failed: %v", p)
		}
	}()
	return fn()
}

// What a stored value begins and ends with: a version byte, and a CRC32C over the key, the
// version and the fields. The key is covered too, or a flipped key bit would make a row look
// as if it had never been.
const (
	valueVersion = 1
	crcSize      = 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Causes of a value that [Unseal] refuses.
var (
	ErrChecksum = errors.New("checksum does not match")
	ErrVersion  = errors.New("unknown value version")
)

// Seal makes a stored value of key out of what fields appends to its argument.
func Seal(key []byte, fields func([]byte) ([]byte, error)) ([]byte, error) {
	out, err := fields([]byte{valueVersion})
	if err != nil {
		return nil, err
	}
	return binary.BigEndian.AppendUint32(out, checksum(key, out)), nil
}

// Unseal checks a stored value of key and returns its fields, which alias it.
func Unseal(key, value []byte) ([]byte, error) {
	n := len(value) - crcSize
	if n < 1 || binary.BigEndian.Uint32(value[n:]) != checksum(key, value[:n]) {
		return nil, ErrChecksum
	}
	if value[0] != valueVersion {
		return nil, ErrVersion
	}
	return value[1:n:n], nil
}

func checksum(key, value []byte) uint32 {
	return crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, value)
}
