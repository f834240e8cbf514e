package store

import (
	"bytes"
	"encoding/binary"
	"slices"
	"sort"

	"coordinator/frames"
)

// The index of a segment says where its records and events are and what decides who sees
// an event, so that a replay is counted without reading images and a start reads no sealed
// records. In memory and in the file it is the same bytes. It follows from the records
// alone: where it is missing or damaged, a scan makes it anew.
//
// A sealed segment ends in it:
//
//	records     12 bytes each, in order: off:u32 in units of 8 bytes || head:u32, events of
//	            the segment before it || crc:u32, its header checksum
//	events      16 bytes each, ascending: off:u32 of the item || seq:u32, less the base of
//	            the segment || size:u24 of the ReplayEvent image || class:u16 || principal:u24
//	principals  32 bytes each, KeyIDs; number 1 is the first, and 0 is none
//	trailer     64 bytes, the end of the file
//
//	off  size  trailer
//	  0     8  magic
//	  8     4  version     u32
//	 12     4  flags       u32, 1: the last record has flagClean
//	 16     8  first       u64, commit number of the first record
//	 24     8  end         u64, offset behind the last record
//	 32     8  head        u64, event head after the last record
//	 40     4  records     u32
//	 44     4  events      u32
//	 48     4  principals  u32
//	 52     4  tail        u32, header checksum of the last record
//	 56     4  zero
//	 60     4  crc         CRC32C of the segment's salt and all bytes of the index above
const (
	indexMagic   = "coordidx"
	indexVersion = 1
	indexTrailer = 64

	indexRecord    = 12
	indexEvent     = 16
	indexPrincipal = 32
	indexClean     = 1

	// maxIndexNumber is the largest principal number and image size that fit into 24 bits. A
	// segment of maxSegmentSize has room for fewer OPERATION events, and no payload is near.
	maxIndexNumber = 1<<24 - 1
)

// eventOverhead is a ReplayEvent image with an empty payload.
var eventOverhead = (&frames.ReplayEvent{}).Size()

// An index grows with its segment and is never changed otherwise, so that a copy of its
// slices is a view of what was committed at the time.
type index struct {
	records    []byte
	events     []byte
	principals []byte
	numbers    map[frames.KeyID]uint32 // of principals; only for whoever adds
}

func newIndex() *index { return &index{numbers: make(map[frames.KeyID]uint32)} }

// view is the index as it is now.
func (x *index) view() *index {
	return &index{records: x.records, events: x.events, principals: x.principals}
}

func (x *index) size() int { return len(x.records) + len(x.events) + len(x.principals) }

// growth is how many bytes one more record with these items adds.
func (x *index) growth(items []item) int64 {
	n := int64(indexRecord)
	var fresh map[frames.KeyID]struct{}
	for i := range items {
		if !items[i].isEvent() {
			continue
		}
		n += indexEvent
		p := items[i].author()
		if p == (frames.KeyID{}) || x.numbers[p] != 0 {
			continue
		}
		if _, ok := fresh[p]; !ok {
			if fresh == nil {
				fresh = make(map[frames.KeyID]struct{})
			}
			fresh[p] = struct{}{}
			n += indexPrincipal
		}
	}
	return n
}

// add takes in the record at off of segment s.
func (x *index) add(s *segment, off int64, h recordHead, items []item) {
	x.records = binary.BigEndian.AppendUint32(x.records, uint32(off/8))
	x.records = binary.BigEndian.AppendUint32(x.records, uint32(h.base-s.base))
	x.records = binary.BigEndian.AppendUint32(x.records, h.headCRC)
	for i := range items {
		it := &items[i]
		if !it.isEvent() {
			continue
		}
		x.events = binary.BigEndian.AppendUint32(x.events, uint32(off+recordHeader)+uint32(it.off))
		x.events = binary.BigEndian.AppendUint32(x.events, uint32(uint64(it.seq)-s.base))
		word := uint64(it.imageSize())<<40 | uint64(it.class())<<24 | uint64(x.number(it.author()))
		x.events = binary.BigEndian.AppendUint64(x.events, word)
	}
}

