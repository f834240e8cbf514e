package mcp

import (
	"encoding/json"
	"unicode/utf8"

	"coordinator/internal/text"
)

// Bounds of one result, in bytes of its JSON.
const (
	defaultBytes = 32 << 10
	minBytes     = 2 << 10
	maxBytes     = 256 << 10
	// restBytes is more than a result takes beside its list, document or output.
	restBytes = 1 << 10
)

// Bounds of a list.
const (
	defaultLimit = 50
	maxLimit     = 500
)

// maxTitle bounds a title in a list.
const maxTitle = 200

// bytesOf is the budget that a call asks for. The schema has bounded it; a resource asks for
// none.
func bytesOf(asked int) int {
	if asked == 0 {
		return defaultBytes
	}
	return min(max(asked, minBytes), maxBytes)
}

func limitOf(asked int) int {
	if asked == 0 {
		return defaultLimit
	}
	return min(asked, maxLimit)
}

// A page collects items of a list within bounds.
type page[T any] struct {
	left  int // bytes
	limit int
	items []T
	cut   bool
}

func newPage[T any](bytes, limit int) *page[T] {
	return &page[T]{left: bytes, limit: limit, items: []T{}}
}

// add takes an item; false says that the page is full, and the item not in it. A page takes one
// item whatever its size, which is bounded by itself.
func (p *page[T]) add(item T) bool {
	raw, err := json.Marshal(item)
	if err != nil {
		panic("mcp: an item that is no JSON: " + err.Error())
	}
	if len(p.items) > 0 && (len(p.items) >= p.limit || len(raw)+1 > p.left) {
		p.cut = true
		return false
	}
	p.items = append(p.items, item)
	p.left -= len(raw) + 1
	return true
}

// clip makes s inert and cuts it to n bytes.
func clip(s string, n int) string { return text.Clip(text.Inert(s), n) }

// fit turns the bytes of an output into inert text whose JSON takes at most budget bytes. used
// is how many of them it stands for; a character or line end that raw holds only the beginning
// of is left for the next call, unless nothing follows (last). Line ends of terminals become
// newlines.
func fit(raw []byte, budget int, last bool) (s string, used int) {
	out := make([]byte, 0, min(len(raw), budget))
	for used < len(raw) {
		rest := raw[used:]
		if !last && (!utf8.FullRune(rest) || len(rest) == 1 && rest[0] == '\r') && used > 0 {
			break
		}
		r, n := utf8.DecodeRune(rest)
		switch {
		case r == '\r' && len(rest) > 1 && rest[1] == '\n':
			r, n = '\n', 2
		case r == '\r':
			r = '\n'
		case r != '\n' && r != '\t' && text.Steers(r):
			r = utf8.RuneError
		}
		if budget -= jsonSize(r); budget < 0 && used > 0 {
			break
		}
		out = utf8.AppendRune(out, r)
		used += n
	}
	return string(out), used
}

// jsonSize is what a character takes in a JSON string, as encoding/json writes it.
func jsonSize(r rune) int {
	switch r {
	case '\n', '\t', '"', '\\':
		return 2
	case '<', '>', '&':
		return 6
	}
	return utf8.RuneLen(r)
}

// documentText is a document as text that fits, and whether it was cut.
func documentText(b []byte, budget int) (s string, cut bool) {
	s, used := fit(b, budget, true)
	return s, used < len(b)
}
