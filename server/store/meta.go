package store

import (
	"encoding/binary"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"

	"coordinator/frames"
)

// Keys of the meta bucket. Each value has the version byte and the checksum of every
// stored value; that of keySchema never changes its form.
var (
	keySchema     = []byte("schema")     // u32
	keyIdentity   = []byte("identity")   // CoordinatorId, u64 creation time
	keyCheckpoint = []byte("checkpoint") // what the last whole checkpoint has applied
	keyTarget     = []byte("target")     // u64, the commit that the newest checkpoint aims at

	keyIncarnation = []byte("incarnation") // of this copy of the store; a store may have none
)

// applied is everything that a checkpoint writes beside rows, in its last transaction.
type applied struct {
	state   State  // as of state.Commit, which is the last commit applied
	chain   uint32 // header checksum of that commit's log record
	logFrom uint64 // first commit of the oldest segment that the log must still have
	counts  tallies
}

func (a *applied) encode() []byte {
	v := []byte{valueVersion}
	v = binary.BigEndian.AppendUint64(v, a.state.Commit)
	v = binary.BigEndian.AppendUint32(v, a.chain)
	v = binary.BigEndian.AppendUint64(v, a.logFrom)
	v = binary.BigEndian.AppendUint64(v, uint64(a.state.Head))
	v = binary.BigEndian.AppendUint64(v, uint64(a.state.AdminHead))
	v = binary.BigEndian.AppendUint64(v, uint64(a.state.Epoch))
	v = binary.BigEndian.AppendUint64(v, uint64(a.state.Activation))
	v = append(v, a.state.TokenSHA256[:]...)
	v = binary.BigEndian.AppendUint32(v, uint32(len(a.state.Bases)))
	for _, b := range a.state.Bases {
		v = binary.BigEndian.AppendUint64(v, uint64(b.Activation))
		v = binary.BigEndian.AppendUint64(v, uint64(b.Base))
	}
	v = binary.BigEndian.AppendUint32(v, uint32(len(a.counts.kinds)))
	for _, k := range slices.Sorted(maps.Keys(a.counts.kinds)) {
		v = binary.BigEndian.AppendUint16(v, uint16(k))
		v = binary.BigEndian.AppendUint64(v, a.counts.kinds[k])
	}
	v = binary.BigEndian.AppendUint32(v, uint32(a.counts.ops.Len()))
	a.counts.ops.Scan(func(c opCount) bool {
		v = append(v, c.principal[:]...)
		v = binary.BigEndian.AppendUint64(v, c.n)
		return true
	})
	return sealValue(keyCheckpoint, v)
}

func (a *applied) decode(body []byte) bool {
	c := &cursor{b: body}
	a.state.Commit = c.u64()
	a.chain = c.u32()
	a.logFrom = c.u64()
	a.state.Head = frames.EventCut(c.u64())
	a.state.AdminHead = frames.EventCut(c.u64())
	a.state.Epoch = frames.AuthorityEpoch(c.u64())
	a.state.Activation = frames.ActivationSequence(c.u64())
	c.fixed(a.state.TokenSHA256[:])
	for n := c.u32(); n > 0 && !c.bad; n-- {
		a.state.Bases = append(a.state.Bases, frames.ActivationBase{
			Activation: frames.ActivationSequence(c.u64()), Base: frames.EventCut(c.u64()),
		})
	}
	a.counts = newTallies()
	for n := c.u32(); n > 0 && !c.bad; n-- {
		k := frames.ObjectKind(c.u16())
		a.counts.kinds[k] = c.u64()
	}
	for n := c.u32(); n > 0 && !c.bad; n-- {
		var op opCount
		c.fixed(op.principal[:])
		op.n = c.u64()
		a.counts.ops.Set(op)
	}
	return !c.bad && len(c.b) == 0
}

