package measure

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestHistQuantiles(t *testing.T) {
	h := new(Hist)
	require.Zero(t, h.Quantile(.5), "nothing was counted")
	for i := range int64(1000) {
		h.Record((i + 1) * 1000)
	}
	h.Record(-5) // a clock that went back
	for q, want := range map[float64]float64{.5: 500e3, .99: 990e3, 1: 1000e3} {
		require.InEpsilon(t, want, h.Quantile(q), .016)
	}
	require.Zero(t, h.Quantile(0))
	var all Hist
	all.Merge(h)
	all.Merge(h)
	require.Equal(t, h.Quantile(.99), all.Quantile(.99))
}

// TestBuckets holds every latency against the bucket that it falls into.
func TestBuckets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ns := rapid.Int64Range(0, int64(time.Hour)).Draw(t, "ns")
		i := bucket(ns)
		if got := middle(i); math.Abs(got-float64(ns)) > .016*float64(ns)+.5 {
			t.Fatalf("%d ns fall into the bucket of %g", ns, got)
		}
		if bucket(ns+1) < i {
			t.Fatalf("%d ns lie in a higher bucket than one more", ns)
		}
	})
	require.Equal(t, buckets-1, bucket(math.MaxInt64))
}

func TestMedian(t *testing.T) {
	require.True(t, math.IsNaN(Median(nil)))
	require.Equal(t, 3.0, Median([]float64{5, 3, 1}))
	require.Equal(t, 2.5, Median([]float64{4, 1, 3, 2}))
	values := []float64{3, 1, 2}
	Median(values)
	require.Equal(t, []float64{3, 1, 2}, values, "the repetitions keep their order")
}

func TestRecorder(t *testing.T) {
	r := NewRecorder("p/q")
	r.Note("b", "too early")
	r.Add("b", "ms", 2)
	r.Add("a", "/s", 1)
	r.Add("b", "ms", 4)
	r.Add("b", "ms", math.NaN())
	r.Add("c", "ms", math.Inf(1))
	r.Note("b", "noted")
	rows := r.Rows()
	require.Len(t, rows, 2, "what is no number is no figure")
	require.Equal(t, Row{Part: "p/q", Name: "b", Unit: "ms", Median: 3, Min: 2, Max: 4, Note: "noted", Values: []float64{2, 4}}, *rows[0])
	require.Equal(t, "a", rows[1].Name)
}

func TestParseStat(t *testing.T) {
	require.Equal(t, 310*time.Millisecond, parseStat("7 (a ) b) S 1 7 7 0 -1 4 9 0 0 0 11 20 0 0 20 0 9 0 1"))
	require.Zero(t, parseStat("7 (cut) S 1"))
	require.Zero(t, parseStat(""))
	require.Positive(t, ProcCPU(os.Getpid())+SelfCPU())
	rss, err := RSSAnon(os.Getpid())
	require.NoError(t, err)
	require.Greater(t, rss, int64(1<<20))
}

func env(t *testing.T) *Env {
	return &Env{Dir: t.TempDir(), Rec: NewRecorder("t"), Scale: 1}
}

func figures(e *Env) map[string]*Row {
	m := map[string]*Row{}
	for _, r := range e.Rec.Rows() {
		m[r.Name] = r
	}
	return m
}

func TestLoopCountsEveryOperation(t *testing.T) {
	e := env(t)
	l := Loop{Name: "l", Workers: 3, PerOp: 2, Warm: time.Millisecond, Window: 200 * time.Millisecond, Reps: 2, PID: os.Getpid()}
	l.Do = func(w, i int) error { runtime.Gosched(); return nil }
	require.NoError(t, e.Run(t.Context(), l))
	got := figures(e)
	require.Len(t, got["l"].Values, 2)
	require.Positive(t, got["l"].Min)
	require.Contains(t, got, "l.p99")
	require.Contains(t, got, "l.server_cpu")
}

func TestLoadsEndWithTheirFirstError(t *testing.T) {
	e := env(t)
	failed := errors.New("refused")
	l := Loop{Name: "l", Workers: 2, Warm: time.Hour, Window: time.Hour, Reps: 1, Do: func(int, int) error { return failed }}
	require.ErrorIs(t, e.Run(t.Context(), l), failed)
	f := Fan{Name: "f", Subs: NewSubscribers(1), Reps: 1, InFlight: 2, Window: time.Hour, Publish: func(int, []byte) error { return failed }}
	require.ErrorIs(t, e.Fan(t.Context(), f), failed)
}

