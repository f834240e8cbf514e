package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	bolt "go.etcd.io/bbolt"

	"coordinator/frames"
	"coordinator/internal/failpoint"
)

// CheckFile checks every page and every value of the state.db at path without changing
// it. A damaged page can kill the process beyond recovery, so it runs in one of its own,
// whose death is the report.
//
// Of a file of an older schema only the checksums of the values are checked.
func CheckFile(path string) error { return CheckFileWith(path, Options{}) }

// CheckFileWith is CheckFile that tells how far it has come. Of o it uses Advance.
func CheckFileWith(path string, o Options) error {
	o = o.withDefaults()
	h, err := openHistory(path, true, false)
	if err != nil {
		return err
	}
	h.newest, h.advance = newest(o.upgrades), o.Advance
	err = h.checkExtents()
	if err == nil {
		err = h.checkPages()
	}
	if err == nil {
		err = h.checkElements()
	}
	if err == nil {
		err = h.checkValues()
	}
	return errors.Join(err, h.close())
}

func (h *history) checkPages() error {
	h.advance(Advance{Step: stepPages}) // bbolt does not say how far it is
	return h.view(func(tx *bolt.Tx) error {
		var first error
		n := 0
		for err := range tx.Check() { // to its end, or its goroutine would stay
			if n++; first == nil {
				first = err
			}
		}
		if first != nil {
			return &CorruptError{File: h.path, Offset: -1, Problem: fmt.Sprintf("%d faults in its pages, the first", n), Err: first}
		}
		return nil
	})
}

func (h *history) checkValues() error {
	if have, err := h.schema(); err != nil {
		return err
	} else if have < h.newest {
		return h.checkSeals()
	}
	a, _, err := h.loadMeta()
	if err != nil {
		return err
	}
	count := rowCounter(h.advance, stepValues, allRows(a.counts.kinds))
	for _, name := range rowBuckets {
		if err := h.loadRows(name, func(*change) error { count(); return nil }); err != nil {
			return err
		}
	}
	return nil
}

// checkSeals checks the checksum of every value.
func (h *history) checkSeals() error {
	return h.view(func(tx *bolt.Tx) error {
		return tx.ForEach(func(name []byte, b *bolt.Bucket) error {
			return b.ForEach(func(k, v []byte) error {
				if len(v) < 5 || !sealed(k, v) {
					return corrupt(h.path, -1, "checksum of a value in bucket %s does not match (key %x)", name, k)
				}
				return nil
			})
		})
	})
}

// Verify checks the store in dir as Open would, page check included, reads every record
// and every value, and changes nothing. No coordinator may have the store open. Of o it
// uses FS, Progress and Advance. See CheckFile for what a damaged page can do.
func Verify(dir string, o Options) error {
	_, err := Inspect(dir, o)
	return err
}

// Inspect is Verify, and says how far the store has come.
func Inspect(dir string, o Options) (State, error) {
	o = o.withDefaults()
	if own, ok := o.FS.(osFS); ok {
		o.FS = readFS{own} // the files may be ones that nobody can write
	}
	if err := present(dir, o.FS); err != nil {
		return State{}, err
	}
	segs, tail, err := scanLog(o, logPath(dir), true)
	if err != nil {
		return State{}, err
	}
	for _, s := range segs[:len(segs)-1] {
		if s.idx != nil {
			o.Progress(fmt.Sprintf("%s has no sound index, and the next start will make it anew", s.path))
		}
	}
	if tail.torn {
		last := segs[len(segs)-1]
		o.Progress(fmt.Sprintf("%s ends in an unfinished record at offset %d, which the next start will cut", last.path, last.end))
	}
	if tmp := filepath.Join(dir, compactName); exists(tmp) {
		o.Progress(tmp + " is what an interrupted compact left, and the next start will remove it")
	}
	failpoint.Hit("inspect-log")
	o.Progress(stepPages)
	if err := CheckFileWith(statePath(dir), o); err != nil {
		return State{}, err
	}
	h, err := openHistory(statePath(dir), true, false)
	if err != nil {
		return State{}, err
	}
	h.newest = newest(o.upgrades)
	s := newStore(dir, o, h)
	if _, err = s.loadFiles(segs); err == nil {
		o.Progress("counting the rows")
		err = s.recount()
	}
	return s.state, errors.Join(err, h.close())
}

// recount compares the rows that a reader would see with the counts that it would be told.
func (s *Store) recount() error {
	s.publish()
	c := s.Cut()
	defer c.Close()
	count := rowCounter(s.opts.Advance, stepCount, allRows(s.mem.counts.kinds))
	have, ops := make(map[frames.ObjectKind]uint64), make(map[frames.KeyID]uint64)
	all := func(frames.ObjectKind, frames.KeyID) bool { return true }
	for after, done := (Key{}), false; !done; {
		var rows []Row
		var err error
		if rows, done, err = c.Page(after, all, pageRows); err != nil {
			return err
		}
		for _, r := range rows {
			count()
			after = r.Key()
			have[r.Record.Kind]++
			if r.Record.Kind == frames.KindOperation {
				ops[r.Principal]++
			}
		}
	}
	for kind, n := range s.mem.counts.kinds {
		if have[kind] != n {
			return corrupt(s.hist.path, -1, "the store has %d rows of kind %v and counts %d: rows are lost", have[kind], kind, n)
		}
		delete(have, kind)
	}
	if len(have) > 0 {
		return corrupt(s.hist.path, -1, "the store has rows of a kind that it does not count")
	}
	for p, n := range ops {
		if c.OperationsOf(p) != n {
			return corrupt(s.hist.path, -1, "a principal has %d operations and the store counts %d", n, c.OperationsOf(p))
		}
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
