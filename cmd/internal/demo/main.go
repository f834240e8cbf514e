// Demo shows the product's main job from nothing, with the real binaries: it brings up a
// throwaway coordinator and witness, makes durable work, kills the coordinator with
// SIGKILL, and shows that the same records come back under a higher authority.
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
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

func main() {
	bin := flag.String("bin", "bin", "directory of coordctl, coordinatord and witnessd")
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
	up    *supervisor
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
	d.say("1. One command brings up a witness and a coordinator, as separate processes.")
	if err := d.bringUp(); err != nil {
		return err
	}

	d.say("2. A paired client makes durable work. Each command is one operation with one result.")
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

	d.say("3. A verified snapshot: order, totals and SHA-256 digest are checked by the client.")
	before, after := filepath.Join(dir, "before.snapshot"), filepath.Join(dir, "after.snapshot")
	if _, err := d.do("snapshot", "save", before); err != nil {
		return err
	}
	old, err := d.status()
	if err != nil {
		return err
	}

	d.say("4. The coordinator is killed with SIGKILL. Its lease must run out before anyone may act again.")
	if err := d.kill(); err != nil {
		return err
	}
	renewed, err := d.wait(old.Epoch)
	if err != nil {
		return err
	}

	d.say("5. The same records, byte for byte, under epoch %d instead of %d.", renewed.Epoch, old.Epoch)
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

// A supervisor is a running `coordctl up`.
type supervisor struct {
	cmd   *exec.Cmd
	ready chan struct{} // closed at the line that begins with ready
	done  chan struct{} // closed once it has ended
	err   error         // set before done is closed
	once  sync.Once
}

func (d *demo) bringUp() error {
	fmt.Println("$ coordctl up --state", d.state, "--lease 6")
	cmd := exec.Command(d.ctl, "up", "--state", d.state, "--lease", "6")
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	cmd.Stderr = cmd.Stdout // one stream, in order
	// Its own group: Ctrl-C at the terminal reaches the demo, which stops it in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	s := &supervisor{cmd: cmd, ready: make(chan struct{}), done: make(chan struct{})}
	d.up = s
	go func() {
		defer close(s.done)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			fmt.Println("  up|", lines.Text())
			if strings.HasPrefix(lines.Text(), "ready") {
				s.once.Do(func() { close(s.ready) })
			}
		}
		s.err = cmd.Wait()
	}()
	select {
	case <-s.ready:
		return nil
	case <-s.done:
		return fmt.Errorf("coordctl up ended: %v", s.err)
	case <-time.After(40 * time.Second):
		return errors.New("coordctl up was not ready within 40 s")
	}
}

func (s *supervisor) ended() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// down stops what bringUp started, in order, and waits for it.
func (d *demo) down() error {
	if d.up == nil || d.up.ended() {
		return nil
	}
	d.say("Ctrl-C stops the coordinator, then the witness.")
	if err := d.up.cmd.Process.Signal(os.Interrupt); err != nil {
		return err
	}
	select {
	case <-d.up.done:
		if d.up.err != nil {
			return fmt.Errorf("coordctl up: %w", d.up.err)
		}
		return nil
	case <-time.After(15 * time.Second):
		return errors.Join(errors.New("coordctl up did not stop within 15 s"), d.up.cmd.Process.Kill())
	}
}
