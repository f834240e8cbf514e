package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/charmbracelet/x/ansi"
	"github.com/spf13/cobra"

	"coordinator/client"
	"coordinator/cmd/internal/overview"
	"coordinator/cmd/internal/runs"
	"coordinator/cmd/internal/term"
	"coordinator/cmd/internal/top"
	"coordinator/codec"
	"coordinator/frames"
	"coordinator/handshake"
)

const (
	// outputTail is how much of the end of a run's output is read for its page, and
	// outputLinesShown how many of its lines are shown.
	outputTail       = 16 << 10
	outputLinesShown = 12
	// maxTimeline is how many of a run's events its page holds, the last ones.
	maxTimeline = 2000
)

func (a *app) topCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "top",
		Short: "Show what runs, what is stuck and what wants attention, live, in this terminal",
		Long: `Show what runs, what is stuck and what wants attention, live, in this terminal: the same as
the web console, for ssh. The first lines say whose word it is, up to which event, and whether
to believe it; a missing connection and a gap are shown there until they have healed.

Keys: 1 to 6 and tab go through the tabs, enter shows all about a row, / filters, a and s
acknowledge and suppress a signal, c, p and r cancel, pause and resume a run after a question,
? shows the rest, q quits. NO_COLOR is obeyed.

It needs a terminal that it can read and write, of 40 columns and 10 lines or more. Elsewhere use
coordctl watch, which shows every change as a line, or coordctl get.`,
		Example: "  coordctl top\n  ssh -t there coordctl top",
		Args:    exactArgs(),
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.top(cmd.Context()) },
	}
}

// terminal gives both sides of the terminal that this program is on, or says what to use
// instead.
func (a *app) terminal() (in, out *os.File, err error) {
	const instead = "use coordctl watch, which shows every change as a line, or coordctl get"
	if a.structured() {
		return nil, nil, usage("top draws on a terminal and has no JSON; use coordctl watch -o json or coordctl get -o json")
	}
	in, _ = a.stdin.(*os.File)
	out, _ = a.stdout.(*os.File)
	for name, f := range map[string]*os.File{"input": in, "output": out} {
		if f == nil || !term.Is(f) {
			return nil, nil, usage("top needs a terminal and standard %s is none; %s", name, instead)
		}
	}
	if t := os.Getenv("TERM"); t == "" || t == "dumb" {
		return nil, nil, usage("top needs a terminal with a cursor and TERM is %q; %s", t, instead)
	}
	return in, out, nil
}

