// Package work is the domain of the coordinator as pure functions: a state and a command
// give records, events and a result (protocol.md §6 to §8).
//
// It does no I/O, reads no clock and draws no randomness; package commit passes all three
// in, holds the transaction and makes the outcome durable. It knows nothing of
// connections, leases or files.
//
// Command kinds are rows of one table (kinds.go). Adding a kind is adding a row and the
// capability that gates it to [Capabilities].
package work

import (
	"errors"

	"coordinator/frames"
)

// Capabilities is what the coordinator can offer in a hello: the gates of everything that
// this package executes. A kind behind any other capability is refused as ungated.
const Capabilities = frames.CapAdministration | frames.CapObjectiveLifecycle | frames.CapWithoutOperations

// Refusal is the error of a command or lookup that was refused before admission: nothing
// was recorded and the operation id stays free. Any other error of this package means that
// the store holds something it cannot hold, and continuity is in doubt.
type Refusal = frames.Refusal

// ErrWrapped means that a revision or sequence has no successor. The writer must stop
// (protocol.md §3).
var ErrWrapped = errors.New("work: a counter has reached its end")

// Stored is one record as the store keeps it.
type Stored struct {
	Record frames.SnapshotRecord
	// Principal that originated an OPERATION; zero for other kinds.
	Principal frames.KeyID
	// Annex belongs to this package and is opaque to the store.
	Annex []byte
}

// A View reads the state that a command is decided on, earlier commands of the same batch
// included. An error other than absence ends the writer.
type View interface {
	Record(ref frames.ObjectRef) (Stored, bool, error)
}

// A Change is one record that becomes durable. Changes are applied in order.
type Change struct {
	// Event announces the record. Zero writes it without an event, as ADMIN records are
	// ([D-12]); such changes come after all events of their transaction, so that every cut
	// lies before or after them.
	Event frames.EventKind
	// EventID is set when Event is.
	EventID frames.EventID
	Stored
	// Live says that the record belongs to the live tree and not to history.
	Live bool
}

// Ref names the record.
func (c *Change) Ref() frames.ObjectRef { return c.Record.Ref() }

// Env is what a decision depends on besides state and command.
type Env struct {
	// Head is the sequence of the last event before this command.
	Head frames.EventCut
	// Now is the wall clock in Unix seconds.
	Now uint64
	// Epoch in force.
	Epoch frames.AuthorityEpoch
	// NewEventID draws a fresh event id.
	NewEventID func() (frames.EventID, error)
	// MaxPayload is the server's own typed-payload offer, which bounds every event [D-6].
	// Zero means the reference offer.
	MaxPayload int
	// LowDisk refuses all but the kinds that may live on the reserve [D-41].
	LowDisk bool
}

// An Outcome is what an accepted command does.
type Outcome struct {
	// Result answers the command: the stored one when Duplicate, else the new one.
	Result frames.OperationResult
	// Duplicate says that the operation had been admitted before; nothing changes.
	Duplicate bool
	// Changes become durable in one commit: domain events first, OPERATION_CHANGED last,
	// then the records that have no event.
	Changes []Change
}
