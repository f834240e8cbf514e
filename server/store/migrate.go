package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	bolt "go.etcd.io/bbolt"

	"coordinator/internal/boltfile"
	"coordinator/internal/durable"
	"coordinator/internal/failpoint"
)

// A store is migrated as a whole: log and state.db are written anew in the directory
// migratingName and checked as Verify checks a store. The rename to migratedName is the one
// step that decides: before it the store is the old one, and what was built is removed; from
// it on the old files are moved to a directory that keeps them and the new ones take their
// place, by this Open or the next one, of this program or of an older one.
const (
	migratingName = "migrating"
	migratedName  = "migrated"
	// markPrefix begins the name of an empty file in it that tells the directory for the old files.
	markPrefix = "keep-in-"
)

// An upgrade leads from one schema of the store to the next.
type upgrade struct {
	// File fills the new state.db with what the old one holds, but for the schema itself. It
	// checks what it reads: only the pages and the checksums of the old one have been checked.
	File boltfile.Step
	// Record turns the body of a log record into one of the next schema, with the same events.
	Record func(body []byte) ([]byte, error)
}

// upgrades are the steps to the schema of this program.
var upgrades []upgrade

// newest is the schema that a program with these upgrades reads and writes.
func newest(u []upgrade) uint32 { return schemaVersion + uint32(len(u)) }

// keptName is the directory that holds what a store was before it was migrated.
func keptName(schema uint32) string { return fmt.Sprintf("schema-%d", schema) }

// migrate brings a store of an older schema to the newest.
func migrate(dir string, have uint32, o Options) error {
	if _, ok := o.FS.(osFS); !ok {
		return errors.New("store: a log that is not in files cannot be migrated")
	}
	m := &migration{dir: dir, have: have, o: o, steps: o.upgrades[have-schemaVersion:]}
	err := m.build()
	if err != nil {
		return errors.Join(migrationFault(dir, err), m.clear())
	}
	failpoint.Hit("migrate-built")
	if err := os.Rename(m.to(), filepath.Join(dir, migratedName)); err != nil {
		return ioError("rename", m.to(), err)
	}
	failpoint.Hit("migrate-decided")
	if err := (osFS{}).SyncDir(dir); err != nil {
		return ioError("sync", dir, err)
	}
	return endMigration(dir, o)
}

// A migration is one attempt to build the new store.
type migration struct {
	dir   string
	have  uint32
	o     Options
	steps []upgrade
}

func (m *migration) to() string { return filepath.Join(m.dir, migratingName) }

func (m *migration) clear() error { return ioError("remove", m.to(), os.RemoveAll(m.to())) }

// build makes the new store, durable and checked, and changes nothing of the old one.
func (m *migration) build() error {
	if err := m.clear(); err != nil {
		return err
	}
	kept := filepath.Join(m.dir, keptName(m.have))
	if _, err := os.Lstat(kept); err == nil {
		return fmt.Errorf("store: %s holds what an earlier migration kept; move it away and start again", kept)
	}
	if err := m.room(); err != nil {
		return err
	}
	if err := checked(statePath(m.dir), m.o); err != nil {
		return err
	}
	if err := os.Mkdir(m.to(), 0o700); err != nil {
		return ioError("mkdir", m.to(), err)
	}
	if err := durable.Replace(filepath.Join(m.to(), markPrefix+keptName(m.have)), nil, durable.PrivateFile); err != nil {
		return err
	}
	m.o.Progress(fmt.Sprintf("migrating %s from schema %d to %d: state.db", m.dir, m.have, newest(m.o.upgrades)))
	m.o.Advance(Advance{Step: stepNewState})
	a, err := m.state()
	if err != nil {
		return err
	}
	m.o.Progress("migrating the log")
	if err := m.log(a); err != nil {
		return err
	}
	if err := m.setCheckpoint(a); err != nil {
		return err
	}
	m.o.Progress("checking the migrated store")
	if err := Verify(m.to(), Options{upgrades: m.o.upgrades, Progress: m.o.Progress, Advance: m.o.Advance}); err != nil {
		return fmt.Errorf("the migrated store does not pass: %w", err)
	}
	return syncDirs(logPath(m.to()), m.to())
}

// room refuses a disk on which the new files would not fit. Their rows may be longer.
func (m *migration) room() error {
	var size uint64
	for _, part := range []string{logPath(m.dir), statePath(m.dir)} {
		err := filepath.WalkDir(part, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			info, err := d.Info()
			if err == nil {
				size += uint64(info.Size())
			}
			return err
		})
		if err != nil {
			return ioError("stat", part, err)
		}
	}
	need := size + size/4 + 2*uint64(m.o.SegmentBytes)
	if free := m.o.FreeBytes(); free < need {
		return &boltfile.RoomError{File: m.dir, Need: need, Free: free}
	}
	return nil
}

