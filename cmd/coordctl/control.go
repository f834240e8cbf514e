package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"coordinator/client"
	"coordinator/cmd/internal/runs"
	"coordinator/cmd/internal/suggest"
	"coordinator/codec"
	"coordinator/frames"
	"coordinator/internal/clock"
	"coordinator/internal/shell"
)

const noWaitHelp = "do not wait for the end of an operation that takes effect at the owner"

// A deed is one command on one object that is named by an id or its prefix.
type deed struct {
	line   string // of coordctl, before the id
	flags  string // of it, behind
	kind   frames.ObjectKind
	member string // of the output
	cmd    frames.CommandKind
	body   func(id frames.ObjectID) codec.Message
}

// do sends it, and waits for its end unless told not to.
func (a *app) do(ctx context.Context, d deed, idText, opText string, wait bool) error {
	prefix, err := checkPrefix(idText)
	if err != nil {
		return err
	}
	op, retried, err := operationID(opText)
	if err != nil {
		return err
	}
	text := func(id string) again {
		return again{args: fmt.Sprintf("%s %s --op %v%s", d.line, id, op, d.flags)}
	}
	return a.mutate(ctx, quietCaps, op, text(prefix), retried, func(ctx context.Context, s *session) error {
		id, err := s.resolve(ctx, d.kind, prefix)
		if err != nil {
			return err
		}
		cmd, err := client.NewCommand(op, d.cmd, d.body(id))
		if err != nil {
			return err
		}
		call := s.conn.Command
		if retried {
			call = s.conn.Retry
		}
		result, err := call(ctx, cmd)
		if err != nil {
			return &commandError{op, text(id.String()), retried, err}
		}
		if wait {
			s.answered = true
			if result, err = s.finish(ctx, op, result); err != nil {
				return err
			}
		}
		return s.result(op, result, object{{d.member, id.String()}})
	})
}

const (
	firstLook = 20 * time.Millisecond
	maxLook   = time.Second
)

// finish looks an operation up until it has ended, as long as ctx lasts: it is PENDING then.
func (s *session) finish(ctx context.Context, op frames.OperationID, r frames.OperationResult) (frames.OperationResult, error) {
	for look := firstLook; r.State == frames.OperationPending; look = min(2*look, maxLook) {
		if clock.Wait(ctx, clock.System(), look) != nil {
			return r, nil // it is not over, which is no failure
		}
		now, err := s.conn.Lookup(ctx, op)
		if err != nil {
			if ctx.Err() != nil {
				return r, nil
			}
			return r, err
		}
		r = now
	}
	return r, nil
}

// deedCommand is the command line of a deed on a run.
func (a *app) deedCommand(use, short string, kind frames.CommandKind) *cobra.Command {
	var op string
	var noWait bool
	c := &cobra.Command{
		Use: use + " RUN", Short: short, Args: exactArgs("RUN"),
		Long: short + ". The run is named by its id, or by the first digits of it that no other run\n" +
			"has. A run that is not in the right state for it is refused.",
		Example: "  coordctl " + use + " 2d88da09",
		RunE: func(cmd *cobra.Command, args []string) error {
			d := deed{line: use, kind: frames.KindRun, member: "run_id", cmd: kind,
				body: func(id frames.ObjectID) codec.Message { return &frames.RunCommand{RunID: frames.RunID(id)} }}
			return a.do(cmd.Context(), d, args[0], op, !noWait)
		},
	}
	c.Flags().StringVar(&op, "op", "", opFlagHelp)
	if kind == frames.CommandCancelRun {
		c.Flags().BoolVar(&noWait, "no-wait", false, noWaitHelp)
	}
	return c
}

// cancelCommand cancels a run, or an objective through its subcommand.
func (a *app) cancelCommand() *cobra.Command {
	c := a.deedCommand("cancel", "Cancel a run: its process is asked to end, then killed", frames.CommandCancelRun)
	for _, sub := range a.endCommand(cancelling).Commands() {
		c.AddCommand(sub)
	}
	c.Long = "Cancel a run: its process gets SIGTERM and, when its grace is over, SIGKILL; a run that has no\nprocess yet never gets one. An objective is cancelled with: coordctl cancel objective ID"
	c.Example = "  coordctl cancel 2d88da09\n  coordctl cancel 2d88da09 --no-wait\n  coordctl cancel objective 3f1a9c"
	return c
}

// endReasons are the words of --reason.
var endReasons = map[string]frames.EndReason{
	"completed": frames.EndCompleted, "owner-lost": frames.EndOwnerLost, "cancelled": frames.EndCancelled, "failed": frames.EndFailed,
}

func (a *app) endBindingCommand() *cobra.Command {
	var op, reason string
	var noWait bool
	c := &cobra.Command{
		Use:   "end BINDING --reason REASON",
		Short: "End a binding: its process is killed, or given up when its owner is lost",
		Long: `End a binding. Where its owner is connected the process is killed and the binding ends with
the reason given. Where it is not, the binding ends at once, without evidence; owner-lost is
for that case alone.`,
		Example: `  coordctl end 9a07c4 --reason failed
  coordctl end 9a07c4 --reason owner-lost`,
		Args: exactArgs("BINDING"),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, ok := endReasons[strings.ToLower(strings.ReplaceAll(reason, "_", "-"))]
			if !ok {
				return usage("--reason is %q; it is completed, owner-lost, cancelled or failed%s", reason, suggest.Hint(reason, slices.Sorted(maps.Keys(endReasons))))
			}
			d := deed{line: "end", flags: " --reason " + shell.Quote(reason), kind: frames.KindBinding, member: "binding_id", cmd: frames.CommandEndBinding,
				body: func(id frames.ObjectID) codec.Message {
					return &frames.EndBinding{BindingID: frames.BindingID(id), Reason: r}
				}}
			return a.do(cmd.Context(), d, args[0], op, !noWait)
		},
	}
	c.Flags().StringVar(&reason, "reason", "", "completed, owner-lost, cancelled or failed (required)")
	c.Flags().StringVar(&op, "op", "", opFlagHelp)
	c.Flags().BoolVar(&noWait, "no-wait", false, noWaitHelp)
	return c
}

