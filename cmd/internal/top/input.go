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

	mu    sync.Mutex
	reads int           // guarded by mu
	over  bool          // guarded by mu: no read begins any more
	rest  chan struct{} // closed once over and no read is under way
}

var errOver = errors.New("the terminal is not read any more")

func newInput(ctx context.Context, f *os.File) (*input, error) {
	r, _, release, err := stdio.Open(ctx, f, f)
	if err != nil {
		return nil, err
	}
	return &input{f: f, r: r, release: release, rest: make(chan struct{})}, nil
}

// Read is of the terminal, until the context has ended.
func (i *input) Read(p []byte) (int, error) {
	i.mu.Lock()
	if i.over {
		i.mu.Unlock()
		return 0, errOver
	}
	i.reads++
	i.mu.Unlock()
	n, err := i.r.Read(p)
	i.mu.Lock()
	i.reads--
	i.restLocked()
	i.mu.Unlock()
	return n, err
}

func (i *input) restLocked() {
	if i.over && i.reads == 0 {
		select {
		case <-i.rest:
		default:
			close(i.rest)
		}
	}
}

// end waits for the last read and gives back what the input holds. The context has ended.
func (i *input) end() {
	i.mu.Lock()
	i.over = true
	i.restLocked()
	i.mu.Unlock()
	<-i.rest
	i.release()
}

func (i *input) Write(p []byte) (int, error) { return i.f.Write(p) }

// Close leaves the terminal open: it is the process's.
func (i *input) Close() error { return nil }

// Fd is by which the terminal is made raw.
func (i *input) Fd() uintptr { return i.f.Fd() }
