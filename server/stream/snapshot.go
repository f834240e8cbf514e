package stream

import (
	"container/list"
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"coordinator/frames"
	"coordinator/server/quota"
	"coordinator/server/store"
	"coordinator/server/work"
)

const (
	// cursorSize is far below the 200 bytes that a page's cap leaves (§2 [D-28]).
	cursorSize = 32
	// listHeader is the element count at the head of a page's record list.
	listHeader = 2
	// fetchRows is how many rows are read from a cut at a time, so that at most
	// so many are read in vain when a page is full.
	fetchRows = 64
	// maxFinished bounds the ids that a connection may still send APPLIED for
	// after their lease ended with END [D-19].
	maxFinished = 64
)

// A lease is one open snapshot. Only the session's own goroutine pages through
// it; the manager may end it at any time.
type lease struct {
	id      frames.SnapshotID
	m       *Manager
	cut     *store.Cut
	slot    *quota.Charge
	pinned  *quota.Charge
	expires time.Duration // boot reading
	element *list.Element // guarded by m.mu

	// Owned by the session's goroutine.
	count  uint64 // visible records of the cut
	sent   uint64
	pages  uint32
	after  store.Key // of the last record sent
	cursor []byte    // the one that the next NEXT must carry
	digest *frames.SnapshotDigest

	complete atomic.Bool // END is made; only APPLIED may follow
	ended    atomic.Bool
}

// open reports whether the lease still runs.
func (l *lease) open() bool { return !l.ended.Load() && l.m.o.Clock.Now().Boot < l.expires }

// end ends the lease for good and gives back what it held. It may be called from
// any goroutine, more than once, and while a page is read: the page then fails.
func (l *lease) end() {
	if l.ended.Swap(true) {
		return
	}
	l.m.remove(l)
	l.cut.Close()
	l.pinned.Release()
	l.slot.Release()
}

// A Session is one connection's snapshots. Only one goroutine calls its methods,
// except Close, which may come from another once that one has ended.
type Session struct {
	m        *Manager
	o        SessionOptions
	leases   map[frames.SnapshotID]*lease
	finished []frames.SnapshotID // ended with END and not yet APPLIED, oldest first
}

// A Reply is what answers one request, in order.
type Reply struct {
	Frames []frames.Frame
	// Sent is to be called when the frames are handed to the transport. Nil is
	// nothing to do.
	Sent func()
}

// Close ends every lease of the connection.
func (s *Session) Close() {
	for _, l := range s.leases {
		l.end()
	}
	clear(s.leases)
}

// sweep forgets leases that have ended.
func (s *Session) sweep() {
	for id, l := range s.leases {
		if !l.open() {
			delete(s.leases, id)
		}
	}
}

// Open takes a cut of everything and answers SNAPSHOT_BEGIN, with SNAPSHOT_END
// when the viewer sees nothing (protocol.md §9). Quotas are charged before the
// cut is made. Errors to be told to the peer are *frames.Refusal.
func (s *Session) Open(ctx context.Context, req *frames.OpenSnapshot) (Reply, error) {
	if req.Reserve || req.Replace != (frames.SubscriptionID{}) {
		return Reply{}, frames.Refuse(frames.CodeCapabilityRequired, "this coordinator does not serve subscriptions")
	}
	s.sweep()
	l, bases, err := s.lease(ctx)
	if err != nil {
		return Reply{}, err
	}
	begin := &frames.SnapshotBegin{
		RequestID: req.RequestID, SnapshotID: l.id, Guard: s.m.o.Guard, Base: frames.EventCut(l.cut.Seq()),
		LeaseExpiresAt: s.m.o.Clock.Now().Unix() + frames.LeaseSeconds, Bases: bases,
	}
	if l.count == 0 {
		end, err := s.finish(l, req.RequestID)
		if err != nil {
			return Reply{}, err
		}
		return Reply{Frames: []frames.Frame{begin, end}, Sent: l.end}, nil
	}
	begin.FirstCursor = l.cursor
	return Reply{Frames: []frames.Frame{begin}}, nil
}

// lease charges, cuts and registers one lease.
func (s *Session) lease(ctx context.Context) (l *lease, bases []frames.ActivationBase, err error) {
	id, err := frames.NewID[frames.SnapshotID](s.m.o.Rand)
	if err != nil {
		return nil, nil, err
	}
	cursor, err := s.m.randomCursor()
	if err != nil {
		return nil, nil, err
	}
	slot, err := s.o.Account.Take(quota.Leases, 1)
	if err != nil {
		return nil, nil, exhausted(err)
	}
	pinned, err := s.o.Account.Take(quota.PinnedBytes, quota.Reservation)
	if err != nil {
		slot.Release()
		return nil, nil, exhausted(err)
	}
	l = &lease{
		id: id, m: s.m, slot: slot, pinned: pinned, cursor: cursor,
		expires: s.m.o.Clock.Now().Boot + leaseTime,
	}
	err = s.m.o.Do(ctx, func(st *store.Store) error {
		l.cut = st.Cut()
		bases = l.cut.State().Bases
		s.m.add(l) // before the next commit can supersede anything
		return nil
	})
	if err != nil {
		pinned.Release()
		slot.Release()
		return nil, nil, err
	}
	l.count = s.visible(l.cut)
	l.digest = frames.NewSnapshotDigest(s.m.o.Guard, frames.EventCut(l.cut.Seq()), l.count)
	s.leases[id] = l
	return l, bases, nil
}

