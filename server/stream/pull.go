package stream

import (
	"errors"
	"fmt"

	"coordinator/frames"
	"coordinator/server/store"
)

// fetched is what was read from the log for one subscription whose place the window
// no longer holds. It lives until the subscription's turn to be pulled from has come.
type fetched struct {
	sub     *subscription
	after   frames.EventCut
	images  []*image
	through frames.EventCut // everything visible in (after, through] is in images
}

// A Batch says how much one write may still carry, and takes whole event frames as a
// head and a tail. The head is only valid during the call; the tail never changes.
type Batch struct {
	Frames, Bytes int
	Emit          func(head, tail []byte)
}

// Ready reports whether there may be something to pull. The session's Wake is
// called whenever that becomes true.
func (s *Session) Ready() bool { return s.ready.Load() }

// Fetch reads what the next pull needs from the log, at most about a batch. It may
// read files, so nothing should wait for the pulling goroutine meanwhile.
func (s *Session) Fetch(most, bytes int) {
	if !s.reading.Swap(false) {
		return
	}
	served := s.fetched.sub != nil // and it has not had its turn yet
	s.mu.Lock()
	var behind, unnamed *subscription
	for _, b := range s.subs {
		switch {
		case b.gapDue && b.unnamed:
			unnamed = b
		case behind == nil && !served && b.due() && !b.gapDue && b.pos < s.m.window.oldest():
			behind = b
		}
	}
	var after frames.EventCut
	if behind != nil {
		after = behind.pos
		most = min(most, int(behind.count)+1) // one more, to know what is next
	}
	s.mu.Unlock()
	if unnamed != nil {
		s.name(unnamed)
	}
	if behind != nil {
		s.read(behind, after, most, bytes)
	}
}

// read gets events behind after for b.
func (s *Session) read(b *subscription, after frames.EventCut, most, bytes int) {
	f := fetched{sub: b, after: after}
	err := s.readLog(&f, most, bytes)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case b.state != live || b.pos != after: // it gapped meanwhile
	case err != nil:
		b.fail(s.logFault(err))
	default:
		s.fetched = f
	}
}

func (s *Session) readLog(f *fetched, most, bytes int) error {
	head := s.m.window.published()
	log, err := s.m.o.Store.Replay(f.after, head)
	if err != nil {
		return err
	}
	defer log.Close()
	events, done, err := log.Page(f.after, s.audience.sees, most, bytes)
	if err != nil {
		return err
	}
	images := make([]image, len(events))
	for i := range events {
		images[i].set(events[i])
		f.images = append(f.images, &images[i])
	}
	f.through = head
	if !done {
		f.through = frames.EventCut(events[len(events)-1].Sequence)
	}
	return nil
}

