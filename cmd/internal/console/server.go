package console

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/net/netutil"

	"coordinator/client"
	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/clock"
)

// Bounds of the listener: what others on this machine may cost the console.
const (
	maxConns       = 64
	headerWait     = 5 * time.Second // for a request's header
	requestWait    = 10 * time.Second
	answerWait     = 10 * time.Second // for a piece of an answer to be taken
	idleWait       = time.Minute
	maxHeaderBytes = 16 << 10
	stopWait       = time.Second // for answers that are on their way at the end
)

// offered are the capabilities of the console's connections: all records but those of the
// administration, whose changes bar the log before them (protocol.md §6 [D-12]).
const offered = frames.CapTerminalBindings | frames.CapArtifactManifests | frames.CapSignals |
	frames.CapObjectiveLifecycle | frames.CapEventReplay | frames.CapArchive

// Options say whose console it is.
type Options struct {
	// Context says where the coordinator is and how to know it.
	Context *client.Context
	// Key proves the client. Nil loads the context's.
	Key handshake.Signer
	// State is the memory of the authority. Nil opens the one beside the context file.
	State *client.State
	// Metrics is the address of the coordinator's metrics listener, as [CheckMetrics] takes it.
	Metrics string
	// Version is shown on the page.
	Version string
	// Backoff paces the attempts to reach the coordinator.
	Backoff client.Backoff
	// Transport reaches the coordinator. Nil dials what the context says.
	Transport client.Transport
	// ActionWait is how long an action waits for its answer; what became of it is not known then.
	// Zero means 10 s.
	ActionWait time.Duration
	// Clock is the time. Nil means the system's.
	Clock clock.Clock
	// Rand is the source of secrets and OperationIds. Nil means crypto/rand.
	Rand io.Reader
	// Complaints takes a line where a request failed by a fault of this program. Nil discards.
	Complaints io.Writer
}

// A RemoteListenError refuses an address that other machines reach.
type RemoteListenError struct{ Listen string }

func (e *RemoteListenError) Error() string {
	return fmt.Sprintf("--listen is %q, which is not an address of this machine alone", e.Listen)
}

// CheckListen refuses what is not host:port on loopback, with a *[RemoteListenError] where
// others could reach it.
func CheckListen(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || port == "" {
		return fmt.Errorf("--listen is %q; it is host:port, as in 127.0.0.1:0", addr)
	}
	if _, err := net.LookupPort("tcp", port); err != nil {
		return fmt.Errorf("--listen has no port that exists: %q", port)
	}
	if host == "localhost" {
		return nil
	}
	if ip, err := netip.ParseAddr(host); err != nil || !ip.Unmap().IsLoopback() {
		return &RemoteListenError{addr}
	}
	return nil
}

// A Server is one console. Its listener accepts from New on, and is answered by Run.
type Server struct {
	opts    Options
	l       net.Listener
	guard   *guard
	url     string
	assets  map[string]asset
	replica *client.Replica
	live    *live
	actor   *actor
	stories *stories
	metrics *metrics
	http    *http.Server
	ending  context.Context // of Run: what outlives a request ends with it
	conns   sync.WaitGroup
}

// New makes a console on a listener of this machine, which it owns from then on, and begins
// its replica. [Server.Run] must follow.
func New(l net.Listener, o Options) (s *Server, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Close())
		}
	}()
	if o.Clock == nil {
		o.Clock = clock.System()
	}
	if o.ActionWait <= 0 {
		o.ActionWait = actionWait
	}
	if o.Complaints == nil {
		o.Complaints = io.Discard
	}
	if o.Key == nil {
		if o.Key, err = o.Context.Signer(); err != nil {
			return nil, err
		}
	}
	if o.State == nil {
		if o.State, err = client.OpenState(o.Context); err != nil {
			return nil, err
		}
	}
	s = &Server{opts: o, l: l, stories: newStories(), metrics: newMetrics(o.Metrics, o.Clock)}
	var token string
	if s.guard, token, err = newGuard(o.Rand); err != nil {
		return nil, err
	}
	s.url = "http://" + l.Addr().String() + "/?token=" + token
	page, err := fs.Sub(dist, "dist")
	if err != nil {
		return nil, err
	}
	if s.assets, err = loadAssets(page); err != nil {
		return nil, err
	}
	if s.replica, err = client.OpenReplica(o.Context, client.ReplicaOptions{Options: s.options("console"), Backoff: o.Backoff}); err != nil {
		return nil, err
	}
	s.live = newLive(s.replica, o.Clock, o.Context)
	session := s.options("console")
	session.Offered |= frames.CapWithoutOperations
	commands, err := client.OpenSession(o.Context, client.SessionOptions{Options: session, Backoff: o.Backoff})
	if err != nil {
		return nil, errors.Join(err, s.replica.Close())
	}
	s.actor = newActor(commands, o.Rand)
	s.http = &http.Server{Handler: s.handler(), ReadHeaderTimeout: headerWait, ReadTimeout: requestWait, IdleTimeout: idleWait,
		MaxHeaderBytes: maxHeaderBytes, ErrorLog: log.New(o.Complaints, "console: ", 0), ConnState: s.count}
	return s, nil
}

