package top

import (
	"context"
	"fmt"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"coordinator/cmd/internal/overview"
	"coordinator/frames"
)

// A page is what there is to know about one row.
type page struct {
	id      string
	from    *page // where back leads; nil: the table
	top     int
	load    int // counts what was asked for
	loading bool
	details *Details // nil until it is loaded
}

// loaded is what was read for a page.
type loaded struct {
	id      string
	load    int
	details Details
}

// enter opens the page of the row under the cursor.
func (m *model) enter() tea.Cmd {
	row := m.selected()
	if m.page != nil {
		if row = m.onward(); row == nil {
			return nil
		}
	}
	if a, ok := row.(*overview.Activity); ok {
		row = m.about(a)
	}
	id := idOf(row)
	if id == "" {
		m.message, m.failed = []string{"There is no page about that: it is gone, or not shown by itself."}, false
		return nil
	}
	m.page = &page{id: id, from: m.page}
	return m.reload()
}

// about is the row that an activity concerns; what has none of its own stands for its run.
func (m *model) about(a *overview.Activity) any {
	if a.Object == nil {
		return nil
	}
	if row := m.data.byID[a.Object.ID]; row != nil {
		return row
	}
	for _, r := range m.data.runs {
		if r.SessionID == a.Object.ID || r.BindingID == a.Object.ID {
			return r
		}
	}
	return nil
}

// onward is where enter leads from a page: from a signal to its run.
func (m *model) onward() any {
	switch r := m.data.byID[m.page.id].(type) {
	case *overview.Signal:
		if run := m.data.run(r.RunID); run != nil {
			return run
		}
	case *overview.Operation:
		if r.Object != nil {
			return m.data.byID[r.Object.ID]
		}
	case *overview.Run:
		if o := m.data.objective(r.ObjectiveID); o != nil {
			return o
		}
	}
	return nil
}

func idOf(row any) string {
	switch r := row.(type) {
	case *overview.Signal:
		return r.ID
	case *overview.Objective:
		return r.ID
	case *overview.Run:
		return r.ID
	case *overview.Operation:
		return r.ID
	}
	return ""
}

func actionsOf(row any) []string {
	switch r := row.(type) {
	case *overview.Signal:
		return r.Actions
	case *overview.Run:
		return r.Actions
	}
	return nil
}

// reload reads what the view does not hold of the run whose page is open.
func (m *model) reload() tea.Cmd {
	p := m.page
	if p == nil || m.data.view == nil || m.data.run(p.id) == nil {
		return nil
	}
	id, err := frames.ParseID[frames.RunID](p.id)
	if err != nil {
		return nil
	}
	p.load++
	p.loading = true
	load, view := p.load, m.data.view
	return m.do(func() tea.Msg {
		timeout := m.opts.DetailsTimeout
		if timeout <= 0 {
			timeout = 20 * time.Second
		}
		ctx, cancel := context.WithTimeout(m.ctx, timeout)
		defer cancel()
		return loaded{p.id, load, m.opts.Details(ctx, view, id)}
	})
}

// pageLines are a page in n lines.
func (m *model) pageLines(n int) []string {
	var all []string
	switch r := m.data.byID[m.page.id].(type) {
	case *overview.Signal:
		all = m.signalPage(r)
	case *overview.Objective:
		all = m.objectivePage(r)
	case *overview.Run:
		all = m.runPage(r)
	case *overview.Operation:
		all = m.operationPage(r)
	default:
		all = []string{cell(" "+short(m.page.id)+" is gone: its objective was archived, or this key may not see it any more", m.width)}
	}
	m.page.top = min(m.page.top, max(0, len(all)-n))
	all = all[m.page.top:]
	if len(all) > n {
		all = append(all[:n-1:n-1], faint.Styled(cell(fmt.Sprintf(" … %d lines more, down shows them", len(all)-n+1), m.width)))
	}
	return all
}

// fields lays out names and values, long ones over several lines.
func (m *model) fields(pairs ...string) (out []string) {
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] == "" {
			continue
		}
		for j, line := range wrap(pairs[i+1], m.width-15, 16) {
			name := pairs[i]
			if j > 0 {
				name = ""
			}
			out = append(out, " "+bold.Styled(cell(name, 13))+cell(line, m.width-14))
		}
	}
	return out
}

// since is a state and for how long.
func (m *model) since(r *overview.Row) string {
	if r.SinceAtLeast {
		return fmt.Sprintf("%s, for at least %s", r.State, span(m.now().Sub(r.Since.Time)))
	}
	return fmt.Sprintf("%s since %s UTC, %s", r.State, r.Since.UTC().Format(time.TimeOnly), span(m.now().Sub(r.Since.Time)))
}

