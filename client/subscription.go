package client

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync"

	"coordinator/frames"
)

// maxUnreadGaps bounds the gaps that wait for a consumer; a paused subscription gets few.
const maxUnreadGaps = 8

// ErrUnreadGap says that a subscription is not paused, or that its consumer has not yet
// been told of its latest gap: only a gap that was told can be healed.
var ErrUnreadGap = errors.New("there is no gap that was told and is not healed")

// phase is the state of a subscription (protocol.md §10). A closed one is not kept.
type phase uint8

const (
	phaseReserved  phase = iota // RESERVED_SNAPSHOT
	phaseLive                   // LIVE
	phasePaused                 // PAUSED_GAP
	phaseReplaying              // REPLAYING
)

// credit is a number of events and of bytes.
type credit struct{ count, bytes uint32 }

// A Subscription delivers events in order, each once, and tells gaps. Credit is given by
// itself: as events are taken, room for as many more is granted, up to the window that
// was asked for, so what waits here is bounded and a consumer that stops stops the
// coordinator. It ends with its connection.
//
// Next, Events, Replay and Replace belong to one goroutine at a time, the consumer's.
type Subscription struct {
	conn   *Conn
	window credit // what the balances are kept at

	mu       sync.Mutex // taken inside conn.mu, never around it
	id       frames.SubscriptionID
	phase    phase
	delivery frames.DeliveryCut // guarded by mu: of the last event read
	sent     frames.EventCut    // guarded by mu: the coordinator's last_contiguous_event
	applying bool               // guarded by mu: a REPLAY_APPLIED is unanswered…
	applied  frames.EventCut    // guarded by mu: …of a replay to this cut
	balance  credit             // guarded by mu: what the coordinator may still send
	gaps     int                // guarded by mu: read since BEGIN of the last snapshot or replay
	queue    []queued           // guarded by mu: read and not delivered
	wake     chan struct{}      // holds one element when the queue has grown

	// Owned by the consumer.
	batch    []queued        // taken from the queue and not delivered
	room     []queued        // of the batch, for the queue that follows
	cut      frames.EventCut // of the last event delivered
	owed     credit          // delivered and not yet granted again
	paused   *frames.Gap     // the latest gap told, nil once healed
	replayed *replayed       // verified events that are delivered before the queue
	seen     knowledge
	learn    func(*Snapshot) (knowledge, error)
}

// queued is an event or a gap.
type queued struct {
	event *Event
	size  uint32 // of the event, as its credit is charged
	gap   *frames.Gap
}

// SubscribeOptions say how much may wait here. The zero value asks for as much as the
// hello selected.
type SubscribeOptions struct {
	// CreditCount and CreditBytes are the window of automatic credit. Zero means the
	// selected maxima, which also cap them; room for one event is the least.
	CreditCount, CreditBytes uint32

	// learn makes the knowledge that a snapshot begins; nil keeps revisions alone.
	learn func(*Snapshot) (knowledge, error)
}

func (c *Conn) newSubscription(opts SubscribeOptions, after frames.EventCut, seen knowledge) *Subscription {
	w := credit{c.hello.Limits.CreditCount, c.hello.Limits.CreditBytes} // which holds the largest event (§2.3)
	if opts.CreditCount != 0 {
		w.count = min(w.count, opts.CreditCount)
	}
	if opts.CreditBytes != 0 {
		w.bytes = min(w.bytes, opts.CreditBytes)
	}
	w.bytes = max(w.bytes, c.largestEvent())
	learn := opts.learn
	if learn == nil {
		learn = func(s *Snapshot) (knowledge, error) { return revisionsOf(s) }
	}
	return &Subscription{conn: c, window: w, wake: make(chan struct{}, 1), cut: after, sent: after, seen: seen, learn: learn}
}

// largestEvent is the credit that the largest event of this connection takes.
func (c *Conn) largestEvent() uint32 {
	return uint32(frames.EventBytes(int(c.hello.Limits.TypedPayload)))
}

// registerLocked makes s the subscription of id, in phase. It holds conn.mu.
func (s *Subscription) registerLocked(id frames.SubscriptionID, p phase) error {
	if id == (frames.SubscriptionID{}) || s.conn.subs[id] != nil {
		return fmt.Errorf("%w: a subscription id that is none or in use", ErrProtocol)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conn.subs, s.id)
	s.conn.subs[id] = s
	s.id, s.phase, s.delivery, s.gaps, s.balance, s.applying = id, p, 0, 0, credit{}, false
	return nil
}

// goLiveLocked gives the initial credit, unless a gap came since BEGIN: then the
// subscription is paused, whatever the acceptance says [D-61]. It holds mu.
func (s *Subscription) goLiveLocked() {
	s.applying = false
	if s.gaps > 0 {
		return
	}
	s.phase, s.balance = phaseLive, s.window
}

