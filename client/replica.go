package client

import (
	"context"
	"errors"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"coordinator/frames"
)

const (
	defaultMaxRecords = 4 << 20
	defaultMaxBytes   = 1 << 30
	// publishEvery is how many events are applied at most before the view is published
	// although more wait.
	publishEvery = 64
	// maxUntold bounds the changes of one publication that are told one by one.
	maxUntold = 4096
)

// ReplicaOptions say how a replica connects and what it may hold.
type ReplicaOptions struct {
	// Options say how to dial. What heals a replica, EVENT_REPLAY and ARCHIVE, is offered
	// whatever they say.
	Options
	SubscribeOptions
	Backoff
	// MaxRecords and MaxBytes cap what the view may hold. Zero means 4 Mi records and 1 GiB.
	// A replica that would pass one ends in the phase [ReplicaFull].
	MaxRecords int
	MaxBytes   int64
}

// A Replica keeps a verified copy of everything that its key may see and heals it by
// itself, for as long as it is open (protocol.md §9, §10): it begins with a snapshot, goes on
// with every event after it, meets a gap with a replay or a new snapshot, a cut connection
// with a new one that goes on where the old one ended, and another authority with a snapshot
// before it believes it. An event that does not follow what is known, or cannot be applied,
// is a gap that only a snapshot heals.
//
// [Replica.View] is the copy, whole and immutable, at one event cut; whether it was current
// is part of it. What becomes of it, [Replica.Changes] tells, [Replica.WaitFor] waits for,
// and [Replica.State] says how the replica stands. None of their users can hold it back.
//
// A record takes about 105 bytes beside its payload; with the payloads of runs, their
// sessions, bindings, artifacts, signals and operations that makes about 150 bytes a record.
// While a snapshot takes the place of the view, what has changed is held twice, and what
// views and feeds still hold of earlier versions comes on top.
type Replica struct {
	opts   ReplicaOptions
	ctx    context.Context // of its goroutine, until Close
	cancel context.CancelCauseFunc
	done   chan struct{} // closed once its goroutine has ended

	now       atomic.Pointer[published]
	listening atomic.Int32 // feeds that are open

	mu    sync.Mutex         // held for moments only
	feeds map[*Feed]struct{} // guarded by mu

	// Owned by the replica's goroutine.
	follower *follower
	conn     *Conn     // nil when there is none
	contact  time.Time // the last one of the connection before
	work     *table    // what is being made; nil before the first snapshot
	applied  int       // events applied since the last publication
	untold   []Change  // those of them that feeds are told
	bytes    int64     // held by untold
	skipped  bool      // untold is not all of them
	healing  *Healed   // what stays back until its events are applied; after a gap within them, still
}

// published is what readers see. It never changes; next is closed once it is superseded.
type published struct {
	state ReplicaState
	view  *View
	conn  *Conn // what the view is current by, nil when there is none
	next  chan struct{}
}

// A step is one publication as feeds take it.
type step struct {
	state      *ReplicaState // nil when it has not changed
	viewed     bool          // there is a view
	reread     *Reread
	changes    []Change
	incomplete bool // changes are not all that there are
	earlier    bool // the changes come before the state, not after it
}

// OpenReplica begins a replica of c's coordinator. It returns at once and fails only when
// the memory of the authority cannot be read; whatever else is wrong, its state says. The
// caller closes it.
func OpenReplica(c *Context, opts ReplicaOptions) (*Replica, error) {
	r, err := newReplica(c, opts)
	if err != nil {
		return nil, err
	}
	r.start()
	return r, nil
}

func newReplica(c *Context, opts ReplicaOptions) (*Replica, error) {
	opts.Options.defaults()
	opts.Offered |= frames.CapEventReplay | frames.CapArchive
	if opts.MaxRecords <= 0 {
		opts.MaxRecords = defaultMaxRecords
	}
	if opts.MaxBytes <= 0 {
		opts.MaxBytes = defaultMaxBytes
	}
	if opts.Options.State == nil {
		state, err := OpenState(c)
		if err != nil {
			return nil, err
		}
		opts.Options.State = state
	}
	r := &Replica{opts: opts, done: make(chan struct{}), feeds: map[*Feed]struct{}{}}
	r.now.Store(&published{state: ReplicaState{Since: r.wall()}, next: make(chan struct{})})
	subscribe := opts.SubscribeOptions
	subscribe.learn = r.learn
	follow := FollowOptions{Options: opts.Options, SubscribeOptions: subscribe, Backoff: opts.Backoff, Wait: true}
	r.follower = &follower{c: c, opts: follow, attendant: r}
	r.follower.pauses = newPauses(opts.Backoff, &r.follower.opts.Options)
	r.ctx, r.cancel = context.WithCancelCause(context.Background())
	r.follower.yield = func(u Update, err error) bool { r.take(u, err); return true }
	return r, nil
}

