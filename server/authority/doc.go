// Package authority decides whether this process may act: it holds the store lock,
// obtains an activation from the witness, keeps the lease alive and is the fence that
// every commit, dispatch and write to a transport passes (protocol.md §4).
//
// It knows certificates, the two clocks and the witness; it knows nothing of records,
// commands or connections. The order at start is the protocol's: [LockStore], then the
// store is opened and checked by its own package, [Activate], then [NewFence] and a
// running [Keeper], the durable install through the writer, and only then a bind.
//
// At a stop: the writer makes its last commit, [Fence.Stop] fences and waits for whatever
// had passed its check, the connections are closed, and [Keeper.Relinquish] gives the
// lease back.
package authority

import (
	"errors"
	"fmt"

	"coordinator/frames"
)

// What a fence answers instead of letting a caller pass.
var (
	// ErrFenced is final: this process never commits, publishes, dispatches or renews
	// again (protocol.md §4 [D-48]).
	ErrFenced = errors.New("authority is fenced")
	// ErrDiverged is temporary: wall clock and BOOTTIME have moved apart, and nothing
	// passes until a renewal sent afterwards has succeeded (protocol.md §4 [D-9]).
	ErrDiverged = errors.New("wall clock and boot clock have diverged; waiting for a renewal")
)

// Causes that an error wrapping [ErrFenced] may name.
var (
	// ErrLeaseEnded: no renewal was answered before the lease deadline.
	ErrLeaseEnded = errors.New("the lease ended before a renewal was answered")
	// ErrSuperseded: the witness refused a renewal with STALE_AUTHORITY.
	ErrSuperseded = errors.New("the witness refused the renewal: another activation or a spent lease")
	// ErrLockLost: the store lock file is no longer the one that this process locked.
	ErrLockLost = errors.New("the store lock was lost")
	// ErrStopped: the process fenced itself in order to stop.
	ErrStopped = errors.New("stopping")
)

// ErrWitnessUnavailable means that the witness did not answer, or refused for a reason
// that is not about the lease. Nothing serves without it (protocol.md §4).
var ErrWitnessUnavailable = errors.New("witness unavailable")

// A LeaseHeldError ends a start that waited for another activation's lease: the remaining
// time rose three times, so somebody is renewing it (protocol.md §4 [D-59]).
type LeaseHeldError struct {
	Epoch      frames.AuthorityEpoch
	Activation frames.ActivationSequence
}

func (e *LeaseHeldError) Error() string {
	return fmt.Sprintf("the lease is held by activation %d at epoch %d and is being renewed; "+
		"stop that coordinator, or start this one again later", e.Activation, e.Epoch)
}

// A RolledBackError means that the witness remembers less than this store has installed:
// it was restored from an older copy, or it is another witness (protocol.md §4 [D-10]).
// The witness values are zero when it knows nothing of this coordinator.
type RolledBackError struct {
	StoreEpoch        frames.AuthorityEpoch
	StoreActivation   frames.ActivationSequence
	WitnessEpoch      frames.AuthorityEpoch
	WitnessActivation frames.ActivationSequence
}

func (e *RolledBackError) Error() string {
	return fmt.Sprintf("the witness is behind this store: it gives epoch %d and activation %d where the store has "+
		"installed epoch %d and activation %d; bring back the witness's own newest state",
		e.WitnessEpoch, e.WitnessActivation, e.StoreEpoch, e.StoreActivation)
}
