package work

import (
	"slices"

	"coordinator/codec"
	"coordinator/frames"
)

const (
	// MaxArchived bounds the objects that one ARCHIVE_OBJECTIVE removes, itself included: a
	// commit holds all of them, and a log record has an end. An objective with more is
	// refused with RESOURCE_EXHAUSTED.
	MaxArchived = 1 << 16
	// archiveEvents has the writer commit an archive by itself, unless it comes first.
	archiveEvents = MaxArchived + 1
)

type archiveObjective struct{ p frames.ArchiveObjective }

func parseArchiveObjective(payload []byte, _ Viewer) (action, error) {
	a := &archiveObjective{}
	return a, codec.Decode(&a.p, payload)
}

func (a *archiveObjective) refs() []frames.ObjectRef {
	return []frames.ObjectRef{objectiveRef(a.p.ObjectiveID), runsRef(a.p.ObjectiveID), totalsRef, removalsRef}
}

// changes is everything that the command removes.
func (a *archiveObjective) changes(t *txn) ([]frames.ObjectRef, error) {
	counts, err := t.counts(a.p.ObjectiveID)
	if err != nil {
		return nil, err
	}
	heads, err := t.tree(a.p.ObjectiveID, &counts)
	if err != nil {
		return nil, err
	}
	refs := make([]frames.ObjectRef, len(heads))
	for i := range heads {
		refs[i] = heads[i].Ref
	}
	return refs, nil
}

// apply removes an objective that has ended and every record beneath it (§12 bit 34): one
// OBJECT_REMOVED each, then the operation.
func (a *archiveObjective) apply(t *txn) (Outcome, error) {
	counts, err := a.check(t)
	if err != nil {
		return Outcome{}, err
	}
	heads, err := t.tree(a.p.ObjectiveID, &counts)
	if err != nil {
		return Outcome{}, err
	}
	waits, err := t.waiting(heads)
	if err != nil {
		return Outcome{}, err
	}
	var newest removals
	if _, err := t.kept("the removals", removalsRef, &newest); err != nil {
		return Outcome{}, err
	}
	if err := t.forgetManifests(heads); err != nil {
		return Outcome{}, err
	}
	for i := range heads {
		seq, err := t.remove(&heads[i])
		if err != nil {
			return Outcome{}, err
		}
		newest.at(heads[i].Ref.Kind, seq)
		if err := t.awake(&heads[i], waits, seq); err != nil {
			return Outcome{}, err
		}
	}
	for n := range counts.Pages {
		t.drop(pageRef(a.p.ObjectiveID, n))
	}
	t.drop(runsRef(a.p.ObjectiveID))
	if err := t.keep(removalsRef, true, &newest); err != nil {
		return Outcome{}, err
	}
	return t.finish(noResult())
}

// check is what an archive needs of its objective.
func (a *archiveObjective) check(t *txn) (counts runCounts, err error) {
	var obj frames.Objective
	_, found, err := t.load(objectiveRef(a.p.ObjectiveID), &obj, nil)
	switch {
	case err != nil:
		return counts, err
	case !found:
		return counts, frames.Refuse(frames.CodeNotFound, "no such objective")
	case obj.State == frames.ObjectiveActive:
		return counts, frames.Refuse(frames.CodeRevisionConflict, "the objective is active; complete or cancel it first")
	}
	counts, err = t.counts(a.p.ObjectiveID)
	switch {
	case err != nil:
		return counts, err
	case counts.Unfinished > 0:
		return counts, frames.Refuse(frames.CodeRevisionConflict, "the objective has runs that have not ended")
	}
	return counts, nil
}

// tooMuch names no number but the limit: who archives need not see what is beneath (§6).
func tooMuch() error {
	return frames.Refuse(frames.CodeResourceExhausted, "the objective has more objects than the %d that can be archived at once", MaxArchived)
}

// tree finds the objective and every record beneath it, in the order of their removal:
// binding, session, run, artifact, manifest, evidence and signal as in [D-35], and the
// objective behind all that hung on it; objects of one kind by their ids.
func (t *txn) tree(id frames.ObjectiveID, counts *runCounts) ([]Head, error) {
	if counts.listed() >= MaxArchived {
		return nil, tooMuch()
	}
	listed, err := t.beneath(id, counts)
	if err != nil {
		return nil, err
	}
	heads, err := t.heads(append(listed, objectiveRef(id)))
	if err != nil {
		return nil, err
	}
	var more []frames.ObjectRef
	for i := range heads {
		h := &heads[i]
		switch h.Ref.Kind {
		case frames.KindRun:
			var meta runMeta
			if err := decodeAnnex("a RUN", &meta, h.Annex); err != nil {
				return nil, err
			}
			more = append(more, sessionRef(meta.Session), bindingRef(meta.Binding), evidenceRef(meta.Binding))
		case frames.KindArtifact:
			more = append(more, manifestRef(frames.ArtifactID(h.Ref.ID)))
		}
	}
	rest, err := t.heads(more)
	if err != nil {
		return nil, err
	}
	heads = append(heads, rest...)
	if len(heads) > MaxArchived {
		return nil, tooMuch()
	}
	slices.SortFunc(heads, func(x, y Head) int {
		if d := removalOrder[x.Ref.Kind] - removalOrder[y.Ref.Kind]; d != 0 {
			return d
		}
		return x.Ref.Compare(y.Ref)
	})
	return heads, nil
}

