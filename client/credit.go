package client

import (
	"context"

	"coordinator/frames"
)

// settle grants what is due as if the consumer were about to wait, and reports whether the
// coordinator could send the largest event: a view is current only while it can
// (protocol.md §10 [D-20]).
func (s *Subscription) settle(ctx context.Context) (covered bool, err error) {
	if err := s.grant(ctx, true); err != nil {
		return false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.phase == phaseLive && s.balance.count > 0 && s.balance.bytes >= s.conn.largestEvent(), nil
}

// grant gives back the credit of what was delivered, once that is half of the window. A
// consumer that is about to wait grants sooner when the coordinator could not send the
// largest event: nothing else would ever move.
//
// balance, queue, batch and owed together are the window at all times, so no sum of grants can
// pass the selected maxima (protocol.md §10).
func (s *Subscription) grant(ctx context.Context, waiting bool) error {
	s.mu.Lock()
	short := s.balance.count == 0 || s.balance.bytes < s.conn.largestEvent()
	due := s.owed.count >= max(1, s.window.count/2) || s.owed.bytes >= s.window.bytes/2 || waiting && short
	if s.phase != phaseLive || s.owed.count == 0 || !due {
		s.mu.Unlock()
		return nil
	}
	add, id, gaps := s.owed, s.id, s.gaps
	// Before the write: the coordinator may use it at once.
	s.balance.count += add.count
	s.balance.bytes += add.bytes
	s.owed = credit{}
	s.mu.Unlock()

	started, err := s.conn.write(ctx, &frames.Credit{SubscriptionID: id, AddCount: add.count, AddBytes: add.bytes})
	if err == nil || started {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase == phaseLive && s.gaps == gaps {
		s.balance.count -= add.count
		s.balance.bytes -= add.bytes
		s.owed = add
	}
	return err
}
