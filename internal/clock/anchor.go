package clock

import (
	"sync/atomic"
	"time"
)

const (
	// anchorLife is how long one system call serves later readings.
	anchorLife = 10 * time.Millisecond
	// anchorSlip is how far the wall clock may stray meanwhile from the monotonic one.
	// Slewing, 500 ppm at most, makes a twentieth of it; whoever sleeps or sets the
	// clock makes more.
	anchorSlip = 100 * time.Microsecond
	// maxAnchorGap is how exactly a system call's instant must be known to anchor.
	maxAnchorGap = 20 * time.Microsecond
)

// An anchor is a BOOTTIME reading and the instant on the other two clocks at which it was
// made. BOOTTIME costs a real system call and the other two cost none, so that readings
// that follow closely are worked out: BOOTTIME is the monotonic clock and the time asleep,
// and when the kernel adds time asleep to one it adds as much to the wall clock. A wall clock that
// went just as the monotonic one shows that there was no sleep, nor a step that would
// hide one; otherwise BOOTTIME is read again.
//
// Following anchors agree with each other unless there was sleep, so that BOOTTIME never
// goes back between readings.
type anchor struct {
	at   time.Time // both clocks
	wall time.Time // at without the monotonic part
	boot time.Duration
}

// newest is shared by everybody in the process; nil before the first.
var newest atomic.Pointer[anchor]

// reading works out the pair at now, or reports that the system must be asked.
func (a *anchor) reading(now time.Time) (Reading, bool) {
	if a == nil {
		return Reading{}, false
	}
	passed, wall := now.Sub(a.at), now.Round(0)
	if passed.Abs() > anchorLife || (wall.Sub(a.wall)-passed).Abs() > anchorSlip {
		return Reading{}, false
	}
	return Reading{Wall: wall, Boot: a.boot + passed}, true
}

// next is the anchor that a reading of BOOTTIME, made just after at, gives. Where that says
// what a knows already but for the gap between the calls, a's word stands.
func (a *anchor) next(at time.Time, boot time.Duration) *anchor {
	if a != nil {
		if told := a.boot + at.Sub(a.at); (boot - told).Abs() <= anchorSlip {
			boot = told
		}
	}
	return &anchor{at: at, wall: at.Round(0), boot: boot}
}

// least is what BOOTTIME cannot be below at now: it runs while the monotonic clock runs.
func (a *anchor) least(now time.Time) time.Duration {
	if a == nil {
		return 0
	}
	return a.boot + now.Sub(a.at)
}
