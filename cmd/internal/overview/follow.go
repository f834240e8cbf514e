package overview

import (
	"context"
	"errors"
	"time"

	"coordinator/client"
	"coordinator/internal/clock"
)

// FollowOptions say how often [Follow] tells.
type FollowOptions struct {
	Options
	// Every is the least time between two deltas with changes. Zero means 100 ms.
	Every time.Duration
	// Beat is how often it tells although nothing has changed. Zero means 1 s.
	Beat time.Duration
	// Clock is the system's when nil.
	Clock clock.Clock
}

func (o *FollowOptions) defaults() {
	if o.Every <= 0 {
		o.Every = 100 * time.Millisecond
	}
	if o.Beat <= 0 {
		o.Beat = time.Second
	}
	if o.Clock == nil {
		o.Clock = clock.System()
	}
}

// Follow keeps a model of r and tells what changes in it until ctx ends, r has ended or told
// fails: its error says which. The first call of told comes at once, before there is a view;
// the model is told's for the time of the call. When r ends, told is called once more, and the
// error is r's.
func Follow(ctx context.Context, r *client.Replica, opts FollowOptions, told func(*Model, *Delta) error) error {
	opts.defaults()
	m := New(opts.Options)
	feed := r.Changes(0)
	defer feed.Close()
	for {
		now := opts.Clock.Now().Wall
		v, end := drain(r, feed, m, now)
		if err := told(m, m.Refresh(v, r.State(), now)); err != nil || end != nil {
			return errors.Join(err, end)
		}
		if err := clock.Wait(ctx, opts.Clock, opts.Every); err != nil {
			return err
		}
		if err := await(ctx, feed, m, &opts); err != nil && !errors.Is(err, errBeat) && ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// drain has m notice all that feed has, and gives a view of which nothing is left to tell.
// What a Reread has replaced may be newer than a view taken before it.
func drain(r *client.Replica, feed *client.Feed, m *Model, now time.Time) (*client.View, error) {
	for {
		v, reread := r.View(), false
		for {
			n, err := feed.Poll()
			if n == nil {
				if reread {
					break
				}
				return v, err
			}
			if _, ok := n.(*client.Reread); ok {
				reread = true
			}
			m.Notice(n, now)
		}
	}
}

// errBeat is the cause of a wait that ended because something must be told.
var errBeat = errors.New("beat")

// await waits for a notice, a row that becomes slow, or the next beat.
func await(ctx context.Context, feed *client.Feed, m *Model, opts *FollowOptions) error {
	wait := opts.Beat - opts.Every
	now := opts.Clock.Now().Wall
	if due := m.Due(); !due.IsZero() {
		wait = min(wait, due.Sub(now))
	}
	if wait <= 0 {
		return nil
	}
	beat, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := opts.Clock.NewTimer(wait)
	defer timer.Stop()
	done := make(chan struct{})
	defer func() { <-done }()
	go func() {
		defer close(done)
		select {
		case <-timer.C():
			cancel(errBeat)
		case <-beat.Done():
		}
	}()
	n, err := feed.Next(beat)
	cancel(nil)
	if n != nil {
		m.Notice(n, opts.Clock.Now().Wall)
	}
	return err
}
