package store

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	bolt "go.etcd.io/bbolt"

	"coordinator/frames"
)

// Schema is that of the files of an open store, the newest that this program reads.
func Schema() uint32 { return newest(upgrades) }

// A Copy is the files of a running store as of one commit, which open as the store would
// after a crash at that commit.
//
// It holds two things, which its maker is to give back soon, and at the pace of the local
// disk: a read transaction of state.db until WriteState has returned, and the segments of
// the log until ReleaseLog. None of its methods waits for the writer, and one goroutine at a
// time calls them.
type Copy struct {
	s     *Store
	held  *segment
	tx    *bolt.Tx
	segs  []*segment // views as of the cut
	state State
}

// A CopiedFile is a file of the log in a Copy. What lies behind its first Bytes is zeros.
type CopiedFile struct {
	Name        string // in the store's directory
	Size, Bytes int64
	path        string
}

// Open opens the file for reading. Its first Bytes do not change any more, also when the
// store unlinks the file later.
func (f CopiedFile) Open() (*os.File, error) {
	file, err := os.Open(f.path)
	return file, ioError("open", f.path, err)
}

// BeginCopy begins a copy, which needs its Cut next. Any goroutine; the caller closes it,
// and before the store.
func (s *Store) BeginCopy() (*Copy, error) {
	if _, ok := s.log.fs.(osFS); !ok {
		return nil, errors.New("store: a log that is not in files cannot be copied")
	}
	if s.isClosed() {
		return nil, ErrClosed
	}
	// In this order: a transaction names the oldest segment that its log must have, which the
	// hold keeps, and the newest commit of which it may have rows, which the cut is not before.
	c := &Copy{s: s, held: s.log.holdOldest()}
	tx, err := s.hist.db.Begin(false)
	if err != nil {
		c.Close()
		return nil, ioError("begin a copy of", s.hist.path, err)
	}
	c.tx = tx
	return c, nil
}

// holdOldest keeps every segment there is from retention.
func (l *log) holdOldest() *segment {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.segs[0].holds++
	return l.segs[0]
}

// Cut makes the last commit the end of the copy. Writer only, and while nothing is in flight,
// as the log may have that already.
func (c *Copy) Cut() {
	if c.s.aloft() {
		panic("store: a copy cut while a commit is in flight")
	}
	c.state = c.s.State()
	c.segs = c.s.log.snapshot()
}

// State is that of the store as of the cut.
func (c *Copy) State() State { return c.state }

// Log lists the files of the log as of the cut, oldest first.
func (c *Copy) Log() []CopiedFile {
	files := make([]CopiedFile, len(c.segs))
	for i, s := range c.segs {
		files[i] = CopiedFile{Name: filepath.Join(logName, filepath.Base(s.path)), Size: s.size, Bytes: s.size, path: s.path}
		if s.idx != nil { // open, or its index is being written: the records suffice
			files[i].Bytes = s.end
		}
	}
	return files
}

// StateBytes is the size of the copy of state.db.
func (c *Copy) StateBytes() int64 { return c.tx.Size() }

// WriteState writes state.db to w and gives its transaction back. W decides how long that
// one lives, so it must not wait for anybody.
func (c *Copy) WriteState(w io.Writer) error {
	defer c.endTx()
	n, err := c.tx.WriteTo(w)
	if err == nil && n != c.tx.Size() {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return fmt.Errorf("store: copy of %s: %w", c.s.hist.path, err)
	}
	return nil
}

func (c *Copy) endTx() {
	if c.tx != nil {
		c.tx.Rollback() //nolint:errcheck // it has read only
		c.tx = nil
	}
}

// Close gives everything back. It may be called twice.
func (c *Copy) Close() {
	c.endTx()
	c.ReleaseLog()
}

// ReleaseLog gives the log back, once its files are open.
func (c *Copy) ReleaseLog() {
	if c.held == nil {
		return
	}
	c.s.log.mu.Lock()
	c.held.holds--
	c.s.log.mu.Unlock()
	c.held = nil
}

// StateFile is the name of state.db in a store's directory, and LogDir that of the log.
const (
	StateFile = stateName
	LogDir    = logName
)

// Renew gives the store in dir, which nobody has open, an incarnation of its own: it is a
// copy from here on, whose history goes on by itself. It may be of an older schema.
func Renew(dir string, incarnation frames.IncarnationID) error {
	h, err := openHistory(statePath(dir), false, false)
	if err != nil {
		return err
	}
	err = h.update(func(tx *bolt.Tx) error {
		meta, err := h.bucket(tx, bucketMeta)
		if err != nil {
			return err
		}
		return meta.Put(keyIncarnation, encodeIncarnation(incarnation))
	})
	return errors.Join(err, h.close())
}
