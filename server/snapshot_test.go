package server

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/codec"
	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/sock"
)

func (r *rig) scoped(key *handshake.Key, scope frames.Scope, change ...func(*frames.CoordHello)) *peer {
	r.t.Helper()
	p := r.raw()
	require.NoError(r.t, p.shake(r, key, uint64(scope), handshake.UDSPeer{Cred: sock.SelfCred()}, change...))
	return p
}

func kindsOf(s snapshot) map[frames.ObjectKind]int {
	out := map[frames.ObjectKind]int{}
	for _, rec := range s.records {
		out[rec.Kind]++
	}
	return out
}

// TestC10_OnePredicateEverywhere compares what scopes and capabilities show in a
// snapshot, a lookup and a precondition.
func TestC10_OnePredicateEverywhere(t *testing.T) {
	r := newRig(t)
	r.start()
	mine, theirs := r.connect(r.keys[0]), r.connect(r.keys[1])
	op, id := newID[frames.OperationID](t), newID[frames.ObjectiveID](t)
	_, err := mine.command(frames.CommandCreateObjective, op, &frames.CreateObjective{ObjectiveID: id, Schema: 1, Document: []byte("{}")})
	require.NoError(t, err)
	theirs.create("{}")

	read, write := frames.ScopeWorkRead, frames.ScopeWorkCommand
	for _, tt := range []struct {
		name   string
		scope  frames.Scope
		caps   frames.Capability
		want   map[frames.ObjectKind]int
		lookup frames.OperationState
		code   frames.Code
	}{
		{"everything", frames.AllScopes, frames.CapAdministration,
			map[frames.ObjectKind]int{frames.KindObjective: 2, frames.KindOperation: 2, frames.KindAdmin: 4}, frames.OperationSucceeded, 0},
		{"without the capability", frames.AllScopes, 0,
			map[frames.ObjectKind]int{frames.KindObjective: 2, frames.KindOperation: 2}, frames.OperationSucceeded, 0},
		{"without operations", frames.AllScopes, frames.CapWithoutOperations,
			map[frames.ObjectKind]int{frames.KindObjective: 2}, frames.OperationSucceeded, 0},
		{"read only", read, frames.CapAdministration,
			map[frames.ObjectKind]int{frames.KindObjective: 2, frames.KindOperation: 1}, frames.OperationSucceeded, 0},
		{"command only", write, frames.CapAdministration,
			map[frames.ObjectKind]int{frames.KindOperation: 1}, frames.OperationSucceeded, 0},
		{"nothing to see", frames.ScopeSignalAck, frames.CapAdministration, map[frames.ObjectKind]int{}, 0, frames.CodeNotFound},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := r.scoped(r.keys[0], tt.scope, func(h *frames.CoordHello) { h.Offered = tt.caps })
			require.Equal(t, tt.want, kindsOf(p.snapshot()))
			p.send(&frames.GetOperationResult{RequestID: p.id(), Guard: p.guard, OperationID: op})
			f, err := p.next()
			if tt.code != 0 {
				require.Equal(t, tt.code, frames.CodeOf(err))
				return
			}
			require.NoError(t, err)
			require.Equal(t, tt.lookup, f.(*frames.OperationResultFrame).Operation.State)
		})
	}
	t.Run("another principal without ADMIN", func(t *testing.T) {
		p := r.scoped(r.keys[1], read|write)
		require.Equal(t, map[frames.ObjectKind]int{frames.KindObjective: 2, frames.KindOperation: 1}, kindsOf(p.snapshot()))
		p.send(&frames.GetOperationResult{RequestID: p.id(), Guard: p.guard, OperationID: op})
		f, err := p.next()
		require.NoError(t, err)
		require.Equal(t, frames.OperationUnknown, f.(*frames.OperationResultFrame).Operation.State)
	})
}

