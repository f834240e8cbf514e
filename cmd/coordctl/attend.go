package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"coordinator/client"
	"coordinator/cmd/internal/runs"
	"coordinator/codec"
	"coordinator/frames"
)

// attendance is one client that stays with a run.
type attendance struct {
	a    *app
	s    *client.Session
	r    *started
	show *shower
	out  *outputFollower

	signals    chan os.Signal // SIGINT, which asks first
	terminated chan os.Signal // SIGTERM, which ends this client
	asked      int
	grace      time.Duration // for the rest of the output

	cancelling sync.WaitGroup
	cancelled  chan error // what came of asking for the run's end
}

// attend stays with a run: its output goes to standard output, and its end is the result.
func (a *app) attend(parent context.Context, c *client.Context, s *client.Session, r *started) error {
	t := &attendance{a: a, s: s, r: r, show: a.shower(), signals: make(chan os.Signal, 3), terminated: make(chan os.Signal, 1), cancelled: make(chan error, 1), grace: outputGrace}
	// The signals come through their own channels from here on.
	signal.Notify(t.signals, os.Interrupt)
	defer signal.Stop(t.signals)
	signal.Notify(t.terminated, syscall.SIGTERM)
	defer signal.Stop(t.terminated)
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(parent))
	defer cancel(nil)

	t.out = a.outputFollower(c, r.owner, r.binding, t.show.output)
	state := make(chan runView)
	followed := make(chan error, 1)
	go func() { followed <- a.followRun(ctx, c, r, state) }()
	defer func() { cancel(nil); <-followed; t.out.stop(); t.cancelling.Wait() }()
	if err := t.show.started(r); err != nil {
		return err
	}
	for {
		select {
		case v := <-state:
			if v.bound {
				t.out.start(ctx)
			}
			if v.seen {
				if err := t.show.state(v.run.State); err != nil {
					return err
				}
			}
			if v.ended() {
				if err := t.known(c, v); err != nil {
					return &afterwardsError{r.op, err}
				}
				return t.ended(v)
			}
		case err := <-followed:
			followed <- err // for the deferred join
			return &afterwardsError{r.op, err}
		case err := <-t.cancelled:
			if err != nil {
				t.asked = 1
				fmt.Fprintf(a.stderr, "coordctl: cancelling run %v failed: %s\n", r.run, a.explain(err).what)
			}
		case <-t.terminated:
			return t.left()
		case <-t.signals:
			if t.interrupted(ctx) {
				return t.left()
			}
		}
	}
}

// known forgets a command whose end was seen: it need not be sent again, nor asked about.
func (t *attendance) known(c *client.Context, v runView) error {
	if err := dropSent(c, t.r.op); err != nil || !v.op.State.Final() {
		return err
	}
	return t.s.State().Forget(t.r.op)
}

// interrupted acts on one more Ctrl-C. It reports whether the run is to be left alone.
func (t *attendance) interrupted(ctx context.Context) bool {
	t.asked++
	switch t.asked {
	case 1:
		fmt.Fprintf(t.a.stderr, "\ncoordctl: run %s goes on. Ctrl-C again cancels it, and a third leaves it alone; see it later: %s\n",
			t.r.run, t.a.line("logs "+t.r.run.String()+" -f"))
	case 2:
		t.cancelling.Go(func() { t.cancelled <- t.cancel(ctx) })
	}
	return t.asked > 2
}

// left is the end of a client whose run goes on, or whose output does.
func (t *attendance) left() error {
	fmt.Fprintf(t.a.stderr, "coordctl: left run %s, which goes on; see it: %s\n", t.r.run, t.a.line("logs "+t.r.run.String()+" -f"))
	return &exitStatus{exitUnknown}
}

