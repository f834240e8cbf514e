package server

import (
	"context"
	"crypto/rand"
	"errors"
	"maps"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/clock"
	"coordinator/internal/sock"
	"coordinator/server/authority"
	"coordinator/witness"
)

// granting is a witness that grants whatever is asked for, on the clock of a
// bubble. Servers do not verify the signature of their own certificate.
type granting struct {
	id   frames.CoordinatorID
	gate *atomic.Pointer[chan struct{}] // renewals wait for it to be closed
}

func (g granting) Activate(_ context.Context, epoch frames.AuthorityEpoch, inc frames.IncarnationID, lease uint16) (frames.Certificate, error) {
	now := uint64(time.Now().Unix())
	return frames.Certificate{
		WitnessID: frames.WitnessID{1}, CoordinatorID: g.id, Activation: 1, Epoch: epoch, IncarnationID: inc, Token: [32]byte{1},
		IssuedAt: now, ExpiresAt: now + uint64(lease), WitnessKeyID: [32]byte{2}, Signature: [64]byte{3},
	}, nil
}

func (g granting) Renew(ctx context.Context, cur frames.Certificate, lease uint16) (frames.Certificate, error) {
	if gate := g.gate.Load(); gate != nil {
		select {
		case <-*gate:
		case <-ctx.Done():
			return frames.Certificate{}, ctx.Err()
		}
	}
	cur.IssuedAt = uint64(time.Now().Unix())
	cur.ExpiresAt = cur.IssuedAt + uint64(lease)
	return cur, nil
}

func (granting) Relinquish(context.Context, frames.Certificate) error { return nil }
func (granting) Status(context.Context) (witness.Status, error)       { return witness.Status{}, nil }

// anyLock is a store lock that is never lost.
type anyLock struct{}

func (anyLock) Check() error { return nil }

// bubble runs f in a synctest bubble with an activated server that listens
// nowhere: connections are pipes with made-up peer credentials.
func bubble(t *testing.T, f func(t *testing.T, b *bed)) {
	r := newRig(t) // real files, made outside of the bubble
	synctest.Test(t, func(t *testing.T) {
		o := r.opts
		stepped := &steppedClock{Clock: clock.Runtime()}
		o.Clock = stepped
		o.Store.Manual = true
		o = o.withDefaults()
		st, err := openStore(o)
		require.NoError(t, err)
		s, err := newServer(o, st)
		require.NoError(t, err)
		key, err := handshake.LoadKey(o.path(AuthorityKeyFile))
		require.NoError(t, err)
		s.registry = handshake.StaticRegistry([]handshake.Record{{
			PublicKey: r.keys[0].Public(), Scope: uint64(frames.AllScopes), ExpiresAt: uint64(time.Now().Add(100 * time.Second).Unix()), Label: "first",
		}})
		wit := granting{id: o.CoordinatorID, gate: new(atomic.Pointer[chan struct{}])}
		act, err := authority.Activate(t.Context(), authority.ActivateOptions{
			Authority: wit, Clock: o.Clock, Rand: rand.Reader, CoordinatorID: o.CoordinatorID, LeaseSeconds: 60,
		})
		require.NoError(t, err)
		s.activate(o, act, key)
		keeper := authority.NewKeeper(authority.KeeperOptions{
			Fence: s.fence, Authority: wit, Clock: o.Clock, Lock: anyLock{}, LeaseSeconds: 60, OnRenewed: s.announce,
		})
		keeping, writing, expiring := start(keeper.Run), start(s.writer.Run), start(s.streams.Run)
		require.NoError(t, s.writer.Install(t.Context(), act.Certificate))
		r.info = Info{Fingerprint: s.pin}
		r.t = t
		b := &bed{t: t, r: r, s: s, clock: stepped, renewals: wit.gate}
		defer func() {
			require.ErrorIs(t, s.end(o, nil, keeper, keeping, writing, expiring), b.ends)
			require.NoError(t, st.Close())
		}()
		f(t, b)
	})
}

// steppedClock is a clock whose wall half can be set, and whose halves can both jump ahead
// of its timers.
type steppedClock struct {
	clock.Clock
	by, ahead atomic.Int64
}

func (c *steppedClock) Now() clock.Reading {
	r := c.Clock.Now()
	r.Wall = r.Wall.Add(time.Duration(c.by.Load() + c.ahead.Load()))
	r.Boot += time.Duration(c.ahead.Load())
	return r
}

