package main

import (
	"context"
	"errors"
	"time"

	"coordinator/client"
	"coordinator/frames"
)

// A tracking follows the records that a key may see, through gaps and restarts of the coordinator.
type tracking struct {
	a    *app
	name string // of this client, for the coordinator's log
	caps frames.Capability
	// patience is how long a coordinator that is not there is waited for until there is a first
	// view; --timeout bounds that in any case.
	patience time.Duration
	// waits says that something is waited for: without it an interruption is no success.
	waits bool

	began bool // there is a view
}

// run tells what becomes of the view, from the first one on, until tell fails or ctx ends.
func (f *tracking) run(parent context.Context, tell func(*client.Replica, client.Notice) error) (err error) {
	c, err := client.LoadContext(f.a.contextPath)
	if err != nil {
		return err
	}
	opts := client.ReplicaOptions{Options: client.Options{Name: f.name, Offered: f.caps | followCaps}, Backoff: client.Backoff{Max: watchPause}}
	if opts.Key, err = f.a.key(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	start := time.Now()
	first := time.AfterFunc(f.a.timeout, func() { cancel(errTimeout) })
	defer first.Stop()
	r, err := client.OpenReplica(c, opts)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := r.Close(); err == nil {
			err = cerr
		}
	}()
	feed := r.Changes(watchBacklog)
	defer feed.Close()
	var absence error
	for n, err := range feed.All(ctx) {
		if err != nil {
			if !f.began && absence != nil && errors.Is(err, errTimeout) {
				return absence
			}
			return err
		}
		if s, ok := n.(*client.ReplicaState); ok && !f.began {
			if s.Gap != nil {
				if absence = s.Gap.Cause; time.Since(start) >= f.patience || !absent(absence) {
					return absence
				}
			}
			continue
		}
		f.began = true
		first.Stop()
		if err := tell(r, n); err != nil {
			return err
		}
	}
	return nil
}

// left is the end of it: no failure where it has told enough, or a person ended what has no other end.
func (f *tracking) left(err error) error {
	if errors.Is(err, errEnough) || f.began && !f.waits && errors.Is(err, errInterrupted) {
		return nil
	}
	return err
}
