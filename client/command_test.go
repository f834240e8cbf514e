package client

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
)

func TestCommandTellsItsThreeFailuresApart(t *testing.T) {
	for _, tt := range []struct {
		name    string
		script  func(p *peer)
		refused frames.Code // or 0: the outcome is unknown
	}{
		{"closed before the command is read whole", func(p *peer) { p.nc.Read(make([]byte, 7)) }, 0},
		{"closed after the command", func(p *peer) { p.recv() }, 0},
		{"half a reply", func(p *peer) {
			p.recv()
			p.nc.Write([]byte{0, 0, 0, 9, byte(frames.TypeCoordCommandResult), 1})
		}, 0},
		{"a reply that does not decode", func(p *peer) {
			p.recv()
			p.nc.Write([]byte{0, 0, 0, 2, byte(frames.TypeCoordCommandResult), 1})
		}, 0},
		{"a reply to another request", func(p *peer) {
			cmd := take[*frames.CoordCommand](p)
			p.send(&frames.CoordCommandResult{RequestID: cmd.RequestID + 1, Operation: succeeded(4)})
		}, 0},
		{"a reply of another kind", func(p *peer) {
			cmd := take[*frames.CoordCommand](p)
			p.send(&frames.OperationResultFrame{RequestID: cmd.RequestID, Operation: succeeded(4)})
		}, 0},
		{"refused", answerError(frames.CodeRevisionConflict), frames.CodeRevisionConflict},
		{"refused and closed", answerError(frames.CodeMalformedMessage), frames.CodeMalformedMessage},
		{"stale authority", answerError(frames.CodeStaleAuthority), frames.CodeStaleAuthority},
		// A fence, a revocation or an internal fault may hold back the reply to a commit.
		{"fenced", answerError(frames.CodeAuthorityFenced), 0},
		{"revoked", answerError(frames.CodeAuthenticationFailed), 0},
		{"internal", answerError(frames.CodeInternal), 0},
		{"a fatal error that names no request", func(p *peer) {
			p.recv()
			p.send(&frames.CoordError{Code: frames.CodeProtocolError})
		}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			c := w.verified(tt.script)
			_, err := c.Command(t.Context(), created(t, operation(1), "{}"))
			require.Error(t, err)
			require.NotErrorIs(t, err, ErrNotSent)
			var refused *RefusedError
			var unknown *OutcomeUnknownError
			if tt.refused != 0 {
				require.ErrorAs(t, err, &refused)
				require.Equal(t, tt.refused, refused.Code)
				require.False(t, errors.As(err, &unknown))
				require.Empty(t, c.State().Unresolved())
				return
			}
			require.ErrorAs(t, err, &unknown)
			require.Equal(t, operation(1), unknown.OperationID)
			require.False(t, errors.As(err, &refused), "an unknown outcome must not look like a refusal")
			require.Len(t, c.State().Unresolved(), 1)
			reopened, err := OpenState(w.pins)
			require.NoError(t, err)
			require.Equal(t, operation(1), reopened.Unresolved()[0].OperationID, "it was not made durable")
		})
	}
}

func answerError(code frames.Code) func(*peer) {
	return func(p *peer) {
		cmd := take[*frames.CoordCommand](p)
		p.send(&frames.CoordError{RequestID: cmd.RequestID, Code: code, Message: "because"})
		if !code.Fatal() {
			p.recv()
		}
	}
}

func TestCommandThatNeverLeft(t *testing.T) {
	w := newWorld(t)
	c := w.verified(func(p *peer) { p.recv() })
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := c.Command(ended, created(t, operation(1), "{}"))
	require.ErrorIs(t, err, ErrNotSent)
	require.ErrorIs(t, err, context.Canceled)

	big := created(t, operation(2), string(make([]byte, 200<<10)))
	_, err = c.Command(t.Context(), big)
	require.ErrorIs(t, err, ErrNotSent, "a command over the connection's cap")
	require.NoError(t, c.Err(), "which costs the connection nothing")

	_, err = c.Command(t.Context(), created(t, frames.OperationID{}, "{}"))
	require.ErrorIs(t, err, ErrNotSent)

	require.NoError(t, c.Close())
	_, err = c.Command(t.Context(), created(t, operation(1), "{}"))
	require.ErrorIs(t, err, ErrNotSent)
	require.ErrorIs(t, err, ErrClosed)
	require.Empty(t, c.State().Unresolved())
}

