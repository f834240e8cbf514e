package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"syscall"
	"time"

	"coordinator/client"
	"coordinator/frames"
	"coordinator/internal/quicnet"
)

// errTimeout is the cause of a context that --timeout ended.
var errTimeout = errors.New("timed out")

const (
	// readCaps let every family of records be seen but the two that are asked for by name.
	readCaps = frames.CapTerminalBindings | frames.CapArtifactManifests | frames.CapSignals
	// quietCaps are readCaps without operations, for whoever does not show them.
	quietCaps = readCaps | frames.CapWithoutOperations
)

// A session is one connection of one command.
type session struct {
	a    *app
	conn *client.Conn
	// first is the snapshot that had to verify before anything else, if one had to.
	first *client.Snapshot
	// answered says that the command's result has been received: it stands, whatever fails later.
	answered bool
}

// session dials, makes the authority current if it is not yet, and runs fn. mutates says
// that fn sends a command, which it must not when history has just been found lost.
func (a *app) session(parent context.Context, opts client.Options, mutates bool, fn func(context.Context, *session) error) (err error) {
	ctx, cancel := context.WithTimeoutCause(parent, a.timeout, errTimeout)
	defer cancel()
	c, err := client.LoadContext(a.contextPath)
	if err != nil {
		return err
	}
	opts.Name, opts.Journal, opts.Progress = "coordctl", true, a.tell
	if opts.Key, err = a.key(); err != nil {
		return err
	}
	conn, err := a.dial(ctx, c, opts)
	if err != nil {
		return err
	}
	s := &session{a: a, conn: conn}
	defer func() {
		if s.first != nil {
			s.first.Close()
		}
		if cerr := conn.Close(); err == nil {
			err = cerr
		}
	}()
	if err := s.current(ctx, mutates); err != nil {
		return err
	}
	return fn(ctx, s)
}

// retryDial is the pause between two looks for a coordinator that is not there yet.
const retryDial = 100 * time.Millisecond

// dial connects. With --wait it tries again while nobody listens or the one who does is on
// its way out; nothing has been sent then.
func (a *app) dial(ctx context.Context, c *client.Context, opts client.Options) (*client.Conn, error) {
	until := time.Now().Add(a.wait)
	for {
		conn, err := client.Dial(ctx, c, opts)
		if err == nil || !absent(err) || !time.Now().Add(retryDial).Before(until) {
			return conn, err
		}
		select {
		case <-time.After(retryDial):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// absent reports whether err says that there is no coordinator now and may be one soon.
func absent(err error) bool {
	var refused *client.RefusedError
	return errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, client.ErrDisconnected) ||
		errors.Is(err, quicnet.ErrNoAnswer) || errors.Is(err, quicnet.ErrNobody) ||
		errors.As(err, &refused) && refused.Code == frames.CodeAuthorityFenced
}

// current verifies one snapshot when the authority is new to this client (protocol.md §4
// [D-44]) and reports lost history [D-26].
func (s *session) current(ctx context.Context, mutates bool) error {
	if s.conn.Info().Verified {
		return nil
	}
	snap, err := s.take(ctx)
	if err != nil {
		return err
	}
	s.first = snap
	if snap.Lost == nil {
		return nil
	}
	if mutates {
		return notRun(snap.Lost)
	}
	s.a.sayLost(snap.Lost)
	return nil
}

// sayLost tells whoever only reads that history was lost.
func (a *app) sayLost(l *client.LostHistory) {
	fmt.Fprintf(a.stderr, "coordctl: HISTORY_LOST: %v\n", l)
}

// notRunError keeps a command from being sent after history was found lost.
type notRunError struct{ cause error }

func (e *notRunError) Error() string        { return e.cause.Error() }
func (e *notRunError) Unwrap() error        { return e.cause }
func (e *notRunError) Is(target error) bool { return target == client.ErrNotSent }

// snapshot is a verified snapshot: the one that was needed anyway, or a new one. The
// caller closes it.
func (s *session) snapshot(ctx context.Context) (*client.Snapshot, error) {
	if first := s.first; first != nil {
		s.first = nil
		return first, nil
	}
	return s.take(ctx)
}

// take takes a snapshot, and shows how far it is when that takes long.
func (s *session) take(ctx context.Context) (*client.Snapshot, error) {
	defer s.a.bar().End()
	return s.conn.Snapshot(ctx)
}

// records visits the records of a snapshot that keep wants.
func (s *session) records(ctx context.Context, keep func(frames.ObjectKind) bool, visit func(frames.SnapshotRecord) error) error {
	snap, err := s.snapshot(ctx)
	if err != nil {
		return err
	}
	defer snap.Close()
	return snap.Each(func(r frames.SnapshotRecord) error {
		if !keep(r.Kind) {
			return nil
		}
		return visit(r)
	})
}

// send runs one command under op and prints its result. retried says that op was given on
// the command line: then it is looked up first. line is what sends the same command again.
func (s *session) send(ctx context.Context, cmd client.Command, retried bool, line again, show object) error {
	call := s.conn.Command
	if retried {
		call = s.conn.Retry
	}
	result, err := call(ctx, cmd)
	if err != nil {
		return &commandError{cmd.OperationID, line, retried, err}
	}
	return s.result(cmd.OperationID, result, show)
}

// result prints the result of the session's command.
func (s *session) result(op frames.OperationID, r frames.OperationResult, show object) error {
	s.answered = true
	return s.a.showResult(op, r, show)
}

// operationID is the one given with --op, or a new one.
func operationID(given string) (op frames.OperationID, retried bool, err error) {
	if given == "" {
		op, err = frames.NewID[frames.OperationID](rand.Reader)
		return op, false, err
	}
	if op, err = frames.ParseID[frames.OperationID](given); err != nil {
		return op, false, usage("--op: %v", err)
	}
	return op, true, nil
}

// minPrefix is the shortest prefix that stands for an id.
const minPrefix = 6

// checkPrefix holds an id or prefix to its form and returns it in lowercase.
func checkPrefix(text string) (string, error) {
	if len(text) < minPrefix || len(text) > 32 {
		return "", usage("%q is %d characters long; an id is 32 hex digits, and a unique prefix of %d or more stands for it", text, len(text), minPrefix)
	}
	out := []byte(text)
	for i, c := range out {
		switch {
		case c >= 'A' && c <= 'F':
			out[i] = c + 'a' - 'A'
		case c >= '0' && c <= '9' || c >= 'a' && c <= 'f':
		default:
			return "", usage("%q is not an id: it must be hex digits", text)
		}
	}
	return string(out), nil
}
