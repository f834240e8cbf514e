//go:build linux

package owner

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"coordinator/frames"

	"github.com/stretchr/testify/require"
)

// requireNoZombies fails when this process has a child that nobody reaped.
func requireNoZombies(t testing.TB) {
	t.Helper()
	var zombies []procStat
	require.Eventually(t, func() bool {
		zombies = nil
		err := eachProcess(func(st procStat) {
			if st.parent == os.Getpid() && !st.alive() {
				zombies = append(zombies, st)
			}
		})
		return err == nil && len(zombies) == 0
	}, waitLimit, 10*time.Millisecond, "zombies: %v", &zombies)
}

func TestARunFromStartToEnd(t *testing.T) {
	c := newStation(t, nil).coordinator(1)
	r := c.run(&Document{Argv: []string{"/bin/sh", "-c", `echo "$GREETING $(pwd) $TERM $(stty size)"; exit 3`},
		Cwd: "/tmp", Env: map[string]string{"GREETING": "hällo"}, Rows: 33, Cols: 101, Term: "vt220"})
	closed, facts := r.closed()
	require.Equal(t, frames.Closed{Known: true, Status: 3}, closed)
	out := r.output()
	require.Equal(t, "hällo /tmp vt220 33 101\r\n", string(out))
	require.EqualValues(t, len(out), ranges(t, facts, out))
	requireNoZombies(t)
}

// The environment is a basic part of the owner's own, and nothing else of it.
func TestEnvironmentIsTheOwnersOnlyInItsBasics(t *testing.T) {
	c := newStation(t, func(o *Options) {
		o.Environ = []string{"PATH=/usr/bin:/bin", "LC_ALL=C", "SECRET=hidden", "COORDINATOR_FAILPOINT=x=kill"}
	}).coordinator(1)
	r := c.run(&Document{Argv: []string{"env"}, Env: map[string]string{"A": "1"}})
	r.requireExit(0)
	require.Equal(t, "A=1\r\nLC_ALL=C\r\nPATH=/usr/bin:/bin\r\nTERM=xterm-256color\r\n", string(r.output()))
}

// TestExitStatusesAreExact: field case 26. Other children of the same program come and go
// meanwhile and keep their own statuses.
func TestExitStatusesAreExact(t *testing.T) {
	c := newStation(t, nil).coordinator(1)
	stop := make(chan struct{})
	var others sync.WaitGroup
	others.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			err := exec.Command("/bin/sh", "-c", "exit 41").Run()
			var exit *exec.ExitError
			require.ErrorAs(t, err, &exit)
			require.Equal(t, 41, exit.ExitCode())
		}
	})
	const total = 500
	signals := []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL, syscall.SIGSEGV, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGPIPE}
	type started struct {
		r    *running
		want int32
	}
	results := make(chan started, total)
	work := make(chan int)
	var workers sync.WaitGroup
	for range 12 {
		workers.Go(func() {
			for i := range work {
				line, want := fmt.Sprintf("exit %d", i%256), int32(i%256)
				if i >= 400 {
					sig := signals[i%len(signals)]
					line, want = fmt.Sprintf("ulimit -c 0; kill -%d $$", int(sig)), -int32(sig)
				}
				results <- started{c.shell(line), want}
			}
		})
	}
	for i := range total {
		work <- i
	}
	close(work)
	workers.Wait()
	close(results)
	for s := range results {
		s.r.requireExit(s.want)
	}
	close(stop)
	others.Wait()
	requireNoZombies(t)
	require.Eventually(t, func() bool { return c.s.o.Processes() == 0 }, waitLimit, time.Millisecond)
	require.NoError(t, eachProcess(func(st procStat) {
		require.NotEqual(t, os.Getpid(), st.parent, "a child is left")
	}))
}

func TestFloodIsCoveredAndCapped(t *testing.T) {
	const stored = 1 << 20
	c := newStation(t, func(o *Options) { o.MaxOutput = stored }).coordinator(1)
	r := c.shell("head -c 5000000 /dev/zero | tr '\\0' x")
	r.requireExit(0)
	_, facts := r.closed()
	out := r.output()
	require.Len(t, out, stored)
	require.Equal(t, bytes.Repeat([]byte("x"), stored), out)
	require.EqualValues(t, 5_000_000, ranges(t, facts, out))
}

// Output that trickles is recorded as it comes, long before the end.
func TestOutputIsRecordedWhileTheProcessRuns(t *testing.T) {
	c := newStation(t, nil).coordinator(1)
	r := c.shell("printf one; read x; printf two")
	c.eventually("OUTPUT_RANGE", func() bool { return len(c.in.of(r.id)) >= 2 })
	require.Equal(t, frames.FactOutputRange, c.in.of(r.id)[1].Kind)
	require.EqualValues(t, 3, ranges(t, c.in.of(r.id), []byte("one")))
	require.Equal(t, frames.EffectSucceeded, c.dispatch(r.effect(frames.EffectKill, nil)).State)
	r.requireExit(-int32(syscall.SIGTERM))
}

