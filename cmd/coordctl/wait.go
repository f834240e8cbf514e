package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"strings"

	"github.com/spf13/cobra"

	"coordinator/client"
	"coordinator/frames"
	"coordinator/internal/clock"
)

func (a *app) waitCommand() *cobra.Command {
	var conditions []string
	c := &cobra.Command{
		Use:   "wait (KIND ID --for CONDITION... | coordinator)",
		Short: "Wait until a record is in a state, or the coordinator serves",
		Long: `Wait until one of the conditions given with --for is true of a record:

  state=NAME            it is in that state; several with | between them
  ended                 it is in a state from which work does not go on
  removed               it is there no more, such as after "coordctl archive"
  jsonpath={PATH}=TEXT  what the template picks of it (as -o json shows it) is the text
  jsonpath={PATH}       the template picks something of it

Conditions are held against each change, so that a state is not missed because it was short,
and the wait goes on through restarts of the coordinator and gaps; of a gap that nothing less
than a snapshot heals, they are held against what the snapshot shows. A wait for what cannot
come any more, such as state=Completed of a run that is Failed, ends at once.

"wait coordinator" waits until a coordinator answers, and for its context file, as behind
"coordctl up &".

Exit codes: 0 a condition is true; 1 none can become true any more; 2 the command line is
wrong; 3 there is no such record for this key; 4 authentication; 5 --timeout is over, and what
the record was then is said, or it was interrupted. --timeout is 30s unless given.`,
		Example: `  coordctl wait coordinator --timeout 1m
  coordctl wait run 2d88da09 --for ended --timeout 1h
  coordctl wait run 2d88da09 --for state=Completed --for state=Failed
  coordctl wait run 2d88da09 --for 'jsonpath={.payload.outcome.exit_status}=0'
  coordctl wait signal 8c1f00 --for state=Acknowledged -o jsonpath='{.payload.message}'`,
		ValidArgsFunction: completeWait,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 && args[0] == coordinatorWord || len(args) == 2 {
				return nil
			}
			return usage("%s takes a kind and an id, or the word coordinator: %s", cmd.CommandPath(), cmd.UseLine())
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				if len(conditions) > 0 {
					return usage("wait coordinator takes no --for: it waits until one answers")
				}
				return a.waitCoordinator(cmd.Context())
			}
			return a.waitFor(cmd.Context(), args[0], args[1], conditions)
		},
	}
	c.Flags().StringArrayVar(&conditions, "for", nil, "the `CONDITION`; given several times, any of them")
	c.RegisterFlagCompletionFunc("for", completeConditions) //nolint:errcheck // the flag is there
	return c
}

// coordinatorWord is what `wait` takes in the place of a kind and an id.
const coordinatorWord = "coordinator"

func completeWait(cmd *cobra.Command, args []string, part string) ([]string, cobra.ShellCompDirective) {
	out, directive := completeKinds(cmd, args, part)
	if len(args) == 0 {
		out = append(out, coordinatorWord)
	}
	return out, directive
}

