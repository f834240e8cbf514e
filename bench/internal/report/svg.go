package report

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"coordinator/bench/internal/measure"
)

// growthMark stands between a figure's name and the share of the state it was measured at.
const growthMark = "@"

// drawn are the figures that are worth a curve; the others are in the table.
var drawn = []string{"growth.command", "growth.command.p99", "growth.fan.f64", "growth.snapshot", "growth.restart", "growth.restart.whole"}

// A point is a median with its least and most at one amount of state.
type point struct{ x, low, mid, high float64 }

// A curve is one figure over the amount of state.
type curve struct {
	name, unit string
	points     []point
}

// curves collects the figures that are drawn.
func curves(r *measure.Results) (list []curve) {
	for _, row := range r.Rows {
		name, at, found := strings.Cut(row.Name, growthMark)
		x, err := strconv.ParseFloat(at, 64)
		if !found || err != nil || x <= 0 || !slices.Contains(drawn, name) {
			continue
		}
		i := slices.IndexFunc(list, func(c curve) bool { return c.name == name })
		if i < 0 {
			i = len(list)
			list = append(list, curve{name: name, unit: row.Unit})
		}
		list[i].points = append(list[i].points, point{x, row.Min, row.Median, row.Max})
	}
	for _, c := range list {
		slices.SortFunc(c.points, func(a, b point) int { return cmp.Compare(a.x, b.x) })
	}
	return list
}

// Curves writes one SVG into dir per figure that is drawn.
func Curves(dir string, r *measure.Results) error {
	for _, c := range curves(r) {
		path := filepath.Join(dir, strings.ReplaceAll(c.name, ".", "-")+".svg")
		if err := os.WriteFile(path, []byte(c.svg()), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// Size and margins of a drawing.
const (
	width, height            = 560.0, 300.0
	left, right, top, bottom = 80.0, 20.0, 40.0, 50.0
)

// svg draws the curve: state on a logarithmic axis, the figure from zero up.
func (c curve) svg() string {
	most := 0.0
	for _, p := range c.points {
		most = max(most, p.high)
	}
	most = niceCeil(most)
	lowX, highX := math.Log10(c.points[0].x), math.Log10(c.points[len(c.points)-1].x)
	x := func(v float64) float64 {
		if highX == lowX {
			return (left + width - right) / 2
		}
		return left + (math.Log10(v)-lowX)/(highX-lowX)*(width-left-right)
	}
	y := func(v float64) float64 { return height - bottom - v/most*(height-top-bottom) }
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" font-family="sans-serif" font-size="12">`+"\n", width, height)
	fmt.Fprintf(&b, "<title>%s</title>\n<desc>%s in %s over the amount of state: medians, with the least and the most of each</desc>\n", c.name, c.name, c.unit)
	fmt.Fprintf(&b, `<rect width="%g" height="%g" fill="white"/>`+"\n", width, height)
	fmt.Fprintf(&b, `<text x="%g" y="22" font-size="14">%s, %s</text>`+"\n", left, c.name, c.unit)
	for i := range 5 {
		v := most * float64(i) / 4
		fmt.Fprintf(&b, `<line x1="%g" y1="%.1f" x2="%g" y2="%.1f" stroke="#ddd"/>`, left, y(v), width-right, y(v))
		fmt.Fprintf(&b, `<text x="%g" y="%.1f" text-anchor="end">%s</text>`+"\n", left-8, y(v)+4, number(v))
	}
	var path []string
	for _, p := range c.points {
		path = append(path, fmt.Sprintf("%.1f,%.1f", x(p.x), y(p.mid)))
		fmt.Fprintf(&b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="#888"/>`, x(p.x), y(p.low), x(p.x), y(p.high))
		fmt.Fprintf(&b, `<circle cx="%.1f" cy="%.1f" r="3" fill="#06c"/>`, x(p.x), y(p.mid))
		fmt.Fprintf(&b, `<text x="%.1f" y="%g" text-anchor="middle">%s×</text>`+"\n", x(p.x), height-bottom+18, trim(p.x))
	}
	fmt.Fprintf(&b, `<polyline points="%s" fill="none" stroke="#06c" stroke-width="2"/>`+"\n", strings.Join(path, " "))
	fmt.Fprintf(&b, `<text x="%g" y="%g" text-anchor="middle">state, 1× = 1,000,000 operations and 100,000 live records</text>`+"\n</svg>\n", (left+width-right)/2, height-12)
	return b.String()
}

// niceCeil is the next of 1, 2, 2.5, 5 and 10 times a power of ten.
func niceCeil(v float64) float64 {
	if v <= 0 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 2, 2.5, 5} {
		if v <= m*power {
			return m * power
		}
	}
	return 10 * power
}
