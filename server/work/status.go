package work

import "coordinator/frames"

// A BindingState is what the store says of a binding that an owner reports [D-45].
type BindingState uint8

const (
	// BindingForeign: no run of this store had that id; the owner may give it up.
	BindingForeign BindingState = iota
	// BindingExpected: its run has not ended, but the binding is not there, or not yet.
	BindingExpected
	// BindingActive: its facts are wanted.
	BindingActive
	// BindingOver: its run has ended; the owner may give it up.
	BindingOver
)

// A BindingStatus is the state, and for an active binding whose it is and where its facts
// stand.
type BindingStatus struct {
	State       BindingState
	Owner       frames.Fingerprint
	Incarnation frames.IncarnationID
	// After is the newest admitted sequence; zero when none.
	After uint64
}

// StatusRefs are what [StatusOf] reads first.
func StatusRefs(id frames.BindingID) []frames.ObjectRef {
	return []frames.ObjectRef{bindingRef(id), claimRef(id), usedRef(bindingRef(id))}
}

// StatusOf judges a binding that an owner reports.
func StatusOf(v View, id frames.BindingID) (BindingStatus, error) {
	t := newTxn(v, Env{})
	b, found, err := t.binding(id)
	if err != nil {
		return BindingStatus{}, err
	}
	if found {
		ref := &b.Binding.Binding
		s := BindingStatus{State: BindingOver, Owner: ref.Owner, Incarnation: ref.OwnerIncarnation, After: b.meta.Last}
		if b.active() {
			s.State = BindingActive
		}
		return s, nil
	}
	var claim Claim
	found, err = t.kept("a claim", claimRef(id), &claim)
	switch {
	case err != nil:
		return BindingStatus{}, err
	case !found:
		_, archived, err := t.Record(usedRef(bindingRef(id)))
		if archived {
			return BindingStatus{State: BindingOver}, err
		}
		return BindingStatus{}, err
	case claim.Ended:
		return BindingStatus{State: BindingOver, Owner: claim.Owner, Incarnation: claim.Incarnation}, nil
	}
	return BindingStatus{State: BindingExpected, Owner: claim.Owner, Incarnation: claim.Incarnation}, nil
}
