package store

import (
	"errors"
	"io/fs"
	"os"
)

// File is an open log file. Offsets are absolute; there is no position.
type File interface {
	// ReadAt fills b from off. It follows io.ReaderAt.
	ReadAt(b []byte, off int64) (int, error)
	// WriteAt writes b at off. Nothing is durable before Sync.
	WriteAt(b []byte, off int64) (int, error)
	// Sync makes every earlier write of the file durable. After an error nobody may
	// assume anything about those writes, and nobody calls it again.
	Sync() error
	// Truncate sets the size of the file.
	Truncate(size int64) error
	// Close releases the handle. It promises no durability.
	Close() error
}

// Entry is one name in a directory.
type Entry struct {
	Name string
	Size int64 // bytes
	Dir  bool
}

// FS is the directory that holds the log. Paths are those given to [Open]. Errors match
// fs.ErrNotExist and fs.ErrExist where they apply.
//
// Only the log goes through it. state.db is always a file of the operating system,
// because bbolt maps it into memory.
type FS interface {
	// Open opens an existing file for reading and writing.
	Open(path string) (File, error)
	// Create makes a new, empty file with mode 0600 and refuses an existing one.
	Create(path string) (File, error)
	Remove(path string) error
	// Rename replaces to. It is durable after SyncDir.
	Rename(from, to string) error
	// List names what is in dir, in any order.
	List(dir string) ([]Entry, error)
	// Mkdir makes one directory with mode 0700.
	Mkdir(dir string) error
	// SyncDir makes earlier creations, removals and renames in dir durable.
	SyncDir(dir string) error
}

// osFS is the file system of the operating system.
type osFS struct{}

func (osFS) Open(path string) (File, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

// readFS is osFS for somebody who changes nothing.
type readFS struct{ osFS }

func (readFS) Open(path string) (File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (osFS) Create(path string) (File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (osFS) Remove(path string) error     { return os.Remove(path) }
func (osFS) Rename(from, to string) error { return os.Rename(from, to) }
func (osFS) Mkdir(dir string) error       { return os.Mkdir(dir, 0o700) }

func (osFS) List(dir string) ([]Entry, error) {
	names, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	entries := make([]Entry, 0, len(names))
	for _, n := range names {
		info, err := n.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		entries = append(entries, Entry{Name: n.Name(), Size: info.Size(), Dir: n.IsDir()})
	}
	return entries, nil
}

func (osFS) SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	if cerr := d.Close(); err == nil {
		err = cerr
	}
	return err
}

// osFile flushes data without the file's times: a log file keeps its size, so one
// fdatasync is one flush.
type osFile struct{ *os.File }

func (f osFile) Sync() error { return datasync(f.File) }
