package boltfile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
)

// Layout of a bbolt file, version 2 (go.etcd.io/bbolt/internal/common).
const (
	boltMagic      = 0xED0CDAED
	boltVersion    = 2
	boltPageHeader = 16
	boltElement    = 16
	boltMetaSize   = 64
	boltBucketSize = 16

	boltBranch   = 0x01
	boltLeaf     = 0x02
	boltMeta     = 0x04
	boltFreelist = 0x10

	boltBucketFlag = 0x01
	boltManyIDs    = 0xffff // the freelist's count is in its first element then
	boltMaxDepth   = 32
)

// ErrDamaged is what every error of [Read] matches.
var ErrDamaged = errors.New("page structure")

func boltErr(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrDamaged, fmt.Sprintf(format, args...))
}

// A Pair is one key and its value.
type Pair struct{ Key, Value []byte }

// Contents is what a checked file holds.
type Contents struct {
	TxID uint64
	// Buckets holds the pairs of each bucket in key order; they alias the file's bytes.
	Buckets map[string][]Pair
	// Used are the ids of the pages that hold them, the freelist's and the two meta pages
	// included.
	Used []uint64
}

// boltReader walks one file image. Each page may be reached once.
type boltReader struct {
	buf      []byte
	pageSize uint64
	pages    uint64 // high-water mark: page ids are below it
	seen     map[uint64]bool
}

// Read checks the whole file and returns what its buckets hold, which must be exactly those
// named. It neither changes nor keeps file, but what it returns aliases it.
func Read(file []byte, names ...string) (Contents, error) {
	c, err := ReadAll(file)
	if err != nil {
		return Contents{}, err
	}
	if len(c.Buckets) != len(names) {
		return Contents{}, boltErr("the root holds %d buckets instead of %d", len(c.Buckets), len(names))
	}
	for name := range c.Buckets {
		if !slices.Contains(names, name) {
			return Contents{}, boltErr("the root holds something else than the buckets %q", names)
		}
	}
	return c, nil
}

// ReadAll is [Read] for a file of whatever buckets.
func ReadAll(file []byte) (Contents, error) {
	r := &boltReader{buf: file, seen: map[uint64]bool{0: true, 1: true}}
	m, err := r.metas()
	if err != nil {
		return Contents{}, err
	}
	var root []Pair
	var buckets []bool
	if err := r.walk(m.root, 0, &root, &buckets); err != nil {
		return Contents{}, err
	}
	out := Contents{TxID: m.txid, Buckets: make(map[string][]Pair, len(root))}
	for i, p := range root {
		if !buckets[i] {
			return Contents{}, boltErr("the root holds a value")
		}
		var pairs []Pair
		var nested []bool
		if err := r.bucket(p.Value, &pairs, &nested); err != nil {
			return Contents{}, err
		}
		if slices.Contains(nested, true) {
			return Contents{}, boltErr("a bucket where a value belongs")
		}
		out.Buckets[string(p.Key)] = pairs
	}
	for id := range r.seen {
		out.Used = append(out.Used, id)
	}
	out.Used = append(out.Used, m.freelist)
	return out, r.freelist(m.freelist)
}

// Lookup reads one value and the pages on the way to it. It is how a file that a newer
// program may have laid out in its own way is asked what it is.
func Lookup(file []byte, bucket, key string) ([]byte, error) {
	r := &boltReader{buf: file, seen: map[uint64]bool{0: true, 1: true}}
	m, err := r.metas()
	if err != nil {
		return nil, err
	}
	var root, pairs []Pair
	var nested []bool
	if err := r.walk(m.root, 0, &root, &nested); err != nil {
		return nil, err
	}
	i := slices.IndexFunc(root, func(p Pair) bool { return string(p.Key) == bucket })
	if i < 0 || !nested[i] {
		return nil, boltErr("there is no bucket %s", bucket)
	}
	if err := r.bucket(root[i].Value, &pairs, new([]bool)); err != nil {
		return nil, err
	}
	i = slices.IndexFunc(pairs, func(p Pair) bool { return string(p.Key) == key })
	if i < 0 {
		return nil, boltErr("bucket %s has no %s", bucket, key)
	}
	return pairs[i].Value, nil
}

