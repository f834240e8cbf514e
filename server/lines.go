package server

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
	faultBurst, faultEvery       = 32, time.Second
)

// flushEvery is how often lines that were left out are told of although no other came.
const flushEvery = 10 * time.Second

// maxReason bounds the text of why a connection ended, of which a remote peer's transport may
// have chosen a part.
const maxReason = 200

// lines bound what is logged because of others.
type lines struct {
	clock    clock.Clock
	refusals *lograte.Limiter // connections that were closed at accept
	strangers,
	friends *lograte.Limiter // ends of connections before and after their proof
	faults *lograte.Limiter // requests that failed for no reason of the client's
}

func newLines(c clock.Clock) lines {
	return lines{
		clock:    c,
		refusals: lograte.New(c, strangerBurst, strangerEvery), strangers: lograte.New(c, strangerBurst, strangerEvery),
		friends: lograte.New(c, friendBurst, friendEvery), faults: lograte.New(c, faultBurst, faultEvery),
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
		l.faults.Flush(log, "failed requests")
	}
}

// tellEnd writes the one line of a connection. Its loops have ended.
func (c *conn) tellEnd(accepted time.Duration, cause error) {
	took := c.srv.clock.Now().Boot - accepted
	args := []any{
		"transport", c.transport.String(), "duration_ms", took.Milliseconds(),
		"requests", c.requests, "refusals", c.refused.Load(), "reason", reasonText(cause),
	}
	level, lines := slog.LevelInfo, c.srv.lines.strangers
	switch grant := c.grant.Load(); {
	case grant != nil:
		lines = c.srv.lines.friends
		args = append(args, "principal", c.srv.registry.Snapshot().NameOf(grant.KeyID), "client", clip(c.hello.Name, maxReason))
	case c.denied != "":
		level = slog.LevelWarn
		args = append(args, "key", handshake.ShortKey(c.claimed), "proof", c.denied)
	}
	lines.Say(c.log, level, "connection ended", args...)
}

// reasonText says why a connection ended in at most a line's part.
func reasonText(err error) string {
	switch {
	case err == nil, errors.Is(err, io.EOF):
		return "the peer closed"
	}
	return clip(strings.ToValidUTF8(err.Error(), "?"), maxReason)
}
