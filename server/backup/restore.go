package backup

import (
	"context"
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
	"coordinator/server/authority"
	"coordinator/server/store"
)

// restoringSuffix is that of coordinator.toml until everything else is in place. A directory
// that has the one and not the other is of an interrupted restore, and no coordinator serves
// it.
const restoringSuffix = ".restoring"

// lockFile is the store's, which stays.
const lockFile = "store.lock"

// LinkFile is the name of the link key, which a restored directory has of its own.
const LinkFile = "link.ed25519"

// ReportFile is the name of what a restore has to say, in the directory that it made: a
// terminal forgets, and a disk that is full takes no output.
const ReportFile = "restored.txt"

// A Restored is a state directory that is being made from a backup.
type Restored struct {
	dir    string
	backup string
	m      *Manifest
	made   bool // the directory is ours
	lock   *durable.Lock
}

// NewRestored begins to make a state directory at dir from the backup: a new directory, or
// an empty one. What an interrupted restore left there is replaced; said is told so.
func NewRestored(dir, backup string, m *Manifest, said func(string)) (*Restored, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	_, err = os.Lstat(dir)
	r := &Restored{dir: dir, backup: backup, m: m, made: errors.Is(err, fs.ErrNotExist)}
	if inside, err := within(existing(filepath.Dir(dir)), backup); err == nil && inside {
		return nil, &TargetError{Path: dir, Problem: "lies in the backup itself"}
	}
	if !r.made {
		if err := fresh(dir); err != nil {
			return nil, err
		}
	}
	if err := durable.MkdirPrivate(dir); err != nil {
		return nil, &TargetError{Path: dir, Problem: "cannot be made", Err: err}
	}
	if r.lock, err = authority.LockStore(dir); err != nil {
		return nil, err
	}
	if err := fresh(dir); err != nil { // again, with the lock
		return nil, errors.Join(err, r.lock.Release())
	}
	if err := r.clear(said); err != nil {
		return nil, errors.Join(err, r.lock.Release())
	}
	return r, nil
}

// existing is what path, or the nearest directory above it that there is, is called without
// symbolic links.
func existing(path string) string {
	for {
		if real, err := filepath.EvalSymlinks(path); err == nil || path == filepath.Dir(path) {
			return real
		}
		path = filepath.Dir(path)
	}
}

// Interrupted reports whether a restore into dir has begun and not come to its end. What is
// in dir then is nobody's to use.
func Interrupted(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, ConfigFile+restoringSuffix))
	return err == nil
}

// restoredNames are the files that an unfinished restore can have left.
func restoredNames() []string {
	return append(slices.Clone(configFiles), ConfigFile+restoringSuffix, LinkFile, ReportFile, store.StateFile, lockFile)
}

// fresh refuses a directory in which anything is but what an interrupted restore left.
func fresh(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return &TargetError{Path: dir, Problem: "is not a directory for a new coordinator", Err: err}
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	rest := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == lockFile })
	if len(rest) == 0 || slices.Contains(names, ConfigFile+restoringSuffix) && !slices.Contains(names, ConfigFile) {
		return nil
	}
	slices.Sort(rest)
	return &TargetError{Path: dir, Problem: fmt.Sprintf("is not empty (%s); a backup is restored into a fresh directory only", strings.Join(rest[:min(3, len(rest))], ", "))}
}

// clear empties the directory of an interrupted restore.
func (r *Restored) clear(said func(string)) error {
	if !Interrupted(r.dir) {
		return nil
	}
	// The mark goes last.
	names := slices.DeleteFunc(restoredNames(), func(n string) bool { return n == ConfigFile+restoringSuffix || n == lockFile })
	for _, n := range names {
		if err := os.Remove(r.path(n)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return &TargetError{Path: r.path(n), Problem: "cannot be removed", Err: err}
		}
	}
	if err := os.RemoveAll(r.path(store.LogDir)); err != nil {
		return &TargetError{Path: r.path(store.LogDir), Problem: "cannot be removed", Err: err}
	}
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		return &TargetError{Path: r.dir, Problem: "cannot be looked at", Err: err}
	}
	for _, e := range entries {
		switch name := e.Name(); {
		case name == lockFile, name == ConfigFile+restoringSuffix:
		case strings.HasPrefix(name, ".") && strings.HasSuffix(name, ".tmp"): // of a file that was being replaced
			if err := os.Remove(r.path(name)); err != nil {
				return &TargetError{Path: r.path(name), Problem: "cannot be removed", Err: err}
			}
		default:
			return &TargetError{Path: r.dir, Problem: "holds " + name + " beside what an interrupted restore left; choose another directory"}
		}
	}
	if err := os.Remove(r.path(ConfigFile + restoringSuffix)); err != nil {
		return &TargetError{Path: r.dir, Problem: "cannot be cleared", Err: err}
	}
	said("removed what an interrupted restore left in " + r.dir)
	return nil
}

