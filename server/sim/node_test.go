package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"coordinator/frames"
	"coordinator/internal/clock"
	"coordinator/internal/durable"
	"coordinator/server"
	"coordinator/server/authority"
	"coordinator/server/commit"
	"coordinator/server/store"
	"coordinator/server/store/simfs"
	"coordinator/server/work"
	"coordinator/witness"
)

// errNoAnswer is a witness request that got lost on the way there or back.
var errNoAnswer = errors.New("sim: no answer from the witness")

// machineClock is the clock of one machine: BOOTTIME runs alike on all that are not paused,
// the wall clock can be stepped.
type machineClock struct {
	base     *clock.Manual
	instants *instants
	offset   time.Duration
	lost     time.Duration  // BOOTTIME that passed elsewhere during pauses
	paused   *clock.Reading // what the clocks show while the machine is paused
}

// instants are those at which timers fall due, no two of them in the same, so that only one
// goroutine wakes at a time and a seed decides every order. Each goroutine has instants of
// its own: what several do at once, as when a fence closes for all connections, needs no
// order then.
type instants struct {
	base  *clock.Manual
	mu    sync.Mutex
	used  map[time.Duration]bool // guarded by mu
	lanes map[string]int64       // guarded by mu; by goroutine
	taken map[int64]bool         // guarded by mu; lanes that a goroutine has
}

// apart is how far the instants of one goroutine are from each other.
const apart = 1 << 16

// lane is that of the goroutine that runs, whose first timer may be one of d.
func (i *instants) lane(d time.Duration) int64 {
	i.mu.Lock()
	defer i.mu.Unlock()
	g := goroutine()
	lane, ok := i.lanes[g]
	if !ok {
		// Of that first timer, so that two that begin at once need no order either.
		lane = int64((uint64(i.base.Now().Boot)*31 + uint64(d)) * 0x9e3779b97f4a7c15 >> 48)
		for i.taken[lane] {
			lane = (lane + 1) % apart
		}
		i.lanes[g], i.taken[lane] = lane, true
	}
	return lane
}

