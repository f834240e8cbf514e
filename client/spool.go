package client

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"coordinator/frames"
)

const (
	// spoolMemory is what a spool keeps in memory before it moves to a file.
	spoolMemory = 8 << 20
	// The memory comes in chunks, each as large as all before it between these bounds, so
	// that a small snapshot takes little and nothing that was staged is copied again.
	spoolFirst = 4 << 10
	spoolChunk = 1 << 20
	// recordHead is the fixed part of a SnapshotRecord image, its payload length included.
	recordHead = 2 + 16 + 8 + 2 + 4
	// eventHead is that of a ReplayEvent image.
	eventHead = 8 + 16 + 2 + 2 + 16 + 8 + 2 + 4
)

// A spool stages images one after another: in memory while they are few, then in a
// file. It is written first and read afterwards, any number of times. Not for concurrent use.
type spool struct {
	head   int // the fixed part of its images, which ends in the payload's u32 length
	dir    string
	max    int64
	size   int64
	chunks [][]byte // everything while file is nil, else what is not yet written to it
	file   *os.File
	ended  bool
}

// newSpool stages images of records in dir.
func newSpool(dir string, max int64) *spool { return &spool{head: recordHead, dir: dir, max: max} }

// add appends one image.
func (s *spool) add(image []byte) error {
	if s.size+int64(len(image)) > s.max {
		return fmt.Errorf("more than the %d bytes that may be staged", s.max)
	}
	if err := s.room(len(image)); err != nil {
		return err
	}
	last := &s.chunks[len(s.chunks)-1]
	*last = append(*last, image...)
	s.size += int64(len(image))
	if s.file == nil && s.size >= spoolMemory {
		return s.spill()
	}
	return nil
}

// room makes the last chunk one that takes n more bytes.
func (s *spool) room(n int) error {
	if s.fits(n) {
		return nil
	}
	if s.file != nil {
		if err := s.spill(); err != nil || s.fits(n) {
			return err
		}
	}
	size := min(max(s.size, spoolFirst), spoolChunk)
	s.chunks = append(s.chunks, make([]byte, 0, max(int(size), n)))
	return nil
}

func (s *spool) fits(n int) bool {
	if len(s.chunks) == 0 {
		return false
	}
	last := s.chunks[len(s.chunks)-1]
	return cap(last)-len(last) >= n
}

// spill moves the chunks to the file and keeps the last one, which is the largest, for
// what comes.
func (s *spool) spill() error {
	if s.file == nil {
		f, err := stageFile(s.dir)
		if err != nil {
			return fmt.Errorf("stage: %w", err)
		}
		s.file = f
	}
	for _, chunk := range s.chunks {
		if _, err := s.file.Write(chunk); err != nil {
			return fmt.Errorf("stage: %w", err)
		}
	}
	if last := len(s.chunks) - 1; last >= 0 {
		s.chunks = [][]byte{s.chunks[last][:0]}
	}
	return nil
}

// each calls visit with every image in order, until it fails. The image is valid
// during the call only.
func (s *spool) each(visit func(image []byte) error) error {
	r, err := s.reader()
	if err != nil {
		return err
	}
	return r.each(visit)
}

// pieces calls visit with all that is staged, one piece behind the other and cut
// anywhere, until it fails. A piece is valid during the call only.
func (s *spool) pieces(visit func([]byte) error) error {
	r, err := s.open()
	if err != nil {
		return err
	}
	buf := make([]byte, min(s.size, readBuffer))
	for left := s.size; left > 0; left -= int64(len(buf)) {
		buf = buf[:min(left, int64(len(buf)))]
		if err := readAll(r, buf); err != nil {
			return err
		}
		if err := visit(buf); err != nil {
			return err
		}
	}
	return nil
}

// reader begins to read what is staged. Nothing may be added while it is in use.
func (s *spool) reader() (*imageReader, error) {
	r, err := s.open()
	if err != nil {
		return nil, err
	}
	if s.file != nil {
		r = bufio.NewReaderSize(r, readBuffer)
	}
	return &imageReader{r: r, left: s.size, head: s.head}, nil
}

// open gives the bytes of what is staged.
func (s *spool) open() (io.Reader, error) {
	if s.ended {
		return nil, errors.New("stage: closed")
	}
	if s.file == nil {
		chunks := make([]io.Reader, len(s.chunks))
		for i, chunk := range s.chunks {
			chunks[i] = bytes.NewReader(chunk)
		}
		return io.MultiReader(chunks...), nil
	}
	if err := s.spill(); err != nil {
		return nil, err
	}
	s.chunks = nil
	return io.NewSectionReader(s.file, 0, s.size), nil
}

// eachImage splits size bytes of record images.
func eachImage(r io.Reader, size int64, visit func(image []byte) error) error {
	return (&imageReader{r: r, left: size, head: recordHead}).each(visit)
}

// An imageReader splits images whose fixed part ends in the length of their payload.
type imageReader struct {
	r     io.Reader
	left  int64 // bytes not yet read
	head  int
	image []byte
}

func (r *imageReader) each(visit func(image []byte) error) error {
	for {
		image, err := r.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := visit(image); err != nil {
			return err
		}
	}
}

// next gives the next image, valid until the call after it, and io.EOF behind the last.
func (r *imageReader) next() ([]byte, error) {
	if r.left <= 0 {
		return nil, io.EOF
	}
	if cap(r.image) < r.head {
		r.image = make([]byte, r.head)
	}
	image := r.image[:r.head]
	if err := readAll(r.r, image); err != nil {
		return nil, err
	}
	n := int64(binary.BigEndian.Uint32(image[r.head-4:]))
	if n > frames.MaxTypedPayload {
		return nil, errors.New("records: a payload is over its cap")
	}
	if r.left -= int64(r.head) + n; r.left < 0 {
		return nil, errors.New("records: the last one is cut short")
	}
	if need := r.head + int(n); need > cap(image) {
		image = append(make([]byte, 0, need), image...)
	}
	r.image = image[:r.head+int(n)]
	return r.image, readAll(r.r, r.image[r.head:])
}

// readAll fills b; an end before that is never io.EOF.
func readAll(r io.Reader, b []byte) error {
	if _, err := io.ReadFull(r, b); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return fmt.Errorf("records: %w", err)
	}
	return nil
}

// close releases the memory and the file. It may be called more than once.
func (s *spool) close() error {
	s.ended = true
	s.chunks = nil
	if s.file == nil {
		return nil
	}
	f := s.file
	s.file = nil
	return f.Close()
}
