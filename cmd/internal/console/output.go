package console

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"coordinator/client"
	"coordinator/cmd/internal/runs"
	"coordinator/frames"
)

const (
	// maxOutput bounds the output of one answer.
	maxOutput = 64 << 10
	// maxRange bounds what is read beside it so that a digest can be checked. Owners make ranges
	// of 64 KiB at most.
	maxRange = 64 << 10
	// maxVerify and verifyWait bound one verification.
	maxVerify  = 256 << 20
	verifyWait = 30 * time.Second
	outputWait = 20 * time.Second
)

// A rangeVerdict is one admitted digest held against the stored bytes.
type rangeVerdict struct {
	Offset  string `json:"offset"`
	Length  string `json:"length"`
	Verdict string `json:"verdict"`
}

type outputAnswer struct {
	Offset string         `json:"offset"`
	Bytes  []byte         `json:"bytes"`
	Next   string         `json:"next_offset"`
	End    bool           `json:"end"`
	Live   bool           `json:"live"`
	Digest string         `json:"digest"`
	Detail string         `json:"detail"`
	Ranges []rangeVerdict `json:"ranges"`
}

// number reads a number of a query.
func number(r *http.Request, name string, otherwise, most uint64) (uint64, *problem) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n > most {
		return 0, badRequest(fmt.Sprintf("%s is no decimal number up to %d", name, most), "give one")
	}
	return n, nil
}

// maxOffset keeps sums of offsets and sizes in range.
const maxOffset = 1 << 62

// output answers GET /api/run/{id}/output/{stream}.
func (s *Server) output(w http.ResponseWriter, r *http.Request) (any, *problem) {
	ctx, cancel := s.within(w, r, outputWait)
	defer cancel()
	offset, p := number(r, "offset", 0, maxOffset)
	if p != nil {
		return nil, p
	}
	limit, p := number(r, "limit", maxOutput, maxOutput)
	if p != nil {
		return nil, p
	}
	if limit == 0 {
		return nil, badRequest("limit is 0", "leave it out, or ask for something")
	}
	f, v, p := s.family(r)
	if p != nil {
		return nil, p
	}
	b, p := streamOf(r, f)
	if p != nil {
		return nil, p
	}
	t, leave, p := s.told(ctx, f, v)
	if p != nil {
		return nil, p
	}
	defer leave()
	return s.piece(ctx, b, t.ledgers[b.Binding.BindingID].Ranges, offset, limit)
}

// piece reads a piece of the output and the rest of the ranges that it lies in.
func (s *Server) piece(ctx context.Context, b frames.Binding, ranges []client.OutputRange, offset, limit uint64) (any, *problem) {
	var within []client.OutputRange
	from, to := offset, offset+limit // bytes before them
	for _, r := range ranges {
		if r.Last <= offset || r.First > offset+limit {
			continue
		}
		within = append(within, r)
		if r.Last-r.First < maxRange {
			from, to = min(from, r.First-1), max(to, r.Last)
		}
	}
	var raw []byte
	err := runs.ReadOutput(ctx, s.opts.Context, s.opts.Key, b, "coordctl console", from, to-from, func(p []byte) error {
		raw = append(raw, p...)
		return nil
	})
	if err != nil {
		return nil, s.ownerProblem(err)
	}
	stored := from + uint64(len(raw)) // bytes known to be stored, from the first on
	out := outputAnswer{Offset: decimal(offset), Bytes: []byte{}, Next: decimal(offset), End: stored < to && stored <= offset+limit, Live: b.State == frames.StateActive, Ranges: []rangeVerdict{}}
	if stored > offset {
		end := min(stored, offset+limit)
		out.Bytes, out.Next = raw[offset-from:end-from], decimal(end)
	}
	out.judge(raw, from, within, offset)
	return out, nil
}