func TestBells(t *testing.T) {
	c := newStation(t, nil).coordinator(1)
	r := c.shell(`printf 'title \033]0;x\007 none'; sleep 0.5; printf 'ring \007\007'`)
	r.requireExit(0)
	_, facts := r.closed()
	require.Equal(t, []frames.AttentionKind{frames.AttentionBell}, attentions(t, facts), "several at once are one")
}

// A process may close its terminal, live on, and even open it again.
func TestProcessThatClosesItsTerminalLivesOn(t *testing.T) {
	c := newStation(t, nil).coordinator(1)
	done := filepath.Join(t.TempDir(), "done")
	r := c.run(&Document{Argv: []string{"/bin/sh", "-c", `exec </dev/null >/dev/null 2>&1; sleep 0.3; echo again >/dev/tty; sleep 0.1; echo > "$DONE"; exit 9`},
		Env: map[string]string{"DONE": done}})
	r.requireExit(9)
	require.FileExists(t, done)
	require.Equal(t, "again\r\n", string(r.output()))
	_, facts := r.closed()
	require.Empty(t, attentions(t, facts))
}

func secs(n uint32) *uint32 { return &n }

func TestKillOfAProcessThatIgnoresSIGTERM(t *testing.T) {
	c := newStation(t, nil).coordinator(1)
	r := c.run(&Document{Argv: []string{"/bin/sh", "-c", `trap "" TERM; echo ready; while :; do sleep 1; done`}, GraceSecs: secs(1)})
	c.eventually("output", func() bool { return len(c.in.of(r.id)) > 1 })
	kill := r.effect(frames.EffectKill, nil)
	require.Equal(t, frames.EffectSucceeded, c.dispatch(kill).State)
	r.requireExit(-int32(syscall.SIGKILL))
	require.Equal(t, frames.EffectSucceeded, c.dispatch(r.effect(frames.EffectKill, nil)).State, "already reaped")
	require.Equal(t, frames.EffectSucceeded, c.dispatch(kill).State, "the same again")
	requireNoZombies(t)
}

func TestKillReachesAStoppedProcess(t *testing.T) {
	c := newStation(t, nil).coordinator(1)
	r := c.run(&Document{Argv: []string{"/bin/sh", "-c", "kill -STOP $$"}, GraceSecs: secs(60)})
	pid := r.pid()
	c.eventually("stopped", func() bool {
		st, err := readStat(pid)
		return err == nil && st.state == 'T'
	})
	require.Equal(t, frames.EffectSucceeded, c.dispatch(r.effect(frames.EffectKill, nil)).State)
	r.requireExit(-int32(syscall.SIGTERM))
}

// pid is the process's, from the journal.
func (r *running) pid() int {
	r.c.t.Helper()
	row, err := r.c.s.o.holds(coordA, r.id)
	require.NoError(r.c.t, err)
	return int(row.Group)
}

// A KILL asks the whole group to end, not its first process alone.
func TestKillAsksTheGroup(t *testing.T) {
	c := newStation(t, nil).coordinator(1)
	asked := filepath.Join(t.TempDir(), "asked")
	r := c.run(&Document{Argv: []string{"/bin/sh", "-c",
		`(trap "" HUP; trap 'echo yes > "$ASKED"; exit' TERM; echo ready; while :; do sleep 0.05; done) & wait`},
		Env: map[string]string{"ASKED": asked}, GraceSecs: secs(60)})
	c.eventually("output", func() bool { return len(c.in.of(r.id)) > 1 })
	require.Equal(t, frames.EffectSucceeded, c.dispatch(r.effect(frames.EffectKill, nil)).State)
	r.requireExit(-int32(syscall.SIGTERM))
	c.eventually("the member was asked", func() bool { _, err := os.Stat(asked); return err == nil })
}

// A process begins with no signal ignored, whatever its owner ignores, as under nohup.
func TestNoSignalIsIgnored(t *testing.T) {
	signal.Ignore(syscall.SIGHUP)
	defer signal.Reset(syscall.SIGHUP)
	c := newStation(t, nil).coordinator(1)
	r := c.run(&Document{Argv: []string{"grep", "SigIgn", "/proc/self/status"}})
	r.requireExit(0)
	mask, found := strings.CutPrefix(strings.TrimSpace(string(r.output())), "SigIgn:")
	require.True(t, found, "%q", r.output())
	ignored, err := strconv.ParseUint(strings.TrimSpace(mask), 16, 64)
	require.NoError(t, err)
	const threads = 1<<31 | 1<<32 // 32 and 33, which are the C library's own, come ignored from some shells
	require.Zero(t, ignored&^threads, "%x", ignored)
}

