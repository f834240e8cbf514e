package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"coordinator/client"
	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/server/work"
)

// A simClient is one client on a machine of its own: it follows what it may see on one
// connection and makes commands on another, both with the real client.
type simClient struct {
	w      *world
	number int
	name   string
	key    *handshake.Key
	scope  frames.Scope
	caps   frames.Capability
	clock  *machineClock
	pins   *client.Context
	state  *client.State
	rng    *rand.Rand     // which coordinator it dials
	apart  map[*node]bool // partitioned from
	met    map[frames.ActivationSequence]bool
	last   map[string]*lineage   // whom each of its parts dialed last
	rand   map[string]*source    // of each of its parts
	done   map[string]chan error // of each part that runs
	stop   context.CancelFunc

	mu       sync.Mutex
	changed  *sync.Cond // of mu
	slow     bool       // guarded by mu: its consumer takes nothing
	view     *view      // guarded by mu; nil before the first snapshot
	before   *view      // guarded by mu; of the process before, until there is one
	version  int        // guarded by mu: counts what the view was told
	turns    []turn     // guarded by mu: what the client made of other authorities
	ended    error      // guarded by mu: why the follower has ended
	stopping bool       // guarded by mu: it was told to
	job      *job       // owned by the driver
	jobs     chan *job  // to the commander
	asked    []*request // owned by the driver
	open     []*request // owned by the driver: those whose outcome is not known
	session  *client.Session
	replica  *client.Replica // in the place of the follower, when there is one
	// lastView of the replica is what was judged last, owned by the driver.
	lastView *client.View
	fed      map[frames.ObjectRef]*client.Record // guarded by mu: what the replica's feed adds up to
	judged   int                                 // owned by the driver: version that was judged last
}

// view is what the client has been told.
type view struct {
	records copyOf
	guard   frames.AuthorityGuard
	cut     frames.EventCut
	exact   bool // no gap since
}

// A turn is a change of authority as the client told it.
type turn struct {
	from, to frames.ActivationSequence
	cut      frames.EventCut
	lost     bool
}

// A job is one command that the client carries out.
type job struct {
	r      *request
	ctx    context.Context
	cancel context.CancelFunc
	deed   *deed
	on     *lineage // whose result it is
	result frames.OperationResult
	err    error
	over   bool // guarded by the client's mu
}

// clientKinds are the scopes and capabilities that clients have.
var clientKinds = []struct {
	scope frames.Scope
	caps  frames.Capability
}{
	{frames.AllScopes, frames.CapAdministration | frames.CapEventReplay | frames.CapObjectiveLifecycle | frames.CapArchive},
	{frames.ScopeWorkRead | frames.ScopeWorkCommand, frames.CapEventReplay | frames.CapObjectiveLifecycle | frames.CapArchive},
	{frames.ScopeWorkRead | frames.ScopeWorkCommand, frames.CapObjectiveLifecycle | frames.CapWithoutOperations},
	{frames.ScopeWorkRead, frames.CapEventReplay},
	{frames.ScopeWorkCommand, frames.CapObjectiveLifecycle | frames.CapEventReplay},
}

func (w *world) newClient(i int) *simClient {
	kind := clientKinds[i]
	c := &simClient{
		w: w, number: i, name: fmt.Sprintf("client %d", i), scope: kind.scope, caps: kind.caps, clock: w.machine(),
		rng: rand.New(rand.NewPCG(w.rng.Uint64(), 5)), apart: map[*node]bool{}, met: map[frames.ActivationSequence]bool{}, last: map[string]*lineage{},
		rand: map[string]*source{}, jobs: make(chan *job),
	}
	c.changed = sync.NewCond(&c.mu)
	var seed [32]byte
	seed[0], seed[1] = byte(i), 99
	c.key = handshake.NewKey(seed)
	for _, part := range []string{"view", "work"} {
		c.rand[part] = newSource(w.rng.Uint64())
	}
	dir := filepath.Join(w.dir, fmt.Sprintf("client%d", i))
	if err := os.Mkdir(dir, 0o700); err != nil {
		w.fault("%v", err)
	}
	c.pins = &client.Context{
		Path: filepath.Join(dir, "context.toml"), Name: c.name, CoordinatorID: coordinatorID,
		Authority: handshake.FingerprintOf(w.authority.Public()), WitnessID: witnessID, WitnessPublicKey: w.witnessKey.Public(),
	}
	return c
}

// record is the client's line in the registry.
func (c *simClient) record() handshake.Record {
	return handshake.Record{PublicKey: c.key.Public(), Scope: uint64(c.scope), ExpiresAt: 1 << 33, Label: "sim"}
}

func (c *simClient) viewer() work.Viewer {
	return work.Viewer{Principal: handshake.KeyIDOf(c.key.Public()), Scope: c.scope, Capabilities: c.caps}
}

// options are how one part of the client dials.
func (c *simClient) options(part string) client.Options {
	return client.Options{
		Key: c.key, State: c.state, Name: part, Offered: c.caps, Clock: c.clock, Rand: c.rand[part],
		Transport: func(ctx context.Context, _ *client.Context) (net.Conn, handshake.Channel, error) { return c.dial(part) },
	}
}

