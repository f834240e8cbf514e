package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"coordinator/cmd/internal/runs"
	"coordinator/cmd/internal/term"
	"coordinator/frames"
)

// timeline reads what happened to a run from the event log, one line an event, and says what
// of it retention has removed.
func (a *app) timeline(ctx context.Context, f *runs.Family) (lines []object, after frames.EventCut, err error) {
	c, opts, err := a.historian()
	if err != nil {
		return nil, 0, err
	}
	defer a.bar().End()
	after, err = f.Timeline(ctx, c, opts, func(e runs.TimelineEvent) error {
		lines = append(lines, object{{"event_sequence", e.Sequence}, {"event_kind", e.Kind.String()}, {"object", refObject(e.Object)}, {"text", e.Text}})
		return nil
	})
	return lines, after, err
}

// writeTimeline prints it for a person.
func writeTimeline(w io.Writer, paint term.Paint, lines []object, after frames.EventCut) error {
	fmt.Fprintln(w, paint.Heading("timeline"))
	if after > 0 {
		fmt.Fprintf(w, "  retention has removed the events up to %d\n", after)
	}
	for _, l := range lines {
		kind := strings.ToLower(strings.ReplaceAll(l[1].value.(string), "_", " "))
		if _, err := fmt.Fprintf(w, "  %-8v %-24s %s\n", l[0].value, kind, printable(l[3].value.(string))); err != nil {
			return err
		}
	}
	return nil
}
