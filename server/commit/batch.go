package commit

import (
	"errors"
	"fmt"
	"time"

	"coordinator/frames"
	"coordinator/internal/clock"
	"coordinator/internal/failpoint"
	"coordinator/server/authority"
	"coordinator/server/store"
	"coordinator/server/work"
)

// itemsPerReading is for how many items a reading of the clock serves: it costs a tenth of
// what they do, who are built in less than a millisecond.
const itemsPerReading = 16

// A round is one batch from the moment it is built until its replies are out.
type round struct {
	tx      *store.Tx
	items   []*item // those that are answered by this round
	replies []reply // one for each item
	stale   []*item // to be prefetched again
	rest    []*item // for the next round
	batch   store.Batch
	durable bool // batch was committed
	began   time.Time
	leave   func() // leaves the fence
}

func (r *round) decide(it *item, reply reply) {
	r.items = append(r.items, it)
	r.replies = append(r.replies, reply)
}

// fits reports whether it may join the round. A round that has written nothing takes
// anything.
func (r *round) fits(it *item) bool {
	return r.tx.Empty() || r.tx.Size()+it.size <= maxBatchBytes && r.tx.Events()+it.events <= maxEvents
}

// commitBatch takes what waits through one commit.
func (w *Writer) commitBatch() (bool, error) {
	batch := w.take()
	if len(batch) == 0 {
		return false, nil
	}
	leave, err := w.o.Fence.Enter()
	if err != nil {
		w.held = batch
		return false, err
	}
	r, err := w.build(batch)
	if err == nil && !r.tx.Empty() {
		err = w.o.Fence.Check()
	}
	if err != nil {
		// Nothing was written: the transaction is forgotten and the batch is as it was.
		w.held = batch
		leave()
		return false, err
	}
	w.held = r.rest
	w.sendBack(r.stale)
	r.leave = leave
	if err := w.write(r); err != nil {
		return false, err
	}
	w.round = r
	return true, w.publish()
}

// build applies the items of batch, in order, to one transaction. An error means that the
// store cannot be trusted, or has reached the end of a counter.
func (w *Writer) build(batch []*item) (*round, error) {
	r := &round{tx: w.o.Store.Begin(), began: time.Now(), items: make([]*item, 0, len(batch)), replies: make([]reply, 0, len(batch))}
	if err := w.pending.load(w.o.Store); err != nil {
		return nil, err
	}
	lowDisk := w.o.LowDisk()
	var now clock.Reading
	for i, it := range batch {
		if !r.fits(it) {
			r.rest = batch[i:]
			break
		}
		if i%itemsPerReading == 0 {
			now = w.o.Clock.Now()
		}
		if refusal := w.admit(it, now); refusal != nil {
			r.decide(it, reply{err: refusal})
			continue
		}
		if !r.tx.Use(it.loaded) {
			r.stale = append(r.stale, it)
			continue
		}
		v := &view{tx: r.tx}
		reply, err := w.apply(v, it, now, lowDisk)
		if v.miss(err, &it.needs) {
			r.stale = append(r.stale, it)
			continue
		}
		if err == nil {
			err = r.tx.Err()
		}
		if err != nil {
			return nil, err
		}
		r.decide(it, reply)
	}
	return r, nil
}

// admit checks guard and grant immediately before it is applied (protocol.md §5.5).
func (w *Writer) admit(it *item, now clock.Reading) error {
	if it.proposal == nil {
		return nil
	}
	if it.proposal.Guard != w.o.Fence.Guard() {
		return frames.Refuse(frames.CodeStaleAuthority, "the request names another authority")
	}
	if err := it.proposal.Grant.Err(now); err != nil {
		return frames.Refuse(frames.CodeAuthenticationFailed, "the grant is no longer valid")
	}
	return nil
}

