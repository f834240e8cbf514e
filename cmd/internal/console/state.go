package console

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"coordinator/client"
	"coordinator/frames"
	"coordinator/handshake"
)

// decimal is a number as JSON has it here.
func decimal[N ~uint16 | ~uint32 | ~uint64](n N) string { return strconv.FormatUint(uint64(n), 10) }

// stamp is a time as JSON has it here; nothing for none.
func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02T15:04:05.000Z07:00")
}

// keyID names a key.
func keyID(k handshake.Signer) string { return handshake.KeyIDOf(k.Public()).String() }

// scopeNames spells a scope as the registry does.
func scopeNames(s frames.Scope) []string {
	text := handshake.EndpointScopes().Format(uint64(s))
	if text == "" {
		return []string{}
	}
	return strings.Split(text, ",")
}

// status is the STATE of doc.go.
type status struct {
	Phase       string    `json:"phase"`
	Stale       bool      `json:"stale"`
	StaleReason string    `json:"stale_reason"`
	StaleSince  string    `json:"stale_since,omitempty"`
	Summary     string    `json:"summary"`
	Gap         *gap      `json:"gap,omitempty"`
	Healed      *healed   `json:"healed,omitempty"`
	LostHistory string    `json:"lost_history,omitempty"`
	Error       string    `json:"error,omitempty"`
	Authority   authority `json:"authority"`
	AsOf        asOf      `json:"as_of"`
	LastContact string    `json:"last_contact,omitempty"`
	ServerTime  string    `json:"server_time"`
	Scope       []string  `json:"scope"`
	Records     int       `json:"records"`
}

type gap struct {
	Reason   string `json:"reason"`
	Last     string `json:"last_event"`
	Observed string `json:"observed_event,omitempty"`
	Attempt  int    `json:"attempt,omitempty"`
	Message  string `json:"message"`
}

type healed struct {
	By    string `json:"by"`
	After string `json:"after_event"`
}

type authority struct {
	Epoch       string `json:"epoch"`
	Activation  string `json:"activation"`
	Incarnation string `json:"incarnation_id"`
}

type asOf struct {
	Sequence string `json:"event_sequence"`
	Epoch    string `json:"epoch"`
}

// stateJSON is the STATE of a replica whose view is v.
func (l *live) stateJSON(s client.ReplicaState, v *client.View) json.RawMessage {
	out := status{
		Phase: s.Phase.String(), Stale: s.Phase != client.ReplicaCurrent, StaleReason: s.Reason.String(), Summary: fmt.Sprint(s),
		Authority: authority{decimal(s.Guard.Epoch), decimal(s.Guard.Activation), ""},
		AsOf:      asOf{decimal(s.Cut), decimal(s.Guard.Epoch)}, LastContact: stamp(s.LastContact), ServerTime: stamp(l.clock.Now().Wall), Scope: []string{},
	}
	if out.Stale {
		out.StaleSince = stamp(s.Since)
	}
	if s.Gap != nil {
		out.Gap = gapOf(s.Gap)
	}
	if s.Healed != nil {
		out.Healed = &healed{"RESUME", decimal(s.Healed.Last)}
		if s.Healed.Replayed {
			out.Healed.By = "REPLAY"
		}
	}
	if s.Lost != nil {
		out.LostHistory = s.Lost.Error()
	}
	if s.Err != nil {
		out.Error = s.Err.Error()
	}
	if v != nil {
		out.Authority.Incarnation = v.Incarnation.String()
		out.Scope, out.Records = scopeNames(v.Scope), v.Len()
	}
	return encode(out)
}

func gapOf(g *client.Gap) *gap {
	out := &gap{Reason: "DISCONNECTED", Last: decimal(g.Last), Attempt: g.Attempt, Message: g.String()}
	if g.Cause == nil {
		out.Reason = g.Reason.String()
		if g.Observed != 0 {
			out.Observed = decimal(g.Observed)
		}
	}
	return out
}
