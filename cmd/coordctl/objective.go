package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"coordinator/client"
	"coordinator/codec"
	"coordinator/frames"
	"coordinator/internal/shell"
)

// maxDocument bounds a document that is read from a file; a connection usually carries less.
const maxDocument = frames.MaxTypedPayload

// documentFlags are --title and --document.
type documentFlags struct{ title, document string }

func (f *documentFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.title, "title", "", "the document's \"title\"")
	cmd.Flags().StringVar(&f.document, "document", "", "the whole document, a JSON object: a `FILE`, or - for standard input")
}

// read makes the document. Its bytes depend on the flags and the file alone, so that the
// same command line is the same command.
func (f *documentFlags) read(stdin io.Reader) ([]byte, error) {
	if f.document == "" {
		if f.title == "" {
			return nil, usage("give --title, --document or both")
		}
		return f.withTitle(nil)
	}
	raw, err := f.load(stdin)
	if err != nil {
		return nil, err
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(raw, &members); err != nil || members == nil {
		return nil, usage("--document must be one JSON object")
	}
	if f.title != "" {
		return f.withTitle(members)
	}
	var have string
	if json.Unmarshal(members["title"], &have) != nil || have == "" {
		return nil, usage("the document has no \"title\" (text that is not empty); add one, or give --title")
	}
	return raw, nil
}

func (f *documentFlags) withTitle(members map[string]json.RawMessage) ([]byte, error) {
	if !utf8.ValidString(f.title) {
		return nil, usage("--title is not UTF-8")
	}
	if members == nil {
		members = map[string]json.RawMessage{}
	}
	text, err := json.Marshal(f.title)
	if err != nil {
		return nil, fmt.Errorf("title: %w", err)
	}
	members["title"] = text
	return json.Marshal(members)
}

func (f *documentFlags) load(stdin io.Reader) ([]byte, error) {
	r := stdin
	if f.document != "-" {
		file, err := os.Open(f.document)
		if err != nil {
			return nil, usage("--document: %v", err)
		}
		defer file.Close()
		r = file
	}
	raw, err := io.ReadAll(io.LimitReader(r, maxDocument+1))
	if err != nil {
		return nil, fmt.Errorf("--document: %w", err)
	}
	if len(raw) > maxDocument {
		return nil, usage("--document is larger than %d bytes", maxDocument)
	}
	if !utf8.Valid(raw) {
		return nil, usage("--document is not UTF-8")
	}
	return raw, nil
}

// again is the command line that sends the same command again: first its beginning, then
// the flags that stand for the document.
func (f *documentFlags) again(format string, args ...any) again {
	return again{args: fmt.Sprintf(format, args...) + f.flags(), input: f.document == "-"}
}

func (f *documentFlags) flags() string {
	var b strings.Builder
	if f.title != "" {
		b.WriteString(" --title " + shell.Quote(f.title))
	}
	if f.document == "-" {
		b.WriteString(" --document -")
	} else if f.document != "" {
		b.WriteString(" --document " + shell.Quote(f.document))
	}
	return b.String()
}

const opFlagHelp = "send the operation of this `ID` again: it is looked up first and never runs twice"

func (a *app) createCommand() *cobra.Command {
	var doc documentFlags
	var id, op string
	c := &cobra.Command{
		Use:   "objective --title TEXT [--document FILE|-]",
		Short: "Create an objective",
		Long: `Create an objective: what work is for. Its document is one JSON object with a "title"; whatever else
it holds is kept as it is. Without --id it gets a new id, which is printed.`,
		Example: `  coordctl create objective --title "Release 1.4"
  coordctl create objective --document release.json
  echo '{"title":"Release 1.4","owner":"ana"}' | coordctl create objective --document -`,
		Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.createObjective(cmd.Context(), doc, id, op)
		},
	}
	doc.register(c)
	c.Flags().StringVar(&id, "id", "", "the objective's `ID`, 32 hex digits (default: a new random one)")
	c.Flags().StringVar(&op, "op", "", opFlagHelp)
	return group("create", "Create an object", `Create an object, by its kind. Runs are created with: coordctl run`, c)
}

