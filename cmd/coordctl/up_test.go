package main

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"coordinator/cmd/internal/daemon"
	"coordinator/internal/clock"
)

// fakeDaemon makes this test program stand in for a daemon, as the variable says:
// "exit N", "serve", or "stubborn", which ignores SIGTERM.
const fakeDaemon = "COORDCTL_TEST_DAEMON"

func TestMain(m *testing.M) {
	if what := os.Getenv(fakeDaemon); what != "" {
		os.Exit(beDaemon(what))
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if binDir != "" {
			os.RemoveAll(binDir)
		}
		os.Exit(code)
	}))
}

func beDaemon(what string) int {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	if code, ok := strings.CutPrefix(what, "exit "); ok {
		n, _ := strconv.Atoi(code)
		return n
	}
	fmt.Println("ready to test")
	for range signals {
		if what != "stubborn" {
			break
		}
	}
	return 0
}

// safeBuffer collects what several goroutines write.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

const patience = 60 * time.Second

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	require.Eventually(t, cond, patience, 5*time.Millisecond, what)
}

// watched is a supervisor of this program as a fake daemon.
type watched struct {
	*supervisor
	clock *clock.Manual
	out   *safeBuffer
	ready chan string
}

func supervised(t *testing.T, what string) *watched {
	self, err := os.Executable()
	require.NoError(t, err)
	t.Setenv(fakeDaemon, what)
	w := &watched{clock: clock.NewManual(clock.Reading{Boot: time.Hour, Wall: time.Unix(1, 0)}), out: &safeBuffer{}, ready: make(chan string, 16)}
	w.supervisor = &supervisor{
		name: "faked", path: self, grace: 5 * time.Second, clock: w.clock, out: &lineSink{w: w.out}, stopping: make(chan struct{}),
		say:     func(format string, args ...any) { fmt.Fprintf(w.out, format+"\n", args...) },
		onReady: func(line string) { w.ready <- line },
	}
	return w
}

func TestSupervisorEndsWhereAnotherStartCannotHelp(t *testing.T) {
	for code, meaning := range exitMeanings {
		if !meaning.final {
			continue
		}
		w := supervised(t, "exit "+strconv.Itoa(code))
		err := <-w.start()
		require.ErrorContains(t, err, meaning.text)
		require.ErrorContains(t, err, "exit code "+strconv.Itoa(code))
		require.NotContains(t, w.out.String(), "starting it again")
	}
	w := supervised(t, "exit 0")
	w.path += "-missing"
	require.ErrorIs(t, <-w.start(), fs.ErrNotExist)
}

func TestSupervisorStartsAgainWithBackoff(t *testing.T) {
	w := supervised(t, "exit "+strconv.Itoa(daemon.ExitWitness))
	end := w.start()
	for i, pause := range []string{"250ms", "500ms", "1s", "2s", "4s", "8s", "10s", "10s"} {
		d, err := time.ParseDuration(pause)
		require.NoError(t, err)
		eventually(t, "it dies and waits", func() bool { return w.clock.Timers() == 1 })
		require.Equal(t, i+1, strings.Count(w.out.String(), "starting it again"))
		require.Contains(t, w.out.String(), "starting it again in "+pause)
		require.Contains(t, w.out.String(), exitMeanings[daemon.ExitWitness].text)
		w.clock.Advance(d - time.Millisecond)
		require.Equal(t, 1, w.clock.Timers(), "it started again too early")
		w.clock.Advance(time.Millisecond)
	}
	eventually(t, "it waits", func() bool { return w.clock.Timers() == 1 })
	w.stop() // a stop does not wait for the pause
	require.NoError(t, <-end)
}

func TestSupervisorGivesUpOnALockThatStaysHeld(t *testing.T) {
	w := supervised(t, "exit "+strconv.Itoa(daemon.ExitHeld))
	end := w.start()
	for range heldTries - 1 {
		eventually(t, "it waits", func() bool { return w.clock.Timers() == 1 })
		w.clock.Advance(maxBackoff)
	}
	require.ErrorContains(t, <-end, exitMeanings[daemon.ExitHeld].text)
}