var errRefused = errors.New("sim: connection refused")

// dial connects to a coordinator that is up: mostly to that of the newest activation.
func (c *simClient) dial(part string) (net.Conn, handshake.Channel, error) {
	var up []*node
	var newest *node
	for _, n := range c.w.nodes {
		if n.serving() && !c.apart[n] {
			up = append(up, n)
			if newest == nil || n.fence.Guard().Activation > newest.fence.Guard().Activation {
				newest = n
			}
		}
	}
	if newest == nil {
		return nil, nil, errRefused
	}
	if c.rng.IntN(4) == 0 {
		newest = up[c.rng.IntN(len(up))]
	}
	c.last[part] = newest.lineage
	if c.job != nil && part == "work" {
		c.job.deed.tried[newest.lineage] = true
	}
	c.met[newest.fence.Guard().Activation] = true
	wire := c.w.net.open(c, newest, c.rng)
	c.w.say("%s: %s dials %s on connection %d", c.name, part, newest.name, wire.id)
	if !newest.server.Serve(wire.ends[serverSide], channel()) {
		wire.ends[serverSide].Close()
	}
	return wire.ends[clientSide], channel(), nil
}

// begin starts the client's process.
func (c *simClient) begin() {
	state, err := client.OpenState(c.pins)
	if err != nil {
		c.w.fault("%s: state: %v", c.name, err)
		return
	}
	c.state = state
	var ctx context.Context
	ctx, c.stop = context.WithCancel(context.Background())
	c.done = map[string]chan error{"view": make(chan error, 1)}
	c.mu.Lock()
	c.before, c.view, c.ended, c.stopping = c.view, nil, nil, false
	c.mu.Unlock()
	view := client.FollowOptions{Options: c.options("view"), Wait: true}
	if c.w.rng.IntN(2) == 0 {
		view.Limits = frames.ReferenceLimits()
		view.Limits.PageRecords = uint16(1 + c.w.rng.IntN(8))
	}
	if c.w.rng.IntN(2) == 0 {
		view.CreditCount = uint32(1 + c.w.rng.IntN(8))
	}
	if c.w.rng.IntN(2) == 0 {
		c.replicate(ctx, view)
	} else {
		go func() { c.done["view"] <- c.follow(ctx, view) }()
	}
	c.w.settle()
	if !c.scope.Has(frames.ScopeWorkCommand) {
		return
	}
	opts := client.SessionOptions{Options: c.options("work")}
	opts.Journal = c.w.rng.IntN(3) == 0
	if c.session, err = client.OpenSession(c.pins, opts); err != nil {
		c.w.fault("%s: session: %v", c.name, err)
		return
	}
	c.done["work"] = make(chan error, 1)
	go func() { c.done["work"] <- c.work(ctx, c.session) }()
	c.w.settle()
}

// end stops the client's process and forgets what was only in its memory.
func (c *simClient) end() {
	if c.stop == nil {
		return
	}
	c.mu.Lock()
	c.stopping = true
	c.mu.Unlock()
	c.stop()
	c.hold(false)
	if c.job != nil {
		c.job.cancel()
	}
	c.w.settle()
	if done := c.done["work"]; done != nil {
		<-done
		c.collect()
	}
	if c.replica != nil {
		if err := c.replica.Close(); err != nil {
			c.w.fault("%s: close the replica: %v", c.name, err)
		}
	}
	<-c.done["view"]
	if v := c.lastView; c.replica != nil && v != nil {
		c.mu.Lock()
		c.view = viewOf(v)
		c.mu.Unlock()
	}
	c.w.settle()
	c.stop, c.session, c.replica = nil, nil, nil
}

// follow keeps the view.
func (c *simClient) follow(ctx context.Context, opts client.FollowOptions) error {
	for u, err := range client.Follow(ctx, c.pins, opts) {
		c.mu.Lock()
		for c.slow && ctx.Err() == nil {
			c.changed.Wait()
		}
		if u == nil {
			c.ended = err
		} else if err := c.told(u); err != nil {
			c.ended = err
		}
		c.version++
		c.mu.Unlock()
	}
	return nil
}

// hold makes the client's consumer stop taking, or go on.
func (c *simClient) hold(slow bool) {
	c.mu.Lock()
	c.slow = slow
	c.changed.Broadcast()
	c.mu.Unlock()
}

// told takes in an update; mu is held.
func (c *simClient) told(u client.Update) error {
	switch u := u.(type) {
	case *client.Synced:
		if v := c.view; v != nil && v.guard.Activation != u.Guard.Activation {
			c.turns = append(c.turns, turn{v.guard.Activation, u.Guard.Activation, v.cut, u.Lost != nil})
		} else if v == nil {
			c.resumed(u.Guard.Activation)
		}
		v := &view{records: copyOf{}, guard: u.Guard, cut: u.Base, exact: true}
		c.view = v
		return u.Each(func(r frames.SnapshotRecord) error {
			r.Payload = append([]byte(nil), r.Payload...)
			v.records[r.Ref()] = &r
			return nil
		})
	case *client.Healed:
		if v := c.view; v.guard.Activation != u.Guard.Activation {
			c.turns = append(c.turns, turn{v.guard.Activation, u.Guard.Activation, v.cut, false})
		}
		if u.Last < c.view.cut {
			return fmt.Errorf("healed after event %d, and the view is at %d", u.Last, c.view.cut)
		}
		// What lies between was not visible. A replay is delivered next, as events.
		c.view.guard, c.view.cut, c.view.exact = u.Guard, u.Last, true
	case *client.Gap:
		if c.view != nil {
			c.view.exact = false
		}
	case *client.Event:
		return c.event(u)
	}
	return nil
}

