package console

import (
	"fmt"
	"time"

	"coordinator/client"
	"coordinator/frames"
)

// An event is one line of the activity, the EVENT of doc.go.
type event struct {
	Sequence string  `json:"event_sequence"`
	Kind     string  `json:"kind"`
	Object   *object `json:"object,omitempty"`
	Revision string  `json:"revision,omitempty"`
	Text     string  `json:"text"`
	Received string  `json:"received_at"`
}

type object struct {
	Kind string `json:"kind"`
	ID   string `json:"id"`
}

func objectOf(ref frames.ObjectRef) *object { return &object{ref.Kind.String(), ref.ID.String()} }

// entry is the line of a notice; a state that says nothing new to people has none.
func entry(n client.Notice, now time.Time) (event, bool) {
	e := event{Received: stamp(now)}
	switch n := n.(type) {
	case *client.Change:
		e.Sequence, e.Kind, e.Object, e.Revision = decimal(n.Event.Sequence), n.Event.Kind.String(), objectOf(n.Event.Object), decimal(n.Event.Revision)
		if n.New != nil {
			state, text := words(n.New)
			e.Text = fmt.Sprintf("%s %s", state, text)
		}
	case *client.Reread:
		switch n.Reason {
		case client.RereadFirst:
			return e, false
		case client.RereadSnapshot:
			e.Kind, e.Text = "SNAPSHOT", fmt.Sprintf("a snapshot took the place of the view, as of event %d", n.View.Cut)
		case client.RereadMissed:
			e.Kind, e.Text = "BEHIND", fmt.Sprintf("%d changes came faster than they were shown; the tables hold what they left behind, as of event %d", n.Missed, n.View.Cut)
		}
	case *client.ReplicaState:
		switch {
		case n.Phase == client.ReplicaLostHistory:
			e.Kind, e.Text = "HISTORY_LOST", n.Lost.Error()
		case n.Phase == client.ReplicaStale && n.Gap != nil && n.Gap.Attempt <= 1:
			e.Kind, e.Text = "GAP", n.Gap.String()
		case n.Phase == client.ReplicaCurrent && n.Healed != nil:
			e.Kind, e.Text = "HEALED", fmt.Sprintf("nothing is missing after event %d", n.Healed.Last)
		default:
			return e, false
		}
	}
	return e, true
}
