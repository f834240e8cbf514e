package backup

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"coordinator/internal/durable"
	"coordinator/internal/failpoint"
	"coordinator/server/store"
)

const (
	// partialSuffix is that of a backup until it is whole.
	partialSuffix = ".partial"
	// copyChunk is copied at a time, and syncEvery of them flushed at a time: what waits to be
	// written must not make a coordinator on the same disk wait long.
	copyChunk = 1 << 20
	syncEvery = 8 << 20
	// maxConfig bounds each of the files of the configuration.
	maxConfig = 64 << 20
)

// A TargetError says why a place cannot take a backup or a restored directory. Left names
// what is there now of ours, and is empty when nothing is.
type TargetError struct {
	Path    string
	Problem string
	Err     error // what lies below, or nil
	Left    string
}

// Error says what is left behind.
func (e *TargetError) Error() string {
	s := e.Path + " " + e.Problem
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	if e.Left != "" {
		return s + "; remove " + e.Left + ", which is left"
	}
	return s
}

// Unwrap gives the cause.
func (e *TargetError) Unwrap() error { return e.Err }

// A Target is a backup that is being written.
type Target struct {
	path, tmp string // which it gets, and which it has
	dir       *os.File
	manifest  Manifest
	p         *progress
}

// NewTarget begins a backup at path, of the state directory in source. Nothing may be at
// path, and it may not lie in source. What an interrupted backup left under the name that
// path has until it is whole is replaced; said is told so.
func NewTarget(path, source string, said func(string)) (*Target, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	switch _, err := os.Lstat(path); {
	case err == nil:
		return nil, exists(path)
	case !errors.Is(err, fs.ErrNotExist):
		return nil, &TargetError{Path: path, Problem: "cannot be looked at", Err: err}
	}
	parent, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return nil, &TargetError{Path: path, Problem: "has no directory to be made in", Err: err}
	}
	if inside, err := within(parent, source); err != nil || inside {
		return nil, &TargetError{Path: path, Problem: "lies in the state directory " + source + ", which a backup is to outlive", Err: err}
	}
	t := &Target{path: path, tmp: path + partialSuffix, p: new(progress)}
	if err := t.claim(said); err != nil {
		return nil, err
	}
	if err := os.Mkdir(filepath.Join(t.tmp, store.LogDir), durable.PrivateDir); err != nil {
		return nil, t.fail("cannot be written", err)
	}
	return t, nil
}

// exists refuses a path at which something is.
func exists(path string) error {
	if _, err := os.Lstat(filepath.Join(path, ManifestFile)); err == nil {
		return &TargetError{Path: path, Problem: "is a backup already; choose another name"}
	}
	return &TargetError{Path: path, Problem: "exists; a backup makes its own directory, so choose another name"}
}

// within reports whether path is dir or lies below it, whatever the names are.
func within(path, dir string) (bool, error) {
	d, err := os.Stat(dir)
	if err != nil {
		return false, err
	}
	for {
		if p, err := os.Stat(path); err == nil && os.SameFile(p, d) {
			return true, nil
		}
		up := filepath.Dir(path)
		if up == path {
			return false, nil
		}
		path = up
	}
}

// claim makes the directory and holds its lock, for as long as this process works on it.
func (t *Target) claim(said func(string)) error {
	err := os.Mkdir(t.tmp, durable.PrivateDir)
	left := errors.Is(err, fs.ErrExist)
	if err != nil && !left {
		return &TargetError{Path: t.path, Problem: "cannot be made", Err: err}
	}
	if t.dir, err = lockDirectory(t.tmp); err != nil {
		return err
	}
	if !left {
		return nil
	}
	if err := durable.CheckPrivateDir(t.tmp); err != nil { // somebody else may have made it, to have what is put there
		t.dir.Close()
		return &TargetError{Path: t.path, Problem: "cannot be begun", Err: err}
	}
	if err := clearKnown(t.tmp, append(slices.Clone(configFiles), store.StateFile, ManifestFile)); err != nil {
		t.dir.Close()
		return err
	}
	said("removed what an interrupted backup left in " + t.tmp)
	return nil
}

