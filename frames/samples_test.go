package frames_test

import (
	"bytes"
	"reflect"
	"testing"

	"coordinator/codec"
	"coordinator/frames"

	"github.com/stretchr/testify/require"
)

// fill16 and fill32 are ids and hashes that show where they went.
func fill16[T ~[16]byte](n byte) T { return T(bytes.Repeat([]byte{n}, 16)) }
func fill32[T ~[32]byte](n byte) T { return T(bytes.Repeat([]byte{n}, 32)) }
func fill64(n byte) [64]byte       { return [64]byte(bytes.Repeat([]byte{n}, 64)) }

func sampleGuard() frames.AuthorityGuard {
	return frames.AuthorityGuard{CoordinatorID: fill16[frames.CoordinatorID](1), Epoch: 7, Activation: 9, TokenSHA256: fill32[[32]byte](2)}
}

func sampleCertificate() frames.Certificate {
	return frames.Certificate{
		WitnessID: fill16[frames.WitnessID](3), CoordinatorID: fill16[frames.CoordinatorID](1), Activation: 9, Epoch: 7,
		IncarnationID: fill16[frames.IncarnationID](4), Token: fill32[[32]byte](5), IssuedAt: 1000, ExpiresAt: 1060,
		WitnessKeyID: fill32[[32]byte](6), Signature: fill64(7),
	}
}

func sampleBinding() frames.TerminalBindingRef {
	return frames.TerminalBindingRef{
		BindingID: fill16[frames.BindingID](8), WorkSessionID: fill16[frames.WorkSessionID](9), Owner: fill32[frames.Fingerprint](10),
		OwnerIncarnation: fill16[frames.IncarnationID](11), Resource: frames.ResourceID{Host: "höst", ID: 12},
	}
}

func sampleLimits() frames.Limits { return frames.ReferenceLimits() }

func sampleRecord(n byte) frames.SnapshotRecord {
	return frames.SnapshotRecord{
		Kind: frames.KindObjective, ID: fill16[frames.ObjectID](n), Revision: 3, Schema: 1, Payload: []byte("payload"),
	}
}

func sampleReplayEvent(n byte) frames.ReplayEvent {
	return frames.ReplayEvent{
		Sequence: frames.EventSequence(n), ID: fill16[frames.EventID](n), Kind: frames.EventRunChanged,
		Object: frames.ObjectRef{Kind: frames.KindRun, ID: fill16[frames.ObjectID](n)}, Revision: 2, Schema: 1, Payload: []byte{n},
	}
}