func (r *Restored) path(name string) string { return filepath.Join(r.dir, name) }

// Fill copies everything from the backup, each file checked again on its way, and makes it
// durable. After an error nothing is left.
func (r *Restored) Fill(ctx context.Context, told func(done, of int64)) error {
	p := &progress{of: r.m.Bytes(), told: told}
	if free := durable.FreeBytes(r.dir); free < uint64(p.of) {
		return r.Abandon(fmt.Errorf("it needs %d bytes and %d are free there: %w", p.of, free, unix.ENOSPC))
	}
	// The mark comes first.
	files := slices.Clone(r.m.Files)
	slices.SortStableFunc(files, func(a, b File) int { return rank(a.Name) - rank(b.Name) })
	for i, f := range files {
		if err := r.bring(ctx, f, p); err != nil {
			return r.Abandon(err)
		}
		if i == 0 {
			if err := os.Mkdir(r.path(store.LogDir), durable.PrivateDir); err != nil {
				return r.Abandon(err)
			}
		}
		failpoint.Hit("restore-file")
	}
	if err := durable.SyncDir(r.path(store.LogDir)); err != nil {
		return r.Abandon(err)
	}
	return nil
}

func rank(name string) int {
	if name == ConfigFile {
		return 0
	}
	return 1
}

// bring copies one file with every byte of it, zeros included: a log has its room before it
// is written.
func (r *Restored) bring(ctx context.Context, file File, p *progress) error {
	name := filepath.FromSlash(file.Name)
	if name == ConfigFile {
		name += restoringSuffix
	}
	f, err := os.OpenFile(r.path(name), os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, durable.PrivateFile)
	if err != nil {
		return err
	}
	err = file.copyFrom(r.backup, &until{ctx, &flusher{f: f}}, p)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return durable.SyncDir(filepath.Dir(r.path(name)))
}

// A flusher writes to a file and flushes now and then.
type flusher struct {
	f     *os.File
	dirty int
}

// Write is that of an io.Writer.
func (w *flusher) Write(b []byte) (int, error) {
	n, err := w.f.Write(b)
	if w.dirty += n; err == nil && w.dirty >= syncEvery {
		w.dirty = 0
		err = w.f.Sync()
	}
	return n, err
}

// Abandon removes everything. The error says what is left.
func (r *Restored) Abandon(cause error) error {
	e := &TargetError{Path: r.dir, Problem: "is not restored", Err: cause}
	var err error
	if r.made {
		err = os.RemoveAll(r.dir)
	} else {
		for _, n := range restoredNames() {
			if rerr := os.RemoveAll(r.path(n)); rerr != nil {
				err = rerr
			}
		}
		if rerr := os.RemoveAll(r.path(store.LogDir)); rerr != nil {
			err = rerr
		}
	}
	if err != nil {
		e.Left = r.dir
	}
	r.lock.Release() //nolint:errcheck // the directory is gone
	return e
}

// Finish makes it a coordinator's directory.
func (r *Restored) Finish() error {
	failpoint.Hit("restore-filled")
	if err := durable.SyncDir(r.dir); err != nil {
		return r.Abandon(err)
	}
	if err := renameNew(r.path(ConfigFile+restoringSuffix), r.path(ConfigFile)); err != nil {
		return r.Abandon(err)
	}
	failpoint.Hit("restore-named")
	return errors.Join(durable.SyncDir(r.dir), durable.SyncDir(filepath.Dir(r.dir)), r.lock.Release())
}

var _ io.Writer = (*flusher)(nil)
