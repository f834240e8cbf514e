package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/stretchr/testify/require"

	"coordinator/client"
	"coordinator/cmd/internal/runs"
	"coordinator/codec"
	"coordinator/frames"
)

// A runEvent is one line of `run -o json` or `logs -o json`.
type runEvent struct {
	Event      string
	Operation  string `json:"operation_id"`
	Run        string `json:"run_id"`
	State      string
	Offset     uint64
	Data       []byte
	ExitStatus *int `json:"exit_status"`
	Signal     *int
	Bytes      uint64
	Agreed     uint64 `json:"agreed_bytes"`
	Differ     []struct{ First, Last uint64 }
	Findings   []struct {
		Text string
		Bad  bool
	}
}

// runEvents reads whole lines, and checks that output comes without a gap.
func runEvents(t *testing.T, text string) (events []runEvent, output string) {
	t.Helper()
	for line := range strings.Lines(text) {
		if !strings.HasSuffix(line, "\n") {
			break
		}
		var e runEvent
		require.NoError(t, json.Unmarshal([]byte(line), &e), line)
		if e.Event == "output" {
			require.EqualValues(t, len(output), e.Offset)
			output += string(e.Data)
		}
		events = append(events, e)
	}
	return events, output
}

// milestones are the events but output, in short.
func milestones(events []runEvent) (out []string) {
	for _, e := range events {
		switch {
		case e.Event == "state" || e.Event == "ended":
			out = append(out, e.Event+" "+e.State)
		case e.Event != "output":
			out = append(out, e.Event)
		}
	}
	return out
}

func TestRunAndLogsInJSON(t *testing.T) {
	u := startUp(t, filepath.Join(t.TempDir(), "s")).ready()
	r := u.ctl("run", "-o", "json", "--", "sh", "-c", "printf 'a\\377b'; exit 3")
	require.Equal(t, 3, r.code, r.errout)
	require.Empty(t, r.errout)
	events, output := runEvents(t, r.out)
	require.Equal(t, "a\xffb", output, "bytes that are no text too")
	require.Equal(t, "started", events[0].Event)
	require.Equal(t, "ended Failed", milestones(events)[len(milestones(events))-1])
	require.Subset(t, milestones(events), []string{"started", "state Failed", "ended Failed"})
	end := events[len(events)-1]
	require.Equal(t, 3, *end.ExitStatus)
	require.Nil(t, end.Signal)
	id := events[0].Run

	killed := u.ctl("run", "-o", "json", "--", "sh", "-c", "kill -9 $$")
	require.Equal(t, 128+9, killed.code, killed.errout)
	events, _ = runEvents(t, killed.out)
	end = events[len(events)-1]
	require.Equal(t, 9, *end.Signal)
	require.Nil(t, end.ExitStatus)

	for _, args := range [][]string{{"logs", id, "-o", "json"}, {"logs", id, "-f", "-o", "json"}} {
		logs := u.ctl(args...)
		require.Equal(t, 0, logs.code, logs.errout)
		require.Empty(t, logs.errout, "all is said in JSON")
		events, output = runEvents(t, logs.out)
		require.Equal(t, "a\xffb", output)
		check := events[len(events)-1]
		require.Equal(t, "check", check.Event)
		require.EqualValues(t, 3, check.Bytes)
		require.EqualValues(t, 3, check.Agreed)
		require.Empty(t, check.Differ)
		require.Contains(t, check.Findings[0].Text, "3 bytes of 3 agree")
	}

	refused := u.ctl("run", "-o", "json", "--", "/no/such/program")
	require.Equal(t, exitRefused, refused.code)
	events, _ = runEvents(t, refused.out)
	require.NotContains(t, milestones(events), "ended Failed", "coordctl's own exit code")
}

// asked is this test's own app for a context, to do a part of what `run` does.
func (u *upped) asked() (*app, *client.Context, *client.Session) {
	u.t.Helper()
	a := &app{contextPath: u.context(), timeout: patience, stdout: &safeBuffer{}, stderr: &safeBuffer{}}
	c, err := client.LoadContext(a.contextPath)
	require.NoError(u.t, err)
	s, err := a.commandSession(c)
	require.NoError(u.t, err)
	u.t.Cleanup(func() { s.Close() })
	return a, c, s
}

