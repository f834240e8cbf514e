package store

import (
	"sync/atomic"

	bolt "go.etcd.io/bbolt"
)

// known tells of a key that state.db certainly has no history row of it. Nearly every command
// names an OperationId that nobody has used, and asking state.db for it costs more than
// everything else that is prepared for the command.
//
// A key is noted before the transaction that inserts it is written, and never taken back. What
// was there before is noted by a walk over all keys, a piece at a time beside the checkpoints;
// until it has ended nothing is known. One that meets damage is given up: whoever reads the
// damaged page will tell.
//
// Whoever steps checkpoints owns all but ready.
type known struct {
	ready atomic.Pointer[filter] // nil: nothing is known

	next  *filter // of the walk under way; nil when there is none
	at    Key     // the walk has been up to here
	room  int     // for how many keys the newest filter is made
	noted int     // about how many it has
}

const (
	// knownKeys and maxKnownKeys are for how many keys a filter is made, at least and at most; one
	// that has more is made anew with twice the room. The largest takes 128 MiB.
	knownKeys    = 1 << 16
	maxKnownKeys = 1 << 27
	// knownBits are its bits per key: when it is full one absent key in thirty is looked for.
	knownBits = 8
	// knownWalk is how many keys one piece of the walk takes: it must not hold up a checkpoint.
	knownWalk = 8192
)

// begin has a walk begun over some n keys.
func (k *known) begin(n int) {
	k.room = min(max(2*n, knownKeys), maxKnownKeys)
	k.next = newFilterBits(k.room * knownBits)
	k.at, k.noted = Key{}, 0
}

// note adds a key that is about to be inserted.
func (k *known) note(key *Key) {
	f := k.ready.Load()
	if f != nil {
		k.count(f, key)
		f.add(key)
	}
	if k.next != nil {
		k.count(k.next, key)
		k.next.add(key)
	} else if k.noted > k.room && k.room < maxKnownKeys {
		k.begin(k.noted)
	}
}

// count counts a key for the newest filter, if it is f and has it not.
func (k *known) count(f *filter, key *Key) {
	if (k.next == nil || k.next == f) && !f.may(key) {
		k.noted++
	}
}

// walk notes a piece of what is there. It reports whether there is more to do.
func (k *known) walk(h *history) (more bool) {
	if k.next == nil {
		return false
	}
	end := false
	err := h.view(func(tx *bolt.Tx) error {
		b, err := h.bucket(tx, bucketHistory)
		if err != nil {
			return err
		}
		c := b.Cursor()
		key, _ := c.Seek(k.at[:])
		for range knownWalk {
			if end = key == nil; end {
				return nil
			}
			if len(key) != len(k.at) {
				return corrupt(h.path, -1, "a key of bucket %s has %d bytes", bucketHistory, len(key))
			}
			k.at = Key(key)
			k.count(k.next, &k.at)
			k.next.add(&k.at)
			key, _ = c.Next()
		}
		return nil
	})
	switch {
	case err != nil:
		k.next = nil
		k.room = maxKnownKeys // no further walk meets it
		return false
	case !end:
		return true
	}
	k.ready.Store(k.next)
	k.next = nil
	return false
}

// absent reports that no row of the key is there: what a checkpoint inserts from now on is in
// memory for as long as it is not whole.
func (k *known) absent(key *Key) bool {
	f := k.ready.Load()
	return f != nil && !f.may(key)
}