// sampleFrames has every frame of the endpoint with every optional field, and some again
// without them.
func sampleFrames() []frames.Frame {
	snapshot, replay := fill16[frames.SnapshotID](20), fill16[frames.ReplayID](21)
	subscription := fill16[frames.SubscriptionID](22)
	version := frames.CurrentVersion()
	return []frames.Frame{
		&frames.CoordHello{
			Version: version, Name: "näme", Offered: 31, Required: 1, Limits: sampleLimits(), HasOffer: true,
			Offer: frames.WorkloadOffer{Profile: frames.Profile, ClientNonce: fill32[[32]byte](1)},
		},
		&frames.CoordHello{Version: version, Limits: sampleLimits()},
		&frames.CoordHelloOK{
			Version: version, Capabilities: 3, CoordinatorID: fill16[frames.CoordinatorID](1), Epoch: 7,
			IncarnationID: fill16[frames.IncarnationID](4), Limits: sampleLimits(), Grant: frames.WorkloadGrant{
				KeyID: fill32[frames.KeyID](1), Fingerprint: fill32[frames.Fingerprint](2), ExpiresAt: 5, Scope: frames.AllScopes,
			}, RetentionSecs: frames.MinOperationRetained, Certificate: sampleCertificate(),
		},
		&frames.WorkloadChallenge{
			Profile: frames.Profile, Service: frames.Service, Minor: 1, ClientNonce: fill32[[32]byte](1),
			ServerNonce: fill32[[32]byte](2), Incarnation: fill16[frames.IncarnationID](3), BindingKind: frames.BindingUDSPeer,
			Binding: fill32[[32]byte](4), AuthorityKey: fill32[[32]byte](5), Proof: fill64(6),
		},
		&frames.WorkloadResponse{
			KeyID: fill32[frames.KeyID](1), ScopeBytes: frames.ScopeBytes(3), RequestedExpiry: 77, Proof: fill64(2),
		},
		&frames.Ack{RequestID: 1},
		&frames.Ping{Nonce: 1 << 63},
		&frames.Pong{},
		&frames.AuthorityRenewed{Certificate: sampleCertificate()},
		&frames.CoordError{RequestID: 5, Code: frames.CodeInternal, Message: "tëxt"},
		&frames.CoordError{Code: frames.CodeProtocolError},
		&frames.CoordCommand{
			RequestID: 1, Guard: sampleGuard(), OperationID: fill16[frames.OperationID](1), Kind: 0xffff, Payload: []byte{1, 4, 0},
			Preconditions: []frames.Precondition{
				{Object: frames.ObjectRef{Kind: 1, ID: fill16[frames.ObjectID](2)}, Revision: 0},
				{Object: frames.ObjectRef{Kind: 2, ID: fill16[frames.ObjectID](1)}, Revision: 1 << 63},
			},
			Extensions: []codec.Field{{ID: 7, Value: []byte("a")}, {ID: 24, Value: []byte{}}, {ID: 25, Value: []byte("b")}},
		},
		&frames.CoordCommand{RequestID: 1, OperationID: fill16[frames.OperationID](1), Payload: []byte{}},
		&frames.CoordCommandResult{RequestID: 2, Operation: frames.OperationResult{State: frames.OperationPending, Epoch: 1, Sequence: 2}},
		&frames.GetOperationResult{RequestID: 3, Guard: sampleGuard(), OperationID: fill16[frames.OperationID](5)},
		&frames.OperationResultFrame{RequestID: 4, Operation: frames.OperationResult{State: frames.OperationUnknown}},
		&frames.OpenSnapshot{RequestID: 5, Guard: sampleGuard(), Reserve: true, Replace: subscription},
		&frames.OpenSnapshot{RequestID: 5, Guard: sampleGuard()},
		&frames.SnapshotBegin{
			RequestID: 6, SnapshotID: snapshot, Guard: sampleGuard(), Base: 8, FirstCursor: []byte("cursor"),
			SubscriptionID: subscription, LeaseExpiresAt: 60,
			Bases: []frames.ActivationBase{{Activation: 1, Base: 0}, {Activation: 5, Base: 8}, {Activation: 6, Base: 8}},
		},
		&frames.SnapshotBegin{RequestID: 6, SnapshotID: snapshot, Guard: sampleGuard()},
		&frames.SnapshotBegin{RequestID: 6, SnapshotID: snapshot, FirstCursor: []byte{}, Bases: []frames.ActivationBase{}},
		&frames.SnapshotNext{RequestID: 7, SnapshotID: snapshot, Cursor: []byte("c")},
		&frames.SnapshotPage{
			RequestID: 8, SnapshotID: snapshot, Cursor: []byte{}, Index: 1 << 31,
			Records: []frames.SnapshotRecord{sampleRecord(1), sampleRecord(2)}, NextCursor: []byte("n"),
		},
		&frames.SnapshotPage{RequestID: 8, SnapshotID: snapshot, Cursor: []byte("c")},
		&frames.SnapshotEnd{RequestID: 9, SnapshotID: snapshot, PageCount: 2, RecordCount: 3, Digest: fill32[[32]byte](4)},
		&frames.SnapshotApplied{RequestID: 10, SnapshotID: snapshot, SubscriptionID: subscription, CreditCount: 1, CreditBytes: 2},
		&frames.SnapshotApplied{RequestID: 10, SnapshotID: snapshot},
		&frames.Subscribe{RequestID: 11, Guard: sampleGuard(), After: 3, CreditCount: 4, CreditBytes: 5},
		&frames.Subscribed{RequestID: 12, SubscriptionID: subscription, NextDelivery: 1},
		&frames.Credit{SubscriptionID: subscription, AddCount: 6, AddBytes: 7},
		&frames.CoordEvent{
			SubscriptionID: subscription, Delivery: 1, Sequence: 2, EventID: fill16[frames.EventID](3), Kind: frames.EventObjectRemoved,
			Object: frames.ObjectRef{Kind: 10, ID: fill16[frames.ObjectID](4)}, Revision: 5, Schema: 6, Payload: []byte("event"),
		},
		&frames.Gap{SubscriptionID: subscription, LastDelivery: 1, LastEvent: 2, Observed: 3, Reason: frames.GapInternal},
		&frames.Gap{SubscriptionID: subscription},
		&frames.OpenReplay{RequestID: 13, Guard: sampleGuard(), SubscriptionID: subscription, After: 9},
		&frames.ReplayBegin{
			RequestID: 14, ReplayID: replay, SubscriptionID: subscription, FirstEvent: 10, Cut: 12, FirstCursor: []byte("f"), LeaseExpiresAt: 1,
		},
		&frames.ReplayBegin{RequestID: 14, ReplayID: replay, SubscriptionID: subscription},
		&frames.ReplayNext{RequestID: 15, ReplayID: replay, Cursor: []byte("c")},
		&frames.ReplayPage{
			RequestID: 16, ReplayID: replay, Cursor: []byte("c"), Index: 1,
			Events: []frames.ReplayEvent{sampleReplayEvent(1), sampleReplayEvent(9)}, NextCursor: []byte{},
		},
		&frames.ReplayPage{RequestID: 16, ReplayID: replay, Cursor: []byte("c")},
		&frames.ReplayEnd{RequestID: 17, ReplayID: replay, PageCount: 1, EventCount: 2, Digest: fill32[[32]byte](3)},
		&frames.ReplayApplied{RequestID: 18, ReplayID: replay, SubscriptionID: subscription, CreditCount: 1, CreditBytes: 2},
	}
}

