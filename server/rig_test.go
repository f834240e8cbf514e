package server

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"coordinator/codec"
	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/clock"
	"coordinator/internal/durable"
	"coordinator/internal/sock"
	"coordinator/server/quota"
	"coordinator/server/store"
	"coordinator/server/work"
	"coordinator/witness"
)

func TestMain(m *testing.M) {
	if orders := os.Getenv(hostileEnv); orders != "" {
		if err := hostile(orders); err != nil {
			panic(err)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// rig is a coordinator on real files and sockets with a witness in this
// process. One rig may be started and stopped many times.
type rig struct {
	t        *testing.T
	dir      string // of the coordinator
	opts     Options
	witness  *witness.Witness
	witKey   *handshake.Key
	witID    frames.WitnessID
	keys     []*handshake.Key // enrolled with every scope
	registry string

	cancel context.CancelFunc
	done   chan error
	info   Info
	srv    *Server // of the running coordinator

	release func() // lets the writer go on; set by hold
}

func (r *rig) server() *Server { return r.srv }

const (
	quotaRequests = quota.Requests
	quotaPinned   = quota.PinnedBytes
	reservation   = quota.Reservation
)

func principalOf(p *peer) quota.Principal { return quota.Principal(p.ok.Grant.KeyID) }

// smallQuotas are limits that a test reaches: two connections and four requests.
func smallQuotas(t *testing.T) quota.Limits {
	t.Helper()
	l := quota.Defaults()
	l[quota.OfPrincipal][quota.Connections] = 2
	l[quota.OfConnection][quota.Requests] = 4
	require.NoError(t, l.Validate())
	return l
}

// newRig makes the directories, keys and an empty store.
func newRig(t *testing.T) *rig { return newRigOn(t, nil) }

// newRigOn is newRig with the log on a file system of the test's.
func newRigOn(t *testing.T, log store.FS) *rig {
	t.Helper()
	base, err := os.MkdirTemp("", "co")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(base) })
	r := &rig{t: t, dir: filepath.Join(base, "c")}
	require.NoError(t, durable.MkdirPrivate(r.dir))
	require.NoError(t, durable.MkdirPrivate(filepath.Join(base, "w")))

	r.witKey, r.witID = newKey(t), newID[frames.WitnessID](t)
	require.NoError(t, witness.Create(filepath.Join(base, "w"), r.witID))
	r.witness, err = witness.Open(filepath.Join(base, "w"), witness.Options{
		ID: r.witID, Key: r.witKey, BootID: "boot", Clock: clock.System(), Rand: rand.Reader,
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.witness.Close()) })

	id := newID[frames.CoordinatorID](t)
	change, err := work.GenesisRetention(frames.Retention{
		OperationResultSecs: work.DefaultOperationResultSecs, EventBytes: work.DefaultEventBytes, ArtifactBytes: work.DefaultArtifactBytes,
	})
	require.NoError(t, err)
	so := store.Options{SegmentBytes: 1 << 20, UnsafeNoSync: true, FS: log}
	require.NoError(t, store.Create(r.dir, store.Genesis{
		CoordinatorID: id, CreatedAt: time.Now(),
		Rows: []store.Row{{Record: change.Record, Live: change.Live, Annex: change.Annex}},
	}, so))
	_, err = handshake.CreateKey(filepath.Join(r.dir, AuthorityKeyFile), rand.Reader)
	require.NoError(t, err)
	r.registry = filepath.Join(r.dir, RegistryFile)
	require.NoError(t, handshake.CreateRegistry(r.registry))
	for i := range 2 {
		r.keys = append(r.keys, newKey(t))
		r.enrol(r.keys[i], uint64(frames.AllScopes), []string{"first", "second"}[i])
	}
	r.opts = Options{
		Dir: r.dir, CoordinatorID: id, Store: so,
		Witness: func() (witness.Authority, error) {
			return witness.Local{Witness: r.witness, Coordinator: id, Holder: frames.KeyID{1}}, nil
		},
	}
	if testing.Verbose() {
		r.opts.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	return r
}

func newKey(t *testing.T) *handshake.Key {
	t.Helper()
	var seed [32]byte
	_, err := rand.Read(seed[:])
	require.NoError(t, err)
	return handshake.NewKey(seed)
}

func newID[T ~[16]byte](t testing.TB) T {
	t.Helper()
	id, err := frames.NewID[T](rand.Reader)
	require.NoError(t, err)
	return id
}

var registryRules = handshake.Rules{Scopes: handshake.EndpointScopes()}

func (r *rig) enrol(k *handshake.Key, scope uint64, label string) {
	r.t.Helper()
	require.NoError(r.t, handshake.AddRecord(r.registry, handshake.Record{
		PublicKey: k.Public(), KeyID: handshake.KeyIDOf(k.Public()), Scope: scope,
		ExpiresAt: uint64(time.Now().Add(time.Hour).Unix()), Label: label,
	}, registryRules))
}

// start runs the coordinator and waits until it serves.
func (r *rig) start() {
	r.t.Helper()
	ready := make(chan Info, 1)
	o := r.opts
	o.Ready = func(i Info) { ready <- i }
	o.built = func(s *Server) { r.srv = s }
	var ctx context.Context
	ctx, r.cancel = context.WithCancel(context.Background())
	r.done = make(chan error, 1)
	go func() { r.done <- Run(ctx, o) }()
	select {
	case r.info = <-ready:
	case err := <-r.done:
		r.t.Fatalf("coordinator did not start: %v", err)
	}
	r.t.Cleanup(func() {
		if r.cancel != nil {
			r.stop()
		}
	})
}

// stop asks for a graceful stop and returns what Run returned.
func (r *rig) stop() error {
	r.cancel()
	r.cancel = nil
	return <-r.done
}

// peer is a client that keeps no state of the protocol but what a test needs.
type peer struct {
	t     *testing.T
	nc    net.Conn
	in    *bufio.Reader
	hello frames.CoordHello
	ok    *frames.CoordHelloOK
	guard frames.AuthorityGuard
	last  frames.RequestID

	mu     sync.Mutex
	closed bool
}

// hello is a well-formed COORD_HELLO without its offer.
func baseHello() frames.CoordHello {
	return frames.CoordHello{
		Version: frames.CurrentVersion(), Name: "test", Offered: frames.CapAdministration | frames.CapObjectiveLifecycle, Limits: frames.ReferenceLimits(),
	}
}

// raw connects without a handshake.
func (r *rig) raw() *peer {
	r.t.Helper()
	nc, err := sock.Dial(context.Background(), r.info.Socket)
	require.NoError(r.t, err)
	return newPeer(r.t, nc)
}

func newPeer(t *testing.T, nc net.Conn) *peer {
	p := &peer{t: t, nc: nc, in: bufio.NewReader(nc)}
	t.Cleanup(p.close)
	return p
}

func (p *peer) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.closed = true
		p.nc.Close()
	}
}

