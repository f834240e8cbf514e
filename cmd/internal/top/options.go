package top

import (
	"context"
	"io"
	"os"
	"time"

	tea "charm.land/bubbletea/v2"

	"coordinator/client"
	"coordinator/cmd/internal/overview"
	"coordinator/frames"
)

// Options are what a screen shows and what it may do.
type Options struct {
	// Name is what the coordinator is called.
	Name string
	// Replica is followed; the caller closes it.
	Replica *client.Replica
	Follow  overview.FollowOptions
	// Input and Output are the terminal. Environ is what says how to use it; nil is the
	// process's own.
	Input   *os.File
	Output  io.Writer
	Environ []string
	// Act sends a command and waits for its answer. It must end soon after ctx does.
	Act func(ctx context.Context, a Action) Outcome
	// Details reads what the view does not hold of a run. It must end soon after ctx does.
	Details func(ctx context.Context, v *client.View, id frames.RunID) Details
	// NewOperation draws an OperationId.
	NewOperation func() (frames.OperationID, error)
	// DetailsTimeout bounds one call of Details. Zero means 20 s.
	DetailsTimeout time.Duration

	extra []tea.ProgramOption // of tests
}

// An Action is one command on one object.
type Action struct {
	// Verb is acknowledge, suppress, cancel, pause or resume.
	Verb string
	Kind frames.ObjectKind
	ID   frames.ObjectID
	// Operation is what it is sent under. An action that is Again was sent under it before: it
	// runs once, however often it is sent.
	Operation frames.OperationID
	Again     bool
}

// An Outcome is what became of an action, in words.
type Outcome struct {
	// Lines say what came of it and what to do next.
	Lines []string
	// Failed says that it did not succeed; Unsettled that nobody knows yet, so that the same
	// action may be sent again.
	Failed, Unsettled bool
}

// Details is what is read of a run beside the view.
type Details struct {
	// AsOf is the view that they were read for.
	AsOf frames.EventCut
	// Timeline is the event log of the run, oldest first; Removed the events that retention
	// has removed go up to.
	Timeline []string
	Removed  frames.EventCut
	Facts    uint64 // source facts that were admitted, as far as the log has them
	// Output is the end of what its process wrote.
	Output []string
	// TimelineErr and OutputErr say in words why either is not there; empty: it is.
	TimelineErr, OutputErr string
}
