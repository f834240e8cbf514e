package stream

import (
	"fmt"
	"sort"
	"sync"
	"sync/atomic"

	"coordinator/frames"
	"coordinator/server/store"
)

const (
	// defaultWindowBytes bounds the shared images in memory.
	defaultWindowBytes = 64 << 20
	// imageOverhead is what an image costs beside its bytes.
	imageOverhead = 192
	// scanStep bounds the entries that are looked at under one hold of the
	// window's lock, so that an append never waits for a long scan.
	scanStep = 1024
	// headSize is the part of a COORD_EVENT frame that differs between
	// subscriptions: header, subscription id and delivery sequence.
	headSize = 35
)

// An image is one event as every subscription sends it. It never changes, so that
// whoever holds it needs no lock and the window needs no count of holders.
type image struct {
	ev   store.Event
	size uint32 // outer length of its COORD_EVENT: what byte credit is charged
	// admin marks no event but that ADMIN records changed before its sequence
	// (protocol.md §6 [D-12]).
	admin bool
	tail  atomic.Pointer[[]byte] // the frame behind its first headSize bytes
}

// set makes i the image of an event.
func (i *image) set(ev store.Event) {
	i.ev, i.size = ev, uint32(frames.EventBytes(len(ev.Payload)))
}

func (i *image) seq() frames.EventSequence { return i.ev.Sequence }

// weight is what the image counts against the window: its payload, the frame
// that shares it, and what surrounds both.
func (i *image) weight() int { return 2*len(i.ev.Payload) + imageOverhead }

// shared returns the bytes that every subscription's frame of this event ends
// with: its fields 3 to 9. They are encoded by whoever needs them first.
func (i *image) shared() ([]byte, error) {
	if t := i.tail.Load(); t != nil {
		return *t, nil
	}
	frame, err := frames.Append(make([]byte, 0, i.size), i.frame(frames.SubscriptionID{1}, 1))
	if err != nil {
		return nil, err
	}
	t := frame[headSize:]
	i.tail.Store(&t)
	return t, nil
}

// frame is the whole COORD_EVENT of one subscription.
func (i *image) frame(id frames.SubscriptionID, n frames.DeliverySequence) *frames.CoordEvent {
	e := &i.ev
	return &frames.CoordEvent{
		SubscriptionID: id, Delivery: n, Sequence: e.Sequence, EventID: e.ID, Kind: e.Kind, Object: e.Object,
		Revision: e.Revision, Schema: e.Schema, Payload: e.Payload,
	}
}

// A window is the newest published events, ascending. Every event behind base and
// up to head is in it.
type window struct {
	max int // bytes

	mu    sync.RWMutex
	ring  []*image // guarded by mu
	start int      // guarded by mu
	n     int      // guarded by mu
	bytes int      // guarded by mu

	base frames.EventCut // guarded by mu
	head frames.EventCut // guarded by mu
}

func newWindow(max int, head frames.EventCut) *window {
	return &window{max: max, ring: make([]*image, 64), base: head, head: head}
}

// append takes in one commit. Entries behind seen are kept whatever they weigh:
// they have not been counted for anybody yet. It reports whether they are more
// than the window may hold.
func (w *window) append(b store.Batch, admin bool, seen frames.EventCut) (full bool) {
	n := len(b.Events)
	if admin {
		n++
	}
	images := make([]image, n)
	for i := range b.Events {
		images[i].set(b.Events[i])
	}
	if admin {
		images[n-1].admin, images[n-1].ev.Sequence = true, b.Last
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if head := frames.EventCut(b.Last); b.First <= b.Last {
		if uint64(b.First) != uint64(w.head)+1 {
			panic(fmt.Sprintf("stream: events %d to %d published at head %d", b.First, b.Last, w.head))
		}
		w.head = head
	}
	for i := range images {
		w.push(&images[i])
	}
	return w.trim(seen)
}

// push adds one entry. The caller holds mu.
func (w *window) push(i *image) {
	if w.n == len(w.ring) {
		grown := make([]*image, 2*len(w.ring))
		for k := range w.n {
			grown[k] = w.at(k)
		}
		w.ring, w.start = grown, 0
	}
	w.ring[(w.start+w.n)%len(w.ring)] = i
	w.n++
	w.bytes += i.weight()
}

func (w *window) at(k int) *image { return w.ring[(w.start+k)%len(w.ring)] }

// trim drops the oldest entries up to seen while the window is over its bound.
// The caller holds mu.
func (w *window) trim(seen frames.EventCut) (full bool) {
	for w.n > 0 && w.bytes > w.max {
		oldest := w.at(0)
		if frames.EventCut(oldest.seq()) > seen {
			return true
		}
		w.ring[w.start] = nil
		w.start = (w.start + 1) % len(w.ring)
		w.n--
		w.bytes -= oldest.weight()
		w.base = frames.EventCut(oldest.seq())
	}
	return false
}

// shrink is trim after more has been counted.
func (w *window) shrink(seen frames.EventCut) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.trim(seen)
}

// published is the newest event sequence that was published.
func (w *window) published() frames.EventCut {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.head
}

// oldest is the sequence behind which every event is here.
func (w *window) oldest() frames.EventCut {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.base
}

// behind is the number of the first entry behind a sequence. The caller holds mu.
func (w *window) behind(after frames.EventCut) int {
	return sort.Search(w.n, func(k int) bool { return frames.EventCut(w.at(k).seq()) > after })
}

// since appends every entry behind after, which nobody may have trimmed, and says
// where they end.
func (w *window) since(after frames.EventCut, out []*image) ([]*image, frames.EventCut) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	for k := w.behind(after); k < w.n; k++ {
		out = append(out, w.at(k))
	}
	return out, w.head
}

// next appends at most most events behind after that a sees, and says up to which
// sequence it has looked. ok is false when the window no longer begins at after.
func (w *window) next(after frames.EventCut, a *audience, most int, out []*image) (_ []*image, through frames.EventCut, ok bool) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if after < w.base {
		return out, after, false
	}
	k := w.behind(after)
	for end := min(w.n, k+scanStep); k < end; k++ {
		i := w.at(k)
		if i.admin || !a.sees(i.ev.Class, i.ev.Principal) {
			continue
		}
		if out = append(out, i); len(out) >= most {
			return out, frames.EventCut(i.seq()), true
		}
	}
	if k < w.n {
		return out, frames.EventCut(w.at(k - 1).seq()), true
	}
	return out, w.head, true
}
