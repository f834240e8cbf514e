package report

import (
	"math"

	"coordinator/bench/internal/measure"
)

// A value looks up what a target is about. ok is false when a figure of it is missing.
type value func(*measure.Results) (v float64, ok bool)

// figure is one median.
func figure(name string) value {
	return func(r *measure.Results) (float64, bool) { return r.Get(name) }
}

// best is the highest of several medians, of those that were measured.
func best(names ...string) value {
	return func(r *measure.Results) (most float64, ok bool) {
		for _, name := range names {
			if v, found := r.Get(name); found && (!ok || v > most) {
				most, ok = v, true
			}
		}
		return most, ok
	}
}

// bestsOther is another figure of whoever is best: what has the given suffix.
func bestsOther(suffix string, names ...string) value {
	return func(r *measure.Results) (float64, bool) {
		most, ok := best(names...)(r)
		for _, name := range names {
			if v, found := r.Get(name); ok && found && v == most {
				return r.Get(name + suffix)
			}
		}
		return 0, false
	}
}

// minus takes a constant off. What is less than a hundredth is nothing: the runtime's own
// allocations are in the figure too.
func minus(v value, c float64) value {
	return func(r *measure.Results) (float64, bool) {
		x, ok := v(r)
		return math.Round(math.Max(x-c, 0)*100) / 100, ok
	}
}

// A target is one line of the table: a figure, or its ratio to another of the same run.
type target struct {
	row      string
	what     string
	own      value
	against  value // nil: the figure itself is what counts
	unit     string
	atMost   bool    // else at least
	must     float64 // NaN: none
	aim      float64 // NaN: none; without either the line is there to compare
	asFactor string  // how the bound is written: ×, % or a unit
}

var none = math.NaN()

func fans(load string) []string {
	return []string{"etcd.fan" + load, "nats.fan" + load, "redis.fan" + load}
}

// targets are the lines of the table.
func targets() []target {
	return append(append(commandTargets(), fanTargets()...), append(readingTargets(), costTargets()...)...)
}

func commandTargets() []target {
	return []target{
		{"1", "commands/s, 64 in flight, to etcd's puts", figure("own.command.c64"), figure("etcd.put.c64"), "/s", false, 3, none, "×"},
		{"1", "the same, p99", figure("own.command.c64.p99"), figure("etcd.put.c64.p99"), "µs", true, 0.7, none, "×"},
		{"1", "the same, to Redis XADD", figure("own.command.c64"), figure("redis.xadd.c64"), "/s", false, none, 1, "×"},
		{"2", "commands/s, 256 in flight, to etcd's puts", figure("own.command.c256"), figure("etcd.put.c256"), "/s", false, 3, none, "×"},
		{"2", "the same, p99", figure("own.command.c256.p99"), figure("etcd.put.c256.p99"), "µs", true, 0.8, none, "×"},
		{"2", "the same, to Redis XADD", figure("own.command.c256"), figure("redis.xadd.c256"), "/s", false, none, 0.8, "×"},
		{"3", "commands/s, 1 in flight, to etcd's puts", figure("own.command.c1"), figure("etcd.put.c1"), "/s", false, 1.5, none, "×"},
		{"3", "the same, p99", figure("own.command.c1.p99"), figure("etcd.put.c1.p99"), "µs", true, 1, none, "×"},
		{"3", "the same, to Redis XADD", figure("own.command.c1"), figure("redis.xadd.c1"), "/s", false, none, 0.8, "×"},
		{"4", "server CPU per command, 64 in flight, to etcd's", figure("own.command.c64.server_cpu"), figure("etcd.put.c64.server_cpu"), "µs", true, 0.3, none, "×"},
		{"4", "server CPU per command, 64 in flight", figure("own.command.c64.server_cpu"), nil, "µs", true, none, 20, "µs"},
		{"4", "disk flushes per command, 64 in flight", figure("own.command.c64.flushes"), nil, "", true, 0.1, none, ""},
		{"5", "compare-and-set/s, 64 in flight, to etcd's transactions", figure("own.compare.c64"), figure("etcd.txn.c64"), "/s", false, 3, none, "×"},
		{"5", "the same, to row 1", figure("own.compare.c64"), figure("own.command.c64"), "/s", false, none, 0.95, "×"},
	}
}

