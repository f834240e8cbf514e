package daemon

import (
	"context"
	"io"
	"log/slog"

	"github.com/spf13/pflag"
)

// LogFlags choose how a daemon logs.
type LogFlags struct {
	Format      string // text or json
	Level       string // debug, info, warn or error
	Connections bool   // also what is routine about single connections
}

// Register adds --log-format, --log-level and --log-connections.
func (f *LogFlags) Register(flags *pflag.FlagSet) {
	flags.StringVar(&f.Format, "log-format", "text", "log format: text or json")
	flags.StringVar(&f.Level, "log-level", "info", "least level that is logged: debug, info, warn or error")
	flags.BoolVar(&f.Connections, "log-connections", true, "log that connections come and go; their warnings are logged in any case")
}

// Logger makes the logger, or an error of the command line.
func (f *LogFlags) Logger(w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(f.Level)); err != nil {
		return nil, Usage("--log-level must be debug, info, warn or error")
	}
	o := &slog.HandlerOptions{Level: level}
	var h slog.Handler
	switch f.Format {
	case "text":
		h = slog.NewTextHandler(w, o)
	case "json":
		h = slog.NewJSONHandler(w, o)
	default:
		return nil, Usage("--log-format must be text or json")
	}
	if !f.Connections {
		h = &quietHandler{Handler: h}
	}
	return slog.New(h), nil
}

// connKey is the attribute that a logger for one connection carries.
const connKey = "conn"

// quietHandler drops what is below a warning from loggers for one connection, so that a
// terminal shows the life of the process and not each client of it.
type quietHandler struct {
	slog.Handler
	conn bool // this is the handler of one connection
}

// Enabled reports whether a record of that level is handled.
func (h *quietHandler) Enabled(ctx context.Context, level slog.Level) bool {
	if h.conn && level < slog.LevelWarn {
		return false
	}
	return h.Handler.Enabled(ctx, level)
}

// WithAttrs notices the attribute of a connection.
func (h *quietHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	conn := h.conn
	for _, a := range attrs {
		conn = conn || a.Key == connKey
	}
	return &quietHandler{Handler: h.Handler.WithAttrs(attrs), conn: conn}
}

// WithGroup keeps the rule inside a group.
func (h *quietHandler) WithGroup(name string) slog.Handler {
	return &quietHandler{Handler: h.Handler.WithGroup(name), conn: h.conn}
}
