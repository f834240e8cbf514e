package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"

	"coordinator/client"
	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/durable"
	"coordinator/internal/sock"
)

const (
	// keyLife is how long the keys that `up` enrols for its own two daemons and client
	// last: ten years, longer than anybody keeps a local state without looking at it.
	keyLife = "87600h"
	// maxToolOutput bounds what a daemon's init may print.
	maxToolOutput = 64 << 10
	// maxSmallFile bounds the registries and configurations that are looked into.
	maxSmallFile = 4 << 20
)

// tools are the daemons' programs.
type tools struct{ witnessd, coordinatord, ownerd string }

// findTools looks beside this program first, so that a build is used as a whole.
func findTools() (tools, error) {
	find := func(name string) (string, error) {
		if self, err := os.Executable(); err == nil {
			path := filepath.Join(filepath.Dir(self), name)
			if st, err := os.Stat(path); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
				return path, nil
			}
		}
		path, err := exec.LookPath(name)
		if err != nil {
			return "", fmt.Errorf("%s: %w; build or install it next to coordctl", name, errNoTool)
		}
		return path, nil
	}
	w, err := find("witnessd")
	if err != nil {
		return tools{}, err
	}
	c, err := find("coordinatord")
	if err != nil {
		return tools{}, err
	}
	o, err := find("ownerd")
	return tools{w, c, o}, err
}

// setup makes a state directory on first use. Every step either finds its work done or
// does it whole, and the context file comes last: until it is there everything is gone
// through again, and once it is nothing is touched any more, so that what an operator
// has changed since (a revoked key, an edited file) stays changed.
type setup struct {
	dir   string
	tools tools
	lease int64 // 0: the coordinator's default
	say   func(format string, args ...any)
}

func (s *setup) witnessDir() string     { return filepath.Join(s.dir, "witness") }
func (s *setup) coordinatorDir() string { return filepath.Join(s.dir, "coordinator") }
func (s *setup) clientDir() string      { return filepath.Join(s.dir, "client") }
func (s *setup) witnessSocket() string  { return filepath.Join(s.witnessDir(), "witness.sock") }
func (s *setup) coordinatorSocket() string {
	return filepath.Join(s.coordinatorDir(), "coordinator.sock")
}
func (s *setup) coordinatorConfig() string {
	return filepath.Join(s.coordinatorDir(), "coordinator.toml")
}
func (s *setup) contextPath() string { return filepath.Join(s.clientDir(), "context.toml") }

// witnessReport is what `witnessd init` tells.
type witnessReport struct {
	WitnessID string `json:"witness_id"`
	PublicKey string `json:"public_key"`
	Authority string `json:"authority"`
	Socket    string `json:"socket"`
}

