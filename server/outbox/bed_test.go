package outbox

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"coordinator/codec"
	"coordinator/frames"
	"coordinator/internal/clock"
	"coordinator/server/authority"
	"coordinator/server/commit"
	"coordinator/server/store"
	"coordinator/server/work"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const waitFor = 120 * time.Second

var (
	coordinator = frames.CoordinatorID{7}
	alice       = work.Viewer{Principal: frames.KeyID{1}, Scope: frames.AllScopes, Capabilities: work.Capabilities}
	ownerPin    = frames.Fingerprint{0xaa}
)

// quick is a clock whose timers are due at once, so that nobody waits between two dials. It
// remembers how long they would have been.
type quick struct {
	clock.Clock
	mu    *sync.Mutex
	rests *[]time.Duration // guarded by mu
}

func (q quick) NewTimer(d time.Duration) clock.Timer {
	q.mu.Lock()
	*q.rests = append(*q.rests, d)
	q.mu.Unlock()
	return q.Clock.NewTimer(0)
}

// rested is how long the outbox has rested so far, rest by rest.
func (b *bed) rested() []time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.rests)
}

// fence is a fence that a test closes.
type fence struct {
	mu      sync.Mutex
	dead    bool
	changed chan struct{}
	cert    frames.Certificate
}

func newFence(activation uint64) *fence {
	return &fence{changed: make(chan struct{}), cert: frames.Certificate{
		WitnessID: frames.WitnessID{1}, CoordinatorID: coordinator, Activation: frames.ActivationSequence(activation),
		Epoch: frames.AuthorityEpoch(activation), IncarnationID: frames.IncarnationID{byte(activation)}, IssuedAt: 1, ExpiresAt: 10,
	}}
}

func (f *fence) Check() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.dead {
		return authority.ErrFenced
	}
	return nil
}

func (f *fence) Enter() (func(), error) { return func() {}, f.Check() }

func (f *fence) Changed() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}

func (f *fence) Current() frames.Certificate {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.cert
}

func (f *fence) Guard() frames.AuthorityGuard {
	c := f.Current()
	return c.Guard()
}

// gated is the outbox's view of a fence: a test can make the clocks diverge for it alone.
type gated struct {
	*fence
	diverged atomic.Bool
}

func (g *gated) Check() error {
	if g.diverged.Load() {
		return authority.ErrDiverged
	}
	return g.fence.Check()
}

// agree lets the clocks agree again.
func (g *gated) agree() {
	g.diverged.Store(false)
	g.change(false)
}

// change renews the certificate, or ends it.
func (f *fence) change(dead bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dead = f.dead || dead
	f.cert.ExpiresAt++
	close(f.changed)
	f.changed = make(chan struct{})
}

// A bed is a coordinator without its endpoint: store, writer and outbox, which can die at any
// moment and be started again on what is durable.
type bed struct {
	t     testing.TB
	dir   string
	owner *scripted
	// owners are what is configured; nil: the scripted one.
	owners []Owner
	log    *slog.Logger // nil: nowhere

	activation uint64
	store      *store.Store
	fence      *fence
	gate       *gated
	writer     *commit.Writer
	outbox     *Outbox
	stop       func()

	mu        sync.Mutex
	onPublish func(store.Batch)               // guarded by mu; nil is ignored
	denied    bool                            // guarded by mu: nobody is authorised
	admitted  map[frames.BindingID]uint64     // guarded by mu: newest published sequence
	sendable  map[frames.EffectAttemptID]bool // guarded by mu: DISPATCHED is durable
	facts     []frames.TerminalSourceFact     // guarded by mu: published ones of this start
	ops       byte
	rests     []time.Duration // guarded by mu: between two dials
}

func newBed(t testing.TB) *bed {
	b := &bed{t: t, dir: t.TempDir(), owner: newScripted(t), admitted: map[frames.BindingID]uint64{}, sendable: map[frames.EffectAttemptID]bool{}}
	b.owner.bed = b
	genesis, err := work.GenesisRetention(frames.Retention{OperationResultSecs: frames.MinOperationRetained, EventBytes: 1 << 30, ArtifactBytes: 1 << 30})
	require.NoError(t, err)
	row := store.Row{Record: genesis.Record, Live: genesis.Live, Annex: genesis.Annex}
	require.NoError(t, store.Create(b.dir, store.Genesis{CoordinatorID: coordinator, Rows: []store.Row{row}, CreatedAt: time.Unix(1_800_000_000, 0)},
		store.Options{UnsafeNoSync: true, SegmentBytes: 1 << 20}))
	b.start()
	t.Cleanup(func() { b.stop() })
	b.do(frames.CommandCreateObjective, &frames.CreateObjective{ObjectiveID: frames.ObjectiveID{1}, Schema: 1})
	return b
}

