package work

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"coordinator/codec"
	"coordinator/frames"
)

// Kinds of the rows that no reader sees. The store keeps them out of cuts and counts; what
// they hold is in their annex. From kindDigest on there is one kind for each slot, so that a
// binding's digests need no id but its own.
const (
	kindEffect   frames.ObjectKind = 0x8001 // EffectAttemptId: an effect that is not finished
	kindClaim    frames.ObjectKind = 0x8002 // PendingBindingId: used, without a BINDING so far [D-54]
	kindResource frames.ObjectKind = 0x8003 // owner, incarnation and ResourceId, hashed: its active binding
	kindRuns     frames.ObjectKind = 0x8004 // ObjectiveId: its runs, counted, and what is beneath it
	kindTotals   frames.ObjectKind = 0x8005 // one row: bytes of latest manifests [D-42]
	kindBeneath  frames.ObjectKind = 0x8006 // ObjectiveId and page, hashed: more of what is beneath it
	kindDue      frames.ObjectKind = 0x8007 // time and sequence: an operation to look at then (§8)
	kindRemovals frames.ObjectKind = 0x8008 // one row: where the newest removals are [D-12]
	kindUsed     frames.ObjectKind = 0x8100 // plus ObjectKind, its id: an object that was archived [D-54]
	kindWaits    frames.ObjectKind = 0x8200 // plus ObjectKind, its id: the tombstone that stays with it (§8)
	kindDigest   frames.ObjectKind = 0x9000 // plus slot, BindingId: digest of one admitted fact [D-32]
)

// EffectKind is the kind of the rows that [DecodeEffect] reads, ClaimKind of those of
// [DecodeClaim], DueKind of those of [DecodeDue] and RemovalsKind of that of
// [DecodeRemovals].
const (
	EffectKind   = kindEffect
	ClaimKind    = kindClaim
	DueKind      = kindDue
	RemovalsKind = kindRemovals
)

// RetainedDigests is how many of an active binding's facts can still be told from others at
// the same sequence (protocol.md §11 [D-32]).
const RetainedDigests = 4096

// internalKind reports whether rows of the kind are the domain's own.
func internalKind(k frames.ObjectKind) bool { return k >= kindEffect }

// EffectRef names the outbox row of an attempt.
func EffectRef(id frames.EffectAttemptID) frames.ObjectRef {
	return frames.ObjectRef{Kind: kindEffect, ID: frames.ObjectID(id)}
}

func claimRef(id frames.BindingID) frames.ObjectRef {
	return frames.ObjectRef{Kind: kindClaim, ID: frames.ObjectID(id)}
}

func runsRef(id frames.ObjectiveID) frames.ObjectRef {
	return frames.ObjectRef{Kind: kindRuns, ID: frames.ObjectID(id)}
}

var totalsRef = frames.ObjectRef{Kind: kindTotals, ID: frames.ObjectID{15: 1}}

func digestRef(id frames.BindingID, ordinal uint64) frames.ObjectRef {
	return frames.ObjectRef{Kind: kindDigest + frames.ObjectKind(ordinal%RetainedDigests), ID: frames.ObjectID(id)}
}

func resourceRef(b *frames.TerminalBindingRef) (frames.ObjectRef, error) {
	image, err := codec.EncodeImage(nil, &b.Resource)
	if err != nil {
		return frames.ObjectRef{}, err
	}
	h := sha256.New()
	h.Write(b.Owner[:])
	h.Write(b.OwnerIncarnation[:])
	h.Write(image)
	return frames.ObjectRef{Kind: kindResource, ID: frames.ObjectID(h.Sum(nil)[:16])}, nil
}

// imgVersion begins an annex.
func imgVersion(i *codec.Image) {
	version := uint8(metaVersion)
	codec.ImgEnum8(i, &version, metaVersion, metaVersion)
}

// decodeAnnex reads what the domain keeps with a row.
func decodeAnnex(what string, v codec.Value, annex []byte) error {
	if err := codec.DecodeImage(v, annex); err != nil {
		return fmt.Errorf("work: annex of %s: %w", what, err)
	}
	return nil
}

// An EffectMode says why an attempt is looked up instead of being sent.
type EffectMode uint8

const (
	// EffectSent is an attempt that was, or may have been, sent.
	EffectSent EffectMode = iota
	// EffectVoided is a SPAWN that CANCEL_RUN met while it was READY [D-24].
	EffectVoided
	// EffectDenied is one whose principal no longer held its scopes [D-46].
	EffectDenied
)

