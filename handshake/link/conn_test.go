package link

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"coordinator/codec"
	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/clock"
	"coordinator/internal/sock"

	"github.com/stretchr/testify/require"
)

// Length and type are judged before a byte of the body is waited for, before the proof under
// the handshake's cap and after it under the link's own.
func TestC02_CapsOfALink(t *testing.T) {
	r := newRig(t, nil)
	for _, tt := range []struct {
		name   string
		raw    []byte
		proved bool
		code   frames.Code
	}{
		{"empty hello", header(0, TypeHello), false, frames.CodeFrameTooLarge},
		{"hello of 2^32-1", header(1<<32-1, TypeHello), false, frames.CodeFrameTooLarge},
		{"hello above 16 KiB", header(frames.MaxHandshakeBytes+1, TypeHello), false, frames.CodeFrameTooLarge},
		{"request before the hello", header(1, typeAsk), false, frames.CodeProtocolError},
		{"response before the hello", header(1, frames.TypeWorkloadResponse), false, frames.CodeProtocolError},
		{"unknown type", header(1, 0x66), false, frames.CodeProtocolError},
		{"empty frame", header(0, typeAsk), true, frames.CodeFrameTooLarge},
		{"above the link's cap", header(maxFrame+1, typeAsk), true, frames.CodeFrameTooLarge},
		{"2^32-1", header(1<<32-1, typeAsk), true, frames.CodeFrameTooLarge},
		{"second hello", header(1, TypeHello), true, frames.CodeProtocolError},
		{"second response", header(1, frames.TypeWorkloadResponse), true, frames.CodeProtocolError},
		{"a frame of the server", header(1, typeAnswer), true, frames.CodeProtocolError},
		{"an ACK", header(1, frames.TypeAck), true, frames.CodeProtocolError},
		{"a stray type of great length", header(1<<20, 0x66), true, frames.CodeProtocolError},
		{"bad form", append(header(3, typeAsk), 1, 0), true, frames.CodeMalformedMessage},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.proved {
				p := r.dial()
				_, err := p.Write(tt.raw)
				require.NoError(t, err)
				p.requireEnd(tt.code, "")
				return
			}
			nc := r.connect()
			_, err := nc.Write(tt.raw)
			require.NoError(t, err)
			requireEnd(t, NewReader(nc, testLink), tt.code, "")
		})
	}
	p := r.dial()
	p.ask(1, string(make([]byte, 40<<10))) // above the handshake's cap, which is lifted
	require.Len(t, p.next().(*answer).Text, 40<<10)
}

// endless is a peer that says one header and would go on for ever.
type endless struct{ head []byte }

func (e *endless) Read(p []byte) (int, error) {
	n := copy(p, e.head)
	e.head = e.head[n:]
	if n == 0 {
		return 0, errors.New("more was read than the header")
	}
	return n, nil
}

// A refused header costs no memory, whatever length it names.
func TestC02_RefusedHeadersAllocateNothing(t *testing.T) {
	for _, raw := range [][]byte{header(1<<32-1, typeAsk), header(maxFrame+1, typeAsk), header(maxFrame, 0x66)} {
		r := NewReader(&endless{raw}, testLink)
		r.Proved()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := r.Next(testLink.Has)
		runtime.ReadMemStats(&after)
		var refusal *frames.Refusal
		require.ErrorAs(t, err, &refusal)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(8<<10))
	}
}

// What Handle returns decides what the peer is told.
func TestErrorsOfASession(t *testing.T) {
	for _, tt := range []struct {
		text string
		code frames.Code
		say  string
	}{
		{"fatal", frames.CodeStaleAuthority, "as asked"},
		{"refuse", frames.CodeNotFound, "as asked"},
		{"codec", frames.CodeMalformedMessage, "malformed frame"},
		{"beside", frames.CodeInternal, "beside"},
	} {
		t.Run(tt.text, func(t *testing.T) {
			r := newRig(t, nil)
			p := r.dial()
			p.ask(4, "stay") // a goroutine that ends with the connection
			p.ask(5, tt.text)
			p.requireEnd(tt.code, tt.say)
		})
	}
	t.Run("fatal names its request", func(t *testing.T) {
		r := newRig(t, nil)
		p := r.dial()
		p.ask(5, "fatal")
		require.Equal(t, &frames.CoordError{RequestID: 5, Code: frames.CodeStaleAuthority, Message: "as asked"}, p.next())
	})
	for text, want := range map[string]error{"break": nil, "fail": errFailed} {
		t.Run(text, func(t *testing.T) { // the peer is told nothing of this side's trouble
			r := newRig(t, nil)
			p := r.dial()
			p.ask(5, text)
			_, err := p.Reader.Next(anyFrame)
			require.ErrorIs(t, err, io.EOF)
			r.wg.Wait()
			require.Len(t, r.results, 1)
			require.ErrorIs(t, r.results[0], want)
		})
	}
}

