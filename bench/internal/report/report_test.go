package report

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/bench/internal/measure"
)

// results are those with these medians.
func results(figures map[string]float64) *measure.Results {
	r := &measure.Results{Date: "today", Machine: map[string]string{"cores": "2"}}
	for name, v := range figures {
		r.Rows = append(r.Rows, &measure.Row{Part: "p/q", Name: name, Unit: "u", Median: v, Min: v, Max: v, Values: []float64{v}})
	}
	return r
}

// line is the line of the table that begins with row and what.
func line(t *testing.T, r *measure.Results, row, what string) string {
	t.Helper()
	var b strings.Builder
	require.NoError(t, Write(&b, r))
	for l := range strings.Lines(b.String()) {
		if strings.HasPrefix(l, fmt.Sprintf("| %s | %s", row, what)) {
			return strings.TrimSpace(l)
		}
	}
	t.Fatalf("no line %s %s in\n%s", row, what, b.String())
	return ""
}

func TestTargets(t *testing.T) {
	r := results(map[string]float64{
		"own.command.c64": 30_000, "etcd.put.c64": 10_000, "redis.xadd.c64": 40_000,
		"own.command.c64.p99": 8000, "etcd.put.c64.p99": 10_000,
		"own.fan500.f64": 900_000, "own.fan500.f64.p99": 5, "rawfan.n500.batch64": 3_000_000,
		"etcd.fan500.f64": 100_000, "nats.fan500.f64": 300_000, "nats.fan500.f64.p99": 20, "etcd.fan500.f64.p99": 1,
		"own.snapshot": 500, "sha256": 1000, "own.restart": 1.5,
		"codec.command.allocs": 1, "codec.event.allocs": 3, "own.memory.operation.heap": -4,
	})
	var b strings.Builder
	require.NoError(t, Write(&b, r))
	require.NotContains(t, b.String(), "256 in flight", "what was not asked for")
	r.Parts = []measure.PartInfo{{Name: "own/fan100", Err: "broke"}}
	for _, tt := range []struct{ row, what, want string }{
		{"1", "commands/s, 64", "| 30000 /s | 10000 /s | 3.00× | ≥ 3× | yes |  |  |"},
		{"1", "the same, p99", "| 8000 µs | 10000 µs | 0.80× | ≤ 0.7× | **no** |  |  |"},
		{"1", "the same, to Redis", "| 30000 /s | 40000 /s | 0.75× |  |  | ≥ 1× | **no** |"},
		{"2", "commands/s, 256", "|  |  | not measured | ≥ 3× | ? |  |  |"},
		{"5", "the same, to row 1", "|  | 30000 /s | not measured |"},
		{"6", "fan-out to 500, 64", "| 900k events/s | 300k events/s | 3.00× | ≥ 3× | yes |"},
		{"6", "the same, p99", "| 5.00 ms | 20.0 ms | 0.25× | ≤ 0.4× | yes |"},
		{"6", "the same, share", "| 900k events/s | 3.00M events/s | 30.0 % |  |  | ≥ 20 % | yes |"},
		{"8", "verified snapshot", "| 500 MB/s | 1000 MB/s | 50.0 % | ≥ 45 % | yes | ≥ 60 % | **no** |"},
		{"13", "COORD_COMMAND decoded and encoded, allocations", "| 0.00 |  | 0.00 | ≤ 0 | yes |"},
		{"13", "COORD_EVENT decoded and encoded, allocations", "| 2.00 |  | 2.00 | ≤ 0 | **no** |"},
		{"14", "start after SIGKILL", "| 1.50 s |  | 1.50 s | ≤ 2 s | yes | ≤ 0.5 s | **no** |"},
		{"15", "heap in use per finished operation", "| -4.00 B |  | -4.00 B | ≤ 4 B | yes |"},
	} {
		t.Run(tt.row+" "+tt.what, func(t *testing.T) {
			got := line(t, r, tt.row, tt.what)
			if tt.row == "5" { // the other figure is told when the own one is missing
				require.Contains(t, got, "not measured")
				return
			}
			require.Contains(t, got, tt.want)
		})
	}
}

// TestEveryRowHasABound holds every row to one, which is reached by what lies on it.
func TestEveryRowHasABound(t *testing.T) {
	bounds := map[string]int{}
	for _, target := range targets() {
		for _, bound := range []float64{target.must, target.aim} {
			if math.IsNaN(bound) {
				continue
			}
			bounds[target.row]++
			require.Equal(t, reached, target.judge(bound, true, bound))
			require.Equal(t, missed, target.judge(bound-1, true, bound+map[bool]float64{true: -2, false: 0}[target.atMost]))
			require.Equal(t, unmeasured, target.judge(0, false, bound))
		}
		require.Equal(t, noBound, target.judge(1, true, none))
	}
	for row := 1; row <= 15; row++ {
		require.Positive(t, bounds[fmt.Sprint(row)], "row %d", row)
	}
}

func TestWriteTellsWhatFailed(t *testing.T) {
	r := results(map[string]float64{"own.command.c64": 1})
	r.Rows[0].Note = "quotas: connections = 508"
	r.Scale = 0.5
	r.Parts = []measure.PartInfo{{Name: "redis/xadd", Err: "install it with: apt-get install redis-server\nmore", Rerun: true}}
	var b strings.Builder
	require.NoError(t, Write(&b, r))
	require.Contains(t, b.String(), "* `own.command.c64`: quotas: connections = 508\n")
	require.Contains(t, b.String(), "* **redis/xadd failed**: install it with: apt-get install redis-server\n")
	require.Contains(t, b.String(), "scaled by 0.5")
	require.Contains(t, b.String(), "| redis/xadd (second run) |")
	require.Contains(t, b.String(), "| own.command.c64 | u | 1.00 | 1.00 | 1.00 | 1 |")
}

func TestWriteReportsAFullDisk(t *testing.T) {
	full := errors.New("no space")
	read, write := io.Pipe()
	require.NoError(t, read.CloseWithError(full))
	require.ErrorIs(t, Write(write, results(map[string]float64{"x": 1})), full)
}

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0.00", 1.234: "1.23", -19.66: "-19.7", 123.4: "123", 12_345: "12345", 123_456: "123k", 3_400_000: "3.40M",
	} {
		require.Equal(t, want, number(v))
	}
}

func TestCurves(t *testing.T) {
	dir := t.TempDir()
	r := results(map[string]float64{
		"growth.command@0.01": 20_000, "growth.command@10": 15_000, "growth.command@1": 18_000, "growth.restart@1": 0,
		"own.command.c64": 3, "growth.snapshot@name": 1, "growth.command.p50@1": 7,
	})
	list := curves(r)
	require.Len(t, list, 2)
	for _, c := range list {
		for i := 1; i < len(c.points); i++ {
			require.Less(t, c.points[i-1].x, c.points[i].x)
		}
	}
	require.NoError(t, Curves(dir, r))
	for name, points := range map[string]int{"growth-command.svg": 3, "growth-restart.svg": 1} {
		raw, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		require.Equal(t, points, strings.Count(string(raw), "<circle"))
		require.NotContains(t, string(raw), "NaN")
		var parsed struct{}
		require.NoError(t, xml.Unmarshal(raw, &parsed))
	}
}

func TestNiceCeil(t *testing.T) {
	for v, want := range map[float64]float64{0: 1, 0.013: 0.02, 1: 1, 2.1: 2.5, 26: 50, 51: 100, 99_000: 100_000} {
		require.InDelta(t, want, niceCeil(v), 1e-9)
	}
}