// connect is a whole handshake with one of the enrolled keys.
func (r *rig) connect(key *handshake.Key, change ...func(*frames.CoordHello)) *peer {
	r.t.Helper()
	p := r.raw()
	require.NoError(r.t, p.shake(r, key, uint64(frames.AllScopes), handshake.UDSPeer{Cred: sock.SelfCred()}, change...))
	return p
}

func (p *peer) shake(r *rig, key *handshake.Key, scope uint64, ch handshake.Channel, change ...func(*frames.CoordHello)) error {
	cl := &handshake.Client{
		Service: handshake.Service{Name: frames.Service, Major: frames.VersionMajor, Minor: frames.VersionMinor, Scopes: uint64(frames.AllScopes)},
		Key:     key, Pin: r.info.Fingerprint,
	}
	hello := baseHello()
	offer, err := cl.NewOffer(rand.Reader)
	require.NoError(p.t, err)
	hello.HasOffer, hello.Offer = true, offer
	for _, f := range change {
		f(&hello)
	}
	p.hello = hello
	p.send(&hello)
	f, err := p.next()
	if err != nil {
		return err
	}
	challenge, ok := f.(*frames.WorkloadChallenge)
	require.True(p.t, ok, "%T", f)
	resp, err := cl.Respond(&offer, challenge, ch, scope, uint64(time.Now().Add(30*time.Minute).Unix()))
	require.NoError(p.t, err)
	p.send(resp)
	if f, err = p.next(); err != nil {
		return err
	}
	p.ok, ok = f.(*frames.CoordHelloOK)
	require.True(p.t, ok, "%T", f)
	require.NoError(p.t, cl.CheckHelloOK(challenge, resp, &p.ok.Grant, p.ok.IncarnationID))
	p.guard = p.ok.Certificate.Guard()
	return nil
}

func (p *peer) send(f frames.Frame) {
	p.t.Helper()
	b, err := frames.Append(nil, f)
	require.NoError(p.t, err)
	p.write(b)
}

func (p *peer) write(b []byte) {
	p.t.Helper()
	_, err := p.nc.Write(b)
	require.NoError(p.t, err)
}

// next reads one frame; a COORD_ERROR becomes a *frames.Refusal. Pings and
// renewals are passed over.
func (p *peer) next() (frames.Frame, error) {
	for {
		f, err := p.any()
		if err != nil {
			return nil, err
		}
		switch m := f.(type) {
		case *frames.CoordError:
			return m, &frames.Refusal{Code: m.Code, Message: m.Message}
		case *frames.AuthorityRenewed, *frames.Ping:
			continue
		}
		return f, nil
	}
}

// any reads one frame of any type.
func (p *peer) any() (frames.Frame, error) {
	var h [codec.HeaderSize]byte
	n, t, err := codec.ReadHeader(p.in, &h)
	if err != nil {
		return nil, err
	}
	body := make([]byte, n-1)
	if _, err := io.ReadFull(p.in, body); err != nil {
		return nil, err
	}
	return frames.Decode(frames.Type(t), body)
}

