package client

import (
	"context"
	"errors"
	"fmt"

	"coordinator/frames"
)

// A call is one outstanding request. It keeps its request id and its slot until the
// terminal reply, whether or not somebody still waits.
type call struct {
	id      frames.RequestID
	replies chan frames.Frame // two places: a final page and its END share one request
	want    frames.Type       // the type that may answer it next
	// hook, unless nil, is run by the reader on the first reply that is no error, before
	// anything behind it is read: what a reply changes about a subscription must hold for
	// the events that follow it.
	hook func(frames.Frame) error
}

// A FatalError is a COORD_ERROR that ended the connection.
type FatalError struct {
	Code    frames.Code
	Message string
}

func (e *FatalError) Error() string {
	return "the coordinator ended the connection: " + (&RefusedError{e.Code, e.Message}).Error()
}

// open takes a slot and a request id for a request that want answers. The
// error matches [ErrNotSent].
func (c *Conn) open(ctx context.Context, want frames.Type) (*call, error) {
	return c.openWith(ctx, want, nil)
}

// openWith is open with a hook on the first reply. The hook holds mu.
func (c *Conn) openWith(ctx context.Context, want frames.Type, hook func(frames.Frame) error) (*call, error) {
	select {
	case c.slots <- struct{}{}: // mostly
	default:
		select {
		case c.slots <- struct{}{}:
		case <-ctx.Done():
			return nil, notSent(context.Cause(ctx))
		case <-c.done:
			return nil, notSent(c.Err())
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause != nil {
		<-c.slots
		return nil, notSent(c.cause)
	}
	for c.lastID++; c.lastID == 0 || c.calls[c.lastID] != nil; c.lastID++ {
	}
	k := &call{id: c.lastID, replies: make(chan frames.Frame, 2), want: want, hook: hook}
	c.calls[k.id] = k
	return k, nil
}

// drop gives back the slot and the id of a call that was never sent.
func (c *Conn) drop(k *call) {
	c.mu.Lock()
	if c.calls[k.id] == k {
		delete(c.calls, k.id)
		<-c.slots
	}
	c.mu.Unlock()
}

// send writes the request of k. started reports whether any byte may have left; when none
// did, the call is dropped and the error matches [ErrNotSent].
func (c *Conn) send(ctx context.Context, k *call, f frames.Frame) (started bool, err error) {
	started, err = c.write(ctx, f)
	if err == nil || started {
		return started, err
	}
	c.drop(k)
	return false, notSent(err)
}

// await gives the next reply of k. One that came before ctx or the connection ended counts.
func (c *Conn) await(ctx context.Context, k *call) (frames.Frame, error) {
	select {
	case f := <-k.replies:
		return opened(f)
	case <-ctx.Done():
	case <-c.done:
	}
	select {
	case f := <-k.replies:
		return opened(f)
	default:
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	return nil, context.Cause(ctx)
}

// opened turns an error frame into a [RefusedError].
func opened(f frames.Frame) (frames.Frame, error) {
	if e, ok := f.(*frames.CoordError); ok {
		return nil, &RefusedError{e.Code, e.Message}
	}
	return f, nil
}

// deliver hands a frame to the call that it answers. Only the reader calls it.
func (c *Conn) deliver(id frames.RequestID, f frames.Frame, last bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.calls[id]
	if k == nil {
		return fmt.Errorf("%w: %v answers no request", ErrProtocol, f.Type())
	}
	if f.Type() != frames.TypeCoordError && f.Type() != k.want {
		return fmt.Errorf("%w: %v does not answer that request", ErrProtocol, f.Type())
	}
	if hook := k.hook; hook != nil && f.Type() != frames.TypeCoordError {
		k.hook = nil
		if err := hook(f); err != nil {
			return err
		}
	}
	select {
	case k.replies <- f:
	default:
		return fmt.Errorf("%w: more replies than a request has", ErrProtocol)
	}
	if !last {
		k.want = frames.TypeSnapshotEnd // what follows BEGIN without a cursor, and the last PAGE
		if f.Type() == frames.TypeReplayBegin || f.Type() == frames.TypeReplayPage {
			k.want = frames.TypeReplayEnd
		}
		return nil
	}
	delete(c.calls, id)
	<-c.slots
	return nil
}

// refused acts on a COORD_ERROR (§13). A fatal one that names a request answers it only
// where the code says that the request had no effect: after a fence, a revocation or an
// internal fault a commit may have happened and its reply been withheld (§4 [D-48]).
func (c *Conn) refused(e *frames.CoordError) error {
	fatal := e.Code.Fatal() || e.RequestID == 0
	if e.RequestID != 0 && definite(e.Code) {
		if err := c.deliver(e.RequestID, e, true); err != nil {
			return err
		}
	}
	switch {
	case e.Code == frames.CodeAuthenticationFailed:
		return &AuthenticationError{KeyID: c.keyID, Revoked: true}
	case fatal || !definite(e.Code):
		return &FatalError{e.Code, e.Message}
	}
	return nil
}

// definite reports whether an error of this code that names a request says that the
// request had no effect.
func definite(code frames.Code) bool {
	switch code {
	case frames.CodeAuthenticationFailed, frames.CodeAuthorityFenced, frames.CodeInternal, frames.CodeVersionIncompatible:
		return false
	}
	return true
}

// allowed holds back what may not be sent before a snapshot has verified (D-44).
func (c *Conn) allowed() error {
	if !c.verified.Load() {
		return notSent(ErrSnapshotFirst)
	}
	return nil
}

// roundTrip makes a request that changes nothing and has one reply.
func (c *Conn) roundTrip(ctx context.Context, want frames.Type, request func(frames.RequestID) frames.Frame) (frames.Frame, error) {
	k, err := c.open(ctx, want)
	if err != nil {
		return nil, err
	}
	if _, err := c.send(ctx, k, request(k.id)); err != nil {
		return nil, err
	}
	return c.await(ctx, k)
}

// Ping sends a COORD_PING and waits for its answer.
func (c *Conn) Ping(ctx context.Context) error {
	if err := c.allowed(); err != nil {
		return err
	}
	c.mu.Lock()
	if len(c.pings) >= pongQueue {
		c.mu.Unlock()
		return notSent(errors.New("too many pings at once"))
	}
	c.nonce++
	nonce, answered := c.nonce, make(chan struct{})
	c.pings[nonce] = answered
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.pings, nonce)
		c.mu.Unlock()
	}()
	if started, err := c.write(ctx, &frames.Ping{Nonce: nonce}); err != nil {
		if !started {
			err = notSent(err)
		}
		return err
	}
	select {
	case <-answered:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-c.done:
		return c.Err()
	}
}

// pong wakes the ping that nonce answers; any other is ignored (§7 [D-40]).
func (c *Conn) pong(nonce uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if answered := c.pings[nonce]; answered != nil {
		close(answered)
		delete(c.pings, nonce)
	}
}
