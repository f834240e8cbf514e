package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"sync"

	"coordinator/frames"
	"coordinator/internal/failpoint"
	"coordinator/internal/meter"
)

// log is the sequence of commits: a directory of segments. One goroutine appends; any
// goroutine reads committed records; the checkpoint unlinks whole segments.
type log struct {
	fs       FS
	dir      string
	owner    frames.CoordinatorID
	rand     io.Reader
	schema   uint32 // of new segments
	segBytes int64
	free     func() uint64 // bytes left on the file system
	reserve  uint64        // of them, not for segments made ahead
	manual   bool          // prepare segments in line, without a goroutine
	warn     func(what string, err error)

	cache indexCache
	flush *meter.Histogram // of a commit's flushes

	mu   sync.RWMutex
	segs []*segment // guarded by mu; the last is open

	// Owned by the writer.
	f   File
	cur *segment
	// Owned by the writer: the segment being prepared, nil when none is.
	spare *spare
}

// A spare is a zero-filled file that becomes the next segment.
type spare struct {
	f    File
	size int64
	err  error
	quit chan struct{}
	done chan struct{} // closed when f and err are set
}

// logTail is what a scan found behind the last good record.
type logTail struct {
	clean   bool   // the last record has flagClean
	torn    bool   // bytes of an unfinished record, to be zeroed
	problem string // why it was not read as a record
}

// scanLog checks the log without changing anything. Of a sealed segment it reads the
// header and the index, and the records only when the index is not whole; of the last one
// it reads everything. Full reads every record and compares every index with them.
func scanLog(o Options, dir string, full bool) ([]*segment, logTail, error) {
	fsys, progress := o.FS, o.Progress
	var tail logTail
	files, err := listSegments(fsys, dir)
	if err != nil {
		return nil, tail, err
	}
	segs := make([]*segment, len(files))
	for i, file := range files {
		if segs[i], err = openHeader(fsys, filepath.Join(dir, segmentName(file.commit)), file, newest(o.upgrades)); err != nil {
			return nil, tail, err
		}
	}
	read, total := int64(0), int64(0)
	for _, s := range segs {
		total += s.size
	}
	for i, s := range segs {
		o.Advance(Advance{Step: stepLog, Done: read, Total: total})
		read += s.size
		tell := func() { progress(fmt.Sprintf("reading log segment %d of %d", i+1, len(segs))) }
		if i+1 < len(segs) {
			err = s.scanSealed(fsys, segs[i+1].first, full, tell)
		} else {
			tell()
			tail, err = s.scanLast(fsys)
		}
		if err == nil && i > 0 {
			err = follows(segs[i-1], s)
		}
		if err != nil {
			return nil, tail, err
		}
	}
	if last := segs[len(segs)-1]; last.next == last.first && len(segs) > 1 && !tail.torn {
		// An empty last segment leaves the last record where it was.
		tail.clean = segs[len(segs)-2].clean
	}
	return segs, tail, nil
}

type segmentFile struct {
	commit uint64
	size   int64
}

// listSegments returns the segment files of dir in order. Unknown names are refused: a
// restore that mixed in other files must not pass.
func listSegments(fsys FS, dir string) ([]segmentFile, error) {
	entries, err := fsys.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, corrupt(dir, -1, "the log directory is missing")
	} else if err != nil {
		return nil, ioError("list", dir, err)
	}
	var firsts []segmentFile
	for _, e := range entries {
		if first, ok := parseSegmentName(e.Name); ok && !e.Dir {
			firsts = append(firsts, segmentFile{first, e.Size})
		} else if e.Name != spareName {
			return nil, corrupt(filepath.Join(dir, e.Name), -1, "a file that does not belong into the log")
		}
	}
	if len(firsts) == 0 {
		return nil, corrupt(dir, -1, "the log has no segment")
	}
	slices.SortFunc(firsts, func(a, b segmentFile) int {
		if a.commit < b.commit {
			return -1
		}
		return 1
	})
	return firsts, nil
}

