package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// begun is a `coordctl run` under way.
type begun struct {
	cmd      *exec.Cmd
	out, err *safeBuffer
	done     chan struct{}
}

// begin starts coordctl in the background.
func (u *upped) begin(args ...string) *begun {
	u.t.Helper()
	b := &begun{cmd: exec.Command(filepath.Join(u.bin, "coordctl"), append([]string{"--context", u.context()}, args...)...),
		out: &safeBuffer{}, err: &safeBuffer{}, done: make(chan struct{})}
	b.cmd.Stdout, b.cmd.Stderr = b.out, b.err
	require.NoError(u.t, b.cmd.Start())
	go func() { b.cmd.Wait(); close(b.done) }() //nolint:errcheck // the exit code is looked at
	u.t.Cleanup(func() { b.cmd.Process.Kill(); <-b.done })
	return b
}

func (u *upped) context() string { return filepath.Join(u.state, "client", "context.toml") }

// code is how it ended.
func (b *begun) code(t *testing.T) int {
	t.Helper()
	eventually(t, "coordctl ends", func() bool {
		select {
		case <-b.done:
			return true
		default:
			return false
		}
	})
	return b.cmd.ProcessState.ExitCode()
}

// detached starts a run and gives its ids.
func (u *upped) detached(argv ...string) (ids struct {
	Run     string `json:"run_id"`
	Binding string `json:"binding_id"`
}) {
	u.t.Helper()
	r := u.ctl(append([]string{"run", "--detach", "-o", "json", "--"}, argv...)...)
	require.Equal(u.t, 0, r.code, r.errout)
	require.NoError(u.t, json.Unmarshal([]byte(r.out), &ids))
	return ids
}

// onlyRun is the id of the only run there is.
func (u *upped) onlyRun() string {
	u.t.Helper()
	var list []struct{ ID string }
	r := u.ctl("get", "run", "-o", "json")
	require.Equal(u.t, 0, r.code, r.errout)
	require.NoError(u.t, json.Unmarshal([]byte(r.out), &list), r.out)
	require.Len(u.t, list, 1)
	return list[0].ID
}

func TestRunEndsAsItsCommandDoes(t *testing.T) {
	u := startUp(t, filepath.Join(t.TempDir(), "s")).ready()

	r := u.ctl("run", "--", "sh", "-c", "echo hi; exit 3")
	require.Equal(t, 3, r.code, r.errout)
	require.Equal(t, "hi\r\n", r.out)
	require.Empty(t, r.errout)
	require.Empty(t, u.ctl("op", "list").out, "its end was seen")
	id := u.onlyRun()

	logs := u.ctl("logs", id)
	require.Equal(t, 0, logs.code, logs.errout)
	require.Equal(t, "hi\r\n", logs.out)
	require.Contains(t, logs.errout, "4 bytes of 4 agree with 1 admitted digest")

	proof := u.ctl("evidence", "verify", id[:8])
	require.Equal(t, 0, proof.code, proof.out+proof.errout)
	require.Contains(t, proof.out, "verified: everything agrees")
	require.Contains(t, proof.out, "run 3, manifest 3, event log 3")

	story := u.ctl("describe", "run", id)
	require.Equal(t, 0, story.code, story.errout)
	at := 0
	for _, line := range []string{"run is Planned", "process is bound to owner", "run is Running", "fact 1 OPENED", "bytes 1 to 4",
		"CLOSED: exit status 3", "binding ended: Failed", "run is Failed, exit status 3", "evidence is sealed", "signal EXECUTION_FAILED is Open"} {
		i := strings.Index(story.out[at:], line)
		require.GreaterOrEqual(t, i, 0, "%q is missing or out of order in\n%s", line, story.out)
		at += i
	}

	for _, tt := range []struct {
		argv []string
		code int
		out  string
	}{
		{[]string{"true"}, 0, ""},
		{[]string{"sh", "-c", "kill -9 $$"}, 128 + 9, ""},
		{[]string{"sh", "-c", "exit 255"}, 255, ""},
		{[]string{"sh", "-c", "echo \"$GREETING\"; pwd"}, 0, "hello\r\n/\r\n"},
	} {
		r := u.ctl(append([]string{"run", "--cwd", "/", "--env", "GREETING=hello", "--"}, tt.argv...)...)
		require.Equal(t, tt.code, r.code, "%q: %s", tt.argv, r.errout)
		require.Equal(t, tt.out, r.out)
	}
	missing := u.ctl("run", "--", "/no/such/program")
	require.Equal(t, exitRefused, missing.code, missing.errout)
	require.Contains(t, missing.errout, "REJECTED INTERNAL")
	require.Contains(t, missing.errout, "no such file")
}

