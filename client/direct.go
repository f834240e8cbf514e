package client

import (
	"errors"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// A direct writes to a socket what it takes at once. Nearly every request fits, and a write
// that cannot wait needs nobody to watch whether its caller gives up. It belongs to whoever
// holds the connection's wlock.
type direct struct {
	raw syscall.RawConn
	try func(fd uintptr) bool // d.attempt as a value, so that a write allocates nothing
	buf []byte
	n   int
	err error
}

// newDirect is nil for a transport that is no socket of its own.
func newDirect(nc net.Conn) *direct {
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return nil
	}
	d := &direct{raw: raw}
	d.try = d.attempt
	return d
}

// write takes what it can of buf without waiting; a full socket is no error.
func (d *direct) write(buf []byte) (int, error) {
	d.buf, d.n, d.err = buf, 0, nil
	if err := d.raw.Write(d.try); err != nil {
		return d.n, err
	}
	d.buf = nil
	return d.n, d.err
}

func (d *direct) attempt(fd uintptr) (done bool) {
	for {
		n, err := unix.Write(int(fd), d.buf)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
		case err != nil:
			d.err = err
		default:
			d.n = n
		}
		return true
	}
}
