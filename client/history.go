package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"coordinator/frames"
)

const (
	// historyQuiet is how long a trimmed log must stay silent, its coordinator answering, to be
	// taken as read: the event that would end it may be among those that are gone.
	historyQuiet = 2 * time.Second
	// restQuiet is how long a log must stay silent once its visitor has what it cannot do without.
	restQuiet = 250 * time.Millisecond
)

// maxTrims bounds how often the oldest event is looked for again because it went meanwhile.
const maxTrims = 5

// historyPings are the answers in which nothing may come. What the coordinator has in memory for a
// subscription it sends with the first one or right behind it. What it has to read from its log it
// sends a write later: that may begin with the second answer, and is over before the third.
const historyPings = 3

// errQuiet ends a wait in which nothing came.
var errQuiet = errors.New("nothing more comes")

// ErrAdministration refuses to read history with ADMINISTRATION: a connection that sees ADMIN
// records cannot read the log across a change of them (protocol.md §6 [D-12]).
var ErrAdministration = errors.New("history is not read with ADMINISTRATION")

// ReadHistory visits, in order and once, every event that opts let this key see and that the
// coordinator retains, from the oldest on and into the live ones, until visit says enough.
// What is enough the visitor knows from a snapshot: each of its objects has reached the
// revision that it had there.
//
// after is the cut behind which the visited events begin: zero says that the log is retained
// from its beginning, and anything else that retention has removed what lies at or below. A
// log that was trimmed may not hold what visit waits for; ReadHistory then returns nil once
// nothing more comes, and the visitor must look at what it has.
func ReadHistory(ctx context.Context, c *Context, opts Options, visit func(*Event) (enough bool, err error)) (after frames.EventCut, err error) {
	return readHistory(ctx, c, opts, func() bool { return false }, visit)
}

// ReadHistoryToRest is ReadHistory for a visitor that does not know which event is the last of
// its kind: once atRest says that the visitor has what it cannot do without, it also returns
// nil when nothing more comes, the coordinator answering. atRest is asked before each event.
func ReadHistoryToRest(ctx context.Context, c *Context, opts Options, atRest func() bool, visit func(*Event) (enough bool, err error)) (after frames.EventCut, err error) {
	return readHistory(ctx, c, opts, atRest, visit)
}

func readHistory(ctx context.Context, c *Context, opts Options, atRest func() bool, visit func(*Event) (enough bool, err error)) (after frames.EventCut, err error) {
	if opts.Offered.Has(frames.CapAdministration) {
		return 0, ErrAdministration
	}
	// Without ARCHIVE a removal would bar the log before it like an ADMIN change.
	opts.Offered |= frames.CapEventReplay | frames.CapArchive
	conn, err := Dial(ctx, c, opts)
	if err != nil {
		return 0, err
	}
	defer func() {
		if cerr := conn.Close(); err == nil {
			err = cerr
		}
	}()
	snap, err := conn.Snapshot(ctx) // the head, and an authority that is new has to verify
	if err != nil {
		return 0, err
	}
	head := snap.Base
	if err := snap.Close(); err != nil {
		return 0, err
	}
	h := &history{conn: conn, visit: visit, atRest: atRest, head: head}
	_, gap, err := h.read(ctx, 0)
	if err != nil || gap == nil {
		return 0, err
	}
	h.trimmed = true
	for range maxTrims {
		if after, err = h.oldest(ctx, 0, head); err != nil {
			return 0, err
		}
		at, gap, err := h.read(ctx, after)
		switch {
		case err != nil || gap == nil:
			return after, err
		case at != after:
			return after, trimmedFaster(gap)
		}
		// A log that was trimmed once more since has shown nothing yet.
	}
	return after, trimmedFaster(gap)
}

func trimmedFaster(gap *Gap) error {
	return fmt.Errorf("history: the log is trimmed faster than it is read: %v", gap)
}

// history is one ReadHistory.
type history struct {
	conn    *Conn
	visit   func(*Event) (bool, error)
	atRest  func() bool
	trimmed bool
	head    frames.EventCut // when the reading began
}

// read visits what follows a cut. A gap says that at, up to where it came, lies before what is
// retained.
func (h *history) read(ctx context.Context, after frames.EventCut) (at frames.EventCut, gap *Gap, err error) {
	sub, err := h.conn.Subscribe(ctx, after, SubscribeOptions{})
	if err != nil {
		return after, nil, err
	}
	for {
		u, err := h.next(ctx, sub)
		if err != nil || u == nil {
			return sub.Cut(), nil, err
		}
		switch u := u.(type) {
		case *Event:
			h.conn.progress(StageHistory, uint64(u.Sequence)-uint64(after), uint64(max(h.head, after)-after))
			if enough, err := h.visit(u); err != nil || enough {
				return sub.Cut(), nil, err
			}
		case *Gap:
			if u.Reason == frames.GapRetention {
				return sub.Cut(), u, nil
			}
			if err := sub.Replay(ctx); err != nil {
				return sub.Cut(), nil, fmt.Errorf("history: %v: %w", u, err)
			}
		}
	}
}

// next is the next update; nil at the end of a trimmed log, or of one that is read for all
// there is.
func (h *history) next(ctx context.Context, sub *Subscription) (Update, error) {
	wait := historyQuiet
	switch {
	case h.atRest():
		wait = restQuiet
	case !h.trimmed:
		return sub.Next(ctx)
	}
	quiet, cancel := context.WithCancelCause(ctx)
	timer, joined := h.conn.opts.Clock.NewTimer(wait), make(chan struct{})
	go func() {
		defer close(joined)
		select {
		case <-timer.C():
			cancel(errQuiet)
		case <-quiet.Done():
		}
	}()
	u, err := sub.Next(quiet)
	cancel(nil)
	timer.Stop()
	<-joined
	if !errors.Is(err, errQuiet) {
		return u, err
	}
	for range historyPings {
		if err := h.conn.Ping(ctx); err != nil {
			return nil, err
		}
	}
	if _, more := sub.head(); more || sub.pending() {
		return sub.Next(ctx)
	}
	return nil, nil
}

// oldest finds the lowest cut that can be followed from, by halving: high can, low cannot.
func (h *history) oldest(ctx context.Context, low, high frames.EventCut) (frames.EventCut, error) {
	for high-low > 1 {
		mid := low + (high-low)/2
		gone, err := h.gone(ctx, mid)
		if err != nil {
			return 0, err
		}
		if gone {
			low = mid
		} else {
			high = mid
		}
	}
	return high, nil
}

// gone reports whether a cut lies before what is retained. Each look has a connection of its
// own, as a subscription lasts as long as its connection.
func (h *history) gone(ctx context.Context, cut frames.EventCut) (gone bool, err error) {
	conn, err := Dial(ctx, h.conn.pins, h.conn.opts)
	if err != nil {
		return false, err
	}
	defer func() {
		if cerr := conn.Close(); err == nil {
			err = cerr
		}
	}()
	sub, err := conn.Subscribe(ctx, cut, SubscribeOptions{CreditCount: 1})
	if err != nil {
		return false, err
	}
	if err := conn.Ping(ctx); err != nil { // whose answer a gap precedes
		return false, err
	}
	gap := sub.unreadGap()
	return gap != nil && gap.Reason == frames.GapRetention, nil
}