// bed is what a test in a bubble works with.
type bed struct {
	t     *testing.T
	r     *rig
	s     *Server
	clock *steppedClock
	// renewals wait until the channel that is stored here is closed.
	renewals *atomic.Pointer[chan struct{}]
	// ends is what the server must end with; nil is a graceful stop.
	ends error
}

// raw connects a pipe.
func (b *bed) raw() *peer {
	b.t.Helper()
	mine, theirs := net.Pipe()
	require.True(b.t, b.s.Serve(theirs, b.channel()))
	return newPeer(b.t, mine)
}

func (b *bed) channel() handshake.Channel {
	return handshake.UDSPeer{Cred: sock.Cred{UID: 1, GID: 2, PID: 3}}
}

func (b *bed) connect() *peer {
	b.t.Helper()
	p := b.raw()
	require.NoError(b.t, p.shake(b.r, b.r.keys[0], uint64(frames.AllScopes), b.channel()))
	return p
}

// until reads frames until one of the wanted type and says how long that took.
func (p *peer) until(want frames.Type) (frames.Frame, time.Duration) {
	p.t.Helper()
	begun := time.Now()
	for {
		f, err := p.any()
		require.NoError(p.t, err, "while waiting for %v", want)
		if f.Type() == want {
			return f, time.Since(begun)
		}
	}
}

func TestASilentConnectionIsPingedAndClosed(t *testing.T) {
	bubble(t, func(t *testing.T, b *bed) {
		p := b.connect()
		_, first := p.until(frames.TypePing)
		require.Equal(t, pingAfter, first)
		_, second := p.until(frames.TypePing)
		require.Equal(t, pingAfter, second)
		begun := time.Now()
		for {
			if _, err := p.any(); err != nil {
				break
			}
		}
		require.Equal(t, closeAfter-2*pingAfter, time.Since(begun))
	})
}

func TestAnAnsweredPingKeepsTheConnection(t *testing.T) {
	bubble(t, func(t *testing.T, b *bed) {
		p := b.connect()
		for range 4 {
			f, waited := p.until(frames.TypePing)
			require.Equal(t, pingAfter, waited)
			p.send(&frames.Pong{Nonce: f.(*frames.Ping).Nonce})
		}
		p.create("{}")
	})
}

func TestHandshakeDeadlines(t *testing.T) {
	hello := func(p *peer) {
		h := baseHello()
		h.HasOffer, h.Offer = true, frames.WorkloadOffer{Profile: frames.Profile, ClientNonce: [32]byte{9}}
		p.send(&h)
		_, err := p.next()
		require.NoError(p.t, err)
	}
	for _, tt := range []struct {
		name string
		do   func(p *peer)
		want time.Duration
	}{
		{"nothing is sent", func(*peer) {}, firstFrameTime},
		{"half a header", func(p *peer) { p.write([]byte{0, 0}) }, firstFrameTime},
		{"only a ping", func(p *peer) {
			p.send(&frames.Ping{Nonce: 1})
			_, err := p.next()
			require.NoError(p.t, err)
		}, helloTime},
		{"no response", hello, responseTime},
		{"a late hello and no response", func(p *peer) {
			time.Sleep(firstFrameTime - time.Second)
			p.send(&frames.Ping{Nonce: 1})
			_, err := p.next()
			require.NoError(p.t, err)
			time.Sleep(3 * time.Second)
			hello(p)
		}, helloTime},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bed) {
				begun := time.Now()
				p := b.raw()
				tt.do(p)
				p.refused(frames.CodeProtocolError)
				require.Equal(t, tt.want, time.Since(begun))
				p.ended()
			})
		})
	}
}

// A response that comes late says nothing of its key, also when it is read before the timer
// of the handshake has run out: the machine was busy, and the client may try again.
func TestALateResponseIsNoFailedProof(t *testing.T) {
	bubble(t, func(t *testing.T, b *bed) {
		p := b.raw()
		cl := &handshake.Client{
			Service: handshake.Service{Name: frames.Service, Major: frames.VersionMajor, Minor: frames.VersionMinor, Scopes: uint64(frames.AllScopes)},
			Key:     b.r.keys[0], Pin: b.r.info.Fingerprint,
		}
		offer, err := cl.NewOffer(rand.Reader)
		require.NoError(t, err)
		hello := baseHello()
		hello.HasOffer, hello.Offer = true, offer
		p.send(&hello)
		challenge, err := p.next()
		require.NoError(t, err)
		resp, err := cl.Respond(&offer, challenge.(*frames.WorkloadChallenge), b.channel(), uint64(frames.AllScopes), uint64(time.Now().Add(time.Minute).Unix()))
		require.NoError(t, err)
		b.clock.ahead.Store(int64(responseTime + 1))
		p.send(resp)
		p.refused(frames.CodeProtocolError)
	})
}

