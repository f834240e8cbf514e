package mcp

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	// maxCalls bounds the calls that are served at once. One more is refused at once, so that
	// cancellations behind it are still read.
	maxCalls = 64
	// maxMessage bounds one message of the agent: the largest document, every byte of it
	// escaped in JSON, and what belongs to the message.
	maxMessage = 2 << 20
	// drainGrace is how long calls may go on once the agent has closed its end, so that one
	// that pipes its requests in gets the answers. Waits end at once, and so does this grace
	// when the server is told to end.
	drainGrace = 10 * time.Second
)

// A transport is newline-delimited JSON-RPC with bounds.
type transport struct {
	r     io.ReadCloser
	w     io.WriteCloser
	drain func()          // called when the agent has closed its end
	ended <-chan struct{} // closed when the server is told to end
}

// Connect implements [sdk.Transport].
func (t *transport) Connect(ctx context.Context) (sdk.Connection, error) {
	inner, err := (&sdk.IOTransport{Reader: t.r, Writer: t.w, MaxLineLength: maxMessage}).Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &boundedConn{Connection: inner, t: t, calls: map[jsonrpc.ID]bool{}, listens: map[jsonrpc.ID]bool{}, idle: make(chan struct{}, 1)}, nil
}

// boundedConn counts the calls that have no answer yet.
type boundedConn struct {
	sdk.Connection
	t *transport

	mu      sync.Mutex
	calls   map[jsonrpc.ID]bool // guarded by mu
	listens map[jsonrpc.ID]bool // guarded by mu: calls that last until they are cancelled
	idle    chan struct{}       // one slot: told when a call was answered
}

// Read gives the next message that is to be served.
func (c *boundedConn) Read(ctx context.Context) (jsonrpc.Message, error) {
	for {
		msg, err := c.Connection.Read(ctx)
		if err != nil {
			c.t.drain()
			c.settle()
			c.t.w.Close() //nolint:errcheck // what is still to be written has nobody who reads it
			return nil, err
		}
		req, ok := msg.(*jsonrpc.Request)
		if !ok || !req.IsCall() || c.admit(req) {
			return msg, nil
		}
		busy := &jsonrpc.Response{ID: req.ID, Error: &jsonrpc.Error{Code: codeBusy,
			Message: "BUSY: too many calls at once, this one was not begun; next: wait for an answer, then call again"}}
		if err := c.Connection.Write(ctx, busy); err != nil {
			return nil, err
		}
	}
}

// codeBusy is of the range that JSON-RPC leaves to servers.
const codeBusy = -32000

func (c *boundedConn) admit(req *jsonrpc.Request) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	under, most := c.calls, maxCalls
	if req.Method == "subscriptions/listen" {
		under, most = c.listens, maxWatched
	}
	if len(under) >= most {
		return false
	}
	under[req.ID] = true
	return true
}

// Write sends a message. An answer makes room for another call.
func (c *boundedConn) Write(ctx context.Context, msg jsonrpc.Message) error {
	err := c.Connection.Write(ctx, msg)
	if resp, ok := msg.(*jsonrpc.Response); ok {
		c.mu.Lock()
		delete(c.calls, resp.ID)
		delete(c.listens, resp.ID)
		c.mu.Unlock()
		select {
		case c.idle <- struct{}{}:
		default:
		}
	}
	return err
}

// settle waits for the answers that are due, for a while.
func (c *boundedConn) settle() {
	timer := time.NewTimer(drainGrace)
	defer timer.Stop()
	for c.due() {
		select {
		case <-c.idle:
		case <-timer.C:
			return
		case <-c.t.ended:
			return
		}
	}
}

func (c *boundedConn) due() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.calls) > 0
}
