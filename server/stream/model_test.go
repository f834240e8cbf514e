package stream

import (
	"maps"
	"math"
	"os"
	"slices"
	"testing"

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
	silent    bool        // its SUBSCRIBED or BEGIN is on the way: no GAP
	waiting   bool        // its SUBSCRIBED or ACK is on the way: no event
}

// model drives one connection of a real room, and a client that believes nothing
// that it cannot check.
type model struct {
	replies int // answered
	t       *rapid.T
	b       *bench
	s       *Session
	account *quota.Account
	limits  frames.Limits
	sub     *modelSub
	counted frames.EventCut
	admin   []frames.EventCut // where ADMIN records changed
	removed []frames.EventCut // where objectives were removed
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
		if rapid.Bool().Draw(rt, "without archive") {
			m.b.viewer.Capabilities &^= frames.CapArchive
		}
		if rapid.Bool().Draw(rt, "own operations") {
			m.b.viewer.Scope &^= frames.ScopeAdmin
		}
		m.connect()
		rt.Cleanup(m.disconnect)
		rt.Repeat(map[string]func(*rapid.T){
			"write": m.write, "count": m.count, "pull": m.pull, "drain": m.drain, "credit": m.credit, "stall": m.stall,
			"admin": m.changeAdmin, "archive": m.archive, "trim": m.trim, "subscribe": m.subscribe, "snapshot": m.snapshot, "replay": m.openReplay,
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

// stale reports whether an ADMIN change or a removal behind a cut is hidden from a replay.
func (m *model) stale(after frames.EventCut) bool {
	behind := func(at frames.EventCut) bool { return at > after }
	return m.seesAdmin() && slices.ContainsFunc(m.admin, behind) ||
		!m.b.viewer.Capabilities.Has(frames.CapArchive) && slices.ContainsFunc(m.removed, behind)
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

func (m *model) archive(t *rapid.T) {
	id := frames.ObjectID{15: byte(rapid.IntRange(1, 3).Draw(t, "object"))}
	if m.b.revisions[frames.ObjectRef{Kind: frames.KindObjective, ID: id}] == 0 {
		return
	}
	m.b.commit(func(tx *store.Tx) {
		m.b.remove(tx, id)
		m.removed = append(m.removed, tx.Head())
		m.b.operation(tx, m.b.viewer.Principal)
	})
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
	if m.stale(from) {
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

// relax frees everything once credit covers it and the peer reads.
func (m *model) relax() {
	if free := m.sub.free; !m.stalled {
		if m.extend(); m.sub.free < len(m.sub.pending) {
			m.sub.free = free
		}
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
	if m.view[ev.Object] = ev.Revision; ev.Kind == frames.EventObjectRemoved {
		delete(m.view, ev.Object)
	}
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
		if ev.Object.Kind == frames.KindOperation { // the others are there already
			want[ev.Object] = ev.Revision
		}
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
		m.relax()
	}
}
