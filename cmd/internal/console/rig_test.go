package console

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"coordinator/client"
	"coordinator/cmd/internal/overview"
	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/clock"
	"coordinator/internal/durable"
	"coordinator/server"
	"coordinator/server/store"
	"coordinator/server/work"
	"coordinator/witness"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait of a test.
const patience = time.Minute

var quickly = client.Backoff{First: time.Millisecond, Max: 50 * time.Millisecond}

// A world is a real coordinator on real files and sockets, with its witness in this process.
type world struct {
	t        testing.TB
	opts     server.Options
	pins     *client.Context
	registry string
	stop     func() error // nil while it does not run

	all, commander, reader *handshake.Key // keys by what they may do; the second may do all but administer
}

func newKey(t testing.TB) *handshake.Key {
	var seed [32]byte
	_, err := rand.Read(seed[:])
	require.NoError(t, err)
	return handshake.NewKey(seed)
}

func newID[T ~[16]byte](t testing.TB) T {
	id, err := frames.NewID[T](rand.Reader)
	require.NoError(t, err)
	return id
}

func newWorld(t testing.TB) *world {
	base, err := os.MkdirTemp("", "cs") // a socket path has 107 bytes
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(base) })
	dir := filepath.Join(base, "c")
	for _, d := range []string{dir, filepath.Join(base, "w"), filepath.Join(base, "client")} {
		require.NoError(t, durable.MkdirPrivate(d))
	}
	witnessKey, witnessID := newKey(t), newID[frames.WitnessID](t)
	require.NoError(t, witness.Create(filepath.Join(base, "w"), witnessID))
	w, err := witness.Open(filepath.Join(base, "w"), witness.Options{ID: witnessID, Key: witnessKey, BootID: "boot", Clock: clock.System(), Rand: rand.Reader})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.Close()) })

	coordinator := newID[frames.CoordinatorID](t)
	retention, err := work.GenesisRetention(frames.Retention{
		OperationResultSecs: work.DefaultOperationResultSecs, EventBytes: work.DefaultEventBytes, ArtifactBytes: work.DefaultArtifactBytes})
	require.NoError(t, err)
	so := store.Options{SegmentBytes: 1 << 20, UnsafeNoSync: true}
	require.NoError(t, store.Create(dir, store.Genesis{CoordinatorID: coordinator, CreatedAt: time.Now(),
		Rows: []store.Row{{Record: retention.Record, Live: retention.Live, Annex: retention.Annex}}}, so))
	authority, err := handshake.CreateKey(filepath.Join(dir, server.AuthorityKeyFile), rand.Reader)
	require.NoError(t, err)
	x := &world{t: t, registry: filepath.Join(dir, server.RegistryFile)}
	require.NoError(t, handshake.CreateRegistry(x.registry))
	x.opts = server.Options{Dir: dir, CoordinatorID: coordinator, Store: so, Witness: func() (witness.Authority, error) {
		return witness.Local{Witness: w, Coordinator: coordinator, Holder: frames.KeyID{1}}, nil
	}}
	x.pins = &client.Context{Path: filepath.Join(base, "client", "context.toml"), Name: "test", CoordinatorID: coordinator,
		Authority: handshake.FingerprintOf(authority.Public()), WitnessID: witnessID, WitnessPublicKey: witnessKey.Public(),
		KeyFile: filepath.Join(base, "client", "none")}
	x.all = x.enrol("all", frames.AllScopes)
	x.commander = x.enrol("commander", frames.AllScopes&^frames.ScopeAdmin)
	x.reader = x.enrol("reader", frames.ScopeWorkRead)
	x.run()
	t.Cleanup(func() {
		if x.stop != nil {
			require.NoError(t, x.stop())
		}
	})
	return x
}

// enrol makes a key that may do what scope says, from the next start on.
func (x *world) enrol(label string, scope frames.Scope) *handshake.Key {
	k := newKey(x.t)
	require.NoError(x.t, handshake.AddRecord(x.registry, handshake.Record{PublicKey: k.Public(), KeyID: handshake.KeyIDOf(k.Public()),
		Scope: uint64(scope), ExpiresAt: uint64(time.Now().Add(time.Hour).Unix()), Label: label}, handshake.Rules{Scopes: handshake.EndpointScopes()}))
	return k
}

