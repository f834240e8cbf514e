//go:build linux

package hosts

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/internal/netlab"
)

// waitFor bounds what a test waits for; nothing is expected to take that long.
const waitFor = 60 * time.Second

// Leases of the systems under test, in seconds: what must run out is short, and what must not
// leaves room for a busy machine.
const (
	shortLease = 10
	longLease  = 20
)

// binDir holds the programs, built once.
var binDir string

func TestMain(m *testing.M) {
	if path := os.Getenv(clientContext); path != "" {
		os.Exit(beClient(path, os.Getenv(clientDoes)))
	}
	os.Exit(testMain(m))
}

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "hosts")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	binDir = dir
	c := exec.Command("go", "build", "-o", dir, "../coordctl", "../coordinatord", "../ownerd", "../witnessd")
	if out, err := c.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// A system is a witness, a coordinator, an owner and a user, each on a host of its own.
type system struct {
	t     *testing.T
	lab   *netlab.Lab
	root  string
	lease int // seconds

	witness, coordinator, worker, user *netlab.Host
	daemons                            map[string]*daemon

	witnessPins struct {
		ID  string `json:"witness_id"`
		Key string `json:"public_key"`
		Pin string `json:"authority"`
	}
	made struct {
		ID   string `json:"coordinator_id"`
		Pin  string `json:"authority"`
		Link string `json:"link_public_key"`
	}
	ownerPin string
	context  string
}

// newSystem makes one on a wire and starts it.
func newSystem(t *testing.T, lease int, o netlab.Options) *system {
	t.Helper()
	if testing.Short() {
		t.Skip("runs real daemons")
	}
	s := &system{t: t, lab: netlab.New(t, o), lease: lease, daemons: make(map[string]*daemon)}
	root, err := os.MkdirTemp("", "sys") // short, for socket paths
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(root) })
	s.root = root
	s.witness, s.coordinator = s.lab.Host("witness"), s.lab.Host("coordinator")
	s.worker, s.user = s.lab.Host("worker"), s.lab.Host("user")
	s.names()
	s.init()
	s.start("witnessd")
	s.start("ownerd")
	s.start("coordinatord")
	return s
}

func (s *system) dir(name string) string { return filepath.Join(s.root, name) }

// at is where a daemon is dialled: by the name of its host.
func at(h *netlab.Host, port int) string { return fmt.Sprintf("%s:%d", h.Name, port) }

// names lets every host that dials find the others under their names.
func (s *system) names() {
	names := make(map[string]netip.Addr)
	for _, h := range []*netlab.Host{s.witness, s.coordinator, s.worker} {
		names[h.Name] = h.Addr
	}
	for _, h := range []*netlab.Host{s.coordinator, s.worker, s.user} {
		h.Names(names)
	}
}

// init makes keys and pins, as docs/hosts.md says.
func (s *system) init() {
	s.report(&s.witnessPins, "witnessd", "init", "--state", s.dir("w"), "--quic", "0.0.0.0:7741", "-o", "json")
	s.report(&s.made, "coordinatord", "init", "--state", s.dir("c"), "--quic", "0.0.0.0:7740",
		"--witness-quic", at(s.witness, 7741), "--witness-authority", s.witnessPins.Pin, "--witness-id", s.witnessPins.ID,
		"--lease-secs", fmt.Sprint(s.lease), "-o", "json")
	var owner struct{ Authority string }
	s.report(&owner, "ownerd", "init", "--state", s.dir("o"), "--quic", "0.0.0.0:7742",
		"--witness-id", s.witnessPins.ID, "--witness-public-key", s.witnessPins.Key, "-o", "json")
	s.ownerPin = owner.Authority
	s.enrolLink(s.made.Link)
	s.configure("c/coordinator.toml", fmt.Sprintf("\n[[owner]]\nname = \"far\"\nquic = %q\nauthority = %q\n", at(s.worker, 7742), s.ownerPin))
	for name, port := range map[string]int{"w/witness.toml": 9465, "c/coordinator.toml": 9464, "o/owner.toml": 9466} {
		s.configure(name, fmt.Sprintf("\n[metrics]\nlisten = \"127.0.0.1:%d\"\n", port))
	}
	s.context = s.client("user")
}

