package owner

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"coordinator/codec"
	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/clock"
	"coordinator/internal/sock"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	RunHeld()
	if os.Getenv("OWNER_TEST_BOOT") != "" {
		boot, err := BootID()
		fmt.Println(boot, err)
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// waitLimit bounds what a test on real processes waits for.
const waitLimit = 120 * time.Second

const farFuture = 4_000_000_000 // Unix seconds

var (
	testWitness = frames.WitnessID{15: 7}
	coordA      = frames.CoordinatorID{0: 0xaa}
	coordB      = frames.CoordinatorID{0: 0xbb}
	witnessKey  = handshake.NewKey(sha256.Sum256([]byte("witness key")))
	ownerKey    = handshake.NewKey(sha256.Sum256([]byte("owner key")))
	linkKey     = handshake.NewKey(sha256.Sum256([]byte("link key of coordinator A")))
	linkKeyB    = handshake.NewKey(sha256.Sum256([]byte("link key of coordinator B")))
	readerKey   = handshake.NewKey(sha256.Sum256([]byte("key of a reader")))
	ownerPrint  = handshake.FingerprintOf(ownerKey.Public())
)

const bootOne = "boot-one"

// privateDir makes a directory that the checks for private material accept.
func privateDir(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "owner")
	require.NoError(t, os.Mkdir(dir, 0o700))
	return dir
}

func newID[T ~[16]byte](t testing.TB) T {
	t.Helper()
	id, err := frames.NewID[T](rand.Reader)
	require.NoError(t, err)
	return id
}

// certificate is the witness's for an activation of a coordinator, good for 60 s from now.
func certificate(t testing.TB, now clock.Reading, c frames.CoordinatorID, epoch uint64) frames.Certificate {
	t.Helper()
	return signed(t, frames.Certificate{
		WitnessID: testWitness, CoordinatorID: c, Epoch: frames.AuthorityEpoch(epoch), Activation: frames.ActivationSequence(epoch),
		IncarnationID: frames.IncarnationID{0: 1, 15: byte(epoch)}, Token: sha256.Sum256(binary.BigEndian.AppendUint64(c[:], epoch)),
		IssuedAt: now.Unix(), ExpiresAt: now.Unix() + 60,
	}, witnessKey)
}

func signed(t testing.TB, cert frames.Certificate, key *handshake.Key) frames.Certificate {
	t.Helper()
	cert.WitnessKeyID = handshake.FingerprintOf(key.Public())
	preimage, err := cert.Preimage()
	require.NoError(t, err)
	cert.Signature, err = key.Sign(preimage)
	require.NoError(t, err)
	return cert
}

func records() []handshake.Record {
	return []handshake.Record{
		{PublicKey: linkKey.Public(), Scope: ScopeAll, ExpiresAt: farFuture, Coordinator: coordA, Label: "a"},
		{PublicKey: linkKeyB.Public(), Scope: ScopeAll, ExpiresAt: farFuture, Coordinator: coordB, Label: "b"},
		{PublicKey: readerKey.Public(), Scope: ScopeOutput, ExpiresAt: farFuture, Coordinator: coordA, Label: "reader"},
	}
}

// station is an owner with a server; connections are pipes.
type station struct {
	t   testing.TB
	dir string
	clk clock.Clock
	o   *Owner
	srv *Server

	cancel context.CancelFunc
	ctx    context.Context
	wg     sync.WaitGroup
}

// newStation makes a fresh owner.
func newStation(t testing.TB, change func(*Options)) *station {
	t.Helper()
	dir := privateDir(t)
	require.NoError(t, Create(dir, ownerPrint))
	return openStation(t, dir, change)
}

