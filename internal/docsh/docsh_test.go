package docsh

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) { os.Exit(Main(m)) }

// doc parses text in which three apostrophes stand for three backticks.
func doc(t *testing.T, text string) []Block {
	t.Helper()
	blocks, err := parse("d.md", strings.ReplaceAll(text, "'''", "```"))
	require.NoError(t, err)
	return blocks
}

// played plays a document without the product's programs.
func played(t *testing.T, text string, o Options) (int, string, error) {
	t.Helper()
	o.Bin = t.TempDir()
	var said strings.Builder
	ran, err := play(t.Context(), doc(t, text), o, func(format string, args ...any) {
		t.Logf(format, args...)
		said.WriteString(strings.ReplaceAll(format, "%s:%d", "d.md") + "\n")
		for _, a := range args {
			if s, ok := a.(string); ok {
				said.WriteString(s + "\n")
			}
		}
	})
	return ran, said.String(), err
}

func TestParse(t *testing.T) {
	blocks := doc(t, `# Title
'''sh
one
'''
1. In a list:

   ~~~~sh skip="no \"such\" thing here" host=a
   two '''
     three
   ~~~~

~~~text output
four
~~~
'''toml
'''
`)
	require.Equal(t, []Block{
		{File: "d.md", Line: 3, Lang: "sh", Text: "one\n"},
		{File: "d.md", Line: 8, Lang: "sh", Text: "two ```\n  three\n", Skip: `no "such" thing here`, Host: "a"},
		{File: "d.md", Line: 13, Lang: "text", Text: "four\n", Output: true},
		{File: "d.md", Line: 16, Lang: "toml"},
	}, blocks)
}

func TestParseRefuses(t *testing.T) {
	for _, tt := range []struct{ name, info, want string }{
		{"a misspelt word", "sh skips=\"x\"", `unknown word "skips"`},
		{"a skip without a reason", "sh skip", "a skip needs its reason"},
		{"a skip with an empty reason", `sh skip=" "`, "a skip needs its reason"},
		{"a quote that is not closed", `sh skip="x`, "no closing quote"},
		{"a failure that is success", "sh fails=0", "fails=0"},
		{"a failure without a number", "sh fails", "invalid syntax"},
		{"no time", "sh timeout=0s", "no time"},
		{"no host", "sh host=", "host has no name"},
		{"no host after a comma", "sh host=a,", "host has no name"},
		{"a value for output", "text output=no", "output has no value"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := parse("d.md", "\n```"+tt.info+"\n```\n")
			require.ErrorContains(t, err, "d.md:2: ")
			require.ErrorContains(t, err, tt.want)
		})
	}
	_, err := parse("d.md", "\n```sh\ntrue\n``\n")
	require.EqualError(t, err, "d.md:2: the block is never closed")
}

func TestMatches(t *testing.T) {
	for _, tt := range []struct {
		name, pattern, text string
		want                bool
	}{
		{"equal", "a b\n", "a b\n", true},
		{"spaces at the end", "a  \nb", "a\nb  \n\n", true},
		{"an id", "run … made", "run 2d88da made", true},
		{"an id is within a line", "run … made", "run 2d\n88da made", false},
		{"lines left out", "a\n…\nd\n", "a\nb\nc\nd\n", true},
		{"no lines left out", "a\n…\nd\n", "a\nd\n", true},
		{"the rest left out", "a\n…", "a\nb\n", true},
		{"a line more", "a\n", "a\nb\n", false},
		{"a line less", "a\nb\n", "a\n", false},
		{"a regular expression is text", "a.b", "axb", false},
		{"nothing", "", "", true},
		{"something for nothing", "", "a", false},
	} {
		t.Run(tt.name, func(t *testing.T) { require.Equal(t, tt.want, matches(tt.pattern, tt.text)) })
	}
}

func TestStateCarriesOver(t *testing.T) {
	ran, _, err := played(t, `
'''sh
mkdir -p sub && cd sub
name=value
export SEEN=exported
greet() { echo "hello $1"; }
'''
Text between.
'''console
$ greet \
      you
hello me, which nobody compares
$ echo $name; sh -c 'echo $SEEN'
'''
'''sh
[ "$(basename "$PWD")" = sub ]
greet again; pwd; cat
'''
'''text output
hello again
…/w/sub
'''
'''sh
case $HOME in */h) ;; *) exit 9;; esac
[ "${XDG_STATE_HOME#$HOME}" = /.local/state ]
'''
`, Options{Langs: []string{"sh", "console"}})
	require.NoError(t, err)
	require.Equal(t, 4, ran)
}

func TestAFailureSaysWhere(t *testing.T) {
	_, _, err := played(t, `
'''sh
true
'''
'''sh
echo before
test -e \
  nothing
echo after
'''
'''sh
touch /nonexistent/x
'''
`, Options{})
	var failed *Error
	require.ErrorAs(t, err, &failed)
	require.Equal(t, 7, failed.Line)
	require.Equal(t, "test -e nothing", failed.Command)
	require.Equal(t, "before\n", failed.Output)
	require.EqualError(t, err, "d.md:7: the shell ended with exit code 1\ncommand:\n    test -e nothing\noutput:\n    before")
}