// An Effect is one outbox row with what a decision on it needs beside the attempt. It exists
// until its operation is finished.
//
//	version:u8(1) || EffectAttempt || principal:32 || activation:u64 || run_id:16 || mode:u8 ||
//	reason:u8
type Effect struct {
	Attempt frames.EffectAttempt
	// Principal of the operation, whose grant is judged before dispatch [D-46].
	Principal frames.KeyID
	// Activation that admitted it. A READY effect of an earlier one may have been sent by a
	// store that was since restored.
	Activation frames.ActivationSequence
	Run        frames.RunID
	Mode       EffectMode
	// Reason with which a KILL ends its binding [D-29].
	Reason frames.EndReason
}

// Image lays the annex out.
func (e *Effect) Image(i *codec.Image) {
	imgVersion(i)
	e.Attempt.Image(i)
	codec.ImgHash32(i, &e.Principal)
	codec.ImgNonzeroU64(i, &e.Activation)
	codec.ImgID16(i, &e.Run)
	codec.ImgEnum8(i, &e.Mode, EffectSent, EffectDenied)
	codec.ImgEnum8(i, &e.Reason, frames.EndCompleted, frames.EndFailed)
}

// Owner is whom the effect is for, and in which incarnation.
func (e *Effect) Owner() (frames.Fingerprint, frames.IncarnationID) {
	if e.Attempt.Target.Tag == frames.TargetActiveBinding {
		b := &e.Attempt.Target.Binding
		return b.Owner, b.OwnerIncarnation
	}
	return e.Attempt.Target.Owner, e.Attempt.Target.OwnerIncarnation
}

// Scopes are what the principal must hold when the effect is dispatched [D-46].
func (e *Effect) Scopes() frames.Scope {
	return frames.ScopeWorkCommand | frames.ScopeTerminalControl
}

// Open reports whether the owner's answer is still awaited. A KILL that has succeeded waits
// for its binding's end alone.
func (e *Effect) Open() bool { return e.Attempt.State <= frames.EffectDispatched }

// begun reports whether the effect may have left: a READY one of an earlier activation
// counts, because the store may have been restored [D-29].
func (e *Effect) begun(now frames.ActivationSequence) bool {
	return e.Attempt.State == frames.EffectDispatched || e.Attempt.State == frames.EffectReady && e.Activation != now
}

// DecodeEffect reads the annex of a row of [EffectKind].
func DecodeEffect(annex []byte) (Effect, error) {
	var e Effect
	return e, decodeAnnex("an effect", &e, annex)
}

// A Claim is what a PendingBindingId was used for before, or without, becoming a binding.
//
//	version:u8(1) || run_id:16 || owner:32 || incarnation:16 || ended:bool
type Claim struct {
	Run         frames.RunID
	Owner       frames.Fingerprint
	Incarnation frames.IncarnationID
	// Ended says that the run has ended and the owner may give the binding up [D-45].
	Ended bool
}

// Image lays the annex out.
func (c *Claim) Image(i *codec.Image) {
	imgVersion(i)
	codec.ImgID16(i, &c.Run)
	codec.ImgHash32(i, &c.Owner)
	codec.ImgID16(i, &c.Incarnation)
	codec.ImgBool(i, &c.Ended)
}

// DecodeClaim reads the annex of a row of [ClaimKind].
func DecodeClaim(annex []byte) (Claim, error) {
	var c Claim
	return c, decodeAnnex("a claim", &c, annex)
}

// runMeta is the annex of a RUN: what its commands and effects need to find.
//
//	version:u8(1) || session:16 || binding:16 || spawn:optional<16> || cancel:optional<16>
type runMeta struct {
	Session frames.WorkSessionID
	Binding frames.BindingID       // the pending id until it is one
	Spawn   frames.EffectAttemptID // while it is unresolved
	Cancel  frames.OperationID     // a CANCEL_RUN that waits for the spawn [D-30]
}

func (m *runMeta) Image(i *codec.Image) {
	imgVersion(i)
	codec.ImgID16(i, &m.Session)
	codec.ImgID16(i, &m.Binding)
	codec.ImgOptID16(i, &m.Spawn)
	codec.ImgOptID16(i, &m.Cancel)
}

// A span is a run of admitted sequences without a jump inside.
type span struct {
	First   uint64 // sequence
	Ordinal uint64 // of that fact among all admitted ones, from 0
}

func (s *span) Image(i *codec.Image) {
	codec.ImgNonzeroU64(i, &s.First)
	codec.ImgU64(i, &s.Ordinal)
}

const (
	// maxSpans bounds the jumps that a binding remembers; facts before them are older than
	// what is retained.
	maxSpans = 32
	// maxSealState bounds the kept state of a seal, which is 116 bytes today.
	maxSealState = 512
)

