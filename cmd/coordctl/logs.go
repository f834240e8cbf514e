package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"coordinator/client"
	"coordinator/cmd/internal/runs"
	"coordinator/cmd/internal/term"
	"coordinator/frames"
	"coordinator/internal/clock"
)

func (a *app) logsCommand() *cobra.Command {
	var follow, quiet bool
	c := &cobra.Command{
		Use:   "logs RUN",
		Short: "Show a run's output, and check it against the digests that the coordinator admitted",
		Long: `Show a run's output as its owner stored it, and check the bytes against the OUTPUT_RANGE
digests in the coordinator's event log. What came of that is said on standard error: how many
bytes agree, which do not, which cannot be checked because retention has removed their facts,
and which the owner's size cap kept from being stored. Bytes that differ make the exit code 1.

With -f the output is shown as it comes until the run ends, and then checked; a run that has
no process yet is waited for.

With -o json standard output is one JSON object a line, by its "event": "output" with the
"offset" of its first byte and the bytes as base64 in "data", and at the end "check" with the
numbers, the ranges that differ and the findings, which standard error then does not say.`,
		Example: `  coordctl logs 2d88da09
  coordctl logs 2d88da09 --follow
  coordctl logs 2d88da09 --quiet > build.log`,
		Args: exactArgs("RUN"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.logs(cmd.Context(), args[0], follow, quiet)
		},
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the run has ended; --timeout then bounds the start and the check")
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "say only what does not agree")
	return c
}

// errOutputDiffers says that output is not what was admitted.
var errOutputDiffers = errors.New("the output is not what the coordinator admitted facts about")

func (a *app) logs(parent context.Context, text string, follow, quiet bool) error {
	f, err := a.familyWithin(parent, text)
	if err == nil && follow {
		f, err = a.boundFamily(parent, f)
	}
	if err != nil {
		return err
	}
	b, err := f.Binding()
	if err != nil {
		return err
	}
	show := a.shower()
	out := show.output
	if follow && b.State == frames.StateActive {
		c, o, err := a.ownerOf(b)
		if err != nil {
			return err
		}
		live := a.outputFollower(c, o, b.Binding.BindingID, out)
		live.start(parent)
		err = <-live.done
		live.done <- nil
		live.stop()
		if err != nil {
			return err
		}
		out = io.Discard // it has been shown
		if f, err = a.settledFamily(parent, f); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeoutCause(parent, a.timeout, errTimeout)
	defer cancel()
	l, after, err := a.ledger(ctx, f, b.Binding.BindingID)
	if err != nil {
		return err
	}
	check := l.Check(out)
	total := int64(l.OutputBytes())
	report := func(done, total int64) {}
	if !term.Is(a.stdout) || out == io.Discard { // else the output itself is to be seen
		report = a.bar().Begin("reading the output", "")
	}
	err = a.readOutput(ctx, b, func(data []byte) error {
		if _, err := check.Write(data); err != nil {
			return &runs.SinkError{Cause: err}
		}
		report(int64(check.Read), total)
		return nil
	})
	a.bar().End()
	if err != nil {
		return err
	}
	return a.sayOutput(show, l, after, check, quiet)
}

// familyWithin is loadFamily within --timeout.
func (a *app) familyWithin(parent context.Context, text string) (*runs.Family, error) {
	ctx, cancel := context.WithTimeoutCause(parent, a.timeout, errTimeout)
	defer cancel()
	return a.loadFamily(ctx, text)
}

// boundFamily is the family once its run has a process, or will have none: it may have been
// admitted just now.
func (a *app) boundFamily(parent context.Context, f *runs.Family) (*runs.Family, error) {
	ctx, cancel := context.WithTimeoutCause(parent, a.timeout, errTimeout)
	defer cancel()
	for len(f.Bindings) == 0 && !f.Run.State.Terminal() {
		if clock.Wait(ctx, clock.System(), outputPause) != nil {
			return f, nil // what there is will be told
		}
		now, err := a.loadFamily(ctx, f.ID.String())
		if err != nil {
			if absent(err) || ctx.Err() != nil {
				continue
			}
			return nil, err
		}
		f = now
	}
	return f, nil
}

// settledFamily is the family once its run has ended, or its binding has: the owner's last
// facts may still be on their way when the output ends.
func (a *app) settledFamily(parent context.Context, f *runs.Family) (*runs.Family, error) {
	ctx, cancel := context.WithTimeoutCause(parent, a.timeout, errTimeout)
	defer cancel()
	for {
		now, err := a.loadFamily(ctx, f.ID.String())
		switch {
		case err == nil:
			if b, err := now.Binding(); err != nil || b.State == frames.StateEnded {
				return now, err
			}
		case !absent(err): // the coordinator may be starting again
			return nil, err
		}
		if err := clock.Wait(ctx, clock.System(), outputPause); err != nil {
			return nil, err
		}
	}
}

// sayOutput tells what the check of the output came to.
func (a *app) sayOutput(show *shower, l *client.Ledger, after frames.EventCut, check *client.OutputCheck, quiet bool) error {
	lines := runs.OutputLines(l, after, check)
	if err := show.checked(after, check, lines); err != nil {
		return err
	}
	for _, line := range lines {
		if !a.structured() && (!quiet || line.Bad) {
			text := "logs: " + line.Text
			if line.Bad {
				text = a.paint(a.stderr).Bad(text)
			}
			fmt.Fprintln(a.stderr, text)
		}
	}
	if len(check.Differ) > 0 {
		return errOutputDiffers
	}
	return nil
}

// checked tells what a check of the output came to.
func (s *shower) checked(after frames.EventCut, check *client.OutputCheck, lines []runs.OutputLine) error {
	differ, findings := []object{}, []object{}
	for _, r := range check.Differ {
		differ = append(differ, object{{"first", r.First}, {"last", r.Last}})
	}
	for _, line := range lines {
		findings = append(findings, object{{"text", line.Text}, {"bad", line.Bad}})
	}
	return s.event("check", object{{"bytes", check.Read}, {"agreed_bytes", check.Agreed}, {"agreed_digests", check.Ranges}, {"differ", differ},
		{"removed_events_through", after}, {"findings", findings}})
}