// sampleMessages are the TLV bodies inside records and commands.
func sampleMessages() []codec.Message {
	completed, lost, note, zero, status := frames.ObjectiveCompleted, frames.EndOwnerLost, "nöte", uint64(0), int32(-9)
	retention := frames.Retention{OperationResultSecs: frames.MinOperationRetained, EventBytes: 1, ArtifactBytes: 2}
	objective, run, session := fill16[frames.ObjectiveID](1), fill16[frames.RunID](2), fill16[frames.WorkSessionID](3)
	artifact := fill16[frames.ArtifactID](4)
	return []codec.Message{
		&frames.Objective{DocumentSchema: 1, Document: []byte("{}"), State: frames.ObjectiveCancelled},
		&frames.Run{ObjectiveID: objective, Attempt: 2, State: frames.RunFailed, Outcome: []byte{}},
		&frames.Run{ObjectiveID: objective},
		&frames.WorkSession{RunID: run, State: frames.StateEnded, ActiveBinding: fill16[frames.BindingID](5)},
		&frames.WorkSession{RunID: run},
		&frames.Binding{Binding: sampleBinding(), State: frames.StateEnded, Reason: &lost},
		&frames.Binding{Binding: sampleBinding()},
		&frames.Artifact{WorkSessionID: session, LatestRevision: 1},
		&frames.ArtifactManifest{ArtifactID: artifact, Revision: 2, Schema: 3, Manifest: []byte("m")},
		&frames.Signal{WorkSessionID: session, Kind: frames.SignalPolicy, State: frames.SignalResolved, Message: "m"},
		&frames.Operation{Principal: fill32[frames.KeyID](6), Result: frames.OperationResult{State: frames.OperationUnknown}},
		&frames.Evidence{WorkSessionID: session, ArtifactID: artifact, Seal: fill32[[32]byte](7)},
		&frames.EvidenceManifest{BindingID: fill16[frames.BindingID](5), FactCount: 1, OutputBytes: 2, ExitStatus: &status, Seal: fill32[[32]byte](7)},
		&frames.EvidenceManifest{BindingID: fill16[frames.BindingID](5)},
		&frames.Admin{Kind: frames.AdminCredential, Payload: []byte("p")},
		&frames.Activation{
			Epoch: 1, Activation: 2, Incarnation: fill16[frames.IncarnationID](8), WitnessID: fill16[frames.WitnessID](9),
			WitnessKeyID: fill32[[32]byte](10), ActivatedAt: 3,
		},
		&retention,
		&frames.Credential{KeyID: fill32[frames.KeyID](1), ScopeCeiling: 1 << 63, ExpiresAt: 4, RevokedAt: &zero},
		&frames.Credential{KeyID: fill32[frames.KeyID](1)},
		&frames.CreateObjective{ObjectiveID: objective, Schema: 1, Document: []byte{}},
		&frames.UpdateObjective{ObjectiveID: objective, Schema: 1, Document: []byte("d"), State: &completed},
		&frames.UpdateObjective{ObjectiveID: objective, Document: []byte("d")},
		&frames.StartRun{
			ObjectiveID: objective, RunID: run, WorkSessionID: session, ExecutorSchema: 1, ExecutorDocument: []byte("d"),
			PendingBindingID: fill16[frames.PendingBindingID](5), Owner: fill32[frames.Fingerprint](6),
			OwnerIncarnation: fill16[frames.IncarnationID](7), Group: 8,
		},
		&frames.RunCommand{RunID: run},
		&frames.SignalCommand{SignalID: fill16[frames.SignalID](1), Note: &note},
		&frames.SignalCommand{SignalID: fill16[frames.SignalID](1)},
		&frames.RegisterArtifactManifest{ArtifactID: artifact, Revision: 1, Schema: 1, Manifest: []byte("m")},
		&frames.EndBinding{BindingID: fill16[frames.BindingID](1), Reason: frames.EndFailed},
		&frames.ChangeRetention{Retention: retention},
		&frames.ArchiveObjective{ObjectiveID: objective},
	}
}

