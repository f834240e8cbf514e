package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"coordinator/codec"
	"coordinator/frames"
)

// Replay heals a gap from the coordinator's log. The events that were missed are staged
// and verified first: page indexes, order, totals and digest. Then Next delivers them,
// leaving out what was delivered before, and after them what is live.
//
// A [RefusedError] says that the log cannot heal it (CURSOR_INVALID when it was trimmed or
// the replay overtaken, CAPABILITY_REQUIRED without EVENT_REPLAY): a gap that came with it
// is told by Next, and Replace heals. A replay that contradicts itself is a *[ReplayError]
// and ends the connection.
func (s *Subscription) Replay(ctx context.Context) error {
	if !s.isPaused() {
		return ErrUnreadGap
	}
	t := &replaying{sub: s, conn: s.conn, after: s.paused.LastEvent,
		staged: &spool{head: eventHead, dir: s.conn.state.stageDir(), max: maxSnapshotBytes}}
	if err := t.run(ctx); err != nil {
		t.staged.close()
		if errors.As(err, new(*ReplayError)) {
			s.conn.fail(err)
		}
		return fmt.Errorf("replay: %w", err)
	}
	return nil
}

// replaying is one replay on its way.
type replaying struct {
	sub    *Subscription
	conn   *Conn
	after  frames.EventCut
	begin  *frames.ReplayBegin
	staged *spool

	pages  uint32
	events uint64
	last   frames.EventSequence
}

func (t *replaying) run(ctx context.Context) error {
	k, err := t.open(ctx)
	if err != nil {
		return err
	}
	if err := t.checkBegin(); err != nil {
		return err
	}
	for cursor := t.begin.FirstCursor; cursor != nil; {
		if k, cursor, err = t.page(ctx, cursor); err != nil {
			return err
		}
	}
	f, err := t.conn.await(ctx, k)
	if err != nil {
		return err
	}
	if err := t.verify(f.(*frames.ReplayEnd)); err != nil {
		return err
	}
	return t.publish(ctx)
}

// open sends OPEN_REPLAY. The reader makes the subscription REPLAYING at BEGIN; a gap
// behind that voids the replay.
func (t *replaying) open(ctx context.Context) (*call, error) {
	s := t.sub
	s.mu.Lock()
	id := s.id
	s.mu.Unlock()
	k, err := t.conn.openWith(ctx, frames.TypeReplayBegin, func(f frames.Frame) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.phase, s.gaps = phaseReplaying, 0
		return nil
	})
	if err != nil {
		return nil, err
	}
	if _, err := t.conn.send(ctx, k, &frames.OpenReplay{RequestID: k.id, Guard: t.conn.guard, SubscriptionID: id, After: t.after}); err != nil {
		return nil, err
	}
	f, err := t.conn.await(ctx, k)
	if err != nil {
		return nil, err
	}
	t.begin = f.(*frames.ReplayBegin)
	if t.begin.SubscriptionID != id {
		return nil, badReplay("it is another subscription's")
	}
	return k, nil
}

func (t *replaying) checkBegin() error {
	b := t.begin
	switch {
	case b.Cut < t.after:
		return badReplay("it ends at event %d, before it begins at %d", b.Cut, t.after)
	case (b.FirstEvent == 0) != (b.FirstCursor == nil):
		return badReplay("a first event and no page, or a page and no first event")
	}
	return nil
}

// page asks for one page and stages its events. It returns the request that END will
// answer when next is nil.
func (t *replaying) page(ctx context.Context, cursor []byte) (k *call, next []byte, err error) {
	c := t.conn
	if k, err = c.open(ctx, frames.TypeReplayPage); err != nil {
		return nil, nil, err
	}
	if _, err := c.send(ctx, k, &frames.ReplayNext{RequestID: k.id, ReplayID: t.begin.ReplayID, Cursor: cursor}); err != nil {
		return nil, nil, err
	}
	f, err := c.await(ctx, k)
	if err != nil {
		return nil, nil, err
	}
	p := f.(*frames.ReplayImages)
	switch {
	case p.ReplayID != t.begin.ReplayID:
		return nil, nil, badReplay("a page of another replay")
	case string(p.Cursor) != string(cursor):
		return nil, nil, badReplay("a page for another cursor")
	case p.Index != t.pages:
		return nil, nil, badReplay("page %d where page %d belongs", p.Index, t.pages)
	case p.Count > int(c.hello.Limits.PageRecords):
		return nil, nil, badReplay("%d events in a page, %d were agreed", p.Count, c.hello.Limits.PageRecords)
	}
	t.pages++
	return k, p.NextCursor, t.stage(p)
}

