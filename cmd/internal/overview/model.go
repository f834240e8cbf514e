package overview

import (
	"time"

	"coordinator/client"
	"coordinator/frames"
	"coordinator/internal/text"
)

// Options say what a model holds and when it calls something slow.
type Options struct {
	// Activity bounds the things that happened which are kept. Zero means 1,000.
	Activity int
	// OwnerSlow is how long a run may be Planned, and an operation PENDING, before that is
	// stuck. Zero means 15 s.
	OwnerSlow time.Duration
	// SignalLong is how long a signal may be open before it is overdue. Zero means 10 min.
	SignalLong time.Duration
	// Owners are the names that are known of process owners.
	Owners map[frames.Fingerprint]string
	// Explain words why there is no connection. Nil gives the error's own text.
	Explain func(error) string
}

func (o *Options) defaults() {
	if o.Activity <= 0 {
		o.Activity = 1000
	}
	if o.OwnerSlow <= 0 {
		o.OwnerSlow = 15 * time.Second
	}
	if o.SignalLong <= 0 {
		o.SignalLong = 10 * time.Minute
	}
	if o.Explain == nil {
		o.Explain = func(err error) string { return err.Error() }
	}
}

// A Model is the rows of one replica. Take every notice of a feed with [Model.Notice], then
// bring the rows up to date with [Model.Refresh], which costs what has changed; [Follow] does
// both. One goroutine at a time may use it; the rows it gives may be kept and shared.
type Model struct {
	opts       Options
	signals    *table[Signal]
	objectives *table[Objective]
	entries    map[frames.ObjectID]*objectiveEntry
	runs       *table[Run]
	operations *table[Operation]
	tallies    map[frames.ObjectID]*tally // of objectives
	counts     Counts

	view   *client.View // of the last refresh
	state  *State
	reread bool // all of the next view must be looked at
	late   bool // what is told may have happened long before
	dirty  map[frames.ObjectRef]mark
	due    map[frames.ObjectRef]time.Time // when to look again though nothing changed
	next   time.Time                      // no due is before it; zero: none
	facts  map[frames.BindingID]time.Time // arrived since the last refresh

	ring    []*Activity // newest last
	told    uint64      // activities so far
	fresh   int         // of them since the last refresh
	gap     *client.Gap
	healed  *client.Healed
	lost    *client.LostHistory
	current bool // the last state told was current
}

// A mark says that the row of an object must be looked at.
type mark struct {
	stamp
	through frames.EventSequence // a view below it does not hold all of it
}

// A tally is what an objective's runs come to.
type tally struct {
	runs        RunCounts
	stuck, open int
}

// An objectiveEntry remembers which record a row's title came from.
type objectiveEntry struct {
	row    *Objective
	record *client.Record
}

// New makes a model without rows.
func New(opts Options) *Model {
	opts.defaults()
	return &Model{opts: opts, signals: newTable((*Signal).row), objectives: newTable((*Objective).row), runs: newTable((*Run).row),
		operations: newTable((*Operation).row), entries: map[frames.ObjectID]*objectiveEntry{}, tallies: map[frames.ObjectID]*tally{}, reread: true, late: true,
		dirty: map[frames.ObjectRef]mark{}, due: map[frames.ObjectRef]time.Time{}, facts: map[frames.BindingID]time.Time{}}
}

// Signals, and its like, give the first rows of a table in order, at most limit; zero is all.
func (m *Model) Signals(limit int) []*Signal { return m.signals.list(limit) }

// Objectives is like Signals.
func (m *Model) Objectives(limit int) []*Objective { return m.objectives.list(limit) }

// Runs is like Signals.
func (m *Model) Runs(limit int) []*Run { return m.runs.list(limit) }

// Operations is like Signals.
func (m *Model) Operations(limit int) []*Operation { return m.operations.list(limit) }

// Signal is one row, nil when it is not there.
func (m *Model) Signal(id frames.SignalID) *Signal { return m.signals.rows[frames.ObjectID(id)] }

// Objective is one row, nil when it is not there.
func (m *Model) Objective(id frames.ObjectiveID) *Objective {
	return m.objectives.rows[frames.ObjectID(id)]
}

