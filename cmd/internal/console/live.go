package console

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"coordinator/client"
	"coordinator/cmd/internal/overview"
	"coordinator/frames"
	"coordinator/internal/clock"
)

const (
	// maxListeners is how many pages are kept up to date at once.
	maxListeners = 16
	// maxQueued and maxQueuedBytes bound what waits for one of them.
	maxQueued      = 64
	maxQueuedBytes = 16 << 20
	// heartbeat is how often the state is told although nothing has changed.
	heartbeat = time.Second
	// maxActivity is how many events are kept.
	maxActivity = 1000
	// maxEpochs is how many authorities are remembered, and maxRate for how many seconds events
	// are counted.
	maxEpochs = 100
	maxRate   = 600
)

// A state is the STATE of doc.go.
type state struct {
	*overview.State
	Scope []string `json:"scope"`
}

// An epoch is one authority that this console has met.
type epoch struct {
	Epoch       frames.AuthorityEpoch     `json:"epoch,string"`
	Activation  frames.ActivationSequence `json:"activation,string"`
	Incarnation string                    `json:"incarnation_id"`
	Seen        overview.Time             `json:"seen_at"`
}

// A second counts the events that were applied in it.
type second struct {
	At     overview.Time `json:"at"`
	Events int           `json:"events"`
}

// live keeps what pages show and tells them what changes.
type live struct {
	replica *client.Replica
	clock   clock.Clock
	owners  map[frames.Fingerprint]string

	mu        sync.Mutex
	listeners map[*listener]struct{} // guarded by mu
	tables    tables                 // guarded by mu; as listeners have them
	state     state                  // guarded by mu; as listeners have it
	told      time.Time              // guarded by mu; when they were last given it
	activity  []*overview.Activity   // guarded by mu; the last maxActivity
	reset     []byte                 // guarded by mu; what a new listener gets, nil when it is to be made
	epochs    []epoch                // guarded by mu; newest first
	rate      []second               // guarded by mu; newest last
}

// A message is one event of a stream. Its data is shared and never changed.
type message struct {
	event string
	data  []byte
}

// A listener is one page.
type listener struct {
	queue chan message
	cut   chan struct{} // closed when it did not keep up

	mu    sync.Mutex
	bytes int // guarded by mu; of what waits in queue
}

func newLive(r *client.Replica, clk clock.Clock, c *client.Context) *live {
	l := &live{replica: r, clock: clk, owners: map[frames.Fingerprint]string{}, listeners: map[*listener]struct{}{}, tables: newTables()}
	for _, o := range c.Owners {
		l.owners[o.Authority] = o.Name
	}
	m := overview.New(overview.Options{})
	m.Refresh(nil, r.State(), clk.Now().Wall)
	l.state = state{m.State(), []string{}}
	return l
}

// run follows the replica until ctx ends. A replica that has ended goes on to be told as that.
func (l *live) run(ctx context.Context) {
	opts := overview.FollowOptions{Options: overview.Options{Activity: maxActivity, Owners: l.owners}, Beat: heartbeat, Clock: l.clock}
	overview.Follow(ctx, l.replica, opts, func(m *overview.Model, d *overview.Delta) error { //nolint:errcheck // the state says why it has ended
		l.tell(m, d)
		return nil
	})
	for ctx.Err() == nil {
		beat := l.clock.NewTimer(heartbeat)
		select {
		case <-beat.C():
			l.again()
		case <-ctx.Done():
		}
		beat.Stop()
	}
}

// tell takes a change in and gives it to every listener.
func (l *live) tell(m *overview.Model, d *overview.Delta) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reset = nil
	l.state.State = m.State()
	if v := m.View(); v != nil {
		l.state.Scope = scopeNames(v.Scope)
		l.metLocked(v)
	}
	l.tables.apply(d)
	l.countLocked(d.Activity)
	now := l.state.ServerTime.Time
	if d.State != nil || len(d.Signals)+len(d.Objectives)+len(d.Runs)+len(d.Operations)+len(d.Gone) > 0 || now.Sub(l.told) >= heartbeat {
		l.told = now
		l.rowsLocked(d)
	}
	if len(d.Activity) > 0 {
		l.broadcastLocked("activity", encode(map[string]any{"events": d.Activity}))
		l.activity = append(l.activity, d.Activity...)
		if over := len(l.activity) - maxActivity; over > 0 {
			l.activity = append([]*overview.Activity(nil), l.activity[over:]...)
		}
	}
}

// rowsLocked tells the rows that have changed, with the state, or the state alone.
func (l *live) rowsLocked(d *overview.Delta) {
	if len(d.Signals)+len(d.Objectives)+len(d.Runs)+len(d.Operations)+len(d.Gone) == 0 {
		l.broadcastLocked("state", encode(l.state))
		return
	}
	l.broadcastLocked("rows", encode(struct {
		State      state                 `json:"state"`
		Signals    []*overview.Signal    `json:"signals,omitempty"`
		Objectives []*overview.Objective `json:"objectives,omitempty"`
		Runs       []*overview.Run       `json:"runs,omitempty"`
		Operations []*overview.Operation `json:"operations,omitempty"`
		Gone       []overview.Gone       `json:"gone,omitempty"`
	}{l.state, d.Signals, d.Objectives, d.Runs, d.Operations, d.Gone}))
}

