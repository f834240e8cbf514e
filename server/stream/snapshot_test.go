package stream

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
	"coordinator/server/quota"
	"coordinator/server/store"
)

func (b *bench) open(s *Session) *frames.SnapshotBegin {
	b.t.Helper()
	r, err := s.Open(b.t.Context(), &frames.OpenSnapshot{RequestID: 1, Guard: b.guard})
	require.NoError(b.t, err)
	return r.Frames[0].(*frames.SnapshotBegin)
}

func next(s *Session, begin *frames.SnapshotBegin) (Reply, error) {
	return s.Next(&frames.SnapshotNext{RequestID: 2, SnapshotID: begin.SnapshotID, Cursor: begin.FirstCursor})
}

func pinned(b *bench) uint64 {
	p, _ := b.quotas.Use(quota.Principal(b.viewer.Principal), quota.PinnedBytes)
	return p
}

const large = 200 << 10

// fill makes n large objectives. A cut pins one version of each at most.
func (b *bench) fill(n int) (ids []frames.ObjectID) {
	b.t.Helper()
	for range n {
		ids = append(ids, newID[frames.ObjectID](b.t))
		b.put(ids[len(ids)-1], 1, large)
	}
	return ids
}

func TestPinnedBytesGrowInSteps(t *testing.T) {
	b := newBench(t)
	ids := b.fill(30)
	s := b.session()
	begin := b.open(s)
	require.EqualValues(t, quota.Reservation, pinned(b))
	b.put(newID[frames.ObjectID](t), 1, large) // a new object supersedes nothing
	require.EqualValues(t, quota.Reservation, pinned(b))
	last, steps := pinned(b), 0
	for _, id := range ids {
		b.put(id, 2, large)
		now := pinned(b)
		require.GreaterOrEqual(t, now, b.m.leases.first().cut.Superseded())
		if now != last {
			require.Equal(t, last+quota.Step, now)
			last = now
			steps++
		}
	}
	require.GreaterOrEqual(t, steps, 3)
	var revisions []frames.ObjectRevision
	cursor := begin.FirstCursor // it still shows what it was taken of
	for cursor != nil {
		r, err := s.Next(&frames.SnapshotNext{RequestID: 2, SnapshotID: begin.SnapshotID, Cursor: cursor})
		require.NoError(t, err)
		told := b.told(r)
		page := told[0].(*frames.SnapshotPage)
		for _, rec := range page.Records {
			revisions = append(revisions, rec.Revision)
		}
		if cursor = page.NextCursor; cursor == nil {
			require.IsType(t, &frames.SnapshotEnd{}, told[1])
			require.Zero(t, pinned(b), "nothing is read from the cut any more, whenever the peer takes END")
			require.Equal(t, 1, b.m.Open())
			r.Sent()
		}
	}
	require.Equal(t, slices.Repeat([]frames.ObjectRevision{1}, len(ids)), revisions)
	require.Zero(t, pinned(b), "END releases the reservation")
	require.Zero(t, b.m.Open())
}

func TestARefusedExtensionEndsThatLeaseAlone(t *testing.T) {
	b := newBench(t)
	l := quota.Defaults()
	l[quota.OfPrincipal][quota.PinnedBytes] = 2*quota.Reservation + quota.Step
	var err error
	b.quotas, err = quota.New(l)
	require.NoError(t, err)
	ids := b.fill(30)
	s := b.session()
	old := b.open(s)
	for _, id := range ids[:8] { // the older one has used most of its reservation
		b.put(id, 2, large)
	}
	young := b.open(s)
	require.Equal(t, 2, b.m.Open())
	for _, id := range ids[8:] {
		b.put(id, 2, large) // no commit is refused
		if b.m.Open() < 2 {
			break
		}
	}
	require.Equal(t, 1, b.m.Open())
	_, err = next(s, old)
	require.Equal(t, frames.CodeCursorInvalid, frames.CodeOf(err))
	_, err = next(s, young)
	require.NoError(t, err)
	require.LessOrEqual(t, pinned(b), uint64(quota.Reservation+quota.Step))
}