// Run is one row, nil when it is not there.
func (m *Model) Run(id frames.RunID) *Run { return m.runs.rows[frames.ObjectID(id)] }

// Operation is one row, nil when it is not there.
func (m *Model) Operation(id frames.OperationID) *Operation {
	return m.operations.rows[frames.ObjectID(id)]
}

// Activity gives what happened last, newest last.
func (m *Model) Activity() []*Activity { return append([]*Activity(nil), m.ring...) }

// State is how the view stood at the last refresh, nil before the first.
func (m *Model) State() *State { return m.state }

// View is the view of the last refresh, nil before there is one.
func (m *Model) View() *client.View { return m.view }

// Notice takes what a feed tells. now is when it was told.
func (m *Model) Notice(n client.Notice, now time.Time) {
	switch n := n.(type) {
	case *client.Change:
		m.change(n, now)
	case *client.Reread:
		m.reread, m.late = true, true
		clear(m.dirty)
		m.stateNotice(&n.State, now)
		switch n.Reason {
		case client.RereadSnapshot:
			m.happened(now, "SNAPSHOT", "a snapshot took the place of the view; what happened meanwhile is not told one by one")
		case client.RereadMissed:
			m.happened(now, "BEHIND", "more happened than could be shown one by one")
		}
	case *client.ReplicaState:
		m.stateNotice(n, now)
	}
}

func (m *Model) stateNotice(s *client.ReplicaState, now time.Time) {
	m.current = s.Phase == client.ReplicaCurrent
	if s.Gap != nil {
		m.late = true
	}
	if s.Lost != nil && s.Lost != m.lost {
		m.happened(now, "HISTORY_LOST", s.Lost.Error())
	}
	m.lost = s.Lost
	switch {
	case s.Gap != nil && (m.gap == nil || m.gap.Cause == nil && m.gap != s.Gap):
		m.happened(now, "GAP", m.gapOf(s.Gap).Message)
	case s.Healed != nil && s.Healed != m.healed && m.view != nil:
		text := "the coordinator goes on from there; nothing is missing"
		if s.Healed.Replayed {
			text = "the log was replayed; nothing is missing"
		}
		m.happened(now, "HEALED", text)
	}
	m.gap, m.healed = s.Gap, s.Healed
}

// happened keeps one thing about the view itself.
func (m *Model) happened(now time.Time, kind, what string) {
	m.keep(&Activity{At: Time{now}, Kind: kind, Text: text.Inert(what)})
}

func (m *Model) keep(a *Activity) {
	m.told++
	a.N = m.told
	m.fresh = min(m.fresh+1, m.opts.Activity)
	if len(m.ring) == m.opts.Activity {
		copy(m.ring, m.ring[1:])
		m.ring[len(m.ring)-1] = a
		return
	}
	m.ring = append(m.ring, a)
}

// change marks the rows that an event concerns.
func (m *Model) change(c *client.Change, now time.Time) {
	e := c.Event
	what, err := EventText(e)
	if err != nil {
		what = err.Error()
	}
	m.keep(&Activity{At: Time{now}, Sequence: e.Sequence, Kind: e.Kind.String(), Object: objectOf(e.Object), Revision: e.Revision,
		Text: text.Inert(what)})
	m.mark(e.Object, mark{stamp{now, m.late}, e.Sequence})
	for _, r := range []*client.Record{c.Old, c.New} {
		m.touch(r, e.Sequence, now)
	}
	if e.Kind == frames.EventSourceFactAdmitted && !m.late {
		m.facts[frames.BindingID(e.Object.ID)] = now
	}
}

// mark marks the row of a changed object.
func (m *Model) mark(ref frames.ObjectRef, k mark) {
	k.through = max(k.through, m.dirty[ref].through)
	m.dirty[ref] = k
}

// touch marks what a record belongs to: a session stands for the run that it belongs to.
func (m *Model) touch(r *client.Record, through frames.EventSequence, now time.Time) {
	if r == nil {
		return
	}
	parent, ok := r.Parent()
	if !ok {
		return
	}
	k, have := m.dirty[parent]
	if !have {
		k.stamp = stamp{now, m.late}
	}
	k.through = max(k.through, through)
	m.dirty[parent] = k
}
