package work

import (
	"bytes"

	"coordinator/codec"
	"coordinator/frames"
)

type registerManifest struct {
	p       frames.RegisterArtifactManifest
	session frames.ObjectRef // of revision 1, from its precondition
	from    Viewer
}

func parseRegisterManifest(payload []byte, from Viewer) (action, error) {
	a := &registerManifest{from: from}
	if err := codec.Decode(&a.p, payload); err != nil {
		return nil, err
	}
	return a, checkSchema(a.p.Schema)
}

// checkForm finds the session that revision 1 names by exactly one precondition [D-17].
func (a *registerManifest) checkForm(conds []frames.Precondition) error {
	if a.p.Revision != 1 {
		return nil
	}
	n := 0
	for _, c := range conds {
		if c.Object.Kind == frames.KindWorkSession {
			a.session = c.Object
			n++
		}
	}
	if n != 1 {
		return frames.Refuse(frames.CodeMalformedMessage, "revision 1 of an artifact names its session by exactly one WORK_SESSION precondition")
	}
	return nil
}

func (a *registerManifest) refs() []frames.ObjectRef {
	ref := artifactRef(a.p.ArtifactID)
	return []frames.ObjectRef{ref, usedRef(ref), manifestRef(a.p.ArtifactID), totalsRef}
}

func (a *registerManifest) apply(t *txn) (Outcome, error) {
	var stub frames.Artifact
	var meta artifactMeta
	stored, found, err := t.load(artifactRef(a.p.ArtifactID), &stub, &meta)
	switch {
	case err != nil:
		return Outcome{}, err
	case meta.Evidence:
		return Outcome{}, frames.Refuse(frames.CodeRevisionConflict, "the artifact is evidence, which nobody may revise")
	case a.p.Revision != stub.LatestRevision+1:
		return Outcome{}, frames.Refuse(frames.CodeRevisionConflict, "the revision is not the one after the latest")
	}
	if !found {
		taken, err := t.taken(artifactRef(a.p.ArtifactID))
		if err != nil {
			return Outcome{}, err
		}
		if taken {
			return Outcome{}, frames.Refuse(frames.CodeRevisionConflict, "the artifact id is in use")
		}
		session, exists, err := t.Record(a.session)
		if err != nil {
			return Outcome{}, err
		}
		if !exists || !VisibleToLookup(a.session.Kind, session.Principal, a.from) {
			return Outcome{}, frames.Refuse(frames.CodeNotFound, "no such work session")
		}
		stub.WorkSessionID = frames.WorkSessionID(a.session.ID)
	}
	retention, err := Retention(t)
	if err != nil {
		return Outcome{}, err
	}
	sum, err := t.manifestBytes()
	if err != nil {
		return Outcome{}, err
	}
	size := uint64(len(a.p.Manifest))
	if after := sum.ManifestBytes - min(meta.Bytes, sum.ManifestBytes) + size; size > meta.Bytes && after > retention.ArtifactBytes {
		return Outcome{}, frames.Refuse(frames.CodeResourceExhausted, "the latest manifests would take %d bytes, %d are allowed", after, retention.ArtifactBytes)
	}
	rev, err := nextRevision(stored.Record.Revision)
	if err != nil {
		return Outcome{}, err
	}
	stub.LatestRevision = a.p.Revision
	manifest := frames.ArtifactManifest{
		ArtifactID: a.p.ArtifactID, Revision: a.p.Revision, Schema: a.p.Schema, Manifest: bytes.Clone(a.p.Manifest),
	}
	if err := t.putArtifact(&stub, rev, &manifest, meta); err != nil {
		return Outcome{}, err
	}
	result, err := objectResult(artifactRef(a.p.ArtifactID))
	if err != nil {
		return Outcome{}, err
	}
	return t.finish(result)
}

func (t *txn) manifestBytes() (totals, error) {
	var sum totals
	_, err := t.kept("the totals", totalsRef, &sum)
	return sum, err
}

// putArtifact adds a revision: the stub, then the manifest, each with its event [D-15]. was
// is the annex of the revision before.
func (t *txn) putArtifact(stub *frames.Artifact, rev frames.ObjectRevision, manifest *frames.ArtifactManifest, was artifactMeta) error {
	now := artifactMeta{Evidence: was.Evidence, Bytes: uint64(len(manifest.Manifest))}
	ref := artifactRef(manifest.ArtifactID)
	if err := t.putRecord(frames.EventArtifactRevisionAdded, false, ref, rev, stub, &now); err != nil {
		return err
	}
	if err := t.putRecord(frames.EventArtifactRevisionAdded, false, manifestRef(manifest.ArtifactID), rev, manifest, nil); err != nil {
		return err
	}
	if rev == 1 {
		if err := t.listUnder(stub.WorkSessionID, ref); err != nil {
			return err
		}
	}
	sum, err := t.manifestBytes()
	if err != nil {
		return err
	}
	sum.ManifestBytes = sum.ManifestBytes - min(was.Bytes, sum.ManifestBytes) + now.Bytes
	return t.keep(totalsRef, true, &sum)
}
