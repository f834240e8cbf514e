package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"coordinator/client"
	"coordinator/codec"
	"coordinator/frames"
)

// timeline reads what happened to a run from the event log, one line an event, and says what
// of it retention has removed. Events bear no time of day: their order is the log's.
func (a *app) timeline(ctx context.Context, f *family) (lines []object, after frames.EventCut, err error) {
	members := &family{id: f.id, members: map[frames.ObjectRef]frames.ObjectRevision{}}
	for ref := range f.members {
		members.members[ref] = 0
	}
	after, err = a.history(ctx, f, func(e *client.Event, r *frames.SnapshotRecord) error {
		text := ""
		if r == nil {
			if _, mine := members.members[e.Object]; !mine {
				return nil
			}
			if text, err = factText(e); err != nil {
				return err
			}
		} else {
			p, err := r.DecodePayload()
			if err != nil {
				return fmt.Errorf("event %d: %w", e.Sequence, err)
			}
			if _, mine := members.members[e.Object]; !mine && !members.has(e.Object, p) {
				return nil
			}
			members.members[e.Object] = 0
			text = recordText(r, p)
		}
		lines = append(lines, object{{"event_sequence", e.Sequence}, {"event_kind", e.Kind.String()}, {"object", refObject(e.Object)}, {"text", text}})
		return nil
	})
	return lines, after, err
}

// recordText words what an event made of a record.
func recordText(r *frames.SnapshotRecord, p codec.Message) string {
	switch p := p.(type) {
	case *frames.Run:
		text := fmt.Sprintf("run is %v", p.State)
		var closed frames.Closed
		if p.Outcome != nil && codec.DecodeImage(&closed, p.Outcome) == nil {
			text += ", exit status " + statusWord(closed.Known, closed.Status)
		}
		return text
	case *frames.WorkSession:
		return fmt.Sprintf("session is %v", p.State)
	case *frames.Binding:
		text := fmt.Sprintf("process is bound to owner %s…, resource %d", p.Binding.Owner.String()[:len("sha256:")+12], p.Binding.Resource.ID)
		if p.Reason != nil {
			text = fmt.Sprintf("binding ended: %v", *p.Reason)
		}
		return text
	case *frames.Signal:
		return fmt.Sprintf("signal %s is %v: %s", signalName(p.Kind), p.State, p.Message)
	case *frames.Artifact:
		return fmt.Sprintf("artifact at revision %d", p.LatestRevision)
	case *frames.ArtifactManifest:
		return fmt.Sprintf("manifest of artifact %v, revision %d, %s", p.ArtifactID, p.Revision, plural(len(p.Manifest), "byte"))
	case *frames.Evidence:
		return "evidence is sealed: " + short(p.Seal)
	case *frames.Operation:
		text := fmt.Sprintf("operation %v is %v", r.ID, p.Result.State)
		switch p.Result.State {
		case frames.OperationRejected:
			text += fmt.Sprintf(" %v: %s", p.Result.Code, p.Result.Message)
		case frames.OperationIndeterminate:
			text += " " + p.Result.Reason.String()
		}
		return text
	}
	return r.Kind.String()
}

// factText words a source fact or a gap.
func factText(e *client.Event) (string, error) {
	_, detail, err := factObject(e)
	if err != nil || e.Kind != frames.EventSourceFactAdmitted {
		return detail, err
	}
	var f frames.TerminalSourceFact
	if err := codec.DecodeImage(&f, e.Payload); err != nil {
		return "", fmt.Errorf("event %d: %w", e.Sequence, err)
	}
	p, err := f.DecodePayload()
	if err != nil {
		return "", fmt.Errorf("event %d: %w", e.Sequence, err)
	}
	switch p := p.(type) {
	case *frames.Closed:
		detail += ": exit status " + statusWord(p.Known, p.Status)
	case *frames.OutputRange:
		detail += fmt.Sprintf(": bytes %d to %d, sha256 %s", p.First, p.Last, short(p.Content))
	case *frames.Attention:
		detail += ": " + []string{"", "Bell", "Blocked", "Failed"}[p.Kind] // the codec knows no other
	}
	return detail, nil
}

// writeTimeline prints it for a person.
func writeTimeline(w io.Writer, lines []object, after frames.EventCut) error {
	fmt.Fprintln(w, "timeline")
	if after > 0 {
		fmt.Fprintf(w, "  retention has removed the events up to %d\n", after)
	}
	for _, l := range lines {
		kind := strings.ToLower(strings.ReplaceAll(l[1].value.(string), "_", " "))
		if _, err := fmt.Fprintf(w, "  %-8v %-24s %s\n", l[0].value, kind, printable(l[3].value.(string))); err != nil {
			return err
		}
	}
	return nil
}
