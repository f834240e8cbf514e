package boltfile

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
)

func TestSealedValues(t *testing.T) {
	key := []byte("key")
	value, err := Seal(key, func(dst []byte) ([]byte, error) { return append(dst, "fields"...), nil })
	require.NoError(t, err)
	got, err := Unseal(key, value)
	require.NoError(t, err)
	require.Equal(t, "fields", string(got))
	_, err = Unseal([]byte("kez"), value)
	require.ErrorIs(t, err, ErrChecksum, "the key is covered")
	for i := range value {
		value[i] ^= 1
		_, err = Unseal(key, value)
		require.ErrorIs(t, err, ErrChecksum)
		value[i] ^= 1
	}
	for n := range crcSize + 1 {
		_, err = Unseal(key, value[:n])
		require.ErrorIs(t, err, ErrChecksum)
	}
	value[0] = valueVersion + 1 // with a checksum of its own
	other, err := Seal(key, func([]byte) ([]byte, error) { return value[:1], nil })
	require.NoError(t, err)
	_, err = Unseal(key, other)
	require.ErrorIs(t, err, ErrVersion)
}

// A file with several buckets is read as bbolt reads it, and only under exactly their names.
func TestReadSeveralBuckets(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	require.NoError(t, Create(path, func(tx *bolt.Tx) error {
		for _, name := range []string{"b", "a", "c"} {
			b, err := tx.CreateBucket([]byte(name))
			require.NoError(t, err)
			for i := range 300 {
				if name != "c" {
					require.NoError(t, b.Put([]byte{byte(i >> 8), byte(i)}, []byte(name)))
				}
			}
		}
		return nil
	}))
	file, err := os.ReadFile(path)
	require.NoError(t, err)
	c, err := Read(file, "a", "b", "c")
	require.NoError(t, err)
	require.Len(t, c.Buckets["a"], 300)
	require.Len(t, c.Buckets["b"], 300)
	require.Empty(t, c.Buckets["c"])
	require.Equal(t, Pair{Key: []byte{1, 43}, Value: []byte("b")}, c.Buckets["b"][299])
	for _, names := range [][]string{{"a", "b"}, {"a", "b", "d"}, {"a", "b", "c", "d"}, nil} {
		_, err := Read(file, names...)
		require.ErrorIs(t, err, ErrDamaged)
	}
	require.ErrorIs(t, Create(path, func(*bolt.Tx) error { return nil }), fs.ErrExist)
	_, err = Open(filepath.Join(t.TempDir(), "none.db"))
	require.ErrorIs(t, err, fs.ErrNotExist, "nothing is made")
}

func TestGuardTurnsPanicsIntoErrors(t *testing.T) {
	require.ErrorContains(t, Guard(func() error { panic("page 7") }), "page 7")
	require.NoError(t, Guard(func() error { return nil }))
}