// judge checks the ranges that have bytes in the answer.
func (o *outputAnswer) judge(raw []byte, from uint64, ranges []client.OutputRange, offset uint64) {
	end := offset + uint64(len(o.Bytes))
	stored := from + uint64(len(raw))
	covered, worst := offset, runs.Agrees // covered: bytes up to there lie in ranges
	for _, r := range ranges {
		if r.First > end {
			break
		}
		verdict := runs.Unchecked
		if r.Last-r.First < maxRange && r.Last <= stored && r.First > from {
			verdict = runs.Differs
			if sha256.Sum256(raw[r.First-1-from:r.Last-from]) == r.SHA256 {
				verdict = runs.Agrees
			}
		}
		o.Ranges = append(o.Ranges, rangeVerdict{decimal(r.First - 1), decimal(r.Last - r.First + 1), verdict})
		worst = worse(worst, verdict)
		if r.First-1 <= covered {
			covered = max(covered, r.Last)
		}
	}
	switch {
	case len(o.Bytes) == 0:
		o.Digest, o.Detail = worst, "nothing is stored here"
	case worst == runs.Differs:
		o.Digest, o.Detail = worst, "what the owner stored is not what the coordinator admitted a digest of"
	case covered < end:
		o.Digest, o.Detail = runs.Unchecked, fmt.Sprintf("%s behind byte %d are not covered by an admitted fact that is left", runs.Plural(end-covered, "byte"), covered)
	case worst == runs.Unchecked:
		o.Digest, o.Detail = worst, "not all bytes of the admitted digests are stored"
	default:
		o.Digest, o.Detail = worst, fmt.Sprintf("all of it agrees with %s", runs.Plural(len(o.Ranges), "admitted digest"))
	}
}

func worse(a, b string) string {
	for _, v := range []string{runs.Differs, runs.Unchecked} {
		if a == v || b == v {
			return v
		}
	}
	return runs.Agrees
}

type verifyAnswer struct {
	Verified bool           `json:"verified"`
	Bytes    string         `json:"bytes"`
	Agreed   string         `json:"agreed_bytes"`
	Digests  int            `json:"agreed_digests"`
	Differ   []rangeVerdict `json:"differ"`
	Findings []runs.Finding `json:"findings"`
}

// nothing is a writer that keeps nothing.
type nothing struct{}

func (nothing) Write(b []byte) (int, error) { return len(b), nil }

// verify answers POST /api/run/{id}/output/{stream}/verify: all of the output, and the evidence.
func (s *Server) verify(w http.ResponseWriter, r *http.Request) (any, *problem) {
	var none struct{}
	if p := readBody(r, &none); p != nil {
		return nil, p
	}
	ctx, cancel := s.within(w, r, verifyWait)
	defer cancel()
	f, v, p := s.family(r)
	if p != nil {
		return nil, p
	}
	b, p := streamOf(r, f)
	if p != nil {
		return nil, p
	}
	t, leave, p := s.told(ctx, f, v)
	if p != nil {
		return nil, p
	}
	defer leave()
	l := t.ledgers[b.Binding.BindingID]
	check := l.Check(nothing{})
	err := runs.ReadOutput(ctx, s.opts.Context, s.opts.Key, b, "coordctl console", 0, maxVerify, func(p []byte) error {
		_, err := check.Write(p)
		return err
	})
	findings := t.findings(b)
	switch {
	case err != nil:
		findings = append(findings, runs.Finding{What: "output", Verdict: runs.Unchecked, Detail: s.ownerProblem(err).Message})
	case check.Read == maxVerify && len(check.Differ) == 0:
		findings = append(findings, runs.Finding{What: "output", Verdict: runs.Unchecked,
			Detail: fmt.Sprintf("only its first %d bytes were read here: coordctl evidence verify reads all of it", maxVerify)})
	default:
		findings = append(findings, runs.JudgeOutput(l, t.after, check))
	}
	out := verifyAnswer{Verified: true, Bytes: decimal(check.Read), Agreed: decimal(check.Agreed), Digests: check.Ranges, Differ: []rangeVerdict{}, Findings: findings}
	for _, g := range findings {
		out.Verified = out.Verified && g.Verdict == runs.Agrees
	}
	for _, d := range check.Differ {
		out.Differ = append(out.Differ, rangeVerdict{decimal(d.First - 1), decimal(d.Last - d.First + 1), runs.Differs})
	}
	return out, nil
}
