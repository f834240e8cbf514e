package overview

import (
	"encoding/json"
	"fmt"

	"coordinator/client"
	"coordinator/cmd/internal/runs"
	"coordinator/codec"
	"coordinator/frames"
)

// Title is the "title" member of an objective's document, empty when it has none. Whoever
// made the objective chose it: it is not inert.
func Title(document []byte) string {
	var d struct {
		Title string `json:"title"`
	}
	if json.Unmarshal(document, &d) != nil {
		return ""
	}
	return d.Title
}

// EventText words any event in one line, in words that are not inert yet.
func EventText(e *client.Event) (string, error) {
	r, carries, err := e.Record()
	switch {
	case err != nil:
		return "", err
	case carries:
		p, err := r.DecodePayload()
		if err != nil {
			return "", fmt.Errorf("event %d: %w", e.Sequence, err)
		}
		switch p := p.(type) {
		case *frames.Objective:
			return fmt.Sprintf("objective is %v: %s", p.State, Title(p.Document)), nil
		case *frames.Operation:
			return "operation is " + ResultText(p.Result), nil
		}
		return runs.RecordText(&r, p), nil
	case e.Kind == frames.EventObjectRemoved:
		return "removed: its objective was archived", nil
	}
	return runs.FactText(e)
}

// ResultText words the result of an operation: its state, and why where there is a why. It
// is not inert.
func ResultText(r frames.OperationResult) string {
	switch r.State {
	case frames.OperationRejected:
		return fmt.Sprintf("%v %v: %s", r.State, r.Code, r.Message)
	case frames.OperationIndeterminate:
		return fmt.Sprintf("%v %v", r.State, r.Reason)
	case frames.OperationTombstoned:
		return fmt.Sprintf("%v: it was %v", r.State, r.Final)
	}
	return r.State.String()
}

// closedOf is how a run's process ended; only its CLOSED fact says (protocol.md §11 [D-22]).
func closedOf(r *frames.Run) (closed frames.Closed, ok bool) {
	return closed, r.Outcome != nil && codec.DecodeImage(&closed, r.Outcome) == nil
}
