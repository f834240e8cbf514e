package mcp

import (
	"context"
	"errors"
	"fmt"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"coordinator/client"
	"coordinator/frames"
)

const (
	// defaultWait and maxWait bound a wait, in seconds. Agents' hosts give up on calls of about
	// a minute unless progress keeps them waiting.
	defaultWait = 45
	maxWait     = 600
	// progressEvery is how often a wait tells that it goes on.
	progressEvery = 5 * time.Second
)

func (s *Server) addWaits() {
	add(s, spec{name: "wait_run", title: "Wait for a run", about: "Wait until a run has ended, has started, or asks for attention, at most timeout_seconds, telling progress. Where it is not met in time, that is no error: call again. Ending or cancelling the wait does nothing to the run." + isData,
		enums: map[string][]any{"until": {"ended", "started", "signal"}}}, s.waitRun)
	add(s, spec{name: "wait_signal", title: "Wait for a signal", about: "Wait until there is an open signal, of one run or of any, at most timeout_seconds, telling progress. Signals listed in known_signal_ids do not count, so that only new ones end the wait." + isData}, s.waitSignal)
}

type waitRunIn struct {
	RunID   string   `json:"run_id"`
	Until   string   `json:"until,omitempty" jsonschema:"ended (the default), started (its process runs, or it has ended), or signal (it has an open signal, or has ended)"`
	Timeout *float64 `json:"timeout_seconds,omitempty" jsonschema:"how long to wait at most; 0 looks once"`
}

type waitRunOut struct {
	Freshness     Freshness `json:"freshness"`
	Run           runRow    `json:"run"`
	Met           bool      `json:"met" jsonschema:"what was waited for has come"`
	WaitedSeconds float64   `json:"waited_seconds"`
	OpenSignals   []string  `json:"open_signal_ids" jsonschema:"of the run; list_signals shows them"`
	Next          string    `json:"next"`
}

func (s *Server) waitRun(ctx context.Context, req *sdk.CallToolRequest, in waitRunIn) (waitRunOut, error) {
	var out waitRunOut
	rid, err := id[frames.RunID]("run_id", in.RunID)
	if err != nil {
		return out, err
	}
	v, _, err := s.view(ctx)
	if err != nil {
		return out, err
	}
	if v.Run(rid) == nil {
		return out, notFound(frames.KindRun, rid)
	}
	met := func(v *client.View) bool { return runMet(v, rid, in.Until) }
	look := func(v *client.View) string {
		if run := v.Run(rid); run != nil {
			return fmt.Sprintf("run %v is %v, %d open signals", rid, run.State, len(openSignals(v, rid)))
		}
		return fmt.Sprintf("run %v is not in the records any more", rid)
	}
	w, err := s.wait(ctx, req, in.Timeout, met, look)
	if err != nil {
		return out, err
	}
	r := w.view.Get(frames.KindRun, frames.ObjectID(rid))
	run := w.view.Run(rid)
	if r == nil || run == nil {
		return out, notFound(frames.KindRun, rid)
	}
	out = waitRunOut{Freshness: s.freshness(w.view), Met: w.met, WaitedSeconds: w.seconds, OpenSignals: openSignals(w.view, rid)}
	out.Run, _ = rowOf(w.view, r)
	switch {
	case !w.met:
		out.Next = "it goes on: call wait_run again, or read_output to see how far it is"
	case run.State.Terminal():
		out.Next = "read_output shows its output, verify_evidence proves it"
	default:
		out.Next = "go on as you planned"
	}
	if len(out.OpenSignals) > maxPerRun {
		out.OpenSignals = out.OpenSignals[:maxPerRun]
	}
	return out, nil
}

// runMet reports whether a run is where a wait wants it. A run has ended once its processes
// have: its evidence is sealed by then.
func runMet(v *client.View, rid frames.RunID, until string) bool {
	run := v.Run(rid)
	if run == nil {
		return true // it was archived, or its history is gone; the caller is told
	}
	switch {
	case until == "started" && run.State != frames.RunPlanned:
		return true
	case until == "signal" && len(openSignals(v, rid)) > 0:
		return true
	case !run.State.Terminal():
		return false
	}
	for session := range v.SessionsOf(rid) {
		for r := range v.BindingsOf(frames.WorkSessionID(session.ID())) {
			if b := v.Binding(frames.BindingID(r.ID())); b != nil && b.State != frames.StateEnded {
				return false
			}
		}
	}
	return true
}

type waitSignalIn struct {
	RunID   string   `json:"run_id,omitempty" jsonschema:"only signals of this run"`
	Known   []string `json:"known_signal_ids,omitempty" jsonschema:"signals that do not end the wait"`
	Timeout *float64 `json:"timeout_seconds,omitempty" jsonschema:"how long to wait at most; 0 looks once"`
}