// stage checks a page's place and keeps its images. Their form and their order among each
// other have been checked where the page was decoded.
func (t *replaying) stage(p *frames.ReplayImages) error {
	if p.Count == 0 {
		return nil
	}
	switch last := max(t.last, frames.EventSequence(t.after)); {
	case p.First <= last:
		return badReplay("event %d follows %d", p.First, last)
	case p.Last > frames.EventSequence(t.begin.Cut):
		return badReplay("event %d lies behind its end %d", p.Last, t.begin.Cut)
	case t.events == 0 && p.First != t.begin.FirstEvent:
		return badReplay("it begins with event %d, its begin says %d", p.First, t.begin.FirstEvent)
	}
	t.last = p.Last
	t.events += uint64(p.Count)
	return t.staged.add(p.Images)
}

// verify holds the staged events against END.
func (t *replaying) verify(end *frames.ReplayEnd) error {
	switch {
	case end.ReplayID != t.begin.ReplayID:
		return badReplay("the end of another replay")
	case end.PageCount != t.pages:
		return badReplay("%d pages came, its end says %d", t.pages, end.PageCount)
	case end.EventCount != t.events:
		return badReplay("%d events came, its end says %d", t.events, end.EventCount)
	}
	digest := frames.NewReplayDigest(t.conn.guard, t.begin.SubscriptionID, t.after, t.begin.Cut, t.events)
	err := t.staged.all(func(images []byte) error {
		digest.AddImages(images) // as they came, and were checked
		return nil
	})
	if err != nil {
		return err
	}
	if digest.Sum() != end.Digest {
		return badReplay("its digest is not that of its events")
	}
	return nil
}

// publish puts the verified events before the queue and asks for what is live behind them.
func (t *replaying) publish(ctx context.Context) error {
	s := t.sub
	images, err := t.staged.reader()
	if err != nil {
		return err
	}
	s.mu.Lock()
	void := s.gaps > 0
	s.applying, s.applied = !void, t.begin.Cut
	s.mu.Unlock()
	s.replayed = &replayed{staged: t.staged, images: images, cut: t.begin.Cut}
	s.replayed.ahead, s.replayed.failed = s.replayed.next(s.cut)
	s.paused = nil
	if void {
		return nil // the events stand; Next tells the gap behind them
	}
	err = s.apply(ctx, &frames.ReplayApplied{ReplayID: t.begin.ReplayID, SubscriptionID: t.begin.SubscriptionID, CreditCount: s.window.count, CreditBytes: s.window.bytes})
	if err != nil {
		s.replayed = nil
		s.conn.fail(err) // whether it was applied is not known
	}
	return err
}

// replayed are verified events on their way to the consumer.
type replayed struct {
	staged *spool
	images *imageReader
	cut    frames.EventCut

	event  frames.ReplayEvent // scratch
	ahead  *Event             // the next one, nil behind the last
	failed error              // why there is none
}

// pop gives the next event, nil after the last.
func (r *replayed) pop() (*Event, error) {
	if r.ahead == nil {
		return nil, r.failed
	}
	e := r.ahead
	r.ahead, r.failed = r.next(frames.EventCut(e.Sequence))
	return e, nil
}

// pending reports whether an event of the replay has not been delivered.
func (s *Subscription) pending() bool {
	return s.replayed != nil && (s.replayed.ahead != nil || s.replayed.failed != nil)
}

// next reads the next event behind shown, nil after the last.
func (r *replayed) next(shown frames.EventCut) (*Event, error) {
	for {
		image, err := r.images.next()
		if errors.Is(err, io.EOF) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		e := &r.event
		if err := codec.DecodeImage(e, image); err != nil {
			return nil, fmt.Errorf("staged event: %w", err)
		}
		if e.Sequence > frames.EventSequence(shown) {
			return &Event{Sequence: e.Sequence, ID: e.ID, Kind: e.Kind, Object: e.Object, Revision: e.Revision, Schema: e.Schema, Payload: bytes.Clone(e.Payload)}, nil
		}
	}
}

func (r *replayed) close() { r.staged.close() } //nolint:errcheck // it has no name and no further use
