package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"coordinator/client"
	"coordinator/cmd/internal/suggest"
	"coordinator/cmd/internal/term"
	"coordinator/frames"
)

// kindNames are the words for the families of records, the protocol's name first.
var kindNames = []struct {
	kind  frames.ObjectKind
	names []string
}{
	{frames.KindObjective, []string{"objective", "objectives"}},
	{frames.KindRun, []string{"run", "runs"}},
	{frames.KindWorkSession, []string{"work_session", "work_sessions", "session", "sessions"}},
	{frames.KindBinding, []string{"binding", "bindings"}},
	{frames.KindArtifact, []string{"artifact", "artifacts"}},
	{frames.KindArtifactManifest, []string{"artifact_manifest", "artifact_manifests", "manifest", "manifests"}},
	{frames.KindSignal, []string{"signal", "signals"}},
	{frames.KindOperation, []string{"operation", "operations"}},
	{frames.KindEvidence, []string{"evidence"}},
	{frames.KindAdmin, []string{"admin"}},
}

// parseKind reads a family's name.
func parseKind(text string) (frames.ObjectKind, error) {
	var known, words []string
	for _, k := range kindNames {
		for _, n := range k.names {
			if n == strings.ToLower(strings.ReplaceAll(text, "-", "_")) {
				return k.kind, nil
			}
		}
		known, words = append(known, k.names[0]), append(words, k.names...)
	}
	hint := suggest.Hint(text, known)
	if hint == "" {
		hint = suggest.Hint(text, words)
	}
	return 0, usage("%q is no kind of record; they are %s%s", text, strings.Join(known, ", "), hint)
}

// capsFor are the capabilities to offer in order to see records of kind: the two that cost
// the server more are offered only where they are needed.
func capsFor(kind frames.ObjectKind) frames.Capability {
	switch kind {
	case frames.KindOperation:
		return readCaps
	case frames.KindAdmin:
		return quietCaps | frames.CapAdministration
	}
	return quietCaps
}

func (a *app) getCommand() *cobra.Command {
	var watch bool
	c := &cobra.Command{
		Use:   "get KIND [ID]",
		Short: "Show records of one kind, from a verified snapshot",
		Long: `Show records of one kind, or the one that an id or its first digits name, from a snapshot that has been
verified: all of it is what the coordinator says there is, as of one event.`,
		Example: `  coordctl get objective
  coordctl get run 2d88da09 -o json
  coordctl get signal --watch
  coordctl get run -o jsonpath='{range .items[*]}{.id}{"\n"}{end}'`,
		ValidArgsFunction: completeKinds,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 && len(args) != 2 {
				return usage("%s takes a kind and perhaps an id: %s", cmd.CommandPath(), cmd.UseLine())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			kind, err := parseKind(args[0])
			if err != nil {
				return err
			}
			if watch {
				return a.watch(cmd.Context(), args, 0, true)
			}
			opts := client.Options{Offered: capsFor(kind)}
			if len(args) == 1 {
				return a.session(cmd.Context(), opts, false, func(ctx context.Context, s *session) error { return s.list(ctx, kind) })
			}
			prefix, err := checkPrefix(args[1])
			if err != nil {
				return err
			}
			return a.session(cmd.Context(), opts, false, func(ctx context.Context, s *session) error { return s.show(ctx, kind, prefix) })
		},
	}
	c.Flags().BoolVarP(&watch, "watch", "w", false, "go on, with a line for each change, until Ctrl-C")
	return c
}

// list prints every record of kind.
func (s *session) list(ctx context.Context, kind frames.ObjectKind) error {
	only := func(k frames.ObjectKind) bool { return k == kind }
	if s.a.structured() {
		return s.emitRecords(ctx, only)
	}
	t := term.NewTable(s.a.stdout)
	paint := s.a.paint(s.a.stdout)
	n := 0
	err := s.records(ctx, only, func(r frames.SnapshotRecord) error {
		cells, err := s.a.cells(r)
		if err != nil {
			return err
		}
		if n++; n == 1 {
			fmt.Fprintln(t, paint.Heading(strings.Join(s.a.heads(kind), "\t")))
		}
		cells[stateCell] = paint.State(cells[stateCell])
		_, err = fmt.Fprintln(t, strings.Join(cells, "\t"))
		return err
	})
	if err != nil {
		return err
	}
	if n == 0 {
		fmt.Fprintf(s.a.stderr, "no %v records\n", kind)
	}
	return t.Flush()
}

// emitRecords prints a list of records.
func (s *session) emitRecords(ctx context.Context, only func(frames.ObjectKind) bool) error {
	l := s.a.output.List(s.a.stdout)
	err := s.records(ctx, only, func(r frames.SnapshotRecord) error {
		o, _, _, err := recordObject(r)
		if err != nil {
			return err
		}
		return l.Add(o)
	})
	if err != nil {
		return err
	}
	return l.Close()
}

// show prints the one record that prefix names.
func (s *session) show(ctx context.Context, kind frames.ObjectKind, prefix string) error {
	r, err := s.find(ctx, kind, prefix)
	if err != nil {
		return err
	}
	o, _, _, err := recordObject(r)
	if err != nil {
		return err
	}
	if s.a.structured() {
		return s.a.emit(o)
	}
	flat := o[:len(o)-1]
	return writeMembers(s.a.stdout, s.a.paint(s.a.stdout), append(flat, o[len(o)-1].value.(object)...))
}

func detailName(kind frames.ObjectKind) string {
	switch kind {
	case frames.KindObjective:
		return "TITLE"
	case frames.KindOperation:
		return "PRINCIPAL"
	case frames.KindSignal:
		return "SIGNAL"
	case frames.KindAdmin:
		return "WHAT"
	}
	return "OF"
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// find takes a snapshot and picks the one record of kind whose id begins with prefix. The
// record is the caller's.
func (s *session) find(ctx context.Context, kind frames.ObjectKind, prefix string) (frames.SnapshotRecord, error) {
	snap, err := s.snapshot(ctx)
	if err != nil {
		return frames.SnapshotRecord{}, err
	}
	defer snap.Close()
	return findIn(snap, kind, prefix)
}

// resolve turns a prefix into an id. A whole id costs no snapshot.
func (s *session) resolve(ctx context.Context, kind frames.ObjectKind, prefix string) (frames.ObjectID, error) {
	if len(prefix) == 32 {
		id, err := frames.ParseID[frames.ObjectID](prefix)
		if err != nil {
			return id, usage("%v", err)
		}
		return id, nil
	}
	r, err := s.find(ctx, kind, prefix)
	return r.ID, err
}
