package store

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"coordinator/frames"
)

// A Replay is a span of committed events that stays readable until Close: retention
// unlinks none of its segments. It counts over indexes and reads images page by page; no
// lock, file or transaction outlives a call. Any goroutine may use it, and several may at
// once.
//
// A read that meets damage answers with a *CorruptError and leaves the store running: what
// commits and cuts need is not in those records any more. After the store is closed every
// call answers ErrClosed.
type Replay struct {
	s       *Store
	after   uint64
	through uint64
	segs    []*segment // views of those with events of the span
	held    *segment   // the first of them in the log, or nil
	closed  atomic.Bool
}

// An IndexedEvent is what is known of an event without its image.
type IndexedEvent struct {
	Sequence frames.EventSequence
	// Class is that of the event, and Principal the originating principal when that is
	// OPERATION: what visibility depends on.
	Class     frames.ObjectKind
	Principal frames.KeyID
	// Size is the bytes of the ReplayEvent image; Payload is those of the event's payload.
	Size, Payload int
}

// Totals sum up the visible events of a span. All are zero when there is none.
type Totals struct {
	Events  uint64
	Bytes   uint64 // of ReplayEvent images
	First   frames.EventSequence
	Last    frames.EventSequence
	Largest int // payload bytes of the event that has most
}

const (
	// cachedIndexes bounds the indexes of sealed segments in memory, a few megabytes each.
	cachedIndexes = 4
	// imageRead is how much to read at a time around an image: neighbours are often wanted
	// too, and a whole block of a scan is not.
	imageRead = 64 << 10
)

// Replay holds the events in (after, through] for reading. The caller closes it.
//
// A *RetentionError says that some of them are no longer in the log, and ErrBeyondHead that
// through is not committed, or that after is behind through. The log may be ahead of what
// has been published: the caller passes a head that may be seen.
func (s *Store) Replay(after, through frames.EventCut) (*Replay, error) {
	if s.isClosed() {
		return nil, ErrClosed
	}
	r := &Replay{s: s, after: uint64(after), through: uint64(through)}
	if err := s.log.hold(r); err != nil {
		return nil, err
	}
	return r, nil
}

func (s *Store) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// hold gives r its segments and keeps them.
func (l *log) hold(r *Replay) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if first := l.segs[0].base; r.after < first {
		return &RetentionError{First: first + 1}
	}
	if head := l.segs[len(l.segs)-1].head; r.after > r.through || r.through > head {
		return fmt.Errorf("store: events from %d to %d, head %d: %w", r.after, r.through, head, ErrBeyondHead)
	}
	for _, s := range l.segs {
		if s.head <= r.after || s.base >= r.through {
			continue
		}
		if r.held == nil {
			r.held = s // those behind it stay with it
			s.holds++
		}
		r.segs = append(r.segs, s.view())
	}
	return nil
}

// Close lets retention have the segments, at its next checkpoint. It may be called twice,
// and while another call runs, which then may fail.
func (r *Replay) Close() {
	if r.closed.Swap(true) || r.held == nil {
		return
	}
	r.s.log.mu.Lock()
	r.held.holds--
	r.s.log.mu.Unlock()
}

// Walk gives visit the visible events behind after, ascending, until it returns false. It
// reads indexes only. Visible must not change its mind during the call.
func (r *Replay) Walk(after frames.EventCut, visible Visible, visit func(IndexedEvent) bool) error {
	return r.walk(after, visible, func(s *segment, x *index, ev eventEntry) bool {
		return visit(IndexedEvent{
			Sequence: frames.EventSequence(s.base + ev.seq), Class: ev.class, Principal: x.principal(ev.principal),
			Size: ev.size, Payload: ev.size - eventOverhead,
		})
	})
}