// openStation starts an owner in dir, with a new incarnation.
func openStation(t testing.TB, dir string, change func(*Options)) *station {
	t.Helper()
	o := Options{
		Fingerprint: ownerPrint, Incarnation: newID[frames.IncarnationID](t), Groups: []frames.GroupID{1, 7},
		WitnessID: testWitness, WitnessPublicKey: witnessKey.Public(), Home: "/", Environ: os.Environ(),
		BootID: bootOne, Clock: clock.System(),
	}
	if change != nil {
		change(&o)
	}
	own, err := Open(dir, o)
	require.NoError(t, err)
	srv, err := NewServer(ServerOptions{Owner: own, Clock: o.Clock, Handshake: &handshake.Server{
		Service: HandshakeService(), Authority: ownerKey, Incarnation: o.Incarnation,
		Registry: handshake.StaticRegistry(records()), Rand: rand.Reader, Clock: o.Clock,
	}})
	require.NoError(t, err)
	s := &station{t: t, dir: dir, clk: o.Clock, o: own, srv: srv}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	t.Cleanup(func() { require.NoError(t, s.stop()) })
	return s
}

// stop ends the connections, then the owner.
func (s *station) stop() error {
	s.cancel()
	s.wg.Wait()
	return s.o.Close()
}

// connect gives the client's end of a fresh connection.
func (s *station) connect() net.Conn {
	client, server := net.Pipe()
	s.wg.Go(func() {
		s.srv.ServeConn(s.ctx, server, handshake.UDSPeer{Cred: sock.SelfCred()}) //nolint:errcheck // looked at through the owner
	})
	return client
}

// inbox gathers what an owner sends unasked.
type inbox struct {
	mu       sync.Mutex
	bindings []frames.BindingID
	lists    int
	facts    []frames.TerminalSourceFact
	ends     map[frames.BindingID]uint64
	gate     chan struct{} // not nil: each fact waits until it is closed
}

func (b *inbox) snapshot() (facts []frames.TerminalSourceFact, ends map[frames.BindingID]uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	ends = map[frames.BindingID]uint64{}
	for k, v := range b.ends {
		ends[k] = v
	}
	return append([]frames.TerminalSourceFact(nil), b.facts...), ends
}

func (b *inbox) of(id frames.BindingID) (list []frames.TerminalSourceFact) {
	facts, _ := b.snapshot()
	for _, f := range facts {
		if f.Source.BindingID == id {
			list = append(list, f)
		}
	}
	return list
}

// coordinator is a client with its inbox and certificate.
type coordinator struct {
	*Client
	in   *inbox
	t    testing.TB
	s    *station
	cert frames.Certificate
}

// dial makes a client of the station.
func (s *station) dial(key *handshake.Key, c frames.CoordinatorID, scope uint64) *coordinator {
	s.t.Helper()
	in := &inbox{ends: map[frames.BindingID]uint64{}}
	cl, err := Dial(context.Background(), ClientOptions{
		Dial: func(context.Context) (net.Conn, handshake.Channel, error) {
			return s.connect(), handshake.UDSPeer{Cred: sock.SelfCred()}, nil
		},
		Pin: ownerPrint, CoordinatorID: c, Key: key, Scope: scope, Clock: s.clk, Rand: rand.Reader,
		OnBindings: func(ids []frames.BindingID) {
			in.mu.Lock()
			defer in.mu.Unlock()
			in.bindings, in.lists = append(in.bindings, ids...), in.lists+1
		},
		OnFact: func(f *frames.TerminalSourceFact) {
			in.mu.Lock()
			gate := in.gate
			in.mu.Unlock()
			if gate != nil {
				<-gate
			}
			in.mu.Lock()
			defer in.mu.Unlock()
			in.facts = append(in.facts, *f)
		},
		OnFactsEnd: func(id frames.BindingID, last uint64) {
			in.mu.Lock()
			defer in.mu.Unlock()
			in.ends[id] = last
		},
	})
	require.NoError(s.t, err)
	s.t.Cleanup(func() { cl.Close() })
	return &coordinator{Client: cl, in: in, t: s.t, s: s}
}

