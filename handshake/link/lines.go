package link

import (
	"errors"
	"log/slog"
	"time"

	"coordinator/handshake"
	"coordinator/internal/lograte"
	"coordinator/internal/text"
)

// tellEnd writes the one line of a connection. Its goroutines have ended.
func (c *Conn) tellEnd(took time.Duration, cause error) {
	args := []any{
		"transport", c.transport.String(), "duration_ms", took.Milliseconds(),
		"requests", c.requests, "refusals", c.refused.Load(), "reason", lograte.Reason(cause),
	}
	var fatal *FatalError
	if errors.As(cause, &fatal) && fatal.Cause != nil {
		args = append(args, "cause", text.Clip(fatal.Cause.Error(), lograte.MaxText)) // for this side alone
	}
	level, lines := slog.LevelInfo, c.srv.lines.Strangers
	switch grant := c.grant.Load(); {
	case grant != nil:
		lines = c.srv.lines.Friends
		args = append(args, "principal", c.srv.opt.Handshake.Registry.Snapshot().NameOf(grant.KeyID),
			"coordinator", c.hello.CoordinatorID.String(), "client", text.Clip(c.hello.Name, lograte.MaxText))
	case c.denied != "":
		level = slog.LevelWarn
		args = append(args, "key", handshake.ShortKey(c.claimed), "proof", c.denied)
	}
	lines.Say(c.log, level, "connection ended", args...)
}
