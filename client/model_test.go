package client

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"coordinator/codec"
	"coordinator/frames"
	"coordinator/internal/clock"
)

// hasty is the world's clock with pauses that end at once. It notes them. The ticks of
// idle connections follow the clock.
type hasty struct {
	*clock.Manual
	mu     sync.Mutex
	paused []time.Duration
	// each, unless nil, is told of every pause.
	each func(n int)
}

func (h *hasty) NewTimer(d time.Duration) clock.Timer {
	if d == expiryTick {
		return h.Manual.NewTimer(d)
	}
	h.mu.Lock()
	h.paused = append(h.paused, d)
	n := len(h.paused)
	h.mu.Unlock()
	if h.each != nil {
		h.each(n)
	}
	return h.Manual.NewTimer(0)
}

func objectRef(n byte) frames.ObjectRef {
	if n >= modelOperations {
		return frames.ObjectRef{Kind: frames.KindOperation, ID: frames.ObjectID{1, n}}
	}
	return frames.ObjectRef{Kind: frames.KindObjective, ID: frames.ObjectID{1, n}}
}

// Objects from modelOperations on are operations.
const modelOperations, modelObjects = 20, 30

// change is the event that takes an objective, or an operation, to a revision.
func change(seq frames.EventSequence, object byte, revision frames.ObjectRevision) frames.ReplayEvent {
	ref, kind := objectRef(object), frames.EventObjectiveChanged
	var payload codec.Message = &frames.Objective{DocumentSchema: 1, Document: fmt.Appendf(nil, "%d", revision)}
	if ref.Kind == frames.KindOperation {
		kind = frames.EventOperationChanged
		payload = &frames.Operation{Principal: frames.KeyID{1}, Result: frames.OperationResult{
			State: frames.OperationTombstoned, Final: frames.OperationSucceeded}}
	}
	r, err := frames.NewRecord(ref, revision, payload)
	if err != nil {
		panic(err)
	}
	image, err := codec.EncodeImage(nil, &r)
	if err != nil {
		panic(err)
	}
	return frames.ReplayEvent{Sequence: seq, ID: frames.EventID{1, byte(seq >> 8), byte(seq)}, Kind: kind,
		Object: ref, Revision: revision, Schema: 1, Payload: image}
}

// A model is a coordinator with one log of events, which it serves as §9 and §10 say.
// Between two frames that it sends, fault may do something else.
type model struct {
	w      *world
	log    []frames.ReplayEvent // of all visible events; guarded by mu
	mu     sync.Mutex
	revs   map[byte]frames.ObjectRevision // guarded by mu
	kept   int                            // guarded by mu; events before this one are not retained
	bases  []frames.ActivationBase        // guarded by mu
	sent   int                            // guarded by mu; frames, over all connections
	fault  func(n int, m *modelConn) bool // guarded by mu; true: handled, the frame is not sent
	lastID byte                           // guarded by mu
	dialed int                            // guarded by mu
	grown  chan struct{}                  // guarded by mu; closed and replaced when the log grows

	mangle   func(*frames.CoordEvent) []byte // guarded by mu; changes an event on its way, or its bytes
	restored frames.ActivationSequence       // guarded by mu; the log was put back to an older one after it
	fenced   []frames.ActivationSequence     // guarded by mu; they send no event any more
	staged   func([]frames.ReplayEvent)      // guarded by mu; changes the events of a replay
	admin    bool                            // its replicas see ADMIN records
	down     atomic.Bool                     // nobody is reached
	hangs    atomic.Bool                     // nobody answers
	dropped  bool                            // guarded by mu; the connection is to be cut
	renewal  *frames.Certificate             // guarded by mu; the next one, until it is sent
}

func newModel(w *world) *model {
	return &model{w: w, grown: make(chan struct{}), revs: map[byte]frames.ObjectRevision{}, bases: []frames.ActivationBase{{Activation: w.activation}}}
}

// write appends one event of a random object. Some sequences are hidden.
func (m *model) write() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.writeLocked(byte(rand.N(9)))
}

