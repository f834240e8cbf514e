package overview

import (
	"fmt"
	"time"

	"coordinator/client"
	"coordinator/cmd/internal/runs"
	"coordinator/codec"
	"coordinator/frames"
	"coordinator/internal/text"
)

const (
	// maxTitle bounds what is shown of a title, in bytes.
	maxTitle = 256
	// maxMillis is where a descending time in a sort key counts from: the last one that 13
	// digits can say.
	maxMillis = 9_999_999_999_999
	// unreadable is the state of a record of a schema that this program does not know.
	unreadable = "UNREADABLE"
)

// A stamp is when a change was learned, and whether it may have happened long before.
type stamp struct {
	at   time.Time
	late bool
}

// head fills what every row has. before is the row that it replaces, nil when there is none.
func head(r *client.Record, state string, before *Row, changed stamp) Row {
	row := Row{ID: r.ID().String(), Revision: r.Revision(), State: state, Since: Time{changed.at}, SinceAtLeast: changed.late}
	if before != nil && before.State == state {
		row.Since, row.SinceAtLeast = before.Since, before.SinceAtLeast
	}
	return row
}

// payload decodes a record as its kind; nil where its schema is not known.
func payload[T any](r *client.Record) *T {
	p, err := r.Decode()
	if err != nil {
		return nil
	}
	t, _ := any(p).(*T)
	return t
}

func ascending(t Time) string  { return fmt.Sprintf("%013d", max(0, t.UnixMilli())) }
func descending(t Time) string { return fmt.Sprintf("%013d", max(0, maxMillis-t.UnixMilli())) }

// long reports whether a row has been in its state for d, and if not when it will have been.
func (r *Row) long(d time.Duration, now time.Time) (is bool, due time.Time) {
	if due = r.Since.Add(d); !due.After(now) {
		return true, time.Time{}
	}
	return false, due
}

// derived is a row and when it must be looked at again though nothing has changed; zero is
// never.
type derived[T any] struct {
	row *T
	due time.Time
}

func (m *Model) deriveSignal(v *client.View, r *client.Record, before *Signal, changed stamp, now time.Time) (d derived[Signal]) {
	p := payload[frames.Signal](r)
	if p == nil {
		return derived[Signal]{row: &Signal{Row: head(r, unreadable, rowOf(before), changed), Severity: Note}}
	}
	s := &Signal{Row: head(r, p.State.String(), rowOf(before), changed), Kind: runs.SignalName(p.Kind), Severity: severityOf(p.Kind), Open: p.State == frames.SignalOpen,
		Message: text.Inert(p.Message), SessionID: p.WorkSessionID.String()}
	if session := v.WorkSession(p.WorkSessionID); session != nil {
		s.RunID = session.RunID.String()
		if run := v.Run(session.RunID); run != nil {
			s.ObjectiveID = run.ObjectiveID.String()
		}
	}
	if s.Open {
		s.Overdue, d.due = s.long(m.opts.SignalLong, now)
	}
	if v.Scope.Has(frames.ScopeSignalAck | frames.ScopeWorkRead) {
		switch p.State {
		case frames.SignalOpen:
			s.Actions = []string{"acknowledge", "suppress"}
		case frames.SignalAcknowledged:
			s.Actions = []string{"suppress"}
		}
	}
	age := ascending(s.Since)
	if !s.Open {
		age = descending(s.Since)
	}
	s.Sort = fmt.Sprintf("%d%d%s%s", p.State, s.Severity, age, s.ID)
	d.row = s
	return d
}

// deriveRun makes the row of a run from all that belongs to it.
func (m *Model) deriveRun(v *client.View, r *client.Record, before *Run, changed stamp, now time.Time) (d derived[Run]) {
	p := payload[frames.Run](r)
	if p == nil {
		row := &Run{Row: head(r, unreadable, rowOf(before), changed)}
		row.Sort = "8" + row.ID
		return derived[Run]{row: row}
	}
	run := &Run{Row: head(r, p.State.String(), rowOf(before), changed), ObjectiveID: p.ObjectiveID.String(), Attempt: p.Attempt}
	if closed, ok := closedOf(p); ok {
		run.Exit = runs.StatusWord(closed.Known, closed.Status)
		if closed.Known {
			run.ExitStatus = &closed.Status
		}
	}
	if before != nil {
		run.LastFact = before.LastFact
	}
	alarms := m.below(v, run, frames.RunID(r.ID()))
	run.Stuck, d.due = m.stuck(run, p.State, alarms, now)
	run.StuckText = stuckTexts[run.Stuck]
	run.Actions = runActions(v.Scope, p.State, run.Bound)
	run.Sort = runSort(run, p.State)
	d.row = run
	return d
}

