package work

import (
	"fmt"
	"math"

	"coordinator/codec"
	"coordinator/frames"
)

// A Verdict is what became of one fact (protocol.md §11).
type Verdict uint8

const (
	// FactRefused: nothing changed. Its binding is not active or not this owner's, or the
	// sequence is older than what is retained.
	FactRefused Verdict = iota
	// FactAdmitted: it was the next one, and is in the event log.
	FactAdmitted
	// FactDuplicate: the very same fact was admitted before.
	FactDuplicate
	// FactJumped: admitted behind a gap, which leaves the evidence incomplete.
	FactJumped
	// FactConflicted: another fact was admitted at its sequence; the binding has ended.
	FactConflicted
)

func (v Verdict) String() string {
	return [...]string{"refused", "admitted", "duplicate", "jumped", "conflicted"}[v]
}

// AdmitFacts decides facts of one binding in their order, each on what those before it left.
// from is the owner whose link they came over. Whatever the verdict, the owner may forget
// them once the outcome is durable [D-45].
func AdmitFacts(v View, from frames.Fingerprint, facts []*frames.TerminalSourceFact, env Env) (Outcome, []Verdict, error) {
	t := newTxn(v, env)
	verdicts := make([]Verdict, len(facts))
	for i, f := range facts {
		var err error
		if verdicts[i], err = t.fact(from, f); err == nil {
			err = t.endAll()
		}
		if err != nil {
			return Outcome{}, nil, err
		}
	}
	return t.outcome(), verdicts, nil
}

// fact is the state machine of source admission.
func (t *txn) fact(from frames.Fingerprint, f *frames.TerminalSourceFact) (Verdict, error) {
	b, found, err := t.binding(f.Source.BindingID)
	if err != nil || !found || !b.active() {
		return FactRefused, err
	}
	if ref := &b.Binding.Binding; ref.Owner != from || f.Source.Owner != from || f.Source.OwnerIncarnation != ref.OwnerIncarnation {
		return FactRefused, nil
	}
	seq := uint64(f.Source.Sequence)
	switch {
	case seq <= b.meta.Last:
		return t.again(b, f)
	case seq == math.MaxUint64: // nothing could follow it, not even the gap that ends a binding
		return FactRefused, nil
	}
	verdict := FactAdmitted
	if next := b.meta.Last + 1; seq != next {
		verdict = FactJumped
		b.meta.Gapped = true
		gap := frames.SourceGap{BindingID: b.id(), Expected: next, Observed: seq, Reason: frames.SourceGapJump}
		if err := t.touch(frames.EventSourceGap, b, &gap); err != nil {
			return FactRefused, err
		}
	}
	return verdict, t.admitFact(b, f)
}

// again judges a fact at a sequence that is behind the last one [D-32].
func (t *txn) again(b *binding, f *frames.TerminalSourceFact) (Verdict, error) {
	seq := uint64(f.Source.Sequence)
	n, retained := b.meta.ordinal(seq)
	if !retained {
		return FactRefused, nil
	}
	var kept factDigest
	found, err := t.kept("a fact's digest", digestRef(b.id(), n), &kept)
	switch {
	case err != nil || !found || kept.Sequence != seq:
		return FactRefused, err
	case kept.Digest == digestOf(f):
		return FactDuplicate, nil
	}
	b.meta.Gapped = true
	gap := frames.SourceGap{BindingID: b.id(), Expected: seq, Observed: seq, Reason: frames.SourceGapConflict}
	if err := t.touch(frames.EventSourceGap, b, &gap); err != nil {
		return FactRefused, err
	}
	return FactConflicted, t.endOtherwise(b, frames.EndFailed)
}

// admitFact takes the fact into log and seal, and does what it says [D-22].
func (t *txn) admitFact(b *binding, f *frames.TerminalSourceFact) error {
	payload, err := f.DecodePayload()
	if err != nil {
		return err
	}
	seal, err := frames.ResumeEvidenceSeal(b.meta.Seal)
	if err != nil {
		return fmt.Errorf("work: stored binding: %w", err)
	}
	if err := seal.Add(f); err != nil {
		return err
	}
	if b.meta.Seal, err = seal.AppendState(nil); err != nil {
		return err
	}
	seq := uint64(f.Source.Sequence)
	ref := digestRef(b.id(), b.meta.advance(seq))
	if err := t.keep(ref, false, &factDigest{Sequence: seq, Digest: digestOf(f)}); err != nil {
		return err
	}
	if out, ok := payload.(*frames.OutputRange); ok {
		b.meta.OutputBytes += min(out.ByteCount, math.MaxUint64-b.meta.OutputBytes)
	}
	if err := t.touch(frames.EventSourceFactAdmitted, b, f); err != nil {
		return err
	}
	switch p := payload.(type) {
	case *frames.Closed:
		return t.closed(b, p, f.Payload, seal)
	case *frames.OutputRange:
		if b.meta.Blocked == (frames.SignalID{}) {
			return nil
		}
		if err := t.resolve(b.meta.Blocked); err != nil {
			return err
		}
		b.meta.Blocked = frames.SignalID{}
		return t.rewriteBinding(b)
	case *frames.Attention:
		return t.attention(b, p.Kind)
	}
	return nil
}