// start runs the replica's goroutine, which Close joins.
func (r *Replica) start() {
	go func() {
		defer close(r.done)
		r.follower.run(r.ctx)
	}()
}

// Close ends the replica and returns once its goroutines have. The last view stays
// readable. Its error says that what was shown could not be made durable.
func (r *Replica) Close() error {
	r.cancel(ErrClosed)
	<-r.done
	return r.opts.Options.State.Flush()
}

// View is the view as it now stands, nil before the first snapshot.
func (r *Replica) View() *View { return r.viewOf(r.now.Load()) }

// State is how the replica now stands.
func (r *Replica) State() ReplicaState { return r.stateOf(r.now.Load()) }

// Info is what the handshake settled of the connection that the view is current by, and the
// certificate now in force; false while there is none.
func (r *Replica) Info() (Info, bool) {
	p := r.now.Load()
	if !p.held() {
		return Info{}, false
	}
	return p.conn.Info(), true
}

// States ranges over the replica's states: the one it has and each that follows. A caller
// that takes its time is given the latest; a final one is the last. It ends with ctx too.
func (r *Replica) States(ctx context.Context) iter.Seq[ReplicaState] {
	return func(yield func(ReplicaState) bool) {
		var last *ReplicaState
		for {
			p := r.now.Load()
			s := r.stateOf(p)
			if last == nil || s.differs(last) {
				if !yield(s) {
					return
				}
				last = &s
			}
			if s.Phase.Final() {
				return
			}
			select {
			case <-p.next:
			case <-ctx.Done():
				return
			}
		}
	}
}

// WaitFor waits for a current view that ok is true of, and gives it. A view that was
// current for moments only may not be among those that ok is asked about. Its error is the
// cause of ctx, or why the replica has ended.
func (r *Replica) WaitFor(ctx context.Context, ok func(*View) bool) (*View, error) {
	for {
		p := r.now.Load()
		if v := r.viewOf(p); v != nil && v.Current && ok(v) {
			return v, nil
		}
		if p.state.Phase.Final() {
			return nil, p.state.Err
		}
		select {
		case <-p.next:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// held reports whether what is published is still vouched for: its certificate may have run
// out, or its connection ended, and the replica not have come to it yet.
// The first who finds the certificate expired ends the connection: one that were renewed
// right after would be current again, and nothing would tell those that wait.
func (p *published) held() bool {
	if p.conn == nil {
		return false
	}
	err := p.conn.live()
	if errors.Is(err, ErrExpired) {
		p.conn.fail(err)
	}
	return err == nil
}

func (r *Replica) viewOf(p *published) *View {
	if p.view == nil || !p.view.Current || p.held() {
		return p.view
	}
	v := *p.view
	v.Current = false
	return &v
}

func (r *Replica) stateOf(p *published) ReplicaState {
	s := p.state
	if p.conn == nil {
		return s
	}
	s.LastContact = time.Unix(0, p.conn.heard.Load())
	if s.Phase == ReplicaCurrent && !p.held() {
		s.Phase, s.Reason = ReplicaStale, StaleDisconnected
		s.Gap = &Gap{Cause: p.conn.Err(), Last: s.Cut}
		if s.Gap.Cause == nil {
			s.Gap.Cause = ErrExpired
		}
	}
	return s
}

func (s *ReplicaState) differs(o *ReplicaState) bool {
	return s.Phase != o.Phase || s.Reason != o.Reason || s.Gap != o.Gap || s.Healed != o.Healed || s.Lost != o.Lost || s.Guard != o.Guard
}

func (r *Replica) wall() time.Time { return r.opts.Clock.Now().Wall }
