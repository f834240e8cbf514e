package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"math"
	"os"
	"runtime/debug"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sys/unix"

	"coordinator/frames"
)

// Buckets of state.db. Keys of the last three are row keys.
var (
	bucketMeta    = []byte("meta")
	bucketLive    = []byte("live")    // live rows as of the checkpoint
	bucketHistory = []byte("history") // every other row
	bucketCarry   = []byte("carry")   // newest changes whose history row an open cut still needed
	rowBuckets    = [][]byte{bucketLive, bucketHistory, bucketCarry}
	allBuckets    = [][]byte{bucketMeta, bucketLive, bucketHistory, bucketCarry}
)

const (
	stateName = "state.db"
	logName   = "log"

	// mmapBytes of address space are mapped at once, so that growing the file does not
	// remap it, which would wait for every reader.
	mmapBytes int64 = 4 << 30
	// lockWait is how long to wait for another process that has the file open.
	lockWait = time.Second

	valueVersion = 1
	valueRemoved = 8 // flag in carry: the change is a removal; the other flags are a row's
)

// history is state.db.
type history struct {
	db   *bolt.DB
	path string
	// newest is the schema that is read and written.
	newest uint32
	// advance is told how far a check has come.
	advance func(Advance)
}

// guard runs a bbolt call. Reading a damaged page can panic or fault; both become a
// CorruptError.
func guard(path string, f func() error) (err error) {
	old := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(old)
		if p := recover(); p != nil {
			err = &CorruptError{File: path, Offset: -1, Problem: fmt.Sprintf("a page is damaged (%v)", p)}
		}
	}()
	return f()
}

// openHistory opens an existing state.db and checks that the file is as long as it says.
// It changes nothing.
func openHistory(path string, readOnly, noSync bool) (*history, error) {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, corrupt(path, -1, "the file is missing")
	case err != nil:
		return nil, ioError("stat", path, err)
	case !info.Mode().IsRegular():
		return nil, corrupt(path, -1, "not a regular file")
	case info.Size() == 0:
		return nil, corrupt(path, 0, "the file is empty")
	}
	h := &history{path: path, newest: newest(upgrades), advance: func(Advance) {}}
	var file *os.File
	err = guard(path, func() error {
		db, err := bolt.Open(path, 0o600, boltOptions(readOnly, noSync, &file))
		h.db = db
		return err
	})
	if err != nil {
		if file != nil {
			// bbolt has closed it, unless a damaged page made it panic: the mapping that it
			// leaves then would keep the lock.
			_ = unix.Flock(int(file.Fd()), unix.LOCK_UN)
			file.Close()
		}
		return nil, openFault(path, err)
	}
	if err := h.checkLength(info.Size()); err != nil {
		h.close()
		return nil, err
	}
	return h, nil
}

func boltOptions(readOnly, noSync bool, file **os.File) *bolt.Options {
	return &bolt.Options{
		Timeout: lockWait, ReadOnly: readOnly, PreLoadFreelist: readOnly, NoSync: noSync, NoGrowSync: noSync,
		FreelistType: bolt.FreelistMapType, InitialMmapSize: int(min(mmapBytes, math.MaxInt/2)),
		OpenFile: func(name string, flag int, perm os.FileMode) (*os.File, error) {
			f, err := os.OpenFile(name, flag&^os.O_CREATE, perm)
			*file = f
			return f, err
		},
	}
}

func openFault(path string, err error) error {
	var damaged *CorruptError
	var errno syscall.Errno
	switch {
	case errors.As(err, &damaged):
		return err
	case errors.As(err, &errno):
		return ioError("open", path, err)
	case errors.Is(err, berrors.ErrTimeout):
		return fmt.Errorf("store: %s: %w", path, ErrInUse)
	case errors.Is(err, berrors.ErrVersionMismatch):
		return &CorruptError{File: path, Offset: 0, Problem: "the file is of another version of its format", Err: err}
	case errors.Is(err, berrors.ErrInvalid), errors.Is(err, berrors.ErrChecksum):
		return &CorruptError{File: path, Offset: 0, Problem: "both meta pages are damaged", Err: err}
	}
	return &CorruptError{File: path, Offset: -1, Problem: "bbolt cannot open it", Err: err}
}

