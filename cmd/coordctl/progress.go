package main

import (
	"coordinator/client"
	"coordinator/cmd/internal/progress"
)

// bar is the line that shows how far something has come. Whoever makes it appear takes it away
// again, with End, before anything else is written.
func (a *app) bar() *progress.Bar {
	if a.progress == nil {
		a.progress = progress.New(a.stderr, progress.Options{Clock: a.clock, Off: a.structured()})
	}
	return a.progress
}

// stages are what people are shown of a client's stages, and what is counted.
var stages = map[client.Stage]struct{ what, unit string }{
	client.StageSnapshot: {"taking a snapshot", "records"},
	client.StageSave:     {"writing the snapshot", ""},
	client.StageVerify:   {"checking the snapshot", ""},
	client.StageHistory:  {"reading the event log", "events"},
}

// tell shows how far a client's stage has come.
func (a *app) tell(p client.Progress) {
	s := stages[p.Stage]
	a.bar().Tell(s.what, s.unit, int64(p.Done), int64(p.Total))
}