func (m *model) heading(text string) string { return bold.Styled(cell(" "+text, m.width)) }

func (m *model) named(id string) string {
	if id == "" {
		return ""
	}
	return strings.TrimSpace(m.data.title(id) + "  " + id)
}

func (m *model) signalPage(r *overview.Signal) []string {
	overdue := ""
	if r.Overdue {
		overdue = "open for long"
	}
	return append(m.fields("signal", r.ID, "kind", r.Kind+", "+r.Severity.String(), "state", m.since(&r.Row), "overdue", overdue, "message", r.Message,
		"run", r.RunID, "objective", m.named(r.ObjectiveID), "session", r.SessionID, "revision", fmt.Sprint(r.Revision)), "", cell(" enter shows its run", m.width))
}

func (m *model) objectivePage(r *overview.Objective) []string {
	c := r.Runs
	out := m.fields("objective", r.ID, "title", r.Title, "state", m.since(&r.Row), "revision", fmt.Sprint(r.Revision), "open signals", number(r.OpenSignals),
		"runs", fmt.Sprintf("%d: %d planned, %d running, %d paused, %d completed, %d failed, %d cancelled", c.Total(), c.Planned, c.Running, c.Paused, c.Completed, c.Failed, c.Cancelled),
		"stuck", number(r.Stuck))
	out = append(out, "", m.heading(runHeading))
	for _, run := range m.data.runs {
		if run.ObjectiveID != r.ID {
			continue
		}
		text := " " + m.line(run, m.width-1)
		if alarming(run) {
			text = red.Styled(text)
		}
		out = append(out, text)
	}
	return out
}

func (m *model) runPage(r *overview.Run) []string {
	binding := r.BindingID
	switch {
	case r.Bound:
		binding += ", active"
	case r.EndReason != "":
		binding += ", ended: " + r.EndReason
	}
	owner := strings.TrimSpace(r.Owner + "  " + r.OwnerID)
	fact, sealed := "", "not sealed"
	if r.LastFact != nil {
		fact = span(m.now().Sub(r.LastFact.Time)) + " ago"
	}
	if r.Sealed {
		sealed = "sealed; check it: coordctl evidence verify " + short(r.ID)
	}
	out := m.fields("run", r.ID, "objective", m.named(r.ObjectiveID), "state", m.since(&r.Row), "attempt", fmt.Sprint(r.Attempt), "STUCK", r.StuckText, "exit status", r.Exit,
		"owner", owner, "binding", binding, "session", r.SessionID, "last fact", fact, "evidence", sealed)
	for _, s := range m.data.signals {
		if s.Open && s.RunID == r.ID {
			out = append(out, red.Styled(cell(" "+m.line(s, m.width-1), m.width)))
		}
	}
	return append(out, m.detailLines()...)
}

// detailLines are what was read of a run beside the view.
func (m *model) detailLines() (out []string) {
	d := m.page.details
	if d == nil {
		return []string{"", cell(" loading its output and timeline…", m.width)}
	}
	note := ""
	if m.page.loading {
		note = "; loading again…"
	}
	out = append(out, "", m.heading(fmt.Sprintf("LAST OUTPUT  as of event %d%s", d.AsOf, note)))
	out = append(out, m.listed(d.Output, d.OutputErr, "no output")...)
	head := fmt.Sprintf("TIMELINE  %d facts", d.Facts)
	if d.Removed > 0 {
		head += fmt.Sprintf(", retention has removed the events up to %d", d.Removed)
	}
	out = append(out, "", m.heading(head))
	return append(out, m.listed(d.Timeline, d.TimelineErr, "nothing in the event log")...)
}

func (m *model) listed(lines []string, trouble, none string) (out []string) {
	for _, line := range lines {
		out = append(out, cell("  "+inert(line), m.width))
	}
	switch {
	case trouble != "":
		for _, line := range wrap(inert(trouble), m.width-3, 4) {
			out = append(out, red.Styled(cell("  "+line, m.width)))
		}
	case len(out) == 0:
		out = append(out, faint.Styled(cell("  "+none, m.width)))
	}
	return out
}

func (m *model) operationPage(r *overview.Operation) []string {
	object := ""
	if r.Object != nil {
		object = r.Object.Kind + " " + r.Object.ID
	}
	name := "completed at"
	if r.State == frames.OperationPending.String() {
		name = "admitted at"
	}
	event := ""
	if r.Sequence != 0 {
		event = fmt.Sprintf("event %d", r.Sequence)
	}
	return m.fields("operation", r.ID, "state", m.since(&r.Row), "result", r.Text, "STUCK", r.StuckText, "object", object, name, event, "principal", r.Principal)
}