// client makes a client: a key that is let in, and what it needs to know. It gives the
// context file.
func (s *system) client(name string) string {
	s.t.Helper()
	dir := s.dir(name)
	require.NoError(s.t, os.Mkdir(dir, 0o700))
	key := strings.TrimSpace(s.run("coordctl", "keygen", "--out", filepath.Join(dir, "client.ed25519")))
	s.run("coordinatord", "keys", "--state", s.dir("c"), "add", "--label", name, key)
	s.run("ownerd", "keys", "--state", s.dir("o"), "add", "--coordinator", s.made.ID, "--scope", "output", "--label", name, key)
	context := filepath.Join(dir, "context.toml")
	require.NoError(s.t, os.WriteFile(context, fmt.Appendf(nil, `quic = %q
coordinator_id = %q
authority = %q
witness_id = %q
witness_public_key = %q
key_file = "client.ed25519"
[[owner]]
name = "far"
quic = %q
authority = %q
`, at(s.coordinator, 7740), s.made.ID, s.made.Pin, s.witnessPins.ID, s.witnessPins.Key, at(s.worker, 7742), s.ownerPin), 0o600))
	return context
}

// enrolLink lets the coordinator's link key in at the witness and the owner.
func (s *system) enrolLink(key string) {
	s.t.Helper()
	s.run("witnessd", "keys", "--state", s.dir("w"), "add", "--coordinator", s.made.ID, key)
	s.run("ownerd", "keys", "--state", s.dir("o"), "add", "--coordinator", s.made.ID, "--scope", "effects,facts", key)
}

