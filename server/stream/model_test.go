package stream

import (
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"coordinator/frames"
	"coordinator/server/quota"
	"coordinator/server/store"
	"coordinator/server/work"
)

// Limits that a model run reaches.
const (
	modelFrames = 6
	modelBytes  = 4000
	modelTyped  = 300
	modelCredit = 8
	modelWindow = 4 * (2*100 + imageOverhead)
)

// modelSub is what a subscription must do: a list of events and a cursor.
type modelSub struct {
	id        frames.SubscriptionID
	state     state
	last      frames.EventCut
	delivered frames.DeliveryCut
	count     uint32
	bytes     uint32
	pending   []store.Event
	free      int         // of pending, from its start: not held back
	due       *frames.Gap // the GAP that must come next
	named     frames.EventSequence
	silent    bool // its SUBSCRIBED or BEGIN is on the way: no GAP
	waiting   bool // its SUBSCRIBED or ACK is on the way: no event
}

// model drives one connection of a real room, and a client that believes nothing
// that it cannot check.
type model struct {
	t       *rapid.T
	b       *bench
	s       *Session
	account *quota.Account
	limits  frames.Limits
	sub     *modelSub
	counted frames.EventCut
	admin   []frames.EventCut // where ADMIN records changed
	stalled bool

	sent   func()         // of a reply that is on its way
	reply  []frames.Frame // likewise
	arrive func()         // what the client does with it

	// The open lease.
	begin  *frames.SnapshotBegin
	replay *frames.ReplayBegin
	after  frames.EventCut // of the replay
	cursor []byte
	ended  bool // END was made
	void   bool // of a replay
	staged []frames.SnapshotRecord
	events []frames.ReplayEvent

	// The client's view: nil when it has none.
	view map[frames.ObjectRef]frames.ObjectRevision
	cut  frames.EventCut
	gap  *frames.Gap // the latest that was read
}

func TestC12_OneSubscriptionModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp("", "model")
		require.NoError(rt, err)
		rt.Cleanup(func() { os.RemoveAll(dir) })
		m := &model{t: rt, b: newBenchIn(rt, dir, 4096, modelWindow)}
		m.b.quota(func(l *quota.Limits) {
			l[quota.OfConnection][quota.UnsentFrames] = modelFrames
			l[quota.OfConnection][quota.UnsentBytes] = modelBytes
		})
		if rapid.Bool().Draw(rt, "without operations") {
			m.b.viewer.Capabilities |= frames.CapWithoutOperations
		}
		if rapid.Bool().Draw(rt, "without admin") {
			m.b.viewer.Capabilities &^= frames.CapAdministration
		}
		if rapid.Bool().Draw(rt, "own operations") {
			m.b.viewer.Scope &^= frames.ScopeAdmin
		}
		m.connect()
		rt.Cleanup(m.disconnect)
		rt.Repeat(map[string]func(*rapid.T){
			"write": m.write, "count": m.count, "pull": m.pull, "drain": m.drain, "credit": m.credit, "stall": m.stall,
			"admin": m.changeAdmin, "trim": m.trim, "subscribe": m.subscribe, "snapshot": m.snapshot, "replay": m.openReplay,
			"page": m.page, "apply": m.apply, "hand over": m.handOver, "expire": m.expire, "reconnect": m.reconnect,
			"restart": m.restart, "": m.check,
		})
	})
}

func (m *model) connect() {
	var err error
	m.account, err = m.b.quotas.Connect(quota.Principal(m.b.viewer.Principal))
	require.NoError(m.t, err)
	m.limits = frames.ReferenceLimits()
	m.limits.TypedPayload, m.limits.CreditCount, m.limits.CreditBytes = modelTyped, modelCredit, 2000
	m.limits.PageRecords = 3
	m.s = m.b.m.NewSession(SessionOptions{Viewer: m.b.viewer, Limits: m.limits, Account: m.account})
	m.sub, m.sent, m.reply, m.arrive, m.stalled, m.gap = nil, nil, nil, nil, false, nil
	m.leave()
}

