package store

import (
	"encoding/binary"
	"io"
	"os"

	bolt "go.etcd.io/bbolt"
)

// The layout of a bbolt page, in the byte order of the machine: id:u64 flags:u16 count:u16
// overflow:u32, then count elements of 16 bytes, then their keys and values without a gap.
// A leaf element is flags:u32 pos:u32 ksize:u32 vsize:u32, a branch element pos:u32
// ksize:u32 pgid:u64; pos counts from the element.
const (
	pageHeader   = 16
	pageElement  = 16
	leafPage     = 2
	bucketLeaf   = 1  // flag of a leaf element: the value is a bucket
	bucketHeader = 16 // root:u64 sequence:u64; with root 0 a leaf page of its own follows
)

// eachPage gives visit every page of the file in order, with those that it goes on for. A
// free page counts by itself, and an extent beyond the file is reported before it is visited.
func (h *history) eachPage(visit func(id, pages, size int, kind string) error) error {
	return h.view(func(tx *bolt.Tx) error {
		size := h.db.Info().PageSize
		for id := 0; id < int(tx.Size())/size; {
			info, err := tx.Page(id)
			if err != nil {
				return &CorruptError{File: h.path, Offset: int64(id) * int64(size), Problem: "a page cannot be read", Err: err}
			}
			pages := 1
			switch info.Type {
			case "leaf", "branch", "freelist":
				pages += info.OverflowCount
			}
			if id+pages > int(tx.Size())/size {
				return corrupt(h.path, int64(id)*int64(size), "page %d goes on for %d pages, beyond the end of the file", id, info.OverflowCount)
			}
			if err := visit(id, pages, size, info.Type); err != nil {
				return err
			}
			id += pages
		}
		return nil
	})
}

// checkExtents reports a page that says it goes on beyond the file. It comes before bbolt's
// own check, which remembers every page of such an extent, up to four billion of them.
func (h *history) checkExtents() error {
	return h.eachPage(func(int, int, int, string) error { return nil })
}

// checkElements checks what the page check of bbolt takes on trust: that a page has as many
// elements as it says. A count that is too low would hide rows, and no checksum would miss
// them. It comes after checkPages, which has found every page that is not free in use.
func (h *history) checkElements() error {
	f, err := os.Open(h.path)
	if err != nil {
		return ioError("open", h.path, err)
	}
	defer f.Close()
	file, _, err := h.sizes()
	if err != nil {
		return err
	}
	return h.eachPage(func(id, pages, size int, kind string) error {
		h.advance(Advance{Step: stepElements, Done: int64(id) * int64(size), Total: file})
		if kind != "leaf" && kind != "branch" {
			return nil
		}
		b := make([]byte, pages*size)
		if _, err := io.ReadFull(io.NewSectionReader(f, int64(id)*int64(size), int64(len(b))), b); err != nil {
			return ioError("read", h.path, err)
		}
		if !packed(b) {
			return corrupt(h.path, int64(id)*int64(size), "page %d has other elements than it says", id)
		}
		return nil
	})
}

// packed reports whether the elements of a branch or leaf page lie as bbolt writes them: the
// first data right behind the last element, and each right behind the one before.
func packed(b []byte) bool {
	e := binary.NativeEndian
	if len(b) < pageHeader {
		return false
	}
	leaf := e.Uint16(b[8:]) == leafPage
	count := uint64(e.Uint16(b[10:]))
	next := pageHeader + count*pageElement
	if next > uint64(len(b)) {
		return false
	}
	for i := range count {
		at := pageHeader + i*pageElement
		el := b[at:]
		pos, ksize, vsize, nested := e.Uint32(el), e.Uint32(el[4:]), uint32(0), false
		if leaf {
			nested = e.Uint32(el)&bucketLeaf != 0
			pos, ksize, vsize = e.Uint32(el[4:]), e.Uint32(el[8:]), e.Uint32(el[12:])
		}
		end := next + uint64(ksize) + uint64(vsize)
		if at+uint64(pos) != next || end > uint64(len(b)) {
			return false
		}
		if nested {
			v := b[end-uint64(vsize) : end]
			if len(v) < bucketHeader || e.Uint64(v) == 0 && !packed(v[bucketHeader:]) {
				return false
			}
		}
		next = end
	}
	return true
}
