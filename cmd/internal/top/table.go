package top

import (
	"fmt"
	"strings"
	"time"

	"coordinator/cmd/internal/overview"
	"coordinator/frames"
)

// A tab is one screen of rows.
type tab int

const (
	overviewTab tab = iota
	signalsTab
	objectivesTab
	runsTab
	operationsTab
	activityTab
	tabs
)

// tabNames are shown with the number of the key that opens each.
var tabNames = [tabs]string{"Overview", "Signals", "Objectives", "Runs", "Operations", "Activity"}

// An item is one line of a tab: a row, or the heading of those that follow.
type item struct {
	id      string // of the row; empty for a heading
	row     any    // *overview.Signal and so on; nil for what is none
	heading string // of the columns
	note    string // that there are no rows
}

// items are the lines of a tab, those that the filter leaves.
func (m *model) items(t tab) []item {
	switch t {
	case overviewTab:
		open := make([]*overview.Signal, 0, m.data.openSignals())
		for _, s := range m.data.signals {
			if !s.Open {
				break // the open ones come first
			}
			open = append(open, s)
		}
		out := m.pick(nil, signalHeading, itemsOf(open, signalID))
		return m.pick(out, objectiveHeading, itemsOf(m.data.objectives, objectiveID))
	case signalsTab:
		return m.pick(nil, signalHeading, itemsOf(m.data.signals, signalID))
	case objectivesTab:
		return m.pick(nil, objectiveHeading, itemsOf(m.data.objectives, objectiveID))
	case runsTab:
		return m.pick(nil, runHeading, itemsOf(m.data.runs, runID))
	case operationsTab:
		return m.pick(nil, operationHeading, itemsOf(m.data.operations, func(o *overview.Operation) string { return o.ID }))
	}
	newest := make([]item, 0, len(m.data.activity))
	for i := len(m.data.activity) - 1; i >= 0; i-- {
		a := m.data.activity[i]
		newest = append(newest, item{id: fmt.Sprint(a.N), row: a})
	}
	return m.pick(nil, activityHeading, newest)
}

func (x *data) openSignals() int {
	if x.state == nil {
		return 0
	}
	return x.state.Counts.OpenSignals
}

func signalID(s *overview.Signal) string       { return s.ID }
func objectiveID(o *overview.Objective) string { return o.ID }
func runID(r *overview.Run) string             { return r.ID }

func itemsOf[T any](rows []*T, id func(*T) string) []item {
	out := make([]item, 0, len(rows))
	for _, r := range rows {
		out = append(out, item{id: id(r), row: r})
	}
	return out
}

// pick appends a heading and the rows that the filter leaves.
func (m *model) pick(out []item, heading string, rows []item) []item {
	out = append(out, item{heading: heading})
	before := len(out)
	for _, it := range rows {
		if m.filter == "" || strings.Contains(strings.ToLower(m.words(it.row)), strings.ToLower(m.filter)) {
			out = append(out, it)
		}
	}
	switch {
	case len(out) > before:
	case m.filter != "":
		out = append(out, item{note: "none that holds " + m.filter})
	default:
		out = append(out, item{note: "none"})
	}
	return out
}

// words is what the filter looks at.
func (m *model) words(row any) string {
	switch r := row.(type) {
	case *overview.Signal:
		return strings.Join([]string{r.ID, r.State, r.Kind, r.Severity.String(), r.Message, r.RunID, m.data.title(r.ObjectiveID)}, " ")
	case *overview.Objective:
		return strings.Join([]string{r.ID, r.State, r.Title, stuckWord(r.Stuck)}, " ")
	case *overview.Run:
		return strings.Join([]string{r.ID, r.State, string(r.Stuck), r.Owner, r.BindingID, m.data.title(r.ObjectiveID), r.ObjectiveID}, " ")
	case *overview.Operation:
		object := ""
		if r.Object != nil {
			object = r.Object.Kind + " " + r.Object.ID
		}
		return strings.Join([]string{r.ID, r.State, r.Text, object, r.Principal}, " ")
	case *overview.Activity:
		object := ""
		if r.Object != nil {
			object = r.Object.ID
		}
		return strings.Join([]string{r.Kind, object, r.Text}, " ")
	}
	return ""
}

func stuckWord(n int) string {
	if n > 0 {
		return "stuck"
	}
	return ""
}

