package link

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"time"

	"coordinator/handshake"
	"coordinator/internal/clock"
	"coordinator/internal/lograte"
)

// How many lines about connections the log gets at most: so many at once, and then one every
// so often, which says how many there were besides. Strangers need no key to cause theirs.
const (
	strangerBurst, strangerEvery = 32, time.Second
	friendBurst, friendEvery     = 256, 100 * time.Millisecond

	// flushEvery is how often lines that were left out are told of although no other came.
	flushEvery = 10 * time.Second
	// maxReason bounds a text of which a remote peer may have chosen a part.
	maxReason = 200
)

// lines bound what is logged because of others.
type lines struct {
	clock                        clock.Clock
	refusals, strangers, friends *lograte.Limiter
}

func newLines(c clock.Clock) lines {
	return lines{
		clock:    c,
		refusals: lograte.New(c, strangerBurst, strangerEvery), strangers: lograte.New(c, strangerBurst, strangerEvery),
		friends: lograte.New(c, friendBurst, friendEvery),
	}
}

// run tells of lines that were left out until ctx ends, and then once more.
func (l *lines) run(ctx context.Context, log *slog.Logger) {
	t := l.clock.NewTimer(flushEvery)
	defer t.Stop()
	for ended := false; !ended; t.Reset(flushEvery) {
		select {
		case <-ctx.Done():
			ended = true
		case <-t.C():
		}
		l.refusals.Flush(log, "refused connections")
		l.strangers.Flush(log, "unauthenticated connections")
		l.friends.Flush(log, "authenticated connections")
	}
}

// tellEnd writes the one line of a connection. Its goroutines have ended.
func (c *Conn) tellEnd(took time.Duration, cause error) {
	args := []any{
		"transport", c.transport.String(), "duration_ms", took.Milliseconds(),
		"requests", c.requests, "refusals", c.refused.Load(), "reason", reasonText(cause),
	}
	var fatal *FatalError
	if errors.As(cause, &fatal) && fatal.Cause != nil {
		args = append(args, "cause", clip(fatal.Cause.Error())) // for this side alone
	}
	level, lines := slog.LevelInfo, c.srv.lines.strangers
	switch grant := c.grant.Load(); {
	case grant != nil:
		lines = c.srv.lines.friends
		args = append(args, "principal", c.srv.opt.Handshake.Registry.Snapshot().NameOf(grant.KeyID),
			"coordinator", c.hello.CoordinatorID.String(), "client", clip(c.hello.Name))
	case c.denied != "":
		level = slog.LevelWarn
		args = append(args, "key", handshake.ShortKey(c.claimed), "proof", c.denied)
	}
	lines.Say(c.log, level, "connection ended", args...)
}

// reasonText says why a connection ended in at most a line's part.
func reasonText(err error) string {
	if err == nil || errors.Is(err, io.EOF) {
		return "the peer closed"
	}
	return clip(err.Error())
}

// clip makes a text of a peer a part of a line.
func clip(s string) string {
	s = strings.ToValidUTF8(s, "?")
	for i := range s {
		if i > maxReason-4 {
			return s[:i]
		}
	}
	return s
}