// createHistory makes a new state.db under a temporary name and moves it into place.
func createHistory(dir string, g Genesis, noSync bool) error {
	path := filepath.Join(dir, stateName)
	tmp := path + ".new"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return ioError("remove", tmp, err)
	}
	db, err := bolt.Open(tmp, 0o600, &bolt.Options{Timeout: lockWait, NoSync: noSync, FreelistType: bolt.FreelistMapType})
	if err != nil {
		return ioError("create", tmp, err)
	}
	first := &applied{counts: newTallies(), logFrom: 1}
	err = db.Update(func(tx *bolt.Tx) error {
		for _, name := range allBuckets {
			if _, err := tx.CreateBucket(name); err != nil {
				return err
			}
		}
		meta := tx.Bucket(bucketMeta)
		if g.Incarnation != (frames.IncarnationID{}) {
			if err := meta.Put(keyIncarnation, encodeIncarnation(g.Incarnation)); err != nil {
				return err
			}
		}
		identity := append([]byte{valueVersion}, g.CoordinatorID[:]...)
		identity = binary.BigEndian.AppendUint64(identity, uint64(g.CreatedAt.Unix()))
		return errors.Join(
			meta.Put(keySchema, encodeSchema(newest(upgrades))),
			meta.Put(keyIdentity, sealValue(keyIdentity, identity)),
			meta.Put(keyCheckpoint, first.encode()),
			meta.Put(keyTarget, encodeTarget(0)))
	})
	if err = errors.Join(err, db.Close()); err != nil {
		return ioError("write", tmp, err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return ioError("rename", path, err)
	}
	return ioError("sync", dir, osFS{}.SyncDir(dir))
}

func encodeSchema(schema uint32) []byte {
	return sealValue(keySchema, binary.BigEndian.AppendUint32([]byte{valueVersion}, schema))
}

func encodeTarget(commit uint64) []byte {
	return sealValue(keyTarget, binary.BigEndian.AppendUint64([]byte{valueVersion}, commit))
}

func encodeIncarnation(id frames.IncarnationID) []byte {
	return sealValue(keyIncarnation, append([]byte{valueVersion}, id[:]...))
}

// loadMeta reads schema, identity and the last checkpoint. A newer schema is reported
// before anything else is judged.
func (h *history) loadMeta() (a *applied, target uint64, err error) {
	a = new(applied)
	err = h.view(func(tx *bolt.Tx) error {
		meta, err := h.bucket(tx, bucketMeta)
		if err != nil {
			return err
		}
		if err := h.checkSchema(meta); err != nil {
			return err
		}
		get := func(key []byte) (*cursor, error) {
			v := meta.Get(key)
			if v == nil {
				return nil, corrupt(h.path, -1, "%s is missing from bucket meta", key)
			}
			body, err := h.openValue(bucketMeta, key, v)
			return &cursor{b: body}, err
		}
		c, err := get(keyIdentity)
		if err != nil {
			return err
		}
		c.fixed(a.state.CoordinatorID[:])
		a.state.CreatedAt = time.Unix(int64(c.u64()), 0).UTC()
		t, err := get(keyTarget)
		if err != nil {
			return err
		}
		target = t.u64()
		p, err := get(keyCheckpoint)
		if err != nil {
			return err
		}
		if meta.Get(keyIncarnation) != nil {
			i, err := get(keyIncarnation)
			if err != nil {
				return err
			}
			i.fixed(a.state.Incarnation[:])
			c.bad = c.bad || i.bad
		}
		if !a.decode(p.b) || c.bad || t.bad {
			return corrupt(h.path, -1, "a value of bucket meta is malformed")
		}
		return nil
	})
	return a, target, err
}

func (h *history) checkSchema(meta *bolt.Bucket) error {
	have, err := h.schemaIn(meta)
	if err == nil && have != h.newest {
		err = &SchemaError{File: h.path, Have: have, Want: h.newest}
	}
	return err
}

func (h *history) schemaIn(meta *bolt.Bucket) (uint32, error) {
	v := meta.Get(keySchema)
	if v == nil {
		return 0, corrupt(h.path, -1, "schema is missing from bucket meta")
	}
	body, err := h.openValue(bucketMeta, keySchema, v)
	if err != nil {
		return 0, err
	}
	c := &cursor{b: body}
	have := c.u32()
	if c.bad || have < schemaVersion {
		return 0, corrupt(h.path, -1, "the schema in bucket meta is malformed")
	}
	return have, nil
}

// schema reads the schema, which every schema keeps in this place and form.
func (h *history) schema() (have uint32, err error) {
	err = h.view(func(tx *bolt.Tx) error {
		meta, err := h.bucket(tx, bucketMeta)
		if err == nil {
			have, err = h.schemaIn(meta)
		}
		return err
	})
	return have, err
}

// loadRows gives visit every change of a bucket, in key order, with bytes of its own.
func (h *history) loadRows(bucket []byte, visit func(*change) error) error {
	return h.view(func(tx *bolt.Tx) error {
		b, err := h.bucket(tx, bucket)
		if err != nil {
			return err
		}
		return b.ForEach(func(k, v []byte) error {
			c, err := h.decodeChange(bucket, k, v)
			if err != nil {
				return err
			}
			if c.row != nil {
				c.row.own()
			}
			return visit(c)
		})
	})
}
