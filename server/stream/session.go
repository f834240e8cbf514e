package stream

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"coordinator/frames"
	"coordinator/server/quota"
	"coordinator/server/store"
)

const (
	// maxClosed bounds the ids of replaced subscriptions that a connection
	// remembers, so that CREDIT which crossed their end is ignored [D-21].
	maxClosed = 1024
	// stallTime is how long a transport may take nothing before its peer counts as
	// one that does not read [D-58]. A peer that only lost the processor for a
	// moment is not charged for it.
	stallTime = 50 * time.Millisecond
)

// A Session is one connection's snapshots, subscriptions and replays. One goroutine
// makes its requests and one, which may be another, pulls what is to be sent; Close
// comes once both have ended.
type Session struct {
	m        *Manager
	o        SessionOptions
	audience audience
	joined   bool // guarded by m.mu

	// Owned by the requesting goroutine.
	snapshots map[frames.SnapshotID]*snapshot
	finished  []frames.SnapshotID // unreserved, ended with END and not yet APPLIED, oldest first
	replays   map[frames.ReplayID]*replay
	replaced  []frames.SubscriptionID // closed, oldest first

	// Owned by the pulling goroutine.
	fetched fetched
	images  []*image // scratch

	ready   atomic.Bool // something may be due
	reading atomic.Bool // something has to be read from the log first

	mu      sync.Mutex
	subs    []*subscription // guarded by mu: not closed
	head    [headSize]byte  // guarded by mu: of the COORD_EVENT that is being sent
	turn    int             // guarded by mu: whose turn it is to be pulled from first
	stalled bool            // guarded by mu: the transport takes nothing at the moment
	since   time.Duration   // guarded by mu: boot reading at which that began
	blocked bool            // guarded by mu: it has lasted for stallTime
}

// A Reply is what answers one request, in order.
type Reply struct {
	// Page is a page as it goes out, before Frames; nil is none. It is encoded here because
	// the digest runs over these very bytes. It is the receiver's, who gives it to [Recycle]
	// once it is written, or never.
	Page   []byte
	Frames []frames.Frame
	// Sent is to be called when the frames are handed to the transport. Nil is
	// nothing to do.
	Sent func()
	// Then, unless nil, is to be called by the requesting goroutine once the reply is queued:
	// it makes ready what will be asked for next.
	Then func()
}

// Close ends every lease and subscription of the connection.
func (s *Session) Close() {
	s.m.leave(s)
	for _, l := range s.snapshots {
		l.end()
		l.dropAhead()
	}
	for _, l := range s.replays {
		l.end()
		l.dropAhead()
	}
	clear(s.snapshots)
	clear(s.replays)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.subs {
		b.close()
		b.slot.Release()
	}
	s.subs = nil
}

// sweep forgets leases that have ended, and ends those whose time is up.
func (s *Session) sweep() {
	for id, l := range s.snapshots {
		if !l.open() {
			l.abort(frames.GapCursorInvalid)
			l.dropAhead()
			delete(s.snapshots, id)
		}
	}
	for id, l := range s.replays {
		if !l.open() {
			l.abort(frames.GapCursorInvalid)
			l.dropAhead()
			delete(s.replays, id)
		}
	}
}

// nudge has the connection look for what is due. The caller holds mu.
func (s *Session) nudge() {
	s.ready.Store(true)
	s.o.Wake()
}

// find is the subscription with an id, or nil. The caller holds mu.
func (s *Session) find(id frames.SubscriptionID) *subscription {
	for _, b := range s.subs {
		if b.id == id {
			return b
		}
	}
	return nil
}

// count adds a tally to every subscription and returns those that the manager has
// to settle.
func (s *Session) count(t *tally) (owing []*subscription) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.blocked = s.blockedAt(t.now)
	due := false
	for _, b := range s.subs {
		if !b.add(t) {
			owing = append(owing, b)
		}
		due = due || b.due()
	}
	if due {
		s.nudge()
	}
	return owing
}

// blockedAt reports whether the transport has taken nothing for so long that its peer
// counts as one that does not read. The caller holds mu.
func (s *Session) blockedAt(now time.Duration) bool { return s.stalled && now-s.since >= stallTime }

