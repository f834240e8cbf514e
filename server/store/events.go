package store

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sort"

	"coordinator/frames"
)

// snapshot copies what reading committed records needs. Segments are copied by value:
// appending moves the end of the open one.
func (l *log) snapshot() []*segment {
	l.mu.RLock()
	defer l.mu.RUnlock()
	segs := make([]*segment, len(l.segs))
	for i, s := range l.segs {
		segs[i] = s.view()
	}
	return segs
}

// view is s as it is now. log.mu is held.
func (s *segment) view() *segment {
	c := *s
	if s.idx != nil {
		c.idx = s.idx.view()
	}
	return &c
}

// oldest is the first commit of the oldest segment.
func (l *log) oldest() uint64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.segs[0].first
}

// each gives visit the committed records of segs from the one that from names, by commit
// if that is set, else the first that ends behind event head. It stops when visit returns
// false. Bodies are valid during the call.
func (l *log) each(segs []*segment, from mark, visit func(*segment, int64, recordHead, []byte) (bool, error)) error {
	skip := func(next, head uint64) bool {
		if from.commit != 0 {
			return next <= from.commit
		}
		return head <= from.head
	}
	for i, s := range segs {
		if skip(s.next, s.head) || s.end == segmentHeader {
			continue
		}
		m := mark{head: s.base, commit: s.first, chain: s.chain, off: segmentHeader}
		if i == 0 || skip(segs[i-1].next, segs[i-1].head) {
			m = s.seek(from)
		}
		more, err := l.eachIn(s, m, from, visit)
		if err != nil || !more {
			return err
		}
	}
	return nil
}

// seek is the last indexed place at or before from.
func (s *segment) seek(from mark) mark {
	n := sort.Search(len(s.marks), func(i int) bool {
		if from.commit != 0 {
			return s.marks[i].commit > from.commit
		}
		return s.marks[i].head > from.head
	})
	if n == 0 {
		return mark{head: s.base, commit: s.first, chain: s.chain, off: segmentHeader}
	}
	return s.marks[n-1]
}

func (l *log) eachIn(s *segment, m, from mark, visit func(*segment, int64, recordHead, []byte) (bool, error)) (more bool, err error) {
	f, err := l.fs.Open(s.path)
	if err != nil {
		return false, ioError("open", s.path, err)
	}
	defer f.Close()
	r := &blockReader{f: f, path: s.path, size: s.end}
	off, head, chain := m.off, m.head, m.chain
	for commit := m.commit; off < s.end; commit++ {
		h, body, problem, err := r.record(s, off, commit, chain)
		if err != nil {
			return false, err
		}
		if problem != "" || h.commit == 0 {
			return false, corrupt(s.path, off, "record %d: %s", commit, problem)
		}
		if h.base != head {
			return false, corrupt(s.path, off, "record %d begins at event %d, not %d", commit, h.base, head)
		}
		wanted := h.base+uint64(h.count) > from.head
		if from.commit != 0 {
			wanted = h.commit >= from.commit
		}
		if wanted {
			if more, err := visit(s, off, h, body); err != nil || !more {
				return false, err
			}
		}
		off += recordHeader + int64(len(body))
		head, chain = h.base+uint64(h.count), h.headCRC
	}
	return true, nil
}

// chainAt is the header checksum of the record of a commit, which is in the log or just
// before it.
func (l *log) chainAt(commit uint64) (uint32, error) {
	for _, s := range l.segs {
		if s.first == commit+1 {
			return s.chain, nil
		}
		if s.next == commit+1 {
			return s.tail, nil
		}
	}
	var chain uint32
	err := l.each(l.segs, mark{commit: commit}, func(_ *segment, _ int64, h recordHead, _ []byte) (bool, error) {
		chain = h.headCRC
		return false, nil
	})
	return chain, err
}

// FirstRetained is the oldest event sequence that Events can still return; one above the
// head when the log holds none.
func (s *Store) FirstRetained() frames.EventSequence {
	s.log.mu.RLock()
	defer s.log.mu.RUnlock()
	return frames.EventSequence(s.log.segs[0].base + 1)
}

// Events returns committed events behind after, ascending: at least one if there is any,
// at most max, and no more once their payloads exceed maxBytes. Hidden sequences are left
// out. A *RetentionError says that some are no longer in the log. Payloads are the
// caller's. Any goroutine.
func (s *Store) Events(after frames.EventCut, max, maxBytes int) ([]Event, error) {
	segs := s.log.snapshot()
	if uint64(after) < segs[0].base {
		return nil, &RetentionError{First: segs[0].base + 1}
	}
	var events []Event
	bytes := 0
	err := s.log.each(segs, mark{head: uint64(after)}, func(seg *segment, off int64, h recordHead, body []byte) (bool, error) {
		items, err := decodeRecord(seg, off, h, body)
		if err != nil {
			return false, err
		}
		for i := range items {
			if items[i].seq <= frames.EventSequence(after) {
				continue
			}
			ev, ok, err := items[i].event()
			if err != nil {
				return false, &CorruptError{File: seg.path, Offset: off, Problem: fmt.Sprintf("record %d", h.commit), Err: err}
			}
			if !ok {
				continue
			}
			if items[i].op == itemFact {
				ev.Payload = slices.Clone(ev.Payload) // the body is about to be reused
			}
			events = append(events, ev)
			if bytes += len(ev.Payload); len(events) >= max || bytes > maxBytes {
				return false, nil
			}
		}
		return true, nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		// Unlinked since the snapshot: what was asked for is gone.
		return nil, &RetentionError{First: uint64(s.FirstRetained())}
	}
	return events, err
}
