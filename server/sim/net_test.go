package sim

import (
	"encoding/binary"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"time"

	"coordinator/handshake"
	"coordinator/internal/quicnet"
	"coordinator/internal/sock"
)

// A network carries the bytes between clients and coordinators, one frame at a time and in
// an order that the seed draws: each connection keeps its own order, and none waits for
// another.
type network struct {
	w *world

	sum    hash.Hash64 // of all bytes that have moved, in order
	mu     sync.Mutex
	wires  []*wire // guarded by mu: those with an end that is in use
	dialed int     // guarded by mu
}

// A wire is one connection.
type wire struct {
	net    *network
	id     int
	client *simClient
	node   *node
	// lineage is what the coordinator's clients were promised, as long as the wire lasts.
	lineage *lineage
	window  int // bytes that may be under way in each direction
	ends    [2]*end
	watch   watch

	mu     sync.Mutex
	moved  *sync.Cond // of mu: anything about the wire has changed
	reset  [2]bool    // guarded by mu: as seen from each end
	frozen [2]bool    // guarded by mu: what an end writes does not get through
}

// The ends of a wire.
const (
	clientSide = 0
	serverSide = 1
)

// An end is one side of a wire, as a net.Conn. Its fields are guarded by the wire's mu.
type end struct {
	wire  *wire
	side  int
	in    []byte // has arrived
	out   []byte // is under way to the other end
	head  []byte // of the length of the frame that out begins in, what was moved
	left  int    // of that frame, bytes not moved yet
	fin   bool   // nothing more will be written
	eof   bool   // the other end's fin has arrived
	gone  bool   // closed by its owner
	late  [2]bool
	seen  []byte // of what was written, the frame that is not whole yet
	taken []byte // of what has arrived, likewise
}

// The deadlines of an end.
const (
	reading = 0
	writing = 1
)

// open makes a wire between a client and the process that runs on n.
func (nw *network) open(c *simClient, n *node, rng *rand.Rand) *wire {
	nw.mu.Lock()
	defer nw.mu.Unlock()
	nw.dialed++
	w := &wire{net: nw, id: nw.dialed, client: c, node: n, lineage: n.lineage, window: 64 << 10}
	if rng.IntN(4) == 0 {
		w.window = 512
	}
	w.moved = sync.NewCond(&w.mu)
	w.watch.init(w)
	for side := range w.ends {
		w.ends[side] = &end{wire: w, side: side}
	}
	nw.wires = append(nw.wires, w)
	return w
}

// channel is what binds a proof to any wire: all ends are of this process.
func channel() handshake.Channel { return handshake.UDSPeer{Cred: sock.SelfCred()} }

// open reports the wires that are in use, oldest first.
func (nw *network) inUse() []*wire {
	nw.mu.Lock()
	defer nw.mu.Unlock()
	kept := nw.wires[:0]
	for _, w := range nw.wires {
		if !w.over() {
			kept = append(kept, w)
		}
	}
	clear(nw.wires[len(kept):])
	nw.wires = kept
	return append([]*wire(nil), kept...)
}

// over reports whether both owners have let go.
func (w *wire) over() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ends[0].gone && w.ends[1].gone
}

// ready gives the ends from which something can move.
func (nw *network) ready() (ready []*end) {
	for _, w := range nw.inUse() {
		w.mu.Lock()
		for side, e := range w.ends {
			other := w.ends[1-side]
			blocked := w.frozen[side] || w.reset[0] || w.reset[1] || side == clientSide && w.node.asleep()
			if !blocked && (len(e.out) > 0 || e.fin && !other.eof) {
				ready = append(ready, e)
			}
		}
		w.mu.Unlock()
	}
	return ready
}

// asleep reports whether nothing runs on the machine.
func (n *node) asleep() bool { return n.clock.paused != nil }

// run moves what is under way in up to k steps, and lets whoever gets it act on it.
func (nw *network) run(k int) (moved int) {
	for ; moved < k; moved++ {
		ready := nw.ready()
		if len(ready) == 0 {
			break
		}
		e := ready[nw.w.rng.IntN(len(ready))]
		limit := 1 << 30
		if nw.w.rng.IntN(10) == 0 {
			limit = 1 + nw.w.rng.IntN(40)
		}
		e.move(limit)
		nw.w.settle()
	}
	return moved
}

// move delivers up to limit bytes of one frame, or the end of the stream.
func (e *end) move(limit int) {
	w := e.wire
	w.mu.Lock()
	defer w.mu.Unlock()
	n := e.frame(limit)
	other := w.ends[1-e.side]
	if n == 0 && e.fin {
		other.eof = true
	}
	part := e.out[:n]
	fmt.Fprintf(w.net.sum, "%d %d %x", w.id, e.side, part)
	if !other.gone {
		other.in = append(other.in, part...)
	}
	if e.side == clientSide {
		e.taken = whole(e.taken, part, w.watch.arrived)
	}
	e.out = append([]byte(nil), e.out[n:]...)
	w.moved.Broadcast()
}

