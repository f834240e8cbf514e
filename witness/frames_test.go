package witness

import (
	"strings"
	"testing"

	"coordinator/codec"
	"coordinator/frames"

	"github.com/stretchr/testify/require"
)

// sampleFrames has one of each frame that only this link has.
func sampleFrames() []frames.Frame {
	cert := frames.Certificate{WitnessID: testWitness, CoordinatorID: coordA, Activation: 3, Epoch: 9, IncarnationID: incA,
		Token: [32]byte{5}, IssuedAt: 100, ExpiresAt: 160, WitnessKeyID: [32]byte{7}, Signature: [64]byte{8}}
	return []frames.Frame{
		&LinkHello{Version: frames.CurrentVersion(), Name: "coordinator", HasOffer: true,
			Offer: frames.WorkloadOffer{Profile: frames.Profile, ClientNonce: [32]byte{1}}, CoordinatorID: coordA},
		&WitnessHelloOK{Version: frames.CurrentVersion(), WitnessID: testWitness,
			Grant: frames.WorkloadGrant{KeyID: holderA, ExpiresAt: 5, Scope: 3}, MaxLeaseSecs: 60},
		&Activate{RequestID: 1, CoordinatorID: coordA, Epoch: 9, IncarnationID: incA, LeaseSecs: 15},
		&Renew{RequestID: 2, CoordinatorID: coordA, Epoch: 9, Activation: 3, IncarnationID: incA, Token: [32]byte{5}, LeaseSecs: 15},
		&Relinquish{RequestID: 3, CoordinatorID: coordA, Token: [32]byte{5}, IncarnationID: incA},
		&GetStatus{RequestID: 4, CoordinatorID: coordA},
		&CertificateReply{RequestID: 5, Certificate: cert},
		&StatusReply{RequestID: 6, LastEpoch: 9, Activation: 3, LeaseRemaining: 60},
		&StatusReply{RequestID: 7},
	}
}

func TestFramesComeBack(t *testing.T) {
	for _, f := range sampleFrames() {
		out, err := AppendFrame(nil, f)
		require.NoError(t, err)
		require.Equal(t, byte(f.Type()), out[4])
		require.LessOrEqual(t, len(out), MaxFrameBytes)
		back, err := DecodeFrame(f.Type(), out[codec.HeaderSize:])
		require.NoError(t, err)
		require.Equal(t, f, back)
		for cut := range len(out) - codec.HeaderSize {
			_, err := DecodeFrame(f.Type(), out[codec.HeaderSize:codec.HeaderSize+cut])
			require.Error(t, err, "%T cut to %d bytes", f, cut)
		}
	}
}

// The layout of links.md, byte by byte, for the frame that matters most.
func TestActivateLayout(t *testing.T) {
	out, err := AppendFrame(nil, &Activate{RequestID: 0x01020304, CoordinatorID: coordA, Epoch: 0x0a, IncarnationID: incA, LeaseSecs: 15})
	require.NoError(t, err)
	want := []byte{0, 0, 0, 62, 0x10}
	want = append(want, 1, 4, 4, 1, 2, 3, 4)
	want = append(append(want, 2, 4, 16), coordA[:]...)
	want = append(want, 3, 4, 8, 0, 0, 0, 0, 0, 0, 0, 0x0a)
	want = append(append(want, 4, 4, 16), incA[:]...)
	want = append(want, 5, 4, 2, 0, 15)
	require.Equal(t, want, out)
}

func TestEncoderRefusesWhatDecoderRefuses(t *testing.T) {
	for _, f := range []frames.Frame{
		&Activate{CoordinatorID: coordA, Epoch: 1, IncarnationID: incA, LeaseSecs: 15},
		&Activate{RequestID: 1, Epoch: 1, IncarnationID: incA, LeaseSecs: 15},
		&Activate{RequestID: 1, CoordinatorID: coordA, IncarnationID: incA, LeaseSecs: 15},
		&Activate{RequestID: 1, CoordinatorID: coordA, Epoch: 1, LeaseSecs: 15},
		&Renew{RequestID: 1, CoordinatorID: coordA, Epoch: 1, IncarnationID: incA, LeaseSecs: 15},
		&Relinquish{RequestID: 1, CoordinatorID: coordA},
		&GetStatus{RequestID: 1},
		&CertificateReply{RequestID: 1},
		&WitnessHelloOK{WitnessID: testWitness, MaxLeaseSecs: 61},
		&WitnessHelloOK{WitnessID: testWitness},
		&LinkHello{CoordinatorID: coordA, Name: strings.Repeat("x", 129)},
	} {
		_, err := AppendFrame(nil, f)
		require.Error(t, err, "%+v", f)
	}
}

// TestC01_OtherNamespacesAreRefused: what only another link has is no frame here.
func TestC01_OtherNamespacesAreRefused(t *testing.T) {
	for _, typ := range frames.Types() {
		if namespace.Has(typ) {
			continue
		}
		_, err := DecodeFrame(typ, nil)
		require.Equal(t, frames.CodeProtocolError, frames.CodeOf(err), "%v", typ)
	}
	for _, f := range sampleFrames()[2:6] { // same numbers, other forms
		out, err := AppendFrame(nil, f)
		require.NoError(t, err)
		_, err = frames.Decode(f.Type(), out[codec.HeaderSize:])
		require.Error(t, err, "%T is no frame of the endpoint", f)
	}
}