// TestTwoCutsNeedMoreAtOnce has one commit take two cuts of a principal past what they have.
// The older one makes room for the newer, which is charged at that very commit.
func TestTwoCutsNeedMoreAtOnce(t *testing.T) {
	b := newBench(t)
	b.quota(func(l *quota.Limits) { l[quota.OfPrincipal][quota.PinnedBytes] = 2 * quota.Reservation })
	ids := b.fill(20)
	s := b.session()
	b.open(s)
	b.open(s)
	for _, id := range ids {
		b.put(id, 2, large)
		if b.m.Open() < 2 {
			break
		}
	}
	require.Equal(t, 1, b.m.Open())
	require.Greater(t, b.m.leases.first().cut.Superseded(), uint64(quota.Reservation))
	require.EqualValues(t, quota.Reservation+quota.Step, pinned(b))
}

func TestOpenIsRefusedBeforeTheCut(t *testing.T) {
	b := newBench(t)
	l := quota.Defaults()
	l[quota.OfPrincipal][quota.PinnedBytes] = 2*quota.Reservation - 1
	var err error
	b.quotas, err = quota.New(l)
	require.NoError(t, err)
	b.put(newID[frames.ObjectID](t), 1, 10)
	s := b.session()
	b.open(s)
	_, err = s.Open(t.Context(), &frames.OpenSnapshot{RequestID: 1, Guard: b.guard})
	require.Equal(t, frames.CodeResourceExhausted, frames.CodeOf(err))
	require.ErrorContains(t, err, "bytes pinned by cuts per principal")
	require.Equal(t, 1, b.m.Open())
	used, _ := b.quotas.Use(quota.Principal(b.viewer.Principal), quota.Leases)
	require.EqualValues(t, 1, used, "the refused lease is not charged")
}

func TestAWriterThatStoppedLeavesNothingCharged(t *testing.T) {
	b := newBench(t)
	b.refuse = errors.New("stopped")
	s := b.session()
	for _, reserve := range []bool{false, true} {
		_, err := s.Open(t.Context(), &frames.OpenSnapshot{RequestID: 1, Guard: b.guard, Reserve: reserve})
		require.ErrorIs(t, err, b.refuse)
		for _, what := range []quota.Resource{quota.Leases, quota.PinnedBytes, quota.Subscriptions} {
			used, _ := b.quotas.Use(quota.Principal(b.viewer.Principal), what)
			require.Zero(t, used, what)
		}
	}
}

// TestARefusedReplacementChangesNothing: the paused subscription is there as before.
func TestARefusedReplacementChangesNothing(t *testing.T) {
	b := newBench(t)
	s := b.session()
	id, _ := b.paused(s)
	b.refuse = errors.New("stopped")
	_, err := s.Open(t.Context(), &frames.OpenSnapshot{RequestID: 1, Guard: b.guard, Replace: id})
	require.ErrorIs(t, err, b.refuse)
	used := func() uint64 {
		n, _ := b.quotas.Use(quota.Principal(b.viewer.Principal), quota.Subscriptions)
		return n
	}
	require.EqualValues(t, 1, used())
	b.refuse = nil
	b.reserve(s, id)
	require.EqualValues(t, 1, used(), "one for one")
}

func TestLeasesExpireInOrder(t *testing.T) {
	b := newBench(t)
	b.put(newID[frames.ObjectID](t), 1, 10)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- b.m.Run(ctx) }()
	defer func() {
		cancel()
		require.NoError(t, <-done)
	}()
	s := b.session()
	first := b.open(s)
	b.clock.Advance(10 * time.Second)
	second := b.open(s)
	require.Equal(t, first.LeaseExpiresAt+10, second.LeaseExpiresAt)
	b.clock.Advance(50*time.Second - time.Nanosecond)
	require.Equal(t, 2, b.m.Open())
	b.clock.Advance(time.Nanosecond)
	_, err := next(s, first) // at the instant, whoever looks first
	require.Equal(t, frames.CodeCursorInvalid, frames.CodeOf(err))
	require.Eventually(t, func() bool { return b.m.Open() == 1 && pinned(b) == quota.Reservation }, 10*time.Second, time.Millisecond)
	_, err = next(s, second)
	require.NoError(t, err)
}

