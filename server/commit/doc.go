// Package commit is the one writer of a coordinator. Proposals queue; the writer takes all
// that wait into one transaction, decides each with package work, makes the transaction
// durable with one flush, and only then publishes and answers (protocol.md §4, §8).
//
// It knows the store, the fence and the domain's outcomes. It knows nothing of connections
// or frames, and decides nothing itself: what a command does is package work's, whether the
// process may act is package authority's, what is durable is package store's.
//
// The fence is entered and checked before a transaction is written, and checked once more
// after it is durable; what ends past the lease deadline is neither published nor
// acknowledged [D-9]. While a transaction is flushed the next one is decided upon it
// (docs/adr/0019-the-next-commit-is-built-while-one-is-flushed.md). When the outcome of a
// write is unknown the writer stops and recovery decides.
package commit

import (
	"errors"
	"io"
	"log/slog"

	"coordinator/frames"
	"coordinator/internal/clock"
	"coordinator/server/store"
	"coordinator/server/work"
)

// Bounds of one commit. They bound how long a flush may grow and how much a recovery has
// to re-apply at once; a larger proposal is committed alone.
const (
	maxProposals  = 512
	maxBatchBytes = 1 << 20
	maxEvents     = 512
)

// Shipped limits of pending operations and effect attempts (protocol.md §2.3).
const (
	defaultMaxPending    = 10_000
	defaultMaxPendingAll = 100_000
)

// DefaultQueueLimit is the server's quota of outstanding requests (protocol.md §2.3).
const DefaultQueueLimit = 8192

// A Fence says whether the process may act. *authority.Fence is one. Its errors match
// authority.ErrDiverged (wait for Changed) or authority.ErrFenced (final).
type Fence interface {
	Check() error
	// Enter is Check for work that a stop must wait for, until leave is called.
	Enter() (leave func(), err error)
	// Changed is closed at the next renewal and when the fence closes.
	Changed() <-chan struct{}
	Guard() frames.AuthorityGuard
}

// A Grant is the authentication that a proposal was made under. Err is non-nil once it is
// revoked or expired. Grants can be compared: those of one connection are one.
type Grant interface {
	Err(now clock.Reading) error
}

// Options configure [New].
type Options struct {
	Store *store.Store
	Fence Fence
	Clock clock.Clock
	Rand  io.Reader // source of event ids
	// Publish is called on the writer's goroutine after each commit that is durable and
	// still inside the lease, before its replies, in commit order. It must not block and
	// must not call the writer. Nil is ignored.
	Publish func(store.Batch)
	// Round is called on the writer's goroutine with the number of commands and own changes
	// of each commit that is out. It must not block. Nil is ignored.
	Round func(items int)
	// QueueLimit bounds the proposals, and apart from them the calls, that are not yet
	// answered. Zero means DefaultQueueLimit.
	QueueLimit int
	// QueueLimitEach bounds the proposals of one principal among them, over whatever
	// connections they came. Zero means QueueLimit.
	QueueLimitEach int
	// MaxPayload is the server's own typed-payload offer in bytes [D-6]. Zero means the
	// reference offer.
	MaxPayload int
	// Owners tells which process owners are there; it must not block. Nil means that there
	// are none.
	Owners work.Owners
	// MaxPending bounds the pending operations and effect attempts of a principal and
	// MaxPendingAll those of all (protocol.md §2.3). Zero means the shipped limits.
	MaxPending, MaxPendingAll uint64
	// LowDisk reports that the disk reserve is reached [D-41]. Nil means never.
	LowDisk func() bool
	// Logger gets a line for each failure to read. Nil discards.
	Logger *slog.Logger
}

// A Proposal is one command on its way to a commit.
type Proposal struct {
	Command *work.Command
	// Guard that the request carried. It is required, and compared again immediately before
	// the command is applied.
	Guard frames.AuthorityGuard
	// Grant is checked again immediately before the command is applied.
	Grant Grant
	// Done is called exactly once, unless Propose fails. It runs on the goroutine of the
	// writer (or, when a read fails, of its reader) and must not block.
	//
	// With a nil error the result is durable, published and may be acknowledged. A
	// *[work.Refusal] means that the command was not carried out. An error that matches
	// [ErrUnacknowledged] leaves the outcome to the next activation: the request must not be
	// answered, not even refused.
	Done func(frames.OperationResult, error)
}

// ErrStopped is the *[work.Refusal] of what was not begun when the writer stopped. It
// certainly was not carried out.
var ErrStopped error = frames.Refuse(frames.CodeAuthorityFenced, "the coordinator is stopping; the request was not carried out")

// ErrUnacknowledged means that a command may be, or even is, durable, but that this process
// may no longer say so: the write has an unknown outcome, or the fence closed before the
// flush returned.
var ErrUnacknowledged = errors.New("the outcome may not be acknowledged")
