package commit

import (
	"errors"
	"fmt"

	"coordinator/internal/failpoint"
	"coordinator/server/authority"
)

// A round goes through four hands, all of them the stepping goroutine's: it is open while items
// are decided into it, flies while its record is written and flushed, has landed when that is
// durable, and is out when it is published and answered. One is open, one flies and one has
// landed at most, and each is built upon those before it. What a round decided is seen by the
// next one alone until it is out: calls run when nothing flies.
//
//	                        launch          land            clear, deliver
//	extend, extend, ... open ----> flying ----> landed ------------------> out

// loneItems is with how many items, and nothing else to do, a round is flushed by the stepping
// goroutine itself: waking another one would take longer than what could be done meanwhile.
const loneItems = 2

// step is Step. With ahead set it returns when a round was launched, and the next step lands
// it: whoever calls it again at once, or after a while, has whatever waits by then decided
// before or while that round becomes durable.
func (w *Writer) step(ahead bool) (worked bool, err error) {
	if w.flying != nil {
		if err := w.land(); err != nil {
			return false, err
		}
		worked = true
	}
	if w.landed != nil {
		if err := w.clear(); err != nil {
			return false, err
		}
		worked = true
		if !w.follows() {
			w.deliver()
		}
	}
	stepped := w.refetchInline()
	served := false
	if w.landed == nil {
		if served, err = w.serveCalls(); err != nil || stepped && (worked || served) {
			return worked || served, err // a simulation lets those that were answered go on alone
		}
	}
	committed, err := w.commitBatch(ahead)
	return worked || served || committed, err
}

// follows reports whether a round is ready to be launched as soon as the one before has landed:
// the disk then has work while that one is published. Calls come first; they see what is out.
func (w *Writer) follows() bool {
	if w.open == nil || w.open.tx.Empty() {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.calls) == 0
}

// commitBatch launches what waits and what was decided ahead, and delivers what has landed.
func (w *Writer) commitBatch(ahead bool) (bool, error) {
	if w.open == nil && !w.waits() {
		w.deliver()
		return false, nil
	}
	leave, err := w.o.Fence.Enter()
	if err != nil {
		w.forget()
		return false, err
	}
	err = w.ready()
	if err == nil && w.open != nil && !w.open.tx.Empty() {
		err = w.o.Fence.Check()
	}
	if err != nil {
		// Nothing was written: the transaction is forgotten and what waits is as it was.
		w.forget()
		leave()
		return false, err
	}
	if w.open == nil { // everything has to be prefetched again
		leave()
		w.deliver()
		return true, nil
	}
	r, err := w.launch(leave, ahead)
	if err != nil {
		return false, err
	}
	w.deliver()
	w.o.Store.Apply(r.flight)
	w.pending.apply()
	if ahead && !r.flight.Empty() && (r.handed || w.flights == nil) {
		return true, nil
	}
	if err := w.land(); err != nil {
		return false, err
	}
	if err := w.clear(); err != nil {
		return true, err
	}
	w.deliver()
	return true, nil
}

// ready has the open round complete and fit to be launched: with all that waits, and nothing
// decided that would not be decided so now.
func (w *Writer) ready() error {
	if w.open != nil && !w.holds(w.open) {
		w.forget()
	}
	if _, err := w.extend(); err != nil {
		return err
	}
	if w.open != nil && len(w.open.items) == 0 {
		w.forget()
	}
	return nil
}

// launch seals the open round and has it written: by the flusher if there is one and time to
// gain, and else by land. An error means that nothing was written.
func (w *Writer) launch(leave func(), ahead bool) (*round, error) {
	r := w.open
	w.open = nil
	flight, err := w.o.Store.Seal(r.tx, w.o.Clock.Now().Wall)
	if err != nil {
		for _, it := range r.items {
			w.reply(it, reply{err: ErrStopped})
		}
		leave()
		return nil, fmt.Errorf("commit: %w", err)
	}
	r.flight, r.leave = flight, leave
	w.flying = r
	lone := len(r.items) <= loneItems && w.landed == nil && !w.waits()
	if w.flights != nil && ahead && !lone && !flight.Empty() {
		r.handed = true
		w.flights <- flight // never blocks: one is in the air
	}
	return r, nil
}

// land waits until the round in the air is durable.
func (w *Writer) land() error {
	r := w.flying
	err := w.written(r)
	w.flying = nil
	if err != nil {
		w.abandon(r, err)
		return fmt.Errorf("commit: %w", err)
	}
	r.batch, r.durable = w.o.Store.Land(r.flight), !r.flight.Empty()
	w.pending.land(r)
	w.landed = r
	return nil
}

// written gives how the write of r ended, and decides meanwhile what comes.
func (w *Writer) written(r *round) error {
	wake := w.wake
	ahead := func() {
		if _, err := w.extend(); err != nil {
			wake = nil // it is met again where it can be told
		}
	}
	ahead()
	if !r.handed {
		return r.flight.Write()
	}
	for {
		select {
		case err := <-w.flown:
			return err
		case <-wake:
			ahead()
		}
	}
}

// flush writes one flight after the other, until there are no more.
func (w *Writer) flush() {
	for f := range w.flights {
		w.flown <- f.Write()
	}
}

// abandon ends a round that must not be acknowledged, for the reason cause.
func (w *Writer) abandon(r *round, cause error) {
	err := fmt.Errorf("%w: %w", ErrUnacknowledged, cause)
	for _, it := range r.items {
		w.reply(it, reply{err: err})
	}
	r.leave()
}

// clear checks the fence after the flush. Diverged clocks keep the round for another call; a
// fence that is final ends it unacknowledged.
func (w *Writer) clear() error {
	err := w.o.Fence.Check()
	if err != nil && !errors.Is(err, authority.ErrDiverged) {
		r := w.landed
		w.landed = nil
		w.abandon(r, err)
	}
	return err
}

// deliver lets a round out that has landed and was cleared: events first, the replies after
// them.
func (w *Writer) deliver() {
	r := w.landed
	if r == nil {
		return
	}
	w.landed = nil
	if r.durable {
		w.o.Publish(r.batch)
		failpoint.Hit("published")
	}
	for i, it := range r.items {
		w.reply(it, r.replies[i])
	}
	w.meters.note(r)
	if r.durable {
		w.o.Round(len(r.items))
	}
	failpoint.Hit("replied")
	r.leave()
}
