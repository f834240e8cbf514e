package fuzz

import (
	"bytes"
	"testing"

	"coordinator/codec"
	"coordinator/frames"
	"coordinator/handshake/link"
	"coordinator/owner"
)

// FuzzOwnerLink feeds whole frame bodies, type byte first, to the owner link's decoder. What
// decodes has one canonical form.
func FuzzOwnerLink(f *testing.F) {
	id := [16]byte{1}
	text := "text"
	for _, m := range []frames.Frame{
		&link.Hello{CoordinatorID: id, Name: "coordinator", Offer: frames.WorkloadOffer{Profile: frames.Profile, ClientNonce: [32]byte{1}}},
		&owner.OwnerHelloOK{Groups: []frames.GroupID{1, 2}},
		&owner.GetEffect{RequestID: 1, Attempt: id},
		&owner.EffectResult{RequestID: 1, Attempt: id, State: frames.EffectSucceeded, HasResource: true, Resource: frames.ResourceID{Host: "h", ID: 4}, Message: &text},
		&owner.OpenFacts{RequestID: 1, BindingID: id, After: 3, Credit: 4},
		&owner.Bindings{Bindings: []frames.BindingID{id}},
		&owner.FactsEnd{BindingID: id, Last: 3},
		&owner.FactAck{BindingID: id, Through: 1, Add: 1},
		&owner.ReadOutput{RequestID: 1, BindingID: id},
		&owner.OutputChunk{RequestID: 1, Data: []byte("x"), End: true},
	} {
		out, err := owner.AppendFrame(nil, m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(out[4:])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == 0 {
			return
		}
		m, err := owner.DecodeFrame(frames.Type(b[0]), b[1:])
		if err != nil {
			return
		}
		canon, err := owner.AppendFrame(nil, m)
		if err != nil {
			t.Fatalf("%#v decodes and does not encode: %v", m, err)
		}
		again, err := owner.DecodeFrame(frames.Type(canon[4]), canon[codec.HeaderSize:])
		if err != nil {
			t.Fatalf("the canonical form does not decode: %v", err)
		}
		if twice, err := owner.AppendFrame(nil, again); err != nil || !bytes.Equal(canon, twice) {
			t.Fatalf("two canonical forms: %x and %x (%v)", canon, twice, err)
		}
	})
}

// FuzzExecutorDocument: whatever a document is, it is read or refused, and what is read has a
// form that reads the same.
func FuzzExecutorDocument(f *testing.F) {
	f.Add([]byte(`{"argv":["a","b"],"cwd":"/","env":{"A":"b"},"rows":1,"cols":2,"term":"t","grace_secs":3}`))
	f.Add([]byte(`{"argv":["a"],"x":null}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := owner.ParseDocument(b)
		if err != nil {
			return
		}
		out, err := d.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if len(out) <= frames.MaxTypedPayload {
			if _, err := owner.ParseDocument(out); err != nil {
				t.Fatalf("%s reads, its own form does not: %v", b, err)
			}
		}
	})
}
