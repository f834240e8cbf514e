package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/cmd/internal/progress"
	"coordinator/internal/vterm"
	"coordinator/server/store"
)

// TestBarsOnATerminal runs what takes long, made longer at a fail point, on a terminal: a bar is there
// while it lasts, and nothing of it is left. Elsewhere, and beside JSON, there is none.
func TestBarsOnATerminal(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	kept := filepath.Join(r.root, "kept")
	ok(t, coordinatord, "backup", kept, "--state", r.dir)
	for _, tt := range []struct {
		name, point string
		args        []string
		bar         string // while it lasts
		result      string
	}{
		{"verify", "inspect-log", []string{"verify", "--state", r.dir}, "reading the log  ", "the store is whole: "},
		{"backup", "backup-file", []string{"backup", "DIR", "--state", r.dir}, "writing  [", "backup of the stopped coordinator "},
		{"restore", "restore-file", []string{"restore", kept, "--state", "DIR"}, "restoring  [", "is restored in "},
		{"compact", "compact-written", []string{"compact", "--state", r.dir}, "copying state.db  [", "state.db has "},
	} {
		on := func(t *testing.T, more ...string) (command *exec.Cmd) {
			args := append(append([]string{}, tt.args...), more...)
			for i := range args {
				if args[i] == "DIR" {
					args[i] = filepath.Join(t.TempDir(), "made")
				}
			}
			command = exec.CommandContext(t.Context(), coordinatord, args...)
			command.Env = append(os.Environ(), "TERM=xterm", "COORDINATOR_FAILPOINT="+tt.point+"=sleep:900ms")
			return command
		}
		t.Run(tt.name, func(t *testing.T) {
			x, err := vterm.Open(100, 60)
			require.NoError(t, err)
			defer x.Close()
			c := on(t)
			c.Stdout, c.Stderr = x.Slave, x.Slave
			require.NoError(t, c.Start())
			require.True(t, x.Shows(waitFor, tt.bar), "%s", x.Raw())
			require.NoError(t, c.Wait())
			x.Hangup()
			require.Contains(t, x.Text(), tt.result)
			require.NotContains(t, x.Text(), strings.TrimSuffix(tt.bar, "["), "the bar is left:\n%s", x.Text())

			if tt.name == "verify" {
				var out, errs bytes.Buffer
				c = on(t)
				c.Stdout, c.Stderr = &out, &errs
				require.NoError(t, c.Run())
				require.NotContains(t, out.String()+errs.String(), "\x1b", "no terminal")
				require.NotContains(t, out.String()+errs.String(), advanceLine)
				j, err := vterm.Open(100, 30)
				require.NoError(t, err)
				defer j.Close()
				c = on(t, "-o", "json")
				c.Stdout, c.Stderr = &out, j.Slave
				out.Reset()
				require.NoError(t, c.Run())
				j.Hangup()
				require.True(t, json.Valid(out.Bytes()))
				require.NotContains(t, j.Raw(), "\x1b", "beside JSON")
			}
		})
	}
}

// TestAdvancesOfAChild come through as they are, and lines do too.
func TestAdvancesOfAChild(t *testing.T) {
	var out, pipe bytes.Buffer
	tell := &teller{out: &out, bar: progress.New(&out, progress.Options{})}
	say := advances(&pipe)
	say(store.Advance{Step: "one", Done: 1, Total: 2})
	say(store.Advance{Step: "one", Done: 2, Total: 2}) // too soon to be told
	say(store.Advance{Step: "two", Unit: "rows"})
	require.Equal(t, 2, strings.Count(pipe.String(), advanceLine))
	pipe.WriteString("a line\n" + cutLine + "{}\nan unfinished")
	said := &childReader{tell: tell}
	for _, b := range pipe.Bytes() { // as it comes
		_, err := said.Write([]byte{b})
		require.NoError(t, err)
	}
	require.Equal(t, "a line\n", out.String())
	require.NotNil(t, said.cut)
	_, err := said.Write([]byte("\n" + advanceLine + "{\n"))
	require.Error(t, err)
}
