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
)

// log is the sequence of commits: a directory of segments. One goroutine appends; any
// goroutine reads committed records; the checkpoint unlinks whole segments.
type log struct {
	fs       FS
	dir      string
	owner    frames.CoordinatorID
	rand     io.Reader
	segBytes int64
	manual   bool // prepare segments in line, without a goroutine

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
	clean   bool   // the last record was written by an orderly Close
	torn    bool   // bytes of an unfinished record, to be zeroed
	problem string // why it was not read as a record
}

// scanLog reads and checks every segment without changing anything. Visit, which may be
// nil, gets every good record.
func scanLog(fsys FS, dir string, progress func(string), visit func(*segment, int64, recordHead, []byte) error) ([]*segment, logTail, error) {
	var tail logTail
	firsts, err := listSegments(fsys, dir)
	if err != nil {
		return nil, tail, err
	}
	segs := make([]*segment, 0, len(firsts))
	for i, first := range firsts {
		progress(fmt.Sprintf("reading log segment %d of %d", i+1, len(firsts)))
		path := filepath.Join(dir, segmentName(first.commit))
		s, t, err := scanSegment(fsys, path, first, i == len(firsts)-1, visit)
		if err != nil {
			return nil, tail, err
		}
		if i > 0 {
			if err := follows(segs[i-1], s); err != nil {
				return nil, tail, err
			}
		}
		// An empty last segment leaves the last record where it was.
		tail.clean = t.clean || tail.clean && s.next == s.first && !t.torn
		tail.torn, tail.problem = t.torn, t.problem
		segs = append(segs, s)
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

func scanSegment(fsys FS, path string, file segmentFile, last bool, visit func(*segment, int64, recordHead, []byte) error) (*segment, logTail, error) {
	var tail logTail
	f, err := fsys.Open(path)
	if err != nil {
		return nil, tail, ioError("open", path, err)
	}
	defer f.Close()
	s, err := readHeader(f, path, file.commit)
	if err != nil {
		return nil, tail, err
	}
	if s.size != file.size {
		return nil, tail, corrupt(path, min(s.size, file.size), "the file has %d bytes, its header says %d", file.size, s.size)
	}
	r := &blockReader{f: f, path: path, size: s.size}
	tail.problem, err = s.scan(r, func(h recordHead, body []byte) error {
		tail.clean = h.flags&flagClean != 0
		if visit != nil {
			return visit(s, s.end, h, body)
		}
		return nil
	})
	if err != nil {
		return nil, tail, err
	}
	if !last {
		if tail.problem != "" {
			return nil, tail, corrupt(path, s.end, "record %d: %s", s.next, tail.problem)
		}
		return s, tail, nil
	}
	later, err := s.laterRecord(r, s.end)
	if err != nil {
		return nil, tail, err
	}
	if later != 0 {
		return nil, tail, corrupt(path, s.end, "record %d is damaged, and a later record follows at offset %d", s.next, later)
	}
	dirty, err := s.firstDirty(r, s.end)
	if err != nil {
		return nil, tail, err
	}
	tail.torn = dirty >= 0
	if tail.torn {
		tail.clean = false
	}
	return s, tail, nil
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
	l.prepare(l.segBytes)
	return nil
}

// createLog makes the directory and an empty first segment.
func createLog(l *log) error {
	if err := l.fs.Mkdir(l.dir); err != nil {
		return ioError("mkdir", l.dir, err)
	}
	if err := l.roll(segmentHeader, &segment{next: 1}); err != nil {
		return err
	}
	return ioError("sync", filepath.Dir(l.dir), l.fs.SyncDir(filepath.Dir(l.dir)))
}

// prepare begins to fill the next segment. In manual mode it waits for roll.
func (l *log) prepare(size int64) {
	if l.manual {
		return
	}
	sp := &spare{size: size, quit: make(chan struct{}), done: make(chan struct{})}
	l.spare = sp
	go func() {
		defer close(sp.done)
		l.fillSpare(sp)
	}()
}

func (l *log) fillSpare(sp *spare) {
	path := sparePath(l.dir)
	f, err := l.fs.Create(path)
	if err != nil {
		sp.err = ioError("create", path, err)
		return
	}
	if err := fill(f, path, sp.size, sp.quit); err != nil {
		f.Close()
		sp.err = err
		return
	}
	sp.f = f
}

// takeSpare returns an open zero-filled file of at least need bytes and its size.
func (l *log) takeSpare(need int64) (File, int64, error) {
	size := max(l.segBytes, roundSector(need))
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
	sp = &spare{size: size}
	l.fillSpare(sp)
	return sp.f, size, sp.err
}

// roll makes the segment that follows p the open one, with room for a first record of n
// bytes. Every record of p is durable by then, and the new name is durable before the
// first record is written.
func (l *log) roll(n int64, p *segment) error {
	f, size, err := l.takeSpare(segmentHeader + n)
	if err != nil {
		return err
	}
	s, err := l.install(f, size, p)
	if err != nil {
		f.Close()
		return err
	}
	if l.f != nil {
		l.f.Close() // its records are flushed
	}
	l.f, l.cur = f, s
	l.mu.Lock()
	l.segs = append(l.segs, s)
	l.mu.Unlock()
	l.prepare(l.segBytes)
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
		salt: binary.BigEndian.Uint64(salt[:]), chain: p.tail,
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

// append makes one record durable: buf has recordHeader free bytes and the body. After an
// error the outcome is unknown and the log must not be used again.
func (l *log) append(buf []byte, h recordHead) (recordHead, error) {
	n := int64(len(buf)+7) &^ 7
	if l.cur.end+n > l.cur.size {
		if err := l.roll(n, l.cur); err != nil {
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
	if err := l.f.Sync(); err != nil {
		return h, ioError("sync", l.cur.path, err)
	}
	failpoint.Hit("record-synced")
	l.mu.Lock()
	l.cur.note(h, n)
	l.mu.Unlock()
	return h, nil
}

// keepFrom returns the first commit of the oldest segment that must stay: a segment goes
// when the checkpoint has applied all of it and the segments behind it hold eventBytes of
// records. The open segment always stays.
func (l *log) keepFrom(applied, eventBytes uint64) uint64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	keep := len(l.segs) - 1
	for held := uint64(0); keep > 0; keep-- {
		held += uint64(l.segs[keep].end - segmentHeader)
		if held >= eventBytes && l.segs[keep].first <= applied+1 {
			break
		}
	}
	return l.segs[keep].first
}

// drop unlinks the segments before the one that begins with commit first, oldest first.
func (l *log) drop(first uint64) error {
	l.mu.Lock()
	n := 0
	for n < len(l.segs)-1 && l.segs[n+1].first <= first {
		n++
	}
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
