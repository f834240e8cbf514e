package quicnet

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/quic-go/quic-go"
)

var (
	// ErrViolation ends a connection whose peer broke the rules: another stream, a
	// datagram, or anything else that QUIC itself refuses.
	ErrViolation = errors.New("the peer broke the rules of the connection")
	// ErrPeerClosed says that the peer has closed the connection, to whoever writes.
	// A reader gets io.EOF.
	ErrPeerClosed = errors.New("the peer closed the connection")
	// ErrRefused says that the peer has ended the connection with an error.
	ErrRefused = errors.New("the peer refuses the connection")
	// ErrLost says that the peer can no longer be reached or has forgotten the
	// connection, as after a restart.
	ErrLost = errors.New("the connection is lost")
	// ErrNotComplete refuses keying material of an unfinished handshake.
	ErrNotComplete = errors.New("the TLS handshake is not complete")
	// ErrGate is the error of a write that its gate has stopped.
	ErrGate = errors.New("the write was stopped")
)

// A Conn is the one stream of a QUIC connection as a net.Conn. Its methods may
// be called from any goroutine.
type Conn struct {
	qc *quic.Conn
	st *quic.Stream

	linger  time.Duration // 0 on a dialled connection
	settled func()        // gives back the listener's charge; nil on a dialled connection
	ended   func()        // gives back the rest, after the QUIC connection has closed

	dmu    sync.Mutex
	closed bool // guarded by dmu: Close was called

	wmu   sync.Mutex
	cut   bool      // guarded by wmu: a write ended in the middle
	finAt time.Time // guarded by wmu: when the sending side was ended
}

// Read reads from the stream. It returns io.EOF after the peer has ended its
// side or closed the connection without an error.
func (c *Conn) Read(p []byte) (int, error) {
	n, err := c.st.Read(p)
	if err != nil && err != io.EOF {
		if err = c.explain(err); errors.Is(err, ErrPeerClosed) {
			err = io.EOF
		}
	}
	return n, err
}

// Write writes to the stream. It returns when all but a packet's worth is on its
// way.
func (c *Conn) Write(p []byte) (int, error) {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	return c.writeLocked(p, nil)
}

// WriteGated writes all buffers. goOn is asked right before each packet's bytes
// are taken, so that a write which waited for a slow peer stops with [ErrGate]
// once it says no. It runs on another goroutine too and must not wait.
func (c *Conn) WriteGated(bufs net.Buffers, goOn func() bool) error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	limit := func(n int) int {
		if goOn() {
			return n
		}
		return 0
	}
	for _, b := range bufs {
		if !goOn() {
			return ErrGate
		}
		if _, err := c.writeLocked(b, limit); err != nil {
			return err
		}
	}
	return nil
}

func (c *Conn) writeLocked(p []byte, limit func(int) int) (int, error) {
	n, err := c.st.WriteWithLimit(p, limit)
	if n > 0 && n < len(p) {
		c.cut = true
	}
	if errors.Is(err, quic.ErrWriteLimitReached) {
		return n, ErrGate
	}
	if err != nil {
		err = c.explain(err)
	}
	return n, err
}

// CloseWrite ends the sending side: the peer reads what was written and then the
// end. It waits for a write that is under way.
func (c *Conn) CloseWrite() error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	return c.finishLocked()
}

func (c *Conn) finishLocked() error {
	if !c.finAt.IsZero() {
		return nil
	}
	c.finAt = time.Now()
	return c.st.Close()
}

// Close ends the connection for this side at once: blocked and later reads and
// writes fail with net.ErrClosed. On a connection of a listener what was written
// still goes out, and the connection itself closes when the peer closes it, or
// at the latest 1 s (Options.Linger) after the end of the sending side, so that
// a last message arrives. A dialled connection is closed when Close returns.
func (c *Conn) Close() error {
	c.dmu.Lock()
	if c.closed {
		c.dmu.Unlock()
		return nil
	}
	c.closed = true
	past := time.Unix(1, 0)
	c.st.SetReadDeadline(past)  //nolint:errcheck // it has no way to fail
	c.st.SetWriteDeadline(past) //nolint:errcheck // it has no way to fail
	c.dmu.Unlock()

	c.wmu.Lock() // a blocked write has returned, cut
	defer c.wmu.Unlock()
	if c.linger == 0 {
		c.end()
		return nil
	}
	if !c.cut {
		c.finishLocked() //nolint:errcheck // the connection may be gone already
	}
	left := time.Duration(0)
	if !c.finAt.IsZero() {
		left = time.Until(c.finAt.Add(c.linger))
	}
	if left <= 0 {
		c.end()
		return nil
	}
	go c.lingerFor(left) // joined by Listener.Finish
	return nil
}

func (c *Conn) lingerFor(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-c.qc.Context().Done():
	case <-t.C:
	}
	c.end()
}

// end closes the QUIC connection and gives back what it held.
func (c *Conn) end() {
	c.qc.CloseWithError(0, "") //nolint:errcheck // always nil
	c.Settled()
	c.ended()
}

// Settled says that the peer has proved itself: the connection no longer counts
// as pending at its listener.
func (c *Conn) Settled() {
	if c.settled != nil {
		c.settled()
	}
}

// Export returns keying material of the TLS session (RFC 8446 §7.5). It is an
// error before the handshake is complete, which includes the check of the
// client's Finished.
func (c *Conn) Export(label string, context []byte, length int) ([]byte, error) {
	select {
	case <-c.qc.HandshakeComplete():
	default:
		return nil, ErrNotComplete
	}
	state := c.qc.ConnectionState()
	if !state.TLS.HandshakeComplete || state.Used0RTT {
		return nil, ErrNotComplete
	}
	return state.TLS.ExportKeyingMaterial(label, context, length)
}

// LocalAddr returns the UDP address of this side.
func (c *Conn) LocalAddr() net.Addr { return c.qc.LocalAddr() }

// RemoteAddr returns the UDP address of the peer, which may change.
func (c *Conn) RemoteAddr() net.Addr { return c.qc.RemoteAddr() }

// SetDeadline sets both deadlines.
func (c *Conn) SetDeadline(t time.Time) error { return c.setDeadline(t, c.st.SetDeadline) }

// SetReadDeadline bounds current and later reads.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.setDeadline(t, c.st.SetReadDeadline) }

// SetWriteDeadline bounds current and later writes. A write that it ends leaves
// the stream cut in the middle.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.setDeadline(t, c.st.SetWriteDeadline) }

func (c *Conn) setDeadline(t time.Time, set func(time.Time) error) error {
	c.dmu.Lock()
	defer c.dmu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	return set(t)
}

// explain puts an error of QUIC into this package's words. What the peer wrote
// into it is left out.
func (c *Conn) explain(err error) error {
	c.dmu.Lock()
	closed := c.closed
	c.dmu.Unlock()
	switch {
	case closed:
		return net.ErrClosed
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, quic.ErrStreamClosed):
		return err
	}
	return explain(err)
}
