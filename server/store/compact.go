package store

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"

	"coordinator/internal/failpoint"
)

const (
	// compactName is the copy that becomes state.db by a rename. One that is found lying about
	// is of a Compact that did not get that far.
	compactName = stateName + ".compact"
	// compactTxBytes bounds the memory of one transaction of the copy.
	compactTxBytes = 16 << 20
	// compactTell is the time between two lines of progress, and compactLook that between two looks at
	// how large the copy is.
	compactTell = 2 * time.Second
	compactLook = 200 * time.Millisecond
)

// A Compaction is what Compact did.
type Compaction struct {
	Before, After int64 // bytes of state.db
	// Values is how many keys all buckets have, and SHA256 the digest of every bucket, key and
	// value in order: both files have the same.
	Values uint64
	SHA256 [sha256.Size]byte
}

// Compact writes state.db anew without its free pages. No coordinator may have the store
// open, and the caller holds the lock that says so.
//
// The copy is flushed, checked page by page, and compared with the old file value by value
// before it takes its name; until then the old file is untouched. A crash at any point
// leaves one whole state.db, and at most a copy that the next Open or Compact removes.
//
// Of o it uses FreeBytes, PageCheck (nil checks in this process), Progress, Advance and Clock. A
// damaged or newer state.db is refused as by Open, and so is a disk without room for the
// copy.
func Compact(dir string, o Options) (Compaction, error) {
	o = o.withDefaults()
	var c Compaction
	if err := present(dir, o.FS); err != nil {
		return c, err
	}
	path, tmp := statePath(dir), filepath.Join(dir, compactName)
	if err := os.Remove(tmp); err == nil {
		o.Progress("removed " + tmp + ", which an interrupted compact left")
	} else if !errors.Is(err, fs.ErrNotExist) {
		return c, ioError("remove", tmp, err)
	}
	if err := checked(path, o); err != nil {
		return c, err
	}
	old, err := openHistory(path, false, false)
	if err != nil {
		return c, err
	}
	// Open to the end: its lock keeps out whoever does not know of the caller's.
	c, err = old.compact(tmp, o)
	if err != nil {
		if rerr := os.Remove(tmp); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
			err = errors.Join(err, ioError("remove", tmp, rerr))
		}
		return c, errors.Join(err, old.close())
	}
	failpoint.Hit("compact-copied")
	if err := os.Rename(tmp, path); err != nil {
		return c, errors.Join(ioError("rename", tmp, err), old.close())
	}
	failpoint.Hit("compact-renamed")
	return c, errors.Join(ioError("sync", dir, osFS{}.SyncDir(dir)), old.close())
}

// checked runs the page check of a state.db in the way the caller wants.
func checked(path string, o Options) error {
	o.Progress("checking the pages and values of " + path)
	if o.PageCheck != nil {
		return pageCheck(path, o.PageCheck)
	}
	return CheckFileWith(path, o)
}

// compact makes tmp, a whole and durable copy of h.
func (h *history) compact(tmp string, o Options) (c Compaction, err error) {
	info, err := os.Stat(h.path)
	if err != nil {
		return c, ioError("stat", h.path, err)
	}
	if _, _, err := h.loadMeta(); err != nil {
		return c, err
	}
	if err := h.roomForCopy(o.FreeBytes()); err != nil {
		return c, err
	}
	if err := createLike(tmp, info); err != nil {
		return c, err
	}
	total, free, err := h.sizes()
	if err != nil {
		return c, err
	}
	told := tellSize(tmp, total-free, o)
	err = h.copyTo(tmp)
	told()
	if err != nil {
		return c, err
	}
	failpoint.Hit("compact-written")
	if err := checked(tmp, o); err != nil {
		return c, err
	}
	o.Progress("comparing the copy with " + h.path)
	copied, err := openHistory(tmp, true, false)
	if err != nil {
		return c, err
	}
	c.Values, c.SHA256, err = h.sameAs(copied, o.Advance)
	if err = errors.Join(err, copied.close()); err != nil {
		return c, err
	}
	after, err := os.Stat(tmp)
	if err != nil {
		return c, ioError("stat", tmp, err)
	}
	c.Before, c.After = info.Size(), after.Size()
	return c, nil
}

// roomForCopy refuses a disk on which the copy would not fit. Its pages are nine tenths
// full, which a page of h may be above.
func (h *history) roomForCopy(free uint64) error {
	total, unused, err := h.sizes()
	if err != nil {
		return err
	}
	used := uint64(total - unused)
	if need := used + used/8 + 1<<20; free < need {
		return ioError("compact", h.path, fmt.Errorf("the copy needs up to %d bytes beside it and %d are free: %w", need, free, syscall.ENOSPC))
	}
	return nil
}

// createLike makes an empty file with the mode and owner of the one that it will replace.
func createLike(path string, like os.FileInfo) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return ioError("create", path, err)
	}
	if st, ok := like.Sys().(*syscall.Stat_t); ok && (int(st.Uid) != os.Geteuid() || int(st.Gid) != os.Getegid()) {
		err = f.Chown(int(st.Uid), int(st.Gid))
	}
	if err == nil {
		err = f.Chmod(like.Mode().Perm())
	}
	return ioError("create", path, errors.Join(err, f.Close()))
}