func TestAnExpiredGrantEndsItsConnection(t *testing.T) {
	bubble(t, func(t *testing.T, b *bed) {
		p := b.connect()
		end := time.Unix(int64(p.ok.Grant.ExpiresAt), 0)
		for {
			f, err := p.any()
			require.NoError(t, err)
			if ping, ok := f.(*frames.Ping); ok {
				p.send(&frames.Pong{Nonce: ping.Nonce})
			}
			if e, ok := f.(*frames.CoordError); ok {
				require.Equal(t, frames.CodeAuthenticationFailed, e.Code)
				break
			}
		}
		require.False(t, time.Now().Before(end))
		require.Less(t, time.Since(end), 10*time.Millisecond)
		p.ended()
	})
}

// TestAFullControlLaneClosesTheConnection sends pings to a server whose peer
// reads nothing: 32 answers wait, the next one ends the connection.
func TestAFullControlLaneClosesTheConnection(t *testing.T) {
	bubble(t, func(t *testing.T, b *bed) {
		p := b.connect()
		b.s.mu.Lock()
		running := len(b.s.conns)
		b.s.mu.Unlock()
		require.Equal(t, 1, running)
		frame, err := frames.Append(nil, &frames.Ping{Nonce: 1})
		require.NoError(t, err)
		sent := 0
		for err == nil && sent < 1000 {
			_, err = p.nc.Write(frame)
			sent++
		}
		require.Error(t, err)
		require.GreaterOrEqual(t, sent, frames.ControlLaneFrames)
		require.LessOrEqual(t, sent, 3*frames.ControlLaneFrames)
	})
}

// TestRenewalsToAFullControlLaneCloseTheConnection: a peer that reads nothing is closed
// although it keeps talking.
func TestRenewalsToAFullControlLaneCloseTheConnection(t *testing.T) {
	bubble(t, func(t *testing.T, b *bed) {
		p := b.connect()
		var ended atomic.Bool
		go func() {
			b.s.running.Wait()
			ended.Store(true)
		}()
		for range frames.ControlLaneFrames + 1 { // one of them is stuck in the transport
			b.s.announce(b.s.fence.Current())
			synctest.Wait()
		}
		require.False(t, ended.Load())
		b.s.announce(b.s.fence.Current())
		synctest.Wait()
		require.True(t, ended.Load())
		require.NoError(t, p.nc.Close())
	})
}

// TestAReaderThatStopsReadingIsClosed fills the reply lane: the server stops
// reading, then counts the peer silent.
func TestAPeerThatNeverReadsIsClosed(t *testing.T) {
	bubble(t, func(t *testing.T, b *bed) {
		p := b.connect()
		begun := time.Now()
		var err error
		for err == nil {
			var frame []byte
			frame, err = frames.Append(nil, &frames.GetOperationResult{RequestID: p.id(), Guard: p.guard, OperationID: newID[frames.OperationID](t)})
			require.NoError(t, err)
			_, err = p.nc.Write(frame) // blocks once the server has stopped reading
		}
		require.Equal(t, closeAfter, time.Since(begun))
		require.Less(t, int(p.last), 1000)
	})
}

func TestLeaseEndsAfterSixtySeconds(t *testing.T) {
	bubble(t, func(t *testing.T, b *bed) {
		p := b.connect()
		p.create("{}")
		begin, err := p.open()
		require.NoError(t, err)
		require.EqualValues(t, time.Now().Unix()+frames.LeaseSeconds, begin.LeaseExpiresAt)
		answer := func(d time.Duration) { // keeps the connection alive meanwhile
			end := time.Now().Add(d)
			for time.Now().Before(end) {
				time.Sleep(min(5*time.Second, time.Until(end)))
				p.send(&frames.Ping{Nonce: 77})
				p.until(frames.TypePong)
			}
		}
		answer(59 * time.Second)
		require.Equal(t, 1, b.s.streams.Open())
		time.Sleep(time.Second)
		synctest.Wait()
		require.Zero(t, b.s.streams.Open())
		_, err = p.nextPage(begin.SnapshotID, begin.FirstCursor)
		require.Equal(t, frames.CodeCursorInvalid, frames.CodeOf(err))
		p.create("{}") // only the request ended
	})
}

func TestAFencedWriterEndsItsConnectionAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, b *bed) {
		b.ends = authority.ErrFenced
		p := b.connect()
		b.s.fence.Close(errors.New("test"))
		p.refused(frames.CodeAuthorityFenced)
		p.ended()
		begun := time.Now()
		b.s.running.Wait()
		require.LessOrEqual(t, time.Since(begun), lingerTime)
	})
}

// TestDivergedClocksHoldRepliesBack steps the wall clock: a command is neither
// committed nor answered until a renewal sent afterwards has succeeded, and the
// connection lives through it [D-9].
func TestDivergedClocksHoldRepliesBack(t *testing.T) {
	bubble(t, func(t *testing.T, b *bed) {
		p := b.connect()
		gate := make(chan struct{})
		b.renewals.Store(&gate)
		before := b.s.store.State().Commit
		b.clock.by.Store(int64(-10 * time.Second))
		p.sendCommand(frames.CommandCreateObjective, newID[frames.OperationID](t),
			&frames.CreateObjective{ObjectiveID: newID[frames.ObjectiveID](t), Schema: 1, Document: []byte("{}")})
		p.send(&frames.Ping{Nonce: 4})
		time.Sleep(3 * time.Second)
		synctest.Wait()
		require.Equal(t, before, b.s.store.State().Commit)
		begun := time.Now()
		go func() {
			time.Sleep(2 * time.Second)
			close(gate)
		}()
		f, err := p.next()
		require.NoError(t, err)
		require.GreaterOrEqual(t, time.Since(begun), 2*time.Second)
		if _, ok := f.(*frames.Pong); ok {
			f, err = p.next()
			require.NoError(t, err)
		}
		require.IsType(t, &frames.CoordCommandResult{}, f)
	})
}

// TestNoProcessKeepsOthersOut fills every place of a stranger from one process. Others get
// in, each at the cost of the process that has most, until all have the same; a process that
// has most itself is refused [D-7].
func TestNoProcessKeepsOthersOut(t *testing.T) {
	bubble(t, func(t *testing.T, b *bed) {
		peers := map[uint64][]*peer{}
		dial := func(process uint64) bool {
			mine, theirs := net.Pipe()
			if !b.s.Serve(theirs, handshake.UDSPeer{Cred: sock.Cred{UID: 1, GID: 2, PID: process}}) {
				mine.Close()
				theirs.Close()
				return false
			}
			peers[process] = append(peers[process], newPeer(t, mine))
			return true
		}
		counts := func() map[uint64]int {
			b.s.mu.Lock()
			defer b.s.mu.Unlock()
			require.Equal(t, maxUnauthenticated, b.s.waiting)
			return maps.Clone(b.s.waitingOf)
		}
		for range maxUnauthenticated {
			require.True(t, dial(1))
		}
		require.False(t, dial(1))
		require.False(t, b.s.serve(nil, handshake.TLSExporter{}, nil), "a remote peer takes no place of a process")
		require.True(t, dial(2))
		require.Equal(t, map[uint64]int{1: 63, 2: 1}, counts())
		peers[1][0].ended() // the oldest
		for dial(2) {
		}
		require.Equal(t, map[uint64]int{1: 32, 2: 32}, counts())
		require.True(t, dial(3))
		require.False(t, dial(1))

		p := peers[3][0]
		require.NoError(t, p.shake(b.r, b.r.keys[0], uint64(frames.AllScopes), handshake.UDSPeer{Cred: sock.Cred{UID: 1, GID: 2, PID: 3}}))
		p.create("{}") // one that was let in is nobody's to close any more
		require.True(t, dial(1))
		p.create("{}")
		synctest.Wait()
		b.s.mu.Lock()
		open := len(b.s.conns)
		b.s.mu.Unlock()
		require.Equal(t, maxUnauthenticated+1, open, "those that had to go are gone")
	})
}
