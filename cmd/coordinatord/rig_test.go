package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
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
	"go.uber.org/goleak"

	"coordinator/client"
	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/durable"
)

// The programs under test, built once with fail points.
var coordinatord, witnessd, ownerd string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "cd")
	if err != nil {
		panic(err)
	}
	coordinatord, witnessd, ownerd = filepath.Join(dir, "coordinatord"), filepath.Join(dir, "witnessd"), filepath.Join(dir, "ownerd")
	out, err := exec.Command("go", "build", "-tags", "failpoint", "-o", dir, ".", "../witnessd", "../ownerd").CombinedOutput()
	if err != nil {
		fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		os.RemoveAll(dir)
		os.Exit(code)
	}))
}

// waitFor bounds what a test waits for; nothing is expected to take that long.
const waitFor = 180 * time.Second

// run runs a program to its end.
func run(t *testing.T, program string, args ...string) (code int, out, errs string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitFor)
	defer cancel()
	var o, e bytes.Buffer
	c := exec.CommandContext(ctx, program, args...)
	c.Stdout, c.Stderr = &o, &e
	if err := c.Run(); err != nil {
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit)
	}
	require.NotContains(t, e.String(), "goroutine ", "a stack trace")
	return c.ProcessState.ExitCode(), o.String(), e.String()
}

// ok runs a program that must succeed.
func ok(t *testing.T, program string, args ...string) string {
	t.Helper()
	code, out, errs := run(t, program, args...)
	require.Equal(t, 0, code, errs)
	return out
}

// rig is a whole state directory: a running witness and a made coordinator.
type rig struct {
	t       *testing.T
	root    string
	dir     string // of the coordinator
	report  initReport
	ctx     *client.Context
	witness *process
}

const lease = 6 // seconds: the shortest

func newRig(t *testing.T) *rig {
	t.Helper()
	root, err := os.MkdirTemp("", "rig")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(root) })
	r := &rig{t: t, root: root, dir: filepath.Join(root, "c")}
	var w struct {
		WitnessID string `json:"witness_id"`
		PublicKey string `json:"public_key"`
		Authority string `json:"authority"`
		Socket    string `json:"socket"`
	}
	wdir := filepath.Join(root, "w")
	require.NoError(t, json.Unmarshal([]byte(ok(t, witnessd, "init", "--state", wdir, "-o", "json")), &w))
	require.NoError(t, json.Unmarshal([]byte(ok(t, coordinatord, "init", "--state", r.dir, "--witness-socket", w.Socket,
		"--witness-authority", w.Authority, "--witness-id", w.WitnessID, "--lease-secs", strconv.Itoa(lease), "-o", "json")), &r.report))
	ok(t, witnessd, "keys", "--state", wdir, "add", "--coordinator", r.report.CoordinatorID, r.report.LinkPublicKey)
	cdir := filepath.Join(root, "k")
	require.NoError(t, durable.MkdirPrivate(cdir))
	key, err := handshake.CreateKey(filepath.Join(cdir, "client.ed25519"), rand.Reader)
	require.NoError(t, err)
	ok(t, coordinatord, "keys", "--state", r.dir, "add", "--label", "tester", handshake.FormatPublicKey(key.Public()))
	r.ctx = &client.Context{Name: "test", Socket: r.report.Socket, KeyFile: filepath.Join(cdir, "client.ed25519")}
	r.ctx.CoordinatorID, err = frames.ParseID[frames.CoordinatorID](r.report.CoordinatorID)
	require.NoError(t, err)
	r.ctx.Authority, err = handshake.ParseFingerprint(r.report.Authority)
	require.NoError(t, err)
	r.ctx.WitnessID, err = frames.ParseID[frames.WitnessID](w.WitnessID)
	require.NoError(t, err)
	r.ctx.WitnessPublicKey, err = handshake.ParsePublicKey(w.PublicKey)
	require.NoError(t, err)
	file := filepath.Join(cdir, "context.toml")
	require.NoError(t, r.ctx.Save(file))
	r.ctx, err = client.LoadContext(file)
	require.NoError(t, err)
	r.witness = launch(t, nil, witnessd, "serve", "--state", wdir)
	r.witness.ready()
	return r
}

// serve starts a coordinator on the rig's directory without waiting.
func (r *rig) serve(env ...string) *process {
	r.t.Helper()
	return launch(r.t, env, coordinatord, "serve", "--state", r.dir)
}

// connect dials with a verified snapshot behind it.
func (r *rig) connect() *client.Conn {
	r.t.Helper()
	c, err := client.Dial(r.t.Context(), r.ctx, client.Options{Offered: frames.CapAdministration})
	require.NoError(r.t, err)
	r.t.Cleanup(func() { c.Close() })
	s, err := c.Snapshot(r.t.Context())
	require.NoError(r.t, err)
	require.NoError(r.t, s.Close())
	return c
}

