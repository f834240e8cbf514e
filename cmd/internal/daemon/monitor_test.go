package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"coordinator/internal/clock"
	"coordinator/internal/meter"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
)

func TestMonitorConfig(t *testing.T) {
	for _, tt := range []struct {
		listen string
		remote bool
		bad    string
	}{
		{"", false, ""},
		{"127.0.0.1:9464", false, ""},
		{"127.3.4.5:0", false, ""},
		{"[::1]:9464", false, ""},
		{"[::ffff:127.0.0.1]:9464", false, ""},
		{"localhost:9464", false, ""},
		{"0.0.0.0:9464", false, "allow_remote"},
		{":9464", false, "allow_remote"},
		{"[::]:9464", false, "allow_remote"},
		{"192.0.2.1:9464", false, "allow_remote"},
		{"monitor.example:9464", false, "allow_remote"},
		{"localhost.example:9464", false, "allow_remote"},
		{"0.0.0.0:9464", true, ""},
		{":9464", true, ""},
		{"127.0.0.1", false, "host:port"},
		{"127.0.0.1:", true, "host:port"},
		{"127.0.0.1:70000", true, "no port"},
		{"127.0.0.1:nothing", true, "no port"},
	} {
		err := MonitorConfig{Listen: tt.listen, AllowRemote: tt.remote}.Check()
		if tt.bad == "" {
			require.NoError(t, err, "%q", tt.listen)
			continue
		}
		require.ErrorContains(t, err, tt.bad, "%q", tt.listen)
		require.ErrorContains(t, err, "metrics.listen")
	}
}

// loud is a buffer that several goroutines write log lines to.
type loud struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *loud) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *loud) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// watched is a daemon for the monitor to watch.
type watched struct {
	mu             sync.Mutex
	healthy, ready error
	log            loud
	clock          *clock.Manual
	collecting     chan struct{} // nil, or what a scrape waits for
	collected      chan struct{}
	gauge          Family
	times          Family
	events         Family
	seconds        *meter.Histogram
	twin           bool
}

func newWatched() *watched {
	return &watched{
		clock: clock.NewManual(clock.Reading{Wall: time.Unix(1_800_000_000, 0), Boot: time.Hour}), collected: make(chan struct{}, 100),
		gauge: Gauge("test_things", "Things.", "colour"), times: Distribution("test_seconds", "Times."),
		events: Counter("test_events_total", "Events."), seconds: meter.NewDurations(time.Millisecond, time.Second),
	}
}

func (w *watched) subject() Subject {
	read := func(p *error) func() Ailment {
		return func() Ailment {
			w.mu.Lock()
			defer w.mu.Unlock()
			return *p
		}
	}
	return Subject{
		Healthy: read(&w.healthy), Ready: read(&w.ready), Clock: w.clock, Logger: slog.New(slog.NewTextHandler(&w.log, nil)),
		Collect: Collect(func(s *Scrape) {
			if w.collecting != nil {
				w.collected <- struct{}{}
				<-w.collecting
			}
			s.Put(w.gauge, 3, "red")
			if w.twin {
				s.Put(w.gauge, 4, "red")
			}
			s.PutFlag(w.gauge, true, "blue")
			s.Put(w.events, 7)
			s.PutDistribution(w.times, w.seconds.Snapshot(), Nanoseconds)
		}),
	}
}

func (w *watched) set(healthy, ready error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.healthy, w.ready = healthy, ready
}

func startMonitor(t *testing.T, w *watched) *Monitor {
	t.Helper()
	m, err := StartMonitor(MonitorConfig{Listen: "127.0.0.1:0"}, w.subject())
	require.NoError(t, err)
	t.Cleanup(m.Close)
	return m
}

// client keeps no connection.
var oneShot = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}

func get(t *testing.T, m *Monitor, path string) (int, string) {
	t.Helper()
	r, err := oneShot.Get("http://" + m.Addr() + path)
	require.NoError(t, err)
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	return r.StatusCode, string(b)
}

func TestMonitorSaysWhatIsWrong(t *testing.T) {
	w := newWatched()
	m := startMonitor(t, w)
	for _, path := range []string{"/healthz", "/readyz"} {
		code, text := get(t, m, path)
		require.Equal(t, http.StatusOK, code)
		require.Equal(t, "ok\n", text)
	}
	w.set(errors.New("the writer stands"), errors.New("no lease"))
	code, text := get(t, m, "/healthz")
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.Equal(t, "not ok: the writer stands\n", text)
	code, text = get(t, m, "/readyz")
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.Equal(t, "not ok: no lease\n", text)
	w.set(nil, nil)
	code, _ = get(t, m, "/readyz")
	require.Equal(t, http.StatusOK, code)
	code, _ = get(t, m, "/")
	require.Equal(t, http.StatusNotFound, code)
	r, err := oneShot.Post("http://"+m.Addr()+"/readyz", "text/plain", strings.NewReader("x"))
	require.NoError(t, err)
	require.NoError(t, r.Body.Close())
	require.Equal(t, http.StatusMethodNotAllowed, r.StatusCode)
}