func TestSupervisorRestartsWhatWasKilledAndForgivesAfterAWhile(t *testing.T) {
	w := supervised(t, "serve")
	end := w.start()
	require.Equal(t, "ready to test", <-w.ready)
	for range 2 {
		w.clock.Advance(steadyAfter)
		first := w.pid()
		require.NoError(t, syscall.Kill(first, syscall.SIGKILL))
		eventually(t, "it waits", func() bool { return w.clock.Timers() == 1 })
		w.clock.Advance(firstBackoff) // each death is a first one after steadyAfter
		<-w.ready
		require.NotEqual(t, first, w.pid())
	}
	require.Contains(t, w.out.String(), "killed by signal 9 (killed)")
	require.Contains(t, w.out.String(), "faked| ready to test\n")
	w.stop()
	require.NoError(t, <-end)
	require.ErrorIs(t, syscall.Kill(w.pid(), 0), syscall.ESRCH)
}

func TestSupervisorKillsWhatDoesNotStop(t *testing.T) {
	w := supervised(t, "stubborn")
	end := w.start()
	<-w.ready
	w.stop()
	eventually(t, "the grace runs", func() bool { return w.clock.Timers() == 1 })
	select {
	case <-end:
		t.Fatal("it ended before its grace was over")
	default:
	}
	w.clock.Advance(w.grace)
	require.NoError(t, <-end)

	w = supervised(t, "stubborn")
	end = w.start()
	<-w.ready
	w.stop()
	w.kill() // the second Ctrl-C does not wait for the grace
	require.NoError(t, <-end)
}

func TestLinesAreWholeAndBounded(t *testing.T) {
	var out, seen []string
	buf := &safeBuffer{}
	w := (&lineSink{w: buf}).prefixed("d", func(l string) { seen = append(seen, l) })
	for _, part := range []string{"he", "llo\nrea", "dy: x\n\x1b[2Jevil\n", strings.Repeat("y", 3*maxLine), "\nready\n"} {
		n, err := w.Write([]byte(part))
		require.NoError(t, err)
		require.Equal(t, len(part), n)
	}
	out = strings.Split(buf.String(), "\n")
	require.Equal(t, []string{"d| hello", "d| ready: x", "d| �[2Jevil", "d| " + strings.Repeat("y", maxLine), "d| ready", ""}, out)
	require.Equal(t, []string{"ready: x"}, seen)
}

// Processes from here on.

var (
	binDir  string
	binOnce sync.Once
	binErr  error
)

// binaries builds the programs once.
func binaries(t *testing.T) string {
	if testing.Short() {
		t.Skip("runs real daemons")
	}
	binOnce.Do(func() {
		if binDir, binErr = os.MkdirTemp("", "coordctl-test"); binErr != nil {
			return
		}
		out, err := exec.Command("go", "build", "-o", binDir, "coordinator/cmd/coordctl", "coordinator/cmd/coordinatord", "coordinator/cmd/witnessd", "coordinator/cmd/ownerd").CombinedOutput()
		if err != nil {
			binErr = fmt.Errorf("%w: %s", err, out)
		}
	})
	require.NoError(t, binErr)
	return binDir
}

// upped is a running `coordctl up`.
type upped struct {
	t           *testing.T
	bin, state  string
	cmd         *exec.Cmd
	out, errout *safeBuffer
	done        chan struct{} // closed once it has ended
	err         error         // of Wait; read after done
}

// wait gives how it ended.
func (u *upped) wait() error {
	select {
	case <-u.done:
		return u.err
	case <-time.After(patience):
		u.t.Fatal("up does not end")
		return nil
	}
}

func startUp(t *testing.T, state string, flags ...string) *upped {
	return startUpIn(t, nil, state, flags...)
}

