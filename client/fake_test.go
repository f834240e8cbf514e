package client

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
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
	"coordinator/internal/sock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start is the wall clock at which every fake world begins.
var start = time.Unix(1_800_000_000, 0)

// A world is a scripted coordinator, its witness, and a client's context for it.
type world struct {
	t         testing.TB
	clock     *clock.Manual
	authority *handshake.Key
	witness   *handshake.Key
	client    *handshake.Key
	pins      *Context
	cred      sock.Cred // of the connecting process, as the server's kernel sees it

	// What the server now claims.
	epoch       frames.AuthorityEpoch
	activation  frames.ActivationSequence
	incarnation frames.IncarnationID
	token       [32]byte
	lease       uint64 // seconds

	// Faults of the handshake; nil functions do nothing.
	challenge func(*frames.WorkloadChallenge)
	helloOK   func(*frames.CoordHelloOK)
	cert      func(*frames.Certificate) // before it is signed
	instead   func(stage string, p *peer) (handled bool)

	enrolled *[32]byte // the public key that the server knows; nil: client's

	wg sync.WaitGroup
}

func (w *world) enrolledKey() [32]byte {
	if w.enrolled != nil {
		return *w.enrolled
	}
	return w.client.Public()
}

func key(t testing.TB) *handshake.Key {
	var seed [32]byte
	_, err := io.ReadFull(rand.Reader, seed[:])
	require.NoError(t, err)
	return handshake.NewKey(seed)
}

func id[T ~[16]byte](t testing.TB) T {
	v, err := frames.NewID[T](rand.Reader)
	require.NoError(t, err)
	return v
}

func newWorld(t testing.TB) *world {
	dir := filepath.Join(t.TempDir(), "client")
	require.NoError(t, os.Mkdir(dir, 0o700))
	w := &world{
		t: t, clock: clock.NewManual(clock.Reading{Wall: start, Boot: time.Hour}),
		authority: key(t), witness: key(t), client: key(t), cred: sock.SelfCred(),
		epoch: 3, activation: 3, incarnation: id[frames.IncarnationID](t), lease: 15,
	}
	w.token[0] = 1
	w.pins = &Context{
		Path: filepath.Join(dir, "context.toml"), Name: "test", Socket: filepath.Join(dir, "none.sock"),
		CoordinatorID: id[frames.CoordinatorID](t), Authority: handshake.FingerprintOf(w.authority.Public()),
		WitnessID: id[frames.WitnessID](t), WitnessPublicKey: w.witness.Public(),
		KeyFile: filepath.Join(dir, "client.ed25519"),
	}
	t.Cleanup(w.wg.Wait)
	return w
}

// restart makes the server a higher authority.
func (w *world) restart() {
	w.epoch++
	w.activation++
	w.incarnation = id[frames.IncarnationID](w.t)
	w.token[0]++
}

func (w *world) certificate() frames.Certificate {
	now := w.clock.Now().Unix()
	c := frames.Certificate{
		WitnessID: w.pins.WitnessID, CoordinatorID: w.pins.CoordinatorID, Activation: w.activation, Epoch: w.epoch,
		IncarnationID: w.incarnation, Token: w.token, IssuedAt: now, ExpiresAt: now + w.lease,
		WitnessKeyID: handshake.KeyIDOf(w.witness.Public()),
	}
	if w.cert != nil {
		w.cert(&c)
	}
	w.sign(&c)
	return c
}

func (w *world) sign(c *frames.Certificate) {
	pre, err := c.Preimage()
	require.NoError(w.t, err)
	c.Signature, err = w.witness.Sign(pre)
	require.NoError(w.t, err)
}

// errScript ends a server script whose client has gone.
var errScript = errors.New("the client closed")

// A peer is the server's end of one connection.
type peer struct {
	w      *world
	nc     net.Conn
	limits *frames.Limits
	guard  frames.AuthorityGuard
}

func (p *peer) send(f frames.Frame) {
	buf, err := frames.Append(nil, f)
	if err != nil {
		panic(err) // a fault in the script; the test's goroutine cannot be failed from here
	}
	if _, err := p.nc.Write(buf); err != nil {
		panic(errScript)
	}
}