// resumed notes what became of the view that an earlier process of the client had; mu is
// held. Whichever part finds the loss, the memory that they share tells it.
func (c *simClient) resumed(now frames.ActivationSequence) {
	if v := c.before; v != nil && v.guard.Activation != now {
		lost := c.state.LostHistory()
		c.turns = append(c.turns, turn{v.guard.Activation, now, v.cut, lost != nil && lost.Found > v.guard.Activation})
	}
	c.before = nil
}

func (c *simClient) event(e *client.Event) error {
	v := c.view
	if !v.exact {
		return fmt.Errorf("event %d was told after a gap that nothing had healed", e.Sequence)
	}
	if e.Sequence <= frames.EventSequence(v.cut) {
		return fmt.Errorf("event %d was told after %d", e.Sequence, v.cut)
	}
	v.cut = frames.EventCut(e.Sequence)
	r, ok, err := e.Record()
	switch {
	case err != nil:
		return err
	case ok:
		v.records[e.Object] = &r
	case e.Kind == frames.EventObjectRemoved:
		delete(v.records, e.Object)
	}
	return nil
}

// work carries out jobs, one after the other.
func (c *simClient) work(ctx context.Context, s *client.Session) error {
	for {
		select {
		case <-ctx.Done():
			return s.Close()
		case j := <-c.jobs:
			cmd := client.Command{OperationID: j.r.cmd.OperationID, Kind: j.r.cmd.Kind, Payload: j.r.cmd.Payload, Preconditions: j.r.cmd.Preconditions}
			do := func() (frames.OperationResult, error) { return s.Do(j.ctx, cmd) }
			if j.r.looks {
				do = func() (frames.OperationResult, error) { return s.Lookup(j.ctx, cmd.OperationID) }
			}
			result, err := do()
			c.mu.Lock()
			j.result, j.err, j.on, j.over = result, err, c.last["work"], true
			c.mu.Unlock()
		}
	}
}

// give hands the commander something to do, if it has nothing.
func (c *simClient) give() {
	if c.job != nil || c.session == nil {
		return
	}
	r := c.next()
	if r == nil {
		return
	}
	j := &job{r: r, deed: c.w.begins(c.number, r, c.last["work"])}
	j.ctx, j.cancel = context.WithCancel(context.Background())
	c.job = j
	c.w.say("%s: asks for %v", c.name, r.cmd.OperationID)
	c.jobs <- j
	c.w.settle()
}

// next is what the client asks for next: something new, something whose outcome it does not
// know, something that it has been told already, or only what became of that.
func (c *simClient) next() *request {
	rng := c.w.rng
	if len(c.open) > 0 && rng.IntN(2) == 0 {
		i := rng.IntN(len(c.open))
		r := c.open[i]
		c.open = slices.Delete(c.open, i, i+1)
		return r
	}
	if len(c.asked) > 0 && rng.IntN(4) == 0 {
		r := c.asked[rng.IntN(len(c.asked))]
		if rng.IntN(2) == 0 {
			look := *r
			look.looks = true
			return &look
		}
		return r
	}
	r, err := c.w.newRequest()
	if err != nil {
		c.w.fault("request: %v", err)
		return nil
	}
	c.expect(r)
	c.asked = append(c.asked, r)
	return r
}

// expect gives a request the revision that the client sees, now and then.
func (c *simClient) expect(r *request) {
	if r.create || r.retention || c.w.rng.IntN(2) == 0 {
		return
	}
	ref := frames.ObjectRef{Kind: frames.KindObjective, ID: frames.ObjectID(r.objective)}
	if v := c.exactly(); v != nil && v.records[ref] != nil {
		r.expected = v.records[ref].Revision
		r.cmd.Preconditions = []frames.Precondition{{Object: ref, Revision: uint64(r.expected)}}
	}
}

// collect takes what became of the job.
func (c *simClient) collect() {
	j := c.job
	if j == nil {
		return
	}
	c.mu.Lock()
	over := j.over
	c.mu.Unlock()
	if !over {
		return
	}
	c.job = nil
	j.cancel()
	c.w.concluded(c, j)
}

// newSource is a stream of random bytes that goroutines may share.
func newSource(seed uint64) *source {
	var key [32]byte
	for i := range 8 {
		key[i] = byte(seed >> (8 * i))
	}
	return &source{r: rand.NewChaCha8(key)}
}

type source struct {
	mu sync.Mutex
	r  *rand.ChaCha8 // guarded by mu
}

func (s *source) Read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.r.Read(p)
}
