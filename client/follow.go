package client

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"coordinator/frames"
)

const (
	// flushEvery is how often a follower makes its cut durable while events come.
	flushEvery = 5 * time.Second
	// maxHeals bounds the gaps healed one after another without a live event in between,
	// before the connection is given up and made anew after a pause.
	maxHeals = 8
)

var (
	// errUnsteady is why a connection is given up whose gaps do not stay healed.
	errUnsteady = errors.New("gap after gap: the subscription does not stay healed")
	// errOutgrown is why a connection is given up whose view may hold much that the coordinator
	// holds no more: tombstones go without an event (protocol.md §8 [D-42]), so that only a new
	// snapshot lets go of them.
	errOutgrown = errors.New("the view has grown so much that a new snapshot renews it")
)

// FollowOptions say how to follow.
type FollowOptions struct {
	Options
	SubscribeOptions
	Backoff
	// Wait keeps trying when the first connection fails too. Otherwise that ends it.
	Wait bool
}

// Follow keeps an exact view of what this key may see, for as long as ctx lives and the
// caller ranges. It begins with a *[Synced], then gives each *[Event] in order and once. A
// *[Gap] is told when the view may have missed something, a lost connection included;
// then it is healed, by going on from the last event delivered or by replay, told as
// *[Healed], else by a new snapshot, told as *[Synced]. The view is current between that
// and the next gap.
//
// Under another authority nothing is delivered before one of its snapshots has verified;
// when that shows that what was delivered is no longer in its history, the Synced says so
// in Lost (protocol.md §4 [D-26]).
//
// A caller may take its time over each update: nothing is lost or told twice by that. The
// error comes last, with a nil Update: the cause of ctx, or what no new attempt changes,
// such as a revoked key, wrong pins or a quarantined coordinator.
func Follow(ctx context.Context, c *Context, opts FollowOptions) iter.Seq2[Update, error] {
	return func(yield func(Update, error) bool) {
		opts := opts
		opts.Options.defaults()
		f := &follower{c: c, opts: opts, yield: yield}
		f.pauses = newPauses(opts.Backoff, &f.opts.Options)
		if opts.State == nil {
			state, err := OpenState(c)
			if err != nil {
				yield(nil, err)
				return
			}
			f.opts.State = state
		}
		f.run(ctx)
	}
}

// follower is one Follow. All of it runs on the caller's goroutine.
type follower struct {
	c      *Context
	opts   FollowOptions
	yield  func(Update, error) bool
	pauses pauses
	// attendant, unless nil, is told of what happens between the updates.
	attendant attendant

	conn    *Conn
	sub     *Subscription
	view    *view // nil until the first snapshot
	stopped bool  // the caller has had enough
	heals   int   // in short order, since the last live event

	healedAt, flushed time.Duration // BOOTTIME
}

// An attendant sees what a caller of [Follow] does not.
type attendant interface {
	// connected gives the connection that is about to be joined, nil once it has ended.
	connected(*Conn)
	// lost says that what was delivered is not in the history of the authority that is being
	// verified; a new snapshot follows.
	lost(*LostHistory)
}

// view is what the caller has been shown and under which authority and rights.
type view struct {
	guard frames.AuthorityGuard
	caps  frames.Capability
	scope frames.Scope
	cut   frames.EventCut
	seen  knowledge
	// doubtful says that nothing less than a snapshot heals: the coordinator refused to go on
	// from cut, or what it sent behind cut cannot be applied.
	doubtful bool
}

// errStopped ends a follower whose caller has left the loop.
var errStopped = errors.New("stopped")

// tell gives one update to the caller.
func (f *follower) tell(u Update) error {
	if !f.yield(u, nil) {
		f.stopped = true
		return errStopped
	}
	return nil
}

func (f *follower) run(ctx context.Context) {
	for attempt := 0; ; attempt++ {
		joined, err := f.connection(ctx)
		switch {
		case f.stopped:
			return
		case ctx.Err() != nil:
			f.yield(nil, context.Cause(ctx))
			return
		case permanent(err), f.view == nil && !f.opts.Wait:
			f.yield(nil, err)
			return
		}
		if joined {
			attempt = 0
		}
		gap := &Gap{Cause: err, Attempt: attempt}
		if f.view != nil {
			gap.Last = f.view.cut
		}
		if f.tell(gap) != nil {
			return
		}
		if err := f.pauses.wait(ctx); err != nil {
			f.yield(nil, err)
			return
		}
	}
}

