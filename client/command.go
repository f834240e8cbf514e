package client

import (
	"context"
	"errors"
	"fmt"

	"coordinator/codec"
	"coordinator/frames"
)

// A Command is a COORD_COMMAND without what belongs to a connection. The same Command
// under the same OperationID is the same operation, however often it is sent.
type Command struct {
	// OperationID is chosen by the caller and never zero; see [frames.NewID].
	OperationID frames.OperationID
	Kind        frames.CommandKind
	// Payload is the command's TLV body, as [codec.Encode] makes it.
	Payload []byte
	// Preconditions are the revisions that must hold, in any order.
	Preconditions []frames.Precondition
}

// NewCommand makes a command of kind with the payload body.
func NewCommand(op frames.OperationID, kind frames.CommandKind, body codec.Message, pre ...frames.Precondition) (Command, error) {
	payload, err := codec.Encode(nil, body)
	if err != nil {
		return Command{}, fmt.Errorf("%v: %w", kind, err)
	}
	return Command{OperationID: op, Kind: kind, Payload: payload, Preconditions: pre}, nil
}

// request lays the command out for one connection.
func (cmd *Command) request(id frames.RequestID, guard frames.AuthorityGuard) *frames.CoordCommand {
	return &frames.CoordCommand{
		RequestID: id, Guard: guard, OperationID: cmd.OperationID, Kind: cmd.Kind,
		Payload: cmd.Payload, Preconditions: cmd.Preconditions,
	}
}

// Digest is the operation digest of the command (protocol.md §8).
func (cmd *Command) Digest() ([32]byte, error) {
	return frames.OperationDigest(cmd.request(1, frames.AuthorityGuard{}))
}

// Command sends cmd and waits for its result. A PENDING result is no error: the end comes
// later, by event or by Lookup.
//
// The error is a *[RefusedError] when the coordinator refused and nothing was done; it
// matches [ErrNotSent] when the command certainly never left; and it is an
// *[OutcomeUnknownError] when it may have run. The operation then stays among the
// unresolved ones of the [State] until its result is known.
func (c *Conn) Command(ctx context.Context, cmd Command) (frames.OperationResult, error) {
	var none frames.OperationResult
	if err := c.allowed(); err != nil {
		return none, err
	}
	if cmd.OperationID == (frames.OperationID{}) {
		return none, notSent(errors.New("the command has no operation id"))
	}
	digest, err := cmd.Digest()
	if err != nil {
		return none, notSent(err)
	}
	begun, err := c.begin(ctx, cmd.OperationID, digest)
	if err != nil {
		return none, notSent(err)
	}
	result, started, err := c.exchange(ctx, &cmd)
	switch {
	case err == nil:
		c.settle(cmd.OperationID, result)
		return result, nil
	case !started:
		return none, errors.Join(err, c.unbegin(cmd.OperationID, begun))
	}
	var refused *RefusedError
	if errors.As(err, &refused) {
		return none, errors.Join(err, c.unbegin(cmd.OperationID, begun))
	}
	if _, jerr := c.state.begin(cmd.OperationID, digest, true); jerr != nil {
		err = errors.Join(err, jerr)
	}
	return none, &OutcomeUnknownError{cmd.OperationID, err}
}

// exchange sends the command and waits for its reply. started reports whether any byte of
// it may have left.
func (c *Conn) exchange(ctx context.Context, cmd *Command) (r frames.OperationResult, started bool, err error) {
	k, err := c.open(ctx, frames.TypeCoordCommandResult)
	if err != nil {
		return r, false, err
	}
	if started, err = c.send(ctx, k, cmd.request(k.id, c.guard)); err != nil {
		return r, started, err
	}
	f, err := c.await(ctx, k)
	if err != nil {
		return r, true, err
	}
	return f.(*frames.CoordCommandResult).Operation, true, nil
}

// journalRoom is how many places a full journal is asked for at a time: each costs a write.
const journalRoom = 64

