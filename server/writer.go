package server

import (
	"errors"
	"net"
	"syscall"

	"golang.org/x/sys/unix"

	"coordinator/frames"
	"coordinator/server/authority"
)

// errFenced ends the writer of a connection after AUTHORITY_FENCED.
var errFenced = errors.New("authority fenced")

// writeLoop is the connection's sole writer. It drains the control lane first,
// then the replies, and returns once nothing more will come, the transport
// failed, or the fence closed. Every write passes the fence and the grant
// (protocol.md §4 [D-48]).
func (c *conn) writeLoop() error {
	var batch []outgoing
	for {
		var done bool
		var err error
		if batch, done, err = c.lanes.take(batch[:0]); err != nil {
			return err
		}
		if len(batch) == 0 {
			if done {
				return nil
			}
			select {
			case <-c.lanes.wake:
			case <-c.srv.fence.Fenced():
				return c.writeFenced()
			case <-c.gone:
				return errAborted
			}
			continue
		}
		switch begun, err := c.writeBatch(batch); {
		case errors.Is(err, authority.ErrFenced) && !begun:
			return c.writeFenced()
		case err != nil:
			return err
		case done:
			return nil
		}
		clear(batch)
	}
}

// writeBatch hands whole frames to the transport in one vectored write. begun
// says that part of a frame may be out, so that no other frame can follow.
func (c *conn) writeBatch(batch []outgoing) (begun bool, err error) {
	leave, err := c.gate()
	if err != nil {
		return false, err
	}
	defer leave()
	if g := c.grant.Load(); g != nil && g.Err(c.srv.clock.Now()) != nil {
		// Nothing of the batch may leave under a grant that is gone (§5.5).
		c.lanes.finish()
		_, err := c.nc.Write(c.errorFrame(0, frames.CodeAuthenticationFailed, textGrantEnded))
		if err == nil {
			err = errGrantEnded
		}
		return true, err
	}
	bufs := make(net.Buffers, 0, len(batch))
	for _, o := range batch {
		if o.sent != nil {
			o.sent()
		}
		if len(o.frame) > 0 {
			bufs = append(bufs, o.frame)
		}
	}
	return true, c.push(bufs)
}

// push writes whole frames. On a socket it makes the system calls itself, so
// that the fence is checked before each of them: a write that waited for a slow
// peer, or a process that was stopped in it, does not go on past the deadline.
func (c *conn) push(bufs net.Buffers) error {
	sc, ok := c.nc.(syscall.Conn)
	if !ok {
		_, err := bufs.WriteTo(c.nc)
		return err
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Write(func(fd uintptr) (done bool) {
		for len(bufs) > 0 {
			if failed = c.srv.fence.Check(); errors.Is(failed, authority.ErrFenced) {
				return true
			}
			failed = nil
			n, err := unix.Writev(int(fd), bufs)
			switch {
			case errors.Is(err, unix.EAGAIN):
				return false
			case errors.Is(err, unix.EINTR):
			case err != nil:
				failed = err
				return true
			default:
				consume(&bufs, n)
			}
		}
		return true
	})
	if failed != nil {
		return failed
	}
	return err
}

// consume drops the first n bytes.
func consume(bufs *net.Buffers, n int) {
	for len(*bufs) > 0 && n >= len((*bufs)[0]) {
		n -= len((*bufs)[0])
		*bufs = (*bufs)[1:]
	}
	if n > 0 {
		(*bufs)[0] = (*bufs)[0][n:]
	}
}

// gate enters the fence, waiting while the clocks have diverged [D-9]. It
// returns an error that wraps [authority.ErrFenced], or errAborted.
func (c *conn) gate() (leave func(), err error) {
	for {
		changed := c.srv.fence.Changed()
		leave, err := c.srv.fence.Enter()
		if !errors.Is(err, authority.ErrDiverged) {
			return leave, err
		}
		select {
		case <-changed:
		case <-c.gone:
			return nil, errAborted
		}
	}
}

// writeFenced writes the one frame that a fenced process may still send. It
// needs no gate: the fence is final.
func (c *conn) writeFenced() error {
	c.lanes.finish()
	if _, err := c.nc.Write(c.errorFrame(0, frames.CodeAuthorityFenced, textFenced)); err != nil {
		return err
	}
	return errFenced
}
