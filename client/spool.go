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
	// recordHead is the fixed part of a SnapshotRecord image, its payload length included.
	recordHead = 2 + 16 + 8 + 2 + 4
	// eventHead is that of a ReplayEvent image.
	eventHead = 8 + 16 + 2 + 2 + 16 + 8 + 2 + 4
)

// A spool stages images one after another: in memory while they are few, then in a
// file. It is written first and read afterwards, any number of times. Not for concurrent use.
type spool struct {
	head  int // the fixed part of its images, which ends in the payload's u32 length
	dir   string
	max   int64
	size  int64
	buf   bytes.Buffer // everything while file is nil, else what is not yet written to it
	file  *os.File
	ended bool
}

// newSpool stages images of records in dir.
func newSpool(dir string, max int64) *spool { return &spool{head: recordHead, dir: dir, max: max} }

// add appends one image.
func (s *spool) add(image []byte) error {
	if s.size+int64(len(image)) > s.max {
		return fmt.Errorf("more than the %d bytes that may be staged", s.max)
	}
	s.size += int64(len(image))
	s.buf.Write(image)
	if s.buf.Len() < spoolMemory {
		return nil
	}
	return s.spill()
}

// spill moves the buffer to the file.
func (s *spool) spill() error {
	if s.file == nil {
		f, err := stageFile(s.dir)
		if err != nil {
			return fmt.Errorf("stage: %w", err)
		}
		s.file = f
	}
	if _, err := s.file.Write(s.buf.Bytes()); err != nil {
		return fmt.Errorf("stage: %w", err)
	}
	s.buf.Reset()
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

// reader begins to read what is staged. Nothing may be added while it is in use.
func (s *spool) reader() (*imageReader, error) {
	if s.ended {
		return nil, errors.New("stage: closed")
	}
	var r io.Reader = bytes.NewReader(s.buf.Bytes())
	if s.file != nil {
		if err := s.spill(); err != nil {
			return nil, err
		}
		r = bufio.NewReaderSize(io.NewSectionReader(s.file, 0, s.size), readBuffer)
	}
	return &imageReader{r: r, left: s.size, head: s.head}, nil
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
	s.buf = bytes.Buffer{}
	if s.file == nil {
		return nil
	}
	f := s.file
	s.file = nil
	return f.Close()
}
