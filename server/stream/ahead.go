package stream

import (
	"sync"

	"coordinator/frames"
)

// maxAhead bounds the pages of the whole process that wait for their NEXT. Beyond it a page
// is made when it is asked for.
const maxAhead = 64

// unaddressed stands in a page that was made before its request was read.
const unaddressed frames.RequestID = 1

// A made is a page of a lease as it goes out, but for the id of the request that will ask for
// it: it may be made before, while the peer still reads the page in front of it.
type made struct {
	raw   []byte
	count uint64
	next  []byte // cursor of the page behind it, nil for the last one
	err   error
}

// answer gives the page that a request asks for, made ahead or now, and count says what is in
// it. Last says that nothing follows; otherwise the page behind it is made once the reply is
// queued.
func (l *lease) answer(req frames.RequestID) (r Reply, count uint64, last bool, err error) {
	p := l.ahead
	if l.dropAhead(); p == nil {
		p = l.make()
	}
	if p.err != nil {
		return Reply{}, 0, false, p.err
	}
	frames.Readdress(p.raw, req)
	l.pages++
	r.Page = p.raw
	if p.next == nil {
		return r, p.count, true, nil
	}
	l.cursor, r.Then = p.next, l.prepare
	l.spare, err = l.s.m.randomCursor()
	return r, p.count, false, err
}

// prepare makes the next page of a lease, which has one, ahead.
func (l *lease) prepare() {
	m := l.s.m
	if l.ahead != nil || !l.open() || l.complete.Load() {
		return
	}
	if m.ahead.Add(1) > maxAhead {
		m.ahead.Add(-1)
		return
	}
	l.ahead = l.make()
}

// dropAhead forgets the page that was made ahead.
func (l *lease) dropAhead() {
	if l.ahead != nil {
		l.ahead = nil
		l.s.m.ahead.Add(-1)
	}
}

// pageBuffers are what pages are encoded into.
var pageBuffers = sync.Pool{New: func() any { return new([]byte) }}

func takePageBuffer() []byte { return (*pageBuffers.Get().(*[]byte))[:0] }

// Recycle takes back a page that was written: nobody refers to it any more.
func Recycle(page []byte) {
	if cap(page) <= 2*frames.MaxPageBytes {
		pageBuffers.Put(&page)
	}
}
