package client

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"coordinator/codec"
	"coordinator/frames"
	"coordinator/internal/durable"
)

// A snapshot file is a verified snapshot kept on disk:
//
//	off  size  field
//	  0    34  "phux-coordinator-snapshot-file/v1\n"
//	 34    64  authority_guard
//	 98     8  base_event_sequence    u64
//	106     8  record_count           u64
//	114    32  canonical_sha256       the snapshot digest of protocol.md §9
//	146     8  effective scope        u64: what the snapshot could see
//	154     8  capabilities           u64
//	162     8  taken at               u64, Unix seconds
//	170     4  CRC32C of all before   u32
//	174        record_count SnapshotRecord images, and nothing behind them
//
// The digest covers the records and, of the guard, all but the token hash; the checksum
// covers the head. Integers are big-endian.
const (
	snapshotMagic  = "phux-coordinator-snapshot-file/v1\n"
	snapshotHeadAt = len(snapshotMagic)
	snapshotHead   = snapshotHeadAt + 64 + 8 + 8 + 32 + 8 + 8 + 8 + 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// A SnapshotHeader is what a snapshot file says of itself.
type SnapshotHeader struct {
	Guard        frames.AuthorityGuard
	Base         frames.EventCut
	Records      uint64
	Digest       [32]byte
	Scope        frames.Scope
	Capabilities frames.Capability
	TakenAt      uint64 // Unix seconds
}

// Image lays the header out between the magic and the checksum.
func (h *SnapshotHeader) Image(i *codec.Image) {
	h.Guard.Image(i)
	codec.ImgU64(i, &h.Base)
	codec.ImgU64(i, &h.Records)
	codec.ImgHash32(i, &h.Digest)
	codec.ImgU64(i, &h.Scope)
	codec.ImgU64(i, &h.Capabilities)
	codec.ImgU64(i, &h.TakenAt)
}

// A SnapshotFileError says why a file is not a sound snapshot file.
type SnapshotFileError struct{ Path, Problem string }

func (e *SnapshotFileError) Error() string { return "snapshot file " + e.Path + ": " + e.Problem }

// SaveSnapshot writes s to path, mode 0600, replacing what is there only once everything
// is durable.
func (c *Conn) SaveSnapshot(path string, s *Snapshot) (err error) {
	h := SnapshotHeader{
		Guard: s.Guard, Base: s.Base, Records: s.Records, Digest: s.Digest,
		Scope: c.hello.Grant.Scope, Capabilities: c.hello.Capabilities, TakenAt: c.opts.Clock.Now().Unix(),
	}
	head, err := codec.EncodeImage([]byte(snapshotMagic), &h)
	if err != nil {
		return fmt.Errorf("save snapshot: %w", err)
	}
	head = binary.BigEndian.AppendUint32(head, crc32.Checksum(head, castagnoli))
	if st, err := os.Stat(path); err == nil && !st.Mode().IsRegular() {
		return &SnapshotFileError{path, "not a regular file; name another one to save to"}
	}
	dir := filepath.Dir(path)
	if st, err := os.Stat(dir); err != nil {
		return fmt.Errorf("save snapshot: %w", err)
	} else if !st.IsDir() {
		return &SnapshotFileError{path, "what should be its directory is none"}
	}
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*.tmp") // 0600
	if err != nil {
		return fmt.Errorf("save snapshot: %w", err)
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
			err = fmt.Errorf("save snapshot: %w", err)
		}
	}()
	w := bufio.NewWriterSize(f, readBuffer)
	w.Write(head) // a bufio.Writer keeps its first error for Flush
	written, total := uint64(0), uint64(s.staged.size)
	err = s.EachImage(func(image []byte) error {
		_, err := w.Write(image)
		written += uint64(len(image))
		c.progress(StageSave, written, total)
		return err
	})
	if err = errors.Join(err, w.Flush()); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), path); err != nil {
		return err
	}
	return durable.SyncDir(dir)
}

// A SnapshotFile is an open snapshot file whose head is sound.
type SnapshotFile struct {
	Header SnapshotHeader
	// Progress is told how far Verify has come. Nil tells nobody.
	Progress func(Progress)

	path string
	f    *os.File
	size int64 // of the records
}