// alarms are what the signals of a run say.
type alarms struct {
	blocked, failed bool // open
	unresolved      bool // EXECUTION_BLOCKED, whatever somebody did about it
}

// below gathers what belongs to a run's sessions.
func (m *Model) below(v *client.View, run *Run, id frames.RunID) (a alarms) {
	for s := range v.SessionsOf(id) {
		session := frames.WorkSessionID(s.ID())
		if run.SessionID == "" || payloadActive(s) {
			run.SessionID = session.String()
		}
		for b := range v.BindingsOf(session) {
			m.bound(run, b)
		}
		for sig := range v.SignalsOf(session) {
			if p := payload[frames.Signal](sig); p != nil {
				a.take(p)
				if p.State == frames.SignalOpen {
					run.OpenSignals++
				}
			}
		}
		for range v.EvidenceOf(session) {
			run.Sealed = true
		}
	}
	return a
}

func payloadActive(s *client.Record) bool {
	p := payload[frames.WorkSession](s)
	return p != nil && p.State == frames.StateActive
}

func (a *alarms) take(p *frames.Signal) {
	open := p.State == frames.SignalOpen
	switch p.Kind {
	case frames.SignalExecutionBlocked:
		a.blocked = a.blocked || open
		a.unresolved = a.unresolved || p.State != frames.SignalResolved
	case frames.SignalExecutionFailed:
		a.failed = a.failed || open
	}
}

// bound takes a binding of a run in: the active one, or one that has ended.
func (m *Model) bound(run *Run, r *client.Record) {
	b := payload[frames.Binding](r)
	if b == nil {
		return
	}
	if at, ok := m.facts[frames.BindingID(r.ID())]; ok {
		run.LastFact = &Time{at}
	}
	if run.Bound {
		return
	}
	run.BindingID, run.Bound = r.ID().String(), b.State == frames.StateActive
	run.OwnerID, run.Owner = b.Binding.Owner.String(), text.Inert(m.opts.Owners[b.Binding.Owner])
	if run.EndReason = ""; b.Reason != nil {
		run.EndReason = b.Reason.String()
	}
}

// stuck is why a run does not go on by itself, if it does not.
func (m *Model) stuck(run *Run, state frames.RunState, a alarms, now time.Time) (why Stuck, due time.Time) {
	switch {
	case state.Terminal():
	case state == frames.RunPlanned && a.unresolved:
		return StuckStartUnknown, due
	case a.blocked:
		return StuckBlocked, due
	case a.failed:
		return StuckFailing, due
	case state == frames.RunPaused:
		return StuckPaused, due
	case state == frames.RunPlanned:
		silent, due := run.long(m.opts.OwnerSlow, now)
		if silent {
			return StuckOwnerSilent, due
		}
		return "", due
	}
	return "", due
}

func runActions(scope frames.Scope, state frames.RunState, bound bool) (out []string) {
	if state.Terminal() || !scope.Has(frames.ScopeWorkCommand) {
		return nil
	}
	switch state {
	case frames.RunRunning:
		out = append(out, "pause")
	case frames.RunPaused:
		out = append(out, "resume")
	}
	if scope.Has(frames.ScopeTerminalControl) || !bound && state != frames.RunPlanned {
		out = append(out, "cancel")
	}
	return out
}

func runSort(run *Run, state frames.RunState) string {
	switch {
	case run.Stuck != "":
		return "0" + string(stuckRanks[run.Stuck]) + ascending(run.Since) + run.ID
	case state == frames.RunRunning:
		return "1" + ascending(run.Since) + run.ID
	case !state.Terminal():
		return "2" + ascending(run.Since) + run.ID
	}
	return "3" + descending(run.Since) + run.ID
}