// signalCommand is ack or suppress.
func (a *app) signalCommand(use, short string, kind frames.CommandKind) *cobra.Command {
	var op, note string
	c := &cobra.Command{
		Use: use + " SIGNAL", Short: short, Args: exactArgs("SIGNAL"),
		Long:    short + ". It is named by its id or the first digits of it;\ncoordctl signals lists those that are open.",
		Example: "  coordctl " + use + " 8c1f00\n  coordctl " + use + ` 8c1f00 --note "known, see the release notes"`,
		RunE: func(cmd *cobra.Command, args []string) error {
			d := deed{line: use, kind: frames.KindSignal, member: "signal_id", cmd: kind}
			var text *string
			if cmd.Flags().Changed("note") {
				text, d.flags = &note, " --note "+shell.Quote(note)
			}
			d.body = func(id frames.ObjectID) codec.Message {
				return &frames.SignalCommand{SignalID: frames.SignalID(id), Note: text}
			}
			return a.do(cmd.Context(), d, args[0], op, true)
		},
	}
	c.Flags().StringVar(&note, "note", "", "`TEXT` that goes with it, at most 1024 bytes")
	c.Flags().StringVar(&op, "op", "", opFlagHelp)
	return c
}

func (a *app) signalsCommand() *cobra.Command {
	var all, watch bool
	c := &cobra.Command{
		Use:   "signals [RUN]",
		Short: "List the open signals: what wants somebody's attention",
		Long: `List the open signals, those of one run or all. With --watch a line follows for each change,
of these and of new ones, until Ctrl-C.`,
		Example: `  coordctl signals
  coordctl signals 2d88da09 --all -o wide
  coordctl signals --watch`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usage("%s takes at most a run: %s", cmd.CommandPath(), cmd.UseLine())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			prefix := ""
			if len(args) == 1 {
				var err error
				if prefix, err = checkPrefix(args[0]); err != nil {
					return err
				}
			}
			if watch {
				return a.watchSignals(cmd.Context(), 0, prefix, all)
			}
			return a.session(cmd.Context(), client.Options{Offered: quietCaps}, false, func(ctx context.Context, s *session) error {
				return s.signals(ctx, prefix, all)
			})
		},
	}
	c.Flags().BoolVar(&all, "all", false, "list those too that are acknowledged, suppressed or resolved")
	addWatch(c, &watch, watchHelp)
	return c
}

// signals prints the signals, open or all, of the run that prefix names or of all.
func (s *session) signals(ctx context.Context, prefix string, all bool) error {
	snap, err := s.snapshot(ctx)
	if err != nil {
		return err
	}
	defer snap.Close()
	var only frames.RunID
	if prefix != "" {
		r, err := findIn(snap, frames.KindRun, prefix)
		if err != nil {
			return err
		}
		only = frames.RunID(r.ID)
	}
	runOf := map[frames.WorkSessionID]frames.RunID{}
	rows, wide := []object{}, [][]string{}
	err = snap.Each(func(r frames.SnapshotRecord) error { // sessions come before signals
		if r.Kind != frames.KindWorkSession && r.Kind != frames.KindSignal {
			return nil
		}
		p, err := r.DecodePayload()
		if err != nil {
			return fmt.Errorf("%v: %w", r.Ref(), err)
		}
		switch p := p.(type) {
		case *frames.WorkSession:
			runOf[frames.WorkSessionID(r.ID)] = p.RunID
		case *frames.Signal:
			run := runOf[p.WorkSessionID]
			if !all && p.State != frames.SignalOpen || prefix != "" && run != only {
				return nil
			}
			rows = append(rows, object{{"signal_id", r.ID.String()}, {"kind", runs.SignalName(p.Kind)}, {"state", p.State.String()}, {"run_id", run.String()}, {"message", p.Message}})
			wide = append(wide, []string{r.ID.String(), decimal(r.Revision), runs.SignalName(p.Kind), p.State.String(), run.String(), p.WorkSessionID.String(), printable(p.Message)})
		}
		return nil
	})
	if err != nil {
		return err
	}
	if s.a.structured() {
		return s.a.emitList(rows)
	}
	if len(rows) == 0 {
		what := "open signals"
		if all {
			what = "signals"
		}
		_, err := fmt.Fprintf(s.a.stdout, "no %s\n", what)
		return err
	}
	if s.a.output.Wide() {
		return s.a.writeTable([]string{"SIGNAL", "REVISION", "KIND", "STATE", "RUN", "SESSION", "MESSAGE"}, wide)
	}
	return writeRows(s.a.stdout, s.a.paint(s.a.stdout), "signals", rows)
}
