package client

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"coordinator/codec"
	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/clock"
	"coordinator/internal/durable"
	"coordinator/server"
	"coordinator/server/store"
	"coordinator/server/work"
	"coordinator/witness"
)

const patience = 2 * time.Minute

// A served is a real coordinator on real files and sockets, with its witness in this process.
type served struct {
	t        testing.TB
	dir      string
	opts     server.Options
	pins     *Context // over its socket
	reader   *handshake.Key
	writer   *handshake.Key
	registry string

	stop func() error // nil while it does not run
	info server.Info
	quic atomic.Pointer[string] // another port with each start: the last one may be taken
	made atomic.Int64           // documents
}

var endpointRules = handshake.Rules{Scopes: handshake.EndpointScopes()}

func serve(t testing.TB) *served {
	base, err := os.MkdirTemp("", "cl") // a socket path has 107 bytes
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(base) })
	s := &served{t: t, dir: filepath.Join(base, "c"), reader: key(t), writer: key(t)}
	for _, dir := range []string{s.dir, filepath.Join(base, "w"), filepath.Join(base, "client")} {
		require.NoError(t, durable.MkdirPrivate(dir))
	}
	witnessKey, witnessID := key(t), id[frames.WitnessID](t)
	require.NoError(t, witness.Create(filepath.Join(base, "w"), witnessID))
	w, err := witness.Open(filepath.Join(base, "w"), witness.Options{ID: witnessID, Key: witnessKey, BootID: "boot", Clock: clock.System(), Rand: rand.Reader})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.Close()) })

	coordinator := id[frames.CoordinatorID](t)
	retention, err := work.GenesisRetention(frames.Retention{
		OperationResultSecs: work.DefaultOperationResultSecs, EventBytes: work.DefaultEventBytes, ArtifactBytes: work.DefaultArtifactBytes})
	require.NoError(t, err)
	so := store.Options{SegmentBytes: 1 << 20, UnsafeNoSync: true}
	require.NoError(t, store.Create(s.dir, store.Genesis{CoordinatorID: coordinator, CreatedAt: time.Now(),
		Rows: []store.Row{{Record: retention.Record, Live: retention.Live, Annex: retention.Annex}}}, so))
	authority, err := handshake.CreateKey(filepath.Join(s.dir, server.AuthorityKeyFile), rand.Reader)
	require.NoError(t, err)
	s.registry = filepath.Join(s.dir, server.RegistryFile)
	require.NoError(t, handshake.CreateRegistry(s.registry))
	s.enrol(s.reader, "reader", frames.AllScopes&^frames.ScopeAdmin)
	s.enrol(s.writer, "writer", frames.AllScopes)
	s.opts = server.Options{Dir: s.dir, CoordinatorID: coordinator, Store: so, QUIC: "127.0.0.1:0",
		Witness: func() (witness.Authority, error) {
			return witness.Local{Witness: w, Coordinator: coordinator, Holder: frames.KeyID{1}}, nil
		}}
	s.pins = &Context{Path: filepath.Join(base, "client", "context.toml"), Name: "test", CoordinatorID: coordinator,
		Authority: handshake.FingerprintOf(authority.Public()), WitnessID: witnessID, WitnessPublicKey: witnessKey.Public(),
		KeyFile: filepath.Join(base, "client", "none")}
	s.run()
	t.Cleanup(func() {
		if s.stop != nil {
			require.NoError(t, s.stop())
		}
	})
	return s
}

func (s *served) enrol(k *handshake.Key, label string, scope frames.Scope) {
	require.NoError(s.t, handshake.AddRecord(s.registry, handshake.Record{PublicKey: k.Public(), KeyID: handshake.KeyIDOf(k.Public()),
		Scope: uint64(scope), ExpiresAt: uint64(time.Now().Add(time.Hour).Unix()), Label: label}, endpointRules))
}

// run starts the coordinator and waits until it serves.
func (s *served) run() {
	ready, done := make(chan server.Info, 1), make(chan error, 1)
	opts := s.opts
	opts.Ready = func(i server.Info) { ready <- i }
	ctx, cancel := context.WithCancel(context.Background())
	go func() { done <- server.Run(ctx, opts) }()
	select {
	case s.info = <-ready:
	case err := <-done:
		cancel()
		s.t.Fatalf("the coordinator did not start: %v", err)
	}
	address := s.info.QUIC
	s.quic.Store(&address)
	if s.pins.Socket == "" { // it stays, and replicas may be reading the context
		s.pins.Socket = s.info.Socket
	}
	s.stop = func() error { cancel(); s.stop = nil; return <-done }
}

