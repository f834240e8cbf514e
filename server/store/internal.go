package store

import "coordinator/frames"

// InternalKind is the first kind of rows that no reader sees: they are durable, recovered
// and checkpointed like any other, but no cut has them, no count counts them, and no open
// cut holds them back. The caller tells its kinds above it apart.
//
// Their revisions say nothing, so such a row may be put and removed without a look at what
// was there before.
const InternalKind frames.ObjectKind = 0x8000

func internal(kind frames.ObjectKind) bool { return kind >= InternalKind }

// An Internal is a committed change of an internal row.
type Internal struct {
	Row     Row // only kind and id when Removed
	Removed bool
}

// LiveRows gives visit every live row of a kind, in key order, until it returns false.
// Writer only, between transactions, as [Store.Cut].
func (s *Store) LiveRows(kind frames.ObjectKind, visit func(Row) bool) {
	s.onGround("a look at live rows")
	first := KeyOf(frames.ObjectRef{Kind: kind})
	s.mem.live.Ascend(&first, func(r *row) bool {
		return r.key.Kind() == kind && visit(r.Row)
	})
}
