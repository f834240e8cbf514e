package frames

import "coordinator/codec"

// EffectKind is what an effect does at its target (protocol.md §8.1).
type EffectKind uint8

const (
	EffectSpawn         EffectKind = 1
	EffectKill          EffectKind = 2
	EffectProcessSignal EffectKind = 3
)

// EffectState is how far an effect has come (§8.1).
type EffectState uint8

const (
	EffectReady         EffectState = 0
	EffectDispatched    EffectState = 1
	EffectSucceeded     EffectState = 2
	EffectRejected      EffectState = 3
	EffectIndeterminate EffectState = 4
)

// TargetTag is the tag of an [EffectTarget].
type TargetTag uint8

const (
	TargetPendingSpawn  TargetTag = 0
	TargetActiveBinding TargetTag = 1
)

// EffectTarget is where an effect acts (§8.1). SPAWN takes tag 0 only, KILL and
// PROCESS_SIGNAL tag 1.
//
//	0 PENDING_SPAWN  PendingBindingId || owner_authority_fingerprint:32 ||
//	                 owner_incarnation:16 || u32 group_len || GroupId image
//	1 ACTIVE_BINDING TerminalBindingRef
type EffectTarget struct {
	Tag              TargetTag
	PendingBindingID PendingBindingID   // tag 0
	Owner            Fingerprint        // tag 0
	OwnerIncarnation IncarnationID      // tag 0
	Group            GroupID            // tag 0
	Binding          TerminalBindingRef // tag 1
}

func (t *EffectTarget) Image(i *codec.Image) {
	codec.ImgEnum8(i, &t.Tag, TargetPendingSpawn, TargetActiveBinding)
	if i.Failed() {
		return
	}
	if t.Tag == TargetActiveBinding {
		t.Binding.Image(i)
		return
	}
	codec.ImgID16(i, &t.PendingBindingID)
	codec.ImgHash32(i, &t.Owner)
	codec.ImgID16(i, &t.OwnerIncarnation)
	codec.ImgSized(i, &t.Group, MaxResourceImage)
}

// SpawnPayload is the payload of a SPAWN.
//
//	work_session_id:16 || executor_schema:u16 || u32 len || document
type SpawnPayload struct {
	WorkSessionID  WorkSessionID
	ExecutorSchema uint16
	Document       []byte
}

func (p *SpawnPayload) Image(i *codec.Image) {
	codec.ImgID16(i, &p.WorkSessionID)
	codec.ImgU16(i, &p.ExecutorSchema)
	codec.ImgBytes(i, &p.Document, MaxTypedPayload)
}

// KillPayload is the empty payload of a KILL.
type KillPayload struct{}

func (*KillPayload) Image(*codec.Image) {}

// ProcessSignal is what a PROCESS_SIGNAL sends.
type ProcessSignal uint8

const (
	ProcessInterrupt ProcessSignal = 0
	ProcessTerminate ProcessSignal = 1
	ProcessKill      ProcessSignal = 2
)

// SignalPayload is the payload of a PROCESS_SIGNAL.
//
//	signal:u8 (Interrupt=0 Terminate=1 Kill=2)
type SignalPayload struct{ Signal ProcessSignal }

func (p *SignalPayload) Image(i *codec.Image) {
	codec.ImgEnum8(i, &p.Signal, ProcessInterrupt, ProcessKill)
}

// maxEffectPayload bounds a SPAWN's payload image.
const maxEffectPayload = 16 + 2 + 4 + MaxTypedPayload

// EffectAttempt is one durable outbox row (§8.1). Target and payload must fit the kind.
//
//	EffectAttemptId || OperationId || kind:u8 || EffectTarget || effect_digest:bytes32 ||
//	u32 len || payload || state:u8
type EffectAttempt struct {
	ID          EffectAttemptID
	OperationID OperationID
	Kind        EffectKind
	Target      EffectTarget
	Digest      [32]byte
	Payload     []byte
	State       EffectState
}

func (a *EffectAttempt) Image(i *codec.Image) {
	codec.ImgID16(i, &a.ID)
	codec.ImgID16(i, &a.OperationID)
	codec.ImgEnum8(i, &a.Kind, EffectSpawn, EffectProcessSignal)
	a.Target.Image(i)
	codec.ImgHash32(i, &a.Digest)
	codec.ImgBytes(i, &a.Payload, maxEffectPayload)
	codec.ImgEnum8(i, &a.State, EffectReady, EffectIndeterminate)
	if i.Failed() {
		return
	}
	if err := CheckEffect(a.Kind, &a.Target, a.Payload); err != nil {
		i.Fail(err)
	}
}

// CheckEffect holds a target and a payload to the form that the kind asks for (§8.1).
func CheckEffect(kind EffectKind, target *EffectTarget, payload []byte) error {
	var v codec.Value
	want := TargetActiveBinding
	switch kind {
	case EffectSpawn:
		v, want = new(SpawnPayload), TargetPendingSpawn
	case EffectKill:
		v = new(KillPayload)
	case EffectProcessSignal:
		v = new(SignalPayload)
	default:
		return codec.ErrTag
	}
	if target.Tag != want {
		return codec.ErrTag
	}
	return codec.DecodeImage(v, payload)
}
