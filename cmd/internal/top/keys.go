package top

import (
	"slices"
	"strings"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"

	"coordinator/cmd/internal/overview"
	"coordinator/frames"
	"coordinator/internal/text"
)

// keyHelp is what `?` shows.
var keyHelp = [][2]string{
	{"1-6 tab left right", "overview, signals, objectives, runs, operations, activity"},
	{"up down pgup pgdn", "move; home end, j k g G too"},
	{"enter", "all about the row; of a run its output and timeline too"},
	{"esc", "back; or forget a message, or the filter"},
	{"l", "load output and timeline again"},
	{"/", "show only rows that hold what is typed"},
	{"a s", "acknowledge, suppress the signal"},
	{"c p r", "cancel, pause, resume the run"},
	{"t", "the last command again whose answer was lost: it runs once"},
	{"ctrl+z", "suspend"},
	{"q ctrl+c", "quit; what was commanded goes on"},
}

// verbs are the actions of keys.
var verbs = map[string]string{"a": "acknowledge", "s": "suppress", "c": "cancel", "p": "pause", "r": "resume"}

// inert is text.Inert.
func inert(s string) string { return text.Inert(s) }

// key acts on a key.
func (m *model) key(k tea.KeyPressMsg) tea.Cmd {
	name := k.String()
	switch {
	case name == "ctrl+c":
		return tea.Quit
	case name == "ctrl+z":
		return tea.Suspend
	case m.filtering:
		m.typed(name, k.Text)
		return nil
	case m.confirm != nil:
		return m.confirmed(name)
	case m.help:
		m.help = false
		return nil
	}
	if verb, ok := verbs[name]; ok {
		m.ask(verb)
		return nil
	}
	switch name {
	case "q":
		return tea.Quit
	case "?":
		m.help = true
	case "/":
		if m.page == nil {
			m.filtering = true
		}
	case "enter":
		return m.enter()
	case "esc", "backspace":
		m.back()
	case "l":
		return m.reload()
	case "t":
		return m.tryAgain()
	default:
		m.wander(name)
	}
	return nil
}

// wander moves over rows and tabs.
func (m *model) wander(name string) {
	page := max(1, m.body()-1)
	switch name {
	case "up", "k":
		m.move(-1)
	case "down", "j":
		m.move(1)
	case "pgup", "ctrl+b":
		m.move(-page)
	case "pgdown", "ctrl+f", "space":
		m.move(page)
	case "home", "g":
		m.move(-1 << 30)
	case "end", "G":
		m.move(1 << 30)
	case "tab", "right":
		m.open((m.tab + 1) % tabs)
	case "shift+tab", "left":
		m.open((m.tab + tabs - 1) % tabs)
	case "1", "2", "3", "4", "5", "6":
		m.open(tab(name[0] - '1'))
	}
}

// open opens a tab.
func (m *model) open(t tab) { m.tab, m.page = t, nil }

// typed edits the filter.
func (m *model) typed(name, typed string) {
	switch name {
	case "enter":
		m.filtering = false
	case "esc":
		m.filtering, m.filter = false, ""
	case "backspace":
		_, n := utf8.DecodeLastRuneInString(m.filter)
		m.filter = m.filter[:len(m.filter)-n]
	default:
		m.filter = text.Clip(m.filter+plain(inert(typed)), maxFilter)
	}
}

// maxFilter bounds a filter, in bytes.
const maxFilter = 128

// back leaves what was opened last.
func (m *model) back() {
	switch {
	case m.message != nil:
		m.message = nil
	case m.page != nil:
		m.page = m.page.from
	default:
		m.filter = ""
	}
}

// ask asks whether to do verb to what is selected.
func (m *model) ask(verb string) {
	m.message, m.failed = nil, true
	a := Action{Verb: verb, Kind: frames.KindRun}
	if verb == "acknowledge" || verb == "suppress" {
		a.Kind = frames.KindSignal
	}
	var head *overview.Row
	switch r := m.selected().(type) {
	case *overview.Signal:
		if a.Kind == frames.KindSignal {
			head = &r.Row
		}
	case *overview.Run:
		if a.Kind == frames.KindRun {
			head = &r.Row
		}
	}
	if head == nil {
		m.message = []string{"Only signals can be acknowledged and suppressed, and only runs cancelled, paused and resumed. Select one."}
		return
	}
	if !slices.Contains(head.Actions, verb) {
		m.message = []string{"This " + strings.ToLower(a.Kind.String()) + " is " + head.State + ": there is nothing to " + verb + ", or this key may not."}
		return
	}
	id, err := frames.ParseID[frames.ObjectID](head.ID)
	if err == nil {
		a.ID = id
		a.Operation, err = m.opts.NewOperation()
	}
	if err != nil {
		m.message = []string{inert(err.Error())}
		return
	}
	m.confirm, m.failed = &a, false
}