// checkLength refuses a file that is shorter than its pages: reading it would fault.
func (h *history) checkLength(size int64) error {
	return h.view(func(tx *bolt.Tx) error {
		if tx.Size() > size {
			return corrupt(h.path, size, "the file ends there and should have %d bytes", tx.Size())
		}
		return nil
	})
}

func (h *history) view(f func(*bolt.Tx) error) error {
	err := guard(h.path, func() error { return h.db.View(f) })
	if errors.Is(err, berrors.ErrDatabaseNotOpen) {
		return ErrClosed
	}
	return err
}

func (h *history) update(f func(*bolt.Tx) error) error {
	err := guard(h.path, func() error { return h.db.Update(f) })
	var damaged *CorruptError
	if err == nil || errors.As(err, &damaged) {
		return err
	}
	return ioError("write", h.path, err)
}

func (h *history) close() error {
	return guard(h.path, func() error { return ioError("close", h.path, h.db.Close()) })
}

// sizes are the bytes of all pages and of the free ones.
func (h *history) sizes() (total, free int64, err error) {
	err = h.view(func(tx *bolt.Tx) error {
		total = tx.Size()
		stats := h.db.Stats()
		free = int64(stats.FreePageN+stats.PendingPageN) * int64(h.db.Info().PageSize)
		return nil
	})
	return total, free, err
}

// bucket returns a bucket that every state.db has.
func (h *history) bucket(tx *bolt.Tx, name []byte) (*bolt.Bucket, error) {
	b := tx.Bucket(name)
	if b == nil {
		return nil, corrupt(h.path, -1, "bucket %s is missing", name)
	}
	return b, nil
}

// sealValue ends a stored value: CRC32C of the key and the value, so that a value under
// another key does not pass.
func sealValue(key, v []byte) []byte {
	crc := crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, v)
	return binary.BigEndian.AppendUint32(v, crc)
}

// sealed reports whether the checksum of a value is right.
func sealed(key, v []byte) bool {
	n := len(v) - 4
	return crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, v[:n]) == binary.BigEndian.Uint32(v[n:])
}

// openValue checks a stored value and returns what lies between version and checksum.
func (h *history) openValue(bucket, key, v []byte) ([]byte, error) {
	n := len(v) - 4
	if n < 1 || !sealed(key, v) {
		return nil, corrupt(h.path, -1, "checksum of a value in bucket %s does not match (key %x)", bucket, key)
	}
	if v[0] != valueVersion {
		return nil, &SchemaError{File: h.path, Have: uint32(v[0]), Want: valueVersion}
	}
	return v[1:n], nil
}

// A stored row is version, commit, sequence, then the row as in a log record, checksum.
func encodeChange(c *change) []byte { return appendChange(make([]byte, 0, changeSize(c)), c) }

// changeSize is the most that appendChange takes.
func changeSize(c *change) int {
	size := 1 + 8 + 8 + 1 + 4 // version, commit, sequence or a flag, checksum
	if c.row != nil {
		size += rowBytes + len(c.row.Record.Payload) + len(c.row.Annex)
	}
	return size
}

// appendChange appends a change as it is stored to v, which has room for it.
func appendChange(v []byte, c *change) []byte {
	from := len(v)
	v = append(v, valueVersion)
	v = binary.BigEndian.AppendUint64(v, c.commit)
	if c.row == nil {
		v = append(v, valueRemoved)
	} else {
		v = binary.BigEndian.AppendUint64(v, uint64(c.row.Seq))
		v = appendRow(v, c.row, false)
	}
	return v[:from+len(sealValue(c.key[:], v[from:]))]
}

// commitOf is the commit of a stored change, after its checksum.
func (h *history) commitOf(bucket, key, v []byte) (uint64, error) {
	body, err := h.openValue(bucket, key, v)
	if err != nil {
		return 0, err
	}
	if len(body) < 8 {
		return 0, corrupt(h.path, -1, "a value in bucket %s is malformed (key %x)", bucket, key)
	}
	return binary.BigEndian.Uint64(body), nil
}

