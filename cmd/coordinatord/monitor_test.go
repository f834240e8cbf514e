package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"

	"coordinator/cmd/internal/daemon"
	"coordinator/frames"
)

// monitored makes a daemon of a state directory serve its metrics on a port of its choice.
func monitored(t *testing.T, dir, file string) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, file), os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteString("\n[metrics]\nlisten = \"127.0.0.1:0\"\n")
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

var monitorLine = regexp.MustCompile(`"?monitor serves"?.*?(127\.0\.0\.1:\d+)`)

// monitor waits until a daemon answers probes, and gives its address.
func (p *process) monitor() string {
	p.t.Helper()
	var addr string
	require.Eventually(p.t, func() bool {
		m := monitorLine.FindStringSubmatch(p.output())
		if m == nil {
			return false
		}
		addr = m[1]
		return true
	}, waitFor, tick)
	return addr
}

var oneShot = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}

// probe gives the answer to one probe; code 0 when nobody is there.
func probe(addr, path string) (code int, text string) {
	r, err := oneShot.Get("http://" + addr + path)
	if err != nil {
		return 0, err.Error()
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return 0, err.Error()
	}
	return r.StatusCode, string(b)
}

// becomes waits for an answer to a probe.
func becomes(t *testing.T, addr, path string, code int, text string) {
	t.Helper()
	var last string
	require.Eventually(t, func() bool {
		c, s := probe(addr, path)
		last = fmt.Sprintf("%d %s", c, s)
		return c == code && strings.Contains(s, text)
	}, waitFor, tick, "%s is not %d %q", path, code, text)
	require.NotEmpty(t, last)
}

// A family is one metric by its name, type and labels.
type family struct{ kind, labels string }

// scrape is what a daemon exposes: its families but for those of the client library, and all
// values of labels.
func scrape(t *testing.T, addr string) (map[string]family, map[string]float64) {
	t.Helper()
	code, text := probe(addr, "/metrics")
	require.Equal(t, http.StatusOK, code, text)
	p := expfmt.NewTextParser(model.LegacyValidation)
	parsed, err := p.TextToMetricFamilies(strings.NewReader(text))
	require.NoError(t, err)
	out, values := map[string]family{}, map[string]float64{}
	for name, f := range parsed {
		if strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") || strings.HasPrefix(name, "promhttp_") {
			continue
		}
		var labels []string
		for _, m := range f.GetMetric() {
			var own, all []string
			for _, l := range m.GetLabel() {
				own = append(own, l.GetName())
				all = append(all, l.GetValue())
				if name != "coordinator_build_info" && name != "witness_build_info" && name != "owner_build_info" {
					require.Regexp(t, `^[a-z][a-z_0-9]{0,40}$`, l.GetValue(), "%s: a value from a list", name)
					require.NotRegexp(t, `[0-9a-f]{12}`, l.GetValue(), "%s: no id", name)
				}
			}
			slices.Sort(own)
			require.True(t, labels == nil || slices.Equal(labels, own), name)
			labels = own
			key := name + "{" + strings.Join(all, ",") + "}"
			values[key] = m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
		out[name] = family{strings.ToLower(f.GetType().String()), strings.Join(labels, ",")}
	}
	return out, values
}

var documentRow = regexp.MustCompile("^\\| `((?:coordinator|witness|owner)_[a-z_]+)` \\| ([a-z]+) \\|([^|]*)\\|")

// documented is what docs/metrics.md has of the families that begin with prefix.
func documented(t *testing.T, prefix string) map[string]family {
	t.Helper()
	raw, err := os.ReadFile("../../docs/metrics.md")
	require.NoError(t, err)
	out := map[string]family{}
	for line := range strings.Lines(string(raw)) {
		m := documentRow.FindStringSubmatch(line)
		if m == nil || !strings.HasPrefix(m[1], prefix) {
			continue
		}
		var labels []string
		for _, l := range strings.Split(m[3], ",") {
			if l = strings.Trim(l, " `"); l != "" {
				labels = append(labels, l)
			}
		}
		slices.Sort(labels)
		require.NotContains(t, out, m[1], "twice")
		out[m[1]] = family{m[2], strings.Join(labels, ",")}
	}
	return out
}

