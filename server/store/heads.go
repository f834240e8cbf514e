package store

import (
	"fmt"

	"coordinator/frames"
)

// PrefetchHeads is Prefetch that reads of heads all but the payloads, for [Tx.GetHead] and
// [Tx.Remove]: whoever removes many records need not hold them.
func (s *Store) PrefetchHeads(refs, heads []frames.ObjectRef) (*Loaded, error) {
	// The position comes first: a checkpoint that finishes during the read may or may not be
	// in it.
	l := &Loaded{pos: s.completed.Load()}
	var err error
	if l.rows, err = s.find(keysOf(refs), false); err == nil && len(heads) > 0 {
		l.heads, err = s.find(keysOf(heads), true)
	}
	if err != nil {
		return nil, s.readFault(err)
	}
	return l, nil
}

// find reads the history rows of keys, as far as there may be any.
func (s *Store) find(keys []Key, headless bool) (found, error) {
	var asked []int
	closed := s.Err() != nil // state.db then says so itself
	for i := range keys {
		if closed || !s.known.absent(&keys[i]) {
			asked = append(asked, i)
		}
	}
	return s.hist.find(keys, asked, headless)
}

func keysOf(refs []frames.ObjectRef) []Key {
	keys := make([]Key, len(refs))
	for i, ref := range refs {
		keys[i] = KeyOf(ref)
	}
	return keys
}

// GetHead is Get for whoever needs no payload: that of the row may be missing. It also finds
// rows of which only the head was prefetched.
func (tx *Tx) GetHead(ref frames.ObjectRef) (Row, bool, error) {
	r, known := tx.findHead(KeyOf(ref))
	switch {
	case !known:
		return Row{}, false, fmt.Errorf("%v: %w", ref, ErrNotLoaded)
	case r == nil:
		return Row{}, false, nil
	}
	return r.Row, true, nil
}

func (tx *Tx) findHead(k Key) (*row, bool) {
	r, known := tx.find(k)
	if !known {
		r, known = tx.loaded.heads.find(k)
	}
	return r, known
}

// behead drops the payload of a row, which still weighs as much.
func (r *row) behead() {
	r.bulk = len(r.Record.Payload)
	r.Record.Payload = nil
}