// sampleValues are the positional values.
func sampleValues() []codec.Value {
	binding := sampleBinding()
	record, event, certificate, guard := sampleRecord(1), sampleReplayEvent(1), sampleCertificate(), sampleGuard()
	attempt, operation := fill16[frames.EffectAttemptID](1), fill16[frames.OperationID](2)
	spawn := frames.EffectTarget{
		PendingBindingID: fill16[frames.PendingBindingID](3), Owner: fill32[frames.Fingerprint](4),
		OwnerIncarnation: fill16[frames.IncarnationID](5), Group: 6,
	}
	active := frames.EffectTarget{Tag: frames.TargetActiveBinding, Binding: binding}
	fact := func(kind frames.SourceFactKind, payload ...byte) *frames.TerminalSourceFact {
		return &frames.TerminalSourceFact{
			Source: frames.TerminalSourceRef{
				BindingID: fill16[frames.BindingID](1), Owner: fill32[frames.Fingerprint](2),
				OwnerIncarnation: fill16[frames.IncarnationID](3), Sequence: 4,
			}, Kind: kind, Schema: frames.FactSchema, Payload: append([]byte{}, payload...),
		}
	}
	return []codec.Value{
		&binding, &record, &event, &certificate, &guard, &spawn, &active,
		&frames.ResourceID{ID: 1}, &frames.ResourceID{Host: "h", ID: 1},
		&frames.ObjectRef{Kind: frames.KindArtifactManifest, ID: fill16[frames.ObjectID](1)},
		&frames.Precondition{Object: frames.ObjectRef{Kind: 1, ID: fill16[frames.ObjectID](1)}},
		&frames.Started{Run: fill16[frames.RunID](1), Session: fill16[frames.WorkSessionID](2), Binding: fill16[frames.BindingID](3)},
		&frames.Document{Schema: 1, Payload: []byte("d")},
		&frames.SourceGap{BindingID: fill16[frames.BindingID](1), Expected: 1, Reason: frames.SourceGapEnded},
		&frames.WorkloadOffer{Profile: "p", ClientNonce: fill32[[32]byte](1)},
		&frames.WorkloadGrant{Scope: 1 << 63},
		&frames.EffectAttempt{ID: attempt, OperationID: operation, Kind: frames.EffectKill, Target: active, Payload: []byte{}},
		&frames.EffectAttempt{ID: attempt, OperationID: operation, Kind: frames.EffectProcessSignal, Target: active, Payload: []byte{2}, State: 4},
		&frames.EffectAttempt{
			ID: attempt, OperationID: operation, Kind: frames.EffectSpawn, Target: spawn,
			Payload: append(bytes.Repeat([]byte{1}, 18), 0, 0, 0, 1, 'd'),
		},
		fact(frames.FactOpened), fact(frames.FactClosed, 0), fact(frames.FactClosed, 1, 0xff, 0xff, 0xff, 0xff),
		fact(frames.FactInputResult, append(bytes.Repeat([]byte{1}, 16), 2)...),
		fact(frames.FactSignalResult, append(bytes.Repeat([]byte{1}, 16), 0)...),
		fact(frames.FactOutputRange, make([]byte, 56)...), fact(frames.FactAttention, 0, 3),
		&frames.OperationResult{State: frames.OperationPending, Epoch: 1, Sequence: 2},
		&frames.OperationResult{State: frames.OperationSucceeded, Sequence: 1, Payload: []byte{}},
		&frames.OperationResult{State: frames.OperationSucceeded, Sequence: 1, Kind: frames.ResultObjectRef, Payload: append([]byte{0, 1}, bytes.Repeat([]byte{1}, 16)...)},
		&frames.OperationResult{State: frames.OperationRejected, Sequence: 1, Code: frames.CodeNotFound, Message: "gone"},
		&frames.OperationResult{State: frames.OperationIndeterminate, Reason: frames.RecoveryStateInvalid, Attempt: attempt},
		&frames.OperationResult{State: frames.OperationIndeterminate},
		&frames.OperationResult{State: frames.OperationTombstoned, Digest: fill32[[32]byte](1), Final: frames.OperationIndeterminate},
		&frames.OperationResult{State: frames.OperationUnknown},
	}
}

