package sim

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"

	"coordinator/codec"
	"coordinator/frames"
	"coordinator/server/store"
)

// A request is one command that some client sent, perhaps many times.
type request struct {
	cmd frames.CoordCommand // guard and request id are set per attempt
	// effect of the command, as the model understands it
	objective frames.ObjectiveID
	document  []byte
	create    bool
	state     *frames.ObjectiveState
	expected  frames.ObjectRevision // that it demands; zero for any
	archive   bool
	retention bool // it changes the RETENTION record, and no objective
	looks     bool // it only asks what became of the operation
}

// A lineage is what the clients of one disk were promised. A copy of the disk begins with
// a copy of it.
type lineage struct {
	*timeline
	parent *lineage // whose copy it began as, nil for the first
	forked int64    // when
	acked  map[frames.OperationID]frames.OperationResult
	epoch  frames.AuthorityEpoch              // highest that an activation installed here
	head   frames.EventCut                    // highest that was published here
	keys   map[frames.KeyID]frames.Credential // as last loaded; a zero ceiling is not known
	// unsure: a registry change was not confirmed, so keys may be those before it; maybe has
	// the keys of all such changes.
	unsure bool
	maybe  map[frames.KeyID]bool
}

func newLineage() *lineage {
	return &lineage{timeline: newTimeline(), acked: map[frames.OperationID]frames.OperationResult{}, keys: map[frames.KeyID]frames.Credential{}, maybe: map[frames.KeyID]bool{}}
}

func (l *lineage) clone(now int64) *lineage {
	c := newLineage()
	c.parent, c.forked = l, now
	c.timeline = l.timeline.clone()
	for id, r := range l.acked {
		c.acked[id] = r
	}
	maps.Copy(c.keys, l.keys)
	maps.Copy(c.maybe, l.maybe)
	c.epoch, c.head, c.unsure = l.epoch, l.head, l.unsure
	return c
}

// committed is an operation found in a store.
type committed struct {
	id     frames.OperationID
	result frames.OperationResult
}

// objective is the model of one objective: what is left after folding operations.
type objective struct {
	revision frames.ObjectRevision
	document []byte
	state    frames.ObjectiveState
}

// judge holds the rows of a whole store against what the clients know: every acknowledged
// operation is there with its result, every operation there was asked for, and the
// objectives are exactly what the operations there, each once and in order, make of them.
func judge(rows []store.Row, l *lineage, asked map[frames.OperationID]*request, aged map[frames.OperationID]bool) error {
	var ops []committed
	found := map[frames.ObjectiveID]objective{}
	keys := map[frames.KeyID]frames.Credential{}
	for i := range rows {
		payload, err := rows[i].Record.DecodePayload()
		if err != nil {
			return fmt.Errorf("row %v: %w", rows[i].Record.Ref(), err)
		}
		switch p := payload.(type) {
		case *frames.Operation:
			ops = append(ops, committed{frames.OperationID(rows[i].Record.ID), p.Result})
		case *frames.Objective:
			found[frames.ObjectiveID(rows[i].Record.ID)] = objective{rows[i].Record.Revision, p.Document, p.State}
		case *frames.Admin:
			if p.Kind != frames.AdminCredential {
				continue
			}
			var c frames.Credential
			if err := codec.Decode(&c, p.Payload); err != nil {
				return fmt.Errorf("row %v: %w", rows[i].Record.Ref(), err)
			}
			keys[c.KeyID] = c
		}
	}
	if err := judgeKeys(keys, l); err != nil {
		return err
	}
	if err := judgeAcked(ops, l, aged); err != nil {
		return err
	}
	if len(aged) > 0 {
		return nil // results that tell what was done may be gone
	}
	want, err := fold(ops, asked)
	if err != nil {
		return err
	}
	if len(want) != len(found) {
		return fmt.Errorf("the store has %d objectives, its operations make %d", len(found), len(want))
	}
	for id, w := range want {
		f, ok := found[id]
		if !ok {
			return fmt.Errorf("objective %v: created by an operation but absent", id)
		}
		if f.revision != w.revision || f.state != w.state || !bytes.Equal(f.document, w.document) {
			return fmt.Errorf("objective %v: store has revision %d state %v, its operations make revision %d state %v",
				id, f.revision, f.state, w.revision, w.state)
		}
	}
	return nil
}

