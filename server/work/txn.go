package work

import (
	"fmt"
	"math"

	"coordinator/codec"
	"coordinator/frames"
)

// A txn collects what one command, fact or effect result changes, and reads its own changes.
// Its users finish their checks before their first put.
type txn struct {
	view    View
	env     Env
	cmd     *Command // nil when it is not a command's
	head    frames.EventCut
	changes []Change
	// quiet and silent are the rows that change without an event, which go last, each as it
	// is then.
	quiet   []frames.ObjectRef
	silent  map[frames.ObjectRef]*Change
	created []frames.ObjectRef
	own     map[frames.ObjectRef]*Stored // nil: removed
	pending []PendingChange
	ends    []func() error // finish operations, behind every other event [D-35]
	room    *Room          // or nil
}

// usualChanges is room for what most commands change.
const usualChanges = 6

func newTxn(v View, env Env) *txn { return new(txn).begin(v, env) }

// begin readies a transaction that is new, or that its room has emptied.
func (t *txn) begin(v View, env Env) *txn {
	if t.changes == nil {
		t.changes = make([]Change, 0, usualChanges)
		t.own, t.silent = make(map[frames.ObjectRef]*Stored), make(map[frames.ObjectRef]*Change)
	}
	t.view, t.env, t.head = v, env, env.Head
	return t
}

// A Room is memory for one [Apply] after the other: what an [Outcome] lists is good until the
// next one in the same room. The zero value is ready.
type Room struct {
	t txn
	// What the RETENTION record said when it was last decoded, and its payload, which does not
	// change: every command asks for it.
	payload    []byte
	resultSecs uint64
}

// keptChanges is how many changes a room has place for: one large decision must not hold its
// memory for good.
const keptChanges = 64

// empty forgets the last decision.
func (r *Room) empty() *txn {
	t := &r.t
	if cap(t.changes) > keptChanges || len(t.own) > keptChanges {
		*t = txn{room: r}
		return t
	}
	clear(t.changes[:cap(t.changes)])
	clear(t.own)
	clear(t.silent)
	*t = txn{changes: t.changes[:0], quiet: t.quiet[:0], own: t.own, silent: t.silent, room: r}
	return t
}

// Record makes the transaction a [View] with its own changes in it.
func (t *txn) Record(ref frames.ObjectRef) (Stored, bool, error) {
	if s, ok := t.own[ref]; ok {
		if s == nil {
			return Stored{}, false, nil
		}
		return *s, true, nil
	}
	return t.view.Record(ref)
}

// next gives the sequence of the event that is put next.
func (t *txn) next() (frames.EventSequence, error) {
	if t.head == math.MaxUint64 {
		return 0, ErrWrapped
	}
	return frames.EventSequence(t.head) + 1, nil
}

// fresh draws an id that nothing has.
func (t *txn) fresh() ([16]byte, error) {
	id, err := t.env.NewEventID()
	return id, err
}

// put announces a new version of a record. Whether it is live follows from its payload.
func (t *txn) put(event frames.EventKind, live bool, s Stored) error {
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
	return t.emit(Change{Event: event, Stored: s, Live: live})
}

// emit gives a change its event.
func (t *txn) emit(c Change) error {
	if _, err := t.next(); err != nil {
		return err
	}
	id, err := t.env.NewEventID()
	if err != nil {
		return err
	}
	c.EventID = id
	t.head++
	t.changes = append(t.changes, c)
	t.see(&t.changes[len(t.changes)-1])
	delete(t.silent, c.Ref()) // this version is newer
	return nil
}

// silently changes a row without an event.
func (t *txn) silently(c Change) {
	ref := c.Ref()
	t.quiet = append(t.quiet, ref)
	t.silent[ref] = &c
	t.see(&c)
}

// see lets the transaction read what it changes. c does not change any more.
func (t *txn) see(c *Change) {
	if c.Removed {
		t.own[c.Ref()] = nil
		return
	}
	t.own[c.Ref()] = &c.Stored
}