func TestFanTellsWhatWasNotDelivered(t *testing.T) {
	e := env(t)
	subs := NewSubscribers(2)
	var order atomic.Uint64
	f := Fan{Name: "f", Subs: subs, Reps: 2, InFlight: 1, Window: 20 * time.Millisecond, Drain: time.Millisecond}
	f.Publish = func(_ int, event []byte) error {
		require.Len(t, event, ValueSize)
		subs[0].Take(event, Now(), order.Add(1)) // and the other gets nothing
		return nil
	}
	require.NoError(t, e.Fan(t.Context(), f))
	got := figures(e)
	require.Equal(t, 50.0, got["f.undelivered"].Median)
	require.Empty(t, got["f"].Note)
	require.Positive(t, got["f.p99"].Median)

	subs[0].Take(make([]byte, ValueSize), Now(), 1) // again
	subs[0].Take([]byte{1}, Now(), order.Add(1))
	subs[1].Gap()
	require.NoError(t, e.Fan(t.Context(), f))
	require.Contains(t, figures(e)["f"].Note, "2 out of order or short")
	require.Equal(t, 1.0, figures(e)["f.gaps"].Max)
}

func TestSubscribersTellRunsApart(t *testing.T) {
	s := NewSubscribers(1)[0]
	event := make([]byte, ValueSize)
	for run := range uint32(3) {
		binary.LittleEndian.PutUint32(event[eventRun:], run)
		s.Take(event, Now(), uint64(run)+1)
	}
	for run := range 3 {
		require.EqualValues(t, 1, s.got[run].Load())
	}
}

func TestRunner(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "ca.pem"), nil, 0o600))
	attempts := 0
	var log strings.Builder
	r := Runner{Dir: dir, Scale: 1, Budget: time.Minute, PartLimit: time.Minute, Log: &log}
	res := r.Run(t.Context(), []Part{
		{"a/good", func(_ context.Context, e *Env) error {
			_, err := e.TempDir("left")
			e.Rec.Add("good", "s", 1)
			return err
		}},
		{"a/once", func(_ context.Context, e *Env) error {
			attempts++
			e.Rec.Add("once", "s", float64(attempts))
			if attempts == 1 {
				return errors.New("not yet")
			}
			return nil
		}},
		{"a/bad", func(context.Context, *Env) error { return errors.New("never") }},
	})
	require.Len(t, res.Parts, 3)
	require.Equal(t, "never", res.Parts[2].Err)
	require.True(t, res.Parts[1].Rerun)
	v, ok := res.Get("once")
	require.True(t, ok)
	require.Equal(t, 2.0, v, "the second run counts")
	_, ok = res.Get("nothing")
	require.False(t, ok)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 1, "files stay, directories go")
}

func TestRunnerStopsWithItsTime(t *testing.T) {
	r := Runner{Dir: t.TempDir(), Scale: 1, Budget: time.Nanosecond, PartLimit: time.Minute, Log: new(strings.Builder)}
	res := r.Run(t.Context(), []Part{{"a/b", func(context.Context, *Env) error { t.Error("ran"); return nil }}})
	require.Contains(t, res.Parts[0].Err, "not run")
}

func TestLoadPoolsRuns(t *testing.T) {
	dir := t.TempDir()
	var paths []string
	for i, v := range []float64{3, 1, 2} {
		r := Results{Date: string(rune('a' + i)), Seconds: 10, Parts: []PartInfo{{Name: "p/q"}}, Rows: []*Row{{Part: "p/q", Name: "x", Unit: "s", Note: "n", Values: []float64{v}}}}
		path := filepath.Join(dir, r.Date)
		require.NoError(t, r.Save(path))
		paths = append(paths, path)
	}
	all, err := Load(paths)
	require.NoError(t, err)
	require.Equal(t, "a, b, c", all.Date)
	require.Equal(t, 30.0, all.Seconds)
	require.Len(t, all.Parts, 3)
	require.Len(t, all.Rows, 1)
	require.Equal(t, Row{Part: "p/q", Name: "x", Unit: "s", Median: 2, Min: 1, Max: 3, Note: "n", Values: []float64{3, 1, 2}}, *all.Rows[0])
	_, err = Load(nil)
	require.Error(t, err)
	_, err = Load([]string{filepath.Join(dir, "missing")})
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestCertsAreMadeOnce(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, MakeCerts(dir))
	before, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
	require.NoError(t, err)
	require.NoError(t, MakeCerts(dir))
	after, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
	require.NoError(t, err)
	require.Equal(t, before, after)
	c, err := TLSConfig(dir, "server", true, "x")
	require.NoError(t, err)
	require.Len(t, c.Certificates, 1)
	require.NotNil(t, c.ClientCAs)
	c, err = TLSConfig(dir, "client", false)
	require.NoError(t, err)
	require.Empty(t, c.Certificates)
}