// TestMetricsAreTheDocuments holds what the three daemons expose against docs/metrics.md, and
// against what has been done with them.
func TestMetricsAreTheDocuments(t *testing.T) {
	t.Parallel()
	r := withOwner(t)
	wdir := filepath.Join(r.root, "w")
	monitored(t, r.dir, configFile)
	monitored(t, r.odir, "owner.toml")
	monitored(t, wdir, "witness.toml")
	require.Equal(t, 0, r.witness.stop())
	r.witness = launch(t, nil, witnessd, "serve", "--state", wdir)
	r.witness.ready()
	require.Equal(t, 0, r.process.stop())
	r.startOwner()
	p := r.serve()
	p.ready()
	c := r.dial()
	defer c.Close()
	s := r.start(c, "/bin/sh", "-c", "echo hello")
	r.send(c, s.cmd)
	require.Equal(t, frames.RunCompleted, r.ended(c, s).State)

	for prefix, addr := range map[string]string{
		"coordinator_": p.monitor(), "witness_": r.witness.monitor(), "owner_": r.process.monitor(),
	} {
		exposed, _ := scrape(t, addr)
		require.Equal(t, documented(t, prefix), exposed, "docs/metrics.md and %s*", prefix)
		for _, path := range []string{"/healthz", "/readyz"} {
			code, text := probe(addr, path)
			require.Equal(t, http.StatusOK, code, text)
		}
	}
	var v map[string]float64
	require.Eventually(t, func() bool { // the worker counts after the writer has told everybody
		_, v = scrape(t, p.monitor())
		return v["coordinator_outbox_outcomes_total{succeeded}"] == 1
	}, waitFor, tick)
	require.EqualValues(t, 1, v["coordinator_ready{}"])
	require.Greater(t, v["coordinator_lease_remaining_seconds{}"], 0.0)
	require.GreaterOrEqual(t, v["coordinator_commit_duration_seconds{}"], 2.0)
	require.GreaterOrEqual(t, v["coordinator_log_flush_duration_seconds{}"], v["coordinator_commit_duration_seconds{}"])
	require.EqualValues(t, 1, v["coordinator_owner_links{up}"])
	require.GreaterOrEqual(t, v["coordinator_connections{authenticated,unix}"]+v["coordinator_connections{unix,authenticated}"], 1.0)
	require.EqualValues(t, 1, v["coordinator_records{objective}"])
	require.Greater(t, v["coordinator_disk_free_bytes{}"], v["coordinator_disk_reserve_bytes{}"])
	_, v = scrape(t, r.witness.monitor())
	require.EqualValues(t, 1, v["witness_grants_total{activation}"])
	require.EqualValues(t, 1, v["witness_leases{live}"])
	require.Eventually(t, func() bool { // the journal is read anew after a while
		_, v = scrape(t, r.process.monitor())
		return v["owner_bindings{closed}"] == 1 && v["owner_facts_unread{}"] == 0
	}, waitFor, 500*time.Millisecond)
	require.EqualValues(t, 1, v["owner_processes_total{started}"])
	require.EqualValues(t, len("hello\r\n"), v["owner_output_bytes_total{}"])
	require.EqualValues(t, 1, v["owner_effects{succeeded}"])
	require.Equal(t, 0, p.stop())
}

// TestReadinessFollowsTheLease takes the witness away until the lease has ended, and brings
// it back: ready, not ready, not ready in a new start, ready.
func TestReadinessFollowsTheLease(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	monitored(t, r.dir, configFile)
	p := r.serve()
	p.ready()
	addr := p.monitor()
	becomes(t, addr, "/readyz", http.StatusOK, "ok")

	r.witness.signal(syscall.SIGSTOP) // it is there and does not answer
	require.Eventually(t, func() bool {
		code, _ := probe(addr, "/readyz")
		return code != http.StatusOK
	}, waitFor, tick)
	require.Equal(t, daemon.ExitFenced, p.ends())
	code, text := probe(addr, "/readyz")
	require.Zero(t, code, text)

	// A supervisor starts it again. It says what it waits for, is healthy, and is not ready.
	p = r.serve()
	addr = p.monitor()
	code, text = probe(addr, "/readyz")
	if code != 0 { // else it has given up already
		require.Equal(t, http.StatusServiceUnavailable, code)
		require.Contains(t, text, "not ok: starting: ")
	}
	if code, text = probe(addr, "/healthz"); code != 0 {
		require.Equal(t, http.StatusOK, code, text)
	}
	r.witness.signal(syscall.SIGCONT)
	require.Eventually(t, func() bool {
		select {
		case <-p.exited:
			require.Equal(t, daemon.ExitWitness, p.cmd.ProcessState.ExitCode(), p.output())
			p = r.serve()
			addr = p.monitor()
		default:
		}
		code, _ := probe(addr, "/readyz")
		return code == http.StatusOK
	}, waitFor, tick)
	r.connect()
	require.Equal(t, 0, p.stop())
}

