package top

import (
	"coordinator/client"
	"coordinator/cmd/internal/overview"
)

// An update is what one call of [overview.Follow] tells. It is never changed once it is sent.
type update struct {
	state *overview.State
	view  *client.View
	delta *overview.Delta

	// The tables that have changed, whole and in order; nil: as before.
	signals    []*overview.Signal
	objectives []*overview.Objective
	runs       []*overview.Run
	operations []*overview.Operation
	activity   []*overview.Activity
}

// takeUpdate makes an update of what has changed in m.
func takeUpdate(m *overview.Model, d *overview.Delta) *update {
	gone := map[string]bool{}
	for _, g := range d.Gone {
		gone[g.Table] = true
	}
	u := &update{state: m.State(), view: m.View(), delta: d}
	if len(d.Signals) > 0 || gone[overview.SignalsTable] {
		u.signals = m.Signals(0)
	}
	if len(d.Objectives) > 0 || gone[overview.ObjectivesTable] {
		u.objectives = m.Objectives(0)
	}
	if len(d.Runs) > 0 || gone[overview.RunsTable] {
		u.runs = m.Runs(0)
	}
	if len(d.Operations) > 0 || gone[overview.OperationsTable] {
		u.operations = m.Operations(0)
	}
	if len(d.Activity) > 0 {
		u.activity = m.Activity()
	}
	return u
}

// data is what the screen is made of; owned by the program's loop.
type data struct {
	state      *overview.State
	view       *client.View
	signals    []*overview.Signal
	objectives []*overview.Objective
	runs       []*overview.Run
	operations []*overview.Operation
	activity   []*overview.Activity

	byID map[string]any // every row that has an id
}

// take brings the data up to date.
func (x *data) take(u *update) {
	x.state, x.view = u.state, u.view
	if u.signals != nil {
		x.signals = u.signals
	}
	if u.objectives != nil {
		x.objectives = u.objectives
	}
	if u.runs != nil {
		x.runs = u.runs
	}
	if u.operations != nil {
		x.operations = u.operations
	}
	if u.activity != nil {
		x.activity = u.activity
	}
	for _, g := range u.delta.Gone {
		delete(x.byID, g.ID)
	}
	keep(x.byID, u.delta.Signals, func(r *overview.Signal) string { return r.ID })
	keep(x.byID, u.delta.Objectives, func(r *overview.Objective) string { return r.ID })
	keep(x.byID, u.delta.Runs, func(r *overview.Run) string { return r.ID })
	keep(x.byID, u.delta.Operations, func(r *overview.Operation) string { return r.ID })
}

func keep[T any](byID map[string]any, rows []*T, id func(*T) string) {
	for _, r := range rows {
		byID[id(r)] = r
	}
}

func (x *data) objective(id string) *overview.Objective {
	o, _ := x.byID[id].(*overview.Objective)
	return o
}

func (x *data) run(id string) *overview.Run {
	r, _ := x.byID[id].(*overview.Run)
	return r
}

// title is what an objective is called; empty when it is not known.
func (x *data) title(id string) string {
	if o := x.objective(id); o != nil {
		return o.Title
	}
	return ""
}
