package vectors_test

import (
	"bytes"
	"testing"

	"coordinator/codec"
	"coordinator/frames"
	"coordinator/vectors"
)

// digests runs f over one list of digests.json.
func digests[T any](t *testing.T, list func(*vectors.DigestFile) []T, name func(*T) string, f func(*testing.T, *T)) {
	t.Helper()
	each(t, func(s *vectors.Set) (all []T) {
		for k := range s.Digests {
			all = append(all, list(&s.Digests[k])...)
		}
		return all
	}, name, func(t *testing.T, _ *vectors.Set, v *T) { f(t, v) })
}

func sameDigest(t *testing.T, got [32]byte, want vectors.Hex) {
	t.Helper()
	if !bytes.Equal(got[:], want) {
		t.Errorf("digest is %x, want %x", got, []byte(want))
	}
}

// fixed gives hex of a case as an array, and refuses another width.
func fixed16(t *testing.T, h vectors.Hex) [16]byte {
	t.Helper()
	if len(h) != 16 {
		t.Fatalf("the case has %d bytes where 16 belong", len(h))
	}
	return [16]byte(h)
}

func fixed32(t *testing.T, h vectors.Hex) [32]byte {
	t.Helper()
	if len(h) != 32 {
		t.Fatalf("the case has %d bytes where 32 belong", len(h))
	}
	return [32]byte(h)
}

func decodeImage(t *testing.T, v codec.Value, image []byte) {
	t.Helper()
	if err := codec.DecodeImage(v, image); err != nil {
		t.Fatal(err)
	}
}

func TestC07_OperationDigestVectors(t *testing.T) {
	digests(t, func(f *vectors.DigestFile) []vectors.OperationDigest { return f.Operation },
		func(v *vectors.OperationDigest) string { return v.Name },
		func(t *testing.T, v *vectors.OperationDigest) {
			typ, body := split(t, v.Frame)
			f, err := frames.Decode(typ, body)
			if err != nil {
				t.Fatal(err)
			}
			got, err := frames.OperationDigest(f.(*frames.CoordCommand))
			if err != nil {
				t.Fatal(err)
			}
			sameDigest(t, got, v.Digest)
		})
}

func TestEffectDigests(t *testing.T) {
	digests(t, func(f *vectors.DigestFile) []vectors.EffectDigest { return f.Effect },
		func(v *vectors.EffectDigest) string { return v.Name },
		func(t *testing.T, v *vectors.EffectDigest) {
			var target frames.EffectTarget
			decodeImage(t, &target, v.Target)
			if err := frames.CheckEffect(frames.EffectKind(v.Kind), &target, v.Payload); err != nil {
				t.Errorf("target and payload do not fit the kind: %v", err)
			}
			got, err := frames.EffectDigest(frames.EffectKind(v.Kind), &target, v.Payload)
			if err != nil {
				t.Fatal(err)
			}
			sameDigest(t, got, v.Digest)
		})
}

func TestC11_SnapshotDigestVectors(t *testing.T) {
	digests(t, func(f *vectors.DigestFile) []vectors.SnapshotDigest { return f.Snapshot },
		func(v *vectors.SnapshotDigest) string { return v.Name },
		func(t *testing.T, v *vectors.SnapshotDigest) {
			g := frames.AuthorityGuard{
				CoordinatorID: fixed16(t, v.CoordinatorID), Epoch: frames.AuthorityEpoch(v.Epoch),
				Activation: frames.ActivationSequence(v.Activation),
			}
			d := frames.NewSnapshotDigest(g, frames.EventCut(v.Base), uint64(len(v.Records)))
			for _, raw := range v.Records {
				var r frames.SnapshotRecord
				decodeImage(t, &r, raw)
				if err := d.Add(&r); err != nil {
					t.Fatal(err)
				}
			}
			sameDigest(t, d.Sum(), v.Digest)
		})
}

func TestC11_ReplayDigestVectors(t *testing.T) {
	digests(t, func(f *vectors.DigestFile) []vectors.ReplayDigest { return f.Replay },
		func(v *vectors.ReplayDigest) string { return v.Name },
		func(t *testing.T, v *vectors.ReplayDigest) {
			g := frames.AuthorityGuard{
				CoordinatorID: fixed16(t, v.CoordinatorID), Epoch: frames.AuthorityEpoch(v.Epoch),
				Activation: frames.ActivationSequence(v.Activation),
			}
			d := frames.NewReplayDigest(g, fixed16(t, v.SubscriptionID), frames.EventCut(v.After),
				frames.EventCut(v.Cut), uint64(len(v.Events)))
			for _, raw := range v.Events {
				var e frames.ReplayEvent
				decodeImage(t, &e, raw)
				if err := d.Add(&e); err != nil {
					t.Fatal(err)
				}
			}
			sameDigest(t, d.Sum(), v.Digest)
		})
}

func TestEvidenceSeals(t *testing.T) {
	digests(t, func(f *vectors.DigestFile) []vectors.EvidenceDigest { return f.Evidence },
		func(v *vectors.EvidenceDigest) string { return v.Name },
		func(t *testing.T, v *vectors.EvidenceDigest) {
			seal := frames.NewEvidenceSeal(fixed16(t, v.CoordinatorID), fixed16(t, v.BindingID))
			for _, raw := range v.Facts {
				var f frames.TerminalSourceFact
				decodeImage(t, &f, raw)
				seal.Sum() // looking does not disturb the running hash
				if err := seal.Add(&f); err != nil {
					t.Fatal(err)
				}
			}
			if seal.Count() != uint64(len(v.Facts)) {
				t.Errorf("counted %d facts, want %d", seal.Count(), len(v.Facts))
			}
			sameDigest(t, seal.Sum(), v.Digest)
		})
}

func TestAdminRecordIDs(t *testing.T) {
	digests(t, func(f *vectors.DigestFile) []vectors.AdminRecordID { return f.AdminRecordID },
		func(v *vectors.AdminRecordID) string { return v.Name },
		func(t *testing.T, v *vectors.AdminRecordID) {
			if got := frames.AdminRecordID(frames.AdminKind(v.Kind), v.Subject); got != frames.ObjectID(fixed16(t, v.ID)) {
				t.Errorf("id is %v, want %x", got, []byte(v.ID))
			}
		})
}