// configure appends to a configuration file.
func (s *system) configure(name, text string) {
	s.t.Helper()
	f, err := os.OpenFile(s.dir(name), os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(s.t, err)
	_, err = f.WriteString(text)
	require.NoError(s.t, err)
	require.NoError(s.t, f.Close())
}

// run runs a program that needs no network to a good end.
func (s *system) run(program string, args ...string) string {
	s.t.Helper()
	c := exec.Command(filepath.Join(binDir, program), args...)
	var errs bytes.Buffer
	c.Stderr = &errs
	out, err := c.Output()
	require.NoError(s.t, err, "%s %s: %s", program, args, errs.String())
	return string(out)
}

func (s *system) report(into any, program string, args ...string) {
	s.t.Helper()
	require.NoError(s.t, json.Unmarshal([]byte(s.run(program, args...)), into))
}

// A ran is a command that has ended.
type ran struct {
	code      int
	out, errs string
}

// ctl runs coordctl on the user's host.
func (s *system) ctl(args ...string) ran {
	s.t.Helper()
	r, err := s.tryCtl(args...)
	require.NoError(s.t, err)
	return r
}

// tryCtl is ctl for goroutines other than the test's.
func (s *system) tryCtl(args ...string) (ran, error) {
	c := s.user.Command(filepath.Join(binDir, "coordctl"), append([]string{"--context", s.context}, args...)...)
	c.Dir = s.root
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	err := c.Run()
	if errors.As(err, new(*exec.ExitError)) {
		err = nil
	}
	if err != nil {
		return ran{}, err
	}
	return ran{c.ProcessState.ExitCode(), out.String(), errs.String()}, nil
}

// places are where each daemon runs and what it serves.
func (s *system) places(program string) (h *netlab.Host, dir string, metrics int) {
	switch program {
	case "witnessd":
		return s.witness, s.dir("w"), 9465
	case "coordinatord":
		return s.coordinator, s.dir("c"), 9464
	default:
		return s.worker, s.dir("o"), 9466
	}
}

// start starts a daemon and waits until it serves. What a supervisor does, this does: a
// daemon that ends with a code for which another start may help is started again.
func (s *system) start(program string) *daemon {
	s.t.Helper()
	deadline := time.Now().Add(waitFor)
	for {
		d := s.launch(program)
		if d.ready() {
			return d
		}
		require.True(s.t, time.Now().Before(deadline), "%s does not start", program)
	}
}

// tend starts a coordinator again that has ended by itself, as its supervisor does. It does
// not wait for it.
func (s *system) tend() {
	s.t.Helper()
	select {
	case <-s.daemons["coordinatord"].exited:
		s.launch("coordinatord")
	default:
	}
}

// launch starts a daemon on its host.
func (s *system) launch(program string) *daemon {
	s.t.Helper()
	h, dir, _ := s.places(program)
	d := &daemon{t: s.t, cmd: h.Command(filepath.Join(binDir, program), "serve", "--state", dir), exited: make(chan struct{}), more: make(chan struct{}, 1)}
	read, write, err := os.Pipe()
	require.NoError(s.t, err)
	d.cmd.Stdout, d.cmd.Stderr = write, write
	require.NoError(s.t, d.cmd.Start())
	write.Close()
	go d.read(read)
	s.daemons[program] = d
	s.t.Cleanup(func() {
		d.cmd.Process.Kill() //nolint:errcheck // it may have ended
		<-d.exited
		if s.t.Failed() {
			s.t.Logf("%s:\n%s", program, d.output())
		}
	})
	return d
}

// probe is the status code and the text of a probe of a daemon, asked on its own host.
func (s *system) probe(program, path string) (code int, text string) {
	h, _, port := s.places(program)
	const get = `exec 3<>"/dev/tcp/127.0.0.1/$0"; printf 'GET %s HTTP/1.0\r\n\r\n' "$1" >&3; cat <&3`
	out, err := h.Command("bash", "-c", get, fmt.Sprint(port), path).Output()
	if err != nil {
		return 0, ""
	}
	head, body, _ := strings.Cut(string(out), "\r\n\r\n")
	if _, err := fmt.Sscanf(head, "HTTP/1.%d %d", new(int), &code); err != nil {
		return 0, head
	}
	return code, strings.TrimSpace(body)
}

// metric is the value of one series of a daemon, as it prints it; "" when it is not there.
func (s *system) metric(program, series string) string {
	_, text := s.probe(program, "/metrics")
	for line := range strings.Lines(text) {
		if value, is := strings.CutPrefix(strings.TrimSpace(line), series+" "); is {
			return value
		}
	}
	return ""
}

// A daemon is a running process of one.
type daemon struct {
	t      *testing.T
	cmd    *exec.Cmd
	exited chan struct{}

	mu    sync.Mutex
	lines []string // guarded by mu
	more  chan struct{}
}

func (d *daemon) read(from io.ReadCloser) {
	defer close(d.exited)
	defer from.Close()
	in := bufio.NewScanner(from)
	for in.Scan() {
		d.mu.Lock()
		d.lines = append(d.lines, in.Text())
		d.mu.Unlock()
		select {
		case d.more <- struct{}{}:
		default:
		}
	}
	d.cmd.Wait() //nolint:errcheck // the state says it
}

func (d *daemon) output() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return strings.Join(d.lines, "\n")
}

// ready waits until the daemon serves; false says that it ended before.
func (d *daemon) ready() bool { return d.says("\nready") }

// says waits until the daemon's output has this text; false says that it ended without.
func (d *daemon) says(text string) bool {
	d.t.Helper()
	deadline := time.NewTimer(waitFor)
	defer deadline.Stop()
	for {
		if strings.Contains("\n"+d.output(), text) {
			return true
		}
		select {
		case <-d.more:
		case <-d.exited:
			return strings.Contains("\n"+d.output(), text)
		case <-deadline.C:
			d.t.Fatalf("it does not say %q:\n%s", text, d.output())
		}
	}
}

// ends waits for the daemon's end and gives its exit code.
func (d *daemon) ends() int {
	d.t.Helper()
	select {
	case <-d.exited:
		return d.cmd.ProcessState.ExitCode()
	case <-time.After(waitFor):
		d.t.Fatalf("it does not end:\n%s", d.output())
		return 0
	}
}

// stop is SIGTERM and a good end.
func (d *daemon) stop() {
	d.t.Helper()
	require.NoError(d.t, d.cmd.Process.Signal(syscall.SIGTERM))
	require.Zero(d.t, d.ends(), "%s", d.output())
}

// kill is SIGKILL.
func (d *daemon) kill() {
	d.t.Helper()
	require.NoError(d.t, d.cmd.Process.Kill())
	d.ends()
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(waitFor); !cond(); {
		if time.Now().After(deadline) {
			t.Fatalf("it never came about that %s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