func (a *app) createObjective(ctx context.Context, doc documentFlags, idText, opText string) error {
	document, err := doc.read(a.stdin)
	if err != nil {
		return err
	}
	op, retried, err := operationID(opText)
	if err != nil {
		return err
	}
	var id frames.ObjectiveID
	switch {
	case idText != "":
		if id, err = frames.ParseID[frames.ObjectiveID](idText); err != nil {
			return usage("--id: %v", err)
		}
	case retried:
		return usage("--op needs the --id that was used before: another objective would be another command")
	default:
		if id, err = frames.NewID[frames.ObjectiveID](rand.Reader); err != nil {
			return err
		}
	}
	cmd, err := client.NewCommand(op, frames.CommandCreateObjective, &frames.CreateObjective{ObjectiveID: id, Schema: 1, Document: document})
	if err != nil {
		return err
	}
	line := doc.again("create objective --op %v --id %v", op, id)
	return a.mutate(ctx, quietCaps, op, line, retried, func(ctx context.Context, s *session) error {
		return s.send(ctx, cmd, retried, line, object{{"objective_id", id.String()}})
	})
}

// mutate is a session for one command: a failure before it was sent names the operation
// and the line that tries again.
func (a *app) mutate(ctx context.Context, caps frames.Capability, op frames.OperationID, line again, retried bool, fn func(context.Context, *session) error) error {
	answered := false
	err := a.session(ctx, client.Options{Offered: caps, Scope: frames.AllScopes}, true, func(ctx context.Context, s *session) error {
		err := fn(ctx, s)
		answered = s.answered
		return err
	})
	var have *commandError
	var result *resultError
	var use *usageError
	if err == nil || errors.As(err, &have) || errors.As(err, &result) || errors.As(err, &use) {
		return err
	}
	if answered {
		return &afterwardsError{op, err}
	}
	return &commandError{op, line, retried, notRun(err)}
}

// notRun marks an error from before the command was sent.
func notRun(err error) error {
	if errors.Is(err, client.ErrNotSent) {
		return err
	}
	return &notRunError{err}
}

func (a *app) updateCommand() *cobra.Command {
	var doc documentFlags
	var op string
	var ifRevision uint64
	c := &cobra.Command{
		Use:   "objective ID (--title TEXT | --document FILE|-)",
		Short: "Replace an objective's document",
		Long:  "Replace an objective's document. With --title alone the new document holds nothing else.",
		Example: `  coordctl update objective 3f1a9c --title "Release 1.5"
  coordctl update objective 3f1a9c --document release.json --if-revision 2`,
		Args: exactArgs("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("if-revision") && ifRevision == 0 {
				return usage("--if-revision is 0; an objective's revisions start at 1")
			}
			return a.updateObjective(cmd.Context(), args[0], doc, ifRevision, op)
		},
	}
	doc.register(c)
	c.Flags().Uint64Var(&ifRevision, "if-revision", 0, "only if the objective is at revision `N`")
	c.Flags().StringVar(&op, "op", "", opFlagHelp)
	return group("update", "Change an object", `Change an object, by its kind.`, c)
}

func (a *app) updateObjective(ctx context.Context, idText string, doc documentFlags, ifRevision uint64, opText string) error {
	prefix, err := checkPrefix(idText)
	if err != nil {
		return err
	}
	document, err := doc.read(a.stdin)
	if err != nil {
		return err
	}
	op, retried, err := operationID(opText)
	if err != nil {
		return err
	}
	flags := ""
	if ifRevision != 0 {
		flags = " --if-revision " + strconv.FormatUint(ifRevision, 10)
	}
	line := doc.again("update objective %s --op %v%s", prefix, op, flags)
	return a.mutate(ctx, quietCaps, op, line, retried, func(ctx context.Context, s *session) error {
		id, err := s.resolve(ctx, frames.KindObjective, prefix)
		if err != nil {
			return err
		}
		line := doc.again("update objective %v --op %v%s", id, op, flags)
		var pre []frames.Precondition
		if ifRevision != 0 {
			pre = append(pre, frames.Precondition{Object: frames.ObjectRef{Kind: frames.KindObjective, ID: id}, Revision: ifRevision})
		}
		cmd, err := client.NewCommand(op, frames.CommandUpdateObjective,
			&frames.UpdateObjective{ObjectiveID: frames.ObjectiveID(id), Schema: 1, Document: document}, pre...)
		if err != nil {
			return err
		}
		return s.send(ctx, cmd, retried, line, object{{"objective_id", id.String()}})
	})
}

