package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/client"
	"coordinator/codec"
	"coordinator/frames"
)

// eventOf is the event that leaves a record behind.
func eventOf(t *testing.T, kind frames.EventKind, seq frames.EventSequence, r frames.SnapshotRecord) *client.Event {
	image, err := codec.EncodeImage(nil, &r)
	require.NoError(t, err)
	return &client.Event{Sequence: seq, ID: frames.EventID{byte(seq)}, Kind: kind, Object: r.Ref(), Revision: r.Revision, Schema: 1, Payload: image}
}

// told is one of each thing that a watcher is told.
func told(t *testing.T) []client.Update {
	binding := frames.ObjectRef{Kind: frames.KindBinding, ID: frames.ObjectID{4}}
	source := frames.TerminalSourceRef{BindingID: frames.BindingID{4}, Owner: frames.Fingerprint{2}, OwnerIncarnation: frames.IncarnationID{3}, Sequence: 9}
	image := func(v codec.Value) []byte {
		b, err := codec.EncodeImage(nil, v)
		require.NoError(t, err)
		return b
	}
	gone := frames.ObjectRef{Kind: frames.KindObjective, ID: frames.ObjectID{1}}
	out := []client.Update{
		eventOf(t, frames.EventObjectiveChanged, 7, record(t, frames.KindObjective, 1, &frames.Objective{DocumentSchema: 1, Document: []byte(`{"title":"A \u0007 bell"}`)})),
		&client.Event{Sequence: 8, ID: frames.EventID{8}, Kind: frames.EventSourceFactAdmitted, Object: binding, Revision: 3, Schema: 1,
			Payload: image(&frames.TerminalSourceFact{Source: source, Kind: frames.FactClosed, Schema: 1, Payload: []byte{1, 0, 0, 0, 0}})},
		&client.Event{Sequence: 9, ID: frames.EventID{9}, Kind: frames.EventSourceGap, Object: binding, Revision: 4, Schema: 1,
			Payload: image(&frames.SourceGap{BindingID: frames.BindingID{4}, Expected: 10, Observed: 12})},
		&client.Event{Sequence: 10, ID: frames.EventID{10}, Kind: frames.EventObjectRemoved, Object: gone, Revision: 5, Schema: 1, Payload: image(&gone)},
	}
	for reason := frames.GapQueueOverflow; reason <= frames.GapInternal; reason++ {
		out = append(out, &client.Gap{Reason: reason, Last: 10, Observed: frames.EventSequence(reason) * 11})
	}
	return append(out,
		&client.Healed{Replayed: true, Last: 10, Guard: frames.AuthorityGuard{Epoch: 3, Activation: 4}},
		&client.Gap{Last: 10, Cause: client.ErrDisconnected},
		&client.Gap{Last: 10, Attempt: 1, Cause: syscall.ECONNREFUSED},
		&client.Gap{Last: 10, Attempt: 2, Cause: syscall.ECONNREFUSED}, // said once
		&client.Gap{Last: 10, Attempt: 3, Cause: &client.LowerAuthorityError{HaveEpoch: 9, GotEpoch: 7, HaveActivation: 9, GotActivation: 7}},
		&client.Healed{Last: 10, Guard: frames.AuthorityGuard{Epoch: 9, Activation: 9}},
	)
}

func TestWatchTellsEverythingThatItIsTold(t *testing.T) {
	for _, tt := range []struct {
		name   string
		output string
		rows   bool
	}{{"watch_table", "table", false}, {"watch_json", "json", false}, {"get_watch_table", "table", true}, {"get_watch_json", "json", true}} {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			w := &watcher{a: &app{stdout: &out, output: format(t, tt.output), contextPath: "/nonexistent/context.toml"}, rows: tt.rows}
			for _, u := range told(t) {
				require.NoError(t, w.show(u))
			}
			require.NotContains(t, out.String(), "\a")
			golden(t, tt.name, out.String())
			if tt.output == "json" {
				for line := range strings.Lines(out.String()) {
					require.True(t, json.Valid([]byte(line)), line)
				}
			}
		})
	}
}

