package top

import (
	"fmt"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
)

// The least window that shows rows.
const (
	minWidth  = 40
	minHeight = 10
	// maxMessage is how many lines a message may take.
	maxMessage = 6
)

var (
	bold    = ansi.Style{}.Bold()
	reverse = ansi.Style{}.Reverse(true)
	faint   = ansi.Style{}.Faint()
	red     = ansi.Style{}.Bold().ForegroundColor(ansi.Red)
	green   = ansi.Style{}.ForegroundColor(ansi.Green)
	alarm   = ansi.Style{}.Bold().Reverse(true).ForegroundColor(ansi.Red)
)

// View implements [tea.Model].
func (m *model) View() tea.View {
	v := tea.NewView(strings.Join(m.lines(), "\n"))
	v.AltScreen = true
	v.DisableBracketedPasteMode = false
	return v
}

// lines are the whole screen.
func (m *model) lines() []string {
	out := m.header()
	if m.width < minWidth || m.height < minHeight {
		return append(out[:min(2, len(out))], cell(fmt.Sprintf("window too small: %dx%d, at least %dx%d", m.width, m.height, minWidth, minHeight), m.width))
	}
	foot := m.footer()
	n := m.height - len(out) - len(foot)
	var body []string
	switch {
	case m.help:
		body = m.helpLines()
	case m.page != nil:
		body = m.pageLines(n)
	default:
		body = m.tableLines(n)
	}
	for len(body) < n {
		body = append(body, "")
	}
	return append(append(out, body[:n]...), foot...)
}

// body is how many lines of the screen rows have.
func (m *model) body() int { return max(1, m.height-3-len(m.footer())) }

// header is whose word this is, whether to believe it, and the tabs.
func (m *model) header() []string {
	s := m.data.state
	if s == nil {
		return []string{bold.Styled(cell("coordctl top  "+inert(m.opts.Name), m.width)), cell("starting", m.width), m.tabLine()}
	}
	left := "coordctl top  " + inert(m.opts.Name)
	authority := "no authority yet"
	if a := s.Authority; a != nil {
		authority = fmt.Sprintf("epoch %d  activation %d  event %d", a.Epoch, a.Activation, s.AsOf.Sequence)
	}
	tail := authority + "  " + s.ServerTime.UTC().Format(time.TimeOnly) + " UTC"
	room := m.width - ansi.StringWidth(tail) - 2
	first := cell(left, max(room, 0)) + "  " + tail
	return []string{bold.Styled(cell(first, m.width)), m.freshness(), m.tabLine()}
}

// freshness says whether to believe the screen.
func (m *model) freshness() string {
	s := m.data.state
	if !s.Stale {
		return green.Styled(cell("CURRENT  "+strings.TrimPrefix(s.Summary, "current: ")+m.lostText(), m.width))
	}
	since := ""
	if s.Authority != nil {
		since = " " + span(m.now().Sub(s.Since.Time))
	}
	word, text := "STALE", s.Summary
	switch {
	case s.Final:
		word = "ENDED"
	case s.Authority == nil:
		word = "NO VIEW"
	case s.StaleReason == "behind":
		word, since = "BEHIND", ""
	}
	text = strings.TrimPrefix(strings.TrimPrefix(text, "STALE: "), "catching up: ")
	return alarm.Styled(cell(fmt.Sprintf("%s%s  %s%s", word, since, text, m.lostText()), m.width))
}

// lostText reminds of history that was lost.
func (m *model) lostText() string {
	if m.data.state.HistoryLost == "" {
		return ""
	}
	return "  HISTORY WAS LOST: see Activity"
}

