package outbox

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/codec"
	"coordinator/frames"
	"coordinator/owner"
)

// scripted is an owner in memory that keeps to the link: a journal that dedupes, facts that
// stay until they are acknowledged, incarnations. At every step that a test may want to
// disturb it calls its hook.
type scripted struct {
	t   testing.TB
	bed *bed

	turn sync.Mutex        // one hook at a time
	hook func(step string) // guarded by turn; nil is ignored

	mu       sync.Mutex
	down     bool                                                 // guarded by mu: nobody answers
	refuses  bool                                                 // guarded by mu: AUTHORITY ends the link
	stalls   bool                                                 // guarded by mu: OPEN_FACTS has no reply
	noSend   frames.Code                                          // guarded by mu: refuses DISPATCH_EFFECT, if not 0
	noGet    frames.Code                                          // guarded by mu: refuses GET_EFFECT, if not 0
	nameless bool                                                 // guarded by mu: a SPAWN succeeds without a resource
	getGate  chan struct{}                                        // guarded by mu: not nil holds GET_EFFECT back until it is closed
	opened   []uint64                                             // guarded by mu: where OPEN_FACTS began
	gaveUp   []frames.BindingID                                   // guarded by mu: in order of FACT_ACK through 2^64-1
	inc      frames.IncarnationID                                 // guarded by mu
	lines    []*line                                              // guarded by mu
	journal  map[frames.EffectAttemptID]*entry                    // guarded by mu
	bindings map[frames.BindingID]*held                           // guarded by mu
	spawn    func(frames.BindingID) (facts int, out owner.Result) // guarded by mu: what a SPAWN does
	asked    []string                                             // guarded by mu: requests in order
	shown    []frames.Certificate                                 // guarded by mu
	sent     map[frames.EffectAttemptID]bool                      // guarded by mu: attempts that arrived as DISPATCH_EFFECT
	resource uint32                                               // guarded by mu
}

type entry struct {
	digest  [32]byte
	started int
	result  owner.Result
}

type held struct {
	inc    frames.IncarnationID
	facts  []*frames.TerminalSourceFact
	acked  uint64
	given  bool // AckAll
	closed bool
	killed bool
}

func newScripted(t testing.TB) *scripted {
	o := &scripted{t: t, inc: frames.IncarnationID{1}, journal: map[frames.EffectAttemptID]*entry{}, bindings: map[frames.BindingID]*held{}, sent: map[frames.EffectAttemptID]bool{}}
	o.spawn = func(frames.BindingID) (int, owner.Result) { return 5, owner.Result{State: frames.EffectSucceeded} }
	return o
}

func (o *scripted) step(name string) {
	o.turn.Lock()
	defer o.turn.Unlock()
	if o.hook != nil {
		o.hook(name)
	}
}

// at calls f at every step, one at a time.
func (o *scripted) at(f func(step string)) {
	o.turn.Lock()
	defer o.turn.Unlock()
	o.hook = f
}

// answers makes every SPAWN end so, with as many OUTPUT_RANGE facts and CLOSED when there are
// any.
func (o *scripted) answers(facts int, r owner.Result) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.spawn = func(frames.BindingID) (int, owner.Result) { return facts, r }
}

func (o *scripted) incarnation() frames.IncarnationID {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.inc
}

// cut ends every link.
func (o *scripted) cut() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.cutLocked()
}

func (o *scripted) cutLocked() {
	for _, l := range o.lines {
		l.end(errors.New("cut"))
	}
	o.lines = nil
}

// restart is a new incarnation: former processes are gone, without CLOSED if they had none,
// and intents without an outcome are INDETERMINATE.
func (o *scripted) restart() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.cutLocked()
	o.inc[0]++
}

func (o *scripted) setDown(down bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.down = down
	if down {
		o.cutLocked()
	}
}

func (o *scripted) requests() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.asked)
}

// starts is how often a process was started for any attempt: the most for one, and in all.
func (o *scripted) starts() (most, all int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, e := range o.journal {
		most, all = max(most, e.started), all+e.started
	}
	return most, all
}

// journalled are the attempts that the owner has heard of.
func (o *scripted) journalled() []frames.EffectAttemptID {
	o.mu.Lock()
	defer o.mu.Unlock()
	return keys(o.journal)
}

// emit adds a fact to a binding.
func (o *scripted) emit(id frames.BindingID, kind frames.SourceFactKind, payload codec.Value) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.emitLocked(id, kind, payload)
}

