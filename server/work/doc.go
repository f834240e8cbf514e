// Package work is the domain of the coordinator as pure functions: a state and a command, a
// source fact or the outcome of an effect give records, events, effects and a result
// (protocol.md §6 to §8, §11).
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
const Capabilities = frames.CapTerminalBindings | frames.CapArtifactManifests | frames.CapSignals |
	frames.CapAdministration | frames.CapObjectiveLifecycle | frames.CapWithoutOperations | frames.CapArchive

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
	// Fact is the payload of an event that carries no record (SOURCE_FACT_ADMITTED and
	// SOURCE_GAP): it names the record, whose next version is this one [D-16].
	Fact []byte
	// Live says that the record belongs to the live tree and not to history.
	Live bool
	// Removed takes the row away. With an event it announces the revision that the record
	// would have had next; without one only kind and id count.
	Removed bool
}

// A PendingChange counts operations and effect attempts of a principal that became pending,
// or were finished.
type PendingChange struct {
	Principal frames.KeyID
	N         int
}

// Owners tells which process owners are there.
type Owners interface {
	// Connected reports whether a proved link to the owner is up in exactly that incarnation.
	Connected(frames.Fingerprint, frames.IncarnationID) bool
	// Serves is Connected, and that the owner serves the group.
	Serves(frames.Fingerprint, frames.IncarnationID, frames.GroupID) bool
}

type noOwners struct{}

func (noOwners) Connected(frames.Fingerprint, frames.IncarnationID) bool              { return false }
func (noOwners) Serves(frames.Fingerprint, frames.IncarnationID, frames.GroupID) bool { return false }

// Ref names the record.
func (c *Change) Ref() frames.ObjectRef { return c.Record.Ref() }

// Env is what a decision depends on besides state and command.
type Env struct {
	// Head is the sequence of the last event before this command.
	Head frames.EventCut
	// Now is the wall clock in Unix seconds, or later when that has been set back.
	Now uint64
	// Epoch and Activation in force, and whose they are.
	Epoch       frames.AuthorityEpoch
	Activation  frames.ActivationSequence
	Coordinator frames.CoordinatorID
	// Owners are the process owners as they are now. Nil means that there are none.
	Owners Owners
	// PendingOf counts what a principal and the whole server have pending, against the two
	// limits (protocol.md §2.3). Nil counts nothing.
	PendingOf                 func(frames.KeyID) (own, all uint64)
	MaxPending, MaxPendingAll uint64
	// NewEventID draws a fresh id, for events and for what the server names itself.
	NewEventID func() (frames.EventID, error)
	// MaxPayload is the server's own typed-payload offer, which bounds every event [D-6].
	// Zero means the reference offer.
	MaxPayload int
	// Room, if there is one, is what Apply takes its memory from.
	Room *Room
	// LowDisk refuses all but the kinds that may live on the reserve [D-41].
	LowDisk bool
}

func (e *Env) owners() Owners {
	if e.Owners == nil {
		return noOwners{}
	}
	return e.Owners
}

// An Outcome is what an accepted command, a fact or an effect's result does.
type Outcome struct {
	// Result answers the command: the stored one when Duplicate, else the new one; PENDING
	// when an effect will finish it.
	Result frames.OperationResult
	// Duplicate says that the operation had been admitted before; nothing changes.
	Duplicate bool
	// Changes become durable in one commit: domain events first, OPERATION_CHANGED last,
	// then the rows that have no event.
	Changes []Change
	// Pending are the counts that change with them.
	Pending []PendingChange
}