func TestCommandWhoseContextEndsWhileItWaits(t *testing.T) {
	w := newWorld(t)
	read := make(chan struct{})
	c := w.verified(func(p *peer) {
		first := take[*frames.CoordCommand](p)
		close(read)
		second := take[*frames.CoordCommand](p)
		p.send(&frames.CoordCommandResult{RequestID: first.RequestID, Operation: succeeded(4)}) // nobody waits any more
		p.send(&frames.CoordCommandResult{RequestID: second.RequestID, Operation: succeeded(5)})
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-read; cancel() }()
	_, err := c.Command(ctx, created(t, operation(1), "{}"))
	var unknown *OutcomeUnknownError
	require.ErrorAs(t, err, &unknown)
	require.ErrorIs(t, err, context.Canceled)

	r, err := c.Command(t.Context(), created(t, operation(2), "{}"))
	require.NoError(t, err, "a late reply must not disturb the connection")
	require.Equal(t, frames.EventSequence(5), r.Sequence)
}

func TestWriteThatBlocksEndsWithItsContext(t *testing.T) {
	w := newWorld(t)
	release := make(chan struct{})
	c := w.verified(func(p *peer) { <-release })
	defer close(release)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := c.Command(ctx, created(t, operation(1), "{}"))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, err, ErrNotSent, "a pipe takes no byte that nobody reads")
}

// TestACallGivenUpInTheMiddleOfItsFrame: the frame is finished, and the connection and
// everybody else on it go on.
func TestACallGivenUpInTheMiddleOfItsFrame(t *testing.T) {
	w := newWorld(t)
	begun, given := make(chan struct{}), make(chan struct{})
	c := w.verified(func(p *peer) {
		first := make([]byte, 3)
		if _, err := io.ReadFull(p.nc, first); err != nil {
			return
		}
		close(begun)
		<-given
		p.nc = resumed{p.nc, io.MultiReader(bytes.NewReader(first), p.nc)}
		cut := take[*frames.CoordCommand](p)
		whole := take[*frames.CoordCommand](p)
		p.send(&frames.CoordCommandResult{RequestID: cut.RequestID, Operation: succeeded(4)})
		p.send(&frames.CoordCommandResult{RequestID: whole.RequestID, Operation: succeeded(5)})
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-begun; cancel() }()
	_, err := c.Command(ctx, created(t, operation(1), "{}"))
	var unknown *OutcomeUnknownError
	require.ErrorAs(t, err, &unknown, "part of it has left")
	close(given)
	r, err := c.Command(t.Context(), created(t, operation(2), "{}"))
	require.NoError(t, err)
	require.Equal(t, frames.EventSequence(5), r.Sequence)
}

// resumed is a connection some of whose bytes were read before.
type resumed struct {
	net.Conn
	r io.Reader
}

func (r resumed) Read(b []byte) (int, error) { return r.r.Read(b) }

func TestRequestsWaitForASlot(t *testing.T) {
	w := newWorld(t)
	seen := make(chan frames.RequestID, 3)
	proceed := make(chan struct{})
	opts := w.options(func(p *peer) {
		p.snapshot(&shown{})
		for range 3 {
			g := take[*frames.GetOperationResult](p)
			seen <- g.RequestID
			<-proceed
			p.send(&frames.OperationResultFrame{RequestID: g.RequestID, Operation: frames.OperationResult{State: frames.OperationUnknown}})
		}
	})
	opts.MaxRequests = 1
	c, err := Dial(t.Context(), w.pins, opts)
	require.NoError(t, err)
	defer c.Close()
	s, err := c.Snapshot(t.Context())
	require.NoError(t, err)
	require.NoError(t, s.Close())
	done := make(chan error, 2)
	look := func() { _, err := c.Lookup(t.Context(), operation(1)); done <- err }
	go look()
	<-seen
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, err = c.Lookup(ctx, operation(2))
	require.ErrorIs(t, err, ErrNotSent)
	proceed <- struct{}{}
	require.NoError(t, <-done)
	go look()
	<-seen
	proceed <- struct{}{}
	require.NoError(t, <-done)
}

// TestAFullJournalAsksWhatHasEnded commands with a journal full of operations that nobody asked
// about again.
func TestAFullJournalAsksWhatHasEnded(t *testing.T) {
	for name, tt := range map[string]struct {
		ended func(op frames.OperationID) bool
		asked int
	}{
		"all have ended": {func(frames.OperationID) bool { return true }, journalRoom},
		"one has ended":  {func(op frames.OperationID) bool { return op == operation(9) }, maxJournal},
		"none has ended": {func(frames.OperationID) bool { return false }, maxJournal},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			asked, ran := 0, 0
			opts := w.options(func(p *peer) {
				p.snapshot(&shown{})
				for {
					switch f := p.recv().(type) {
					case *frames.GetOperationResult:
						asked++
						r := frames.OperationResult{State: frames.OperationUnknown}
						if tt.ended(f.OperationID) {
							r = succeeded(2)
						}
						p.send(&frames.OperationResultFrame{RequestID: f.RequestID, Operation: r})
					case *frames.CoordCommand:
						ran++
						p.send(&frames.CoordCommandResult{RequestID: f.RequestID, Operation: succeeded(3)})
					}
				}
			})
			opts.Journal = true
			c, err := Dial(t.Context(), w.pins, opts)
			require.NoError(t, err)
			s, err := c.Snapshot(t.Context())
			require.NoError(t, err)
			require.NoError(t, s.Close())
			require.NoError(t, c.state.updateLocked(func(m *memory) error {
				for i := range maxJournal {
					op := operation(byte(i))
					op[2] = byte(i >> 8)
					m.Operations = append(m.Operations, journalEntry{OperationID: op.String(), CommandDigest: sixtyFour})
				}
				return nil
			}))
			_, err = c.Command(t.Context(), created(t, frames.OperationID{1}, "{}"))
			require.NoError(t, c.Close())
			require.Equal(t, tt.asked, asked)
			if name == "none has ended" {
				require.ErrorIs(t, err, ErrJournalFull)
				require.ErrorIs(t, err, ErrNotSent)
				require.Zero(t, ran)
				require.Len(t, c.State().Unresolved(), maxJournal)
				return
			}
			require.NoError(t, err)
			require.Equal(t, 1, ran)
		})
	}
}