// TestC08_ARunOutlivesItsCoordinator kills the coordinator while a run goes on that counts
// its own starts: the client shows every byte once and ends with the run's status.
func TestC08_ARunOutlivesItsCoordinator(t *testing.T) {
	t.Parallel()
	u := startUp(t, filepath.Join(t.TempDir(), "s")).ready()
	dir := t.TempDir()
	started, gate := filepath.Join(dir, "started"), filepath.Join(dir, "gate")
	script := `echo x >> "$1"; for i in 1 2 3; do echo before $i; done; while [ ! -e "$2" ]; do sleep 0.02; done; for i in 1 2 3; do echo after $i; done; exit 5`
	b := u.begin("run", "--title", "outlive", "--", "sh", "-c", script, "sh", started, gate)
	eventually(t, "the first output", func() bool { return strings.Contains(b.out.String(), "before 3") })

	_, coordinator := u.pids()
	require.NoError(t, syscall.Kill(coordinator, syscall.SIGKILL))
	eventually(t, "the coordinator has gone", gone(coordinator))
	require.NoError(t, os.WriteFile(gate, nil, 0o600)) // it ends while nobody is in charge
	require.Equal(t, 5, b.code(t), b.err.String())
	require.Equal(t, "before 1\r\nbefore 2\r\nbefore 3\r\nafter 1\r\nafter 2\r\nafter 3\r\n", b.out.String())

	starts, err := os.ReadFile(started)
	require.NoError(t, err)
	require.Equal(t, "x\n", string(starts))
	proof := u.ctl("evidence", "verify", u.onlyRun())
	require.Equal(t, 0, proof.code, proof.out+proof.errout)
	require.Contains(t, proof.out, "verified: everything agrees")
}

func TestRunWithoutItsOwner(t *testing.T) {
	t.Parallel()
	u := startUp(t, filepath.Join(t.TempDir(), "s")).ready()
	require.NoError(t, syscall.Kill(u.ownerPID(), syscall.SIGKILL))
	eventually(t, "the owner is back", func() bool { return strings.Count(u.errout.String(), "ownerd| ready") == 2 })
	r := u.ctl("run", "--", "echo", "hi") // in the new incarnation, which the coordinator may not have met yet
	require.Equal(t, 0, r.code, r.errout)
	require.Equal(t, "hi\r\n", r.out)

	raw, err := os.ReadFile(u.context())
	require.NoError(t, err)
	other := filepath.Join(u.state, "client", "other.toml")
	bad := func(text string) ran {
		t.Helper()
		require.NoError(t, os.WriteFile(other, []byte(text), 0o600))
		return u.ctl("--context", other, "run", "--", "true")
	}
	none, _, _ := strings.Cut(string(raw), "\n[[owner]]")
	r = bad(none)
	require.Equal(t, exitUsage, r.code)
	require.Contains(t, r.errout, "no [[owner]] is named")
	r = bad(strings.Replace(string(raw), "owner.sock", "nobody.sock", 1))
	require.Equal(t, exitUnavailable, r.code)
	require.Contains(t, r.errout, "no process owner")
	at := strings.LastIndex(string(raw), "sha256:") + len("sha256:")
	r = bad(string(raw[:at]) + strings.Repeat("7", 64) + string(raw[at+64:]))
	require.Equal(t, exitAuthentication, r.code, r.errout)
	r = u.ctl("run", "--owner", "nobody", "--", "true")
	require.Equal(t, exitUsage, r.code)
	require.Contains(t, r.errout, `no owner "nobody"`)
	objectives := u.ctl("get", "objective").out
	r = u.ctl("run", "--group", "99", "--", "true")
	require.Equal(t, exitUsage, r.code)
	require.Contains(t, r.errout, "owner local serves [1]")
	require.Equal(t, objectives, u.ctl("get", "objective").out, "nothing is created in vain")
	for _, args := range [][]string{{"run"}, {"run", "--cwd", "here", "--", "true"}, {"run", "--env", "X", "--", "true"},
		{"run", "--env", "A=1", "--env", "A=2", "--", "true"}, {"run", "--objective", "aabbcc", "--title", "x", "--", "true"},
		{"end", "aabbccdd"}, {"artifact", "register"}, {"watch", "--signals", "run"}} {
		require.Equal(t, exitUsage, u.ctl(args...).code, "%q", args)
	}
	require.Equal(t, exitRefused, u.ctl("run", "--objective", strings.Repeat("ab", 16), "--", "true").code)
	require.Equal(t, exitRefused, u.ctl("logs", strings.Repeat("ab", 16)).code)
}