// again tells the state of a replica that has ended.
func (l *live) again() {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := *l.state.State
	s.ServerTime = overview.Time{Time: l.clock.Now().Wall}
	l.state.State, l.reset = &s, nil
	l.broadcastLocked("state", encode(l.state))
}

// metLocked remembers the authority of a view.
func (l *live) metLocked(v *client.View) {
	e := epoch{v.Guard.Epoch, v.Guard.Activation, v.Incarnation.String(), l.state.ServerTime}
	if len(l.epochs) > 0 && l.epochs[0].Epoch == e.Epoch && l.epochs[0].Activation == e.Activation && l.epochs[0].Incarnation == e.Incarnation {
		return
	}
	l.epochs = append([]epoch{e}, l.epochs[:min(len(l.epochs), maxEpochs-1)]...)
}

// countLocked counts events by the second, those without any included.
func (l *live) countLocked(a []*overview.Activity) {
	now := l.state.ServerTime.Truncate(time.Second)
	if len(l.rate) == 0 || now.Sub(l.rate[len(l.rate)-1].At.Time) > maxRate*time.Second {
		l.rate = []second{{At: overview.Time{Time: now}}}
	}
	for at := l.rate[len(l.rate)-1].At.Add(time.Second); !at.After(now); at = at.Add(time.Second) {
		l.rate = append(l.rate, second{At: overview.Time{Time: at}})
	}
	if over := len(l.rate) - maxRate; over > 0 {
		l.rate = append([]second(nil), l.rate[over:]...)
	}
	for _, e := range a {
		if e.Sequence > 0 {
			l.rate[len(l.rate)-1].Events++
		}
	}
}

// broadcastLocked gives a message to every listener; one that does not keep up is cut off.
func (l *live) broadcastLocked(name string, data []byte) {
	for p := range l.listeners {
		if !p.offer(message{name, data}) {
			close(p.cut)
			delete(l.listeners, p)
		}
	}
}

// offer queues a message, unless too much waits.
func (p *listener) offer(m message) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bytes > 0 && p.bytes+len(m.data) > maxQueuedBytes {
		return false
	}
	select {
	case p.queue <- m:
		p.bytes += len(m.data)
		return true
	default:
		return false
	}
}

// taken notes that a message waits no more.
func (p *listener) taken(m message) {
	p.mu.Lock()
	p.bytes -= len(m.data)
	p.mu.Unlock()
}

// over reports whether the listener was cut off: what waits for it then is of no use, since it
// begins anew.
func (p *listener) over() bool {
	select {
	case <-p.cut:
		return true
	default:
		return false
	}
}

// join begins a listener, nil when there are too many. What it gets first is the whole.
func (l *live) join() (*listener, []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.listeners) >= maxListeners {
		return nil, nil
	}
	if l.reset == nil {
		t := &l.tables
		l.reset = encode(struct {
			State      state                 `json:"state"`
			Signals    []*overview.Signal    `json:"signals"`
			Objectives []*overview.Objective `json:"objectives"`
			Runs       []*overview.Run       `json:"runs"`
			Operations []*overview.Operation `json:"operations"`
			Activity   []*overview.Activity  `json:"activity"`
		}{l.state, t.signals.list(nil), t.objectives.list(nil), t.runs.list(nil), t.operations.list(nil), orEmpty(l.activity)})
	}
	p := &listener{queue: make(chan message, maxQueued), cut: make(chan struct{})}
	l.listeners[p] = struct{}{}
	return p, l.reset
}

func (l *live) leave(p *listener) {
	l.mu.Lock()
	delete(l.listeners, p)
	l.mu.Unlock()
}

// with calls fn with the rows as pages have them. It must not keep the tables.
func (l *live) with(fn func(*tables)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fn(&l.tables)
}

// serve streams to one page until it goes, is cut off or the console ends.
func (l *live) serve(w http.ResponseWriter, r *http.Request) {
	p, reset := l.join()
	if p == nil {
		(&problem{http.StatusServiceUnavailable, codeBusy, fmt.Sprintf("%d pages are open already", maxListeners), "close another page of this console"}).write(w)
		return
	}
	defer l.leave(p)
	w.Header().Set("Content-Type", "text/event-stream")
	s := stream{w: w, c: http.NewResponseController(w)}
	if s.c.SetReadDeadline(time.Time{}) != nil || s.send(message{"reset", reset}) != nil {
		return
	}
	for {
		select {
		case m := <-p.queue:
			p.taken(m)
			if p.over() || s.send(m) != nil {
				return
			}
		case <-p.cut:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// A stream writes server-sent events.
type stream struct {
	w  http.ResponseWriter
	c  *http.ResponseController
	id int
}

// send writes one event, within a time.
func (s *stream) send(m message) error {
	if err := s.c.SetWriteDeadline(time.Now().Add(answerWait)); err != nil {
		return err
	}
	s.id++
	retry := ""
	if s.id == 1 {
		retry = "retry: 1000\n"
	}
	if _, err := fmt.Fprintf(s.w, "%sid: %d\nevent: %s\ndata: %s\n\n", retry, s.id, m.event, m.data); err != nil {
		return err
	}
	return s.c.Flush()
}

// encode is json.Marshal of what is known to be JSON.
func encode(v any) json.RawMessage {
	raw, err := json.Marshal(v)
	if err != nil {
		panic("console: a message that is no JSON: " + err.Error())
	}
	return raw
}

func orEmpty[T any](l []T) []T {
	if l == nil {
		return []T{}
	}
	return l
}
