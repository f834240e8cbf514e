// Demo shows the product's main job from nothing, with the real binaries: it brings up a
// throwaway coordinator and witness, follows events live over QUIC, makes durable work,
// kills the coordinator with SIGKILL, and shows that the same records come back under a
// higher authority while the follower says what it missed and heals. Then it runs a real
// build as a Run, kills the coordinator in the middle of it, and verifies the evidence.
//
// It only runs commands that a user could type, prints each of them, and fails at the
// first that does not do what it says.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

func main() {
	bin := flag.String("bin", "bin", "directory of coordctl, coordinatord, witnessd and ownerd")
	flag.Parse()
	if err := run(*bin); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// A demo is one run.
type demo struct {
	ctl   string // path of coordctl
	state string
	began time.Time
	up    *process // coordctl up
	watch *process // coordctl watch, over QUIC
	job   *process // coordctl run
}

func run(bin string) (err error) {
	ctl, err := filepath.Abs(filepath.Join(bin, "coordctl"))
	if err != nil {
		return err
	}
	// Short, because a Unix socket path has room for 107 bytes.
	dir, err := os.MkdirTemp("", "coord-demo-")
	if err != nil {
		return err
	}
	d := &demo{ctl: ctl, state: filepath.Join(dir, "state"), began: time.Now()}
	defer func() {
		err = errors.Join(err, d.down(), os.RemoveAll(dir))
		if err == nil {
			d.say("Nothing is left behind. Done in %.0f s.", time.Since(d.began).Seconds())
		}
	}()
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-interrupted
		_ = errors.Join(d.down(), os.RemoveAll(dir))
		os.Exit(130)
	}()
	return d.story(dir)
}

func (d *demo) story(dir string) error {
	d.say("1. One command brings up a witness, a process owner and a coordinator, as separate processes.")
	if err := d.bringUp(); err != nil {
		return err
	}

	d.say("2. A second client follows every change live, over QUIC.")
	if err := d.follow(); err != nil {
		return err
	}

	d.say("3. A paired client makes durable work. Each command is one operation with one result.")
	ship, err := d.create("Ship the release")
	if err != nil {
		return err
	}
	docs, err := d.create("Write the manual")
	if err != nil {
		return err
	}
	if _, err := d.do("create", "objective", "--title", "Answer the mail"); err != nil {
		return err
	}
	if _, err := d.do("update", "objective", ship[:8], "--title", "Ship release 1.0"); err != nil {
		return err
	}
	if _, err := d.do("complete", "objective", docs[:8]); err != nil {
		return err
	}
	if _, err := d.do("get", "objective"); err != nil {
		return err
	}
	if err := d.killAndCompare(dir); err != nil {
		return err
	}

	d.say("7. The follower said that it saw nothing for a while, healed, and goes on.")
	if err := d.watch.shows("healed"); err != nil {
		return err
	}
	world, err := d.create("Tell the world")
	if err != nil {
		return err
	}
	if err := d.watch.shows("Tell the world"); err != nil {
		return err
	}
	return d.build(dir, world)
}

// killAndCompare kills the coordinator and holds what comes back against what was there.
func (d *demo) killAndCompare(dir string) error {
	d.say("4. A verified snapshot: order, totals and SHA-256 digest are checked by the client.")
	before, after := filepath.Join(dir, "before.snapshot"), filepath.Join(dir, "after.snapshot")
	if _, err := d.do("snapshot", "save", before); err != nil {
		return err
	}
	old, err := d.status()
	if err != nil {
		return err
	}

	d.say("5. The coordinator is killed with SIGKILL. Its lease must run out before anyone may act again.")
	if err := d.kill(); err != nil {
		return err
	}
	renewed, err := d.wait(old.Epoch)
	if err != nil {
		return err
	}

	d.say("6. The same records, byte for byte, under epoch %d instead of %d.", renewed.Epoch, old.Epoch)
	for _, args := range [][]string{
		{"status"}, {"get", "objective"}, {"snapshot", "save", after}, {"snapshot", "diff", before, after},
	} {
		if _, err := d.do(args...); err != nil {
			return err
		}
	}
	if renewed.Epoch <= old.Epoch || renewed.Incarnation == old.Incarnation {
		return fmt.Errorf("the coordinator came back as epoch %d, incarnation %s, and not as a later one", renewed.Epoch, renewed.Incarnation)
	}
	return nil
}

