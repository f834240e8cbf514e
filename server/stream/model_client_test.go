package stream

import (
	"fmt"
	"slices"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"coordinator/frames"
	"coordinator/server/quota"
	"coordinator/server/store"
)

// idle reports whether the client waits for nothing.
func (m *model) idle() bool { return m.sent == nil && m.reply == nil }

// answered puts a reply on its way.
func (m *model) answered(r Reply, arrive func()) {
	m.reply, m.arrive = m.b.told(r), arrive
	if m.sent = r.Sent; m.sent == nil {
		m.sent = func() {}
	}
	if m.replies++; r.Then != nil && m.replies%3 != 0 { // some pages are made ahead
		r.Then()
	}
}

// handOver gives the reply that waits to the transport: GAPs go first.
func (m *model) handOver(*rapid.T) {
	if m.idle() {
		return
	}
	m.s.Gaps(func(frame []byte) { m.take(m.b.decode(frame)) })
	m.sent()
	arrive := m.arrive
	m.sent, m.reply, m.arrive = nil, nil, nil
	if arrive != nil {
		arrive()
	}
}

func (m *model) subscribe(t *rapid.T) {
	if m.sub != nil || !m.idle() {
		return
	}
	after := frames.EventCut(rapid.Uint64Range(0, uint64(m.b.head())+1).Draw(t, "after"))
	if m.view != nil && rapid.Bool().Draw(t, "own cut") {
		after = m.cut
	}
	count, bytes := rapid.Uint32Range(0, modelCredit+1).Draw(t, "count"), rapid.Uint32Range(0, 2001).Draw(t, "bytes")
	r, err := m.s.Subscribe(&frames.Subscribe{RequestID: 1, After: after, CreditCount: count, CreditBytes: bytes})
	if count > modelCredit || bytes > 2000 || after > m.b.head() {
		require.Equal(t, frames.CodeMalformedMessage, frames.CodeOf(err))
		m.reconnect(t)
		return
	}
	require.NoError(t, err)
	m.modelCount()
	answer := r.Frames[0].(*frames.Subscribed)
	require.EqualValues(t, 1, answer.NextDelivery)
	b := &modelSub{id: answer.SubscriptionID, state: live, last: after, count: count, bytes: bytes, silent: true, waiting: true}
	m.sub = b
	m.answered(r, func() { b.silent, b.waiting = false, false })
	if m.view != nil && m.cut != after {
		m.view = nil
	}
	switch {
	case m.stale(after):
		m.fail(frames.GapRevisionMismatch)
	case uint64(after)+1 < uint64(m.b.store.FirstRetained()) && after < m.counted:
		m.fail(frames.GapRetention)
	default:
		b.pending = m.visible(after, m.counted)
		m.extend()
		m.overflow()
	}
}

func (m *model) snapshot(t *rapid.T) {
	if !m.idle() || m.begin != nil || m.replay != nil {
		return
	}
	req := &frames.OpenSnapshot{RequestID: 1, Guard: m.b.guard, Reserve: m.sub == nil}
	old := m.sub
	if old != nil {
		req.Replace = old.id
	}
	r, err := m.s.Open(t.Context(), req)
	if old != nil && (old.state != paused || old.due != nil) {
		require.Equal(t, frames.CodeNotFound, frames.CodeOf(err))
		return
	}
	require.NoError(t, err)
	m.modelCount()
	begin := r.Frames[0].(*frames.SnapshotBegin)
	require.Equal(t, m.b.head(), begin.Base)
	b := &modelSub{id: begin.SubscriptionID, state: reserved, last: begin.Base, silent: true}
	m.sub = b
	if old != nil {
		require.NotEqual(t, old.id, b.id)
		require.NoError(t, m.s.Credit(&frames.Credit{SubscriptionID: old.id, AddCount: 1}), "it crossed the replacement")
	}
	m.begin, m.cursor, m.ended = begin, begin.FirstCursor, len(r.Frames) == 2
	m.answered(r, func() { b.silent = false })
}

