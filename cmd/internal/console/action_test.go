package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/client"
	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/sock"
)

// A valve is a transport whose answers can be held back.
type valve struct {
	mu   sync.Mutex
	open chan struct{} // guarded by mu; closed while answers come
}

func newValve() *valve {
	v := &valve{open: make(chan struct{})}
	close(v.open)
	return v
}

// shut holds everything back that comes from now on, until the valve is opened again.
func (v *valve) shut() (open func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	c := make(chan struct{})
	v.open = c
	return sync.OnceFunc(func() { close(c) })
}

func (v *valve) dial(ctx context.Context, c *client.Context) (net.Conn, handshake.Channel, error) {
	nc, err := sock.Dial(ctx, c.Socket)
	if err != nil {
		return nil, nil, err
	}
	return &valved{Conn: nc, v: v, gone: make(chan struct{})}, handshake.UDSPeer{Cred: sock.SelfCred()}, nil
}

type valved struct {
	net.Conn
	v    *valve
	gone chan struct{}
	once sync.Once
}

func (c *valved) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.v.mu.Lock()
	open := c.v.open
	c.v.mu.Unlock()
	select {
	case <-open:
		return n, err
	case <-c.gone:
		return 0, net.ErrClosed
	}
}

func (c *valved) Close() error {
	c.once.Do(func() { close(c.gone) })
	return c.Conn.Close()
}

// ask makes an action.
func (p *page) ask(want map[string]string) response {
	p.t.Helper()
	body, err := json.Marshal(want)
	require.NoError(p.t, err)
	return p.do(p.request("POST", "/api/action", string(body)))
}

// becomes makes an action, which must be a command.
func (p *page) becomes(want map[string]string) (out outcome) {
	p.t.Helper()
	r := p.ask(want)
	require.Equal(p.t, http.StatusOK, r.status, r.body)
	require.NoError(p.t, json.Unmarshal([]byte(r.body), &out))
	require.Len(p.t, out.OperationID, 32)
	return out
}

// shows waits until the view has an object, at a revision or above.
func (p *page) shows(kind frames.ObjectKind, id frames.ObjectID, revision frames.ObjectRevision) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	_, err := p.server.replica.WaitFor(ctx, func(v *client.View) bool {
		r := v.Get(kind, id)
		return r != nil && r.Revision() >= revision
	})
	require.NoError(p.t, err)
}

func TestActions(t *testing.T) {
	x := newWorld(t)
	w := x.worker()
	p := x.opened(x.commander, nil)
	id := w.objective("work")
	p.shows(frames.KindObjective, frames.ObjectID(id), 1)
	const op = "00000000000000000000000000000abc"
	want := map[string]string{"action": "complete-objective", "id": id.String(), "revision": "1", "operation_id": op}

	done := p.becomes(want)
	require.Equal(t, outcome{OperationID: op, Outcome: committed, Text: "it is done", Retry: retryNone}, done)
	p.shows(frames.KindObjective, frames.ObjectID(id), 2)
	require.Equal(t, done, p.becomes(want), "the same operation is the same command")
	v := p.server.replica.View()
	require.EqualValues(t, 2, v.Get(frames.KindObjective, frames.ObjectID(id)).Revision(), "which ran once")
	require.Equal(t, frames.ObjectiveCompleted, v.Objective(id).State)

	want["action"] = "cancel-objective"
	r := p.ask(want)
	require.Equal(t, http.StatusConflict, r.status)
	require.Equal(t, "OPERATION_CONFLICT", r.code(t))
	delete(want, "operation_id")
	r = p.ask(want)
	require.Equal(t, http.StatusConflict, r.status, "it has changed since")
	require.Equal(t, "REVISION_CONFLICT", r.code(t))
	want["revision"] = "2"
	over := p.becomes(want)
	require.Equal(t, refused, over.Outcome, "it has ended")
	require.Equal(t, retryNew, over.Retry)
	require.NotEmpty(t, over.Code)

	none := p.becomes(map[string]string{"action": "cancel", "id": strings.Repeat("ab", 16)})
	require.Equal(t, refused, none.Outcome)
	require.Equal(t, "NOT_FOUND", none.Code)
}

