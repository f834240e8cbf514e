package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"coordinator/client"
	"coordinator/codec"
	"coordinator/frames"
)

func (a *app) evidenceCommand() *cobra.Command {
	var noOutput bool
	verify := &cobra.Command{
		Use:   "verify RUN",
		Short: "Recompute a run's seal from the event log and compare all that depends on it",
		Long: `Read the admitted facts of a run's process from the event log, recompute the seal over them,
and compare it with the EVIDENCE record and its manifest; compare the manifest's fact count,
output bytes and exit status with the facts, and the run's outcome with both; read the output
from the owner and compare it with the admitted digests. Output of which less is stored than
the facts cover, as behind the owner's size cap, is not checked.

Exit code 0 says that everything agrees; 1 that something differs, is missing or cannot be
checked, which the report names.`,
		Args: exactArgs("RUN"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.verifyEvidence(cmd.Context(), args[0], !noOutput)
		},
	}
	verify.Flags().BoolVar(&noOutput, "no-output", false, "do not read the output from the owner")
	return group("evidence", "Check what a run left as proof", verify)
}

// errNotProved is the end of a verification that did not agree in everything.
var errNotProved = errors.New("the evidence does not prove this run; see what the report says")

// A finding is one comparison of a verification.
type finding struct{ what, verdict, detail string }

const (
	agrees    = "agrees"
	differs   = "DIFFERS"
	unchecked = "not checked"
)

func (a *app) verifyEvidence(parent context.Context, text string, output bool) error {
	ctx, cancel := context.WithTimeoutCause(parent, a.timeout, errTimeout)
	defer cancel()
	f, err := a.loadFamily(ctx, text)
	if err != nil {
		return err
	}
	b, err := f.binding()
	if err != nil {
		return err
	}
	if b.State == frames.StateActive {
		return &client.RefusedError{Code: frames.CodeNotFound, Message: fmt.Sprintf("run %v is %v: its evidence is sealed when its process has ended", f.id, f.run.State)}
	}
	l, after, err := a.ledger(ctx, f, b.Binding.BindingID)
	if err != nil {
		return err
	}
	findings := compareEvidence(f, b, l, after)
	if output {
		findings = append(findings, a.compareOutput(ctx, b, l, after))
	}
	return a.showFindings(f, b, l, findings)
}

// compareEvidence holds the records of a run against the facts in the event log.
func compareEvidence(f *family, b frames.Binding, l *client.Ledger, after frames.EventCut) (out []finding) {
	say := func(what string, ok bool, format string, args ...any) {
		verdict := differs
		if ok {
			verdict = agrees
		}
		out = append(out, finding{what, verdict, fmt.Sprintf(format, args...)})
	}
	switch {
	case after > 0 && !l.Whole():
		left := "none of its facts is left"
		if l.Facts > 0 {
			left = fmt.Sprintf("facts %d to %d are left", l.First, l.Last)
		}
		out = append(out, finding{"facts", unchecked, fmt.Sprintf("retention has removed the events up to %d; %s", after, left)})
	default:
		say("facts", l.Whole() && l.Gaps == 0, "%d in the event log, sequence %d to %d, %s", l.Facts, l.First, l.Last, plural(l.Gaps, "gap"))
	}
	evidence, sealed := f.evidence[b.Binding.BindingID]
	if !sealed {
		return append(out, finding{"seal", differs, "there is no EVIDENCE record: the binding ended with a gap or without CLOSED, or this key may not see it"})
	}
	seal := l.Seal()
	if l.Whole() {
		say("seal", seal == evidence.Seal, "recomputed %s, EVIDENCE %s", short(seal), short(evidence.Seal))
	} else {
		out = append(out, finding{"seal", unchecked, "not all of its facts are there"})
	}
	var m frames.EvidenceManifest
	artifact, ok := f.manifest[evidence.ArtifactID]
	if !ok || codec.Decode(&m, artifact.Manifest) != nil {
		return append(out, finding{"manifest", differs, "there is no readable manifest of artifact " + evidence.ArtifactID.String()})
	}
	say("manifest", m.Seal == evidence.Seal && m.BindingID == b.Binding.BindingID, "seal %s of binding %v", short(m.Seal), m.BindingID)
	if evidence.WorkSessionID != b.Binding.WorkSessionID {
		say("session", false, "EVIDENCE %v, binding %v", evidence.WorkSessionID, b.Binding.WorkSessionID)
	}
	if l.Whole() {
		say("fact count", m.FactCount == l.Facts, "manifest %d, event log %d", m.FactCount, l.Facts)
		say("output bytes", m.OutputBytes == l.OutputBytes(), "manifest %d, event log %d", m.OutputBytes, l.OutputBytes())
	}
	return append(out, compareStatus(f, l, m, after > 0 && !l.Closed))
}

