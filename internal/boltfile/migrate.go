package boltfile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"coordinator/internal/durable"
	"coordinator/internal/failpoint"

	bolt "go.etcd.io/bbolt"
)

// A Step fills new, an empty file, with what old holds in the next schema. It checks what it
// reads, as nobody has read old before.
type Step func(old *bolt.Tx, new *bolt.DB) error

// Schemas are the steps that a program knows: the first leads from schema 1 to 2, and what
// the last leads to is the schema that the program reads and writes.
type Schemas []Step

// Newest is the schema that the program reads and writes.
func (s Schemas) Newest() uint32 { return uint32(len(s)) + 1 }

// From are the steps that lead from a schema to the newest.
func (s Schemas) From(schema uint32) []Step { return s[schema-1:] }

// SchemaOf reads the schema of a file image. It is the first field, a u32, of the value under
// a key that every schema has, sealed as [Seal] does; zero is none.
func SchemaOf(file []byte, bucket, key string) (uint32, error) {
	value, err := Lookup(file, bucket, key)
	if err != nil {
		return 0, err
	}
	fields, err := Unseal([]byte(key), value)
	if err != nil {
		return 0, err
	}
	if len(fields) < 4 || binary.BigEndian.Uint32(fields) == 0 {
		return 0, errors.New("no schema")
	}
	return binary.BigEndian.Uint32(fields), nil
}

// A Migration brings a file to a later schema: the file is written anew beside the old one,
// flushed, checked, and takes the name in one rename, so that there is one whole file under
// that name at any time. The old file stays beside it as [Kept] names it. What a crash leaves
// of the copies, the next Run removes and begins again.
//
// The caller holds the lock that keeps everybody else from the file.
type Migration struct {
	Path  string
	From  uint32 // schema of the file at Path
	Steps []Step // one for each schema from From on
	// Check reads the finished file as its program will. It may be nil.
	Check func(path string) error
	// Free tells the bytes left on the file system of a directory. Nil asks the system.
	Free func(dir string) uint64
	// Progress is told what goes on. Nil tells nobody.
	Progress func(line string)
}

// Kept is the name under which a migration keeps the file of an older schema.
func Kept(path string, schema uint32) string { return fmt.Sprintf("%s.schema-%d", path, schema) }

// A RoomError refuses a migration for which the disk has no room. Nothing was changed.
type RoomError struct {
	File       string // or directory
	Need, Free uint64 // bytes
}

func (e *RoomError) Error() string {
	return fmt.Sprintf("%s has an older schema, and its copy in the new one needs up to %d bytes beside it, of which %d are free; nothing was changed: make room and start again",
		e.File, e.Need, e.Free)
}

// Unwrap makes it match syscall.ENOSPC.
func (e *RoomError) Unwrap() error { return syscall.ENOSPC }

// Run migrates. After an error the old file is under its name as it was.
func (m *Migration) Run() (err error) {
	if m.Progress == nil {
		m.Progress = func(string) {}
	}
	copies := [2]string{m.Path + ".migrating", m.Path + ".migrating2"}
	remove := func() error {
		var errs error
		for _, c := range copies {
			if err := os.Remove(c); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = errors.Join(errs, err)
			}
		}
		return errs
	}
	if err := remove(); err != nil {
		return err
	}
	if err := m.room(); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, remove())
		}
	}()
	from := m.Path
	for i, step := range m.Steps {
		m.Progress(fmt.Sprintf("writing %s anew in schema %d", m.Path, m.From+uint32(i)+1))
		to := copies[i%2]
		if err := os.Remove(to); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := Rewrite(from, to, step); err != nil {
			return fmt.Errorf("migrate %s to schema %d: %w", m.Path, m.From+uint32(i)+1, err)
		}
		from = to
		failpoint.Hit("migrate-written")
	}
	if m.Check != nil {
		m.Progress("checking the new " + filepath.Base(m.Path))
		if err := m.Check(from); err != nil {
			return fmt.Errorf("migrate %s: the new file does not pass: %w", m.Path, err)
		}
	}
	failpoint.Hit("migrate-checked")
	return m.install(from, copies[:])
}

