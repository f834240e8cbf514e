package overview

import (
	"encoding/json"
	"fmt"
	"time"

	"coordinator/frames"
)

// A Time is a time of day as JSON shows it: RFC 3339, UTC, milliseconds.
type Time struct{ time.Time }

const timeLayout = "2006-01-02T15:04:05.000Z"

// MarshalJSON implements [json.Marshaler].
func (t Time) MarshalJSON() ([]byte, error) { return json.Marshal(t.UTC().Format(timeLayout)) }

// UnmarshalJSON implements [json.Unmarshaler].
func (t *Time) UnmarshalJSON(b []byte) (err error) {
	var s string
	if err = json.Unmarshal(b, &s); err == nil {
		t.Time, err = time.Parse(timeLayout, s)
	}
	return err
}

// A Row is what every row has.
type Row struct {
	// ID is 32 hex digits.
	ID string `json:"id"`
	// Sort orders the rows of a table: ascending, as a plain string.
	Sort     string                `json:"sort"`
	Revision frames.ObjectRevision `json:"revision,string"`
	State    string                `json:"state"`
	// Since is when the row was seen to enter its state. SinceAtLeast says that it was in it
	// already when it was first looked at, so that it is older than that.
	Since        Time `json:"since"`
	SinceAtLeast bool `json:"since_at_least,omitempty"`
	// Actions are what may be commanded now, with the key that the replica has: those of
	// acknowledge, suppress, complete, cancel, archive, pause and resume.
	Actions []string `json:"actions,omitempty"`
}

func (r *Row) row() *Row { return r }

// A Severity orders signals: the lower, the sooner somebody should look.
type Severity uint8

// The severities: work that stands still, work that failed, a truth that is missing, and
// the rest.
const (
	Critical Severity = iota
	Failure
	Warning
	Note
)

var severityNames = [...]string{"critical", "failure", "warning", "note"}

func (s Severity) String() string { return severityNames[s] }

// MarshalText implements [encoding.TextMarshaler].
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (s *Severity) UnmarshalText(b []byte) error {
	for i, name := range severityNames {
		if name == string(b) {
			*s = Severity(i)
			return nil
		}
	}
	return fmt.Errorf("overview: no such severity")
}

// severityOf ranks the kinds of signals (protocol.md §11 [D-22]).
func severityOf(k frames.SignalKind) Severity {
	switch k {
	case frames.SignalExecutionBlocked:
		return Critical
	case frames.SignalExecutionFailed:
		return Failure
	case frames.SignalEvidenceGap:
		return Warning
	}
	return Note
}

// A Signal is one signal: the open ones first, by severity and then by age.
type Signal struct {
	Row
	Kind     string   `json:"kind"`
	Severity Severity `json:"severity"`
	Open     bool     `json:"open"`
	// Overdue says that it has been open for long.
	Overdue     bool   `json:"overdue,omitempty"`
	Message     string `json:"message"`
	SessionID   string `json:"work_session_id"`
	RunID       string `json:"run_id,omitempty"`
	ObjectiveID string `json:"objective_id,omitempty"`
}

// RunCounts are numbers of runs by state.
type RunCounts struct {
	Planned   int `json:"planned"`
	Running   int `json:"running"`
	Paused    int `json:"paused"`
	Completed int `json:"completed"`
	Cancelled int `json:"cancelled"`
	Failed    int `json:"failed"`
}

func (c *RunCounts) of(s frames.RunState) *int {
	return [...]*int{&c.Planned, &c.Running, &c.Paused, &c.Completed, &c.Cancelled, &c.Failed}[s]
}

// Live is how many have not ended.
func (c RunCounts) Live() int { return c.Planned + c.Running + c.Paused }

// Total is how many there are.
func (c RunCounts) Total() int { return c.Live() + c.Completed + c.Cancelled + c.Failed }

// An Objective is one objective with its runs counted: those with stuck runs first, then
// those with open signals, with live runs, those that are Active, and those that have ended.
type Objective struct {
	Row
	Title       string    `json:"title"`
	Runs        RunCounts `json:"runs"`
	Stuck       int       `json:"stuck"`        // of its runs
	OpenSignals int       `json:"open_signals"` // of its runs
}

// Stuck says why a run or an operation does not go on by itself. Each is what records of the
// protocol say.
type Stuck string

const (
	// StuckStartUnknown is a START_RUN that ended INDETERMINATE: the run stays Planned, with
	// EXECUTION_BLOCKED raised, until a cancel closes it (protocol.md §7.2 [D-24]).
	StuckStartUnknown Stuck = "START_UNKNOWN"
	// StuckBlocked is a live run with an open EXECUTION_BLOCKED: its process waits for somebody.
	StuckBlocked Stuck = "BLOCKED"
	// StuckFailing is a live run with an open EXECUTION_FAILED: its process says that it fails.
	StuckFailing Stuck = "FAILING"
	// StuckOwnerSilent is a run that is Planned, or an operation that is PENDING, for longer
	// than an owner that answers takes.
	StuckOwnerSilent Stuck = "OWNER_SILENT"
	// StuckPaused is a run that is Paused until somebody resumes it.
	StuckPaused Stuck = "PAUSED"
	// StuckIndeterminate is an operation whose outcome nobody knows; it stays so.
	StuckIndeterminate Stuck = "INDETERMINATE"
)