func TestC11_EmptyOnePageAndManyPages(t *testing.T) {
	r := newRig(t)
	r.start()
	empty := r.scoped(r.keys[1], frames.ScopeSignalAck)
	begin, err := empty.open()
	require.NoError(t, err)
	require.Nil(t, begin.FirstCursor)
	f, err := empty.next() // END follows BEGIN on the same request
	require.NoError(t, err)
	end := f.(*frames.SnapshotEnd)
	require.Equal(t, empty.last, end.RequestID)
	require.Zero(t, end.PageCount)
	require.Zero(t, end.RecordCount)
	require.Equal(t, frames.NewSnapshotDigest(empty.guard, begin.Base, 0).Sum(), end.Digest)
	empty.close()

	p := r.connect(r.keys[0])
	p.create("{}")
	require.Equal(t, 1, p.snapshot().pages)
	for i := range 40 {
		p.create(strings.Repeat("x", 100+i))
	}
	whole := p.snapshot()
	for _, tt := range []struct {
		name   string
		change func(*frames.CoordHello)
		least  int
	}{
		{"by bytes", func(h *frames.CoordHello) { h.Limits.PageBytes = 1024 }, 10},
		{"by records", func(h *frames.CoordHello) { h.Limits.PageRecords = 3 }, 25},
		{"one record a page", func(h *frames.CoordHello) { h.Limits.PageRecords = 1 }, 80},
	} {
		t.Run(tt.name, func(t *testing.T) {
			q := r.connect(r.keys[0], tt.change)
			s := q.snapshot()
			require.Equal(t, whole.records, s.records)
			require.GreaterOrEqual(t, s.pages, tt.least)
			q.close()
		})
	}
}

// TestPageBytesAreTheListField checks that no page's list is above the selected
// limit and that the limit is used: one more record would not have fit [D-56].
func TestPageBytesAreTheListField(t *testing.T) {
	const limit = 1024
	r := newRig(t)
	r.start()
	p := r.connect(r.keys[0], func(h *frames.CoordHello) { h.Limits.PageBytes = limit })
	for i := range 30 {
		p.create(strings.Repeat("y", 31*i%300))
	}
	begin, err := p.open()
	require.NoError(t, err)
	var pages []*frames.SnapshotPage
	for cursor := begin.FirstCursor; cursor != nil; {
		page, err := p.nextPage(begin.SnapshotID, cursor)
		require.NoError(t, err)
		pages = append(pages, page)
		cursor = page.NextCursor
	}
	size := func(records []frames.SnapshotRecord) int {
		n := 2
		for i := range records {
			image, err := codec.EncodeImage(nil, &records[i])
			require.NoError(t, err)
			n += len(image)
		}
		return n
	}
	for i, page := range pages {
		require.LessOrEqual(t, size(page.Records), limit)
		if i+1 < len(pages) {
			require.Greater(t, size(append(page.Records, pages[i+1].Records[0])), limit)
		}
	}
}

func TestC11_CursorsAreSingleUseAndPrivate(t *testing.T) {
	r := newRig(t)
	r.start()
	one := func(h *frames.CoordHello) { h.Limits.PageRecords = 1 }
	p, q := r.connect(r.keys[0], one), r.connect(r.keys[0], one)
	p.create("{}")
	begin, err := p.open()
	require.NoError(t, err)
	invalid := func(c *peer, cursor []byte) {
		t.Helper()
		_, err := c.nextPage(begin.SnapshotID, cursor)
		require.Equal(t, frames.CodeCursorInvalid, frames.CodeOf(err))
	}
	invalid(p, bytes.Repeat([]byte{7}, 32))
	invalid(p, nil)
	page, err := p.nextPage(begin.SnapshotID, begin.FirstCursor)
	require.NoError(t, err)
	require.NotEqual(t, begin.FirstCursor, page.NextCursor)
	invalid(p, begin.FirstCursor)
	invalid(q, page.NextCursor)
	_, err = p.nextPage(newID[frames.SnapshotID](t), page.NextCursor)
	require.Equal(t, frames.CodeCursorInvalid, frames.CodeOf(err))
	_, err = p.nextPage(begin.SnapshotID, page.NextCursor) // none of that ended the lease
	require.NoError(t, err)
}

