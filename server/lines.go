package server

import (
	"log/slog"
	"time"

	"coordinator/handshake"
	"coordinator/internal/clock"
	"coordinator/internal/lograte"
	"coordinator/internal/text"
)

// faultBurst and faultEvery bound the lines about requests that failed, as lograte does those
// about connections.
const faultBurst, faultEvery = 32, time.Second

// lines bound what is logged because of others.
type lines struct {
	lograte.Connections
	set    *lograte.Set
	faults *lograte.Limiter // requests that failed for no reason of the client's
}

func newLines(c clock.Clock) lines {
	set := lograte.NewSet(c)
	return lines{set: set, Connections: set.Connections(), faults: set.Add("failed requests", faultBurst, faultEvery)}
}

// tellEnd writes the one line of a connection. Its loops have ended.
func (c *conn) tellEnd(accepted time.Duration, cause error) {
	took := c.srv.clock.Now().Boot - accepted
	args := []any{
		"transport", c.transport.String(), "duration_ms", took.Milliseconds(),
		"requests", c.requests, "refusals", c.refused.Load(), "reason", lograte.Reason(cause),
	}
	level, lines := slog.LevelInfo, c.srv.lines.Strangers
	switch grant := c.grant.Load(); {
	case grant != nil:
		lines = c.srv.lines.Friends
		args = append(args, "principal", c.srv.registry.Snapshot().NameOf(grant.KeyID), "client", text.Clip(c.hello.Name, lograte.MaxText))
	case c.denied != "":
		level = slog.LevelWarn
		args = append(args, "key", handshake.ShortKey(c.claimed), "proof", c.denied)
	}
	lines.Say(c.log, level, "connection ended", args...)
}
