package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"time"
)

// facts is what the daemons and the client say of a state directory. What changes with each
// start is left out.
type facts struct {
	CoordinatorID string                       `json:"coordinator_id"`
	Event         uint64                       `json:"event"`      // the last one
	Records       map[string][]json.RawMessage `json:"records"`    // by kind, as coordctl get gives them
	Operations    map[string]json.RawMessage   `json:"operations"` // by id, as coordctl op get gives them
	Output        map[string]string            `json:"output"`     // of runs: SHA-256 of what coordctl logs prints
	Again         []string                     `json:"again"`      // a command of the coordctl that had this result, with its ids
	Timelines     map[string]string            `json:"timelines"`  // of runs: SHA-256 of what the log says of them
}

var kinds = []string{"objective", "run", "session", "binding", "artifact", "manifest", "signal", "operation", "evidence", "admin"}

// facts asks a running host.
func (h *host) facts() (*facts, error) {
	c := &chain{h: h}
	f := &facts{Records: map[string][]json.RawMessage{}, Operations: map[string]json.RawMessage{},
		Output: map[string]string{}, Timelines: map[string]string{}}
	for _, kind := range kinds {
		var got []json.RawMessage
		c.json(&got, "get", kind)
		f.Records[kind] = slices.DeleteFunc(got, func(raw json.RawMessage) bool { return bytes.Contains(raw, []byte(`"ACTIVATION"`)) })
	}
	var cut struct {
		CoordinatorID string `json:"coordinator_id"`
		Base          uint64 `json:"base_event_sequence"`
	}
	c.json(&cut, "snapshot", "save", filepath.Join(filepath.Dir(h.dir), "now.snapshot"))
	f.CoordinatorID, f.Event = cut.CoordinatorID, cut.Base
	for _, raw := range f.Records["operation"] {
		var op struct {
			ID string `json:"id"`
		}
		c.check(json.Unmarshal(raw, &op))
		var result json.RawMessage
		c.json(&result, "op", "get", op.ID)
		f.Operations[op.ID] = result
	}
	for _, raw := range f.Records["run"] {
		var run struct {
			ID string `json:"id"`
		}
		c.check(json.Unmarshal(raw, &run))
		f.Output[run.ID] = digest(c.output("logs", run.ID))
		f.Timelines[run.ID] = digest(c.output("-o", "json", "describe", "run", run.ID))
		c.do("evidence", "verify", run.ID)
	}
	return f, c.err
}

func digest(b []byte) string { return fmt.Sprintf("%x", sha256.Sum256(b)) }

// A chain is a sequence of commands, which ends with the first that fails.
type chain struct {
	h   *host
	err error
}

func (c *chain) check(err error) {
	if c.err == nil {
		c.err = err
	}
}

// exit runs coordctl with args and returns what it printed, and its exit code.
func (c *chain) exit(args ...string) ([]byte, int) {
	if c.err != nil {
		return nil, -1
	}
	cmd := exec.Command(filepath.Join(c.h.bin, "coordctl"), append([]string{"--context", filepath.Join(c.h.dir, "client", "context.toml")}, args...)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		c.err = err
		return nil, -1
	}
	if errs.Len() > 0 && err != nil {
		c.err = fmt.Errorf("coordctl %q: %w\n%s%s", args, err, out.Bytes(), errs.Bytes())
	}
	return out.Bytes(), cmd.ProcessState.ExitCode()
}

func (c *chain) output(args ...string) []byte {
	out, code := c.exit(args...)
	if c.err == nil && code != 0 {
		c.err = fmt.Errorf("coordctl %q: exit code %d\n%s", args, code, out)
	}
	return out
}

func (c *chain) do(args ...string) { c.output(args...) }

func (c *chain) json(into any, args ...string) {
	out := c.output(append([]string{"-o", "json"}, args...)...)
	if c.err == nil {
		if err := json.Unmarshal(out, into); err != nil {
			c.err = fmt.Errorf("coordctl %q: %w: %s", args, err, out)
		}
	}
}

// id runs a command that makes something and returns its id.
func (c *chain) id(field string, args ...string) string {
	var got map[string]any
	c.json(&got, args...)
	id, _ := got[field].(string)
	if id == "" && c.err == nil {
		c.err = fmt.Errorf("coordctl %q names no %s", args, field)
	}
	return id
}

// run runs a command to its end, which must be code, and returns the id of the run.
func (c *chain) run(code int, args ...string) string {
	out, got := c.exit(append([]string{"-o", "json", "run"}, args...)...)
	if c.err != nil {
		return ""
	}
	var started struct {
		RunID string `json:"run_id"`
	}
	err := json.NewDecoder(bytes.NewReader(out)).Decode(&started)
	if err != nil && !errors.Is(err, io.EOF) || got != code || started.RunID == "" {
		c.err = fmt.Errorf("coordctl run %q ended with %d, not %d (%v): %s", args, got, code, err, out)
	}
	return started.RunID
}

// reaches waits until a run is in a state.
func (c *chain) reaches(run, state string) {
	for deadline := time.Now().Add(startLimit); c.err == nil; time.Sleep(50 * time.Millisecond) {
		var r struct {
			Payload struct {
				State string `json:"state"`
			} `json:"payload"`
		}
		c.json(&r, "get", "run", run)
		if r.Payload.State == state {
			return
		}
		if c.err == nil && time.Now().After(deadline) {
			c.err = fmt.Errorf("run %s is %s and does not become %s", run, r.Payload.State, state)
		}
	}
}
