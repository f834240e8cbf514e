//go:build linux

package owner

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/handshake/link"
	"coordinator/internal/clock"
	"coordinator/internal/sock"

	"github.com/stretchr/testify/require"
)

// odd is an owner that passes the proof and then answers as a test says.
type odd struct {
	t   testing.TB
	clk clock.Clock
	srv *link.Server
	wg  sync.WaitGroup

	answer func(c *link.Conn, f frames.Frame) []frames.Frame
	wrap   func(net.Conn) net.Conn // nil: as it is
}

func newOdd(t *testing.T, clk clock.Clock, answer func(c *link.Conn, f frames.Frame) []frames.Frame) *odd {
	t.Helper()
	o := &odd{t: t, clk: clk, answer: answer}
	var err error
	o.srv, err = link.NewServer(link.ServerOptions{
		Namespace: namespace, Clock: clock.System(), // it never falls silent by itself
		Handshake: &handshake.Server{
			Service: HandshakeService(), Authority: ownerKey, Incarnation: frames.IncarnationID{1}, Rand: rand.Reader,
			Registry: handshake.StaticRegistry(records()), Clock: clock.System(),
		},
		Open: func(c *link.Conn) (link.HelloOK, link.Session) {
			return &OwnerHelloOK{Version: frames.CurrentVersion(), Groups: []frames.GroupID{1}, Grant: c.Grant()}, &oddSession{o, c}
		},
	})
	require.NoError(t, err)
	return o
}

type oddSession struct {
	o *odd
	c *link.Conn
}

func (s *oddSession) Accepts(frames.Type) bool { return true }
func (s *oddSession) Ended()                   {}

func (s *oddSession) Handle(ctx context.Context, f frames.Frame) error {
	for _, reply := range s.o.answer(s.c, f) {
		if err := s.c.SendBulk(ctx, reply); err != nil {
			return err
		}
	}
	return nil
}

func (o *odd) dial() *Client {
	o.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	c, err := Dial(o.t.Context(), ClientOptions{
		Dial: func(context.Context) (net.Conn, handshake.Channel, error) {
			near, far := net.Pipe()
			o.wg.Go(func() { o.srv.ServeConn(ctx, far, handshake.UDSPeer{Cred: sock.SelfCred()}) }) //nolint:errcheck // ends with the client
			if o.wrap != nil {
				near = o.wrap(near)
			}
			return near, handshake.UDSPeer{Cred: sock.SelfCred()}, nil
		},
		Pin: ownerPrint, CoordinatorID: coordA, Key: linkKey, Clock: o.clk, Rand: rand.Reader,
	})
	require.NoError(o.t, err)
	o.t.Cleanup(func() {
		c.Close()
		cancel()
		o.wg.Wait()
	})
	return c
}

// A reply that fits no request, or not its own, ends the link: nothing that such an owner says
// counts.
func TestRepliesThatFitNoRequest(t *testing.T) {
	id, other := frames.EffectAttemptID{1}, frames.EffectAttemptID{2}
	get := func(c *Client) error {
		_, err := c.GetEffect(context.Background(), frames.AuthorityGuard{}, id, [32]byte{1})
		return err
	}
	open := func(c *Client) error {
		return c.OpenFacts(context.Background(), frames.AuthorityGuard{}, frames.BindingID{1}, 0, 1)
	}
	read := func(c *Client) error {
		return c.ReadOutput(context.Background(), frames.BindingID{1}, 5, 10, false, func(uint64, []byte) error { return nil })
	}
	result := func(r frames.RequestID, a frames.EffectAttemptID) frames.Frame {
		return &EffectResult{RequestID: r, Attempt: a, State: frames.EffectRejected}
	}
	chunk := func(offset uint64, n int, end bool) frames.Frame {
		return &OutputChunk{RequestID: 1, Offset: offset, Data: make([]byte, n), End: end}
	}
	for _, tt := range []struct {
		name    string
		ask     func(*Client) error
		replies []frames.Frame
	}{
		{"a request that was not made", get, []frames.Frame{result(9, id)}},
		{"an ACK for a result", get, []frames.Frame{&frames.Ack{RequestID: 1}}},
		{"a chunk for a result", get, []frames.Frame{&OutputChunk{RequestID: 1, End: true}}},
		{"another attempt's result", get, []frames.Frame{result(1, other)}},
		{"a result for an ACK", open, []frames.Frame{result(1, id)}},
		{"a result for output", read, []frames.Frame{result(1, id)}},
		{"output from elsewhere", read, []frames.Frame{chunk(6, 1, false)}},
		{"output before the offset", read, []frames.Frame{chunk(0, 1, false)}},
		{"output twice", read, []frames.Frame{chunk(5, 3, false), chunk(5, 3, false)}},
		{"output beyond what was asked for", read, []frames.Frame{chunk(5, 11, true)}},
		{"a gap in the output", read, []frames.Frame{chunk(5, 3, false), chunk(9, 1, true)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newOdd(t, clock.System(), func(*link.Conn, frames.Frame) []frames.Frame { return tt.replies }).dial()
			require.Error(t, tt.ask(c))
			select {
			case <-c.Done():
			case <-time.After(waitLimit):
				t.Fatal("the link lasts")
			}
		})
	}
}

