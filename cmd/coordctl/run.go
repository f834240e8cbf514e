package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"coordinator/client"
	"coordinator/codec"
	"coordinator/frames"
	"coordinator/owner"
)

// exitStatus is the end of `run` with a status that is the run's own: nothing failed here.
type exitStatus struct{ code int }

func (e *exitStatus) Error() string { return fmt.Sprintf("the run ended with status %d", e.code) }

// runFlags are the flags of `run`.
type runFlags struct {
	objective, title string
	cwd, owner       string
	env              []string
	group            uint32
	grace            uint32
	detach           bool
}

func (a *app) runCommand() *cobra.Command {
	var f runFlags
	c := &cobra.Command{
		Use:   "run [--objective ID | --title TEXT] [flags] -- COMMAND [ARGUMENT...]",
		Short: "Run a command through the coordinator, show its output and end with its exit status",
		Long: `Run a command on a terminal of a process owner, show its output, and end with its exit
status; 128+N when signal N killed it.

Without --objective a new objective is created for the run, named by --title or the command.
The run belongs to the coordinator and not to this client: it goes on when this client ends,
when the coordinator dies, and through both. Ctrl-C asks first; a second one cancels the run.
--timeout bounds the start only.

In the command's environment is what the owner gives every process and what --env adds; the
directory is this one unless --cwd names another. Its standard input is a terminal on which
nobody types.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage("run needs a command: %s", cmd.UseLine())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.objective != "" && f.title != "" {
				return usage("--objective and --title exclude each other: a title is for a new objective")
			}
			return a.run(cmd.Context(), f, args, cmd.Flags().Changed("grace"), cmd.Flags().Changed("group"))
		},
	}
	c.Flags().SetInterspersed(false) // what follows the command is the command's
	c.Flags().StringVar(&f.objective, "objective", "", "run for the objective of this `ID`")
	c.Flags().StringVar(&f.title, "title", "", "the `TEXT` that names the objective that is created")
	c.Flags().StringVar(&f.cwd, "cwd", "", "the `DIR` to run in, on the owner's machine (default: this one)")
	c.Flags().StringArrayVar(&f.env, "env", nil, "`NAME=VALUE` for the command's environment; may be repeated")
	c.Flags().StringVar(&f.owner, "owner", "", "the `NAME` of the context's owner to run at (default: the only one)")
	c.Flags().Uint32Var(&f.group, "group", 0, "the owner's terminal `GROUP` to run in (default: its first)")
	c.Flags().Uint32Var(&f.grace, "grace", 0, "`SECONDS` between SIGTERM and SIGKILL when the run is cancelled (default 5)")
	c.Flags().BoolVarP(&f.detach, "detach", "d", false, "return once the run is admitted, and do not follow it")
	return c
}

// document is what the owner is to run.
func (f *runFlags) document(argv []string, grace bool) ([]byte, error) {
	d := owner.Document{Argv: argv, Cwd: f.cwd}
	if d.Cwd == "" {
		dir, err := os.Getwd()
		if err != nil {
			return nil, fmt.Errorf("this directory: %w; name one with --cwd", err)
		}
		d.Cwd = dir
	}
	if !filepath.IsAbs(d.Cwd) {
		return nil, usage("--cwd is %q; it must be an absolute path: the owner has a working directory of its own", d.Cwd)
	}
	for _, text := range f.env {
		name, value, ok := strings.Cut(text, "=")
		if !ok || name == "" {
			return nil, usage("--env wants NAME=VALUE")
		}
		if d.Env == nil {
			d.Env = map[string]string{}
		}
		if _, twice := d.Env[name]; twice {
			return nil, usage("--env gives %s twice", name)
		}
		d.Env[name] = value
	}
	if grace {
		d.GraceSecs = &f.grace
	}
	raw, err := d.Encode()
	if err != nil {
		return nil, fmt.Errorf("command: %w", err)
	}
	if _, err := owner.ParseDocument(raw); err != nil { // what the owner would refuse
		return nil, usage("the command cannot be run: %v", err)
	}
	return raw, nil
}

// objectiveTitle names the objective that a run without one is created for.
func (f *runFlags) objectiveTitle(argv []string) string {
	if f.title != "" {
		return f.title
	}
	return shorten(strings.ToValidUTF8(strings.Join(argv, " "), "\uFFFD"), 120)
}

// A started run is what this client asked for.
type started struct {
	objective frames.ObjectiveID
	run       frames.RunID
	session   frames.WorkSessionID
	binding   frames.BindingID
	op        frames.OperationID
	owner     client.Owner
}

// run starts a run and, unless detached, stays with it to its end.
func (a *app) run(parent context.Context, f runFlags, argv []string, grace, group bool) error {
	document, err := f.document(argv, grace)
	if err != nil {
		return err
	}
	c, err := client.LoadContext(a.contextPath)
	if err != nil {
		return err
	}
	o, err := c.FindOwner(f.owner)
	if err != nil {
		return err
	}
	s, err := a.commandSession(c)
	if err != nil {
		return err
	}
	defer s.Close()
	r, result, err := a.start(parent, c, s, o, f, argv, document, group)
	if err != nil {
		return err
	}
	if f.detach {
		return a.showStarted(r, result)
	}
	if result.State == frames.OperationRejected {
		return &resultError{r.op, result}
	}
	return a.attend(parent, c, s, r)
}

// commandSession makes commands that outlive their connections.
func (a *app) commandSession(c *client.Context) (*client.Session, error) {
	opts := client.SessionOptions{
		Options: client.Options{Name: "coordctl", Journal: true, Offered: readCaps, Scope: frames.AllScopes},
		Backoff: client.Backoff{Max: watchPause},
	}
	var err error
	if opts.Key, err = a.key(); err != nil {
		return nil, err
	}
	return client.OpenSession(c, opts)
}

// ownerPatience bounds the wait for a coordinator that has no link to the owner yet, as just
// after either has started.
const ownerPatience = 10 * time.Second

// start admits the run, within --timeout.
func (a *app) start(parent context.Context, c *client.Context, s *client.Session, o client.Owner, f runFlags, argv []string, document []byte, group bool) (r *started, result frames.OperationResult, err error) {
	ctx, cancel := context.WithTimeoutCause(parent, a.timeout, errTimeout)
	defer cancel()
	if r, err = newRun(o); err != nil {
		return nil, result, err
	}
	body := &frames.StartRun{
		ObjectiveID: r.objective, RunID: r.run, WorkSessionID: r.session, ExecutorSchema: owner.ExecutorSchema, ExecutorDocument: document,
		PendingBindingID: frames.PendingBindingID(r.binding), Owner: o.Authority,
	}
	if err := a.place(ctx, c, o, f, group, body); err != nil { // first, so that nothing is created in vain
		return nil, result, err
	}
	if f.objective != "" {
		if r.objective, err = a.objectiveFor(ctx, f.objective); err != nil {
			return nil, result, err
		}
		body.ObjectiveID = r.objective
	} else if err := createObjectiveFor(ctx, s, r.objective, f.objectiveTitle(argv)); err != nil {
		return nil, result, err
	}
	for until := time.Now().Add(ownerPatience); ; {
		cmd, err := client.NewCommand(r.op, frames.CommandStartRun, body)
		if err != nil {
			return nil, result, err
		}
		result, err = s.Do(ctx, cmd)
		// The objective is there, so NOT_FOUND is about the owner: a link that is not up yet,
		// or another incarnation. Nothing was admitted, so the command may be made anew.
		var refused *client.RefusedError
		if err == nil || !errors.As(err, &refused) || refused.Code != frames.CodeNotFound || errors.As(err, new(*client.OutcomeUnknownError)) || time.Now().After(until) {
			return r, result, err
		}
		if perr := pause(ctx, outputPause); perr != nil {
			return r, result, err
		}
		if err := a.place(ctx, c, o, f, group, body); err != nil {
			return nil, result, err
		}
	}
}

// place asks the owner who it is now and where it would run the command.
func (a *app) place(ctx context.Context, c *client.Context, o client.Owner, f runFlags, group bool, body *frames.StartRun) error {
	link, err := a.dialOwner(ctx, c, o)
	if err != nil {
		return err
	}
	body.OwnerIncarnation, body.Group = link.Incarnation(), link.Groups()[0]
	if group {
		body.Group = frames.GroupID(f.group)
	}
	return link.Close()
}

// newRun draws the ids of a run.
func newRun(o client.Owner) (*started, error) {
	r := &started{owner: o}
	for _, id := range []*[16]byte{(*[16]byte)(&r.objective), (*[16]byte)(&r.run), (*[16]byte)(&r.session), (*[16]byte)(&r.binding), (*[16]byte)(&r.op)} {
		fresh, err := frames.NewID[[16]byte](rand.Reader)
		if err != nil {
			return nil, err
		}
		*id = fresh
	}
	return r, nil
}

// objectiveFor is the objective that --objective names.
func (a *app) objectiveFor(ctx context.Context, text string) (id frames.ObjectiveID, err error) {
	prefix, err := checkPrefix(text)
	if err != nil {
		return id, err
	}
	err = a.session(ctx, client.Options{Offered: quietCaps}, true, func(ctx context.Context, s *session) error {
		found, err := s.find(ctx, frames.KindObjective, prefix) // it must be there, see start
		id = frames.ObjectiveID(found.ID)
		return err
	})
	return id, err
}

// createObjectiveFor creates the objective of one run.
func createObjectiveFor(ctx context.Context, s *client.Session, id frames.ObjectiveID, title string) error {
	document, err := json.Marshal(map[string]string{"title": title})
	if err != nil {
		return err
	}
	op, err := frames.NewID[frames.OperationID](rand.Reader)
	if err != nil {
		return err
	}
	cmd, err := client.NewCommand(op, frames.CommandCreateObjective, &frames.CreateObjective{ObjectiveID: id, Schema: 1, Document: document})
	if err != nil {
		return err
	}
	result, err := s.Do(ctx, cmd)
	if err != nil {
		return err
	}
	if result.State != frames.OperationSucceeded {
		return &resultError{op, result}
	}
	return nil
}

// showStarted prints what `run --detach` has begun.
func (a *app) showStarted(r *started, result frames.OperationResult) error {
	err := a.showResult(r.op, result, object{{"objective_id", r.objective.String()}, {"run_id", r.run.String()},
		{"work_session_id", r.session.String()}, {"binding_id", r.binding.String()}})
	if err == nil && !a.json() {
		fmt.Fprintf(a.stderr, "coordctl: its output: %s\n", a.line("logs "+r.run.String()+" -f"))
	}
	return err
}

// attend stays with a run: its output goes to standard output, and its end is the result.
func (a *app) attend(parent context.Context, c *client.Context, s *client.Session, r *started) error {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt)
	defer signal.Stop(signals)
	// The signals come through their own channel from here on; SIGTERM ends this client.
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM)
	defer signal.Stop(terminated)
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(parent))
	defer cancel(nil)

	out := a.outputFollower(c, r.owner, r.binding)
	state := make(chan runView)
	followed := make(chan error, 1)
	go func() { followed <- a.followRun(ctx, c, r, state) }()
	defer func() { cancel(nil); <-followed; out.stop() }()

	var v runView
	for asked := 0; ; {
		select {
		case v = <-state:
			if v.bound {
				out.start(ctx)
			}
			if v.ended() {
				return a.ended(r, v, out)
			}
		case err := <-followed:
			followed <- err // for the deferred join
			return &afterwardsError{r.op, err}
		case <-terminated:
			return a.left(r)
		case <-signals:
			asked++
			switch asked {
			case 1:
				fmt.Fprintf(a.stderr, "\ncoordctl: run %s goes on. Ctrl-C again cancels it; to leave it alone, end this client with SIGTERM and see it later: %s\n",
					r.run, a.line("logs "+r.run.String()+" -f"))
			case 2:
				if err := a.cancelStarted(ctx, s, r); err != nil {
					return err
				}
			default:
				return a.left(r)
			}
		}
	}
}

// left is the end of a client whose run goes on.
func (a *app) left(r *started) error {
	fmt.Fprintf(a.stderr, "coordctl: left run %s, which goes on; see it: %s\n", r.run, a.line("logs "+r.run.String()+" -f"))
	return errInterrupted
}

// cancelStarted asks for the end of this client's own run.
func (a *app) cancelStarted(ctx context.Context, s *client.Session, r *started) error {
	ctx, cancel := context.WithTimeoutCause(ctx, a.timeout, errTimeout)
	defer cancel()
	op, err := frames.NewID[frames.OperationID](rand.Reader)
	if err != nil {
		return err
	}
	cmd, err := client.NewCommand(op, frames.CommandCancelRun, &frames.RunCommand{RunID: r.run})
	if err != nil {
		return err
	}
	fmt.Fprintf(a.stderr, "coordctl: cancelling run %s\n", r.run)
	result, err := s.Do(ctx, cmd)
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
}

// ended reports whether nothing more is to come: the run is over and its START_RUN, whose
// record comes last in a transaction [D-35], or nobody can say.
func (v *runView) ended() bool {
	return v.seen && v.run.State.Terminal() && v.opKnown && v.op.State.Final() ||
		v.opKnown && v.op.State == frames.OperationIndeterminate
}

// take takes a record into the view; it reports a change.
func (v *runView) take(rec frames.SnapshotRecord, r *started) (bool, error) {
	mine := rec.Ref() == refTo(frames.KindRun, r.run) || rec.Ref() == refTo(frames.KindBinding, r.binding) || rec.Ref() == refTo(frames.KindOperation, r.op)
	if !mine {
		return false, nil
	}
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
			err = u.Each(func(rec frames.SnapshotRecord) error {
				did, err := v.take(rec, r)
				changed = changed || did
				return err
			})
			if err == nil && !v.seen {
				err = &client.RefusedError{Code: frames.CodeNotFound, Message: fmt.Sprintf("run %v is not in the coordinator's records any more", r.run)}
			}
			if !v.opKnown { // its result has been pruned, so it is over
				v.op, v.opKnown = frames.OperationResult{State: frames.OperationTombstoned}, true
			}
		case *client.Event:
			rec, carries, rerr := u.Record()
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

// outputGrace bounds the wait for the output's end once the run has ended: by then the owner
// has stored all of it.
const outputGrace = 10 * time.Second

// ended waits for the last of the output and turns the run's end into this command's.
func (a *app) ended(r *started, v runView, out *outputFollower) error {
	if v.bound {
		if err := out.finish(outputGrace); err != nil {
			fmt.Fprintf(a.stderr, "coordctl: its output could not be read to the end: %s; see it: %s\n", a.explain(err).what, a.line("logs "+r.run.String()))
		}
	}
	switch {
	case v.run.Outcome != nil:
		var closed frames.Closed
		if err := codec.DecodeImage(&closed, v.run.Outcome); err != nil {
			return fmt.Errorf("run %v: outcome: %w", r.run, err)
		}
		return a.exited(r, v, closed)
	case v.op.State == frames.OperationRejected, v.op.State == frames.OperationIndeterminate:
		return &resultError{r.op, v.op}
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