// OpenSnapshotFile opens path and checks its head. [SnapshotFile.Verify] checks the rest.
func OpenSnapshotFile(path string) (*SnapshotFile, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("snapshot file: %w", err)
	}
	s := &SnapshotFile{path: path, f: f}
	if err := s.readHead(); err != nil {
		f.Close()
		return nil, err
	}
	return s, nil
}

func (s *SnapshotFile) bad(format string, a ...any) error {
	return &SnapshotFileError{s.path, fmt.Sprintf(format, a...)}
}

func (s *SnapshotFile) readHead() error {
	st, err := s.f.Stat()
	if err != nil {
		return fmt.Errorf("snapshot file: %w", err)
	}
	if !st.Mode().IsRegular() {
		return s.bad("not a regular file")
	}
	head := make([]byte, snapshotHead)
	if _, err := io.ReadFull(s.f, head); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return s.bad("too short to be a snapshot file")
		}
		return fmt.Errorf("snapshot file: %w", err)
	}
	if string(head[:snapshotHeadAt]) != snapshotMagic {
		return s.bad("not a snapshot file of version 1")
	}
	body := head[:snapshotHead-4]
	if crc32.Checksum(body, castagnoli) != binary.BigEndian.Uint32(head[snapshotHead-4:]) {
		return s.bad("its head is damaged")
	}
	if err := codec.DecodeImage(&s.Header, body[snapshotHeadAt:]); err != nil {
		return s.bad("its head is damaged: %v", err)
	}
	s.size = st.Size() - int64(snapshotHead)
	return nil
}

// EachImage calls visit with every record's bytes, until it fails. The image is valid
// during the call only.
func (s *SnapshotFile) EachImage(visit func(image []byte) error) error {
	r := bufio.NewReaderSize(io.NewSectionReader(s.f, int64(snapshotHead), s.size), readBuffer)
	return eachImage(r, s.size, visit)
}

// Verify recomputes the file's order, count and digest. What does not hold is a
// *[SnapshotFileError].
func (s *SnapshotFile) Verify() error {
	var n, read uint64
	var last frames.ObjectRef
	tell := s.Progress
	if tell == nil {
		tell = func(Progress) {}
	}
	sum, err := digestOf(s.Header.Guard, s.Header.Base, s.Header.Records, func(visit func([]byte) error) error {
		return s.EachImage(func(image []byte) error {
			var r frames.SnapshotRecord
			if err := codec.DecodeImage(&r, image); err != nil {
				return err
			}
			if n > 0 && r.Ref().Compare(last) <= 0 {
				return fmt.Errorf("record %d does not follow the one before it", n)
			}
			last = r.Ref()
			n++
			read += uint64(len(image))
			tell(Progress{StageVerify, read, uint64(s.size)})
			return visit(image)
		})
	})
	switch {
	case err != nil:
		return s.bad("damaged: %v", err)
	case n != s.Header.Records:
		return s.bad("damaged: it holds %d records, its head says %d", n, s.Header.Records)
	case sum != s.Header.Digest:
		return s.bad("damaged: its digest is not that of its records")
	}
	return nil
}

// SameRecords reports whether two files hold byte for byte the same records, whatever
// authority they were taken under; when not, in which record (from 0) they first differ.
func SameRecords(a, b *SnapshotFile) (same bool, first uint64, err error) {
	ra := bufio.NewReaderSize(io.NewSectionReader(a.f, int64(snapshotHead), a.size), readBuffer)
	left := b.size
	br := bufio.NewReaderSize(io.NewSectionReader(b.f, int64(snapshotHead), b.size), readBuffer)
	errDiffer := errors.New("differ")
	other := make([]byte, recordHead)
	err = eachImage(ra, a.size, func(image []byte) error {
		if int64(len(image)) > left {
			return errDiffer
		}
		if len(image) > cap(other) {
			other = make([]byte, len(image))
		}
		other = other[:len(image)]
		if _, err := io.ReadFull(br, other); err != nil {
			return err
		}
		if string(other) != string(image) {
			return errDiffer
		}
		left -= int64(len(image))
		first++
		return nil
	})
	if errors.Is(err, errDiffer) {
		return false, first, nil
	}
	if err != nil {
		return false, first, fmt.Errorf("compare snapshots: %w", err)
	}
	return left == 0, first, nil
}

// Close closes the file.
func (s *SnapshotFile) Close() error { return s.f.Close() }