func TestWatchFiltersAndEnds(t *testing.T) {
	var out bytes.Buffer
	w := &watcher{a: &app{stdout: &out}, kind: frames.KindBinding, left: 2}
	var end error
	for _, u := range told(t) {
		if end = w.show(u); end != nil {
			break
		}
	}
	require.ErrorIs(t, end, errEnough)
	require.Equal(t, 2, strings.Count(out.String(), "\n"))
	require.NotContains(t, out.String(), "OBJECTIVE_CHANGED")

	failing := &watcher{a: &app{stdout: shutPipe{}, output: format(t, "json")}}
	require.ErrorIs(t, failing.show(told(t)[0]), syscall.EPIPE)
}

type shutPipe struct{}

func (shutPipe) Write([]byte) (int, error) { return 0, syscall.EPIPE }

func TestWatchWithoutACoordinator(t *testing.T) {
	f := newFake(t)
	r := f.cli("watch")
	require.Equal(t, exitUnavailable, r.code)
	require.Contains(t, r.errout, "there is no socket")
	require.Equal(t, exitUnavailable, f.cli("watch", "--wait", "50ms").code)
	require.Equal(t, exitUsage, f.cli("watch", "nothing").code)
	require.Equal(t, exitUsage, f.cli("watch", "objective", "zz").code)
	require.Equal(t, exitUsage, f.cli("watch", "--limit", "-1").code)
	require.Equal(t, exitUsage, f.cli("--key", "fd:77777", "watch").code)
}

func TestDescribe(t *testing.T) {
	f := newFake(t)
	f.records = oneOfEach(t)
	started := frames.Started{Run: frames.RunID(f.records[2].ID), Session: frames.WorkSessionID(f.records[3].ID)}
	image, err := codec.EncodeImage(nil, &started)
	require.NoError(t, err)
	f.records = append(f.records, record(t, frames.KindOperation, 9, &frames.Operation{Result: frames.OperationResult{State: frames.OperationSucceeded, Sequence: 12, Kind: frames.ResultStarted, Payload: image}}),
		record(t, frames.KindWorkSession, 7, &frames.WorkSession{RunID: started.Run}))
	slices.SortFunc(f.records, func(a, b frames.SnapshotRecord) int { return a.Ref().Compare(b.Ref()) })
	f.listen()
	table, js := f.cli("describe", "run", "02abcd"), f.cli("describe", "run", "02abcd", "-o", "json")
	require.Equal(t, 0, table.code, table.errout)
	golden(t, "describe_run", table.out+"\n"+js.out)
	golden(t, "describe_objective", f.cli("describe", "objective", "01abcd00000000000000000000000001").out)
	require.Equal(t, exitUsage, f.cli("describe", "objective", "01abcd").code)
	require.Equal(t, exitRefused, f.cli("describe", "objective", "01abce").code)
	require.Equal(t, 0, f.cli("describe", "admin", "09abcd00000000000000000000000003").code)
}

