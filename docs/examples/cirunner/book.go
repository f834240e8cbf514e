package cirunner

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"coordinator/client"
)

// A book holds the commands that a build has sent or is about to send, by step.
type book struct {
	path string
	lock *os.File // held as long as the book is open

	// Steps are the commands by their names.
	Steps map[string]client.Command `json:"steps"`
	// Lost is the loss of history that was known when the build began.
	Lost *client.LostHistory `json:"lost,omitempty"`
}

// openBook opens the book in dir, a directory of this build alone. Two runners of one build would
// each write a book of their own over the other's, so the second is refused.
func openBook(dir string) (_ *book, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	b := &book{path: filepath.Join(dir, "book.json"), Steps: map[string]client.Command{}}
	if b.lock, err = os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(b.lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("another runner is at work in %s: %w", dir, err), b.lock.Close())
	}
	raw, err := os.ReadFile(b.path)
	if err == nil {
		err = json.Unmarshal(raw, b) // never begun anew: what was sent would be forgotten
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, errors.Join(fmt.Errorf("%s: %w", b.path, err), b.lock.Close())
	}
	return b, nil
}

// keep makes a command durable: after it has returned nil, no crash forgets the command, and
// before that it must not be sent.
func (b *book) keep(step string, cmd client.Command) error {
	b.Steps[step] = cmd
	raw, err := json.MarshalIndent(b, "", "\t")
	if err != nil {
		return err
	}
	fresh := b.path + ".new"
	if err := writeSynced(fresh, raw); err != nil {
		return err
	}
	if err := os.Rename(fresh, b.path); err != nil { // the old book or the new one, never half of one
		return err
	}
	dir, err := os.Open(filepath.Dir(b.path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close()) // or a power cut could bring the old one back
}

func writeSynced(path string, raw []byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(raw)
	return errors.Join(err, f.Sync(), f.Close())
}

func (b *book) close() error { return b.lock.Close() }