// state writes the new state.db and returns what it knows of its checkpoint.
func (m *migration) state() (*applied, error) {
	from, last := statePath(m.dir), ""
	for i, u := range m.steps {
		to := filepath.Join(m.to(), fmt.Sprintf("%s.%d", stateName, m.have+uint32(i)+1))
		if err := boltfile.Rewrite(from, to, u.step(m.have+uint32(i)+1)); err != nil {
			return nil, fmt.Errorf("state.db in schema %d: %w", m.have+uint32(i)+1, err)
		}
		if last != "" {
			if err := os.Remove(last); err != nil {
				return nil, ioError("remove", last, err)
			}
		}
		from, last = to, to
	}
	if err := os.Rename(last, statePath(m.to())); err != nil {
		return nil, ioError("rename", last, err)
	}
	h, err := openHistory(statePath(m.to()), true, false)
	if err != nil {
		return nil, err
	}
	h.newest = newest(m.o.upgrades)
	a, _, err := h.loadMeta()
	return a, errors.Join(err, h.close())
}

// step is File and the new schema.
func (u upgrade) step(schema uint32) boltfile.Step {
	return func(old *bolt.Tx, fresh *bolt.DB) error {
		if err := u.File(old, fresh); err != nil {
			return err
		}
		return fresh.Update(func(tx *bolt.Tx) error {
			meta := tx.Bucket(bucketMeta)
			if meta == nil {
				return errors.New("the step made no bucket meta")
			}
			return meta.Put(keySchema, encodeSchema(schema))
		})
	}
}

// setCheckpoint writes what the checkpoint says of the log that was written anew.
func (m *migration) setCheckpoint(a *applied) error {
	h, err := openHistory(statePath(m.to()), false, false)
	if err != nil {
		return err
	}
	err = h.update(func(tx *bolt.Tx) error { return tx.Bucket(bucketMeta).Put(keyCheckpoint, a.encode()) })
	return errors.Join(err, h.close())
}

// clearMigration removes what a migration that was interrupted before its decision, or after
// its end, has left.
func (s *Store) clearMigration() {
	left := filepath.Join(s.dir, migratingName)
	if there, err := isThere(left); err == nil && !there {
		return
	}
	if err := os.RemoveAll(left); err != nil {
		s.opts.Logger.Warn("store: what an interrupted migration left could not be removed; it only takes room", "directory", left, "error", err)
		return
	}
	s.opts.Logger.Info("store: removed what an interrupted migration left; the store is whole without it", "directory", left)
}

// endMigration ends what the rename to migratedName has decided. There is mostly nothing.
func endMigration(dir string, o Options) error {
	from := filepath.Join(dir, migratedName)
	if there, err := isThere(from); err != nil || !there {
		return err
	}
	entries, err := os.ReadDir(from)
	if err != nil {
		return ioError("read", from, err)
	}
	var names []string
	for _, e := range entries {
		if name, is := strings.CutPrefix(e.Name(), markPrefix); is {
			names = append(names, name)
		}
	}
	if len(names) != 1 {
		return corrupt(from, -1, "it does not say what it was migrated from")
	}
	kept := filepath.Join(dir, names[0])
	if err := os.Mkdir(kept, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return ioError("mkdir", kept, err)
	}
	for _, name := range []string{logName, stateName} {
		if err := takePlace(dir, from, kept, name); err != nil {
			return err
		}
	}
	// Under another name, as a directory does not go at once with what is in it.
	if err := os.Rename(from, filepath.Join(dir, migratingName)); err != nil {
		return ioError("rename", from, err)
	}
	failpoint.Hit("migrate-ended")
	err = errors.Join(syncDirs(dir), os.RemoveAll(filepath.Join(dir, migratingName)))
	o.Progress("the store has its new schema; what it was is kept in " + kept)
	return ioError("remove", from, err)
}

// takePlace gives a new file, or directory, the place of the old one, which is kept.
func takePlace(dir, from, kept, name string) error {
	fresh, place := filepath.Join(from, name), filepath.Join(dir, name)
	if there, err := isThere(fresh); err != nil || !there {
		return err // it has taken it
	}
	there, err := isThere(place)
	if err != nil {
		return err
	}
	if there {
		if err := os.Rename(place, filepath.Join(kept, name)); err != nil {
			return ioError("rename", place, err)
		}
		if err := syncDirs(kept, dir); err != nil {
			return err
		}
	}
	failpoint.Hit("migrate-kept")
	if err := os.Rename(fresh, place); err != nil {
		return ioError("rename", fresh, err)
	}
	failpoint.Hit("migrate-replaced")
	return syncDirs(dir, from)
}

func isThere(path string) (bool, error) {
	_, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, ioError("stat", path, err)
}

func syncDirs(dirs ...string) error {
	for _, dir := range dirs {
		if err := (osFS{}).SyncDir(dir); err != nil {
			return ioError("sync", dir, err)
		}
	}
	return nil
}

// migrationFault sorts what ended a migration.
func migrationFault(dir string, err error) error {
	var damaged *CorruptError
	var known *IOError
	var system *fs.PathError
	if !errors.As(err, &damaged) && !errors.As(err, &known) && errors.As(err, &system) {
		return ioError(system.Op, system.Path, err)
	}
	return fmt.Errorf("store: migrate %s: %w", dir, err)
}
