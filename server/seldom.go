package server

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"coordinator/internal/clock"
)

// Strangers can have a line written for each of their connections. Of those the log gets
// a burst and then one every so often, which says how many there were besides.
const (
	lineBurst = 32
	lineEvery = time.Second
)

// A seldom bounds the lines of one kind. It is a bucket of lineBurst that gains one every
// lineEvery.
type seldom struct {
	clock clock.Clock

	mu      sync.Mutex
	used    time.Duration // guarded by mu: boot reading up to which the bucket is used
	skipped uint64        // guarded by mu: since the last line
	all     uint64        // guarded by mu
}

// say writes a line unless too many have been written.
func (q *seldom) say(log *slog.Logger, level slog.Level, msg string, args ...any) {
	now := q.clock.Now().Boot
	q.mu.Lock()
	q.all++
	if floor := now - lineBurst*lineEvery; q.used < floor {
		q.used = floor
	}
	if q.used+lineEvery > now {
		q.skipped++
		q.mu.Unlock()
		return
	}
	q.used += lineEvery
	skipped := q.skipped
	q.skipped = 0
	q.mu.Unlock()
	if skipped > 0 {
		args = append(args, "unlogged", skipped)
	}
	log.Log(context.Background(), level, msg, args...)
}

// total is how often something was to be said.
func (q *seldom) total() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.all
}