// options are those of a connection of the console, whose purpose is name.
func (s *Server) options(name string) client.Options {
	return client.Options{Name: "coordctl " + name, Key: s.opts.Key, State: s.opts.State, Offered: offered, Journal: true,
		Clock: s.opts.Clock, Rand: s.opts.Rand, Transport: s.opts.Transport}
}

// URL is the address to open, with the token that is good once.
func (s *Server) URL() string { return s.url }

// Run serves until ctx ends or the listener fails, and returns once all its goroutines have.
// The end of ctx is no error.
func (s *Server) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.ending = ctx
	s.http.BaseContext = func(net.Listener) context.Context { return ctx }
	var wg sync.WaitGroup
	wg.Go(func() { s.live.run(ctx) })
	served := make(chan error, 1)
	go func() { served <- s.http.Serve(netutil.LimitListener(s.l, maxConns)) }()
	var err error
	select {
	case err = <-served:
		served <- nil
	case <-ctx.Done():
	}
	cancel() // which ends the streams
	s.shutdown()
	<-served
	wg.Wait()
	return errors.Join(err, s.actor.session.Close(), s.replica.Close())
}

// shutdown ends the HTTP server and joins its connections.
func (s *Server) shutdown() {
	ctx, cancel := context.WithTimeout(context.Background(), stopWait)
	defer cancel()
	if s.http.Shutdown(ctx) != nil {
		s.http.Close() //nolint:errcheck // whoever still reads is cut
	}
	s.conns.Wait()
}

// count notes the goroutine of a connection, which begins with StateNew and ends with
// StateClosed.
func (s *Server) count(_ net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		s.conns.Add(1)
	case http.StateClosed:
		s.conns.Done()
	}
}

// handler is everything that is served.
func (s *Server) handler() http.Handler {
	api := http.NewServeMux()
	s.routes(api)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		protect(w.Header())
		http.NewResponseController(w).SetWriteDeadline(time.Now().Add(requestWait + answerWait)) //nolint:errcheck // a real connection has deadlines
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		if p := s.guard.refuses(r); p != nil {
			p.write(w)
			return
		}
		if _, pattern := api.Handler(r); pattern != "" {
			api.ServeHTTP(w, r)
			return
		}
		s.page(w, r)
	})
}

// page serves the page and its files, and trades the token in.
func (s *Server) page(w http.ResponseWriter, r *http.Request) {
	a, ok := s.assets[r.URL.Path]
	switch {
	case !ok:
		(&problem{http.StatusNotFound, codeNotFound, "there is nothing here", "open /"}).write(w)
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		w.Header().Set("Allow", "GET, HEAD")
		(&problem{http.StatusMethodNotAllowed, codeMethod, "the page is only read", "use GET"}).write(w)
	case r.URL.Path == "/" && r.URL.Query().Has("token"):
		s.trade(w, r)
	default:
		a.serve(w, r)
	}
}

const spentPage = `<!doctype html><html lang="en"><meta charset="utf-8"><title>Not let in</title>
<h1>Not let in</h1>
<p>The token in this address is wrong, or has been used: it is good once, for one browser.</p>
<p>If this browser has opened the console before, <a href="/">go on there</a>. Otherwise stop
<code>coordctl console</code> with Ctrl-C, start it again and open the address that it then prints.</p>
<p>If you have not used the address and it is new, somebody else has: stop the console at once.</p>
`

// trade lets the browser in that brings the token. A HEAD does not use it up.
func (s *Server) trade(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet || !s.guard.trade(r.URL.Query().Get("token")) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.WriteHeader(http.StatusForbidden)
		io.WriteString(w, spentPage) //nolint:errcheck // the asker has gone
		return
	}
	s.guard.admit(w)
	http.Redirect(w, r, "/", http.StatusSeeOther)
}
