package store

import (
	"bytes"
	"errors"
	"math"

	bolt "go.etcd.io/bbolt"

	"coordinator/internal/boltfile"
)

// An Upgrade is a step to a schema after the program's.
type Upgrade = upgrade

// WithUpgrades makes o those of a program that knows more schemas.
func WithUpgrades(o Options, u ...Upgrade) Options {
	o.upgrades = u
	return o
}

// NewestSchema is the schema that this program writes.
func NewestSchema() uint32 { return newest(upgrades) }

// NextSchema is a schema in which every record says so, and is longer.
func NextSchema() Upgrade {
	next := func(r *row) {
		r.Record.Schema++
		r.Record.Payload = append(bytes.Clone(r.Record.Payload), '+')
	}
	return Upgrade{
		File: func(old *bolt.Tx, fresh *bolt.DB) error {
			h := &history{path: "old"}
			return boltfile.Copy(old, fresh, func(bucket, key, value []byte) ([]byte, error) {
				if string(bucket) == string(bucketMeta) {
					_, err := h.openValue(bucket, key, value)
					return value, err
				}
				c, err := h.decodeChange(bucket, key, value)
				if err != nil {
					return nil, err
				}
				if c.row != nil {
					next(c.row)
				}
				return encodeChange(c), nil
			})
		},
		Record: func(body []byte) ([]byte, error) {
			c := &cursor{b: body}
			out := []byte{c.u8()}
			for len(c.b) > 0 {
				it := c.item(0)
				if c.bad {
					return nil, errors.New("a record that cannot be read")
				}
				if it.op == 0 {
					break
				}
				if it.row != nil {
					next(it.row)
				}
				out = it.append(out)
			}
			return out, nil
		},
	}
}

// LogTail says how many commits of the store in dir are behind its checkpoint.
func LogTail(dir string, o Options) (commits uint64, err error) {
	o = o.withDefaults()
	segs, _, err := scanLog(o, logPath(dir), false)
	if err != nil {
		return 0, err
	}
	h, err := openHistory(statePath(dir), true, false)
	if err != nil {
		return math.MaxUint64, err
	}
	a, _, err := h.loadMeta()
	return segs[len(segs)-1].next - 1 - a.state.Commit, errors.Join(err, h.close())
}

// Held says whether memory has changes that a checkpoint has, or is about to have, in state.db.
func (s *Store) Held() bool { return s.mem.frozen != nil }
