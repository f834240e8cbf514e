package console

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"coordinator/cmd/internal/overview"
	"coordinator/internal/clock"
	"coordinator/internal/text"
)

const (
	metricsWait = 3 * time.Second
	maxMetrics  = 4 << 20
)

// CheckMetrics refuses what is not the address of a metrics listener of this machine; empty is
// none.
func CheckMetrics(addr string) error {
	if addr == "" {
		return nil
	}
	u, err := url.Parse(addr)
	if err != nil || u.Scheme != "http" || u.Host == "" || u.RawQuery != "" || u.User != nil {
		return fmt.Errorf("--metrics is %q; it is the http address that [metrics] of coordinator.toml listens on, as in http://127.0.0.1:9464", addr)
	}
	host := u.Hostname()
	if ip, err := netip.ParseAddr(host); host == "localhost" || err == nil && ip.Unmap().IsLoopback() {
		return nil
	}
	return fmt.Errorf("--metrics is %q, which is another machine; metrics are not authenticated and are read on this one alone: forward the port with ssh -L", addr)
}

// metrics reads what the daemon tells of itself.
type metrics struct {
	url   string // empty: none was named
	http  *http.Client
	clock clock.Clock
	room  chan struct{}
}

func newMetrics(addr string, c clock.Clock) *metrics {
	m := &metrics{clock: c, room: make(chan struct{}, 1)}
	if addr != "" {
		m.url = strings.TrimSuffix(strings.TrimSuffix(addr, "/"), "/metrics") + "/metrics"
	}
	m.http = &http.Client{
		Transport:     &http.Transport{DialContext: (&net.Dialer{}).DialContext, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return m
}

// A quota is one resource of [quotas].
type quota struct {
	Resource       string  `json:"resource"`
	Used           float64 `json:"used"`
	PrincipalMost  float64 `json:"principal_most"`
	PrincipalLimit float64 `json:"principal_limit"`
	ServerLimit    float64 `json:"server_limit"`
}

// A latency is a histogram over the life of the daemon.
type latency struct {
	Count   uint64   `json:"count"`
	Mean    float64  `json:"mean_seconds"`
	P50     float64  `json:"p50_seconds"`
	P99     float64  `json:"p99_seconds"`
	Buckets []bucket `json:"buckets"`
}

// A bucket counts what took up to LE seconds; nil is any time.
type bucket struct {
	LE    *float64 `json:"le"`
	Count uint64   `json:"count"`
}

type daemonAnswer struct {
	Available bool               `json:"available"`
	Why       string             `json:"why,omitempty"`
	Next      string             `json:"next,omitempty"`
	At        *overview.Time     `json:"at,omitempty"`
	Ready     bool               `json:"ready"`
	Lease     *float64           `json:"lease_remaining_seconds,omitempty"`
	Quotas    []quota            `json:"quotas"`
	Commit    *latency           `json:"commit,omitempty"`
	Flush     *latency           `json:"flush,omitempty"`
	Gauges    map[string]float64 `json:"gauges,omitempty"`
}

// daemon answers GET /api/daemon.
func (s *Server) daemon(w http.ResponseWriter, r *http.Request) (any, *problem) {
	ctx, cancel := s.within(w, r, metricsWait)
	defer cancel()
	return s.metrics.read(ctx), nil
}

func notAvailable(why, next string) daemonAnswer {
	return daemonAnswer{Why: text.Inert(why), Next: next}
}

// read asks the daemon, one at a time.
func (m *metrics) read(ctx context.Context) daemonAnswer {
	if m.url == "" {
		return notAvailable("no metrics address was named", "set [metrics] listen in coordinator.toml, and give it to: coordctl console --metrics URL")
	}
	const next = "see whether the coordinator runs on this machine with [metrics] listen in its coordinator.toml"
	select {
	case m.room <- struct{}{}:
		defer func() { <-m.room }()
	case <-ctx.Done():
		return notAvailable("the daemon's metrics take too long", next)
	}
	families, err := m.scrape(ctx)
	if err != nil {
		return notAvailable("the daemon's metrics are not reached: "+err.Error(), next)
	}
	if families["coordinator_build_info"] == nil {
		return notAvailable("what answers at "+m.url+" is no coordinator", next)
	}
	out := daemonAnswer{Available: true, At: &overview.Time{Time: m.clock.Now().Wall}, Quotas: quotasOf(families), Gauges: map[string]float64{},
		Commit: latencyOf(families["coordinator_commit_duration_seconds"]), Flush: latencyOf(families["coordinator_log_flush_duration_seconds"])}
	for name, f := range families {
		if v, ok := plain(f); ok && strings.HasPrefix(name, "coordinator_") {
			out.Gauges[name] = v
		}
	}
	out.Ready = out.Gauges["coordinator_ready"] == 1
	if left, ok := out.Gauges["coordinator_lease_remaining_seconds"]; ok {
		out.Lease = &left
	}
	return out
}

func (m *metrics) scrape(ctx context.Context) (map[string]*dto.MetricFamily, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, m.url, nil)
	if err != nil {
		return nil, err
	}
	a, err := m.http.Do(r)
	if err != nil {
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err // which has the address in it
		}
		return nil, err
	}
	defer a.Body.Close()
	if a.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %d", a.StatusCode)
	}
	body := &io.LimitedReader{R: a.Body, N: maxMetrics}
	p := expfmt.NewTextParser(model.UTF8Validation)
	families, err := p.TextToMetricFamilies(body)
	if err == nil && body.N == 0 {
		err = fmt.Errorf("more than %d bytes", maxMetrics)
	}
	return families, err
}

