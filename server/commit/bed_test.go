package commit

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"coordinator/codec"
	"coordinator/frames"
	"coordinator/internal/clock"
	"coordinator/server/authority"
	"coordinator/server/store"
	"coordinator/server/store/simfs"
	"coordinator/server/work"
	"coordinator/witness"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const leaseSeconds = 15

var (
	coordinator = frames.CoordinatorID{7}
	alice       = work.Viewer{Principal: frames.KeyID{1}, Scope: frames.AllScopes, Capabilities: work.Capabilities}
	bob         = work.Viewer{Principal: frames.KeyID{2}, Scope: frames.ScopeWorkRead | frames.ScopeWorkCommand}
)

// stubWitness grants everything that is asked for in turn.
type stubWitness struct {
	clk clock.Clock

	mu         sync.Mutex
	epoch      frames.AuthorityEpoch
	activation frames.ActivationSequence
}

func (w *stubWitness) certify(inc frames.IncarnationID) frames.Certificate {
	now := w.clk.Now().Unix()
	return frames.Certificate{
		WitnessID: frames.WitnessID{1}, CoordinatorID: coordinator, Activation: w.activation, Epoch: w.epoch,
		IncarnationID: inc, Token: [32]byte{byte(w.activation)}, IssuedAt: now, ExpiresAt: now + leaseSeconds,
	}
}

func (w *stubWitness) Activate(_ context.Context, epoch frames.AuthorityEpoch, inc frames.IncarnationID, _ uint16) (frames.Certificate, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.epoch, w.activation = epoch, w.activation+1
	return w.certify(inc), nil
}

func (w *stubWitness) Renew(_ context.Context, cur frames.Certificate, _ uint16) (frames.Certificate, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.certify(cur.IncarnationID), nil
}

func (w *stubWitness) Relinquish(context.Context, frames.Certificate) error { return nil }

func (w *stubWitness) Status(context.Context) (witness.Status, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return witness.Status{LastEpoch: w.epoch, Activation: w.activation}, nil
}

// A bed is a coordinator's inside on a simulated disk and clock: store, fence and writer,
// which can be killed, crashed and started again.
type bed struct {
	t       testing.TB
	dir     string
	disk    *simfs.FS
	clk     *clock.Manual
	witness *stubWitness
	options Options              // of the next writer
	stored  func(*store.Options) // changes those of the next store; nil is ignored

	store  *store.Store
	fence  *authority.Fence
	keeper *authority.Keeper
	cert   frames.Certificate
	writer *Writer

	onPublish func() // on the writer's goroutine, after each publication; nil is ignored

	mu        sync.Mutex
	published []store.Batch // guarded by mu
	trace     []string      // guarded by mu: "published" and "replied", in order
}

func newBed(t testing.TB) *bed {
	clk := clock.NewManual(clock.Reading{Wall: time.Unix(1_800_000_000, 0), Boot: time.Hour})
	b := &bed{t: t, dir: t.TempDir(), disk: simfs.New(), clk: clk, witness: &stubWitness{clk: clk}}
	genesis, err := work.GenesisRetention(frames.Retention{
		OperationResultSecs: work.DefaultOperationResultSecs, EventBytes: work.DefaultEventBytes, ArtifactBytes: work.DefaultArtifactBytes,
	})
	require.NoError(t, err)
	row := store.Row{Record: genesis.Record, Live: genesis.Live, Annex: genesis.Annex}
	require.NoError(t, store.Create(b.dir, store.Genesis{CoordinatorID: coordinator, Rows: []store.Row{row}, CreatedAt: clk.Now().Wall}, b.storeOptions()))
	b.start()
	t.Cleanup(func() { b.store.Abandon() }) //nolint:errcheck // a test may have broken it
	return b
}

func (b *bed) storeOptions() store.Options {
	o := store.Options{FS: b.disk, Clock: b.clk, Manual: true, UnsafeNoSync: true, SegmentBytes: 64 << 10}
	if b.stored != nil {
		b.stored(&o)
	}
	return o
}