// A process has its terminal open and nothing of its owner's.
func TestNoDescriptorIsLeftOver(t *testing.T) {
	c := newStation(t, nil).coordinator(1)
	for _, fd := range []string{"3", "4", "5"} {
		c.run(&Document{Argv: []string{"readlink", "/proc/self/fd/" + fd}}).requireExit(1)
	}
	c.run(&Document{Argv: []string{"readlink", "/proc/self/fd/2"}}).requireExit(0)
}

// What a KILL left of the group dies too, although the terminal has long ended.
func TestKillFollowsTheGroup(t *testing.T) {
	c := newStation(t, nil).coordinator(1)
	r := c.run(&Document{Argv: []string{"/bin/sh", "-c", `(trap "" TERM HUP; exec </dev/null >/dev/null 2>&1; echo $BASHPID; sleep 60) & sleep 60`}, GraceSecs: secs(1)})
	id := identity{group: uint32(r.pid())}
	row, err := c.s.o.holds(coordA, r.id)
	require.NoError(t, err)
	id.start = row.StartTime
	c.eventually("three members", func() bool {
		list, err := members(id)
		return err == nil && len(list) >= 3
	})
	require.Equal(t, frames.EffectSucceeded, c.dispatch(r.effect(frames.EffectKill, nil)).State)
	r.requireExit(-int32(syscall.SIGTERM))
	c.eventually("nobody is left", func() bool {
		list, err := members(id)
		return err == nil && len(list) == 0
	})
}

// A descendant in a session of its own that holds the terminal is waited for, hung up on and
// reported.
func TestGrandchildThatHoldsTheTerminal(t *testing.T) {
	c := newStation(t, nil).coordinator(1)
	r := c.run(&Document{Argv: []string{"/bin/sh", "-c", `setsid sh -c 'trap "" HUP; echo $$; sleep 5; echo late' & sleep 0.3; exit 4`}, GraceSecs: secs(1)})
	closed, facts := r.closed()
	require.Equal(t, frames.Closed{Known: true, Status: 4}, closed)
	require.Equal(t, []frames.AttentionKind{frames.AttentionFailed}, attentions(t, facts))
	require.Equal(t, frames.FactAttention, facts[len(facts)-1].Kind, "before CLOSED")
	out := string(r.output())
	require.NotContains(t, out, "late")
	pid, err := strconv.Atoi(strings.TrimSpace(out))
	require.NoError(t, err)
	syscall.Kill(pid, syscall.SIGKILL)
}

// One that lets go in time changes nothing, and its output counts.
func TestGrandchildThatLetsGo(t *testing.T) {
	c := newStation(t, nil).coordinator(1)
	r := c.shell(`(trap "" HUP; sleep 0.5; echo late) & sleep 0.1; exit 0`)
	r.requireExit(0)
	_, facts := r.closed()
	require.Empty(t, attentions(t, facts))
	require.Equal(t, "late\r\n", string(r.output()))
}

func TestProcessSignals(t *testing.T) {
	c := newStation(t, nil).coordinator(1)
	r := c.shell(`trap "echo got" INT; echo ready; while :; do sleep 0.05; done`)
	c.eventually("output", func() bool { return len(c.in.of(r.id)) > 1 })
	interrupt := r.effect(frames.EffectProcessSignal, []byte{byte(frames.ProcessInterrupt)})
	require.Equal(t, frames.EffectSucceeded, c.dispatch(interrupt).State)
	c.eventually("the trap", func() bool { return ranges(t, c.in.of(r.id), nil) > uint64(len("ready\r\n")) })
	require.Equal(t, frames.EffectSucceeded, c.dispatch(r.effect(frames.EffectProcessSignal, []byte{byte(frames.ProcessKill)})).State)
	r.requireExit(-int32(syscall.SIGKILL))
	_, facts := r.closed()
	var results []frames.SignalResult
	for i := range facts {
		if facts[i].Kind == frames.FactSignalResult {
			v, err := facts[i].DecodePayload()
			require.NoError(t, err)
			results = append(results, *v.(*frames.SignalResult))
		}
	}
	require.Len(t, results, 2)
	require.Equal(t, frames.SignalResult{Attempt: interrupt.ID, Outcome: frames.OutcomeApplied}, results[0])
	late := c.dispatch(r.effect(frames.EffectProcessSignal, []byte{byte(frames.ProcessTerminate)}))
	require.Equal(t, frames.EffectRejected, late.State)
	row, err := c.s.o.holds(coordA, r.id)
	require.NoError(t, err)
	require.EqualValues(t, len(facts)+2, row.Last, "nothing follows CLOSED")
}