// restart is another activation over the same store.
func (s *served) restart() {
	require.NoError(s.t, s.stop())
	s.run()
}

// over is the context of one transport.
func (s *served) over(transport string) *Context {
	c := *s.pins
	if transport == "quic" {
		c.Socket, c.QUIC = "", "the coordinator's"
	}
	return &c
}

// options are those of the reader, with a memory of their own.
func (s *served) options() Options {
	state, err := OpenStateIn(new(MemoryStore), s.pins)
	require.NoError(s.t, err)
	return Options{Key: s.reader, State: state}
}

func (s *served) session(k *handshake.Key) *Session {
	o := s.options()
	o.Key, o.Offered = k, frames.CapObjectiveLifecycle|frames.CapArchive
	session, err := OpenSession(s.pins, SessionOptions{Options: o, Backoff: quickly})
	require.NoError(s.t, err)
	return session
}

// quickly is for tests that connect again and again.
var quickly = Backoff{First: time.Millisecond, Max: 50 * time.Millisecond}

func do(ctx context.Context, session *Session, kind frames.CommandKind, payload codec.Message) error {
	op, err := frames.NewID[frames.OperationID](rand.Reader)
	if err != nil {
		return err
	}
	cmd, err := NewCommand(op, kind, payload)
	if err != nil {
		return err
	}
	r, err := session.Do(ctx, cmd)
	if err == nil && r.State != frames.OperationSucceeded {
		err = fmt.Errorf("%v: %v %s", r.State, r.Code, r.Message)
	}
	return err
}

// live is one objective's life up to a step: made, changed, completed and archived.
func (s *served) live(ctx context.Context, session *Session, steps int) error {
	objective := id[frames.ObjectiveID](s.t)
	document := fmt.Appendf(nil, `{"title":"%d"}`, s.made.Add(1))
	completed := frames.ObjectiveCompleted
	for i, step := range []struct {
		kind    frames.CommandKind
		payload codec.Message
	}{
		{frames.CommandCreateObjective, &frames.CreateObjective{ObjectiveID: objective, Schema: 1, Document: document}},
		{frames.CommandUpdateObjective, &frames.UpdateObjective{ObjectiveID: objective, Schema: 1, Document: document}},
		{frames.CommandUpdateObjective, &frames.UpdateObjective{ObjectiveID: objective, Schema: 1, Document: document, State: &completed}},
		{frames.CommandArchiveObjective, &frames.ArchiveObjective{ObjectiveID: objective}},
	} {
		if i >= steps {
			break
		}
		if err := do(ctx, session, step.kind, step.payload); err != nil {
			return err
		}
	}
	return nil
}

