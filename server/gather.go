package server

import (
	"net"
	"sync"
)

const (
	// copyBelow is the size up to which the shared bytes of an event are copied
	// beside its head: one copy costs less than another piece of a vectored write.
	copyBelow = 1 << 10
	// chunkSize is what copies are gathered in. Most writes need one.
	chunkSize = batchBytes
	// maxVectors is how many pieces one vectored write may have (IOV_MAX).
	maxVectors = 1024
)

// chunks are shared by all connections: one that has nothing to send holds none.
var chunks = sync.Pool{New: func() any { return new([chunkSize]byte) }}

// gather collects the pieces of one write, in order. It belongs to a writeLoop.
type gather struct {
	bufs  net.Buffers
	used  []*[chunkSize]byte
	chunk []byte // of the last of used
	mark  int    // chunk[mark:] is not among bufs yet
}

// whole adds a frame that nobody changes any more.
func (g *gather) whole(frame []byte) {
	if len(frame) == 0 {
		return
	}
	g.flush()
	g.bufs = append(g.bufs, frame)
}

// event adds a frame in two parts. The head is copied; the tail never changes.
func (g *gather) event(head, tail []byte) {
	need := len(head)
	if len(tail) <= copyBelow {
		need += len(tail)
	}
	if cap(g.chunk)-len(g.chunk) < need {
		g.flush()
		next := chunks.Get().(*[chunkSize]byte)
		g.used = append(g.used, next)
		g.chunk, g.mark = next[:0], 0
	}
	g.chunk = append(g.chunk, head...)
	if len(tail) <= copyBelow {
		g.chunk = append(g.chunk, tail...)
		return
	}
	g.whole(tail)
}

// flush adds what was copied.
func (g *gather) flush() {
	if n := len(g.chunk); n > g.mark {
		g.bufs = append(g.bufs, g.chunk[g.mark:n:n])
		g.mark = n
	}
}

// reset lets go of everything, once nobody reads it any more.
func (g *gather) reset() {
	clear(g.bufs)
	for _, c := range g.used {
		chunks.Put(c)
	}
	clear(g.used)
	*g = gather{bufs: g.bufs[:0], used: g.used[:0]}
}