func TestRunAsksBeforeItCancels(t *testing.T) {
	u := startUp(t, filepath.Join(t.TempDir(), "s")).ready()
	b := u.begin("run", "--", "sh", "-c", `trap "echo bye; exit 7" TERM; echo here; while :; do sleep 0.02; done`)
	eventually(t, "it runs", func() bool { return strings.Contains(b.out.String(), "here") })
	require.NoError(t, b.cmd.Process.Signal(os.Interrupt))
	eventually(t, "it asks", func() bool { return strings.Contains(b.err.String(), "Ctrl-C again cancels it") })
	require.Contains(t, u.ctl("get", "run").out, "Running")
	require.NoError(t, b.cmd.Process.Signal(os.Interrupt))
	require.Equal(t, 7, b.code(t), b.err.String())
	require.Contains(t, b.out.String(), "bye")
	require.Contains(t, b.err.String(), "was cancelled")
	id := u.onlyRun()
	require.Contains(t, u.ctl("get", "run", id).out, "Cancelled")
	require.Equal(t, "no open signals\n", u.ctl("signals").out)

	left := u.begin("run", "--", "sh", "-c", "echo here; sleep 100")
	eventually(t, "it runs", func() bool { return strings.Contains(left.out.String(), "here") })
	require.NoError(t, left.cmd.Process.Signal(syscall.SIGTERM))
	require.Equal(t, exitUnknown, left.code(t), "its end is not known")
	require.Contains(t, left.err.String(), "goes on")
	var runs []struct {
		ID      string
		Payload struct{ State string }
	}
	u.ctl("get", "run", "-o", "json").decode(t, &runs)
	cancelled := 0
	for _, r := range runs {
		if r.Payload.State == "Running" {
			require.Equal(t, 0, u.ctl("cancel", r.ID).code)
			cancelled++
		}
	}
	require.Equal(t, 1, cancelled)
}

func TestRunsAreControlled(t *testing.T) {
	u := startUp(t, filepath.Join(t.TempDir(), "s")).ready()
	ok := func(args ...string) ran {
		t.Helper()
		r := u.ctl(args...)
		require.Equal(t, 0, r.code, "%q: %s%s", args, r.out, r.errout)
		return r
	}
	running := func(run string) {
		t.Helper()
		eventually(t, "it runs", func() bool { return strings.Contains(u.ctl("get", "run", run).out, "Running") })
	}
	a := u.detached("sleep", "100")
	running(a.Run)
	ok("pause", a.Run)
	require.Contains(t, ok("get", "run", a.Run).out, "Paused")
	require.Equal(t, exitRefused, u.ctl("pause", a.Run).code)
	ok("resume", a.Run)
	unsealed := u.ctl("evidence", "verify", a.Run)
	require.Equal(t, exitRefused, unsealed.code)
	require.Contains(t, unsealed.errout, "sealed when its process has ended")
	require.Contains(t, ok("cancel", a.Run).out, "SUCCEEDED")
	require.Contains(t, ok("get", "run", a.Run).out, "Cancelled")
	ok("evidence", "verify", a.Run)
	again := u.ctl("cancel", a.Run)
	require.Equal(t, exitRefused, again.code)
	require.Contains(t, again.errout, "REVISION_CONFLICT")

	b := u.detached("sleep", "100")
	running(b.Run)
	require.Equal(t, exitRefused, u.ctl("end", b.Binding, "--reason", "owner-lost").code, "its owner is connected")
	require.Contains(t, ok("end", b.Binding, "--reason", "failed").out, "SUCCEEDED")
	require.Contains(t, ok("get", "run", b.Run).out, "Failed")

	require.Equal(t, 4, u.ctl("run", "--title", "fails", "--", "sh", "-c", "exit 4").code)
	var signals []struct {
		ID  string `json:"signal_id"`
		Run string `json:"run_id"`
	}
	require.NoError(t, json.Unmarshal([]byte(ok("signals", "-o", "json").out), &signals))
	require.Len(t, signals, 1)
	watching := u.begin("watch", "--signals")
	eventually(t, "the open signal", func() bool { return strings.Contains(watching.out.String(), signals[0].ID) })
	ok("ack", signals[0].ID, "--note", "seen")
	eventually(t, "its change", func() bool { return strings.Contains(watching.out.String(), "Acknowledged") })
	ok("suppress", signals[0].ID[:8])
	require.Equal(t, "no open signals\n", ok("signals", signals[0].Run).out)
	require.Contains(t, ok("signals", "--all").out, "Suppressed")

	file := filepath.Join(t.TempDir(), "manifest")
	require.NoError(t, os.WriteFile(file, []byte(`{"files":["a"]}`), 0o600))
	var made struct {
		ID       string `json:"artifact_id"`
		Revision int    `json:"revision"`
	}
	require.NoError(t, json.Unmarshal([]byte(ok("artifact", "register", "--run", b.Run, "--manifest", file, "-o", "json").out), &made))
	require.NoError(t, json.Unmarshal([]byte(ok("artifact", "register", "--id", made.ID[:8], "--manifest", file, "-o", "json").out), &made))
	require.Equal(t, 2, made.Revision)
	require.Equal(t, exitRefused, u.ctl("artifact", "register", "--id", made.ID, "--revision", "2", "--manifest", file).code)
}