func completeConditions(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	out := []string{"removed", "jsonpath="}
	if len(args) > 0 {
		if kind, err := parseKind(args[0]); err == nil && len(stateNames(kind)) > 0 {
			out = append(out, "ended")
			for _, s := range stateNames(kind) {
				out = append(out, "state="+s)
			}
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}

// A waiting is one `coordctl wait` for a record.
type waiting struct {
	a          *app
	kind       frames.ObjectKind
	prefix     string
	conditions []condition

	ref    frames.ObjectRef    // once it is known
	record *client.Record      // as it was seen last
	stale  *client.Gap         // what keeps the view from being current, if anything does
	lost   *client.LostHistory // as it was told last
}

// impossibleError ends a wait for what cannot come any more.
type impossibleError struct{ text string }

func (e *impossibleError) Error() string { return e.text }

// waitedError ends a wait whose time is over.
type waitedError struct{ text string }

func (e *waitedError) Error() string { return e.text }

func (a *app) waitFor(parent context.Context, kindText, idText string, conditions []string) error {
	kind, err := parseKind(kindText)
	if err != nil {
		return err
	}
	w := &waiting{a: a, kind: kind}
	if w.prefix, err = checkPrefix(idText); err != nil {
		return err
	}
	if len(conditions) == 0 {
		return usage("wait needs --for: what to wait for, such as --for %s", exampleCondition(kind))
	}
	for _, text := range conditions {
		c, err := parseCondition(kind, text)
		if err != nil {
			return err
		}
		w.conditions = append(w.conditions, c)
	}
	ctx, cancel := context.WithTimeoutCause(parent, a.timeout, errTimeout)
	defer cancel()
	t := &tracking{a: a, name: "coordctl wait", caps: capsFor(kind), patience: math.MaxInt64, waits: true}
	err = t.run(ctx, w.notice)
	if t.began && errors.Is(err, errTimeout) {
		return w.late()
	}
	return t.left(err)
}

// notice holds what the view tells against the conditions. What meets one is printed, which
// ends the wait with errEnough.
func (w *waiting) notice(_ *client.Replica, n client.Notice) error {
	switch n := n.(type) {
	case *client.ReplicaState:
		w.stale = nil
		if n.Phase != client.ReplicaCurrent {
			w.stale = n.Gap
		}
	case *client.Reread:
		w.stale = n.State.Gap
		if err := w.history(n); err != nil {
			return err
		}
		if w.ref.Kind == 0 {
			r, err := lookUp(n.View, w.kind, w.prefix)
			if err != nil {
				return err
			}
			w.ref = r.Ref()
		}
		return w.look(n.View.Get(w.ref.Kind, w.ref.ID))
	case *client.Change:
		if n.Event.Object == w.ref {
			return w.look(n.New)
		}
	}
	return nil
}

// history tells once that history was lost. A record that is lost with it was not removed.
func (w *waiting) history(n *client.Reread) error {
	l := n.State.Lost
	if l == nil || l == w.lost {
		return nil
	}
	if w.lost = l; w.ref.Kind != 0 && n.View.Get(w.ref.Kind, w.ref.ID) == nil {
		return l
	}
	w.a.sayLost(l)
	return nil
}

// look holds the record as it now is against the conditions; nil is one that is gone.
func (w *waiting) look(r *client.Record) error {
	seen := observed{ref: w.ref}
	var snap frames.SnapshotRecord
	if r != nil {
		snap = r.Snapshot()
		o, state, _, err := recordObject(snap)
		if err != nil {
			return err
		}
		seen.object, seen.state = o, state
	}
	possible := false
	for _, c := range w.conditions {
		met, err := c.met(seen)
		if err != nil {
			return err
		}
		if met {
			return w.met(r, seen)
		}
		possible = possible || c.possible(seen)
	}
	if r != nil {
		w.record = r
	}
	if !possible {
		return &impossibleError{w.never(seen)}
	}
	return nil
}

// met prints the record that a condition is true of.
func (w *waiting) met(r *client.Record, seen observed) error {
	o := seen.object
	if r == nil {
		o = object{{"type", "REMOVED"}, {"object", refObject(w.ref)}}
	}
	if w.a.structured() {
		if err := w.a.emit(o); err != nil {
			return err
		}
		return errEnough
	}
	if _, err := fmt.Fprintln(w.a.stdout, seen); err != nil {
		return err
	}
	return errEnough
}

// never words that nothing waited for can come any more.
func (w *waiting) never(seen observed) string {
	var wanted []string
	for _, c := range w.conditions {
		wanted = append(wanted, c.String())
	}
	return printable(fmt.Sprintf("%v: %s cannot come any more", seen, strings.Join(wanted, " or ")))
}

// late words what the record was when the time was over.
func (w *waiting) late() error {
	seen := observed{ref: w.ref}
	if w.record != nil {
		if _, state, _, err := recordObject(w.record.Snapshot()); err == nil {
			seen.state = state
		}
	}
	text := fmt.Sprintf("timed out after %v: %v", w.a.timeout, seen)
	if w.stale != nil {
		text += ", when it was last seen; " + w.stale.String()
	}
	return &waitedError{printable(text)}
}

// waitCoordinator waits for a context file and for who answers there.
func (a *app) waitCoordinator(parent context.Context) error {
	ctx, cancel := context.WithTimeoutCause(parent, a.timeout, errTimeout)
	defer cancel()
	a.wait = a.timeout
	for {
		err := a.session(ctx, client.Options{Offered: quietCaps}, false, func(ctx context.Context, s *session) error {
			if err := s.conn.Ping(ctx); err != nil {
				return err
			}
			return s.serves()
		})
		var path *fs.PathError
		missing := errors.As(err, &path) && errors.Is(err, fs.ErrNotExist) && a.isContext(path.Path)
		if err == nil || !missing && !absent(err) {
			return err
		}
		if clock.Wait(ctx, clock.System(), retryDial) != nil {
			return &waitedError{fmt.Sprintf("timed out after %v: %s", a.timeout, a.explain(err).what)}
		}
	}
}

// serves prints whose answer it was.
func (s *session) serves() error {
	i := s.conn.Info()
	if s.a.structured() {
		return s.a.emit(object{{"coordinator_id", i.CoordinatorID.String()}, {"incarnation_id", i.IncarnationID.String()}, {"authority_epoch", i.Epoch}})
	}
	_, err := fmt.Fprintf(s.a.stdout, "coordinator %v serves at epoch %d\n", i.CoordinatorID, i.Epoch)
	return err
}