func TestWhatFails(t *testing.T) {
	for _, tt := range []struct{ name, block, what, output string }{
		{"a pipe", "'''sh\nfalse | cat\n'''\n", "exit code 1", ""},
		{"a variable nobody set", "'''sh\necho $DOCSH_NOBODY\n'''\n", "exit code 1", "d.md: line 2: DOCSH_NOBODY: unbound variable"},
		{"an unknown command", "'''sh\n\nno-such-command\n'''\n", "exit code 127", "d.md: line 3: no-such-command: command not found"},
		{"the end of the shell", "'''sh\nexit 0\n'''\n", "the shell ended with exit code 0", ""},
		{"a failure that is none", "'''sh fails=3\ntrue\n'''\n", "exit code 0, where the document says 3", ""},
		{"another failure", "'''sh fails=3\nsh -c 'exit 4'\n'''\n", "exit code 4, where the document says 3", ""},
		{"a failure too early", "'''sh fails=3\nfalse\nexit 3\n'''\n", "exit code 1, where the document says 3", ""},
		{"other output", "'''sh\necho one\n'''\n'''text output\ntwo\n'''\n", "this is not what was printed", "one"},
		{"syntax", "'''sh\nif true; then\n'''\n", "exit code ", "syntax error"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, _, err := played(t, tt.block, Options{})
			var failed *Error
			require.ErrorAs(t, err, &failed)
			require.Contains(t, failed.What, tt.what)
			require.Contains(t, failed.Output, tt.output)
		})
	}
	_, _, err := played(t, "'''sh skip=\"not here\"\nfalse\n'''\n'''sh fails=7\nA=b; sh -c 'exit 7'\n'''\n'''sh\n[ -z \"${A-}\" ]\n'''\n", Options{})
	require.NoError(t, err)
	_, _, err = played(t, "'''text output\nof nothing\n'''\n", Options{})
	require.EqualError(t, err, "d.md:2: no block before this output has run")
}

func TestSkipsAreSaid(t *testing.T) {
	ran, said, err := played(t, "'''sh skip=\"needs systemd as PID 1\"\nfalse\n'''\n'''text output\nnothing\n'''\n'''sh\ntrue\n'''\n", Options{})
	require.NoError(t, err)
	require.Equal(t, 1, ran)
	require.Contains(t, said, "needs systemd as PID 1")
}

// A block that hangs is given up, and what it started is gone: in its own process group, in
// another one, and what ignores SIGTERM.
func TestNothingIsLeft(t *testing.T) {
	pids := filepath.Join(t.TempDir(), "pids")
	_, _, err := played(t, `
'''sh
sleep 1000 & echo $! >"$PIDS"
'''
'''sh timeout=300ms
setsid sh -c 'echo $$ >>"$PIDS"; exec sleep 1001' &
until [ "$(wc -l <"$PIDS")" = 2 ]; do sleep 0.01; done
echo waiting
sleep 1002
'''
`, Options{Env: []string{"PIDS=" + pids}})
	var failed *Error
	require.ErrorAs(t, err, &failed)
	require.Contains(t, failed.What, "not done after 300ms")
	require.Contains(t, failed.What, "sleep 1000")
	raw, err := os.ReadFile(pids)
	require.NoError(t, err)
	for pid := range strings.FieldsSeq(string(raw)) {
		raw, err := os.ReadFile("/proc/" + pid + "/cmdline")
		require.True(t, err != nil || len(raw) == 0, "process %s is left: %s", pid, raw)
	}
}

func TestHostsAreApart(t *testing.T) {
	var prepared []string
	_, _, err := played(t, `
'''sh host=a
A=1; echo from a >../../b-hears
'''
'''sh host=b
[ -z "${A-}" ]; [ "$WHERE" = b ]; cat ../../b-hears prepared
'''
'''text output
from a
for b
'''
'''sh host=a
[ "$A" = 1 ]
'''
'''sh host=a,b
echo "on $WHERE"
'''
'''text output
on a
on b
'''
`, Options{
		Prepare: func(host, dir string) error {
			prepared = append(prepared, host)
			return os.WriteFile(filepath.Join(dir, "prepared"), []byte("for "+host+"\n"), 0o600)
		},
		Host: func(host string) []string { return []string{"env", "WHERE=" + host} },
	})
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b"}, prepared)
}

func TestBeforeAndCancel(t *testing.T) {
	_, _, err := played(t, "'''sh\n[ \"$GIVEN\" = 1 ]\n'''\n", Options{Before: "GIVEN=1\n"})
	require.NoError(t, err)
	_, _, err = played(t, "'''sh\ntrue\n'''\n", Options{Before: "false\n"})
	require.ErrorContains(t, err, "before:1: ")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = play(ctx, doc(t, "'''sh\nsleep 1000\n'''\n"), Options{Bin: t.TempDir()}, t.Logf)
	require.ErrorContains(t, err, "context canceled")
}

// TestRunHasTheProduct runs a file with the programs of this checkout.
func TestRunHasTheProduct(t *testing.T) {
	path := filepath.Join(t.TempDir(), "d.md")
	require.NoError(t, os.WriteFile(path, []byte("```sh\nwitnessd init --state w\ntest -e w/witness.toml\nwitnessd serve --state w >w.log 2>&1 &\nuntil witnessd status --state w >s.txt 2>&1; do sleep 0.05; done\necho $! >\"$PIDS\"\n```\n"), 0o600))
	pids := filepath.Join(t.TempDir(), "pids")
	require.Equal(t, 1, Run(t, path, Options{Timeout: 3 * time.Minute, Env: []string{"PIDS=" + pids}}))
	raw, err := os.ReadFile(pids)
	require.NoError(t, err)
	raw, err = os.ReadFile("/proc/" + strings.TrimSpace(string(raw)) + "/cmdline")
	require.True(t, errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) || len(raw) == 0, "%s", raw)
}