func (p *peer) recv() frames.Frame {
	var head [codec.HeaderSize]byte
	n, typ, err := codec.ReadHeader(p.nc, &head)
	if err != nil {
		panic(errScript)
	}
	body := make([]byte, n-1)
	if _, err := io.ReadFull(p.nc, body); err != nil {
		panic(errScript)
	}
	f, err := frames.Decode(frames.Type(typ), body)
	if err != nil {
		panic(err)
	}
	return f
}

func take[F frames.Frame](p *peer) F {
	f := p.recv()
	got, ok := f.(F)
	if !ok {
		panic("script: unexpected " + f.Type().String())
	}
	return got
}

// serve shakes hands and then runs script until it returns or the client closes.
func (w *world) serve(nc net.Conn, script func(*peer)) {
	defer w.wg.Done()
	defer nc.Close()
	defer func() {
		if r := recover(); r != nil && r != errScript {
			panic(r)
		}
	}()
	p := &peer{w: w, nc: nc}
	if p.shake() && script != nil {
		script(p)
	}
}

func (p *peer) instead(stage string) bool { return p.w.instead != nil && p.w.instead(stage, p) }

func (p *peer) shake() bool {
	w := p.w
	hello := take[*frames.CoordHello](p)
	if p.instead("hello") {
		return false
	}
	hs := &handshake.Server{
		Service:   handshake.Service{Name: frames.Service, Minor: 1, Scopes: uint64(frames.AllScopes)},
		Authority: w.authority, Incarnation: w.incarnation, Rand: rand.Reader, Clock: w.clock,
		Registry: handshake.StaticRegistry([]handshake.Record{{
			PublicKey: w.enrolledKey(), KeyID: handshake.KeyIDOf(w.enrolledKey()), Scope: uint64(frames.AllScopes),
			ExpiresAt: uint64(start.Add(24 * time.Hour).Unix()), Label: "test",
		}}),
	}
	x, ch, err := hs.Challenge(&hello.Offer, handshake.UDSPeer{Cred: w.cred})
	if err != nil {
		panic(err)
	}
	if w.challenge != nil {
		w.challenge(ch)
	}
	p.send(ch)
	resp := take[*frames.WorkloadResponse](p)
	if p.instead("response") {
		return false
	}
	grant, err := x.Finish(resp)
	if err != nil {
		p.send(&frames.CoordError{Code: frames.CodeAuthenticationFailed, Message: "authentication failed"})
		return false
	}
	defer grant.Release()
	cert := w.certificate()
	p.guard = cert.Guard()
	limits, err := hello.Limits.Select(frames.ReferenceLimits())
	if err != nil {
		panic(err)
	}
	ok := &frames.CoordHelloOK{
		Version: frames.CurrentVersion(), Capabilities: hello.Offered & 0x1f, CoordinatorID: w.pins.CoordinatorID,
		Epoch: w.epoch, IncarnationID: w.incarnation, Limits: limits, Grant: grant.Wire(),
		RetentionSecs: frames.MinOperationRetained, Certificate: cert,
	}
	if w.helloOK != nil {
		w.helloOK(ok)
	}
	p.limits = &ok.Limits
	p.send(ok)
	return true
}

// transport connects to a server that runs script.
func (w *world) transport(script func(*peer)) Transport {
	return func(context.Context, *Context) (net.Conn, handshake.Channel, error) {
		a, b := net.Pipe()
		w.wg.Add(1)
		go w.serve(b, script)
		return a, handshake.UDSPeer{Cred: sock.SelfCred()}, nil
	}
}

func (w *world) options(script func(*peer)) Options {
	return Options{Key: w.client, Clock: w.clock, Offered: 0x1f, Transport: w.transport(script)}
}

// dial connects, expecting success; the connection is closed with the test.
func (w *world) dial(script func(*peer)) *Conn {
	c, err := Dial(w.t.Context(), w.pins, w.options(script))
	require.NoError(w.t, err)
	w.t.Cleanup(func() { require.NoError(w.t, c.Close()) })
	return c
}

