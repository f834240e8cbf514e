package fuzz_test

import (
	"bytes"
	"reflect"
	"testing"

	"coordinator/codec"
	"coordinator/frames"
	"coordinator/handshake/link"
	"coordinator/owner"
	"coordinator/vectors"
	"coordinator/witness"
)

// A namespace is the frames of one internal link.
type namespace struct {
	append func([]byte, frames.Frame) ([]byte, error)
	decode func(frames.Type, []byte) (frames.Frame, error)
	seeds  []frames.Frame
}

func namespaces() []namespace {
	id := [16]byte{1}
	text := "text"
	return []namespace{{witness.AppendFrame, witness.DecodeFrame, []frames.Frame{
		&link.Hello{CoordinatorID: id, Name: "coordinator", Offer: frames.WorkloadOffer{Profile: frames.Profile, ClientNonce: [32]byte{1}}},
		&witness.WitnessHelloOK{WitnessID: id, MaxLeaseSecs: 60},
		&witness.Activate{RequestID: 1, CoordinatorID: id, Epoch: 2, IncarnationID: id, LeaseSecs: 15},
		&witness.Renew{RequestID: 2, CoordinatorID: id, Epoch: 2, Activation: 3, IncarnationID: id, LeaseSecs: 15},
		&witness.Relinquish{RequestID: 3, CoordinatorID: id, IncarnationID: id},
		&witness.GetStatus{RequestID: 4, CoordinatorID: id},
		&witness.StatusReply{RequestID: 5, LastEpoch: 7, Activation: 8, LeaseRemaining: 9},
	}}, {owner.AppendFrame, owner.DecodeFrame, []frames.Frame{
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
	}}}
}

// FuzzLink decodes the frames of the internal links. The first byte picks the link, the
// second is the type.
func FuzzLink(f *testing.F) {
	spaces := namespaces()
	for n, space := range spaces {
		for _, m := range space.seeds {
			out, err := space.append(nil, m)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(append([]byte{byte(n)}, out[codec.HeaderSize-1:]...))
		}
		for _, b := range vectors.Seeds(f, vectors.SeedFrames) { // what the namespaces share, and strangers
			f.Add(append([]byte{byte(n)}, b...))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < 2 || int(b[0]) >= len(spaces) {
			return
		}
		space := spaces[b[0]]
		m, err := space.decode(frames.Type(b[1]), b[2:])
		if err != nil {
			if code := frames.CodeOf(err); code != frames.CodeProtocolError {
				malformed(t, err)
			}
			return
		}
		canon, err := space.append(nil, m)
		if err != nil {
			t.Fatalf("%#v decodes but does not encode: %v", m, err)
		}
		again, err := space.decode(frames.Type(canon[4]), canon[codec.HeaderSize:])
		if err != nil || !reflect.DeepEqual(m, again) {
			t.Fatalf("%#v comes back as %#v, %v", m, again, err)
		}
		if twice, err := space.append(nil, again); err != nil || !bytes.Equal(canon, twice) {
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