// begin records an operation before it is sent. Where the journal is full it first asks what
// became of the operations in it: one that was PENDING when it was answered may have ended
// since, and nobody may have asked.
func (c *Conn) begin(ctx context.Context, op frames.OperationID, digest [32]byte) (begun bool, err error) {
	begun, err = c.state.begin(op, digest, c.opts.Journal)
	if !errors.Is(err, ErrJournalFull) {
		return begun, err
	}
	room := 0
	for _, u := range c.state.Unresolved() {
		if u.Indeterminate {
			continue // nobody can tell
		}
		result, lerr := c.lookup(ctx, u.OperationID)
		if lerr != nil {
			return false, errors.Join(err, lerr)
		}
		if result.State.Final() {
			c.settle(u.OperationID, result)
			room++
		}
		if room == journalRoom {
			break
		}
	}
	return c.state.begin(op, digest, c.opts.Journal)
}

// unbegin takes back the journal entry that this call made for an operation that did not
// run. An entry of an earlier attempt stays: that one may have run.
func (c *Conn) unbegin(op frames.OperationID, begun bool) error {
	if !begun {
		return nil
	}
	return c.state.Forget(op)
}

// settle records a result: the cut that it shows, and whether it resolves the operation. A
// failure does not make the result any less true: Close tells it.
func (c *Conn) settle(op frames.OperationID, r frames.OperationResult) {
	cut := cutSeen{Activation: c.guard.Activation, Sequence: frames.EventCut(r.Sequence)}
	if !c.verified.Load() {
		cut.Sequence = 0 // the cut of an unverified authority is held against the old one first (D-26)
	}
	if err := c.state.settle(op, r.State.Final(), cut, c.opts.Journal); err != nil {
		c.mu.Lock()
		c.unkept = err
		c.mu.Unlock()
	}
}

// Lookup asks for the result of an operation. UNKNOWN means that this authority has no
// such operation, or none that this key may see; it never proves that nothing ran.
func (c *Conn) Lookup(ctx context.Context, op frames.OperationID) (frames.OperationResult, error) {
	result, err := c.lookup(ctx, op)
	if err == nil {
		c.settle(op, result)
	}
	return result, err
}

// lookup is Lookup that remembers nothing.
func (c *Conn) lookup(ctx context.Context, op frames.OperationID) (frames.OperationResult, error) {
	f, err := c.roundTrip(ctx, frames.TypeOperationResult, func(id frames.RequestID) frames.Frame {
		return &frames.GetOperationResult{RequestID: id, Guard: c.guard, OperationID: op}
	})
	if err != nil {
		return frames.OperationResult{}, err
	}
	return f.(*frames.OperationResultFrame).Operation, nil
}

// Retry finds out what became of cmd and sends it again only when the coordinator does not
// know it (protocol.md §4 [D-44]). It refuses another command than the one that this
// client began under the same id, and one whose history was lost. A result that this
// client cannot tie to cmd by itself is asked for by sending cmd, whose digest the
// coordinator compares: that never runs anything twice.
func (c *Conn) Retry(ctx context.Context, cmd Command) (frames.OperationResult, error) {
	digest, err := cmd.Digest()
	if err != nil {
		return frames.OperationResult{}, notSent(err)
	}
	known, err := c.state.begunWith(cmd.OperationID, digest)
	if err != nil {
		return frames.OperationResult{}, notSent(err)
	}
	result, err := c.Lookup(ctx, cmd.OperationID)
	if err != nil {
		if known {
			return result, &OutcomeUnknownError{cmd.OperationID, err}
		}
		return result, err
	}
	if result.State == frames.OperationTombstoned && result.Digest != digest {
		return frames.OperationResult{}, notSent(&OtherCommandError{cmd.OperationID})
	}
	if known && result.State != frames.OperationUnknown {
		return result, nil
	}
	return c.Command(ctx, cmd)
}