// attention raises what the terminal asks for, one open signal of a kind for each session.
func (t *txn) attention(b *binding, kind frames.AttentionKind) error {
	open, signal, message := &b.meta.Blocked, frames.SignalExecutionBlocked, "the process waits for something"
	switch kind {
	case frames.AttentionBell:
		return nil
	case frames.AttentionFailed:
		open, signal, message = &b.meta.Failed, frames.SignalExecutionFailed, "the owner reports a failure of the process"
	}
	if *open != (frames.SignalID{}) {
		return nil
	}
	id, err := t.raise(signal, b.Binding.Binding.WorkSessionID, b.id(), message)
	if err != nil {
		return err
	}
	*open = id
	return t.rewriteBinding(b)
}

// closed ends the binding as its process ended, or as the command that killed it asked
// [D-22] [D-29], and seals what is complete.
func (t *txn) closed(b *binding, c *frames.Closed, outcome []byte, seal *frames.EvidenceSeal) error {
	var kill *Effect
	if b.meta.Kill != (frames.EffectAttemptID{}) {
		e, found, err := t.effect(b.meta.Kill)
		if err != nil {
			return err
		}
		if found {
			kill = e
		}
	}
	asked := kill != nil && (kill.begun(t.env.Activation) || kill.Attempt.State == frames.EffectSucceeded)
	reason := frames.EndFailed
	switch {
	case asked:
		reason = kill.Reason
	case c.Known && c.Status == 0:
		reason = frames.EndCompleted
	}
	blocked, failed := b.meta.Blocked, b.meta.Failed
	if err := t.endBinding(b, reason, append([]byte{}, outcome...)); err != nil {
		return err
	}
	if !b.meta.Gapped {
		if err := t.sealEvidence(b, c, seal); err != nil {
			return err
		}
	}
	if err := t.closedSignals(b, c, blocked, failed, asked); err != nil {
		return err
	}
	if kill == nil {
		return nil
	}
	t.dropEffect(kill)
	result := noResult().result()
	if !asked {
		result = rejected(frames.CodeRevisionConflict, "the process ended before it was asked to")
	}
	t.complete(kill.Attempt.OperationID, result)
	return nil
}

func (t *txn) closedSignals(b *binding, c *frames.Closed, blocked, failed frames.SignalID, asked bool) error {
	if blocked != (frames.SignalID{}) {
		if err := t.resolve(blocked); err != nil {
			return err
		}
	}
	session := b.Binding.Binding.WorkSessionID
	if b.meta.Gapped {
		_, err := t.raise(frames.SignalEvidenceGap, session, frames.BindingID{}, "facts of the binding are missing, so its evidence cannot be sealed")
		if err != nil {
			return err
		}
	}
	if asked || c.Known && c.Status == 0 || failed != (frames.SignalID{}) {
		return nil
	}
	_, err := t.raise(frames.SignalExecutionFailed, session, frames.BindingID{}, statusText(c))
	return err
}

func statusText(c *frames.Closed) string {
	switch {
	case !c.Known:
		return "the process ended and its exit status is not known"
	case c.Status < 0:
		return fmt.Sprintf("the process was ended by signal %d", -int64(c.Status))
	}
	return fmt.Sprintf("the process exited with status %d", c.Status)
}

// sealEvidence writes the evidence of a binding whose facts are complete: an artifact with
// the evidence manifest, and the EVIDENCE record [D-22].
func (t *txn) sealEvidence(b *binding, c *frames.Closed, seal *frames.EvidenceSeal) error {
	id, err := t.fresh()
	if err != nil {
		return err
	}
	evidence := frames.EvidenceManifest{
		BindingID: b.id(), FactCount: seal.Count(), OutputBytes: b.meta.OutputBytes, Seal: seal.Sum(),
	}
	if c.Known {
		evidence.ExitStatus = &c.Status
	}
	raw, err := codec.Encode(nil, &evidence)
	if err != nil {
		return err
	}
	session := b.Binding.Binding.WorkSessionID
	stub := frames.Artifact{WorkSessionID: session, LatestRevision: 1}
	manifest := frames.ArtifactManifest{ArtifactID: id, Revision: 1, Schema: 1, Manifest: raw}
	if err := t.putArtifact(&stub, 1, &manifest, artifactMeta{Evidence: true}); err != nil {
		return err
	}
	record := frames.Evidence{WorkSessionID: session, ArtifactID: id, Seal: evidence.Seal}
	return t.putRecord(frames.EventEvidenceSealed, false, evidenceRef(b.id()), 1, &record, nil)
}
