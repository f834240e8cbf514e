package client

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"coordinator/internal/durable"
)

// A StateStore keeps the content of a [State]. What Update has returned without an error
// must survive the end of the process: the highest authority seen hangs on it (protocol.md
// §4). [OpenState] uses a file; other stores are for simulations and for hosts that keep
// the memory in a place of their own.
type StateStore interface {
	// Load gives the content, nil when there is none yet.
	Load() ([]byte, error)
	// Update replaces the content by what edit makes of it, whole or not at all, and gives
	// edit's error. No other Update may come in between.
	Update(edit func(old []byte) ([]byte, error)) error
}

// stateFile is the path of a file that any number of processes share.
type stateFile string

// Load reads the file, once more when another process replaced it meanwhile.
func (f stateFile) Load() (raw []byte, err error) {
	for range 5 {
		if raw, err = durable.ReadOwned(string(f), maxStateBytes); !errors.Is(err, durable.ErrUnstable) {
			break
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return raw, err
}

func (f stateFile) Update(edit func(old []byte) ([]byte, error)) error {
	return durable.UpdateOwned(string(f), maxStateBytes, edit)
}

// MemoryStore is a [StateStore] that lives as long as the value does. The zero value is
// empty and ready.
type MemoryStore struct {
	mu  sync.Mutex
	raw []byte // guarded by mu; replaced, never changed
}

// Load implements [StateStore].
func (m *MemoryStore) Load() ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.raw, nil
}

// Update implements [StateStore].
func (m *MemoryStore) Update(edit func(old []byte) ([]byte, error)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	raw, err := edit(m.raw)
	if err != nil {
		return err
	}
	m.raw = raw
	return nil
}

// stageDir is where snapshots and replays that outgrow memory are staged.
func (s *State) stageDir() string {
	if s.path == "" {
		return os.TempDir()
	}
	return filepath.Dir(s.path)
}