// copyTo fills the empty file tmp and makes it durable.
func (h *history) copyTo(tmp string) error {
	var size int64
	err := guard(h.path, func() error {
		db, err := bolt.Open(tmp, 0o600, &bolt.Options{
			Timeout: lockWait, FreelistType: bolt.FreelistMapType, NoSync: true, NoGrowSync: true, // one flush at the end
		})
		if err != nil {
			return err
		}
		err = bolt.Compact(db, h.db, compactTxBytes)
		if err == nil {
			err = db.View(func(tx *bolt.Tx) error { size = tx.Size(); return nil })
		}
		return errors.Join(err, db.Close())
	})
	var damaged *CorruptError
	if errors.As(err, &damaged) {
		return err
	}
	if err != nil {
		return ioError("write", tmp, err)
	}
	f, err := os.OpenFile(tmp, os.O_RDWR, 0)
	if err != nil {
		return ioError("open", tmp, err)
	}
	err = f.Truncate(size) // neither less than its pages nor what bbolt has taken ahead
	if err == nil {
		err = f.Sync()
	}
	return ioError("sync", tmp, errors.Join(err, f.Close()))
}

// tellSize reports how large the file has become, now and then and once more when the
// function that it returns is called. want is about how large it will be.
func tellSize(path string, want int64, o Options) (stop func()) {
	quit := make(chan struct{})
	var telling sync.WaitGroup
	telling.Go(func() {
		timer := o.Clock.NewTimer(compactLook)
		defer timer.Stop()
		told := o.Clock.Now().Boot
		for end := false; !end; timer.Reset(compactLook) {
			select {
			case <-quit:
				end = true
			case <-timer.C():
			}
			info, err := os.Stat(path)
			if err != nil {
				continue
			}
			o.Advance(Advance{Step: stepCopy, Done: info.Size(), Total: want})
			if now := o.Clock.Now().Boot; end || now-told >= compactTell {
				told = now
				o.Progress(fmt.Sprintf("copying: %d bytes written", info.Size()))
			}
		}
	})
	return func() { close(quit); telling.Wait() }
}

// sameAs walks h and o side by side: every bucket, key and value must be the same. It
// returns how many values there are, and their digest.
func (h *history) sameAs(o *history, advance func(Advance)) (values uint64, sum [sha256.Size]byte, err error) {
	digest := sha256.New()
	err = h.view(func(have *bolt.Tx) error {
		return o.view(func(want *bolt.Tx) error {
			return eachPair(have.Cursor(), want.Cursor(), func(name, v []byte) error {
				if v != nil {
					return errors.New("a value outside of every bucket")
				}
				addPart(digest, name)
				a, b := have.Bucket(name), want.Bucket(name)
				if a.Sequence() != b.Sequence() {
					return fmt.Errorf("the sequence of bucket %s", name)
				}
				return eachPair(a.Cursor(), b.Cursor(), func(k, v []byte) error {
					if v == nil {
						return fmt.Errorf("a bucket in bucket %s", name)
					}
					addPart(digest, k)
					addPart(digest, v)
					values++
					advance(Advance{Step: stepCompare, Unit: unitValues, Done: int64(values)})
					return nil
				})
			})
		})
	})
	if err != nil {
		return 0, sum, fmt.Errorf("store: compact: the copy is not what it was made from: %w", err)
	}
	return values, [sha256.Size]byte(digest.Sum(nil)), nil
}

// eachPair gives visit every key and value that both cursors have.
func eachPair(a, b *bolt.Cursor, visit func(k, v []byte) error) error {
	k, v := a.First()
	bk, bv := b.First()
	for k != nil || bk != nil {
		if !bytes.Equal(k, bk) || !bytes.Equal(v, bv) || (v == nil) != (bv == nil) {
			return fmt.Errorf("key %x is not key %x with the same value", k, bk)
		}
		if err := visit(k, v); err != nil {
			return err
		}
		k, v = a.Next()
		bk, bv = b.Next()
	}
	return nil
}

// addPart adds a byte string so that no other sequence of parts gives the same digest.
func addPart(d hash.Hash, b []byte) {
	var n [4]byte
	binary.BigEndian.PutUint32(n[:], uint32(len(b)))
	d.Write(n[:])
	d.Write(b)
}

// clearCompaction removes the copy of a Compact that was interrupted. It is of no use to
// anybody, and says so once.
func (s *Store) clearCompaction() {
	tmp := filepath.Join(s.dir, compactName)
	switch err := os.Remove(tmp); {
	case err == nil:
		s.opts.Logger.Info("store: removed what an interrupted compact left; state.db is whole without it", "file", tmp)
	case !errors.Is(err, fs.ErrNotExist):
		s.opts.Logger.Warn("store: what an interrupted compact left could not be removed; it only takes room", "file", tmp, "error", err)
	}
}
