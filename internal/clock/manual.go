package clock

import (
	"math"
	"sync"
	"time"
)

// Manual is a clock that moves only when told to.
type Manual struct {
	mu     sync.Mutex
	now    Reading
	timers []*manualTimer // armed; few, so kept unsorted
	armed  uint64         // arming order, decides between equal due times
}

// NewManual returns a clock that reads r.
func NewManual(r Reading) *Manual {
	r.Wall = r.Wall.Round(0)
	return &Manual{now: r}
}

// Now returns the current pair.
func (m *Manual) Now() Reading {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now
}

// Advance moves both halves by d (not negative) and fires the timers that fall
// due, each at its own instant, in order of due time and then of arming. It
// does not wait for those who receive from them.
func (m *Manual) Advance(d time.Duration) {
	if d < 0 {
		panic("clock: Advance by a negative duration")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	end := m.now.Boot + d
	for {
		i := m.nextLocked(end)
		if i < 0 {
			break
		}
		t := m.timers[i]
		m.moveLocked(t.due)
		m.timers = append(m.timers[:i], m.timers[i+1:]...)
		t.c <- m.now.Wall // room for one, and an armed timer's channel is empty
	}
	m.moveLocked(end)
}

// StepWall moves the wall clock alone, by d of either sign. Timers follow
// BOOTTIME and do not notice.
func (m *Manual) StepWall(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now.Wall = m.now.Wall.Add(d)
}

// NewTimer arms a timer; d <= 0 fires it at once.
func (m *Manual) NewTimer(d time.Duration) Timer {
	t := &manualTimer{m: m, c: make(chan time.Time, 1)}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.armLocked(t, d)
	return t
}

// Next returns the Boot reading at which the next armed timer falls due, or false when none
// is armed, so that a simulation can let each timer's owner run before the next one fires.
func (m *Manual) Next() (due time.Duration, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if i := m.nextLocked(math.MaxInt64); i >= 0 {
		return m.timers[i].due, true
	}
	return 0, false
}

// Timers returns how many timers are armed, so that a test can wait until the
// code under test has armed its own.
func (m *Manual) Timers() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.timers)
}

func (m *Manual) moveLocked(boot time.Duration) {
	if d := boot - m.now.Boot; d > 0 {
		m.now.Boot = boot
		m.now.Wall = m.now.Wall.Add(d)
	}
}

// nextLocked returns the index of the first timer due by end, or -1.
func (m *Manual) nextLocked(end time.Duration) int {
	best := -1
	for i, t := range m.timers {
		if t.due > end {
			continue
		}
		if best < 0 || t.due < m.timers[best].due ||
			t.due == m.timers[best].due && t.order < m.timers[best].order {
			best = i
		}
	}
	return best
}

func (m *Manual) armLocked(t *manualTimer, d time.Duration) {
	if d <= 0 {
		t.c <- m.now.Wall
		return
	}
	m.armed++
	t.due, t.order = m.now.Boot+d, m.armed
	m.timers = append(m.timers, t)
}

// disarmLocked reports whether t was armed, and leaves its channel empty.
func (m *Manual) disarmLocked(t *manualTimer) bool {
	select {
	case <-t.c:
	default:
	}
	for i, have := range m.timers {
		if have == t {
			m.timers = append(m.timers[:i], m.timers[i+1:]...)
			return true
		}
	}
	return false
}

type manualTimer struct {
	m     *Manual
	c     chan time.Time // one slot
	due   time.Duration  // guarded by m.mu
	order uint64         // guarded by m.mu
}

func (t *manualTimer) C() <-chan time.Time { return t.c }

func (t *manualTimer) Stop() bool {
	t.m.mu.Lock()
	defer t.m.mu.Unlock()
	return t.m.disarmLocked(t)
}

func (t *manualTimer) Reset(d time.Duration) {
	t.m.mu.Lock()
	defer t.m.mu.Unlock()
	t.m.disarmLocked(t)
	t.m.armLocked(t, d)
}
