package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"coordinator/client"
	"coordinator/cmd/internal/runs"
	"coordinator/cmd/internal/term"
	"coordinator/frames"
)

func (a *app) describeCommand() *cobra.Command {
	var watch bool
	c := &cobra.Command{
		Use:   "describe KIND ID",
		Short: "Show one record in full, what belongs to it, and of a run all that happened",
		Long: `Show one record in full, the records that belong to it, the operations that name it, and
of a run all that happened, from the event log.

With --watch it is shown again whenever it has changed: for people the lines that are new (+)
and gone (-), else all of it. The timeline of a run is left to coordctl events then.`,
		Example: `  coordctl describe run 2d88da09
  coordctl describe objective 312aee07 -o yaml
  coordctl describe run 2d88da09 --watch`,
		ValidArgsFunction: completeKinds,
		Args:              exactArgs("KIND", "ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			kind, err := parseKind(args[0])
			if err != nil {
				return err
			}
			prefix, err := checkPrefix(args[1])
			if err != nil {
				return err
			}
			caps := readCaps
			if kind == frames.KindAdmin {
				caps |= frames.CapAdministration
			}
			if watch {
				return a.describeOn(cmd.Context(), kind, prefix, caps)
			}
			return a.session(cmd.Context(), client.Options{Offered: caps}, false, func(ctx context.Context, s *session) error {
				return s.describe(ctx, kind, prefix)
			})
		},
	}
	addWatch(c, &watch, watchHelp)
	return c
}

// A described is a record and all that names it.
type described struct {
	record              object
	related, operations []object
	// happened says that there is a timeline; retention has removed the events through after.
	happened bool
	timeline []object
	after    frames.EventCut
}

// description is a record and, of all the records that each visits, those that name it.
func description(r frames.SnapshotRecord, each func(func(frames.SnapshotRecord) error) error) (*described, error) {
	o, _, _, err := recordObject(r)
	if err != nil {
		return nil, err
	}
	d := &described{record: o}
	return d, each(func(other frames.SnapshotRecord) error {
		p, err := other.DecodePayload()
		if err != nil {
			return fmt.Errorf("%v: %w", other.Ref(), err)
		}
		if op, ok := p.(*frames.Operation); ok {
			if runs.Concerns(op.Result, r.Ref()) {
				d.operations = append(d.operations, append(object{{"operation_id", other.ID.String()}}, resultObject(op.Result)...))
			}
			return nil
		}
		for _, ref := range runs.Parents(p) {
			if ref == r.Ref() {
				_, state, _, err := recordObject(other)
				if err != nil {
					return err
				}
				d.related = append(d.related, object{{"kind", other.Kind.String()}, {"id", other.ID.String()}, {"revision", other.Revision}, {"state", state}})
			}
		}
		return nil
	})
}

// object is all of it.
func (d *described) object() object {
	o := append(d.record[:len(d.record):len(d.record)], member{"related", orEmpty(d.related)}, member{"operations", orEmpty(d.operations)})
	if d.happened {
		o = append(o, member{"removed_events_through", d.after}, member{"timeline", orEmpty(d.timeline)})
	}
	return o
}

// write prints it for a person.
func (d *described) write(w io.Writer, paint term.Paint) error {
	if err := writeDescription(w, paint, d.record, d.related, d.operations); err != nil || !d.happened {
		return err
	}
	return writeTimeline(w, paint, d.timeline, d.after)
}

// describe prints a record and, from the same snapshot, all that names it.
func (s *session) describe(ctx context.Context, kind frames.ObjectKind, prefix string) error {
	snap, err := s.snapshot(ctx)
	if err != nil {
		return err
	}
	defer snap.Close()
	r, err := findIn(snap, kind, prefix)
	if err != nil {
		return err
	}
	d, err := description(r, snap.Each)
	if err != nil {
		return err
	}
	if kind == frames.KindRun {
		f, err := runs.FamilyIn(snap, frames.RunID(r.ID))
		if err != nil {
			return err
		}
		if d.happened = len(f.Bindings) > 0; d.happened {
			if d.timeline, d.after, err = s.a.timeline(ctx, f); err != nil {
				return err
			}
		}
	}
	if s.a.structured() {
		return s.a.emit(d.object())
	}
	return d.write(s.a.stdout, s.a.paint(s.a.stdout))
}

func orEmpty(l []object) []object {
	if l == nil {
		return []object{}
	}
	return l
}

// findIn picks the one record of kind whose id begins with prefix.
func findIn(snap *client.Snapshot, kind frames.ObjectKind, prefix string) (found frames.SnapshotRecord, err error) {
	n := 0
	err = snap.Each(func(r frames.SnapshotRecord) error {
		if r.Kind == kind && strings.HasPrefix(r.ID.String(), prefix) {
			if n++; n == 1 {
				found = r
				found.Payload = bytes.Clone(r.Payload)
			}
		}
		return nil
	})
	if err != nil {
		return found, err
	}
	return found, one(n, kind, prefix)
}

// one refuses a prefix that names no record, or several.
func one(n int, kind frames.ObjectKind, prefix string) error {
	switch {
	case n == 0:
		return &client.RefusedError{Code: frames.CodeNotFound, Message: fmt.Sprintf("no %v of id %s is visible to this key", kind, prefix)}
	case n > 1:
		return usage("%s begins the ids of %d %v records; give more digits", prefix, n, kind)
	}
	return nil
}

// writeDescription prints a record for a person: its fields one a line, a JSON document
// indented, and the two lists behind it.
func writeDescription(w io.Writer, paint term.Paint, o object, related, operations []object) error {
	payload, _ := o[len(o)-1].value.(object)
	var documents []member
	t := term.NewTable(w)
	for _, m := range append(append(object{}, o[:len(o)-1]...), payload...) {
		if raw, ok := m.value.(json.RawMessage); ok {
			documents = append(documents, member{m.name, raw})
			continue
		}
		fmt.Fprintf(t, "%s\t%s\n", m.name, paintedCell(paint, m))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, d := range documents {
		var b bytes.Buffer
		if err := json.Indent(&b, d.value.(json.RawMessage), "  ", "  "); err != nil {
			return err
		}
		fmt.Fprintln(w, paint.Heading(d.name))
		for line := range strings.Lines(b.String()) {
			fmt.Fprintln(w, "  "+printable(strings.TrimSuffix(strings.TrimPrefix(line, "  "), "\n")))
		}
	}
	if err := writeRows(w, paint, "related", related); err != nil {
		return err
	}
	return writeRows(w, paint, "operations", operations)
}

func writeRows(w io.Writer, paint term.Paint, name string, rows []object) error {
	if len(rows) == 0 {
		_, err := fmt.Fprintf(w, "%s  none visible\n", paint.Heading(name))
		return err
	}
	fmt.Fprintln(w, paint.Heading(name))
	t := term.NewTable(w)
	for _, r := range rows {
		var cells []string
		for _, m := range r {
			cells = append(cells, paintedCell(paint, m))
		}
		fmt.Fprintln(t, "  "+strings.Join(cells, "\t"))
	}
	return t.Flush()
}
