// Package frozen keeps the files of a release for the tests of later ones: a whole state
// directory, as `coordctl up` makes it, of daemons that were killed at work. The
// coordinator's log has commits behind its checkpoint, the owner has output, the client a
// memory and a snapshot.
//
// The files of a release are never made again: what they show is that a later program still
// opens them. `go run ./cmd/internal/freeze` makes those of this program, and a test runs it.
package frozen

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	_ "embed" // for the files
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Release1 is the state directory of the first release, packed by [Pack].
//
//go:embed testdata/release-1.tar.gz
var Release1 []byte

// Facts1 is what the first release said of it, as JSON of package freeze.
//
//go:embed testdata/release-1.json
var Facts1 []byte

const (
	// place stands for the state directory in configuration files.
	place = "@STATE@"
	// block is the unit in which zeros are left out when a file is written.
	block = 64 << 10
	// maxFile bounds a file of an archive.
	maxFile = 1 << 30
)

// Pack writes the state directory dir, without locks, sockets and the segment that the
// coordinator had made ahead, which the next start makes anew.
func Pack(w io.Writer, dir string) error {
	z, err := gzip.NewWriterLevel(w, gzip.BestCompression)
	if err != nil {
		return err
	}
	t := tar.NewWriter(z)
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil || rel == "." {
			return err
		}
		switch {
		case d.IsDir():
			return t.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: rel + "/", Mode: 0o700})
		case !d.Type().IsRegular(), strings.HasSuffix(rel, ".lock"), filepath.Base(rel) == "spare.seg":
			return nil
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if filepath.Ext(rel) == ".toml" {
			raw = bytes.ReplaceAll(raw, []byte(dir), []byte(place))
		}
		if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: rel, Mode: 0o600, Size: int64(len(raw))}); err != nil {
			return err
		}
		_, err = t.Write(raw)
		return err
	})
	return errors.Join(err, t.Close(), z.Close())
}

// Unpack makes a state directory of an archive in dir, an absolute path, of which only the
// part whose name begins with prefix.
func Unpack(archive []byte, dir, prefix string) error {
	z, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		return err
	}
	for t := tar.NewReader(z); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if !filepath.IsLocal(h.Name) || h.Size > maxFile {
			return fmt.Errorf("frozen: %s does not belong into an archive", h.Name)
		}
		if !strings.HasPrefix(h.Name, prefix) {
			continue
		}
		path := filepath.Join(dir, h.Name)
		if h.Typeflag == tar.TypeDir {
			err = os.MkdirAll(path, 0o700)
		} else {
			err = write(path, t, h.Size, dir)
		}
		if err != nil {
			return err
		}
	}
}

// write makes one file. Zeros become holes, as most of a log segment is zeros.
func write(path string, from io.Reader, size int64, dir string) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if filepath.Ext(path) == ".toml" {
		raw, err := io.ReadAll(from)
		if err == nil {
			_, err = f.Write(bytes.ReplaceAll(raw, []byte(place), []byte(dir)))
		}
		return err
	}
	if err := f.Truncate(size); err != nil {
		return err
	}
	buf, zeros := make([]byte, block), make([]byte, block)
	for at := int64(0); at < size; {
		n := min(block, size-at)
		if _, err := io.ReadFull(from, buf[:n]); err != nil {
			return err
		}
		if !bytes.Equal(buf[:n], zeros[:n]) {
			if _, err := f.WriteAt(buf[:n], at); err != nil {
				return err
			}
		}
		at += n
	}
	return nil
}