// startUpIn is startUp behind a command that runs another.
func startUpIn(t *testing.T, by []string, state string, flags ...string) *upped {
	u := &upped{t: t, bin: binaries(t), state: state, out: &safeBuffer{}, errout: &safeBuffer{}, done: make(chan struct{})}
	argv := append(slices.Clone(by), filepath.Join(u.bin, "coordctl"), "up", "--state", state, "--lease", "6")
	argv = append(argv, flags...)
	u.cmd = exec.Command(argv[0], argv[1:]...)
	u.cmd.Stdout, u.cmd.Stderr = u.out, u.errout
	require.NoError(t, u.cmd.Start())
	go func() { u.err = u.cmd.Wait(); close(u.done) }()
	t.Cleanup(func() {
		u.cmd.Process.Kill() // nothing, once it has ended
		<-u.done
		if t.Failed() {
			t.Logf("up said:\n%s%s", u.out, u.errout)
		}
	})
	return u
}

func (u *upped) ready() *upped {
	u.t.Helper()
	eventually(u.t, "up serves", func() bool { return u.serves() || u.hasEnded() })
	require.True(u.t, u.serves(), "up ended before it served")
	return u
}

func (u *upped) serves() bool { return strings.Contains(u.out.String(), "\nready") }

func (u *upped) hasEnded() bool {
	select {
	case <-u.done:
		return true
	default:
		return false
	}
}

// pids are the daemons' process ids, as the banner gives them.
func (u *upped) pids() (witness, coordinator int) { return u.pid("witnessd"), u.pid("coordinatord") }

func (u *upped) ownerPID() int { return u.pid("ownerd") }

func (u *upped) pid(name string) int {
	m := regexp.MustCompile(name + `\s+pid (\d+)`).FindStringSubmatch(u.out.String())
	require.NotNil(u.t, m, u.out.String())
	n, err := strconv.Atoi(m[1])
	require.NoError(u.t, err)
	return n
}

func (u *upped) ctl(args ...string) ran {
	var out, errout bytes.Buffer
	cmd := exec.Command(filepath.Join(u.bin, "coordctl"), append([]string{"--context", filepath.Join(u.state, "client", "context.toml")}, args...)...)
	cmd.Stdout, cmd.Stderr = &out, &errout
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		require.NoError(u.t, err)
	}
	return ran{cmd.ProcessState.ExitCode(), out.String(), errout.String()}
}

func gone(pid int) func() bool {
	return func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) || zombie(pid) }
}

// zombie reports whether a process has ended and waits for a parent to look, as orphans do
// in a container without an init.
func zombie(pid int) bool {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && bytes.Contains(raw, []byte(") Z "))
}

