package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"coordinator/client"
	"coordinator/cmd/internal/top"
	"coordinator/frames"
	"coordinator/internal/vterm"
)

// A tty is a coordctl on a terminal of its own, which an emulator shows.
type tty struct {
	t      *testing.T
	cmd    *exec.Cmd
	emu    *vterm.Emulator
	raw    *safeBuffer // every byte of it
	master *os.File
	slave  *os.File // kept open, so that how it was left can be looked at
	errout *safeBuffer
	done   chan struct{}
	before unix.Termios // how the terminal was set
}

// onTerminal starts coordctl on a terminal of 80 by 24.
func (u *upped) onTerminal(environ []string, args ...string) *tty {
	master, slave, err := pty.Open()
	require.NoError(u.t, err)
	require.NoError(u.t, pty.Setsize(slave, &pty.Winsize{Rows: 24, Cols: 80}))
	x := &tty{t: u.t, emu: vterm.New(80, 24), raw: &safeBuffer{}, master: master, slave: slave, errout: &safeBuffer{}, done: make(chan struct{})}
	x.before = x.termios()
	x.cmd = exec.Command(filepath.Join(u.bin, "coordctl"), append([]string{"--context", u.context()}, args...)...)
	x.cmd.Env = append(append(os.Environ(), "TERM=xterm-256color"), environ...)
	x.cmd.Stdin, x.cmd.Stdout, x.cmd.Stderr = slave, slave, x.errout
	x.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	require.NoError(u.t, x.cmd.Start())
	var both sync.WaitGroup
	both.Go(func() { io.Copy(io.MultiWriter(x.emu, x.raw), master) }) //nolint:errcheck // it ends with the terminal
	both.Go(func() { io.Copy(master, x.emu) })                        //nolint:errcheck // what a terminal answers to questions
	go func() { x.cmd.Wait(); close(x.done) }()                       //nolint:errcheck // the exit code is looked at
	u.t.Cleanup(func() {
		x.cmd.Process.Kill() //nolint:errcheck // it may have ended
		<-x.done
		slave.Close()
		master.Close()
		x.emu.Close()
		both.Wait()
	})
	return x
}

func (x *tty) text() string { return strings.ReplaceAll(x.emu.String(), "\r", "") }

