package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"path/filepath"
	"strconv"
	"strings"

	"coordinator/frames"
)

// A log segment is a file of fixed size, written with zeros before its first record.
//
//	off  size  field
//	  0     8  magic
//	  8     4  schema       u32; newer is refused untouched
//	 12     4  zero
//	 16    16  coordinator  CoordinatorId
//	 32     8  first        u64, commit number of the first record
//	 40     8  base         u64, event head before the first record
//	 48     8  size         u64, bytes of the whole file
//	 56     8  salt         mixed into every record checksum of this segment
//	 64     4  chain        u32, header checksum of the record before the first
//	 68     4  crc          CRC32C of the 68 bytes above, in every schema
//	 72        records, each on an 8-byte boundary, then zeros; when sealed, an index at the end
const (
	segmentMagic   = "coordlog"
	segmentHeader  = 72
	segmentSuffix  = ".seg"
	spareName      = "spare" + segmentSuffix
	sectorBytes    = 4096
	zeroChunk      = 1 << 20 // bytes written at a time when a segment is filled
	zeroSyncEvery  = 8 << 20 // so that filling never queues a long flush before a commit's
	markEvery      = 64 << 10
	minSegmentSize = 4096
	// maxSegmentSize keeps every offset within the 32 bits that an index has for it.
	maxSegmentSize = 1 << 30
)

// schemaVersion is the first schema of the store, from which the first of [upgrades] leads.
const schemaVersion = 1

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// A segment describes one log file. The identity fields are fixed; the rest is guarded by
// log.mu once the log is open.
type segment struct {
	path  string
	owner frames.CoordinatorID
	first uint64
	base  uint64
	size  int64
	salt  uint64
	chain uint32
	// schema is the one in which it is written.
	schema uint32

	end  int64  // offset behind the last committed record
	next uint64 // commit number that would follow
	head uint64 // event head after the last committed record
	tail uint32 // header checksum of the last committed record, else chain
	// clean: the last committed record has flagClean.
	clean bool
	// marks has the position of about one record in markEvery bytes, ascending.
	marks []mark
	// idx is the index of the open segment, and of a sealed one whose file has none; nil when
	// the file has it. Only the writer adds, holding log.mu.
	idx *index
	// holds counts the replays that need this segment and those behind it.
	holds int
}

// A mark is a place where reading may begin: the record at off comes after event head.
type mark struct {
	head   uint64
	commit uint64
	chain  uint32
	off    int64
}

func segmentName(first uint64) string { return fmt.Sprintf("%016x%s", first, segmentSuffix) }

// parseSegmentName reads the first commit of a segment's file name.
func parseSegmentName(name string) (uint64, bool) {
	digits, ok := strings.CutSuffix(name, segmentSuffix)
	if !ok || len(digits) != 16 {
		return 0, false
	}
	first, err := strconv.ParseUint(digits, 16, 64)
	if err != nil || segmentName(first) != name {
		return 0, false
	}
	return first, true
}

func (s *segment) encodeHeader() []byte {
	b := make([]byte, segmentHeader)
	copy(b, segmentMagic)
	binary.BigEndian.PutUint32(b[8:], s.schema)
	copy(b[16:], s.owner[:])
	binary.BigEndian.PutUint64(b[32:], s.first)
	binary.BigEndian.PutUint64(b[40:], s.base)
	binary.BigEndian.PutUint64(b[48:], uint64(s.size))
	binary.BigEndian.PutUint64(b[56:], s.salt)
	binary.BigEndian.PutUint32(b[64:], s.chain)
	binary.BigEndian.PutUint32(b[68:], crc32.Checksum(b[:68], castagnoli))
	return b
}

// readHeader reads and checks the header of the segment file that should begin with
// commit first.
func readHeader(f File, path string, first uint64, want uint32) (*segment, error) {
	var b [segmentHeader]byte
	if _, err := f.ReadAt(b[:], 0); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, corrupt(path, 0, "the file ends inside its header")
	} else if err != nil {
		return nil, ioError("read", path, err)
	}
	schema := binary.BigEndian.Uint32(b[8:])
	switch {
	case string(b[:8]) != segmentMagic:
		return nil, corrupt(path, 0, "not a log segment")
	case binary.BigEndian.Uint32(b[68:]) != crc32.Checksum(b[:68], castagnoli):
		return nil, corrupt(path, 0, "segment header checksum does not match")
	case schema < schemaVersion:
		return nil, corrupt(path, 8, "the header says schema %d", schema)
	case schema != want:
		return nil, &SchemaError{File: path, Have: schema, Want: want}
	}
	s := &segment{
		path:   path,
		owner:  frames.CoordinatorID(b[16:32]),
		first:  binary.BigEndian.Uint64(b[32:]),
		base:   binary.BigEndian.Uint64(b[40:]),
		size:   int64(binary.BigEndian.Uint64(b[48:])),
		salt:   binary.BigEndian.Uint64(b[56:]),
		chain:  binary.BigEndian.Uint32(b[64:]),
		schema: schema,
	}
	if s.size > maxSegmentSize {
		return nil, corrupt(path, 48, "the header says %d bytes, and a segment has %d at most", s.size, maxSegmentSize)
	}
	if s.first != first {
		return nil, corrupt(path, 32, "the header says first commit %d, the name %d", s.first, first)
	}
	s.end, s.next, s.head, s.tail = segmentHeader, s.first, s.base, s.chain
	return s, nil
}