// start opens the store and activates, without installing.
func (b *bed) start() {
	var err error
	b.store, err = store.Open(b.dir, b.storeOptions())
	require.NoError(b.t, err)
	state := b.store.State()
	a, err := authority.Activate(context.Background(), authority.ActivateOptions{
		Authority: b.witness, Clock: b.clk, Rand: &noise{rand.New(rand.NewPCG(1, uint64(b.witness.epoch)))},
		CoordinatorID: coordinator, Epoch: state.Epoch, Activation: state.Activation, LeaseSeconds: leaseSeconds,
	})
	require.NoError(b.t, err)
	b.cert = a.Certificate
	b.fence = authority.NewFence(a, b.clk)
	b.keeper = authority.NewKeeper(authority.KeeperOptions{Fence: b.fence, Authority: b.witness, Clock: b.clk, Lock: anyLock{}, LeaseSeconds: leaseSeconds})
	o := b.options
	o.Store, o.Fence, o.Clock = b.store, b.fence, b.clk
	o.Rand = &noise{rand.New(rand.NewPCG(2, uint64(a.Certificate.Epoch)))}
	o.Publish = func(p store.Batch) {
		b.mu.Lock()
		b.published = append(b.published, p)
		b.trace = append(b.trace, "published")
		b.mu.Unlock()
		if b.onPublish != nil {
			b.onPublish()
		}
	}
	b.writer = New(o)
}

// restart brings the store back after the disk was killed or crashed.
func (b *bed) restart(damage func()) {
	b.store.Abandon() //nolint:errcheck // it dies
	damage()
	b.start()
}

type anyLock struct{}

func (anyLock) Check() error { return nil }

// renew runs the keeper for one renewal, as its goroutine would.
func (b *bed) renew() {
	before := b.fence.Changed()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.keeper.Run(ctx) }()
	<-before
	cancel()
	require.NoError(b.t, <-done)
}

// noise is deterministic randomness.
type noise struct{ r *rand.Rand }

func (n *noise) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = byte(n.r.Uint32())
	}
	return len(b), nil
}

// grant is a Grant that can be revoked.
type grant struct {
	mu  sync.Mutex
	err error
}

func (g *grant) Err(clock.Reading) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err
}

func (g *grant) revoke() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.err = errors.New("revoked")
}

// An answer is what Done was called with.
type answer struct {
	result frames.OperationResult
	err    error
}

func (b *bed) proposal(cmd *frames.CoordCommand, from work.Viewer) (*Proposal, chan answer) {
	b.t.Helper()
	c, err := work.Parse(cmd, from, frames.MaxTypedPayload)
	require.NoError(b.t, err)
	got := make(chan answer, 2) // a second call would show
	return &Proposal{
		Command: c, Guard: b.fence.Guard(), Grant: &grant{},
		Done: func(r frames.OperationResult, err error) {
			b.mu.Lock()
			b.trace = append(b.trace, "replied")
			b.mu.Unlock()
			got <- answer{r, err}
		},
	}, got
}

// propose queues a command and gives the channel of its answer.
func (b *bed) propose(cmd *frames.CoordCommand, from work.Viewer) chan answer {
	b.t.Helper()
	p, got := b.proposal(cmd, from)
	require.NoError(b.t, b.writer.Propose(p))
	return got
}

// step steps until nothing is left to do.
func (b *bed) step() error {
	for {
		worked, err := b.writer.Step()
		if err != nil || !worked {
			return err
		}
	}
}

// do runs one command to its answer.
func (b *bed) do(cmd *frames.CoordCommand, from work.Viewer) answer {
	b.t.Helper()
	got := b.propose(cmd, from)
	require.NoError(b.t, b.step())
	return <-got
}

// count counts committed records of a kind.
func (b *bed) count(kind frames.ObjectKind) uint64 { return b.store.State().Counts[kind] }

func none(c chan answer) bool { return len(c) == 0 }

func id16[T ~[16]byte](n int) T {
	return T([16]byte{byte(n >> 16), byte(n >> 8), byte(n), 1})
}

func create(t testing.TB, op, object int, document string) *frames.CoordCommand {
	payload, err := codec.Encode(nil, &frames.CreateObjective{ObjectiveID: id16[frames.ObjectiveID](object), Schema: 1, Document: []byte(document)})
	require.NoError(t, err)
	return &frames.CoordCommand{RequestID: 1, OperationID: id16[frames.OperationID](op), Kind: frames.CommandCreateObjective, Payload: payload}
}

func update(t testing.TB, op, object int, document string) *frames.CoordCommand {
	payload, err := codec.Encode(nil, &frames.UpdateObjective{ObjectiveID: id16[frames.ObjectiveID](object), Schema: 1, Document: []byte(document)})
	require.NoError(t, err)
	return &frames.CoordCommand{RequestID: 1, OperationID: id16[frames.OperationID](op), Kind: frames.CommandUpdateObjective, Payload: payload}
}

func code(t testing.TB, err error) frames.Code {
	t.Helper()
	var r *work.Refusal
	require.ErrorAs(t, err, &r)
	return r.Code
}