// Count sums up the visible events of the whole span. It reads indexes only.
func (r *Replay) Count(visible Visible) (Totals, error) {
	var t Totals
	err := r.walk(0, visible, func(s *segment, _ *index, ev eventEntry) bool {
		t.Last = frames.EventSequence(s.base + ev.seq)
		if t.Events == 0 {
			t.First = t.Last
		}
		t.Events++
		t.Bytes += uint64(ev.size)
		t.Largest = max(t.Largest, ev.size-eventOverhead)
		return true
	})
	if err != nil {
		return Totals{}, err
	}
	return t, nil
}

// Page returns visible events behind after, ascending: at least one unless none is left, at
// most maxEvents, and no more than fit into maxBytes of ReplayEvent images. An event alone
// may be larger than maxBytes. Done is true exactly when no visible event follows.
//
// Payloads are the caller's; each is one buffer that may be shared and must not be changed
// then.
func (r *Replay) Page(after frames.EventCut, visible Visible, maxEvents, maxBytes int) (events []Event, done bool, err error) {
	var picks []pick
	if done, err = r.pick(&picks, after, visible, maxEvents, maxBytes); err != nil {
		return nil, false, err
	}
	events = make([]Event, 0, len(picks))
	for _, part := range bySegment(picks) {
		if events, err = r.s.log.imagesIn(events, part); err != nil {
			return nil, false, err
		}
	}
	return events, done, nil
}

// pick appends the entries of the events of one page.
func (r *Replay) pick(picks *[]pick, after frames.EventCut, visible Visible, maxEvents, maxBytes int) (done bool, err error) {
	bytes, first := 0, len(*picks)
	done = true
	err = r.walk(after, visible, func(s *segment, x *index, ev eventEntry) bool {
		if n := len(*picks) - first; n > 0 && (n >= maxEvents || bytes+ev.size > maxBytes) {
			done = false
			return false
		}
		*picks = append(*picks, pick{s, x, ev})
		bytes += ev.size
		return true
	})
	return done && err == nil, err
}

// Images is Page for who passes events on: it appends their ReplayEvent images to b, one
// behind the other, and gives how many they are and the last one's sequence.
func (r *Replay) Images(b []byte, after frames.EventCut, visible Visible, maxEvents, maxBytes int) (_ []byte, n int, last frames.EventSequence, done bool, err error) {
	room := pickRooms.Get().(*pickRoom)
	defer room.give()
	if done, err = r.pick(&room.picks, after, visible, maxEvents, maxBytes); err != nil {
		return b, 0, 0, false, err
	}
	for _, picks := range bySegment(room.picks) {
		if b, err = r.s.log.appendIn(b, room, picks); err != nil {
			return b, 0, 0, false, err
		}
	}
	if n = len(room.picks); n > 0 {
		p := &room.picks[n-1]
		last = frames.EventSequence(p.s.base + p.ev.seq)
	}
	return b, n, last, done, nil
}

// A pickRoom is what one call of Images works in.
type pickRoom struct {
	picks []pick
	buf   []byte // of the log
	row   row    // scratch
}

var pickRooms = sync.Pool{New: func() any { return new(pickRoom) }}

// maxPickBuffer bounds the read buffer that is kept; a record may be much larger.
const maxPickBuffer = 1 << 20

// give returns the room. It keeps nothing alive.
func (r *pickRoom) give() {
	clear(r.picks)
	r.picks, r.row = r.picks[:0], row{}
	if cap(r.buf) > maxPickBuffer {
		r.buf = nil
	}
	pickRooms.Put(r)
}

// walk goes through the index entries of visible events behind after.
func (r *Replay) walk(after frames.EventCut, visible Visible, visit func(*segment, *index, eventEntry) bool) error {
	from := max(uint64(after), r.after)
	judge := &judge{visible: visible}
	for _, s := range r.segs {
		if r.closed.Load() || r.s.isClosed() {
			return ErrClosed
		}
		if s.head <= from {
			continue
		}
		x, err := r.s.log.indexOf(s)
		if err != nil {
			return err
		}
		judge.begin(x)
		start := 0
		if from > s.base {
			start = x.after(from - s.base)
		}
		for i := start; i < x.eventCount(); i++ {
			ev := x.event(i)
			if s.base+ev.seq > r.through {
				return nil
			}
			if judge.sees(ev) && !visit(s, x, ev) {
				return nil
			}
		}
	}
	return nil
}

