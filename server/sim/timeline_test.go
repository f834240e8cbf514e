package sim

import (
	"bytes"
	"fmt"
	"maps"
	"slices"

	"coordinator/codec"
	"coordinator/frames"
	"coordinator/server/store"
	"coordinator/server/work"
)

// A timeline is every version of every row that a store has published, so that what a
// client was shown at any cut can be held against it. Copies of a disk begin with a copy.
type timeline struct {
	rows  map[frames.ObjectRef][]version
	holes []hole
	// shown is, for each activation, the newest cut that anybody can have been shown.
	shown map[frames.ActivationSequence]frames.EventCut
}

// A version is a row from one event on; no record means that it is gone.
type version struct {
	seq    frames.EventSequence
	record *frames.SnapshotRecord
	owner  frames.KeyID // of an OPERATION
	silent bool         // no event told it
}

// A hole is a range of events that were durable and never published by the process that
// made them: what lay between is not known here.
type hole struct{ after, to frames.EventCut }

func newTimeline() *timeline {
	return &timeline{rows: map[frames.ObjectRef][]version{}, shown: map[frames.ActivationSequence]frames.EventCut{}}
}

func (t *timeline) clone() *timeline {
	c := newTimeline()
	for ref, vs := range t.rows {
		c.rows[ref] = slices.Clone(vs)
	}
	c.holes = slices.Clone(t.holes)
	maps.Copy(c.shown, t.shown)
	return c
}

// add takes in a version, which must be the newest of its row.
func (t *timeline) add(ref frames.ObjectRef, v version) error {
	vs := t.rows[ref]
	if n := len(vs); n > 0 && vs[n-1].seq > v.seq {
		return fmt.Errorf("%v: event %d comes after %d", ref, v.seq, vs[n-1].seq)
	}
	t.rows[ref] = append(vs, v)
	return nil
}

func (t *timeline) last(ref frames.ObjectRef) version {
	if vs := t.rows[ref]; len(vs) > 0 {
		return vs[len(vs)-1]
	}
	return version{}
}

// pruned reports whether an operation was there and has gone without an event.
func (t *timeline) pruned(id frames.OperationID) bool {
	v := t.last(work.OperationRef(id))
	return v.silent && v.record == nil
}

// published takes in a commit, and expects the rows of the store right behind it to be
// exactly what the events and the silent changes of the commit say.
func (t *timeline) published(b store.Batch, rows []store.Row) error {
	removed := map[frames.ObjectRef]bool{}
	for i := range b.Events {
		e := &b.Events[i]
		switch {
		case e.Kind == frames.EventObjectRemoved:
			removed[e.Object] = true
			if err := t.add(e.Object, version{seq: e.Sequence}); err != nil {
				return err
			}
		case e.Kind.CarriesRecord():
			var r frames.SnapshotRecord
			if err := codec.DecodeImage(&r, e.Payload); err != nil {
				return fmt.Errorf("event %d: %w", e.Sequence, err)
			}
			if have := t.last(e.Object).record; have != nil && r.Revision != have.Revision+1 {
				return fmt.Errorf("event %d takes %v from revision %d to %d", e.Sequence, e.Object, have.Revision, r.Revision)
			}
			if err := t.add(e.Object, version{seq: e.Sequence, record: &r, owner: e.Principal}); err != nil {
				return err
			}
		}
	}
	silent := map[frames.ObjectRef]bool{}
	for _, s := range b.Silent {
		silent[s.Ref] = true
		if !s.Removed || removed[s.Ref] {
			continue
		}
		if s.Ref.Kind != frames.KindOperation && s.Ref.Kind != frames.KindAdmin {
			return fmt.Errorf("%v was removed and no event told it", s.Ref)
		}
		if err := t.add(s.Ref, version{seq: s.Seq, silent: true}); err != nil {
			return err
		}
	}
	return t.compare(rows, b.Last, func(ref frames.ObjectRef, _ bool) bool { return silent[ref] })
}

// recovered takes in what a start found behind what had been published.
func (t *timeline) recovered(rows []store.Row, published, head frames.EventCut) error {
	if head > published {
		t.holes = append(t.holes, hole{published, head})
	}
	fresh := len(t.rows) == 0
	return t.compare(rows, frames.EventSequence(head), func(ref frames.ObjectRef, lost bool) bool {
		// A commit that only pruned has no event; the crash may have met it half told.
		return fresh || head > published || lost && t.tombstone(ref)
	})
}

