package top

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"

	"coordinator/cmd/internal/stdio"
)

// An input is a terminal to be read whose reads end with a context. The terminal library closes
// what it reads from while a goroutine of its own, which it does not join, may still be about to
// read; it takes a file without a name as something that it must not close.
type input struct {
	f       *os.File
	r       io.Reader
	release func()

	mu   sync.Mutex // held for as long as a read lasts
	over bool       // guarded by mu: no read begins any more
}

var errOver = errors.New("the terminal is not read any more")

func newInput(ctx context.Context, f *os.File) (*input, error) {
	r, _, release, err := stdio.Open(ctx, f, f)
	if err != nil {
		return nil, err
	}
	return &input{f: f, r: r, release: release}, nil
}

// Read is of the terminal, until the context has ended.
func (i *input) Read(p []byte) (int, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.over {
		return 0, errOver
	}
	return i.r.Read(p)
}

// end waits for the last read and gives back what the input holds. The context has ended.
func (i *input) end() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.over = true
	i.release()
}

func (i *input) Write(p []byte) (int, error) { return i.f.Write(p) }

// Close leaves the terminal open: it is the process's.
func (i *input) Close() error { return nil }

// Fd is by which the terminal is made raw.
func (i *input) Fd() uintptr { return i.f.Fd() }