// create is the command that makes an objective under a fresh operation id.
func create(t *testing.T) (client.Command, frames.ObjectiveID) {
	t.Helper()
	op, err := frames.NewID[frames.OperationID](rand.Reader)
	require.NoError(t, err)
	id, err := frames.NewID[frames.ObjectiveID](rand.Reader)
	require.NoError(t, err)
	cmd, err := client.NewCommand(op, frames.CommandCreateObjective, &frames.CreateObjective{ObjectiveID: id, Schema: 1, Document: []byte("{}")})
	require.NoError(t, err)
	return cmd, id
}

// process is a running daemon.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	exited chan struct{}

	mu    sync.Mutex
	lines []string // guarded by mu: stdout and stderr
	more  chan struct{}
}

func launch(t *testing.T, env []string, program string, args ...string) *process {
	t.Helper()
	return launchIn(t, nil, env, program, args...)
}

// launchIn is launch with attributes of the process, nil for none.
func launchIn(t *testing.T, attr *syscall.SysProcAttr, env []string, program string, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(program, args...), exited: make(chan struct{}), more: make(chan struct{}, 1)}
	p.cmd.SysProcAttr = attr
	p.cmd.Env = append(os.Environ(), env...)
	read, write, err := os.Pipe()
	require.NoError(t, err)
	p.cmd.Stdout, p.cmd.Stderr = write, write
	require.NoError(t, p.cmd.Start())
	write.Close()
	var reading sync.WaitGroup
	reading.Go(func() {
		defer read.Close()
		in := bufio.NewScanner(read)
		for in.Scan() {
			p.mu.Lock()
			p.lines = append(p.lines, in.Text())
			p.mu.Unlock()
			select {
			case p.more <- struct{}{}:
			default:
			}
		}
	})
	go func() {
		reading.Wait() // ends when the process, and all it started, have closed the pipe
		p.cmd.Wait()   //nolint:errcheck // the state says it
		close(p.exited)
	}()
	t.Cleanup(func() {
		p.signal(syscall.SIGKILL)
		p.signal(syscall.SIGCONT)
		<-p.exited
		if t.Failed() {
			t.Logf("%s:\n%s", filepath.Base(program), p.output())
		}
	})
	return p
}

func (p *process) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.lines, "\n")
}

func (p *process) signal(s syscall.Signal) {
	select {
	case <-p.exited:
	default:
		p.cmd.Process.Signal(s) //nolint:errcheck // it may have exited meanwhile
	}
}

// says waits for a line with this prefix.
func (p *process) says(prefix string) string {
	p.t.Helper()
	deadline := time.NewTimer(waitFor)
	defer deadline.Stop()
	for {
		p.mu.Lock()
		for _, l := range p.lines {
			if strings.HasPrefix(l, prefix) {
				p.mu.Unlock()
				return l
			}
		}
		p.mu.Unlock()
		select {
		case <-p.more:
		case <-p.exited:
			if !strings.Contains("\n"+p.output(), "\n"+prefix) {
				p.t.Fatalf("the process ended (%v) without saying %q:\n%s", p.cmd.ProcessState, prefix, p.output())
			}
		case <-deadline.C:
			p.t.Fatalf("no line %q:\n%s", prefix, p.output())
		}
	}
}

// ready waits until the daemon serves.
func (p *process) ready() string { p.t.Helper(); return p.says("ready") }

var readyLine = regexp.MustCompile(`epoch (\d+) activation (\d+)`)

// authority waits until a coordinator serves and returns its epoch and activation.
func (p *process) authority() (epoch, activation int) {
	p.t.Helper()
	m := readyLine.FindStringSubmatch(p.ready())
	require.Len(p.t, m, 3)
	epoch, _ = strconv.Atoi(m[1])
	activation, _ = strconv.Atoi(m[2])
	return epoch, activation
}

// ends waits for the process and returns its exit code; -1 after a signal.
func (p *process) ends() int {
	p.t.Helper()
	select {
	case <-p.exited:
	case <-time.After(waitFor):
		p.t.Fatalf("still running:\n%s", p.output())
	}
	require.NotContains(p.t, p.output(), "goroutine ", "a stack trace")
	return p.cmd.ProcessState.ExitCode()
}

// stop asks for a graceful stop.
func (p *process) stop() int {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	return p.ends()
}

// kill is a crash.
func (p *process) kill() {
	p.t.Helper()
	p.signal(syscall.SIGKILL)
	<-p.exited
}

// refusedWith reports whether err is a refusal with this code.
func refusedWith(err error, code frames.Code) bool {
	var r *client.RefusedError
	return errors.As(err, &r) && r.Code == code
}
