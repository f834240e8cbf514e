package store

import "coordinator/frames"

// overlay holds what changed since a checkpoint began, live rows included: the checkpoint
// writes exactly this. There are two generations at most, the active one and the one that
// a checkpoint is writing, which nobody changes any more.
type overlay struct {
	tree   *changeTree
	seen   *filter // of the keys in tree: nearly every key that is asked for is not there
	ops    int     // changes taken in, repeated keys counted
	weight uint64  // bytes held
}

// overlayKeys is for how many keys an overlay's filter is made: those of a usual checkpoint.
const overlayKeys = defaultCheckpointOps

func newOverlay() *overlay { return &overlay{tree: newTree[change](), seen: newFilter(overlayKeys)} }

// find gives the change of a key.
func (o *overlay) find(k *Key) (*change, bool) {
	if !o.seen.may(k) {
		return nil, false
	}
	return o.tree.Get(k)
}

// put takes the newest change of a key.
func (o *overlay) put(c *change) {
	o.seen.add(&c.key)
	old, replaced := o.tree.Set(&c.key, c)
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
	if _, newer := o.find(&c.key); !newer {
		o.put(c)
	}
}

// memory is the writer's view of all that is not only in state.db.
type memory struct {
	live   *rowTree
	active *overlay
	frozen *overlay // being written by a checkpoint, or nil
	counts tallies

	kinds map[frames.ObjectKind]int // rows of each kind in live; most kinds never have any
}

func newMemory() memory {
	return memory{live: newTree[row](), active: newOverlay(), counts: newTallies(), kinds: make(map[frames.ObjectKind]int)}
}

// find looks a key up. Known is false when only state.db can tell; a known nil row does
// not exist.
func (m *memory) find(k Key) (r *row, known bool) {
	if m.kinds[k.Kind()] > 0 {
		if r, ok := m.live.Get(&k); ok {
			return r, true
		}
	}
	if c, ok := m.active.find(&k); ok {
		return c.row, true
	}
	if m.frozen != nil {
		if c, ok := m.frozen.find(&k); ok {
			return c.row, true
		}
	}
	return nil, false
}

// set makes c the newest change of its key.
func (m *memory) set(c *change) {
	if c.row != nil && c.row.Live {
		m.setLive(c.row)
	} else {
		m.dropLive(&c.key)
	}
	m.active.put(c)
}

// setLive puts a row into the live tree.
func (m *memory) setLive(r *row) {
	if _, replaced := m.live.Set(&r.key, r); !replaced {
		m.kinds[r.key.Kind()]++
	}
}

// dropLive takes a key out of the live tree, if it is there.
func (m *memory) dropLive(k *Key) {
	kind := k.Kind()
	if m.kinds[kind] == 0 {
		return
	}
	if m.live.Delete(k) {
		m.kinds[kind]--
	}
}