// Replies find their requests in whatever order they come, and an answer no is one request's.
func TestRepliesFindTheirRequests(t *testing.T) {
	var waiting []*GetEffect
	const n = 8
	c := newOdd(t, clock.System(), func(_ *link.Conn, f frames.Frame) (out []frames.Frame) {
		waiting = append(waiting, f.(*GetEffect))
		if len(waiting) < n {
			return nil
		}
		for i := range waiting { // the last first
			g := waiting[n-1-i]
			if g.Attempt[1]%2 == 1 {
				out = append(out, &frames.CoordError{RequestID: g.RequestID, Code: frames.CodeNotFound, Message: "no"})
				continue
			}
			text := string('a' + rune(g.Attempt[1]))
			out = append(out, &EffectResult{RequestID: g.RequestID, Attempt: g.Attempt, State: frames.EffectRejected, Message: &text})
		}
		return out
	}).dial()
	var all sync.WaitGroup
	for i := range byte(n) {
		all.Go(func() {
			r, err := c.GetEffect(context.Background(), frames.AuthorityGuard{}, frames.EffectAttemptID{1, i}, [32]byte{1})
			switch {
			case i%2 == 1:
				if frames.CodeNotFound != codeOf(err) {
					t.Errorf("%d: %v", i, err)
				}
			case err != nil || r.Message != string('a'+rune(i)):
				t.Errorf("%d: %+v, %v", i, r, err)
			}
		})
	}
	all.Wait()
	require.NoError(t, c.Err())
}

func codeOf(err error) frames.Code {
	var refused *RefusedError
	if errors.As(err, &refused) {
		return refused.Code
	}
	return 0
}

// A fatal refusal ends its request and the link; what else waits learns that there is no answer.
func TestFatalRefusalEndsTheLink(t *testing.T) {
	asked := make(chan struct{}, 2)
	c := newOdd(t, clock.System(), func(_ *link.Conn, f frames.Frame) []frames.Frame {
		asked <- struct{}{}
		if r := requestID(f); r == 2 {
			return []frames.Frame{&frames.CoordError{RequestID: r, Code: frames.CodeStaleAuthority, Message: "gone"}}
		}
		return nil
	}).dial()
	get := func() error {
		_, err := c.GetEffect(context.Background(), frames.AuthorityGuard{}, frames.EffectAttemptID{1}, [32]byte{1})
		return err
	}
	first := make(chan error, 1)
	go func() { first <- get() }()
	<-asked
	requireCode(t, frames.CodeStaleAuthority, get())
	err := <-first
	require.Error(t, err)
	require.Zero(t, codeOf(err), "that was no answer to it")
	<-c.Done()
	requireCode(t, frames.CodeStaleAuthority, c.Err())
	require.Zero(t, codeOf(get()), "nor to what comes later")
}

