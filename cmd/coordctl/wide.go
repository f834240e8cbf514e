package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"coordinator/cmd/internal/runs"
	"coordinator/cmd/internal/term"
	"coordinator/codec"
	"coordinator/frames"
	"coordinator/handshake"
)

// A column is one more that -o wide shows of the records of a family.
type column struct {
	name string
	// width is that of its cells, for rows that cannot wait for the widest.
	width int
	cell  func(codec.Message) string
}

const (
	idWidth     = 32
	digestWidth = len("sha256:") + 64
)

// col is a column over payloads of one type.
func col[P codec.Message](name string, width int, cell func(P) string) column {
	return column{name, width, func(m codec.Message) string {
		if p, ok := m.(P); ok {
			return cell(p)
		}
		return ""
	}}
}

// wideColumns are what -o wide adds to the table of a family. Where they hold all that the last
// column says in words, they take its place (saidApart).
var wideColumns = map[frames.ObjectKind][]column{
	frames.KindObjective: {
		col("SCHEMA", 6, func(p *frames.Objective) string { return decimal(p.DocumentSchema) }),
		col("BYTES", 8, func(p *frames.Objective) string { return decimal(len(p.Document)) }),
	},
	frames.KindRun: {
		col("ATTEMPT", 7, func(p *frames.Run) string { return decimal(p.Attempt) }),
		col("EXIT", 6, exitCell),
		col("OBJECTIVE", idWidth, func(p *frames.Run) string { return p.ObjectiveID.String() }),
	},
	frames.KindWorkSession: {
		col("RUN", idWidth, func(p *frames.WorkSession) string { return p.RunID.String() }),
		col("ACTIVE_BINDING", idWidth, func(p *frames.WorkSession) string {
			if p.ActiveBinding == (frames.BindingID{}) {
				return ""
			}
			return p.ActiveBinding.String()
		}),
	},
	frames.KindBinding: {
		col("REASON", 10, func(p *frames.Binding) string {
			if p.Reason == nil {
				return ""
			}
			return p.Reason.String()
		}),
		col("SESSION", idWidth, func(p *frames.Binding) string { return p.Binding.WorkSessionID.String() }),
		col("OWNER", digestWidth, func(p *frames.Binding) string { return handshake.FormatFingerprint(p.Binding.Owner) }),
		col("INCARNATION", idWidth, func(p *frames.Binding) string { return p.Binding.OwnerIncarnation.String() }),
		col("RESOURCE", 8, func(p *frames.Binding) string {
			if p.Binding.Resource.Host == "" {
				return decimal(p.Binding.Resource.ID)
			}
			return p.Binding.Resource.Host + "/" + decimal(p.Binding.Resource.ID)
		}),
	},
	frames.KindArtifact: {
		col("LATEST", 6, func(p *frames.Artifact) string { return decimal(p.LatestRevision) }),
		col("SESSION", idWidth, func(p *frames.Artifact) string { return p.WorkSessionID.String() }),
	},
	frames.KindArtifactManifest: {
		col("SCHEMA", 6, func(p *frames.ArtifactManifest) string { return decimal(p.Schema) }),
		col("BYTES", 8, func(p *frames.ArtifactManifest) string { return decimal(len(p.Manifest)) }),
		col("ARTIFACT", idWidth, func(p *frames.ArtifactManifest) string { return p.ArtifactID.String() }),
	},
	frames.KindSignal: {
		col("SESSION", idWidth, func(p *frames.Signal) string { return p.WorkSessionID.String() }),
	},
	frames.KindOperation: {
		col("EPOCH", 6, func(p *frames.Operation) string {
			if p.Result.State != frames.OperationPending {
				return ""
			}
			return decimal(p.Result.Epoch)
		}),
		col("SEQUENCE", 8, func(p *frames.Operation) string {
			if p.Result.Sequence == 0 {
				return ""
			}
			return decimal(p.Result.Sequence)
		}),
		col("RESULT", 49, resultCell),
	},
	frames.KindEvidence: {
		col("SESSION", idWidth, func(p *frames.Evidence) string { return p.WorkSessionID.String() }),
		col("ARTIFACT", idWidth, func(p *frames.Evidence) string { return p.ArtifactID.String() }),
		col("SEAL", 64, func(p *frames.Evidence) string { return fmt.Sprintf("%x", p.Seal) }),
	},
	frames.KindAdmin: {col("KEY", digestWidth, keyCell)},
}

// saidApart are the families whose columns say all that the words behind them would.
var saidApart = map[frames.ObjectKind]bool{
	frames.KindRun: true, frames.KindWorkSession: true, frames.KindBinding: true, frames.KindArtifact: true,
	frames.KindArtifactManifest: true, frames.KindEvidence: true,
}