func (m *Model) deriveObjective(v *client.View, r *client.Record, before *objectiveEntry, changed stamp) *objectiveEntry {
	var was *Row
	if before != nil {
		was = before.row.row()
	}
	t := m.tallies[r.ID()]
	if t == nil {
		t = &tally{}
	}
	e := &objectiveEntry{record: r}
	p := payload[frames.Objective](r)
	if p == nil {
		e.row = &Objective{Row: head(r, unreadable, was, changed), Runs: t.runs, Stuck: t.stuck, OpenSignals: t.open}
		e.row.Sort = "8" + e.row.ID
		return e
	}
	o := &Objective{Row: head(r, p.State.String(), was, changed), Runs: t.runs, Stuck: t.stuck, OpenSignals: t.open}
	if before != nil && before.record == r {
		o.Title = before.row.Title
	} else {
		o.Title = text.Inert(text.Clip(Title(p.Document), maxTitle))
	}
	if v.Scope.Has(frames.ScopeWorkCommand) {
		switch {
		case p.State != frames.ObjectiveActive:
			o.Actions = []string{"archive"}
		case t.runs.Live() == 0:
			o.Actions = []string{"complete", "cancel"}
		}
	}
	o.Sort = objectiveRank(o, p.State) + text.Clip(o.Title, 64) + " " + o.ID
	e.row = o
	return e
}

func objectiveRank(o *Objective, state frames.ObjectiveState) string {
	switch {
	case o.Stuck > 0:
		return "0"
	case o.OpenSignals > 0:
		return "1"
	case o.Runs.Live() > 0:
		return "2"
	case state == frames.ObjectiveActive:
		return "3"
	}
	return "4"
}

func (m *Model) deriveOperation(r *client.Record, before *Operation, changed stamp, now time.Time) (d derived[Operation]) {
	p := payload[frames.Operation](r)
	if p == nil {
		row := &Operation{Row: head(r, unreadable, rowOf(before), changed)}
		row.Sort = "8" + row.ID
		return derived[Operation]{row: row}
	}
	o := &Operation{Row: head(r, p.Result.State.String(), rowOf(before), changed), Principal: p.Principal.String(), Text: text.Inert(ResultText(p.Result)),
		Sequence: p.Result.Sequence}
	switch p.Result.State {
	case frames.OperationPending:
		var silent bool
		if silent, d.due = o.long(m.opts.OwnerSlow, now); silent {
			o.Stuck = StuckOwnerSilent
		}
		o.Sort = fmt.Sprintf("0%020d%s", o.Sequence, o.ID)
	case frames.OperationIndeterminate:
		o.Stuck = StuckIndeterminate
		o.Sort = "1" + descending(o.Since) + o.ID
	default:
		o.Sort = fmt.Sprintf("2%020d%s", ^uint64(0)-uint64(o.Sequence), o.ID)
	}
	o.StuckText = stuckTexts[o.Stuck]
	if ref, ok := ResultObject(p.Result); ok {
		o.Object = objectOf(ref)
	}
	d.row = o
	return d
}

func objectOf(ref frames.ObjectRef) *Object { return &Object{ref.Kind.String(), ref.ID.String()} }

// ResultObject is what a successful operation made or changed, a run for a START_RUN.
func ResultObject(r frames.OperationResult) (ref frames.ObjectRef, ok bool) {
	if r.State != frames.OperationSucceeded {
		return ref, false
	}
	switch r.Kind {
	case frames.ResultObjectRef:
		return ref, codec.DecodeImage(&ref, r.Payload) == nil
	case frames.ResultStarted:
		var s frames.Started
		ok = codec.DecodeImage(&s, r.Payload) == nil
		return frames.ObjectRef{Kind: frames.KindRun, ID: frames.ObjectID(s.Run)}, ok
	}
	return ref, false
}

// rowOf is the head of a row that may not be there.
func rowOf[P interface {
	*T
	row() *Row
}, T any](p P) *Row {
	if p == nil {
		return nil
	}
	return p.row()
}
