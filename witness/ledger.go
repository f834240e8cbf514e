package witness

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"

	"coordinator/frames"
	"coordinator/internal/boltfile"
	"coordinator/internal/durable"

	bolt "go.etcd.io/bbolt"
)

const (
	// stateFile is the witness's one state file in its directory.
	stateFile  = "witness.db"
	bucketName = "witness"
	headerKey  = "head" // lease keys have 16 bytes

	// maxStateFile bounds what is read at start. A lease takes about 300 bytes and only keys
	// in the registry can make one.
	maxStateFile = 256 << 20
)

// schemas are the steps from older files to those of this program.
var schemas boltfile.Schemas

// A ledger is the durable side of a Witness: the last lease of each coordinator in one bbolt
// file. Every put is synced before it returns.
type ledger struct {
	db      *bolt.DB
	schema  uint32
	witness frames.WitnessID
	count   uint32
}

// createLedger makes an empty state file and refuses to touch an existing one.
func createLedger(path string, id frames.WitnessID) error {
	return boltfile.Create(path, func(tx *bolt.Tx) error {
		return putHeader(tx, &header{Schema: schemas.Newest(), Witness: id})
	})
}

// openLedger checks the file at path and returns it with all its leases. One of an older
// schema is migrated first.
func openLedger(path string, id frames.WitnessID, known boltfile.Schemas, progress func(string)) (*ledger, map[frames.CoordinatorID]*lease, error) {
	head, leases, err := readOwnLedger(path, id, known.Newest())
	var other *SchemaError
	if errors.As(err, &other) && other.Have < other.Want {
		m := boltfile.Migration{Path: path, From: other.Have, Steps: known.From(other.Have), Progress: progress, Check: func(path string) error {
			_, _, err := readOwnLedger(path, id, known.Newest())
			return err
		}}
		if err := m.Run(); err != nil {
			return nil, nil, err
		}
		head, leases, err = readOwnLedger(path, id, known.Newest())
	}
	if err != nil {
		return nil, nil, err
	}
	db, err := boltfile.Open(path)
	if err != nil {
		return nil, nil, err
	}
	return &ledger{db: db, schema: head.Schema, witness: id, count: head.Leases}, leases, nil
}

// readOwnLedger is [readLedger] of the witness id's file.
func readOwnLedger(path string, id frames.WitnessID, newest uint32) (header, map[frames.CoordinatorID]*lease, error) {
	head, leases, err := readLedger(path, newest)
	if err == nil && head.Witness != id {
		err = &IdentityError{File: path, Have: head.Witness, Want: id}
	}
	return head, leases, err
}

// readLedger checks the whole file without opening it for writing. Only its pages are
// checked of a file of an older schema.
func readLedger(path string, newest uint32) (header, map[frames.CoordinatorID]*lease, error) {
	file, err := durable.ReadPrivate(path, maxStateFile)
	if errors.Is(err, fs.ErrNotExist) {
		return header{}, nil, &MissingError{File: path}
	} else if err != nil {
		return header{}, nil, err
	}
	head, leases, err := parseLedger(file, newest)
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
// of it stems from the newest transaction. What schema it has comes before all that a schema
// decides.
func parseLedger(file []byte, newest uint32) (header, map[frames.CoordinatorID]*lease, error) {
	var head header
	if have, err := boltfile.SchemaOf(file, bucketName, headerKey); err == nil && have != newest {
		if have < newest {
			_, err = boltfile.ReadAll(file)
		}
		return head, nil, cmp.Or(err, error(&SchemaError{Have: have, Want: newest}))
	}
	c, err := boltfile.Read(file, bucketName)
	if err != nil {
		return head, nil, err
	}
	leases := make(map[frames.CoordinatorID]*lease)
	found := false
	for _, p := range c.Buckets[bucketName] {
		if string(p.Key) == headerKey {
			if err := unseal(p.Key, p.Value, &head); err != nil {
				return head, nil, fmt.Errorf("header: %w", err)
			}
			found = true
			continue
		}
		if len(p.Key) != len(frames.CoordinatorID{}) {
			return head, nil, fmt.Errorf("a key of %d bytes", len(p.Key))
		}
		g := new(lease)
		if err := unseal(p.Key, p.Value, g); err != nil {
			return head, nil, fmt.Errorf("lease of coordinator %x: %w", p.Key, err)
		}
		leases[frames.CoordinatorID(p.Key)] = g
	}
	switch {
	case !found:
		return head, nil, errors.New("the header is missing")
	case int(head.Leases) != len(leases):
		return head, nil, fmt.Errorf("%d leases, the header counts %d", len(leases), head.Leases)
	case head.TxID != c.TxID:
		return head, nil, fmt.Errorf("the header is of transaction %d, the file of %d", head.TxID, c.TxID)
	}
	return head, leases, nil
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
	err := boltfile.Guard(func() error {
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
			return putHeader(tx, &header{Schema: l.schema, Witness: l.witness, Leases: count})
		})
	})
	if err == nil {
		l.count = count
	}
	return err
}

func (l *ledger) close() error { return boltfile.Guard(l.db.Close) }

// putHeader rewrites the header, as every transaction does.
func putHeader(tx *bolt.Tx, head *header) error {
	b, err := tx.CreateBucketIfNotExists([]byte(bucketName))
	if err != nil {
		return err
	}
	head.TxID = uint64(tx.ID())
	value, err := seal([]byte(headerKey), head)
	if err != nil {
		return err
	}
	return b.Put([]byte(headerKey), value)
}
