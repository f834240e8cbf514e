package work

import (
	"fmt"

	"coordinator/codec"
	"coordinator/frames"
)

// Retention that a new store starts with (protocol.md §7.2 [D-42]).
const (
	DefaultOperationResultSecs = frames.MinOperationRetained
	DefaultEventBytes          = 1 << 30
	DefaultArtifactBytes       = 8 << 30
)

// RetentionRef names the one RETENTION record.
func RetentionRef() frames.ObjectRef { return retentionRef }

// ActivationRef names the one ACTIVATION record.
func ActivationRef() frames.ObjectRef { return activationRef }

// CredentialRef names the CREDENTIAL record of a registry key.
func CredentialRef(key frames.KeyID) frames.ObjectRef {
	return frames.ObjectRef{Kind: frames.KindAdmin, ID: frames.AdminRecordID(frames.AdminCredential, key[:])}
}

var (
	retentionRef  = frames.ObjectRef{Kind: frames.KindAdmin, ID: frames.AdminRecordID(frames.AdminRetention, nil)}
	activationRef = frames.ObjectRef{Kind: frames.KindAdmin, ID: frames.AdminRecordID(frames.AdminActivation, nil)}
)

// GenesisRetention builds the RETENTION record that a new store is created with, before any
// event. It fails on values that [D-42] does not allow.
func GenesisRetention(r frames.Retention) (Change, error) {
	// Every operation comes after the first advert and records it itself.
	return adminChange(retentionRef, 1, frames.AdminRetention, &r, (&retentionMeta{}).encode(), true)
}

// Retention reads the RETENTION record, which every store has.
func Retention(v View) (frames.Retention, error) {
	r, _, err := loadRetention(v)
	return r, err
}

func loadRetention(v View) (frames.Retention, Stored, error) {
	stored, found, err := v.Record(retentionRef)
	if err != nil {
		return frames.Retention{}, Stored{}, err
	}
	if !found {
		return frames.Retention{}, Stored{}, fmt.Errorf("work: the store has no RETENTION record")
	}
	var r frames.Retention
	if err := decodeAdmin(stored.Record, frames.AdminRetention, &r); err != nil {
		return frames.Retention{}, Stored{}, err
	}
	return r, stored, nil
}

// resultSecs is how long the RETENTION record has results kept.
func (t *txn) resultSecs() (uint64, error) {
	stored, found, err := t.view.Record(retentionRef)
	r := t.room
	if err != nil || !found || r == nil || len(stored.Record.Payload) == 0 {
		retention, err := Retention(t.view)
		return retention.OperationResultSecs, err
	}
	p := stored.Record.Payload
	if len(r.payload) != len(p) || &r.payload[0] != &p[0] {
		retention, err := Retention(t.view)
		if err != nil {
			return 0, err
		}
		r.payload, r.resultSecs = p, retention.OperationResultSecs
	}
	return r.resultSecs, nil
}

// RetentionPromise is how long, in seconds from its completion, the result of the operation
// with meta stays: the longest retention advertised since then [D-42].
func RetentionPromise(v View, meta OpMeta) (uint64, error) {
	_, stored, err := loadRetention(v)
	if err != nil {
		return 0, err
	}
	history, err := decodeRetentionMeta(stored.Annex)
	if err != nil {
		return 0, err
	}
	return max(meta.RetentionSecs, history.longestSince(meta.FinalSequence)), nil
}

type changeRetention struct{ p frames.ChangeRetention }

func parseChangeRetention(payload []byte, _ Viewer) (action, error) {
	a := &changeRetention{}
	return a, codec.Decode(&a.p, payload)
}

func (a *changeRetention) refs() []frames.ObjectRef { return []frames.ObjectRef{retentionRef} }

func (a *changeRetention) apply(t *txn) (Outcome, error) {
	_, stored, err := loadRetention(t)
	if err != nil {
		return Outcome{}, err
	}
	history, err := decodeRetentionMeta(stored.Annex)
	if err != nil {
		return Outcome{}, err
	}
	rev, err := nextRevision(stored.Record.Revision)
	if err != nil {
		return Outcome{}, err
	}
	seq, err := t.next() // that of its OPERATION_CHANGED
	if err != nil {
		return Outcome{}, err
	}
	history.advertise(seq, a.p.OperationResultSecs)
	ch, err := adminChange(retentionRef, rev, frames.AdminRetention, &a.p.Retention, history.encode(), true)
	if err != nil {
		return Outcome{}, err
	}
	t.silently(ch)
	return t.finish(noResult())
}