// TestLogsTellWhatWasChanged changes a byte of stored output behind the owner's back.
func TestLogsTellWhatWasChanged(t *testing.T) {
	u := startUp(t, filepath.Join(t.TempDir(), "s")).ready()
	require.Equal(t, 0, u.ctl("run", "--", "echo", "genuine").code)
	id := u.onlyRun()
	changed := 0
	require.NoError(t, filepath.Walk(filepath.Join(u.state, "owner", "output"), func(path string, st os.FileInfo, err error) error {
		if err != nil || st.IsDir() {
			return err
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if at := bytes.Index(raw, []byte("genuine")); at >= 0 {
			raw[at] = 'G'
			changed++
			return os.WriteFile(path, raw, st.Mode())
		}
		return nil
	}))
	require.Equal(t, 1, changed)
	logs := u.ctl("logs", id)
	require.Equal(t, exitOther, logs.code)
	require.Equal(t, "Genuine\r\n", logs.out)
	require.Contains(t, logs.errout, "bytes 1 to 9 DIFFER")
	proof := u.ctl("evidence", "verify", id)
	require.Equal(t, exitOther, proof.code)
	require.Contains(t, proof.out, "output        DIFFERS")
	require.NotContains(t, proof.out, "verified")
	require.Equal(t, 0, u.ctl("evidence", "verify", "--no-output", id).code)

	events, _ := runEvents(t, u.ctl("run", "-o", "json", "--", "echo", "shortened").out)
	cut := events[0].Run
	require.Equal(t, 0, u.ctl("evidence", "verify", cut).code)
	require.NoError(t, filepath.Walk(filepath.Join(u.state, "owner", "output"), func(path string, st os.FileInfo, err error) error {
		if err != nil || st.IsDir() {
			return err
		}
		raw, err := os.ReadFile(path)
		if err == nil && bytes.Contains(raw, []byte("shortened")) {
			err = os.Truncate(path, 4)
		}
		return err
	}))
	proof = u.ctl("evidence", "verify", cut)
	require.Equal(t, exitOther, proof.code, proof.out)
	require.Contains(t, proof.out, "output        not checked")
	require.NotContains(t, proof.out, "verified")
}

// Output beyond the owner's cap is shown as far as it was stored, and nobody is left to think
// that it was all.
func TestLogsTellWhatWasNotStored(t *testing.T) {
	t.Parallel()
	u := startUp(t, filepath.Join(t.TempDir(), "s")).ready()
	require.NoError(t, u.cmd.Process.Signal(os.Interrupt))
	require.NoError(t, u.wait())
	file := filepath.Join(u.state, "owner", "owner.toml")
	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	before, rest, found := strings.Cut(string(raw), "\nmax_output_bytes = ")
	require.True(t, found)
	_, after, _ := strings.Cut(rest, "\n")
	require.NoError(t, os.WriteFile(file, []byte(before+"\nmax_output_bytes = 1000\n"+after), 0o600))
	u = startUp(t, u.state).ready()
	const told = "4000 bytes of output.* not stored.* size cap"
	r := u.ctl("run", "--", "sh", "-c", "head -c 5000 /dev/zero | tr '\\0' x; exit 4")
	require.Equal(t, 4, r.code, r.errout)
	require.Equal(t, strings.Repeat("x", 1000), r.out)
	id := u.onlyRun()
	for _, args := range [][]string{{"logs", id}, {"logs", "--quiet", id}} {
		logs := u.ctl(args...)
		require.Equal(t, 0, logs.code, logs.errout)
		require.Equal(t, strings.Repeat("x", 1000), logs.out)
		require.Regexp(t, told, logs.errout)
	}
}

func TestUpGivesAnOwnerToAStateWithoutOne(t *testing.T) {
	t.Parallel()
	u := startUp(t, filepath.Join(t.TempDir(), "s")).ready()
	require.NoError(t, u.cmd.Process.Signal(os.Interrupt))
	require.NoError(t, u.wait())
	require.NoError(t, os.RemoveAll(filepath.Join(u.state, "owner")))
	for _, path := range []string{u.context(), filepath.Join(u.state, "coordinator", "coordinator.toml")} {
		raw, err := os.ReadFile(path)
		require.NoError(t, err)
		text, _, found := strings.Cut(string(raw), "\n[[owner]]")
		require.True(t, found, path)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	again := startUp(t, u.state).ready()
	require.Contains(t, again.errout.String(), "making a process owner")
	eventually(t, "the owner's link is up", func() bool { return strings.Contains(again.errout.String(), "owner link up") })
	r := again.ctl("run", "--", "echo", "hi")
	require.Equal(t, 0, r.code, r.errout)
	require.Equal(t, "hi\r\n", r.out)
}
