// Package stdio reads and writes a process's standard streams so that the end of a context ends it.
package stdio

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// errStopped ends reads and writes once the context has ended.
var errStopped = errors.New("the program is ending")

// pipeAtOnce is what a stream that poll calls writable takes without blocking: POSIX's
// _POSIX_PIPE_BUF would be 512; Linux has 4096, and so has every system this runs on.
const pipeAtOnce = 4096

// An interrupter ends waits for standard streams, whose blocking reads and writes nothing else
// ends: neither Close nor a deadline reaches a descriptor that others share.
type interrupter struct {
	r, w *os.File
	once sync.Once
}

func newInterrupter() (*interrupter, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	return &interrupter{r: r, w: w}, nil
}

// stop ends every wait, now and later.
func (i *interrupter) stop() { i.once.Do(func() { i.w.Close() }) }

// close gives the descriptors back, once nobody waits any more.
func (i *interrupter) close() {
	i.stop()
	i.r.Close()
}

// wait returns once f is ready for events, or with errStopped.
func (i *interrupter) wait(f *os.File, events int16) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	wake, err := i.r.SyscallConn()
	if err != nil {
		return err
	}
	var werr error
	err = conn.Control(func(fd uintptr) {
		cerr := wake.Control(func(stop uintptr) { werr = poll(int32(fd), events, int32(stop)) })
		werr = errors.Join(werr, cerr)
	})
	return errors.Join(err, werr)
}

func poll(fd int32, events int16, stop int32) error {
	for {
		set := []unix.PollFd{{Fd: fd, Events: events}, {Fd: stop, Events: unix.POLLIN}}
		_, err := unix.Poll(set, -1)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return os.NewSyscallError("poll", err)
		case set[0].Revents != 0: // an error, too, which the call that follows will tell
			return nil
		default:
			return errStopped
		}
	}
}

// A stdin is a standard input that an interrupter ends.
type stdin struct {
	*interrupter
	f *os.File
}

func (s stdin) Read(b []byte) (int, error) {
	if err := s.wait(s.f, unix.POLLIN); err != nil {
		return 0, io.EOF
	}
	return s.f.Read(b)
}

func (stdin) Close() error { return nil } // it is the process's

// A stdout is a standard output that an interrupter ends where its reader has stopped reading.
type stdout struct {
	*interrupter
	f *os.File
}

func (s stdout) Write(b []byte) (n int, err error) {
	for n < len(b) {
		if err := s.wait(s.f, unix.POLLOUT); err != nil {
			return n, err
		}
		m, err := s.f.Write(b[n:min(len(b), n+pipeAtOnce)])
		n += m
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// Close ends the wait for a reader that has stopped reading. The stream stays the process's.
func (s stdout) Close() error {
	s.stop()
	return nil
}

// Open gives the two ends of a process's standard streams, which ctx ends: reads with io.EOF. release
// gives back what they hold, once nobody reads or writes any more.
func Open(ctx context.Context, in, out *os.File) (r io.ReadCloser, w io.WriteCloser, release func(), err error) {
	i, err := newInterrupter()
	if err != nil {
		return nil, nil, nil, err
	}
	stop := context.AfterFunc(ctx, i.stop)
	return stdin{i, in}, stdout{i, out}, func() { stop(); i.close() }, nil
}
