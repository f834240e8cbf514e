package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"coordinator/server/store"
	"coordinator/server/work"
)

// tendEvery is how often an idle store is given the chance to checkpoint.
const tendEvery = 5 * time.Second

// published is told of every commit, on the writer's goroutine.
func (s *Server) published(b store.Batch) {
	if s.committed != nil {
		s.committed(b)
	}
	s.streams.Publish(b)
	s.outbox.Publish(b)
	for _, c := range b.Silent {
		if c.Ref == work.RetentionRef() {
			select {
			case s.retained <- struct{}{}:
			default:
			}
		}
	}
}

// tend does what is due when nobody asks for it: the store's idle checkpoint,
// the bound of the event log after CHANGE_RETENTION, and the end of results whose
// retention is over. It returns when ctx ends or the store has failed.
func (s *Server) tend(ctx context.Context) error {
	retiring := start(s.retire)
	defer retiring.stop() //nolint:errcheck // what it reports goes through broken
	timer := s.clock.NewTimer(tendEvery)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.tended:
		case <-s.store.Done():
			s.breakdown(fmt.Errorf("%w: %w", ErrStoreFailed, s.store.Err()))
			return nil
		case <-s.retained:
			if err := s.boundLog(ctx); err != nil && ctx.Err() == nil {
				s.log.Warn("event log bound not updated; the next start updates it", "err", err)
			}
		case <-timer.C():
			err := s.maintain(ctx)
			var refused *work.Refusal
			if err != nil && ctx.Err() == nil && !errors.As(err, &refused) {
				return fmt.Errorf("tend the store: %w", err)
			}
			timer.Reset(tendEvery)
		}
	}
}

// boundLog takes the bound of the event log from the RETENTION record [D-42].
func (s *Server) boundLog(ctx context.Context) error {
	r, err := s.writer.Retention(ctx)
	if err != nil {
		return err
	}
	s.store.SetEventBytes(r.EventBytes)
	err = s.maintain(ctx)
	if refused := (*work.Refusal)(nil); errors.As(err, &refused) {
		return nil // a busy writer; it trims when it commits, or tend does
	}
	return err
}

// maintain lets the store do what is due between commits.
func (s *Server) maintain(ctx context.Context) error {
	return s.writer.Do(ctx, func(st *store.Store) error {
		st.Maintain()
		return nil
	})
}
