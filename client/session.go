package client

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"coordinator/frames"
)

// SessionOptions say how a [Session] connects.
type SessionOptions struct {
	Options
	Backoff
}

// A Session makes commands that outlive their connections: it connects when it must, has
// an authority that is new to this client verified by a snapshot first, and finds out what
// became of a command whose reply was lost. Any number of goroutines may use it.
type Session struct {
	pins *Context
	opts SessionOptions

	connecting chan struct{} // holds one element while somebody connects
	mu         sync.Mutex
	conn       *Conn // guarded by mu; nil when there is none
	closed     bool  // guarded by mu
}

// OpenSession reads the memory of c's coordinator. It connects to nobody yet.
func OpenSession(c *Context, opts SessionOptions) (*Session, error) {
	opts.Options.defaults()
	if opts.State == nil {
		state, err := OpenState(c)
		if err != nil {
			return nil, err
		}
		opts.State = state
	}
	return &Session{pins: c, opts: opts, connecting: make(chan struct{}, 1)}, nil
}

// State is the memory that the session uses.
func (s *Session) State() *State { return s.opts.State }

// Close ends the connection, if there is one. Its error is that of [Conn.Close].
func (s *Session) Close() error {
	s.mu.Lock()
	conn := s.conn
	s.conn, s.closed = nil, true
	s.mu.Unlock()
	if conn == nil {
		return nil
	}
	return conn.Close()
}

// Do runs cmd to an answer, over as many connections as that takes. After a lost reply the
// operation is looked up first, and only the same command is sent again under the same
// OperationId (protocol.md §4 [D-44]): it runs once or not at all.
//
// It gives up when ctx ends, which every caller should bound, and where another attempt
// changes nothing. The errors are those of [Conn.Command]: an *[OutcomeUnknownError] once
// any attempt may have reached the coordinator.
func (s *Session) Do(ctx context.Context, cmd Command) (frames.OperationResult, error) {
	digest, err := cmd.Digest()
	if err != nil {
		return frames.OperationResult{}, notSent(err)
	}
	begun, err := s.opts.State.begunWith(cmd.OperationID, digest)
	if err != nil {
		return frames.OperationResult{}, notSent(err)
	}
	unknown := begun // some attempt may have run
	pauses := newPauses(s.opts.Backoff, &s.opts.Options)
	for {
		result, err := s.attempt(ctx, cmd, unknown)
		if err == nil {
			return result, nil
		}
		unknown = unknown || errors.As(err, new(*OutcomeUnknownError))
		if !s.again(err) {
			return result, s.settled(err, cmd.OperationID, unknown)
		}
		if werr := pauses.wait(ctx); werr != nil {
			return result, s.settled(fmt.Errorf("%w; last: %w", werr, err), cmd.OperationID, unknown)
		}
	}
}

// attempt makes one attempt on whatever connection there is.
func (s *Session) attempt(ctx context.Context, cmd Command, lookup bool) (frames.OperationResult, error) {
	conn, err := s.connection(ctx)
	if err != nil {
		return frames.OperationResult{}, notSent(err)
	}
	if lookup {
		return conn.Retry(ctx, cmd)
	}
	return conn.Command(ctx, cmd)
}

// again reports whether another attempt may fare better.
func (s *Session) again(err error) bool {
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	var refused *RefusedError
	switch {
	case closed, permanent(err), errors.As(err, new(*StateError)): // a full disk, too: whoever commands is told
		return false
	case errors.As(err, &refused) && !errors.As(err, new(*OutcomeUnknownError)):
		// Another authority took over, or is about to; anything else was decided.
		return refused.Code == frames.CodeStaleAuthority || refused.Code == frames.CodeAuthorityFenced ||
			errors.Is(err, ErrNotSent) && (refused.Code == frames.CodeResourceExhausted || refused.Code == frames.CodeProtocolError)
	}
	return true
}

// settled is err as it concerns the command: a failure of the last attempt says nothing of
// an earlier one that may have run.
func (s *Session) settled(err error, op frames.OperationID, unknown bool) error {
	var refused *RefusedError
	switch {
	case !unknown || errors.As(err, new(*OutcomeUnknownError)) || errors.As(err, new(*IndeterminateError)) || errors.As(err, new(*OtherCommandError)):
		return err
	case errors.As(err, &refused) && !errors.Is(err, ErrNotSent):
		return err // the coordinator looked at this very operation
	}
	return &OutcomeUnknownError{op, err}
}

// connection gives the open connection, or makes one whose authority is current.
func (s *Session) connection(ctx context.Context) (*Conn, error) {
	select {
	case s.connecting <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-s.connecting }()
	s.mu.Lock()
	conn, closed := s.conn, s.closed
	s.mu.Unlock()
	if closed {
		return nil, ErrClosed
	}
	if conn != nil {
		if conn.live() == nil {
			return conn, nil
		}
		s.mu.Lock()
		s.conn = nil
		s.mu.Unlock()
		if err := conn.Close(); err != nil {
			return nil, err
		}
	}
	conn, err := Dial(ctx, s.pins, s.opts.Options)
	if err != nil {
		return nil, err
	}
	if !conn.verified.Load() {
		snap, err := conn.Snapshot(ctx)
		if err == nil {
			err = snap.Close()
		}
		if err != nil {
			return nil, errors.Join(err, conn.Close())
		}
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		conn.Close() //nolint:errcheck // nothing was asked on it
		return nil, ErrClosed
	}
	s.conn = conn
	s.mu.Unlock()
	return conn, nil
}

// Lookup asks for the result of an operation, once, as [Conn.Lookup] does.
func (s *Session) Lookup(ctx context.Context, op frames.OperationID) (frames.OperationResult, error) {
	conn, err := s.connection(ctx)
	if err != nil {
		return frames.OperationResult{}, notSent(err)
	}
	return conn.Lookup(ctx, op)
}
