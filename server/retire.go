package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"coordinator/internal/clock"
	"coordinator/server/commit"
	"coordinator/server/work"
)

// When to look for results whose retention has ended: soon after the start, and then this
// often.
const (
	retireFirst = time.Second
	retireEvery = 5 * time.Second
)

// retire makes tombstones of results whose retention has ended, and prunes those, until ctx
// ends (protocol.md §8 [D-42]).
func (s *Server) retire(ctx context.Context) error {
	began := s.clock.Now()
	timer := s.clock.NewTimer(retireFirst)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C():
			timer.Reset(retireEvery)
		}
		err := s.writer.Retire(ctx, trusted(began, s.clock.Now()))
		var refused *work.Refusal
		switch {
		case ctx.Err() != nil, errors.Is(err, commit.ErrStopped), errors.Is(err, commit.ErrUnacknowledged):
			return nil // the writer has ended and says why
		case errors.As(err, &refused):
			s.log.Warn("results stay although their retention has ended; they are looked at again", "err", err)
		case err != nil:
			err = fmt.Errorf("retire results: %w", err)
			s.breakdown(err)
			return err
		}
	}
}

// trusted is the time by which retention ends: the wall clock, but never more than has really
// passed since the process began. A clock that is set forward would otherwise end at once
// what was promised to stay for a month.
func trusted(began, now clock.Reading) uint64 {
	passed := began.Wall.Add(now.Boot - began.Boot)
	if now.Wall.Before(passed) {
		return now.Unix()
	}
	return clock.Reading{Wall: passed}.Unix()
}