// busy lives so many lives from several goroutines.
func (s *served) busy(session *Session, writers, each, steps int) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var g errgroup.Group
	for range writers {
		g.Go(func() error {
			for range each {
				if err := s.live(ctx, session, steps); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// A cutter dials, over QUIC whatever port the coordinator now has. It lets connections live
// for so many bytes, in both directions together, and can keep what comes from being read.
type cutter struct {
	s       *served
	mu      sync.Mutex
	budgets []int                 // guarded by mu; of the next connections; without one, no end
	conns   map[*cutConn]struct{} // guarded by mu
	open    chan struct{}         // guarded by mu; closed while reads may go on
	dialed  int                   // guarded by mu
}

func newCutter(s *served) *cutter {
	c := &cutter{s: s, conns: map[*cutConn]struct{}{}, open: make(chan struct{})}
	close(c.open)
	return c
}

// transport dials whichever the context gives.
func (c *cutter) transport(ctx context.Context, pins *Context) (net.Conn, handshake.Channel, error) {
	to := *pins
	if to.QUIC != "" {
		to.QUIC = *c.s.quic.Load()
	}
	nc, channel, err := contextTransport(clock.System())(ctx, &to)
	if err != nil {
		return nil, nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	cc := &cutConn{Conn: nc, cutter: c, left: -1, gone: make(chan struct{})}
	if len(c.budgets) > 0 {
		cc.left, c.budgets = c.budgets[0], c.budgets[1:]
	}
	c.dialed++
	c.conns[cc] = struct{}{}
	return cc, channel, nil
}

// cut ends every connection.
func (c *cutter) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for cc := range c.conns {
		cc.Conn.Close()
	}
}

func (c *cutter) budget(bytes ...int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.budgets = append(c.budgets, bytes...)
}

// hold keeps everything from being read until it is released.
func (c *cutter) hold() (release func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	open := make(chan struct{})
	c.open = open
	return sync.OnceFunc(func() { close(open) })
}

type cutConn struct {
	net.Conn
	cutter *cutter
	mu     sync.Mutex
	left   int // guarded by mu; -1: no end
	gone   chan struct{}
	once   sync.Once
}

var errCut = errors.New("cut by the test")

// spend takes bytes from the budget; the connection ends with the last one.
func (c *cutConn) spend(n int) (ok int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left < 0 {
		return n, nil
	}
	if ok = min(n, c.left); ok < n || ok == c.left {
		err = errCut
	}
	c.left -= ok
	return ok, err
}

func (c *cutConn) Read(b []byte) (int, error) {
	c.cutter.mu.Lock()
	open := c.cutter.open
	c.cutter.mu.Unlock()
	select {
	case <-open:
	case <-c.gone:
		return 0, net.ErrClosed
	}
	n, err := c.Conn.Read(b)
	ok, cut := c.spend(n)
	if cut != nil {
		c.Conn.Close()
		if ok == 0 {
			return 0, cut
		}
		return ok, nil
	}
	return n, err
}

func (c *cutConn) Write(b []byte) (int, error) {
	ok, cut := c.spend(len(b))
	n, err := c.Conn.Write(b[:ok])
	if cut != nil {
		c.Conn.Close()
		return n, errors.Join(err, cut)
	}
	return n, err
}

func (c *cutConn) Close() error {
	c.once.Do(func() { close(c.gone) })
	c.cutter.mu.Lock()
	delete(c.cutter.conns, c)
	c.cutter.mu.Unlock()
	return c.Conn.Close()
}

// settles waits until a replica shows what a snapshot shows of a coordinator that nobody
// changes any more: the same records, byte for byte, by the digest of the server.
func (s *served) settles(r *Replica) *View {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	o := s.options()
	o.Key, o.Offered = r.opts.Key, r.opts.Offered
	conn, err := Dial(ctx, s.pins, o)
	require.NoError(s.t, err)
	defer conn.Close()
	snap, err := conn.Snapshot(ctx)
	require.NoError(s.t, err)
	defer snap.Close()
	v, err := r.WaitFor(ctx, func(v *View) bool {
		digest, err := v.DigestAt(snap.Guard, snap.Base)
		return err == nil && v.Guard == snap.Guard && digest == snap.Digest
	})
	require.NoError(s.t, err, "%v", r.State())
	require.EqualValues(s.t, snap.Records, v.Len())
	require.LessOrEqual(s.t, v.Cut, snap.Base)
	return v
}

// inStore is what the stopped coordinator's store holds for a view.
func (s *served) inStore(k handshake.Signer, v *View) {
	require.Nil(s.t, s.stop)
	st, err := store.Open(s.dir, s.opts.Store)
	require.NoError(s.t, err)
	defer func() { require.NoError(s.t, st.Close()) }()
	cut := st.Cut()
	defer cut.Close()
	viewer := work.Viewer{Principal: handshake.KeyIDOf(k.Public()), Scope: v.Scope, Capabilities: v.Capabilities}
	rows := 0
	for after, done := (store.Key{}), false; !done; {
		var page []store.Row
		page, done, err = cut.Page(after, func(k frames.ObjectKind, p frames.KeyID) bool { return work.Visible(k, p, viewer) }, 512)
		require.NoError(s.t, err)
		for _, row := range page {
			r := v.Get(row.Record.Kind, row.Record.ID)
			require.NotNil(s.t, r, "%v", row.Record.Ref())
			require.Equal(s.t, row.Record, r.Snapshot())
			rows++
			after = store.KeyOf(row.Record.Ref())
		}
		if len(page) == 0 {
			require.True(s.t, done)
		}
	}
	require.Equal(s.t, rows, v.Len())
}