func TestRequestsThatAreNoActions(t *testing.T) {
	x := newWorld(t)
	p := x.opened(x.commander, nil)
	id := strings.Repeat("ab", 16)
	for name, tt := range map[string]struct {
		body   string
		status int
		code   string
	}{
		"nothing":              {``, http.StatusBadRequest, "BAD_REQUEST"},
		"no object":            {`[]`, http.StatusBadRequest, "BAD_REQUEST"},
		"two objects":          {`{"action":"cancel","id":"` + id + `"}{}`, http.StatusBadRequest, "BAD_REQUEST"},
		"a member too many":    {`{"action":"cancel","id":"` + id + `","force":true}`, http.StatusBadRequest, "BAD_REQUEST"},
		"no action":            {`{"id":"` + id + `"}`, http.StatusBadRequest, "BAD_REQUEST"},
		"another action":       {`{"action":"start","id":"` + id + `"}`, http.StatusBadRequest, "BAD_REQUEST"},
		"a prefix":             {`{"action":"cancel","id":"abab"}`, http.StatusBadRequest, "BAD_REQUEST"},
		"no operation":         {`{"action":"cancel","id":"` + id + `","operation_id":"x"}`, http.StatusBadRequest, "BAD_REQUEST"},
		"the zero operation":   {`{"action":"cancel","id":"` + id + `","operation_id":"` + strings.Repeat("0", 32) + `"}`, http.StatusBadRequest, "BAD_REQUEST"},
		"a revision of zero":   {`{"action":"cancel","id":"` + id + `","revision":"0"}`, http.StatusBadRequest, "BAD_REQUEST"},
		"a note on a run":      {`{"action":"cancel","id":"` + id + `","note":"x"}`, http.StatusBadRequest, "BAD_REQUEST"},
		"a long note":          {`{"action":"suppress","id":"` + id + `","note":"` + strings.Repeat("x", 2000) + `"}`, http.StatusBadRequest, "BAD_REQUEST"},
		"an objective at all":  {`{"action":"complete-objective","id":"` + id + `"}`, http.StatusBadRequest, "BAD_REQUEST"},
		"an unknown objective": {`{"action":"complete-objective","id":"` + id + `","revision":"1"}`, http.StatusNotFound, "NOT_FOUND"},
		"far too much":         {`{"action":"` + strings.Repeat("x", maxBody) + `"}`, http.StatusRequestEntityTooLarge, "TOO_LARGE"},
	} {
		t.Run(name, func(t *testing.T) {
			r := p.do(p.request("POST", "/api/action", tt.body))
			require.Equal(t, tt.status, r.status, r.body)
			require.Equal(t, tt.code, r.code(t))
		})
	}
}

// TestTheScopeDecides what a page may do, and nothing in the page.
func TestTheScopeDecides(t *testing.T) {
	x := newWorld(t)
	id := x.worker().objective("work")
	p := x.opened(x.reader, nil)
	p.shows(frames.KindObjective, frames.ObjectID(id), 1)
	out := p.becomes(map[string]string{"action": "complete-objective", "id": id.String(), "revision": "1"})
	require.Equal(t, refused, out.Outcome)
	require.Equal(t, "SCOPE_DENIED", out.Code)
	require.Contains(t, out.Next, "coordinatord keys")
	require.Equal(t, []string{"work_read"}, p.live().until("the scope", func(e told) bool {
		s := e.decode(t).State
		return s != nil && !s.Stale
	}).decode(t).State.Scope)
}