func (m *model) writeLocked(object byte) {
	seq := frames.EventSequence(1 + rand.N(3))
	if len(m.log) > 0 {
		seq += m.log[len(m.log)-1].Sequence
	}
	m.appendLocked(uint64(seq), object)
}

func (m *model) appendLocked(seq uint64, object byte) {
	m.revs[object]++
	m.log = append(m.log, change(frames.EventSequence(seq), object, m.revs[object]))
	close(m.grown)
	m.grown = make(chan struct{})
}

// remove appends the removal of an object that is there.
func (m *model) remove(object byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	ref := objectRef(object)
	image, err := codec.EncodeImage(nil, &ref)
	if err != nil {
		panic(err)
	}
	m.log = append(m.log, frames.ReplayEvent{Sequence: frames.EventSequence(m.headLocked()) + 1, ID: frames.EventID{2, object},
		Kind: frames.EventObjectRemoved, Object: ref, Revision: m.revs[object] + 1, Schema: 1, Payload: image})
	delete(m.revs, object)
	close(m.grown)
	m.grown = make(chan struct{})
}

func (m *model) head() frames.EventCut {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.headLocked()
}

func (m *model) headLocked() frames.EventCut {
	if len(m.log) == 0 {
		return 0
	}
	return frames.EventCut(m.log[len(m.log)-1].Sequence)
}

// restart is the same log under a higher authority.
func (m *model) restart() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.w.restart()
	m.fenced = append(m.fenced, m.w.activation-1)
	m.bases = append(m.bases, frames.ActivationBase{Activation: m.w.activation, Base: m.headLocked()})
}

// drop cuts the connection.
func (m *model) drop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dropped = true
	close(m.grown)
	m.grown = make(chan struct{})
}

// renew renews the connection's certificate.
func (m *model) renew() {
	m.mu.Lock()
	defer m.mu.Unlock()
	next := m.w.certificate() // of this instant: a later renewal expires later
	m.renewal = &next
	close(m.grown)
	m.grown = make(chan struct{})
}

// setFault sets what happens between frames from here on.
func (m *model) setFault(f func(n int, c *modelConn) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fault = f
}

// modelConn is one connection: requests come through in, so that events can be sent
// between them.
type modelConn struct {
	*peer
	m    *model
	subs map[frames.SubscriptionID]*modelSub

	snapshot frames.SnapshotID
	pages    [][]frames.SnapshotRecord
	base     frames.EventCut
	records  []frames.SnapshotRecord
	reserved *modelSub

	replaySub *modelSub
	replay    [][]frames.ReplayEvent
	after     frames.EventCut
	cut       frames.EventCut
	void      bool

	sending frames.Frame // what a fault precedes
}

type modelSub struct {
	id       frames.SubscriptionID
	live     bool
	paused   bool
	delivery frames.DeliveryCut
	last     frames.EventCut
	count    int64
	bytes    int64
}

// serve is the script of every connection to the model.
func (m *model) serve(p *peer) {
	m.mu.Lock()
	m.dialed++
	m.mu.Unlock()
	c := &modelConn{peer: p, m: m, subs: map[frames.SubscriptionID]*modelSub{}}
	in := make(chan frames.Frame)
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(in)
		defer func() {
			if r := recover(); r != nil && r != errScript {
				panic(r)
			}
		}()
		for {
			f := p.recv()
			select {
			case in <- f:
			case <-done:
				return
			}
		}
	})
	defer func() { close(done); p.nc.Close(); wg.Wait() }()
	m.mu.Lock()
	m.renewal = nil // the hello has just given the newest certificate
	m.mu.Unlock()
	for {
		var f frames.Frame
		ok := true
		m.mu.Lock()
		grown, dropped, renewal := m.grown, m.dropped, m.renewal
		m.dropped, m.renewal = false, nil
		m.mu.Unlock()
		if dropped {
			return
		}
		if renewal != nil {
			c.send(&frames.AuthorityRenewed{Certificate: *renewal})
		}
		if c.pending() {
			select {
			case f, ok = <-in:
			default:
			}
		} else {
			select {
			case f, ok = <-in:
			case <-grown:
			}
		}
		if !ok {
			return
		}
		if f != nil {
			c.handle(f)
		}
		c.pump()
	}
}

