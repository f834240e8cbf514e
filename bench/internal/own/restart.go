package own

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"coordinator/bench/internal/measure"
)

const (
	// restartOperations and restartLive are the history and the live records of a restart.
	restartOperations = 1_000_000
	restartLive       = 100_000
	// windowOperations are enough to fill the window of events that is kept in memory.
	windowOperations = 150_000
)

// restart measures a start after SIGKILL with a long history, and what memory its records
// and its history take.
func restart(ctx context.Context, e *measure.Env) error {
	r, err := startShort(ctx, e, nil)
	if err != nil {
		return err
	}
	defer r.stop()
	operations, live := e.Amount(restartOperations, 20_000), e.Amount(restartLive, 2000)
	if err := r.memory(ctx, e, operations, live); err != nil {
		return err
	}
	return r.restarts(ctx, e, "own.restart", 3)
}

// memory fills the coordinator and records what that took of its memory.
func (r *rig) memory(ctx context.Context, e *measure.Env, operations, live int) error {
	// Some work first, so that the window of events is full: it is bounded, and no record's.
	if err := r.more(ctx, e.Amount(windowOperations, 2000)); err != nil {
		return err
	}
	var filling time.Duration
	steps := []func() error{
		func() error { return nil },
		func() error { return r.fill(ctx, live, live) },
		func() error { return r.more(ctx, operations/2-live) },
		func() error { return r.more(ctx, operations/2) },
	}
	after := make([]occupied, len(steps))
	for i, step := range steps {
		began := time.Now()
		if err := step(); err != nil {
			return err
		}
		filling += time.Since(began)
		var err error
		if after[i], err = r.quiet(ctx); err != nil {
			return err
		}
	}
	empty, filled, half, whole := after[0], after[1], after[2], after[3]
	e.Rec.Add("own.restart.fill", "commands/s", float64(operations)/filling.Seconds())
	e.Rec.Add("own.memory.record", "B", float64(filled.resident-empty.resident)/float64(live))
	e.Rec.Add("own.memory.record.heap", "B", float64(filled.heap-empty.heap)/float64(live))
	e.Rec.Add("own.memory.history", "MiB", float64(whole.resident-half.resident)/(1<<20))
	e.Rec.Add("own.memory.operation.heap", "B", float64(whole.heap-half.heap)/float64(operations/2))
	e.Rec.Add("own.memory.whole", "MiB", float64(whole.resident)/(1<<20))
	return nil
}

// occupied is memory in bytes: what is resident, and what the collector found to be in use.
type occupied struct{ resident, heap int64 }

const (
	// checkpointed is longer than the coordinator waits until it writes down what is only
	// in its log, and in memory until then.
	checkpointed = 11 * time.Second
	// collected is how many operations make the coordinator collect once they are over.
	collected = 20_000
)

// quiet gives the memory that is left once what is passing has passed: changes that are not
// yet written down, and garbage.
func (r *rig) quiet(ctx context.Context) (o occupied, err error) {
	measure.Sleep(ctx, checkpointed)
	began := time.Now()
	if err := r.more(ctx, collected); err != nil {
		return o, err
	}
	trace, err := r.coordinator.says(ctx, "(forced)", began) // its own, at rest
	if err != nil {
		return o, err
	}
	if o.heap, err = heapInUse(trace.text); err != nil {
		return o, err
	}
	o.resident, err = r.settled(ctx)
	return o, err
}

// gcTrace has the runtime tell of every collection.
const gcTrace = "GODEBUG=gctrace=1"

var traced = regexp.MustCompile(`\d+->\d+->(\d+) MB,`)

// heapInUse reads from the trace of a collection what it found to be in use.
func heapInUse(text string) (int64, error) {
	m := traced.FindStringSubmatch(text)
	if m == nil {
		return 0, fmt.Errorf("no trace of a collection: %q", text)
	}
	mib, err := strconv.ParseInt(m[1], 10, 64)
	return mib << 20, err
}

// more makes n more operations: updates of few objectives.
func (r *rig) more(ctx context.Context, n int) error {
	if n <= 0 {
		return nil
	}
	return r.fill(ctx, n, min(n, 256))
}

// restarts kills the coordinator and starts it again. The time counts from the witness's
// grant, which waits for the former lease to run out.
func (r *rig) restarts(ctx context.Context, e *measure.Env, name string, n int) error {
	for range n {
		r.coordinator.kill()
		began := time.Now()
		if err := r.serve(); err != nil {
			return err
		}
		ready, err := r.coordinator.says(ctx, "ready", began)
		if err != nil {
			return err
		}
		e.Rec.Add(name+".whole", "s", ready.at.Sub(began).Seconds())
		served, err := logged(ctx, r.coordinator, "msg=serving", began)
		if err != nil {
			return err
		}
		granted, err := logged(ctx, r.witness, "msg=activated", began)
		if err != nil {
			return err
		}
		// The witness logs its grant beside sending it, so a start may be as quick as that.
		e.Rec.Add(name, "s", max(served.Sub(granted), 0).Seconds())
	}
	return nil
}

// logged waits for a line of a daemon's log and gives the time in it.
func logged(ctx context.Context, d *daemon, what string, after time.Time) (time.Time, error) {
	l, err := d.says(ctx, what, after)
	if err != nil {
		return time.Time{}, err
	}
	return logTime(l.text)
}

// logTime reads the time that a line of a log begins with.
func logTime(text string) (time.Time, error) {
	first, _, _ := strings.Cut(text, " ")
	at, ok := strings.CutPrefix(first, "time=")
	if !ok {
		return time.Time{}, fmt.Errorf("a line of a log without its time: %q", text)
	}
	return time.Parse(time.RFC3339Nano, at)
}
