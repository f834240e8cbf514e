package stream

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"sync"

	"coordinator/frames"
	"coordinator/server/quota"
	"coordinator/server/store"
)

const (
	// cursorSize is far below the 200 bytes that a page's cap leaves (§2 [D-28]).
	cursorSize = 32
	// listHeader is the element count at the head of a page's list.
	listHeader = 2
	// fetchRows is how many rows are read from a cut at a time, so that at most
	// so many are read in vain when a page is full.
	fetchRows = 256
	// maxFinished bounds the ids that a connection may still send APPLIED for
	// after their lease ended with END [D-19].
	maxFinished = 64
)

// A snapshot is a lease on a cut. Its fields are owned by the session's goroutine.
type snapshot struct {
	lease
	id     frames.SnapshotID
	count  uint64    // visible records of the cut
	after  store.Key // of the last record sent
	digest *frames.SnapshotDigest
}

// A pageRoom is where the records of one page lie from when they are read until the page
// is encoded. Nothing that goes out refers to it.
type pageRoom struct {
	rows    [fetchRows]store.Row
	records [frames.MaxPageRecords]frames.SnapshotRecord
}

// pageRooms are shared by all leases: one that is not asked for a page holds none.
var pageRooms = sync.Pool{New: func() any { return new(pageRoom) }}

// give returns the room. It keeps no record alive.
func (r *pageRoom) give() {
	clear(r.rows[:])
	clear(r.records[:])
	pageRooms.Put(r)
}

// Open takes a cut of everything and answers SNAPSHOT_BEGIN, with SNAPSHOT_END
// when the viewer sees nothing (protocol.md §9). Quotas are charged before the cut
// is made; a subscription that it reserves or replaces begins in the same instant.
// Errors to be told to the peer are *frames.Refusal.
func (s *Session) Open(ctx context.Context, req *frames.OpenSnapshot) (Reply, error) {
	s.sweep()
	old, err := s.replaceable(req.Replace)
	if err != nil {
		return Reply{}, err
	}
	l, err := s.newSnapshot()
	if err != nil {
		return Reply{}, err
	}
	if req.Reserve || old != nil {
		var slot *quota.Charge
		if old != nil {
			slot = old.slot
		}
		if l.sub, err = s.newSubscription(slot); err != nil {
			l.release()
			return Reply{}, err
		}
	}
	var bases []frames.ActivationBase
	err = s.m.o.Do(ctx, func(st *store.Store) error {
		l.cut = st.Cut()
		bases = l.cut.State().Bases
		return s.admit(l, old)
	})
	if err != nil {
		if l.cut != nil {
			l.cut.Close()
		}
		if l.sub != nil && old == nil {
			l.sub.slot.Release()
		}
		l.release()
		return Reply{}, err
	}
	s.endLeasesOf(old)
	return s.beginSnapshot(l, req.RequestID, bases)
}

