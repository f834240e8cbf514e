package stream

import (
	"errors"
	"fmt"

	"coordinator/frames"
	"coordinator/server/store"
)

// A replay is a lease on a span of the log that heals one paused subscription. Its
// fields are owned by the session's goroutine.
type replay struct {
	lease
	id     frames.ReplayID
	until  frames.EventCut // the cut; what is behind it is delivered live afterwards
	after  frames.EventCut // the last event sent, at first where the gap began
	count  uint64          // visible events of the span
	digest *frames.ReplayDigest
}

// OpenReplay fixes what a paused subscription has missed and answers REPLAY_BEGIN,
// with REPLAY_END when that is nothing (protocol.md §10 [D-33]). Later events queue
// from that instant. Errors to be told to the peer are *frames.Refusal.
func (s *Session) OpenReplay(req *frames.OpenReplay) (Reply, error) {
	if !s.o.Viewer.Capabilities.Has(frames.CapEventReplay) {
		return Reply{}, frames.Refuse(frames.CodeCapabilityRequired, "EVENT_REPLAY was not negotiated")
	}
	s.sweep()
	id, err := frames.NewID[frames.ReplayID](s.m.o.Rand)
	if err != nil {
		return Reply{}, err
	}
	l := &replay{id: id, after: req.After}
	l.make = func() *made { return s.makeReplayPage(l) }
	if l.sub, err = s.replayable(req); err != nil {
		return Reply{}, err
	}
	if err := s.charge(&l.lease); err != nil {
		return Reply{}, err
	}
	totals, err := s.hold(l)
	if err != nil {
		l.end()
		return Reply{}, err
	}
	l.count = totals.Events
	l.digest = frames.NewReplayDigest(s.m.o.Guard, l.sub.id, req.After, l.until, l.count)
	s.replays[id] = l
	s.m.meters.Replays.Add(1)
	begin := &frames.ReplayBegin{
		RequestID: req.RequestID, ReplayID: id, SubscriptionID: l.sub.id, FirstEvent: totals.First, Cut: l.until,
		LeaseExpiresAt: s.m.o.Clock.Now().Unix() + frames.LeaseSeconds,
	}
	r := Reply{Frames: []frames.Frame{begin}, Sent: l.sub.announced, Then: l.prepare}
	if l.count > 0 {
		begin.FirstCursor = l.cursor
	} else {
		r.Frames = append(r.Frames, s.finishReplay(l, req.RequestID))
	}
	return r, nil
}

// replayable finds the paused subscription and checks where its gap begins.
func (s *Session) replayable(req *frames.OpenReplay) (*subscription, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.find(req.SubscriptionID)
	switch {
	case b == nil || !b.healable():
		return nil, notPaused()
	case req.After != b.last:
		return nil, frames.Refuse(frames.CodeMalformedMessage, "the subscription's last contiguous event is %d", b.last)
	}
	return b, nil
}

