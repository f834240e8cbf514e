// Package lograte keeps a log readable while somebody makes it write a line again and again.
//
// It knows nothing of what the lines are about. Time is the clock that it is given.
package lograte

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"coordinator/internal/clock"
)

// TellEvery is how often [Set.Run] looks for lines that were left out.
const TellEvery = 10 * time.Second

// A Limiter bounds the lines of one kind. It is a bucket of so many lines that gains one in
// every step of time; what finds it empty is left out and counted, and the next line that is
// written says how many were. Its methods may be called from any goroutine.
type Limiter struct {
	clock clock.Clock
	burst time.Duration // what a full bucket is worth
	every time.Duration

	mu      sync.Mutex
	used    time.Duration // guarded by mu: boot reading up to which the bucket is used
	skipped uint64        // guarded by mu: since the last line
	all     uint64        // guarded by mu
}

// New makes a limiter that lets burst lines through at once and then one in every.
func New(c clock.Clock, burst int, every time.Duration) *Limiter {
	return &Limiter{clock: c, burst: time.Duration(burst) * every, every: every}
}

// Say writes a line unless too many have been written.
func (q *Limiter) Say(log *slog.Logger, level slog.Level, msg string, args ...any) {
	q.mu.Lock()
	q.all++
	if !q.takeLocked() {
		q.skipped++
		q.mu.Unlock()
		return
	}
	skipped := q.skipped
	q.skipped = 0
	q.mu.Unlock()
	if skipped > 0 {
		args = append(args, "unlogged", skipped)
	}
	log.Log(context.Background(), level, msg, args...)
}

// takeLocked takes one line out of the bucket if there is one.
func (q *Limiter) takeLocked() bool {
	now := q.clock.Now().Boot
	q.used = max(q.used, now-q.burst)
	if q.used+q.every > now {
		return false
	}
	q.used += q.every
	return true
}

// Flush tells in a line of its own of lines that were left out and that no later line has
// told of, once the bucket has room for that.
func (q *Limiter) Flush(log *slog.Logger, kind string) {
	q.mu.Lock()
	skipped := q.skipped
	if skipped == 0 || !q.takeLocked() {
		q.mu.Unlock()
		return
	}
	q.skipped = 0
	q.mu.Unlock()
	log.Warn("lines left out", "kind", kind, "unlogged", skipped)
}

// Total is how often something was to be said.
func (q *Limiter) Total() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.all
}
