package console

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"coordinator/client"
	"coordinator/internal/clock"
)

const (
	// maxListeners is how many pages are kept up to date at once.
	maxListeners = 16
	// maxQueued and maxQueuedBytes bound what waits for one of them.
	maxQueued      = 64
	maxQueuedBytes = 16 << 20
	// backlog is how many changes wait for the console to look at them.
	backlog = 4096
	// pace is the least time between two sets of rows, and share the part of the time that
	// making them may take: a large view is told less often.
	pace  = 100 * time.Millisecond
	share = 10
	// heartbeat is how often the state is told although nothing has changed.
	heartbeat = time.Second
	// maxActivity is how many events are kept.
	maxActivity = 1000
)

// live keeps what pages show and tells them what changes.
type live struct {
	replica *client.Replica
	clock   clock.Clock

	wake chan struct{} // holds one element when there is something new

	mu        sync.Mutex
	listeners map[*listener]struct{} // guarded by mu
	tables    tables                 // guarded by mu; as listeners have them
	state     client.ReplicaState    // guarded by mu; as listeners have it
	activity  []event                // guarded by mu; the last maxActivity
	fresh     []event                // guarded by mu; those that listeners have not been told of
	reset     []byte                 // guarded by mu; what a new listener gets, nil when it is to be made
	ended     bool                   // guarded by mu
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

func newLive(r *client.Replica, c clock.Clock) *live {
	return &live{replica: r, clock: c, wake: make(chan struct{}, 1), listeners: map[*listener]struct{}{}, tables: newTables(), state: r.State()}
}

// run follows the replica until ctx ends, and returns once its goroutines have.
func (l *live) run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { l.follow(ctx) })
	defer wg.Wait()
	next := l.clock.NewTimer(0)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.wake:
		case <-next.C():
		}
		began := time.Now()
		l.tell()
		rest := l.clock.NewTimer(max(pace, share*time.Since(began)))
		select {
		case <-ctx.Done():
			rest.Stop()
			return
		case <-rest.C():
		}
		next.Stop()
		next = l.clock.NewTimer(heartbeat - pace)
	}
}

// follow notes what the replica tells until it or ctx ends.
func (l *live) follow(ctx context.Context) {
	feed := l.replica.Changes(backlog)
	defer feed.Close()
	for n, err := range feed.All(ctx) {
		if err != nil {
			break
		}
		l.note(n)
		l.signal()
	}
	l.signal()
}

func (l *live) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// note makes an entry of the activity.
func (l *live) note(n client.Notice) {
	e, ok := entry(n, l.clock.Now().Wall)
	if !ok {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fresh = append(l.fresh, e); len(l.fresh) > 2*maxActivity {
		l.fresh = append([]event(nil), l.fresh[len(l.fresh)-maxActivity:]...)
	}
}

// tell makes the rows of the view as it now stands and gives every listener what differs.
func (l *live) tell() {
	view := l.replica.View()
	now := tablesOf(view)
	state := l.replica.State()
	l.mu.Lock()
	defer l.mu.Unlock()
	told := l.stateJSON(state, view)
	changed := l.tables.diff(now)
	l.tables, l.state, l.reset = now, state, nil
	if len(changed) > 0 {
		changed["state"] = told
		l.broadcastLocked("rows", encode(changed))
	} else {
		l.broadcastLocked("state", told)
	}
	if len(l.fresh) > 0 {
		l.broadcastLocked("activity", encode(map[string]any{"events": l.fresh}))
		l.activity = append(l.activity, l.fresh...)
		if over := len(l.activity) - maxActivity; over > 0 {
			l.activity = append([]event(nil), l.activity[over:]...)
		}
		l.fresh = nil
	}
}

// broadcastLocked gives a message to every listener; one whose queue is full is cut off.
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

// taken takes a message off what waits.
func (p *listener) taken(m message) {
	p.mu.Lock()
	p.bytes -= len(m.data)
	p.mu.Unlock()
}

// join begins a listener, nil when there are too many. What it gets first is the whole.
func (l *live) join() (*listener, []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.listeners) >= maxListeners {
		return nil, nil
	}
	if l.reset == nil {
		whole := l.tables.whole()
		whole["state"] = l.stateJSON(l.state, l.replica.View())
		whole["activity"] = orEmpty(l.activity)
		l.reset = encode(whole)
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
			if s.send(m) != nil {
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
