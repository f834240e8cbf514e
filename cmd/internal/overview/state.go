package overview

import (
	"fmt"
	"time"

	"coordinator/client"
	"coordinator/frames"
	"coordinator/internal/text"
)

// A Gap is what keeps the view from being current.
type Gap struct {
	// Reason is the coordinator's, or DISCONNECTED.
	Reason   string               `json:"reason"`
	Message  string               `json:"message"`
	Last     frames.EventCut      `json:"last_event,string"`
	Observed frames.EventSequence `json:"observed_event,string,omitempty"`
	// Attempt counts the failed attempts to connect again.
	Attempt int `json:"attempt,omitempty"`
}

// Authority is whose word the view is.
type Authority struct {
	CoordinatorID string                    `json:"coordinator_id"`
	Epoch         frames.AuthorityEpoch     `json:"epoch,string"`
	Activation    frames.ActivationSequence `json:"activation,string"`
	Incarnation   string                    `json:"incarnation_id"`
}

// AsOf is where in the history of the coordinator a view stands.
type AsOf struct {
	Sequence frames.EventCut       `json:"event_sequence,string"`
	Epoch    frames.AuthorityEpoch `json:"epoch,string"`
}

// Counts are the numbers of rows.
type Counts struct {
	Signals       int `json:"signals"`
	OpenSignals   int `json:"open_signals"`
	Objectives    int `json:"objectives"`
	Runs          int `json:"runs"`
	LiveRuns      int `json:"live_runs"`
	StuckRuns     int `json:"stuck_runs"`
	Operations    int `json:"operations"`
	Pending       int `json:"pending_operations"`
	Indeterminate int `json:"indeterminate_operations"`
}

// A State says whether to believe the rows.
type State struct {
	// Phase is the replica's: Connecting, Syncing, Current, Stale, LostHistory, and the final
	// ones Quarantined, Revoked, Full, Failed and Closed.
	Phase string `json:"phase"`
	// Stale says that something may have happened that the rows do not show. It is false only
	// where the phase is Current.
	Stale       bool   `json:"stale"`
	StaleReason string `json:"stale_reason,omitempty"`
	// Final says that nothing will change any more; Summary says why.
	Final bool `json:"final,omitempty"`
	// Summary is all of this in one line.
	Summary     string     `json:"summary"`
	Since       Time       `json:"since"`
	LastContact *Time      `json:"last_contact,omitempty"`
	Gap         *Gap       `json:"gap,omitempty"`
	HistoryLost string     `json:"lost_history,omitempty"`
	Authority   *Authority `json:"authority,omitempty"` // nil before the first view
	AsOf        AsOf       `json:"as_of"`
	Counts      Counts     `json:"counts"`
	ServerTime  Time       `json:"server_time"`
}

// same reports whether o says the same but for the times that go on by themselves.
func (s *State) same(o *State) bool {
	if o == nil || (s.Gap == nil) != (o.Gap == nil) || s.Gap != nil && *s.Gap != *o.Gap || (s.Authority == nil) != (o.Authority == nil) ||
		s.Authority != nil && *s.Authority != *o.Authority {
		return false
	}
	a, b := *s, *o
	for _, x := range []*State{&a, &b} {
		x.Gap, x.Authority, x.LastContact, x.ServerTime = nil, nil, nil, Time{}
	}
	return a == b
}

// stateOf condenses how the replica stands. v is nil before the first view.
func (m *Model) stateOf(v *client.View, s *client.ReplicaState, now time.Time) *State {
	out := &State{Phase: s.Phase.String(), Stale: s.Phase != client.ReplicaCurrent, StaleReason: s.Reason.String(), Final: s.Phase.Final(),
		Since: Time{s.Since}, ServerTime: Time{now}, Counts: m.counts}
	if !s.LastContact.IsZero() {
		out.LastContact = &Time{s.LastContact}
	}
	if s.Gap != nil {
		out.Gap = m.gapOf(s.Gap)
	}
	if s.Lost != nil {
		out.HistoryLost = s.Lost.Error()
	}
	if v != nil {
		out.Authority = &Authority{CoordinatorID: v.Guard.CoordinatorID.String(), Epoch: v.Guard.Epoch, Activation: v.Guard.Activation,
			Incarnation: v.Incarnation.String()}
		out.AsOf = AsOf{v.Cut, v.Guard.Epoch}
		if !out.Stale && !v.Current { // it expired between the two looks
			out.Stale, out.Phase, out.StaleReason = true, client.ReplicaStale.String(), client.StaleBehind.String()
		}
	}
	out.Summary = text.Inert(m.stateText(v, s, out))
	return out
}

func (m *Model) gapOf(g *client.Gap) *Gap {
	out := &Gap{Reason: g.Reason.String(), Message: text.Inert(g.String()), Last: g.Last, Observed: g.Observed, Attempt: g.Attempt}
	if g.Cause != nil {
		out.Reason, out.Message = "DISCONNECTED", text.Inert(m.opts.Explain(g.Cause))
	}
	return out
}

// stateText words whether to believe the screen.
func (m *Model) stateText(v *client.View, s *client.ReplicaState, out *State) string {
	switch {
	case s.Phase.Final() && s.Err != nil:
		return fmt.Sprintf("%v: %s", s.Phase, m.opts.Explain(s.Err))
	case v == nil && out.Gap != nil:
		return fmt.Sprintf("%v: %s; nothing is known yet", s.Phase, out.Gap.Message)
	case v == nil:
		return fmt.Sprintf("%v: nothing is known yet", s.Phase)
	case !out.Stale:
		return fmt.Sprintf("current: everything up to event %d", v.Cut)
	case s.Phase == client.ReplicaLostHistory:
		return fmt.Sprintf("HISTORY LOST: what is shown is not in the coordinator's history; a snapshot is under way: %v", s.Lost)
	case out.StaleReason == client.StaleBehind.String():
		return fmt.Sprintf("catching up: shown as of event %d, more is known to have happened", v.Cut)
	case s.Reason == client.StaleAuthority:
		return fmt.Sprintf("STALE: another authority is being verified; shown as of event %d", v.Cut)
	case out.Gap != nil:
		return fmt.Sprintf("STALE: %s; shown as of event %d, what happened since is not known", out.Gap.Message, v.Cut)
	}
	return fmt.Sprintf("%v: shown as of event %d", s.Phase, v.Cut)
}
