package docs

import (
	"bufio"
	"crypto/rand"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/client"
	"coordinator/codec"
	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/sock"
)

// A forger is a coordinator on a real socket that lies where a test tells it to.
type forger struct {
	t         *testing.T
	path      string // of the context
	authority *handshake.Key
	witness   *handshake.Key
	client    *handshake.Key
	pins      client.Context
	title     string // of the one objective that its snapshots show

	mu   sync.Mutex
	lies lies               // guarded by mu
	cert frames.Certificate // guarded by mu; before the lies
	seen []frames.Frame     // guarded by mu: requests other than those of snapshots
	open map[net.Conn]bool  // guarded by mu
	wg   sync.WaitGroup     // of connections
}

// lies change what is true before it is sent; nil changes nothing.
type lies struct {
	cert   func(*frames.Certificate) // before it is signed
	signed func(*frames.Certificate)
	answer func(*frames.CoordHelloOK)
	begin  func(*frames.SnapshotBegin)
	page   func(*frames.SnapshotPage)
	end    func(*frames.SnapshotEnd)
	// event follows the acceptance of a snapshot.
	event func(*frames.CoordEvent)
	// then is what follows it besides; sign signs a certificate.
	then func(send func(frames.Frame), cert frames.Certificate, sign func(*frames.Certificate))
	// request answers every other request; it returns false to close.
	request func(send func(frames.Frame), f frames.Frame) bool
}

func newForger(t *testing.T, title string) *forger {
	dir, err := os.MkdirTemp("", "p")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	newKey := func(name string) *handshake.Key {
		k, err := handshake.CreateKey(filepath.Join(dir, name), rand.Reader)
		require.NoError(t, err)
		return k
	}
	f := &forger{t: t, path: filepath.Join(dir, "context.toml"), title: title, open: make(map[net.Conn]bool),
		authority: newKey("authority"), witness: newKey("witness"), client: newKey("client.ed25519")}
	f.pins = client.Context{
		Name: "forged", Socket: filepath.Join(dir, "s"), CoordinatorID: frames.CoordinatorID{0xc0},
		Authority: handshake.FingerprintOf(f.authority.Public()), WitnessID: frames.WitnessID{0x31},
		WitnessPublicKey: f.witness.Public(), KeyFile: filepath.Join(dir, "client.ed25519"),
	}
	require.NoError(t, f.pins.Save(f.path))
	f.activate(7, 7, 1, lies{})
	f.listen()
	return f
}

// activate begins an authority and its lies, and cuts the connections of the one before.
func (f *forger) activate(epoch, activation uint64, incarnation byte, l lies) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lies = l
	f.cert = frames.Certificate{
		WitnessID: f.pins.WitnessID, CoordinatorID: f.pins.CoordinatorID, Epoch: frames.AuthorityEpoch(epoch),
		Activation: frames.ActivationSequence(activation), IncarnationID: frames.IncarnationID{incarnation},
		WitnessKeyID: handshake.KeyIDOf(f.witness.Public()),
	}
	for nc := range f.open {
		nc.Close()
	}
}

// listen serves until the test ends.
func (f *forger) listen() {
	l, err := net.Listen("unix", f.pins.Socket)
	require.NoError(f.t, err)
	f.wg.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			f.mu.Lock()
			f.open[nc] = true
			f.mu.Unlock()
			f.wg.Go(func() {
				defer func() {
					nc.Close()
					f.mu.Lock()
					delete(f.open, nc)
					f.mu.Unlock()
				}()
				f.serve(nc)
			})
		}
	})
	f.t.Cleanup(func() {
		l.Close()
		f.activate(1, 1, 1, lies{}) // closes what is open
		f.wg.Wait()
	})
}

// requests are those that came, other than for snapshots.
func (f *forger) requests() []frames.Frame {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seen
}

func (f *forger) serve(nc net.Conn) {
	f.mu.Lock()
	l, cert := f.lies, f.cert
	f.mu.Unlock()
	cert.IssuedAt = uint64(time.Now().Unix())
	cert.ExpiresAt = cert.IssuedAt + 60
	say := func(fr frames.Frame) {
		if raw, err := frames.Append(nil, fr); err == nil {
			nc.Write(raw) //nolint:errcheck // the client may have gone
		} else {
			f.t.Errorf("the forger cannot say %v: %v", fr.Type(), err)
		}
	}
	if f.shake(nc, say, l, &cert) {
		for {
			fr := hear(nc)
			if fr == nil || !f.answer(say, l, cert, fr) {
				return
			}
		}
	}
}

func hear(nc net.Conn) frames.Frame {
	var head [codec.HeaderSize]byte
	n, typ, err := codec.ReadHeader(nc, &head)
	if err != nil {
		return nil
	}
	body := make([]byte, n-1)
	if _, err := io.ReadFull(nc, body); err != nil {
		return nil
	}
	fr, err := frames.Decode(frames.Type(typ), body)
	if err != nil {
		return nil
	}
	return fr
}

// tell applies a lie to what it is about.
func tell[T any](lie func(*T), about *T) {
	if lie != nil {
		lie(about)
	}
}

