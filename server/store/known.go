package store

import (
	"slices"
	"sync/atomic"

	bolt "go.etcd.io/bbolt"
)

// known tells of a key that state.db certainly has no history row of it. Nearly every command
// names an OperationId that nobody has used, and asking state.db for it costs more than
// everything else that is prepared for the command.
//
// A key is noted before the transaction that inserts it is written, and never taken back. What
// was there at the start is noted by a walk over all keys, a piece at a time between the
// checkpoints; until it has ended nothing is known. One that meets damage is given up: whoever
// reads the damaged page will tell.
//
// A filter that has what it was made for gets another beside it with twice the room of all
// of them, so that they stay few, and no key is noted twice or walked over again.
//
// Whoever steps checkpoints owns all but ready.
type known struct {
	ready atomic.Pointer[[]*filter] // each key is in one of them; nil: nothing is known

	walked *filter // what the walk under way fills; nil when there is none
	at     Key     // the walk has been up to here
	room   int     // for how many keys the filters are made
	noted  int     // about how many they have
}

const (
	// knownKeys and maxKnownKeys are for how many keys the filters are made, at least and at most:
	// whatever comes then goes into the last. Together they take 160 MiB at most.
	knownKeys    = 1 << 16
	maxKnownKeys = 1 << 27
	// knownBits are the bits per key of a filter: when it is full it passes one absent key in
	// eighty.
	knownBits = 10
	// knownWalk is how many keys one piece of the walk takes: it must not hold up a checkpoint.
	knownWalk = 8192
)

// begin has a walk begun over some n keys.
func (k *known) begin(n int) {
	k.walked = k.grow(max(2*n, knownKeys))
	k.at, k.noted = Key{}, 0
}

// grow makes a filter of room for n keys more, or what of it is left.
func (k *known) grow(n int) *filter {
	n = min(n, maxKnownKeys-k.room)
	k.room += n
	return newFilterBits(n * knownBits)
}

// note adds a key that is about to be inserted.
func (k *known) note(key *Key) {
	if k.walked != nil {
		k.add(k.walked, key)
		return
	}
	filters := k.ready.Load()
	if filters == nil || mayBeIn(*filters, key) {
		return
	}
	if k.noted >= k.room && k.room < maxKnownKeys {
		more := append(slices.Clone(*filters), k.grow(2*k.room))
		k.ready.Store(&more)
		filters = &more
	}
	k.add((*filters)[len(*filters)-1], key)
}

// add counts a key that a filter has not, and adds it.
func (k *known) add(f *filter, key *Key) {
	if !f.may(key) {
		k.noted++
		f.add(key)
	}
}

// walk notes a piece of what is there. It reports whether there is more to do.
func (k *known) walk(h *history) (more bool) {
	if k.walked == nil {
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
			k.add(k.walked, &k.at)
			key, _ = c.Next()
		}
		return nil
	})
	if err == nil && !end {
		return true
	}
	if err == nil {
		k.ready.Store(&[]*filter{k.walked})
	}
	k.walked = nil
	return false
}

// absent reports that no row of the key is there: what a checkpoint inserts from now on is in
// memory for as long as it is not whole.
func (k *known) absent(key *Key) bool {
	filters := k.ready.Load()
	return filters != nil && !mayBeIn(*filters, key)
}

func mayBeIn(filters []*filter, key *Key) bool {
	for _, f := range slices.Backward(filters) { // the last has the most room
		if f.may(key) {
			return true
		}
	}
	return false
}