// event takes one COORD_EVENT, of which it keeps nothing; the reader calls it, and wakes
// the consumer behind the last event that has come.
func (c *Conn) event(f *frames.CoordEvent, outer uint32) error {
	s := c.lockFor(f.SubscriptionID)
	if s == nil {
		return fmt.Errorf("%w: an event for no subscription", ErrProtocol)
	}
	defer s.mu.Unlock()
	switch {
	case s.phase != phaseLive:
		return fmt.Errorf("%w: an event on a subscription that is not live", ErrProtocol)
	case f.Delivery != frames.DeliverySequence(s.delivery)+1:
		return fmt.Errorf("%w: delivery %d follows %d", ErrProtocol, f.Delivery, s.delivery)
	case f.Sequence <= frames.EventSequence(s.sent):
		return fmt.Errorf("%w: event %d follows %d", ErrProtocol, f.Sequence, s.sent)
	case s.balance.count == 0 || s.balance.bytes < outer:
		return fmt.Errorf("%w: an event that no credit covers", ErrProtocol)
	}
	s.balance.count--
	s.balance.bytes -= outer
	s.delivery, s.sent = frames.DeliveryCut(f.Delivery), frames.EventCut(f.Sequence)
	s.queue = append(s.queue, queued{size: outer, event: &Event{
		Sequence: f.Sequence, ID: f.EventID, Kind: f.Kind, Object: f.Object,
		Revision: f.Revision, Schema: f.Schema, Payload: bytes.Clone(f.Payload), Delivery: f.Delivery,
	}})
	if c.fresh != s {
		if c.fresh != nil {
			c.fresh.nudge()
		}
		c.fresh = s
	}
	return nil
}

// lockFor finds the subscription of an event and locks it; nil when there is none. One
// after another are mostly of the same.
func (c *Conn) lockFor(id frames.SubscriptionID) *Subscription {
	if s := c.reading; s != nil {
		if s.mu.Lock(); s.id == id {
			return s
		}
		s.mu.Unlock()
	}
	s := c.subscription(id)
	if s != nil {
		c.reading = s
		s.mu.Lock()
	}
	return s
}

// gap takes one GAP; the reader calls it. What it says of the last event must be what was
// read: events that were sent and not read would be lost for ever.
func (c *Conn) gap(f *frames.Gap) error {
	s := c.subscription(f.SubscriptionID)
	if s == nil {
		return fmt.Errorf("%w: a gap of no subscription", ErrProtocol)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.LastDelivery != s.delivery {
		return fmt.Errorf("%w: a gap after delivery %d, delivery %d was read", ErrProtocol, f.LastDelivery, s.delivery)
	}
	switch {
	case f.LastEvent == s.sent: // also when a replay was void before it was applied
	case s.applying && f.LastEvent == s.applied:
		s.sent = s.applied
	default:
		return fmt.Errorf("%w: a gap after event %d, event %d was read", ErrProtocol, f.LastEvent, s.sent)
	}
	if s.gaps++; s.unreadGapsLocked() >= maxUnreadGaps {
		return fmt.Errorf("%w: more gaps than a paused subscription has", ErrProtocol)
	}
	s.phase, s.balance, s.applying = phasePaused, credit{}, false
	s.queue = append(s.queue, queued{gap: f})
	s.nudge()
	return nil
}

func (s *Subscription) unreadGapsLocked() (n int) {
	for i := len(s.queue) - 1; i >= 0 && s.queue[i].gap != nil; i-- {
		n++
	}
	return n
}

func (c *Conn) subscription(id frames.SubscriptionID) *Subscription {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.subs[id]
}

// nudge tells the consumer that the queue has grown.
func (s *Subscription) nudge() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// keptRoom is up to how many places the room of a batch is kept for the next one.
const keptRoom = 256

// pop takes the head of the queue. The events that lie there are taken all at once.
func (s *Subscription) pop() (q queued, ok bool) {
	if len(s.batch) == 0 && !s.takeBatch() {
		return q, false
	}
	q = s.batch[0]
	s.batch[0] = queued{}
	s.batch = s.batch[1:]
	return q, true
}

// takeBatch moves the events at the head of the queue, or one gap, to the empty batch. It
// reports whether there was something.
func (s *Subscription) takeBatch() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for n < len(s.queue) && s.queue[n].gap == nil {
		n++
	}
	switch {
	case len(s.queue) == 0:
		return false
	case n < len(s.queue): // a gap, behind which little comes
		n = max(n, 1)
		s.batch = slices.Clone(s.queue[:n])
		s.queue = slices.Delete(s.queue, 0, n)
		return true
	}
	s.batch = s.queue
	s.queue, s.room = s.room[:0], nil
	if cap(s.batch) <= keptRoom {
		s.room = s.batch
	}
	return true
}

// head is the next thing to be delivered of those that came live; for the consumer's goroutine.
func (s *Subscription) head() (q queued, ok bool) {
	if len(s.batch) > 0 {
		return s.batch[0], true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) == 0 {
		return q, false
	}
	return s.queue[0], true
}

// waiting reports whether an event is the next thing to be delivered. Like pending it is
// for the consumer's goroutine.
func (s *Subscription) waiting() bool {
	q, _ := s.head()
	return !s.pending() && q.event != nil
}

// isPaused reports whether the latest gap has been told and is not healed.
func (s *Subscription) isPaused() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.paused != nil && s.replayed == nil && s.phase == phasePaused && len(s.batch)+len(s.queue) == 0
}
