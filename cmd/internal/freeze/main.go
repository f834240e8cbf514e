// Freeze makes the frozen files of this program: it brings up the daemons, has them work,
// stops and starts them in between, kills them, and packs their state directory together
// with what they said of it before they were killed. See package frozen.
//
// It is run once for a release: go run ./cmd/internal/freeze -bin bin -out DIR. A test runs
// it too.
package main

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"time"

	"coordinator/internal/frozen"
)

func main() {
	bin := flag.String("bin", "bin", "directory of coordctl, coordinatord, witnessd and ownerd")
	out := flag.String("out", "", "directory for release.tar.gz and release.json")
	flag.Parse()
	if err := freeze(*bin, *out); err != nil {
		fmt.Fprintln(os.Stderr, "freeze:", err)
		os.Exit(1)
	}
}

// startLimit bounds a start, which may wait for a lease.
const startLimit = 2 * time.Minute

// freeze makes both files in out.
func freeze(bin, out string) (err error) {
	root, err := os.MkdirTemp("", "fz") // short, for socket paths
	if err != nil {
		return err
	}
	h := &host{bin: bin, dir: filepath.Join(root, "s")}
	defer func() { err = errors.Join(err, h.kill(), os.RemoveAll(root)) }()
	if err := h.up("--lease", "6"); err != nil {
		return err
	}
	if err := h.work(); err != nil {
		return err
	}
	// A clean stop moves everything into the checkpoint; what comes now is behind it.
	if err := h.stop(); err != nil {
		return err
	}
	if err := h.up(); err != nil {
		return err
	}
	if err := h.lastWork(); err != nil {
		return err
	}
	facts, err := h.facts()
	if err != nil {
		return err
	}
	facts.Again = h.again
	if err := h.kill(); err != nil {
		return err
	}
	raw, err := json.MarshalIndent(facts, "", " ")
	if err != nil {
		return err
	}
	var archive bytes.Buffer
	if err := frozen.Pack(&archive, h.dir); err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(out, "release.tar.gz"), archive.Bytes(), 0o644),
		os.WriteFile(filepath.Join(out, "release.json"), append(raw, '\n'), 0o644))
}

// work is everything that leaves a record or a file of some kind.
func (h *host) work() error {
	document := filepath.Join(filepath.Dir(h.dir), "document.json")
	if err := os.WriteFile(document, []byte(`{"why":"to be opened by later releases","parts":[1,2,3]}`), 0o600); err != nil {
		return err
	}
	c := &chain{h: h}
	ship := c.id("objective_id", "create", "objective", "--title", "Ship the release", "--document", document)
	c.do("update", "objective", ship, "--title", "Ship release 1.0")
	manual := c.id("objective_id", "create", "objective", "--title", "Write the manual")
	c.do("complete", "objective", manual)
	gone := c.id("objective_id", "create", "objective", "--title", "To be archived")
	c.do("complete", "objective", gone)
	c.do("archive", "objective", gone)

	build := c.run(0, "--objective", ship, "--", "/bin/sh", "-c", "for i in 1 2 3; do echo line $i; done")
	c.run(3, "--objective", ship, "--", "/bin/sh", "-c", "echo it fails; exit 3")
	c.do("artifact", "register", "--run", build, "--manifest", document)
	asleep := c.id("run_id", "run", "--objective", ship, "--detach", "--", "/bin/sleep", "1000")
	c.reaches(asleep, "Running")
	c.do("pause", asleep)
	c.do("resume", asleep)
	c.do("cancel", asleep)
	c.reaches(asleep, "Cancelled")
	var signals []struct {
		ID string `json:"signal_id"`
	}
	c.json(&signals, "signals")
	if len(signals) > 0 {
		c.do("ack", signals[0].ID)
	} else {
		c.check(errors.New("a failed run has left no signal"))
	}
	return c.err
}

// lastWork is what the log has behind the checkpoint, and the snapshot to compare with.
func (h *host) lastWork() error {
	c := &chain{h: h}
	var id, op [16]byte
	_, _ = rand.Read(id[:]) // never fails
	_, _ = rand.Read(op[:])
	h.again = []string{"create", "objective", "--title", "Answer the mail", "--id", hex.EncodeToString(id[:]), "--op", hex.EncodeToString(op[:])}
	mail := c.id("objective_id", h.again...)
	c.do("update", "objective", mail, "--title", "Answer all the mail")
	c.do("snapshot", "save", filepath.Join(h.dir, "client", "frozen.snapshot"))
	return c.err
}

// A host is a state directory and the daemons that run on it.
type host struct {
	bin, dir string
	cmd      *exec.Cmd // coordctl up, nil when it does not run
	log      *os.File
	again    []string // a command, with its ids
}

var pids = regexp.MustCompile(`(?m)^(?:witnessd|coordinatord|ownerd) +pid (\d+) `)

// up starts the daemons and waits until they serve.
func (h *host) up(args ...string) error {
	log, err := os.Create(filepath.Join(filepath.Dir(h.dir), "up.log"))
	if err != nil {
		return err
	}
	h.log = log
	h.cmd = exec.Command(filepath.Join(h.bin, "coordctl"), append([]string{"up", "--state", h.dir}, args...)...)
	h.cmd.Stdout, h.cmd.Stderr = log, log
	if err := h.cmd.Start(); err != nil {
		h.cmd = nil
		return err
	}
	for deadline := time.Now().Add(startLimit); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		raw, err := os.ReadFile(log.Name())
		if err != nil {
			return err
		}
		if bytes.Contains(raw, []byte("ready: the coordinator serves")) {
			return nil
		}
	}
	raw, _ := os.ReadFile(log.Name())
	return fmt.Errorf("coordctl up is not ready after %v:\n%s", startLimit, raw)
}

// stop ends the daemons in order.
func (h *host) stop() error {
	if err := h.cmd.Process.Signal(os.Interrupt); err != nil {
		return err
	}
	_ = h.cmd.Wait() // it was interrupted
	h.cmd = nil
	return h.log.Close()
}

// kill ends them as a loss of power would, but for what the kernel has in memory.
func (h *host) kill() error {
	if h.cmd == nil {
		return nil
	}
	raw, err := os.ReadFile(h.log.Name())
	_ = h.cmd.Process.Kill() // first, as it would start them again
	_ = h.cmd.Wait()
	h.cmd = nil
	for _, m := range pids.FindAllSubmatch(raw, -1) {
		pid, _ := strconv.Atoi(string(m[1]))
		_ = syscall.Kill(pid, syscall.SIGKILL)
		for syscall.Kill(pid, 0) == nil && !zombie(pid) {
			time.Sleep(10 * time.Millisecond)
		}
	}
	return errors.Join(err, h.log.Close())
}

func zombie(pid int) bool {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || bytes.Contains(raw, []byte(") Z "))
}
