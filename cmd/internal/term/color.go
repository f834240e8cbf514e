package term

import (
	"errors"
	"io"
	"strings"

	"github.com/charmbracelet/x/ansi"
	"github.com/spf13/pflag"

	"coordinator/cmd/internal/suggest"
)

// A Choice is the value of --color. The zero value is auto.
type Choice struct{ word string }

// Words of a [Choice].
const (
	Auto   = "auto"
	Always = "always"
	Never  = "never"
)

// Choices are the words that --color takes.
func Choices() []string { return []string{Auto, Always, Never} }

// AddColor adds --color to flags.
func AddColor(flags *pflag.FlagSet, c *Choice) {
	flags.Var(c, "color", "colours in text: auto (on a terminal, unless NO_COLOR is set or TERM is dumb), always or never")
}

// String is the word.
func (c *Choice) String() string {
	if c.word == "" {
		return Auto
	}
	return c.word
}

// Set reads a word.
func (c *Choice) Set(word string) error {
	switch word {
	case Auto, Always, Never:
		c.word = word
		return nil
	}
	return errors.New("it is auto, always or never" + suggest.Hint(word, Choices()))
}

// Type is what help calls the value.
func (*Choice) Type() string { return "WHEN" }

// Paint is how what goes to w is painted. With auto that is on a terminal with colours, unless
// NO_COLOR has any value at all (https://no-color.org). env gives the environment, as os.Getenv does.
func (c *Choice) Paint(w io.Writer, env func(string) string) Paint {
	switch c.String() {
	case Always:
		return Paint{true}
	case Never:
		return Paint{}
	}
	return Paint{env("NO_COLOR") == "" && Smart(w, env)}
}

// Environ is environ as a library has to see it that reads NO_COLOR by itself, and perhaps takes
// some of its values only: it is set to 1 where no colours are wanted, and is not there else.
func (c *Choice) Environ(environ []string) []string {
	out := make([]string, 0, len(environ)+1)
	set := ""
	for _, e := range environ {
		if value, is := strings.CutPrefix(e, "NO_COLOR="); is {
			set = value
			continue
		}
		out = append(out, e)
	}
	if c.String() == Never || c.String() == Auto && set != "" {
		out = append(out, "NO_COLOR=1")
	}
	return out
}

// A Paint colours words. The zero value leaves them as they are.
type Paint struct{ on bool }

// The few styles that there are. Every terminal with colours has these, in the shades of its user.
var (
	heading = ansi.Style{}.Bold()
	good    = ansi.Style{}.ForegroundColor(ansi.Green)
	busy    = ansi.Style{}.ForegroundColor(ansi.Cyan)
	warning = ansi.Style{}.ForegroundColor(ansi.Yellow)
	bad     = ansi.Style{}.Bold().ForegroundColor(ansi.Red)
	quiet   = ansi.Style{}.Faint()
)

// words are the states and verdicts of all four programs, in lower case.
var words = map[string]ansi.Style{
	"completed": good, "succeeded": good, "agrees": good, "live": good, "up": good, "running": good,
	"active": busy, "planned": busy, "pending": busy,
	"paused": warning, "open": warning, "waiting": warning, "not checked": warning, "expired": warning, "after_reboot": warning, "may have run": warning,
	"failed": bad, "rejected": bad, "indeterminate": bad, "unknown": bad, "ownerlost": bad, "differs": bad, "revoked": bad, "not running": bad,
	"cancelled": quiet, "ended": quiet, "tombstoned": quiet, "acknowledged": quiet, "suppressed": quiet, "resolved": quiet,
	"relinquished": quiet, "(removed)": quiet, "-": quiet,
}

// State paints the word of a state or verdict by what it means, with the spaces that pad it; one that
// is not known stays plain.
func (p Paint) State(word string) string {
	style, known := words[strings.ToLower(strings.TrimSpace(word))]
	if !known {
		return word
	}
	return p.styled(style, word)
}

// Heading paints the first line of a table.
func (p Paint) Heading(s string) string { return p.styled(heading, s) }

// Warning paints what should be noticed.
func (p Paint) Warning(s string) string { return p.styled(warning, s) }

// Bad paints what is wrong.
func (p Paint) Bad(s string) string { return p.styled(bad, s) }

// Good paints that all is well.
func (p Paint) Good(s string) string { return p.styled(good, s) }

func (p Paint) styled(style ansi.Style, s string) string {
	if !p.on || s == "" {
		return s
	}
	return style.Styled(s)
}
