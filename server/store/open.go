package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"coordinator/frames"
)

// Create makes a new store in dir, which exists: the log with commit 1, which puts the
// rows of g, then state.db. It refuses dir when a store is there; what an interrupted
// Create left behind it replaces.
func Create(dir string, g Genesis, o Options) error {
	o = o.withDefaults()
	if err := clearUnfinished(dir, o); err != nil {
		return err
	}
	if g.CoordinatorID == (frames.CoordinatorID{}) {
		return errors.New("store: create: CoordinatorId is zero")
	}
	l := newLog(dir, o)
	l.owner, l.manual = g.CoordinatorID, true
	if err := createLog(l); err != nil {
		return errors.Join(fmt.Errorf("store: create: %w", err), l.close())
	}
	err := writeGenesis(l, g)
	if err = errors.Join(err, l.close()); err != nil {
		return fmt.Errorf("store: create: %w", err)
	}
	// state.db comes last: without it there is no store yet.
	if err := createHistory(dir, g, o.UnsafeNoSync); err != nil {
		return fmt.Errorf("store: create: %w", err)
	}
	return nil
}

func writeGenesis(l *log, g Genesis) error {
	s := &Store{mem: newMemory()}
	tx := &s.txs[0]
	tx.reset(s)
	for _, r := range g.Rows {
		tx.Put(r)
	}
	if tx.err != nil {
		return tx.err
	}
	_, err := l.append(tx.buf, recordHead{commit: 1, flags: flagClean, time: g.CreatedAt.UnixNano()}, tx.items)
	return err
}