func TestC11_TheEndOfALease(t *testing.T) {
	r := newRig(t)
	r.start()
	p := r.connect(r.keys[0])
	_, err := p.open()
	require.NoError(t, err)
	applied := func(id frames.SnapshotID, change ...func(*frames.SnapshotApplied)) error {
		t.Helper()
		m := &frames.SnapshotApplied{RequestID: p.id(), SnapshotID: id}
		for _, f := range change {
			f(m)
		}
		p.send(m)
		f, err := p.next()
		if err == nil {
			require.Equal(t, &frames.Ack{RequestID: p.last}, f)
		}
		return err
	}
	s := p.snapshot()
	require.NoError(t, applied(s.begin.SnapshotID))
	require.Equal(t, frames.CodeCursorInvalid, frames.CodeOf(applied(s.begin.SnapshotID)), "once")
	_, err = p.nextPage(s.begin.SnapshotID, s.begin.FirstCursor)
	require.Equal(t, frames.CodeCursorInvalid, frames.CodeOf(err))
	require.Equal(t, frames.CodeCursorInvalid, frames.CodeOf(applied(newID[frames.SnapshotID](t))))
	require.Equal(t, 1, r.srv.streams.Open())

	s = p.snapshot()
	err = applied(s.begin.SnapshotID, func(m *frames.SnapshotApplied) { m.CreditCount = 1 })
	require.Equal(t, frames.CodeMalformedMessage, frames.CodeOf(err), "stray credit")
	p.ended()
	eventually(t, "the open lease is released with its connection", func() bool { return r.srv.streams.Open() == 0 })

	p = r.connect(r.keys[0])
	s = p.snapshot()
	err = applied(s.begin.SnapshotID, func(m *frames.SnapshotApplied) { m.SubscriptionID = newID[frames.SubscriptionID](t) })
	require.Equal(t, frames.CodeMalformedMessage, frames.CodeOf(err), "a subscription that it has not")
	p = r.connect(r.keys[0])
	begin, err := p.open()
	require.NoError(t, err)
	require.Equal(t, frames.CodeProtocolError, frames.CodeOf(applied(begin.SnapshotID)), "before END")
	p.ended()
}

func TestACutDoesNotMove(t *testing.T) {
	r := newRig(t)
	r.start()
	p, w := r.connect(r.keys[0], func(h *frames.CoordHello) { h.Limits.PageRecords = 1 }), r.connect(r.keys[1])
	id := w.create("before")
	begin, err := p.open()
	require.NoError(t, err)
	_, err = w.command(frames.CommandUpdateObjective, newID[frames.OperationID](t), &frames.UpdateObjective{ObjectiveID: id, Schema: 1, Document: []byte("after")})
	require.NoError(t, err)
	later := w.create("later")
	var s snapshot
	for cursor := begin.FirstCursor; cursor != nil; {
		page, err := p.nextPage(begin.SnapshotID, cursor)
		require.NoError(t, err)
		s.records = append(s.records, page.Records...)
		cursor = page.NextCursor
	}
	require.Nil(t, s.find(objective(later)))
	rec := s.find(objective(id))
	require.EqualValues(t, 1, rec.Revision)
	require.Contains(t, string(rec.Payload), "before")
}

func TestC02_LeasesAreChargedBeforeTheCut(t *testing.T) {
	r := newRig(t)
	r.start()
	p := r.connect(r.keys[0])
	for range 4 {
		_, err := p.open()
		require.NoError(t, err)
	}
	_, err := p.open()
	require.Equal(t, frames.CodeResourceExhausted, frames.CodeOf(err))
	require.ErrorContains(t, err, "per connection")
	require.Equal(t, 4, r.srv.streams.Open())
	_, pinned := r.srv.quotas.Use(principalOf(p), quotaPinned)
	require.EqualValues(t, 4*reservation, pinned)
	p.close()
	eventually(t, "all is released", func() bool {
		_, pinned := r.srv.quotas.Use(principalOf(p), quotaPinned)
		return pinned == 0 && r.srv.streams.Open() == 0
	})
}

// TestARecordThatDoesNotFitAPageFailsLoudly reads a snapshot whose one large
// record is above the connection's page limit [D-6].
func TestARecordThatDoesNotFitAPageFailsLoudly(t *testing.T) {
	r := newRig(t)
	r.start()
	w := r.connect(r.keys[1])
	w.create(strings.Repeat("z", 5000))
	p := r.connect(r.keys[0], func(h *frames.CoordHello) { h.Limits.PageBytes = 4096 })
	begin, err := p.open()
	require.NoError(t, err)
	_, err = p.nextPage(begin.SnapshotID, begin.FirstCursor)
	require.Equal(t, frames.CodeResourceExhausted, frames.CodeOf(err))
	_, err = p.nextPage(begin.SnapshotID, begin.FirstCursor)
	require.Equal(t, frames.CodeCursorInvalid, frames.CodeOf(err), "the lease is gone")
	p.create("{}")
}

func TestChangeRetentionReachesTheHello(t *testing.T) {
	r := newRig(t)
	r.start()
	p := r.connect(r.keys[0])
	require.EqualValues(t, frames.MinOperationRetained, p.ok.RetentionSecs)
	_, err := p.command(frames.CommandChangeRetention, newID[frames.OperationID](t),
		&frames.ChangeRetention{Retention: frames.Retention{OperationResultSecs: 5_000_000, EventBytes: 1 << 20, ArtifactBytes: 1 << 20}})
	require.NoError(t, err)
	require.EqualValues(t, 5_000_000, r.connect(r.keys[1]).ok.RetentionSecs)
}