// Stalled tells whether the transport has stopped taking bytes. When that lasts,
// all that is pending counts as unsent [D-58].
func (s *Session) Stalled(now bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now && !s.stalled {
		s.since = s.m.o.Clock.Now().Boot
	}
	s.stalled = now
}

// Subscribe opens a direct subscription behind a cut (protocol.md §10 [D-20]). What
// it has missed is served from the log; what of that its credit does not cover
// counts as unsent. Errors to be told to the peer are *frames.Refusal.
func (s *Session) Subscribe(req *frames.Subscribe) (Reply, error) {
	if err := s.checkCredit(req.CreditCount, req.CreditBytes); err != nil {
		return Reply{}, err
	}
	b, err := s.newSubscription(nil)
	if err != nil {
		return Reply{}, err
	}
	head, stale, err := s.enter(b, req.After)
	if err != nil {
		b.slot.Release()
		return Reply{}, err
	}
	if !stale {
		s.catchUp(b, req, head)
	}
	return Reply{
		Frames: []frames.Frame{&frames.Subscribed{RequestID: req.RequestID, SubscriptionID: b.id, NextDelivery: 1}},
		Sent:   b.proceed,
	}, nil
}

// checkCredit refuses initial credit above the selected maxima.
func (s *Session) checkCredit(count, bytes uint32) error {
	if count > s.o.Limits.CreditCount || bytes > s.o.Limits.CreditBytes {
		return frames.Refuse(frames.CodeMalformedMessage, "credit is above the selected maximum of %d events and %d bytes",
			s.o.Limits.CreditCount, s.o.Limits.CreditBytes)
	}
	return nil
}

// enter adds b behind a cut. From the head that it returns on everything is counted, and
// charged once it is known what lies before. A stale cut has gapped at once.
func (s *Session) enter(b *subscription, after frames.EventCut) (head frames.EventCut, stale bool, err error) {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	head = s.m.joinLocked(s)
	if after > head {
		return head, false, frames.Refuse(frames.CodeMalformedMessage, "the cut is beyond the newest event, %d", head)
	}
	b.begin(live, after)
	b.waiting, b.opening = true, true
	s.mu.Lock()
	defer s.mu.Unlock()
	s.subs = append(s.subs, b)
	if stale = s.stale(after); stale {
		b.opening = false
		b.fail(frames.GapRevisionMismatch)
	}
	return head, stale, nil
}

// stale reports whether records that the viewer sees have changed behind a cut, or
// were removed, and no event tells it [D-12].
func (s *Session) stale(after frames.EventCut) bool {
	if s.audience.seesAdmin() && uint64(after) < s.m.adminHead.Load() {
		return true
	}
	for kind := range s.m.removed {
		if s.audience.loses(frames.ObjectKind(kind)) && uint64(after) < s.m.removed[kind].Load() {
			return true
		}
	}
	return false
}

// catchUp counts what is visible in (req.After, head] and gives b its credit.
func (s *Session) catchUp(b *subscription, req *frames.Subscribe, head frames.EventCut) {
	k, err := s.backlog(req, head)
	s.mu.Lock()
	owes := false
	b.opening = false
	switch {
	case b.state != live:
	case err != nil:
		b.drop() // what is pending has come later than the first that it misses
		b.fail(s.logFault(err))
	default:
		newer := b.pending
		if k.first != 0 {
			b.aim(k.first)
		}
		b.pending = newer.plus(k.covered).plus(k.held)
		b.count, b.bytes = req.CreditCount, req.CreditBytes
		if b.pending.frames <= uint64(b.count) && b.pending.bytes <= uint64(b.bytes) {
			break
		}
		owes = !b.charge(k.held.plus(newer))
	}
	s.mu.Unlock()
	if owes {
		s.m.mu.Lock()
		defer s.m.mu.Unlock()
		s.m.settle(b)
	}
}

// A backlog is what a new subscription has missed.
type backlog struct {
	covered, held volume
	first         frames.EventSequence
}

// count takes one event in, and reports whether to go on: not once more is held back than
// any subscription may hold.
func (k *backlog) count(seq frames.EventSequence, size uint32, credit volume) bool {
	if k.first == 0 {
		k.first = seq
	}
	one := volume{1, uint64(size)}
	all := k.covered.plus(one)
	if k.held.frames == 0 && all.frames <= credit.frames && all.bytes <= credit.bytes {
		k.covered = all
		return true
	}
	k.held = k.held.plus(one)
	return k.held.frames <= frames.UnsentFrames && k.held.bytes <= frames.UnsentBytes
}