// cancel asks for the end of this client's own run.
func (t *attendance) cancel(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, t.a.timeout, errTimeout)
	defer cancel()
	op, err := frames.NewID[frames.OperationID](rand.Reader)
	if err != nil {
		return err
	}
	cmd, err := client.NewCommand(op, frames.CommandCancelRun, &frames.RunCommand{RunID: t.r.run})
	if err != nil {
		return err
	}
	fmt.Fprintf(t.a.stderr, "coordctl: cancelling run %s\n", t.r.run)
	result, err := t.s.Do(ctx, cmd)
	var refused *client.RefusedError
	if errors.As(err, &refused) && refused.Code == frames.CodeRevisionConflict {
		return nil // it has ended by itself, or is being cancelled
	}
	if err != nil {
		return err
	}
	if result.State == frames.OperationRejected && result.Code != frames.CodeRevisionConflict {
		return &resultError{op, result}
	}
	return nil
}

// runView is what is known of a run from its records.
type runView struct {
	run     frames.Run
	seen    bool
	bound   bool // its binding is or was there
	reason  *frames.EndReason
	op      frames.OperationResult
	opKnown bool
	output  uint64 // bytes of it that admitted facts cover, as far as was seen
}

// ended reports whether nothing more is to come: the run is over and its START_RUN, whose
// record comes last in a transaction [D-35], or nobody can say.
func (v *runView) ended() bool {
	return v.seen && v.run.State.Terminal() && v.opKnown && v.op.State.Final() ||
		v.opKnown && v.op.State == frames.OperationIndeterminate
}

// take takes a record into the view; it reports a change.
func (v *runView) take(rec frames.SnapshotRecord, r *started) (bool, error) {
	mine := rec.Ref() == runs.Ref(frames.KindRun, r.run) || rec.Ref() == runs.Ref(frames.KindBinding, r.binding) || rec.Ref() == runs.Ref(frames.KindOperation, r.op)
	if !mine {
		return false, nil
	}
	rec.Payload = bytes.Clone(rec.Payload) // a snapshot's is good during the visit alone
	p, err := rec.DecodePayload()
	if err != nil {
		return false, fmt.Errorf("%v: %w", rec.Ref(), err)
	}
	switch p := p.(type) {
	case *frames.Run:
		v.run, v.seen = *p, true
	case *frames.Binding:
		v.bound, v.reason = true, p.Reason
	case *frames.Operation:
		v.op, v.opKnown = p.Result, true
	}
	return true, nil
}

// cover takes what says how much output there was: a fact, or the manifest of the evidence.
func (v *runView) cover(kind frames.EventKind, ref frames.ObjectRef, payload []byte, r *started) {
	var f frames.TerminalSourceFact
	var a frames.ArtifactManifest
	var m frames.EvidenceManifest
	switch {
	case kind == frames.EventSourceFactAdmitted && ref == runs.Ref(frames.KindBinding, r.binding):
		if codec.DecodeImage(&f, payload) != nil {
			return
		}
		if p, err := f.DecodePayload(); err == nil {
			if out, ok := p.(*frames.OutputRange); ok {
				v.output = max(v.output, out.Last)
			}
		}
	case ref.Kind == frames.KindArtifactManifest && codec.Decode(&a, payload) == nil && codec.Decode(&m, a.Manifest) == nil:
		if m.BindingID == r.binding {
			v.output = max(v.output, m.OutputBytes)
		}
	}
}

