package console

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/require"

	"coordinator/cmd/internal/daemon"
	"coordinator/internal/clock"
)

// A collected is a metric set such as a coordinator has.
type collected []prometheus.Metric

func (c collected) Describe(chan<- *prometheus.Desc) {}
func (c collected) Collect(out chan<- prometheus.Metric) {
	for _, m := range c {
		out <- m
	}
}

func gauge(name string, v float64, labels ...string) prometheus.Metric {
	var names, values []string
	for i := 0; i < len(labels); i += 2 {
		names, values = append(names, labels[i]), append(values, labels[i+1])
	}
	return prometheus.MustNewConstMetric(prometheus.NewDesc(name, "x", names, nil), prometheus.GaugeValue, v, values...)
}

// TestWhatTheDaemonTells reads a real metrics listener.
func TestWhatTheDaemonTells(t *testing.T) {
	commit := prometheus.MustNewConstHistogram(prometheus.NewDesc("coordinator_commit_duration_seconds", "x", nil, nil), 100, 0.5,
		map[float64]uint64{0.001: 50, 0.01: 98, 0.1: 100})
	m, err := daemon.StartMonitor(daemon.MonitorConfig{Listen: "127.0.0.1:0"}, daemon.Subject{Clock: clock.System(),
		Healthy: func() error { return nil }, Ready: func() error { return nil },
		Collect: collected{gauge("coordinator_build_info", 1, "version", "x"), gauge("coordinator_ready", 1), gauge("coordinator_lease_remaining_seconds", 7.5),
			gauge("coordinator_quota_used", 3, "resource", "runs"), gauge("coordinator_quota_principal_most", 2, "resource", "runs"),
			gauge("coordinator_quota_limit", 10, "resource", "runs", "level", "principal"), gauge("coordinator_quota_limit", 20, "resource", "runs", "level", "server"), commit}})
	require.NoError(t, err)
	x := newWorld(t)
	p := x.opened(x.reader, func(o *Options) { o.Metrics = "http://" + m.Addr() + "/" })
	var got daemonAnswer
	p.get("/api/daemon", &got)
	require.True(t, got.Available && got.Ready, "%+v", got)
	require.Equal(t, []quota{{"runs", 3, 2, 10, 20}}, got.Quotas)
	require.InDelta(t, 7.5, *got.Lease, 0.01)
	require.EqualValues(t, 100, got.Commit.Count)
	require.InDelta(t, 0.005, got.Commit.Mean, 1e-9)
	require.InDelta(t, 0.001, got.Commit.P50, 1e-9)
	require.InDelta(t, 0.055, got.Commit.P99, 1e-9)
	require.Len(t, got.Commit.Buckets, 4)
	require.Nil(t, got.Commit.Buckets[3].LE)
	require.Nil(t, got.Flush)
	m.Close()
	p.get("/api/daemon", &got)
	require.False(t, got.Available)
	require.NotEmpty(t, got.Next)
}

func TestMetricsThatAreNone(t *testing.T) {
	redirected := http.NewServeMux()
	redirected.Handle("/metrics", http.RedirectHandler("http://192.0.2.1/metrics", http.StatusFound))
	endless := http.NewServeMux()
	endless.HandleFunc("/metrics", func(w http.ResponseWriter, _ *http.Request) {
		line := []byte(strings.Repeat("# x\n", 1000))
		for range 2 * maxMetrics / len(line) {
			if _, err := w.Write(line); err != nil {
				return
			}
		}
	})
	witness := prometheus.NewRegistry()
	require.NoError(t, witness.Register(collected{gauge("witness_ready", 1)}))
	for name, h := range map[string]http.Handler{
		"another daemon's": promhttp.HandlerFor(witness, promhttp.HandlerOpts{}),
		"a redirection":    redirected,
		"an endless text":  endless,
		"no path":          http.NotFoundHandler(),
		"no metrics":       http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("<html>")) }), //nolint:errcheck // a test
	} {
		t.Run(name, func(t *testing.T) {
			s := httptest.NewServer(h)
			defer s.Close()
			got := newMetrics(s.URL, clock.System()).read(t.Context())
			require.False(t, got.Available)
			require.NotEmpty(t, got.Why)
			require.NotEmpty(t, got.Next)
		})
	}
	got := newMetrics("", clock.System()).read(t.Context())
	require.False(t, got.Available)
	require.Contains(t, got.Next, "--metrics")
}

func TestMetricsAreReadOnThisMachine(t *testing.T) {
	for _, ok := range []string{"", "http://127.0.0.1:9464", "http://[::1]:9464/metrics", "http://localhost:9464/"} {
		require.NoError(t, CheckMetrics(ok), ok)
	}
	for _, bad := range []string{"127.0.0.1:9464", "https://127.0.0.1:9464", "http://192.0.2.1:9464", "http://", "http://u:p@127.0.0.1:1", "http://127.0.0.1:1/?x=y", "file:///etc/passwd"} {
		require.Error(t, CheckMetrics(bad), bad)
	}
}