// prepared is a START_RUN under a fresh objective, ready to be sent.
func (u *upped) prepared(argv ...string) (client.Command, *client.Context, *client.Session) {
	u.t.Helper()
	a, c, s := u.asked()
	f := runFlags{cwd: "/"}
	document, err := f.document(argv, nil)
	require.NoError(u.t, err)
	r, err := newRun(c.Owners[0])
	require.NoError(u.t, err)
	body := &frames.StartRun{ObjectiveID: r.objective, RunID: r.run, WorkSessionID: r.session, ExecutorSchema: 1, ExecutorDocument: document,
		PendingBindingID: frames.PendingBindingID(r.binding), Owner: r.owner.Authority}
	require.NoError(u.t, a.place(u.t.Context(), c, r.owner, f, body))
	require.NoError(u.t, createObjectiveFor(u.t.Context(), s, r.objective, "prepared"))
	cmd, err := client.NewCommand(r.op, frames.CommandStartRun, body)
	require.NoError(u.t, err)
	return cmd, c, s
}

// TestC08_ALostAnswerIsPickedUp loses the answer to START_RUN at each step: before the command
// arrived, after it, and when this client died later. It never starts the command twice.
func TestC08_ALostAnswerIsPickedUp(t *testing.T) {
	u := startUp(t, filepath.Join(t.TempDir(), "s")).ready()
	eventually(t, "the owner's link is up", func() bool { return strings.Contains(u.errout.String(), "owner link up") })
	starts := filepath.Join(t.TempDir(), "starts")
	counted := func() int {
		raw, err := os.ReadFile(starts)
		if !errors.Is(err, os.ErrNotExist) {
			require.NoError(t, err)
		}
		require.NoError(t, os.RemoveAll(starts))
		return len(raw)
	}
	argv := []string{"sh", "-c", `printf x >> "$1"; echo hi; exit 5`, "sh", starts}

	never, c, s := u.prepared(argv...)
	require.NoError(t, keepSent(c, s.State(), never))
	arrived, _, _ := u.prepared(argv...)
	require.NoError(t, keepSent(c, s.State(), arrived))
	eventually(t, "it is admitted", func() bool {
		_, err := s.Do(t.Context(), arrived)
		return err == nil
	})
	for name, op := range map[string]frames.OperationID{"never arrived": never.OperationID, "arrived": arrived.OperationID} {
		for _, when := range []string{"", ", and again"} {
			r := u.ctl("run", "--op", op.String())
			require.Equal(t, 5, r.code, "%s: %s", name+when, r.errout)
			require.Equal(t, "hi\r\n", r.out, name+when)
			require.NoFileExists(t, sentPath(c, op), "it has its answer")
		}
	}
	require.Equal(t, 2, counted(), "each of the two once")

	gate := filepath.Join(t.TempDir(), "gate")
	b := u.begin("run", "-o", "json", "--", "sh", "-c", `printf x >> "$1"; echo before; while [ ! -e "$2" ]; do sleep 0.02; done; echo after; exit 6`, "sh", starts, gate)
	eventually(t, "the first output", func() bool { _, out := runEvents(t, b.out.String()); return out != "" })
	events, _ := runEvents(t, b.out.String())
	require.NoError(t, b.cmd.Process.Kill())
	b.code(t)
	require.NoError(t, os.WriteFile(gate, nil, 0o600))
	r := u.ctl("run", "--op", events[0].Operation)
	require.Equal(t, 6, r.code, r.errout)
	require.Equal(t, "before\r\nafter\r\n", r.out, "from the beginning")
	require.Equal(t, 1, counted())
	detached := u.ctl("run", "--op", events[0].Operation, "--detach", "-o", "json")
	require.Equal(t, 0, detached.code, detached.errout)
	require.Contains(t, detached.out, events[0].Run)

	unknown := u.ctl("run", "--op", strings.Repeat("ab", 16))
	require.Equal(t, exitUnknown, unknown.code)
	require.Contains(t, unknown.errout, "its command is not kept here")
	var made struct {
		Operation string `json:"operation_id"`
	}
	u.ctl("create", "objective", "--title", "x", "-o", "json").decode(t, &made)
	for _, args := range [][]string{{"run", "--op", made.Operation}, {"run", "--op", "abc"}, {"run", "--op", made.Operation, "--", "true"},
		{"run", "--op", made.Operation, "--title", "x"}, {"run", "--op", made.Operation, "--env", "A=1"}, {"run", "--title", "\xff", "--", "true"}, {"run", "--", "true", "\xff"}} {
		r := u.ctl(args...)
		require.Equal(t, exitUsage, r.code, "%q: %s", args, r.errout)
	}
}

