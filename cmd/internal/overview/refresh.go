package overview

import (
	"time"

	"coordinator/client"
	"coordinator/frames"
)

// Refresh brings the rows to view v, nil before the first, and tells what that changes. All
// that a feed has told of v must have been noticed; what it told beyond v is looked at again
// by a later call.
func (m *Model) Refresh(v *client.View, s client.ReplicaState, now time.Time) *Delta {
	d := &Delta{}
	if v != nil {
		m.rows(v, d, now)
		m.view = v
		clear(m.facts)
	}
	d.Activity = append(d.Activity, m.ring[len(m.ring)-m.fresh:]...)
	m.fresh = 0
	state := m.stateOf(v, &s, now)
	if !state.same(m.state) {
		d.State = state
	}
	m.state = state
	if m.current {
		m.late = false
	}
	return d
}

// Due is when a row must be looked at again though nothing has changed; zero is never.
func (m *Model) Due() time.Time { return m.next }

func (m *Model) rows(v *client.View, d *Delta, now time.Time) {
	work := m.dirty
	m.dirty = map[frames.ObjectRef]mark{}
	for ref, k := range work {
		if k.through > frames.EventSequence(v.Cut) {
			m.dirty[ref] = k // v may not hold all of it
		}
	}
	if m.reread {
		m.differences(v, work, now)
	}
	if !m.next.IsZero() && !m.next.After(now) {
		m.overdue(work, now)
	}
	m.spread(v, work, now)
	for ref, k := range work {
		switch ref.Kind {
		case frames.KindSignal:
			m.signal(v, ref, k.stamp, d, now)
		case frames.KindRun:
			m.run(v, ref, k.stamp, work, d, now)
		case frames.KindOperation:
			m.operation(v, ref, k.stamp, d, now)
		}
	}
	for ref, k := range work { // once their runs are counted
		if ref.Kind == frames.KindObjective {
			m.objective(v, ref, k.stamp, d)
		}
	}
	m.counts.Signals, m.counts.Objectives = len(m.signals.rows), len(m.objectives.rows)
	m.counts.Runs, m.counts.Operations = len(m.runs.rows), len(m.operations.rows)
}

// differences marks what differs between the last view and v.
func (m *Model) differences(v *client.View, work map[frames.ObjectRef]mark, now time.Time) {
	m.reread = false
	for c := range v.Since(m.view) {
		for _, r := range []*client.Record{c.Old, c.New} {
			if r == nil {
				continue
			}
			work[r.Ref()] = mark{stamp: stamp{now, true}}
			if parent, ok := r.Parent(); ok && work[parent].at.IsZero() {
				work[parent] = mark{stamp: stamp{now, true}}
			}
		}
	}
	if m.view != nil && m.view.Scope != v.Scope {
		for r := range v.All() { // what may be commanded
			if work[r.Ref()].at.IsZero() {
				work[r.Ref()] = mark{stamp: stamp{now, true}}
			}
		}
	}
}

// overdue marks what has become slow.
func (m *Model) overdue(work map[frames.ObjectRef]mark, now time.Time) {
	m.next = time.Time{}
	for ref, due := range m.due {
		if !due.After(now) {
			if work[ref].at.IsZero() {
				work[ref] = mark{stamp: stamp{at: now}}
			}
			delete(m.due, ref)
			continue
		}
		m.sooner(due)
	}
}

func (m *Model) sooner(due time.Time) {
	if m.next.IsZero() || due.Before(m.next) {
		m.next = due
	}
}

// spread marks the run and the signals of a session that is marked, and the signals of a run.
func (m *Model) spread(v *client.View, work map[frames.ObjectRef]mark, now time.Time) {
	var more []frames.ObjectRef
	for ref := range work {
		switch ref.Kind {
		case frames.KindWorkSession:
			more = appendSignals(more, v, ref.ID)
			if s := v.Get(ref.Kind, ref.ID); s != nil { // its removal marks the run itself
				if run, ok := s.Parent(); ok {
					more = append(more, run)
				}
			}
		case frames.KindRun:
			if m.runs.rows[ref.ID] == nil || v.Get(ref.Kind, ref.ID) == nil { // what a signal says of it differs
				for s := range v.SessionsOf(frames.RunID(ref.ID)) {
					more = appendSignals(more, v, s.ID())
				}
			}
		}
	}
	for _, ref := range more {
		if _, have := work[ref]; !have {
			work[ref] = mark{stamp: stamp{now, m.late}}
		}
	}
}

func appendSignals(refs []frames.ObjectRef, v *client.View, session frames.ObjectID) []frames.ObjectRef {
	for s := range v.SignalsOf(frames.WorkSessionID(session)) {
		refs = append(refs, s.Ref())
	}
	return refs
}

