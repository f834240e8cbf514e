package vectors_test

import (
	"testing"

	"coordinator/client"
	"coordinator/frames"
	"coordinator/vectors"
)

// TestC16_LedgerSeals recomputes the seals by the code that checks evidence, which shares
// nothing with the code that makes it.
func TestC16_LedgerSeals(t *testing.T) {
	digests(t, func(f *vectors.DigestFile) []vectors.EvidenceDigest { return f.Evidence },
		func(v *vectors.EvidenceDigest) string { return v.Name },
		func(t *testing.T, v *vectors.EvidenceDigest) {
			l := client.NewLedger(fixed16(t, v.CoordinatorID), fixed16(t, v.BindingID))
			for i, raw := range v.Facts {
				e := &client.Event{Sequence: frames.EventSequence(i + 1), Kind: frames.EventSourceFactAdmitted,
					Object: frames.ObjectRef{Kind: frames.KindBinding, ID: fixed16(t, v.BindingID)}, Payload: raw}
				l.Seal() // looking does not disturb the running hash
				if err := l.Take(e); err != nil {
					t.Fatal(err)
				}
			}
			if l.Facts != uint64(len(v.Facts)) {
				t.Errorf("counted %d facts, want %d", l.Facts, len(v.Facts))
			}
			sameDigest(t, l.Seal(), v.Digest)
		})
}
