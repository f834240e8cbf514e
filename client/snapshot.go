package client

import (
	"context"
	"errors"
	"fmt"
	"os"

	"coordinator/codec"
	"coordinator/frames"
)

// maxSnapshotBytes bounds what one snapshot may stage on disk.
const maxSnapshotBytes = 64 << 30

// A SnapshotError says in what way a snapshot contradicts itself or its guard. The
// connection is closed (protocol.md §10 [D-61]); nothing of the snapshot was shown. It
// matches [ErrProtocol].
type SnapshotError struct{ Problem string }

func (e *SnapshotError) Error() string        { return "snapshot does not verify: " + e.Problem }
func (e *SnapshotError) Is(target error) bool { return target == ErrProtocol }

func unverified(format string, a ...any) error { return &SnapshotError{fmt.Sprintf(format, a...)} }

// A Snapshot is a verified snapshot of the whole authority as this key sees it: guard,
// indexes, order, totals and digest have been checked. Its records are staged, in memory
// or in a file without a name, until Close.
type Snapshot struct {
	ID frames.SnapshotID
	// Guard is the authority that it was taken under.
	Guard frames.AuthorityGuard
	// Base is the last event that it holds: the cut to follow on from.
	Base frames.EventCut
	// Pages and Records count what came.
	Pages   uint32
	Records uint64
	// Digest covers the guard, the base and every record (protocol.md §9).
	Digest [32]byte
	// Lost is set when the snapshot shows that history this client had been shown is gone
	// (D-26).
	Lost *LostHistory

	staged *spool
	begin  *frames.SnapshotBegin
}

// Each calls visit with every record in (kind, id) order, until it fails. The payload is
// valid during the call only.
func (s *Snapshot) Each(visit func(frames.SnapshotRecord) error) error {
	return s.staged.each(func(image []byte) error {
		var r frames.SnapshotRecord
		if err := codec.DecodeImage(&r, image); err != nil {
			return fmt.Errorf("snapshot: staged record: %w", err)
		}
		return visit(r)
	})
}

// EachImage is Each over the records' bytes as the digest covers them.
func (s *Snapshot) EachImage(visit func(image []byte) error) error { return s.staged.each(visit) }

// Close releases what is staged.
func (s *Snapshot) Close() error { return s.staged.close() }

// Snapshot takes and verifies one snapshot. Until it has verified nothing is shown; then
// the authority is current for this client, durably, and so is the cut. The caller closes
// what it gets.
func (c *Conn) Snapshot(ctx context.Context) (*Snapshot, error) {
	s, err := c.takeSnapshot(ctx, &frames.OpenSnapshot{}, nil)
	if err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	return s, nil
}

// takeSnapshot runs OPEN to END and makes the authority current. hook sees BEGIN on the
// reader's goroutine; it is there exactly when a subscription is reserved. A snapshot that
// contradicts itself ends the connection.
func (c *Conn) takeSnapshot(ctx context.Context, open *frames.OpenSnapshot, hook func(frames.Frame) error) (*Snapshot, error) {
	shown := c.state.cut() // before the cut is taken, so that the base must reach it
	k, err := c.openWith(ctx, frames.TypeSnapshotBegin, hook)
	if err != nil {
		return nil, err
	}
	open.RequestID, open.Guard = k.id, c.guard
	if _, err := c.send(ctx, k, open); err != nil {
		return nil, err
	}
	f, err := c.await(ctx, k)
	if err != nil {
		return nil, err
	}
	staged := newSpool(c.state.stageDir(), maxSnapshotBytes)
	t := &taking{conn: c, staged: staged, shown: shown, begin: f.(*frames.SnapshotBegin), reserved: hook != nil}
	s, err := t.run(ctx, k)
	if err == nil {
		err = c.state.snapshotVerified(c.guard.Activation, s.Base, s.Lost)
	}
	if err != nil {
		staged.close()
		if t.reserved || errors.As(err, new(*SnapshotError)) {
			c.fail(err) // a reservation has no other way to end
		}
		return nil, err
	}
	c.verified.Store(true)
	return s, nil
}

// taking is one snapshot on its way.
type taking struct {
	conn   *Conn
	staged *spool
	shown  cutSeen
	begin  *frames.SnapshotBegin
	// reserved says that a subscription was asked for.
	reserved bool

	pages   uint32
	records uint64
	last    frames.ObjectRef
}