var removalOrder = map[frames.ObjectKind]int{
	frames.KindBinding: 1, frames.KindWorkSession: 2, frames.KindRun: 3, frames.KindArtifact: 4,
	frames.KindArtifactManifest: 5, frames.KindEvidence: 6, frames.KindSignal: 7, frames.KindObjective: 8,
}

// beneath reads what is listed beneath an objective.
func (t *txn) beneath(id frames.ObjectiveID, counts *runCounts) ([]frames.ObjectRef, error) {
	pages := make([]frames.ObjectRef, counts.Pages)
	for n := range pages {
		pages[n] = pageRef(id, uint32(n))
	}
	rows, err := t.heads(pages)
	if err != nil {
		return nil, err
	}
	out := make([]frames.ObjectRef, 0, counts.listed()+1)
	for i := range rows {
		var p refPage
		if err := decodeAnnex("what is beneath an objective", &p, rows[i].Annex); err != nil {
			return nil, err
		}
		out = append(out, p.Refs...)
	}
	return append(out, counts.Tail...), nil
}

// remove announces that a record is gone, and keeps an id that somebody chose used for ever
// [D-54].
func (t *txn) remove(h *Head) (frames.EventSequence, error) {
	rev, err := nextRevision(h.Revision)
	if err != nil {
		return 0, err
	}
	seq, err := t.next()
	if err != nil {
		return 0, err
	}
	raw, err := codec.EncodeImage(nil, &h.Ref)
	if err != nil {
		return 0, err
	}
	err = t.emit(Change{
		Event: frames.EventObjectRemoved, Fact: raw, Removed: true,
		Stored: Stored{Record: frames.SnapshotRecord{Kind: h.Ref.Kind, ID: h.Ref.ID, Revision: rev}},
	})
	if err != nil || !chosen(h.Ref.Kind) {
		return seq, err
	}
	return seq, t.keep(usedRef(h.Ref), false, &used{})
}

// forgetManifests takes the manifests of removed artifacts off the sum that [D-42] bounds.
func (t *txn) forgetManifests(heads []Head) error {
	sum, err := t.manifestBytes()
	if err != nil {
		return err
	}
	any := false
	for i := range heads {
		if heads[i].Ref.Kind != frames.KindArtifact {
			continue
		}
		var meta artifactMeta
		if err := decodeAnnex("an ARTIFACT", &meta, heads[i].Annex); err != nil {
			return err
		}
		any = true
		sum.ManifestBytes -= min(meta.Bytes, sum.ManifestBytes)
	}
	if !any {
		return nil
	}
	return t.keep(totalsRef, true, &sum)
}

// chosen reports whether commands name new objects of the kind. The ids of the others are
// drawn by the coordinator, or are that of a binding.
func chosen(k frames.ObjectKind) bool {
	switch k {
	case frames.KindObjective, frames.KindRun, frames.KindWorkSession, frames.KindBinding, frames.KindArtifact:
		return true
	}
	return false
}

// usedRef names the row that an archived object leaves.
func usedRef(ref frames.ObjectRef) frames.ObjectRef {
	return frames.ObjectRef{Kind: kindUsed + ref.Kind, ID: ref.ID}
}

// used is the annex of a kindUsed row, which says all by being there.
//
//	version:u8(1)
type used struct{}

func (*used) Image(i *codec.Image) { imgVersion(i) }

// taken reports whether an id is that of an object which exists, or which did [D-54].
func (t *txn) taken(ref frames.ObjectRef) (bool, error) {
	_, found, err := t.Record(ref)
	if err != nil || found || !chosen(ref.Kind) {
		return found, err
	}
	_, found, err = t.Record(usedRef(ref))
	return found, err
}

var removalsRef = frames.ObjectRef{Kind: kindRemovals, ID: frames.ObjectID{15: 1}}

// maxRemovals bounds the kinds in a [removals].
const maxRemovals = 16

// A Removal is where the newest removal of an object of a kind is. A cut before it cannot
// be healed by events for whoever sees the kind and does not get OBJECT_REMOVED (§12).
type Removal struct {
	Kind     frames.ObjectKind
	Sequence frames.EventSequence
}

// Image lays the element out.
func (r *Removal) Image(i *codec.Image) {
	codec.ImgU16(i, &r.Kind)
	codec.ImgNonzeroU64(i, &r.Sequence)
}

// removals is the annex of the kindRemovals row.
//
//	version:u8(1) || list(kind:u16 || sequence:u64)
type removals struct{ Newest []Removal }

func (m *removals) Image(i *codec.Image) {
	imgVersion(i)
	codec.List[Removal, *Removal]{Items: &m.Newest, Max: maxRemovals, Size: 10}.Image(i)
}

func (m *removals) at(kind frames.ObjectKind, seq frames.EventSequence) {
	for i := range m.Newest {
		if m.Newest[i].Kind == kind {
			m.Newest[i].Sequence = seq
			return
		}
	}
	m.Newest = append(m.Newest, Removal{Kind: kind, Sequence: seq})
}

// DecodeRemovals reads the annex of the one row of [RemovalsKind], which is live.
func DecodeRemovals(annex []byte) ([]Removal, error) {
	var m removals
	return m.Newest, decodeAnnex("the removals", &m, annex)
}