// later notes when the row of an object must be looked at again.
func (m *Model) later(ref frames.ObjectRef, due time.Time) {
	if due.IsZero() {
		delete(m.due, ref)
		return
	}
	m.due[ref] = due
	m.sooner(due)
}

func (m *Model) signal(v *client.View, ref frames.ObjectRef, changed stamp, d *Delta, now time.Time) {
	before := m.signals.rows[ref.ID]
	var next derived[Signal]
	if r := v.Get(ref.Kind, ref.ID); r != nil {
		next = m.deriveSignal(v, r, before, changed, now)
	}
	m.later(ref, next.due)
	if !m.signals.put(ref.ID, next.row) {
		return
	}
	m.counts.OpenSignals += one(next.row != nil && next.row.Open) - one(before != nil && before.Open)
	if next.row == nil {
		d.Gone = append(d.Gone, Gone{SignalsTable, ref.ID.String()})
		return
	}
	d.Signals = append(d.Signals, next.row)
}

func (m *Model) run(v *client.View, ref frames.ObjectRef, changed stamp, work map[frames.ObjectRef]mark, d *Delta, now time.Time) {
	before := m.runs.rows[ref.ID]
	var next derived[Run]
	if r := v.Get(ref.Kind, ref.ID); r != nil {
		next = m.deriveRun(v, r, before, changed, now)
	}
	m.later(ref, next.due)
	if !m.runs.put(ref.ID, next.row) {
		return
	}
	for row, n := range map[*Run]int{before: -1, next.row: 1} {
		if row != nil {
			m.tally(row, n, work, changed)
		}
	}
	if next.row == nil {
		d.Gone = append(d.Gone, Gone{RunsTable, ref.ID.String()})
		return
	}
	d.Runs = append(d.Runs, next.row)
}

// tally counts a row of a run in or out, and has its objective looked at.
func (m *Model) tally(row *Run, n int, work map[frames.ObjectRef]mark, changed stamp) {
	state, readable := runStates[row.State]
	if !readable {
		return
	}
	raw, err := frames.ParseID[frames.ObjectID](row.ObjectiveID)
	if err != nil {
		panic("overview: a row with a broken id: " + err.Error())
	}
	t := m.tallies[raw]
	if t == nil {
		t = &tally{}
		m.tallies[raw] = t
	}
	*t.runs.of(state) += n
	t.open += n * row.OpenSignals
	m.counts.LiveRuns += n * one(!state.Terminal())
	if row.Stuck != "" {
		t.stuck += n
		m.counts.StuckRuns += n
	}
	if *t == (tally{}) {
		delete(m.tallies, raw)
	}
	ref := frames.ObjectRef{Kind: frames.KindObjective, ID: raw}
	if _, have := work[ref]; !have {
		work[ref] = mark{stamp: changed}
	}
}

var runStates = func() map[string]frames.RunState {
	out := map[string]frames.RunState{}
	for s := frames.RunPlanned; s <= frames.RunFailed; s++ {
		out[s.String()] = s
	}
	return out
}()

func (m *Model) objective(v *client.View, ref frames.ObjectRef, changed stamp, d *Delta) {
	r := v.Get(ref.Kind, ref.ID)
	if r == nil {
		delete(m.entries, ref.ID)
		if m.objectives.put(ref.ID, nil) {
			d.Gone = append(d.Gone, Gone{ObjectivesTable, ref.ID.String()})
		}
		return
	}
	e := m.deriveObjective(v, r, m.entries[ref.ID], changed)
	if m.entries[ref.ID] = e; m.objectives.put(ref.ID, e.row) {
		d.Objectives = append(d.Objectives, e.row)
	}
}

func (m *Model) operation(v *client.View, ref frames.ObjectRef, changed stamp, d *Delta, now time.Time) {
	before := m.operations.rows[ref.ID]
	var next derived[Operation]
	if r := v.Get(ref.Kind, ref.ID); r != nil {
		next = m.deriveOperation(r, before, changed, now)
	}
	m.later(ref, next.due)
	if !m.operations.put(ref.ID, next.row) {
		return
	}
	for row, n := range map[*Operation]int{before: -1, next.row: 1} {
		if row != nil {
			m.counts.Pending += n * one(row.State == frames.OperationPending.String())
			m.counts.Indeterminate += n * one(row.State == frames.OperationIndeterminate.String())
		}
	}
	if next.row == nil {
		d.Gone = append(d.Gone, Gone{OperationsTable, ref.ID.String()})
		return
	}
	d.Operations = append(d.Operations, next.row)
}

func one(b bool) int {
	if b {
		return 1
	}
	return 0
}