// connection is one connection from beginning to end; its error says why it ended. joined
// reports whether the view was current for a while.
func (f *follower) connection(ctx context.Context) (joined bool, err error) {
	if f.conn, err = Dial(ctx, f.c, f.opts.Options); err != nil {
		return false, err
	}
	defer func() {
		if f.sub != nil && f.sub.replayed != nil {
			f.sub.replayed.close()
		}
		if cerr := f.conn.Close(); cerr != nil && !permanent(err) {
			err = errors.Join(err, cerr)
		}
		f.conn, f.sub = nil, nil
	}()
	if f.attendant != nil {
		f.attendant.connected(f.conn)
		defer f.attendant.connected(nil)
	}
	since := f.opts.Clock.Now().Boot
	if err = f.join(ctx); err == nil {
		joined = true
		err = f.pump(ctx)
		f.pauses.served(since)
	}
	if f.view != nil && (errors.Is(err, ErrProtocol) || errors.Is(err, errOutgrown)) {
		f.view.doubtful = true // going on from the cut would meet the same again
	}
	return joined, err
}

// join makes the view current on a new connection: by going on from its cut where that is
// sound, else by a snapshot.
func (f *follower) join(ctx context.Context) error {
	i := f.conn.Info()
	v := f.view
	if v == nil || v.doubtful || v.caps != i.Capabilities || v.scope != i.Scope {
		return f.fresh(ctx) // a cut is good only for the rights it was obtained with [D-55]
	}
	if v.guard != f.conn.guard {
		if i.Capabilities.Has(frames.CapAdministration) && i.Scope.Has(frames.ScopeAdmin) {
			return f.fresh(ctx) // ADMIN records changed with the activation, and have no events [D-12]
		}
		lost, err := f.verify(ctx)
		if err != nil {
			return err
		}
		if lost {
			return f.fresh(ctx)
		}
	}
	sub, err := f.conn.subscribe(ctx, v.cut, v.seen, f.opts.SubscribeOptions)
	var refused *RefusedError
	if errors.As(err, &refused) && refused.Code == frames.CodeMalformedMessage {
		v.doubtful = true // the cut lies beyond its head [D-20]
		return fmt.Errorf("%w: it does not know event %d, which it sent: %v", ErrDisconnected, v.cut, err)
	}
	if err != nil {
		return err
	}
	f.sub, v.guard = sub, f.conn.guard
	if f.attendant != nil {
		// The coordinator has begun to send what it holds behind the cut when it answers: until
		// then nothing here would tell that the view is behind.
		if err := f.conn.Ping(ctx); err != nil {
			return err
		}
	}
	return f.tell(&Healed{Last: v.cut, Guard: v.guard})
}

// verify takes a snapshot of an authority that is new to the view, and holds the view's
// own cut against its history: the memory that is shared with others may know less.
func (f *follower) verify(ctx context.Context) (lost bool, err error) {
	snap, err := f.conn.Snapshot(ctx)
	if err != nil {
		return false, err
	}
	defer snap.Close()
	found := f.lost(snap)
	if found != nil && f.attendant != nil {
		f.attendant.lost(found)
	}
	return found != nil, nil
}

// lost is what a snapshot shows to be gone of what the view was shown, or this client.
func (f *follower) lost(snap *Snapshot) *LostHistory {
	if snap.Lost != nil || f.view == nil {
		return snap.Lost
	}
	return lostHistory(cutSeen{f.view.guard.Activation, f.view.cut}, snap.begin)
}

// fresh begins with a snapshot and what follows it.
func (f *follower) fresh(ctx context.Context) error {
	snap, sub, err := f.conn.SnapshotAndSubscribe(ctx, f.opts.SubscribeOptions)
	if err != nil {
		return err
	}
	f.sub = sub
	return f.synced(snap)
}

