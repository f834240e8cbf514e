package term

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/charmbracelet/x/ansi"
	"github.com/creack/pty"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// terminal opens a terminal of 100 columns.
func terminal(t *testing.T) *os.File {
	master, slave, err := pty.Open()
	require.NoError(t, err)
	t.Cleanup(func() { slave.Close(); master.Close() })
	require.NoError(t, pty.Setsize(slave, &pty.Winsize{Rows: 30, Cols: 100}))
	return slave
}

func env(pairs ...string) func(string) string {
	return func(name string) string {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1]
			}
		}
		return ""
	}
}

func TestTerminals(t *testing.T) {
	tty := terminal(t)
	columns, rows, ok := Size(tty)
	require.True(t, ok)
	require.Equal(t, []int{100, 30}, []int{columns, rows})
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	require.NoError(t, err)
	defer null.Close()
	for name, w := range map[string]io.Writer{"a buffer": new(bytes.Buffer), "a device that is no terminal": null} {
		require.False(t, Is(w), name)
		require.False(t, Smart(w, env("TERM", "xterm")), name)
	}
	require.True(t, Smart(tty, env("TERM", "xterm")))
	require.False(t, Smart(tty, env("TERM", "dumb")))
	require.False(t, Smart(tty, env()))
}

func TestWhenColoursAreWanted(t *testing.T) {
	tty, pipe := io.Writer(terminal(t)), io.Writer(new(bytes.Buffer))
	for _, tt := range []struct {
		name   string
		choice string
		w      io.Writer
		env    func(string) string
		want   bool
	}{
		{"on a terminal", Auto, tty, env("TERM", "xterm"), true},
		{"elsewhere", Auto, pipe, env("TERM", "xterm"), false},
		{"NO_COLOR=1", Auto, tty, env("TERM", "xterm", "NO_COLOR", "1"), false},
		{"NO_COLOR=0, which is a value", Auto, tty, env("TERM", "xterm", "NO_COLOR", "0"), false},
		{"NO_COLOR=please", Auto, tty, env("TERM", "xterm", "NO_COLOR", "please"), false},
		{"a dumb terminal", Auto, tty, env("TERM", "dumb"), false},
		{"asked for", Always, pipe, env("NO_COLOR", "1"), true},
		{"not wanted", Never, tty, env("TERM", "xterm"), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var c Choice
			require.NoError(t, c.Set(tt.choice))
			p := c.Paint(tt.w, tt.env)
			for _, painted := range []string{p.State("FAILED"), p.Heading("ID"), p.Warning("w"), p.Good("g"), p.Bad("b")} {
				require.Equal(t, tt.want, strings.Contains(painted, "\x1b["), "%q", painted)
			}
			require.Equal(t, "FAILED", ansi.Strip(p.State("FAILED")), "the word stays")
			require.Equal(t, "whatever", p.State("whatever"), "a word that is not known stays plain")
			require.Empty(t, p.State(""))
		})
	}
}

func TestColorFlag(t *testing.T) {
	var c Choice
	flags := pflag.NewFlagSet("thing", pflag.ContinueOnError)
	AddColor(flags, &c)
	require.Equal(t, Auto, c.String())
	require.ErrorContains(t, flags.Parse([]string{"--color", "alwys"}), "did you mean always?")
	require.NoError(t, flags.Parse([]string{"--color=never"}))
	require.Equal(t, Never, c.String())
}

// TestEnviron: a library may take only some values of NO_COLOR for one.
func TestEnviron(t *testing.T) {
	for _, tt := range []struct {
		choice string
		in     []string
		want   []string
	}{
		{Auto, []string{"A=b"}, []string{"A=b"}},
		{Auto, []string{"NO_COLOR=please", "A=b"}, []string{"A=b", "NO_COLOR=1"}},
		{Auto, []string{"NO_COLOR=", "A=b"}, []string{"A=b"}},
		{Never, []string{"A=b"}, []string{"A=b", "NO_COLOR=1"}},
		{Always, []string{"NO_COLOR=1", "A=b"}, []string{"A=b"}},
	} {
		c := Choice{tt.choice}
		require.Equal(t, tt.want, c.Environ(tt.in))
	}
}

func TestTablePaintTakesNoRoom(t *testing.T) {
	var out bytes.Buffer
	p := Paint{true}
	table := NewTable(&out)
	fmt.Fprintln(table, p.Heading("ID\tSTATE\tTITLE"))
	fmt.Fprintf(table, "1\t%s\tone\n", p.State("FAILED"))
	fmt.Fprintf(table, "漢字\t%s\ttwo\n", p.State("Open"))
	require.NoError(t, table.Flush())
	require.Contains(t, out.String(), "\x1b[")
	require.Equal(t, "ID    STATE   TITLE\n1     FAILED  one\n漢字  Open    two\n", ansi.Strip(out.String()))
	out.Reset()
	require.NoError(t, table.Flush())
	require.Empty(t, out.String())
}

// TestTableIsThatOfTabwriter: for plain text nothing has changed.
func TestTableIsThatOfTabwriter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lines := rapid.SliceOfN(rapid.SliceOfN(rapid.StringMatching(`[a-z ]{0,6}`), 1, 4), 0, 6).Draw(t, "lines")
		var text strings.Builder
		for _, cells := range lines {
			text.WriteString(strings.Join(cells, "\t") + "\n")
		}
		var want, have bytes.Buffer
		tw := tabwriter.NewWriter(&want, 0, 0, columnGap, ' ', 0)
		io.WriteString(tw, text.String()) //nolint:errcheck // a buffer takes everything
		tw.Flush()                        //nolint:errcheck // as above
		table := NewTable(&have)
		io.WriteString(table, text.String()) //nolint:errcheck // as above
		if err := table.Flush(); err != nil || want.String() != have.String() {
			t.Fatalf("%q\n%q, %v", want.String(), have.String(), err)
		}
	})
}