// clearUnfinished removes the log of a Create that did not get as far as state.db: one
// segment with nothing behind commit 1. Anything more was a store once.
func clearUnfinished(dir string, o Options) error {
	if _, err := os.Lstat(statePath(dir)); err == nil {
		return fmt.Errorf("store: create: %s: %w", dir, ErrExists)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return ioError("stat", statePath(dir), err)
	}
	entries, err := o.FS.List(logPath(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return ioError("list", logPath(dir), err)
	}
	if len(entries) > 0 && (len(entries) > 1 || entries[0].Name != spareName) {
		segs, tail, err := scanLog(o, logPath(dir), false)
		if err != nil || len(segs) != 1 || segs[0].first != 1 || segs[0].next > 2 || segs[0].next == 2 && tail.torn {
			return fmt.Errorf("store: create: %s holds a log without state.db: %w", dir, ErrExists)
		}
	}
	for _, e := range entries {
		if err := o.FS.Remove(filepath.Join(logPath(dir), e.Name)); err != nil {
			return ioError("remove", filepath.Join(logPath(dir), e.Name), err)
		}
	}
	return ioError("remove", logPath(dir), o.FS.Remove(logPath(dir)))
}

// Open opens the store in dir: it checks that the log is whole, then state.db, brings both
// into memory, and only then cuts what an unfinished commit left at the end of the log. It
// never creates anything in the place of something missing.
//
// A store of an older schema is migrated first: what it was stays beside it.
//
// It reads the records behind the checkpoint and the last segment. Of older segments it
// reads the headers and indexes, which prove that none is missing or foreign; damage to
// their records shows when a replay reads them, and to Verify.
//
// Errors are ErrNoStore, a *CorruptError, a *SchemaError, ErrInUse or an *IOError; the
// files are as they were then.
func Open(dir string, o Options) (*Store, error) {
	o = o.withDefaults()
	if err := endMigration(dir, o); err != nil {
		return nil, err
	}
	if err := present(dir, o.FS); err != nil {
		return nil, err
	}
	segs, tail, err := scanLog(o, logPath(dir), false)
	var other *SchemaError
	if errors.As(err, &other) && other.Have < other.Want {
		if err := migrate(dir, other.Have, o); err != nil {
			return nil, err
		}
		segs, tail, err = scanLog(o, logPath(dir), false)
	}
	if err != nil {
		return nil, err
	}
	if o.PageCheck != nil && (!tail.clean || isSmall(statePath(dir), o.PageCheckBytes)) {
		if !tail.clean {
			o.Progress("checking the pages of state.db after an unclean stop")
		}
		if err := pageCheck(statePath(dir), o.PageCheck); err != nil {
			return nil, err
		}
	}
	h, err := openHistory(statePath(dir), false, o.UnsafeNoSync)
	if err != nil {
		return nil, err
	}
	h.newest = newest(o.upgrades)
	s := newStore(dir, o, h)
	if err := s.load(segs, tail); err != nil {
		return nil, errors.Join(err, s.log.close(), h.close())
	}
	s.learn()
	if !o.Manual {
		go s.checkpointLoop()
	}
	return s, nil
}

// learn begins to learn which keys state.db has, and in manual mode does so at once.
func (s *Store) learn() {
	s.known.begin(int(min(allRows(s.mem.counts.kinds), maxKnownKeys)))
	for more := s.opts.Manual; more; {
		more = s.known.walk(s.hist)
	}
}

func newLog(dir string, o Options) *log {
	return &log{
		fs: o.FS, dir: logPath(dir), rand: o.Rand, schema: newest(o.upgrades), segBytes: o.SegmentBytes, manual: o.Manual,
		free: o.FreeBytes, reserve: o.ReserveBytes,
		warn: func(what string, err error) { o.Logger.Warn(what, "error", err) },
	}
}

func newStore(dir string, o Options, h *history) *Store {
	s := &Store{
		dir: dir, opts: o, hist: h, mem: newMemory(), carried: make(map[Key]uint64),
		log: newLog(dir, o), meters: newMeters(),
		jobs: make(chan *checkpoint, 1), finished: make(chan *checkpoint, 1), written: make(chan struct{}, 1),
		quit: make(chan struct{}), joined: make(chan struct{}), done: make(chan struct{}),
	}
	s.log.flush = s.meters.Flush
	s.cuts.open = make(map[*Cut]struct{})
	s.eventBytes.Store(o.EventBytes)
	return s
}

// present tells a directory without a store from a store that lost a part.
func present(dir string, fsys FS) error {
	if _, err := os.Lstat(filepath.Join(dir, migratedName)); err == nil {
		return fmt.Errorf("store: the migration of %s to another schema was interrupted; start the coordinator, which ends it", dir)
	}
	_, logErr := fsys.List(logPath(dir))
	_, dbErr := os.Lstat(statePath(dir))
	noLog, noDB := errors.Is(logErr, fs.ErrNotExist), errors.Is(dbErr, fs.ErrNotExist)
	switch {
	case noLog && noDB:
		return fmt.Errorf("store: %s: %w", dir, ErrNoStore)
	case noLog:
		return corrupt(logPath(dir), -1, "the log directory is missing")
	case noDB:
		return corrupt(statePath(dir), -1, "the file is missing")
	}
	return errors.Join(ioError("list", logPath(dir), logErr), ioError("stat", statePath(dir), dbErr))
}

// isSmall reports whether the file has at most n bytes. One that is not there is left to
// whoever opens it.
func isSmall(path string, n int64) bool {
	info, err := os.Stat(path)
	return err == nil && info.Size() <= n
}

func pageCheck(path string, check func(string) error) error {
	err := check(path)
	var damaged *CorruptError
	var newer *SchemaError
	if err == nil || errors.As(err, &damaged) || errors.As(err, &newer) || errors.Is(err, ErrInUse) {
		return err
	}
	return &CorruptError{File: path, Offset: -1, Problem: "the page check failed", Err: err}
}

// load fills memory and then takes the log over for writing, which changes files.
func (s *Store) load(segs []*segment, tail logTail) error {
	a, err := s.loadFiles(segs)
	if err != nil {
		return err
	}
	if err := openLog(s.log, segs, tail); err != nil {
		return err
	}
	s.clearCompaction()
	s.clearMigration()
	s.clean = tail.clean
	s.lastCheckpoint = s.opts.Clock.Now().Boot
	s.publish()
	if err := s.log.drop(a.logFrom); err != nil {
		return err
	}
	s.log.reseal()
	return nil
}

// loadFiles fills memory from state.db and the log. It changes nothing on disk.
func (s *Store) loadFiles(segs []*segment) (*applied, error) {
	a, target, err := s.hist.loadMeta()
	if err != nil {
		return nil, err
	}
	if err := agree(s.hist.path, a, target, segs); err != nil {
		return nil, err
	}
	s.opts.Progress(stepLoad)
	s.state, s.mem.counts = a.state, a.counts
	if err := s.loadRows(); err != nil {
		return nil, err
	}
	s.opts.Progress(stepReplay)
	s.log.segs = segs
	return a, s.replay(a)
}

// loadRows brings the live tree into memory and what the last checkpoint could not place.
func (s *Store) loadRows() error {
	count := rowCounter(s.opts.Advance, stepLoad, 0) // how many are live nobody has counted
	err := s.hist.loadRows(bucketLive, func(c *change) error {
		s.opts.Working()
		count()
		s.mem.setLive(c.row)
		return nil
	})
	if err != nil {
		return err
	}
	return s.hist.loadRows(bucketCarry, func(c *change) error {
		s.opts.Working()
		count()
		s.mem.active.put(c)
		s.carried[c.key] = c.commit
		return nil
	})
}

// agree checks that state.db and the log are of one store and one history.
func agree(statePath string, a *applied, target uint64, segs []*segment) error {
	first, last := segs[0], segs[len(segs)-1]
	switch {
	case first.owner != a.state.CoordinatorID:
		return corrupt(first.path, 16, "the log is of coordinator %v, state.db of %v", first.owner, a.state.CoordinatorID)
	case last.next <= a.state.Commit || last.next <= target:
		return corrupt(last.path, last.end, "the log ends at commit %d, state.db has commit %d: the end of the log is missing", last.next-1, max(a.state.Commit, target))
	case first.first > a.logFrom:
		return corrupt(first.path, 32, "the log begins at commit %d and should begin at %d or before: a segment is missing", first.first, a.logFrom)
	case first.first > a.state.Commit+1:
		return corrupt(statePath, -1, "the file ends at commit %d and the log begins at %d", a.state.Commit, first.first)
	}
	return nil
}

// replay applies every commit behind the checkpoint.
func (s *Store) replay(a *applied) error {
	chain, err := s.log.chainAt(a.state.Commit)
	if err != nil {
		return err
	}
	if a.state.Commit > 0 && chain != a.chain {
		return corrupt(s.hist.path, -1, "commit %d in the log is not the one that was applied here: the files are of different copies", a.state.Commit)
	}
	last := s.log.segs[len(s.log.segs)-1].next - 1
	return s.log.each(s.log.segs, mark{commit: a.state.Commit + 1}, func(seg *segment, off int64, h recordHead, body []byte) (bool, error) {
		s.opts.Working()
		s.opts.Advance(Advance{Step: stepReplay, Unit: unitCommits, Done: int64(h.commit - a.state.Commit), Total: int64(last - a.state.Commit)})
		items, err := decodeRecord(seg, off, h, body)
		if err != nil {
			return false, err
		}
		for i := range items {
			if r := items[i].row; r != nil {
				r.own()
			}
		}
		if err := s.apply(h, items); err != nil {
			return false, &CorruptError{File: seg.path, Offset: off, Problem: fmt.Sprintf("record %d", h.commit), Err: err}
		}
		return true, nil
	})
}
