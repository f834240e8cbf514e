package report

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"

	"coordinator/bench/internal/measure"
)

// Write writes the table of targets, what went wrong, how the parts went, and every figure.
func Write(w io.Writer, r *measure.Results) error {
	b := bufio.NewWriter(w)
	writeTargets(b, r)
	writeNotes(b, r)
	writeMachine(b, r)
	writeParts(b, r)
	writeFigures(b, r)
	return b.Flush()
}

// measured reports whether anything was measured that a line is about.
func (t *target) measured(r *measure.Results) bool {
	_, ok := t.own(r)
	return ok
}

func writeTargets(w io.Writer, r *measure.Results) {
	lines := targets()
	if !slices.ContainsFunc(lines, func(t target) bool { return t.measured(r) }) {
		return
	}
	fmt.Fprintln(w, "| # | what | own | against | result | must | | aim | |")
	fmt.Fprintln(w, "|---|---|---:|---:|---:|---:|---|---:|---|")
	failed := slices.ContainsFunc(r.Parts, func(p measure.PartInfo) bool { return p.Err != "" })
	for _, t := range lines {
		own, against, got, ok := t.result(r)
		if !t.measured(r) {
			if !failed {
				continue // it was not asked for
			}
			own = none
		}
		result := "not measured"
		if ok {
			result = number(got) + t.suffix()
		}
		fmt.Fprintf(w, "| %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", t.row, t.what, t.amount(own), t.amount(against), result,
			t.bound(t.must), word(t.judge(got, ok, t.must)), t.bound(t.aim), word(t.judge(got, ok, t.aim)))
	}
}

// suffix is what stands behind a bound's number.
func (t *target) suffix() string {
	if t.asFactor == "" || t.asFactor == "×" {
		return t.asFactor
	}
	return " " + t.asFactor
}

func (t *target) bound(b float64) string {
	switch {
	case math.IsNaN(b):
		return ""
	case t.atMost:
		return "≤ " + trim(b) + t.suffix()
	}
	return "≥ " + trim(b) + t.suffix()
}

// amount is a figure with its unit.
func (t *target) amount(v float64) string {
	if math.IsNaN(v) {
		return ""
	}
	return strings.TrimSpace(number(v) + " " + t.unit)
}

func word(v verdict) string {
	return [...]string{noBound: "", unmeasured: "?", missed: "**no**", reached: "yes"}[v]
}

// writeNotes tells what the figures do not: quotas that were raised, and what failed.
func writeNotes(w io.Writer, r *measure.Results) {
	var lines []string
	for _, row := range r.Rows {
		if row.Note != "" {
			lines = append(lines, fmt.Sprintf("* `%s`: %s", row.Name, row.Note))
		}
	}
	for _, p := range r.Parts {
		if p.Err != "" {
			lines = append(lines, fmt.Sprintf("* **%s failed**: %s", p.Name, oneLine(p.Err)))
		}
	}
	if r.Scale != 1 && r.Scale != 0 {
		lines = append(lines, fmt.Sprintf("* windows and amounts of state were scaled by %g: this is no full run", r.Scale))
	}
	if len(lines) > 0 {
		fmt.Fprintf(w, "\n%s\n", strings.Join(lines, "\n"))
	}
}

func oneLine(s string) string {
	first, _, _ := strings.Cut(s, "\n")
	return first
}

func writeMachine(w io.Writer, r *measure.Results) {
	var words []string
	for _, m := range []map[string]string{r.Machine, r.Modules} {
		for _, k := range slices.Sorted(maps.Keys(m)) {
			words = append(words, k+" "+m[k])
		}
	}
	fmt.Fprintf(w, "\n%s; %.0f s; %s.\n", r.Date, r.Seconds, strings.Join(words, ", "))
}

func writeParts(w io.Writer, r *measure.Results) {
	fmt.Fprintln(w, "\n| part | s | steal % | SHA-256 GB/s before | fdatasync/s before |")
	fmt.Fprintln(w, "|---|---:|---:|---:|---:|")
	for _, p := range r.Parts {
		name := p.Name
		if p.Rerun {
			name += " (second run)"
		}
		fmt.Fprintf(w, "| %s | %.1f | %.1f | %.2f | %.0f |\n", name, p.Seconds, p.StealPct, p.SHA256GBs, p.FsyncPerS)
	}
}

func writeFigures(w io.Writer, r *measure.Results) {
	part := ""
	for _, row := range r.Rows {
		if row.Part != part {
			part = row.Part
			fmt.Fprintf(w, "\n### %s\n\n| figure | unit | median | least | most | of |\n|---|---|---:|---:|---:|---:|\n", part)
		}
		fmt.Fprintf(w, "| %s | %s | %s | %s | %s | %d |\n", row.Name, row.Unit, number(row.Median), number(row.Min), number(row.Max), len(row.Values))
	}
}

// number writes three figures that count.
func number(v float64) string {
	switch a := math.Abs(v); {
	case a >= 1e6:
		return fmt.Sprintf("%.2fM", v/1e6)
	case a >= 1e5:
		return fmt.Sprintf("%.0fk", v/1e3)
	case a >= 100:
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// trim writes a bound as short as it can be.
func trim(v float64) string { return fmt.Sprintf("%g", v) }