// build runs a compiler under the owner daemon and kills the coordinator meanwhile.
func (d *demo) build(dir, objective string) error {
	d.say("8. A Run: a real build on a terminal of its own. The coordinator is killed in the middle of it.")
	source, err := os.Getwd()
	if err != nil {
		return err
	}
	old, err := d.status()
	if err != nil {
		return err
	}
	script := "echo building; go build -o " + filepath.Join(dir, "built") + " ./cmd/witnessd && echo built; " +
		"for n in 1 2 3 4 5 6 7 8; do sleep 1; echo checking $n of 8; done"
	args := d.args("run", "--objective", objective, "--cwd", source)
	for _, name := range []string{"PATH", "HOME", "GOCACHE", "GOPATH", "GOMODCACHE", "GOFLAGS", "GOPROXY"} {
		if v := os.Getenv(name); v != "" {
			args = append(args, "--env", name+"="+v)
		}
	}
	fmt.Printf("$ coordctl run --objective %s --cwd . --env PATH=… -- sh -c %q\n", objective[:8], script)
	if d.job, err = start("run| ", d.ctl, append(args, "--", "sh", "-c", "CGO_ENABLED=0; export CGO_ENABLED; "+script)...); err != nil {
		return err
	}
	if err := d.job.shows("checking 1"); err != nil {
		return err
	}
	if err := d.kill(); err != nil {
		return err
	}
	if _, err := d.wait(old.Epoch); err != nil {
		return err
	}
	select {
	case <-d.job.done:
	case <-time.After(40 * time.Second):
		return errors.New("the run did not end within 40 s")
	}
	if d.job.err != nil {
		return fmt.Errorf("coordctl run: %w", d.job.err)
	}

	d.say("9. It was started once, ran to its end, and the proof holds: seal, output digests, exit status.")
	run, err := d.only("run")
	if err != nil {
		return err
	}
	for _, args := range [][]string{{"get", "run"}, {"logs", run[:8]}, {"evidence", "verify", run[:8]}} {
		if _, err := d.do(args...); err != nil {
			return err
		}
	}
	return nil
}

// only gives the id of the one record of a kind.
func (d *demo) only(kind string) (string, error) {
	out, err := exec.Command(d.ctl, d.args("get", kind, "--output", "json")...).Output()
	if err != nil {
		return "", fmt.Errorf("get %s: %w", kind, err)
	}
	var records []struct {
		ID string `json:"id"`
	}
	if err := json.Unmarshal(out, &records); err != nil {
		return "", fmt.Errorf("get %s: %w", kind, err)
	}
	if len(records) != 1 || len(records[0].ID) != 32 {
		return "", fmt.Errorf("get %s: %d records where one was made", kind, len(records))
	}
	return records[0].ID, nil
}

// follow starts a watcher and waits for its first line.
func (d *demo) follow() (err error) {
	path := filepath.Join(d.state, "client", "context-quic.toml")
	fmt.Println("$ coordctl --context", path, "watch")
	if d.watch, err = start("watch| ", d.ctl, "--context", path, "watch"); err != nil {
		return err
	}
	return d.watch.shows("watching")
}

func (d *demo) create(title string) (id string, err error) {
	out, err := d.do("create", "objective", "--title", title, "--output", "json")
	if err != nil {
		return "", err
	}
	var made struct {
		ID string `json:"objective_id"`
	}
	if err := json.Unmarshal(out, &made); err != nil {
		return "", fmt.Errorf("create objective: %w", err)
	}
	if len(made.ID) != 32 {
		return "", fmt.Errorf("create objective printed id %q", made.ID)
	}
	return made.ID, nil
}

type status struct {
	Epoch       uint64 `json:"authority_epoch"`
	Incarnation string `json:"incarnation_id"`
}

// status asks without showing the command.
func (d *demo) status() (s status, err error) {
	out, err := exec.Command(d.ctl, d.args("status", "--output", "json", "--timeout", "3s")...).Output()
	if err != nil {
		return s, fmt.Errorf("status: %w", err)
	}
	return s, json.Unmarshal(out, &s)
}

