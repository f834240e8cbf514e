package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"coordinator/client"
	"coordinator/cmd/internal/runs"
	"coordinator/codec"
	"coordinator/frames"
	"coordinator/internal/clock"
	"coordinator/internal/durable"
)

// A sentRun is a START_RUN as it was sent, kept beside the context file until it has an
// answer: only the very same command may be sent again under its OperationId.
type sentRun struct {
	Coordinator string `json:"coordinator_id"`
	Operation   string `json:"operation_id"`
	Payload     []byte `json:"start_run"`
}

const (
	// maxSent bounds one kept command: a payload in base64 and two ids.
	maxSent = 2 * frames.MaxTypedPayload
	// sentAge is how long a command is kept that nobody asked about, once its outcome is
	// known or it was never sent.
	sentAge = 24 * time.Hour
)

func sentDir(c *client.Context) string { return filepath.Join(filepath.Dir(c.Path), "runs") }

func sentPath(c *client.Context, op frames.OperationID) string {
	return filepath.Join(sentDir(c), op.String()+".json")
}

// keepSent keeps a command before it is sent, and forgets what is not needed any more.
func keepSent(c *client.Context, state *client.State, cmd client.Command) error {
	raw, err := json.Marshal(sentRun{c.CoordinatorID.String(), cmd.OperationID.String(), cmd.Payload})
	if err != nil {
		return err
	}
	if err := durable.MkdirPrivate(sentDir(c)); err != nil {
		return fmt.Errorf("keep the command: %w", err)
	}
	if err := forgetSent(c, state); err != nil {
		return fmt.Errorf("keep the command: %w", err)
	}
	if err := durable.Replace(sentPath(c, cmd.OperationID), raw, 0o600); err != nil {
		return fmt.Errorf("keep the command: %w", err)
	}
	return nil
}

// forgetSent removes old commands whose outcome is not open, as the client's journal has it.
func forgetSent(c *client.Context, state *client.State) error {
	open := map[string]bool{}
	for _, u := range state.Unresolved() {
		open[u.OperationID.String()] = true
	}
	entries, err := os.ReadDir(sentDir(c))
	if err != nil {
		return err
	}
	for _, e := range entries {
		op, kept := strings.CutSuffix(e.Name(), ".json")
		info, err := e.Info()
		if !kept || open[op] || err != nil || time.Since(info.ModTime()) < sentAge {
			continue // also when another coordctl has just removed it
		}
		if err := os.Remove(filepath.Join(sentDir(c), e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// dropSent forgets a command that has its answer.
func dropSent(c *client.Context, op frames.OperationID) error {
	err := os.Remove(sentPath(c, op))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// loadSent is the command that was kept for an operation; nil when there is none.
func loadSent(c *client.Context, op frames.OperationID) (*frames.StartRun, error) {
	path := sentPath(c, op)
	raw, err := durable.ReadPrivate(path, maxSent)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var sent sentRun
	body := new(frames.StartRun)
	if json.Unmarshal(raw, &sent) != nil || sent.Operation != op.String() || codec.Decode(body, sent.Payload) != nil {
		return nil, &client.StateError{Path: path, Problem: "is not the kept command that it should be; remove it to follow the run alone"}
	}
	if sent.Coordinator != c.CoordinatorID.String() {
		return nil, usage("operation %v was sent to coordinator %s; name its context with --context", op, sent.Coordinator)
	}
	return body, nil
}

// lostRunError says of an operation that nothing can be done for it from here.
type lostRunError struct{ op frames.OperationID }

func (e *lostRunError) Error() string {
	return fmt.Sprintf("operation %v: UNKNOWN to this authority, or not for this key to see; and its command is not kept here, so it cannot be sent again", e.op)
}

// pickUp finds the run of an operation whose answer was lost. The command is sent again when it
// was kept; otherwise only what became of it is asked.
func (a *app) pickUp(parent context.Context, c *client.Context, s *client.Session, text string) (*started, frames.OperationResult, error) {
	ctx, cancel := context.WithTimeoutCause(parent, a.timeout, errTimeout)
	defer cancel()
	op, err := frames.ParseID[frames.OperationID](text)
	if err != nil {
		return nil, frames.OperationResult{}, usage("--op: %v", err)
	}
	body, err := loadSent(c, op)
	if err != nil {
		return nil, frames.OperationResult{}, err
	}
	if body == nil {
		return a.findRun(ctx, s, op)
	}
	r := &started{op: op, objective: body.ObjectiveID, run: body.RunID, session: body.WorkSessionID, binding: frames.BindingID(body.PendingBindingID)}
	if r.owner, err = runs.OwnerNamed(c, body.Owner); err != nil {
		return nil, frames.OperationResult{}, err
	}
	result, err := a.send(ctx, c, s, r, body, true)
	return r, result, err
}

// findRun learns the ids of a run from the result of its operation, which has them once its
// process was started.
func (a *app) findRun(ctx context.Context, s *client.Session, op frames.OperationID) (*started, frames.OperationResult, error) {
	result, err := s.Lookup(ctx, op)
	for err == nil && result.State == frames.OperationPending {
		if err = clock.Wait(ctx, clock.System(), outputPause); err == nil {
			result, err = s.Lookup(ctx, op)
		}
	}
	switch {
	case err != nil:
		return nil, result, err
	case result.State == frames.OperationUnknown:
		return nil, result, &lostRunError{op}
	case result.State != frames.OperationSucceeded:
		return nil, result, &resultError{op, result}
	}
	var ids frames.Started
	if result.Kind != frames.ResultStarted || codec.DecodeImage(&ids, result.Payload) != nil {
		return nil, result, usage("operation %v started no run", op)
	}
	f, err := a.loadFamily(ctx, ids.Run.String())
	if err != nil {
		return nil, result, err
	}
	b, err := f.Binding()
	if err != nil {
		return nil, result, err
	}
	_, o, err := a.ownerOf(b)
	return &started{op: op, objective: f.Run.ObjectiveID, run: ids.Run, session: ids.Session, binding: ids.Binding, owner: o}, result, err
}
