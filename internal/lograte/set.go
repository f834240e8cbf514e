package lograte

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"time"

	"coordinator/internal/clock"
	"coordinator/internal/text"
)

// A Set is the limiters of one program part, whose left-out lines are told of together.
type Set struct {
	clock clock.Clock
	kinds []kind
}

type kind struct {
	name string
	l    *Limiter
}

// NewSet makes a set without limiters.
func NewSet(c clock.Clock) *Set { return &Set{clock: c} }

// Add makes a limiter as [New] does, for lines of a kind that is called name. It must not be
// called once Run has begun.
func (s *Set) Add(name string, burst int, every time.Duration) *Limiter {
	l := New(s.clock, burst, every)
	s.kinds = append(s.kinds, kind{name, l})
	return l
}

// Run tells now and then of lines that were left out although no other came, until ctx ends,
// and then once more.
func (s *Set) Run(ctx context.Context, log *slog.Logger) {
	t := s.clock.NewTimer(TellEvery)
	defer t.Stop()
	for ended := false; !ended; t.Reset(TellEvery) {
		select {
		case <-ctx.Done():
			ended = true
		case <-t.C():
		}
		for _, k := range s.kinds {
			k.l.Flush(log, k.name)
		}
	}
}

// How many lines about connections a log gets: so many at once, and then one every so often.
// Strangers need no key to cause theirs.
const (
	StrangerBurst, StrangerEvery = 32, time.Second
	FriendBurst, FriendEvery     = 256, 100 * time.Millisecond
)

// Connections bound the lines about the connections of a server.
type Connections struct {
	Refused            *Limiter // closed at accept
	Strangers, Friends *Limiter // ended before and after their proof
}

// Connections adds the limiters of a server's connections.
func (s *Set) Connections() Connections {
	return Connections{
		Refused:   s.Add("refused connections", StrangerBurst, StrangerEvery),
		Strangers: s.Add("unauthenticated connections", StrangerBurst, StrangerEvery),
		Friends:   s.Add("authenticated connections", FriendBurst, FriendEvery),
	}
}

// MaxText bounds a text in a line of which a remote peer may have chosen a part.
const MaxText = 200

// Reason says in a part of a line why a connection ended.
func Reason(err error) string {
	if err == nil || errors.Is(err, io.EOF) {
		return "the peer closed"
	}
	return text.Clip(err.Error(), MaxText)
}