var stuckTexts = map[Stuck]string{
	StuckStartUnknown:  "nobody knows whether its process was started; a cancel closes it",
	StuckBlocked:       "its process waits for somebody",
	StuckFailing:       "its process says that it fails",
	StuckOwnerSilent:   "its owner has not answered yet",
	StuckPaused:        "paused until somebody resumes it",
	StuckIndeterminate: "nobody knows whether it took effect, and it is never tried again",
}

// stuckRanks order stuck runs.
var stuckRanks = map[Stuck]byte{StuckStartUnknown: '0', StuckBlocked: '1', StuckFailing: '2', StuckOwnerSilent: '3', StuckPaused: '4', "": '9'}

// A Run is one run: the stuck ones first, then those that run, those that are planned, and
// those that have ended, the latest first.
type Run struct {
	Row
	ObjectiveID string `json:"objective_id"`
	Attempt     uint32 `json:"attempt"`
	Stuck       Stuck  `json:"stuck,omitempty"`
	StuckText   string `json:"stuck_text,omitempty"`
	// Exit is the exit status in words, empty before there is one; ExitStatus is below zero
	// for a signal and nil where it is not known.
	Exit        string `json:"exit,omitempty"`
	ExitStatus  *int32 `json:"exit_status,omitempty"`
	SessionID   string `json:"work_session_id,omitempty"`
	BindingID   string `json:"binding_id,omitempty"` // the active one, else one that ended
	Bound       bool   `json:"bound"`                // there is an active binding
	EndReason   string `json:"end_reason,omitempty"` // of a binding that ended
	Owner       string `json:"owner,omitempty"`      // its name, where that is known
	OwnerID     string `json:"owner_authority_fingerprint,omitempty"`
	Sealed      bool   `json:"evidence_sealed,omitempty"`
	OpenSignals int    `json:"open_signals"`
	// LastFact is when the last source fact was seen to arrive; nil when none was.
	LastFact *Time `json:"last_fact,omitempty"`
}

// An Operation is one operation: those without an outcome first, oldest first, then those
// whose outcome nobody knows, then the others, the latest first.
type Operation struct {
	Row
	Principal string `json:"principal_key_id"`
	Text      string `json:"text"` // the result in words
	Stuck     Stuck  `json:"stuck,omitempty"`
	StuckText string `json:"stuck_text,omitempty"`
	// Sequence is the event that it was admitted at while PENDING, and completed at later.
	Sequence frames.EventSequence `json:"event_sequence,string,omitempty"`
	// Object is what a successful one made or changed.
	Object *Object `json:"object,omitempty"`
}

// An Activity is one thing that happened: an event, or something about the view itself, whose
// kind is then GAP, HEALED, SNAPSHOT, BEHIND or HISTORY_LOST.
type Activity struct {
	// N numbers what this model was told, from 1.
	N uint64 `json:"-"`
	// Sequence is zero for what is no event.
	Sequence frames.EventSequence  `json:"event_sequence,string"`
	Kind     string                `json:"kind"`
	Object   *Object               `json:"object,omitempty"`
	Revision frames.ObjectRevision `json:"revision,string,omitempty"`
	Text     string                `json:"text"`
	At       Time                  `json:"received_at"`
}

// An Object names an object.
type Object struct {
	Kind string `json:"kind"`
	ID   string `json:"id"`
}

// Tables names the tables of rows as [Gone] does.
const (
	SignalsTable    = "signals"
	ObjectivesTable = "objectives"
	RunsTable       = "runs"
	OperationsTable = "operations"
)

// Gone is a row that is no more.
type Gone struct {
	Table string `json:"table"`
	ID    string `json:"id"`
}

// A Delta is what differs from the refresh before. What it points to never changes.
type Delta struct {
	State      *State       `json:"state,omitempty"` // nil: as before but for the time
	Signals    []*Signal    `json:"signals,omitempty"`
	Objectives []*Objective `json:"objectives,omitempty"`
	Runs       []*Run       `json:"runs,omitempty"`
	Operations []*Operation `json:"operations,omitempty"`
	Gone       []Gone       `json:"gone,omitempty"`
	Activity   []*Activity  `json:"activity,omitempty"` // newest last
}

// Empty reports whether nothing differs.
func (d *Delta) Empty() bool {
	return d.State == nil && len(d.Signals)+len(d.Objectives)+len(d.Runs)+len(d.Operations)+len(d.Gone)+len(d.Activity) == 0
}