func TestSpawnsThatAreRejected(t *testing.T) {
	c := newStation(t, nil).coordinator(1)
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	require.NoError(t, os.WriteFile(plain, []byte("text"), 0o600))
	for _, tt := range []struct {
		name, doc string
		change    func(*frames.EffectTarget, *frames.SpawnPayload)
		want      string
	}{
		{name: "argv missing", doc: `{}`, want: "argv"},
		{name: "argv empty", doc: `{"argv":[]}`, want: "argv"},
		{name: "program not found", doc: `{"argv":["no-such-program-anywhere"]}`, want: "no such file"},
		{name: "path not found", doc: `{"argv":["/no/such/program"]}`, want: "no such file"},
		{name: "not executable", doc: `{"argv":["` + plain + `"]}`, want: "permission denied"},
		{name: "a directory", doc: `{"argv":["/tmp"]}`, want: "permission denied"},
		{name: "cwd missing", doc: `{"argv":["true"],"cwd":"/no/such/dir"}`, want: "cwd: no such file"},
		{name: "cwd a file", doc: `{"argv":["true"],"cwd":"` + plain + `"}`, want: "cwd: not a directory"},
		{name: "one string of 200 KiB", doc: `{"argv":["true"],"env":{"X":"` + strings.Repeat("x", 200<<10) + `"}}`, want: "argument list too long"},
		{name: "unknown member", doc: `{"argv":["true"],"shell":"x"}`, want: "not a known member"},
		{name: "unknown schema", doc: `{"argv":["true"]}`, change: func(_ *frames.EffectTarget, p *frames.SpawnPayload) { p.ExecutorSchema = 2 }, want: "schema"},
		{name: "unknown group", doc: `{"argv":["true"]}`, change: func(x *frames.EffectTarget, _ *frames.SpawnPayload) { x.Group = 2 }, want: textElsewhere},
		{name: "other incarnation", doc: `{"argv":["true"]}`, change: func(x *frames.EffectTarget, _ *frames.SpawnPayload) { x.OwnerIncarnation[3]++ }, want: textElsewhere},
		{name: "other owner", doc: `{"argv":["true"]}`, change: func(x *frames.EffectTarget, _ *frames.SpawnPayload) { x.Owner[3]++ }, want: textElsewhere},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := c.rawSpawn([]byte(tt.doc), tt.change)
			r := c.dispatch(a)
			require.Equal(t, frames.EffectRejected, r.State)
			require.Contains(t, r.Message, tt.want)
			require.False(t, r.HasResource)
			require.Equal(t, r, c.dispatch(a), "and so the same again")
			require.Equal(t, r, c.lookUp(a))
			err := c.OpenFacts(context.Background(), c.guard(), frames.BindingID(a.Target.PendingBindingID), 0, 1)
			requireCode(t, frames.CodeNotFound, err)
		})
	}
	require.Empty(t, entries(t, filepath.Join(c.s.dir, outputDir)))
	requireNoZombies(t)
}

func entries(t testing.TB, dir string) (names []string) {
	t.Helper()
	list, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// An environment as large as a document may be reaches the process; a larger one is refused
// before anything is sent.
func TestLargeEnvironments(t *testing.T) {
	c := newStation(t, nil).coordinator(1)
	env := map[string]string{}
	for i := range 24 {
		env[fmt.Sprintf("V%02d", i)] = strings.Repeat("y", 10<<10)
	}
	r := c.run(&Document{Argv: []string{"/bin/sh", "-c", "env | grep -c ^V..=y"}, Env: env})
	r.requireExit(0)
	require.Equal(t, "24\r\n", string(r.output()))

	big, err := (&Document{Argv: []string{"true"}, Env: map[string]string{"X": strings.Repeat("x", 1<<20)}}).Encode()
	require.NoError(t, err)
	a := c.rawSpawn(nil, nil)
	a.Payload = append(a.Payload[:18], big...) // what no encoder of ours makes
	_, err = c.Dispatch(context.Background(), c.guard(), a)
	require.Error(t, err)
	require.Equal(t, NeverSeen, c.lookUp(a).State, "nothing was sent, and the connection lives")
}

func TestProcessesAreBounded(t *testing.T) {
	c := newStation(t, func(o *Options) { o.MaxProcesses = 1 }).coordinator(1)
	r := c.shell("read x")
	second := c.dispatch(c.newSpawn(&Document{Argv: []string{"true"}}))
	require.Equal(t, frames.EffectRejected, second.State)
	require.Equal(t, textTooMany, second.Message)
	require.Equal(t, frames.EffectSucceeded, c.dispatch(r.effect(frames.EffectKill, nil)).State)
	r.requireExit(-int32(syscall.SIGTERM))
	c.shell("true").requireExit(0)
}
