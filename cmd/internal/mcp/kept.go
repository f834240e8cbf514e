package mcp

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"coordinator/client"
	"coordinator/frames"
	"coordinator/internal/durable"
)

// A keptCall is a command as it was made for a call, kept beside the context file under its
// OperationId: only the very same command may be sent again, and what it was made of may have
// changed since.
type keptCall struct {
	Coordinator   string             `json:"coordinator_id"`
	Operation     string             `json:"operation_id"`
	Tool          string             `json:"tool"`
	Arguments     string             `json:"arguments_sha256"`
	Kind          frames.CommandKind `json:"command_kind"`
	Payload       []byte             `json:"payload"`
	Preconditions []keptPrecondition `json:"preconditions,omitempty"`
	command       client.Command     // of the members above
	id            frames.OperationID // of Operation
}

type keptPrecondition struct {
	Kind     frames.ObjectKind `json:"kind"`
	ID       string            `json:"id"`
	Revision uint64            `json:"revision"`
}

const (
	// maxKeptBytes bounds one kept call: a payload in base64, and what goes with it.
	maxKeptBytes = 2*frames.MaxTypedPayload + 8<<10
	// keptAge is how long a call is kept whose outcome is not open. An agent that repeats it
	// later still runs nothing twice where the command can be made the same again.
	keptAge = 24 * time.Hour
	// maxKept bounds the calls that are kept, but for those whose outcome is open, which the
	// client's journal bounds.
	maxKept = 1024
)

// A keeper keeps calls.
type keeper struct {
	dir   string
	c     *client.Context
	state *client.State
	now   func() time.Time
}

func newKeeper(c *client.Context, state *client.State) *keeper {
	return &keeper{dir: filepath.Join(filepath.Dir(c.Path), "calls"), c: c, state: state, now: time.Now}
}

func (k *keeper) path(op frames.OperationID) string {
	return filepath.Join(k.dir, op.String()+".json")
}

// argumentsDigest is what tells two calls of one OperationId apart. Another key is another
// call: OperationIds are scoped by it.
func argumentsDigest(principal frames.KeyID, tool string, args any) (string, error) {
	raw, err := json.Marshal(args)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	fmt.Fprintf(h, "%v\x00%s\x00", principal, tool)
	h.Write(raw)
	return hex.EncodeToString(h.Sum(nil)), nil
}

// keep keeps a call before its command is sent. anew replaces what was kept under the same
// OperationId; otherwise an error that matches fs.ErrExist says that there is such a thing.
func (k *keeper) keep(call *keptCall, anew bool) error {
	cmd := &call.command
	call.Coordinator, call.Operation, call.Kind, call.Payload, call.id = k.c.CoordinatorID.String(), cmd.OperationID.String(), cmd.Kind, cmd.Payload, cmd.OperationID
	call.Preconditions = nil
	for _, p := range cmd.Preconditions {
		call.Preconditions = append(call.Preconditions, keptPrecondition{p.Object.Kind, p.Object.ID.String(), p.Revision})
	}
	raw, err := json.Marshal(call)
	if err != nil {
		return err
	}
	if err := durable.MkdirPrivate(k.dir); err != nil {
		return err
	}
	if err := k.forget(); err != nil {
		return err
	}
	if anew {
		return durable.Replace(k.path(call.id), raw, durable.PrivateFile)
	}
	return durable.Create(k.path(call.id), raw, durable.PrivateFile)
}

// forget removes calls that are old, and the oldest where there are too many. Those whose
// outcome is open stay.
func (k *keeper) forget() error {
	entries, err := os.ReadDir(k.dir)
	if err != nil {
		return err
	}
	open := map[string]bool{}
	for _, u := range k.state.Unresolved() {
		open[u.OperationID.String()] = true
	}
	type old struct {
		path string
		at   time.Time
	}
	var kept []old
	for _, e := range entries {
		op, ok := strings.CutSuffix(e.Name(), ".json")
		info, err := e.Info()
		if !ok || open[op] || err != nil { // also when another process has just removed it
			continue
		}
		kept = append(kept, old{filepath.Join(k.dir, e.Name()), info.ModTime()})
	}
	slices.SortFunc(kept, func(a, b old) int { return a.at.Compare(b.at) })
	for i, o := range kept {
		if len(kept)-i < maxKept && k.now().Sub(o.at) < keptAge {
			return nil
		}
		if err := os.Remove(o.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// drop forgets a call whose command certainly did nothing.
func (k *keeper) drop(op frames.OperationID) error {
	if err := os.Remove(k.path(op)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// load is the call that was kept under an OperationId; nil when there is none.
func (k *keeper) load(op frames.OperationID) (*keptCall, error) {
	raw, err := durable.ReadPrivate(k.path(op), maxKeptBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	call := new(keptCall)
	if json.Unmarshal(raw, call) != nil || call.Operation != op.String() || call.restore(op) != nil {
		return nil, &client.StateError{Path: k.path(op), Problem: "is not the kept call that it should be; move it away"}
	}
	if call.Coordinator != k.c.CoordinatorID.String() {
		return nil, badArgument("operation %v was sent to another coordinator, %s", op, call.Coordinator)
	}
	return call, nil
}

// restore makes the command again.
func (call *keptCall) restore(op frames.OperationID) error {
	call.id = op
	call.command = client.Command{OperationID: op, Kind: call.Kind, Payload: call.Payload}
	for _, p := range call.Preconditions {
		id, err := frames.ParseID[frames.ObjectID](p.ID)
		if err != nil {
			return err
		}
		call.command.Preconditions = append(call.command.Preconditions, frames.Precondition{Object: frames.ObjectRef{Kind: p.Kind, ID: id}, Revision: p.Revision})
	}
	return nil
}