// A session whose failure is the server's ends the whole server.
func TestFailureEndsTheServer(t *testing.T) {
	r := newRig(t, nil)
	l, err := sock.Listen(shortDir(t) + "/s")
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- r.srv.Serve(t.Context(), l) }()
	dial := func() *peer {
		nc, proof, err := r.prover().Connect(t.Context(), SocketDialer(l.Addr().String()))
		require.NoError(t, err)
		t.Cleanup(func() { nc.Close() })
		return &peer{Conn: nc, Proof: proof, t: t}
	}
	other, p := dial(), dial()
	p.ask(1, "fail")
	require.ErrorIs(t, <-served, errFailed)
	_, err = other.Reader.Next(anyFrame)
	require.ErrorIs(t, err, io.EOF)
}

func TestPings(t *testing.T) {
	r := newRig(t, nil)
	nc := r.connect()
	require.NoError(t, WriteFrame(nc, &frames.Ping{Nonce: 3})) // before the hello, too
	f, err := NewReader(nc, testLink).Next(anyFrame)
	require.NoError(t, err)
	require.Equal(t, &frames.Pong{Nonce: 3}, f)
	p := r.dial()
	require.NoError(t, WriteFrame(p, &frames.Ping{Nonce: 4}))
	require.Equal(t, &frames.Pong{Nonce: 4}, p.next())
	require.NoError(t, WriteFrame(p, &frames.Pong{Nonce: 5}))
	require.NoError(t, WriteFrame(p, &frames.CoordError{Code: frames.CodeInternal, Message: "the client gives up"}))
	_, err = p.Reader.Next(anyFrame)
	require.ErrorIs(t, err, io.EOF)
}

// A peer that stalls before it is proved has the times of the handshake, however it stalls.
func TestStallsOfTheHandshake(t *testing.T) {
	hello, err := Append(nil, newRig(t, nil).hello(nil))
	require.NoError(t, err)
	ping, err := Append(nil, &frames.Ping{Nonce: 1})
	require.NoError(t, err)
	type step struct {
		at   time.Duration // after the accept
		say  []byte
		then time.Duration // when the server gives up if nothing more comes; 0: as before
	}
	for _, tt := range []struct {
		name  string
		steps []step
		end   time.Duration
	}{
		{"says nothing", nil, firstFrameWait},
		{"half a header", []step{{time.Second, hello[:3], 0}}, firstFrameWait},
		{"half a hello", []step{{time.Second, hello[:len(hello)/2], 0}}, firstFrameWait},
		{"pings only", []step{{time.Second, ping, helloWait}, {8 * time.Second, ping, 0}}, helloWait},
		{"no response", []step{{time.Second, hello, time.Second + responseWait}}, time.Second + responseWait},
		{"a late hello and no response", []step{{time.Second, ping, helloWait}, {7 * time.Second, hello, 0}}, helloWait},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, nil)
			nc := r.connect()
			rd := NewReader(nc, testLink)
			begin, passed := r.clk.Now().Boot, time.Duration(0)
			due := func(want time.Duration) {
				r.eventually("the watcher waits for it", func() bool {
					at, armed := r.clk.Next()
					return armed && at == begin+want
				})
			}
			due(firstFrameWait)
			for _, st := range tt.steps {
				r.clk.Advance(st.at - passed)
				passed = st.at
				_, err := nc.Write(st.say)
				require.NoError(t, err)
				if len(st.say) == len(ping) || len(st.say) == len(hello) {
					_, err = rd.Next(anyFrame)
					require.NoError(t, err)
				}
				if st.then != 0 {
					due(st.then)
				} else {
					require.Never(t, func() bool {
						at, armed := r.clk.Next()
						return armed && at > begin+tt.end
					}, 50*time.Millisecond, 5*time.Millisecond, "no step prolongs the whole")
				}
			}
			r.clk.Advance(tt.end - passed - time.Second)
			before, _ := r.srv.Connections()
			require.Equal(t, 1, before, "not yet")
			ended := make(chan error, 1)
			go func() {
				_, err := rd.Next(anyFrame)
				ended <- err
			}()
			// More than once, since the watcher may be about to set the timer by what it read before.
			r.eventually("it is closed", func() bool {
				r.clk.Advance(time.Second)
				return len(ended) == 1
			})
			require.ErrorIs(t, <-ended, io.EOF)
			r.eventually("it is given back", func() bool { before, _ := r.srv.Connections(); return before == 0 })
		})
	}
}