// note records a committed record of n bytes at the end of the segment.
func (s *segment) note(h recordHead, n int64, items []item) {
	s.mark(mark{head: s.head, commit: s.next, chain: s.tail, off: s.end})
	s.idx.add(s, s.end, h, items)
	s.clean = h.flags&flagClean != 0
	s.end += n
	s.next = h.commit + 1
	s.head = h.base + uint64(h.count)
	s.tail = h.headCRC
}

// mark keeps the place m unless it is close to the one before.
func (s *segment) mark(m mark) {
	if len(s.marks) == 0 || m.off-s.marks[len(s.marks)-1].off >= markEvery {
		s.marks = append(s.marks, m)
	}
}

// blockReader reads a file in blocks, so that a scan costs few system calls.
type blockReader struct {
	f     File
	path  string
	size  int64
	least int // bytes to read at a time; zero means zeroChunk
	buf   []byte
	off   int64 // of buf in the file
}

// at returns n bytes at off, valid until the next call. Off and n lie within size.
func (r *blockReader) at(off int64, n int) ([]byte, error) {
	if off >= r.off && off+int64(n) <= r.off+int64(len(r.buf)) {
		return r.buf[off-r.off:][:n], nil
	}
	least := r.least
	if least == 0 {
		least = zeroChunk
	}
	want := min(max(n, least), int(r.size-off))
	if cap(r.buf) < want {
		r.buf = make([]byte, want)
	}
	r.buf = r.buf[:want]
	r.off = off
	if got, err := r.f.ReadAt(r.buf, off); got < want {
		r.buf = r.buf[:0]
		if errors.Is(err, io.EOF) {
			return nil, corrupt(r.path, off+int64(got), "the file ends before its stated size of %d bytes", r.size)
		}
		return nil, ioError("read", r.path, err)
	}
	return r.buf[:n], nil
}

// scan reads every record of s from its beginning, indexes it, and leaves the end behind
// the last good one. A problem is returned when what follows is not zero-filled space:
// a damaged record, or the index of a sealed segment.
func (s *segment) scan(r *blockReader) (problem string, err error) {
	s.idx = newIndex()
	for {
		h, body, problem, err := r.record(s, s.end, s.next, s.tail)
		if err != nil || problem != "" || h.commit == 0 {
			return problem, err
		}
		if h.base != s.head {
			return "", corrupt(s.path, s.end, "record %d begins at event %d, not %d", h.commit, h.base, s.head)
		}
		items, err := decodeRecord(s, s.end, h, body)
		if err != nil {
			return "", err
		}
		s.note(h, recordHeader+int64(len(body)), items)
	}
}

// laterRecord looks behind a damaged or missing record at off for the header of a later
// one. Only a record that followed a finished flush can be there, so its presence proves
// that what is missing was once durable.
func (s *segment) laterRecord(r *blockReader, off int64) (int64, error) {
	for off = off + 8; off+recordHeader <= s.size; off += 8 {
		b, err := r.at(off, recordHeader)
		if err != nil {
			return 0, err
		}
		// The commit number is compared first: it is nearly always zero or foreign.
		commit := binary.BigEndian.Uint64(b[8:])
		if commit <= s.next || commit-s.next > uint64(s.size) {
			continue
		}
		if h := parseRecordHead(b); h.headCRC == h.checksum(s.salt) {
			return off, nil
		}
	}
	return 0, nil
}

// firstDirty returns the offset of the first nonzero byte at or behind off, and -1 when
// there is none.
func (s *segment) firstDirty(r *blockReader, off int64) (int64, error) {
	for off < s.size {
		n := int(min(zeroChunk, s.size-off))
		b, err := r.at(off, n)
		if err != nil {
			return 0, err
		}
		for i, c := range b {
			if c != 0 {
				return off + int64(i), nil
			}
		}
		off += int64(n)
	}
	return -1, nil
}

// cutTail zeroes everything behind the last good record and makes that durable.
func (s *segment) cutTail(f File, r *blockReader) error {
	zeros := make([]byte, zeroChunk)
	for off := s.end; off < s.size; {
		n := min(zeroChunk, s.size-off)
		if _, err := f.WriteAt(zeros[:n], off); err != nil {
			return ioError("write", s.path, err)
		}
		off += n
	}
	r.buf = r.buf[:0]
	return ioError("sync", s.path, f.Sync())
}

// fill writes size zeros to a new file and flushes them. It ends early with the error of
// check, which it calls before every chunk.
func fill(f File, path string, size int64, check func() error) error {
	zeros := make([]byte, min(zeroChunk, size))
	for off, dirty := int64(0), int64(0); off < size; {
		if err := check(); err != nil {
			return err
		}
		n := min(int64(len(zeros)), size-off)
		if _, err := f.WriteAt(zeros[:n], off); err != nil {
			return ioError("write", path, err)
		}
		off += n
		if dirty += n; dirty >= zeroSyncEvery || off == size {
			if err := f.Sync(); err != nil {
				return ioError("sync", path, err)
			}
			dirty = 0
		}
	}
	return nil
}

var (
	errQuit   = errors.New("store: stopping")
	errScarce = errors.New("store: the disk reserve is reached")
)

func sparePath(dir string) string { return filepath.Join(dir, spareName) }

// roundSector rounds n up to whole sectors.
func roundSector(n int64) int64 { return (n + sectorBytes - 1) / sectorBytes * sectorBytes }
