package store

import (
	bolt "go.etcd.io/bbolt"

	"coordinator/frames"
)

// Internal returns rows of one internal kind in key order, behind after (the zero Key: from
// the first) and up to last: at most max. It also returns the key behind which to go on,
// and whether nothing follows.
//
// No cut holds internal rows back: one that was removed or replaced since the cut may be
// missing. Whoever acts on them reads them again. Any goroutine may call it.
func (c *Cut) Internal(last frames.ObjectRef, after Key, max int) (rows []Row, next Key, done bool, err error) {
	end := KeyOf(last)
	if first := KeyOf(frames.ObjectRef{Kind: last.Kind}); after.less(first) {
		after = first // no row has a zero id
	}
	m := newMemoryWalk(c, after)
	next = after
	err = c.s.hist.view(func(tx *bolt.Tx) error {
		b, err := c.s.hist.bucket(tx, bucketHistory)
		if err != nil {
			return err
		}
		cur := b.Cursor()
		k, v := cur.Seek(after[:])
		if string(k) == string(after[:]) {
			k, v = cur.Next()
		}
		for visited := 0; len(rows) < max && visited < pageRows; visited++ {
			mk, mr, inMemory := m.peek()
			inMemory = inMemory && !end.less(mk)
			onDisk := len(k) == len(end) && !end.less(Key(k))
			switch {
			case !inMemory && !onDisk:
				done = true
				return nil
			case onDisk && (!inMemory || Key(k).less(mk)):
				ch, err := c.s.hist.decodeChange(bucketHistory, k, v)
				if err != nil {
					return err
				}
				next = ch.key
				if ch.commit <= c.commit {
					ch.row.own()
					rows = append(rows, ch.row.Row)
				}
				k, v = cur.Next()
				continue
			case onDisk && Key(k) == mk:
				k, v = cur.Next()
			}
			next = mk
			if mr != nil {
				rows = append(rows, mr.Row)
			}
			m.skip(mk)
		}
		return nil
	})
	if err != nil {
		return nil, after, false, c.s.readFault(err)
	}
	return rows, next, done, nil
}