// name finds the first event that a GAP dropped, where that was not known.
func (s *Session) name(b *subscription) {
	s.mu.Lock()
	after := b.pos
	s.mu.Unlock()
	var first frames.EventSequence
	log, err := s.m.o.Store.Replay(after, s.m.window.published())
	if err == nil {
		err = log.Walk(after, s.audience.sees, func(ev store.IndexedEvent) bool {
			first = ev.Sequence
			return false
		})
		log.Close()
	}
	if err != nil {
		s.logFault(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	b.unnamed, b.observed = false, first
}

// Gaps gives every GAP that is due and may be sent now, encoded. They go before
// replies and events.
func (s *Session) Gaps(emit func(frame []byte)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.subs {
		if b.gapDue && b.unnamed {
			s.reading.Store(true)
		} else if b.gapDue && !b.unannounced {
			emit(b.takeGap())
		}
	}
}

// takeGap hands a GAP over.
func (b *subscription) takeGap() []byte {
	frame, err := frames.Append(nil, b.gap())
	if err != nil {
		panic(fmt.Sprintf("stream: encode a GAP: %v", err)) // it has no variable part
	}
	b.gapDue = false
	if r := int(b.reason); r < len(b.s.m.meters.Gaps) {
		b.s.m.meters.Gaps[r].Add(1)
	}
	return frame
}

// Final pauses every subscription for a reason that ends the connection, and gives a
// GAP for each that the peer knows of: GRANT_REVOKED or EPOCH_CHANGED
// (protocol.md §4 [D-48], §5.5).
func (s *Session) Final(reason frames.GapReason, emit func(frame []byte)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.subs {
		b.fail(reason)
		b.reason = reason // a paused one is told as well
		if b.named {      // a BEGIN that a GAP must follow will not come any more
			emit(b.takeGap())
		}
	}
}

// Pull gives the events that credit covers, as many as the batch takes. It counts
// them as sent: the caller writes them, or ends the connection.
func (s *Session) Pull(batch Batch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := puller{s: s, Batch: batch}
	for i := range s.subs {
		if p.spent() {
			break
		}
		p.pull(s.subs[(s.turn+i)%len(s.subs)])
	}
	if sent := batch.Frames - p.Frames; sent > 0 {
		s.m.meters.Events.Add(uint64(sent))
	}
	s.turn++
	if f := &s.fetched; f.sub == nil || !f.sub.due() || f.sub.gapDue || f.sub.pos != f.after {
		s.fetched = fetched{} // an idle connection holds none
	}
	due := false
	for _, b := range s.subs {
		due = due || b.due()
	}
	s.ready.Store(due)
	clear(s.images[:cap(s.images)]) // an idle connection pins none
}

// A puller fills one batch.
type puller struct {
	Batch
	s *Session
}

func (p *puller) spent() bool { return p.Frames <= 0 || p.Bytes <= 0 }

// errLost means that fewer events are there than were counted.
var errLost = errors.New("the window does not hold the events that were counted")

// pull takes from one subscription until it has nothing more that credit covers, the
// batch is spent, or the log has to be read.
func (p *puller) pull(b *subscription) {
	for b.due() && !b.gapDue && !p.spent() {
		images, through, ok := p.look(b)
		if !ok {
			p.s.reading.Store(true)
			return
		}
		for _, i := range images {
			b.aim(i.seq())
			if !p.take(b, i) {
				return
			}
			if b.pending.frames == 0 {
				break
			}
		}
		b.first = 0
		if b.pending.frames == 0 {
			return
		}
		if len(images) == 0 && through <= b.pos {
			p.s.m.o.Logger.Error("subscription paused", "err", errLost, "behind", b.pos)
			b.fail(frames.GapInternal)
			return
		}
		b.pos = through
	}
}

// look gives the next events of b, or says that they have to be read from the log.
func (p *puller) look(b *subscription) (_ []*image, through frames.EventCut, ok bool) {
	if f := &p.s.fetched; f.sub == b && f.after == b.pos && f.through > f.after {
		images := f.images
		f.images = nil
		f.sub = nil
		return images, f.through, true
	}
	most := min(p.Frames+1, scanStep)
	p.s.images, through, ok = p.s.m.window.next(b.pos, &p.s.audience, most, p.s.images[:0])
	return p.s.images, through, ok
}

// take sends one event, or leaves it as the next one and reports false.
func (p *puller) take(b *subscription, i *image) bool {
	if len(i.ev.Payload) > int(p.s.o.Limits.TypedPayload) {
		b.fail(frames.GapInternal) // the connection's limits cannot carry it [D-6]
		return false
	}
	if !b.covers(i) {
		b.starved = true
		return false
	}
	if p.spent() {
		return false
	}
	tail, err := i.shared()
	if err != nil {
		p.s.m.o.Logger.Error("event cannot be encoded", "event", i.seq(), "err", err)
		b.fail(frames.GapInternal)
		return false
	}
	p.Emit(b.next(tail), tail)
	p.Frames--
	p.Bytes -= int(i.size)
	b.sent(i)
	return true
}