// hold fixes the cut of a replay, keeps its span of the log and counts it. When it
// is refused the subscription is paused as before.
func (s *Session) hold(l *replay) (totals store.Totals, err error) {
	if err := s.fix(l); err != nil {
		return totals, err
	}
	l.log, err = s.m.o.Store.Replay(l.after, l.until)
	if err == nil {
		totals, err = l.log.Count(s.audience.sees)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	b := l.sub
	tooLarge := s.fits(totals.Largest)
	if err == nil && tooLarge == nil && b.state == replaying {
		b.lease = &l.lease // from here on others may end it
		s.m.leases.add(&l.lease)
		return totals, nil
	}
	b.unannounced = false // there will be no BEGIN
	if b.state != replaying {
		s.nudge() // for the GAP that it got meanwhile
		return totals, cannotReplay()
	}
	b.drop()
	b.state = paused
	if err == nil {
		return totals, tooLarge
	}
	b.failAgain(s.logFault(err))
	return totals, cannotReplay()
}

func cannotReplay() error {
	return frames.Refuse(frames.CodeCursorInvalid, "the events since the gap cannot be replayed")
}

// fix sets where a replay ends, in the instant from which later events queue.
func (s *Session) fix(l *replay) error {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	l.until = s.m.countLocked()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stale(l.after) {
		return frames.Refuse(frames.CodeCursorInvalid, "records have changed since and no event tells it; only a snapshot heals")
	}
	l.sub.state, l.sub.pos, l.sub.unannounced = replaying, l.until, true
	return nil
}

// fits checks one event's payload against the selected limits.
func (s *Session) fits(payload int) error {
	size := (&frames.ReplayEvent{}).Size() + payload
	if payload > int(s.o.Limits.TypedPayload) || size+listHeader > int(s.o.Limits.PageBytes) {
		return frames.Refuse(frames.CodeResourceExhausted, "an event of %d bytes does not fit the selected limits", size)
	}
	return nil
}

// ReplayNext answers REPLAY_NEXT with one page, and with REPLAY_END after the last
// one. A cursor that is not the next one of an open replay is CURSOR_INVALID and
// changes nothing.
func (s *Session) ReplayNext(req *frames.ReplayNext) (Reply, error) {
	s.sweep()
	l := s.replays[req.ReplayID]
	if l == nil || !l.takes(req.Cursor) {
		return Reply{}, cursorInvalid()
	}
	reply, err := s.replayPage(l, req)
	if err = l.judge(err); err != nil {
		return Reply{}, err
	}
	return reply, nil
}

// replayPage answers with the page after the replay's position.
func (s *Session) replayPage(l *replay, req *frames.ReplayNext) (Reply, error) {
	r, n, last, err := l.answer(req.RequestID)
	if err != nil {
		return Reply{}, err
	}
	s.m.meters.ReplayPages.Add(1)
	s.m.meters.ReplayEvents.Add(n)
	if last {
		r.Frames = []frames.Frame{s.finishReplay(l, req.RequestID)}
	}
	return r, nil
}

// makeReplayPage makes the page after the replay's position.
func (s *Session) makeReplayPage(l *replay) *made {
	room := int(s.o.Limits.PageBytes) - listHeader
	images, n, last, done, err := l.log.Images(takePageBuffer(), l.after, s.audience.sees, int(s.o.Limits.PageRecords), room)
	defer Recycle(images)
	if err != nil {
		return &made{err: fmt.Errorf("replay page: %w", err)}
	}
	l.sent += uint64(n)
	if n == 0 || l.sent > l.count || done != (l.sent == l.count) || len(images) > room {
		return &made{err: errors.New("replay page: the log does not hold the events that were counted")}
	}
	page := &frames.ReplayImages{
		RequestID: unaddressed, ReplayID: l.id, Cursor: l.cursor, Index: l.pages, Count: n, Images: images,
	}
	if !done {
		page.NextCursor = l.spare
	}
	raw, err := frames.Append(takePageBuffer(), page)
	if err != nil {
		return &made{err: fmt.Errorf("replay page: %w", err)}
	}
	l.digest.AddImages(images)
	l.after = frames.EventCut(last)
	return &made{raw: raw, count: uint64(n), next: page.NextCursor}
}

// finishReplay makes the REPLAY_END of a replay whose events are all sent.
func (s *Session) finishReplay(l *replay, req frames.RequestID) *frames.ReplayEnd {
	l.complete.Store(true)
	s.m.meters.ReplaysEnded.Add(1)
	return &frames.ReplayEnd{
		RequestID: req, ReplayID: l.id, PageCount: l.pages, EventCount: l.count, Digest: l.digest.Sum(),
	}
}

// ReplayApplied answers REPLAY_APPLIED: the subscription is live again, behind the
// cut of the replay and with the credit given here (protocol.md §10 [D-61]).
func (s *Session) ReplayApplied(req *frames.ReplayApplied) (Reply, error) {
	l := s.replays[req.ReplayID]
	switch {
	case l == nil:
		return Reply{}, leaseGone()
	case l.open() && !l.complete.Load():
		return Reply{}, frames.Refuse(frames.CodeProtocolError, "REPLAY_APPLIED before REPLAY_END")
	}
	resumed, err := s.apply(&l.lease, req.SubscriptionID, req.CreditCount, req.CreditBytes, l.until)
	ack := Reply{Frames: []frames.Frame{&frames.Ack{RequestID: req.RequestID}}}
	if resumed {
		ack.Sent = l.sub.proceed
	}
	return ack, err
}