// refused reads the next frame, which must be an error of this code.
func (p *peer) refused(code frames.Code) *frames.CoordError {
	p.t.Helper()
	f, err := p.next()
	var r *frames.Refusal
	if !errors.As(err, &r) {
		p.t.Fatalf("got %T and %v, want %v", f, err, code)
	}
	require.Equal(p.t, code, r.Code, r.Message)
	return f.(*frames.CoordError)
}

// ended reads until the server has closed.
func (p *peer) ended() {
	p.t.Helper()
	for {
		if _, err := p.any(); err != nil {
			return
		}
	}
}

func (p *peer) id() frames.RequestID {
	p.last++
	return p.last
}

// command sends one command and returns its result.
func (p *peer) command(kind frames.CommandKind, op frames.OperationID, payload codec.Message) (frames.OperationResult, error) {
	p.t.Helper()
	p.sendCommand(kind, op, payload)
	f, err := p.next()
	if err != nil {
		return frames.OperationResult{}, err
	}
	res, ok := f.(*frames.CoordCommandResult)
	require.True(p.t, ok, "%T", f)
	require.Equal(p.t, p.last, res.RequestID)
	return res.Operation, nil
}

func (p *peer) sendCommand(kind frames.CommandKind, op frames.OperationID, payload codec.Message) {
	p.t.Helper()
	body, err := codec.Encode(nil, payload)
	require.NoError(p.t, err)
	p.send(&frames.CoordCommand{RequestID: p.id(), Guard: p.guard, OperationID: op, Kind: kind, Payload: body})
}

// create makes one objective and returns its id.
func (p *peer) create(document string) frames.ObjectiveID {
	p.t.Helper()
	id := newID[frames.ObjectiveID](p.t)
	res, err := p.command(frames.CommandCreateObjective, newID[frames.OperationID](p.t),
		&frames.CreateObjective{ObjectiveID: id, Schema: 1, Document: []byte(document)})
	require.NoError(p.t, err)
	require.Equal(p.t, frames.OperationSucceeded, res.State)
	return id
}

// snapshot is a verified snapshot.
type snapshot struct {
	begin   *frames.SnapshotBegin
	records []frames.SnapshotRecord
	pages   int
}

func (p *peer) open() (*frames.SnapshotBegin, error) {
	p.t.Helper()
	p.send(&frames.OpenSnapshot{RequestID: p.id(), Guard: p.guard})
	f, err := p.next()
	if err != nil {
		return nil, err
	}
	begin, ok := f.(*frames.SnapshotBegin)
	require.True(p.t, ok, "%T", f)
	return begin, nil
}

// nextPage asks for one page.
func (p *peer) nextPage(id frames.SnapshotID, cursor []byte) (*frames.SnapshotPage, error) {
	p.t.Helper()
	p.send(&frames.SnapshotNext{RequestID: p.id(), SnapshotID: id, Cursor: cursor})
	f, err := p.next()
	if err != nil {
		return nil, err
	}
	page, ok := f.(*frames.SnapshotPage)
	require.True(p.t, ok, "%T", f)
	return page, nil
}

// snapshot takes a whole snapshot and checks what a client must check.
func (p *peer) snapshot() snapshot {
	p.t.Helper()
	begin, err := p.open()
	require.NoError(p.t, err)
	s := snapshot{begin: begin}
	for cursor := begin.FirstCursor; cursor != nil; s.pages++ {
		page, err := p.nextPage(begin.SnapshotID, cursor)
		require.NoError(p.t, err)
		require.EqualValues(p.t, s.pages, page.Index)
		require.LessOrEqual(p.t, len(page.Records), int(p.ok.Limits.PageRecords))
		s.records = append(s.records, page.Records...)
		cursor = page.NextCursor
	}
	f, err := p.next()
	require.NoError(p.t, err)
	end, ok := f.(*frames.SnapshotEnd)
	require.True(p.t, ok, "%T", f)
	d := frames.NewSnapshotDigest(p.guard, begin.Base, uint64(len(s.records)))
	for i := range s.records {
		require.NoError(p.t, d.Add(&s.records[i]))
		if i > 0 {
			require.Negative(p.t, s.records[i-1].Ref().Compare(s.records[i].Ref()))
		}
	}
	require.Equal(p.t, d.Sum(), end.Digest)
	require.EqualValues(p.t, len(s.records), end.RecordCount)
	require.EqualValues(p.t, s.pages, end.PageCount)
	return s
}

func (s snapshot) find(ref frames.ObjectRef) *frames.SnapshotRecord {
	for i := range s.records {
		if s.records[i].Ref() == ref {
			return &s.records[i]
		}
	}
	return nil
}

func objective(id frames.ObjectiveID) frames.ObjectRef {
	return frames.ObjectRef{Kind: frames.KindObjective, ID: frames.ObjectID(id)}
}