// room refuses a disk on which the copies would not fit.
func (m *Migration) room() error {
	info, err := os.Lstat(m.Path)
	if err != nil {
		return err
	}
	free := m.Free
	if free == nil {
		free = durable.FreeBytes
	}
	size := uint64(info.Size())
	need := size + size/4 + 1<<20 // a new file is fuller than an old one, and its rows may be longer
	if len(m.Steps) > 1 {
		need *= 2
	}
	if have := free(filepath.Dir(m.Path)); have < need {
		return &RoomError{File: m.Path, Need: need, Free: have}
	}
	return nil
}

// install keeps the old file and gives the new one its name.
func (m *Migration) install(from string, copies []string) error {
	kept := Kept(m.Path, m.From)
	if err := os.Remove(kept); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err // of an earlier migration, which a restored file has undone
	}
	if err := os.Link(m.Path, kept); err != nil {
		return err
	}
	dir := filepath.Dir(m.Path)
	if err := durable.SyncDir(dir); err != nil {
		return err
	}
	failpoint.Hit("migrate-kept")
	for _, c := range copies {
		if c == from {
			continue
		}
		if err := os.Remove(c); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := os.Rename(from, m.Path); err != nil {
		return err
	}
	failpoint.Hit("migrate-renamed")
	if err := durable.SyncDir(dir); err != nil {
		return err
	}
	m.Progress(fmt.Sprintf("%s has schema %d now; what it was is kept as %s", m.Path, m.From+uint32(len(m.Steps)), kept))
	return nil
}

// Rewrite runs one step from the file from into a new file to, and makes that durable.
func Rewrite(from, to string, step Step) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if err := createLike(to, info); err != nil {
		return err
	}
	err = Guard(func() error {
		old, err := bolt.Open(from, durable.PrivateFile, &bolt.Options{ReadOnly: true, Timeout: fileLockWait, FreelistType: bolt.FreelistMapType})
		if err != nil {
			return err
		}
		// One flush at the end: until then nobody relies on the file.
		fresh, err := bolt.Open(to, durable.PrivateFile, &bolt.Options{Timeout: fileLockWait, FreelistType: bolt.FreelistMapType, NoSync: true})
		if err == nil {
			err = old.View(func(tx *bolt.Tx) error { return step(tx, fresh) })
			err = errors.Join(err, fresh.Sync(), fresh.Close())
		}
		return errors.Join(err, old.Close())
	})
	return err
}

// createLike makes an empty file with the mode and owner of the one that it will replace.
func createLike(path string, like os.FileInfo) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, durable.PrivateFile)
	if err != nil {
		return err
	}
	if st, ok := like.Sys().(*syscall.Stat_t); ok && (int(st.Uid) != os.Geteuid() || int(st.Gid) != os.Getegid()) {
		err = f.Chown(int(st.Uid), int(st.Gid))
	}
	if err == nil {
		err = f.Chmod(like.Mode().Perm())
	}
	return errors.Join(err, f.Close())
}

// copyBytes bounds the memory of one transaction of [Copy].
const copyBytes = 16 << 20

// Copy copies every bucket, with each value as rewrite gives it; nil leaves the key out. It
// is what most steps consist of.
func Copy(old *bolt.Tx, fresh *bolt.DB, rewrite func(bucket, key, value []byte) ([]byte, error)) error {
	return old.ForEach(func(name []byte, from *bolt.Bucket) error {
		err := fresh.Update(func(tx *bolt.Tx) error {
			to, err := tx.CreateBucketIfNotExists(name)
			if err != nil {
				return err
			}
			return to.SetSequence(from.Sequence())
		})
		if err != nil {
			return err
		}
		c := from.Cursor()
		for k, v := c.First(); k != nil && err == nil; {
			err = fresh.Update(func(tx *bolt.Tx) error {
				to := tx.Bucket(name)
				to.FillPercent = 0.9 // keys come in order
				for n := 0; k != nil && n < copyBytes; k, v = c.Next() {
					if v == nil {
						return fmt.Errorf("a bucket in bucket %s", name)
					}
					value, err := rewrite(name, k, v)
					if err == nil && value != nil {
						n += len(k) + len(value)
						err = to.Put(bytes.Clone(k), value)
					}
					if err != nil {
						return err
					}
				}
				return nil
			})
		}
		return err
	})
}