// A run that nobody may have received says how to go on with it, and one that was not sent that
// nothing has happened.
func TestRunWithoutAnAnswerSaysWhatNext(t *testing.T) {
	op := frames.OperationID{0xab}
	a := &app{contextPath: "/x/context.toml", defaultPath: "/x/context.toml", timeout: time.Second}
	m := a.explain(&commandError{op, again{args: "run --op " + op.String()}, false, &client.OutcomeUnknownError{OperationID: op, Cause: errTimeout}})
	require.Equal(t, exitUnknown, m.code)
	require.Equal(t, "the command may have run", m.sent)
	require.Contains(t, strings.Join(m.next, "\n"), "never runs it twice: coordctl run --op "+op.String())
	m = a.explain(&commandError{op, again{}, false, notRun(syscall.ENOENT)})
	require.Equal(t, exitUnavailable, m.code)
	require.Contains(t, m.sent, "nothing was sent")
	require.NotContains(t, strings.Join(m.next, "\n"), "then again")
	m = a.explain(&notStartedError{&client.OutcomeUnknownError{OperationID: op, Cause: errTimeout}})
	require.Equal(t, exitUnknown, m.code)
	require.Contains(t, m.sent, "no run was started")
}

// TestSentCommandsAreForgotten keeps what is open and what is young.
func TestSentCommandsAreForgotten(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "c")
	require.NoError(t, os.Mkdir(dir, 0o700))
	c := &client.Context{Path: filepath.Join(dir, "context.toml"), CoordinatorID: frames.CoordinatorID{7}}
	require.NoError(t, os.WriteFile(client.StatePath(c.Path, c.CoordinatorID), fmt.Appendf(nil,
		`{"version":1,"coordinator_id":"%v","operations":[{"operation_id":"%v","command_digest":"%064d"}]}`, c.CoordinatorID, frames.OperationID{2}, 0), 0o600))
	state, err := client.OpenState(c)
	require.NoError(t, err)
	cmd := func(n byte) client.Command {
		cmd, err := client.NewCommand(frames.OperationID{n}, frames.CommandStartRun, &frames.StartRun{ObjectiveID: frames.ObjectiveID{n}, RunID: frames.RunID{n},
			WorkSessionID: frames.WorkSessionID{n}, ExecutorSchema: 1, PendingBindingID: frames.PendingBindingID{n}, Owner: frames.Fingerprint{n}, OwnerIncarnation: frames.IncarnationID{n}, Group: 1})
		require.NoError(t, err)
		return cmd
	}
	for n := byte(1); n <= 3; n++ {
		require.NoError(t, keepSent(c, state, cmd(n)))
	}
	old := time.Now().Add(-2 * sentAge)
	for n := byte(1); n <= 2; n++ {
		require.NoError(t, os.Chtimes(sentPath(c, frames.OperationID{n}), old, old))
	}
	require.NoError(t, keepSent(c, state, cmd(4)))
	for n, kept := range map[byte]bool{1: false, 2: true, 3: true, 4: true} { // nobody knows what became of 2
		body, err := loadSent(c, frames.OperationID{n})
		require.NoError(t, err)
		require.Equal(t, kept, body != nil, n)
		if kept {
			require.Equal(t, frames.RunID{n}, body.RunID)
		}
	}
	info, err := os.Stat(sentPath(c, frames.OperationID{3}))
	require.NoError(t, err)
	require.EqualValues(t, 0o600, info.Mode().Perm(), "an environment may hold secrets")

	other := *c
	other.CoordinatorID[0]++
	_, err = loadSent(&other, frames.OperationID{3})
	require.ErrorContains(t, err, "was sent to coordinator")
	require.NoError(t, os.WriteFile(sentPath(c, frames.OperationID{3}), []byte("{}"), 0o600))
	_, err = loadSent(c, frames.OperationID{3})
	require.ErrorContains(t, err, "is not the kept command")
	require.NoError(t, dropSent(c, frames.OperationID{3}))
	require.NoError(t, dropSent(c, frames.OperationID{3}), "twice is nothing")
}

