package store

import (
	"hash/maphash"
	"sync/atomic"
)

// filterSeed makes it unknown to whoever chooses ids which of them fall together. It changes
// how much is looked up in vain, and nothing that is found.
var filterSeed = maphash.MakeSeed()

// A filter knows of a key that it was never added, or else that it may have been: a Bloom
// filter whose bits for one key lie in one word, so that asking costs one cache line. Any
// goroutine may ask and add.
type filter struct{ words []uint64 }

// filterBits are the bits of a filter per key that it is made for: one key in some two
// hundred that were never added passes then.
const filterBits = 16

// newFilter makes an empty filter for n keys. It takes more, and tells fewer of them apart.
func newFilter(n int) *filter { return newFilterBits(n * filterBits) }

func newFilterBits(bits int) *filter { return &filter{words: make([]uint64, max(1, bits/64))} }

// place is where the bits of a key are.
func (f *filter) place(k *Key) (word *uint64, bits uint64) {
	h := maphash.Bytes(filterSeed, k[:])
	i := (h >> 32) * uint64(len(f.words)) >> 32
	return &f.words[i], 1<<(h&63) | 1<<(h>>6&63) | 1<<(h>>12&63) | 1<<(h>>18&63)
}

// add notes a key.
func (f *filter) add(k *Key) {
	word, bits := f.place(k)
	if atomic.LoadUint64(word)&bits != bits {
		atomic.OrUint64(word, bits)
	}
}

// may reports false only when the key was never added.
func (f *filter) may(k *Key) bool {
	word, bits := f.place(k)
	return atomic.LoadUint64(word)&bits == bits
}