func (o *scripted) emitLocked(id frames.BindingID, kind frames.SourceFactKind, payload codec.Value) {
	h := o.bindings[id]
	raw, err := codec.EncodeImage([]byte{}, payload)
	if err != nil {
		panic(err)
	}
	h.facts = append(h.facts, &frames.TerminalSourceFact{
		Source: frames.TerminalSourceRef{BindingID: id, Owner: ownerPin, OwnerIncarnation: h.inc, Sequence: frames.SourceSequence(len(h.facts) + 1)},
		Kind:   kind, Schema: frames.FactSchema, Payload: raw,
	})
	h.closed = h.closed || kind == frames.FactClosed
	for _, l := range o.lines {
		l.feedLocked(id)
	}
}

func (o *scripted) dial(_ context.Context, h Handlers) (Link, error) {
	o.step("dial")
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.down {
		return nil, errors.New("nobody answers")
	}
	l := &line{o: o, h: h, inc: o.inc, done: make(chan struct{}), out: make(chan func(), 4096), streams: map[frames.BindingID]*flow{}}
	l.reading.Go(l.read)
	o.lines = append(o.lines, l)
	return l, nil
}

// A line is one link to the scripted owner.
type line struct {
	o   *scripted
	h   Handlers
	inc frames.IncarnationID

	done    chan struct{}
	once    sync.Once
	err     error
	out     chan func()
	reading sync.WaitGroup

	streams map[frames.BindingID]*flow // guarded by o.mu
	proved  bool                       // guarded by o.mu: AUTHORITY was shown
	told    bool                       // guarded by o.mu: BINDINGS have come
}

type flow struct {
	next   uint64
	credit uint32
	told   bool
}

func (l *line) read() {
	for {
		select {
		case f := <-l.out:
			f()
		case <-l.done:
			return
		}
	}
}

func (l *line) end(err error) {
	l.once.Do(func() {
		l.err = err
		close(l.done)
	})
}

func (l *line) Incarnation() frames.IncarnationID { return l.inc }
func (l *line) Groups() []frames.GroupID          { return []frames.GroupID{1} }
func (l *line) Done() <-chan struct{}             { return l.done }

func (l *line) Err() error {
	select {
	case <-l.done:
		return l.err
	default:
		return nil
	}
}

func (l *line) Close() error {
	l.end(errors.New("closed"))
	l.reading.Wait()
	return nil
}

// ask counts a request and fails once the line has ended, as a write does.
func (l *line) ask(what string) error {
	l.o.step(what)
	l.o.mu.Lock()
	defer l.o.mu.Unlock()
	if err := l.Err(); err != nil {
		return err
	}
	l.o.asked = append(l.o.asked, what)
	require.True(l.o.t, l.proved || what == "authority", "AUTHORITY comes first")
	return nil
}

func (l *line) Authority(_ context.Context, cert frames.Certificate) error {
	if err := l.ask("authority"); err != nil {
		return err
	}
	l.o.mu.Lock()
	defer l.o.mu.Unlock()
	l.o.shown = append(l.o.shown, cert)
	if l.o.refuses {
		l.end(&owner.RefusedError{Code: frames.CodeStaleAuthority})
		return nil // it has no reply
	}
	if l.proved {
		return nil
	}
	l.proved = true
	var ids []frames.BindingID
	for id, h := range l.o.bindings {
		if !h.given && (!h.closed || h.acked < uint64(len(h.facts))) {
			ids = append(ids, id)
		}
	}
	l.out <- func() {
		l.h.Bindings(ids)
		l.o.mu.Lock()
		l.told = true
		l.o.mu.Unlock()
	}
	return nil
}

func (l *line) Dispatch(_ context.Context, _ frames.AuthorityGuard, a *frames.EffectAttempt) (owner.Result, error) {
	if err := l.ask("dispatch"); err != nil {
		return owner.Result{}, err
	}
	require.True(l.o.t, l.o.bed.maySend(a.ID), "DISPATCHED is durable before the first byte leaves")
	if code := l.o.refusal(&l.o.noSend); code != 0 {
		return owner.Result{}, &owner.RefusedError{Code: code}
	}
	r, err := l.o.dispatch(a, l.inc)
	l.o.step("dispatched")
	if err == nil {
		err = l.Err() // the reply does not come through
	}
	return r, err
}

func (o *scripted) refusal(code *frames.Code) frames.Code {
	o.mu.Lock()
	defer o.mu.Unlock()
	return *code
}