func TestMonitorMetrics(t *testing.T) {
	w := newWatched()
	w.seconds.Took(time.Microsecond)
	w.seconds.Took(500 * time.Millisecond)
	w.seconds.Took(time.Minute)
	m := startMonitor(t, w)
	code, text := get(t, m, "/metrics")
	require.Equal(t, http.StatusOK, code)
	p := expfmt.NewTextParser(model.LegacyValidation)
	families, err := p.TextToMetricFamilies(strings.NewReader(text))
	require.NoError(t, err)
	require.Contains(t, families, "go_goroutines")
	require.Contains(t, families, "process_open_fds")
	h := families["test_seconds"].GetMetric()[0].GetHistogram()
	require.EqualValues(t, 3, h.GetSampleCount())
	require.InDelta(t, 60.500001, h.GetSampleSum(), 1e-9)
	require.EqualValues(t, 0.001, h.GetBucket()[0].GetUpperBound())
	require.EqualValues(t, 1, h.GetBucket()[0].GetCumulativeCount())
	require.EqualValues(t, 1, h.GetBucket()[1].GetUpperBound())
	require.EqualValues(t, 2, h.GetBucket()[1].GetCumulativeCount())
	require.Contains(t, text, `test_things{colour="red"} 3`)
	require.Contains(t, text, `test_things{colour="blue"} 1`)
	require.Contains(t, text, "# TYPE test_events_total counter\ntest_events_total 7")
}

// TestMonitorOfAFaultyCollector: a scrape that cannot be right is an error, and is logged.
func TestMonitorOfAFaultyCollector(t *testing.T) {
	w := newWatched()
	w.twin = true
	m := startMonitor(t, w)
	code, _ := get(t, m, "/metrics")
	require.Equal(t, http.StatusInternalServerError, code)
	require.Contains(t, w.log.String(), `msg="monitor request failed"`)
}

func TestMonitorPortInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	_, err = StartMonitor(MonitorConfig{Listen: l.Addr().String()}, newWatched().subject())
	var busy *PortInUseError
	require.ErrorAs(t, err, &busy)
	require.Equal(t, ExitHeld, Code(err))
	require.ErrorContains(t, err, fmt.Sprintf("metrics.listen: %s is in use", l.Addr()))
	_, err = StartMonitor(MonitorConfig{Listen: "192.0.2.77:1"}, newWatched().subject())
	require.Equal(t, ExitConfig, Code(err), "%v", err)
	m, err := StartMonitor(MonitorConfig{}, newWatched().subject())
	require.NoError(t, err)
	require.Nil(t, m)
	m.Close()
}

// TestMonitorIsBounded holds every place with peers that say nothing. Others wait, and get in
// when one goes; a stop waits for nobody.
func TestMonitorIsBounded(t *testing.T) {
	w := newWatched()
	m := startMonitor(t, w)
	var silent []net.Conn
	for range maxScrapers {
		c, err := net.Dial("tcp", m.Addr())
		require.NoError(t, err)
		defer c.Close()
		silent = append(silent, c)
	}
	room := m.l.(*roomy).room
	require.Eventually(t, func() bool { return len(room) == maxScrapers }, time.Minute, time.Millisecond)
	answered := make(chan error, 1)
	go func() {
		r, err := oneShot.Get("http://" + m.Addr() + "/healthz")
		if err == nil {
			err = r.Body.Close()
		}
		answered <- err
	}()
	require.Empty(t, answered)
	require.NoError(t, silent[0].Close())
	require.NoError(t, <-answered)
	m.Close()
	_, err := silent[1].Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
}

// TestMonitorScrapesAreBounded: who scrapes while two scrapes are under way is told to come again.
func TestMonitorScrapesAreBounded(t *testing.T) {
	w := newWatched()
	w.collecting = make(chan struct{})
	m := startMonitor(t, w)
	codes := make(chan int, maxScrapes)
	for range maxScrapes {
		go func() {
			r, err := oneShot.Get("http://" + m.Addr() + "/metrics")
			if err != nil {
				codes <- 0
				return
			}
			r.Body.Close()
			codes <- r.StatusCode
		}()
		<-w.collected
	}
	code, _ := get(t, m, "/metrics")
	require.Equal(t, http.StatusServiceUnavailable, code)
	code, _ = get(t, m, "/healthz")
	require.Equal(t, http.StatusOK, code, "the rest does not wait for it")
	close(w.collecting)
	for range maxScrapes {
		require.Equal(t, http.StatusOK, <-codes)
	}
}

// TestMonitorLinesAreBounded: what peers make package http complain about fills no log.
func TestMonitorLinesAreBounded(t *testing.T) {
	w := newWatched()
	m := startMonitor(t, w)
	for range 5000 {
		fmt.Fprintln(complaints{m}, "http: something is wrong\ngoroutine 7 [running]")
	}
	require.Equal(t, monitorBurst, strings.Count(w.log.String(), "monitor request failed"))
	require.NotContains(t, w.log.String(), "goroutine")
	w.clock.Advance(monitorEvery)
	m.Close()
	require.Contains(t, w.log.String(), fmt.Sprintf("kind=monitor unlogged=%d", 5000-monitorBurst))
}

func TestBuild(t *testing.T) {
	b := ReadBuild()
	require.NotEmpty(t, b.Version)
	require.NotEmpty(t, b.Revision)
	require.Contains(t, b.Go, "go1")
	var _ prometheus.Collector = Collect(func(*Scrape) {})
}