// start opens the store and runs writer and outbox.
func (b *bed) start() {
	var err error
	b.store, err = store.Open(b.dir, store.Options{UnsafeNoSync: true, SegmentBytes: 1 << 20})
	require.NoError(b.t, err)
	b.activation++
	b.fence = newFence(b.activation)
	b.gate = &gated{fence: b.fence}
	clk := quick{clock.System(), &b.mu, &b.rests}
	owners := b.owners
	if owners == nil {
		owners = []Owner{{Name: "scripted", Fingerprint: ownerPin, Dial: b.owner.dial}}
	}
	lazy := &lazyOwners{}
	b.writer = commit.New(commit.Options{Store: b.store, Fence: b.fence, Clock: clock.System(), Rand: rand.Reader, Owners: lazy, Publish: func(batch store.Batch) {
		b.publish(batch)
		b.outbox.Publish(batch)
	}})
	b.outbox = New(Options{
		Owners: owners, Writer: b.writer, Fence: b.gate, Clock: clk, Rand: rand.Reader, Logger: b.log,
		Authorised: func(key frames.KeyID, scope frames.Scope) bool {
			b.mu.Lock()
			defer b.mu.Unlock()
			return !b.denied && key == alice.Principal && alice.Scope.Has(scope)
		},
	})
	lazy.o = b.outbox
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { b.writer.Run(ctx) }) //nolint:errcheck // a test may have fenced it
	require.NoError(b.t, b.outbox.Recover(ctx))
	running.Go(func() { b.outbox.Run(ctx) })
	b.stop = func() {
		cancel()
		running.Wait()
		b.store.Abandon() //nolint:errcheck // it dies
		b.stop = func() {}
	}
}

type lazyOwners struct{ o *Outbox }

func (l *lazyOwners) Connected(f frames.Fingerprint, i frames.IncarnationID) bool {
	return l.o.Connected(f, i)
}

func (l *lazyOwners) Serves(f frames.Fingerprint, i frames.IncarnationID, g frames.GroupID) bool {
	return l.o.Serves(f, i, g)
}

// die ends the coordinator where it stands: nothing is committed, sent or answered any more.
func (b *bed) die() { b.fence.change(true) }

// restart joins what died and starts on what is durable.
func (b *bed) restart() {
	b.stop()
	b.start()
}

// dead reports whether the coordinator has died.
func (b *bed) dead() bool { return b.fence.Check() != nil }

// publish remembers the facts that became durable.
func (b *bed) publish(batch store.Batch) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.onPublish != nil {
		b.onPublish(batch)
	}
	for _, c := range batch.Internal {
		if c.Row.Record.Kind != work.EffectKind || c.Removed {
			continue
		}
		e, err := work.DecodeEffect(c.Row.Annex)
		if err != nil {
			panic(err)
		}
		b.sendable[e.Attempt.ID] = e.Attempt.State == frames.EffectDispatched && e.Mode == work.EffectSent
	}
	for _, ev := range batch.Events {
		if ev.Kind == frames.EventSourceFactAdmitted {
			var f frames.TerminalSourceFact
			if err := codec.DecodeImage(&f, ev.Payload); err != nil {
				panic(err)
			}
			b.admitted[f.Source.BindingID] = max(b.admitted[f.Source.BindingID], uint64(f.Source.Sequence))
			b.facts = append(b.facts, f)
		}
	}
}

// maySend reports whether an attempt is durably DISPATCHED and not to be looked up alone.
func (b *bed) maySend(id frames.EffectAttemptID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.sendable[id]
}

func (b *bed) durable(id frames.BindingID) uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.admitted[id]
}

// propose sends a command and gives its reply; ok is false when the coordinator died.
func (b *bed) propose(kind frames.CommandKind, payload codec.Message) (r frames.OperationResult, err error) {
	b.t.Helper()
	b.ops++
	return b.proposeAs(frames.OperationID{b.ops}, kind, payload)
}