// run reads the pages behind BEGIN. k is the request that BEGIN answered.
func (t *taking) run(ctx context.Context, k *call) (*Snapshot, error) {
	begin := t.begin
	if begin.Guard != t.conn.guard {
		return nil, unverified("its guard is another authority's")
	}
	if !t.reserved && begin.SubscriptionID != (frames.SubscriptionID{}) {
		return nil, unverified("a subscription that was not asked for")
	}
	for cursor := begin.FirstCursor; cursor != nil; {
		var err error
		if k, cursor, err = t.page(ctx, cursor); err != nil {
			return nil, err
		}
	}
	f, err := t.conn.await(ctx, k)
	if err != nil {
		return nil, err
	}
	end := f.(*frames.SnapshotEnd)
	if err := t.verify(end); err != nil {
		return nil, err
	}
	return &Snapshot{
		ID: begin.SnapshotID, Guard: begin.Guard, Base: begin.Base, Pages: t.pages, Records: t.records,
		Digest: end.Digest, Lost: lostHistory(t.shown, begin), staged: t.staged, begin: begin,
	}, nil
}

// page asks for one page and stages its records. It returns the request that END will
// answer when next is nil.
func (t *taking) page(ctx context.Context, cursor []byte) (k *call, next []byte, err error) {
	c := t.conn
	if k, err = c.open(ctx, frames.TypeSnapshotPage); err != nil {
		return nil, nil, err
	}
	if _, err := c.send(ctx, k, &frames.SnapshotNext{RequestID: k.id, SnapshotID: t.begin.SnapshotID, Cursor: cursor}); err != nil {
		return nil, nil, err
	}
	f, err := c.await(ctx, k)
	if err != nil {
		return nil, nil, err
	}
	p := f.(*frames.SnapshotImages)
	switch {
	case p.SnapshotID != t.begin.SnapshotID:
		return nil, nil, unverified("a page of another snapshot")
	case string(p.Cursor) != string(cursor):
		return nil, nil, unverified("a page for another cursor")
	case p.Index != t.pages:
		return nil, nil, unverified("page %d where page %d belongs", p.Index, t.pages)
	case p.Count > int(c.hello.Limits.PageRecords):
		return nil, nil, unverified("%d records in a page, %d were agreed", p.Count, c.hello.Limits.PageRecords)
	}
	t.pages++
	return k, p.NextCursor, t.stage(p)
}

// stage checks a page's place and keeps its images. Their form and their order among each
// other have been checked where the page was decoded.
func (t *taking) stage(p *frames.SnapshotImages) error {
	if p.Count == 0 {
		return nil
	}
	if t.records > 0 && p.First.Compare(t.last) <= 0 {
		return unverified("%v does not follow %v", p.First, t.last)
	}
	t.last = p.Last
	t.records += uint64(p.Count)
	t.conn.progress(StageSnapshot, t.records, 0)
	return t.staged.add(p.Images)
}

// verify holds the staged records against END (protocol.md §9).
func (t *taking) verify(end *frames.SnapshotEnd) error {
	switch {
	case end.SnapshotID != t.begin.SnapshotID:
		return unverified("the end of another snapshot")
	case end.PageCount != t.pages:
		return unverified("%d pages came, its end says %d", t.pages, end.PageCount)
	case end.RecordCount != t.records:
		return unverified("%d records came, its end says %d", t.records, end.RecordCount)
	}
	sum, err := digestOf(t.begin.Guard, t.begin.Base, t.records, t.staged.all)
	if err != nil {
		return err
	}
	if sum != end.Digest {
		return unverified("its digest is not that of its records")
	}
	return nil
}

// digestOf computes the snapshot digest (§9) over the images of count records, which each
// visits in order. They have been encoded or decoded before, so their bytes are canonical.
func digestOf(g frames.AuthorityGuard, base frames.EventCut, count uint64, each func(func([]byte) error) error) ([32]byte, error) {
	digest := frames.NewSnapshotDigest(g, base, count)
	err := each(func(images []byte) error {
		digest.AddImages(images)
		return nil
	})
	return digest.Sum(), err
}

// lostHistory holds what the client was shown against the history that a snapshot stands
// in (protocol.md §4 [D-26]). Nil means that nothing is missing.
func lostHistory(shown cutSeen, begin *frames.SnapshotBegin) *LostHistory {
	if shown.Sequence == 0 && shown.Activation == 0 {
		return nil
	}
	lost := &LostHistory{Activation: shown.Activation, Cut: shown.Sequence, Found: begin.Guard.Activation, Base: begin.Base}
	if shown.Activation == begin.Guard.Activation || begin.Bases == nil {
		if begin.Base < shown.Sequence {
			return lost
		}
		return nil
	}
	listed := false
	var next *frames.ActivationBase
	for i := range begin.Bases {
		b := &begin.Bases[i]
		listed = listed || b.Activation == shown.Activation
		if b.Activation > shown.Activation && (next == nil || b.Activation < next.Activation) {
			next = b
		}
	}
	if !listed || next != nil && shown.Sequence > next.Base {
		return lost
	}
	return nil
}

// stageFile makes a private file without a name in dir.
func stageFile(dir string) (*os.File, error) {
	f, err := os.CreateTemp(dir, ".snapshot-*.tmp")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
