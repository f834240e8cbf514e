package work

import (
	"errors"
	"math"
	"slices"

	"coordinator/frames"
)

// operationSlack is what an OPERATION row and its event take beside the command's own
// record, in bytes of a log record; an upper bound.
const operationSlack = 1 << 10

// A Command is a parsed COORD_COMMAND: well-formed, permitted and digested. It aliases the
// frame that it was parsed from.
type Command struct {
	ID            frames.OperationID
	Kind          frames.CommandKind
	Digest        [32]byte
	From          Viewer
	preconditions []frames.Precondition
	size          int
	row           *kind
	action        action
}

// Parse checks cmd in the order of protocol.md §8 [D-18], from the kind to the bounds of
// the payload; the guard was checked before. maxPayload is the typed-payload limit that the
// connection selected. Errors are *[Refusal].
func Parse(cmd *frames.CoordCommand, from Viewer, maxPayload uint32) (*Command, error) {
	if cmd.Kind == 0 {
		return nil, frames.Refuse(frames.CodeMalformedMessage, "command kind is zero")
	}
	row := kinds[cmd.Kind]
	if row == nil || !Capabilities.Has(row.gate) || !from.Capabilities.Has(row.gate) {
		return nil, frames.Refuse(frames.CodeCapabilityRequired, "command kind %d is unknown, or its capability was not negotiated", cmd.Kind)
	}
	if !from.Scope.Has(row.scope) {
		return nil, frames.Refuse(frames.CodeScopeDenied, "the grant does not hold the scope of %v", cmd.Kind)
	}
	if uint64(len(cmd.Payload)) > uint64(maxPayload) {
		return nil, frames.Refuse(frames.CodeMalformedMessage, "%v: payload is over the selected limit of %d bytes", cmd.Kind, maxPayload)
	}
	act, err := row.parse(cmd.Payload, from)
	if err != nil {
		var r *Refusal
		if errors.As(err, &r) {
			return nil, r
		}
		return nil, frames.Refuse(frames.CodeMalformedMessage, "%v: payload: %v", cmd.Kind, err)
	}
	digest, err := frames.OperationDigest(cmd)
	if err != nil {
		return nil, frames.Refuse(frames.CodeMalformedMessage, "%v: %v", cmd.Kind, err)
	}
	return &Command{
		ID: cmd.OperationID, Kind: cmd.Kind, Digest: digest, From: from,
		preconditions: cmd.Preconditions, size: len(cmd.Payload) + operationSlack, row: row, action: act,
	}, nil
}

// Ref names the OPERATION record of the command.
func (c *Command) Ref() frames.ObjectRef { return OperationRef(c.ID) }

// OperationRef names the OPERATION record of an operation id (protocol.md §8).
func OperationRef(id frames.OperationID) frames.ObjectRef {
	return frames.ObjectRef{Kind: frames.KindOperation, ID: frames.ObjectID(id)}
}

// Refs names every record that [Apply] may read, each once: what must be prefetched.
func (c *Command) Refs() []frames.ObjectRef {
	refs := append([]frames.ObjectRef{c.Ref(), RetentionRef()}, c.action.refs()...)
	for _, p := range c.preconditions {
		refs = append(refs, p.Object)
	}
	slices.SortFunc(refs, frames.ObjectRef.Compare)
	return slices.Compact(refs)
}

// Size is an upper estimate, in bytes, of what the command adds to a commit.
func (c *Command) Size() int { return c.size }

// Events is the most events that the command emits.
func (c *Command) Events() int { return c.row.events }

// Apply decides c on the state v: duplicate lookup, quotas, preconditions, conditions and
// admission, in the order of protocol.md §8 [D-18]. A *[Refusal] leaves no record. Apply
// changes nothing itself.
func Apply(v View, c *Command, env Env) (Outcome, error) {
	stored, found, err := v.Record(c.Ref())
	if err != nil {
		return Outcome{}, err
	}
	if found {
		return duplicate(c, stored)
	}
	if len(c.preconditions) > frames.PreconditionsPerCommand {
		return Outcome{}, frames.Refuse(frames.CodeResourceExhausted, "more than %d preconditions", frames.PreconditionsPerCommand)
	}
	if env.LowDisk && !c.row.onReserve {
		return Outcome{}, frames.Refuse(frames.CodeResourceExhausted, "the disk is nearly full; %v is refused until there is room", c.Kind)
	}
	if err := c.checkPreconditions(v); err != nil {
		return Outcome{}, err
	}
	t := txn{view: v, env: env, cmd: c, head: env.Head}
	result, err := c.action.apply(&t)
	if err != nil {
		return Outcome{}, err
	}
	return t.finish(result)
}