// staged is a connection whose other side, once it is armed, says what is left of the script
// and nothing more: it has ended, or only fallen silent.
type staged struct {
	net.Conn
	silent bool
	closed chan struct{}
	once   sync.Once

	mu     sync.Mutex
	armed  bool   // guarded by mu
	script []byte // guarded by mu
}

func (s *staged) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	s.mu.Lock()
	armed := s.armed && errors.Is(err, os.ErrDeadlineExceeded)
	if armed {
		n = copy(p, s.script)
		s.script = s.script[n:]
	}
	s.mu.Unlock()
	switch {
	case !armed:
		return n, err
	case n > 0:
		return n, nil
	case s.silent:
		<-s.closed
	}
	return 0, io.EOF
}

func (s *staged) Close() error {
	s.once.Do(func() { close(s.closed) })
	return s.Conn.Close()
}

func (s *staged) arm(script []byte) {
	s.mu.Lock()
	s.armed, s.script = true, script
	s.mu.Unlock()
	s.Conn.SetReadDeadline(time.Unix(1, 0)) //nolint:errcheck // a pipe
}

// An owner that is silent is asked, and is given up when it stays so; what waits has no answer.
func TestSilentOwnerIsGivenUp(t *testing.T) {
	clk := clock.NewManual(clock.System().Now())
	o := newOdd(t, clk, func(*link.Conn, frames.Frame) []frames.Frame { return nil })
	var way *staged
	o.wrap = func(nc net.Conn) net.Conn {
		way = &staged{Conn: nc, silent: true, closed: make(chan struct{})}
		return way
	}
	c := o.dial()
	get := func() error {
		_, err := c.GetEffect(context.Background(), frames.AuthorityGuard{}, frames.EffectAttemptID{1}, [32]byte{1})
		return err
	}
	waits := make(chan error, 1)
	go func() { waits <- get() }()
	pass := func() {
		require.Eventually(t, func() bool { return clk.Timers() == 1 }, waitLimit, time.Millisecond)
		clk.Advance(clientPing)
	}
	for range 5 { // slow as it is, its PONGs keep it
		pass()
		require.Eventually(t, func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.heard == clk.Now().Boot
		}, waitLimit, time.Millisecond)
	}
	require.NoError(t, c.Err())
	way.arm(nil)
	for range clientClose / clientPing {
		pass()
	}
	<-c.Done()
	err := <-waits
	require.ErrorIs(t, err, errSilent)
	require.Zero(t, codeOf(err))
	require.Error(t, get(), "and nothing is asked any more")
}

// A link that is cut after any byte of a reply answers nothing.
func TestCutReplyIsNoAnswer(t *testing.T) {
	text := "some message"
	reply, err := AppendFrame(nil, &EffectResult{RequestID: 1, Attempt: frames.EffectAttemptID{1}, State: frames.EffectSucceeded,
		HasResource: true, Resource: frames.ResourceID{ID: 7}, Message: &text})
	require.NoError(t, err)
	for n := range len(reply) + 1 {
		asked := make(chan struct{}, 1)
		o := newOdd(t, clock.System(), func(*link.Conn, frames.Frame) []frames.Frame { asked <- struct{}{}; return nil })
		var way *staged
		o.wrap = func(nc net.Conn) net.Conn {
			way = &staged{Conn: nc, closed: make(chan struct{})}
			return way
		}
		c := o.dial()
		answered := make(chan error, 1)
		go func() {
			r, err := c.GetEffect(context.Background(), frames.AuthorityGuard{}, frames.EffectAttemptID{1}, [32]byte{1})
			if err == nil && (r.Resource.ID != 7 || r.Message != text) {
				t.Errorf("%+v", r)
			}
			answered <- err
		}()
		<-asked
		way.arm(reply[:n])
		if err := <-answered; n < len(reply) {
			require.Error(t, err, "cut after %d bytes", n)
			require.Zero(t, codeOf(err))
		} else {
			require.NoError(t, err, "the whole reply counts, although the link ends behind it")
		}
		<-c.Done()
	}
}
