package client

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"coordinator/frames"
)

const (
	// spoolMemory is what a spool keeps in memory before it moves to a file.
	spoolMemory = 64 << 20
	// spoolPiece is what a piece of it counts beside its bytes: the page around it.
	spoolPiece = 1 << 10
	// recordHead is the fixed part of a SnapshotRecord image, its payload length included.
	recordHead = 2 + 16 + 8 + 2 + 4
	// eventHead is that of a ReplayEvent image.
	eventHead = 8 + 16 + 2 + 2 + 16 + 8 + 2 + 4
)

// A spool stages images one after another: as they came while they are few, then in a
// file. It is written first and read afterwards, any number of times. Not for concurrent use.
type spool struct {
	head   int // the fixed part of its images, which ends in the payload's u32 length
	dir    string
	max    int64
	size   int64
	held   int      // what pieces counts
	pieces [][]byte // whole images, everything while file is nil
	file   *os.File
	ended  bool
}

// newSpool stages images of records in dir.
func newSpool(dir string, max int64) *spool { return &spool{head: recordHead, dir: dir, max: max} }

// add appends whole images, and keeps the slice.
func (s *spool) add(images []byte) error {
	if s.size+int64(len(images)) > s.max {
		return fmt.Errorf("more than the %d bytes that may be staged", s.max)
	}
	s.size += int64(len(images))
	if s.file != nil {
		return s.spill(images)
	}
	s.pieces = append(s.pieces, images)
	if s.held += len(images) + spoolPiece; s.held < spoolMemory {
		return nil
	}
	f, err := stageFile(s.dir)
	if err != nil {
		return fmt.Errorf("stage: %w", err)
	}
	s.file = f
	err = s.spill(s.pieces...)
	s.pieces = nil
	return err
}

// spill appends to the file.
func (s *spool) spill(pieces ...[]byte) error {
	for _, p := range pieces {
		if _, err := s.file.Write(p); err != nil {
			return fmt.Errorf("stage: %w", err)
		}
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

// all calls visit with all that is staged, one piece behind the other and cut anywhere,
// until it fails. A piece is valid during the call only.
func (s *spool) all(visit func([]byte) error) error {
	if s.ended {
		return errStageClosed
	}
	for _, p := range s.pieces {
		if err := visit(p); err != nil {
			return err
		}
	}
	if s.file == nil {
		return nil
	}
	buf := make([]byte, min(s.size, readBuffer))
	r := io.NewSectionReader(s.file, 0, s.size)
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
	if s.ended {
		return nil, errStageClosed
	}
	r := &imageReader{left: s.size, head: s.head, pieces: slices.Clone(s.pieces)}
	if s.file != nil {
		r.r = bufio.NewReaderSize(io.NewSectionReader(s.file, 0, s.size), readBuffer)
	}
	return r, nil
}

var errStageClosed = errors.New("stage: closed")

// eachImage splits size bytes of record images.
func eachImage(r io.Reader, size int64, visit func(image []byte) error) error {
	return (&imageReader{r: r, left: size, head: recordHead}).each(visit)
}

// An imageReader splits images whose fixed part ends in the length of their payload. They
// come from pieces of whole images, or from r.
type imageReader struct {
	r      io.Reader // nil: from pieces
	pieces [][]byte
	left   int64 // bytes not yet read
	head   int
	image  []byte
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
	if r.r == nil {
		return r.cut()
	}
	if cap(r.image) < r.head {
		r.image = make([]byte, r.head)
	}
	image := r.image[:r.head]
	if err := readAll(r.r, image); err != nil {
		return nil, err
	}
	n, err := r.length(image)
	if err != nil {
		return nil, err
	}
	if n > cap(image) {
		image = append(make([]byte, 0, n), image...)
	}
	r.image = image[:n]
	return r.image, readAll(r.r, r.image[r.head:])
}

// cut is next from pieces.
func (r *imageReader) cut() ([]byte, error) {
	for len(r.pieces[0]) == 0 {
		r.pieces = r.pieces[1:]
	}
	p := r.pieces[0]
	if len(p) < r.head {
		return nil, errCutShort
	}
	n, err := r.length(p[:r.head])
	if err != nil {
		return nil, err
	}
	if n > len(p) {
		return nil, errCutShort
	}
	r.pieces[0] = p[n:]
	return p[:n:n], nil
}

var errCutShort = errors.New("records: the last one is cut short")

// length is that of the image with this head, which it takes off what is left.
func (r *imageReader) length(head []byte) (int, error) {
	n := int64(binary.BigEndian.Uint32(head[r.head-4:]))
	if n > frames.MaxTypedPayload {
		return 0, errors.New("records: a payload is over its cap")
	}
	n += int64(r.head)
	if r.left -= n; r.left < 0 {
		return 0, errCutShort
	}
	return int(n), nil
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
	s.pieces = nil
	if s.file == nil {
		return nil
	}
	f := s.file
	s.file = nil
	return f.Close()
}
