package server

import (
	"context"

	"coordinator/server/authority"
)

// turn proves that a coordinator goes on: it returns nil once the writer of commits, the
// keeper of the lease and the task that tends the store have each come round after the call.
// One that hangs, in a disk that does not answer or in a lock, is waited for until ctx ends.
func (s *Server) turn(ctx context.Context, keeper *authority.Keeper) error {
	if err := s.writer.Turn(ctx); err != nil {
		return err
	}
	if err := keeper.Turn(ctx); err != nil {
		return err
	}
	select {
	case s.tended <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