func TestUpFromNothingToWorkAndBack(t *testing.T) {
	t.Parallel()
	u := startUp(t, filepath.Join(t.TempDir(), "s")).ready()
	witness, coordinator := u.pids()
	require.Contains(t, u.out.String(), filepath.Join(u.state, "coordinator", "coordinator.sock"))
	require.Contains(t, u.out.String(), "create objective --title")
	require.Contains(t, u.out.String(), u.context()+" watch\n")
	require.Regexp(t, `(?m)^socket +/`, u.ctl("status").out)
	require.NotRegexp(t, `(?m)^[a-z_]+ *$`, u.ctl("status").out, "no row is empty")

	var made struct {
		ObjectiveID string `json:"objective_id"`
		State       string `json:"state"`
	}
	u.ctl("create", "objective", "--title", "Work", "-o", "json").decode(t, &made)
	require.Equal(t, "SUCCEEDED", made.State)
	require.Equal(t, 0, u.ctl("update", "objective", made.ObjectiveID[:8], "--title", "Better", "--if-revision", "1").code)
	conflict := u.ctl("update", "objective", made.ObjectiveID, "--title", "Late", "--if-revision", "1")
	require.Equal(t, exitRefused, conflict.code)
	require.Contains(t, conflict.errout, "REVISION_CONFLICT")
	require.Equal(t, 0, u.ctl("ping").code)
	before := filepath.Join(t.TempDir(), "before")
	require.Equal(t, 0, u.ctl("snapshot", "save", before).code)

	// A second one names the first and touches nothing.
	second := exec.Command(filepath.Join(u.bin, "coordctl"), "up", "--state", u.state)
	said, err := second.CombinedOutput()
	require.Error(t, err)
	require.Equal(t, exitOther, second.ProcessState.ExitCode())
	require.Contains(t, string(said), fmt.Sprintf("process %d", u.cmd.Process.Pid))

	// A coordinator that is killed comes back under a higher epoch with the same records.
	require.NoError(t, syscall.Kill(coordinator, syscall.SIGKILL))
	eventually(t, "it serves again", func() bool { return strings.Contains(u.errout.String(), "coordinatord serves again") })
	require.Contains(t, u.errout.String(), "killed by signal 9 (killed); starting it again")
	after := filepath.Join(t.TempDir(), "after")
	require.Equal(t, 0, u.ctl("--wait", "20s", "snapshot", "save", after).code)
	same := u.ctl("snapshot", "diff", before, after)
	require.Equal(t, 0, same.code, same.out+same.errout)
	require.Contains(t, same.out, "(epoch 1 and epoch 2)")
	var status struct {
		Epoch uint64 `json:"authority_epoch"`
	}
	u.ctl("status", "-o", "json").decode(t, &status)
	require.Equal(t, uint64(2), status.Epoch)

	// A witness that is killed comes back too, and the coordinator lives through it.
	require.NoError(t, syscall.Kill(witness, syscall.SIGKILL))
	eventually(t, "the witness is back", func() bool { return strings.Count(u.errout.String(), "witnessd| ready") == 2 })
	require.Equal(t, 0, u.ctl("complete", "objective", made.ObjectiveID[:6]).code)

	// Ctrl-C ends the coordinator, then the witness, and gives the lease back: the next
	// start does not wait for it.
	require.NoError(t, u.cmd.Process.Signal(os.Interrupt))
	require.NoError(t, u.wait())
	require.Equal(t, exitUnavailable, u.ctl("status").code)
	again := startUp(t, u.state).ready()
	require.Contains(t, again.out.String(), "epoch 3")
	require.NotContains(t, again.errout.String(), "making ids and keys")
	require.NoError(t, again.cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, again.wait())
}

// TestUpShowsConnectionsOnlyWhenAsked keeps the terminal for what happens to the daemons.
func TestUpShowsConnectionsOnlyWhenAsked(t *testing.T) {
	t.Parallel()
	for _, flags := range [][]string{nil, {"--verbose"}} {
		u := startUp(t, filepath.Join(t.TempDir(), "s"), flags...).ready()
		require.Equal(t, 0, u.ctl("ping").code)
		require.Equal(t, 0, u.ctl("ping").code)
		stop := os.Interrupt
		if flags != nil && !signal.Ignored(syscall.SIGHUP) {
			stop = syscall.SIGHUP // as of a terminal that is closed
		}
		require.NoError(t, u.cmd.Process.Signal(stop))
		require.NoError(t, u.wait())
		said := u.errout.String()
		require.Equal(t, flags != nil, strings.Contains(said, "connection ended"), said)
		require.Contains(t, said, "msg=serving")
		require.Contains(t, said, "msg=relinquished")
	}
}

// TestC04_NoSecretIsSeen looks for every secret key of a state, in each form that a printer
// would give it, in all that the programs print and in what the system shows of them.
func TestC04_NoSecretIsSeen(t *testing.T) {
	t.Parallel()
	u := startUp(t, filepath.Join(t.TempDir(), "s"), "--verbose").ready()
	witness, coordinator := u.pids()
	var seen bytes.Buffer
	second := filepath.Join(u.state, "client", "second.ed25519")
	for _, args := range [][]string{
		{"status", "-o", "json"}, {"create", "objective", "--title", "x"}, {"get", "operation", "-o", "json"}, {"get", "admin", "-o", "json"},
		{"keygen", "--out", second, "-o", "json"}, {"keygen", "--out", second}, {"status", "--context", second},
		{"snapshot", "verify", second}, {"create", "objective", "--document", second}, {"get", "objective", "abcdef"},
	} {
		r := u.ctl(args...)
		seen.WriteString(r.out + r.errout)
	}
	for _, pid := range []int{u.cmd.Process.Pid, witness, coordinator, u.ownerPID()} {
		for _, name := range []string{"cmdline", "environ"} {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
			require.NoError(t, err)
			seen.Write(b)
		}
	}
	require.NoError(t, u.cmd.Process.Signal(os.Interrupt))
	require.NoError(t, u.wait())
	seen.WriteString(u.out.String() + u.errout.String())
	keys := 0
	require.NoError(t, filepath.WalkDir(u.state, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".ed25519") {
			return err
		}
		seed, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Len(t, seed, 32)
		keys++
		for _, form := range []string{string(seed), hex.EncodeToString(seed), fmt.Sprint(seed), base64.StdEncoding.EncodeToString(seed)} {
			require.NotContains(t, strings.ToLower(seen.String()), strings.ToLower(form[:len(form)/2]), path)
		}
		return nil
	}))
	require.Equal(t, 6, keys)
}

func TestUpThatIsKilledLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	u := startUp(t, filepath.Join(t.TempDir(), "s")).ready()
	witness, coordinator := u.pids()
	require.NoError(t, u.cmd.Process.Kill())
	u.wait()
	eventually(t, "the witness is gone", gone(witness))
	eventually(t, "the coordinator is gone", gone(coordinator))
	startUp(t, u.state).ready() // and what they left does not stop the next one
}

func TestUpSecondSignalEndsAtOnce(t *testing.T) {
	u := startUp(t, filepath.Join(t.TempDir(), "s")).ready()
	_, coordinator := u.pids()
	require.NoError(t, syscall.Kill(coordinator, syscall.SIGSTOP)) // it will not stop by itself
	require.NoError(t, u.cmd.Process.Signal(os.Interrupt))
	eventually(t, "it is stopping", func() bool { return strings.Contains(u.errout.String(), "stopping:") })
	require.NoError(t, u.cmd.Process.Signal(os.Interrupt))
	require.NoError(t, u.wait())
	require.NotContains(t, u.errout.String(), "did not end within", "the grace was waited for")
	eventually(t, "the coordinator is gone", gone(coordinator))
}

// TestUpSaysThatAStateWasMoved follows what it says.
func TestUpSaysThatAStateWasMoved(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	u := startUp(t, filepath.Join(dir, "s")).ready()
	require.NotContains(t, u.errout.String(), "moved")
	require.NoError(t, u.cmd.Process.Signal(os.Interrupt))
	require.NoError(t, u.wait())
	moved := filepath.Join(dir, "m")
	require.NoError(t, os.Rename(u.state, moved))
	again := startUp(t, moved)
	eventually(t, "it says so", func() bool { return strings.Contains(again.errout.String(), "If this directory was moved") })
	require.NoError(t, again.cmd.Process.Signal(os.Interrupt))
	again.wait()
	for _, name := range []string{"coordinator/coordinator.toml", "witness/witness.toml", "client/context.toml"} {
		path := filepath.Join(moved, name)
		require.Contains(t, again.errout.String(), path)
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path, bytes.ReplaceAll(text, []byte(u.state), []byte(moved)), 0o600))
	}
	third := startUp(t, moved).ready()
	require.Contains(t, third.out.String(), "epoch 2")
	require.NotContains(t, third.errout.String(), "If this directory was moved")
}

func TestUpEndsWhenAStoreIsDamaged(t *testing.T) {
	t.Parallel()
	u := startUp(t, filepath.Join(t.TempDir(), "s")).ready()
	require.NoError(t, u.cmd.Process.Signal(os.Interrupt))
	require.NoError(t, u.wait())
	require.NoError(t, os.Truncate(filepath.Join(u.state, "coordinator", "state.db"), 100))
	again := startUp(t, u.state)
	require.Error(t, again.wait())
	require.Equal(t, exitOther, again.cmd.ProcessState.ExitCode())
	require.Contains(t, again.errout.String(), exitMeanings[daemon.ExitCorrupt].text)
	require.NotContains(t, again.errout.String(), "starting it again")
	require.NotContains(t, again.out.String(), "ready")
}