// out sends a frame, unless the fault does something else.
func (c *modelConn) out(f frames.Frame) {
	c.m.mu.Lock()
	c.m.sent++
	n, fault := c.m.sent, c.m.fault
	c.m.mu.Unlock()
	c.sending = f
	if fault != nil && fault(n, c) {
		return
	}
	c.send(f)
}

func (c *modelConn) pending() bool {
	for _, s := range c.subs {
		if c.next(s) != nil {
			return true
		}
	}
	return false
}

// next is the event that s may be sent now.
func (c *modelConn) next(s *modelSub) *frames.ReplayEvent {
	if !s.live || s.count == 0 {
		return nil
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if slices.Contains(c.m.fenced, c.guard.Activation) {
		return nil
	}
	for i := range c.m.log {
		if e := &c.m.log[i]; e.Sequence > frames.EventSequence(s.last) {
			if s.bytes < int64(frames.EventBytes(len(e.Payload))) {
				return nil
			}
			return e
		}
	}
	return nil
}

func (c *modelConn) pump() {
	for _, s := range c.subs {
		if e := c.next(s); e != nil {
			c.event(s, e)
		}
	}
}

func (c *modelConn) event(s *modelSub, e *frames.ReplayEvent) {
	c.m.mu.Lock()
	c.m.sent++
	n, fault := c.m.sent, c.m.fault
	c.m.mu.Unlock()
	c.sending = nil
	if fault != nil && fault(n, c) || !s.live {
		return
	}
	s.delivery++
	s.last = frames.EventCut(e.Sequence)
	s.count--
	s.bytes -= int64(frames.EventBytes(len(e.Payload)))
	f := &frames.CoordEvent{SubscriptionID: s.id, Delivery: frames.DeliverySequence(s.delivery), Sequence: e.Sequence,
		EventID: e.ID, Kind: e.Kind, Object: e.Object, Revision: e.Revision, Schema: e.Schema, Payload: e.Payload}
	c.m.mu.Lock()
	mangle := c.m.mangle
	c.m.mu.Unlock()
	if mangle != nil {
		if raw := mangle(f); raw != nil {
			c.nc.Write(raw) //nolint:errcheck // the client may have gone
			return
		}
	}
	c.send(f)
}

// gap pauses every subscription that is not.
func (c *modelConn) gap(reason frames.GapReason) (any bool) {
	if _, begin := c.sending.(*frames.ReplayBegin); begin {
		return false // which no gap overtakes [D-39]
	}
	for _, s := range c.subs {
		if s.live || c.replaySub == s {
			c.pause(s, reason)
			any = true
		}
	}
	return any
}

func (c *modelConn) pause(s *modelSub, reason frames.GapReason) {
	s.live, s.paused, s.count, s.bytes = false, true, 0, 0
	if c.replaySub == s {
		c.void = true
	}
	c.send(&frames.Gap{SubscriptionID: s.id, LastDelivery: s.delivery, LastEvent: s.last, Reason: reason})
}

func (c *modelConn) newSub() *modelSub {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	c.m.lastID++
	s := &modelSub{id: frames.SubscriptionID{5, c.m.lastID}}
	c.subs[s.id] = s
	return s
}

func (c *modelConn) refuse(id frames.RequestID, code frames.Code) {
	c.out(&frames.CoordError{RequestID: id, Code: code, Message: "model"})
}

func (c *modelConn) handle(f frames.Frame) {
	switch f := f.(type) {
	case *frames.Pong:
	case *frames.Ping:
		c.out(&frames.Pong{Nonce: f.Nonce})
	case *frames.OpenSnapshot:
		c.openSnapshot(f)
	case *frames.SnapshotNext:
		c.snapshotNext(f)
	case *frames.SnapshotApplied:
		if s := c.reserved; s != nil && !s.paused {
			s.live, s.count, s.bytes = true, int64(f.CreditCount), int64(f.CreditBytes)
		}
		c.out(&frames.Ack{RequestID: f.RequestID})
	case *frames.Subscribe:
		c.subscribe(f)
	case *frames.Credit:
		s := c.subs[f.SubscriptionID]
		if s == nil || !s.live {
			return
		}
		s.count += int64(f.AddCount)
		s.bytes += int64(f.AddBytes)
		if s.count > int64(c.limits.CreditCount) || s.bytes > int64(c.limits.CreditBytes) {
			panic("model: credit above the maxima")
		}
	case *frames.OpenReplay:
		c.openReplay(f)
	case *frames.ReplayNext:
		c.replayNext(f)
	case *frames.ReplayApplied:
		c.replayApplied(f)
	default:
		panic("model: unexpected " + f.Type().String())
	}
}

func (c *modelConn) openSnapshot(f *frames.OpenSnapshot) {
	c.m.mu.Lock()
	c.base, c.records = c.m.headLocked(), nil
	latest := map[frames.ObjectRef]*frames.ReplayEvent{}
	for i := range c.m.log {
		latest[c.m.log[i].Object] = &c.m.log[i]
	}
	bases := append([]frames.ActivationBase{}, c.m.bases...)
	c.m.mu.Unlock()
	for n := range byte(modelObjects) {
		if e := latest[objectRef(n)]; e != nil && e.Kind != frames.EventObjectRemoved {
			var r frames.SnapshotRecord
			if err := codec.DecodeImage(&r, e.Payload); err != nil {
				panic(err)
			}
			c.records = append(c.records, r)
		}
	}
	c.pages = nil
	for rest := c.records; len(rest) > 0; {
		n := min(3, len(rest))
		c.pages, rest = append(c.pages, rest[:n]), rest[n:]
	}
	c.snapshot[0]++
	begin := &frames.SnapshotBegin{RequestID: f.RequestID, SnapshotID: c.snapshot, Guard: c.guard, Base: c.base, Bases: bases,
		LeaseExpiresAt: c.w.clock.Now().Unix() + 60}
	c.reserved = nil
	if f.Reserve || f.Replace != (frames.SubscriptionID{}) {
		if f.Replace != (frames.SubscriptionID{}) {
			if s := c.subs[f.Replace]; s == nil || !s.paused {
				c.refuse(f.RequestID, frames.CodeNotFound)
				return
			}
			delete(c.subs, f.Replace)
		}
		c.reserved = c.newSub()
		c.reserved.last = c.base
		begin.SubscriptionID = c.reserved.id
	}
	if len(c.pages) > 0 {
		begin.FirstCursor = []byte{0}
	}
	c.out(begin)
	if len(c.pages) == 0 {
		c.snapshotEnd(f.RequestID)
	}
}

func (c *modelConn) snapshotNext(f *frames.SnapshotNext) {
	i := int(f.Cursor[0])
	p := &frames.SnapshotPage{RequestID: f.RequestID, SnapshotID: f.SnapshotID, Cursor: f.Cursor, Index: uint32(i), Records: c.pages[i]}
	if i+1 < len(c.pages) {
		p.NextCursor = []byte{byte(i + 1)}
	}
	c.out(p)
	if p.NextCursor == nil {
		c.snapshotEnd(f.RequestID)
	}
}

func (c *modelConn) snapshotEnd(id frames.RequestID) {
	d := frames.NewSnapshotDigest(c.guard, c.base, uint64(len(c.records)))
	for i := range c.records {
		if err := d.Add(&c.records[i]); err != nil {
			panic(err)
		}
	}
	c.out(&frames.SnapshotEnd{RequestID: id, SnapshotID: c.snapshot, PageCount: uint32(len(c.pages)), RecordCount: uint64(len(c.records)), Digest: d.Sum()})
}

func (c *modelConn) subscribe(f *frames.Subscribe) {
	if f.After > c.m.head() {
		c.send(&frames.CoordError{RequestID: f.RequestID, Code: frames.CodeMalformedMessage, Message: "beyond the head"})
		panic(errScript)
	}
	s := c.newSub()
	s.last = f.After
	c.out(&frames.Subscribed{RequestID: f.RequestID, SubscriptionID: s.id, NextDelivery: 1})
	if c.trimmed(f.After) {
		c.pause(s, frames.GapRetention)
		return
	}
	s.live, s.count, s.bytes = true, int64(f.CreditCount), int64(f.CreditBytes)
}

// trimmed reports whether an event after a cut is no longer retained.
func (c *modelConn) trimmed(after frames.EventCut) bool {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	return c.m.kept > 0 && c.m.log[c.m.kept-1].Sequence > frames.EventSequence(after)
}

func (c *modelConn) openReplay(f *frames.OpenReplay) {
	s := c.subs[f.SubscriptionID]
	switch {
	case s == nil || !s.paused:
		c.refuse(f.RequestID, frames.CodeNotFound)
		return
	case f.After != s.last:
		panic(fmt.Sprintf("model: a replay after %d, the gap is after %d", f.After, s.last))
	case c.trimmed(f.After):
		c.pause(s, frames.GapRetention)
		c.refuse(f.RequestID, frames.CodeCursorInvalid)
		return
	}
	c.m.mu.Lock()
	c.replaySub, c.after, c.cut, c.void, c.replay = s, f.After, c.m.headLocked(), false, nil
	s.paused = false
	var events []frames.ReplayEvent
	for _, e := range c.m.log {
		if e.Sequence > frames.EventSequence(f.After) {
			events = append(events, e)
		}
	}
	if c.m.staged != nil {
		c.m.staged(events)
	}
	c.m.mu.Unlock()
	begin := &frames.ReplayBegin{RequestID: f.RequestID, ReplayID: frames.ReplayID{6}, SubscriptionID: s.id, Cut: max(c.cut, f.After),
		LeaseExpiresAt: c.w.clock.Now().Unix() + 60}
	c.cut = begin.Cut
	for rest := events; len(rest) > 0; {
		n := min(3, len(rest))
		c.replay, rest = append(c.replay, rest[:n]), rest[n:]
	}
	if len(events) > 0 {
		begin.FirstEvent, begin.FirstCursor = events[0].Sequence, []byte{0}
	}
	c.out(begin)
	if len(events) == 0 {
		c.replayEnd(f.RequestID)
	}
}

func (c *modelConn) replayNext(f *frames.ReplayNext) {
	if c.void {
		c.refuse(f.RequestID, frames.CodeCursorInvalid)
		return
	}
	i := int(f.Cursor[0])
	p := &frames.ReplayPage{RequestID: f.RequestID, ReplayID: f.ReplayID, Cursor: f.Cursor, Index: uint32(i), Events: c.replay[i]}
	if i+1 < len(c.replay) {
		p.NextCursor = []byte{byte(i + 1)}
	}
	c.out(p)
	if p.NextCursor == nil {
		c.replayEnd(f.RequestID)
	}
}

func (c *modelConn) replayEnd(id frames.RequestID) {
	var n uint64
	for _, page := range c.replay {
		n += uint64(len(page))
	}
	d := frames.NewReplayDigest(c.guard, c.replaySub.id, c.after, c.cut, n)
	for _, page := range c.replay {
		for i := range page {
			if err := d.Add(&page[i]); err != nil {
				panic(err)
			}
		}
	}
	c.out(&frames.ReplayEnd{RequestID: id, ReplayID: frames.ReplayID{6}, PageCount: uint32(len(c.replay)), EventCount: n, Digest: d.Sum()})
}

func (c *modelConn) replayApplied(f *frames.ReplayApplied) {
	s := c.replaySub
	c.replaySub = nil
	if c.void {
		c.refuse(f.RequestID, frames.CodeCursorInvalid)
		return
	}
	s.last, s.live, s.count, s.bytes = c.cut, true, int64(f.CreditCount), int64(f.CreditBytes)
	c.out(&frames.Ack{RequestID: f.RequestID})
}
