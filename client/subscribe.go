package client

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"coordinator/frames"
)

// Subscribe follows the events after a cut that this client knows; zero is the beginning.
// A cut further back than the coordinator retains is told as a gap. A cut is good under
// the scope and capabilities that it was obtained with (protocol.md §6 [D-55]).
//
// From the beginning on every revision is checked from the first; after another cut an
// object's first event says where it stands.
func (c *Conn) Subscribe(ctx context.Context, after frames.EventCut, opts SubscribeOptions) (*Subscription, error) {
	return c.subscribe(ctx, after, newRevisions(after == 0), opts)
}

// subscribe is Subscribe from a view.
func (c *Conn) subscribe(ctx context.Context, after frames.EventCut, seen knowledge, opts SubscribeOptions) (*Subscription, error) {
	if err := c.allowed(); err != nil {
		return nil, err
	}
	s := c.newSubscription(opts, after, seen)
	k, err := c.openWith(ctx, frames.TypeSubscribed, func(f frames.Frame) error {
		r := f.(*frames.Subscribed)
		if r.NextDelivery != 1 {
			return fmt.Errorf("%w: a subscription that begins with delivery %d", ErrProtocol, r.NextDelivery)
		}
		if err := s.registerLocked(r.SubscriptionID, phaseReserved); err != nil {
			return err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.goLiveLocked()
		return nil
	})
	if err != nil {
		return nil, err
	}
	request := &frames.Subscribe{RequestID: k.id, Guard: c.guard, After: after, CreditCount: s.window.count, CreditBytes: s.window.bytes}
	if _, err := c.send(ctx, k, request); err != nil {
		return nil, err
	}
	if _, err := c.await(ctx, k); err != nil {
		return nil, fmt.Errorf("subscribe: %w", err)
	}
	return s, nil
}

// SnapshotAndSubscribe takes and verifies a snapshot and follows every event after its
// cut. When it has failed after the coordinator began, the connection has ended: a
// reservation has no other end. The caller closes the snapshot.
func (c *Conn) SnapshotAndSubscribe(ctx context.Context, opts SubscribeOptions) (*Snapshot, *Subscription, error) {
	s := c.newSubscription(opts, 0, nil)
	snap, err := s.reserve(ctx, frames.SubscriptionID{})
	if err != nil {
		return nil, nil, err
	}
	return snap, s, nil
}

// Replace heals a gap by a snapshot: the paused subscription is closed and this one goes
// on behind the snapshot's cut, which replaces all that was known. Failures are those of
// [Conn.SnapshotAndSubscribe].
func (s *Subscription) Replace(ctx context.Context) (*Snapshot, error) {
	if !s.isPaused() {
		return nil, ErrUnreadGap
	}
	s.mu.Lock()
	old := s.id
	s.mu.Unlock()
	return s.reserve(ctx, old)
}

// reserve takes a snapshot that reserves a subscription, replacing the paused one unless
// that is zero, and applies it.
func (s *Subscription) reserve(ctx context.Context, paused frames.SubscriptionID) (*Snapshot, error) {
	c := s.conn
	open := &frames.OpenSnapshot{Reserve: true, Replace: paused}
	snap, err := c.takeSnapshot(ctx, open, func(f frames.Frame) error {
		b := f.(*frames.SnapshotBegin)
		if err := s.registerLocked(b.SubscriptionID, phaseReserved); err != nil {
			return err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.sent = b.Base
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	seen, err := s.learn(snap)
	if err == nil {
		s.mu.Lock()
		id := s.id
		s.mu.Unlock()
		err = s.apply(ctx, &frames.SnapshotApplied{SnapshotID: snap.ID, SubscriptionID: id, CreditCount: s.window.count, CreditBytes: s.window.bytes})
	}
	if err != nil {
		c.fail(err)
		snap.Close()
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	s.seen, s.cut, s.owed, s.paused = seen, snap.Base, credit{}, nil
	return snap, nil
}

// apply sends SNAPSHOT_APPLIED or REPLAY_APPLIED. A refusal is no failure when a gap came
// in between: what was verified stands, and the gap is told next.
func (s *Subscription) apply(ctx context.Context, f frames.Frame) error {
	c := s.conn
	k, err := c.openWith(ctx, frames.TypeAck, func(frames.Frame) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.applying && s.gaps == 0 {
			s.sent = s.applied
		}
		s.goLiveLocked()
		return nil
	})
	if err != nil {
		return err
	}
	switch f := f.(type) {
	case *frames.SnapshotApplied:
		f.RequestID = k.id
	case *frames.ReplayApplied:
		f.RequestID = k.id
	}
	if _, err := c.send(ctx, k, f); err != nil {
		return err
	}
	_, err = c.await(ctx, k)
	var refused *RefusedError
	if errors.As(err, &refused) && refused.Code == frames.CodeCursorInvalid {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.gaps > 0 {
			return nil
		}
	}
	return err
}

// Events ranges over [Subscription.Next] until it fails. The error, which is never nil,
// comes last, with a nil Update.
func (s *Subscription) Events(ctx context.Context) iter.Seq2[Update, error] {
	return func(yield func(Update, error) bool) {
		for {
			u, err := s.Next(ctx)
			if !yield(u, err) || err != nil {
				return
			}
		}
	}
}

// Cut is the last event that was delivered, or the cut that the subscription began with:
// where to go on from.
func (s *Subscription) Cut() frames.EventCut { return s.cut }

// Next gives the next event or gap, an *[Event] or a *[Gap], and grants credit for what
// was taken before. After a gap nothing comes until [Subscription.Replay] or
// [Subscription.Replace] has healed it. The error says why the connection ended, or is the
// cause of ctx; with the latter Next can be called again.
//
// What was read before a connection was cut is still delivered; what it brought once its
// certificate has expired, a higher authority has been met or the protocol was broken is
// not (protocol.md §4).
func (s *Subscription) Next(ctx context.Context) (Update, error) {
	for {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		cause := s.conn.ended()
		if err := s.trusted(cause); err != nil {
			return nil, err
		}
		u, err := s.take()
		if u != nil || err != nil {
			return u, err
		}
		if cause != nil {
			return nil, cause
		}
		if err := s.grant(ctx, true); err != nil && s.conn.Err() == nil {
			return nil, err
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
		case <-s.conn.done:
		}
	}
}

// trusted tells whether what was read may still be acted on, after the connection ended
// for cause or not at all.
func (s *Subscription) trusted(cause error) error {
	if cause != nil && !harmless(cause) {
		return cause
	}
	c := s.conn
	if c.lease.Load().expired(c.opts.Clock.Now()) {
		c.fail(ErrExpired)
		return ErrExpired
	}
	return nil
}

// harmless reports whether a connection's end leaves what it brought before standing.
func harmless(cause error) bool {
	var fatal *FatalError
	var cut *AuthenticationError
	return errors.Is(cause, ErrDisconnected) || errors.As(cause, &fatal) || errors.As(cause, &cut)
}

// take delivers what is there: replayed events first. Nothing is nil, nil.
func (s *Subscription) take() (Update, error) {
	if s.replayed != nil {
		e, err := s.replayed.pop()
		if err == nil && e != nil {
			return s.deliver(e)
		}
		through := s.replayed.cut
		s.replayed.close()
		s.replayed = nil
		if err != nil { // what was not read was not shown, and the cut stays before it
			s.conn.fail(err)
			return nil, err
		}
		s.cut = max(s.cut, through)
	}
	q, ok := s.pop()
	switch {
	case !ok:
		return nil, nil
	case q.gap != nil:
		s.paused, s.owed = q.gap, credit{}
		return &Gap{Reason: q.gap.Reason, Last: s.cut, Observed: q.gap.Observed}, nil
	}
	s.owed.count++
	s.owed.bytes += q.size
	return s.deliver(q.event)
}

// deliver takes an event into the view. From here on it has been shown.
func (s *Subscription) deliver(e *Event) (Update, error) {
	if err := s.seen.apply(e); err != nil {
		s.conn.fail(err)
		return nil, err
	}
	s.cut = frames.EventCut(e.Sequence)
	s.conn.state.observe(cutSeen{Activation: s.conn.guard.Activation, Sequence: s.cut})
	return e, nil
}

// unreadGap takes the next gap of a paused subscription, nil when there is none.
func (s *Subscription) unreadGap() *Gap {
	if q, _ := s.head(); q.gap == nil || s.replayed != nil {
		return nil
	}
	u, _ := s.take()
	return u.(*Gap)
}