// plain is the value of a family that has one, without labels and finite.
func plain(f *dto.MetricFamily) (float64, bool) {
	if len(f.Metric) != 1 || len(f.Metric[0].Label) > 0 {
		return 0, false
	}
	v, ok := value(f.Metric[0])
	return v, ok && !math.IsNaN(v) && !math.IsInf(v, 0)
}

func value(m *dto.Metric) (float64, bool) {
	switch {
	case m.Gauge != nil:
		return m.Gauge.GetValue(), true
	case m.Counter != nil:
		return m.Counter.GetValue(), true
	case m.Untyped != nil:
		return m.Untyped.GetValue(), true
	}
	return 0, false
}

func label(m *dto.Metric, name string) string {
	for _, l := range m.Label {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

// quotasOf gathers the families of quotas by resource.
func quotasOf(families map[string]*dto.MetricFamily) []quota {
	byName := map[string]*quota{}
	each := func(family string, set func(q *quota, m *dto.Metric, v float64)) {
		f := families[family]
		if f == nil {
			return
		}
		for _, m := range f.Metric {
			name := label(m, "resource")
			v, ok := value(m)
			if name == "" || !ok || math.IsNaN(v) || math.IsInf(v, 0) {
				continue
			}
			if byName[name] == nil {
				byName[name] = &quota{Resource: text.Inert(name)}
			}
			set(byName[name], m, v)
		}
	}
	each("coordinator_quota_used", func(q *quota, _ *dto.Metric, v float64) { q.Used = v })
	each("coordinator_quota_principal_most", func(q *quota, _ *dto.Metric, v float64) { q.PrincipalMost = v })
	each("coordinator_quota_limit", func(q *quota, m *dto.Metric, v float64) {
		if label(m, "level") == "server" {
			q.ServerLimit = v
		} else {
			q.PrincipalLimit = v
		}
	})
	out := []quota{}
	for _, q := range byName {
		out = append(out, *q)
	}
	slices.SortFunc(out, func(a, b quota) int { return strings.Compare(a.Resource, b.Resource) })
	return out
}

// latencyOf reads a histogram; nil where there is none.
func latencyOf(f *dto.MetricFamily) *latency {
	if f == nil || len(f.Metric) != 1 || f.Metric[0].Histogram == nil {
		return nil
	}
	h := f.Metric[0].Histogram
	out := &latency{Count: h.GetSampleCount(), Buckets: []bucket{}}
	if sum := h.GetSampleSum(); out.Count > 0 && !math.IsNaN(sum) && !math.IsInf(sum, 0) {
		out.Mean = sum / float64(out.Count)
	}
	for _, b := range h.Bucket {
		if le := b.GetUpperBound(); !math.IsInf(le, 0) && !math.IsNaN(le) {
			out.Buckets = append(out.Buckets, bucket{&le, b.GetCumulativeCount()})
		}
	}
	out.P50, out.P99 = out.quantile(0.5), out.quantile(0.99)
	out.Buckets = append(out.Buckets, bucket{nil, out.Count})
	return out
}

// quantile estimates from the finite buckets, as Prometheus does: evenly within the one where it
// lies, and never above the last bound.
func (l *latency) quantile(q float64) float64 {
	rank, low, below := q*float64(l.Count), 0.0, uint64(0)
	if l.Count == 0 {
		return 0
	}
	for _, b := range l.Buckets {
		if float64(b.Count) >= rank && b.Count > below {
			return low + (*b.LE-low)*(rank-float64(below))/float64(b.Count-below)
		}
		low, below = *b.LE, b.Count
	}
	return low
}