// free is d, or a little more, so that no other timer falls due then.
func (i *instants) free(lane int64, d time.Duration) time.Duration {
	if d <= 0 {
		return d // at once: it wakes the process that is running
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	now := i.base.Now().Boot
	due := int64(now + d)
	due += ((lane-due)%apart + apart) % apart
	for i.used[time.Duration(due)] {
		due += apart
	}
	i.used[time.Duration(due)] = true
	return time.Duration(due) - now
}

// goroutine names the one that runs.
func goroutine() string {
	var buf [32]byte
	name, _, _ := strings.Cut(string(buf[:runtime.Stack(buf[:], false)]), " [")
	return name
}

func (c *machineClock) Now() clock.Reading {
	if c.paused != nil {
		return *c.paused
	}
	r := c.base.Now()
	r.Wall = r.Wall.Add(c.offset)
	r.Boot -= c.lost
	return r
}

func (c *machineClock) NewTimer(d time.Duration) clock.Timer {
	lane := c.instants.lane(d)
	return ownTimer{c.base.NewTimer(c.due(lane, d)), c, lane}
}

// due is when a timer falls due. What wakes on a paused machine finds that no time has
// passed, and must not ask again at once.
func (c *machineClock) due(lane int64, d time.Duration) time.Duration {
	if c.paused != nil {
		d = max(d, 100*time.Millisecond)
	}
	return c.instants.free(lane, d)
}

// An ownTimer stays with the goroutine that made it.
type ownTimer struct {
	clock.Timer
	c    *machineClock
	lane int64
}

func (t ownTimer) Reset(d time.Duration) { t.Timer.Reset(t.c.due(t.lane, d)) }

// A link is one coordinator's way to the witness, with its faults.
type link struct {
	w        *world
	holder   frames.KeyID
	cut      bool // requests do not arrive
	deaf     bool // requests arrive, replies do not
	renewals int
	// there and back are how long a request and its reply are under way. Relinquish, at a
	// stop that the simulation waits for, takes no time.
	there, back time.Duration
}

// travel lets d pass on the way.
func (l *link) travel(ctx context.Context, d time.Duration) error {
	if d == 0 {
		return nil
	}
	t := l.w.base.NewTimer(l.w.instants.free(l.w.instants.lane(d), d))
	defer t.Stop()
	select {
	case <-t.C():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// askFar is ask with the times of the way.
func (l *link) askFar(ctx context.Context, call func(witness.Local) error) error {
	there, back := l.there, l.back
	if err := l.travel(ctx, there); err != nil {
		return err
	}
	err := l.ask(call)
	return errors.Join(err, l.travel(ctx, back))
}

func (l *link) ask(call func(witness.Local) error) error {
	if l.cut || l.w.witness == nil {
		return errNoAnswer
	}
	err := call(witness.Local{Witness: l.w.witness, Coordinator: coordinatorID, Holder: l.holder})
	if l.deaf {
		return errNoAnswer
	}
	return err
}

func (l *link) Activate(ctx context.Context, epoch frames.AuthorityEpoch, inc frames.IncarnationID, secs uint16) (c frames.Certificate, err error) {
	err = l.askFar(ctx, func(a witness.Local) error { c, err = a.Activate(ctx, epoch, inc, secs); return err })
	return c, err
}

func (l *link) Renew(ctx context.Context, cur frames.Certificate, secs uint16) (c frames.Certificate, err error) {
	err = l.askFar(ctx, func(a witness.Local) error { c, err = a.Renew(ctx, cur, secs); return err })
	if err == nil {
		l.renewals++
	}
	return c, err
}

func (l *link) Relinquish(ctx context.Context, cur frames.Certificate) error {
	return l.ask(func(a witness.Local) error { return a.Relinquish(ctx, cur) })
}

func (l *link) Status(ctx context.Context) (s witness.Status, err error) {
	err = l.askFar(ctx, func(a witness.Local) error { s, err = a.Status(ctx); return err })
	return s, err
}

// A node is one coordinator on one disk. It is down when store is nil.
type node struct {
	w       *world
	name    string
	dir     string // state.db and the lock; the log is on fs
	made    string // the directory that fs was first used for
	fs      *simfs.FS
	clock   *machineClock
	link    *link
	lineage *lineage

	lock      *durable.Lock
	store     *store.Store
	server    *server.Server
	fence     *authority.Fence
	keeper    *authority.Keeper
	writer    *commit.Writer
	endKeep   context.CancelFunc
	kept      chan error
	endRun    context.CancelFunc
	ran       chan error // the server's own goroutines, as each ends
	installed bool       // clients are let in
	stepping  bool       // the writer is on the stack
	cut       *store.Cut
	cutRows   []store.Row
	waiting   int  // proposals without an answer
	synced    bool // a registry change may still be queued
}

func (n *node) options() store.Options {
	return store.Options{
		FS: moved{n.fs, n.dir, n.made}, SegmentBytes: 16 << 10, CheckpointKeys: 4, Manual: true, UnsafeNoSync: true,
		Clock: n.clock, Rand: n.w.bytes,
	}
}

func (n *node) up() bool { return n.store != nil }

// serving reports whether clients can connect.
func (n *node) serving() bool { return n.up() && n.installed }

// start opens, activates and installs, in the order of a real start. It reports false
// when the witness does not let it, which is no fault.
func (n *node) start() (bool, error) {
	var err error
	if n.lock, err = authority.LockStore(n.dir); err != nil {
		return false, fmt.Errorf("lock: %w", err)
	}
	if n.store, err = store.Open(n.dir, n.options()); err != nil {
		return false, fmt.Errorf("open: %w", err)
	}
	if got := n.store.State().Head; got < n.lineage.head {
		return false, fmt.Errorf("the store opened at event %d, and %d had been published", got, n.lineage.head)
	}
	rows, err := n.rows()
	if err == nil {
		err = n.lineage.recovered(rows, n.lineage.head, n.store.State().Head)
	}
	if err != nil {
		return false, fmt.Errorf("recovered: %w", err)
	}
	act, err := n.activate()
	if err != nil {
		n.w.say("%s: not activated: %v", n.name, err)
		n.abandon()
		return false, nil
	}
	if err := n.w.granted(n, act.Certificate); err != nil {
		return false, err
	}
	if n.server, err = server.Assemble(server.Options{
		Dir: n.dir, CoordinatorID: coordinatorID, LeaseSeconds: n.w.lease, Quotas: n.w.quotas, LowDiskBytes: 1,
		Clock: n.clock, Rand: n.w.bytes,
	}, server.Parts{
		Store: n.store, Activation: act, Key: n.w.authority, Registry: n.w.registryOf(n), Committed: n.publish, WindowBytes: n.w.window,
	}); err != nil {
		return false, err
	}
	n.fence, n.writer = n.server.Fence(), n.server.Writer()
	n.store.SetEventBytes(n.w.eventBytes)
	n.keeper = authority.NewKeeper(authority.KeeperOptions{
		Fence: n.fence, Authority: n.link, Clock: n.clock, Lock: n.lock, LeaseSeconds: n.w.lease,
		OnRenewed: n.server.Renewed,
	})
	ctx, cancel := context.WithCancel(context.Background())
	n.endKeep, n.kept = cancel, make(chan error, 1)
	go func() { n.kept <- n.keeper.Run(ctx) }()
	n.w.settle()
	ctx, n.endRun = context.WithCancel(context.Background())
	n.ran = make(chan error, 2)
	go func() { n.ran <- n.server.Streams().Run(ctx) }()
	n.w.settle()
	go func() { n.ran <- n.server.Tend(ctx) }()
	n.w.settle()
	return true, n.install(act.Certificate)
}

// activate runs the conversation with the witness while time passes.
func (n *node) activate() (act *authority.Activation, err error) {
	st := n.store.State()
	n.w.await(func() {
		act, err = authority.Activate(context.Background(), authority.ActivateOptions{
			Authority: n.link, Clock: n.clock, Rand: n.w.bytes, CoordinatorID: coordinatorID,
			Epoch: st.Epoch, Activation: st.Activation, LeaseSeconds: n.w.lease,
		})
	})
	return act, err
}

// install makes the activation durable before anything else.
func (n *node) install(cert frames.Certificate) error {
	var installed error
	answered := false
	if err := n.writer.Amend(commit.Activation(cert), func(err error) { installed, answered = err, true }); err != nil {
		return fmt.Errorf("install: %w", err)
	}
	n.step()
	if n.up() && answered && installed == nil {
		n.lineage.epoch, n.installed = cert.Epoch, true
	}
	return nil
}

// step runs the writer once and ends the process when it must end.
func (n *node) step() { n.stepBy((*commit.Writer).Step) }

// stepAhead is step that leaves a commit in flight.
func (n *node) stepAhead() { n.stepBy((*commit.Writer).StepAhead) }

func (n *node) stepBy(step func(*commit.Writer) (bool, error)) {
	if !n.up() {
		return
	}
	n.stepping = true
	_, err := step(n.writer)
	n.w.settle()
	n.stepping = false
	if err != nil && !errors.Is(err, authority.ErrDiverged) {
		n.w.say("%s: writer ended: %v", n.name, err)
		n.die()
	}
}

func (n *node) publish(b store.Batch) {
	if b.First <= b.Last {
		if b.First != frames.EventSequence(n.lineage.head)+1 && b.First != frames.EventSequence(n.w.headBefore(n, b))+1 {
			n.w.fault("%s: commit %d begins at event %d after %d", n.name, b.Commit, b.First, n.lineage.head)
		}
		n.lineage.head = frames.EventCut(b.Last)
	}
	for _, c := range b.Silent { // nobody changes a record silently but the server itself, or with CHANGE_RETENTION
		shared := slices.ContainsFunc(b.Events, func(e store.Event) bool { return e.Sequence == c.Seq })
		if c.Removed { // by an event of its own, or a tombstone that was pruned
			if c.Ref.Kind == frames.KindOperation {
				n.w.seen.retired++
			}
			continue
		}
		if c.Seq < b.First || c.Seq > b.Last || shared && c.Ref != work.RetentionRef() {
			n.w.fault("%s: commit %d changes %v at event %d, which is not a sequence of its own", n.name, b.Commit, c.Ref, c.Seq)
		}
	}
	n.w.actsNow(n, "published")
	rows, err := n.rows()
	if err == nil {
		err = n.lineage.published(b, rows)
	}
	if err != nil {
		n.w.fault("%s: commit %d: %v", n.name, b.Commit, err)
	}
	n.lineage.shown[n.fence.Guard().Activation] = n.lineage.head
}

// die ends the process as a kill would: what waited is never answered.
func (n *node) die() {
	n.fs.Kill()
	n.abandon()
}

// abandon forgets all that was in memory.
func (n *node) abandon() {
	n.installed = false
	n.endServer()
	if n.endKeep != nil {
		n.endKeep()
		n.w.settle()
		<-n.kept
	}
	if n.cut != nil {
		n.cut.Close()
	}
	if n.store != nil {
		_ = n.store.Abandon() // handles of a killed log are gone, which it may report
	}
	if n.lock != nil {
		_ = n.lock.Release()
	}
	n.lock, n.store, n.server, n.fence, n.keeper, n.writer, n.endKeep, n.kept = nil, nil, nil, nil, nil, nil, nil, nil
	n.cut, n.cutRows, n.waiting, n.synced = nil, nil, 0, false
}

// endServer cuts all connections, one after the other, and joins what serves them.
func (n *node) endServer() {
	for _, wire := range n.w.net.inUse() {
		if wire.node == n {
			wire.cut()
		}
	}
	if n.server != nil {
		n.server.Cut()
		n.w.judgeQuotas(n, true)
	}
	if n.endRun != nil {
		n.endRun()
		<-n.ran
		<-n.ran
	}
	n.endRun, n.ran = nil, nil
	n.w.settle()
}

// stop ends the process in order: last commits, fence, relinquish, close.
func (n *node) stop() error {
	for range 8 {
		n.step()
		if !n.up() {
			return nil
		}
	}
	if n.cut != nil {
		n.cut.Close()
		n.cut, n.cutRows = nil, nil
	}
	var drained error
	// A round that diverged clocks hold back stays inside until the deadline.
	n.installed = false
	n.w.await(func() { drained = n.fence.Stop(context.Background()) })
	n.w.await(n.server.Wait)
	n.endKeep()
	n.w.settle()
	<-n.kept
	n.endKeep = nil
	if drained == nil {
		if err := n.keeper.Relinquish(context.Background()); err != nil {
			n.w.say("%s: not relinquished: %v", n.name, err)
		}
	}
	if err := n.store.Close(); err != nil && !errors.Is(err, store.ErrOutcomeUnknown) {
		n.w.say("%s: close: %v", n.name, err)
	}
	n.fs.Kill()
	n.abandon()
	return nil
}

// rows reads the whole store through a fresh cut.
func (n *node) rows() ([]store.Row, error) {
	c := n.store.Cut()
	defer c.Close()
	return readCut(c)
}

func readCut(c *store.Cut) ([]store.Row, error) {
	everything := func(frames.ObjectKind, frames.KeyID) bool { return true }
	var rows []store.Row
	var after store.Key
	for {
		page, done, err := c.Page(after, everything, 7)
		if err != nil {
			return nil, err
		}
		rows = append(rows, page...)
		if done {
			return rows, nil
		}
		after = page[len(page)-1].Key()
	}
}

// copyTo is `cp -r` of a store at one instant.
func (n *node) copyTo(dir string) (*simfs.FS, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	from, err := os.Open(filepath.Join(n.dir, "state.db"))
	if err != nil {
		return nil, err
	}
	defer from.Close()
	to, err := os.OpenFile(filepath.Join(dir, "state.db"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer to.Close()
	if _, err := io.Copy(to, from); err != nil {
		return nil, err
	}
	return n.fs.Clone(), nil
}

// A moved disk knows the paths of the node that it was first made for.
type moved struct {
	*simfs.FS
	now, made string
}

func (m moved) path(p string) string { return m.made + strings.TrimPrefix(p, m.now) }

func (m moved) Open(p string) (store.File, error)      { return m.FS.Open(m.path(p)) }
func (m moved) Create(p string) (store.File, error)    { return m.FS.Create(m.path(p)) }
func (m moved) Remove(p string) error                  { return m.FS.Remove(m.path(p)) }
func (m moved) Rename(from, to string) error           { return m.FS.Rename(m.path(from), m.path(to)) }
func (m moved) List(dir string) ([]store.Entry, error) { return m.FS.List(m.path(dir)) }
func (m moved) Mkdir(dir string) error                 { return m.FS.Mkdir(m.path(dir)) }
func (m moved) SyncDir(dir string) error               { return m.FS.SyncDir(m.path(dir)) }

// propose sends one attempt of r. The answer, if any, is judged at once.
func (n *node) propose(r *request) {
	d := n.w.begins(-1, r, n.lineage)
	cmd := r.cmd
	cmd.Guard = n.fence.Guard()
	from := work.Viewer{Principal: principal, Scope: frames.AllScopes, Capabilities: work.Capabilities}
	parsed, err := work.Parse(&cmd, from, frames.ReferenceLimits().TypedPayload)
	if err != nil {
		n.w.fault("%s: parse: %v", n.name, err)
		return
	}
	n.waiting++
	err = n.writer.Propose(&commit.Proposal{
		Command: parsed, Guard: cmd.Guard, Grant: eternal{},
		Done: func(res frames.OperationResult, err error) {
			if !errors.Is(err, commit.ErrUnacknowledged) {
				n.w.ends(d, n.lineage, res, err)
			}
			n.answered(&cmd, res, err)
		},
	})
	if err != nil {
		n.waiting--
	}
}

func (n *node) answered(cmd *frames.CoordCommand, res frames.OperationResult, err error) {
	n.waiting--
	if err != nil {
		return // refused, or not to be acknowledged: the client knows nothing
	}
	n.w.actsNow(n, "acknowledged")
	if before, ok := n.lineage.acked[cmd.OperationID]; ok && !sameResult(before, res) {
		n.w.fault("%s: operation %v: acknowledged twice with different results", n.name, cmd.OperationID)
	}
	n.lineage.acked[cmd.OperationID] = res
	n.w.seen.acked++
}

// eternal is a grant that never ends.
type eternal struct{}

func (eternal) Err(clock.Reading) error { return nil }