type waitSignalOut struct {
	Freshness     Freshness   `json:"freshness"`
	Signals       []signalRow `json:"signals" jsonschema:"the open signals that are not known yet"`
	Cut           bool        `json:"cut,omitempty" jsonschema:"there are more: list_signals shows them"`
	Met           bool        `json:"met" jsonschema:"there is such a signal"`
	WaitedSeconds float64     `json:"waited_seconds"`
}

func (s *Server) waitSignal(ctx context.Context, req *sdk.CallToolRequest, in waitSignalIn) (waitSignalOut, error) {
	var out waitSignalOut
	if in.RunID != "" {
		rid, err := id[frames.RunID]("run_id", in.RunID)
		if err != nil {
			return out, err
		}
		in.RunID = rid.String()
	}
	if len(in.Known) > maxLimit {
		return out, badArgument("known_signal_ids has %d elements; at most %d", len(in.Known), maxLimit)
	}
	known := map[frames.SignalID]bool{}
	for _, text := range in.Known {
		sid, err := id[frames.SignalID]("known_signal_ids", text)
		if err != nil {
			return out, err
		}
		known[sid] = true
	}
	fresh := func(v *client.View, visit func(signalRow) bool) {
		for r := range v.OpenSignals() {
			row := signalOf(v, r)
			if !known[frames.SignalID(r.ID())] && (in.RunID == "" || row.RunID == in.RunID) && !visit(row) {
				return
			}
		}
	}
	met := func(v *client.View) (found bool) {
		fresh(v, func(signalRow) bool { found = true; return false })
		return found
	}
	w, err := s.wait(ctx, req, in.Timeout, met, func(*client.View) string { return "no open signal yet" })
	if err != nil {
		return out, err
	}
	p := newPage[signalRow](defaultBytes-restBytes, defaultLimit)
	fresh(w.view, p.add)
	return waitSignalOut{Freshness: s.freshness(w.view), Signals: p.items, Cut: p.cut, Met: w.met, WaitedSeconds: w.seconds}, nil
}

// A waited is how a wait ended: with the view that met it, or the last one.
type waited struct {
	view    *client.View
	met     bool
	seconds float64
}

// errProgress ends a step of a wait, so that progress is told.
var errProgress = errors.New("time to tell progress")

// wait waits for a view that met is true of, for as long as asked. Progress is told when what
// look says changes, and in between.
func (s *Server) wait(parent context.Context, req *sdk.CallToolRequest, asked *float64, met func(*client.View) bool, look func(*client.View) string) (waited, error) {
	limit := defaultWait * time.Second
	if asked != nil {
		limit = time.Duration(min(max(*asked, 0), maxWait) * float64(time.Second))
	}
	begin := time.Now()
	ctx, cancel := context.WithDeadlineCause(parent, begin.Add(limit), errTimeout)
	defer cancel()
	stop := context.AfterFunc(s.drained, cancel) // the agent has gone
	defer stop()
	last := ""
	for {
		told := last
		step, done := context.WithTimeoutCause(ctx, progressEvery, errProgress)
		v, err := s.replica.WaitFor(step, func(v *client.View) bool { return met(v) || look(v) != told })
		done()
		elapsed := time.Since(begin).Seconds()
		switch {
		case err == nil && met(v):
			return waited{v, true, elapsed}, nil
		case parent.Err() != nil:
			return waited{}, context.Cause(parent)
		case ctx.Err() != nil:
			if v = s.replica.View(); v == nil {
				return waited{}, s.unavailable(errNotCurrent)
			}
			return waited{v, v.Current && met(v), elapsed}, nil
		case err != nil && !errors.Is(err, errProgress):
			return waited{}, err // the replica has ended
		case err == nil:
			last = look(v)
		}
		message := last
		if err != nil && !s.replica.State().Phase.Final() && !s.current() {
			message = "the coordinator cannot be reached just now; waiting goes on"
		}
		s.progress(parent, req, elapsed, limit.Seconds(), message)
	}
}

func (s *Server) current() bool {
	v := s.replica.View()
	return v != nil && v.Current
}

// progress tells whoever asked for it how long a wait has lasted.
func (s *Server) progress(ctx context.Context, req *sdk.CallToolRequest, elapsed, limit float64, message string) {
	token := req.Params.GetProgressToken()
	if token == nil {
		return
	}
	err := req.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ProgressToken: token, Progress: elapsed, Total: limit, Message: message})
	if err != nil && ctx.Err() == nil {
		s.opts.Logger.Warn("progress could not be told", "error", err)
	}
}