func (m *model) disconnect() {
	m.s.Close()
	m.account.Close()
}

// leave forgets the lease.
func (m *model) leave() {
	m.begin, m.replay, m.cursor, m.ended, m.void, m.staged, m.events = nil, nil, nil, false, false, nil, nil
}

func (m *model) reconnect(t *rapid.T) {
	m.disconnect()
	m.connect()
}

func (m *model) restart(t *rapid.T) {
	m.disconnect()
	m.b.restart()
	m.connect()
}

// visible gives the events in (after, through] that the viewer sees.
func (m *model) visible(after, through frames.EventCut) (out []store.Event) {
	for i := range m.b.events {
		ev := &m.b.events[i]
		if cut := frames.EventCut(ev.Sequence); cut > after && cut <= through && m.b.sees(ev) {
			out = append(out, *ev)
		}
	}
	return out
}

func (m *model) seesAdmin() bool {
	return work.Visible(frames.KindAdmin, frames.KeyID{}, m.b.viewer)
}

// stale reports whether an ADMIN change behind a cut is hidden from a replay.
func (m *model) stale(after frames.EventCut) bool {
	return m.seesAdmin() && slices.ContainsFunc(m.admin, func(at frames.EventCut) bool { return at > after })
}

func size(ev *store.Event) uint32 { return uint32(frames.EventBytes(len(ev.Payload))) }

func (m *model) write(t *rapid.T) {
	n := rapid.IntRange(1, 4).Draw(t, "events")
	m.b.commit(func(tx *store.Tx) {
		for range n {
			switch rapid.IntRange(0, 5).Draw(t, "kind") {
			case 0:
				m.b.operation(tx, m.b.viewer.Principal)
			case 1:
				m.b.operation(tx, frames.KeyID{7})
			case 2:
				tx.Hidden()
			case 3:
				large := 0
				if rapid.IntRange(0, 9).Draw(t, "large") == 0 {
					large = modelTyped
				}
				m.b.emit(tx, newID[frames.ObjectID](t), 1, large)
			default:
				id := frames.ObjectID{15: byte(rapid.IntRange(1, 3).Draw(t, "object"))}
				ref := frames.ObjectRef{Kind: frames.KindObjective, ID: id}
				m.b.emit(tx, id, m.b.revisions[ref]+1, rapid.IntRange(0, 40).Draw(t, "size"))
			}
		}
	})
	m.published()
}

// published notices when the window was full, so that the writer counted.
func (m *model) published() {
	if frames.EventCut(m.b.m.counted.Load()) == m.b.head() {
		m.modelCount()
	}
}

func (m *model) changeAdmin(t *rapid.T) {
	if rapid.IntRange(0, 2).Draw(t, "really") > 0 {
		return
	}
	m.b.changeAdmin()
	m.admin = append(m.admin, m.b.head())
	m.published()
}

func (m *model) trim(*rapid.T) { m.b.trim() }

func (m *model) stall(t *rapid.T) {
	m.stalled = !m.stalled
	m.s.Stalled(m.stalled)
	m.b.clock.Advance(stallTime)
}

func (m *model) count(*rapid.T) {
	m.b.m.fanOut()
	m.modelCount()
}

// modelCount is what a count does to the subscription.
func (m *model) modelCount() {
	from := m.counted
	m.counted = m.b.head()
	b := m.sub
	if b == nil || b.state == paused {
		return
	}
	fresh := m.visible(from, m.counted)
	before := len(b.pending)
	b.pending = append(b.pending, fresh...)
	if m.seesAdmin() && slices.ContainsFunc(m.admin, func(at frames.EventCut) bool { return at > from }) {
		m.fail(frames.GapRevisionMismatch)
		return
	}
	switch {
	case len(fresh) == 0:
		return
	case m.stalled:
		b.free = 0
	case b.free == before:
		m.extend()
	}
	m.overflow()
}

