package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	bolt "go.etcd.io/bbolt"
)

// CheckFile checks every page and every value of the state.db at path without changing
// it. A damaged page can kill the process beyond recovery, so it runs in one of its own,
// whose death is the report.
func CheckFile(path string) error {
	h, err := openHistory(path, true, false)
	if err != nil {
		return err
	}
	err = h.checkPages()
	if err == nil {
		err = h.checkValues()
	}
	return errors.Join(err, h.close())
}

func (h *history) checkPages() error {
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
	if _, _, err := h.loadMeta(); err != nil {
		return err
	}
	for _, name := range rowBuckets {
		if err := h.loadRows(name, func(*change) error { return nil }); err != nil {
			return err
		}
	}
	return nil
}

// Verify checks the store in dir as Open would, page check included, reads every record
// and every value, and changes nothing. No coordinator may have the store open. Of o it
// uses FS and Progress. See CheckFile for what a damaged page can do.
func Verify(dir string, o Options) error {
	o = o.withDefaults()
	if err := present(dir, o.FS); err != nil {
		return err
	}
	segs, tail, err := scanLog(o.FS, logPath(dir), o.Progress, true)
	if err != nil {
		return err
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
	o.Progress("checking the pages of state.db")
	if err := CheckFile(statePath(dir)); err != nil {
		return err
	}
	h, err := openHistory(statePath(dir), true, false)
	if err != nil {
		return err
	}
	_, err = newStore(dir, o, h).loadFiles(segs)
	return errors.Join(err, h.close())
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