type boltMetaPage struct{ pageSize, root, freelist, pages, txid uint64 }

// metas checks both meta pages and returns the newer. Both must be whole: a meta is written in
// one sector, so no crash tears it, and the older one alone would be an older state.
func (r *boltReader) metas() (boltMetaPage, error) {
	first, err := r.meta(0)
	if err != nil {
		return boltMetaPage{}, err
	}
	second, err := r.meta(first.pageSize)
	if err != nil {
		return boltMetaPage{}, err
	}
	if second.pageSize != first.pageSize || first.txid%2 != 0 ||
		second.txid != first.txid+1 && second.txid+1 != first.txid {
		return boltMetaPage{}, boltErr("the two meta pages do not belong together")
	}
	m := first
	if second.txid > first.txid {
		m = second
	}
	r.pageSize, r.pages = m.pageSize, m.pages
	if m.pages < 2 || m.pages > uint64(len(r.buf))/m.pageSize {
		return boltMetaPage{}, boltErr("the file has %d bytes, its meta page speaks of %d pages of %d", len(r.buf), m.pages, m.pageSize)
	}
	return m, nil
}

func (r *boltReader) meta(off uint64) (boltMetaPage, error) {
	var m boltMetaPage
	if off+boltPageHeader+boltMetaSize > uint64(len(r.buf)) {
		return m, boltErr("the file ends within its meta pages")
	}
	p := r.buf[off:]
	if flags := binary.NativeEndian.Uint16(p[8:]); flags != boltMeta {
		return m, boltErr("meta page at %d has type %#x", off, flags)
	}
	p = p[boltPageHeader : boltPageHeader+boltMetaSize]
	sum := fnv.New64a()
	sum.Write(p[:boltMetaSize-8])
	if binary.NativeEndian.Uint64(p[56:]) != sum.Sum64() {
		return m, boltErr("checksum of the meta page at %d", off)
	}
	if binary.NativeEndian.Uint32(p) != boltMagic || binary.NativeEndian.Uint32(p[4:]) != boltVersion {
		return m, boltErr("meta page at %d is not of a version 2 file", off)
	}
	m = boltMetaPage{
		pageSize: uint64(binary.NativeEndian.Uint32(p[8:])),
		root:     binary.NativeEndian.Uint64(p[16:]),
		freelist: binary.NativeEndian.Uint64(p[32:]),
		pages:    binary.NativeEndian.Uint64(p[40:]),
		txid:     binary.NativeEndian.Uint64(p[48:]),
	}
	if m.pageSize < 512 || m.pageSize > 1<<20 || m.pageSize&(m.pageSize-1) != 0 {
		return m, boltErr("page size %d", m.pageSize)
	}
	return m, nil
}

// page returns one page with its overflow and marks it reached.
func (r *boltReader) page(id uint64) (p []byte, flags, count uint16, err error) {
	if id < 2 || id >= r.pages {
		return nil, 0, 0, boltErr("page %d is out of range", id)
	}
	p = r.buf[id*r.pageSize:]
	flags = binary.NativeEndian.Uint16(p[8:])
	count = binary.NativeEndian.Uint16(p[10:])
	overflow := uint64(binary.NativeEndian.Uint32(p[12:]))
	if have := binary.NativeEndian.Uint64(p); have != id {
		return nil, 0, 0, boltErr("page %d calls itself %d", id, have)
	}
	if overflow >= r.pages-id {
		return nil, 0, 0, boltErr("page %d overflows the file", id)
	}
	for n := id; n <= id+overflow; n++ {
		if r.seen[n] {
			return nil, 0, 0, boltErr("page %d is used twice", n)
		}
		r.seen[n] = true
	}
	return p[:(overflow+1)*r.pageSize], flags, count, nil
}

