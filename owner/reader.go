package owner

import (
	"context"
	"fmt"
	"sync"

	"coordinator/frames"
	"coordinator/handshake/link"
)

var acceptFromOwner = link.Types(TypeEffectResult, TypeBindings, TypeOutputChunk, TypeSourceFact, TypeFactsEnd,
	frames.TypeAck, frames.TypePing, frames.TypePong, frames.TypeCoordError)

// readLoop is the client's sole reader: it answers pings, hands replies to their requests and
// everything else to the callbacks.
func (c *Client) readLoop() {
	err := error(nil)
	for err == nil {
		err = c.readOne()
	}
	c.nc.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		err = ErrClosed
	case c.silent:
		err = errSilent
	}
	c.err = err
	c.waiting = nil
	close(c.ended)
}

func (c *Client) readOne() error {
	f, err := c.proof.Reader.Next(acceptFromOwner)
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.heard = c.opt.Clock.Now().Boot
	c.mu.Unlock()
	switch f := f.(type) {
	case *frames.Ping:
		return c.send(context.Background(), &frames.Pong{Nonce: f.Nonce})
	case *frames.Pong:
	case *frames.CoordError:
		if f.RequestID != 0 {
			if err := c.deliver(f.RequestID, f); err != nil {
				return err
			}
		}
		if f.RequestID == 0 || f.Code.Fatal() { // of the connection as a whole
			return &RefusedError{Code: f.Code, Message: f.Message}
		}
	case *frames.Ack:
		return c.deliver(f.RequestID, f)
	case *EffectResult:
		return c.deliver(f.RequestID, f)
	case *OutputChunk:
		return c.deliver(f.RequestID, f)
	case *Bindings:
		if c.opt.OnBindings != nil {
			c.opt.OnBindings(f.Bindings)
		}
	case *SourceFact:
		if c.opt.OnFact != nil {
			c.opt.OnFact(&f.Fact)
		}
	case *FactsEnd:
		if c.opt.OnFactsEnd != nil {
			c.opt.OnFactsEnd(f.BindingID, f.Last)
		}
	default:
		panic(fmt.Sprintf("owner: accepted frame type %#02x has no case", uint8(f.Type())))
	}
	return nil
}

// deliver hands a reply to the request that waits for it. A request that was given up gets
// nothing; one that was never made is the owner's fault.
func (c *Client) deliver(id frames.RequestID, f frames.Frame) error {
	c.mu.Lock()
	r, last := c.waiting[id], c.next
	c.mu.Unlock()
	if r == nil {
		if id > last {
			return errUnasked
		}
		return nil
	}
	if chunk, ok := f.(*OutputChunk); ok && r.read != nil {
		return r.read.put(chunk)
	}
	select {
	case r.reply <- f:
		return nil
	default:
		return errUnasked // a second reply
	}
}

// A window is what has come of one READ_OUTPUT and was not yet taken.
type window struct {
	wake chan struct{} // one slot

	mu   sync.Mutex
	next uint64 // guarded by mu; offset that comes next
	left uint64 // guarded by mu; bytes that may still come
	buf  []byte // guarded by mu
	end  bool   // guarded by mu
}

func (w *window) put(chunk *OutputChunk) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.end || chunk.Offset != w.next || uint64(len(chunk.Data)) > w.left {
		return errUnasked
	}
	w.buf = append(w.buf, chunk.Data...)
	w.next += uint64(len(chunk.Data))
	w.left -= uint64(len(chunk.Data))
	w.end = chunk.End
	select {
	case w.wake <- struct{}{}:
	default:
	}
	return nil
}

// take returns what has come. full says, once end is set, that more may be asked for.
func (w *window) take() (at uint64, data []byte, end, full bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	data, w.buf = w.buf, nil
	return w.next - uint64(len(data)), data, w.end, w.left == 0
}

// ReadOutput hands stored output to sink in order, from offset (bytes before it) and at most
// max bytes (0: all) to the stored end, or with follow until the process has ended. It asks for
// a bounded piece at a time, so that a slow sink delays nobody. An error of sink ends the
// reading and is returned.
func (c *Client) ReadOutput(ctx context.Context, binding frames.BindingID, offset, max uint64, follow bool, sink func(offset uint64, data []byte) error) error {
	for left := max; ; {
		size := uint64(readWindow)
		if max != 0 {
			size = min(size, left)
		}
		got, more, err := c.readWindow(ctx, &ReadOutput{BindingID: binding, Offset: offset, MaxBytes: uint32(size), Follow: follow}, sink)
		offset, left = offset+got, left-got
		if err != nil || !more || max != 0 && left == 0 {
			return c.wrap("read output", err)
		}
	}
}

// readWindow makes one READ_OUTPUT. more says that its limit ended it and not the output.
func (c *Client) readWindow(ctx context.Context, f *ReadOutput, sink func(uint64, []byte) error) (got uint64, more bool, err error) {
	w := &window{wake: make(chan struct{}, 1), next: f.Offset, left: uint64(f.MaxBytes)}
	id, r, err := c.begin(w)
	if err != nil {
		return 0, false, err
	}
	defer c.finish(id)
	f.RequestID = id
	if err := c.send(ctx, f); err != nil {
		return 0, false, err
	}
	for over := false; ; {
		select {
		case <-w.wake:
		case <-c.ended:
			over = true // what had come before is in the window
		case <-ctx.Done():
			return got, false, ctx.Err()
		case reply := <-r.reply:
			if _, err = refusal(reply); err == nil {
				err = c.broken(errUnasked)
			}
			return got, false, err
		}
		at, data, end, full := w.take()
		got += uint64(len(data))
		if len(data) > 0 {
			if err := sink(at, data); err != nil {
				return got, false, err
			}
		}
		if end || over {
			return got, full, c.unless(end)
		}
	}
}

// unless is nil when the reply was complete, else why the connection has ended.
func (c *Client) unless(complete bool) error {
	if complete {
		return nil
	}
	return c.err
}

// watch pings an owner that is silent and gives up one that stays so.
func (c *Client) watch() {
	t := c.opt.Clock.NewTimer(clientPing)
	defer t.Stop()
	for {
		select {
		case <-c.ended:
			return
		case <-t.C():
		}
		c.mu.Lock()
		silent := c.opt.Clock.Now().Boot - c.heard
		c.silent = silent >= clientClose
		c.mu.Unlock()
		if silent >= clientClose {
			c.nc.Close() // the reader ends
			return
		}
		if silent >= clientPing {
			// A write that hangs holds the turn; the next look at the silence ends it.
			ctx, cancel := context.WithTimeout(context.Background(), clientPing)
			err := c.send(ctx, &frames.Ping{Nonce: uint64(c.opt.Clock.Now().Boot)})
			cancel()
			if err != nil {
				return
			}
		}
		t.Reset(clientPing)
	}
}
