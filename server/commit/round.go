package commit

import (
	"errors"
	"fmt"
	"time"

	"coordinator/frames"
	"coordinator/internal/clock"
	"coordinator/server/store"
	"coordinator/server/work"
)

const (
	// itemsPerReading is for how many items a reading of the clock serves: it costs a tenth of
	// what they do, who are decided in less than a millisecond.
	itemsPerReading = 16
	// decidedFor is how old a decision may be when its round leaves: what was decided while an
	// earlier flush took longer than this is decided again, by the time that it is then.
	decidedFor = time.Second
)

// A round is one batch from its first decision until its replies are out.
type round struct {
	tx      *store.Tx
	items   []*item // those that are answered by this round
	replies []reply // one for each item
	pending []work.PendingChange
	full    bool // takes no more
	lowDisk bool
	first   clock.Reading // when the first item was decided
	now     clock.Reading // of the latest decisions
	serves  int           // how many more decisions now is for
	began   time.Time

	flight  *store.Flight // once it is launched
	handed  bool          // to the flusher
	batch   store.Batch
	durable bool   // batch was committed
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

// begin opens a round. An error means that the store cannot be trusted.
func (w *Writer) begin(n int) (*round, error) {
	r := &round{
		tx: w.o.Store.Begin(), began: time.Now(), first: w.o.Clock.Now(), lowDisk: w.o.LowDisk(),
		items: make([]*item, 0, n), replies: make([]reply, 0, n),
	}
	return r, w.pending.load(w.o.Store)
}

// extend decides what waits, in order, into the open round, and opens one where there is none:
// upon everything that was launched, whether or not it is durable yet. It reports whether
// anything waited. An error means that the store cannot be trusted, or has reached the end of a
// counter; what was decided is forgotten then.
func (w *Writer) extend() (bool, error) {
	room := maxProposals
	if w.open != nil {
		if w.open.full {
			return false, nil
		}
		room -= len(w.open.items)
	}
	batch := w.take(room)
	if len(batch) == 0 {
		return false, nil
	}
	var err error
	if w.open == nil {
		w.open, err = w.begin(len(batch))
	}
	if err == nil {
		batch, err = w.build(w.open, batch)
	}
	w.held = batch
	if err != nil {
		w.forget()
	}
	return true, err
}

// forget takes back what is decided and not launched: nothing of it was written.
func (w *Writer) forget() {
	if w.open == nil {
		return
	}
	w.held = append(w.open.items, w.held...)
	w.open = nil
	w.pending.forget()
}

// build applies the items of batch, in order, to the transaction of r. It returns those that
// were not decided: r is full, or there is an error.
func (w *Writer) build(r *round, batch []*item) (rest []*item, err error) {
	var stale []*item
	defer func() { w.sendBack(stale) }()
	r.serves = 0 // some time has passed since the last ones
	for i, it := range batch {
		if r.full = !r.fits(it); r.full {
			return batch[i:], nil
		}
		if r.serves == 0 {
			r.now, r.serves = w.o.Clock.Now(), itemsPerReading
		}
		r.serves--
		if refusal := w.admit(it, r.now); refusal != nil {
			r.decide(it, reply{err: refusal})
			continue
		}
		if !r.tx.Use(it.loaded) {
			stale = append(stale, it)
			continue
		}
		v := &w.look
		*v = view{tx: r.tx}
		reply, err := w.apply(v, it, r)
		if v.miss(err, &it.needs) {
			stale = append(stale, it)
			continue
		}
		if err == nil {
			err = r.tx.Err()
		}
		if err != nil {
			return batch[i:], err
		}
		r.decide(it, reply)
	}
	return nil, nil
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

// holds reports whether what r decided a while ago may be committed now: every grant that it
// acts for is still good (protocol.md §5.5), so is whatever else its amendments rest on, and
// not much time has passed.
func (w *Writer) holds(r *round) bool {
	now := w.o.Clock.Now()
	if now.Boot-r.first.Boot > decidedFor {
		return false
	}
	var checked Grant
	for i, it := range r.items {
		switch {
		case r.replies[i].err != nil: // nothing is done for it
		case it.amendment != nil:
			if !it.amendment.holds() {
				return false
			}
		case it.proposal.Grant == checked:
		case it.proposal.Grant.Err(now) != nil:
			return false
		default:
			checked = it.proposal.Grant
		}
	}
	return true
}

// apply decides one item and writes its outcome into the transaction.
func (w *Writer) apply(v *view, it *item, r *round) (reply, error) {
	if it.amendment != nil && it.amendment.fn != nil {
		return reply{}, it.amendment.fn(v.tx, v, r.now.Unix())
	}
	guard := w.o.Fence.Guard()
	env := work.Env{
		Head: v.tx.Head(), Now: w.since(r.now), Epoch: guard.Epoch, Activation: guard.Activation, Coordinator: guard.CoordinatorID,
		NewEventID: w.drawID, MaxPayload: w.o.MaxPayload, LowDisk: r.lowDisk, Owners: w.o.Owners,
		PendingOf: w.pendingOf, MaxPending: w.o.MaxPending, MaxPendingAll: w.o.MaxPendingAll,
		Room: &w.room,
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
	r.pending = append(r.pending, outcome.Pending...)
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

// newEventID is [frames.NewID] without memory for each.
func (w *Writer) newEventID() (id frames.EventID, err error) {
	for id == (frames.EventID{}) {
		b, err := w.rand.Peek(len(id))
		if err != nil {
			return id, fmt.Errorf("draw an event id: %w", err)
		}
		copy(id[:], b)
		w.rand.Discard(len(id)) //nolint:errcheck // they are buffered
	}
	return id, nil
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