// A proved peer that falls silent is asked, and then given up; one that answers is kept.
func TestSilence(t *testing.T) {
	r := newRig(t, nil)
	p := r.dialReady()
	pass := func(d time.Duration) {
		for range d / grantTick {
			r.eventually("the watcher waits", func() bool { return r.clk.Timers() == 1 })
			r.clk.Advance(grantTick)
		}
	}
	for range 3 { // together longer than any silence
		pass(pingAfter + grantTick)
		ping, is := p.next().(*frames.Ping)
		require.True(t, is)
		require.NoError(t, WriteFrame(p, &frames.Pong{Nonce: ping.Nonce}))
		p.ask(1, "still here")
		require.IsType(t, new(answer), p.next(), "and the PONG before it was taken")
	}
	pass(pingAfter + grantTick)
	require.IsType(t, new(frames.Ping), p.next())
	pass(closeAfter - pingAfter - 2*grantTick)
	_, after := r.srv.Connections()
	require.Equal(t, 1, after, "not yet")
	pass(grantTick)
	_, err := p.Reader.Next(anyFrame)
	require.ErrorIs(t, err, io.EOF, "one PING for a silence, no more")
}

// A peer that does not read its replies is closed once it is owed too many, and keeps nobody.
func TestPeerThatDoesNotReadItsReplies(t *testing.T) {
	r := newRig(t, nil)
	p := r.dial()
	n := 0
	for ; ; n++ {
		if err := WriteFrame(p, &ask{ID: 1, Text: []byte("x")}); err != nil {
			break
		}
		require.Less(t, n, 3*outFrames)
	}
	require.Greater(t, n, outFrames)
	r.wg.Wait()
}

// A stream waits for a slow peer; a reply does not wait for the stream.
func TestRepliesPassStreams(t *testing.T) {
	r := newRig(t, nil)
	p := r.dial()
	p.ask(1, "stream")
	require.EqualValues(t, 1, p.next().(*answer).ID)
	const rounds = 40
	passed := 0 // frames of the stream that came before a reply that was owed
	for n := range rounds {
		p.ask(2, "reply") // taken although nobody reads
		r.eventually("it is handled", func() bool { return len(r.session(0).texts()) == n+2 })
		for p.next().(*answer).ID == 1 {
			passed++
		}
	}
	// The one that was being written, each time, and seldom one that was chosen just before.
	require.LessOrEqual(t, passed, rounds+rounds/2)
	p.Close() // the stream ends with it, wherever it waits
	r.wg.Wait()
}

// An ending that is asked for from outside reaches a peer that reads, and one that does not is
// closed in its time.
func TestEndFromOutside(t *testing.T) {
	r := newRig(t, nil)
	p := r.dial()
	c := r.session(0).c
	c.End(&FatalError{Code: frames.CodeStaleAuthority, Text: "another has come"})
	p.requireEnd(frames.CodeStaleAuthority, "another has come")
	<-c.Done()
	c.End(&FatalError{Code: frames.CodeInternal}) // once more changes nothing, and does not hang

	r.dialReady().ask(1, "stream") // of which it reads nothing
	c = r.session(1).c
	r.eventually("it streams", func() bool { return len(r.session(1).texts()) == 1 })
	r.clk.Advance(grantTick / 2) // so that its next look and the ending are due at different times
	c.End(&FatalError{Code: frames.CodeStaleAuthority, Text: "another has come"})
	r.eventually("the ending has a deadline", func() bool {
		at, armed := r.clk.Next()
		return armed && at == r.clk.Now().Boot+drainWait
	})
	r.clk.Advance(drainWait / 2)
	c.End(&FatalError{Code: frames.CodeInternal, Text: "and another"}) // a later fault prolongs no ending
	r.clk.Advance(drainWait / 2)
	<-c.Done()
}