// judgeKeys expects one CREDENTIAL for every key that was ever in the registry, as it was
// there last.
func judgeKeys(have map[frames.KeyID]frames.Credential, l *lineage) error {
	for id, want := range l.keys {
		got, ok := have[id]
		switch {
		case !ok:
			return fmt.Errorf("key %x: was in the registry and has no CREDENTIAL", id[:1])
		case !l.unsure && (want.ScopeCeiling != 0 && got.ScopeCeiling != want.ScopeCeiling || (got.RevokedAt == nil) != (want.RevokedAt == nil)):
			return fmt.Errorf("key %x: CREDENTIAL %+v, registry %+v", id[:1], got, want)
		}
	}
	for id := range have {
		if _, ok := l.keys[id]; !ok && !l.maybe[id] {
			return fmt.Errorf("key %x: has a CREDENTIAL and was never in the registry", id[:1])
		}
	}
	return nil
}

// judgeBases expects every activation once, ascending, the one in force last, and each to
// begin where those before it had ended or later.
func judgeBases(st store.State, inForce frames.ActivationSequence) error {
	for i, b := range st.Bases {
		if i > 0 && (b.Activation <= st.Bases[i-1].Activation || b.Base <= st.Bases[i-1].Base) || b.Base >= st.Head {
			return fmt.Errorf("activation bases %v at head %d", st.Bases, st.Head)
		}
	}
	if n := len(st.Bases); n == 0 || st.Bases[n-1].Activation != inForce {
		return fmt.Errorf("activation bases %v do not end in %d", st.Bases, inForce)
	}
	return nil
}

// judgeAcked expects every operation once and as it was acknowledged. Of one that has aged a
// tombstone may be left, or nothing once that was pruned (protocol.md §8 [D-42]).
func judgeAcked(ops []committed, l *lineage, aged map[frames.OperationID]bool) error {
	have := map[frames.OperationID]frames.OperationResult{}
	for _, op := range ops {
		if _, twice := have[op.id]; twice {
			return fmt.Errorf("operation %v: stored twice", op.id)
		}
		have[op.id] = op.result
	}
	for id, r := range l.acked {
		got, ok := have[id]
		if aged[id] && (!ok && l.pruned(id) || got.State == frames.OperationTombstoned && got.Final == r.State) {
			continue
		}
		if !ok {
			return fmt.Errorf("operation %v: acknowledged at sequence %d and lost", id, r.Sequence)
		}
		if !sameResult(got, r) {
			return fmt.Errorf("operation %v: acknowledged as %v at %d, stored as %v at %d", id, r.State, r.Sequence, got.State, got.Sequence)
		}
	}
	return nil
}

// fold applies the operations in the order of their completion.
func fold(ops []committed, asked map[frames.OperationID]*request) (map[frames.ObjectiveID]objective, error) {
	slices.SortFunc(ops, func(a, b committed) int { return cmp.Compare(a.result.Sequence, b.result.Sequence) })
	out := map[frames.ObjectiveID]objective{}
	gone := map[frames.ObjectiveID]bool{}
	for i, op := range ops {
		r := asked[op.id]
		switch {
		case r == nil:
			return nil, fmt.Errorf("operation %v: nobody asked for it", op.id)
		case op.result.State != frames.OperationSucceeded:
			return nil, fmt.Errorf("operation %v: state %v", op.id, op.result.State)
		case i > 0 && ops[i-1].result.Sequence == op.result.Sequence:
			return nil, fmt.Errorf("operation %v: shares sequence %d", op.id, op.result.Sequence)
		}
		if r.retention {
			continue
		}
		o, exists := out[r.objective]
		if exists == r.create || gone[r.objective] {
			return nil, fmt.Errorf("operation %v: create=%v of an objective whose existence is %v", op.id, r.create, exists)
		}
		if r.archive {
			if o.state == frames.ObjectiveActive {
				return nil, fmt.Errorf("operation %v: archived an objective that had not ended", op.id)
			}
			gone[r.objective] = true
			delete(out, r.objective)
			continue
		}
		if !r.create && o.state != frames.ObjectiveActive {
			return nil, fmt.Errorf("operation %v: changed an objective that had ended", op.id)
		}
		if r.expected != 0 && o.revision != r.expected {
			return nil, fmt.Errorf("operation %v: demanded revision %d and was applied to %d", op.id, r.expected, o.revision)
		}
		o.revision++
		o.document = r.document
		if r.state != nil {
			o.state = *r.state
		}
		out[r.objective] = o
	}
	return out, nil
}

func sameResult(a, b frames.OperationResult) bool {
	return a.State == b.State && a.Sequence == b.Sequence && a.Kind == b.Kind && bytes.Equal(a.Payload, b.Payload)
}
