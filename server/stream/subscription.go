package stream

import (
	"encoding/binary"
	"fmt"

	"coordinator/codec"
	"coordinator/frames"
	"coordinator/server/quota"
)

// state is what a subscription does (protocol.md §10).
type state uint8

const (
	reserved  state = iota // waits for its snapshot to be applied
	live                   // delivers
	paused                 // has gapped
	replaying              // paused, and being healed
	closed                 // replaced, or its connection has ended
)

// A subscription is a place in the sequence of events, what lies behind it and what
// may be sent of that. All of it is guarded by the session's mu, except id, s and
// slot, which never change. There may be thousands that do nothing: it is kept small.
type subscription struct {
	id    frames.SubscriptionID
	s     *Session
	slot  *quota.Charge
	queue quota.Queue
	// pos is the place: what is visible behind it has not been sent. It means
	// nothing while nothing is pending.
	pos       frames.EventCut
	last      frames.EventCut // the last event sent, else where the subscription began
	delivered frames.DeliveryCut
	count     uint32 // event credit
	bytes     uint32 // byte credit

	// pending is what is visible from pos to where the manager has counted. Of it,
	// charged and then owed are held back [D-58]; the rest, which comes first, is
	// about to be sent. owed is what an aggregate quota has not taken yet.
	pending, charged, owed volume
	first                  frames.EventSequence // of pending; zero when not known
	observed               frames.EventSequence // by the latest GAP; zero: none, or not known yet
	lease                  *lease               // that reserved it, or replays it; nil once it has gapped

	state   state
	reason  frames.GapReason // of the latest GAP
	starved bool             // its first pending event is not covered by credit

	named       bool // its peer has heard of it
	opening     bool // what it has missed is being counted: nothing is charged yet
	unannounced bool // SUBSCRIBED or a BEGIN is not handed to the transport: no GAP before it
	waiting     bool // SUBSCRIBED or an ACK is not handed to the transport: no event before it

	gapDue  bool // the latest GAP is not handed to the transport
	unnamed bool // its observed event has to be looked up behind pos
}

// newSubscription charges and makes a subscription that is not yet anywhere. slot is
// a charge to take over, or nil.
func (s *Session) newSubscription(slot *quota.Charge) (*subscription, error) {
	id, err := frames.NewID[frames.SubscriptionID](s.m.o.Rand)
	if err != nil {
		return nil, err
	}
	b := &subscription{id: id, s: s, unannounced: true, queue: s.o.Account.NewQueue()}
	if b.slot = slot; slot == nil {
		if b.slot, err = s.o.Account.Take(quota.Subscriptions, 1); err != nil {
			return nil, exhausted(err)
		}
	}
	s.m.meters.Subscriptions.Add(1)
	return b, nil
}

// begin places a subscription behind a cut.
func (b *subscription) begin(st state, at frames.EventCut) {
	b.state, b.pos, b.last = st, at, at
}

// add counts a tally in and charges what of it cannot be sent now. It reports false
// when an aggregate quota is full: the manager then settles what b owes.
func (b *subscription) add(t *tally) bool {
	if b.state == paused || b.state == closed {
		return true
	}
	if t.all.frames > 0 {
		if b.pending.frames == 0 {
			b.starved = false
			b.aim(t.first)
		}
		b.pending = b.pending.plus(t.all)
	}
	if t.blind {
		b.fail(frames.GapRevisionMismatch)
		return true
	}
	if b.opening {
		return true
	}
	return b.charge(b.excess(t))
}

// aim makes an event the first that is pending.
func (b *subscription) aim(first frames.EventSequence) {
	b.first, b.pos = first, frames.EventCut(first)-1
}

// excess is what has to be charged once the newest events, which pending includes
// already, have come: what of them credit does not cover, or everything when the peer
// does not read.
func (b *subscription) excess(t *tally) volume {
	if b.s.blocked {
		return b.pending.minus(b.charged).minus(b.owed)
	}
	if b.charged.frames+b.owed.frames > 0 {
		return t.all
	}
	before := b.pending.minus(t.all)
	room := volume{uint64(b.count), uint64(b.bytes)}
	covered := volume{}
	if b.pending.frames <= room.frames && b.pending.bytes <= room.bytes {
		return volume{}
	}
	for _, size := range t.sizes {
		next := covered.plus(volume{1, uint64(size)})
		if before.frames+next.frames > room.frames || before.bytes+next.bytes > room.bytes {
			break
		}
		covered = next
	}
	return t.all.minus(covered)
}

// charge pays for events that are held back. The subscription's own limit ends in a
// GAP; a full aggregate quota leaves them owed and reports false.
func (b *subscription) charge(v volume) bool {
	b.owed = b.owed.plus(v)
	return b.payLocked() == nil
}

// relax gives back what was held back for want of credit once credit covers all that
// is pending: a running writer is about to send it [D-58]. Otherwise a burst that comes
// before the writer does would end in a GAP although there is credit for it.
func (b *subscription) relax() {
	if b.charged.frames+b.owed.frames == 0 || b.s.blockedAt(b.s.m.o.Clock.Now().Boot) {
		return
	}
	if b.pending.frames <= uint64(b.count) && b.pending.bytes <= uint64(b.bytes) {
		b.queue.Clear()
		b.charged, b.owed = volume{}, volume{}
	}
}