// TestLogsWaitForAProcess follows a run that was admitted and has no process yet, as the line says
// that `run --detach` prints.
func TestLogsWaitForAProcess(t *testing.T) {
	t.Parallel()
	u := startUp(t, filepath.Join(t.TempDir(), "s")).ready()
	eventually(t, "the owner's link is up", func() bool { return strings.Contains(u.errout.String(), "owner link up") })
	cmd, _, s := u.prepared("echo", "late")
	var body frames.StartRun
	require.NoError(t, codec.Decode(&body, cmd.Payload))
	require.NoError(t, syscall.Kill(u.ownerPID(), syscall.SIGSTOP))
	defer syscall.Kill(u.ownerPID(), syscall.SIGCONT) //nolint:errcheck // it may be gone
	result, err := s.Do(t.Context(), cmd)
	require.NoError(t, err)
	require.Equal(t, frames.OperationPending, result.State)
	none := u.ctl("logs", body.RunID.String())
	require.Equal(t, exitRefused, none.code)
	require.Contains(t, none.errout, "is Planned and has no process")
	none = u.ctl("logs", "-f", "--timeout", "1s", body.RunID.String())
	require.Equal(t, exitRefused, none.code, none.errout)
	follow := u.begin("logs", "-f", body.RunID.String())
	require.NoError(t, syscall.Kill(u.ownerPID(), syscall.SIGCONT))
	require.Equal(t, 0, follow.code(t), follow.err.String())
	require.Equal(t, "late\r\n", follow.out.String())
}

// TestRunStaysWhenItCannotCancel stops the coordinator while the run is to be cancelled: the
// client says so and goes on.
func TestRunStaysWhenItCannotCancel(t *testing.T) {
	t.Parallel()
	u := startUp(t, filepath.Join(t.TempDir(), "s")).ready()
	b := u.begin("run", "--timeout", "3s", "--", "sh", "-c", `trap "exit 7" TERM; echo here; while :; do sleep 0.02; done`)
	eventually(t, "it runs", func() bool { return strings.Contains(b.out.String(), "here") })
	_, coordinator := u.pids()
	require.NoError(t, syscall.Kill(coordinator, syscall.SIGSTOP))
	defer syscall.Kill(coordinator, syscall.SIGCONT) //nolint:errcheck // it may be gone
	interrupt := func() { require.NoError(t, b.cmd.Process.Signal(os.Interrupt)) }
	interrupt()
	eventually(t, "it asks", func() bool { return strings.Contains(b.err.String(), "Ctrl-C again cancels it") })
	interrupt()
	eventually(t, "it says so", func() bool {
		return regexp.MustCompile(`cancelling run [0-9a-f]+ failed: `).MatchString(b.err.String())
	})
	select {
	case <-b.done:
		t.Fatalf("it ended: %s", b.err)
	default:
	}
	require.NoError(t, syscall.Kill(coordinator, syscall.SIGCONT))
	// Once more, with a coordinator, or as often as it takes with the one that comes behind it.
	asked := 1
	eventually(t, "it ends", func() bool {
		select {
		case <-b.done:
			return true
		default:
		}
		if strings.Count(b.err.String(), " failed: ") >= asked {
			asked++
			b.cmd.Process.Signal(os.Interrupt) //nolint:errcheck // it may just have ended
		}
		return false
	})
	require.Equal(t, 7, b.code(t), b.err.String())
}