var (
	signalHeading    = cell("SIGNAL", 9) + cell("KIND", 9) + cell("AGE", 6) + cell("STATE", 6) + cell("RUN", 9) + "MESSAGE"
	objectiveHeading = cell("OBJECT.", 9) + cell("STATE", 9) + right("STUCK", 6) + right("SIG", 4) + right("PLAN", 5) + right("RUN", 5) + right("PAUS", 5) +
		right("DONE", 5) + right("FAIL", 5) + "  TITLE"
	runHeading       = cell("RUN", 9) + cell("STATE", 12) + cell("AGE", 6) + cell("TRY", 4) + cell("OWNER", 9) + "OBJECTIVE"
	operationHeading = cell("OPERAT.", 9) + cell("STATE", 14) + cell("AGE", 6) + "RESULT"
	activityHeading  = cell("EVENT", 9) + cell("SEEN", 9) + cell("KIND", 22) + cell("OBJECT", 9) + "WHAT"
)

// line is the text of a row, w columns wide.
func (m *model) line(row any, w int) string {
	now := m.now()
	switch r := row.(type) {
	case *overview.Signal:
		return m.signalLine(r, now, w)
	case *overview.Objective:
		head := cell(short(r.ID), 9) + cell(r.State, 9) + right(number(r.Stuck), 6) + right(number(r.OpenSignals), 4) + right(number(r.Runs.Planned), 5) +
			right(number(r.Runs.Running), 5) + right(number(r.Runs.Paused), 5) + right(number(r.Runs.Completed), 5) + right(number(r.Runs.Failed), 5) + "  "
		return cell(head+plain(r.Title), w)
	case *overview.Run:
		return m.runLine(r, now, w)
	case *overview.Operation:
		return cell(cell(short(r.ID), 9)+cell(r.State, 14)+cell(age(&r.Row, now), 6)+operationText(r), w)
	case *overview.Activity:
		event, object := "-", ""
		if r.Sequence != 0 {
			event = fmt.Sprint(r.Sequence)
		}
		if r.Object != nil {
			object = short(r.Object.ID)
		}
		return cell(cell(event, 9)+cell(r.At.UTC().Format(time.TimeOnly), 9)+cell(strings.ToLower(strings.ReplaceAll(r.Kind, "_", " ")), 22)+cell(object, 9)+r.Text, w)
	}
	return cell("", w)
}

// operationText is what a row says of an operation beside its state.
func operationText(r *overview.Operation) string {
	switch {
	case r.Stuck != "":
		return r.StuckText
	case r.Object != nil:
		return r.Object.Kind + " " + short(r.Object.ID)
	}
	return strings.TrimSpace(strings.TrimLeft(strings.TrimPrefix(r.Text, r.State), ":"))
}

func (m *model) signalLine(s *overview.Signal, now time.Time, w int) string {
	state := map[string]string{frames.SignalOpen.String(): "open", frames.SignalAcknowledged.String(): "ack", frames.SignalSuppressed.String(): "supp",
		frames.SignalResolved.String(): "over"}[s.State]
	if s.Overdue {
		state += "!"
	}
	what := s.Message
	if t := m.data.title(s.ObjectiveID); t != "" {
		what += "  (" + t + ")"
	}
	return cell(cell(short(s.ID), 9)+cell(kindWord(s.Kind), 9)+cell(age(&s.Row, now), 6)+cell(state, 6)+cell(short(s.RunID), 9)+what, w)
}

// kindWord is the kind of a signal in one word.
func kindWord(kind string) string {
	word := strings.TrimSuffix(strings.TrimPrefix(kind, "EXECUTION_"), "_GAP")
	return strings.ToLower(word)
}

func (m *model) runLine(r *overview.Run, now time.Time, w int) string {
	what := m.data.title(r.ObjectiveID)
	if what == "" {
		what = short(r.ObjectiveID)
	}
	if r.Stuck != "" {
		what = "STUCK " + r.StuckText + "  (" + what + ")"
	}
	owner := r.Owner
	if owner == "" && r.OwnerID != "" {
		owner = short(strings.TrimPrefix(r.OwnerID, "sha256:"))
	}
	state := strings.TrimSpace(r.State + " " + strings.Replace(r.Exit, "signal ", "sig", 1))
	if r.State == frames.RunCompleted.String() {
		state = r.State
	}
	return cell(cell(short(r.ID), 9)+cell(state, 12)+cell(age(&r.Row, now), 6)+cell(fmt.Sprint(r.Attempt), 4)+cell(owner, 9)+what, w)
}

// alarming reports whether a row wants somebody's attention.
func alarming(row any) bool {
	switch r := row.(type) {
	case *overview.Signal:
		return r.Open && r.Severity <= overview.Failure
	case *overview.Objective:
		return r.Stuck > 0
	case *overview.Run:
		return r.Stuck != ""
	case *overview.Operation:
		return r.Stuck != ""
	case *overview.Activity:
		return r.Kind == "GAP" || r.Kind == "HISTORY_LOST"
	}
	return false
}