// run starts the coordinator and waits until it serves.
func (x *world) run() {
	ready, done := make(chan server.Info, 1), make(chan error, 1)
	opts := x.opts
	opts.Ready = func(i server.Info) { ready <- i }
	ctx, cancel := context.WithCancel(context.Background())
	go func() { done <- server.Run(ctx, opts) }()
	select {
	case i := <-ready:
		if x.pins.Socket == "" { // it stays, and replicas may be reading the context
			x.pins.Socket = i.Socket
		}
	case err := <-done:
		cancel()
		x.t.Fatalf("the coordinator did not start: %v", err)
	}
	x.stop = func() error { cancel(); x.stop = nil; return <-done }
}

// state is a client's memory of its own.
func (x *world) state() *client.State {
	s, err := client.OpenStateIn(new(client.MemoryStore), x.pins)
	require.NoError(x.t, err)
	return s
}

// A client that makes work.
func (x *world) worker() *worker {
	s, err := client.OpenSession(x.pins, client.SessionOptions{Options: client.Options{Key: x.all, State: x.state(),
		Offered: frames.CapObjectiveLifecycle}, Backoff: quickly})
	require.NoError(x.t, err)
	x.t.Cleanup(func() { s.Close() }) //nolint:errcheck // its coordinator may have gone
	return &worker{x.t, s}
}

type worker struct {
	t testing.TB
	s *client.Session
}

// objective makes an objective.
func (w *worker) objective(title string) frames.ObjectiveID {
	id := newID[frames.ObjectiveID](w.t)
	document, err := json.Marshal(map[string]string{"title": title})
	require.NoError(w.t, err)
	cmd, err := client.NewCommand(newID[frames.OperationID](w.t), frames.CommandCreateObjective, &frames.CreateObjective{ObjectiveID: id, Schema: 1, Document: document})
	require.NoError(w.t, err)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	result, err := w.s.Do(ctx, cmd)
	require.NoError(w.t, err)
	require.Equal(w.t, frames.OperationSucceeded, result.State)
	return id
}

// A page is a browser's part of a console, over a real socket.
type page struct {
	t      testing.TB
	base   string // http://127.0.0.1:port
	first  string // the address that is printed
	http   *http.Client
	cookie *http.Cookie
	noise  *safeBuffer // what the console complains of
	server *Server
	end    func() // stops the console
}