func (s *setup) run(ctx context.Context) error {
	if _, err := os.Lstat(s.contextPath()); err == nil {
		if s.lease != 0 {
			s.say("--lease counts on first use only; this state's is lease_secs in %s", s.coordinatorConfig())
		}
		s.lookMoved()
		return nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, path := range []string{s.witnessSocket(), s.coordinatorSocket()} {
		if len(path) > sock.MaxPath {
			return &sock.PathTooLongError{Path: path, Len: len(path), Max: sock.MaxPath}
		}
	}
	s.say("first use of %s: making ids and keys", s.dir)
	var w witnessReport
	err := s.tool(ctx, &w, s.tools.witnessd, "init", "--state", s.witnessDir(), "--coordinator-dir", s.coordinatorDir(), "--exist-ok", "-o", "json")
	if err != nil {
		return err
	}
	if err := s.coordinator(ctx, &w); err != nil {
		return err
	}
	id, err := s.coordinatorID(&w)
	if err != nil {
		return err
	}
	link, err := handshake.LoadKey(filepath.Join(s.coordinatorDir(), "link.ed25519"))
	if err != nil {
		return err
	}
	if err := s.enrol(ctx, s.tools.witnessd, s.witnessDir(), link.Public(), "coordinator", "--scope", "activate,status", "--coordinator", id.String()); err != nil {
		return err
	}
	key, err := s.clientKey()
	if err != nil {
		return err
	}
	if err := s.enrol(ctx, s.tools.coordinatord, s.coordinatorDir(), key.Public(), "local", "--scope", "all"); err != nil {
		return err
	}
	return s.context(id, &w)
}

// coordinator makes the coordinator's directory: under another name first, so that what
// an interrupted init left is never taken for a coordinator.
func (s *setup) coordinator(ctx context.Context, w *witnessReport) error {
	if _, err := os.Lstat(s.coordinatorDir()); err == nil {
		return nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := s.clear(); err != nil {
		return err
	}
	fresh, err := os.MkdirTemp(s.dir, freshPrefix+"*") // a name of its own: an init that is being killed may still write
	if err != nil {
		return err
	}
	args := []string{"init", "--state", fresh, "--witness-socket", w.Socket, "--witness-authority", w.Authority, "--witness-id", w.WitnessID, "-o", "json"}
	if s.lease != 0 {
		args = append(args, "--lease-secs", strconv.FormatInt(s.lease, 10))
	}
	var report struct{} // the files are read instead: they are there on every later run too
	if err := s.tool(ctx, &report, s.tools.coordinatord, args...); err != nil {
		return err
	}
	if err := os.Rename(fresh, s.coordinatorDir()); err != nil {
		return err
	}
	return durable.SyncDir(s.dir)
}

// freshPrefix begins the names of coordinators in the making.
const freshPrefix = "coordinator.new-"

// clear removes what interrupted attempts left.
func (s *setup) clear() error {
	entries, err := os.ReadDir(s.dir) // not by a pattern, which the name of the directory may look like
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), freshPrefix) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(s.dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// sameDir reports whether two paths name one directory.
func sameDir(a, b string) bool {
	sa, erra := os.Stat(a)
	sb, errb := os.Stat(b)
	return erra == nil && errb == nil && os.SameFile(sa, sb)
}

// configured is what `up` needs to know of coordinator.toml.
type configured struct {
	CoordinatorID string `toml:"coordinator_id"`
	QUIC          string `toml:"quic"`
	Witness       struct {
		Socket    string `toml:"socket"`
		WitnessID string `toml:"witness_id"`
	} `toml:"witness"`
}

func (s *setup) configured() (f configured, err error) {
	raw, err := durable.ReadPrivate(s.coordinatorConfig(), maxSmallFile)
	if err != nil {
		return f, err
	}
	if err := toml.Unmarshal(raw, &f); err != nil {
		return f, fmt.Errorf("%s: not valid TOML", s.coordinatorConfig())
	}
	return f, nil
}

// lookMoved says that the coordinator's witness is not the one next door, as after the
// directory was moved or copied. The paths are absolute on purpose: a copy finds the
// witness of the first and waits for its lease, where it would else bring its own. What is
// wrong with the files otherwise, the daemons say.
func (s *setup) lookMoved() {
	f, err := s.configured()
	if err != nil || f.Witness.Socket == s.witnessSocket() || sameDir(filepath.Dir(f.Witness.Socket), s.witnessDir()) {
		return
	}
	s.say("%s names the witness at %s, not the one next to it. If this directory was moved, correct that path, coordinator_dir in %s and socket in %s; a copy must not run beside the first",
		s.coordinatorConfig(), f.Witness.Socket, filepath.Join(s.witnessDir(), "witness.toml"), s.contextPath())
}

// coordinatorID reads who the coordinator is, and that its witness is the one next door.
func (s *setup) coordinatorID(w *witnessReport) (frames.CoordinatorID, error) {
	path := s.coordinatorConfig()
	f, err := s.configured()
	if err != nil {
		return frames.CoordinatorID{}, err
	}
	if f.Witness.WitnessID != w.WitnessID {
		return frames.CoordinatorID{}, fmt.Errorf("%s: its witness is %s, the one in %s is %s; set them up by hand or choose another --state",
			path, f.Witness.WitnessID, s.witnessDir(), w.WitnessID)
	}
	id, err := frames.ParseID[frames.CoordinatorID](f.CoordinatorID)
	if err != nil {
		return id, fmt.Errorf("%s: coordinator_id: %w", path, err)
	}
	return id, nil
}

// enrol adds a key to a daemon's registry unless a line of it is there, revoked or not. A
// label that another key has is left to that one.
func (s *setup) enrol(ctx context.Context, tool, dir string, public [32]byte, label string, flags ...string) error {
	text := handshake.FormatPublicKey(public)
	raw, err := durable.ReadPrivate(filepath.Join(dir, "workload-keys"), maxSmallFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	args := append([]string{"keys", "--state", dir, "add", "--expires", keyLife}, flags...)
	taken := false
	for line := range strings.Lines(string(raw)) {
		fields := strings.Fields(line)
		if len(fields) > 0 && fields[0] == text {
			return nil
		}
		taken = taken || slices.Contains(fields, "label="+label)
	}
	if !taken {
		args = append(args, "--label", label)
	}
	return s.tool(ctx, nil, tool, append(args, text)...)
}

// clientKey makes this client's key, or loads the one of an interrupted first use.
func (s *setup) clientKey() (*handshake.Key, error) {
	if err := durable.MkdirPrivate(s.clientDir()); err != nil {
		return nil, err
	}
	path := filepath.Join(s.clientDir(), "client.ed25519")
	key, err := handshake.CreateKey(path, rand.Reader)
	if errors.Is(err, fs.ErrExist) {
		return handshake.LoadKey(path)
	}
	return key, err
}

// context writes what makes the state complete.
func (s *setup) context(id frames.CoordinatorID, w *witnessReport) error {
	authority, err := handshake.LoadKey(filepath.Join(s.coordinatorDir(), "workload-authority.ed25519"))
	if err != nil {
		return err
	}
	c := client.Context{
		Name: "local", Socket: s.coordinatorSocket(), CoordinatorID: id,
		Authority: handshake.FingerprintOf(authority.Public()),
		KeyFile:   filepath.Join(s.clientDir(), "client.ed25519"),
	}
	if c.WitnessID, err = frames.ParseID[frames.WitnessID](w.WitnessID); err != nil {
		return fmt.Errorf("witnessd init: witness_id: %w", err)
	}
	if c.WitnessPublicKey, err = handshake.ParsePublicKey(w.PublicKey); err != nil {
		return fmt.Errorf("witnessd init: public_key: %w", err)
	}
	return c.Save(s.contextPath())
}

// tool runs a daemon's program to its end and decodes the JSON that it prints, unless into
// is nil. Like a daemon it does not outlive this program.
func (s *setup) tool(ctx context.Context, into any, path string, args ...string) error {
	runtime.LockOSThread() // see startProcess
	defer runtime.UnlockOSThread()
	var out, said bounded
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stdout, cmd.Stderr = &out, &said
	cmd.WaitDelay = pipeGrace
	cmd.SysProcAttr = daemonAttr()
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fmt.Errorf("%s %s: %w: %s", filepath.Base(path), args[0], err, strings.TrimSpace(said.String()))
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(out.Bytes(), into); err != nil {
		return fmt.Errorf("%s %s printed something else than its report; do the programs belong together?", filepath.Base(path), args[0])
	}
	return nil
}

// bounded is a buffer that keeps the beginning of what is written to it.
type bounded struct{ bytes.Buffer }

func (b *bounded) Write(p []byte) (int, error) {
	b.Buffer.Write(p[:min(len(p), maxToolOutput-b.Len())])
	return len(p), nil
}
