package store

import (
	"encoding/binary"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
)

func knownKey(n int) *Key {
	k := Key{1: 7}
	binary.BigEndian.PutUint64(k[2:], uint64(n)*0x9e3779b97f4a7c15)
	return &k
}

// knownHistory is a state.db with so many history rows, of which nothing is read but the keys.
func knownHistory(t *testing.T, n int) *history {
	t.Helper()
	path := filepath.Join(t.TempDir(), stateName)
	db, err := bolt.Open(path, 0o600, &bolt.Options{NoSync: true, NoGrowSync: true})
	require.NoError(t, err)
	h := &history{db: db, path: path, newest: newest(upgrades)}
	t.Cleanup(func() { h.close() }) //nolint:errcheck // thrown away
	require.NoError(t, h.update(func(tx *bolt.Tx) error {
		b, err := tx.CreateBucket(bucketHistory)
		for i := 0; i < n && err == nil; i++ {
			err = b.Put(knownKey(i)[:], []byte("row"))
		}
		return err
	}))
	return h
}

func (k *known) passed(from, n int) (passed int) {
	for i := range n {
		if !k.absent(knownKey(from + i)) {
			passed++
		}
	}
	return passed
}

// Nothing is known before the walk has ended, and nothing that is there, or that was inserted
// meanwhile on whichever side of the walk, is ever called absent.
func TestKnownKeysAreNeverCalledAbsent(t *testing.T) {
	const there, inserted = 3 * knownWalk, 500
	h := knownHistory(t, there)
	var k known
	k.begin(there)
	last := there
	for more := true; more; more = k.walk(h) {
		require.Equal(t, 100, k.passed(1<<40, 100), "nothing is known yet")
		for range inserted {
			k.note(knownKey(last))
			last++
		}
	}
	k.note(knownKey(last))
	last++
	require.Equal(t, last, k.passed(0, last))
	require.Less(t, k.passed(1<<40, 10_000), 1000, "nearly all that is not there is known to be absent")
}

// Filters that have what they were made for get another beside them; keys that are written
// again do not count.
func TestKnownKeysGetMoreRoom(t *testing.T) {
	h := knownHistory(t, 10)
	var k known
	k.begin(10)
	for k.walk(h) {
	}
	for range 3 {
		for i := range knownKeys / 2 {
			k.note(knownKey(i))
		}
	}
	require.Len(t, *k.ready.Load(), 1)
	const keys = 5 * knownKeys
	for i := range keys {
		k.note(knownKey(i))
	}
	require.Equal(t, keys, k.passed(0, keys))
	require.Len(t, *k.ready.Load(), 3)
	require.Equal(t, 9*knownKeys, k.room)
	require.InDelta(t, keys, k.noted, keys/20, "one that seems to be there is not counted")
	require.Less(t, k.passed(1<<40, 10_000), 500)
}

// Whatever would take more memory than there may be goes into the last filter.
func TestKnownKeysTakeNoMoreThanTheirRoom(t *testing.T) {
	h := knownHistory(t, 10)
	k := known{room: maxKnownKeys - 5*knownKeys}
	k.begin(10)
	for k.walk(h) {
	}
	k.noted = k.room
	for i := range 2 * knownKeys {
		k.note(knownKey(i))
	}
	require.Equal(t, maxKnownKeys, k.room)
	require.Len(t, *k.ready.Load(), 2)
	require.Equal(t, 2*knownKeys, k.passed(0, 2*knownKeys))
}

// Damage that the walk meets ends the walk alone.
func TestKnownKeysAreGivenUpWithDamage(t *testing.T) {
	h := knownHistory(t, 10)
	require.NoError(t, h.update(func(tx *bolt.Tx) error { return tx.Bucket(bucketHistory).Put([]byte("short"), nil) }))
	var k known
	k.begin(10)
	for k.walk(h) {
	}
	require.Nil(t, k.ready.Load())
	for i := range 4 * knownKeys {
		k.note(knownKey(i))
	}
	require.Equal(t, 10, k.passed(1<<40, 10))
}