func TestManyCallersShareAConnection(t *testing.T) {
	w := newWorld(t)
	const n = 50
	c := w.verified(func(p *peer) {
		var waiting []*frames.CoordCommand
		for len(waiting) < n {
			waiting = append(waiting, take[*frames.CoordCommand](p))
		}
		for i := n - 1; i >= 0; i-- { // last come, first served
			cmd := waiting[i]
			p.send(&frames.CoordCommandResult{RequestID: cmd.RequestID, Operation: succeeded(frames.EventSequence(cmd.OperationID[1]) + 1)})
		}
	})
	errs := make(chan error, n)
	for i := range n {
		go func() {
			r, err := c.Command(t.Context(), created(t, operation(byte(i)), "{}"))
			if err == nil && r.Sequence != frames.EventSequence(i+1) {
				err = errors.New("somebody else's reply")
			}
			errs <- err
		}()
	}
	for range n {
		require.NoError(t, <-errs)
	}
	require.Equal(t, frames.EventCut(n), c.State().cut().Sequence)
}

// TestC08_RetryAfterALostReply looks the operation up and sends it again only when the
// coordinator does not know it.
func TestC08_RetryAfterALostReply(t *testing.T) {
	lost := func(t *testing.T) (*world, Command) {
		w := newWorld(t)
		c := w.verified(func(p *peer) { p.recv() })
		cmd := created(t, operation(1), "{}")
		_, err := c.Command(t.Context(), cmd)
		require.ErrorAs(t, err, new(*OutcomeUnknownError))
		return w, cmd
	}
	look := func(p *peer, r frames.OperationResult) {
		g := take[*frames.GetOperationResult](p)
		if g.OperationID != operation(1) {
			panic("script: another operation")
		}
		p.send(&frames.OperationResultFrame{RequestID: g.RequestID, Operation: r})
	}
	t.Run("it ran", func(t *testing.T) {
		w, cmd := lost(t)
		c := w.dial(func(p *peer) {
			look(p, succeeded(8))
			p.recv() // anything more would be the test's failure: Retry would not return
		})
		r, err := c.Retry(t.Context(), cmd)
		require.NoError(t, err)
		require.Equal(t, frames.EventSequence(8), r.Sequence)
		require.Empty(t, c.State().Unresolved())
	})
	t.Run("it did not", func(t *testing.T) {
		w, cmd := lost(t)
		c := w.dial(func(p *peer) {
			look(p, frames.OperationResult{State: frames.OperationUnknown})
			again := take[*frames.CoordCommand](p)
			p.send(&frames.CoordCommandResult{RequestID: again.RequestID, Operation: succeeded(9)})
		})
		r, err := c.Retry(t.Context(), cmd)
		require.NoError(t, err)
		require.Equal(t, frames.EventSequence(9), r.Sequence)
		require.Empty(t, c.State().Unresolved())
	})
	t.Run("the lookup is lost too", func(t *testing.T) {
		w, cmd := lost(t)
		c := w.dial(func(p *peer) { p.recv() })
		_, err := c.Retry(t.Context(), cmd)
		require.ErrorAs(t, err, new(*OutcomeUnknownError))
	})
	t.Run("another command", func(t *testing.T) {
		w, _ := lost(t)
		c := w.dial(func(p *peer) { p.recv() })
		for _, call := range []func(context.Context, Command) (frames.OperationResult, error){c.Retry, c.Command} {
			_, err := call(t.Context(), created(t, operation(1), `{"other":1}`))
			require.ErrorAs(t, err, new(*OtherCommandError))
			require.ErrorIs(t, err, ErrNotSent)
		}
	})
	t.Run("another command that was pruned", func(t *testing.T) {
		w := newWorld(t)
		c := w.verified(func(p *peer) {
			look(p, frames.OperationResult{State: frames.OperationTombstoned, Digest: [32]byte{1}, Final: frames.OperationSucceeded})
		})
		_, err := c.Retry(t.Context(), created(t, operation(1), "{}"))
		require.ErrorAs(t, err, new(*OtherCommandError))
	})
	t.Run("a result that this client cannot tie to the command", func(t *testing.T) {
		w := newWorld(t)
		c := w.verified(func(p *peer) {
			look(p, succeeded(8))
			again := take[*frames.CoordCommand](p) // so that the coordinator compares the digest
			p.send(&frames.CoordError{RequestID: again.RequestID, Code: frames.CodeOperationConflict})
			p.recv()
		})
		_, err := c.Retry(t.Context(), created(t, operation(1), "{}"))
		var refused *RefusedError
		require.ErrorAs(t, err, &refused)
		require.Equal(t, frames.CodeOperationConflict, refused.Code)
	})
}