// apply decides one item and writes its outcome into the transaction.
func (w *Writer) apply(v *view, it *item, now clock.Reading, lowDisk bool) (reply, error) {
	if it.amendment != nil && it.amendment.fn != nil {
		return reply{}, it.amendment.fn(v.tx, v, now.Unix())
	}
	guard := w.o.Fence.Guard()
	env := work.Env{
		Head: v.tx.Head(), Now: w.since(now), Epoch: guard.Epoch, Activation: guard.Activation, Coordinator: guard.CoordinatorID,
		NewEventID: w.newEventID, MaxPayload: w.o.MaxPayload, LowDisk: lowDisk, Owners: w.o.Owners,
		PendingOf: w.pending.count, MaxPending: w.o.MaxPending, MaxPendingAll: w.o.MaxPendingAll,
	}
	var outcome work.Outcome
	var err error
	what := "an amendment"
	if it.amendment != nil {
		outcome, err = it.amendment.decide(v, env)
	} else {
		what = it.proposal.Command.Kind.String()
		outcome, err = work.Apply(v, it.proposal.Command, env)
	}
	var refusal *work.Refusal
	if errors.As(err, &refusal) {
		return reply{err: refusal}, nil
	}
	if err != nil {
		return reply{}, fmt.Errorf("apply %s: %w", what, err)
	}
	write(v.tx, outcome.Changes)
	w.pending.add(outcome.Pending)
	return reply{result: outcome.Result}, nil
}

// write puts changes into tx, in order.
func write(tx *store.Tx, changes []work.Change) {
	for _, c := range changes {
		row := store.Row{Record: c.Record, Live: c.Live, Principal: c.Principal, Annex: c.Annex}
		switch {
		case c.Removed:
			if c.Event != 0 {
				tx.EmitEvent(frames.ReplayEvent{
					ID: c.EventID, Kind: c.Event, Object: c.Ref(), Revision: c.Record.Revision, Schema: frames.FactSchema, Payload: c.Fact,
				})
			}
			tx.Remove(c.Ref())
		case c.Event == 0:
			tx.Put(row)
		case c.Fact != nil:
			tx.EmitEvent(frames.ReplayEvent{
				ID: c.EventID, Kind: c.Event, Object: c.Ref(), Revision: c.Record.Revision, Schema: frames.FactSchema, Payload: c.Fact,
			})
			tx.Put(row)
		default:
			tx.Emit(c.Event, c.EventID, row)
		}
	}
}

func (w *Writer) newEventID() (frames.EventID, error) {
	return frames.NewID[frames.EventID](w.rand)
}

// sendBack gives items to the reader.
func (w *Writer) sendBack(stale []*item) {
	if len(stale) == 0 {
		return
	}
	w.meters.Refetched.Add(uint64(len(stale)))
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stale = append(w.stale, stale...)
	signal(w.staleWake)
	signal(w.wake) // for Step alone, which reads by itself
}

// write makes the round durable.
func (w *Writer) write(r *round) error {
	if r.tx.Empty() {
		return nil
	}
	batch, err := w.o.Store.Commit(r.tx, w.o.Clock.Now().Wall)
	if errors.Is(err, store.ErrOutcomeUnknown) {
		w.abandon(r, err)
	} else if err != nil { // nothing was written
		for _, it := range r.items {
			w.reply(it, reply{err: ErrStopped})
		}
		r.leave()
	}
	if err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	r.batch, r.durable = batch, true
	w.pending.commit()
	return nil
}

// abandon ends a round that must not be acknowledged, for the reason cause.
func (w *Writer) abandon(r *round, cause error) {
	err := fmt.Errorf("%w: %w", ErrUnacknowledged, cause)
	for _, it := range r.items {
		w.reply(it, reply{err: err})
	}
	r.leave()
}

// publish checks the fence after the flush, and then lets the round out: events first, the
// replies after them. Diverged clocks keep the round for another call.
func (w *Writer) publish() error {
	r := w.round
	if err := w.o.Fence.Check(); err != nil {
		if !errors.Is(err, authority.ErrDiverged) {
			w.round = nil
			w.abandon(r, err)
		}
		return err
	}
	w.round = nil
	if r.durable {
		w.o.Publish(r.batch)
		failpoint.Hit("published")
	}
	for i, it := range r.items {
		w.reply(it, r.replies[i])
	}
	w.meters.note(r)
	failpoint.Hit("replied")
	r.leave()
	return nil
}