// synced puts a snapshot in the view's place and tells it.
func (f *follower) synced(snap *Snapshot) error {
	defer snap.Close()
	i := f.conn.Info()
	s := &Synced{Snapshot: snap, First: f.view == nil, now: known(f.sub.seen)}
	if f.view != nil {
		s.before = known(f.view.seen)
		snap.Lost = f.lost(snap)
		if now := f.conn.State().LostHistory(); snap.Lost == nil && f.view.guard.Activation != snap.Guard.Activation && now != nil && now.Found == snap.Guard.Activation {
			snap.Lost = now // it was found by the snapshot before this one, on this connection
		}
	}
	f.view = &view{guard: snap.Guard, caps: i.Capabilities, scope: i.Scope, cut: snap.Base, seen: f.sub.seen}
	return f.tell(s)
}

// pump delivers until the connection ends.
func (f *follower) pump(ctx context.Context) error {
	for {
		u, err := f.sub.Next(ctx)
		f.view.cut = f.sub.Cut()
		if err != nil {
			return err
		}
		if err := f.tell(u); err != nil {
			return err
		}
		switch u := u.(type) {
		case *Event:
			if u.Delivery != 0 {
				f.heals = 0
			}
			if err := f.flush(); err != nil {
				return err
			}
			if f.sub.seen.outgrown() {
				return errOutgrown
			}
		case *Gap:
			if err := f.heal(ctx, u); err != nil {
				return err
			}
		}
	}
}

// flush makes the cut durable now and then, so that a process that is killed still knows
// what it was shown.
func (f *follower) flush() error {
	now := f.opts.Clock.Now().Boot
	if now-f.flushed < flushEvery {
		return nil
	}
	f.flushed = now
	return f.opts.State.Flush()
}

// ending reports whether the end of the connection follows a gap.
func ending(gap *Gap) bool {
	return gap.Reason == frames.GapEpochChanged || gap.Reason == frames.GapGrantRevoked
}

// heal ends a gap that was told: by replay where the log may have it, else by snapshot. A
// gap that comes in between is told first, and then it is the one to heal.
func (f *follower) heal(ctx context.Context, gap *Gap) error {
	for {
		err := f.healOne(ctx, gap)
		if !errors.Is(err, ErrUnreadGap) {
			return err
		}
		if cause := f.conn.Err(); cause != nil {
			return cause
		}
		newer, err := f.newer()
		switch {
		case err != nil:
			return err
		case newer == nil:
			return fmt.Errorf("%w: the coordinator goes on behind %v before it was healed", ErrProtocol, gap)
		}
		gap = newer
	}
}

// newer tells the gaps that wait, and gives the last one, nil when there was none.
func (f *follower) newer() (last *Gap, err error) {
	for u := f.sub.unreadGap(); u != nil; u = f.sub.unreadGap() {
		if err := f.tell(u); err != nil {
			return nil, err
		}
		last = u
	}
	return last, nil
}

func (f *follower) healOne(ctx context.Context, gap *Gap) error {
	if ending(gap) {
		return nil
	}
	now := f.opts.Clock.Now().Boot
	if now-f.healedAt >= steadyAfter {
		f.heals = 0
	}
	f.healedAt = now
	if f.heals++; f.heals > maxHeals {
		f.heals = 0
		return errUnsteady
	}
	trimmed := gap.Reason == frames.GapRetention || gap.Reason == frames.GapRevisionMismatch // [D-12]
	if !trimmed && f.conn.Info().Capabilities.Has(frames.CapEventReplay) {
		err := f.sub.Replay(ctx)
		if err == nil {
			return f.tell(&Healed{Replayed: true, Last: f.view.cut, Guard: f.view.guard})
		}
		if !errors.As(err, new(*RefusedError)) {
			return err
		}
		newer, err := f.newer() // those that the failed replay brought
		if err != nil {
			return err
		}
		if newer != nil && ending(newer) {
			return nil
		}
	}
	snap, err := f.sub.Replace(ctx)
	if err != nil {
		return err
	}
	return f.synced(snap)
}
