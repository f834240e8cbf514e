package main

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"syscall"
	"time"

	"coordinator/client"
	"coordinator/cmd/internal/runs"
	"coordinator/frames"
	"coordinator/internal/quicnet"
	"coordinator/owner"
)

// explainOwner words what went wrong at a process owner.
func (a *app) explainOwner(err error) (message, bool) {
	var oe *runs.OwnerError
	if !errors.As(err, &oe) {
		return message{}, false
	}
	m := message{code: exitUnavailable, what: oe.Error()}
	var refused *owner.RefusedError
	switch {
	case errors.As(err, &refused) && refused.Code == frames.CodeAuthenticationFailed:
		m.code = exitAuthentication
		m.next = []string{"enrol this key there for reading output: ownerd keys --state DIR add --scope output --coordinator HEX ed25519:…"}
	case errors.Is(err, owner.ErrImpostor):
		m.code = exitAuthentication
		m.next = []string{"check `authority` of [[owner]] in " + a.contextPath + " against what ownerd status prints"}
	case errors.As(err, &refused):
		m.code = exitRefused
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ECONNREFUSED):
		m.what = "no process owner: nobody listens where [[owner]] " + oe.Name + " of " + a.contextPath + " says"
		m.next = []string{"start it with: " + a.upLine() + ", or with ownerd serve"}
	default:
		m.next = []string{"try again; if it stays so, look at the owner's log"}
	}
	return m, true
}

// ownerAway reports whether err says that the owner is not there now, and may be soon.
func ownerAway(err error) bool {
	return errors.As(err, new(*runs.OwnerError)) &&
		(absent(err) || errors.Is(err, io.EOF) || errors.Is(err, quicnet.ErrPeerClosed) || errors.Is(err, quicnet.ErrLost))
}

// dialOwner connects to an owner of the context for reading output, which is also how its
// incarnation and groups are learned.
func (a *app) dialOwner(ctx context.Context, c *client.Context, o client.Owner) (*owner.Client, error) {
	key, err := a.key()
	if err != nil {
		return nil, err
	}
	return runs.DialOwner(ctx, c, key, o, "coordctl")
}

// An outputFollower copies the output of one binding to a writer as it comes, over as many
// connections to the owner as that takes.
type outputFollower struct {
	w       io.Writer
	dial    func(context.Context) (*owner.Client, error)
	binding frames.BindingID

	cancel  context.CancelFunc // nil before start
	done    chan error         // one slot
	offset  uint64             // owned by run
	moved   atomic.Uint64      // bytes written
	writing atomic.Bool        // a write has begun and not ended: the reader of w is slow
}

func (a *app) outputFollower(c *client.Context, o client.Owner, binding frames.BindingID, w io.Writer) *outputFollower {
	return &outputFollower{w: w, binding: binding, done: make(chan error, 1),
		dial: func(ctx context.Context) (*owner.Client, error) { return a.dialOwner(ctx, c, o) }}
}

// start begins, the first time it is called.
func (f *outputFollower) start(ctx context.Context) {
	if f.cancel != nil {
		return
	}
	ctx, f.cancel = context.WithCancel(ctx)
	go func() { f.done <- f.run(ctx) }()
}

// progress is how many bytes have been written, and whether a write is under way.
func (f *outputFollower) progress() (moved uint64, writing bool) {
	return f.moved.Load(), f.writing.Load()
}

// stop ends and joins it.
func (f *outputFollower) stop() {
	if f.cancel == nil {
		return
	}
	f.cancel()
	<-f.done
}

// outputPause is the pause before an owner whose link was lost is dialled again.
const outputPause = 250 * time.Millisecond

func (f *outputFollower) run(ctx context.Context) error {
	for {
		err := f.once(ctx)
		var refused *owner.RefusedError
		if err == nil || ctx.Err() != nil || errors.As(err, new(*runs.SinkError)) || errors.As(err, &refused) {
			return err
		}
		select {
		case <-time.After(outputPause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (f *outputFollower) once(ctx context.Context) error {
	link, err := f.dial(ctx)
	if err != nil {
		return err
	}
	defer link.Close()
	return link.ReadOutput(ctx, f.binding, f.offset, 0, true, func(at uint64, data []byte) error {
		f.writing.Store(true)
		n, err := f.w.Write(data)
		f.writing.Store(false)
		f.moved.Add(uint64(n))
		f.offset = at + uint64(n)
		if err != nil {
			return &runs.SinkError{Cause: err}
		}
		return nil
	})
}
