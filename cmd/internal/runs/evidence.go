package runs

import (
	"fmt"
	"strings"

	"coordinator/client"
	"coordinator/codec"
	"coordinator/frames"
)

// A Finding is one comparison of a verification.
type Finding struct {
	What    string `json:"what"`
	Verdict string `json:"verdict"` // Agrees, Differs or Unchecked
	Detail  string `json:"detail"`
}

// Verdicts of a [Finding].
const (
	Agrees    = "agrees"
	Differs   = "DIFFERS"
	Unchecked = "not checked"
)

// Compare holds the records of a run against the facts in the event log.
func (f *Family) Compare(b frames.Binding, l *client.Ledger, after frames.EventCut) (out []Finding) {
	say := func(what string, ok bool, format string, args ...any) {
		verdict := Differs
		if ok {
			verdict = Agrees
		}
		out = append(out, Finding{what, verdict, fmt.Sprintf(format, args...)})
	}
	switch {
	case after > 0 && !l.Whole():
		left := "none of its facts is left"
		if l.Facts > 0 {
			left = fmt.Sprintf("facts %d to %d are left", l.First, l.Last)
		}
		out = append(out, Finding{"facts", Unchecked, fmt.Sprintf("retention has removed the events up to %d; %s", after, left)})
	default:
		say("facts", l.Whole() && l.Gaps == 0, "%d in the event log, sequence %d to %d, %s", l.Facts, l.First, l.Last, Plural(l.Gaps, "gap"))
	}
	evidence, sealed := f.Evidence[b.Binding.BindingID]
	if !sealed {
		return append(out, Finding{"seal", Differs, "there is no EVIDENCE record: the binding ended with a gap or without CLOSED, or this key may not see it"})
	}
	seal := l.Seal()
	if l.Whole() {
		say("seal", seal == evidence.Seal, "recomputed %s, EVIDENCE %s", short(seal), short(evidence.Seal))
	} else {
		out = append(out, Finding{"seal", Unchecked, "not all of its facts are there"})
	}
	var m frames.EvidenceManifest
	artifact, ok := f.Manifest[evidence.ArtifactID]
	if !ok || codec.Decode(&m, artifact.Manifest) != nil {
		return append(out, Finding{"manifest", Differs, "there is no readable manifest of artifact " + evidence.ArtifactID.String()})
	}
	say("manifest", m.Seal == evidence.Seal && m.BindingID == b.Binding.BindingID, "seal %s of binding %v", short(m.Seal), m.BindingID)
	if evidence.WorkSessionID != b.Binding.WorkSessionID {
		say("session", false, "EVIDENCE %v, binding %v", evidence.WorkSessionID, b.Binding.WorkSessionID)
	}
	if l.Whole() {
		say("fact count", m.FactCount == l.Facts, "manifest %d, event log %d", m.FactCount, l.Facts)
		say("output bytes", m.OutputBytes == l.OutputBytes(), "manifest %d, event log %d", m.OutputBytes, l.OutputBytes())
	}
	return append(out, f.compareStatus(l, m, after > 0 && !l.Closed))
}

// compareStatus compares the three places that tell the exit status. removed says that
// retention has removed the one in the event log.
func (f *Family) compareStatus(l *client.Ledger, m frames.EvidenceManifest, removed bool) Finding {
	var closed frames.Closed
	known := f.Run.Outcome != nil && codec.DecodeImage(&closed, f.Run.Outcome) == nil
	fromRun, fromManifest, fromLog := "none", StatusWord(m.ExitStatus != nil, deref(m.ExitStatus)), "none"
	if known {
		fromRun = StatusWord(closed.Known, closed.Status)
	}
	if l.Closed {
		fromLog = StatusWord(l.HasStatus, l.Status)
	}
	verdict := Differs
	switch {
	case fromRun != fromManifest:
	case removed:
		verdict, fromLog = Unchecked, "removed by retention"
	case fromLog == fromRun:
		verdict = Agrees
	}
	return Finding{"exit status", verdict, fmt.Sprintf("run %s, manifest %s, event log %s", fromRun, fromManifest, fromLog)}
}

func deref(v *int32) int32 {
	if v == nil {
		return 0
	}
	return *v
}

// JudgeOutput is what a check of all the output came to.
func JudgeOutput(l *client.Ledger, after frames.EventCut, check *client.OutputCheck) Finding {
	var lines []string
	for _, line := range OutputLines(l, after, check) {
		lines = append(lines, line.Text)
	}
	verdict := Agrees
	switch {
	case len(check.Differ) > 0 || after == 0 && check.Read > l.OutputBytes():
		verdict = Differs
	case after > 0 && !l.Whole(), check.Read < l.OutputBytes(): // nobody can tell a cap from a file that lost its end
		verdict = Unchecked
	}
	return Finding{"output", verdict, strings.Join(lines, "; ")}
}

// NotStored words that an owner has less than the facts cover.
func NotStored(covered, stored uint64) string {
	return fmt.Sprintf("%s of output behind byte %d are covered by facts and not stored: the owner's size cap kept them away, or they were lost",
		Plural(covered-stored, "byte"), stored)
}

// An OutputLine is one finding about output; Bad says that something is missing or wrong.
type OutputLine struct {
	Text string
	Bad  bool
}

// OutputLines words what is known of the output after it was read to its stored end.
func OutputLines(l *client.Ledger, after frames.EventCut, check *client.OutputCheck) (out []OutputLine) {
	say := func(bad bool, format string, args ...any) {
		out = append(out, OutputLine{fmt.Sprintf(format, args...), bad})
	}
	for _, r := range check.Differ {
		say(true, "bytes %d to %d DIFFER from their admitted digest", r.First, r.Last)
	}
	var first, last uint64
	if n := len(l.Ranges); n > 0 {
		first, last = l.Ranges[0].First, l.Ranges[n-1].Last
	}
	missing := uint64(0)
	if after > 0 {
		if missing = check.Read; first > 0 {
			missing = min(missing, first-1)
		}
	}
	if missing > 0 {
		say(true, "retention has removed the events up to %d, and with them facts: %s cannot be checked", after, Plural(missing, "byte"))
	}
	if last > check.Read {
		say(true, "%s", NotStored(last, check.Read))
	}
	if check.Read > last && after == 0 {
		say(!l.Closed && l.Facts == 0, "%s not covered by an admitted fact yet", Plural(check.Read-last, "byte"))
	}
	switch {
	case check.Read == 0 && last == 0:
		say(false, "no output")
	default:
		say(false, "%s of %d agree with %s", Plural(check.Agreed, "byte"), check.Read, Plural(check.Ranges, "admitted digest"))
	}
	return out
}