// bindingMeta is the annex of a BINDING: where the admission of its facts stands. Once the
// binding has ended only its run, last and count matter.
//
//	version:u8(1) || run_id:16 || last:u64 || count:u64 || gapped:bool || output_bytes:u64 ||
//	kill:optional<16> || blocked:optional<16> || failed:optional<16> || spans:list ||
//	u32 len || seal
type bindingMeta struct {
	Run         frames.RunID
	Last        uint64 // newest admitted sequence; 0: none
	Count       uint64 // of admitted facts
	Gapped      bool   // no seal can come any more
	OutputBytes uint64
	Kill        frames.EffectAttemptID // unfinished
	Blocked     frames.SignalID        // open EXECUTION_BLOCKED
	Failed      frames.SignalID        // open EXECUTION_FAILED
	Spans       []span
	Seal        []byte // running hash; empty once it has ended
}

func (m *bindingMeta) Image(i *codec.Image) {
	imgVersion(i)
	codec.ImgID16(i, &m.Run)
	codec.ImgU64(i, &m.Last)
	codec.ImgU64(i, &m.Count)
	codec.ImgBool(i, &m.Gapped)
	codec.ImgU64(i, &m.OutputBytes)
	codec.ImgOptID16(i, &m.Kill)
	codec.ImgOptID16(i, &m.Blocked)
	codec.ImgOptID16(i, &m.Failed)
	codec.List[span, *span]{Items: &m.Spans, Max: maxSpans, Size: 16}.Image(i)
	codec.ImgBytes(i, &m.Seal, maxSealState)
}

// ordinal finds a sequence among the retained facts.
func (m *bindingMeta) ordinal(seq uint64) (n uint64, retained bool) {
	for k := len(m.Spans) - 1; k >= 0; k-- {
		s := m.Spans[k]
		if seq < s.First {
			continue
		}
		n = s.Ordinal + (seq - s.First)
		end := m.Count
		if k+1 < len(m.Spans) {
			end = m.Spans[k+1].Ordinal
		}
		return n, n < end && m.Count-n <= RetainedDigests
	}
	return 0, false
}

// advance takes the next admitted sequence and gives its ordinal.
func (m *bindingMeta) advance(seq uint64) uint64 {
	if len(m.Spans) == 0 || seq != m.Last+1 {
		m.Spans = append(m.Spans, span{First: seq, Ordinal: m.Count})
		if len(m.Spans) > maxSpans {
			m.Spans = m.Spans[1:]
		}
	}
	n := m.Count
	m.Last, m.Count = seq, n+1
	return n
}

// signalMeta is the annex of a SIGNAL: the binding whose admission knows it as open; zero
// when none does.
//
//	version:u8(1) || binding:optional<16>
type signalMeta struct{ Binding frames.BindingID }

func (m *signalMeta) Image(i *codec.Image) {
	imgVersion(i)
	codec.ImgOptID16(i, &m.Binding)
}

// artifactMeta is the annex of an ARTIFACT.
//
//	version:u8(1) || evidence:bool || manifest_bytes:u64
type artifactMeta struct {
	Evidence bool   // written by a seal and closed to REGISTER [D-54]
	Bytes    uint64 // of the latest manifest
}

func (m *artifactMeta) Image(i *codec.Image) {
	imgVersion(i)
	codec.ImgBool(i, &m.Evidence)
	codec.ImgU64(i, &m.Bytes)
}

// totals is the annex of the kindTotals row.
//
//	version:u8(1) || manifest_bytes:u64
type totals struct{ ManifestBytes uint64 }

func (m *totals) Image(i *codec.Image) {
	imgVersion(i)
	codec.ImgU64(i, &m.ManifestBytes)
}

// factDigest is the annex of a kindDigest row.
//
//	version:u8(1) || sequence:u64 || sha256:32
type factDigest struct {
	Sequence uint64
	Digest   [32]byte
}

func (m *factDigest) Image(i *codec.Image) {
	imgVersion(i)
	codec.ImgNonzeroU64(i, &m.Sequence)
	codec.ImgHash32(i, &m.Digest)
}

// digestOf is what makes two facts at one sequence the same: kind, schema and payload.
func digestOf(f *frames.TerminalSourceFact) [32]byte {
	h := sha256.New()
	h.Write(binary.BigEndian.AppendUint16(nil, uint16(f.Kind)))
	h.Write(binary.BigEndian.AppendUint16(nil, f.Schema))
	h.Write(f.Payload)
	return [32]byte(h.Sum(nil))
}