// frame is how many bytes of out are the next frame, or of it, up to limit.
func (e *end) frame(limit int) (n int) {
	for n < min(len(e.out), limit) {
		if e.left == 0 {
			e.head = append(e.head, e.out[n])
			n++
			if len(e.head) == 4 {
				e.left = int(binary.BigEndian.Uint32(e.head))
				e.head = nil
			}
			continue
		}
		k := min(e.left, len(e.out)-n, limit-n)
		n += k
		if e.left -= k; e.left == 0 {
			break
		}
	}
	return n
}

// whole adds bytes to what is there and takes out each frame that is whole.
func whole(have, more []byte, take func(frame []byte)) []byte {
	have = append(have, more...)
	for len(have) >= 5 {
		n := 4 + int(binary.BigEndian.Uint32(have))
		if len(have) < n {
			break
		}
		take(have[:n])
		have = append([]byte(nil), have[n:]...)
	}
	return have
}

// cut ends a wire at any byte of what is under way, for one end after the other.
func (w *wire) cut() {
	rng := w.net.w.rng
	first := rng.IntN(2)
	for _, side := range [2]int{first, 1 - first} {
		w.mu.Lock()
		n := len(w.ends[1-side].out)
		w.mu.Unlock()
		if n > 0 && rng.IntN(2) == 0 {
			w.ends[1-side].move(1 + rng.IntN(n))
			w.net.w.settle()
		}
		w.break_(side)
	}
}

// break_ resets the wire as seen from one end.
func (w *wire) break_(side int) {
	w.mu.Lock()
	w.reset[side] = true
	w.moved.Broadcast()
	w.mu.Unlock()
	w.net.w.settle()
}

var errReset = &net.OpError{Op: "read", Net: "sim", Err: os.NewSyscallError("read", errConnReset{})}

type errConnReset struct{}

func (errConnReset) Error() string { return "connection reset by peer" }

func (e *end) Read(p []byte) (int, error) {
	w := e.wire
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		switch {
		case e.gone:
			return 0, net.ErrClosed
		case e.late[reading]:
			return 0, os.ErrDeadlineExceeded
		case len(e.in) > 0:
			n := copy(p, e.in)
			e.in = e.in[n:]
			w.moved.Broadcast()
			return n, nil
		case w.reset[e.side]:
			return 0, errReset
		case e.eof:
			return 0, io.EOF
		}
		w.moved.Wait()
	}
}

func (e *end) Write(p []byte) (int, error) {
	return e.write(p, func() bool { return true })
}

// WriteGated writes all buffers; goOn is asked before any bytes are taken.
func (e *end) WriteGated(bufs net.Buffers, goOn func() bool) error {
	for _, b := range bufs {
		if _, err := e.write(b, goOn); err != nil {
			return err
		}
	}
	return nil
}

func (e *end) write(p []byte, goOn func() bool) (n int, err error) {
	w := e.wire
	w.mu.Lock()
	defer w.mu.Unlock()
	for n < len(p) {
		switch room := w.window - len(e.out); {
		case e.gone || e.fin:
			return n, net.ErrClosed
		case w.reset[e.side]:
			return n, errReset
		case e.late[writing]:
			return n, os.ErrDeadlineExceeded
		case e.side == serverSide && w.node.asleep(): // nothing runs there
		case room > 0:
			if !goOn() {
				return n, quicnet.ErrGate
			}
			part := p[n:min(len(p), n+room)]
			e.out = append(e.out, part...)
			if e.side == serverSide {
				e.seen = whole(e.seen, part, w.watch.sent)
			}
			n += len(part)
			continue
		}
		w.moved.Wait()
	}
	return n, nil
}

// Close ends both halves; what was written still gets through.
func (e *end) Close() error {
	e.wire.mu.Lock()
	defer e.wire.mu.Unlock()
	e.fin, e.gone = true, true
	e.in = nil
	e.wire.moved.Broadcast()
	return nil
}

// CloseWrite ends the writing half.
func (e *end) CloseWrite() error {
	e.wire.mu.Lock()
	defer e.wire.mu.Unlock()
	e.fin = true
	e.wire.moved.Broadcast()
	return nil
}

// deadline sets one that has passed, or lifts it; nobody here sets another.
func (e *end) deadline(which int, t time.Time) {
	e.wire.mu.Lock()
	defer e.wire.mu.Unlock()
	e.late[which] = !t.IsZero()
	e.wire.moved.Broadcast()
}

func (e *end) SetDeadline(t time.Time) error {
	e.deadline(reading, t)
	e.deadline(writing, t)
	return nil
}

func (e *end) SetReadDeadline(t time.Time) error  { e.deadline(reading, t); return nil }
func (e *end) SetWriteDeadline(t time.Time) error { e.deadline(writing, t); return nil }

func (e *end) LocalAddr() net.Addr  { return addr{} }
func (e *end) RemoteAddr() net.Addr { return addr{} }

type addr struct{}

func (addr) Network() string { return "sim" }
func (addr) String() string  { return "sim" }
