package store

// overlay holds what changed since a checkpoint began, live rows included: the checkpoint
// writes exactly this. There are two generations at most, the active one and the one that
// a checkpoint is writing, which nobody changes any more.
type overlay struct {
	tree   *changeTree
	ops    int    // changes taken in, repeated keys counted
	weight uint64 // bytes held
}

func newOverlay() *overlay { return &overlay{tree: newChangeTree()} }

// put takes the newest change of a key.
func (o *overlay) put(c *change) {
	old, replaced := o.tree.Set(c)
	if replaced {
		c.fresh = old.fresh && c.row != nil // a removal is looked up: it costs little and is rare
	}
	o.ops++
	o.weight += c.weight()
	if replaced {
		o.weight -= old.weight()
	}
}

// adopt takes a change of an older generation unless the key has changed since.
func (o *overlay) adopt(c *change) {
	if _, newer := o.tree.Get(c); !newer {
		o.put(c)
	}
}

// memory is the writer's view of all that is not only in state.db.
type memory struct {
	live   *rowTree
	active *overlay
	frozen *overlay // being written by a checkpoint, or nil
	counts tallies

	// What the trees are asked with. Nobody but the writer asks these, and none keeps it.
	rowPivot    row
	changePivot change
}

func newMemory() memory {
	return memory{live: newRowTree(), active: newOverlay(), counts: newTallies()}
}

// find looks a key up. Known is false when only state.db can tell; a known nil row does
// not exist.
func (m *memory) find(k Key) (r *row, known bool) {
	m.rowPivot.key, m.changePivot.key = k, k
	if r, ok := m.live.Get(&m.rowPivot); ok {
		return r, true
	}
	if c, ok := m.active.tree.Get(&m.changePivot); ok {
		return c.row, true
	}
	if m.frozen != nil {
		if c, ok := m.frozen.tree.Get(&m.changePivot); ok {
			return c.row, true
		}
	}
	return nil, false
}

// set makes c the newest change of its key.
func (m *memory) set(c *change) {
	if c.row != nil && c.row.Live {
		m.live.Set(c.row)
	} else {
		m.rowPivot.key = c.key
		m.live.Delete(&m.rowPivot)
	}
	m.active.put(c)
}