// putRecord encodes and puts a version of a record with its annex.
func (t *txn) putRecord(event frames.EventKind, live bool, ref frames.ObjectRef, rev frames.ObjectRevision, payload codec.Message, annex codec.Value) error {
	record, err := frames.NewRecord(ref, rev, payload)
	if err != nil {
		return err
	}
	s := Stored{Record: record}
	if annex != nil {
		if s.Annex, err = codec.EncodeImage(nil, annex); err != nil {
			return fmt.Errorf("work: annex of %v: %w", ref.Kind, err)
		}
	}
	return t.put(event, live, s)
}

// rewrite changes the annex of a record and nothing that anybody sees.
func (t *txn) rewrite(s Stored, live bool, annex codec.Value) error {
	raw, err := codec.EncodeImage(nil, annex)
	if err != nil {
		return fmt.Errorf("work: annex of %v: %w", s.Record.Kind, err)
	}
	s.Annex = raw
	t.silently(Change{Stored: s, Live: live})
	return nil
}

// keep writes an internal row.
func (t *txn) keep(ref frames.ObjectRef, live bool, annex codec.Value) error {
	return t.rewrite(Stored{Record: frames.SnapshotRecord{Kind: ref.Kind, ID: ref.ID, Revision: 1}}, live, annex)
}

// drop removes a row without an event.
func (t *txn) drop(ref frames.ObjectRef) {
	t.silently(Change{
		Stored: Stored{Record: frames.SnapshotRecord{Kind: ref.Kind, ID: ref.ID, Revision: 1}}, Removed: true,
	})
}

// kept reads an internal row.
func (t *txn) kept(what string, ref frames.ObjectRef, into codec.Value) (bool, error) {
	s, found, err := t.Record(ref)
	if err != nil || !found {
		return false, err
	}
	return true, decodeAnnex(what, into, s.Annex)
}

// load reads a record with its payload and annex. annex may be nil.
func (t *txn) load(ref frames.ObjectRef, payload codec.Message, annex codec.Value) (Stored, bool, error) {
	s, found, err := t.Record(ref)
	if err != nil || !found {
		return Stored{}, false, err
	}
	if err := codec.Decode(payload, s.Record.Payload); err != nil {
		return Stored{}, false, fmt.Errorf("work: stored %v: %w", ref.Kind, err)
	}
	if annex != nil {
		if err := decodeAnnex("a "+ref.Kind.String(), annex, s.Annex); err != nil {
			return Stored{}, false, err
		}
	}
	return s, true, nil
}

// charge counts pending operations and effect attempts of a principal.
func (t *txn) charge(p frames.KeyID, n int) {
	t.pending = append(t.pending, PendingChange{Principal: p, N: n})
}

// finish admits and completes the command's operation in one: OPERATION_CHANGED, revision 1,
// final.
func (t *txn) finish(r success) (Outcome, error) {
	if err := t.endAll(); err != nil {
		return Outcome{}, err
	}
	seq, err := t.next()
	if err != nil {
		return Outcome{}, err
	}
	return t.admit(r.at(seq), OpMeta{CompletedAt: completedAt(t.env.Now), FinalSequence: seq})
}

// completedAt is the time of completion; zero, which a clock that was never set may read,
// stands for none.
func completedAt(now uint64) uint64 { return max(now, 1) }

// pend admits the command's operation, which effects will finish (protocol.md §8).
func (t *txn) pend() (Outcome, error) {
	if err := t.endAll(); err != nil {
		return Outcome{}, err
	}
	seq, err := t.next()
	if err != nil {
		return Outcome{}, err
	}
	t.charge(t.cmd.From.Principal, 1)
	return t.admit(frames.OperationResult{State: frames.OperationPending, Epoch: t.env.Epoch, Sequence: seq}, OpMeta{})
}

