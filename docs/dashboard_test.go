package docs

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	metricRow  = regexp.MustCompile("^\\| `([a-z_]+)` \\| (gauge|counter|histogram) \\|([^|]*)\\|")
	metricName = regexp.MustCompile(`\b(?:coordinator|witness|owner|process|go)_[a-z_]+\b`)
	legendName = regexp.MustCompile(`\{\{([a-z_]+)\}\}`)
	byLabels   = regexp.MustCompile(`\b(?:by|on) \(([a-z_, ]+)\)`)
)

// library are the families of the client library that the dashboard draws.
var library = map[string]bool{
	"process_cpu_seconds_total": true, "process_resident_memory_bytes": true, "process_open_fds": true, "process_max_fds": true,
	"go_goroutines": true,
}

// A dashboard is what the test looks at in a Grafana dashboard.
type dashboard struct {
	Title  string
	Panels []struct {
		ID      int
		Type    string
		Title   string
		GridPos struct{ H, W, X, Y int }
		Targets []struct{ Expr, LegendFormat string }
	}
	Templating struct{ List []struct{ Name string } }
}

// TestTheDashboardDrawsWhatThereIs: each expression names metrics that are documented, with
// their labels, and each documented metric is drawn somewhere.
func TestTheDashboardDrawsWhatThereIs(t *testing.T) {
	doc, err := os.ReadFile("metrics.md")
	require.NoError(t, err)
	kinds, labels := map[string]string{}, map[string]string{}
	for line := range strings.Lines(string(doc)) {
		if m := metricRow.FindStringSubmatch(line); m != nil {
			kinds[m[1]], labels[m[1]] = m[2], m[3]
		}
	}
	require.Greater(t, len(kinds), 80)
	raw, err := os.ReadFile("grafana-dashboard.json")
	require.NoError(t, err)
	var d dashboard
	require.NoError(t, json.Unmarshal(raw, &d))
	require.NotEmpty(t, d.Title)
	var variables []string
	for _, v := range d.Templating.List {
		variables = append(variables, v.Name)
	}
	require.ElementsMatch(t, []string{"datasource", "instance"}, variables)

	drawn, ids := map[string]bool{}, map[int]bool{}
	for _, p := range d.Panels {
		require.False(t, ids[p.ID], "two panels with id %d", p.ID)
		ids[p.ID] = true
		require.LessOrEqual(t, p.GridPos.X+p.GridPos.W, 24, p.Title)
		if p.Type == "row" {
			continue
		}
		require.NotEmpty(t, p.Targets, p.Title)
		for _, target := range p.Targets {
			require.Equal(t, strings.Count(target.Expr, "("), strings.Count(target.Expr, ")"), target.Expr)
			require.Equal(t, strings.Count(target.Expr, "{"), strings.Count(target.Expr, "}"), target.Expr)
			own := "instance,le"
			for _, name := range metricName.FindAllString(target.Expr, -1) {
				if library[name] {
					continue
				}
				family, bucket := strings.CutSuffix(name, "_bucket")
				kind, ok := kinds[family]
				require.True(t, ok, "%s: %s is not in metrics.md", p.Title, name)
				require.Equal(t, kind == "histogram", bucket, "%s: %s is a %s", p.Title, name, kind)
				require.Equal(t, kind != "gauge", strings.Contains(target.Expr, "rate("+name), "%s: %s is a %s", p.Title, name, kind)
				drawn[family] = true
				own += "," + labels[family]
			}
			for _, l := range legendName.FindAllStringSubmatch(target.LegendFormat, -1) {
				require.Contains(t, own, l[1], "%s: the legend %s", p.Title, target.LegendFormat)
			}
			for _, by := range byLabels.FindAllStringSubmatch(target.Expr, -1) {
				for _, l := range strings.Split(by[1], ",") {
					require.Contains(t, own, strings.TrimSpace(l), target.Expr)
				}
			}
		}
	}
	for name := range kinds {
		require.True(t, drawn[name], "%s is drawn nowhere", name)
	}
}
