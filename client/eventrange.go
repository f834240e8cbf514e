package client

import (
	"context"
	"fmt"

	"coordinator/frames"
)

// An EventRange says which events [ReadEvents] reads.
type EventRange struct {
	// After is the cut behind which they begin; zero is the beginning of the log.
	After frames.EventCut
	// Epoch, unless zero, is the authority under which After was obtained: that it lies in the history
	// of the present one is checked.
	Epoch frames.AuthorityEpoch
	// Through is the last event to be read. Zero, and one that has not happened yet, stand for the
	// last one that has.
	Through frames.EventCut
	// ThroughEpoch, unless zero, is the authority of Through, which is checked as Epoch is. Under the
	// present one it may be still to come.
	ThroughEpoch frames.AuthorityEpoch
}

// EventsRead is what [ReadEvents] came to.
type EventsRead struct {
	// Through is the event up to which all was read.
	Through frames.EventCut
	// Guard is the authority that it was read under.
	Guard frames.AuthorityGuard
}

// A CutBeyondError says that a cut lies behind the last event that has happened, or its epoch above
// the present one.
type CutBeyondError struct {
	Epoch frames.AuthorityEpoch // as asked for; may be zero
	Cut   frames.EventCut
	// HeadEpoch and Head are the coordinator's.
	HeadEpoch frames.AuthorityEpoch
	Head      frames.EventCut
}

func (e *CutBeyondError) Error() string {
	if e.Epoch > e.HeadEpoch {
		return fmt.Sprintf("there has been no epoch %d: the present one is %d", e.Epoch, e.HeadEpoch)
	}
	return fmt.Sprintf("event %d has not happened: the last one is %d", e.Cut, e.Head)
}

// A CutLostError says that a cut lies behind the place at which a later authority than its own began,
// so that it is not in that one's history: a backup was restored, most likely (protocol.md §4 [D-26]).
type CutLostError struct {
	Epoch frames.AuthorityEpoch
	Cut   frames.EventCut
	// Base is the event behind which that authority began. Where epochs were left out, as a new witness
	// may have to, it is that of an earlier one.
	Base frames.EventCut
	// Unlisted says instead that more authorities followed than the coordinator tells of, so that
	// nobody can say where the next one began. That counts as lost.
	Unlisted bool
}

func (e *CutLostError) Error() string {
	if e.Unlisted {
		return fmt.Sprintf("history lost: whether event %d of epoch %d is in this coordinator's history cannot be told any more, as more than %d authorities may have followed", e.Cut, e.Epoch, frames.MaxActivationBases)
	}
	return fmt.Sprintf("history lost: event %d of epoch %d is not in this coordinator's history, in which a later authority began behind event %d", e.Cut, e.Epoch, e.Base)
}

// ReadEvents visits, in order and once, every event of a range that opts let this key see and that
// the coordinator retains. removed is told, in its place among the events, which of the range
// retention has removed: all from first through last, whether this key could have seen them or not.
//
// Where the last event of the range is not one that this key sees, the end is known by the
// coordinator answering and sending nothing more.
//
// Errors are *[CutBeyondError], *[CutLostError], those of the visitors, [ErrAdministration] and those
// of [Dial] and [Conn.Snapshot].
func ReadEvents(ctx context.Context, c *Context, opts Options, r EventRange, removed func(first, last frames.EventSequence) error, visit func(*Event) error) (read EventsRead, err error) {
	if opts.Offered.Has(frames.CapAdministration) {
		return read, ErrAdministration
	}
	opts.Offered |= frames.CapEventReplay | frames.CapArchive // as for ReadHistory
	conn, err := Dial(ctx, c, opts)
	if err != nil {
		return read, err
	}
	defer func() {
		if cerr := conn.Close(); err == nil {
			err = cerr
		}
	}()
	snap, err := conn.Snapshot(ctx)
	if err != nil {
		return read, err
	}
	if err := snap.Close(); err != nil {
		return read, err
	}
	if err := snap.holds(r); err != nil {
		return read, err
	}
	read = EventsRead{Through: snap.Base, Guard: snap.Guard}
	if r.Through != 0 {
		read.Through = min(read.Through, r.Through)
	}
	if r.After >= read.Through {
		return read, nil
	}
	h := &history{conn: conn, trimmed: true, head: read.Through, atRest: func() bool { return true }, visit: func(e *Event) (bool, error) {
		if e.Sequence > frames.EventSequence(read.Through) {
			return true, nil
		}
		return e.Sequence == frames.EventSequence(read.Through), visit(e)
	}}
	at, gap := r.After, (*Gap)(nil)
	for range maxTrims {
		if at, gap, err = h.read(ctx, at); err != nil || gap == nil {
			return read, err
		}
		oldest, err := h.oldest(ctx, at, snap.Base)
		if err != nil {
			return read, err
		}
		last := min(oldest, read.Through)
		if err := removed(frames.EventSequence(at)+1, frames.EventSequence(last)); err != nil || last == read.Through {
			return read, err
		}
		at = oldest
	}
	return read, trimmedFaster(gap)
}

// holds reports whether the ends of a range lie in the history that a snapshot stands in.
func (s *Snapshot) holds(r EventRange) error {
	if err := s.lies(r.After, r.Epoch); err != nil || r.ThroughEpoch == 0 || r.ThroughEpoch == s.Guard.Epoch {
		return err
	}
	return s.lies(r.Through, r.ThroughEpoch)
}

// lies is holds for one cut, and the authority under which it was obtained, if that is known.
func (s *Snapshot) lies(cut frames.EventCut, epoch frames.AuthorityEpoch) error {
	if cut > s.Base && (epoch == 0 || epoch == s.Guard.Epoch) || epoch > s.Guard.Epoch {
		return &CutBeyondError{epoch, cut, s.Guard.Epoch, s.Base}
	}
	if epoch == 0 || epoch == s.Guard.Epoch {
		return nil
	}
	// Each activation has a higher epoch than the one before, so that this many at most followed.
	followed := frames.ActivationSequence(s.Guard.Epoch - epoch)
	before := s.Guard.Activation - min(followed, s.Guard.Activation)
	base, first := s.Base, s.Guard.Activation
	for _, b := range s.begin.Bases { // the next one's is the lowest of those that followed
		if first = min(first, b.Activation); b.Activation > before {
			base = min(base, b.Base)
		}
	}
	switch {
	case cut > base:
		return &CutLostError{Epoch: epoch, Cut: cut, Base: base}
	case cut > 0 && len(s.begin.Bases) == frames.MaxActivationBases && first > before+1:
		return &CutLostError{Epoch: epoch, Cut: cut, Unlisted: true} // the list is full
	}
	return nil
}