func (m *model) openReplay(t *rapid.T) {
	if !m.idle() || m.begin != nil || m.replay != nil || m.sub == nil {
		return
	}
	b := m.sub
	after := b.last
	r, err := m.s.OpenReplay(&frames.OpenReplay{RequestID: 1, Guard: m.b.guard, SubscriptionID: b.id, After: after})
	if b.state != paused || b.due != nil {
		require.Equal(t, frames.CodeNotFound, frames.CodeOf(err))
		return
	}
	m.modelCount()
	events := m.visible(after, m.counted)
	switch {
	case m.stale(after):
		require.Equal(t, frames.CodeCursorInvalid, frames.CodeOf(err))
		return
	case uint64(after)+1 < uint64(m.b.store.FirstRetained()):
		require.Equal(t, frames.CodeCursorInvalid, frames.CodeOf(err))
		again := *m.gap
		again.Reason = frames.GapRetention
		b.due = &again
		return
	case slices.ContainsFunc(events, func(ev store.Event) bool { return len(ev.Payload) > modelTyped }):
		require.Equal(t, frames.CodeResourceExhausted, frames.CodeOf(err))
		return
	}
	require.NoError(t, err)
	b.state, b.silent = replaying, true
	m.replay, m.after, m.void = r.Frames[0].(*frames.ReplayBegin), after, false
	require.Equal(t, m.b.head(), m.replay.Cut)
	if len(events) > 0 {
		require.Equal(t, events[0].Sequence, m.replay.FirstEvent)
	}
	m.cursor, m.ended, m.events = m.replay.FirstCursor, len(r.Frames) == 2, nil
	require.Equal(t, len(events) == 0, m.ended)
	m.answered(r, func() { b.silent = false })
}

// page asks for the next page of whatever is open.
func (m *model) page(t *rapid.T) {
	if !m.idle() || m.ended {
		return
	}
	switch {
	case m.begin != nil:
		r, err := m.s.Next(&frames.SnapshotNext{RequestID: 1, SnapshotID: m.begin.SnapshotID, Cursor: m.cursor})
		if frames.CodeOf(err) == frames.CodeResourceExhausted {
			t.Fatalf("a page of a snapshot: %v", err)
		}
		require.NoError(t, err)
		told := m.b.told(r)
		page := told[0].(*frames.SnapshotPage)
		m.staged = append(m.staged, page.Records...)
		m.cursor, m.ended = page.NextCursor, len(told) == 2
		m.answered(r, nil)
	case m.replay != nil:
		r, err := m.s.ReplayNext(&frames.ReplayNext{RequestID: 1, ReplayID: m.replay.ReplayID, Cursor: m.cursor})
		if m.void {
			require.Equal(t, frames.CodeCursorInvalid, frames.CodeOf(err))
			m.leave()
			return
		}
		require.NoError(t, err)
		page := m.b.told(r)[0].(*frames.ReplayPage)
		m.events = append(m.events, page.Events...)
		if m.cursor, m.ended = page.NextCursor, len(r.Frames) == 1; m.ended {
			m.verify(r.Frames[0].(*frames.ReplayEnd))
		}
		m.answered(r, nil)
	}
}

// verify checks a whole replay against its digest and against what was written.
func (m *model) verify(end *frames.ReplayEnd) {
	d := frames.NewReplayDigest(m.b.guard, m.sub.id, m.after, m.replay.Cut, uint64(len(m.events)))
	var want []frames.ReplayEvent
	for _, ev := range m.visible(m.after, m.replay.Cut) {
		want = append(want, ev.ReplayEvent)
	}
	require.Equal(m.t, want, m.events)
	for i := range m.events {
		require.NoError(m.t, d.Add(&m.events[i]))
	}
	require.Equal(m.t, d.Sum(), end.Digest)
	require.EqualValues(m.t, len(want), end.EventCount)
}

