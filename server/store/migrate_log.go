package store

import (
	"fmt"
	"path/filepath"
)

// log writes every record of the old log anew, and makes a say what the checkpoint is
// followed by there. Commits, times, events and the beginning of the log stay as they are.
func (m *migration) log(a *applied) error {
	o := m.o
	o.FS, o.FreeBytes = lazyFS{}, (Options{}).withDefaults().FreeBytes
	to := newLog(m.to(), o)
	to.manual = true
	err := m.copyLog(to, a)
	if cerr := to.close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	for _, s := range to.segs {
		if err := syncFile(s.path); err != nil {
			return err
		}
	}
	return nil
}

func (m *migration) copyLog(to *log, a *applied) error {
	files, err := listSegments(m.o.FS, logPath(m.dir))
	if err != nil {
		return err
	}
	var before *segment
	found := a.state.Commit == 0
	done, total := int64(0), int64(0)
	for _, file := range files {
		total += file.size
	}
	for i, file := range files {
		m.o.Progress(fmt.Sprintf("migrating log segment %d of %d", i+1, len(files)))
		m.o.Advance(Advance{Step: stepNewLog, Done: done, Total: total})
		done += file.size
		s, err := openHeader(m.o.FS, filepath.Join(logPath(m.dir), segmentName(file.commit)), file, m.have)
		if err != nil {
			return err
		}
		if before == nil {
			err = to.begin(s)
			if s.first == a.state.Commit+1 {
				found = s.chain == a.chain // and the new log begins with the same
			}
		} else {
			err = follows(before, s)
		}
		if err != nil {
			return err
		}
		err = m.eachOld(s, i+1 == len(files), func(h recordHead, body []byte) error {
			next, err := m.copyRecord(to, h, body)
			if h.commit == a.state.Commit && h.headCRC == a.chain {
				found, a.chain = true, next.headCRC
			}
			return err
		})
		if err != nil {
			return err
		}
		before = s
	}
	if !found {
		return corrupt(statePath(m.dir), -1, "commit %d in the log is not the one that was applied here: the files are of different copies", a.state.Commit)
	}
	return nil
}

// begin makes the first segment of a log that begins where p does.
func (l *log) begin(p *segment) error {
	l.owner = p.owner
	if err := l.fs.Mkdir(l.dir); err != nil {
		return ioError("mkdir", l.dir, err)
	}
	return l.roll(0, &segment{next: p.first, head: p.base, tail: p.chain})
}

func (m *migration) copyRecord(to *log, h recordHead, body []byte) (recordHead, error) {
	if len(body) > 0 {
		for i, u := range m.steps {
			var err error
			if body, err = u.Record(body); err != nil {
				return h, fmt.Errorf("record %d in schema %d: %w", h.commit, m.have+uint32(i)+1, err)
			}
		}
	}
	items, err := decodeBody(h, body)
	if err != nil {
		return h, fmt.Errorf("record %d in schema %d: %w", h.commit, newest(m.o.upgrades), err)
	}
	buf := append(make([]byte, recordHeader, recordHeader+len(body)+8), body...)
	return to.append(buf, h, items)
}

// eachOld gives visit every record of a segment whose schema the rest of the package does not
// know: the frame of records is that of every schema.
func (m *migration) eachOld(s *segment, last bool, visit func(recordHead, []byte) error) error {
	f, err := m.o.FS.Open(s.path)
	if err != nil {
		return ioError("open", s.path, err)
	}
	defer f.Close()
	r := &blockReader{f: f, path: s.path, size: s.size}
	for {
		h, body, problem, err := r.record(s, s.end, s.next, s.tail)
		if err != nil {
			return err
		}
		if problem != "" || h.commit == 0 {
			break
		}
		if h.base != s.head {
			return corrupt(s.path, s.end, "record %d begins at event %d, not %d", h.commit, h.base, s.head)
		}
		if err := visit(h, body); err != nil {
			return err
		}
		s.end += recordHeader + int64(h.length)
		s.next, s.head, s.tail = h.commit+1, h.base+uint64(h.count), h.headCRC
	}
	if !last {
		return nil // the next segment tells whether it ends here
	}
	later, err := s.laterRecord(r, s.end)
	if err == nil && later != 0 {
		err = corrupt(s.path, s.end, "record %d is damaged, and a later record follows at offset %d", s.next, later)
	}
	return err
}

// lazyFS leaves files that nobody relies on yet to one flush at the end.
type lazyFS struct{ osFS }

func (l lazyFS) Open(path string) (File, error)   { return lazy(l.osFS.Open(path)) }
func (l lazyFS) Create(path string) (File, error) { return lazy(l.osFS.Create(path)) }
func (lazyFS) SyncDir(string) error               { return nil }

func lazy(f File, err error) (File, error) { return lazyFile{f}, err }

type lazyFile struct{ File }

func (lazyFile) Sync() error { return nil }

func syncFile(path string) error {
	f, err := osFS{}.Open(path)
	if err != nil {
		return ioError("open", path, err)
	}
	err = ioError("sync", path, f.Sync())
	if cerr := f.Close(); err == nil {
		err = ioError("close", path, cerr)
	}
	return err
}
