package work

import (
	"errors"
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
	if f, ok := act.(conditioned); ok {
		if err := f.checkForm(cmd.Preconditions); err != nil {
			return nil, err
		}
	}
	digest, err := frames.OperationDigest(cmd)
	if err != nil {
		return nil, frames.Refuse(frames.CodeMalformedMessage, "%v: %v", cmd.Kind, err)
	}
	return &Command{
		ID: cmd.OperationID, Kind: cmd.Kind, Digest: digest, From: from,
		preconditions: cmd.Preconditions, size: (1 + row.copies) * (len(cmd.Payload) + operationSlack), row: row, action: act,
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
	named := c.action.refs()
	refs := append(make([]frames.ObjectRef, 0, 2+len(named)+len(c.preconditions)), c.Ref(), RetentionRef())
	refs = append(refs, named...)
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
	if err := env.mayPend(c.From.Principal, c.row.pending); err != nil {
		return Outcome{}, err
	}
	if err := c.checkPreconditions(v); err != nil {
		return Outcome{}, err
	}
	t := new(txn)
	if env.Room != nil {
		t = env.Room.empty()
	}
	t.begin(v, env).cmd = c
	return c.action.apply(t)
}

// mayPend charges n pending operations and effect attempts of a principal before they are
// admitted (protocol.md §2.3).
func (e *Env) mayPend(p frames.KeyID, n uint64) error {
	if n == 0 || e.PendingOf == nil {
		return nil
	}
	own, all := e.PendingOf(p)
	switch {
	case own+n > e.MaxPending:
		return frames.Refuse(frames.CodeResourceExhausted, "the principal has %d pending operations and effect attempts", own)
	case all+n > e.MaxPendingAll:
		return frames.Refuse(frames.CodeResourceExhausted, "the server has %d pending operations and effect attempts", all)
	}
	return nil
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

// A changer is an action that does not change just what it names: its payload names what it
// only decides on, or what it changes hangs on what it names.
type changer interface {
	changes(t *txn) ([]frames.ObjectRef, error)
}

// changed names what the command can change, for its preconditions.
func (c *Command) changed(v View) ([]frames.ObjectRef, error) {
	if a, ok := c.action.(changer); ok {
		return a.changes(newTxn(v, Env{}))
	}
	return c.action.refs(), nil
}

// checkPreconditions compares the revisions that the command expects. What the principal
// can neither see nor change by this command counts as absent, revision 0 [D-55].
func (c *Command) checkPreconditions(v View) error {
	if len(c.preconditions) == 0 {
		return nil
	}
	changed, err := c.changed(v)
	if err != nil {
		return err
	}
	for _, p := range c.preconditions {
		stored, found, err := v.Record(p.Object)
		if err != nil {
			return err
		}
		var have uint64
		if found && (VisibleToLookup(p.Object.Kind, stored.Principal, c.From) || slices.Contains(changed, p.Object)) {
			have = uint64(stored.Record.Revision)
		}
		if have != p.Revision {
			return frames.Refuse(frames.CodeRevisionConflict, "a precondition on %v does not hold", p.Object.Kind)
		}
	}
	return nil
}