// payLocked pays what is owed, or says which aggregate quota is full.
func (b *subscription) payLocked() *quota.Exceeded {
	if b.owed.frames == 0 {
		return nil
	}
	err := b.queue.Push(b.owed.frames, b.owed.bytes)
	if err == nil {
		b.charged, b.owed = b.charged.plus(b.owed), volume{}
		return nil
	}
	if full := aggregate(err); full != nil {
		return full
	}
	b.fail(frames.GapQueueOverflow)
	return nil
}

// sent takes the first pending event off the counts.
func (b *subscription) sent(i *image) {
	one := volume{1, uint64(i.size)}
	switch {
	case b.pending.frames > b.charged.frames+b.owed.frames: // it was not held back
	case b.charged.frames > 0:
		b.queue.Pop(one.frames, one.bytes)
		b.charged = b.charged.minus(one)
	default:
		b.owed = b.owed.minus(one)
	}
	b.pending = b.pending.minus(one)
	b.count--
	b.bytes -= i.size
	b.delivered++
	b.last = frames.EventCut(i.seq())
	b.pos = b.last
}

// fail sends one GAP, drops what is pending and pauses (protocol.md §10 [D-39]). A
// subscription that is paused or closed gets none.
func (b *subscription) fail(reason frames.GapReason) {
	if b.state == paused || b.state == closed {
		return
	}
	b.state = paused
	b.reason, b.observed = reason, 0
	if b.pending.frames > 0 {
		b.observed, b.unnamed = b.first, b.first == 0
	}
	b.gapDue = true
	b.drop()
	if l := b.lease; l != nil {
		b.lease = nil
		if l.log != nil {
			l.end() // a replay that has missed something is void
		}
	}
	b.s.nudge()
}

// failAgain repeats the GAP of a paused subscription for another reason.
func (b *subscription) failAgain(reason frames.GapReason) {
	b.reason, b.gapDue = reason, true
	b.s.nudge()
}

// gap is the latest GAP. What it says of the last event holds for as long as the
// subscription is paused.
func (b *subscription) gap() *frames.Gap {
	return &frames.Gap{
		SubscriptionID: b.id, LastDelivery: frames.DeliveryCut(b.delivered), LastEvent: b.last, Observed: b.observed, Reason: b.reason,
	}
}

// drop forgets what is pending and sets both balances to zero.
func (b *subscription) drop() {
	b.count, b.bytes = 0, 0
	b.pending, b.charged, b.owed, b.first, b.starved = volume{}, volume{}, volume{}, 0, false
	b.queue.Clear()
}

// close ends a subscription without a word. Its slot stays charged.
func (b *subscription) close() {
	b.drop()
	b.state, b.gapDue, b.lease = closed, false, nil
}

// healable reports whether it is paused and its peer has been told.
func (b *subscription) healable() bool { return b.state == paused && !b.gapDue }

// resume makes a subscription live with the one credit that its way there gives.
// Nothing is sent before [subscription.proceed].
func (b *subscription) resume(count, bytes uint32) {
	b.state, b.lease, b.waiting = live, nil, true
	b.count, b.bytes, b.starved = count, bytes, false
	b.relax()
}

// announced lets a GAP follow the reply that named the subscription.
func (b *subscription) announced() {
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	b.named, b.unannounced = true, false
	b.s.nudge()
}

// proceed is announced for a reply that events may follow too.
func (b *subscription) proceed() {
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	b.named, b.unannounced, b.waiting = true, false, false
	b.s.nudge()
}

// due reports whether the connection's writer has something to do for b.
func (b *subscription) due() bool {
	if b.gapDue {
		return !b.unannounced
	}
	return b.state == live && !b.waiting && b.pending.frames > 0 && !b.starved
}

// covers reports whether both balances cover an event.
func (b *subscription) covers(i *image) bool { return b.count > 0 && b.bytes >= i.size }

// Where the parts of a COORD_EVENT's head lie that differ from frame to frame.
const (
	lengthAt   = 0
	idAt       = codec.HeaderSize + 3
	deliveryAt = headSize - 8
)

// newHead makes the head of a COORD_EVENT in which those parts are to be filled in.
func newHead() (h [headSize]byte) {
	var sample image
	sample.ev.Sequence, sample.ev.ID, sample.ev.Kind = 1, frames.EventID{1}, frames.EventObjectiveChanged
	sample.ev.Object, sample.ev.Revision = frames.ObjectRef{Kind: frames.KindObjective, ID: frames.ObjectID{1}}, 1
	frame, err := frames.Append(nil, sample.frame(frames.SubscriptionID{1}, 1))
	if err != nil {
		panic(fmt.Sprintf("stream: encode the head of an event: %v", err)) // it has no variable part
	}
	copy(h[:], frame)
	return h
}

// next writes the head of the frame that ends in tail, for the next delivery. It lasts until
// the session's next head is written.
func (b *subscription) next(tail []byte) []byte {
	h := &b.s.head
	length := headSize + len(tail) - codec.HeaderSize + 1 // the type counts, the length does not
	binary.BigEndian.PutUint32(h[lengthAt:], uint32(length))
	copy(h[idAt:], b.id[:])
	binary.BigEndian.PutUint64(h[deliveryAt:], uint64(b.delivered)+1)
	return h[:]
}
