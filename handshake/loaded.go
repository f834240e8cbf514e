package handshake

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"coordinator/internal/durable"

	"golang.org/x/sys/unix"
)

// Beside a registry, in a file of this suffix, the daemon that follows it says
// which content is in force, and holds an flock on that file while it runs. So
// whoever edited the registry can wait for the daemon, and knows when there is
// none to wait for.
const loadedSuffix = ".loaded"

// emptiedMark stands in place of the digest while the registry is emptied.
const emptiedMark = "emptied"

// publisher writes that file.
type publisher struct {
	path    string // of the registry
	f       *os.File
	written string
	failed  bool
}

// publish makes the file name the content in force. It does nothing while that
// is unchanged and the file is still ours.
func (p *publisher) publish(applied [32]byte, emptied bool) error {
	if p.f != nil && !p.current() {
		p.close() // the directory was moved or the file removed
	}
	if p.f == nil {
		if err := p.open(); err != nil || p.f == nil {
			return err
		}
	}
	text := hex.EncodeToString(applied[:]) + "\n"
	if emptied {
		text = emptiedMark + "\n"
	}
	if text == p.written {
		return nil
	}
	if err := p.f.Truncate(0); err != nil {
		return err
	}
	if _, err := p.f.WriteAt([]byte(text), 0); err != nil {
		return err
	}
	p.written = text
	return nil
}

func (p *publisher) open() error {
	f, err := os.OpenFile(p.path+loadedSuffix, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, durable.PrivateFile)
	if err != nil {
		return err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EINTR) {
			return nil // a waiter's look, or a second follower; the next reload tries again
		}
		return &os.PathError{Op: "lock", Path: f.Name(), Err: err}
	}
	p.f, p.written = f, ""
	return nil
}

func (p *publisher) current() bool {
	held, err := p.f.Stat()
	if err != nil {
		return false
	}
	named, err := os.Lstat(p.path + loadedSuffix)
	return err == nil && os.SameFile(held, named)
}

func (p *publisher) close() {
	if p.f != nil {
		p.f.Close()
		p.f = nil
	}
}

// WaitLoaded returns once the daemon that follows the registry at path has the
// file's present content in force, or at once when no daemon follows it. The
// error of ctx means that the daemon has not taken the file; its log says why.
func WaitLoaded(ctx context.Context, path string) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		done, err := loadedNow(path)
		if done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the running daemon has not loaded %s, see its log: %w", path, ctx.Err())
		case <-tick.C:
		}
	}
}

func loadedNow(path string) (bool, error) {
	f, err := os.OpenFile(path+loadedSuffix, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	if err == nil {
		return true, nil // nobody holds it: no daemon runs
	}
	if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
		return false, &os.PathError{Op: "lock", Path: f.Name(), Err: err}
	}
	var buf [80]byte
	n, _ := f.ReadAt(buf[:], 0)
	data, err := durable.ReadPrivate(path, MaxRegistryBytes)
	if errors.Is(err, durable.ErrUnstable) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	sum := sha256.Sum256(data)
	return bytes.Equal(buf[:n], []byte(hex.EncodeToString(sum[:])+"\n")), nil
}