// compareStatus compares the three places that tell the exit status. removed says that
// retention has removed the one in the event log.
func compareStatus(f *family, l *client.Ledger, m frames.EvidenceManifest, removed bool) finding {
	var closed frames.Closed
	known := f.run.Outcome != nil && codec.DecodeImage(&closed, f.run.Outcome) == nil
	fromRun, fromManifest, fromLog := "none", statusWord(m.ExitStatus != nil, deref(m.ExitStatus)), "none"
	if known {
		fromRun = statusWord(closed.Known, closed.Status)
	}
	if l.Closed {
		fromLog = statusWord(l.HasStatus, l.Status)
	}
	verdict := differs
	switch {
	case fromRun != fromManifest:
	case removed:
		verdict, fromLog = unchecked, "removed by retention"
	case fromLog == fromRun:
		verdict = agrees
	}
	return finding{"exit status", verdict, fmt.Sprintf("run %s, manifest %s, event log %s", fromRun, fromManifest, fromLog)}
}

func deref(v *int32) int32 {
	if v == nil {
		return 0
	}
	return *v
}

// statusWord is an exit status in words.
func statusWord(known bool, status int32) string {
	switch {
	case !known:
		return "not known"
	case status < 0:
		return fmt.Sprintf("signal %d", -status)
	}
	return fmt.Sprint(status)
}

func short(sum [32]byte) string { return hex.EncodeToString(sum[:8]) + "…" }

// compareOutput reads the output and holds it against the admitted digests.
func (a *app) compareOutput(ctx context.Context, b frames.Binding, l *client.Ledger, after frames.EventCut) finding {
	check := l.Check(io.Discard)
	err := a.readOutput(ctx, b, func(data []byte) error {
		_, err := check.Write(data)
		return err
	})
	if err != nil {
		return finding{"output", unchecked, a.explain(err).what}
	}
	return judgeOutput(l, after, check)
}

// judgeOutput is what a check of the output came to.
func judgeOutput(l *client.Ledger, after frames.EventCut, check *client.OutputCheck) finding {
	var text bytes.Buffer
	for i, line := range outputLines(l, after, check) {
		if i > 0 {
			text.WriteString("; ")
		}
		text.WriteString(line.text)
	}
	verdict := agrees
	switch {
	case len(check.Differ) > 0 || after == 0 && check.Read > l.OutputBytes():
		verdict = differs
	case after > 0 && !l.Whole(), check.Read < l.OutputBytes(): // nobody can tell a cap from a file that lost its end
		verdict = unchecked
	}
	return finding{"output", verdict, text.String()}
}

// showFindings prints the report. Anything but full agreement is an error.
func (a *app) showFindings(f *family, b frames.Binding, l *client.Ledger, findings []finding) error {
	proved := true
	var rows []object
	for _, g := range findings {
		proved = proved && g.verdict == agrees
		rows = append(rows, object{{"what", g.what}, {"verdict", g.verdict}, {"detail", g.detail}})
	}
	var err error
	if a.json() {
		seal := l.Seal()
		err = writeJSON(a.stdout, object{{"run_id", f.id.String()}, {"state", f.run.State.String()}, {"binding_id", b.Binding.BindingID.String()},
			{"fact_count", l.Facts}, {"seal_sha256", hex.EncodeToString(seal[:])}, {"verified", proved}, {"findings", rows}})
	} else {
		fmt.Fprintf(a.stdout, "run %v  %v\n", f.id, f.run.State)
		for _, g := range findings {
			fmt.Fprintf(a.stdout, "  %-12s  %-11s  %s\n", g.what, g.verdict, printable(g.detail))
		}
		if proved {
			_, err = fmt.Fprintln(a.stdout, "verified: everything agrees")
		}
	}
	if err == nil && !proved {
		err = errNotProved
	}
	return err
}
