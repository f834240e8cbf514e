package server

import (
	"errors"
	"net"
	"syscall"

	"golang.org/x/sys/unix"

	"coordinator/frames"
	"coordinator/server/authority"
	"coordinator/server/stream"
)

// errFenced ends the writer of a connection after AUTHORITY_FENCED.
var errFenced = errors.New("authority fenced")

// writeLoop is the connection's sole writer. Each write carries control frames and
// GAPs first, then replies, then the events that credit covers. It returns once
// nothing more will come, the transport failed, or the fence closed. Every write
// passes the fence and the grant (protocol.md §4 [D-48]).
func (c *conn) writeLoop() error {
	var out load
	var g gather
	for {
		feed := c.feed.Load()
		if feed != nil {
			feed.Fetch(batchFrames, batchBytes)
		}
		if err := c.lanes.take(&out); err != nil {
			return err
		}
		if out.empty() && (out.done || feed == nil || !feed.Ready()) {
			if out.done {
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
		begun, err := c.write(&out, feed, &g)
		g.reset()
		switch {
		case errors.Is(err, authority.ErrFenced) && !begun:
			return c.writeFenced()
		case err != nil:
			return err
		case out.done:
			return nil
		}
	}
}

// write hands whole frames to the transport in one vectored write. begun says that
// part of a frame may be out, so that no other frame can follow.
func (c *conn) write(out *load, feed *stream.Session, g *gather) (begun bool, err error) {
	leave, err := c.gate()
	if err != nil {
		return false, err
	}
	defer leave()
	if grant := c.grant.Load(); grant != nil && grant.Err(c.srv.clock.Now()) != nil {
		// Nothing else may leave under a grant that is gone (§5.5).
		c.lanes.finish()
		c.last(g, frames.GapGrantRevoked, frames.CodeAuthenticationFailed, textGrantEnded)
		if err := c.push(g.bufs); err != nil {
			return true, err
		}
		return true, errGrantEnded
	}
	for _, o := range out.control {
		g.whole(o.frame)
	}
	if feed != nil {
		feed.Gaps(g.whole)
	}
	for _, o := range out.replies {
		if o.sent != nil {
			o.sent()
		}
		g.whole(o.frame)
	}
	g.whole(out.final)
	if feed != nil && !out.more && !out.done {
		feed.Pull(stream.Batch{
			Frames: batchFrames - len(out.replies), Bytes: batchBytes - out.bytes, Emit: g.event,
		})
		g.flush()
	}
	return true, c.push(g.bufs)
}

// last collects the frames that end the connection for a reason that also ends its
// subscriptions: a GAP for each, then the error.
func (c *conn) last(g *gather, reason frames.GapReason, code frames.Code, text string) {
	if feed := c.feed.Load(); feed != nil {
		feed.Final(reason, g.whole)
	}
	g.whole(c.errorFrame(0, code, text))
}

// push writes whole frames. On a socket it makes the system calls itself, so
// that the fence is checked before each of them: a write that waited for a slow
// peer, or a process that was stopped in it, does not go on past the deadline. Nor
// does it once the clocks have diverged, since nobody knows then how long it was
// stopped: half a frame may be out, so the connection ends.
// While the peer takes nothing for long, what is pending for it counts as unsent.
func (c *conn) push(bufs net.Buffers) error {
	if len(bufs) == 0 {
		return nil
	}
	sc, ok := c.nc.(syscall.Conn)
	if !ok {
		c.stalled(true)
		defer c.stalled(false)
		return c.pushStream(bufs)
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	waited := false
	err = raw.Write(func(fd uintptr) (done bool) {
		for len(bufs) > 0 {
			if failed = c.srv.fence.Check(); failed != nil {
				return true
			}
			n, err := writev(int(fd), bufs[:min(len(bufs), maxVectors)])
			switch {
			case errors.Is(err, unix.EAGAIN):
				if !waited {
					waited = true
					c.stalled(true)
				}
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
	if waited {
		c.stalled(false)
	}
	if failed != nil {
		return failed
	}
	return err
}

// stalled tells the connection's subscriptions whether the peer takes what is
// written.
func (c *conn) stalled(now bool) {
	c.stuck.Store(now)
	if feed := c.feed.Load(); feed != nil {
		feed.Stalled(now)
	}
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
		if leave, err = c.srv.fence.Enter(); !errors.Is(err, authority.ErrDiverged) {
			return leave, err
		}
		changed := c.srv.fence.Changed()
		if leave, err = c.srv.fence.Enter(); !errors.Is(err, authority.ErrDiverged) {
			return leave, err // it was renewed meanwhile
		}
		select {
		case <-changed:
		case <-c.gone:
			return nil, errAborted
		}
	}
}

// writeFenced writes what a fenced process may still send: a GAP for each
// subscription and the error. It needs no gate: the fence is final.
func (c *conn) writeFenced() error {
	c.lanes.finish()
	var g gather
	c.last(&g, frames.GapEpochChanged, frames.CodeAuthorityFenced, textFenced)
	if _, err := g.bufs.WriteTo(c.nc); err != nil {
		return err
	}
	return errFenced
}
