package docs

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/internal/docsh"
	"coordinator/vectors"
)

// patience bounds every wait of these tests, and the life of every program that they start: a
// restart takes a lease of 6 s, on a machine that may be busy.
const patience = 4 * time.Minute

// needPython skips a test where there is no Python that runs the client: `make test` asks for Go
// and make alone.
func needPython(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("there is no python3; apt-get install python3 (3.11 or later)")
	}
	if out, err := exec.Command("python3", "-c", "import sys; print(sys.version); sys.exit(sys.version_info < (3, 11))").CombinedOutput(); err != nil {
		t.Skipf("the client needs Python 3.11 or later, and this is %s", out)
	}
}

// pythonCommand is a program of docs/python, which ends with the test at the latest.
func pythonCommand(t *testing.T, program string, args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return exec.CommandContext(ctx, "python3", append([]string{"-B", "-W", "error::ResourceWarning", filepath.Join("python", program)}, args...)...)
}

// runPython runs a program to its end and returns what it printed and its exit code.
func runPython(t *testing.T, program string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errout bytes.Buffer
	cmd := pythonCommand(t, program, args...)
	cmd.Stdout, cmd.Stderr = &out, &errout
	if err := cmd.Run(); cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return out.String(), errout.String(), cmd.ProcessState.ExitCode()
}

// forClients counts the vectors that concern a client, under the names of the files' lists.
func forClients(s *vectors.Set) map[string]int {
	n := map[string]int{"tlv": len(s.TLV), "ed25519": len(s.Ed25519), "handshake": len(s.Handshakes)}
	for _, f := range s.Frames {
		n["frames"] += len(f.Frames)
		for _, r := range f.Refused {
			if r.Direction == "s2c" {
				n["refused"]++
			}
		}
	}
	for _, f := range s.Records {
		for name, list := range map[string][]vectors.Image{
			"records": f.Records, "bad_records": f.BadRecords, "operation_results": f.OperationResults,
			"bad_operation_results": f.BadOperationResults, "facts": f.Facts, "bad_facts": f.BadFacts,
			"binding_refs": f.BindingRefs, "bad_binding_refs": f.BadBindingRefs, "source_gaps": f.SourceGaps, "bad_source_gaps": f.BadSourceGaps,
		} {
			n[name] += len(list)
		}
	}
	for _, f := range s.Digests {
		n["operation"] += len(f.Operation)
		n["snapshot"] += len(f.Snapshot)
		n["replay"] += len(f.Replay)
		n["evidence"] += len(f.Evidence)
		n["admin_record_id"] += len(f.AdminRecordID)
	}
	for _, f := range s.Certificates {
		n["certificates"] += len(f.Cases)
	}
	return n
}

func TestPythonMeetsTheVectors(t *testing.T) {
	t.Parallel()
	needPython(t)
	for _, s := range vectors.Load(t) {
		dir := s.Dir
		if dir == "testdata" {
			dir = filepath.Join("..", "vectors", dir)
		}
		stdout, stderr, code := runPython(t, "test_vectors.py", dir)
		require.Zero(t, code, "%s%s", stdout, stderr)
		line, ok := strings.CutPrefix(strings.TrimSpace(stdout), "checked ")
		require.True(t, ok, "%s", stdout)
		var checked map[string]int
		require.NoError(t, json.Unmarshal([]byte(line), &checked))
		require.Equal(t, forClients(s), checked, "vectors that were not checked, or were not there")
	}
}

func TestPythonDecides(t *testing.T) {
	t.Parallel()
	needPython(t)
	for _, tests := range []string{"test_client.py", "test_stream.py"} {
		_, stderr, code := runPython(t, tests)
		require.Zero(t, code, "%s", stderr)
	}
}

// What test_live.py holds the client to is run by TestImplementingDocument.

// An upped is a running `coordctl up`.
type upped struct {
	t          *testing.T
	bin, state string
	mu         sync.Mutex
	out        bytes.Buffer // guarded by mu
}

// Write takes what `up` prints.
func (u *upped) Write(p []byte) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.out.Write(p)
}

func (u *upped) said() string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.out.String()
}

func bringUp(t *testing.T) *upped {
	bin, err := docsh.Programs()
	require.NoError(t, err)
	state, err := os.MkdirTemp("", "p") // short, for socket paths
	require.NoError(t, err)
	u := &upped{t: t, bin: bin, state: state}
	cmd := exec.Command(filepath.Join(bin, "coordctl"), "up", "--state", filepath.Join(state, "s"), "--lease", "6")
	cmd.Stdout, cmd.Stderr = u, u
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Signal(os.Interrupt) //nolint:errcheck // it may have ended
		cmd.Wait()                       //nolint:errcheck // what it ended with is no matter
		os.RemoveAll(state)
		if t.Failed() {
			t.Log(u.said())
		}
	})
	u.eventually("up serves", func() bool { return strings.Contains(u.said(), "\nready") })
	return u
}