func TestJournalIsDurableBeforeTheCommandLeaves(t *testing.T) {
	w := newWorld(t)
	var before []Unresolved
	opts := w.options(func(p *peer) {
		p.snapshot(&shown{})
		cmd := take[*frames.CoordCommand](p)
		s, err := OpenState(w.pins)
		if err != nil {
			panic(err)
		}
		before = s.Unresolved()
		p.send(&frames.CoordCommandResult{RequestID: cmd.RequestID, Operation: frames.OperationResult{State: frames.OperationPending, Epoch: 3, Sequence: 6}})
		g := take[*frames.GetOperationResult](p)
		p.send(&frames.OperationResultFrame{RequestID: g.RequestID, Operation: succeeded(7)})
	})
	opts.Journal = true
	c, err := Dial(t.Context(), w.pins, opts)
	require.NoError(t, err)
	defer c.Close()
	s, err := c.Snapshot(t.Context())
	require.NoError(t, err)
	require.NoError(t, s.Close())
	cmd := created(t, operation(1), "{}")
	r, err := c.Command(t.Context(), cmd)
	require.NoError(t, err)
	require.Equal(t, frames.OperationPending, r.State)
	digest, err := cmd.Digest()
	require.NoError(t, err)
	require.Equal(t, []Unresolved{{OperationID: operation(1), CommandDigest: digest}}, before)
	require.Len(t, c.State().Unresolved(), 1, "PENDING is not the end")
	_, err = c.Lookup(t.Context(), operation(1))
	require.NoError(t, err)
	require.Empty(t, c.State().Unresolved())
	again, err := OpenState(w.pins)
	require.NoError(t, err)
	require.Empty(t, again.Unresolved())
	require.Equal(t, frames.EventCut(7), again.cut().Sequence)
}

func TestResultStandsWhenItCannotBeRemembered(t *testing.T) {
	w := newWorld(t)
	opts := w.options(func(p *peer) {
		p.snapshot(&shown{})
		cmd := take[*frames.CoordCommand](p)
		if err := os.WriteFile(StatePath(w.pins.Path, w.pins.CoordinatorID), []byte("damaged"), 0o600); err != nil {
			panic(err)
		}
		p.send(&frames.CoordCommandResult{RequestID: cmd.RequestID, Operation: succeeded(6)})
		p.recv()
	})
	opts.Journal = true
	c, err := Dial(t.Context(), w.pins, opts)
	require.NoError(t, err)
	s, err := c.Snapshot(t.Context())
	require.NoError(t, err)
	require.NoError(t, s.Close())
	r, err := c.Command(t.Context(), created(t, operation(1), "{}"))
	require.NoError(t, err, "the command ran, whatever became of the memory of it")
	require.Equal(t, frames.EventSequence(6), r.Sequence)
	require.ErrorAs(t, c.Close(), new(*StateError))
}
