package vectors_test

import (
	"bytes"
	"testing"

	"coordinator/codec"
	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/vectors"
)

// certificateCase is one case with the pins of its file.
type certificateCase struct {
	vectors.Certificate
	pins vectors.CertificatePins
}

func TestCertificates(t *testing.T) {
	each(t, func(s *vectors.Set) (all []certificateCase) {
		for _, f := range s.Certificates {
			for _, c := range f.Cases {
				all = append(all, certificateCase{c, f.Pins})
			}
		}
		return all
	}, func(v *certificateCase) string { return v.Name }, func(t *testing.T, _ *vectors.Set, v *certificateCase) {
		pins := handshake.Pins{
			WitnessID: fixed16(t, v.pins.WitnessID), WitnessPublicKey: fixed32(t, v.pins.WitnessPublicKey),
			CoordinatorID: fixed16(t, v.pins.CoordinatorID),
		}
		var c frames.Certificate
		err := codec.DecodeImage(&c, v.Certificate.Certificate)
		if err == nil {
			sameImage(t, &c, v.Certificate.Certificate)
			err = handshake.VerifyCertificate(&c, pins, uint64(v.Now))
		}
		if (err == nil) != v.Valid {
			t.Errorf("verdict %v, want valid %v", err, v.Valid)
		}
	})
}

func sameImage(t *testing.T, v codec.Value, image []byte) {
	t.Helper()
	again, err := codec.EncodeImage(nil, v)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(again, image) {
		t.Errorf("%T re-encodes to\n%x, want\n%x", v, again, image)
	}
}

func TestEd25519(t *testing.T) {
	each(t, func(s *vectors.Set) []vectors.Ed25519 { return s.Ed25519 }, func(v *vectors.Ed25519) string { return v.Name },
		func(t *testing.T, _ *vectors.Set, v *vectors.Ed25519) {
			if got := handshake.Verify(fixed32(t, v.PublicKey), v.Message, v.Signature); got != v.Valid {
				t.Errorf("verdict %v, want %v", got, v.Valid)
			}
		})
}
