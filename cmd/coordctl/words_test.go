package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/charmbracelet/x/ansi"
	"github.com/stretchr/testify/require"

	"coordinator/internal/vterm"
)

// TestMistypedWords: the error names what is near, and the exit code is that of the command line.
func TestMistypedWords(t *testing.T) {
	f := newFake(t)
	t.Setenv("XDG_STATE_HOME", filepath.Dir(filepath.Dir(f.path)))
	require.Equal(t, exitDone, cli("context", "add", "staging", f.path).code)
	for _, tt := range []struct {
		name string
		args []string
		want string
	}{
		{"a command", []string{"staus"}, `there is no command "staus"; did you mean status?`},
		{"a nested command", []string{"op", "gte"}, `coordctl op has no subcommand "gte"; did you mean get?`},
		{"a nested command and its flag", []string{"create", "objectve", "--title", "x"}, `coordctl create has no subcommand "objectve"; did you mean objective?`},
		{"a command and its flag", []string{"evidnce", "verify", "--no-output", "01abcdef"}, `there is no command "evidnce"; did you mean evidence?`},
		{"below a command that can be run", []string{"cancel", "objectve", "01abcdef"}, `coordctl cancel has no subcommand "objectve"; did you mean objective?`},
		{"a flag", []string{"status", "--count"}, "unknown flag: --count; did you mean --counts"},
		{"a flag of the root", []string{"status", "--timout", "3s"}, "unknown flag: --timout; did you mean --timeout?"},
		{"a flag in front", []string{"--timout", "3s", "status"}, "unknown flag: --timout; did you mean --timeout?"},
		{"a flag behind one dash", []string{"status", "-counts"}, "did you mean --counts?"},
		{"a kind", []string{"get", "objectve"}, "; did you mean objective?"},
		{"a kind that is watched", []string{"watch", "sginal"}, "did you mean signal?"},
		{"a kind by another name", []string{"get", "sesions"}, "; did you mean sessions or session?"},
		{"a kind that is described", []string{"describe", "bindng", "01abcdef"}, "did you mean binding?"},
		{"a context to use", []string{"context", "use", "stagign"}, `there is no context "stagign"; did you mean staging?`},
		{"a context to show", []string{"context", "show", "locl"}, `there is no context "locl"; did you mean local?`},
		{"a context to work with", []string{"--context", "stagin", "status"}, "does not exist; did you mean staging?"},
		{"a reason", []string{"end", "01abcdef", "--reason", "owner-los"}, "did you mean owner-lost?"},
		{"a shell", []string{"completion", "bsh"}, "did you mean bash or zsh?"},
		{"a key's place", []string{"--context", f.path, "--key", "agnet", "status"}, "did you mean agent?"},
		{"a state", []string{"wait", "run", "01abcdef", "--for", "state=Complted"}, "; did you mean Completed?"},
		{"a condition", []string{"wait", "run", "01abcdef", "--for", "remved"}, "; did you mean removed?"},
		{"a format", []string{"status", "-o", "jsno"}, "; did you mean json?"},
		{"a choice of colours", []string{"status", "--color", "neve"}, "did you mean never?"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := cli(tt.args...)
			require.Equal(t, exitUsage, r.code, r.errout)
			require.Contains(t, r.errout, tt.want)
			require.Empty(t, r.out)
		})
	}
	require.NotContains(t, cli("zebra").errout, "did you mean")
}

// onPTY runs a command line in this process with both streams on a terminal of 100 columns, and gives
// every byte that it wrote there.
func onPTY(t *testing.T, args ...string) (code int, raw string) {
	t.Helper()
	x, err := vterm.Open(100, 30)
	require.NoError(t, err)
	defer x.Close()
	code = run(args, strings.NewReader(""), x.Slave, x.Slave)
	x.Hangup()
	return code, x.Raw()
}

// TestColours are there on a terminal when they are wanted, and never change what is said.
func TestColours(t *testing.T) {
	t.Setenv("TERM", "xterm-256color")
	t.Setenv("NO_COLOR", "")
	f := newFake(t)
	f.records = oneOfEach(t)
	f.listen()
	on := func(args ...string) string {
		t.Helper()
		code, raw := onPTY(t, append([]string{"--context", f.path}, args...)...)
		require.Equal(t, 0, code, raw)
		return raw
	}
	for name, args := range map[string][]string{
		"a table": {"get", "run"}, "one record": {"get", "run", "02abcd"}, "a description": {"describe", "objective", "01abcd00000000000000000000000001"},
		"a list of signals": {"signals"},
	} {
		t.Run(name, func(t *testing.T) {
			plain := f.cli(args...)
			require.Equal(t, 0, plain.code, plain.errout)
			require.NotContains(t, plain.out, "\x1b")
			painted := on(args...)
			require.Contains(t, painted, "\x1b[")
			require.Equal(t, plain.out, ansi.Strip(painted))
			require.Contains(t, f.cli(append(args, "--color", "always")...).out, "\x1b[")
			require.Equal(t, plain.out, on(append(args, "--color=never")...))
			for _, environ := range [][2]string{{"NO_COLOR", "please"}, {"TERM", "dumb"}} {
				before := os.Getenv(environ[0])
				require.NoError(t, os.Setenv(environ[0], environ[1]))
				require.Equal(t, plain.out, on(args...), environ)
				require.NoError(t, os.Setenv(environ[0], before))
			}
			require.NotContains(t, on(append(args, "-o", "json", "--color", "always")...), "\x1b", "JSON is for programs")
		})
	}
}