// extend frees events from the start on while credit covers all of them together.
func (m *model) extend() {
	b := m.sub
	var count, bytes uint32
	for i := range b.pending {
		count, bytes = count+1, bytes+size(&b.pending[i])
		if count > b.count || bytes > b.bytes {
			return
		}
		b.free = max(b.free, i+1)
	}
}

// held is what is charged.
func (m *model) held() (frames, bytes uint64) {
	if m.sub == nil {
		return 0, 0
	}
	for i := m.sub.free; i < len(m.sub.pending); i++ {
		frames, bytes = frames+1, bytes+uint64(size(&m.sub.pending[i]))
	}
	return frames, bytes
}

func (m *model) overflow() {
	if n, bytes := m.held(); n > modelFrames || bytes > modelBytes {
		m.fail(frames.GapQueueOverflow)
	}
}

func (m *model) fail(reason frames.GapReason) {
	b := m.sub
	if b == nil || b.state == paused {
		return
	}
	b.state, b.count, b.bytes = paused, 0, 0
	b.due = &frames.Gap{SubscriptionID: b.id, LastDelivery: b.delivered, LastEvent: b.last, Reason: reason}
	if len(b.pending) > 0 {
		b.due.Observed = b.pending[0].Sequence
	}
	b.pending, b.free = nil, 0
	if m.replay != nil {
		m.void = true
	}
}

// pull takes one write's worth and holds it against what must come.
func (m *model) pull(t *rapid.T) {
	n := rapid.IntRange(0, 4).Draw(t, "frames")
	m.take(m.b.pullUpTo(m.s, n, rapid.IntRange(1, 800).Draw(t, "bytes")))
}

func (m *model) take(got []frames.Frame) {
	for _, f := range got {
		switch f := f.(type) {
		case *frames.Gap:
			m.takeGap(f)
		case *frames.CoordEvent:
			m.takeEvent(f)
		default:
			m.t.Fatalf("pulled a %T", f)
		}
	}
	if m.sub != nil && m.sub.state == live && m.s.subs[0].state == paused {
		m.notice()
	}
}

func (m *model) takeGap(g *frames.Gap) {
	b := m.sub
	require.NotNil(m.t, b)
	if b.due == nil {
		m.notice()
	}
	require.False(m.t, b.silent, "GAP overtakes what announced its subscription")
	want := *b.due
	if g.Observed == 0 && want.Observed < m.b.store.FirstRetained() {
		want.Observed = 0 // it cannot be looked up any more
	}
	require.Equal(m.t, want, *g)
	b.due, m.gap = nil, g
}

// notice is a GAP for a reason that only the pulling side can meet.
func (m *model) notice() {
	require.NotEmpty(m.t, m.sub.pending)
	first := &m.sub.pending[0]
	if first.Sequence < m.b.store.FirstRetained() && frames.EventCut(first.Sequence) <= m.b.m.window.oldest() {
		m.fail(frames.GapRetention)
		return
	}
	require.Greater(m.t, len(first.Payload), modelTyped)
	m.fail(frames.GapInternal)
}

func (m *model) takeEvent(e *frames.CoordEvent) {
	b := m.sub
	require.NotNil(m.t, b)
	require.Nil(m.t, b.due, "an event follows its GAP")
	require.Equal(m.t, live, b.state)
	require.False(m.t, b.waiting, "an event overtakes SUBSCRIBED or ACK")
	require.NotEmpty(m.t, b.pending)
	ev := b.pending[0]
	require.Equal(m.t, frames.CoordEvent{
		SubscriptionID: b.id, Delivery: frames.DeliverySequence(b.delivered) + 1, Sequence: ev.Sequence, EventID: ev.ID,
		Kind: ev.Kind, Object: ev.Object, Revision: ev.Revision, Schema: ev.Schema, Payload: ev.Payload,
	}, *e)
	require.Positive(m.t, b.count)
	require.GreaterOrEqual(m.t, b.bytes, size(&ev))
	b.pending = b.pending[1:]
	b.free = max(b.free-1, 0)
	b.count--
	b.bytes -= size(&ev)
	b.delivered++
	b.last = frames.EventCut(ev.Sequence)
	m.publish(&ev.ReplayEvent)
}