// TestALostAnswerIsIndeterminate holds the coordinator's answer back, and asks again.
func TestALostAnswerIsIndeterminate(t *testing.T) {
	x := newWorld(t)
	id := x.worker().objective("work")
	v := newValve()
	p := x.opened(x.commander, func(o *Options) { o.Transport, o.ActionWait = v.dial, 300*time.Millisecond })
	p.shows(frames.KindObjective, frames.ObjectID(id), 1)
	other := x.worker().objective("other") // which warms up the connection for commands
	p.shows(frames.KindObjective, frames.ObjectID(other), 1)
	require.Equal(t, committed, p.becomes(map[string]string{"action": "complete-objective", "id": other.String(), "revision": "1"}).Outcome)

	open := v.shut()
	want := map[string]string{"action": "complete-objective", "id": id.String(), "revision": "1", "operation_id": strings.Repeat("cd", 16)}
	lost := p.becomes(want)
	require.Equal(t, indeterminate, lost.Outcome)
	require.Equal(t, retrySame, lost.Retry)
	require.Equal(t, want["operation_id"], lost.OperationID)
	require.Equal(t, indeterminate, p.becomes(want).Outcome, "still")
	open()
	p.shows(frames.KindObjective, frames.ObjectID(id), 2)
	require.Equal(t, committed, p.becomes(want).Outcome)
	require.EqualValues(t, 2, p.server.replica.View().Get(frames.KindObjective, frames.ObjectID(id)).Revision(), "it ran once")

	require.NoError(t, x.stop())
	gone := p.becomes(want)
	require.Equal(t, committed, gone.Outcome, "that it is not reached now takes nothing back")
	require.Equal(t, retrySame, gone.Retry)
	require.NotEmpty(t, gone.Message)
	want["operation_id"] = strings.Repeat("ef", 16)
	want["action"], want["id"] = "cancel", id.String()
	delete(want, "revision")
	down := p.becomes(want)
	require.Equal(t, notSent, down.Outcome)
	require.Equal(t, retrySame, down.Retry)
}

// TestEveryOutcomeHasWords goes through what may become of a command.
func TestEveryOutcomeHasWords(t *testing.T) {
	lost := fmt.Errorf("x: %w", &client.OutcomeUnknownError{Cause: &client.RefusedError{Code: frames.CodeAuthorityFenced}})
	for name, tt := range map[string]struct {
		result         frames.OperationResult
		err            error
		outcome, retry string
	}{
		"succeeded":       {frames.OperationResult{State: frames.OperationSucceeded}, nil, committed, retryNone},
		"pending":         {frames.OperationResult{State: frames.OperationPending}, nil, pending, retrySame},
		"rejected":        {frames.OperationResult{State: frames.OperationRejected, Code: frames.CodeNotFound}, nil, refused, retryNew},
		"indeterminate":   {frames.OperationResult{State: frames.OperationIndeterminate, Reason: frames.TargetOutcomeUnknown}, nil, indeterminate, retryNone},
		"old and done":    {frames.OperationResult{State: frames.OperationTombstoned, Final: frames.OperationSucceeded}, nil, committed, retryNone},
		"old and refused": {frames.OperationResult{State: frames.OperationTombstoned, Final: frames.OperationRejected}, nil, refused, retryNew},
		"lost answer":     {frames.OperationResult{}, lost, indeterminate, retrySame},
		"lost history":    {frames.OperationResult{}, &client.IndeterminateError{}, indeterminate, retryNone},
		"full":            {frames.OperationResult{}, &client.RefusedError{Code: frames.CodeResourceExhausted}, refused, retrySame},
		"revoked":         {frames.OperationResult{}, &client.AuthenticationError{Revoked: true}, notSent, retryNone},
		"not sent":        {frames.OperationResult{}, client.ErrNotSent, notSent, retrySame},
		"anything else":   {frames.OperationResult{}, errors.New("whatever"), indeterminate, retrySame},
	} {
		t.Run(name, func(t *testing.T) {
			out, p := judge(tt.result, tt.err)
			require.Nil(t, p)
			require.Equal(t, tt.outcome, out.Outcome)
			require.Equal(t, tt.retry, out.Retry)
			require.NotEmpty(t, out.Text)
			require.True(t, tt.outcome == committed || out.Next != "")
		})
	}
	for _, err := range []error{&client.OtherCommandError{}, &client.RefusedError{Code: frames.CodeOperationConflict}} {
		_, p := judge(frames.OperationResult{}, err)
		require.Equal(t, http.StatusConflict, p.status)
	}
}