func TestNamedContexts(t *testing.T) {
	home := t.TempDir()
	t.Setenv("XDG_STATE_HOME", home)
	f := newFake(t)
	f.listen()
	require.Contains(t, cli("context", "list").errout, "no contexts")
	require.Equal(t, exitUsage, cli("context", "use", "there").code)
	for _, bad := range []string{"", "a/b", "-x", strings.Repeat("n", 65)} {
		require.Equal(t, exitUsage, cli("context", "add", "--", bad, f.path).code, bad)
	}
	require.Equal(t, exitUsage, cli("context", "add", "there", f.path+"x").code)
	require.Equal(t, 0, cli("context", "add", "there", f.path).code)
	require.Equal(t, 0, cli("context", "add", "there", f.path).code, "again is the same")
	require.Equal(t, exitUsage, cli("ping").code, "it is not in use yet")
	require.Equal(t, 0, cli("--context", "there", "ping").code)
	require.Equal(t, 0, cli("context", "use", "there").code)
	require.Equal(t, 0, cli("ping").code)
	var list []struct {
		Name    string `json:"name"`
		Current bool   `json:"current"`
		Path    string `json:"path"`
	}
	cli("context", "list", "-o", "json").decode(t, &list)
	require.Len(t, list, 1)
	require.Equal(t, "there", list[0].Name)
	require.True(t, list[0].Current)
	require.Equal(t, f.path, list[0].Path)
	require.Contains(t, cli("context", "list").out, "*  there")
	require.Contains(t, cli("context", "show").out, f.pins.CoordinatorID.String())
	require.Equal(t, exitUsage, cli("context", "show", "nowhere").code)

	other := newFake(t)
	require.Equal(t, exitUsage, cli("context", "add", "there", other.path).code, "a name is not taken over")
	missing := cli("--context", other.path, "get", "objective")
	require.Contains(t, missing.errout, "coordctl up", "a file is still a file")

	require.NoError(t, os.WriteFile(contextsFile(), []byte("current = \"gone\"\n"), 0o600))
	broken := cli("ping")
	require.Equal(t, exitUsage, broken.code)
	require.Contains(t, broken.errout, contextsFile())
	require.Equal(t, 0, cli("--context", f.path, "ping").code, "which a named file does not need")
}

func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		r := cli("completion", shell)
		require.Equal(t, 0, r.code)
		require.Contains(t, r.out, "coordctl")
	}
	require.Equal(t, exitUsage, cli("completion", "tcsh").code)
	require.Equal(t, exitUsage, cli("completion").code)
	require.Contains(t, cli("__complete", "watch", "").out, "work_session")
	require.Contains(t, cli("__complete", "").out, "describe")
}

func TestKeyFlag(t *testing.T) {
	f := newFake(t)
	f.listen()
	other := filepath.Join(t.TempDir(), "other")
	require.Equal(t, 0, cli("keygen", "--out", other).code)
	r := f.cli("--key", other, "ping")
	require.Equal(t, exitAuthentication, r.code)
	require.Contains(t, r.errout, "ed25519:", "it says which key to enrol")
	require.Equal(t, 0, f.cli("--key", f.pins.KeyFile, "ping").code)
	seed, err := os.Open(f.pins.KeyFile)
	require.NoError(t, err)
	fd, err := syscall.Dup(int(seed.Fd()))
	require.NoError(t, err)
	require.NoError(t, seed.Close())
	require.Equal(t, 0, f.cli("--key", fmt.Sprintf("fd:%d", fd), "ping").code)
	t.Setenv("SSH_AUTH_SOCK", "")
	r = f.cli("--key", "agent", "ping")
	require.Equal(t, exitUsage, r.code)
	require.Contains(t, r.errout, "SSH_AUTH_SOCK")
}

// A following is a running `coordctl watch` or `get --watch`.
type following struct {
	out, errout *safeBuffer
	cmd         *exec.Cmd
}

func (u *upped) follow(args ...string) *following {
	w := &following{out: &safeBuffer{}, errout: &safeBuffer{}}
	w.cmd = exec.Command(filepath.Join(u.bin, "coordctl"), append([]string{"--context", filepath.Join(u.state, "client", "context.toml")}, args...)...)
	w.cmd.Stdout, w.cmd.Stderr = w.out, w.errout
	require.NoError(u.t, w.cmd.Start())
	u.t.Cleanup(func() { w.cmd.Process.Kill(); w.cmd.Wait() }) //nolint:errcheck // it may have ended
	return w
}

