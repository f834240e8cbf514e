package main

import (
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
)

// completed are the lines of `coordctl __complete`, and its directive.
func completed(t *testing.T, args ...string) (lines []string, directive string) {
	t.Helper()
	r := cli(append([]string{"__complete"}, args...)...)
	require.Equal(t, exitDone, r.code, r.errout)
	lines = strings.Split(strings.TrimSuffix(r.out, "\n"), "\n")
	last := len(lines) - 1
	return lines[:last], lines[last]
}

// patiently sets how long a completion waits.
func patiently(t *testing.T, d time.Duration) {
	was := completeWithin
	completeWithin = d
	t.Cleanup(func() { completeWithin = was })
}

// TestCompletionOfWhatThereIs completes ids, with titles and states, and words.
func TestCompletionOfWhatThereIs(t *testing.T) {
	f := newFake(t)
	t.Setenv("XDG_STATE_HOME", filepath.Dir(filepath.Dir(f.path)))
	f.records = oneOfEach(t)
	f.records[2] = record(t, frames.KindRun, 1, &frames.Run{ObjectiveID: frames.ObjectiveID(f.records[0].ID), Attempt: 2, State: frames.RunRunning})
	hostile := &frames.Objective{DocumentSchema: 1, Document: []byte(`{"title":"\u001b]0;x\u0007 $(touch x)\n_activeHelp_ \t more"}`)}
	f.records = append([]frames.SnapshotRecord{f.records[0], f.records[1], record(t, frames.KindObjective, 3, hostile)}, f.records[2:]...)
	f.listen()
	patiently(t, patience)
	objective := func(n byte) string { return frames.ObjectID{1, 0xab, 0xcd, 15: n}.String() }
	theRun := frames.ObjectID{2, 0xab, 0xcd, 15: 1}.String()
	none := func(args ...string) {
		t.Helper()
		lines, directive := completed(t, append([]string{"--context", f.path}, args...)...)
		require.Empty(t, lines, "%v", args)
		require.NotEqual(t, ":0", directive, "files are not what is meant")
	}
	none("get", "objective", "") // before any command has met this authority
	require.Equal(t, exitDone, f.cli("status").code)

	for _, tt := range []struct {
		name string
		args []string
		want []string
	}{
		{"objectives, those that go on first", []string{"get", "objective", ""}, []string{
			objective(1) + "\tActive  First � work", objective(3) + "\tActive  �]0;x� $(touch x)�_activeHelp_ � more", objective(2) + "\tCompleted"}},
		{"a beginning in capitals", []string{"describe", "objective", "01ABCD"}, []string{
			objective(1) + "\tActive  First � work", objective(3) + "\tActive  �]0;x� $(touch x)�_activeHelp_ � more", objective(2) + "\tCompleted"}},
		{"those that can be completed", []string{"complete", "objective", ""}, []string{
			objective(1) + "\tActive  First � work", objective(3) + "\tActive  �]0;x� $(touch x)�_activeHelp_ � more"}},
		{"those that can be archived", []string{"archive", "objective", ""}, []string{objective(2) + "\tCompleted"}},
		{"a run by its objective's title", []string{"logs", "02"}, []string{theRun + "\tRunning  First � work"}},
		{"the run of a flag", []string{"artifact", "register", "--run", ""}, []string{theRun + "\tRunning  First � work"}},
		{"a signal", []string{"ack", ""}, []string{anyOf(t, f, frames.KindSignal) + "\tOpen  EVIDENCE_GAP gap"}},
		{"no run that is paused", []string{"resume", ""}, nil},
		{"an id of another kind", []string{"get", "run", "01abcd"}, nil},
		{"nothing that is an id", []string{"get", "run", "zz"}, nil},
		{"no second id", []string{"logs", "02abcd", ""}, nil},
		{"reasons", []string{"end", "05abcd", "--reason", ""}, []string{"cancelled", "completed", "failed", "owner-lost"}},
		{"formats", []string{"status", "-o", "j"}, []string{"json", "jsonpath="}},
		{"colours", []string{"status", "--color", ""}, []string{"auto", "always", "never"}},
		{"contexts", []string{"context", "use", ""}, []string{"local"}},
		{"shells", []string{"completion", ""}, []string{"bash", "zsh", "fish"}},
		{"a title of that objective", []string{"update", "objective", objective(3), "--title", ""}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			lines, directive := completed(t, append([]string{"--context", f.path}, tt.args...)...)
			if tt.want == nil {
				require.Empty(t, lines)
				require.NotEqual(t, ":0", directive, "files are not what is meant")
				return
			}
			for _, want := range tt.want {
				require.Contains(t, lines, want)
			}
			if tt.args[0] != "status" {
				require.Len(t, lines, len(tt.want), "%q", lines)
			}
			require.NotContains(t, strings.Join(lines, ""), "\x1b")
		})
	}
	operations, _ := completed(t, "--context", f.path, "op", "get", "")
	require.Len(t, operations, 2)
}

func anyOf(t *testing.T, f *fake, kind frames.ObjectKind) string {
	for _, r := range f.records {
		if r.Kind == kind {
			return r.ID.String()
		}
	}
	t.Fatal("there is none")
	return ""
}