// ActivationChange builds the next version of the ACTIVATION record (§7.1 [D-14]) for cert,
// installed at now (Unix seconds).
func ActivationChange(v View, cert frames.Certificate, now uint64) (Change, error) {
	a := frames.Activation{
		Epoch: cert.Epoch, Activation: cert.Activation, Incarnation: cert.IncarnationID,
		WitnessID: cert.WitnessID, WitnessKeyID: cert.WitnessKeyID, ActivatedAt: now,
	}
	rev, err := successor(v, activationRef)
	if err != nil {
		return Change{}, err
	}
	return adminChange(activationRef, rev, frames.AdminActivation, &a, nil, true)
}

// successor gives the revision that the next version of ref gets; 1 when absent.
func successor(v View, ref frames.ObjectRef) (frames.ObjectRevision, error) {
	stored, found, err := v.Record(ref)
	if err != nil {
		return 0, err
	}
	if !found {
		return 1, nil
	}
	return nextRevision(stored.Record.Revision)
}

// CredentialChanges compares the registry with the CREDENTIAL records that exist and gives
// the versions that bring them together [D-43]: one record per key ever loaded, changed
// when its ceiling, expiry or revocation differs, revoked at now (Unix seconds) when its
// key has left the registry. existing holds every CREDENTIAL record, in any order; the
// result is ordered as registry, then existing.
func CredentialChanges(existing []frames.SnapshotRecord, registry []frames.Credential, now uint64) ([]Change, error) {
	have := make(map[frames.ObjectID]frames.SnapshotRecord, len(existing))
	for _, r := range existing {
		have[r.ID] = r
	}
	var out []Change
	change := func(c frames.Credential) error {
		ref := CredentialRef(c.KeyID)
		old, found := have[ref.ID]
		delete(have, ref.ID)
		rev := frames.ObjectRevision(1)
		if found {
			var was frames.Credential
			if err := decodeAdmin(old, frames.AdminCredential, &was); err != nil {
				return err
			}
			if sameCredential(was, c) {
				return nil
			}
			var err error
			if rev, err = nextRevision(old.Revision); err != nil {
				return err
			}
		}
		ch, err := adminChange(ref, rev, frames.AdminCredential, &c, nil, c.RevokedAt == nil)
		if err != nil {
			return err
		}
		out = append(out, ch)
		return nil
	}
	for _, c := range registry {
		if err := change(c); err != nil {
			return nil, err
		}
	}
	for _, r := range existing {
		if _, gone := have[r.ID]; !gone {
			continue
		}
		var c frames.Credential
		if err := decodeAdmin(r, frames.AdminCredential, &c); err != nil {
			return nil, err
		}
		if c.RevokedAt != nil {
			continue
		}
		c.RevokedAt = &now
		if err := change(c); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func sameCredential(a, b frames.Credential) bool {
	if (a.RevokedAt == nil) != (b.RevokedAt == nil) || a.RevokedAt != nil && *a.RevokedAt != *b.RevokedAt {
		return false
	}
	return a.KeyID == b.KeyID && a.ScopeCeiling == b.ScopeCeiling && a.ExpiresAt == b.ExpiresAt
}

// IsCredential reports whether an ADMIN record is a CREDENTIAL.
func IsCredential(r frames.SnapshotRecord) bool {
	var a frames.Admin
	return r.Kind == frames.KindAdmin && codec.Decode(&a, r.Payload) == nil && a.Kind == frames.AdminCredential
}

// adminChange makes one version of an ADMIN record, which has no event [D-12].
func adminChange(ref frames.ObjectRef, rev frames.ObjectRevision, kind frames.AdminKind, payload codec.Message, annex []byte, live bool) (Change, error) {
	raw, err := codec.Encode(nil, payload)
	if err != nil {
		return Change{}, err
	}
	record, err := frames.NewRecord(ref, rev, &frames.Admin{Kind: kind, Payload: raw})
	if err != nil {
		return Change{}, err
	}
	return Change{Stored: Stored{Record: record, Annex: annex}, Live: live}, nil
}

// decodeAdmin reads the payload of an ADMIN record of the given kind.
func decodeAdmin(r frames.SnapshotRecord, kind frames.AdminKind, into codec.Message) error {
	var a frames.Admin
	if err := codec.Decode(&a, r.Payload); err != nil {
		return fmt.Errorf("work: stored ADMIN record: %w", err)
	}
	if a.Kind != kind {
		return fmt.Errorf("work: stored ADMIN record is of kind %d, want %d", a.Kind, kind)
	}
	if err := codec.Decode(into, a.Payload); err != nil {
		return fmt.Errorf("work: stored ADMIN record: %w", err)
	}
	return nil
}