func (x *index) number(p frames.KeyID) uint32 {
	if p == (frames.KeyID{}) {
		return 0
	}
	n, ok := x.numbers[p]
	if !ok {
		x.principals = append(x.principals, p[:]...)
		n = uint32(len(x.principals) / indexPrincipal)
		x.numbers[p] = n
	}
	return n
}

// A recordEntry is where a record of a segment begins.
type recordEntry struct {
	off  int64
	head uint64 // events of the segment before it
	crc  uint32 // its header checksum
}

func (x *index) recordCount() int { return len(x.records) / indexRecord }

func (x *index) record(i int) recordEntry {
	b := x.records[i*indexRecord:][:indexRecord]
	return recordEntry{
		off:  int64(binary.BigEndian.Uint32(b)) * 8,
		head: uint64(binary.BigEndian.Uint32(b[4:])),
		crc:  binary.BigEndian.Uint32(b[8:]),
	}
}

// recordAt is the number of the record that has the byte at off.
func (x *index) recordAt(off int64) int {
	return sort.Search(x.recordCount(), func(i int) bool { return x.record(i).off > off }) - 1
}

// An eventEntry is what the index knows of an event.
type eventEntry struct {
	off       int64  // of its item in the segment
	seq       uint64 // less the base of the segment
	size      int    // of its ReplayEvent image
	class     frames.ObjectKind
	principal uint32 // number; 0 is none
}

func (x *index) eventCount() int { return len(x.events) / indexEvent }

func (x *index) event(i int) eventEntry {
	b := x.events[i*indexEvent:][:indexEvent]
	word := binary.BigEndian.Uint64(b[8:])
	return eventEntry{
		off:       int64(binary.BigEndian.Uint32(b)),
		seq:       uint64(binary.BigEndian.Uint32(b[4:])),
		size:      int(word >> 40),
		class:     frames.ObjectKind(word >> 24),
		principal: uint32(word & maxIndexNumber),
	}
}

// after is the number of the first event behind seq.
func (x *index) after(seq uint64) int {
	return sort.Search(x.eventCount(), func(i int) bool { return x.event(i).seq > seq })
}

func (x *index) principal(number uint32) (p frames.KeyID) {
	if number > 0 {
		copy(p[:], x.principals[(number-1)*indexPrincipal:])
	}
	return p
}

// encodeIndex is the index of s as it ends the file.
func (s *segment) encodeIndex() []byte {
	x := s.idx
	b := make([]byte, 0, x.size()+indexTrailer)
	b = append(append(append(b, x.records...), x.events...), x.principals...)
	b = append(b, indexMagic...)
	b = binary.BigEndian.AppendUint32(b, indexVersion)
	flags := uint32(0)
	if s.clean {
		flags = indexClean
	}
	b = binary.BigEndian.AppendUint32(b, flags)
	b = binary.BigEndian.AppendUint64(b, s.first)
	b = binary.BigEndian.AppendUint64(b, uint64(s.end))
	b = binary.BigEndian.AppendUint64(b, s.head)
	b = binary.BigEndian.AppendUint32(b, uint32(x.recordCount()))
	b = binary.BigEndian.AppendUint32(b, uint32(x.eventCount()))
	b = binary.BigEndian.AppendUint32(b, uint32(len(x.principals)/indexPrincipal))
	b = binary.BigEndian.AppendUint32(b, s.tail)
	b = binary.BigEndian.AppendUint32(b, 0)
	return binary.BigEndian.AppendUint32(b, salted(s.salt, b))
}

// An indexEnd is what the trailer of an index says of its segment.
type indexEnd struct {
	end   int64
	head  uint64
	tail  uint32
	clean bool
}

