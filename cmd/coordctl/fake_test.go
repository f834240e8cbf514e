package main

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/client"
	"coordinator/codec"
	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/sock"
)

// A fake is a coordinator on a real socket that does what one test needs and no more.
type fake struct {
	t         *testing.T
	path      string // of the context
	authority *handshake.Key
	witness   *handshake.Key
	client    *handshake.Key
	pins      client.Context
	cert      frames.Certificate

	// hello, unless nil, answers COORD_HELLO instead of the handshake.
	hello func(*fakeConn)
	// records are what snapshots show, of the kinds that the capabilities let through.
	records []frames.SnapshotRecord
	// paged, unless nil, is called when a snapshot's records have been sent and its end has not.
	paged func()
	// other answers every other request; nil closes.
	other func(*fakeConn, frames.Frame)

	fakeLog
}

type fakeConn struct {
	nc net.Conn
	f  *fake
	// caps are those negotiated.
	caps frames.Capability

	sending sync.Mutex
}

func newFake(t *testing.T) *fake {
	dir := filepath.Join(t.TempDir(), "client")
	require.NoError(t, os.Mkdir(dir, 0o700))
	newKey := func(name string) *handshake.Key {
		k, err := handshake.CreateKey(filepath.Join(dir, name), rand.Reader)
		require.NoError(t, err)
		return k
	}
	f := &fake{t: t, path: filepath.Join(dir, "context.toml"),
		authority: newKey("authority"), witness: newKey("witness"), client: newKey("client.ed25519")}
	f.pins = client.Context{
		Name: "fake", Socket: filepath.Join(dir, "fake.sock"), CoordinatorID: frames.CoordinatorID{0xc0},
		Authority: handshake.FingerprintOf(f.authority.Public()), WitnessID: frames.WitnessID{0x31},
		WitnessPublicKey: f.witness.Public(), KeyFile: filepath.Join(dir, "client.ed25519"),
	}
	require.NoError(t, f.pins.Save(f.path))
	f.activate(7)
	return f
}

// activate gives the fake another certificate.
func (f *fake) activate(epoch uint64) {
	now := uint64(time.Now().Unix())
	cert := frames.Certificate{
		WitnessID: f.pins.WitnessID, CoordinatorID: f.pins.CoordinatorID,
		Epoch: frames.AuthorityEpoch(epoch), Activation: frames.ActivationSequence(epoch), IncarnationID: frames.IncarnationID{byte(epoch)},
		IssuedAt: now, ExpiresAt: now + 60, WitnessKeyID: handshake.KeyIDOf(f.witness.Public()),
	}
	pre, err := cert.Preimage()
	require.NoError(f.t, err)
	cert.Signature, err = f.witness.Sign(pre)
	require.NoError(f.t, err)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cert = cert
}

// listen serves until the test ends.
func (f *fake) listen() {
	l, err := net.Listen("unix", f.pins.Socket)
	require.NoError(f.t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer nc.Close()
				c := &fakeConn{nc: nc, f: f}
				defer f.leave(c)
				c.serve()
			})
		}
	})
	f.t.Cleanup(func() { l.Close(); wg.Wait() })
}

func (c *fakeConn) send(fr frames.Frame) {
	buf, err := frames.Append(nil, fr)
	if err != nil {
		panic(err)
	}
	c.sending.Lock()
	defer c.sending.Unlock()
	c.nc.Write(buf) //nolint:errcheck // the client may have gone
}

func (c *fakeConn) recv() frames.Frame {
	var head [codec.HeaderSize]byte
	n, typ, err := codec.ReadHeader(c.nc, &head)
	if err != nil {
		return nil
	}
	body := make([]byte, n-1)
	if _, err := io.ReadFull(c.nc, body); err != nil {
		return nil
	}
	fr, err := frames.Decode(frames.Type(typ), body)
	if err != nil {
		panic(err)
	}
	return fr
}

func (c *fakeConn) serve() {
	hello, ok := c.recv().(*frames.CoordHello)
	if !ok {
		return
	}
	if c.f.hello != nil {
		c.f.hello(c)
		return
	}
	if !c.shake(hello) {
		return
	}
	for {
		switch fr := c.recv().(type) {
		case nil:
			return
		case *frames.OpenSnapshot:
			c.snapshot(fr)
		case *frames.Ping:
			c.send(&frames.Pong{Nonce: fr.Nonce})
		case *frames.Subscribe:
			c.f.subscribe(c, fr)
		case *frames.SnapshotApplied:
			c.f.applied(c, fr)
		case *frames.Credit:
			c.f.credited(c, fr)
		default:
			if c.f.other == nil {
				return
			}
			c.f.other(c, fr)
		}
	}
}

