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
)

// A spool stages record images one after another: in memory while they are few, then in a
// file. It is written first and read afterwards, any number of times. Not for concurrent use.
type spool struct {
	dir   string
	max   int64
	size  int64
	buf   bytes.Buffer // everything while file is nil, else what is not yet written to it
	file  *os.File
	ended bool
}

func newSpool(dir string, max int64) *spool { return &spool{dir: dir, max: max} }

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

// each calls visit with every image in order, until it fails. The image is valid during
// the call only.
func (s *spool) each(visit func(image []byte) error) error {
	if s.ended {
		return errors.New("stage: closed")
	}
	var r io.Reader = bytes.NewReader(s.buf.Bytes())
	if s.file != nil {
		if err := s.spill(); err != nil {
			return err
		}
		r = bufio.NewReaderSize(io.NewSectionReader(s.file, 0, s.size), readBuffer)
	}
	return eachImage(r, s.size, visit)
}

// eachImage splits size bytes of record images.
func eachImage(r io.Reader, size int64, visit func(image []byte) error) error {
	image := make([]byte, recordHead)
	for size > 0 {
		if _, err := io.ReadFull(r, image[:recordHead]); err != nil {
			return fmt.Errorf("records: %w", err)
		}
		n := int64(binary.BigEndian.Uint32(image[recordHead-4:]))
		if n > frames.MaxTypedPayload {
			return errors.New("records: a payload is over its cap")
		}
		if size -= recordHead + n; size < 0 {
			return errors.New("records: the last one is cut short")
		}
		if need := recordHead + int(n); need > cap(image) {
			image = append(make([]byte, 0, need), image[:recordHead]...)
		}
		image = image[:recordHead+int(n)]
		if _, err := io.ReadFull(r, image[recordHead:]); err != nil {
			return fmt.Errorf("records: %w", err)
		}
		if err := visit(image); err != nil {
			return err
		}
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