// wait polls until a later epoch serves.
func (d *demo) wait(epoch uint64) (s status, err error) {
	for deadline := time.Now().Add(40 * time.Second); time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
		if s, err = d.status(); err == nil && s.Epoch > epoch {
			return s, nil
		}
		if d.up.ended() {
			return s, errors.New("coordctl up ended; its output is above")
		}
	}
	return s, fmt.Errorf("no coordinator above epoch %d within 40 s: %w", epoch, err)
}

// kill ends the coordinator without a warning. Its lock file holds its process id.
func (d *demo) kill() error {
	raw, err := os.ReadFile(filepath.Join(d.state, "coordinator", "store.lock"))
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(string(bytes.TrimSpace(raw)))
	if err != nil {
		return fmt.Errorf("store.lock: %w", err)
	}
	fmt.Printf("$ kill -KILL %d\n", pid)
	return syscall.Kill(pid, syscall.SIGKILL)
}

func (d *demo) args(args ...string) []string {
	return append([]string{"--context", filepath.Join(d.state, "client", "context.toml")}, args...)
}

// do runs one command of coordctl in view of the reader.
func (d *demo) do(args ...string) ([]byte, error) {
	shown := append([]string{"$ coordctl"}, args...)
	for i, s := range shown[1:] {
		if strings.ContainsAny(s, " \"") {
			shown[i+1] = strconv.Quote(s)
		}
	}
	cmd := exec.Command(d.ctl, d.args(args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	fmt.Printf("%s\n%s\n", strings.Join(shown, " "), out) // one write: the daemons print too
	if err != nil {
		return nil, fmt.Errorf("coordctl %s: %w", strings.Join(args, " "), err)
	}
	return out, nil
}

func (d *demo) say(format string, args ...any) { fmt.Printf("\n== "+format+"\n\n", args...) }

// A process is a running command whose output is shown line by line.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed once it has ended
	err  error         // set before done is closed

	mu    sync.Mutex
	lines []string // guarded by mu
}

// start runs a command in a process group of its own: Ctrl-C at the terminal reaches the
// demo, which stops everything in order.
func start(prefix, path string, args ...string) (*process, error) {
	cmd := exec.Command(path, args...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	cmd.Stderr = cmd.Stdout // one stream, in order
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			fmt.Printf("  %s%s\n", prefix, lines.Text())
			p.mu.Lock()
			p.lines = append(p.lines, lines.Text())
			p.mu.Unlock()
		}
		p.err = cmd.Wait()
	}()
	return p, nil
}

// shows waits for a line that contains what.
func (p *process) shows(what string) error {
	for deadline := time.Now().Add(40 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		p.mu.Lock()
		found := slices.ContainsFunc(p.lines, func(l string) bool { return strings.Contains(l, what) })
		p.mu.Unlock()
		if found {
			return nil
		}
		if p.ended() {
			return fmt.Errorf("%s ended before it showed %q: %v", filepath.Base(p.cmd.Path), what, p.err)
		}
	}
	return fmt.Errorf("%s did not show %q within 40 s", filepath.Base(p.cmd.Path), what)
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// stop interrupts the process and waits for its end.
func (p *process) stop() error {
	if p == nil || p.ended() {
		return nil
	}
	if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(15 * time.Second):
		return errors.Join(fmt.Errorf("%s did not stop within 15 s", filepath.Base(p.cmd.Path)), p.cmd.Process.Kill())
	}
}

func (d *demo) bringUp() (err error) {
	addr, err := freePort()
	if err != nil {
		return err
	}
	fmt.Println("$ coordctl up --state", d.state, "--lease 6 --quic", addr)
	if d.up, err = start("up| ", d.ctl, "up", "--state", d.state, "--lease", "6", "--quic", addr); err != nil {
		return err
	}
	return d.up.shows("ready: the coordinator serves")
}

// freePort is a UDP port of this machine that nobody uses now.
func freePort() (string, error) {
	c, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return c.LocalAddr().String(), c.Close()
}

// down stops what was started, in order, and waits for it.
func (d *demo) down() error {
	if d.up == nil || d.up.ended() {
		return errors.Join(d.job.stop(), d.watch.stop())
	}
	d.say("Ctrl-C stops the follower, the coordinator, the owner, then the witness.")
	return errors.Join(d.job.stop(), d.watch.stop(), d.up.stop(), d.up.err)
}