func (m *model) tabLine() string {
	var b strings.Builder
	counts := [tabs]int{}
	if s := m.data.state; s != nil {
		counts = [tabs]int{0, s.Counts.OpenSignals, s.Counts.Objectives, s.Counts.Runs, s.Counts.Operations, 0}
	}
	used := 0
	for t, name := range tabNames {
		label := fmt.Sprintf(" %d %s ", t+1, name)
		if counts[t] > 0 && m.width >= 80 {
			label = fmt.Sprintf(" %d %s %d ", t+1, name, counts[t])
		}
		if m.width < 72 {
			label = fmt.Sprintf(" %d %s ", t+1, name[:4])
		}
		if used += len(label); used > m.width {
			break
		}
		if tab(t) == m.tab {
			label = reverse.Styled(label)
		}
		b.WriteString(label)
	}
	return b.String()
}

// tableLines are the rows of a tab in n lines.
func (m *model) tableLines(n int) (out []string) {
	items, cursor, first := m.rows(n)
	if first > 0 { // what the columns are stays in view
		if items, cursor, first = m.rows(n - 1); first > 0 && items[first].heading == "" {
			out = append(out, m.heading(headingOf(items, first)))
		}
	}
	for i := first; i < len(items) && len(out) < n; i++ {
		it := items[i]
		switch {
		case it.heading != "":
			out = append(out, m.heading(it.heading))
		case it.row == nil:
			out = append(out, faint.Styled(cell("   "+it.note, m.width)))
		case i == cursor:
			out = append(out, reverse.Styled(">"+m.line(it.row, m.width-1)))
		case alarming(it.row):
			out = append(out, red.Styled(" "+m.line(it.row, m.width-1)))
		default:
			out = append(out, " "+m.line(it.row, m.width-1))
		}
	}
	return out
}

// headingOf is the heading above the item at i.
func headingOf(items []item, i int) string {
	for ; i >= 0; i-- {
		if h := items[i].heading; h != "" {
			return h
		}
	}
	return ""
}

// footer is a question, a message or the filter, and what keys do.
func (m *model) footer() (out []string) {
	switch {
	case m.confirm != nil:
		for _, line := range wrap(m.confirm.question(), m.width-1, maxMessage) {
			out = append(out, alarm.Styled(cell(" "+line, m.width)))
		}
		out = append(out, cell(" operation "+m.confirm.Operation.String(), m.width))
		return append(out, bold.Styled(cell(" y yes   n no", m.width)))
	case m.filtering:
		return []string{cell(" /"+m.filter+"_", m.width), cell(" enter keep   esc forget", m.width)}
	}
	for i, line := range m.message {
		style := bold
		if m.failed {
			style = red
		}
		for _, part := range wrap(line, m.width-1, maxMessage-i) {
			if len(out) < maxMessage {
				out = append(out, style.Styled(cell(" "+part, m.width)))
			}
		}
	}
	if m.filter != "" && m.page == nil {
		out = append(out, bold.Styled(cell(" filter: "+m.filter+"   (esc forgets it)", m.width)))
	}
	return append(out, faint.Styled(cell(m.hints(), m.width)))
}

// hints are the keys that matter where one is.
func (m *model) hints() string {
	hints := " enter details  / filter  1-6 tabs  ? help  q quit"
	switch {
	case m.help:
		hints = " any key goes back"
	case m.page != nil:
		hints = " esc back  l load again  ? help  q quit"
	}
	return hints + m.actionHints()
}

// actionHints are the keys of what may be commanded here.
func (m *model) actionHints() (out string) {
	if m.help {
		return ""
	}
	for _, verb := range actionsOf(m.selected()) {
		for key, v := range verbs {
			if v == verb {
				out += "  " + key + " " + verb
			}
		}
	}
	return out
}

func (m *model) helpLines() []string {
	out := []string{bold.Styled(cell(" Keys", m.width))}
	for _, k := range keyHelp {
		out = append(out, cell("  "+cell(k[0], 20)+k[1], m.width))
	}
	return append(out, "", cell(" Ages with > are at least that: the row was so when it was first seen.", m.width),
		cell(" Commands are sent under an operation, which is shown; coordctl op get finds it.", m.width))
}
