package server

import (
	"errors"
	"sync"

	"coordinator/frames"
)

// errLaneFull ends a connection whose peer does not take its control frames
// (protocol.md §7 [D-40]).
var errLaneFull = errors.New("control lane full")

const (
	// batchBytes bounds what one write carries, and so what a stalled peer can
	// hold of requests that no longer count as outstanding [D-27].
	batchBytes = 64 << 10
	// batchFrames keeps a batch within what one writev takes.
	batchFrames = 512
	// keptReplies is for how many replies a lane that is empty keeps room.
	keptReplies = 64
	// spareReplies is how many refusals may wait beside the replies of charged
	// requests before the reader stops reading.
	spareReplies = 64
)

// outgoing is one whole frame. sent, if any, runs when the frame is about to be
// handed to the transport; it must not block.
// written, if any, is given the frame back when the transport has taken all of it.
type outgoing struct {
	frame   []byte
	sent    func()
	written func(frame []byte)
}

// lanes holds what a connection still has to write: the reserved control lane,
// which goes first and closes the connection when it is full, and the replies.
// Its methods are safe for concurrent use and never block, except waitRoom.
type lanes struct {
	maxReplies int

	mu           sync.Mutex
	control      []outgoing // guarded by mu
	controlBytes int        // guarded by mu
	replies      []outgoing // guarded by mu
	last         bool       // guarded by mu: nothing is accepted any more
	final        []byte     // guarded by mu: the connection's last frame, once there is one
	overflow     bool       // guarded by mu: the control lane was full

	wake chan struct{} // holds one token when there is something to do
	room chan struct{} // holds one token when replies were taken
}

func newLanes(maxReplies int) *lanes {
	return &lanes{maxReplies: maxReplies, wake: make(chan struct{}, 1), room: make(chan struct{}, 1)}
}

// signal leaves a token in c unless one is there.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// putControl queues a control frame. It returns errLaneFull when the reserved
// lane cannot take it, which ends the connection.
func (l *lanes) putControl(frame []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last {
		return nil
	}
	if len(l.control) >= frames.ControlLaneFrames || l.controlBytes+len(frame) > frames.ControlLaneBytes {
		l.last, l.overflow = true, true
		signal(l.wake)
		return errLaneFull
	}
	l.control = append(l.control, outgoing{frame: frame})
	l.controlBytes += len(frame)
	signal(l.wake)
	return nil
}

// putFinal sets the connection's last frame, which goes after the control frames
// that wait, and drops the replies. Later frames of any kind are dropped. It has
// a slot of its own, so a full lane cannot keep it out.
func (l *lanes) putFinal(frame []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last {
		return
	}
	l.last, l.final, l.replies = true, frame, nil
	signal(l.wake)
	signal(l.room)
}

// putReply queues frames that must stay together and in order. It reports false
// when the connection takes no more.
func (l *lanes) putReply(out ...outgoing) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last {
		return false
	}
	l.replies = append(l.replies, out...)
	signal(l.wake)
	return true
}

// finish lets the writer end once it has written what is queued now.
func (l *lanes) finish() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = true
	signal(l.wake)
}

// nudge has the writer look for what it may write.
func (l *lanes) nudge() { signal(l.wake) }

// A load is what one write takes from the lanes, in the order in which it goes out.
type load struct {
	control []outgoing
	replies []outgoing
	final   []byte // after the control frames, and then there are no replies
	bytes   int    // of replies
	more    bool   // replies are left for the next write
	done    bool   // nothing more will come
}

func (o *load) empty() bool { return len(o.control) == 0 && len(o.replies) == 0 && o.final == nil }

// clear forgets what was written and keeps the room for more.
func (o *load) clear() {
	for _, r := range o.replies {
		if r.written != nil {
			r.written(r.frame)
		}
	}
	clear(o.control)
	clear(o.replies)
	*o = load{control: o.control[:0], replies: o.replies[:0]}
}

// take moves the frames of the next write into out: every control frame, and then
// the final one or replies up to [batchBytes] and at least one.
func (l *lanes) take(out *load) error {
	out.clear()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.overflow {
		return errLaneFull
	}
	out.control = append(out.control, l.control...)
	clear(l.control)
	l.control, l.controlBytes = l.control[:0], 0
	out.final, l.final = l.final, nil
	n := 0
	for n < min(len(l.replies), batchFrames) && (n == 0 || out.bytes+len(l.replies[n].frame) <= batchBytes) {
		out.bytes += len(l.replies[n].frame)
		n++
	}
	if n == len(l.replies) {
		out.replies, l.replies = l.replies, out.replies // each gets the other's room
		if cap(l.replies) > keptReplies {
			l.replies = nil
		}
	} else {
		out.replies = append(out.replies, l.replies[:n]...)
		clear(l.replies[:n])
		l.replies = l.replies[n:]
	}
	if n > 0 {
		signal(l.room)
	}
	out.more = len(l.replies) > 0
	out.done = l.last && !out.more
	return nil
}

// waitRoom blocks the reader while the replies of one connection have reached
// their bound, until some were written or stop is closed. It reports whether
// there is room.
func (l *lanes) waitRoom(stop <-chan struct{}) bool {
	for {
		l.mu.Lock()
		full := len(l.replies) >= l.maxReplies
		l.mu.Unlock()
		if !full {
			return true
		}
		select {
		case <-l.room:
		case <-stop:
			return false
		}
	}
}
