package server

import (
	"errors"
	"log/slog"

	"coordinator/codec"
	"coordinator/frames"
	"coordinator/server/authority"
	"coordinator/server/commit"
	"coordinator/server/quota"
	"coordinator/server/stream"
	"coordinator/server/work"
)

// request is one request from its acceptance to its terminal reply.
type request struct {
	c      *conn
	id     frames.RequestID
	charge *quota.Charge
}

// release frees the request's id and its charge. It runs when the terminal
// reply is handed to the transport [D-27]; before the write, so that a peer
// which has read the reply may use the id again.
func (r *request) release() {
	r.c.mu.Lock()
	delete(r.c.occupied, r.id)
	r.c.mu.Unlock()
	if r.charge != nil {
		r.charge.Release()
	}
}

// replyOf is a reply of one frame.
func replyOf(f frames.Frame) stream.Reply { return stream.Reply{Frames: []frames.Frame{f}} }

// answer queues the request's frames; the last one is its terminal reply. Sent,
// if not nil, runs when that one is handed to the transport.
func (r *request) answer(reply stream.Reply) error {
	out := make([]outgoing, 0, 1+len(reply.Frames))
	if reply.Page != nil {
		out = append(out, outgoing{frame: reply.Page, written: stream.Recycle})
	}
	for _, f := range reply.Frames {
		frame, err := frames.Append(nil, f)
		if err != nil {
			return err
		}
		out = append(out, outgoing{frame: frame})
	}
	sent := reply.Sent
	out[len(out)-1].sent = func() {
		r.release()
		if sent != nil {
			sent()
		}
	}
	r.c.lanes.putReply(out...)
	return nil
}

// refuse ends the request with a COORD_ERROR of its own. A code that is always
// fatal ends the connection instead.
func (r *request) refuse(err error) {
	c := r.c
	if c.ctx.Err() != nil {
		return // nobody is there to be told
	}
	err = c.serverError(err)
	var refused *frames.Refusal
	if !errors.As(err, &refused) {
		refused = frames.Refuse(frames.CodeInternal, "internal error")
		c.srv.lines.faults.Say(c.log, slog.LevelError, "request failed", "request", r.id, "err", err)
	}
	if refused.Code.Fatal() {
		c.fail(r.id, refused)
		return
	}
	c.lanes.putReply(outgoing{frame: c.errorFrame(r.id, refused.Code, refused.Message), sent: r.release})
}

// serverError names the server's own state where that is the cause.
func (c *conn) serverError(err error) error {
	if errors.Is(err, authority.ErrFenced) {
		return frames.Refuse(frames.CodeAuthorityFenced, textFenced)
	}
	return refusalOf(err)
}

// requestOf finds the request id of a body that did not decode [D-23].
func requestOf(body []byte) frames.RequestID {
	var m frames.Ack // its only field is field 1, where every request has its id
	if codec.Decode(&m, body) != nil {
		return 0
	}
	return m.RequestID
}

// handle takes one frame of an authenticated connection. The request id is that
// of the frame, for errors that end the connection.
func (c *conn) handle(t frames.Type, body []byte) (frames.RequestID, error) {
	switch t {
	case frames.TypePing:
		return 0, c.pong(body)
	case frames.TypePong:
		return 0, refusalOf(codec.Decode(new(frames.Pong), body))
	case frames.TypeCoordError:
		return 0, errPeerError
	}
	f, err := frames.Decode(t, body)
	if err != nil {
		return requestOf(body), refusalOf(err)
	}
	c.srv.meters.Request(t)
	switch m := f.(type) {
	case *frames.CoordCommand:
		return m.RequestID, c.request(m.RequestID, &m.Guard, func(r *request) { c.command(r, m) })
	case *frames.GetOperationResult:
		return m.RequestID, c.request(m.RequestID, &m.Guard, func(r *request) { c.lookup(r, m) })
	case *frames.OpenSnapshot:
		return m.RequestID, c.request(m.RequestID, &m.Guard, func(r *request) { r.deliver(c.streams.Open(c.ctx, m)) })
	case *frames.SnapshotNext:
		return m.RequestID, c.request(m.RequestID, nil, func(r *request) { r.deliver(c.streams.Next(m)) })
	case *frames.SnapshotApplied:
		return m.RequestID, c.request(m.RequestID, nil, func(r *request) { r.deliver(c.streams.Applied(m)) })
	case *frames.Subscribe:
		return m.RequestID, c.request(m.RequestID, &m.Guard, func(r *request) { r.deliver(c.streams.Subscribe(m)) })
	case *frames.OpenReplay:
		return m.RequestID, c.request(m.RequestID, &m.Guard, func(r *request) { r.deliver(c.streams.OpenReplay(m)) })
	case *frames.ReplayNext:
		return m.RequestID, c.request(m.RequestID, nil, func(r *request) { r.deliver(c.streams.ReplayNext(m)) })
	case *frames.ReplayApplied:
		return m.RequestID, c.request(m.RequestID, nil, func(r *request) { r.deliver(c.streams.ReplayApplied(m)) })
	case *frames.Credit:
		if err := c.mayAct(); err != nil {
			return 0, err
		}
		return 0, c.streams.Credit(m)
	}
	return 0, frames.Refuse(frames.CodeProtocolError, "frame is not allowed in this state")
}