// apply sends APPLIED for what was read whole.
func (m *model) apply(t *rapid.T) {
	if !m.idle() || !m.ended {
		return
	}
	b := m.sub
	count, bytes := rapid.Uint32Range(0, modelCredit).Draw(t, "count"), rapid.Uint32Range(0, 2000).Draw(t, "bytes")
	if m.begin != nil {
		view := make(map[frames.ObjectRef]frames.ObjectRevision)
		for _, rec := range m.staged {
			if rec.Kind != frames.KindAdmin {
				view[rec.Ref()] = rec.Revision
			}
		}
		base := m.begin.Base
		r, err := m.s.Applied(&frames.SnapshotApplied{
			RequestID: 1, SnapshotID: m.begin.SnapshotID, SubscriptionID: b.id, CreditCount: count, CreditBytes: bytes,
		})
		require.NoError(t, err)
		m.leave()
		if b.state == reserved {
			b.state, b.count, b.bytes, b.waiting = live, count, bytes, true
			m.relax()
		}
		m.answered(r, func() { b.waiting, m.view, m.cut = false, view, base })
		return
	}
	r, err := m.s.ReplayApplied(&frames.ReplayApplied{
		RequestID: 1, ReplayID: m.replay.ReplayID, SubscriptionID: b.id, CreditCount: count, CreditBytes: bytes,
	})
	events, after, cut, void := m.events, m.after, m.replay.Cut, m.void
	m.leave()
	if void {
		require.Equal(t, frames.CodeCursorInvalid, frames.CodeOf(err))
		return
	}
	require.NoError(t, err)
	b.state, b.count, b.bytes, b.waiting, b.last = live, count, bytes, true, cut
	m.relax()
	if m.cut < after {
		m.view = nil // the subscription began at a snapshot that was never applied
	}
	for i := range events {
		m.publish(&events[i])
	}
	m.answered(r, func() { b.waiting = false })
}

// expire lets the time of every lease pass.
func (m *model) expire(t *rapid.T) {
	if rapid.IntRange(0, 3).Draw(t, "really") > 0 {
		return
	}
	m.b.clock.Advance(leaseTime + time.Second)
	m.b.m.expire()
	require.Zero(t, m.b.m.Open())
	if m.begin == nil && m.replay == nil {
		return
	}
	if m.sub.state == reserved || m.sub.state == replaying {
		m.fail(frames.GapCursorInvalid)
	}
	if m.begin != nil && m.idle() {
		_, err := m.s.Applied(&frames.SnapshotApplied{RequestID: 1, SnapshotID: m.begin.SnapshotID, SubscriptionID: m.sub.id})
		require.Equal(t, frames.CodeCursorInvalid, frames.CodeOf(err))
	}
	m.leave()
}

// check compares what is charged.
func (m *model) check(t *rapid.T) {
	p := quota.Principal(m.b.viewer.Principal)
	wantFrames, wantBytes := m.held()
	gotFrames, _ := m.b.quotas.Use(p, quota.UnsentFrames)
	gotBytes, _ := m.b.quotas.Use(p, quota.UnsentBytes)
	require.Equal(t, fmt.Sprint(wantFrames, wantBytes), fmt.Sprint(gotFrames, gotBytes), "unsent frames and bytes")
	subs, _ := m.b.quotas.Use(p, quota.Subscriptions)
	require.Equal(t, m.sub != nil, subs == 1)
	leases := 0
	if m.begin != nil || m.replay != nil && !m.void {
		leases = 1
	}
	require.Equal(t, leases, m.b.m.Open())
	m.b.m.window.mu.RLock()
	defer m.b.m.window.mu.RUnlock()
	if m.counted == m.b.m.window.head {
		require.LessOrEqual(t, m.b.m.window.bytes, modelWindow)
	}
}