// A judge asks a predicate once for each kind, and once for each principal of a segment.
type judge struct {
	visible    Visible
	x          *index
	kinds      [64]int8 // 0 not asked, 1 visible, -1 not
	principals []int8   // by number
}

func (j *judge) begin(x *index) {
	j.x = x
	j.principals = slices.Grow(j.principals[:0], len(x.principals)/indexPrincipal+1)
	j.principals = j.principals[:len(x.principals)/indexPrincipal+1]
	clear(j.principals)
}

func (j *judge) sees(ev eventEntry) bool {
	var known *int8
	switch {
	case ev.class == frames.KindOperation:
		known = &j.principals[ev.principal]
	case int(ev.class) < len(j.kinds):
		known = &j.kinds[ev.class]
	default:
		return j.visible(ev.class, frames.KeyID{})
	}
	if *known == 0 {
		*known = -1
		if j.visible(ev.class, j.x.principal(ev.principal)) {
			*known = 1
		}
	}
	return *known > 0
}

// indexCache has the indexes of sealed segments that were used last.
type indexCache struct {
	mu     sync.Mutex
	recent []cachedIndex // guarded by mu; the last used is first
}

type cachedIndex struct {
	first uint64 // commit; names the segment
	x     *index
}

func (c *indexCache) get(first uint64) *index {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, e := range c.recent {
		if e.first == first {
			copy(c.recent[1:i+1], c.recent[:i])
			c.recent[0] = e
			return e.x
		}
	}
	return nil
}

func (c *indexCache) put(first uint64, x *index) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.recent = slices.DeleteFunc(c.recent, func(e cachedIndex) bool { return e.first == first })
	c.recent = slices.Insert(c.recent, 0, cachedIndex{first, x})
	c.recent = c.recent[:min(len(c.recent), cachedIndexes)]
}

// indexOf is the index of the segment with view s.
func (l *log) indexOf(s *segment) (*index, error) {
	if s.idx != nil {
		return s.idx, nil
	}
	if x := l.cache.get(s.first); x != nil {
		return x, nil
	}
	f, err := l.fs.Open(s.path)
	if err != nil {
		return nil, ioError("open", s.path, err)
	}
	defer f.Close()
	x, e, ok := s.readIndex(f)
	if !ok || s.first+uint64(x.recordCount()) != s.next || e != (indexEnd{s.end, s.head, s.tail, s.clean}) {
		// Damaged since the start. The records are judged by themselves.
		if x, err = s.rescan(f); err != nil {
			return nil, err
		}
	}
	l.cache.put(s.first, x)
	return x, nil
}

// rescan makes the index of the segment with view s from its records.
func (s *segment) rescan(f File) (*index, error) {
	c := *s
	c.end, c.next, c.head, c.tail, c.clean, c.marks = segmentHeader, s.first, s.base, s.chain, false, nil
	problem, err := c.scan(&blockReader{f: f, path: s.path, size: s.end})
	if err != nil {
		return nil, err
	}
	if c.next != s.next || c.head != s.head || c.tail != s.tail {
		return nil, corrupt(s.path, c.end, "record %d: %s", c.next, problem)
	}
	return c.idx.view(), nil
}

// A pick is an event whose image is wanted.
type pick struct {
	s  *segment
	x  *index
	ev eventEntry
}

// bySegment splits picks, which ascend, by their segments.
func bySegment(picks []pick) (parts [][]pick) {
	for len(picks) > 0 {
		n := 1
		for n < len(picks) && picks[n].s == picks[0].s {
			n++
		}
		parts, picks = append(parts, picks[:n]), picks[n:]
	}
	return parts
}

