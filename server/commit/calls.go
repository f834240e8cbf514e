package commit

import (
	"context"
	"math"
	"slices"
	"sync/atomic"

	"coordinator/frames"
	"coordinator/server/store"
	"coordinator/server/work"
)

// A call is a function that the writer runs between two commits.
type call struct {
	fn    func(*store.Store) error
	state atomic.Int32 // callWaiting, callTaken or callDropped
	done  chan struct{}
	err   error // set before done is closed
}

const (
	callWaiting = iota
	callTaken
	callDropped
)

func (c *call) take() bool { return c.state.CompareAndSwap(callWaiting, callTaken) }

func (c *call) refuse(err error) {
	if c.take() {
		c.err = err
		close(c.done)
	}
}

// Do runs fn on the writer's goroutine between two commits, after the publication of all
// earlier ones, and waits for it: everything that fn sees is durable and published. This is
// how cuts are made and live records looked up. fn must not block, read files or commit.
//
// The result is fn's error, a *work.Refusal when fn was not run (RESOURCE_EXHAUSTED,
// AUTHORITY_FENCED), or ctx's error when it was cancelled before fn began.
func (w *Writer) Do(ctx context.Context, fn func(*store.Store) error) error {
	return w.call(ctx, fn, w.o.QueueLimit)
}

// Turn returns nil once the writer has come round after the call, between two commits. Unlike
// Do it does not mind how many calls wait. It waits while the clocks have diverged.
func (w *Writer) Turn(ctx context.Context) error {
	return w.call(ctx, func(*store.Store) error { return nil }, math.MaxInt)
}

// call is Do while fewer than limit calls wait.
func (w *Writer) call(ctx context.Context, fn func(*store.Store) error, limit int) error {
	c := &call{fn: fn, done: make(chan struct{})}
	w.mu.Lock()
	switch {
	case w.closed:
		w.mu.Unlock()
		return ErrStopped
	case len(w.calls) >= limit:
		w.mu.Unlock()
		return frames.Refuse(frames.CodeResourceExhausted, "the server has too many requests outstanding")
	}
	w.calls = append(w.calls, c)
	signal(w.wake)
	w.mu.Unlock()
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		if c.state.CompareAndSwap(callWaiting, callDropped) {
			w.leave(c)
			return ctx.Err()
		}
		<-c.done // it is running, and short
		return c.err
	}
}

// leave gives the place of a call that was given up to another one, although the writer may
// not come round for long.
func (w *Writer) leave(c *call) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if i := slices.Index(w.calls, c); i >= 0 {
		w.calls = slices.Delete(w.calls, i, i+1)
	}
}

// serveCalls runs the calls that wait.
func (w *Writer) serveCalls() (bool, error) {
	w.mu.Lock()
	calls := w.calls
	w.mu.Unlock()
	if len(calls) == 0 {
		return false, nil
	}
	if err := w.o.Fence.Check(); err != nil {
		return false, err
	}
	w.mu.Lock()
	calls = w.calls
	w.calls = nil
	w.mu.Unlock()
	for _, c := range calls {
		if c.take() {
			c.err = c.fn(w.o.Store)
			close(c.done)
		}
	}
	return true, nil
}

// Lookup answers GET_OPERATION_RESULT for a viewer as work.Lookup does, on the state that is
// durable and published when the writer reaches it. It reads files on the caller's goroutine
// only.
func (w *Writer) Lookup(ctx context.Context, id frames.OperationID, from work.Viewer) (frames.OperationResult, error) {
	var result frames.OperationResult
	err := w.read(ctx, []frames.ObjectRef{work.OperationRef(id)}, func(v work.View) (err error) {
		result, err = work.Lookup(v, id, from)
		return err
	})
	return result, err
}

// Retention reads the RETENTION record, for what a hello advertises.
func (w *Writer) Retention(ctx context.Context) (frames.Retention, error) {
	var r frames.Retention
	err := w.read(ctx, []frames.ObjectRef{work.RetentionRef()}, func(v work.View) (err error) {
		r, err = work.Retention(v)
		return err
	})
	return r, err
}

// read runs fn between two commits on a view that holds refs, and prefetches again for as
// long as the writer has moved past what was read.
func (w *Writer) read(ctx context.Context, refs []frames.ObjectRef, fn func(work.View) error) error {
	known := needs{refs: refs}
	for {
		loaded, err := w.o.Store.PrefetchHeads(known.refs, known.heads)
		if err != nil {
			w.o.Logger.Error("prefetch failed", "err", err)
			return frames.Refuse(frames.CodeInternal, "the store could not be read")
		}
		fresh := false
		v := &view{}
		err = w.Do(ctx, func(s *store.Store) error {
			v.tx = s.View()
			if fresh = v.tx.Use(loaded); !fresh {
				return nil
			}
			return fn(v)
		})
		if v.miss(err, &known) {
			continue
		}
		if err != nil || fresh {
			return err
		}
	}
}