func (u *upped) eventually(what string, holds func() bool) {
	u.t.Helper()
	for end := time.Now().Add(patience); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			u.t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

func (u *upped) context() string { return filepath.Join(u.state, "s", "client", "context.toml") }

func (u *upped) ctl(args ...string) (string, error) {
	cmd := exec.Command(filepath.Join(u.bin, "coordctl"), append([]string{"--context", u.context()}, args...)...)
	out, err := cmd.Output()
	return string(out), err
}

// must is ctl until it is done: on a busy machine a lease may run out in between.
func (u *upped) must(args ...string) (out string) {
	u.t.Helper()
	u.eventually("coordctl "+strings.Join(args, " "), func() bool {
		var err error
		out, err = u.ctl(args...)
		return err == nil
	})
	return out
}

// create makes an objective and returns its id.
func (u *upped) create(title string) string {
	u.t.Helper()
	out := u.must("create", "objective", "--title", title, "-o", "json")
	var made struct {
		ObjectiveID string `json:"objective_id"`
	}
	require.NoError(u.t, json.Unmarshal([]byte(out), &made))
	return made.ObjectiveID
}

// objectives is what `coordctl get objective` shows, by id.
func (u *upped) objectives() map[string]any {
	out, err := u.ctl("get", "objective", "-o", "json")
	if err != nil {
		return nil // none serves at the moment
	}
	var list []map[string]any
	require.NoError(u.t, json.Unmarshal([]byte(out), &list))
	byID := make(map[string]any)
	for _, o := range list {
		byID[o["id"].(string)] = o
	}
	return byID
}

// An update is one line of `follow.py -o json`.
type update struct {
	Update string
	Epoch  int
	Lost   bool
	Before map[string]any
	After  map[string]any
}

// A following is a running follow.py and what it has shown.
type following struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed when its output has ended

	mu      sync.Mutex
	raw     bytes.Buffer   // guarded by mu
	updates []update       // guarded by mu
	view    map[string]any // guarded by mu: objectives by id
	fault   string         // guarded by mu
}

func follow(u *upped) *following {
	f := &following{cmd: pythonCommand(u.t, "follow.py", "--context", u.context(), "-o", "json"), ended: make(chan struct{}), view: make(map[string]any)}
	out, err := f.cmd.StdoutPipe()
	require.NoError(u.t, err)
	f.cmd.Stderr = f.cmd.Stdout
	require.NoError(u.t, f.cmd.Start())
	go func() {
		defer close(f.ended)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			f.take(lines.Bytes())
		}
	}()
	u.t.Cleanup(func() {
		if u.t.Failed() {
			f.mu.Lock()
			defer f.mu.Unlock()
			u.t.Log(f.raw.String())
		}
	})
	return f
}

// take applies one line. Between a gap and what heals it nothing may be shown.
func (f *following) take(line []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.raw.Write(append(line, '\n'))
	var u update
	if err := json.Unmarshal(line, &u); err != nil {
		f.fault = err.Error()
		return
	}
	if n := len(f.updates); u.Update == "change" && (n == 0 || f.updates[n-1].Update == "paused") {
		f.fault = "a change was shown behind a gap: " + string(line)
	}
	f.updates = append(f.updates, u)
	if shown := u.After; shown != nil && shown["kind"] == "OBJECTIVE" {
		f.view[shown["id"].(string)] = shown
	} else if shown == nil && u.Before != nil {
		delete(f.view, u.Before["id"].(string))
	}
}

// shows reports whether it has shown exactly these objectives.
func (f *following) shows(want map[string]any) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return want != nil && reflect.DeepEqual(want, f.view)
}

// synced reports whether a snapshot of the epoch or a later one has verified.
func (f *following) synced(epoch int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, u := range f.updates {
		if u.Update == "synced" && u.Epoch >= epoch {
			return true
		}
	}
	return false
}

func TestPythonFollowsRealDaemons(t *testing.T) {
	t.Parallel()
	needPython(t)
	if testing.Short() {
		t.Skip("runs real daemons")
	}
	u := bringUp(t)
	f := follow(u)
	u.eventually("the follower has a snapshot", func() bool { return f.synced(1) })
	first := u.create("first")
	gone := u.create("to be archived")
	u.must("complete", "objective", gone)
	u.must("archive", "objective", gone)
	u.create("\x1b[31mred\x07")
	u.eventually("the follower shows what there is", func() bool { return f.shows(u.objectives()) })

	pid, err := strconv.Atoi(regexp.MustCompile(`coordinatord\s+pid (\d+)`).FindStringSubmatch(u.said())[1])
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	// Made while none serves: it goes on trying, under one OperationId.
	stdout, stderr, code := runPython(t, "work.py", "--context", u.context(), "--timeout", "120", "create", "--title", "made in between")
	require.Zero(t, code, "%s", stderr)
	var made struct {
		OperationID string `json:"operation_id"`
		State       string
	}
	require.NoError(t, json.Unmarshal([]byte(stdout), &made))
	require.Equal(t, "SUCCEEDED", made.State)
	u.must("update", "objective", first, "--title", "first, and changed")
	u.eventually("the follower has healed", func() bool { return f.synced(2) && f.shows(u.objectives()) })

	stdout, _, code = runPython(t, "work.py", "--context", u.context(), "lookup", made.OperationID)
	require.Zero(t, code)
	require.Contains(t, stdout, `"state": "SUCCEEDED"`)
	text, _, code := runPython(t, "follow.py", "--context", u.context(), "--until", "\x1b[31mred\x07")
	require.Zero(t, code)
	require.Contains(t, text, "\ufffd[31mred\ufffd")
	require.NotContains(t, text, "\x1b")

	require.NoError(t, f.cmd.Process.Signal(syscall.SIGTERM))
	<-f.ended
	require.NoError(t, f.cmd.Wait())
	require.Empty(t, f.fault)
	seed, err := os.ReadFile(filepath.Join(u.state, "s", "client", "client.ed25519"))
	require.NoError(t, err)
	for _, shown := range []string{f.raw.String(), stdout, stderr, text} {
		require.NotContains(t, shown, hex.EncodeToString(seed))
	}
}