// imagesIn appends the events of picks, which are all in one segment.
func (l *log) imagesIn(events []Event, picks []pick) ([]Event, error) {
	err := l.eachPick(picks, new([]byte), func(p *pick, h recordHead, off int64, body []byte) error {
		ev, err := p.decode(h, off, body)
		events = append(events, ev)
		return err
	})
	return events, err
}

// appendIn appends the images of the events of picks, which are all in one segment.
func (l *log) appendIn(b []byte, room *pickRoom, picks []pick) ([]byte, error) {
	err := l.eachPick(picks, &room.buf, func(p *pick, h recordHead, off int64, body []byte) error {
		it, err := p.item(&room.row, h, off, body)
		if err == nil {
			b = it.appendImage(b)
		}
		return err
	})
	return b, err
}

// eachPick gives visit each pick and the record that it is in. A record is read once and
// checked as a whole; of its items only those picked are decoded. They are all in one
// segment; buf is what is read into.
func (l *log) eachPick(picks []pick, buf *[]byte, visit func(p *pick, h recordHead, off int64, body []byte) error) error {
	s, x := picks[0].s, picks[0].x
	f, err := l.fs.Open(s.path)
	if err != nil {
		return ioError("open", s.path, err)
	}
	defer f.Close()
	r := &blockReader{f: f, path: s.path, size: s.end, least: imageRead, buf: (*buf)[:0]}
	defer func() { *buf = r.buf }()
	var h recordHead
	var body []byte
	at, number := recordEntry{}, -1
	for i := range picks {
		p := &picks[i]
		if end := at.off + recordHeader + int64(len(body)); number < 0 || p.ev.off >= end {
			k := x.recordAt(p.ev.off)
			number, at = k, x.record(k)
			if h, body, err = s.recordIn(r, x, k); err != nil {
				return err
			}
		}
		if err := visit(p, h, at.off, body); err != nil {
			return err
		}
	}
	return nil
}

// recordIn reads record k of the index.
func (s *segment) recordIn(r *blockReader, x *index, k int) (recordHead, []byte, error) {
	chain := s.chain
	if k > 0 {
		chain = x.record(k - 1).crc
	}
	at, commit := x.record(k), s.first+uint64(k)
	h, body, problem, err := r.record(s, at.off, commit, chain)
	switch {
	case err != nil:
		return h, nil, err
	case problem != "" || h.commit == 0:
		return h, nil, corrupt(s.path, at.off, "record %d: %s", commit, problem)
	case h.headCRC != at.crc || h.base != s.base+at.head:
		return h, nil, corrupt(s.path, at.off, "record %d is not the one that was indexed", commit)
	}
	return h, body, nil
}

// decode reads the event from the record at off.
func (p *pick) decode(h recordHead, off int64, body []byte) (Event, error) {
	it, err := p.item(new(row), h, off, body)
	if err != nil {
		return Event{}, err
	}
	ev, _, err := it.event()
	if err != nil {
		return Event{}, &CorruptError{File: p.s.path, Offset: p.ev.off, Problem: fmt.Sprintf("event %d", it.seq), Err: err}
	}
	if it.op == itemFact {
		ev.Payload = slices.Clone(ev.Payload) // the record's buffer is used again
	}
	return ev, nil
}

// item reads the event's item from the record at off, whose body it aliases, and its row
// into r.
func (p *pick) item(r *row, h recordHead, off int64, body []byte) (item, error) {
	c := &cursor{b: body, bad: p.ev.off < off+recordHeader, room: r}
	c.take(int(max(0, p.ev.off-off-recordHeader)))
	it := c.item(h.commit)
	it.seq = frames.EventSequence(p.s.base + p.ev.seq)
	if c.bad || !it.isEvent() || it.imageSize() != p.ev.size || it.class() != p.ev.class || it.author() != p.x.principal(p.ev.principal) {
		return item{}, corrupt(p.s.path, p.ev.off, "event %d is not where the index says", it.seq)
	}
	return it, nil
}
