package measure

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// stopWait bounds how long the workers of a loop may take to finish their last operation.
const stopWait = 5 * time.Second

// A Loop keeps workers busy, each with one operation in flight, through a warm-up and then
// windows.
type Loop struct {
	Name    string
	Workers int
	PerOp   int // how many things one operation does; zero means one
	Warm    time.Duration
	Window  time.Duration
	Reps    int
	PID     int // of the server; zero when it is not a process of its own
	Do      func(worker, i int) error
}

// tally is what the workers count. Phase 0 is the warm-up and Reps+1 the end.
type tally struct {
	phase atomic.Int32
	ops   []atomic.Int64
	hists []*Hist
	failure
}

// A failure is the first error of several workers, which ends what the others wait for.
type failure struct {
	cancel context.CancelFunc
	first  atomic.Pointer[error]
}

func (f *failure) fail(err error) {
	f.first.CompareAndSwap(nil, &err)
	f.cancel()
}

func (f *failure) err() error {
	if err := f.first.Load(); err != nil {
		return *err
	}
	return nil
}

// Run runs the loop and records, per window: operations per second, latency quantiles, CPU
// per operation of the server and of this process, and disk flushes per operation.
func (e *Env) Run(ctx context.Context, l Loop) error {
	l.PerOp = max(l.PerOp, 1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t := &tally{ops: make([]atomic.Int64, l.Reps+2), hists: make([]*Hist, l.Reps+2), failure: failure{cancel: cancel}}
	for i := range t.hists {
		t.hists[i] = new(Hist)
	}
	var workers sync.WaitGroup
	for w := range l.Workers {
		workers.Go(func() { l.work(t, w) })
	}
	Sleep(ctx, l.Warm)
	for r := 1; r <= l.Reps && ctx.Err() == nil; r++ {
		before := e.Probe(l.PID)
		t.phase.Store(int32(r))
		Sleep(ctx, l.Window)
		after := e.Probe(l.PID)
		if ctx.Err() == nil {
			e.record(&l, float64(t.ops[r].Load()*int64(l.PerOp)), t.hists[r], before, after)
		}
	}
	t.phase.Store(int32(l.Reps + 1))
	stopped := make(chan struct{})
	go func() { workers.Wait(); close(stopped) }()
	select {
	case <-stopped:
	case <-time.After(stopWait):
		return errors.New(l.Name + ": the operations in flight did not end")
	}
	if err := t.err(); err != nil {
		return fmt.Errorf("%s: %w", l.Name, err)
	}
	return ctx.Err()
}

func (l *Loop) work(t *tally, w int) {
	for i := 0; int(t.phase.Load()) <= l.Reps; i++ {
		began := time.Now()
		if err := l.Do(w, i); err != nil {
			t.fail(err)
			return
		}
		took := time.Since(began)
		p := t.phase.Load()
		t.ops[p].Add(1)
		t.hists[p].Record(int64(took))
	}
}

func (e *Env) record(l *Loop, ops float64, h *Hist, a, b Probe) {
	e.Rec.Add(l.Name, "ops/s", ops/b.At.Sub(a.At).Seconds())
	if ops == 0 {
		return
	}
	e.Rec.Add(l.Name+".p50", "µs", h.Quantile(.5)/1e3)
	e.Rec.Add(l.Name+".p99", "µs", h.Quantile(.99)/1e3)
	if l.PID > 0 {
		e.Rec.Add(l.Name+".server_cpu", "µs/op", (b.Server-a.Server).Seconds()*1e6/ops)
	}
	e.Rec.Add(l.Name+".client_cpu", "µs/op", (b.Self-a.Self).Seconds()*1e6/ops)
	if a.HasFlushes && b.HasFlushes {
		e.Rec.Add(l.Name+".flushes", "per op", float64(b.Flushes-a.Flushes)/ops)
	}
}