// decodeChange reads a stored change. Its byte strings alias v.
func (h *history) decodeChange(bucket, key, v []byte) (*change, error) {
	body, err := h.openValue(bucket, key, v)
	if err != nil {
		return nil, err
	}
	cur := &cursor{b: body}
	c := &change{commit: cur.u64()}
	if len(key) == len(c.key) {
		c.key = Key(key)
	}
	if len(cur.b) != 1 || cur.b[0] != valueRemoved {
		seq := frames.EventSequence(cur.u64())
		c.row, _ = cur.row(c.commit)
		c.row.Seq = seq
		cur.bad = cur.bad || c.row.key != c.key || len(cur.b) != 0
	}
	// Only carry holds removals.
	cur.bad = cur.bad || c.row == nil && string(bucket) != string(bucketCarry)
	if cur.bad || c.key == (Key{}) {
		return nil, corrupt(h.path, -1, "a value in bucket %s is malformed (key %x)", bucket, key)
	}
	return c, nil
}

// find reads the history rows of keys, those of asked alone, without their payloads if
// headless.
func (h *history) find(keys []Key, asked []int, headless bool) (f found, err error) {
	f = found{keys: keys, rows: make([]*row, len(keys))}
	if len(asked) > 0 {
		err = h.view(func(tx *bolt.Tx) error { return h.fill(tx, &f, asked, headless) })
	}
	if len(keys) > walkedKeys {
		f.index = make(map[Key]int, len(keys))
		for i, k := range keys {
			f.index[k] = i
		}
	}
	return f, err
}

// fill reads rows of f.
func (h *history) fill(tx *bolt.Tx, f *found, asked []int, headless bool) error {
	b, err := h.bucket(tx, bucketHistory)
	if err != nil {
		return err
	}
	cur := b.Cursor() // one for all: each takes memory
	for _, i := range asked {
		k := &f.keys[i]
		key, v := cur.Seek(k[:])
		if string(key) != string(k[:]) {
			continue
		}
		c, err := h.decodeChange(bucketHistory, k[:], v)
		if err != nil {
			return err
		}
		if headless {
			c.row.behead()
		}
		c.row.own()
		f.rows[i] = c.row
	}
	return nil
}

// read visits up to pageRows history rows behind p.after and returns those that the cut
// has and the reader sees. Everything up to through has been visited; end says that
// nothing follows.
func (h *history) read(p *page) (rows []*row, through Key, end bool, err error) {
	through = p.after
	err = h.view(func(tx *bolt.Tx) error {
		b, err := h.bucket(tx, bucketHistory)
		if err != nil {
			return err
		}
		c := b.Cursor()
		k, v := c.Seek(p.after[:])
		if string(k) == string(p.after[:]) {
			k, v = c.Next()
		}
		room, bytes := p.max-len(p.rows), p.bytes
		for n := 0; k != nil; n++ {
			if n == pageRows || len(rows) >= room || bytes > pageBytes {
				return nil
			}
			if len(k) != len(through) {
				return corrupt(h.path, -1, "a key of bucket %s has %d bytes", bucketHistory, len(k))
			}
			through = Key(k)
			if !p.seesKind(through.Kind()) {
				k, v = seekPast(c, &through)
				continue
			}
			ch, err := h.decodeChange(bucketHistory, k, v)
			if err != nil {
				return err
			}
			if ch.commit <= p.cut.commit && p.sees(through.Kind(), ch.row.Principal) {
				ch.row.own()
				rows = append(rows, ch.row)
				bytes += int(ch.row.weight())
			}
			k, v = c.Next()
		}
		end = true
		return nil
	})
	return rows, through, end, err
}

// seekPast moves to the first key behind every key of through's kind, and through to the
// last possible one of it.
func seekPast(c *bolt.Cursor, through *Key) (k, v []byte) {
	kind := through.Kind()
	for i := 2; i < len(through); i++ {
		through[i] = 0xff
	}
	next := KeyOf(frames.ObjectRef{Kind: kind + 1})
	if kind+1 == 0 {
		return nil, nil
	}
	return c.Seek(next[:])
}