func (c *fakeConn) shake(hello *frames.CoordHello) bool {
	f := c.f
	cred, err := sock.PeerCred(c.nc.(*net.UnixConn))
	if err != nil {
		panic(err)
	}
	f.mu.Lock()
	cert := f.cert
	f.mu.Unlock()
	hs := &handshake.Server{
		Service:   handshake.Service{Name: frames.Service, Minor: 1, Scopes: uint64(frames.AllScopes)},
		Authority: f.authority, Incarnation: cert.IncarnationID, Rand: rand.Reader,
		Registry: handshake.StaticRegistry([]handshake.Record{{
			PublicKey: f.client.Public(), KeyID: handshake.KeyIDOf(f.client.Public()), Scope: uint64(frames.AllScopes),
			ExpiresAt: uint64(time.Now().Add(time.Hour).Unix()), Label: "test",
		}}),
	}
	x, ch, err := hs.Challenge(&hello.Offer, handshake.UDSPeer{Cred: cred})
	if err != nil {
		panic(err)
	}
	c.send(ch)
	resp, ok := c.recv().(*frames.WorkloadResponse)
	if !ok {
		return false
	}
	grant, err := x.Finish(resp)
	if err != nil {
		c.send(&frames.CoordError{Code: frames.CodeAuthenticationFailed, Message: "authentication failed"})
		return false
	}
	defer grant.Release()
	limits, err := hello.Limits.Select(frames.ReferenceLimits())
	if err != nil {
		panic(err)
	}
	c.caps = hello.Offered
	c.send(&frames.CoordHelloOK{
		Version: frames.CurrentVersion(), Capabilities: hello.Offered, CoordinatorID: f.pins.CoordinatorID,
		Epoch: cert.Epoch, IncarnationID: cert.IncarnationID, Limits: limits, Grant: grant.Wire(),
		RetentionSecs: frames.MinOperationRetained, Certificate: cert,
	})
	return true
}

// visible are the records that the negotiated capabilities show.
func (c *fakeConn) visible() (out []frames.SnapshotRecord) {
	for _, r := range c.f.records {
		hidden := r.Kind == frames.KindAdmin && !c.caps.Has(frames.CapAdministration) ||
			r.Kind == frames.KindOperation && c.caps.Has(frames.CapWithoutOperations)
		if !hidden {
			out = append(out, r)
		}
	}
	return out
}

func (c *fakeConn) snapshot(open *frames.OpenSnapshot) {
	c.f.mu.Lock()
	records, guard, base := c.visible(), c.f.cert.Guard(), c.f.headLocked()
	c.f.mu.Unlock()
	begin := &frames.SnapshotBegin{RequestID: open.RequestID, SnapshotID: frames.SnapshotID{1}, Guard: guard, Base: base,
		Bases: []frames.ActivationBase{{Activation: guard.Activation, Base: 0}}}
	if open.Reserve {
		begin.SubscriptionID = frames.SubscriptionID{2}
		c.f.reserve(c, base)
	}
	end := &frames.SnapshotEnd{RequestID: open.RequestID, SnapshotID: begin.SnapshotID, RecordCount: uint64(len(records))}
	d := frames.NewSnapshotDigest(guard, begin.Base, end.RecordCount)
	for i := range records {
		if err := d.Add(&records[i]); err != nil {
			panic(err)
		}
	}
	end.Digest = d.Sum()
	if len(records) > 0 {
		begin.FirstCursor = []byte("first")
		end.PageCount = 1
	}
	c.send(begin)
	if len(records) > 0 {
		next, ok := c.recv().(*frames.SnapshotNext)
		if !ok {
			return
		}
		end.RequestID = next.RequestID
		c.send(&frames.SnapshotPage{RequestID: next.RequestID, SnapshotID: begin.SnapshotID, Cursor: next.Cursor, Records: records})
	}
	if c.f.paged != nil {
		c.f.paged()
	}
	c.send(end)
}

// ran is one command line's outcome.
type ran struct {
	code        int
	out, errout string
}

// cli runs a command line in this process.
func cli(args ...string) ran {
	var out, errout bytes.Buffer
	code := run(args, strings.NewReader(""), &out, &errout)
	return ran{code, out.String(), errout.String()}
}

// cli runs a command line against the fake.
func (f *fake) cli(args ...string) ran { return cli(append([]string{"--context", f.path}, args...)...) }

func (r ran) decode(t *testing.T, into any) {
	require.Equal(t, 0, r.code, "%s", r.errout)
	require.NoError(t, json.Unmarshal([]byte(r.out), into), "%s", r.out)
}