// A key that is revoked is cut off at once. Connections that have ended by then keep nothing of
// the registry.
func TestRevokedKeyIsCutOff(t *testing.T) {
	r := newRig(t, nil)
	rules := handshake.Rules{Scopes: handshake.ScopeNames{"one": 1}, NeedCoordinator: true}
	file := filepath.Join(shortDir(t), "keys")
	require.NoError(t, handshake.CreateRegistry(file))
	require.NoError(t, handshake.AddRecord(file, handshake.Record{PublicKey: clientKey.Public(), Scope: 1, ExpiresAt: farFuture, Coordinator: coordA, Label: "client"}, rules))
	registry, err := handshake.OpenRegistry(file, handshake.RegistryOptions{Clock: clock.System(), KnownScopes: rules.Scopes, NeedCoordinator: true})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- registry.Run(ctx) }()
	r.srv.opt.Handshake.Registry = registry
	past, p := r.dial(), r.dial()
	past.Close()
	over := r.session(0).c
	<-over.Done()
	_, err = handshake.RevokeRecord(file, "client", clock.System().Now().Unix(), rules)
	require.NoError(t, err)
	p.requireEnd(frames.CodeAuthenticationFailed, AuthFailed)
	<-r.session(1).c.grant.Load().Revoked()
	select {
	case <-over.grant.Load().Revoked():
		t.Fatal("the registry still knows the grant of a connection that has ended")
	default:
	}
	_, _, err = r.prover().Connect(t.Context(), func(context.Context) (net.Conn, handshake.Channel, error) {
		return r.connect(), handshake.UDSPeer{Cred: sock.SelfCred()}, nil
	})
	var refused *RefusedError
	require.ErrorAs(t, err, &refused)
	cancel()
	require.ErrorIs(t, <-ran, context.Canceled)
}

// Nothing goes to a key whose time is over, not even what it was owed; and it is cut off when
// nothing is owed to it, too.
func TestC04_ExpiredKeyIsCutOff(t *testing.T) {
	for _, quiet := range []bool{false, true} {
		r := newRig(t, nil)
		end := r.clk.Now().Unix() + 5
		r.srv.opt.Handshake.Registry = handshake.StaticRegistry([]handshake.Record{
			{PublicKey: clientKey.Public(), Scope: 1, ExpiresAt: end, Coordinator: coordA, Label: "short"},
		})
		p := r.dialReady()
		for range 4 {
			r.clk.Advance(time.Second)
			p.ask(1, "on")
			require.IsType(t, new(answer), p.next())
		}
		r.eventually("the watcher waits", func() bool { return r.clk.Timers() == 1 })
		if quiet {
			r.clk.Advance(time.Second)
		} else {
			r.clk.StepWall(time.Second) // no timer rings: the writer has to see it
			p.ask(2, "over")
		}
		p.requireEnd(frames.CodeAuthenticationFailed, AuthFailed)
	}
}

// Connections are bounded before the proof, after it, and for each key.
func TestC14_ConnectionsAreBounded(t *testing.T) {
	r := newRig(t, func(o *ServerOptions) { o.MaxUnauthenticated, o.MaxPerKey, o.MaxConnections = 2, 2, 3 })
	var waiting []net.Conn
	for range 2 {
		waiting = append(waiting, r.connect())
	}
	r.eventually("both wait", func() bool { n, _ := r.srv.Connections(); return n == 2 })
	_, err := r.connect().Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF, "closed at once")
	for _, nc := range waiting {
		nc.Close()
	}
	r.eventually("they are given back", func() bool { n, _ := r.srv.Connections(); return n == 0 })

	refused := func(p *Prover) {
		t.Helper()
		_, err := p.Shake(r.connect(), handshake.UDSPeer{Cred: sock.SelfCred()})
		var e *RefusedError
		require.ErrorAs(t, err, &e)
		require.Equal(t, frames.CodeResourceExhausted, e.Code)
		r.eventually("it is given back", func() bool { n, _ := r.srv.Connections(); return n == 0 })
	}
	first := r.dial()
	r.dial()
	refused(r.prover()) // the third of its key
	other := r.prover()
	other.Key, other.CoordinatorID = otherKey, coordB
	_, err = other.Shake(r.connect(), handshake.UDSPeer{Cred: sock.SelfCred()})
	require.NoError(t, err, "another key's place")
	refused(other) // the fourth of all
	first.Close()
	r.eventually("a place is free", func() bool { _, n := r.srv.Connections(); return n == 2 })
	r.dial()
}

// Types of other links have no form here.
func TestC01_NamespacesAreApart(t *testing.T) {
	require.True(t, testLink.Has(typeAsk))
	require.True(t, testLink.Has(TypeHello))
	require.False(t, testLink.Has(0x30))
	_, err := testLink.Decode(0x30, nil)
	require.Equal(t, frames.CodeProtocolError, frames.CodeOf(err))
	_, err = testLink.Decode(typeAsk, nil)
	var form *codec.Error
	require.ErrorAs(t, err, &form)
	_, err = Append(nil, &ask{})
	require.Error(t, err, "what no decoder would take is not sent")
}
