package client

import (
	"context"
	"iter"
)

const (
	// feedChanges is how many changes wait for the consumer of a feed unless it asks for
	// another number.
	feedChanges = 1024
	// feedBytes bounds what the changes that wait hold.
	feedBytes = 16 << 20
	// feedStates bounds the states that wait before there is a view.
	feedStates = 64
)

// A Notice is what a [Feed] gives: a *[Change], a *[Reread] or a *[ReplicaState].
type Notice interface{ notice() }

// A Change is one event as the replica has applied it, or one difference between two views.
type Change struct {
	// Event is what happened, with its sequence; nil in what [View.Since] gives.
	Event *Event
	// Old and New are the record before and after; nil says that there was none, or is none
	// any more.
	Old, New *Record
}

func (*Change) notice() {}

// size is about what a waiting change holds.
func (c *Change) size() int64 {
	n := int64(len(c.Event.Payload)) + recordBytes
	if c.Old != nil {
		n += c.Old.size()
	}
	if c.New != nil {
		n += c.New.size()
	}
	return n
}

// RereadReason says why a consumer must read the view anew.
type RereadReason uint8

const (
	// RereadFirst is the beginning of a feed.
	RereadFirst RereadReason = iota
	// RereadSnapshot is a snapshot that took the place of the view.
	RereadSnapshot
	// RereadMissed is a consumer that did not keep up: changes were dropped.
	RereadMissed
)

// A Reread says that the changes up to View are not told one by one. What the consumer
// derived from earlier ones must be derived anew, for which [View.Since] helps; the changes
// that follow begin behind View.
type Reread struct {
	Reason RereadReason
	View   *View
	State  ReplicaState
	// Missed counts the changes and states dropped since the last Reread.
	Missed int
}

func (*Reread) notice() {}

// A Feed tells one consumer what becomes of the view, in order. A consumer that does not
// keep up never holds the replica back: it is told to read the view anew.
//
// Each publication is told as one step: a state that has changed comes first, then the
// changes that the view took in with it; those that came before a gap are told before it.
type Feed struct {
	r   *Replica
	max int

	// Guarded by r.mu.
	queue  []Notice
	bytes  int64
	reread bool // a Reread is in the queue
	behind bool // a Reread for reason is due before anything that follows it
	reason RereadReason
	missed int
	closed bool

	wake chan struct{} // holds one element when there is something new
}

// Changes opens a feed. Up to max changes wait for its consumer; zero means 1,024. The first
// notice behind the states without a view is a *[Reread]. The caller closes it.
func (r *Replica) Changes(max int) *Feed {
	if max <= 0 {
		max = feedChanges
	}
	f := &Feed{r: r, max: max, behind: true, wake: make(chan struct{}, 1)}
	f.signal()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.feeds[f] = struct{}{}
	r.listening.Store(int32(len(r.feeds)))
	return f
}

// Close ends the feed: Next gives ErrClosed.
func (f *Feed) Close() {
	f.r.mu.Lock()
	defer f.r.mu.Unlock()
	f.closed = true
	delete(f.r.feeds, f)
	f.r.listening.Store(int32(len(f.r.feeds)))
	f.signal()
}

func (f *Feed) signal() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// Next waits for the next notice. Its error is the cause of ctx, [ErrClosed], or, behind
// the last notice, why the replica has ended. One goroutine at a time may call it.
func (f *Feed) Next(ctx context.Context) (Notice, error) {
	for {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		n, err := f.take()
		if n != nil || err != nil {
			return n, err
		}
		select {
		case <-f.wake:
		case <-ctx.Done():
		}
	}
}

// Poll gives the next notice if one waits, else nil. What [Replica.View] showed before the
// call is told once it gives none. Its error and its callers are those of [Feed.Next].
func (f *Feed) Poll() (Notice, error) { return f.take() }

// All ranges over [Feed.Next] until it fails. The error, which is never nil, comes last,
// with a nil Notice.
func (f *Feed) All(ctx context.Context) iter.Seq2[Notice, error] {
	return func(yield func(Notice, error) bool) {
		for {
			n, err := f.Next(ctx)
			if !yield(n, err) || err != nil {
				return
			}
		}
	}
}

// take gives what is there; nothing is nil, nil.
func (f *Feed) take() (Notice, error) {
	r := f.r
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.now.Load()
	switch {
	case f.closed:
		return nil, ErrClosed
	case f.behind && p.view != nil:
		reread := &Reread{Reason: f.reason, View: r.viewOf(p), State: r.stateOf(p), Missed: f.missed}
		f.clear()
		return reread, nil
	case len(f.queue) > 0:
		n := f.queue[0]
		f.queue[0] = nil
		if f.queue = f.queue[1:]; len(f.queue) == 0 {
			f.queue = nil
		}
		switch n := n.(type) {
		case *Change:
			f.bytes -= n.size()
		case *Reread:
			f.reread = false
		}
		return n, nil
	case p.state.Phase.Final():
		return nil, p.state.Err
	}
	return nil, nil
}

func (f *Feed) clear() {
	f.queue, f.bytes, f.reread, f.behind, f.missed = nil, 0, false, false, 0
}

// step takes one publication in. It holds r.mu.
func (f *Feed) step(s *step) {
	defer f.signal()
	switch {
	case f.behind:
		f.missed += len(s.changes)
		if s.state == nil {
			return
		}
		if s.viewed { // the Reread that is due tells it
			f.missed++
			return
		}
		if f.queue = append(f.queue, s.state); len(f.queue) > feedStates {
			f.queue = f.queue[1:]
			f.missed++
		}
		return
	case s.incomplete:
		f.fallBehind(RereadMissed, len(s.changes))
		return
	}
	if s.state != nil && !s.earlier {
		f.queue = append(f.queue, s.state)
	}
	if s.reread != nil {
		if f.reread {
			f.fallBehind(RereadMissed, 1) // two of them, and nobody reads: each holds a view
			return
		}
		f.queue, f.reread = append(f.queue, s.reread), true
	}
	for i := range s.changes {
		c := &s.changes[i]
		f.queue = append(f.queue, c)
		f.bytes += c.size()
	}
	if s.state != nil && s.earlier {
		f.queue = append(f.queue, s.state)
	}
	if len(f.queue) > f.max || f.bytes > feedBytes {
		f.fallBehind(RereadMissed, 0)
	}
}

func (f *Feed) fallBehind(why RereadReason, more int) {
	missed := f.missed + len(f.queue) + more
	f.clear()
	f.behind, f.reason, f.missed = true, why, missed
}
