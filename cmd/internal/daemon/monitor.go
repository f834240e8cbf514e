package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"time"

	"coordinator/internal/clock"
	"coordinator/internal/lograte"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Bounds of the monitoring listener. Whoever reaches it may cost a daemon so much and no more.
const (
	maxScrapers     = 16               // connections at once; more wait in the kernel
	maxScrapes      = 2                // that collect at once; more are told to come again
	headerWait      = 5 * time.Second  // for a request's header
	requestWait     = 10 * time.Second // for all of it
	answerWait      = 30 * time.Second // for the answer to be taken
	idleWait        = time.Minute      // between requests
	maxHeaderBytes  = 16 << 10
	monitorStopWait = time.Second     // for answers that are on their way at a stop
	monitorGiveUp   = 4 * time.Second // for a scrape that a disk in trouble holds up at a stop

	monitorBurst, monitorEvery = 8, 10 * time.Second // its own log lines
)

// MonitorConfig is the [metrics] table of a daemon's configuration file.
type MonitorConfig struct {
	// Listen is host:port for /metrics, /healthz and /readyz. Empty is off.
	Listen string `toml:"listen"`
	// AllowRemote permits an address that other machines reach. There is no authentication.
	AllowRemote bool `toml:"allow_remote"`
}

// MonitorText is the commented [metrics] table of a configuration file that init writes.
const MonitorText = `# Metrics for Prometheus (/metrics), liveness (/healthz) and readiness (/readyz) over HTTP.
# Off without the line. There is no authentication: only addresses of this machine are taken,
# unless allow_remote is true.
# [metrics]
# listen       = "%s"
# allow_remote = false
`

// Check refuses an address that cannot be listened on, or that others could reach without
// leave. Its errors begin with the name of the key.
func (c MonitorConfig) Check() error {
	if c.Listen == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(c.Listen)
	if err != nil || port == "" {
		return errors.New("metrics.listen must be the host:port to listen on, as in 127.0.0.1:9464")
	}
	if _, err := net.LookupPort("tcp", port); err != nil {
		return fmt.Errorf("metrics.listen has no port that exists: %q", port)
	}
	if c.AllowRemote || host == "localhost" {
		return nil
	}
	if ip, err := netip.ParseAddr(host); err == nil && ip.Unmap().IsLoopback() {
		return nil
	}
	return fmt.Errorf("metrics.listen is %s, which other machines may reach and which asks nobody who they are; "+
		"use an address of 127.0.0.0/8 or [::1], or set metrics.allow_remote = true", c.Listen)
}

// An Ailment is why a daemon is not healthy or not ready, in a sentence for people without
// anything secret. Nil is none.
type Ailment = error

// A Subject is a daemon that is watched. Its functions may be called from any goroutine and
// must not wait long.
type Subject struct {
	// Healthy says whether the process makes progress, Ready whether it can do its work now.
	Healthy, Ready func() Ailment
	// Collect gives the daemon's own metrics. Those of the process are added.
	Collect prometheus.Collector
	Clock   clock.Clock
	Logger  *slog.Logger
}

// A PortInUseError means that somebody else listens where metrics.listen says.
type PortInUseError struct{ Listen string }

func (e *PortInUseError) Error() string {
	return fmt.Sprintf("metrics.listen: %s is in use by another process; every daemon needs a port of its own", e.Listen)
}

// A Monitor is the running listener of a [MonitorConfig].
type Monitor struct {
	http   *http.Server
	l      net.Listener
	log    *slog.Logger
	lines  *lograte.Limiter
	conns  sync.WaitGroup // added to before served is closed
	served chan struct{}  // closed when nothing is accepted any more
}

// StartMonitor listens and serves until Close. It returns nil, which can be closed too, when
// the configuration has it off. Errors: *[PortInUseError], or that of the listener.
func StartMonitor(c MonitorConfig, s Subject) (*Monitor, error) {
	if c.Listen == "" {
		return nil, nil
	}
	if s.Logger == nil {
		s.Logger = slog.New(slog.DiscardHandler)
	}
	registry := prometheus.NewRegistry()
	for _, col := range append(processCollectors(), s.Collect) {
		if err := registry.Register(col); err != nil {
			return nil, fmt.Errorf("metrics: %w", err)
		}
	}
	l, err := net.Listen("tcp", c.Listen)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, &PortInUseError{Listen: c.Listen}
	}
	if err != nil {
		return nil, Exit(ExitConfig, fmt.Errorf("metrics.listen: %w", err))
	}
	m := &Monitor{
		l: newRoomy(l, maxScrapers), log: s.Logger, served: make(chan struct{}),
		lines: lograte.New(s.Clock, monitorBurst, monitorEvery),
	}
	m.http = &http.Server{
		Handler: m.routes(s, registry), ReadHeaderTimeout: headerWait, ReadTimeout: requestWait, WriteTimeout: answerWait,
		IdleTimeout: idleWait, MaxHeaderBytes: maxHeaderBytes, ErrorLog: log.New(complaints{m}, "", 0),
		ConnState: m.count,
	}
	s.Logger.Info("monitor serves", "listen", m.Addr())
	go func() {
		defer close(m.served)
		if err := m.http.Serve(m.l); !errors.Is(err, http.ErrServerClosed) {
			s.Logger.Error("monitor serves no more", "err", err)
		}
	}()
	return m, nil
}