// TestWatchThroughSIGKILL follows a coordinator that is killed twice while work is made:
// every event is shown once and in order, and every gap is told and healed.
func TestWatchThroughSIGKILL(t *testing.T) {
	t.Parallel()
	u := startUp(t, filepath.Join(t.TempDir(), "s")).ready()
	watch, rows := u.follow("watch", "-o", "json"), u.follow("get", "objective", "--watch")
	eventually(t, "it watches", func() bool {
		return strings.Contains(watch.out.String(), "SNAPSHOT") && strings.Contains(rows.out.String(), "TITLE")
	})
	var made []string
	create := func(n int) {
		for i := range n {
			var o struct {
				ObjectiveID string `json:"objective_id"`
			}
			u.ctl("--wait", "30s", "--timeout", "40s", "create", "objective", "--title", fmt.Sprintf("work %d", len(made)+i), "-o", "json").decode(t, &o)
			made = append(made, o.ObjectiveID)
		}
		eventually(t, "both show it", func() bool {
			id := made[len(made)-1]
			return strings.Contains(watch.out.String(), id) && strings.Contains(rows.out.String(), id)
		})
	}
	create(2)
	for range 2 {
		require.NoError(t, syscall.Kill(u.coordinatorPID(), syscall.SIGKILL))
		create(2)
	}
	for _, w := range []*following{watch, rows} {
		require.NoError(t, w.cmd.Process.Signal(os.Interrupt))
		require.NoError(t, w.cmd.Wait(), "Ctrl-C ends it well: %s", w.errout)
	}

	var shown []string
	last, current, gaps := uint64(0), false, 0
	for s := bufio.NewScanner(strings.NewReader(watch.out.String())); s.Scan(); {
		var line struct {
			Type   string `json:"type"`
			Seq    uint64 `json:"event_sequence"`
			Object struct {
				ID string `json:"id"`
			} `json:"object"`
		}
		require.NoError(t, json.Unmarshal(s.Bytes(), &line), s.Text())
		switch line.Type {
		case "COORD_EVENT":
			require.True(t, current, "an event within a gap")
			require.Greater(t, line.Seq, last)
			last = line.Seq
			shown = append(shown, line.Object.ID)
		case "GAP":
			current = false
			gaps++
		default:
			current = true
		}
	}
	require.Equal(t, made, shown)
	require.GreaterOrEqual(t, gaps, 2)
	require.True(t, current)
	at := -1
	for _, id := range made {
		require.Equal(t, 1, strings.Count(rows.out.String(), id))
		require.Greater(t, strings.Index(rows.out.String(), id), at)
		at = strings.Index(rows.out.String(), id)
	}
	require.GreaterOrEqual(t, strings.Count(rows.out.String(), "-- healed"), 2)
}

// coordinatorPID is the running coordinator: the one of the last line that names it.
func (u *upped) coordinatorPID() (pid int) {
	_, pid = u.pids()
	for line := range strings.Lines(u.errout.String()) {
		if _, after, ok := strings.Cut(line, "coordinatord serves again, pid "); ok {
			if _, err := fmt.Sscan(after, &pid); err != nil {
				u.t.Fatal(err)
			}
		}
	}
	return pid
}

// TestWatchEndsWhenItsKeyIsRevoked tells the gap, and then why.
func TestWatchEndsWhenItsKeyIsRevoked(t *testing.T) {
	u := startUp(t, filepath.Join(t.TempDir(), "s")).ready()
	w := u.follow("watch")
	eventually(t, "it watches", func() bool { return strings.Contains(w.out.String(), "-- watching") })
	out, err := exec.Command(filepath.Join(u.bin, "coordinatord"), "keys", "--state", filepath.Join(u.state, "coordinator"), "revoke", "local").CombinedOutput()
	require.NoError(t, err, "%s", out)
	err = w.cmd.Wait()
	var exit *exec.ExitError
	require.True(t, errors.As(err, &exit))
	require.Equal(t, exitAuthentication, exit.ExitCode())
	require.Contains(t, w.out.String(), "GRANT_REVOKED")
	require.Contains(t, w.errout.String(), "revoked")
}