// A safeBuffer may be written to and read from by several goroutines.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// console starts a console of x for a key, not let in yet. change, unless nil, has the last
// word on its options.
func (x *world) console(k *handshake.Key, change func(*Options)) *page {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(x.t, err)
	p := &page{t: x.t, base: "http://" + l.Addr().String(), noise: &safeBuffer{}}
	o := Options{Context: x.pins, Key: k, State: x.state(), Backoff: quickly, Complaints: p.noise}
	if change != nil {
		change(&o)
	}
	s, err := New(l, o)
	require.NoError(x.t, err)
	p.server, p.first = s, s.URL()
	p.http = &http.Client{Transport: &http.Transport{}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	var once sync.Once
	p.end = func() {
		once.Do(func() {
			p.http.CloseIdleConnections()
			cancel()
			require.NoError(x.t, <-done)
		})
	}
	x.t.Cleanup(p.end)
	return p
}

// opened is a console that has let this page in.
func (x *world) opened(k *handshake.Key, change func(*Options)) *page {
	p := x.console(k, change)
	p.enter()
	return p
}

// enter trades the token in.
func (p *page) enter() {
	r := p.do(p.request("GET", p.first, ""))
	require.Equal(p.t, http.StatusSeeOther, r.status, r.body)
	require.Len(p.t, r.cookies, 1)
	p.cookie = r.cookies[0]
}

// request makes a request of the page, as a browser would.
func (p *page) request(method, path, body string) *http.Request {
	if strings.HasPrefix(path, "/") {
		path = p.base + path
	}
	r, err := http.NewRequest(method, path, strings.NewReader(body))
	require.NoError(p.t, err)
	if p.cookie != nil {
		r.AddCookie(&http.Cookie{Name: p.cookie.Name, Value: p.cookie.Value})
	}
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	if method == http.MethodPost {
		r.Header.Set("Origin", p.base)
		r.Header.Set("Content-Type", "application/json")
	}
	return r
}

type response struct {
	status  int
	header  http.Header
	body    string
	cookies []*http.Cookie
}

// do makes a request and holds the answer to what every answer has.
func (p *page) do(r *http.Request) response {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	a, err := p.http.Do(r.WithContext(ctx))
	require.NoError(p.t, err)
	defer a.Body.Close()
	body, err := io.ReadAll(a.Body)
	require.NoError(p.t, err)
	p.guarded(a)
	return response{a.StatusCode, a.Header, string(body), a.Cookies()}
}

// guarded holds an answer to the headers that each must have.
func (p *page) guarded(a *http.Response) {
	p.t.Helper()
	require.Equal(p.t, []string{policy}, a.Header["Content-Security-Policy"])
	require.Equal(p.t, "nosniff", a.Header.Get("X-Content-Type-Options"))
	require.Equal(p.t, "no-referrer", a.Header.Get("Referrer-Policy"))
	require.Equal(p.t, "DENY", a.Header.Get("X-Frame-Options"))
	require.Contains(p.t, []string{"no-store", "no-cache"}, a.Header.Get("Cache-Control"))
}

// get reads an answer of the API into out.
func (p *page) get(path string, out any) response {
	p.t.Helper()
	r := p.do(p.request("GET", path, ""))
	if out != nil {
		require.Equal(p.t, http.StatusOK, r.status, r.body)
		require.NoError(p.t, json.Unmarshal([]byte(r.body), out), r.body)
	}
	return r
}

// code is the code of a refusal.
func (r response) code(t testing.TB) string {
	t.Helper()
	var out struct {
		Error struct{ Code, Message, Next string }
	}
	require.NoError(t, json.Unmarshal([]byte(r.body), &out), r.body)
	require.NotEmpty(t, out.Error.Message)
	require.NotEmpty(t, out.Error.Next)
	return out.Error.Code
}

// A feed is the live stream as a browser takes it.
type feed struct {
	t      testing.TB
	events chan told // closed when the stream has ended
	close  func()
}

type told struct {
	id   string
	name string
	data json.RawMessage
}

// live opens the stream.
func (p *page) live() *feed {
	p.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	a, err := p.http.Do(p.request("GET", "/api/live", "").WithContext(ctx))
	require.NoError(p.t, err)
	require.Equal(p.t, http.StatusOK, a.StatusCode)
	require.Equal(p.t, "text/event-stream", a.Header.Get("Content-Type"))
	p.guarded(a)
	f := &feed{t: p.t, events: make(chan told)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(f.events)
		read(ctx, a.Body, f.events)
	}()
	f.close = func() { cancel(); a.Body.Close(); <-done }
	p.t.Cleanup(f.close)
	return f
}

// read parses server-sent events.
func read(ctx context.Context, r io.Reader, out chan<- told) {
	var e told
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return
		}
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		switch name {
		case "id":
			e.id = value
		case "event":
			e.name = value
		case "data":
			e.data = json.RawMessage(value)
		case "":
			select {
			case out <- e:
			case <-ctx.Done():
				return
			}
			e = told{}
		}
	}
}

// next is the next event.
func (f *feed) next() told {
	f.t.Helper()
	select {
	case e, ok := <-f.events:
		require.True(f.t, ok, "the stream has ended")
		return e
	case <-time.After(patience):
		f.t.Fatal("nothing more comes")
		return told{}
	}
}

// until reads on to an event that ok is true of.
func (f *feed) until(what string, ok func(told) bool) told {
	f.t.Helper()
	deadline := time.Now().Add(patience)
	for time.Now().Before(deadline) {
		if e := f.next(); ok(e) {
			return e
		}
	}
	f.t.Fatalf("%s never came", what)
	return told{}
}

// seen is what the stream's messages have in common.
type seen struct {
	State      *state                `json:"state"`
	Signals    []*overview.Signal    `json:"signals"`
	Objectives []*overview.Objective `json:"objectives"`
	Runs       []*overview.Run       `json:"runs"`
	Operations []*overview.Operation `json:"operations"`
	Events     []*overview.Activity  `json:"events"`
	Activity   []*overview.Activity  `json:"activity"`
	Gone       []overview.Gone       `json:"gone"`
}

func (e told) decode(t testing.TB) (s seen) {
	t.Helper()
	into := any(&s)
	if e.name == "state" {
		s.State = &state{}
		into = s.State
	}
	require.NoError(t, json.Unmarshal(e.data, into), string(e.data))
	return s
}

func query(t testing.TB, raw, key string) string {
	u, err := url.Parse(raw)
	require.NoError(t, err)
	return u.Query().Get(key)
}