// replaceable finds the paused subscription that a snapshot is to replace.
func (s *Session) replaceable(id frames.SubscriptionID) (*subscription, error) {
	if id == (frames.SubscriptionID{}) {
		return nil, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.find(id); b != nil && b.healable() {
		return b, nil
	}
	return nil, notPaused()
}

func notPaused() error {
	return frames.Refuse(frames.CodeNotFound, "no such subscription of this connection is paused")
}

// newSnapshot charges a lease that has no cut yet.
func (s *Session) newSnapshot() (*snapshot, error) {
	id, err := frames.NewID[frames.SnapshotID](s.m.o.Rand)
	if err != nil {
		return nil, err
	}
	l := &snapshot{id: id}
	l.make = func() *made { return s.makePage(l) }
	if err := s.charge(&l.lease); err != nil {
		return nil, err
	}
	if l.pinned, err = s.o.Account.Take(quota.PinnedBytes, quota.Reservation); err != nil {
		l.slot.Release()
		return nil, exhausted(err)
	}
	return l, nil
}

// charge takes what every lease needs.
func (s *Session) charge(l *lease) (err error) {
	if l.cursor, err = s.m.randomCursor(); err != nil {
		return err
	}
	if l.spare, err = s.m.randomCursor(); err != nil {
		return err
	}
	if l.slot, err = s.o.Account.Take(quota.Leases, 1); err != nil {
		return exhausted(err)
	}
	l.s = s
	return nil
}

// release gives back the charges of a lease that never began.
func (l *snapshot) release() {
	l.pinned.Release()
	l.slot.Release()
}

// admit registers a lease and places its subscription, on the writer: before the
// next commit can supersede anything, and with every event behind the cut still to
// be counted.
func (s *Session) admit(l *snapshot, old *subscription) error {
	if l.sub != nil {
		s.m.mu.Lock()
		defer s.m.mu.Unlock()
		if head := s.m.joinLocked(s); head != l.cut.Seq() {
			return fmt.Errorf("stream: cut at %d, but %d is published", l.cut.Seq(), head)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		l.sub.begin(reserved, l.cut.Seq())
		l.sub.lease = &l.lease
		if old != nil {
			s.replace(old)
		}
		s.subs = append(s.subs, l.sub)
	}
	s.m.leases.add(&l.lease)
	return nil
}

// endLeasesOf ends the leases of a subscription that was replaced [D-61].
func (s *Session) endLeasesOf(old *subscription) {
	for _, l := range s.snapshots {
		if old != nil && l.sub == old {
			l.end()
		}
	}
}

// beginSnapshot answers the request that opened l.
func (s *Session) beginSnapshot(l *snapshot, req frames.RequestID, bases []frames.ActivationBase) (Reply, error) {
	l.count = s.visible(l.cut)
	l.digest = frames.NewSnapshotDigest(s.m.o.Guard, frames.EventCut(l.cut.Seq()), l.count)
	s.snapshots[l.id] = l
	s.m.meters.Snapshots.Add(1)
	begin := &frames.SnapshotBegin{
		RequestID: req, SnapshotID: l.id, Guard: s.m.o.Guard, Base: l.cut.Seq(),
		LeaseExpiresAt: s.m.o.Clock.Now().Unix() + frames.LeaseSeconds, Bases: bases,
	}
	r := Reply{Frames: []frames.Frame{begin}, Then: l.prepare}
	if l.sub != nil {
		begin.SubscriptionID = l.sub.id
		r.Sent = l.sub.announced
	}
	if l.count > 0 {
		begin.FirstCursor = l.cursor
		return r, nil
	}
	end, over := s.finish(l, req)
	r.Frames = append(r.Frames, end)
	if over != nil {
		r.Sent = over
	}
	return r, nil
}

// visible counts the records of a cut that the viewer sees, by the predicate
// alone: a family is seen whole or not at all, except OPERATION.
func (s *Session) visible(c *store.Cut) (n uint64) {
	var nobody frames.KeyID
	for kind := frames.KindObjective; kind <= frames.KindArtifactManifest; kind++ {
		switch {
		case s.audience.sees(kind, nobody):
			n += c.Count(kind)
		case s.audience.sees(kind, s.o.Viewer.Principal):
			n += c.OperationsOf(s.o.Viewer.Principal)
		}
	}
	return n
}

// Next answers SNAPSHOT_NEXT with one page, and with SNAPSHOT_END after the
// last one. A cursor that is not the lease's next one is CURSOR_INVALID and
// changes nothing.
func (s *Session) Next(req *frames.SnapshotNext) (Reply, error) {
	s.sweep()
	l := s.snapshots[req.SnapshotID]
	if l == nil || !l.takes(req.Cursor) {
		return Reply{}, cursorInvalid()
	}
	reply, err := s.page(l, req)
	if err = l.judge(err); err != nil {
		return Reply{}, err
	}
	return reply, nil
}

// takes reports whether a cursor is the one that the next NEXT must carry.
func (l *lease) takes(cursor []byte) bool {
	return l.open() && !l.complete.Load() && subtle.ConstantTimeCompare(cursor, l.cursor) == 1
}

// judge ends a lease whose page failed, or that ended while the page was read.
func (l *lease) judge(err error) error {
	if err == nil && !l.open() || errors.Is(err, store.ErrClosed) {
		err = cursorInvalid()
	}
	if err != nil {
		reason := frames.GapInternal
		if !l.open() { // its time is up
			reason = frames.GapCursorInvalid
		}
		l.abort(reason)
	}
	return err
}

// page answers with the page after the lease's position.
func (s *Session) page(l *snapshot, req *frames.SnapshotNext) (Reply, error) {
	r, n, last, err := l.answer(req.RequestID)
	if err != nil {
		return Reply{}, err
	}
	s.m.meters.SnapshotPages.Add(1)
	s.m.meters.SnapshotRecords.Add(n)
	if last {
		end, over := s.finish(l, req.RequestID)
		r.Frames, r.Sent = []frames.Frame{end}, over
	}
	return r, nil
}

// makePage makes the page after the lease's position.
func (s *Session) makePage(l *snapshot) *made {
	room := pageRooms.Get().(*pageRoom)
	defer room.give()
	records, err := s.fill(l, room)
	if err != nil {
		return &made{err: err}
	}
	page := &frames.SnapshotPage{
		RequestID: unaddressed, SnapshotID: l.id, Cursor: l.cursor, Index: l.pages, Records: records,
	}
	if l.sent < l.count {
		page.NextCursor = l.spare
	}
	raw, err := frames.Append(takePageBuffer(), page)
	if err == nil {
		err = l.digest.AddPage(raw)
	}
	if err != nil {
		return &made{err: fmt.Errorf("snapshot page: %w", err)}
	}
	return &made{raw: raw, count: uint64(len(records)), next: page.NextCursor}
}

// fill reads the records of one page: as many as both selected limits allow,
// at least one. They lie in the room given.
func (s *Session) fill(l *snapshot, in *pageRoom) ([]frames.SnapshotRecord, error) {
	records := in.records[:0]
	room := int(s.o.Limits.PageBytes) - listHeader
	most := min(int(s.o.Limits.PageRecords), int(min(l.count-l.sent, frames.MaxPageRecords)))
	for len(records) < most {
		rows, done, err := l.cut.PageIn(in.rows[:], l.after, s.audience.sees, min(fetchRows, most-len(records)))
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

// finish makes the SNAPSHOT_END of a lease whose records are all read, and gives its cut
// back, however long the peer takes to read them. over, unless it is nil, is to be called
// when END is handed to the transport: an unreserved lease ends then, a reserved one
// keeps its slot until APPLIED [D-36].
func (s *Session) finish(l *snapshot, req frames.RequestID) (_ *frames.SnapshotEnd, over func()) {
	end := &frames.SnapshotEnd{
		RequestID: req, SnapshotID: l.id, PageCount: l.pages, RecordCount: l.count, Digest: l.digest.Sum(),
	}
	s.m.leases.finish(&l.lease)
	s.m.meters.SnapshotsEnded.Add(1)
	l.unpin()
	if l.sub != nil {
		return end, nil
	}
	if len(s.finished) == maxFinished {
		s.finished = s.finished[1:]
	}
	s.finished = append(s.finished, l.id)
	return end, func() { l.end() }
}

// Applied answers SNAPSHOT_APPLIED. A reserved lease ends with it and its
// subscription gets its only initial credit, unless it has gapped; an unreserved one
// takes it once after END, without credit (protocol.md §9 [D-19], [D-36]).
func (s *Session) Applied(req *frames.SnapshotApplied) (Reply, error) {
	ack := Reply{Frames: []frames.Frame{&frames.Ack{RequestID: req.RequestID}}}
	l := s.snapshots[req.SnapshotID]
	if l != nil && l.open() && !l.complete.Load() {
		return Reply{}, frames.Refuse(frames.CodeProtocolError, "SNAPSHOT_APPLIED before SNAPSHOT_END")
	}
	if l != nil && l.sub != nil {
		resumed, err := s.apply(&l.lease, req.SubscriptionID, req.CreditCount, req.CreditBytes, l.cut.Seq())
		if resumed {
			ack.Sent = l.sub.proceed
		}
		return ack, err
	}
	for i, id := range s.finished {
		if id != req.SnapshotID {
			continue
		}
		if req.SubscriptionID != (frames.SubscriptionID{}) || req.CreditCount != 0 || req.CreditBytes != 0 {
			return Reply{}, frames.Refuse(frames.CodeMalformedMessage, "SNAPSHOT_APPLIED of a lease without a subscription carries one, or credit")
		}
		s.finished = append(s.finished[:i], s.finished[i+1:]...)
		return ack, nil
	}
	return Reply{}, leaseGone()
}

// apply ends a complete lease and makes its subscription live with its initial
// credit, behind cut. If that has gapped, it is left as it is and the credit is dropped.
func (s *Session) apply(l *lease, sub frames.SubscriptionID, count, bytes uint32, cut frames.EventCut) (resumed bool, err error) {
	if !l.open() {
		l.abort(frames.GapCursorInvalid)
		return false, leaseGone()
	}
	if sub != l.sub.id {
		return false, frames.Refuse(frames.CodeMalformedMessage, "APPLIED names another subscription than its lease")
	}
	if err := s.checkCredit(count, bytes); err != nil {
		return false, err
	}
	if !l.end() {
		return false, leaseGone()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if resumed = l.sub.lease == l; resumed {
		l.sub.last = cut
		l.sub.resume(count, bytes)
	}
	return resumed, nil
}

func leaseGone() error {
	return frames.Refuse(frames.CodeCursorInvalid, "the lease is gone")
}

func cursorInvalid() error {
	return frames.Refuse(frames.CodeCursorInvalid, "the cursor is not the next one of an open lease of this connection")
}