func decimal[N ~int | ~uint16 | ~uint32 | ~uint64](n N) string {
	return strconv.FormatUint(uint64(n), 10)
}

// exitCell is the exit status of a run, as `coordctl run` gives it.
func exitCell(p *frames.Run) string {
	var closed frames.Closed
	if p.Outcome == nil || codec.DecodeImage(&closed, p.Outcome) != nil {
		return ""
	}
	if !closed.Known {
		return "unknown"
	}
	return strconv.Itoa(statusCode(closed.Status))
}

// keyCell is the whole id of a credential's key.
func keyCell(p *frames.Admin) string {
	m, err := p.DecodePayload()
	if c, ok := m.(*frames.Credential); ok && err == nil {
		return c.KeyID.String()
	}
	return ""
}

// resultCell is what an operation made, or why it made nothing.
func resultCell(p *frames.Operation) string {
	switch r := p.Result; r.State {
	case frames.OperationRejected:
		return r.Code.String()
	case frames.OperationIndeterminate:
		return r.Reason.String()
	case frames.OperationTombstoned:
		return r.Final.String()
	case frames.OperationSucceeded:
		var ref frames.ObjectRef
		var s frames.Started
		switch {
		case r.Kind == frames.ResultObjectRef && codec.DecodeImage(&ref, r.Payload) == nil:
			return ref.String()
		case r.Kind == frames.ResultStarted && codec.DecodeImage(&s, r.Payload) == nil:
			return runs.Ref(frames.KindRun, s.Run).String()
		}
	}
	return ""
}

// columns are what the table of a family shows besides id, revision, state and detail.
func (a *app) columns(kind frames.ObjectKind) []column {
	if a.output.Wide() {
		return wideColumns[kind]
	}
	return nil
}

// heads are the headings of a table of a family.
func (a *app) heads(kind frames.ObjectKind) []string {
	out := []string{"ID", "REVISION", "STATE"}
	for _, c := range a.columns(kind) {
		out = append(out, c.name)
	}
	if a.output.Wide() && saidApart[kind] {
		return out
	}
	return append(out, detailName(kind))
}

// stateCell is the place of the state in cells.
const stateCell = 2

// cells are the row of a record, ready to be shown.
func (a *app) cells(r frames.SnapshotRecord) ([]string, error) {
	_, state, detail, err := recordObject(r)
	if err != nil {
		return nil, err
	}
	out := []string{r.ID.String(), decimal(r.Revision), orDash(state)}
	if more := a.columns(r.Kind); len(more) > 0 {
		p, err := r.DecodePayload()
		if err != nil {
			return nil, fmt.Errorf("%v: %w", r.Ref(), err)
		}
		for _, c := range more {
			out = append(out, orDash(printable(c.cell(p))))
		}
	}
	if a.output.Wide() && saidApart[r.Kind] {
		return out, nil
	}
	return append(out, orDash(a.short(detail))), nil
}

// short is what a row is about, ready to be shown: as much as is at home in a line.
func (a *app) short(detail string) string {
	if detail = printable(detail); a.output.Wide() {
		return detail
	}
	return shorten(detail, 72)
}

// writeRow prints a row whose columns cannot wait for the widest.
func (a *app) writeRow(kind frames.ObjectKind, cells []string) error {
	widths := []int{idWidth, 8, 10}
	for _, c := range a.columns(kind) {
		widths = append(widths, c.width)
	}
	heads, paint := a.heads(kind), a.paint(a.stdout)
	cells = cells[:min(len(cells), len(heads))]
	var b strings.Builder
	for i, cell := range cells[:len(cells)-1] {
		text := fmt.Sprintf("%-*s", widths[i], cell)
		if i == stateCell && cell != heads[stateCell] {
			text = paint.State(text)
		}
		b.WriteString(text + "  ")
	}
	line := b.String() + cells[len(cells)-1]
	if cells[stateCell] == heads[stateCell] {
		line = paint.Heading(line)
	}
	_, err := fmt.Fprintln(a.stdout, line)
	return err
}

// writeTable prints rows in aligned columns; the cells must be ready to be shown.
func (a *app) writeTable(heads []string, rows [][]string) error {
	t, paint := term.NewTable(a.stdout), a.paint(a.stdout)
	fmt.Fprintln(t, paint.Heading(strings.Join(heads, "\t")))
	state := slices.Index(heads, "STATE")
	for _, cells := range rows {
		if state >= 0 {
			cells = slices.Clone(cells)
			cells[state] = paint.State(cells[state])
		}
		fmt.Fprintln(t, strings.Join(cells, "\t"))
	}
	return t.Flush()
}
