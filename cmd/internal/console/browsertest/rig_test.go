package browsertest

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/client"
	"coordinator/cmd/internal/runs"
	"coordinator/codec"
	"coordinator/frames"
	"coordinator/owner"
)

// programs are built once.
var programs struct {
	once sync.Once
	dir  string
	err  error
}

func built(t *testing.T) string {
	programs.once.Do(func() {
		if programs.dir, programs.err = os.MkdirTemp("", "console-bin"); programs.err != nil {
			return
		}
		out, err := exec.Command("go", "build", "-o", programs.dir, "coordinator/cmd/coordctl", "coordinator/cmd/coordinatord", "coordinator/cmd/witnessd", "coordinator/cmd/ownerd").CombinedOutput()
		if err != nil {
			programs.err = fmt.Errorf("%w: %s", err, out)
		}
	})
	require.NoError(t, programs.err)
	return programs.dir
}

// A house is a running `coordctl up`: a witness, a coordinator and an owner.
type house struct {
	t       *testing.T
	bin     string
	state   string
	up      *process
	session *client.Session
}

// A process is a program of ours under way.
type process struct {
	cmd         *exec.Cmd
	out, errout *safeBuffer
	done        chan struct{} // closed once it has ended
}

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

// begin starts a program, which is ended with the test at the latest.
func begin(t *testing.T, path string, args ...string) *process {
	p := &process{cmd: exec.Command(path, args...), out: &safeBuffer{}, errout: &safeBuffer{}, done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.errout
	require.NoError(t, p.cmd.Start())
	go func() { defer close(p.done); p.cmd.Wait() }() //nolint:errcheck // what it says is looked at
	t.Cleanup(func() {
		p.stop(t)
		if t.Failed() {
			t.Logf("%s %s said:\n%s%s", filepath.Base(path), strings.Join(args, " "), p.out, p.errout)
		}
	})
	return p
}

// stop interrupts it and waits for its end.
func (p *process) stop(t *testing.T) {
	p.cmd.Process.Signal(os.Interrupt) //nolint:errcheck // it may have ended
	select {
	case <-p.done:
	case <-time.After(patience):
		p.cmd.Process.Kill() //nolint:errcheck // it may have ended
		<-p.done
		t.Error("a process did not end when it was asked to")
	}
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

func newHouse(t *testing.T) *house {
	started(t) // or skip
	h := &house{t: t, bin: built(t), state: filepath.Join(t.TempDir(), "s")}
	h.up = begin(t, filepath.Join(h.bin, "coordctl"), "up", "--state", h.state, "--lease", "6")
	eventually(t, "up serves", func() bool { return strings.Contains(h.up.out.String(), "\nready") || h.up.ended() })
	require.False(t, h.up.ended(), "up ended before it served")
	return h
}

func (h *house) context() string { return filepath.Join(h.state, "client", "context.toml") }

// pid is the process id of a daemon, as the latest line that names it says.
func (h *house) pid(name string) int {
	h.t.Helper()
	all := regexp.MustCompile(name+`.*?pid (\d+)`).FindAllStringSubmatch(h.up.out.String()+h.up.errout.String(), -1)
	require.NotEmpty(h.t, all, name)
	n, err := strconv.Atoi(all[len(all)-1][1])
	require.NoError(h.t, err)
	return n
}

// signal sends a signal to a daemon.
func (h *house) signal(name string, s syscall.Signal) {
	h.t.Helper()
	require.NoError(h.t, syscall.Kill(h.pid(name), s))
}

// ctl runs coordctl and gives what it printed.
func (h *house) ctl(args ...string) string {
	h.t.Helper()
	var out, errout bytes.Buffer
	cmd := exec.Command(filepath.Join(h.bin, "coordctl"), append([]string{"--context", h.context()}, args...)...)
	cmd.Stdout, cmd.Stderr = &out, &errout
	require.NoError(h.t, cmd.Run(), "%v: %s%s", args, &out, &errout)
	return out.String()
}

// A served is a running `coordctl console`.
type served struct {
	*process
	url string // with the token
}

func (s *served) base() string { return s.url[:strings.Index(s.url, "/?")] }

// console serves the console of a house on a port of its own, or at listen.
func (h *house) console(listen string) *served {
	h.t.Helper()
	if listen == "" {
		listen = "127.0.0.1:0"
	}
	s := &served{process: begin(h.t, filepath.Join(h.bin, "coordctl"), "--context", h.context(), "console", "--no-browser", "--listen", listen)}
	address := regexp.MustCompile(`http://\S+`)
	eventually(h.t, "the console tells its address", func() bool {
		s.url = address.FindString(s.out.String())
		return s.url != "" || s.ended()
	})
	require.NotEmpty(h.t, s.url, s.errout.String())
	return s
}

// opened is a page of a console of this house, let in and current.
func (h *house) opened() *tab {
	h.t.Helper()
	b := newPerson(h.t).open(h.console("").url)
	b.until("the page is current", `document.querySelector("[data-belief=yes]")`)
	return b
}

// worker is a session of this house's client.
func (h *house) worker() *client.Session {
	if h.session == nil {
		c, err := client.LoadContext(h.context())
		require.NoError(h.t, err)
		h.session, err = client.OpenSession(c, client.SessionOptions{Options: client.Options{Name: "browsertest",
			Offered: frames.CapTerminalBindings | frames.CapArtifactManifests | frames.CapSignals | frames.CapObjectiveLifecycle, Scope: frames.AllScopes}})
		require.NoError(h.t, err)
		h.t.Cleanup(func() { h.session.Close() }) //nolint:errcheck // its coordinator may have gone
	}
	return h.session
}

func newID[T ~[16]byte](t *testing.T) T {
	id, err := frames.NewID[T](rand.Reader)
	require.NoError(t, err)
	return id
}

// do commands, and waits for the end of what it began.
func (h *house) do(kind frames.CommandKind, body codec.Message) frames.OperationResult {
	h.t.Helper()
	op := newID[frames.OperationID](h.t)
	cmd, err := client.NewCommand(op, kind, body)
	require.NoError(h.t, err)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, err := h.worker().Do(ctx, cmd)
	require.NoError(h.t, err)
	return r
}

// objective makes an objective of that title, whatever it is.
func (h *house) objective(title string) frames.ObjectiveID {
	h.t.Helper()
	id := newID[frames.ObjectiveID](h.t)
	document, err := json.Marshal(map[string]string{"title": title, "why": "to be looked at"})
	require.NoError(h.t, err)
	r := h.do(frames.CommandCreateObjective, &frames.CreateObjective{ObjectiveID: id, Schema: 1, Document: document})
	require.Equal(h.t, frames.OperationSucceeded, r.State)
	return id
}

// place is where the owner of the house starts processes.
func (h *house) place(s *frames.StartRun) {
	h.t.Helper()
	c, err := client.LoadContext(h.context())
	require.NoError(h.t, err)
	key, err := c.Signer()
	require.NoError(h.t, err)
	o, err := c.FindOwner("")
	require.NoError(h.t, err)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	link, err := runs.DialOwner(ctx, c, key, o, "browsertest")
	require.NoError(h.t, err)
	s.Owner, s.OwnerIncarnation, s.Group = o.Authority, link.Incarnation(), link.Groups()[0]
	require.NoError(h.t, link.Close())
}

// start begins a run of a command and gives its id once it is admitted.
func (h *house) start(objective frames.ObjectiveID, argv ...string) frames.RunID {
	h.t.Helper()
	s := h.newRun(objective, argv...)
	h.place(s)
	h.do(frames.CommandStartRun, s)
	return s.RunID
}

// newRun is the command that starts a run, but for where.
func (h *house) newRun(objective frames.ObjectiveID, argv ...string) *frames.StartRun {
	h.t.Helper()
	document, err := (&owner.Document{Argv: argv, Cwd: "/"}).Encode()
	require.NoError(h.t, err)
	return &frames.StartRun{ObjectiveID: objective, RunID: newID[frames.RunID](h.t), WorkSessionID: newID[frames.WorkSessionID](h.t),
		ExecutorSchema: owner.ExecutorSchema, ExecutorDocument: document, PendingBindingID: newID[frames.PendingBindingID](h.t)}
}