func openHeader(fsys FS, path string, file segmentFile, schema uint32) (*segment, error) {
	f, err := fsys.Open(path)
	if err != nil {
		return nil, ioError("open", path, err)
	}
	defer f.Close()
	s, err := readHeader(f, path, file.commit, schema)
	if err != nil {
		return nil, err
	}
	if s.size != file.size {
		return nil, corrupt(path, min(s.size, file.size), "the file has %d bytes, its header says %d", file.size, s.size)
	}
	return s, nil
}

// scanSealed learns what a segment has that another follows, which begins with commit
// next. Without a whole index it reads the records, after a call of tell, and keeps the
// index that it made.
func (s *segment) scanSealed(fsys FS, next uint64, full bool, tell func()) error {
	f, err := fsys.Open(s.path)
	if err != nil {
		return ioError("open", s.path, err)
	}
	defer f.Close()
	x, e, whole := s.readIndex(f)
	if whole && !full {
		s.adopt(x, e)
		return nil
	}
	tell()
	problem, err := s.scan(&blockReader{f: f, path: s.path, size: s.size})
	switch {
	case err != nil:
		return err
	case problem != "" && s.next != next:
		return corrupt(s.path, s.end, "record %d: %s", s.next, problem)
	case !whole:
		return nil
	case !x.equal(s.idx) || e != indexEnd{s.end, s.head, s.tail, s.clean}:
		return corrupt(s.path, s.size-indexTrailer, "the index does not agree with the records")
	}
	s.idx = nil
	return nil
}

// scanLast reads the segment that commits go on in.
func (s *segment) scanLast(fsys FS) (tail logTail, err error) {
	f, err := fsys.Open(s.path)
	if err != nil {
		return tail, ioError("open", s.path, err)
	}
	defer f.Close()
	r := &blockReader{f: f, path: s.path, size: s.size}
	if tail.problem, err = s.scan(r); err != nil {
		return tail, err
	}
	later, err := s.laterRecord(r, s.end)
	if err != nil {
		return tail, err
	}
	if later != 0 {
		return tail, corrupt(s.path, s.end, "record %d is damaged, and a later record follows at offset %d", s.next, later)
	}
	dirty, err := s.firstDirty(r, s.end)
	tail.torn = dirty >= 0
	tail.clean = s.clean && !tail.torn
	return tail, err
}

// follows checks that segment s continues where p ends.
func follows(p, s *segment) error {
	switch {
	case s.owner != p.owner:
		return corrupt(s.path, 16, "the segment belongs to another coordinator")
	case s.first > p.next:
		return corrupt(p.path, p.end, "the log ends at commit %d and the next segment begins with commit %d: records or a segment are missing", p.next-1, s.first)
	case s.first < p.next:
		return corrupt(s.path, 32, "the segment begins with commit %d, want %d", s.first, p.next)
	case s.chain != p.tail || s.base != p.head:
		return corrupt(s.path, 64, "the segment does not follow the one before it")
	}
	return nil
}

