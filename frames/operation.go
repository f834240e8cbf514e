package frames

import (
	"fmt"

	"coordinator/codec"
)

// OperationState is the tag of an [OperationResult] (protocol.md §8).
type OperationState uint8

const (
	OperationPending       OperationState = 0
	OperationSucceeded     OperationState = 1
	OperationRejected      OperationState = 2
	OperationIndeterminate OperationState = 3
	OperationTombstoned    OperationState = 4
	OperationUnknown       OperationState = 5
)

var operationStateNames = []string{"PENDING", "SUCCEEDED", "REJECTED", "INDETERMINATE", "TOMBSTONED", "UNKNOWN"}

func (s OperationState) String() string {
	if int(s) < len(operationStateNames) {
		return operationStateNames[s]
	}
	return fmt.Sprintf("STATE_%d", uint8(s))
}

// Final reports whether the operation will not change any more by itself.
func (s OperationState) Final() bool { return s != OperationPending && s != OperationUnknown }

// ResultKind says what a SUCCEEDED result carries (§7.1).
type ResultKind uint16

const (
	ResultNone      ResultKind = 0
	ResultObjectRef ResultKind = 1
	ResultStarted   ResultKind = 2
	ResultDocument  ResultKind = 3
)

// IndeterminateReason says why an outcome is not known (§7.1).
type IndeterminateReason uint8

const (
	TargetOutcomeUnknown    IndeterminateReason = 0
	TargetDedupeUnavailable IndeterminateReason = 1
	RecoveryStateInvalid    IndeterminateReason = 2
)

var reasonNames = []string{"TARGET_OUTCOME_UNKNOWN", "TARGET_DEDUPE_UNAVAILABLE", "RECOVERY_STATE_INVALID"}

func (r IndeterminateReason) String() string {
	if int(r) < len(reasonNames) {
		return reasonNames[r]
	}
	return fmt.Sprintf("REASON_%d", uint8(r))
}

// OperationResult is the state of one operation (§8). Which fields count depends on State.
//
//	0 PENDING       u64 admitted_epoch || u64 admitted_event_sequence
//	1 SUCCEEDED     u64 completed_event_sequence || u16 result_kind || u32 len || payload
//	2 REJECTED      u64 completed_event_sequence || u16 error_code || str message
//	3 INDETERMINATE u8 reason || optional<EffectAttemptId>
//	4 TOMBSTONED    bytes32 command_digest || u8 final_state (1, 2 or 3)
//	5 UNKNOWN
type OperationResult struct {
	State    OperationState
	Epoch    AuthorityEpoch      // PENDING: admitted in
	Sequence EventSequence       // PENDING: admitted at; SUCCEEDED, REJECTED: completed at
	Kind     ResultKind          // SUCCEEDED
	Payload  []byte              // SUCCEEDED: the image that Kind says
	Code     Code                // REJECTED
	Message  string              // REJECTED
	Reason   IndeterminateReason // INDETERMINATE
	Attempt  EffectAttemptID     // INDETERMINATE: zero when none
	Digest   [32]byte            // TOMBSTONED: the operation digest
	Final    OperationState      // TOMBSTONED: the state that the body had
}

// maxOperationImage bounds the image of any result.
const maxOperationImage = 1 + 8 + 2 + 4 + MaxTypedPayload

func (r *OperationResult) Image(i *codec.Image) {
	codec.ImgEnum8(i, &r.State, OperationPending, OperationUnknown)
	if i.Failed() {
		return
	}
	switch r.State {
	case OperationPending:
		codec.ImgNonzeroU64(i, &r.Epoch)
		codec.ImgNonzeroU64(i, &r.Sequence)
	case OperationSucceeded:
		codec.ImgNonzeroU64(i, &r.Sequence)
		codec.ImgU16(i, &r.Kind)
		codec.ImgBytes(i, &r.Payload, MaxTypedPayload)
		if !i.Failed() {
			if err := checkResult(r.Kind, r.Payload); err != nil {
				i.Fail(err)
			}
		}
	case OperationRejected:
		codec.ImgNonzeroU64(i, &r.Sequence)
		codec.ImgU16(i, &r.Code)
		i.Check(r.Code.Known(), codec.ErrTag)
		codec.ImgStr(i, &r.Message, MaxText)
	case OperationIndeterminate:
		codec.ImgEnum8(i, &r.Reason, TargetOutcomeUnknown, RecoveryStateInvalid)
		codec.ImgOptID16(i, &r.Attempt)
	case OperationTombstoned:
		codec.ImgHash32(i, &r.Digest)
		codec.ImgEnum8(i, &r.Final, OperationSucceeded, OperationIndeterminate)
	}
}

// checkResult holds a SUCCEEDED payload to the form of its kind.
func checkResult(kind ResultKind, payload []byte) error {
	var v codec.Value
	switch kind {
	case ResultNone:
		if len(payload) != 0 {
			return codec.ErrTrailing
		}
		return nil
	case ResultObjectRef:
		v = new(ObjectRef)
	case ResultStarted:
		v = new(Started)
	case ResultDocument:
		v = new(Document)
	default:
		return codec.ErrTag
	}
	return codec.DecodeImage(v, payload)
}

// Started is the result of START_RUN (§7.2). Binding zero stands for absent.
//
//	run_id || work_session_id || optional<binding_id>
type Started struct {
	Run     RunID
	Session WorkSessionID
	Binding BindingID
}

func (s *Started) Image(i *codec.Image) {
	codec.ImgID16(i, &s.Run)
	codec.ImgID16(i, &s.Session)
	codec.ImgOptID16(i, &s.Binding)
}

// Document is a typed document (§7.2).
//
//	schema:u16 || payload_len:u32 || payload
type Document struct {
	Schema  uint16
	Payload []byte
}

func (d *Document) Image(i *codec.Image) {
	codec.ImgU16(i, &d.Schema)
	codec.ImgBytes(i, &d.Payload, MaxTypedPayload)
}