func lockDirectory(path string) (*os.File, error) {
	d, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, &TargetError{Path: path, Problem: "is in the way", Err: err}
	}
	switch err := unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		d.Close()
		return nil, &TargetError{Path: path, Problem: "is being written by another process; wait for that one, or choose another name"}
	case err != nil:
		d.Close()
		return nil, &TargetError{Path: path, Problem: "cannot be locked", Err: err}
	}
	return d, nil
}

// clearKnown empties a directory of what this package puts there under these names. It
// removes nothing when there is anything else.
func clearKnown(dir string, names []string) error {
	var files []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		name := filepath.ToSlash(strings.TrimPrefix(path, dir+string(filepath.Separator)))
		switch {
		case d.IsDir() && name == store.LogDir:
			return nil
		case d.Type().IsRegular() && (slices.Contains(names, name) || segmentFile.MatchString(name) || name == ManifestFile+".tmp"):
			files = append(files, path)
			return nil
		}
		return &TargetError{Path: dir, Problem: "holds " + name + ", which is not of ours; remove the directory yourself, or choose another name"}
	})
	if err != nil {
		return err
	}
	for _, f := range append(files, filepath.Join(dir, store.LogDir)) {
		if err := os.Remove(f); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return &TargetError{Path: f, Problem: "cannot be removed", Err: err}
		}
	}
	return nil
}

// fail ends the backup: nothing of it is left, or the error says what.
func (t *Target) fail(problem string, err error) error {
	e := &TargetError{Path: t.path, Problem: problem, Err: err}
	if rerr := os.RemoveAll(t.tmp); rerr != nil {
		e.Left = t.tmp
	}
	t.dir.Close()
	return e
}

// Abandon removes what was written.
func (t *Target) Abandon(cause error) error { return t.fail("was not finished", cause) }

// Fill writes everything: what a coordinator gave, and the files of the configuration from
// the state directory. Told is called with the bytes written so far. After an error nothing
// is left.
func (t *Target) Fill(ctx context.Context, given []*Given, source string, told func(done, of int64)) error {
	var configs [][]byte
	for _, name := range configFiles {
		data, err := readConfig(filepath.Join(source, name))
		if err != nil {
			return t.Abandon(err)
		}
		configs = append(configs, data)
		t.p.of += int64(len(data))
	}
	for _, f := range given {
		t.p.of += f.Bytes
	}
	t.p.told = told
	if free := durable.FreeBytes(t.tmp); free < uint64(t.p.of) {
		return t.fail("cannot be written", fmt.Errorf("it needs %d bytes and %d are free there: %w", t.p.of, free, unix.ENOSPC))
	}
	for i, name := range configFiles {
		if err := t.put(ctx, name, strings.NewReader(string(configs[i])), int64(len(configs[i])), int64(len(configs[i])), ""); err != nil {
			return t.fail("cannot be written", err)
		}
	}
	for _, f := range given {
		if err := t.put(ctx, f.Name, io.NewSectionReader(f.file, 0, f.Bytes), f.Bytes, f.Size, f.SHA256); err != nil {
			return t.fail("cannot be written", err)
		}
		failpoint.Hit("backup-file")
	}
	return nil
}

// readTries bounds how often a file is read again that somebody edits just then.
const readTries = 100

// readConfig reads a file of the configuration, each of which is replaced as a whole.
func readConfig(path string) (data []byte, err error) {
	for range readTries {
		if data, err = durable.ReadPrivate(path, maxConfig); !errors.Is(err, durable.ErrUnstable) {
			break
		}
	}
	return data, err
}

