package store

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
)

// What was added is never denied, also far beyond the size that a filter was made for, and
// of what was not added nearly everything is.
func TestFilter(t *testing.T) {
	const made = 1000
	key := func(n int) *Key {
		k := Key{1: 7}
		binary.BigEndian.PutUint64(k[2:], uint64(n))
		return &k
	}
	f := newFilter(made)
	passed := func(from int) (n int) {
		for i := range 10_000 {
			if f.may(key(from + i)) {
				n++
			}
		}
		return n
	}
	require.Zero(t, passed(0), "an empty filter denies everything")
	for i := range made {
		f.add(key(i))
	}
	require.Less(t, passed(made), 300, "a filter that is as full as it may be tells keys apart")
	for i := range 100 * made {
		f.add(key(i))
	}
	for i := range 100 * made {
		require.True(t, f.may(key(i)))
	}
}