// TestUpFirstUseCanBeRepeated interrupts the set-up after each of its steps, by taking away
// what comes later, and at random times by SIGKILL.
func TestUpFirstUseCanBeRepeated(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		undo func(t *testing.T, state string)
	}{
		{"before the context", func(t *testing.T, s string) {
			require.NoError(t, os.Remove(filepath.Join(s, "client", "context.toml")))
		}},
		{"before the client's key", func(t *testing.T, s string) {
			require.NoError(t, os.RemoveAll(filepath.Join(s, "client")))
		}},
		{"before the coordinator", func(t *testing.T, s string) {
			require.NoError(t, os.RemoveAll(filepath.Join(s, "client")))
			require.NoError(t, os.RemoveAll(filepath.Join(s, "coordinator")))
		}},
		{"within the coordinator", func(t *testing.T, s string) {
			require.NoError(t, os.RemoveAll(filepath.Join(s, "client")))
			require.NoError(t, os.Rename(filepath.Join(s, "coordinator"), filepath.Join(s, "coordinator.new-1")))
			require.NoError(t, os.Remove(filepath.Join(s, "coordinator.new-1", "coordinator.toml")))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			u := startUp(t, filepath.Join(t.TempDir(), "s")).ready()
			require.NoError(t, u.cmd.Process.Signal(os.Interrupt))
			require.NoError(t, u.wait())
			tt.undo(t, u.state)
			again := startUp(t, u.state).ready()
			require.Contains(t, again.errout.String(), "first use")
			require.Equal(t, 0, again.ctl("status").code)
			require.NoError(t, again.cmd.Process.Signal(os.Interrupt))
			require.NoError(t, again.wait())
		})
	}
	t.Run("killed as each file appears", func(t *testing.T) {
		state := filepath.Join(t.TempDir(), "s")
		for _, file := range []string{"up.lock", "witness/workload-authority.ed25519", "witness/witness.toml", "coordinator.new-*/link.ed25519", "coordinator/coordinator.toml", "client/client.ed25519"} {
			u := startUp(t, state)
			eventually(t, file, func() bool {
				found, err := filepath.Glob(filepath.Join(state, file))
				require.NoError(t, err)
				return len(found) > 0 || u.serves() // a file that came and went
			})
			u.cmd.Process.Kill()
			u.wait()
		}
		u := startUp(t, state).ready()
		require.Equal(t, 0, u.ctl("status").code)
	})
}

func TestUpRefusesAPathThatNoSocketCanHave(t *testing.T) {
	binaries(t)
	state := filepath.Join(t.TempDir(), strings.Repeat("x", 100))
	u := startUp(t, state)
	require.Error(t, u.wait())
	require.Equal(t, exitUsage, u.cmd.ProcessState.ExitCode())
	require.Contains(t, u.errout.String(), "107")
	_, err := os.Stat(filepath.Join(state, "witness"))
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func TestRevokedKeyIsToldAtOnce(t *testing.T) {
	t.Parallel()
	u := startUp(t, filepath.Join(t.TempDir(), "s")).ready()
	require.Equal(t, 0, u.ctl("status").code)
	out, err := exec.Command(filepath.Join(u.bin, "coordinatord"), "keys", "--state", filepath.Join(u.state, "coordinator"), "revoke", "local").CombinedOutput()
	require.NoError(t, err, "%s", out)
	r := u.ctl("status")
	require.Equal(t, exitAuthentication, r.code)
	require.Contains(t, r.errout, "revoked")
}

func TestStoppedCoordinatorTimesOutBeforeAnythingIsSent(t *testing.T) {
	t.Parallel()
	u := startUp(t, filepath.Join(t.TempDir(), "s")).ready()
	_, coordinator := u.pids()
	require.NoError(t, syscall.Kill(coordinator, syscall.SIGSTOP))
	r := u.ctl("--timeout", "500ms", "create", "objective", "--title", "x")
	require.NoError(t, syscall.Kill(coordinator, syscall.SIGCONT))
	require.Equal(t, exitUnavailable, r.code)
	require.Contains(t, r.errout, "nothing was sent")
}