// put writes one file of size bytes, of which n come from in and the rest are zeros that
// take no room, and makes it durable.
func (t *Target) put(ctx context.Context, name string, in io.Reader, n, size int64, want string) error {
	path := filepath.Join(t.tmp, filepath.FromSlash(name))
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, durable.PrivateFile)
	if err != nil {
		return err
	}
	sum := sha256.New()
	err = copyFile(ctx, f, io.TeeReader(in, sum), n, t.p)
	if err == nil {
		zeros(sum, size-n)
		err = f.Truncate(size)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	have := hex.EncodeToString(sum.Sum(nil))
	if want != "" && have != want {
		return fmt.Errorf("%s is not what the coordinator gave: its digest is %s and should be %s", name, have, want)
	}
	t.manifest.Files = append(t.manifest.Files, File{Name: name, Bytes: size, SHA256: have})
	return nil
}

func zeros(w io.Writer, n int64) {
	for n > 0 {
		m := min(n, copyChunk)
		w.Write(nothing[:m]) //nolint:errcheck // a hash takes everything
		n -= m
	}
}

var nothing [copyChunk]byte

// copyFile copies the n bytes that a file begins with, leaves out what is only zeros, and flushes
// now and then, until ctx ends.
func copyFile(ctx context.Context, f *os.File, in io.Reader, n int64, p *progress) error {
	b := make([]byte, copyChunk)
	for done, dirty := int64(0), int64(0); done < n; {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		m := min(n-done, copyChunk)
		if _, err := io.ReadFull(in, b[:m]); err != nil {
			return err
		}
		if !bytes.Equal(b[:m], nothing[:m]) { // else a hole, which reads the same
			if _, err := f.WriteAt(b[:m], done); err != nil {
				return err
			}
		}
		p.Write(b[:m]) //nolint:errcheck // it counts
		done += m
		if dirty += m; dirty >= syncEvery {
			if err := f.Sync(); err != nil {
				return err
			}
			dirty = 0
		}
	}
	return nil
}

// Finish writes the manifest and gives the backup its name.
func (t *Target) Finish(m Manifest) (*Manifest, error) {
	m.Format, m.Files = Format, t.manifest.Files
	data, err := m.encode()
	if err == nil {
		err = durable.SyncDir(filepath.Join(t.tmp, store.LogDir))
	}
	if err == nil {
		failpoint.Hit("backup-written")
		err = t.seal(data)
	}
	if err != nil {
		return nil, t.fail("cannot be written", err)
	}
	failpoint.Hit("backup-sealed")
	if err := renameNew(t.tmp, t.path); err != nil {
		return nil, t.fail("cannot get its name", err)
	}
	t.dir.Close()
	return &m, durable.SyncDir(filepath.Dir(t.path))
}

// seal gives the manifest its name once it is durable. The directory is locked already.
func (t *Target) seal(data []byte) error {
	path := filepath.Join(t.tmp, ManifestFile)
	f, err := os.OpenFile(path+".tmp", os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, durable.PrivateFile)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(path+".tmp", path)
	}
	if err != nil {
		return err
	}
	return durable.SyncDir(t.tmp)
}

// renameAbsent renames to a name at which nothing is now.
func renameAbsent(from, to string) error {
	if _, err := os.Lstat(to); err == nil {
		return fs.ErrExist
	}
	return os.Rename(from, to)
}

// Offline gives the files of the store in dir, which nobody has open.
func Offline(dir string) (*Taken, error) {
	t := new(Taken)
	names := []string{store.StateFile}
	entries, err := os.ReadDir(filepath.Join(dir, store.LogDir))
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if name := store.LogDir + "/" + e.Name(); segmentFile.MatchString(name) {
			names = append(names, name)
		}
	}
	for _, name := range names {
		f, err := open(filepath.Join(dir, filepath.FromSlash(name)))
		if err != nil {
			t.Close()
			return nil, err
		}
		st, err := f.Stat()
		if err != nil {
			f.Close()
			t.Close()
			return nil, err
		}
		t.files = append(t.files, &Given{Name: name, Size: st.Size(), Bytes: st.Size(), file: f})
	}
	return t, nil
}

// Files are what is to be filled in.
func (t *Taken) Files() []*Given { return t.files }
