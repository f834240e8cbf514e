package store

import (
	"fmt"
	"sync/atomic"
	"time"

	"coordinator/frames"
)

// A Flight is a commit between its sealing and its landing. Its record is written and flushed
// by [Flight.Write], on whatever goroutine, while the writer brings the same change into
// memory with [Store.Apply] and builds the next transaction upon that. It counts once it has
// landed: [Store.State] and what a checkpoint begins with are never ahead of it.
//
//	Seal -> Write and Apply, in either order or at once -> Land
//
// One flight is in the air at a time: the next is sealed when this one has landed. What was
// applied is never taken back. When a write fails the store has failed, and nothing that
// memory holds beyond the last landing may be shown to anybody.
type Flight struct {
	s     *Store
	head  recordHead
	buf   []byte
	items []item
	batch Batch

	written atomic.Bool // the record is durable
}

// Seal ends a transaction that is to be committed. Nothing of it is written yet, and after an
// error nothing will be. Now is recorded with the commit. Writer only.
func (s *Store) Seal(tx *Tx, now time.Time) (*Flight, error) {
	if err := s.Err(); err != nil {
		return nil, &failedError{err}
	}
	if tx != &s.txs[s.turn] || tx.s != s || tx.commit != s.state.Commit+1 || s.aloft() {
		panic("store: transaction committed out of turn")
	}
	if tx.err != nil {
		return nil, tx.err
	}
	f := &Flight{s: s}
	if tx.Empty() {
		f.batch = Batch{Commit: s.state.Commit, Time: now, First: frames.EventSequence(tx.head) + 1, Last: frames.EventSequence(tx.head)}
		return f, nil
	}
	var err error
	if f.batch, err = newBatch(tx, now); err != nil {
		return nil, err
	}
	f.head = recordHead{commit: tx.commit, time: now.UnixNano(), base: uint64(tx.base), count: uint32(tx.head - tx.base)}
	f.buf, f.items = tx.buf, tx.items
	tx.s = nil
	s.turn = 1 - s.turn
	s.sealed = f
	return f, nil
}

// aloft reports whether a flight has not landed.
func (s *Store) aloft() bool { return s.sealed != nil || s.applied != nil }

// onGround panics while memory is ahead of the last commit that has landed.
func (s *Store) onGround(what string) {
	if s.applied != nil {
		panic("store: " + what + " while a flight is applied and has not landed")
	}
}

// Empty reports whether there is nothing to write.
func (f *Flight) Empty() bool { return len(f.items) == 0 }

// Write makes the record of the flight durable. ErrOutcomeUnknown means that a write or a
// flush failed: the store takes no more commits and only Open can tell. Any goroutine, one
// flight after the other.
func (f *Flight) Write() error {
	if f.Empty() {
		return nil
	}
	if _, err := f.s.log.append(f.buf, f.head, f.items); err != nil {
		err = fmt.Errorf("store: commit %d: %w: %w", f.head.commit, ErrOutcomeUnknown, err)
		f.s.fail(err)
		return err
	}
	f.written.Store(true)
	return nil
}

// Apply brings the flight into memory, for the transactions that follow. Writer only.
func (s *Store) Apply(f *Flight) {
	if f.Empty() {
		return
	}
	if s.sealed != f {
		panic("store: a flight applied out of turn")
	}
	s.sealed, s.applied = nil, f
	if err := s.apply(f.head, f.items); err != nil {
		s.fail(err)
		panic("store: " + err.Error()) // Tx admits only what apply accepts
	}
	s.clean = false
}

// Land makes a flight that was written and applied the last commit, begins a checkpoint when
// one is due, and returns what its readers see. Writer only.
func (s *Store) Land(f *Flight) Batch {
	if f.Empty() {
		return f.batch
	}
	if s.applied != f || !f.written.Load() {
		panic("store: a flight landed out of turn")
	}
	s.applied = nil
	s.publish()
	s.maintain()
	return f.batch
}