// backlog counts what a subscription that begins up to head has missed: in the window, and
// where that has not all of it, in the index of the log.
func (s *Session) backlog(req *frames.Subscribe, head frames.EventCut) (k backlog, err error) {
	if req.After == head {
		return k, nil
	}
	credit := volume{uint64(req.CreditCount), uint64(req.CreditBytes)}
	if k, ok := s.recent(req.After, head, credit); ok {
		return k, nil
	}
	return s.logged(req.After, head, credit)
}

// logged is the backlog as the log has it.
func (s *Session) logged(after, head frames.EventCut, credit volume) (k backlog, err error) {
	log, err := s.m.o.Store.Replay(after, head)
	if err != nil {
		return k, err
	}
	defer log.Close()
	err = log.Walk(after, s.audience.sees, func(ev store.IndexedEvent) bool {
		return k.count(ev.Sequence, uint32(frames.EventBytes(ev.Payload)), credit)
	})
	return k, err
}

// recent is the backlog as the window has it. Ok is false when it does not reach back that
// far, or farther than the log, whose end is that of what can be had.
func (s *Session) recent(after, head frames.EventCut, credit volume) (k backlog, ok bool) {
	if uint64(after)+1 < uint64(s.m.o.Store.FirstRetained()) {
		return k, false
	}
	var room [64]*image
	for after < head {
		images, through, ok := s.m.window.next(after, &s.audience, len(room), room[:0])
		if !ok {
			return backlog{}, false
		}
		for _, i := range images {
			if frames.EventCut(i.seq()) > head || !k.count(i.seq(), i.size, credit) {
				return k, true
			}
		}
		after = through
	}
	return k, true
}

// logFault gives the reason for a GAP of a subscription whose events cannot be read.
func (s *Session) logFault(err error) frames.GapReason {
	var gone *store.RetentionError
	if errors.As(err, &gone) {
		return frames.GapRetention
	}
	if !errors.Is(err, store.ErrClosed) {
		s.m.o.Logger.Error("events cannot be read from the log", "err", err)
	}
	return frames.GapInternal
}

// Credit adds to both balances of a subscription. What crossed a GAP or the end of
// its subscription is ignored [D-21].
func (s *Session) Credit(req *frames.Credit) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.find(req.SubscriptionID)
	switch {
	case b == nil && !s.wasReplaced(req.SubscriptionID), b != nil && b.state == reserved:
		return frames.Refuse(frames.CodeProtocolError, "CREDIT for a subscription that is not open for it")
	case b == nil || b.state != live:
		return nil
	}
	if req.AddCount > s.o.Limits.CreditCount-b.count || req.AddBytes > s.o.Limits.CreditBytes-b.bytes {
		return frames.Refuse(frames.CodeMalformedMessage, "credit adds up to more than the selected maximum of %d events and %d bytes",
			s.o.Limits.CreditCount, s.o.Limits.CreditBytes)
	}
	b.count += req.AddCount
	b.bytes += req.AddBytes
	b.starved = false
	b.relax()
	if b.due() {
		s.nudge()
	}
	return nil
}

// wasReplaced reports whether an id belonged to a subscription of this connection.
func (s *Session) wasReplaced(id frames.SubscriptionID) bool {
	for _, old := range s.replaced {
		if old == id {
			return true
		}
	}
	return false
}

// replace takes a closed subscription out. The caller holds mu.
func (s *Session) replace(old *subscription) {
	for i, b := range s.subs {
		if b == old {
			s.subs = append(s.subs[:i], s.subs[i+1:]...)
			break
		}
	}
	old.close()
	if len(s.replaced) == maxClosed {
		s.replaced = s.replaced[1:]
	}
	s.replaced = append(s.replaced, old.id)
}

// exhausted tells which limit refused.
func exhausted(err error) error {
	var x *quota.Exceeded
	if errors.As(err, &x) {
		return frames.Refuse(frames.CodeResourceExhausted, "limit of %d %s per %s reached", x.Limit, x.Resource, x.Level)
	}
	return err
}
