package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"coordinator/client"
	"coordinator/cmd/internal/runs"
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
		Example: `  coordctl evidence verify 2d88da09
  coordctl evidence verify 2d88da09 --no-output -o json`,
		Args: exactArgs("RUN"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.verifyEvidence(cmd.Context(), args[0], !noOutput)
		},
	}
	verify.Flags().BoolVar(&noOutput, "no-output", false, "do not read the output from the owner")
	return group("evidence", "Check what a run left as proof", `Check what a run left as proof of what its process did.`, verify)
}

// errNotProved is the end of a verification that did not agree in everything.
var errNotProved = errors.New("the evidence does not prove this run; see what the report says")

func (a *app) verifyEvidence(parent context.Context, text string, output bool) error {
	ctx, cancel := context.WithTimeoutCause(parent, a.timeout, errTimeout)
	defer cancel()
	f, err := a.loadFamily(ctx, text)
	if err != nil {
		return err
	}
	b, err := f.Binding()
	if err != nil {
		return err
	}
	if b.State == frames.StateActive {
		return &client.RefusedError{Code: frames.CodeNotFound, Message: fmt.Sprintf("run %v is %v: its evidence is sealed when its process has ended", f.ID, f.Run.State)}
	}
	l, after, err := a.ledger(ctx, f, b.Binding.BindingID)
	if err != nil {
		return err
	}
	findings := f.Compare(b, l, after)
	if output {
		findings = append(findings, a.compareOutput(ctx, b, l, after))
	}
	return a.showFindings(f, b, l, findings)
}

// compareOutput reads the output and holds it against the admitted digests.
func (a *app) compareOutput(ctx context.Context, b frames.Binding, l *client.Ledger, after frames.EventCut) runs.Finding {
	check := l.Check(io.Discard)
	report, total := a.bar().Begin("reading the output", ""), int64(l.OutputBytes())
	defer a.bar().End()
	err := a.readOutput(ctx, b, func(data []byte) error {
		_, err := check.Write(data)
		report(int64(check.Read), total)
		return err
	})
	if err != nil {
		return runs.Finding{What: "output", Verdict: runs.Unchecked, Detail: a.explain(err).what}
	}
	return runs.JudgeOutput(l, after, check)
}

// showFindings prints the report. Anything but full agreement is an error.
func (a *app) showFindings(f *runs.Family, b frames.Binding, l *client.Ledger, findings []runs.Finding) error {
	proved := true
	var rows []object
	for _, g := range findings {
		proved = proved && g.Verdict == runs.Agrees
		rows = append(rows, object{{"what", g.What}, {"verdict", g.Verdict}, {"detail", g.Detail}})
	}
	var err error
	if a.structured() {
		seal := l.Seal()
		err = a.emit(object{{"run_id", f.ID.String()}, {"state", f.Run.State.String()}, {"binding_id", b.Binding.BindingID.String()},
			{"fact_count", l.Facts}, {"seal_sha256", hex.EncodeToString(seal[:])}, {"verified", proved}, {"findings", rows}})
	} else {
		paint := a.paint(a.stdout)
		fmt.Fprintf(a.stdout, "run %v  %s\n", f.ID, paint.State(f.Run.State.String()))
		for _, g := range findings {
			fmt.Fprintf(a.stdout, "  %-12s  %s  %s\n", g.What, paint.State(fmt.Sprintf("%-11s", g.Verdict)), printable(g.Detail))
		}
		if proved {
			_, err = fmt.Fprintln(a.stdout, paint.Good("verified: everything agrees"))
		}
	}
	if err == nil && !proved {
		err = errNotProved
	}
	return err
}
