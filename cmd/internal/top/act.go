package top

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	tea "charm.land/bubbletea/v2"

	"coordinator/frames"
)

// consequences say what each action does.
var consequences = map[string]string{
	"acknowledge": "It stays visible, and everybody sees that somebody knows.",
	"suppress":    "It asks for nothing any more.",
	"cancel":      "Its process is asked to end, then killed. This cannot be taken back.",
	"pause":       "Its state only: the process goes on.",
	"resume":      "Its state only.",
}

// question is what is asked before an action.
func (a *Action) question() string {
	return fmt.Sprintf("%s %s %s? %s", strings.ToUpper(a.Verb[:1])+a.Verb[1:], strings.ToLower(a.Kind.String()), short(a.ID.String()), consequences[a.Verb])
}

// confirmed acts on the answer to a question.
func (m *model) confirmed(name string) tea.Cmd {
	a := *m.confirm
	switch name {
	case "y", "Y":
		m.confirm = nil
		return m.send(a)
	case "n", "N", "esc", "q":
		m.confirm = nil
		m.message, m.failed = []string{"Nothing was sent."}, false
	}
	return nil
}

// answered is what became of an action.
type answered struct {
	action  Action
	outcome Outcome
}

// send sends an action.
func (m *model) send(a Action) tea.Cmd {
	m.sending[a.Operation] = a
	m.mu.Lock()
	m.settled[a.Operation] = false
	m.mu.Unlock()
	m.message, m.failed = []string{fmt.Sprintf("%s: sent as operation %v, waiting for the answer…", a.Verb, a.Operation)}, false
	return m.do(func() tea.Msg {
		o := m.opts.Act(m.ctx, a)
		m.mu.Lock()
		m.settled[a.Operation] = !o.Unsettled
		m.mu.Unlock()
		return answered{a, o}
	})
}

// answered shows an outcome.
func (m *model) answered(msg answered) {
	op := msg.action.Operation
	delete(m.sending, op)
	delete(m.unsure, op)
	if m.last != nil && m.last.Operation == op {
		m.last = nil
	}
	m.failed = msg.outcome.Failed
	m.message = nil
	for _, line := range msg.outcome.Lines {
		m.message = append(m.message, inert(line))
	}
	if msg.outcome.Unsettled {
		a := msg.action
		a.Again = true
		m.unsure[op], m.last = a, &a
		m.message = append(m.message, "t sends the same command again, under the same operation.")
	}
}

// tryAgain sends the last action again whose answer was lost.
func (m *model) tryAgain() tea.Cmd {
	if m.last == nil {
		m.message, m.failed = []string{"There is no command whose answer was lost."}, false
		return nil
	}
	return m.send(*m.last)
}

// unsettled are the operations that were sent and whose outcome is not known.
func (m *model) unsettled() (ops []frames.OperationID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for op, settled := range m.settled {
		if !settled {
			ops = append(ops, op)
		}
	}
	slices.SortFunc(ops, func(a, b frames.OperationID) int { return bytes.Compare(a[:], b[:]) })
	return ops
}
