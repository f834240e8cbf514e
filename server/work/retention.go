package work

import (
	"encoding/binary"
	"math"

	"coordinator/codec"
	"coordinator/frames"
)

// A Due is one operation whose retention ends, or has to be looked at again, at the time
// that the row's id begins with.
//
//	version:u8(1) || operation_id:16 || since:u64
type Due struct {
	Operation frames.OperationID
	// Since is when the period that ends began, in Unix seconds: at the operation's
	// completion, or when it became a tombstone.
	Since uint64
}

// Image lays the annex out.
func (d *Due) Image(i *codec.Image) {
	imgVersion(i)
	codec.ImgID16(i, &d.Operation)
	codec.ImgU64(i, &d.Since)
}

// DecodeDue reads the annex of a row of [DueKind].
func DecodeDue(annex []byte) (Due, error) {
	var d Due
	return d, decodeAnnex("a due operation", &d, annex)
}

// DueRef names a row of [DueKind]: rows of an earlier time come first. seq makes it the only
// one of its second.
func DueRef(at uint64, seq frames.EventSequence) frames.ObjectRef {
	ref := frames.ObjectRef{Kind: kindDue}
	binary.BigEndian.PutUint64(ref.ID[:], at)
	binary.BigEndian.PutUint64(ref.ID[8:], uint64(seq))
	return ref
}

// dueSequence is the sequence in the id of a due row.
func dueSequence(ref frames.ObjectRef) frames.EventSequence {
	return frames.EventSequence(binary.BigEndian.Uint64(ref.ID[8:]))
}

// after adds a period to a time; beyond the end of time is never.
func after(at, period uint64) uint64 {
	if period > math.MaxUint64-at {
		return math.MaxUint64
	}
	return at + period
}

// ends is the first second at which a period has passed for certain: neither time says how
// much of its second had gone by, and a result stays at least that long (§8).
func ends(since, period uint64) uint64 { return after(after(since, period), 1) }

// schedule has an operation looked at when a period since has passed. seq is that of an
// event of this operation's that no other row is for.
func (t *txn) schedule(op frames.OperationID, since, period uint64, seq frames.EventSequence) error {
	return t.keep(DueRef(ends(since, period), seq), false, &Due{Operation: op, Since: since})
}

// waitRef names the row that says which tombstone stays while an object does.
func waitRef(ref frames.ObjectRef) frames.ObjectRef {
	return frames.ObjectRef{Kind: kindWaits + ref.Kind, ID: ref.ID}
}

// waiting reads the rows of the tombstones that stay with objects.
func (t *txn) waiting(heads []Head) (map[frames.ObjectRef]Head, error) {
	refs := make([]frames.ObjectRef, len(heads))
	for i := range heads {
		refs[i] = waitRef(heads[i].Ref)
	}
	rows, err := t.heads(refs)
	out := make(map[frames.ObjectRef]Head, len(rows))
	for i := range rows {
		out[rows[i].Ref] = rows[i]
	}
	return out, err
}

// awake has the tombstone that stayed with an object looked at, now that it is removed.
func (t *txn) awake(h *Head, waits map[frames.ObjectRef]Head, removed frames.EventSequence) error {
	row, found := waits[waitRef(h.Ref)]
	if !found {
		return nil
	}
	d, err := DecodeDue(row.Annex)
	if err != nil {
		return err
	}
	t.drop(row.Ref)
	return t.keep(DueRef(t.env.Now, removed), false, &d)
}

// RetireRefs names what [Retire] reads first for a due row.
func RetireRefs(row frames.ObjectRef, d Due) []frames.ObjectRef {
	return []frames.ObjectRef{row, OperationRef(d.Operation)}
}

// Retire looks at operations whose time has come, by their due rows, at now in Unix seconds
// (protocol.md §8 [D-42]). A final body becomes TOMBSTONED, with its event. A tombstone that
// has stayed for one further period goes without one, unless an object that the operation
// created remains: then it waits for that object's removal. A row that is not due by now,
// since a longer retention has been advertised, is put off.
func Retire(v View, rows []frames.ObjectRef, now uint64, env Env) (Outcome, error) {
	t := newTxn(v, env)
	if err := t.retireAll(rows, now); err != nil {
		return Outcome{}, err
	}
	return t.outcome(), nil
}

// A retiring is one due row with its operation.
type retiring struct {
	row    frames.ObjectRef
	due    Due
	stored Stored
	op     frames.Operation
	meta   OpMeta
	// period that has to pass since due.Since.
	period uint64
}

func (t *txn) retireAll(rows []frames.ObjectRef, now uint64) error {
	var tombstones []*retiring
	var created []frames.ObjectRef
	for _, row := range rows {
		r, err := t.retiring(row)
		if err != nil {
			return err
		}
		switch {
		case r == nil: // it was looked at before
		case ends(r.due.Since, r.period) > now:
			t.drop(row)
			if err := t.schedule(r.due.Operation, r.due.Since, r.period, dueSequence(row)); err != nil {
				return err
			}
		case r.op.Result.State == frames.OperationTombstoned:
			tombstones = append(tombstones, r)
			created = append(created, r.meta.Created...)
		default:
			if err := t.entomb(r, now); err != nil {
				return err
			}
		}
	}
	heads, err := t.heads(created)
	if err != nil {
		return err
	}
	remains := make(map[frames.ObjectRef]bool, len(heads))
	for i := range heads {
		remains[heads[i].Ref] = true
	}
	for _, r := range tombstones {
		if err := t.prune(r, remains); err != nil {
			return err
		}
	}
	return nil
}

// retiring reads a due row and its operation; nil when there is nothing to do for it.
func (t *txn) retiring(row frames.ObjectRef) (*retiring, error) {
	r := &retiring{row: row}
	found, err := t.kept("a due operation", row, &r.due)
	if err != nil || !found {
		return nil, err
	}
	r.stored, found, err = t.load(OperationRef(r.due.Operation), &r.op, &r.meta)
	if err != nil {
		return nil, err
	}
	if !found || !r.op.Result.State.Final() {
		t.drop(row)
		return nil, nil
	}
	r.period, err = RetentionPromise(t, r.meta)
	return r, err
}

// entomb takes the body of a final operation away.
func (t *txn) entomb(r *retiring, now uint64) error {
	rev, err := nextRevision(r.stored.Record.Revision)
	if err != nil {
		return err
	}
	seq, err := t.next()
	if err != nil {
		return err
	}
	result := frames.OperationResult{State: frames.OperationTombstoned, Digest: r.meta.Digest, Final: r.op.Result.State}
	if err := t.putOperation(OperationRef(r.due.Operation), rev, r.stored.Principal, result, r.meta); err != nil {
		return err
	}
	t.drop(r.row)
	return t.schedule(r.due.Operation, max(now, t.env.Now), r.period, seq)
}

// prune removes a tombstone without an event, unless an object that its operation created
// remains: then the tombstone waits with that object.
func (t *txn) prune(r *retiring, remains map[frames.ObjectRef]bool) error {
	t.drop(r.row)
	for _, ref := range r.meta.Created {
		if remains[ref] {
			return t.keep(waitRef(ref), false, &r.due)
		}
	}
	t.drop(OperationRef(r.due.Operation))
	return nil
}
