package owner

import (
	"bytes"
	"encoding/binary"
	"reflect"
	"testing"

	"coordinator/codec"
	"coordinator/frames"
	"coordinator/handshake/link"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// sampleFrames is one of each frame of the link's own.
func sampleFrames() []frames.Frame {
	id := [16]byte{1, 15: 2}
	text := "why"
	target := frames.EffectTarget{Tag: frames.TargetPendingSpawn, PendingBindingID: id, Owner: ownerPrint, OwnerIncarnation: id, Group: 1}
	payload, _ := codec.EncodeImage(nil, &frames.SpawnPayload{WorkSessionID: id, ExecutorSchema: 1, Document: []byte(`{"argv":["x"]}`)})
	guard := frames.AuthorityGuard{CoordinatorID: coordA, Epoch: 3, Activation: 4}
	return []frames.Frame{
		&DispatchEffect{RequestID: 1, Guard: guard, Attempt: id, OperationID: id, Kind: frames.EffectSpawn, Target: target, Digest: [32]byte{9}, Payload: payload},
		&GetEffect{RequestID: 2, Guard: guard, Attempt: id, Digest: [32]byte{9}},
		&OpenFacts{RequestID: 3, Guard: guard, BindingID: id, After: 7, Credit: 8},
		&FactAck{BindingID: id, Through: AckAll, Add: 4},
		&ReadOutput{RequestID: 4, BindingID: id, Offset: 1, MaxBytes: 2, Follow: true},
		&OwnerHelloOK{Version: frames.CurrentVersion(), Groups: []frames.GroupID{1, 9}, Grant: frames.WorkloadGrant{KeyID: frames.KeyID{1}, Fingerprint: ownerPrint, ExpiresAt: 5, Scope: 7}},
		&EffectResult{RequestID: 5, Attempt: id, State: frames.EffectSucceeded, HasResource: true, Resource: frames.ResourceID{ID: 3}},
		&EffectResult{RequestID: 5, Attempt: id, State: NeverSeen, Message: &text},
		&Bindings{Bindings: []frames.BindingID{id, {3}}},
		&SourceFact{Fact: frames.TerminalSourceFact{Source: frames.TerminalSourceRef{BindingID: id, Owner: ownerPrint, OwnerIncarnation: id, Sequence: 1},
			Kind: frames.FactClosed, Schema: 1, Payload: []byte{0}}},
		&FactsEnd{BindingID: id},
		&OutputChunk{RequestID: 6, Offset: 9, Data: []byte("out"), End: true},
	}
}

func TestFramesRoundTrip(t *testing.T) {
	seen := map[frames.Type]bool{TypeAuthority: true} // its certificate is made in other tests
	for _, f := range sampleFrames() {
		out, err := AppendFrame(nil, f)
		require.NoError(t, err)
		got, err := DecodeFrame(frames.Type(out[4]), out[codec.HeaderSize:])
		require.NoError(t, err)
		require.Equal(t, f, got)
		seen[f.Type()] = true
		for n := range out[codec.HeaderSize:] { // cut anywhere it is no frame
			if _, err := DecodeFrame(f.Type(), out[codec.HeaderSize:codec.HeaderSize+n]); err == nil {
				again, _ := AppendFrame(nil, f)
				require.NotEqual(t, out[:codec.HeaderSize+n], again)
			}
		}
	}
	for typ := range namespace.Frames {
		require.True(t, seen[typ], "%#02x has no sample", uint8(typ))
	}
}

func TestEmptyBindingsAreSaid(t *testing.T) {
	out, err := AppendFrame(nil, &Bindings{})
	require.NoError(t, err)
	f, err := DecodeFrame(TypeBindings, out[codec.HeaderSize:])
	require.NoError(t, err)
	require.Empty(t, f.(*Bindings).Bindings)
}

// TestC01_OtherNamespacesAreRefused: what only another link has is no frame here.
func TestC01_OtherNamespacesAreRefused(t *testing.T) {
	for _, typ := range append(frames.Types(), 0x12, 0x14) {
		if namespace.Has(typ) {
			continue
		}
		_, err := DecodeFrame(typ, nil)
		require.Equal(t, frames.CodeProtocolError, frames.CodeOf(err), "%v", typ)
	}
}

func TestFramesThatAreRefused(t *testing.T) {
	list := make([]frames.BindingID, maxBindingList+1)
	for i := range list {
		list[i][0] = 1
	}
	sample := sampleFrames()[0].(*DispatchEffect)
	wrongKind, wrongPayload := *sample, *sample
	wrongKind.Kind = frames.EffectKill
	wrongPayload.Payload = []byte{1}
	for _, f := range []frames.Frame{
		&Bindings{Bindings: list},
		&Bindings{Bindings: make([]frames.BindingID, 1)},
		&OutputChunk{RequestID: 1, Data: make([]byte, MaxChunkBytes+1)},
		&OwnerHelloOK{Groups: make([]frames.GroupID, MaxGroups+1)},
		&EffectResult{RequestID: 1, Attempt: frames.EffectAttemptID{1}, State: 5},
		&GetEffect{Attempt: frames.EffectAttemptID{1}},
		&wrongKind, &wrongPayload,
	} {
		_, err := AppendFrame(nil, f)
		require.Error(t, err, "%T", f)
	}
	// A list that claims more than it has takes no memory.
	body := append([]byte{1, 4, 2}, binary.BigEndian.AppendUint16(nil, maxBindingList)...)
	_, err := DecodeFrame(TypeBindings, body)
	require.ErrorIs(t, err, codec.ErrTruncated)
}

// The largest frames fit the caps of the link.
func TestLargestFramesFit(t *testing.T) {
	dispatch := *sampleFrames()[0].(*DispatchEffect)
	payload, err := codec.EncodeImage(nil, &frames.SpawnPayload{WorkSessionID: frames.WorkSessionID{1}, Document: make([]byte, frames.MaxTypedPayload)})
	require.NoError(t, err)
	dispatch.Payload = payload
	list := make([]frames.BindingID, maxBindingList)
	for i := range list {
		list[i][0] = 1
	}
	for _, f := range []frames.Frame{
		&dispatch, &Bindings{Bindings: list}, &OutputChunk{RequestID: 1, Data: make([]byte, MaxChunkBytes)},
	} {
		out, err := AppendFrame(nil, f)
		require.NoError(t, err)
		r := link.NewReader(bytes.NewReader(out), namespace)
		r.Proved()
		got, err := r.Next(namespace.Has)
		require.NoError(t, err)
		require.Equal(t, f.Type(), got.Type())
	}
	out, err := AppendFrame(nil, &OwnerHelloOK{Version: frames.CurrentVersion(), Groups: make([]frames.GroupID, MaxGroups), Grant: frames.WorkloadGrant{}})
	require.NoError(t, err)
	require.Less(t, len(out), frames.MaxHandshakeBytes)
}

// What decodes re-encodes, and decodes to the same again.
func TestDecodedFramesAreCanonical(t *testing.T) {
	var seeds [][]byte
	for _, f := range sampleFrames() {
		out, err := AppendFrame(nil, f)
		require.NoError(t, err)
		seeds = append(seeds, out[4:])
	}
	rapid.Check(t, func(t *rapid.T) {
		b := bytes.Clone(rapid.SampledFrom(seeds).Draw(t, "seed"))
		for range rapid.IntRange(0, 3).Draw(t, "changes") {
			b[rapid.IntRange(0, len(b)-1).Draw(t, "at")] = rapid.Byte().Draw(t, "byte")
		}
		f, err := DecodeFrame(frames.Type(b[0]), b[1:])
		if err != nil {
			return
		}
		canon, err := AppendFrame(nil, f)
		require.NoError(t, err)
		again, err := DecodeFrame(f.Type(), canon[codec.HeaderSize:])
		require.NoError(t, err)
		require.True(t, reflect.DeepEqual(f, again))
	})
}