// coordinator dials as coordinator A with the certificate of an epoch.
func (s *station) coordinator(epoch uint64) *coordinator {
	s.t.Helper()
	c := s.dial(linkKey, coordA, ScopeAll)
	c.show(certificate(s.t, s.clk.Now(), coordA, epoch))
	return c
}

// show sends a certificate and waits for BINDINGS.
func (c *coordinator) show(cert frames.Certificate) {
	c.t.Helper()
	c.cert = cert
	require.NoError(c.t, c.Authority(context.Background(), cert))
	c.eventually("BINDINGS", func() bool {
		c.in.mu.Lock()
		defer c.in.mu.Unlock()
		return c.in.lists > 0
	})
}

func (c *coordinator) eventually(what string, cond func() bool) {
	c.t.Helper()
	require.Eventually(c.t, cond, waitLimit, 2*time.Millisecond, what)
}

func (c *coordinator) guard() frames.AuthorityGuard { return c.cert.Guard() }

// newSpawn is a SPAWN of a document, as coordinator A would make it.
func (c *coordinator) newSpawn(doc *Document) *frames.EffectAttempt {
	c.t.Helper()
	raw, err := doc.Encode()
	require.NoError(c.t, err)
	return c.rawSpawn(raw, nil)
}

// rawSpawn is a SPAWN of any document; change alters it before it is digested.
func (c *coordinator) rawSpawn(doc []byte, change func(*frames.EffectTarget, *frames.SpawnPayload)) *frames.EffectAttempt {
	c.t.Helper()
	target := frames.EffectTarget{
		Tag: frames.TargetPendingSpawn, PendingBindingID: newID[frames.PendingBindingID](c.t),
		Owner: ownerPrint, OwnerIncarnation: c.Incarnation(), Group: 1,
	}
	payload := frames.SpawnPayload{WorkSessionID: newID[frames.WorkSessionID](c.t), ExecutorSchema: ExecutorSchema, Document: doc}
	if change != nil {
		change(&target, &payload)
	}
	raw, err := codec.EncodeImage(nil, &payload)
	require.NoError(c.t, err)
	return c.attempt(frames.EffectSpawn, target, raw)
}

func (c *coordinator) attempt(kind frames.EffectKind, target frames.EffectTarget, payload []byte) *frames.EffectAttempt {
	c.t.Helper()
	digest, err := frames.EffectDigest(kind, &target, payload)
	require.NoError(c.t, err)
	return &frames.EffectAttempt{ID: newID[frames.EffectAttemptID](c.t), OperationID: newID[frames.OperationID](c.t),
		Kind: kind, Target: target, Digest: digest, Payload: payload, State: frames.EffectDispatched}
}

// again is the same effect under another attempt.
func again(t testing.TB, a *frames.EffectAttempt) *frames.EffectAttempt {
	b := *a
	b.ID = newID[frames.EffectAttemptID](t)
	return &b
}

func (c *coordinator) dispatch(a *frames.EffectAttempt) Result {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	r, err := c.Dispatch(ctx, c.guard(), a)
	require.NoError(c.t, err)
	require.Equal(c.t, a.ID, r.Attempt)
	return r
}

func (c *coordinator) lookUp(a *frames.EffectAttempt) Result {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	r, err := c.GetEffect(ctx, c.guard(), a.ID, a.Digest)
	require.NoError(c.t, err)
	return r
}

// running is a started process.
type running struct {
	c       *coordinator
	attempt *frames.EffectAttempt
	id      frames.BindingID
	ref     frames.TerminalBindingRef
}

// run starts a process and opens its facts.
func (c *coordinator) run(doc *Document) *running {
	c.t.Helper()
	a := c.newSpawn(doc)
	r := c.dispatch(a)
	require.Equal(c.t, frames.EffectSucceeded, r.State, r.Message)
	return c.started(a, r)
}

