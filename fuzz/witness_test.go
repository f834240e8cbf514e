package fuzz

import (
	"bytes"
	"reflect"
	"testing"

	"coordinator/codec"
	"coordinator/frames"
	"coordinator/vectors"
	"coordinator/witness"
)

// FuzzWitnessFrame decodes the frames of the witness link; the first byte is the type.
func FuzzWitnessFrame(f *testing.F) {
	id := [16]byte{1}
	for _, m := range []frames.Frame{
		&witness.LinkHello{CoordinatorID: id, Name: "coordinator", Offer: frames.WorkloadOffer{Profile: frames.Profile, ClientNonce: [32]byte{1}}},
		&witness.WitnessHelloOK{WitnessID: id, MaxLeaseSecs: 60},
		&witness.Activate{RequestID: 1, CoordinatorID: id, Epoch: 2, IncarnationID: id, LeaseSecs: 15},
		&witness.Renew{RequestID: 2, CoordinatorID: id, Epoch: 2, Activation: 3, IncarnationID: id, LeaseSecs: 15},
		&witness.Relinquish{RequestID: 3, CoordinatorID: id, IncarnationID: id},
		&witness.GetStatus{RequestID: 4, CoordinatorID: id},
		&witness.StatusReply{RequestID: 5, LastEpoch: 7, Activation: 8, LeaseRemaining: 9},
	} {
		out, err := witness.AppendFrame(nil, m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(out[codec.HeaderSize-1:])
	}
	vectors.Seed(f, vectors.SeedFrames) // the control frames that both namespaces share, and strangers
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == 0 {
			return
		}
		m, err := witness.DecodeFrame(frames.Type(b[0]), b[1:])
		if err != nil {
			return
		}
		canon, err := witness.AppendFrame(nil, m)
		if err != nil {
			t.Fatalf("%#v decodes but does not encode: %v", m, err)
		}
		again, err := witness.DecodeFrame(frames.Type(canon[4]), canon[codec.HeaderSize:])
		if err != nil || !reflect.DeepEqual(m, again) {
			t.Fatalf("%#v comes back as %#v, %v", m, again, err)
		}
		if twice, err := witness.AppendFrame(nil, again); err != nil || !bytes.Equal(canon, twice) {
			t.Fatalf("two canonical forms: %x and %x (%v)", canon, twice, err)
		}
	})
}
