package client

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
)

// A ledger is a coordinator that runs operations, loses connections, and counts.
type ledger struct {
	w  *world
	mu sync.Mutex
	// Guarded by mu.
	ran   map[frames.OperationID]int
	known map[frames.OperationID]frames.OperationResult
	step  int
	// lose says what happens at a step: "" nothing, or where the connection is cut.
	lose func(step int) string
}

func newLedger(w *world) *ledger {
	return &ledger{w: w, ran: map[frames.OperationID]int{}, known: map[frames.OperationID]frames.OperationResult{}, lose: func(int) string { return "" }}
}

func (l *ledger) serve(p *peer) {
	for {
		f := p.recv()
		l.mu.Lock()
		l.step++
		cut := l.lose(l.step)
		l.mu.Unlock()
		if cut == "read" {
			panic(errScript)
		}
		switch f := f.(type) {
		case *frames.OpenSnapshot:
			begin := &frames.SnapshotBegin{RequestID: f.RequestID, SnapshotID: frames.SnapshotID{7}, Guard: p.guard, Base: 1, Bases: []frames.ActivationBase{{Activation: 1}}}
			for a := frames.ActivationSequence(2); a <= p.guard.Activation; a++ {
				begin.Bases = append(begin.Bases, frames.ActivationBase{Activation: a, Base: 1})
			}
			p.send(begin)
			p.send(&frames.SnapshotEnd{RequestID: f.RequestID, SnapshotID: begin.SnapshotID, Digest: frames.NewSnapshotDigest(p.guard, 1, 0).Sum()})
		case *frames.CoordCommand:
			l.mu.Lock()
			r, done := l.known[f.OperationID]
			if !done {
				l.ran[f.OperationID]++
				r = succeeded(1)
				l.known[f.OperationID] = r
			}
			l.mu.Unlock()
			switch cut {
			case "committed":
				panic(errScript)
			case "half":
				p.nc.Write([]byte{0, 0, 0, 90, byte(frames.TypeCoordCommandResult), 1}) //nolint:errcheck // the client may have gone
				panic(errScript)
			case "fenced":
				l.w.restart()
				p.send(&frames.CoordError{RequestID: f.RequestID, Code: frames.CodeAuthorityFenced})
				panic(errScript)
			}
			p.send(&frames.CoordCommandResult{RequestID: f.RequestID, Operation: r})
		case *frames.GetOperationResult:
			l.mu.Lock()
			r, done := l.known[f.OperationID]
			l.mu.Unlock()
			if !done {
				r = frames.OperationResult{State: frames.OperationUnknown}
			}
			if cut == "committed" {
				panic(errScript)
			}
			p.send(&frames.OperationResultFrame{RequestID: f.RequestID, Operation: r})
		}
	}
}

func (l *ledger) session(t *testing.T) *Session {
	opts := SessionOptions{Options: l.w.options(l.serve)}
	opts.Clock = &hasty{Manual: l.w.clock}
	s, err := OpenSession(l.w.pins, opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// TestC08_OneOperationOverLostReplies loses the connection at every step, in every way,
// twice in a row: the caller gets the result, and it ran once.
func TestC08_OneOperationOverLostReplies(t *testing.T) {
	for _, how := range []string{"read", "committed", "half", "fenced"} {
		for at := 1; at < 8; at++ {
			w := newWorld(t)
			l := newLedger(w)
			l.lose = func(step int) string {
				if step == at || step == at+1 {
					return how
				}
				return ""
			}
			s := l.session(t)
			for n := range byte(3) {
				r, err := s.Do(t.Context(), created(t, operation(n), "{}"))
				require.NoError(t, err, "%s at step %d", how, at)
				require.Equal(t, frames.OperationSucceeded, r.State)
				require.Equal(t, 1, l.ran[operation(n)])
			}
			require.Empty(t, s.State().Unresolved())
		}
	}
}

func TestDoGivesUpWhenItsContextEnds(t *testing.T) {
	w := newWorld(t)
	l := newLedger(w)
	s := l.session(t)
	r, err := s.Do(t.Context(), created(t, operation(9), "{}"))
	require.NoError(t, err)
	require.Equal(t, frames.OperationSucceeded, r.State)
	ctx, cancel := context.WithCancel(t.Context())
	first := 0
	l.lose = func(step int) string {
		if first == 0 {
			first = step
		}
		if step > first+3 {
			cancel()
		}
		return "committed"
	}
	_, err = s.Do(ctx, created(t, operation(1), "{}"))
	var unknown *OutcomeUnknownError
	require.ErrorAs(t, err, &unknown)
	require.Equal(t, operation(1), unknown.OperationID)
	require.Equal(t, 1, l.ran[operation(1)])

	// Another process that remembers finds out, and does not send another command.
	l.lose = func(int) string { return "" }
	again := l.session(t)
	require.Len(t, again.State().Unresolved(), 1)
	_, err = again.Do(t.Context(), created(t, operation(1), `{"another":1}`))
	require.ErrorAs(t, err, new(*OtherCommandError))
	r, err = again.Do(t.Context(), created(t, operation(1), "{}"))
	require.NoError(t, err)
	require.Equal(t, frames.OperationSucceeded, r.State)
	require.Equal(t, 1, l.ran[operation(1)])
}

func TestDoThatCertainlyNeverLeft(t *testing.T) {
	w := newWorld(t)
	w.instead = func(string, *peer) bool { return true }
	l := newLedger(w)
	s := l.session(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := s.Do(ctx, created(t, operation(1), "{}"))
	require.ErrorIs(t, err, ErrNotSent)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	w.instead, w.authority = nil, key(t)
	_, err = s.Do(t.Context(), created(t, operation(1), "{}"))
	require.ErrorAs(t, err, new(*PeerError), "which no new attempt changes")
	require.NoError(t, s.Close())
	_, err = s.Do(t.Context(), created(t, operation(1), "{}"))
	require.ErrorIs(t, err, ErrClosed)
}

func TestSessionServesManyAtOnce(t *testing.T) {
	w := newWorld(t)
	l := newLedger(w)
	l.lose = func(step int) string {
		if step%7 == 0 && step < 60 {
			return "committed"
		}
		return ""
	}
	s := l.session(t)
	var wg sync.WaitGroup
	errs := make([]error, 30)
	for n := range errs {
		wg.Go(func() { _, errs[n] = s.Do(t.Context(), created(t, operation(byte(n)), "{}")) })
	}
	wg.Wait()
	for n, err := range errs {
		require.NoError(t, err)
		require.Equal(t, 1, l.ran[operation(byte(n))])
	}
}
