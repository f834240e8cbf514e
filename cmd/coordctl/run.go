package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"coordinator/client"
	"coordinator/cmd/internal/term"
	"coordinator/frames"
	"coordinator/internal/clock"
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
	op               string

	given func(flag string) bool // on the command line; nil: none is
}

func (f *runFlags) has(flag string) bool { return f.given != nil && f.given(flag) }

// makesCommand are the flags that say what a run is. With --op it has been said before.
var makesCommand = []string{"objective", "title", "cwd", "env", "owner", "group", "grace"}

func (a *app) runCommand() *cobra.Command {
	var f runFlags
	c := &cobra.Command{
		Use:   "run [--objective ID | --title TEXT] [flags] -- COMMAND [ARGUMENT...] | run --op ID",
		Short: "Run a command through the coordinator, show its output and end with its exit status",
		Long: `Run a command on a terminal of a process owner, show its output, and end with its exit
status; 128+N when signal N killed it.

Without --objective a new objective is created for the run, named by --title or the command.
The run belongs to the coordinator and not to this client: it goes on when this client ends,
when the coordinator dies, and through both. Ctrl-C asks first; a second one cancels the run,
and a third leaves it alone, as SIGTERM does at once: the exit code is then 6, as its end is
not known. --timeout bounds the start only.

In the command's environment is what the owner gives every process and what --env adds; the
directory is this one unless --cwd names another. Where standard output is a terminal, the
command's has its size and its TERM at the start; that it is resized later is not passed on.
Nobody types on the command's standard input.

When no answer came, the command is kept beside the context file, what --env says included,
until there is one. --op ID then sends that very command again, which never starts it twice,
and goes on as this command would have; without it the run of that operation is followed, if
there is one.

With -o json standard output is one JSON object a line, by its "event": "started" with the
ids, "state" whenever the run's changes, "output" with the "offset" of its first byte and the
bytes as base64 in "data", and "ended". Exit codes of coordctl's own (see coordctl --help) come
with a line on standard error and without "ended".`,
		Example: `  coordctl run --title "Nightly build" -- make all
  coordctl run --objective 3f1a9c --env CI=1 --cwd /srv/app -- ./test.sh
  coordctl run --detach -- sleep 60
  coordctl run --op 5d0f3a3e8b1c4a6f9e2d7c1b0a998877`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case f.op == "" && len(args) == 0:
				return usage("run needs a command: %s", cmd.UseLine())
			case f.op != "" && len(args) > 0:
				return usage("run --op takes no command: it is the one that was sent under that id")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.objective != "" && f.title != "" {
				return usage("--objective and --title exclude each other: a title is for a new objective")
			}
			if !utf8.ValidString(f.title) {
				return usage("--title is not UTF-8")
			}
			f.given = cmd.Flags().Changed
			for _, flag := range makesCommand {
				if f.op != "" && f.has(flag) {
					return usage("--op and --%s exclude each other: the command is the one that was sent under that id", flag)
				}
			}
			return a.run(cmd.Context(), f, args)
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
	c.Flags().StringVar(&f.op, "op", "", "go on with the run of the operation of this `ID`, whose answer was lost")
	c.Flags().BoolVarP(&f.detach, "detach", "d", false, "return once the run is admitted, and do not follow it")
	return c
}

// document is what the owner is to run, on a terminal like w when that is one.
func (f *runFlags) document(argv []string, w io.Writer) ([]byte, error) {
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
	if f.has("grace") {
		d.GraceSecs = &f.grace
	}
	if !f.detach {
		likeTerminal(&d, w)
	}
	return encodeDocument(&d, f.env)
}

// encodeDocument refuses here what the owner would refuse, and what JSON would change.
func encodeDocument(d *owner.Document, env []string) ([]byte, error) {
	for _, text := range append(append([]string{d.Cwd}, d.Argv...), env...) {
		if !utf8.ValidString(text) {
			return nil, usage("the command cannot be run: its arguments, environment and directory must be UTF-8")
		}
	}
	raw, err := d.Encode()
	if err != nil {
		return nil, fmt.Errorf("command: %w", err)
	}
	if len(raw) > int(frames.ReferenceLimits().TypedPayload)-startRunRest {
		return nil, usage("the command cannot be run: with its environment it takes %d bytes, a coordinator carries %d at most",
			len(raw), int(frames.ReferenceLimits().TypedPayload)-startRunRest)
	}
	if _, err := owner.ParseDocument(raw); err != nil {
		return nil, usage("the command cannot be run: %v", err)
	}
	return raw, nil
}

// maxTerm is the longest TERM that an owner takes.
const maxTerm = 128

// startRunRest is more than START_RUN takes beside its document.
const startRunRest = 1 << 10

// likeTerminal gives the command's terminal the size and the type of w, when that is one.
func likeTerminal(d *owner.Document, w io.Writer) {
	cols, rows, ok := term.Size(w)
	if !ok || rows <= 0 || cols <= 0 || rows > math.MaxUint16 || cols > math.MaxUint16 {
		return
	}
	d.Rows, d.Cols = uint16(rows), uint16(cols)
	if kind := os.Getenv("TERM"); utf8.ValidString(kind) && len(kind) <= maxTerm {
		d.Term = kind
	}
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

func (r *started) ids() object {
	return object{{"objective_id", r.objective.String()}, {"run_id", r.run.String()},
		{"work_session_id", r.session.String()}, {"binding_id", r.binding.String()}}
}

// run starts a run, or finds the one that was started, and unless detached stays with it to
// its end.
func (a *app) run(parent context.Context, f runFlags, argv []string) error {
	var document []byte
	var err error
	if f.op == "" {
		if document, err = f.document(argv, a.stdout); err != nil {
			return err
		}
	}
	c, err := client.LoadContext(a.contextPath)
	if err != nil {
		return err
	}
	s, err := a.commandSession(c)
	if err != nil {
		return err
	}
	defer s.Close()
	var r *started
	var result frames.OperationResult
	if f.op != "" {
		r, result, err = a.pickUp(parent, c, s, f.op)
	} else {
		r, result, err = a.start(parent, c, s, f, argv, document)
	}
	switch {
	case err != nil:
		return err
	case f.detach:
		return a.showStarted(r, result)
	case result.State == frames.OperationRejected:
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
func (a *app) start(parent context.Context, c *client.Context, s *client.Session, f runFlags, argv []string, document []byte) (r *started, result frames.OperationResult, err error) {
	ctx, cancel := context.WithTimeoutCause(parent, a.timeout, errTimeout)
	defer cancel()
	o, err := findOwner(c, f.owner)
	if err != nil {
		return nil, result, err
	}
	if r, err = newRun(o); err != nil {
		return nil, result, err
	}
	body := &frames.StartRun{
		ObjectiveID: r.objective, RunID: r.run, WorkSessionID: r.session, ExecutorSchema: owner.ExecutorSchema, ExecutorDocument: document,
		PendingBindingID: frames.PendingBindingID(r.binding), Owner: o.Authority,
	}
	if err := a.placeBy(ctx, time.Now().Add(a.wait), c, o, f, body); err != nil { // first, so that nothing is created in vain
		return nil, result, err
	}
	if f.objective != "" {
		if r.objective, err = a.objectiveFor(ctx, f.objective); err != nil {
			return nil, result, err
		}
		body.ObjectiveID = r.objective
	} else if err := createObjectiveFor(ctx, s, r.objective, f.objectiveTitle(argv)); err != nil {
		return nil, result, &notStartedError{err}
	}
	for until := time.Now().Add(ownerPatience); ; {
		result, err = a.send(ctx, c, s, r, body, false)
		// The objective is there, so NOT_FOUND is about the owner: a link that is not up yet,
		// or another incarnation. Nothing was admitted, so the command may be made anew.
		var refused *client.RefusedError
		if err == nil || !errors.As(err, &refused) || refused.Code != frames.CodeNotFound || errors.As(err, new(*client.OutcomeUnknownError)) || time.Now().After(until) {
			return r, result, err
		}
		if perr := clock.Wait(ctx, clock.System(), outputPause); perr != nil {
			return r, result, err
		}
		if err := a.placeBy(ctx, until, c, o, f, body); err != nil {
			return nil, result, err
		}
	}
}

// send sends a START_RUN, which is kept until it has an answer. retried says that it had been
// sent before.
func (a *app) send(ctx context.Context, c *client.Context, s *client.Session, r *started, body *frames.StartRun, retried bool) (result frames.OperationResult, err error) {
	cmd, err := client.NewCommand(r.op, frames.CommandStartRun, body)
	if err != nil {
		return result, err
	}
	if err := keepSent(c, s.State(), cmd); err != nil {
		return result, err
	}
	result, err = s.Do(ctx, cmd)
	switch {
	case err == nil && result.State.Final():
		if err := dropSent(c, r.op); err != nil {
			return result, &afterwardsError{r.op, err}
		}
		return result, nil
	case err == nil: // its ids are needed until it has ended
		return result, nil
	case retried || errors.As(err, new(*client.OutcomeUnknownError)):
		return result, &commandError{r.op, again{args: fmt.Sprintf("run --op %v", r.op)}, retried, err}
	}
	return result, &commandError{r.op, again{}, false, errors.Join(err, dropSent(c, r.op))}
}

// placeBy is place for an owner that is away for a moment, as it is while it restarts.
func (a *app) placeBy(ctx context.Context, until time.Time, c *client.Context, o client.Owner, f runFlags, body *frames.StartRun) error {
	for {
		err := a.place(ctx, c, o, f, body)
		if err == nil || !ownerAway(err) || !time.Now().Add(outputPause).Before(until) {
			return err
		}
		if clock.Wait(ctx, clock.System(), outputPause) != nil {
			return err
		}
	}
}

// place asks the owner who it is now and where it would run the command.
func (a *app) place(ctx context.Context, c *client.Context, o client.Owner, f runFlags, body *frames.StartRun) error {
	link, err := a.dialOwner(ctx, c, o)
	if err != nil {
		return err
	}
	groups := link.Groups()
	body.OwnerIncarnation, body.Group = link.Incarnation(), groups[0]
	if err := link.Close(); err != nil {
		return err
	}
	if f.has("group") {
		if body.Group = frames.GroupID(f.group); !slices.Contains(groups, body.Group) {
			return usage("--group is %d; owner %s serves %v", f.group, o.Name, groups)
		}
	}
	return nil
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

// notStartedError is a failure to create the objective of a run.
type notStartedError struct{ cause error }

func (e *notStartedError) Error() string { return e.cause.Error() }
func (e *notStartedError) Unwrap() error { return e.cause }

// showStarted prints what `run --detach` has begun.
func (a *app) showStarted(r *started, result frames.OperationResult) error {
	err := a.showResult(r.op, result, r.ids())
	if err == nil && !a.structured() {
		fmt.Fprintf(a.stderr, "coordctl: its output: %s\n", a.line("logs "+r.run.String()+" -f"))
	}
	return err
}
