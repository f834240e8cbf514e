package server

import (
	"errors"
	"time"

	"coordinator/codec"
	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/server/authority"
	"coordinator/server/quota"
	"coordinator/server/stream"
	"coordinator/server/work"
)

// refusalOf turns what a decoder or a lower layer answered into what the peer
// is told. Errors that are no refusal and no bad form stay as they are.
func refusalOf(err error) error {
	var r *frames.Refusal
	var form *codec.Error
	switch {
	case errors.As(err, &r):
		return r
	case errors.As(err, &form):
		return frames.Refuse(frames.CodeMalformedMessage, "%v", err)
	}
	return err
}

// handleHandshake takes a frame before HELLO_OK. Every error closes (§5.5).
func (c *conn) handleHandshake(t frames.Type, body []byte) error {
	switch t {
	case frames.TypePing:
		return c.pong(body)
	case frames.TypePong:
		return refusalOf(codec.Decode(new(frames.Pong), body))
	case frames.TypeCoordError:
		return errPeerError
	case frames.TypeCoordHello:
		return c.takeHello(body)
	case frames.TypeWorkloadResponse:
		return c.takeResponse(body)
	}
	return frames.Refuse(frames.CodeProtocolError, "frame is not allowed in this state")
}

// pong answers a ping through the control lane.
func (c *conn) pong(body []byte) error {
	var m frames.Ping
	if err := codec.Decode(&m, body); err != nil {
		return refusalOf(err)
	}
	frame, err := frames.Append(nil, &frames.Pong{Nonce: m.Nonce})
	if err != nil {
		return err
	}
	return c.lanes.putControl(frame)
}

// takeHello checks the hello in the order of §5.5 [D-38]: version before
// anything else is parsed, then form, limits, profile and capabilities.
func (c *conn) takeHello(body []byte) error {
	if v, ok := frames.HelloVersion(body); ok && !v.Compatible(frames.CurrentVersion()) {
		return frames.Refuse(frames.CodeVersionIncompatible, "this server speaks protocol %d.%d",
			frames.VersionMajor, frames.VersionMinor)
	}
	if err := codec.Decode(&c.hello, body); err != nil {
		return refusalOf(err)
	}
	limits, caps, err := frames.Negotiate(&c.hello, c.srv.offer, work.Capabilities|stream.Capabilities)
	if err != nil {
		return refusalOf(err)
	}
	c.hello.Limits, c.caps = limits, caps
	asked := c.srv.clock.Now().Boot
	exchange, challenge, err := c.srv.handshake.Challenge(&c.hello.Offer, c.channel)
	if err != nil {
		return authenticationError(err)
	}
	frame, err := frames.Append(nil, challenge)
	if err != nil {
		return err
	}
	c.exchange, c.state = exchange, awaitResponse
	c.asked.Store(int64(asked))
	return c.lanes.putControl(frame)
}

// authenticationError is the one answer to every failed proof.
func authenticationError(err error) error {
	if errors.Is(err, handshake.ErrAuthentication) {
		return frames.Refuse(frames.CodeAuthenticationFailed, textGrantEnded)
	}
	return refusalOf(err)
}

// takeResponse verifies the proof, charges the connection and lets it in.
func (c *conn) takeResponse(body []byte) error {
	var m frames.WorkloadResponse
	if err := codec.Decode(&m, body); err != nil {
		return refusalOf(err)
	}
	if c.srv.clock.Now().Boot-time.Duration(c.asked.Load()) > responseTime {
		return frames.Refuse(frames.CodeProtocolError, textLate) // which says nothing of the key
	}
	grant, err := c.exchange.Finish(&m)
	if err != nil {
		c.claimed, c.denied = m.KeyID, c.exchange.Reason()
		return authenticationError(err)
	}
	c.granted = grant // given back by release, whatever follows
	account, err := c.srv.quotas.Connect(quota.Principal(grant.KeyID))
	if err != nil {
		return exhausted(err)
	}
	c.account = account // likewise
	c.viewer = work.Viewer{Principal: grant.KeyID, Scope: frames.Scope(grant.Scope), Capabilities: c.caps}
	c.streams = c.srv.streams.NewSession(stream.SessionOptions{
		Viewer: c.viewer, Limits: c.hello.Limits, Account: account, Wake: c.lanes.nudge,
	})
	c.feed.Store(c.streams)
	retention, err := c.srv.writer.Retention(c.ctx)
	if err != nil {
		return c.serverError(err)
	}
	return c.welcome(grant, retention.OperationResultSecs)
}

// welcome queues HELLO_OK and makes the connection an authenticated one in the
// same instant, so that a renewal is either in its certificate or follows it.
func (c *conn) welcome(grant *handshake.Grant, retention uint64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.srv.fence.Check(); errors.Is(err, authority.ErrFenced) {
		return frames.Refuse(frames.CodeAuthorityFenced, textFenced)
	}
	cert := c.srv.fence.Current()
	frame, err := frames.Append(nil, &frames.CoordHelloOK{
		Version: frames.CurrentVersion(), Capabilities: c.caps,
		CoordinatorID: cert.CoordinatorID, Epoch: cert.Epoch, IncarnationID: cert.IncarnationID,
		Limits: c.hello.Limits,
		Grant:  grant.Wire(), RetentionSecs: retention, Certificate: cert,
	})
	if err != nil {
		return err
	}
	c.grant.Store(grant)
	c.limits = &c.hello.Limits
	c.state, c.exchange = active, nil
	c.ready = true
	close(c.welcomed)
	c.srv.authenticated(c)
	return c.lanes.putControl(frame)
}

// renewed queues COORD_AUTHORITY_RENEWED for an authenticated connection.
func (c *conn) renewed(frame []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ready && c.lanes.putControl(frame) != nil {
		c.cut() // the writer waits for a peer that does not read, and cannot notice
	}
}

// exhausted tells which limit refused.
func exhausted(err error) error {
	var x *quota.Exceeded
	if errors.As(err, &x) {
		return frames.Refuse(frames.CodeResourceExhausted, "limit of %d %s per %s reached", x.Limit, x.Resource, x.Level)
	}
	return err
}