// verified dials and makes the authority current with an empty snapshot before script.
func (w *world) verified(script func(*peer)) *Conn {
	c := w.dial(func(p *peer) {
		p.snapshot(&shown{})
		if script != nil {
			script(p)
		}
	})
	s, err := c.Snapshot(w.t.Context())
	require.NoError(w.t, err)
	require.NoError(w.t, s.Close())
	return c
}

// shown is a snapshot that a script serves, with its faults.
type shown struct {
	base    frames.EventCut
	bases   []frames.ActivationBase
	records []frames.SnapshotRecord
	perPage int // 0: all on one page
	begin   func(*frames.SnapshotBegin)
	page    func(*frames.SnapshotPage)
	end     func(*frames.SnapshotEnd)
	cutAt   int // close instead of sending the n-th frame (from 1); 0: never
}

func (p *peer) snapshot(s *shown) {
	sent := 0
	send := func(f frames.Frame) {
		if sent++; sent == s.cutAt {
			panic(errScript)
		}
		p.send(f)
	}
	open := take[*frames.OpenSnapshot](p)
	if open.Guard != p.guard {
		panic("script: the client's guard is another one")
	}
	var pages [][]frames.SnapshotRecord
	for rest := s.records; len(rest) > 0; {
		n := len(rest)
		if s.perPage > 0 {
			n = min(n, s.perPage)
		}
		pages = append(pages, rest[:n])
		rest = rest[n:]
	}
	begin := &frames.SnapshotBegin{RequestID: open.RequestID, SnapshotID: frames.SnapshotID{7}, Guard: p.guard, Base: s.base,
		LeaseExpiresAt: p.w.clock.Now().Unix() + 60, Bases: s.bases}
	if len(pages) > 0 {
		begin.FirstCursor = []byte("cursor 0")
	}
	if s.begin != nil {
		s.begin(begin)
	}
	send(begin)
	rid := open.RequestID
	for i, records := range pages {
		next := take[*frames.SnapshotNext](p)
		rid = next.RequestID
		page := &frames.SnapshotPage{RequestID: rid, SnapshotID: next.SnapshotID, Cursor: next.Cursor, Index: uint32(i), Records: records}
		if i+1 < len(pages) {
			page.NextCursor = []byte{'c', byte(i + 1)}
		}
		if s.page != nil {
			s.page(page)
		}
		send(page)
	}
	d := frames.NewSnapshotDigest(p.guard, s.base, uint64(len(s.records)))
	for i := range s.records {
		if err := d.Add(&s.records[i]); err != nil {
			panic(err)
		}
	}
	end := &frames.SnapshotEnd{RequestID: rid, SnapshotID: begin.SnapshotID, PageCount: uint32(len(pages)), RecordCount: uint64(len(s.records)), Digest: d.Sum()}
	if s.end != nil {
		s.end(end)
	}
	send(end)
}

// objectives makes n objective records in order, each with a document of size bytes.
func objectives(t *testing.T, n, size int) []frames.SnapshotRecord {
	var out []frames.SnapshotRecord
	for i := range n {
		ref := frames.ObjectRef{Kind: frames.KindObjective, ID: frames.ObjectID{1, byte(i >> 8), byte(i), 9}}
		r, err := frames.NewRecord(ref, frames.ObjectRevision(i+1), &frames.Objective{DocumentSchema: 1, Document: bytes.Repeat([]byte{'x'}, size)})
		require.NoError(t, err)
		out = append(out, r)
	}
	return out
}

func operation(b byte) frames.OperationID { return frames.OperationID{0xee, b} }

// created is a CREATE_OBJECTIVE command under op.
func created(t *testing.T, op frames.OperationID, doc string) Command {
	cmd, err := NewCommand(op, frames.CommandCreateObjective, &frames.CreateObjective{ObjectiveID: frames.ObjectiveID{5}, Schema: 1, Document: []byte(doc)})
	require.NoError(t, err)
	return cmd
}

func succeeded(seq frames.EventSequence) frames.OperationResult {
	return frames.OperationResult{State: frames.OperationSucceeded, Sequence: seq}
}