// request admits one request: its guard before anything else, then its id, the
// fence, the grant and the quotas. guard is nil for requests that inherit the
// one of what they name. An error ends the connection.
func (c *conn) request(id frames.RequestID, guard *frames.AuthorityGuard, do func(*request)) error {
	if guard != nil && *guard != c.srv.fence.Guard() {
		return frames.Refuse(frames.CodeStaleAuthority, "the request's guard is not the authority in force")
	}
	c.mu.Lock()
	_, taken := c.occupied[id]
	if !taken {
		c.occupied[id] = struct{}{}
	}
	c.mu.Unlock()
	if taken {
		return frames.Refuse(frames.CodeMalformedMessage, "request id is still in use")
	}
	if err := c.mayAct(); err != nil {
		return err
	}
	c.requests++
	r := &request{c: c, id: id}
	var err error
	if r.charge, err = c.account.Take(quota.Requests, 1); err != nil {
		r.refuse(exhausted(err))
		return nil
	}
	do(r)
	return nil
}

// mayAct checks the fence and the grant, as before every transaction and page.
// Diverged clocks are no reason to refuse: commits and writes wait for them.
func (c *conn) mayAct() error {
	if err := c.srv.fence.Check(); errors.Is(err, authority.ErrFenced) {
		return c.serverError(err)
	}
	if c.granted.Err(c.srv.clock.Now()) != nil {
		return frames.Refuse(frames.CodeAuthenticationFailed, textGrantEnded)
	}
	return nil
}

// command parses, prefetches and proposes. The reply comes from the writer.
func (c *conn) command(r *request, m *frames.CoordCommand) {
	cmd, err := work.Parse(m, c.viewer, c.limits.TypedPayload)
	if err != nil {
		r.refuse(err)
		return
	}
	err = c.srv.writer.Propose(&commit.Proposal{
		Command: cmd, Guard: m.Guard, Grant: c.granted,
		Done: func(result frames.OperationResult, err error) { c.commandDone(r, result, err) },
	})
	if err != nil {
		r.refuse(err)
	}
}

// commandDone answers a command. One whose outcome may not be told is not
// answered at all: the connection ends with the process, and the client looks
// the operation up under the next activation.
func (c *conn) commandDone(r *request, result frames.OperationResult, err error) {
	if errors.Is(err, commit.ErrUnacknowledged) {
		c.srv.lines.faults.Say(c.log, slog.LevelError, "command left unanswered", "request", r.id, "err", err)
		return
	}
	if err == nil {
		err = r.answer(replyOf(&frames.CoordCommandResult{RequestID: r.id, Operation: result}))
	}
	if err != nil {
		r.refuse(err)
	}
}

// lookup answers GET_OPERATION_RESULT from committed state [D-11].
func (c *conn) lookup(r *request, m *frames.GetOperationResult) {
	result, err := c.srv.writer.Lookup(c.ctx, m.OperationID, c.viewer)
	if err == nil {
		err = r.answer(replyOf(&frames.OperationResultFrame{RequestID: r.id, Operation: result}))
	}
	if err != nil {
		r.refuse(err)
	}
}

// deliver queues a reply, or the error in its place.
func (r *request) deliver(reply stream.Reply, err error) {
	if err == nil {
		err = r.answer(reply)
	}
	if err != nil {
		r.refuse(err)
		return
	}
	if reply.Then != nil {
		reply.Then()
	}
}