// publish applies one event to the client's view.
func (m *model) publish(ev *frames.ReplayEvent) {
	if m.view == nil || frames.EventCut(ev.Sequence) <= m.cut {
		return
	}
	require.Equal(m.t, m.view[ev.Object]+1, ev.Revision, "event %d", ev.Sequence)
	m.view[ev.Object] = ev.Revision
	m.cut = frames.EventCut(ev.Sequence)
}

// drain pulls all there is: then the next event is not covered, or has not come.
func (m *model) drain(*rapid.T) {
	for rounds := 0; m.s.Ready() && rounds < 1000; rounds++ {
		m.take(m.b.pull(m.s))
	}
	b := m.sub
	if b == nil {
		return
	}
	require.True(m.t, b.due == nil || b.silent, "GAP is kept back")
	if b.state != live || b.waiting {
		return
	}
	if len(b.pending) > 0 {
		first := &b.pending[0]
		require.True(m.t, b.count == 0 || b.bytes < size(first), "event %d is kept back", first.Sequence)
		require.LessOrEqual(m.t, len(first.Payload), modelTyped)
		return
	}
	if m.counted == m.b.head() && m.view != nil && m.cut >= b.last {
		m.compare()
	}
}

// compare holds the client's view against everything that is committed.
func (m *model) compare() {
	want := maps.Clone(m.b.revisions)
	for _, ev := range m.visible(0, m.counted) {
		want[ev.Object] = ev.Revision
	}
	require.Equal(m.t, want, m.view)
}

func (m *model) credit(t *rapid.T) {
	amounts := rapid.SampledFrom([]uint32{0, 1, 2, 200, 700, modelCredit, math.MaxUint32})
	count, bytes := amounts.Draw(t, "count"), amounts.Draw(t, "bytes")
	c := &frames.Credit{SubscriptionID: frames.SubscriptionID{99}, AddCount: count, AddBytes: bytes}
	b := m.sub
	if b != nil {
		c.SubscriptionID = b.id
	}
	err := m.s.Credit(c)
	switch {
	case b == nil || b.state == reserved:
		require.Equal(t, frames.CodeProtocolError, frames.CodeOf(err))
	case b.state != live:
		require.NoError(t, err)
	case uint64(b.count)+uint64(count) > uint64(m.limits.CreditCount) || uint64(b.bytes)+uint64(bytes) > uint64(m.limits.CreditBytes):
		require.Equal(t, frames.CodeMalformedMessage, frames.CodeOf(err))
	default:
		require.NoError(t, err)
		b.count, b.bytes = b.count+count, b.bytes+bytes
	}
}

// idle reports whether the client waits for nothing.
func (m *model) idle() bool { return m.sent == nil && m.reply == nil }

// answered puts a reply on its way.
func (m *model) answered(r Reply, arrive func()) {
	m.reply, m.arrive = r.Frames, arrive
	if m.sent = r.Sent; m.sent == nil {
		m.sent = func() {}
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
		page := r.Frames[0].(*frames.SnapshotPage)
		m.staged = append(m.staged, page.Records...)
		m.cursor, m.ended = page.NextCursor, len(r.Frames) == 2
		m.answered(r, nil)
	case m.replay != nil:
		r, err := m.s.ReplayNext(&frames.ReplayNext{RequestID: 1, ReplayID: m.replay.ReplayID, Cursor: m.cursor})
		if m.void {
			require.Equal(t, frames.CodeCursorInvalid, frames.CodeOf(err))
			m.leave()
			return
		}
		require.NoError(t, err)
		page := r.Frames[0].(*frames.ReplayPage)
		m.events = append(m.events, page.Events...)
		if m.cursor, m.ended = page.NextCursor, len(r.Frames) == 2; m.ended {
			m.verify(r.Frames[1].(*frames.ReplayEnd))
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