// duplicate answers a command whose operation id is in use. Another principal or another
// digest learns nothing but that.
func duplicate(c *Command, stored Stored) (Outcome, error) {
	meta, err := DecodeOpMeta(stored.Annex)
	if err != nil {
		return Outcome{}, err
	}
	if stored.Principal != c.From.Principal || meta.Digest != c.Digest {
		return Outcome{}, frames.Refuse(frames.CodeOperationConflict, "the operation id is in use for something else")
	}
	result, err := storedResult(stored)
	if err != nil {
		return Outcome{}, err
	}
	return Outcome{Result: result, Duplicate: true}, nil
}

// checkPreconditions compares the revisions that the command expects. What the principal
// can neither see nor change by this command counts as absent, revision 0 [D-55].
func (c *Command) checkPreconditions(v View) error {
	for _, p := range c.preconditions {
		stored, found, err := v.Record(p.Object)
		if err != nil {
			return err
		}
		var have uint64
		if found && (VisibleToLookup(p.Object.Kind, stored.Principal, c.From) || slices.Contains(c.action.refs(), p.Object)) {
			have = uint64(stored.Record.Revision)
		}
		if have != p.Revision {
			return frames.Refuse(frames.CodeRevisionConflict, "a precondition on %v does not hold", p.Object.Kind)
		}
	}
	return nil
}

// A txn collects what one command changes. Actions finish their checks before their first
// put.
type txn struct {
	view    View
	env     Env
	cmd     *Command
	head    frames.EventCut
	changes []Change
	silent  []Change // without event; they go last
	created []frames.ObjectRef
}

// next gives the sequence of the event that is put next.
func (t *txn) next() (frames.EventSequence, error) {
	if t.head == math.MaxUint64 {
		return 0, ErrWrapped
	}
	return frames.EventSequence(t.head) + 1, nil
}

// put announces a new version of a record. Whether it is live follows from its payload.
func (t *txn) put(event frames.EventKind, live bool, s Stored) error {
	if _, err := t.next(); err != nil {
		return err
	}
	id, err := t.env.NewEventID()
	if err != nil {
		return err
	}
	limit := t.env.MaxPayload
	if limit == 0 {
		limit = int(frames.ReferenceLimits().TypedPayload)
	}
	if size := s.Record.Size(); size > limit {
		return frames.Refuse(frames.CodeResourceExhausted, "the resulting %v of %d bytes is over this server's limit of %d", s.Record.Kind, size, limit)
	}
	if s.Record.Revision == 1 {
		t.created = append(t.created, s.Record.Ref())
	}
	t.head++
	t.changes = append(t.changes, Change{Event: event, EventID: id, Stored: s, Live: live})
	return nil
}

// finish admits and completes the operation in one: OPERATION_CHANGED, revision 1, final.
func (t *txn) finish(r success) (Outcome, error) {
	seq, err := t.next()
	if err != nil {
		return Outcome{}, err
	}
	retention, err := Retention(t.view)
	if err != nil {
		return Outcome{}, err
	}
	result := frames.OperationResult{
		State: frames.OperationSucceeded, Sequence: seq, Kind: r.kind, Payload: r.payload,
	}
	meta := OpMeta{
		Digest: t.cmd.Digest, Kind: t.cmd.Kind, Epoch: t.env.Epoch, CompletedAt: t.env.Now, FinalSequence: seq,
		RetentionSecs: retention.OperationResultSecs, Created: t.created,
	}
	record, err := frames.NewRecord(t.cmd.Ref(), 1, &frames.Operation{Principal: t.cmd.From.Principal, Result: result})
	if err != nil {
		return Outcome{}, err
	}
	annex, err := meta.Encode()
	if err != nil {
		return Outcome{}, err
	}
	if err := t.put(frames.EventOperationChanged, false, Stored{Record: record, Principal: t.cmd.From.Principal, Annex: annex}); err != nil {
		return Outcome{}, err
	}
	return Outcome{Result: result, Changes: append(t.changes, t.silent...)}, nil
}