// An ending is one of the two ways to end an objective.
type ending struct {
	verb, short string
	state       frames.ObjectiveState
}

var (
	completing = ending{"complete", "Mark an object completed", frames.ObjectiveCompleted}
	cancelling = ending{"cancel", "Mark an object cancelled", frames.ObjectiveCancelled}
)

func (a *app) endCommand(e ending) *cobra.Command {
	var op string
	c := &cobra.Command{
		Use:   "objective ID",
		Short: "Mark an objective " + strings.ToLower(e.state.String()) + "; its document stays as it is",
		Long: "Mark an objective " + strings.ToLower(e.state.String()) + `. Its document is sent back as it was read, at the revision at which it was
read: somebody else's change in between is a conflict, and is not lost. Its runs go on.`,
		Example: fmt.Sprintf("  coordctl %s objective 3f1a9c", e.verb),
		Args:    exactArgs("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.endObjective(cmd.Context(), e, args[0], op)
		},
	}
	c.Flags().StringVar(&op, "op", "", opFlagHelp)
	return group(e.verb, e.short, e.short+", by its id. What it holds stays as it is.", c)
}

// endObjective sends the document back as it stands, at the revision at which it was read:
// somebody else's change in between is a conflict and not lost.
func (a *app) endObjective(ctx context.Context, e ending, idText, opText string) error {
	prefix, err := checkPrefix(idText)
	if err != nil {
		return err
	}
	op, retried, err := operationID(opText)
	if err != nil {
		return err
	}
	line := again{args: fmt.Sprintf("%s objective %s --op %v", e.verb, prefix, op)}
	return a.mutate(ctx, quietCaps|frames.CapObjectiveLifecycle, op, line, retried, func(ctx context.Context, s *session) error {
		if retried {
			// What the command was made of may have changed since, so the answer is asked
			// for before the command is made again.
			result, err := s.conn.Lookup(ctx, op)
			if err != nil {
				return &commandError{op, line, true, &client.OutcomeUnknownError{OperationID: op, Cause: err}}
			}
			if result.State != frames.OperationUnknown {
				return s.result(op, result, object{})
			}
		}
		if !s.conn.Info().Capabilities.Has(frames.CapObjectiveLifecycle) {
			return &client.RefusedError{Code: frames.CodeCapabilityRequired, Message: "the coordinator does not offer OBJECTIVE_LIFECYCLE"}
		}
		r, err := s.find(ctx, frames.KindObjective, prefix)
		if err != nil {
			return err
		}
		cmd, err := endingCommand(op, r, e.state)
		if err != nil {
			return err
		}
		return s.send(ctx, cmd, false, again{args: fmt.Sprintf("%s objective %v --op %v", e.verb, r.ID, op)}, object{{"objective_id", r.ID.String()}})
	})
}

func endingCommand(op frames.OperationID, r frames.SnapshotRecord, state frames.ObjectiveState) (client.Command, error) {
	var o frames.Objective
	if err := codec.Decode(&o, r.Payload); err != nil {
		return client.Command{}, fmt.Errorf("%v: %w", r.Ref(), err)
	}
	return client.NewCommand(op, frames.CommandUpdateObjective,
		&frames.UpdateObjective{ObjectiveID: frames.ObjectiveID(r.ID), Schema: o.DocumentSchema, Document: o.Document, State: &state},
		frames.Precondition{Object: r.Ref(), Revision: uint64(r.Revision)})
}