// openLog takes over the scanned segments for writing: it cuts a torn tail and begins to
// prepare the next segment. It is the first step that changes a file.
func openLog(l *log, segs []*segment, tail logTail) error {
	l.segs = segs
	l.cur = segs[len(segs)-1]
	l.owner = l.cur.owner
	f, err := l.fs.Open(l.cur.path)
	if err != nil {
		return ioError("open", l.cur.path, err)
	}
	if tail.torn {
		if err := l.cur.cutTail(f, &blockReader{f: f, path: l.cur.path, size: l.cur.size}); err != nil {
			f.Close()
			return err
		}
	}
	l.f = f
	// What an earlier run prepared may not be zero behind its header.
	if err := l.fs.Remove(sparePath(l.dir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		f.Close()
		return ioError("remove", sparePath(l.dir), err)
	}
	l.prepare(nil, nil)
	return nil
}

// createLog makes the directory and an empty first segment.
func createLog(l *log) error {
	if err := l.fs.Mkdir(l.dir); err != nil {
		return ioError("mkdir", l.dir, err)
	}
	if err := l.roll(0, &segment{next: 1}); err != nil {
		return err
	}
	return ioError("sync", filepath.Dir(l.dir), l.fs.SyncDir(filepath.Dir(l.dir)))
}

// prepare writes the index of sealed, the segment that has just taken its last record,
// closes its file f, and begins to fill the next segment; f may be nil. In manual mode
// the index is written in line and the filling waits for roll.
func (l *log) prepare(sealed *segment, f File) {
	if l.manual {
		l.finish(sealed, f)
		return
	}
	sp := &spare{size: l.sizeFor(0), quit: make(chan struct{}), done: make(chan struct{})}
	l.spare = sp
	go func() {
		defer close(sp.done)
		l.finish(sealed, f)
		l.fillSpare(sp)
	}()
}

// finish seals a segment and closes its file. Its records are durable without the index:
// a failure costs the next start a scan, and costs nobody a commit.
func (l *log) finish(sealed *segment, f File) {
	if f == nil {
		return
	}
	if err := l.seal(f, sealed); err != nil {
		l.warn("store: the index of a sealed segment was not written; the next start will make it anew", err)
	}
	f.Close() // flushed, or given up
}

// reseal writes the indexes that sealed segments lack.
func (l *log) reseal() {
	for _, s := range l.segs[:len(l.segs)-1] {
		if s.idx == nil {
			continue
		}
		f, err := l.fs.Open(s.path)
		if err != nil {
			l.warn("store: a sealed segment without index cannot be opened", ioError("open", s.path, err))
			continue
		}
		l.finish(s, f)
	}
}

// sizeFor is the size of a new segment that has room for need bytes: a small one when a
// whole one would take from the reserve.
func (l *log) sizeFor(need int64) int64 {
	size := max(l.segBytes, roundSector(need))
	if l.room(size) {
		return size
	}
	return max(min(l.segBytes, scarceSegmentBytes), roundSector(need))
}

// room reports whether n bytes more leave the reserve alone.
func (l *log) room(n int64) bool {
	free := l.free()
	return free >= l.reserve && free-l.reserve >= uint64(n)
}

func (l *log) fillSpare(sp *spare) {
	path := sparePath(l.dir)
	f, err := l.fs.Create(path)
	if err != nil {
		sp.err = ioError("create", path, err)
		return
	}
	err = fill(f, path, sp.size, func() error {
		select {
		case <-sp.quit:
			return errQuit
		default:
		}
		if sp.size > scarceSegmentBytes && sp.quit != nil && !l.room(0) {
			return errScarce // somebody else has filled the disk meanwhile
		}
		return nil
	})
	if err == nil {
		sp.f = f
		return
	}
	sp.err = err
	f.Close()
	if !errors.Is(err, errQuit) {
		// Zeros that nobody will use must not take what is left of the disk.
		if err := l.fs.Remove(path); err != nil {
			l.warn("store: an unfinished log segment was not removed; the next one replaces it", ioError("remove", path, err))
		}
	}
}

// takeSpare returns an open zero-filled file of at least need bytes and its size.
func (l *log) takeSpare(need int64) (File, int64, error) {
	sp := l.spare
	l.spare = nil
	if sp != nil {
		<-sp.done
		if sp.err == nil && sp.size >= need {
			return sp.f, sp.size, nil
		}
		// Too small, or it failed: a disk that was full then may have room now.
		if sp.f != nil {
			sp.f.Close()
		}
	}
	if err := l.fs.Remove(sparePath(l.dir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, 0, ioError("remove", sparePath(l.dir), err)
	}
	sp = &spare{size: l.sizeFor(need)}
	l.fillSpare(sp)
	return sp.f, sp.size, sp.err
}

// roll makes the segment that follows p the open one, with room for n bytes of records and
// their part of the index. Every record of p is durable by then, and the new name is durable before the
// first record is written.
func (l *log) roll(n int64, p *segment) error {
	f, size, err := l.takeSpare(segmentHeader + n + indexTrailer)
	if err != nil {
		return err
	}
	s, err := l.install(f, size, p)
	if err != nil {
		f.Close()
		return err
	}
	sealed, old := l.cur, l.f
	l.f, l.cur = f, s
	l.mu.Lock()
	l.segs = append(l.segs, s)
	l.mu.Unlock()
	l.prepare(sealed, old)
	return nil
}

func (l *log) install(f File, size int64, p *segment) (*segment, error) {
	var salt [8]byte
	if _, err := io.ReadFull(l.rand, salt[:]); err != nil {
		return nil, fmt.Errorf("store: salt of a log segment: %w", err)
	}
	s := &segment{
		path: filepath.Join(l.dir, segmentName(p.next)), owner: l.owner,
		first: p.next, base: p.head, size: size,
		salt: binary.BigEndian.Uint64(salt[:]), chain: p.tail, schema: l.schema, idx: newIndex(),
	}
	s.end, s.next, s.head, s.tail = segmentHeader, s.first, s.base, s.chain
	if _, err := f.WriteAt(s.encodeHeader(), 0); err != nil {
		return nil, ioError("write", s.path, err)
	}
	if err := f.Sync(); err != nil {
		return nil, ioError("sync", s.path, err)
	}
	if err := l.fs.Rename(sparePath(l.dir), s.path); err != nil {
		return nil, ioError("rename", s.path, err)
	}
	return s, ioError("sync", l.dir, l.fs.SyncDir(l.dir))
}

// append makes one record durable: buf has recordHeader free bytes and the body, which is
// items. After an error the outcome is unknown and the log must not be used again.
func (l *log) append(buf []byte, h recordHead, items []item) (recordHead, error) {
	n := int64(len(buf)+7) &^ 7
	// The segment keeps room for the index of what it holds.
	if x := l.cur.idx; l.cur.end+n+x.growth(items)+int64(x.size())+indexTrailer > l.cur.size {
		if err := l.roll(n+newIndex().growth(items), l.cur); err != nil {
			return h, err
		}
	}
	h.prev = l.cur.tail
	buf = sealRecord(buf, &h, l.cur.salt)
	failpoint.Hit("record-built")
	if _, err := l.f.WriteAt(buf, l.cur.end); err != nil {
		return h, ioError("write", l.cur.path, err)
	}
	failpoint.Hit("record-written")
	watch := startWatch()
	if err := l.f.Sync(); err != nil {
		return h, ioError("sync", l.cur.path, err)
	}
	watch.took(l.flush)
	failpoint.Hit("record-synced")
	l.mu.Lock()
	l.cur.note(h, n, items)
	l.mu.Unlock()
	return h, nil
}

// keepFrom returns the first commit of the oldest segment that must stay: a segment goes
// when the checkpoint has applied all of it and eventBytes lie behind it. The open segment
// always stays and counts with what has been written to it; a sealed one counts as the file
// that it is. Whatever the records are, the segments that stay take less than eventBytes
// and two segments.
func (l *log) keepFrom(applied, eventBytes uint64) uint64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	keep := len(l.segs) - 1
	held := uint64(l.segs[keep].end)
	for keep > 0 && (held < eventBytes || l.segs[keep].first > applied+1) {
		keep--
		held += uint64(l.segs[keep].size)
	}
	return l.segs[keep].first
}

// dropsBefore is how many segments a drop would unlink. l.mu is held.
func (l *log) dropsBefore(first uint64) int {
	n := 0
	for n < len(l.segs)-1 && l.segs[n+1].first <= first && l.segs[n].holds == 0 {
		n++
	}
	return n
}

// drops reports whether a drop would unlink anything.
func (l *log) drops(first uint64) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.dropsBefore(first) > 0
}

// drop unlinks the segments before the one that begins with commit first, oldest first, up
// to the first that a replay holds. A later drop finds what it left.
func (l *log) drop(first uint64) error {
	l.mu.Lock()
	n := l.dropsBefore(first)
	gone := slices.Clone(l.segs[:n])
	l.segs = slices.Clone(l.segs[n:])
	l.mu.Unlock()
	for _, s := range gone {
		if err := l.fs.Remove(s.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return ioError("remove", s.path, err)
		}
		// One by one, or a crash could bring back one in the middle.
		if err := l.fs.SyncDir(l.dir); err != nil {
			return ioError("sync", l.dir, err)
		}
	}
	return nil
}

// close joins the preparation and closes the files.
func (l *log) close() error {
	var err error
	if l.spare != nil {
		close(l.spare.quit)
		<-l.spare.done
		if l.spare.f != nil {
			l.spare.f.Close()
		}
		l.spare = nil
	}
	if l.f != nil {
		err = ioError("close", l.cur.path, l.f.Close())
		l.f = nil
	}
	return err
}
