package frames

import (
	"encoding/hex"
	"fmt"
	"io"
)

// Ids of protocol.md §3: exactly 16 nonzero bytes from the operating system's CSPRNG,
// compared as bytes only. A distinct type for each keeps one from standing for another.
type (
	CoordinatorID    [16]byte
	IncarnationID    [16]byte
	ObjectiveID      [16]byte
	RunID            [16]byte
	WorkSessionID    [16]byte
	BindingID        [16]byte
	PendingBindingID [16]byte
	ArtifactID       [16]byte
	SignalID         [16]byte
	EventID          [16]byte
	OperationID      [16]byte
	EffectAttemptID  [16]byte
	SnapshotID       [16]byte
	ReplayID         [16]byte
	SubscriptionID   [16]byte
	WitnessID        [16]byte
	// ObjectID is the id inside an [ObjectRef], whatever the kind.
	ObjectID [16]byte
)

// KeyID is the SHA-256 of a raw workload public key: the principal (§5.1).
type KeyID [32]byte

// Fingerprint is the SHA-256 of a raw authority public key: what a client pins (§5.1).
type Fingerprint [32]byte

// Checked counters of §3. All are nonzero; the two cuts may be zero, "none yet".
type (
	AuthorityEpoch     uint64
	ActivationSequence uint64
	ObjectRevision     uint64
	EventSequence      uint64
	DeliverySequence   uint64
	SourceSequence     uint64
	EventCut           uint64
	DeliveryCut        uint64
)

func (v CoordinatorID) String() string    { return hex.EncodeToString(v[:]) }
func (v IncarnationID) String() string    { return hex.EncodeToString(v[:]) }
func (v ObjectiveID) String() string      { return hex.EncodeToString(v[:]) }
func (v RunID) String() string            { return hex.EncodeToString(v[:]) }
func (v WorkSessionID) String() string    { return hex.EncodeToString(v[:]) }
func (v BindingID) String() string        { return hex.EncodeToString(v[:]) }
func (v PendingBindingID) String() string { return hex.EncodeToString(v[:]) }
func (v ArtifactID) String() string       { return hex.EncodeToString(v[:]) }
func (v SignalID) String() string         { return hex.EncodeToString(v[:]) }
func (v EventID) String() string          { return hex.EncodeToString(v[:]) }
func (v OperationID) String() string      { return hex.EncodeToString(v[:]) }
func (v EffectAttemptID) String() string  { return hex.EncodeToString(v[:]) }
func (v SnapshotID) String() string       { return hex.EncodeToString(v[:]) }
func (v ReplayID) String() string         { return hex.EncodeToString(v[:]) }
func (v SubscriptionID) String() string   { return hex.EncodeToString(v[:]) }
func (v WitnessID) String() string        { return hex.EncodeToString(v[:]) }
func (v ObjectID) String() string         { return hex.EncodeToString(v[:]) }

// String is the text form of a key id (§5.1).
func (v KeyID) String() string { return "sha256:" + hex.EncodeToString(v[:]) }

// String is the text form of a fingerprint (§5.1).
func (v Fingerprint) String() string { return "sha256:" + hex.EncodeToString(v[:]) }

// NewID draws a fresh nonzero id from r.
func NewID[T ~[16]byte](r io.Reader) (T, error) {
	var raw [16]byte
	for raw == [16]byte{} {
		if _, err := io.ReadFull(r, raw[:]); err != nil {
			return T{}, fmt.Errorf("new id: %w", err)
		}
	}
	return T(raw), nil
}

// ParseID reads the 32 lowercase or uppercase hex digits of a nonzero id.
func ParseID[T ~[16]byte](s string) (T, error) {
	var raw [16]byte
	if len(s) != 32 {
		return T{}, fmt.Errorf("id is %d characters long, want 32 hex digits", len(s))
	}
	if _, err := hex.Decode(raw[:], []byte(s)); err != nil {
		return T{}, fmt.Errorf("id is not hex")
	}
	if raw == [16]byte{} {
		return T{}, fmt.Errorf("id is all zero")
	}
	return T(raw), nil
}