func (c *coordinator) started(a *frames.EffectAttempt, r Result) *running {
	c.t.Helper()
	require.True(c.t, r.HasResource)
	var p frames.SpawnPayload
	require.NoError(c.t, codec.DecodeImage(&p, a.Payload))
	id := frames.BindingID(a.Target.PendingBindingID)
	require.NoError(c.t, c.OpenFacts(context.Background(), c.guard(), id, 0, 1<<20))
	return &running{c: c, attempt: a, id: id, ref: frames.TerminalBindingRef{
		BindingID: id, WorkSessionID: p.WorkSessionID, Owner: ownerPrint, OwnerIncarnation: a.Target.OwnerIncarnation, Resource: r.Resource,
	}}
}

// shell runs a line of sh.
func (c *coordinator) shell(line string) *running {
	c.t.Helper()
	return c.run(&Document{Argv: []string{"/bin/sh", "-c", line}})
}

func (r *running) effect(kind frames.EffectKind, payload []byte) *frames.EffectAttempt {
	return r.c.attempt(kind, frames.EffectTarget{Tag: frames.TargetActiveBinding, Binding: r.ref}, payload)
}

// closed waits for CLOSED and returns it with all facts before it, which must be gapless.
func (r *running) closed() (frames.Closed, []frames.TerminalSourceFact) {
	r.c.t.Helper()
	var facts []frames.TerminalSourceFact
	r.c.eventually("CLOSED", func() bool {
		facts = r.c.in.of(r.id)
		return len(facts) > 0 && facts[len(facts)-1].Kind == frames.FactClosed
	})
	for i, f := range facts {
		require.EqualValues(r.c.t, i+1, f.Source.Sequence)
	}
	require.Equal(r.c.t, frames.FactOpened, facts[0].Kind)
	v, err := facts[len(facts)-1].DecodePayload()
	require.NoError(r.c.t, err)
	return *v.(*frames.Closed), facts[1 : len(facts)-1]
}

func (r *running) requireExit(status int32) {
	r.c.t.Helper()
	closed, _ := r.closed()
	require.Equal(r.c.t, frames.Closed{Known: true, Status: status}, closed)
}

// output reads all stored output.
func (r *running) output() []byte {
	r.c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	var out []byte
	require.NoError(r.c.t, r.c.ReadOutput(ctx, r.id, 0, 0, true, func(at uint64, data []byte) error {
		require.EqualValues(r.c.t, len(out), at)
		out = append(out, data...)
		return nil
	}))
	return out
}

// ranges checks that facts cover output without a gap and returns how much.
func ranges(t testing.TB, facts []frames.TerminalSourceFact, out []byte) (total uint64) {
	t.Helper()
	for i := range facts {
		if facts[i].Kind != frames.FactOutputRange {
			continue
		}
		v, err := facts[i].DecodePayload()
		require.NoError(t, err)
		r := v.(*frames.OutputRange)
		require.Equal(t, total+1, r.First)
		require.Equal(t, r.Last-r.First+1, r.ByteCount)
		require.LessOrEqual(t, r.ByteCount, uint64(rangeBytes))
		if r.Last <= uint64(len(out)) {
			require.Equal(t, sha256.Sum256(out[r.First-1:r.Last]), r.Content)
		}
		total = r.Last
	}
	return total
}

func attentions(t testing.TB, facts []frames.TerminalSourceFact) (list []frames.AttentionKind) {
	t.Helper()
	for i := range facts {
		if facts[i].Kind == frames.FactAttention {
			v, err := facts[i].DecodePayload()
			require.NoError(t, err)
			list = append(list, v.(*frames.Attention).Kind)
		}
	}
	return list
}

// requireCode fails unless err is the owner's refusal with this code.
func requireCode(t testing.TB, code frames.Code, err error) {
	t.Helper()
	var refused *RefusedError
	require.Truef(t, errors.As(err, &refused), "%v", err)
	require.Equal(t, code, refused.Code, "%v", err)
}
