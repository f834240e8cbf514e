package server

import (
	"log/slog"
	"sync/atomic"
)

// A reserve is the part of the disk on which cancels, facts, effect results and
// activations live when the rest is full [D-41]. The writer asks it once per commit, and
// whoever retires operations; it says so in the log when the answer changes.
type reserve struct {
	free  func() uint64
	bytes uint64
	log   *slog.Logger
	was   atomic.Bool
}

// reached reports that less than the reserve is free.
func (r *reserve) reached() bool {
	free := r.free()
	is := free < r.bytes
	switch was := r.was.Swap(is); {
	case is && !was:
		r.log.Warn("the disk reserve is reached: new work is refused until there is room", "free", free, "reserve", r.bytes)
	case !is && was:
		r.log.Info("there is room on the disk again: new work is taken", "free", free, "reserve", r.bytes)
	}
	return is
}
