package witness

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"coordinator/frames"
	"coordinator/internal/durable"

	bolt "go.etcd.io/bbolt"
)

const (
	// stateFile is the witness's one state file in its directory.
	stateFile  = "witness.db"
	bucketName = "witness"
	headerKey  = "head" // lease keys have 16 bytes
	schema     = 1

	// maxStateFile bounds what is read at start. A lease takes about 300 bytes and only keys
	// in the registry can make one.
	maxStateFile = 256 << 20
	// fileLockWait bounds bbolt's own lock. The directory lock is already ours, so only a
	// foreign tool that reads the file can hold it.
	fileLockWait = time.Second
)

// A ledger is the durable side of a Witness: the last lease of each coordinator in one bbolt
// file. Every put is synced before it returns.
type ledger struct {
	db      *bolt.DB
	witness frames.WitnessID
	count   uint32
}

// createLedger makes an empty state file and refuses to touch an existing one.
func createLedger(path string, id frames.WitnessID) error {
	if _, err := os.Lstat(path); err == nil {
		return fmt.Errorf("create %s: %w", path, fs.ErrExist)
	}
	tmp := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	defer os.Remove(tmp)
	l, err := openBolt(tmp, os.OpenFile)
	if err != nil {
		return err
	}
	l.witness = id
	err = l.update(nil, func(*bolt.Bucket) error { return nil })
	if err = errors.Join(err, l.close()); err != nil {
		return fmt.Errorf("create %s: %w", path, err)
	}
	if err := os.Link(tmp, path); err != nil { // unlike a rename, refuses an existing name
		return err
	}
	return durable.SyncDir(filepath.Dir(path))
}

// openLedger checks the file at path and returns it with all its leases.
func openLedger(path string, id frames.WitnessID) (*ledger, map[frames.CoordinatorID]*lease, error) {
	head, leases, err := readLedger(path)
	if err != nil {
		return nil, nil, err
	}
	if head.Witness != id {
		return nil, nil, &IdentityError{File: path, Have: head.Witness, Want: id}
	}
	l, err := openBolt(path, func(name string, flag int, perm os.FileMode) (*os.File, error) {
		return os.OpenFile(name, flag&^os.O_CREATE, perm)
	})
	if err != nil {
		return nil, nil, err
	}
	l.witness, l.count = id, head.Leases
	return l, leases, nil
}

// readLedger checks the whole file without opening it for writing.
func readLedger(path string) (header, map[frames.CoordinatorID]*lease, error) {
	file, err := durable.ReadPrivate(path, maxStateFile)
	if errors.Is(err, fs.ErrNotExist) {
		return header{}, nil, &MissingError{File: path}
	} else if err != nil {
		return header{}, nil, err
	}
	head, leases, err := parseLedger(file)
	var newer *SchemaError
	if errors.As(err, &newer) {
		newer.File = path
		return header{}, nil, newer
	} else if err != nil {
		return header{}, nil, &CorruptError{File: path, Problem: err.Error()}
	}
	return head, leases, nil
}

// parseLedger checks a whole file image: pages, checksums, the number of leases and that all
// of it stems from the newest transaction.
func parseLedger(file []byte) (header, map[frames.CoordinatorID]*lease, error) {
	var head header
	c, err := readBolt(file, bucketName)
	if err != nil {
		return head, nil, err
	}
	leases := make(map[frames.CoordinatorID]*lease)
	found := false
	for _, p := range c.pairs {
		if string(p.key) == headerKey {
			if err := unseal(p.key, p.value, &head); err != nil {
				return head, nil, fmt.Errorf("header: %w", err)
			}
			found = true
			continue
		}
		if len(p.key) != len(frames.CoordinatorID{}) {
			return head, nil, fmt.Errorf("a key of %d bytes", len(p.key))
		}
		g := new(lease)
		if err := unseal(p.key, p.value, g); err != nil {
			return head, nil, fmt.Errorf("lease of coordinator %x: %w", p.key, err)
		}
		leases[frames.CoordinatorID(p.key)] = g
	}
	switch {
	case !found:
		return head, nil, errors.New("the header is missing")
	case head.Schema != schema:
		return head, nil, &SchemaError{Have: head.Schema, Want: schema}
	case int(head.Leases) != len(leases):
		return head, nil, fmt.Errorf("%d leases, the header counts %d", len(leases), head.Leases)
	case head.TxID != c.txid:
		return head, nil, fmt.Errorf("the header is of transaction %d, the file of %d", head.TxID, c.txid)
	}
	return head, leases, nil
}

func openBolt(path string, open func(string, int, os.FileMode) (*os.File, error)) (*ledger, error) {
	l := new(ledger)
	err := guarded(func() (err error) {
		l.db, err = bolt.Open(path, durable.PrivateFile, &bolt.Options{
			Timeout:      fileLockWait,
			FreelistType: bolt.FreelistMapType,
			OpenFile:     open,
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return l, nil
}

// put makes leases durable, all or none. After an error nobody knows which.
func (l *ledger) put(leases map[frames.CoordinatorID]*lease) error {
	return l.update(leases, func(b *bolt.Bucket) error {
		for id, g := range leases {
			value, err := seal(id[:], g)
			if err != nil {
				return err
			}
			if err := b.Put(id[:], value); err != nil {
				return err
			}
		}
		return nil
	})
}

// update runs one transaction that also rewrites the header.
func (l *ledger) update(adds map[frames.CoordinatorID]*lease, fn func(*bolt.Bucket) error) error {
	count := l.count
	err := guarded(func() error {
		return l.db.Update(func(tx *bolt.Tx) error {
			b, err := tx.CreateBucketIfNotExists([]byte(bucketName))
			if err != nil {
				return err
			}
			for id := range adds {
				if b.Get(id[:]) == nil {
					count++
				}
			}
			if err := fn(b); err != nil {
				return err
			}
			head := header{Schema: schema, Witness: l.witness, Leases: count, TxID: uint64(tx.ID())}
			value, err := seal([]byte(headerKey), &head)
			if err != nil {
				return err
			}
			return b.Put([]byte(headerKey), value)
		})
	})
	if err == nil {
		l.count = count
	}
	return err
}

func (l *ledger) close() error { return guarded(l.db.Close) }

// guarded turns a panic or a memory fault inside bbolt into an error.
func guarded(fn func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("bbolt failed: %v", p)
		}
	}()
	return fn()
}
