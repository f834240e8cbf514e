package owner

import (
	"encoding/binary"

	"coordinator/codec"
	"coordinator/frames"
	"coordinator/internal/boltfile"
)

// What is stored of an attempt, a binding and a fact. Each row is sealed under its key
// (package boltfile).

// maxBootID bounds the text of a boot id; the kernel's has 36 characters.
const maxBootID = 128

// An attemptRow is one effect attempt. State is DISPATCHED for an intent that has no outcome
// yet, else final; [NeverSeen] is a void row, of which only the coordinator, the digest and
// the incarnation are known.
type attemptRow struct {
	Coordinator frames.CoordinatorID
	Operation   frames.OperationID
	Digest      [32]byte
	Kind        frames.EffectKind
	Binding     frames.BindingID     // pending, or the target's
	Incarnation frames.IncarnationID // the owner's, when it was journaled
	State       frames.EffectState
	HasResource bool
	Resource    frames.ResourceID
	Message     string
}

// Image lays out the stored fields.
func (r *attemptRow) Image(i *codec.Image) {
	codec.ImgID16(i, &r.Coordinator)
	codec.ImgRaw16(i, &r.Operation)
	codec.ImgHash32(i, &r.Digest)
	codec.ImgEnum8(i, &r.Kind, 0, frames.EffectProcessSignal)
	codec.ImgRaw16(i, &r.Binding)
	codec.ImgID16(i, &r.Incarnation)
	codec.ImgU8(i, &r.State)
	i.Check(r.State == NeverSeen || r.State >= frames.EffectDispatched && r.State <= frames.EffectIndeterminate, codec.ErrTag)
	codec.ImgBool(i, &r.HasResource)
	if r.HasResource {
		r.Resource.Image(i)
	}
	codec.ImgStr(i, &r.Message, frames.MaxText)
}

// bindingState is how far a binding's process has come.
type bindingState uint8

const (
	bindingHeld   bindingState = iota // the process waits before exec
	bindingLive                       // it runs; OPENED is recorded
	bindingClosed                     // CLOSED is recorded
	bindingLost                       // its owner's process ended before it was closed
)

// A bindingRow is one process under one binding, with what identifies it to a later
// incarnation.
type bindingRow struct {
	Coordinator frames.CoordinatorID
	Session     frames.WorkSessionID
	Incarnation frames.IncarnationID
	Attempt     frames.EffectAttemptID
	Resource    frames.ResourceID
	Group       uint32 // process group, which is the first process's id
	StartTime   uint64 // of that process, clock ticks since boot
	BootID      string
	State       bindingState
	Last        uint64 // last source sequence, 0: none
	Acked       uint64 // all through here are acknowledged; AckAll gives the binding up
	Output      uint64 // bytes covered by OUTPUT_RANGE facts
}

// Image lays out the stored fields.
func (r *bindingRow) Image(i *codec.Image) {
	codec.ImgID16(i, &r.Coordinator)
	codec.ImgID16(i, &r.Session)
	codec.ImgID16(i, &r.Incarnation)
	codec.ImgID16(i, &r.Attempt)
	r.Resource.Image(i)
	codec.ImgU32(i, &r.Group)
	codec.ImgU64(i, &r.StartTime)
	codec.ImgStr(i, &r.BootID, maxBootID)
	codec.ImgEnum8(i, &r.State, bindingHeld, bindingLost)
	codec.ImgU64(i, &r.Last)
	codec.ImgU64(i, &r.Acked)
	codec.ImgU64(i, &r.Output)
}

// ref is the binding as effects name it.
func (r *bindingRow) ref(id frames.BindingID, owner frames.Fingerprint) frames.TerminalBindingRef {
	return frames.TerminalBindingRef{BindingID: id, WorkSessionID: r.Session, Owner: owner,
		OwnerIncarnation: r.Incarnation, Resource: r.Resource}
}

// unacked says whether facts wait for the coordinator.
func (r *bindingRow) unacked() bool { return r.Acked < r.Last }