// TestRunKeepsWhatASnapshotShowed: a record of a snapshot is good during the visit alone, and the
// exit status is taken from it later.
func TestRunKeepsWhatASnapshotShowed(t *testing.T) {
	outcome, err := codec.EncodeImage(nil, &frames.Closed{Known: true, Status: 6})
	require.NoError(t, err)
	rec, err := frames.NewRecord(runs.Ref(frames.KindRun, frames.RunID{2}), 3, &frames.Run{ObjectiveID: frames.ObjectiveID{1}, Attempt: 1, State: frames.RunFailed, Outcome: outcome})
	require.NoError(t, err)
	var v runView
	changed, err := v.take(rec, &started{run: frames.RunID{2}})
	require.NoError(t, err)
	require.True(t, changed)
	clear(rec.Payload)
	var closed frames.Closed
	require.NoError(t, codec.DecodeImage(&closed, v.run.Outcome))
	require.Equal(t, frames.Closed{Known: true, Status: 6}, closed)
}

// TestRunWaitsForASlowReader: output that nobody takes yet is not cut off.
func TestRunWaitsForASlowReader(t *testing.T) {
	attend := func(grace time.Duration) (*attendance, *bytes.Buffer) {
		var said bytes.Buffer
		a := &app{contextPath: "/x/context.toml", stderr: &said, timeout: time.Second}
		ctx, cancel := context.WithCancel(t.Context())
		t.Cleanup(cancel)
		return &attendance{a: a, r: &started{run: frames.RunID{9}}, grace: grace, signals: make(chan os.Signal, 3), terminated: make(chan os.Signal, 1),
			out: &outputFollower{cancel: func() { cancel(); <-ctx.Done() }, done: make(chan error, 1)}}, &said
	}
	slow, said := attend(time.Millisecond)
	slow.out.writing.Store(true)
	left := make(chan bool, 1)
	go func() { left <- slow.drain(0) }()
	for range 20 { // more than one wait, whatever the clock does
		select {
		case <-left:
			t.Fatalf("it gave up on a slow reader: %s", said)
		case <-time.After(2 * time.Millisecond):
		}
	}
	slow.out.done <- nil
	require.False(t, <-left)
	require.Empty(t, said.String())

	stuck, said := attend(time.Millisecond)
	require.False(t, stuck.drain(0), "nothing comes and nobody is slow")
	require.Contains(t, said.String(), "could not be read to the end")

	leaving, _ := attend(time.Hour)
	leaving.out.writing.Store(true)
	leaving.terminated <- syscall.SIGTERM
	require.True(t, leaving.drain(0))
}

// TestRunOnATerminal runs on a terminal as people do: the command has its size and type, and what
// is typed is this client's, Ctrl-C included.
func TestRunOnATerminal(t *testing.T) {
	u := startUp(t, filepath.Join(t.TempDir(), "s")).ready()
	cmd := exec.Command(filepath.Join(u.bin, "coordctl"), "--context", u.context(), "run", "--", "sh", "-c",
		`stty size; echo "$TERM"; trap "exit 7" TERM; while :; do sleep 0.02; done`)
	cmd.Env = append(os.Environ(), "TERM=vt220")
	terminal, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 33, Cols: 101})
	require.NoError(t, err)
	shown, done := &safeBuffer{}, make(chan struct{})
	go func() {
		defer close(done)
		io.Copy(shown, terminal) //nolint:errcheck // it ends with the terminal
	}()
	t.Cleanup(func() {
		cmd.Process.Kill() //nolint:errcheck // it may have ended
		cmd.Wait()         //nolint:errcheck // likewise
		terminal.Close()
		<-done
	})
	eventually(t, "it runs", func() bool { return strings.Contains(shown.String(), "33 101\r\r\nvt220") })
	ctrlC := func() {
		_, err := terminal.Write([]byte{3})
		require.NoError(t, err)
	}
	ctrlC()
	eventually(t, "it asks", func() bool { return strings.Contains(shown.String(), "Ctrl-C again cancels it") })
	ctrlC()
	var exit *exec.ExitError
	require.ErrorAs(t, cmd.Wait(), &exit)
	require.Equal(t, 7, exit.ExitCode(), shown.String())
}