// readIndex reads the index that ends the file of s. Ok is false when there is none that
// is whole: then only a scan can tell.
func (s *segment) readIndex(f File) (x *index, e indexEnd, ok bool) {
	var t [indexTrailer]byte
	if n, _ := f.ReadAt(t[:], s.size-indexTrailer); n < len(t) {
		return nil, e, false
	}
	records := int64(binary.BigEndian.Uint32(t[40:]))
	events := int64(binary.BigEndian.Uint32(t[44:]))
	principals := int64(binary.BigEndian.Uint32(t[48:]))
	size := records*indexRecord + events*indexEvent + principals*indexPrincipal
	e = indexEnd{
		end:   int64(binary.BigEndian.Uint64(t[24:])),
		head:  binary.BigEndian.Uint64(t[32:]),
		tail:  binary.BigEndian.Uint32(t[52:]),
		clean: binary.BigEndian.Uint32(t[12:])&indexClean != 0,
	}
	switch {
	case string(t[:8]) != indexMagic, binary.BigEndian.Uint32(t[8:]) != indexVersion,
		binary.BigEndian.Uint64(t[16:]) != s.first,
		e.end < segmentHeader, e.end > s.size-indexTrailer, size > s.size-indexTrailer-e.end:
		return nil, e, false
	}
	b := make([]byte, size+indexTrailer)
	if n, _ := f.ReadAt(b, s.size-int64(len(b))); n < len(b) {
		return nil, e, false
	}
	if salted(s.salt, b[:len(b)-4]) != binary.BigEndian.Uint32(b[len(b)-4:]) {
		return nil, e, false
	}
	x = &index{records: b[: records*indexRecord : records*indexRecord]}
	b = b[len(x.records):]
	x.events = b[: events*indexEvent : events*indexEvent]
	b = b[len(x.events):]
	x.principals = b[: principals*indexPrincipal : principals*indexPrincipal]
	return x, e, x.plausible(s, e)
}

// plausible checks that nobody who uses the index can leave its bounds.
func (x *index) plausible(s *segment, e indexEnd) bool {
	if x.eventCount() > 0 && x.recordCount() == 0 {
		return false
	}
	off := int64(segmentHeader)
	for i := range x.recordCount() {
		r := x.record(i)
		if r.off < off || r.off+recordHeader > e.end || s.base+r.head > e.head {
			return false
		}
		off = r.off + recordHeader
	}
	n := uint32(len(x.principals) / indexPrincipal)
	seq := uint64(0)
	if x.recordCount() > 0 {
		off = x.record(0).off
	}
	for i := range x.eventCount() {
		ev := x.event(i)
		if ev.seq <= seq || s.base+ev.seq > e.head || ev.off < off || ev.off >= e.end || ev.principal > n || ev.size < eventOverhead {
			return false
		}
		seq, off = ev.seq, ev.off+1
	}
	return true
}

func (x *index) equal(o *index) bool {
	return bytes.Equal(x.records, o.records) && bytes.Equal(x.events, o.events) && bytes.Equal(x.principals, o.principals)
}

// adopt takes over what the index of a sealed segment says of it, without its events.
func (s *segment) adopt(x *index, e indexEnd) {
	chain := s.chain
	for i := range x.recordCount() {
		r := x.record(i)
		s.mark(mark{head: s.base + r.head, commit: s.first + uint64(i), chain: chain, off: r.off})
		chain = r.crc
	}
	s.end, s.head, s.tail, s.clean = e.end, e.head, e.tail, e.clean
	s.next = s.first + uint64(x.recordCount())
	s.marks = slices.Clip(s.marks)
}

// seal writes the index of s, which takes no more records, to the end of its file. When
// there is no room, because another program made the segment, the index stays in memory,
// as it does after an error.
func (l *log) seal(f File, s *segment) error {
	b := s.encodeIndex()
	at := s.size - int64(len(b))
	if at < s.end {
		return nil
	}
	if _, err := f.WriteAt(b, at); err != nil {
		return ioError("write", s.path, err)
	}
	if err := f.Sync(); err != nil {
		return ioError("sync", s.path, err)
	}
	l.mu.Lock()
	s.idx = nil
	l.mu.Unlock()
	return nil
}