func TestCloseEndsEveryLease(t *testing.T) {
	b := newBench(t)
	b.put(newID[frames.ObjectID](t), 1, 10)
	s := b.session()
	begin := b.open(s)
	b.open(s)
	r, err := next(s, begin)
	require.NoError(t, err)
	require.Len(t, b.told(r), 2)
	s.Close() // END is made, and was never written
	require.Zero(t, pinned(b))
	require.Zero(t, b.m.Open())
	r.Sent()
}

func TestHiddenFamiliesAreLeftOut(t *testing.T) {
	b := newBench(t)
	for range 300 {
		b.put(newID[frames.ObjectID](t), 1, 10)
	}
	b.viewer.Scope = frames.ScopeWorkCommand
	s := b.session()
	r, err := s.Open(t.Context(), &frames.OpenSnapshot{RequestID: 1, Guard: b.guard})
	require.NoError(t, err)
	require.Len(t, r.Frames, 2, "END follows BEGIN")
	require.Nil(t, r.Frames[0].(*frames.SnapshotBegin).FirstCursor)
	r.Sent()

	b.viewer.Scope = frames.ScopeWorkRead
	s = b.session(func(l *frames.Limits) { l.PageRecords = 100 })
	begin := b.open(s)
	cursor, pages := begin.FirstCursor, 0
	for cursor != nil {
		r, err := s.Next(&frames.SnapshotNext{RequestID: 2, SnapshotID: begin.SnapshotID, Cursor: cursor})
		require.NoError(t, err)
		page := b.told(r)[0].(*frames.SnapshotPage)
		require.Len(t, page.Records, 100)
		cursor = page.NextCursor
		pages++
	}
	require.Equal(t, 3, pages)
}

// TestAPageIsItsReceivers: what was handed out stays as it is while later pages are made, of
// this lease and of others, and the digest is that of the records in it.
func TestAPageIsItsReceivers(t *testing.T) {
	b := newBench(t)
	for n := range 40 {
		b.put(newID[frames.ObjectID](t), 1, 10+n)
	}
	s := b.session(func(l *frames.Limits) { l.PageRecords = 7 })
	type reader struct {
		begin       *frames.SnapshotBegin
		cursor      []byte
		pages, then [][]byte
		end         *frames.SnapshotEnd
	}
	var readers []*reader
	for range 2 {
		begin := b.open(s)
		readers = append(readers, &reader{begin: begin, cursor: begin.FirstCursor})
		b.put(newID[frames.ObjectID](t), 1, 100) // the next one sees another cut
	}
	for readers[0].end == nil || readers[1].end == nil {
		for _, r := range readers {
			if r.cursor == nil {
				continue
			}
			reply, err := s.Next(&frames.SnapshotNext{RequestID: 2, SnapshotID: r.begin.SnapshotID, Cursor: r.cursor})
			require.NoError(t, err)
			r.pages, r.then = append(r.pages, reply.Page), append(r.then, bytes.Clone(reply.Page))
			told := b.told(reply)
			if r.cursor = told[0].(*frames.SnapshotPage).NextCursor; r.cursor == nil {
				r.end = told[1].(*frames.SnapshotEnd)
				reply.Sent()
			} else if len(r.pages)%3 != 0 { // some are made ahead
				reply.Then()
			}
		}
	}
	for n, r := range readers {
		require.Equal(t, r.then, r.pages)
		require.EqualValues(t, 40+n, r.end.RecordCount)
		digest := frames.NewSnapshotDigest(b.guard, r.begin.Base, r.end.RecordCount)
		for _, raw := range r.pages {
			for _, rec := range b.decode(raw)[0].(*frames.SnapshotPage).Records {
				require.NoError(t, digest.Add(&rec))
			}
		}
		require.Equal(t, digest.Sum(), r.end.Digest)
	}
}