func (f *forger) shake(nc net.Conn, say func(frames.Frame), l lies, cert *frames.Certificate) bool {
	hello, ok := hear(nc).(*frames.CoordHello)
	cred, err := sock.PeerCred(nc.(*net.UnixConn))
	if !ok || err != nil {
		return false
	}
	hs := &handshake.Server{
		Service:   handshake.Service{Name: frames.Service, Minor: 1, Scopes: uint64(frames.AllScopes)},
		Authority: f.authority, Incarnation: cert.IncarnationID, Rand: rand.Reader,
		Registry: handshake.StaticRegistry([]handshake.Record{{
			PublicKey: f.client.Public(), KeyID: handshake.KeyIDOf(f.client.Public()), Scope: uint64(frames.AllScopes),
			ExpiresAt: uint64(time.Now().Add(time.Hour).Unix()), Label: "python",
		}}),
	}
	x, ch, err := hs.Challenge(&hello.Offer, handshake.UDSPeer{Cred: cred})
	if err != nil {
		return false
	}
	say(ch)
	resp, ok := hear(nc).(*frames.WorkloadResponse)
	if !ok {
		return false
	}
	grant, err := x.Finish(resp)
	if err != nil {
		f.t.Errorf("the forger cannot verify the client's proof: %v", x.Reason())
		return false
	}
	defer grant.Release()
	tell(l.cert, cert)
	f.sign(cert)
	tell(l.signed, cert)
	answer := &frames.CoordHelloOK{
		Version: frames.CurrentVersion(), Capabilities: hello.Offered, CoordinatorID: f.pins.CoordinatorID, Epoch: f.cert.Epoch,
		IncarnationID: hs.Incarnation, Limits: hello.Limits, Grant: grant.Wire(), RetentionSecs: frames.MinOperationRetained, Certificate: *cert,
	}
	tell(l.answer, answer)
	say(answer)
	return true
}

// sign signs as the pinned witness would.
func (f *forger) sign(cert *frames.Certificate) {
	pre, err := cert.Preimage()
	if err == nil {
		cert.Signature, err = f.witness.Sign(pre)
	}
	if err != nil {
		f.t.Error(err)
	}
}

// answer answers one request; false closes.
func (f *forger) answer(say func(frames.Frame), l lies, cert frames.Certificate, fr frames.Frame) bool {
	guard := cert.Guard()
	switch fr := fr.(type) {
	case *frames.OpenSnapshot:
		sub := frames.SubscriptionID{}
		if fr.Reserve {
			sub = frames.SubscriptionID{5}
		}
		begin := &frames.SnapshotBegin{RequestID: fr.RequestID, SnapshotID: frames.SnapshotID{4}, Guard: guard, Base: 20, FirstCursor: []byte("1"), SubscriptionID: sub}
		tell(l.begin, begin)
		say(begin)
	case *frames.SnapshotNext:
		f.pages(say, l, guard, fr)
	case *frames.SnapshotApplied:
		say(&frames.Ack{RequestID: fr.RequestID})
		if l.then != nil {
			l.then(say, cert, f.sign)
		}
		if l.event != nil {
			record := f.record(2, "poison")
			payload, err := codec.EncodeImage(nil, &record)
			if err != nil {
				f.t.Error(err)
			}
			event := &frames.CoordEvent{SubscriptionID: fr.SubscriptionID, Delivery: 1, Sequence: 21, EventID: frames.EventID{9},
				Kind: frames.EventObjectiveChanged, Object: record.Ref(), Revision: 2, Schema: 1, Payload: payload}
			l.event(event)
			say(event)
		}
	case *frames.Credit, *frames.Pong:
	default:
		f.mu.Lock()
		f.seen = append(f.seen, fr)
		f.mu.Unlock()
		return l.request != nil && l.request(say, fr)
	}
	return true
}

func (f *forger) record(revision frames.ObjectRevision, title string) frames.SnapshotRecord {
	ref := frames.ObjectRef{Kind: frames.KindObjective, ID: frames.ObjectID{8}}
	r, err := frames.NewRecord(ref, revision, &frames.Objective{DocumentSchema: 1, Document: []byte(`{"title":"` + title + `"}`)})
	if err != nil {
		f.t.Error(err)
	}
	return r
}

// pages sends the one page and the END that vouches for what is true.
func (f *forger) pages(say func(frames.Frame), l lies, guard frames.AuthorityGuard, next *frames.SnapshotNext) {
	record := f.record(1, f.title)
	digest := frames.NewSnapshotDigest(guard, 20, 1)
	if err := digest.Add(&record); err != nil {
		f.t.Error(err)
	}
	page := &frames.SnapshotPage{RequestID: next.RequestID, SnapshotID: next.SnapshotID, Cursor: next.Cursor, Records: []frames.SnapshotRecord{record}}
	tell(l.page, page)
	say(page)
	end := &frames.SnapshotEnd{RequestID: next.RequestID, SnapshotID: next.SnapshotID, PageCount: 1, RecordCount: 1, Digest: digest.Sum()}
	tell(l.end, end)
	say(end)
}

// refuses runs follow.py against the forger: it must say why it does not believe, and end with
// exit code 4 where another attempt changes nothing. Where it tries again it is told to end. All
// that it said is returned.
func (f *forger) refuses(t *testing.T, why string, final bool) string {
	t.Helper()
	cmd := pythonCommand(t, "follow.py", "--context", f.path)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = cmd.Stdout
	require.NoError(t, cmd.Start())
	var said strings.Builder
	found := false
	for lines := bufio.NewScanner(out); lines.Scan(); {
		said.WriteString(lines.Text() + "\n")
		if !found && strings.Contains(lines.Text(), why) {
			if found = true; !final {
				require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
			}
		}
	}
	cmd.Wait() //nolint:errcheck // its state says all
	require.True(t, found, "it never said %q:\n%s", why, said.String())
	if final {
		require.Equal(t, 4, cmd.ProcessState.ExitCode(), said.String())
	}
	return said.String()
}