// fresh makes an empty value of the type that v points to.
func fresh[T any](v T) T { return reflect.New(reflect.TypeOf(v).Elem()).Interface().(T) }

func TestEveryFrameRoundTrips(t *testing.T) {
	seen := map[frames.Type]bool{}
	for _, f := range sampleFrames() {
		seen[f.Type()] = true
		frame, err := frames.Append(nil, f)
		require.NoError(t, err, "%+v", f)
		require.EqualValues(t, f.Type(), frame[4])
		again, err := frames.Decode(f.Type(), frame[codec.HeaderSize:])
		require.NoError(t, err, "%+v", f)
		require.Equal(t, f, again)
	}
	for _, typ := range frames.Types() {
		require.True(t, seen[typ], "no sample of %v", typ)
	}
}

func TestEveryMessageRoundTrips(t *testing.T) {
	for _, m := range sampleMessages() {
		body, err := codec.Encode(nil, m)
		require.NoError(t, err, "%+v", m)
		again := fresh(m)
		require.NoError(t, codec.Decode(again, body), "%+v", m)
		require.Equal(t, m, again)
	}
}

func TestEveryValueRoundTrips(t *testing.T) {
	for _, v := range sampleValues() {
		image, err := codec.EncodeImage(nil, v)
		require.NoError(t, err, "%T %+v", v, v)
		again := fresh(v)
		require.NoError(t, codec.DecodeImage(again, image), "%T %+v", v, v)
		require.Equal(t, v, again)
		for n := range image {
			require.Error(t, codec.DecodeImage(fresh(v), image[:n]), "%T cut to %d bytes", v, n)
		}
		require.Error(t, codec.DecodeImage(fresh(v), append(image, 0)), "%T and a byte", v)
	}
}
