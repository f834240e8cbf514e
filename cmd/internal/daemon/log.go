package daemon

import (
	"io"
	"log/slog"

	"github.com/spf13/pflag"
)

// LogFlags choose how a daemon logs.
type LogFlags struct {
	Format string // text or json
	Level  string // debug, info, warn or error
}

// Register adds --log-format and --log-level.
func (f *LogFlags) Register(flags *pflag.FlagSet) {
	flags.StringVar(&f.Format, "log-format", "text", "log format: text or json")
	flags.StringVar(&f.Level, "log-level", "info", "least level that is logged: debug, info, warn or error")
}

// Logger makes the logger, or an error of the command line.
func (f *LogFlags) Logger(w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(f.Level)); err != nil {
		return nil, Usage("--log-level must be debug, info, warn or error")
	}
	o := &slog.HandlerOptions{Level: level}
	switch f.Format {
	case "text":
		return slog.New(slog.NewTextHandler(w, o)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, o)), nil
	}
	return nil, Usage("--log-format must be text or json")
}