// tombstone reports whether what is known of ref is one, which may go without an event.
func (t *timeline) tombstone(ref frames.ObjectRef) bool {
	r := t.last(ref).record
	if r == nil || ref.Kind != frames.KindOperation {
		return false
	}
	m, err := r.DecodePayload()
	op, ok := m.(*frames.Operation)
	return err == nil && ok && op.Result.State == frames.OperationTombstoned
}

// compare holds the newest versions against the rows of the store at its event head, and
// takes in those rows that may have changed in silence.
func (t *timeline) compare(rows []store.Row, head frames.EventSequence, may func(ref frames.ObjectRef, lost bool) bool) error {
	there := make(map[frames.ObjectRef]bool, len(rows))
	for i := range rows {
		r := &rows[i]
		ref := r.Record.Ref()
		there[ref] = true
		if have := t.last(ref); have.record != nil && sameRecord(have.record, &r.Record) {
			continue
		}
		if !may(ref, false) {
			return fmt.Errorf("the store has %v at revision %d of event %d, and no event told it", ref, r.Record.Revision, r.Seq)
		}
		record := r.Record
		if err := t.add(ref, version{seq: r.Seq, record: &record, owner: r.Principal, silent: true}); err != nil {
			return err
		}
	}
	for ref := range t.rows {
		v := t.last(ref)
		if v.record == nil || there[ref] {
			continue
		}
		if !may(ref, true) {
			return fmt.Errorf("the store has lost %v, and no event told it", ref)
		}
		if err := t.add(ref, version{seq: head, silent: true}); err != nil {
			return err
		}
	}
	return nil
}

func sameRecord(a, b *frames.SnapshotRecord) bool {
	return a.Ref() == b.Ref() && a.Revision == b.Revision && a.Schema == b.Schema && bytes.Equal(a.Payload, b.Payload)
}

// known reports whether what was there at a cut is known.
func (t *timeline) known(cut frames.EventCut) bool {
	return !slices.ContainsFunc(t.holes, func(h hole) bool { return h.after < cut && cut < h.to })
}

// A copyOf is what a client holds: its view at a cut.
type copyOf map[frames.ObjectRef]*frames.SnapshotRecord

// judge holds a view that says that it is exact at cut against what the store showed to
// the viewer then. A tombstone that was pruned meanwhile may still be there (protocol.md
// §7.2 [D-42]).
func (t *timeline) judge(have copyOf, cut frames.EventCut, viewer work.Viewer) error {
	if !t.known(cut) {
		return nil
	}
	want := 0
	for ref, vs := range t.rows {
		i := len(vs) - 1
		for i >= 0 && vs[i].seq > frames.EventSequence(cut) {
			i--
		}
		got := have[ref]
		if i < 0 || vs[i].record == nil {
			pruned := i >= 0 && vs[i].silent && ref.Kind == frames.KindOperation
			if got != nil && !pruned {
				return fmt.Errorf("at event %d it has %v at revision %d, which is not there", cut, ref, got.Revision)
			}
			if got != nil {
				want++
			}
			continue
		}
		if !sees(viewer, ref.Kind, vs[i].owner) {
			if got != nil {
				return fmt.Errorf("at event %d it has %v, which it may not see", cut, ref)
			}
			continue
		}
		want++
		if got == nil {
			return fmt.Errorf("at event %d it lacks %v of event %d", cut, ref, vs[i].seq)
		}
		if !sameRecord(got, vs[i].record) {
			return fmt.Errorf("at event %d it has %v at revision %d, and event %d made it %d", cut, ref, got.Revision, vs[i].seq, vs[i].record.Revision)
		}
	}
	if len(have) != want {
		return fmt.Errorf("at event %d it has %d records of which %d were ever there", cut, len(have), want)
	}
	return nil
}

// sees is protocol.md §6 for the kinds that occur here, in words of its own.
func sees(v work.Viewer, kind frames.ObjectKind, owner frames.KeyID) bool {
	admin := v.Scope&frames.ScopeAdmin != 0
	switch kind {
	case frames.KindObjective:
		return v.Scope&frames.ScopeWorkRead != 0
	case frames.KindAdmin:
		return admin && v.Capabilities&frames.CapAdministration != 0
	case frames.KindOperation:
		if v.Capabilities&frames.CapWithoutOperations != 0 {
			return false
		}
		return admin || owner == v.Principal && v.Scope&(frames.ScopeWorkRead|frames.ScopeWorkCommand) != 0
	}
	return false
}