// TestHealthOfAWriterThatHangs holds a commit for longer than a writer may be silent, as a
// disk that does not answer would.
func TestHealthOfAWriterThatHangs(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	monitored(t, r.dir, configFile)
	p := r.serve("COORDINATOR_FAILPOINT=record-written=sleep:30s@8")
	p.ready()
	addr := p.monitor()
	becomes(t, addr, "/healthz", http.StatusOK, "ok")
	c := r.connect()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 20 {
			cmd, _ := create(t)
			if _, err := c.Command(t.Context(), cmd); err != nil {
				return
			}
		}
	}()
	becomes(t, addr, "/healthz", http.StatusServiceUnavailable, "the commit writer has not come round for ")
	becomes(t, addr, "/healthz", http.StatusOK, "ok")
	<-done
}

// TestHealthOfAWitnessThatHangs is the same for a grant that is not stored.
func TestHealthOfAWitnessThatHangs(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	wdir := filepath.Join(r.root, "w")
	monitored(t, wdir, "witness.toml")
	require.Equal(t, 0, r.witness.stop())
	r.witness = launch(t, []string{"COORDINATOR_FAILPOINT=witness-built=sleep:30s"}, witnessd, "serve", "--state", wdir)
	r.witness.ready()
	addr := r.witness.monitor()
	becomes(t, addr, "/readyz", http.StatusOK, "ok")
	r.serve() // it asks for an activation, and may give up
	becomes(t, addr, "/healthz", http.StatusServiceUnavailable, "the witness has not come round for ")
	code, text := probe(addr, "/readyz")
	require.NotEqual(t, http.StatusOK, code, text)
	becomes(t, addr, "/readyz", http.StatusOK, "ok")
}

// TestMetricsAddress: what cannot or must not be listened on ends each daemon's start with a
// text that names the key.
func TestMetricsAddress(t *testing.T) {
	t.Parallel()
	r := withOwner(t)
	require.Equal(t, 0, r.process.stop())
	require.Equal(t, 0, r.witness.stop())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	for _, d := range []struct{ program, dir, file string }{
		{coordinatord, r.dir, configFile}, {witnessd, filepath.Join(r.root, "w"), "witness.toml"}, {ownerd, r.odir, "owner.toml"},
	} {
		file := filepath.Join(d.dir, d.file)
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Contains(t, string(text), "# [metrics]", "an example")
		with := func(lines string) *process {
			require.NoError(t, os.WriteFile(file, []byte(string(text)+"\n[metrics]\n"+lines+"\n"), 0o600))
			return launch(t, nil, d.program, "serve", "--state", d.dir)
		}
		p := with(fmt.Sprintf("listen = %q", l.Addr()))
		require.Equal(t, daemon.ExitHeld, p.ends())
		require.Contains(t, p.output(), fmt.Sprintf("metrics.listen: %s is in use by another process", l.Addr()))
		p = with(`listen = "0.0.0.0:0"`)
		require.Equal(t, daemon.ExitConfig, p.ends())
		require.Contains(t, p.output(), "metrics.allow_remote = true")
		p = with(`listen = "here"`)
		require.Equal(t, daemon.ExitConfig, p.ends())
		require.Contains(t, p.output(), "metrics.listen must be the host:port")
		require.NoError(t, os.WriteFile(file, text, 0o600))
	}
}
