package cirunner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"coordinator/client"
	"coordinator/codec"
	"coordinator/frames"
	"coordinator/owner"
)

// wait is the pause before something that was not there yet is looked for again.
const wait = 250 * time.Millisecond

// step names the step of the build that starts a stage.
func step(s Stage) string { return "start " + s.Name }

// stage runs one stage to its proven end.
func (b *build) stage(ctx context.Context, objective frames.ObjectiveID, s Stage) (*frames.StartRun, Proof, error) {
	run, err := b.start(ctx, objective, s)
	if err != nil {
		return nil, Proof{}, err
	}
	log := filepath.Join(b.dir, s.Name+".log")
	if err := b.follow(ctx, run, log); err != nil {
		return nil, Proof{}, err
	}
	// The process has ended, says its owner. Of that the coordinator may not have been told yet,
	// or there may be none: the facts wait at the owner until one has committed them.
	var closed frames.Closed
	view, err := b.replica.WaitFor(ctx, func(v *client.View) bool { r := v.Run(run.RunID); return r != nil && r.State.Terminal() })
	if err != nil {
		return nil, Proof{}, err
	}
	if outcome := view.Run(run.RunID).Outcome; outcome == nil || codec.DecodeImage(&closed, outcome) != nil || !closed.Known {
		return nil, Proof{}, fmt.Errorf("run %v ended, and nobody knows how", run.RunID)
	}
	proof, err := b.prove(ctx, frames.BindingID(run.PendingBindingID), closed.Status, log)
	if err != nil {
		return nil, Proof{}, fmt.Errorf("the evidence of run %v does not hold: %w", run.RunID, err)
	}
	// START_RUN was answered while PENDING, so it is among the operations whose end the client does
	// not know; now it does.
	if err := b.session.State().Forget(b.book.Steps[step(s)].OperationID); err != nil {
		return nil, Proof{}, err
	}
	if closed.Status != 0 {
		return nil, Proof{}, &StageError{s.Name, closed.Status, proof}
	}
	return run, proof, nil
}

// start has the stage started, once, and waits until its process is there.
func (b *build) start(ctx context.Context, objective frames.ObjectiveID, s Stage) (*frames.StartRun, error) {
	document, err := (&owner.Document{Argv: s.Argv, Cwd: b.Dir, Env: b.Env}).Encode()
	if err != nil {
		return nil, err
	}
	step, run := step(s), new(frames.StartRun)
	if kept, begun := b.book.Steps[step]; begun && (codec.Decode(run, kept.Payload) != nil || !bytes.Equal(run.ExecutorDocument, document)) {
		return nil, fmt.Errorf("the book in %s is of another pipeline", b.dir)
	}
	draw := func() ([]frames.Precondition, error) {
		*run = frames.StartRun{ObjectiveID: objective, RunID: fresh[frames.RunID](), WorkSessionID: fresh[frames.WorkSessionID](),
			PendingBindingID: fresh[frames.PendingBindingID](), ExecutorSchema: owner.ExecutorSchema, ExecutorDocument: document}
		return nil, b.place(ctx, run)
	}
	for {
		err := b.do(ctx, step, frames.CommandStartRun, run, draw)
		if err == nil {
			break
		}
		// NOT_FOUND: the coordinator has no link to this owner yet, as just after either started, or
		// not to this incarnation of it any more. A refusal leaves nothing behind.
		var refused *client.RefusedError
		if !errors.As(err, &refused) || refused.Code != frames.CodeNotFound {
			return nil, err
		}
		if err := pause(ctx); err != nil {
			return nil, err
		}
		asked := run.OwnerIncarnation
		if err := b.place(ctx, run); err != nil {
			return nil, err
		}
		// An owner that has started anew needs another command. Its RunID stays: a run's id is used
		// once for ever, so that whatever became of the first, the stage cannot run twice.
		if run.OwnerIncarnation != asked {
			if _, err := b.keep(step, frames.CommandStartRun, run); err != nil {
				return nil, err
			}
		}
	}
	view, err := b.replica.WaitFor(ctx, func(v *client.View) bool {
		op := v.Operation(b.book.Steps[step].OperationID)
		return v.Binding(frames.BindingID(run.PendingBindingID)) != nil || op != nil && op.Result.State.Final()
	})
	if err == nil && view.Binding(frames.BindingID(run.PendingBindingID)) == nil {
		err = fmt.Errorf("no process was started: operation %v is %v", b.book.Steps[step].OperationID, view.Operation(b.book.Steps[step].OperationID).Result.State)
	}
	return run, err
}

// place asks the owner who it is now and where it would run something.
func (b *build) place(ctx context.Context, run *frames.StartRun) error {
	o, err := b.Context.FindOwner(b.Owner)
	if err != nil {
		return err
	}
	for {
		link, err := b.dial(ctx, o)
		if err == nil {
			groups := link.Groups()
			if len(groups) == 0 {
				return errors.Join(fmt.Errorf("owner %s runs nothing: it has no group", o.Name), link.Close())
			}
			run.Owner, run.OwnerIncarnation, run.Group = o.Authority, link.Incarnation(), groups[0]
			return link.Close()
		}
		if errors.As(err, new(*owner.RefusedError)) || pause(ctx) != nil { // it may be starting
			return err
		}
	}
}

// dial connects to an owner for reading output, which is also how its incarnation is learned. The
// coordinator has no part in that: output goes on while there is none.
func (b *build) dial(ctx context.Context, o client.Owner) (*owner.Client, error) {
	key := b.options.Key
	if key == nil {
		var err error
		if key, err = b.Context.Signer(); err != nil {
			return nil, err
		}
	}
	opts := owner.ClientOptions{Socket: o.Socket, Pin: o.Authority, CoordinatorID: b.Context.CoordinatorID, Key: key, Scope: owner.ScopeOutput, Name: "cirunner"}
	if o.QUIC != "" {
		opts.Dial = owner.QUICDialer(o.QUIC, o.Authority, nil)
	}
	return owner.Dial(ctx, opts)
}

// follow copies what the stage prints to its log file, until the process has ended. How long the
// file is says where to go on, over lost links and in another process too.
func (b *build) follow(ctx context.Context, run *frames.StartRun, log string) (err error) {
	f, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	var from client.Owner
	for _, o := range b.Context.Owners {
		if o.Authority == run.Owner {
			from = o
		}
	}
	for {
		at, err := f.Seek(0, io.SeekEnd)
		if err != nil {
			return err
		}
		var unwritten error
		link, err := b.dial(ctx, from)
		if err == nil {
			err = link.ReadOutput(ctx, frames.BindingID(run.PendingBindingID), uint64(at), 0, true, func(_ uint64, data []byte) error {
				_, unwritten = f.Write(data)
				return unwritten
			})
			err = errors.Join(err, link.Close())
		}
		if err == nil || unwritten != nil || errors.As(err, new(*owner.RefusedError)) || pause(ctx) != nil {
			return err
		}
	}
}

// pause waits a moment. Its error is the cause of ctx.
func pause(ctx context.Context) error {
	select {
	case <-time.After(wait):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
