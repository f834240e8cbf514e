// Package outbox is the coordinator's end of the owner links: it keeps one link to each
// configured process owner, sends effects once, looks up what may have been sent, and takes
// the owners' source facts into the store (protocol.md §8.1, §11; links.md, Owner).
//
// It decides nothing: what an outcome or a fact means is package work's, and package commit
// makes it durable. An effect leaves only after DISPATCHED is durable, a fact is acknowledged
// only after its commit, and nothing leaves a process whose fence has closed.
//
// What is known of the store comes from one scan at the start and from every commit since
// ([Outbox.Publish]); queues are bounded by the quota of pending effects and by the credit
// that was given for facts.
package outbox

import (
	"context"
	"io"
	"log/slog"
	"time"

	"coordinator/frames"
	"coordinator/internal/clock"
	"coordinator/owner"
	"coordinator/server/commit"
)

// Sizes of one link.
const (
	// factCredit is how many facts of one binding may be on their way.
	factCredit = 64
	// factBatch is how many of them are decided in one change.
	factBatch = 32
	// factChanges bounds the changes of one link that wait for the writer.
	factChanges = 256
	// effectWorkers bounds the attempts of one link that wait for the owner's answer.
	effectWorkers = 64
	// maxReported bounds the bindings that an owner has reported and nobody has judged yet.
	maxReported = 1 << 20
	// openWorkers bounds the bindings that are opened at once.
	openWorkers = 16

	firstRedial = 100 * time.Millisecond
	lastRedial  = 10 * time.Second
)

// A Link is one proved connection to an owner. *owner.Client is one.
type Link interface {
	Incarnation() frames.IncarnationID
	Groups() []frames.GroupID
	Authority(context.Context, frames.Certificate) error
	Dispatch(context.Context, frames.AuthorityGuard, *frames.EffectAttempt) (owner.Result, error)
	GetEffect(context.Context, frames.AuthorityGuard, frames.EffectAttemptID, [32]byte) (owner.Result, error)
	OpenFacts(ctx context.Context, g frames.AuthorityGuard, b frames.BindingID, after uint64, credit uint32) error
	FactAck(ctx context.Context, b frames.BindingID, through uint64, add uint32) error
	Done() <-chan struct{}
	Err() error
	Close() error
}

// Handlers take what an owner sends unasked. They never wait.
type Handlers struct {
	Bindings func([]frames.BindingID)
	Fact     func(*frames.TerminalSourceFact)
	FactsEnd func(binding frames.BindingID, last uint64)
}

// An Owner is one configured process owner.
type Owner struct {
	Name        string // for people
	Fingerprint frames.Fingerprint
	// Dial connects and proves both sides. Nothing may be handed to h after the link's Close.
	Dial func(ctx context.Context, h Handlers) (Link, error)
}

// A Fence says whether the process may act. *authority.Fence is one.
type Fence interface {
	Check() error
	Changed() <-chan struct{}
	Current() frames.Certificate
	Guard() frames.AuthorityGuard
}

// Options configure [New].
type Options struct {
	Owners []Owner
	Writer *commit.Writer
	Fence  Fence
	// Authorised reports whether a principal's registry record is unrevoked, unexpired and
	// holds the scopes now [D-46]. It must not block.
	Authorised func(frames.KeyID, frames.Scope) bool
	Clock      clock.Clock
	Rand       io.Reader
	// Logger gets a line when a link comes up or goes down. Nil discards.
	Logger *slog.Logger
}