func (b *bed) proposeAs(op frames.OperationID, kind frames.CommandKind, payload codec.Message) (r frames.OperationResult, err error) {
	b.t.Helper()
	raw, err := codec.Encode(nil, payload)
	require.NoError(b.t, err)
	cmd, err := work.Parse(&frames.CoordCommand{RequestID: 1, OperationID: op, Kind: kind, Payload: raw}, alice, frames.MaxTypedPayload)
	require.NoError(b.t, err)
	type answer struct {
		r   frames.OperationResult
		err error
	}
	got := make(chan answer, 1)
	err = b.writer.Propose(&commit.Proposal{Command: cmd, Guard: b.fence.Guard(), Grant: anyGrant{}, Done: func(r frames.OperationResult, err error) {
		got <- answer{r, err}
	}})
	if err != nil {
		return r, err
	}
	a := <-got
	return a.r, a.err
}

type anyGrant struct{}

func (anyGrant) Err(clock.Reading) error { return nil }

// do is propose of what must be admitted; it gives the operation.
func (b *bed) do(kind frames.CommandKind, payload codec.Message) frames.OperationID {
	b.t.Helper()
	_, err := b.propose(kind, payload)
	require.NoError(b.t, err)
	return frames.OperationID{b.ops}
}

// startRun starts run id with binding id once the owner is connected.
func (b *bed) startRun(id byte) frames.OperationID {
	b.t.Helper()
	var op frames.OperationID
	b.until("the run is admitted", func() bool {
		_, err := b.propose(frames.CommandStartRun, b.startPayload(id))
		op = frames.OperationID{b.ops}
		return err == nil
	})
	return op
}

func (b *bed) startPayload(id byte) *frames.StartRun {
	return &frames.StartRun{
		ObjectiveID: frames.ObjectiveID{1}, RunID: frames.RunID{id}, WorkSessionID: frames.WorkSessionID{id},
		ExecutorSchema: 1, ExecutorDocument: []byte("{}"), PendingBindingID: frames.PendingBindingID{id},
		Owner: ownerPin, OwnerIncarnation: b.owner.incarnation(), Group: 1,
	}
}

func (b *bed) until(what string, ok func() bool) {
	b.t.Helper()
	require.Eventually(b.t, ok, waitFor, time.Millisecond, what)
}

// load reads a record; false when it is not there.
func (b *bed) load(kind frames.ObjectKind, id [16]byte, into codec.Message) (found bool) {
	b.t.Helper()
	ref := frames.ObjectRef{Kind: kind, ID: id}
	err := b.writer.Read(b.t.Context(), []frames.ObjectRef{ref}, func(v work.View) error {
		s, ok, err := v.Record(ref)
		if found = ok; err != nil || !ok {
			return err
		}
		return codec.Decode(into, s.Record.Payload)
	})
	if b.dead() {
		return false
	}
	require.NoError(b.t, err)
	return found
}

func (b *bed) run(id byte) frames.Run {
	var r frames.Run
	b.load(frames.KindRun, [16]byte{id}, &r)
	return r
}

func (b *bed) binding(id byte) frames.Binding {
	var r frames.Binding
	b.load(frames.KindBinding, [16]byte{id}, &r)
	return r
}

func (b *bed) result(op frames.OperationID) string {
	var r frames.Operation
	if !b.load(frames.KindOperation, op, &r) {
		return "absent"
	}
	switch r.Result.State {
	case frames.OperationRejected:
		return "REJECTED/" + r.Result.Code.String()
	case frames.OperationIndeterminate:
		return "INDETERMINATE/" + r.Result.Reason.String()
	}
	return r.Result.State.String()
}

func (b *bed) sealed(id byte) bool {
	var e frames.Evidence
	return b.load(frames.KindEvidence, [16]byte{id}, &e)
}

// ended waits for the run's end, starting the coordinator again whenever it has died.
func (b *bed) ended(id byte) frames.RunState {
	b.t.Helper()
	var state frames.RunState
	b.until(fmt.Sprintf("run %d ends", id), func() bool {
		if b.dead() {
			b.restart()
		}
		state = b.run(id).State
		return state.Terminal()
	})
	return state
}