// visible counts the records of a cut that the viewer sees, by the predicate
// alone: a family is seen whole or not at all, except OPERATION.
func (s *Session) visible(c *store.Cut) (n uint64) {
	v := s.o.Viewer
	var nobody frames.KeyID
	for kind := frames.KindObjective; kind <= frames.KindArtifactManifest; kind++ {
		switch {
		case work.Visible(kind, nobody, v):
			n += c.Count(kind)
		case work.Visible(kind, v.Principal, v):
			n += c.OperationsOf(v.Principal)
		}
	}
	return n
}

// Next answers SNAPSHOT_NEXT with one page, and with SNAPSHOT_END after the
// last one. A cursor that is not the lease's next one is CURSOR_INVALID and
// changes nothing.
func (s *Session) Next(req *frames.SnapshotNext) (Reply, error) {
	s.sweep()
	l := s.leases[req.SnapshotID]
	if l == nil || l.complete.Load() || subtle.ConstantTimeCompare(req.Cursor, l.cursor) != 1 {
		return Reply{}, cursorInvalid()
	}
	if !l.open() {
		return Reply{}, cursorInvalid()
	}
	reply, err := s.page(l, req)
	if err == nil && !l.open() {
		err = cursorInvalid() // it ended while the page was read
	}
	if errors.Is(err, store.ErrClosed) {
		err = cursorInvalid()
	}
	if err != nil {
		l.end()
		return Reply{}, err
	}
	return reply, nil
}

// page builds the page after the lease's position.
func (s *Session) page(l *lease, req *frames.SnapshotNext) (Reply, error) {
	records, err := s.fill(l)
	if err != nil {
		return Reply{}, err
	}
	page := &frames.SnapshotPage{
		RequestID: req.RequestID, SnapshotID: l.id, Cursor: req.Cursor, Index: l.pages, Records: records,
	}
	l.pages++
	if l.sent == l.count {
		end, err := s.finish(l, req.RequestID)
		if err != nil {
			return Reply{}, err
		}
		return Reply{Frames: []frames.Frame{page, end}, Sent: l.end}, nil
	}
	if l.cursor, err = s.m.randomCursor(); err != nil {
		return Reply{}, err
	}
	page.NextCursor = l.cursor
	return Reply{Frames: []frames.Frame{page}}, nil
}

// fill reads the records of one page: as many as both selected limits allow,
// at least one.
func (s *Session) fill(l *lease) ([]frames.SnapshotRecord, error) {
	v := s.o.Viewer
	see := func(kind frames.ObjectKind, principal frames.KeyID) bool { return work.Visible(kind, principal, v) }
	var records []frames.SnapshotRecord
	room := int(s.o.Limits.PageBytes) - listHeader
	most := min(int(s.o.Limits.PageRecords), int(min(l.count-l.sent, frames.MaxPageRecords)))
	for len(records) < most {
		rows, done, err := l.cut.Page(l.after, see, min(fetchRows, most-len(records)))
		if err != nil {
			return nil, fmt.Errorf("snapshot page: %w", err)
		}
		for i := range rows {
			rec := &rows[i].Record
			if rec.Size() > room {
				if len(records) == 0 {
					return nil, frames.Refuse(frames.CodeResourceExhausted,
						"a %v record of %d bytes does not fit the selected page limit of %d", rec.Kind, rec.Size()+listHeader, s.o.Limits.PageBytes)
				}
				return records, nil
			}
			if err := l.digest.Add(rec); err != nil {
				return nil, fmt.Errorf("snapshot page: %w", err)
			}
			room -= rec.Size()
			l.after = store.KeyOf(rec.Ref())
			l.sent++
			records = append(records, *rec)
		}
		if done && len(records) < most {
			return nil, fmt.Errorf("snapshot page: the cut holds %d visible records and counted %d", l.sent, l.count)
		}
	}
	return records, nil
}

// finish makes the SNAPSHOT_END of a lease whose records are all sent.
func (s *Session) finish(l *lease, req frames.RequestID) (*frames.SnapshotEnd, error) {
	end := &frames.SnapshotEnd{
		RequestID: req, SnapshotID: l.id, PageCount: l.pages, RecordCount: l.count, Digest: l.digest.Sum(),
	}
	l.complete.Store(true)
	if len(s.finished) == maxFinished {
		s.finished = s.finished[1:]
	}
	s.finished = append(s.finished, l.id)
	return end, nil
}

// Applied answers SNAPSHOT_APPLIED of an unreserved lease: once after its END,
// with no credit and no subscription (protocol.md §9 [D-19], [D-36]).
func (s *Session) Applied(req *frames.SnapshotApplied) error {
	if l := s.leases[req.SnapshotID]; l != nil && !l.complete.Load() && l.open() {
		return frames.Refuse(frames.CodeProtocolError, "SNAPSHOT_APPLIED before SNAPSHOT_END")
	}
	for i, id := range s.finished {
		if id != req.SnapshotID {
			continue
		}
		if req.SubscriptionID != (frames.SubscriptionID{}) || req.CreditCount != 0 || req.CreditBytes != 0 {
			return frames.Refuse(frames.CodeMalformedMessage, "SNAPSHOT_APPLIED of a lease without a subscription carries one, or credit")
		}
		s.finished = append(s.finished[:i], s.finished[i+1:]...)
		return nil
	}
	return frames.Refuse(frames.CodeCursorInvalid, "the snapshot lease is gone")
}

func cursorInvalid() error {
	return frames.Refuse(frames.CodeCursorInvalid, "the cursor is not the next one of an open lease of this connection")
}

// exhausted tells which limit refused.
func exhausted(err error) error {
	var x *quota.Exceeded
	if errors.As(err, &x) {
		return frames.Refuse(frames.CodeResourceExhausted, "limit of %d %s per %s reached", x.Limit, x.Resource, x.Level)
	}
	return err
}