// top shows the screen until it is quit.
func (a *app) top(parent context.Context) (err error) {
	in, out, err := a.terminal()
	if err != nil {
		return err
	}
	c, err := client.LoadContext(a.contextPath)
	if err != nil {
		return err
	}
	k := &topper{a: a, c: c}
	if k.key, err = a.key(); err != nil {
		return err
	}
	if k.state, err = client.OpenState(c); err != nil {
		return err
	}
	r, err := client.OpenReplica(c, client.ReplicaOptions{Options: k.options("coordctl top", readCaps|followCaps), Backoff: client.Backoff{Max: watchPause}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	commands := k.options("coordctl top", readCaps)
	commands.Journal = true
	if k.session, err = client.OpenSession(c, client.SessionOptions{Options: commands, Backoff: client.Backoff{Max: watchPause}}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, k.session.Close()) }()

	ctx, stop := signal.NotifyContext(parent, syscall.SIGHUP) // the terminal has gone
	defer stop()
	unsettled, err := top.Run(ctx, top.Options{Name: c.Name, Replica: r, Input: in, Output: out, Environ: a.color.Environ(os.Environ()), Act: k.act, Details: k.details,
		NewOperation: func() (frames.OperationID, error) { return frames.NewID[frames.OperationID](rand.Reader) },
		Follow:       overview.FollowOptions{Options: overview.Options{Owners: ownerNames(c), Explain: func(err error) string { return a.explainCause(err).what }}}})
	for _, op := range unsettled {
		fmt.Fprintf(a.stderr, "coordctl: operation %v was sent and may have run; find out: %s\n", op, a.line("op get "+op.String()))
	}
	if err == nil && len(unsettled) > 0 {
		return &exitStatus{exitUnknown}
	}
	return err
}

// ownerNames are the names of the context's owners.
func ownerNames(c *client.Context) map[frames.Fingerprint]string {
	out := map[frames.Fingerprint]string{}
	for _, o := range c.Owners {
		out[o.Authority] = o.Name
	}
	return out
}

// topper is what a screen commands and reads with.
type topper struct {
	a       *app
	c       *client.Context
	key     handshake.Signer
	state   *client.State
	session *client.Session
}

func (k *topper) options(name string, offered frames.Capability) client.Options {
	return client.Options{Name: name, Key: k.key, State: k.state, Offered: offered}
}

// deeds are the command lines and the commands of the screen's actions.
var deeds = map[string]struct {
	line string
	kind frames.CommandKind
}{
	"acknowledge": {"ack", frames.CommandAckSignal}, "suppress": {"suppress", frames.CommandSuppressSignal},
	"cancel": {"cancel", frames.CommandCancelRun}, "pause": {"pause", frames.CommandPauseRun}, "resume": {"resume", frames.CommandResumeRun},
}

// act sends a command, under an OperationId that is kept until there is an answer.
func (k *topper) act(parent context.Context, act top.Action) top.Outcome {
	ctx, cancel := context.WithTimeoutCause(parent, k.a.timeout, errTimeout)
	defer cancel()
	deed := deeds[act.Verb]
	var body codec.Message = &frames.RunCommand{RunID: frames.RunID(act.ID)}
	if act.Kind == frames.KindSignal {
		body = &frames.SignalCommand{SignalID: frames.SignalID(act.ID)}
	}
	cmd, err := client.NewCommand(act.Operation, deed.kind, body)
	if err != nil {
		return top.Outcome{Lines: []string{err.Error()}, Failed: true}
	}
	result, err := k.session.Do(ctx, cmd)
	same := again{args: fmt.Sprintf("%s %v --op %v", deed.line, act.ID, act.Operation)}
	switch {
	case err != nil:
		o := k.failed(&commandError{act.Operation, same, act.Again, err})
		o.Unsettled = errors.As(err, new(*client.OutcomeUnknownError))
		return o
	case result.State == frames.OperationPending:
		return top.Outcome{Lines: []string{fmt.Sprintf("%s: PENDING, operation %v: it is under way, its end is shown among the operations", act.Verb, act.Operation)}}
	case result.State != frames.OperationSucceeded:
		return k.failed(&resultError{act.Operation, result})
	}
	return top.Outcome{Lines: []string{fmt.Sprintf("%s: SUCCEEDED, operation %v", act.Verb, act.Operation)}}
}

// failed words a failure as every command does.
func (k *topper) failed(err error) top.Outcome {
	m := k.a.explain(err)
	lines := []string{m.what}
	if m.sent != "" {
		lines = append(lines, m.sent)
	}
	for _, next := range m.next {
		lines = append(lines, "next: "+next)
	}
	return top.Outcome{Lines: lines, Failed: true}
}

// details reads the event log for a run, and the end of its output.
func (k *topper) details(ctx context.Context, v *client.View, id frames.RunID) top.Details {
	d := top.Details{AsOf: v.Cut}
	f, err := runs.FamilyOf(v, id)
	if err != nil || f == nil {
		d.TimelineErr = "it is not in the view any more"
		return d
	}
	b, noProcess := f.Binding()
	l := client.NewLedger(k.c.CoordinatorID, b.Binding.BindingID)
	d.Removed, err = f.Timeline(ctx, k.c, k.options("coordctl history", readCaps), func(e runs.TimelineEvent) error {
		d.Timeline = append(d.Timeline, fmt.Sprintf("%-8d %-24s %s", e.Sequence, strings.ToLower(strings.ReplaceAll(e.Kind.String(), "_", " ")), e.Text))
		if len(d.Timeline) > maxTimeline {
			d.Timeline = d.Timeline[1:]
		}
		return l.Take(e.Event)
	})
	if err != nil {
		d.TimelineErr = k.a.explainCause(err).what
	}
	if d.Facts = l.Facts; noProcess != nil {
		d.OutputErr = "it has no process"
		return d
	}
	if d.Output, err = k.tail(ctx, b, l); err != nil {
		d.OutputErr = k.a.explainCause(err).what
	}
	return d
}

// tail is the end of what a process wrote, as lines.
func (k *topper) tail(ctx context.Context, b frames.Binding, l *client.Ledger) ([]string, error) {
	from := uint64(0)
	if n := len(l.Ranges); n > 0 && l.Ranges[n-1].Last > outputTail {
		from = l.Ranges[n-1].Last - outputTail
	}
	var last []byte
	err := runs.ReadOutput(ctx, k.c, k.key, b, "coordctl", from, 0, func(data []byte) error {
		if last = append(last, data...); len(last) > 2*outputTail {
			last = append([]byte(nil), last[len(last)-outputTail:]...)
		}
		return nil
	})
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return outputTailLines(last), err
}

// outputTailLines are the last lines of output, without what steers a terminal.
func outputTailLines(output []byte) []string {
	text := strings.ReplaceAll(ansi.Strip(string(output)), "\r\n", "\n")
	text = strings.TrimRight(strings.ReplaceAll(strings.ReplaceAll(text, "\r", "\n"), "\t", "    "), "\n")
	if text == "" {
		return nil
	}
	lines := strings.Split(text, "\n")
	return lines[max(0, len(lines)-outputLinesShown):]
}