// admit writes the first version of the command's operation.
func (t *txn) admit(result frames.OperationResult, meta OpMeta) (Outcome, error) {
	meta.Digest, meta.Kind, meta.Epoch, meta.Created = t.cmd.Digest, t.cmd.Kind, t.env.Epoch, t.created
	if result.State.Final() {
		var err error
		if meta.RetentionSecs, err = t.resultSecs(); err != nil {
			return Outcome{}, err
		}
		if err := t.schedule(t.cmd.ID, meta.CompletedAt, meta.RetentionSecs, meta.FinalSequence); err != nil {
			return Outcome{}, err
		}
	}
	if err := t.putOperation(t.cmd.Ref(), 1, t.cmd.From.Principal, result, meta); err != nil {
		return Outcome{}, err
	}
	out := t.outcome()
	out.Result = result
	return out, nil
}

// outcome is everything that was put.
func (t *txn) outcome() Outcome {
	changes := t.changes
	for _, ref := range t.quiet {
		if c, ok := t.silent[ref]; ok {
			changes = append(changes, *c)
			delete(t.silent, ref)
		}
	}
	return Outcome{Changes: changes, Pending: t.pending}
}

func (t *txn) putOperation(ref frames.ObjectRef, rev frames.ObjectRevision, principal frames.KeyID, result frames.OperationResult, meta OpMeta) error {
	record, err := frames.NewRecord(ref, rev, &frames.Operation{Principal: principal, Result: result})
	if err != nil {
		return err
	}
	annex, err := meta.Encode()
	if err != nil {
		return err
	}
	live := result.State == frames.OperationPending
	return t.put(frames.EventOperationChanged, live, Stored{Record: record, Principal: principal, Annex: annex})
}

// complete finishes a PENDING operation once everything else is put. Objects that came into
// being with it are named, since its tombstone stays as long as they do. An operation that
// is not pending stays as it is.
func (t *txn) complete(id frames.OperationID, result frames.OperationResult, created ...frames.ObjectRef) {
	t.ends = append(t.ends, func() error { return t.end(id, result, created) })
}

func (t *txn) end(id frames.OperationID, result frames.OperationResult, created []frames.ObjectRef) error {
	ref := OperationRef(id)
	var op frames.Operation
	var meta OpMeta
	stored, found, err := t.load(ref, &op, &meta)
	if err != nil || !found || op.Result.State != frames.OperationPending {
		return err
	}
	seq, err := t.next()
	if err != nil {
		return err
	}
	rev, err := nextRevision(stored.Record.Revision)
	if err != nil {
		return err
	}
	retention, err := Retention(t.view)
	if err != nil {
		return err
	}
	if result.State != frames.OperationIndeterminate {
		result.Sequence = seq
	}
	meta.CompletedAt, meta.FinalSequence, meta.RetentionSecs = completedAt(t.env.Now), seq, retention.OperationResultSecs
	meta.Created = append(meta.Created, created...)
	t.charge(stored.Principal, -1)
	if err := t.schedule(id, meta.CompletedAt, meta.RetentionSecs, seq); err != nil {
		return err
	}
	return t.putOperation(ref, rev, stored.Principal, result, meta)
}

// endAll finishes the operations that were completed.
func (t *txn) endAll() error {
	ends := t.ends
	t.ends = nil
	for _, end := range ends {
		if err := end(); err != nil {
			return err
		}
	}
	return nil
}

// amended is the outcome of a change that is no command's.
func (t *txn) amended(err error) (Outcome, error) {
	if err == nil {
		err = t.endAll()
	}
	if err != nil {
		return Outcome{}, err
	}
	return t.outcome(), nil
}

// result is the SUCCEEDED result, without the sequence at which it is completed.
func (s success) result() frames.OperationResult { return s.at(0) }

// at is the SUCCEEDED result completed at seq.
func (s success) at(seq frames.EventSequence) frames.OperationResult {
	return frames.OperationResult{State: frames.OperationSucceeded, Sequence: seq, Kind: s.kind, Payload: s.payload}
}

func rejected(code frames.Code, format string, args ...any) frames.OperationResult {
	return frames.OperationResult{State: frames.OperationRejected, Code: code, Message: clipText(fmt.Sprintf(format, args...))}
}

func indeterminate(reason frames.IndeterminateReason, attempt frames.EffectAttemptID) frames.OperationResult {
	return frames.OperationResult{State: frames.OperationIndeterminate, Reason: reason, Attempt: attempt}
}