// TestCompletionIsBounded: in number, in time, and where nobody answers.
func TestCompletionIsBounded(t *testing.T) {
	f := newFake(t)
	for n := range 250 {
		r := record(t, frames.KindObjective, 1, &frames.Objective{DocumentSchema: 1, Document: []byte(`{"title":"x"}`)})
		r.ID[14] = byte(n)
		f.records = append(f.records, r)
	}
	patiently(t, patience)
	lines, directive := completed(t, "--context", f.path, "get", "objective", "")
	require.Empty(t, lines, "nobody listens")
	require.Equal(t, ":36", directive)
	f.listen()
	require.Equal(t, exitDone, f.cli("status").code)
	lines, _ = completed(t, "--context", f.path, "get", "objective", "")
	require.Len(t, lines, maxCompletions)

	patiently(t, 200*time.Millisecond)
	hold := make(chan struct{})
	f.paged = func() { <-hold } // until the client has gone
	began := time.Now()
	lines, _ = completed(t, "--context", f.path, "get", "objective", "")
	close(hold)
	require.Empty(t, lines)
	require.Less(t, time.Since(began), patience/2)
	lines, _ = completed(t, "--context", filepath.Join(t.TempDir(), "none.toml"), "get", "objective", "")
	require.Empty(t, lines)
}

// TestCompletionAsksNoAgent: it might ask its user, or not answer for long.
func TestCompletionAsksNoAgent(t *testing.T) {
	f := newFake(t)
	f.records = oneOfEach(t)
	f.listen()
	require.Equal(t, exitDone, f.cli("status").code)
	socket := filepath.Join(filepath.Dir(f.path), "agent.sock")
	agent, err := net.Listen("unix", socket)
	require.NoError(t, err)
	asked := make(chan struct{}, 100)
	var wg sync.WaitGroup
	wg.Go(func() {
		for nc, err := agent.Accept(); err == nil; nc, err = agent.Accept() {
			asked <- struct{}{}
			nc.Close()
		}
	})
	t.Setenv("SSH_AUTH_SOCK", socket)
	lines, _ := completed(t, "--context", f.path, "--key", "agent", "get", "objective", "")
	require.Empty(t, lines)
	f.pins.KeyFile, f.pins.Agent = "", "ssh-agent"
	other := filepath.Join(filepath.Dir(f.path), "agent.toml")
	require.NoError(t, f.pins.Save(other))
	lines, _ = completed(t, "--context", other, "get", "objective", "")
	require.Empty(t, lines)
	agent.Close()
	wg.Wait()
	require.Empty(t, asked)
}

// TestCompletionOfAnOperationThatIsThereTwice: to this client its end is unknown, and the coordinator shows it.
func TestCompletionOfAnOperationThatIsThereTwice(t *testing.T) {
	f := newFake(t)
	f.records = oneOfEach(t)
	f.other = func(c *fakeConn, fr frames.Frame) {
		if ask, asks := fr.(*frames.GetOperationResult); asks {
			c.send(&frames.OperationResultFrame{RequestID: ask.RequestID, Operation: frames.OperationResult{State: frames.OperationUnknown}})
			return
		}
		c.nc.Close()
	}
	f.listen()
	id := anyOf(t, f, frames.KindOperation)
	require.Equal(t, exitUnknown, f.cli("create", "objective", "--op", id, "--id", strings.Repeat("ab", 16), "--title", "x", "--timeout", "200ms").code)
	patiently(t, patience)
	lines, _ := completed(t, "--context", f.path, "op", "get", id)
	require.Len(t, lines, 1, "%q", lines)
	require.True(t, strings.HasPrefix(lines[0], id+"\tSUCCEEDED"), "%q", lines)
}

// TestTitlesThatMayBeCompleted mean nothing to a shell.
func TestTitlesThatMayBeCompleted(t *testing.T) {
	for title, want := range map[string]bool{
		"Ship it": true, "release-1.4, part 2": true,
		"": false, "$(touch x)": false, "`x`": false, "a;b": false, "a'b": false, "a\nb": false, "-rf": false, "_activeHelp_ x": false,
		" x": false, "日本": false, strings.Repeat("x", maxDescription+1): false,
	} {
		require.Equal(t, want, harmless(title), "%q", title)
	}
}

// TestCompletionInBash lets a real shell complete a run and show two objectives.
func TestCompletionInBash(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash here")
	}
	t.Parallel()
	f := newFake(t)
	f.records = oneOfEach(t)
	f.listen()
	require.Equal(t, exitDone, f.cli("status").code)
	complete := func(words ...string) string {
		script := `source <("$0" completion bash)
_init_completion() { words=("${COMP_WORDS[@]}"); cword=$COMP_CWORD; cur=${words[cword]}; prev=${words[cword-1]}; }
shift 0; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_TYPE=9; COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}; COLUMNS=100
__start_coordctl; printf '%s\n' "${COMPREPLY[@]}"`
		program := filepath.Join(binaries(t), "coordctl")
		cmd := exec.Command(bash, append([]string{"--norc", "--noprofile", "-c", script, program, program, "--context", f.path}, words...)...)
		cmd.Dir = t.TempDir()
		out, err := cmd.Output()
		require.NoError(t, err)
		return string(out)
	}
	id := func(kind frames.ObjectKind, n byte) string {
		return frames.ObjectID{byte(kind), 0xab, 0xcd, 15: n}.String()
	}
	eventually(t, "a run on a machine that is not too busy", func() bool {
		return complete("get", "run", "02a") == id(frames.KindRun, 1)+"\n"
	})
	eventually(t, "two objectives", func() bool {
		return complete("get", "objective", "01") == id(frames.KindObjective, 1)+"  (Active  First � work)\n"+id(frames.KindObjective, 2)+"  (Completed)\n"
	})
	require.Equal(t, "objective\n", complete("get", "obj"))
}