func fanTargets() []target {
	return []target{
		{"6", "fan-out to 500, 64 in flight, to the best peer", figure("own.fan500.f64"), best(fans("500.f64")...), "events/s", false, 3, none, "×"},
		{"6", "the same, p99 to that peer's", figure("own.fan500.f64.p99"), bestsOther(".p99", fans("500.f64")...), "ms", true, 0.4, none, "×"},
		{"6", "the same, to the better of etcd and JetStream", figure("own.fan500.f64"), best(fans("500.f64")[:2]...), "events/s", false, none, none, "×"},
		{"6", "the same, share of what the sockets allow", figure("own.fan500.f64"), figure("rawfan.n500.batch64"), "events/s", false, none, 20, "%"},
		{"7", "fan-out to 100, 64 in flight, to the best peer", figure("own.fan100.f64"), best(fans("100.f64")...), "events/s", false, 1.8, none, "×"},
		{"7", "the same, to the better of etcd and JetStream", figure("own.fan100.f64"), best(fans("100.f64")[:2]...), "events/s", false, none, none, "×"},
		{"7", "fan-out to 500, 1 in flight, to the best peer", figure("own.fan500.f1"), best(fans("500.f1")...), "events/s", false, 1.5, none, "×"},
	}
}

func readingTargets() []target {
	return []target{
		{"8", "verified snapshot over Unix, share of the SHA-256 rate", figure("own.snapshot"), figure("sha256"), "MB/s", false, 45, 60, "%"},
		{"9", "verified snapshot over QUIC, share of raw QUIC", figure("own.snapshot.quic"), figure("quic.bulk"), "MB/s", false, 70, 85, "%"},
		{"10", "verified replay, to JetStream's faster replay", figure("own.replay"), best("nats.replay.push", "nats.replay.pull"), "events/s", false, 6, 10, "×"},
		{"11", "connect to first reply over Unix, to etcd's plain one", figure("own.connect.p50"), figure("etcd.connect.p50"), "µs", true, 0.35, 0.25, "×"},
		{"11", "connect to first reply over QUIC, to raw mutual QUIC", figure("own.connect.quic.p50"), figure("quic.connect.p50"), "µs", true, 1.25, 1.1, "×"},
		{"12", "commands/s over QUIC, to Unix", figure("own.quic.command.c64"), figure("own.quic.beside.c64"), "/s", false, 0.6, none, "×"},
		{"12", "fan-out to 100 over QUIC, to raw QUIC", figure("own.quicfan100.f64"), figure("rawfan_quic.n100.batch64"), "events/s", false, 0.5, none, "×"},
	}
}

// collectorRoom is by how much resident memory differs between two looks at the same state:
// where the collector happens to be. Half of the history held in memory would be ten times it.
const collectorRoom = 16

func costTargets() []target {
	return []target{
		{"13", "COORD_COMMAND decoded and encoded, allocations beyond the frame", minus(figure("codec.command.allocs"), 1), nil, "", true, 0, none, ""},
		{"13", "COORD_COMMAND decoded and encoded, to a walk by hand", figure("codec.command"), figure("codec.command.hand"), "ns", true, 2, none, "×"},
		{"13", "COORD_EVENT decoded and encoded, allocations beyond the frame", minus(figure("codec.event.allocs"), 1), nil, "", true, 0, none, ""},
		{"13", "COORD_EVENT decoded and encoded, to a walk by hand", figure("codec.event"), figure("codec.event.hand"), "ns", true, 2, none, "×"},
		{"14", "start after SIGKILL, from the witness's grant to serving", figure("own.restart"), nil, "s", true, 2, 0.5, "s"},
		{"15", "memory per live record of 256 B", figure("own.memory.record"), nil, "B", true, 2*measure.ValueSize + 200, none, "B"},
		{"15", "the same, of the heap in use alone", figure("own.memory.record.heap"), nil, "B", true, none, none, "B"},
		{"15", "resident growth with half of row 14's history", figure("own.memory.history"), nil, "MiB", true, collectorRoom, none, "MiB"},
		{"15", "heap in use per finished operation", figure("own.memory.operation.heap"), nil, "B", true, 4, none, "B"},
		{"15", "memory per idle connection", figure("own.idle.connection"), nil, "KiB", true, 64, none, "KiB"},
		{"15", "memory per idle subscription", figure("own.idle.subscription"), nil, "KiB", true, 1, none, "KiB"},
		{"", "CPU of 256 idle connections with 2,048 subscriptions", figure("own.idle.cpu"), nil, "% of a core", true, 0.7, none, "% of a core"},
	}
}

// A verdict says whether a bound was reached.
type verdict int

const (
	noBound verdict = iota
	unmeasured
	missed
	reached
)

// judge holds a number against a bound.
func (t *target) judge(got float64, ok bool, bound float64) verdict {
	switch {
	case math.IsNaN(bound):
		return noBound
	case !ok:
		return unmeasured
	case t.atMost && got <= bound, !t.atMost && got >= bound:
		return reached
	}
	return missed
}

// result is what counts of a target: its figure or its ratio.
func (t *target) result(r *measure.Results) (own, against, got float64, ok bool) {
	own, ok = t.own(r)
	if t.against == nil || !ok {
		return own, none, own, ok
	}
	against, ok = t.against(r)
	if !ok || against == 0 {
		return own, none, none, false
	}
	got = own / against
	if t.asFactor == "%" {
		got *= 100
	}
	return own, against, got, true
}
