package store

import (
	"encoding/binary"
	"hash/crc32"
)

// A log record is one commit. Its body is padded with zeros to 8 bytes; length and
// checksum count the padding.
//
//	off  size  field
//	  0     4  length   u32, bytes of the body, a multiple of 8
//	  4     4  body     u32, CRC32C of salt and body
//	  8     8  commit   u64, from 1, without a gap
//	 16     4  prev     u32, header checksum of the record before
//	 20     1  flags
//	 21     3  zero
//	 24     8  time     i64, Unix nanoseconds of the commit
//	 32     8  base     u64, event head before this commit
//	 40     4  count    u32, event sequences consumed
//	 44     4  header   u32, CRC32C of salt and the 44 bytes above
//	 48        body
//
// The salt is random and in no record, so that a payload cannot contain the image of a
// record that passes for one. The header has a checksum of its own, so that a search for
// records costs the same whatever the payloads are.
const (
	recordHeader = 48
	// maxRecord bounds one record with its header; one larger than a segment gets a segment
	// of its own size.
	maxRecord = 64 << 20

	// flagClean marks a state that needs no page check: the empty record of an orderly Close,
	// and commit 1, behind which Create writes state.db whole or not at all.
	flagClean = 1
)

type recordHead struct {
	length  uint32
	bodyCRC uint32
	commit  uint64
	prev    uint32
	flags   uint8
	time    int64
	base    uint64
	count   uint32
	headCRC uint32
}

func parseRecordHead(b []byte) recordHead {
	return recordHead{
		length:  binary.BigEndian.Uint32(b[0:]),
		bodyCRC: binary.BigEndian.Uint32(b[4:]),
		commit:  binary.BigEndian.Uint64(b[8:]),
		prev:    binary.BigEndian.Uint32(b[16:]),
		flags:   b[20],
		time:    int64(binary.BigEndian.Uint64(b[24:])),
		base:    binary.BigEndian.Uint64(b[32:]),
		count:   binary.BigEndian.Uint32(b[40:]),
		headCRC: binary.BigEndian.Uint32(b[44:]),
	}
}

// put lays the header out in b and sets its checksum.
func (h *recordHead) put(b []byte, salt uint64) {
	clear(b[:recordHeader])
	binary.BigEndian.PutUint32(b[0:], h.length)
	binary.BigEndian.PutUint32(b[4:], h.bodyCRC)
	binary.BigEndian.PutUint64(b[8:], h.commit)
	binary.BigEndian.PutUint32(b[16:], h.prev)
	b[20] = h.flags
	binary.BigEndian.PutUint64(b[24:], uint64(h.time))
	binary.BigEndian.PutUint64(b[32:], h.base)
	binary.BigEndian.PutUint32(b[40:], h.count)
	h.headCRC = salted(salt, b[:44])
	binary.BigEndian.PutUint32(b[44:], h.headCRC)
}

// checksum is the header checksum that h should have.
func (h recordHead) checksum(salt uint64) uint32 {
	var b [recordHeader]byte
	h.put(b[:], salt)
	return h.headCRC
}

func salted(salt uint64, b []byte) uint32 {
	var s [8]byte
	binary.BigEndian.PutUint64(s[:], salt)
	return crc32.Update(crc32.Update(0, castagnoli, s[:]), castagnoli, b)
}

// sealRecord completes the record in buf, whose first recordHeader bytes are free: it pads
// the body and writes the header. It returns the padded record.
func sealRecord(buf []byte, h *recordHead, salt uint64) []byte {
	for len(buf)%8 != 0 {
		buf = append(buf, 0)
	}
	body := buf[recordHeader:]
	h.length = uint32(len(body))
	h.bodyCRC = salted(salt, body)
	h.put(buf, salt)
	return buf
}

// record reads the record at off, which should be commit with the given chain. A zero
// head means that no record begins there; a problem, that one is damaged as an unfinished
// write could leave it. An error is damage that no unfinished write explains.
func (r *blockReader) record(s *segment, off int64, commit uint64, chain uint32) (recordHead, []byte, string, error) {
	if off+recordHeader > r.size {
		return recordHead{}, nil, "", nil
	}
	b, err := r.at(off, recordHeader)
	if err != nil {
		return recordHead{}, nil, "", err
	}
	if [recordHeader]byte(b) == [recordHeader]byte{} {
		return recordHead{}, nil, "", nil
	}
	h := parseRecordHead(b)
	if [3]byte(b[21:24]) != [3]byte{} || h.headCRC != salted(s.salt, b[:44]) {
		return recordHead{}, nil, "record header checksum does not match", nil
	}
	// From here on the header is one that this program wrote whole.
	switch {
	case h.commit != commit:
		return recordHead{}, nil, "", corrupt(s.path, off, "record is commit %d, want %d", h.commit, commit)
	case h.prev != chain:
		return recordHead{}, nil, "", corrupt(s.path, off, "record %d does not follow the record before it", h.commit)
	case h.length%8 != 0 || int64(h.length) > r.size-off-recordHeader:
		return recordHead{}, nil, "", corrupt(s.path, off, "record %d is longer than its segment", h.commit)
	}
	b, err = r.at(off, recordHeader+int(h.length))
	if err != nil {
		return recordHead{}, nil, "", err
	}
	body := b[recordHeader:]
	if salted(s.salt, body) != h.bodyCRC {
		return recordHead{}, nil, "record checksum does not match", nil
	}
	return h, body, "", nil
}
