package client

import (
	"context"
	"net"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
	"coordinator/handshake"
)

// writeTo changes one object.
func (m *model) writeTo(object byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.writeLocked(object)
}

// prune forgets an operation without an event, as tombstones go (protocol.md §8).
func (m *model) prune(operation byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	ref := objectRef(operation)
	m.log = slices.DeleteFunc(m.log, func(e frames.ReplayEvent) bool { return e.Object == ref })
	delete(m.revs, operation)
}

// at is what the model's log says of every object at a cut.
func (m *model) at(cut frames.EventCut) map[frames.ObjectRef]frames.ObjectRevision {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[frames.ObjectRef]frames.ObjectRevision{}
	for i := range m.log {
		switch e := &m.log[i]; {
		case e.Sequence > frames.EventSequence(cut):
		case e.Kind == frames.EventObjectRemoved:
			delete(out, e.Object)
		default:
			out[e.Object] = e.Revision
		}
	}
	return out
}

// forgot reports whether the log is a backup that was put back after an activation, whose
// views show what is not in it.
func (m *model) forgot(a frames.ActivationSequence) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return a <= m.restored
}

// shows is the revisions that a view holds.
func shows(v *View) map[frames.ObjectRef]frames.ObjectRevision {
	out := map[frames.ObjectRef]frames.ObjectRevision{}
	for r := range v.All() {
		out[r.Ref()] = r.Revision()
	}
	return out
}

// reached is a transport that reaches the model unless it is down, or hangs.
func (m *model) reached(serving Transport) Transport {
	return func(ctx context.Context, c *Context) (net.Conn, handshake.Channel, error) {
		if m.hangs.Load() {
			<-ctx.Done()
			return nil, nil, context.Cause(ctx)
		}
		if m.down.Load() {
			return nil, nil, syscall.ECONNREFUSED
		}
		return serving(ctx, c)
	}
}

// attended opens a replica of which every publication is looked at: that it is what the
// model's log says at its cut, and that nothing of a replay shows before its end.
func attended(t *testing.T, w *world, m *model, opts ReplicaOptions) *Replica {
	opts.Options = w.options(m.serve)
	opts.Transport = m.reached(opts.Transport)
	if opts.Offered = 0x0f; m.admin { // ADMIN records ask for a snapshot under each authority [D-12]
		opts.Offered = 0x1f
	}
	opts.Clock = &hasty{Manual: w.clock}
	r, err := newReplica(w.pins, opts)
	require.NoError(t, err)
	yield := r.follower.yield
	r.follower.yield = func(u Update, err error) bool {
		before := r.now.Load()
		more := yield(u, err)
		after := r.now.Load()
		if after == before {
			return more
		}
		if sub := r.follower.sub; sub != nil && sub.pending() && before.view != nil {
			if after.view.Cut != before.view.Cut || after.view.Current {
				t.Errorf("a replay shows before its end: %v after %v", after.state, before.state)
			}
		}
		switch v := after.view; {
		case v == nil:
		case v.Current != (after.state.Phase == ReplicaCurrent) || v.Cut != after.state.Cut:
			t.Errorf("the view and its state disagree: %v", after.state)
		default:
			was := m.at(v.Cut) // before it is asked what was forgotten: a test may put a backup back now
			if !m.forgot(v.Guard.Activation) && !mapsEqual(shows(v), was) {
				t.Errorf("at event %d the view shows %v, there was %v", v.Cut, shows(v), was)
			}
		}
		return more
	}
	r.start()
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

func mapsEqual[K, V comparable](a, b map[K]V) bool {
	for k, v := range a {
		if b[k] != v {
			return false
		}
	}
	return len(a) == len(b)
}

// reaches waits until the replica is current at the model's head.
func reaches(t *testing.T, r *Replica, m *model) *View {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	v, err := r.WaitFor(ctx, func(v *View) bool { return v.Cut >= m.head() })
	require.NoError(t, err, "%v", r.State())
	require.Equal(t, m.at(v.Cut), shows(v))
	require.Equal(t, v.Len(), v.Count(frames.KindObjective))
	return v
}

// enters waits for a state.
func enters(t *testing.T, r *Replica, what string, ok func(ReplicaState) bool) ReplicaState {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for s := range r.States(ctx) {
		if ok(s) {
			return s
		}
	}
	t.Fatalf("it never was %s; last: %v", what, r.State())
	return ReplicaState{}
}

// A mirror consumes a feed and derives from it alone what the view is.
type mirror struct {
	t       *testing.T
	feed    *Feed
	mu      sync.Mutex
	records map[frames.ObjectRef]*Record // guarded by mu
	cut     frames.EventCut              // guarded by mu
	states  []ReplicaState               // guarded by mu
	rereads map[RereadReason]int         // guarded by mu
	unsaid  bool                         // guarded by mu; the last state is not among states
	changes int                          // guarded by mu
	end     error                        // guarded by mu
}

// mirrored follows a feed until it ends. hold, unless nil, is called with each notice.
func mirrored(t *testing.T, r *Replica, max int, hold func(Notice)) *mirror {
	m := &mirror{t: t, feed: r.Changes(max), records: map[frames.ObjectRef]*Record{}, rereads: map[RereadReason]int{}}
	var wg sync.WaitGroup
	wg.Go(func() {
		for n, err := range m.feed.All(context.Background()) {
			if err != nil {
				m.mu.Lock()
				m.end = err
				m.mu.Unlock()
				return
			}
			m.take(n)
			if hold != nil {
				hold(n)
			}
		}
	})
	t.Cleanup(func() { m.feed.Close(); wg.Wait() })
	return m
}

func (m *mirror) take(n Notice) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch n := n.(type) {
	case *ReplicaState:
		m.states, m.unsaid = append(m.states, *n), false
	case *Reread:
		m.rereads[n.Reason]++
		m.unsaid = true // a state may have been dropped
		m.records, m.cut = map[frames.ObjectRef]*Record{}, n.View.Cut
		for r := range n.View.All() {
			m.records[r.Ref()] = r
		}
	case *Change:
		m.changes++
		if n := len(m.states); n > 0 && (m.states[n-1].Reason == StaleGap || m.states[n-1].Reason == StaleDisconnected) && !m.unsaid {
			m.t.Errorf("event %d is told within a gap: %v", n, m.states[n-1])
		}
		ref := n.Event.Object
		if m.records[ref] != n.Old || frames.EventCut(n.Event.Sequence) <= m.cut || m.rereads[RereadFirst] == 0 {
			m.t.Errorf("event %d of %v does not follow %d", n.Event.Sequence, ref, m.cut)
		}
		m.cut = frames.EventCut(n.Event.Sequence)
		if m.records[ref] = n.New; n.New == nil {
			delete(m.records, ref)
		}
	}
}

// agrees waits until the mirror is what the view is.
func (m *mirror) agrees(v *View) {
	require.Eventually(m.t, func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.cut == v.Cut
	}, time.Minute, time.Millisecond)
	m.mu.Lock()
	defer m.mu.Unlock()
	require.Len(m.t, m.records, v.Len())
	for r := range v.All() {
		require.Same(m.t, r, m.records[r.Ref()])
	}
}
