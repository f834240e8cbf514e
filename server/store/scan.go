package store

import (
	bolt "go.etcd.io/bbolt"

	"coordinator/frames"
)

// Internal returns rows of one internal kind in key order, behind after (the zero Key: from
// the first) and up to last: at most most. It also returns the key behind which to go on,
// and whether nothing follows.
//
// No cut holds internal rows back: one that was removed or replaced since the cut may be
// missing. Whoever acts on them reads them again. Any goroutine may call it.
func (c *Cut) Internal(last frames.ObjectRef, after Key, most int) (rows []Row, next Key, done bool, err error) {
	s := &scan{cut: c, next: after, end: KeyOf(last), most: most}
	if first := KeyOf(frames.ObjectRef{Kind: last.Kind}); after.less(first) {
		s.next = first // no row has a zero id
	}
	s.memory = newMemoryWalk(c, s.next)
	err = c.s.hist.view(func(tx *bolt.Tx) error {
		b, err := c.s.hist.bucket(tx, bucketHistory)
		if err != nil {
			return err
		}
		done, err = s.run(b.Cursor())
		return err
	})
	if err != nil {
		return nil, after, false, c.s.readFault(err)
	}
	return s.rows, s.next, done, nil
}

// A scan is one call of Internal: everything up to and including next is decided.
type scan struct {
	cut    *Cut
	memory *memoryWalk
	next   Key
	end    Key
	most   int
	rows   []Row
}

// run merges memory, which wins, with history. It looks at pageRows keys at most, so that no
// transaction stays open for long.
func (s *scan) run(cur *bolt.Cursor) (done bool, err error) {
	k, v := cur.Seek(s.next[:])
	if string(k) == string(s.next[:]) {
		k, v = cur.Next()
	}
	for visited := 0; len(s.rows) < s.most && visited < pageRows; visited++ {
		mk, mr, inMemory := s.memory.peek()
		inMemory = inMemory && !s.end.less(mk)
		onDisk := len(k) == len(s.end) && !s.end.less(Key(k))
		switch {
		case !inMemory && !onDisk:
			return true, nil
		case onDisk && (!inMemory || Key(k).less(mk)):
			if err := s.old(k, v); err != nil {
				return false, err
			}
			k, v = cur.Next()
			continue
		case onDisk && Key(k) == mk:
			k, v = cur.Next()
		}
		s.next = mk
		if mr != nil {
			s.rows = append(s.rows, mr.Row)
		}
		s.memory.skip(mk)
	}
	return false, nil
}

// old takes a row of history, unless a commit behind the cut wrote it.
func (s *scan) old(k, v []byte) error {
	ch, err := s.cut.s.hist.decodeChange(bucketHistory, k, v)
	if err != nil {
		return err
	}
	s.next = ch.key
	if ch.commit <= s.cut.commit {
		ch.row.own()
		s.rows = append(s.rows, ch.row.Row)
	}
	return nil
}