func (o *scripted) dispatch(a *frames.EffectAttempt, inc frames.IncarnationID) (owner.Result, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	require.False(o.t, o.sent[a.ID], "an attempt is sent once, whatever happens")
	o.sent[a.ID] = true
	if e := o.journal[a.ID]; e != nil {
		switch {
		case e.digest != a.Digest:
			return owner.Result{}, &owner.RefusedError{Code: frames.CodeOperationConflict}
		case e.result.State == owner.NeverSeen:
			return owner.Result{State: frames.EffectRejected}, nil
		}
		return e.result, nil
	}
	e := &entry{digest: a.Digest}
	o.journal[a.ID] = e
	if a.Kind == frames.EffectKill {
		e.result = owner.Result{Attempt: a.ID, State: frames.EffectSucceeded}
		id := a.Target.Binding.BindingID
		if h := o.bindings[id]; h == nil || a.Target.Binding.OwnerIncarnation != o.inc || h.given {
			e.result.State = frames.EffectRejected
		} else if !h.closed {
			h.killed = true
			o.emitLocked(id, frames.FactClosed, &frames.Closed{Known: true, Status: -15})
		}
		return e.result, nil
	}
	id := frames.BindingID(a.Target.PendingBindingID)
	facts, result := o.spawn(id)
	result.Attempt = a.ID
	e.result = result
	if a.Target.OwnerIncarnation != inc {
		e.result.State = frames.EffectRejected
	}
	if e.result.State != frames.EffectSucceeded {
		return e.result, nil
	}
	e.started++
	o.resource++
	e.result.HasResource, e.result.Resource = !o.nameless, frames.ResourceID{ID: o.resource}
	o.bindings[id] = &held{inc: inc}
	o.emitLocked(id, frames.FactOpened, &frames.Opened{})
	for n := range facts {
		o.emitLocked(id, frames.FactOutputRange, &frames.OutputRange{First: uint64(n) + 1, Last: uint64(n) + 1, ByteCount: 1})
	}
	if facts > 0 {
		o.emitLocked(id, frames.FactClosed, &frames.Closed{Known: true})
	}
	return e.result, nil
}

func (l *line) GetEffect(_ context.Context, _ frames.AuthorityGuard, id frames.EffectAttemptID, digest [32]byte) (owner.Result, error) {
	if err := l.ask("get"); err != nil {
		return owner.Result{}, err
	}
	l.o.mu.Lock()
	gate := l.o.getGate
	l.o.mu.Unlock()
	if gate != nil {
		<-gate
	}
	if code := l.o.refusal(&l.o.noGet); code != 0 {
		return owner.Result{}, &owner.RefusedError{Code: code}
	}
	l.o.mu.Lock()
	e := l.o.journal[id]
	if e == nil {
		e = &entry{digest: digest, result: owner.Result{Attempt: id, State: owner.NeverSeen}}
		l.o.journal[id] = e
	}
	r, same := e.result, e.digest == digest
	l.o.mu.Unlock()
	l.o.step("got")
	if !same {
		return owner.Result{}, &owner.RefusedError{Code: frames.CodeOperationConflict}
	}
	return r, l.Err()
}

func (l *line) OpenFacts(ctx context.Context, _ frames.AuthorityGuard, id frames.BindingID, after uint64, credit uint32) error {
	if err := l.ask("open"); err != nil {
		return err
	}
	l.o.mu.Lock()
	stalls := l.o.stalls
	l.o.mu.Unlock()
	if stalls {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-l.done:
			return l.err
		}
	}
	l.o.mu.Lock()
	defer l.o.mu.Unlock()
	l.o.opened = append(l.o.opened, after)
	if l.o.bindings[id] == nil {
		return &owner.RefusedError{Code: frames.CodeNotFound}
	}
	l.streams[id] = &flow{next: after + 1, credit: credit}
	l.feedLocked(id)
	return nil
}

// feedLocked sends what the credit allows, and FACTS_END behind the last fact of a former
// incarnation.
func (l *line) feedLocked(id frames.BindingID) {
	st, h := l.streams[id], l.o.bindings[id]
	if st == nil {
		return
	}
	for st.credit > 0 && st.next <= uint64(len(h.facts)) {
		f := h.facts[st.next-1]
		st.next++
		st.credit--
		l.out <- func() {
			l.o.step("fact")
			l.h.Fact(f)
		}
	}
	if h.inc != l.inc && st.next > uint64(len(h.facts)) && !st.told {
		st.told = true
		last := uint64(len(h.facts))
		l.out <- func() { l.h.FactsEnd(id, last) }
	}
}

func (l *line) FactAck(_ context.Context, id frames.BindingID, through uint64, add uint32) error {
	if err := l.ask("ack"); err != nil {
		return err
	}
	if through != owner.AckAll {
		require.LessOrEqual(l.o.t, through, l.o.bed.durable(id), "only what is durable is acknowledged")
	}
	l.o.mu.Lock()
	defer l.o.mu.Unlock()
	if through == owner.AckAll {
		l.o.gaveUp = append(l.o.gaveUp, id)
	}
	h := l.o.bindings[id]
	if h == nil {
		return nil
	}
	if through == owner.AckAll {
		h.given = true
		through = uint64(len(h.facts))
	}
	h.acked = max(h.acked, through)
	if st := l.streams[id]; st != nil {
		st.credit += add
		l.feedLocked(id)
	}
	return nil
}
