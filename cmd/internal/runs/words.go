package runs

import (
	"encoding/hex"
	"fmt"
	"strings"

	"coordinator/client"
	"coordinator/codec"
	"coordinator/frames"
)

// RecordText words what an event made of a record.
func RecordText(r *frames.SnapshotRecord, p codec.Message) string {
	switch p := p.(type) {
	case *frames.Run:
		text := fmt.Sprintf("run is %v", p.State)
		var closed frames.Closed
		if p.Outcome != nil && codec.DecodeImage(&closed, p.Outcome) == nil {
			text += ", exit status " + StatusWord(closed.Known, closed.Status)
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
		return fmt.Sprintf("signal %s is %v: %s", SignalName(p.Kind), p.State, p.Message)
	case *frames.Artifact:
		return fmt.Sprintf("artifact at revision %d", p.LatestRevision)
	case *frames.ArtifactManifest:
		return fmt.Sprintf("manifest of artifact %v, revision %d, %s", p.ArtifactID, p.Revision, Plural(len(p.Manifest), "byte"))
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

// FactText words a source fact or a gap.
func FactText(e *client.Event) (string, error) {
	detail, err := FactDetail(e)
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
		detail += ": exit status " + StatusWord(p.Known, p.Status)
	case *frames.OutputRange:
		detail += fmt.Sprintf(": bytes %d to %d, sha256 %s", p.First, p.Last, short(p.Content))
	case *frames.Attention:
		detail += ": " + []string{"", "Bell", "Blocked", "Failed"}[p.Kind] // the codec knows no other
	}
	return detail, nil
}

// FactDetail names a source fact or a gap in short; empty for an event of another kind.
func FactDetail(e *client.Event) (string, error) {
	switch e.Kind {
	case frames.EventSourceFactAdmitted:
		var f frames.TerminalSourceFact
		if err := codec.DecodeImage(&f, e.Payload); err != nil {
			return "", fmt.Errorf("event %d: %w", e.Sequence, err)
		}
		return fmt.Sprintf("fact %d %s", f.Source.Sequence, FactName(f.Kind)), nil
	case frames.EventSourceGap:
		var g frames.SourceGap
		if err := codec.DecodeImage(&g, e.Payload); err != nil {
			return "", fmt.Errorf("event %d: %w", e.Sequence, err)
		}
		return fmt.Sprintf("%s: expected %d, observed %d", GapReason(g.Reason), g.Expected, g.Observed), nil
	}
	return "", nil
}

// GapReason names why a source gap was recorded.
func GapReason(r frames.SourceGapReason) string {
	return []string{"Jump", "Conflict", "Ended"}[r] // the codec knows no other
}

// FactName is the protocol's name of a kind of source fact.
func FactName(k frames.SourceFactKind) string {
	names := []string{"", "OPENED", "CLOSED", "INPUT_RESULT", "SIGNAL_RESULT", "OUTPUT_RANGE", "ATTENTION"}
	if k > 0 && int(k) < len(names) {
		return names[k]
	}
	return fmt.Sprintf("FACT_%d", k)
}

// SignalName is the protocol's name of a kind of signal.
func SignalName(k frames.SignalKind) string {
	names := []string{"", "EXECUTION_BLOCKED", "EXECUTION_FAILED", "EVIDENCE_GAP", "POLICY"}
	if k > 0 && int(k) < len(names) {
		return names[k]
	}
	return fmt.Sprintf("SIGNAL_%d", k)
}

// StatusWord is an exit status in words.
func StatusWord(known bool, status int32) string {
	switch {
	case !known:
		return "not known"
	case status < 0:
		return fmt.Sprintf("signal %d", -status)
	}
	return fmt.Sprint(status)
}

// Plural is "1 thing" or "2 things".
func Plural[N ~int | ~uint64](n N, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %s", n, strings.TrimSuffix(thing, "y")+map[bool]string{true: "ies", false: "s"}[strings.HasSuffix(thing, "y")])
}

func short(sum [32]byte) string { return hex.EncodeToString(sum[:8]) + "…" }