// TestALeaseBeginsWithItsCut opens a snapshot while the writer is busy for long: the sixty
// seconds are those that BEGIN tells, and leases end in the order in which they were opened.
func TestALeaseBeginsWithItsCut(t *testing.T) {
	b := newBench(t)
	b.put(newID[frames.ObjectID](t), 1, 10)
	run := b.m.o.Do
	b.m.o.Do = func(ctx context.Context, f func(*store.Store) error) error {
		b.clock.Advance(20 * time.Second) // until the writer comes to it
		return run(ctx, f)
	}
	begin := b.open(b.session())
	lasts := func() time.Duration { return b.m.leases.first().expires - b.clock.Now().Boot }
	require.Equal(t, frames.LeaseSeconds*time.Second, lasts())
	require.EqualValues(t, b.clock.Now().Unix()+frames.LeaseSeconds, begin.LeaseExpiresAt)
}

// TestAnEndedCutIsNotCharged has END give a reservation back while a commit charges for what
// the cut has held back: whoever comes first, nothing stays charged until the lease ends.
func TestAnEndedCutIsNotCharged(t *testing.T) {
	b := newBench(t)
	id := newID[frames.ObjectID](t)
	b.put(id, 1, 10)
	for rev := range frames.ObjectRevision(1000) {
		s := b.session()
		l := s.snapshots[b.open(s).SnapshotID]
		b.put(id, rev+2, 10)
		l.pinned.Release() // as if it were less than what is held back
		var both sync.WaitGroup
		both.Go(func() { require.Nil(t, b.m.leases.uncovered()) })
		both.Go(func() { s.finish(l, 1) })
		both.Wait()
		require.Zero(t, pinned(b))
		s.Close()
		s.o.Account.Close()
	}
}

// TestPagesMadeAheadAreBounded: a page that waits for its NEXT is the same as one that is made
// then, is forgotten with its lease, and is not made when too many wait.
func TestPagesMadeAheadAreBounded(t *testing.T) {
	b := newBench(t)
	for range 40 {
		b.put(newID[frames.ObjectID](t), 1, 100)
	}
	s := b.session(func(l *frames.Limits) { l.PageRecords = 10 })
	page := func(begin *frames.SnapshotBegin, cursor []byte) (Reply, *frames.SnapshotPage) {
		r, err := s.Next(&frames.SnapshotNext{RequestID: 7, SnapshotID: begin.SnapshotID, Cursor: cursor})
		require.NoError(t, err)
		p := b.told(r)[0].(*frames.SnapshotPage)
		require.EqualValues(t, 7, p.RequestID)
		return r, p
	}
	one, two := b.open(s), b.open(s)
	r, p := page(one, one.FirstCursor)
	require.Zero(t, b.m.ahead.Load())
	r.Then()
	r.Then()
	require.EqualValues(t, 1, b.m.ahead.Load())
	_, err := s.Next(&frames.SnapshotNext{RequestID: 8, SnapshotID: one.SnapshotID, Cursor: one.FirstCursor})
	require.Equal(t, frames.CodeCursorInvalid, frames.CodeOf(err), "it is not the next one")
	r, again := page(one, p.NextCursor)
	require.Zero(t, b.m.ahead.Load())
	require.EqualValues(t, 1, again.Index)
	require.Negative(t, p.Records[9].Ref().Compare(again.Records[0].Ref()))

	b.m.ahead.Store(maxAhead)
	r.Then()
	require.EqualValues(t, maxAhead, b.m.ahead.Load())
	b.m.ahead.Store(0)
	r, _ = page(one, again.NextCursor)
	r.Then()
	r, _ = page(two, two.FirstCursor)
	r.Then()
	require.EqualValues(t, 2, b.m.ahead.Load())
	b.m.leases.first().end()
	s.sweep()
	require.EqualValues(t, 1, b.m.ahead.Load(), "that of the lease which ended is forgotten")
	s.Close()
	require.Zero(t, b.m.ahead.Load())
}