// A factRow is one source fact; its key has binding and sequence.
type factRow struct {
	Kind    frames.SourceFactKind
	Payload []byte
}

// Image lays out the stored fields.
func (r *factRow) Image(i *codec.Image) {
	codec.ImgU16(i, &r.Kind)
	codec.ImgBytes(i, &r.Payload, frames.MaxTypedPayload)
}

// An authorityRow is the highest authority that was accepted for a coordinator ([D-49]).
type authorityRow struct {
	Epoch       frames.AuthorityEpoch
	Activation  frames.ActivationSequence
	Incarnation frames.IncarnationID
	TokenSHA256 [32]byte
}

// Image lays out the stored fields.
func (r *authorityRow) Image(i *codec.Image) {
	codec.ImgNonzeroU64(i, &r.Epoch)
	codec.ImgNonzeroU64(i, &r.Activation)
	codec.ImgID16(i, &r.Incarnation)
	codec.ImgHash32(i, &r.TokenSHA256)
}

// above says whether r is a later activation than o: both counters rise together, and a pair
// of which only one does comes from a witness that went back.
func (r *authorityRow) above(o *authorityRow) bool {
	return r.Epoch > o.Epoch && r.Activation > o.Activation
}

// An incarnationRow says when an incarnation of this owner began and ended, Unix seconds.
// Ended is zero while it lasts; after a crash it is the start of the next one.
type incarnationRow struct{ Started, Ended uint64 }

// Image lays out the stored fields.
func (r *incarnationRow) Image(i *codec.Image) {
	codec.ImgU64(i, &r.Started)
	codec.ImgU64(i, &r.Ended)
}

// A headRow says whose file this is, which transaction wrote it last (every one does), and how
// many rows each bucket has, in the order of bucketNames: a page that a damaged pointer or
// count hides, or brings back from an older transaction, shows here.
type headRow struct {
	Schema uint32
	Owner  frames.Fingerprint
	TxID   uint64
	Counts rowCounts
}

// rowCounts are the rows per bucket.
type rowCounts [buckets]uint64

// Image lays out the stored fields.
func (r *headRow) Image(i *codec.Image) {
	codec.ImgU32(i, &r.Schema)
	codec.ImgHash32(i, &r.Owner)
	codec.ImgU64(i, &r.TxID)
	for k := range r.Counts {
		codec.ImgU64(i, &r.Counts[k])
	}
}

// An indexRow is the attempt that a SPAWN's operation, binding or digest is journaled under.
type indexRow struct{ Attempt frames.EffectAttemptID }

// Image lays out the stored field.
func (r *indexRow) Image(i *codec.Image) { codec.ImgID16(i, &r.Attempt) }

// Keys of the index. Operations and digests count per coordinator, bindings do not: an id
// belongs to whoever used it first.
func operationKey(c frames.CoordinatorID, op frames.OperationID) []byte {
	return append(append([]byte{'o'}, c[:]...), op[:]...)
}

func bindingKey(b frames.BindingID) []byte { return append([]byte{'b'}, b[:]...) }

func digestKey(c frames.CoordinatorID, digest [32]byte) []byte {
	return append(append([]byte{'d'}, c[:]...), digest[:]...)
}

// factKey sorts a binding's facts by sequence.
func factKey(b frames.BindingID, seq uint64) []byte {
	return binary.BigEndian.AppendUint64(append(make([]byte, 0, 24), b[:]...), seq)
}

func splitFactKey(k []byte) (b frames.BindingID, seq uint64) {
	copy(b[:], k)
	return b, binary.BigEndian.Uint64(k[16:])
}

func seal(key []byte, v codec.Value) ([]byte, error) {
	return boltfile.Seal(key, func(dst []byte) ([]byte, error) { return codec.EncodeImage(dst, v) })
}

// unseal checks and decodes a stored value of key; byte slices in v alias value.
func unseal(key, value []byte, v codec.Value) error {
	fields, err := boltfile.Unseal(key, value)
	if err != nil {
		return err
	}
	return codec.DecodeImage(v, fields)
}