// followRun tells what becomes of a run, over as many connections as that takes, until ctx
// ends. A run's end is told after all else that its transaction changed.
func (a *app) followRun(ctx context.Context, c *client.Context, r *started, tell chan<- runView) error {
	opts := client.FollowOptions{Options: client.Options{Name: "coordctl run", Offered: readCaps | followCaps},
		Backoff: client.Backoff{Max: watchPause}, Wait: true}
	var err error
	if opts.Key, err = a.key(); err != nil {
		return err
	}
	var v runView
	for u, err := range client.Follow(ctx, c, opts) {
		if err != nil {
			return err
		}
		changed := false
		switch u := u.(type) {
		case *client.Synced:
			v.seen = false // a history that was put back may not have it
			err = u.Each(func(rec frames.SnapshotRecord) error {
				v.cover(0, rec.Ref(), rec.Payload, r)
				did, err := v.take(rec, r)
				changed = changed || did
				return err
			})
			if err == nil && !v.seen {
				err = &client.RefusedError{Code: frames.CodeNotFound, Message: fmt.Sprintf("run %v is not in the coordinator's records any more, or this key may not see it", r.run)}
			}
			if !v.opKnown { // its result has been pruned, so it is over
				v.op, v.opKnown = frames.OperationResult{State: frames.OperationTombstoned}, true
			}
		case *client.Event:
			rec, carries, rerr := u.Record()
			payload := u.Payload
			if carries {
				payload = rec.Payload
			}
			v.cover(u.Kind, u.Object, payload, r)
			if err = rerr; carries && err == nil {
				changed, err = v.take(rec, r)
			}
		}
		if err != nil {
			return err
		}
		if !changed {
			continue
		}
		select {
		case tell <- v:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// outputGrace bounds the wait for more of the output once the run has ended: by then the
// owner has stored all of it.
const outputGrace = 10 * time.Second

// drain waits for the last of the output, as long as any of it moves. It reports whether the
// client is to end without it. covered is how much there was by what was admitted.
func (t *attendance) drain(covered uint64) (left bool) {
	for last := uint64(0); ; {
		timer := time.NewTimer(t.grace)
		select {
		case err := <-t.out.done:
			timer.Stop()
			t.out.done <- nil // for stop
			if shown, _ := t.out.progress(); err == nil && shown < covered {
				fmt.Fprintf(t.a.stderr, "coordctl: %s\n", runs.NotStored(covered, shown))
			}
			t.unread(err)
			return false
		case <-timer.C:
			if moved, writing := t.out.progress(); moved != last || writing {
				last = moved
				continue
			}
			t.unread(errTimeout)
			return false
		case <-t.terminated:
		case <-t.signals: // there is nothing to be cancelled any more
		}
		timer.Stop()
		return true
	}
}

// unread says that not all of the output was shown.
func (t *attendance) unread(err error) {
	if err != nil {
		fmt.Fprintf(t.a.stderr, "coordctl: its output could not be read to the end: %s; see it: %s\n", t.a.explain(err).what, t.a.line("logs "+t.r.run.String()))
	}
}

// ended waits for the last of the output and turns the run's end into this command's.
func (t *attendance) ended(v runView) error {
	a, r := t.a, t.r
	if v.bound && t.drain(v.output) {
		fmt.Fprintf(a.stderr, "coordctl: run %v is %v; the rest of its output: %s\n", r.run, v.run.State, a.line("logs "+r.run.String()))
		return &exitStatus{exitUnknown}
	}
	closed := frames.Closed{}
	switch {
	case v.run.Outcome != nil:
		if err := codec.DecodeImage(&closed, v.run.Outcome); err != nil {
			return fmt.Errorf("run %v: outcome: %w", r.run, err)
		}
	case v.op.State == frames.OperationRejected, v.op.State == frames.OperationIndeterminate:
		return &resultError{r.op, v.op}
	}
	if err := t.show.ended(v.run.State, closed); err != nil {
		return err
	}
	switch {
	case v.run.Outcome != nil:
		return a.exited(r, v, closed)
	case v.run.State == frames.RunCompleted:
		return nil
	}
	why := "without an exit status"
	if v.reason != nil {
		why = "as " + v.reason.String()
	}
	fmt.Fprintf(a.stderr, "coordctl: run %v is %v: it ended %s; see %s\n", r.run, v.run.State, why, a.line("describe run "+r.run.String()))
	return &exitStatus{exitOther}
}

// exited turns an exit status into this command's own.
func (a *app) exited(r *started, v runView, closed frames.Closed) error {
	if v.run.State == frames.RunCancelled {
		fmt.Fprintf(a.stderr, "coordctl: run %v was cancelled\n", r.run)
	}
	switch {
	case !closed.Known:
		fmt.Fprintf(a.stderr, "coordctl: run %v is %v; nobody knows its exit status\n", r.run, v.run.State)
		return &exitStatus{exitOther}
	case closed.Status == 0:
		return nil
	}
	return &exitStatus{statusCode(closed.Status)}
}

// statusCode is an exit status as a shell gives it: 128+N when signal N killed the process.
func statusCode(status int32) int {
	if status < 0 {
		return 128 - int(status)
	}
	return int(status)
}
