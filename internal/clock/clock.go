// Package clock is the one source of time: the wall clock and CLOCK_BOOTTIME
// read as a pair, and timers that can be driven by hand.
//
// It knows nothing of leases or expiry; its callers decide which of the two
// clocks bears on a question. BOOTTIME counts through suspend and cannot be
// set, so durations are measured with it; the wall clock only names instants
// to people and peers.
package clock

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"
)

// A Reading is one pair of both clocks. Wall carries no monotonic part, so
// subtracting two of them shows a step of the wall clock instead of hiding it.
type Reading struct {
	Wall time.Time
	Boot time.Duration // since boot, time asleep included
}

// Unix returns the wall clock as unsigned Unix seconds, the protocol's only
// form of wire time. A clock before 1970 reads as zero.
func (r Reading) Unix() uint64 {
	if s := r.Wall.Unix(); s > 0 {
		return uint64(s)
	}
	return 0
}

// A Clock tells the time and makes timers. All methods may be called from any
// goroutine.
type Clock interface {
	Now() Reading
	NewTimer(d time.Duration) Timer
}

// A Timer sends once on C when its duration has passed. After Stop or Reset
// returns, C holds no value of an earlier run.
type Timer interface {
	C() <-chan time.Time
	Stop() bool
	Reset(d time.Duration)
}

// Wait waits for d on c, or until ctx ends; its error is then the cause of that.
func Wait(ctx context.Context, c Clock, d time.Duration) error {
	timer := c.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// System returns the machine's clocks.
func System() Clock { return system{} }

type system struct{}

// maxPairGap is how far apart the halves of one Reading may lie. A thread
// descheduled between them reads again, or a pause would look like a step.
const maxPairGap = 10 * time.Millisecond

// Now reads the wall clock, and BOOTTIME by what has passed since a system call read it
// last (see [anchor]).
func (system) Now() Reading {
	now := time.Now()
	if r, ok := newest.Load().reading(now); ok {
		return r
	}
	for tries := 0; ; tries++ {
		before := time.Now()
		boot := bootTime()
		after := time.Now()
		wall := after.Round(0)
		stepped := wall.Sub(before.Round(0)).Abs()
		gap := max(after.Sub(before), stepped)
		if gap <= maxAnchorGap {
			old := newest.Load()
			newest.CompareAndSwap(old, old.next(before, boot)) // or somebody else's of just now
			if r, ok := newest.Load().reading(after); ok {
				return r
			}
		}
		if gap <= maxPairGap || tries == 3 {
			return Reading{Wall: wall, Boot: max(boot, newest.Load().least(after))}
		}
	}
}

func (system) NewTimer(d time.Duration) Timer { return realTimer{time.NewTimer(d)} }

// Runtime returns a clock made of package time alone. Boot counts from this
// call, so inside a synctest bubble both halves move with the bubble.
func Runtime() Clock { return &runtimeClock{start: time.Now()} }

type runtimeClock struct{ start time.Time }

func (c *runtimeClock) Now() Reading {
	now := time.Now()
	return Reading{Wall: now.Round(0), Boot: now.Sub(c.start)}
}

func (c *runtimeClock) NewTimer(d time.Duration) Timer { return realTimer{time.NewTimer(d)} }

type realTimer struct{ t *time.Timer }

func (t realTimer) C() <-chan time.Time   { return t.t.C }
func (t realTimer) Stop() bool            { return t.t.Stop() }
func (t realTimer) Reset(d time.Duration) { t.t.Reset(d) }

const bootIDFile = "/proc/sys/kernel/random/boot_id"

// BootID names this boot of the machine. BOOTTIME readings compare only within
// one boot id.
func BootID() (string, error) {
	b, err := os.ReadFile(bootIDFile)
	if err != nil {
		return "", fmt.Errorf("boot id: %w", err)
	}
	id := strings.TrimSpace(string(b))
	if id == "" {
		return "", fmt.Errorf("boot id: %s is empty", bootIDFile)
	}
	return id, nil
}
