package daemon

import (
	"math"
	"runtime/debug"

	"coordinator/internal/durable"
	"coordinator/internal/meter"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// processCollectors are what every daemon exposes of its runtime and of its process: the
// families go_* and process_* of the client library.
func processCollectors() []prometheus.Collector {
	return []prometheus.Collector{collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})}
}

// A Family is one metric of a daemon. Its labels take values of small fixed sets, never ids.
type Family struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
}

// Gauge declares what goes up and down.
func Gauge(name, help string, labels ...string) Family {
	return Family{prometheus.NewDesc(name, help, labels, nil), prometheus.GaugeValue}
}

// Counter declares what only goes up.
func Counter(name, help string, labels ...string) Family {
	return Family{prometheus.NewDesc(name, help, labels, nil), prometheus.CounterValue}
}

// Distribution declares a histogram.
func Distribution(name, help string) Family {
	return Family{prometheus.NewDesc(name, help, nil, nil), prometheus.UntypedValue}
}

// A Scrape takes the values of one reading.
type Scrape struct{ out chan<- prometheus.Metric }

// Put gives a gauge or a counter its value, with one label value per label.
func (s *Scrape) Put(f Family, v float64, labels ...string) {
	s.out <- prometheus.MustNewConstMetric(f.desc, f.kind, v, labels...)
}

// PutFlag is Put of one or zero.
func (s *Scrape) PutFlag(f Family, is bool, labels ...string) {
	v := 0.0
	if is {
		v = 1
	}
	s.Put(f, v, labels...)
}

// PutDistribution gives a histogram its values, of which unit make one: 1e9 for nanoseconds
// that are to be seconds.
func (s *Scrape) PutDistribution(f Family, h meter.Snapshot, unit float64) {
	buckets := make(map[float64]uint64, len(h.Bounds))
	below := uint64(0)
	for i, bound := range h.Bounds {
		below += h.Counts[i]
		buckets[float64(bound)/unit] = below
	}
	s.out <- prometheus.MustNewConstHistogram(f.desc, h.Count, float64(h.Sum)/unit, buckets)
}

// Nanoseconds is the unit of durations.
const Nanoseconds = 1e9

// Collect makes a collector of a function that reads everything at once.
func Collect(read func(*Scrape)) prometheus.Collector { return reader(read) }

type reader func(*Scrape)

// Describe says nothing, which makes the collector an unchecked one: what it may expose is
// in docs/metrics.md, and a test holds it to that.
func (reader) Describe(chan<- *prometheus.Desc) {}

// Collect reads.
func (r reader) Collect(out chan<- prometheus.Metric) { r(&Scrape{out}) }

// A Build is what the program was made of.
type Build struct{ Version, Revision, Go string }

// ReadBuild reads it from the program itself; what is not recorded there is unknown.
func ReadBuild() Build {
	b := Build{Version: "unknown", Revision: "unknown", Go: "unknown"}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	b.Go = info.GoVersion
	if v := info.Main.Version; v != "" {
		b.Version = v
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			b.Revision = s.Value
		}
	}
	return b
}

// PutFree gives a gauge what may still be written on the file system of dir, where that says.
func (s *Scrape) PutFree(f Family, dir string) {
	if free := durable.FreeBytes(dir); free != math.MaxUint64 {
		s.Put(f, float64(free))
	}
}

// PutBuild tells of the build in the labels of a gauge that is always one.
func (s *Scrape) PutBuild(f Family) {
	b := ReadBuild()
	s.Put(f, 1, b.Version, b.Revision, b.Go)
}
