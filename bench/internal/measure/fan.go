package measure

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Layout of a published event: when it was sent, on this process's clock, and in which run;
// the rest is filling. Nothing shorter is one.
const (
	eventStamp = 0
	eventRun   = 8
	eventHead  = 12
)

// maxRuns is how many runs a subscriber can tell apart.
const maxRuns = 8

var epoch = time.Now()

// Now is a monotonic clock of this process, in nanoseconds.
func Now() int64 { return int64(time.Since(epoch)) }

// A Subscriber tallies what one subscriber of a fan-out got. One goroutine delivers to it.
type Subscriber struct {
	got   [maxRuns]atomic.Int64
	hists [maxRuns]*Hist
	bad   atomic.Int64
	gaps  atomic.Int64
	last  uint64 // owned by the delivering goroutine
}

// NewSubscribers makes n of them.
func NewSubscribers(n int) []*Subscriber {
	subs := make([]*Subscriber, n)
	for i := range subs {
		subs[i] = new(Subscriber)
		for j := range subs[i].hists {
			subs[i].hists[j] = new(Hist)
		}
	}
	return subs
}

// Take counts one delivered event. order is the system's own position of it, which must grow.
func (s *Subscriber) Take(event []byte, now int64, order uint64) {
	if len(event) < eventHead || order <= s.last {
		s.bad.Add(1)
		return
	}
	s.last = order
	run := binary.LittleEndian.Uint32(event[eventRun:]) % maxRuns
	s.hists[run].Record(now - int64(binary.LittleEndian.Uint64(event[eventStamp:])))
	s.got[run].Add(1)
}

// Bad counts an event that could not be read.
func (s *Subscriber) Bad() { s.bad.Add(1) }

// Gap counts an interruption that the subscriber was told of and healed.
func (s *Subscriber) Gap() { s.gaps.Add(1) }

// A Fan publishes to subscribers that are attached already.
type Fan struct {
	Name     string
	Subs     []*Subscriber
	FirstRun int // of Reps that follow each other
	Reps     int
	InFlight int
	Window   time.Duration
	Drain    time.Duration // how long the rest may take to arrive
	PID      int           // of the server
	Publish  func(worker int, event []byte) error
}

// Fan runs one fan-out and records per repetition: events per second within the window and
// with the drain, latency quantiles, CPU per event, and what was not delivered.
func (e *Env) Fan(ctx context.Context, f Fan) error {
	for r := range f.Reps {
		if err := e.fanOnce(ctx, &f, f.FirstRun+r); err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	return nil
}

func (f *Fan) delivered(run int) (n int64) {
	for _, s := range f.Subs {
		n += s.got[run].Load()
	}
	return n
}

func (e *Env) fanOnce(ctx context.Context, f *Fan, run int) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t := failure{cancel: cancel}
	var stop atomic.Bool
	var published atomic.Int64
	var writers sync.WaitGroup
	before := e.Probe(f.PID)
	for w := range f.InFlight {
		writers.Go(func() {
			event := Payload(uint64(run<<8|w), ValueSize)
			binary.LittleEndian.PutUint32(event[eventRun:], uint32(run))
			for !stop.Load() {
				binary.LittleEndian.PutUint64(event[eventStamp:], uint64(Now()))
				if err := f.Publish(w, event); err != nil {
					t.fail(err)
					return
				}
				published.Add(1)
			}
		})
	}
	Sleep(ctx, f.Window)
	inWindow, delivered := published.Load(), f.delivered(run)
	after := e.Probe(f.PID)
	stop.Store(true)
	writers.Wait()
	if err := t.err(); err != nil {
		return err
	}
	want := published.Load() * int64(len(f.Subs))
	drained := f.drain(ctx, run, want)
	e.recordFan(f, run, fanTotals{
		published: inWindow, delivered: delivered, want: want, drained: drained,
		whole: time.Since(before.At), before: before, after: after,
	})
	return ctx.Err()
}

// drain waits for the rest, and gives what has arrived then.
func (f *Fan) drain(ctx context.Context, run int, want int64) int64 {
	deadline := time.Now().Add(f.Drain)
	for {
		got := f.delivered(run)
		if got >= want || time.Now().After(deadline) || ctx.Err() != nil {
			return got
		}
		Sleep(ctx, time.Millisecond)
	}
}

type fanTotals struct {
	published, delivered int64 // within the window
	want, drained        int64
	whole                time.Duration
	before, after        Probe
}

func (e *Env) recordFan(f *Fan, run int, t fanTotals) {
	window := t.after.At.Sub(t.before.At).Seconds()
	events := float64(max(t.delivered, 1))
	var h Hist
	var bad, gaps int64
	for _, s := range f.Subs {
		h.Merge(s.hists[run])
		bad += s.bad.Load()
		gaps += s.gaps.Swap(0)
	}
	e.Rec.Add(f.Name, "events/s", float64(t.delivered)/window)
	e.Rec.Add(f.Name+".published", "ops/s", float64(t.published)/window)
	e.Rec.Add(f.Name+".with_drain", "events/s", float64(t.drained)/t.whole.Seconds())
	e.Rec.Add(f.Name+".undelivered", "%", 100*float64(t.want-t.drained)/float64(max(t.want, 1)))
	e.Rec.Add(f.Name+".gaps", "healed", float64(gaps))
	e.Rec.Add(f.Name+".p50", "ms", h.Quantile(.5)/1e6)
	e.Rec.Add(f.Name+".p99", "ms", h.Quantile(.99)/1e6)
	e.Rec.Add(f.Name+".server_cpu", "µs/event", (t.after.Server-t.before.Server).Seconds()*1e6/events)
	e.Rec.Add(f.Name+".client_cpu", "µs/event", (t.after.Self-t.before.Self).Seconds()*1e6/events)
	if bad > 0 {
		e.Rec.Note(f.Name, fmt.Sprintf("%d out of order or short", bad))
	}
}

// FanBoth measures with one publish in flight, for latency, and with 64, for throughput.
func (e *Env) FanBoth(ctx context.Context, name string, subs []*Subscriber, pid int, publish func(worker int, event []byte) error) error {
	f := Fan{Name: name + ".f1", Subs: subs, Reps: fanReps, InFlight: 1, Window: e.Window(900), Drain: e.Window(2500), PID: pid, Publish: publish}
	if err := e.Fan(ctx, f); err != nil {
		return err
	}
	return e.FanBusy(ctx, name, subs, pid, publish)
}

// FanBusy is the second half of FanBoth.
func (e *Env) FanBusy(ctx context.Context, name string, subs []*Subscriber, pid int, publish func(worker int, event []byte) error) error {
	return e.Fan(ctx, Fan{
		Name: name + ".f64", Subs: subs, FirstRun: fanReps, Reps: fanReps, InFlight: 64,
		Window: e.Window(1700), Drain: e.Window(3500), PID: pid, Publish: publish,
	})
}

// fanReps is how often a fan-out is repeated.
const fanReps = 3