// Descriptors are the most that it has open: none when it is off.
func (m *Monitor) Descriptors() int {
	if m == nil {
		return 0
	}
	return maxScrapers + 2 // the listener, and what a collector reads
}

// Addr is where it listens.
func (m *Monitor) Addr() string { return m.l.Addr().String() }

// count notes the goroutine of a connection, which begins with StateNew and ends with
// StateClosed.
func (m *Monitor) count(_ net.Conn, s http.ConnState) {
	switch s {
	case http.StateNew:
		m.conns.Add(1)
	case http.StateClosed:
		m.conns.Done()
	}
}

// Close ends it and joins all its goroutines, but for a scrape that reads a disk which does
// not answer: the end of the process must not wait for that.
func (m *Monitor) Close() {
	if m == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), monitorStopWait)
	defer cancel()
	if m.http.Shutdown(ctx) != nil {
		m.http.Close() //nolint:errcheck // whoever still reads is cut
	}
	<-m.served
	joined := make(chan struct{})
	go func() {
		defer close(joined)
		m.conns.Wait()
	}()
	select {
	case <-joined:
	case <-time.After(monitorGiveUp):
		m.log.Warn("monitor left behind", "err", "a scrape does not end")
	}
	m.lines.Flush(m.log, "monitor")
}

// routes makes what is served: three paths, to be read only.
func (m *Monitor) routes(s Subject, g prometheus.Gatherer) http.Handler {
	mux := http.NewServeMux()
	metrics := promhttp.HandlerFor(g, promhttp.HandlerOpts{
		ErrorLog: log.New(complaints{m}, "", 0), ErrorHandling: promhttp.HTTPErrorOnError,
		MaxRequestsInFlight: maxScrapes,
	})
	mux.Handle("GET /metrics", metrics)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, s.Healthy()) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { answer(w, s.Ready()) })
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cache-Control", "no-store")
		r.Body = http.MaxBytesReader(w, r.Body, 0)
		mux.ServeHTTP(w, r)
	})
}

// answer says ok, or why not.
func answer(w http.ResponseWriter, ailment Ailment) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if ailment == nil {
		io.WriteString(w, "ok\n") //nolint:errcheck // the asker has gone
		return
	}
	w.WriteHeader(http.StatusServiceUnavailable)
	fmt.Fprintf(w, "not ok: %v\n", ailment)
}

// complaints takes the lines of package http, which one bad client can cause at will.
type complaints struct{ m *Monitor }

// Write takes one line.
func (c complaints) Write(p []byte) (int, error) {
	line := string(bytes.TrimSpace(p))
	if first, _, cut := strings.Cut(line, "\n"); cut {
		line = first // of a stack trace, say
	}
	c.m.lines.Say(c.m.log, slog.LevelWarn, "monitor request failed", "err", line)
	return len(p), nil
}

// roomy is a listener that accepts only while fewer than its room are open.
type roomy struct {
	net.Listener
	room chan struct{} // holds a token for each connection
	once sync.Once
	stop chan struct{}
}

func newRoomy(l net.Listener, n int) *roomy {
	return &roomy{Listener: l, room: make(chan struct{}, n), stop: make(chan struct{})}
}

// Accept waits for room and then for a connection, whose Close takes its token out.
func (l *roomy) Accept() (net.Conn, error) {
	select {
	case l.room <- struct{}{}:
	case <-l.stop:
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.room
		return nil, err
	}
	return &roomyConn{Conn: c, leave: func() { <-l.room }}, nil
}

// Close ends Accept.
func (l *roomy) Close() error {
	l.once.Do(func() { close(l.stop) })
	return l.Listener.Close()
}

type roomyConn struct {
	net.Conn
	once  sync.Once
	leave func()
}

// Close makes room.
func (c *roomyConn) Close() error {
	defer c.once.Do(c.leave)
	return c.Conn.Close()
}