func (x *tty) shows(what ...string) *tty {
	x.t.Helper()
	for _, w := range what {
		deadline := time.Now().Add(patience)
		for !strings.Contains(x.text(), w) {
			if time.Now().After(deadline) {
				x.t.Fatalf("%q is not shown in\n%s\n%s", w, x.text(), x.errout)
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	return x
}

func (x *tty) press(keys string) *tty {
	_, err := x.master.WriteString(keys)
	require.NoError(x.t, err)
	return x
}

func (x *tty) termios() unix.Termios {
	got, err := unix.IoctlGetTermios(int(x.slave.Fd()), unix.TCGETS)
	require.NoError(x.t, err)
	return *got
}

// code waits for its end.
func (x *tty) code() int {
	x.t.Helper()
	select {
	case <-x.done:
	case <-time.After(patience):
		x.t.Fatalf("coordctl does not end\n%s", x.text())
	}
	return x.cmd.ProcessState.ExitCode()
}

var (
	topIDs    = regexp.MustCompile(`\b[0-9a-f]{8}\b`)
	topTimes  = regexp.MustCompile(`\d\d:\d\d:\d\d UTC`)
	topEvents = regexp.MustCompile(`event +\d+`)
	topAges   = regexp.MustCompile(`([ >])\d+[smh] +`)
)

// masked is the screen without what differs between two runs of a test.
func (x *tty) masked() string {
	text := topEvents.ReplaceAllString(x.text(), "event N")
	text = topIDs.ReplaceAllString(text, "xxxxxxxx")
	text = topAges.ReplaceAllString(topTimes.ReplaceAllString(text, "hh:mm:ss UTC"), "${1}0s    ")
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = strings.TrimRight(line, " ")
	}
	return strings.Join(lines, "\n") + "\n"
}

// TestTopOfRealDaemons watches a run and its signal on a terminal, deals with both, and goes
// through a coordinator that is killed.
func TestTopOfRealDaemons(t *testing.T) {
	t.Parallel()
	u := startUp(t, filepath.Join(t.TempDir(), "s")).ready()
	require.Equal(t, 3, u.ctl("run", "--title", "日本 build", "--", "sh", "-c", "echo what it said; exit 3").code)

	x := u.onTerminal([]string{"NO_COLOR=please"}, "top")
	x.shows("CURRENT", "日本 build", "the process exited with status 3")
	golden(t, "top_overview", x.masked())
	require.NotRegexp(t, anyColour, x.raw.String(), "any value of NO_COLOR counts")
	require.NotEqual(t, x.before, x.termios())

	require.Equal(t, 0, u.ctl("run", "--detach", "--", "sleep", "60").code)
	x.shows("3 Objectives 2").press("4").shows("Running").press("g")
	x.press("p").shows("Pause run").press("y").shows("pause: SUCCEEDED, operation ", "STUCK paused")
	x.press("r").shows("Resume run").press("y").shows("resume: SUCCEEDED")
	x.press("c").shows("cannot be").press("y").shows("cancel: ", "Cancelled")
	x.press("2a").shows("Acknowledge signal").press("y").shows("acknowledge: SUCCEEDED", " ack ")
	x.press("\r\r").shows("LAST OUTPUT", "what it said", "TIMELINE")
	x.press("1")

	require.NoError(t, syscall.Kill(u.coordinatorPID(), syscall.SIGKILL))
	x.shows("STALE", "日本 build")
	x.shows("CURRENT", "epoch 2")
	require.NoError(t, pty.Setsize(x.slave, &pty.Winsize{Rows: 30, Cols: 100}))
	x.emu.Resize(100, 30)
	eventually(t, "it fills the terminal", func() bool {
		first, _, _ := strings.Cut(x.text(), "\n")
		return len(first) == 100 && strings.HasSuffix(first, " UTC")
	})

	x.press("q")
	require.Equal(t, 0, x.code(), x.errout.String())
	require.Equal(t, x.before, x.termios())
	eventually(t, "the screen before", x.emu.Left)

	for when, sig := range map[string]syscall.Signal{"auto": syscall.SIGTERM, "never": syscall.SIGHUP, "always": syscall.SIGINT} {
		x := u.onTerminal(nil, "top", "--color", when)
		x.shows("CURRENT")
		require.Equal(t, when != "never", regexp.MustCompile(anyColour).MatchString(x.raw.String()), when)
		require.NoError(t, x.cmd.Process.Signal(sig))
		require.Equal(t, 0, x.code(), "%v: %s", sig, x.errout.String())
		require.Equal(t, x.before, x.termios(), sig)
		eventually(t, "the screen before", x.emu.Left)
	}

	require.Equal(t, 0, u.ctl("status").code)
	x = u.onTerminal([]string{"TERM=dumb"}, "top")
	require.Equal(t, exitUsage, x.code())
	require.Contains(t, x.errout.String(), "use coordctl watch")
}

// anyColour is what sets one of a terminal's own colours.
const anyColour = `\x1b\[[0-9;]*3[0-7]m`

// TestTopNeedsATerminal and says what to use instead.
func TestTopNeedsATerminal(t *testing.T) {
	f := newFake(t)
	r := f.cli("top")
	require.Equal(t, exitUsage, r.code)
	require.Contains(t, r.errout, "is none; use coordctl watch")
	require.Equal(t, exitUsage, f.cli("top", "-o", "json").code)
	require.Contains(t, f.cli("top", "-o", "json").errout, "use coordctl watch -o json")
	require.Equal(t, exitUsage, f.cli("top", "run").code)
}

// TestTopOutcomesAreWorded as those of every command, with the operation.
func TestTopOutcomesAreWorded(t *testing.T) {
	f := newFake(t)
	f.listen()
	k := &topper{a: &app{contextPath: f.path, timeout: defaultTimeout}}
	var err error
	k.c, err = client.LoadContext(f.path)
	require.NoError(t, err)
	k.session, err = k.a.commandSession(k.c)
	require.NoError(t, err)
	defer k.session.Close()
	act := func(n byte, verb string, kind frames.ObjectKind) (top.Outcome, string) {
		o := k.act(t.Context(), top.Action{Verb: verb, Kind: kind, ID: frames.ObjectID{1}, Operation: frames.OperationID{n, 15: 1}})
		return o, strings.Join(o.Lines, "\n")
	}
	f.other = answer(frames.OperationResult{State: frames.OperationSucceeded, Sequence: 5})
	o, text := act(1, "acknowledge", frames.KindSignal)
	require.False(t, o.Failed || o.Unsettled)
	require.Equal(t, "acknowledge: SUCCEEDED, operation 01000000000000000000000000000001", text)
	f.other = answer(frames.OperationResult{State: frames.OperationPending, Epoch: 7, Sequence: 5})
	o, text = act(2, "cancel", frames.KindRun)
	require.False(t, o.Failed || o.Unsettled)
	require.Contains(t, text, "cancel: PENDING, operation 02000000000000000000000000000001")
	f.other = answer(frames.OperationResult{State: frames.OperationRejected, Sequence: 5, Code: frames.CodeNotFound, Message: "no such process"})
	o, text = act(3, "cancel", frames.KindRun)
	require.True(t, o.Failed && !o.Unsettled)
	require.Contains(t, text, "operation 03000000000000000000000000000001: REJECTED NOT_FOUND: no such process\nthe coordinator decided against it")
	k.a.timeout = 300 * time.Millisecond
	f.other = func(c *fakeConn, _ frames.Frame) {} // no answer
	o, text = act(4, "pause", frames.KindRun)
	require.True(t, o.Failed && o.Unsettled)
	require.Contains(t, text, "the command may have run")
	require.Contains(t, text, "pause 01000000000000000000000000000000 --op 04000000000000000000000000000001")
}

func TestOutputTailIsInert(t *testing.T) {
	require.Equal(t, []string{"one", "two", "    end"}, outputTailLines([]byte("\x1b[31mone\x1b[0m\r\n\x1b]0;t\x07two\r\tend\r\n")))
	require.Nil(t, outputTailLines([]byte("\r\n")))
	many := outputTailLines([]byte(strings.Repeat("line\n", 100)))
	require.Len(t, many, outputLinesShown)
}