// walk appends what lies under page id.
func (r *boltReader) walk(id uint64, depth int, pairs *[]Pair, buckets *[]bool) error {
	p, flags, count, err := r.page(id)
	if err != nil {
		return err
	}
	switch {
	case flags == boltLeaf:
		return r.leaf(p, count, pairs, buckets)
	case flags != boltBranch:
		return boltErr("page %d has type %#x", id, flags)
	case depth == boltMaxDepth || count == 0:
		return boltErr("page %d is no branch of a tree", id)
	}
	for i := range int(count) {
		at := boltPageHeader + i*boltElement
		if at+boltElement > len(p) {
			return boltErr("page %d has too many elements", id)
		}
		e := p[at:]
		key, ok := slice(e, binary.NativeEndian.Uint32(e), binary.NativeEndian.Uint32(e[4:]))
		if !ok {
			return boltErr("an element of page %d leaves it", id)
		}
		before := len(*pairs)
		if err := r.walk(binary.NativeEndian.Uint64(e[8:]), depth+1, pairs, buckets); err != nil {
			return err
		}
		if before == len(*pairs) || !bytes.Equal((*pairs)[before].Key, key) {
			return boltErr("page %d names another first key than its child has", id)
		}
	}
	return nil
}

func (r *boltReader) leaf(p []byte, count uint16, pairs *[]Pair, buckets *[]bool) error {
	for i := range int(count) {
		at := boltPageHeader + i*boltElement
		if at+boltElement > len(p) {
			return boltErr("a leaf has too many elements")
		}
		e := p[at:]
		flags, pos := binary.NativeEndian.Uint32(e), binary.NativeEndian.Uint32(e[4:])
		ksize, vsize := binary.NativeEndian.Uint32(e[8:]), binary.NativeEndian.Uint32(e[12:])
		key, ok := slice(e, pos, ksize)
		if !ok || flags > boltBucketFlag {
			return boltErr("a leaf element leaves its page")
		}
		value, ok := slice(e[pos+ksize:], 0, vsize)
		if !ok {
			return boltErr("a leaf element leaves its page")
		}
		if n := len(*pairs); n > 0 && bytes.Compare((*pairs)[n-1].Key, key) >= 0 {
			return boltErr("keys out of order")
		}
		*pairs = append(*pairs, Pair{key, value})
		*buckets = append(*buckets, flags == boltBucketFlag)
	}
	return nil
}

// bucket appends what a bucket value holds: a tree of its own, or a small page within the value.
func (r *boltReader) bucket(value []byte, pairs *[]Pair, buckets *[]bool) error {
	if len(value) < boltBucketSize {
		return boltErr("bucket value of %d bytes", len(value))
	}
	if root := binary.NativeEndian.Uint64(value); root != 0 {
		return r.walk(root, 0, pairs, buckets)
	}
	p := value[boltBucketSize:]
	if len(p) < boltPageHeader || binary.NativeEndian.Uint16(p[8:]) != boltLeaf {
		return boltErr("inline bucket is no leaf")
	}
	return r.leaf(p, binary.NativeEndian.Uint16(p[10:]), pairs, buckets)
}

// freelist checks that every page is either in use or free, and none both: bbolt writes over
// what this list calls free.
func (r *boltReader) freelist(id uint64) error {
	p, flags, short, err := r.page(id)
	if err != nil {
		return err
	}
	if flags != boltFreelist {
		return boltErr("page %d is no freelist", id)
	}
	ids, count := p[boltPageHeader:], uint64(short)
	if count == boltManyIDs {
		count, ids = binary.NativeEndian.Uint64(ids), ids[8:]
	}
	if count > uint64(len(ids))/8 {
		return boltErr("the freelist has too many pages")
	}
	for i := range count {
		n := binary.NativeEndian.Uint64(ids[8*i:])
		if n < 2 || n >= r.pages || r.seen[n] {
			return boltErr("page %d is both free and in use, or no page", n)
		}
		r.seen[n] = true
	}
	if uint64(len(r.seen)) != r.pages {
		return boltErr("%d of %d pages are neither in use nor free", r.pages-uint64(len(r.seen)), r.pages)
	}
	return nil
}

// slice is b[pos:pos+n] when that lies within b.
func slice(b []byte, pos, n uint32) ([]byte, bool) {
	if end := uint64(pos) + uint64(n); end > uint64(len(b)) {
		return nil, false
	}
	return b[pos : pos+n], true
}
