package witness

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/handshake/link"
	"coordinator/internal/clock"
	"coordinator/internal/sock"

	"github.com/stretchr/testify/require"
)

const farFuture = 4_000_000_000 // Unix seconds

// linkRecord enrols linkKey for coordinator A.
func linkRecord(scope uint64) handshake.Record {
	return handshake.Record{PublicKey: linkKey.Public(), Scope: scope, ExpiresAt: farFuture, Coordinator: coordA, Label: "link"}
}

// rig is a witness server without a transport; connections are pipes.
type rig struct {
	t   *testing.T
	clk clock.Clock
	w   *Witness
	srv *Server
	ctx context.Context
	wg  sync.WaitGroup

	mu   sync.Mutex
	errs []error // guarded by mu; what ServeConn returned
}

// newRig makes a server whose registry holds records. Its connections end with the test.
func newRig(t *testing.T, change func(*ServerOptions), records ...handshake.Record) *rig {
	t.Helper()
	clk := clock.Runtime()
	w, _ := newWitness(t, clk)
	o := ServerOptions{
		Witness: w, Clock: clk,
		Handshake: &handshake.Server{
			Service: HandshakeService(), Authority: signKey, Incarnation: incB,
			Registry: handshake.StaticRegistry(records), Rand: rand.Reader, Clock: clk,
		},
	}
	if change != nil {
		change(&o)
	}
	srv, err := NewServer(o)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	r := &rig{t: t, clk: clk, w: w, srv: srv, ctx: ctx}
	t.Cleanup(func() {
		cancel()
		r.wg.Wait()
		a, b := srv.Connections()
		require.Zero(t, a+b, "connections left")
	})
	return r
}

// connect gives the client's end of a fresh connection.
func (r *rig) connect() net.Conn {
	client, server := net.Pipe()
	r.wg.Go(func() {
		err := r.srv.ServeConn(r.ctx, server, handshake.UDSPeer{Cred: sock.SelfCred()})
		r.mu.Lock()
		defer r.mu.Unlock()
		r.errs = append(r.errs, err)
	})
	r.t.Cleanup(func() { client.Close() })
	return client
}

func (r *rig) peer() *peer { return newPeer(r.t, r.connect()) }

// peer is a hand-driven client.
type peer struct {
	t      *testing.T
	nc     net.Conn
	r      *link.Reader
	prover handshake.Client
	hello  LinkHello
}

func newPeer(t *testing.T, nc net.Conn) *peer {
	p := &peer{t: t, nc: nc, r: link.NewReader(nc, namespace),
		prover: handshake.Client{Service: HandshakeService(), Key: linkKey, Pin: handshake.FingerprintOf(signKey.Public())}}
	offer, err := p.prover.NewOffer(rand.Reader)
	require.NoError(t, err)
	p.hello = LinkHello{Version: frames.CurrentVersion(), Name: "test", HasOffer: true, Offer: offer, CoordinatorID: coordA}
	return p
}

func (p *peer) send(f frames.Frame) {
	p.t.Helper()
	require.NoError(p.t, link.WriteFrame(p.nc, f))
}

func anyType(frames.Type) bool { return true }

func (p *peer) recv() frames.Frame {
	p.t.Helper()
	f, err := p.r.Next(anyType)
	require.NoError(p.t, err)
	return f
}

// wantError reads the COORD_ERROR that must come next, and the end behind it.
func (p *peer) wantError(code frames.Code, id frames.RequestID) *frames.CoordError {
	p.t.Helper()
	e, ok := p.recv().(*frames.CoordError)
	require.True(p.t, ok)
	require.Equal(p.t, code, e.Code, e.Message)
	require.Equal(p.t, id, e.RequestID)
	p.wantEnd()
	return e
}

func (p *peer) wantEnd() {
	p.t.Helper()
	_, err := p.r.Next(anyType)
	require.ErrorIs(p.t, err, io.EOF)
}

// challenge sends the hello and reads its answer.
func (p *peer) challenge() *frames.WorkloadChallenge {
	p.t.Helper()
	p.send(&p.hello)
	c, ok := p.recv().(*frames.WorkloadChallenge)
	require.True(p.t, ok)
	return c
}

func (p *peer) respond(scope, expiry uint64) *frames.WorkloadResponse {
	p.t.Helper()
	resp, err := p.prover.Respond(&p.hello.Offer, p.challenge(), handshake.UDSPeer{Cred: sock.SelfCred()}, scope, expiry)
	require.NoError(p.t, err)
	return resp
}

// ready completes the handshake.
func (p *peer) ready() *WitnessHelloOK {
	p.t.Helper()
	p.send(p.respond(ScopeAll, farFuture))
	ok, is := p.recv().(*WitnessHelloOK)
	require.True(p.t, is)
	return ok
}

func TestLinkConversation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newRig(t, nil, linkRecord(ScopeAll)).peer()
		p.send(&frames.Ping{Nonce: 7})
		require.Equal(t, &frames.Pong{Nonce: 7}, p.recv())
		ok := p.ready()
		require.Equal(t, testWitness, ok.WitnessID)
		require.Equal(t, uint16(60), ok.MaxLeaseSecs)
		require.Equal(t, frames.Scope(ScopeAll), ok.Grant.Scope)

		p.send(&GetStatus{RequestID: 1, CoordinatorID: coordA})
		require.Equal(t, &StatusReply{RequestID: 1}, p.recv())
		p.send(&Activate{RequestID: 2, CoordinatorID: coordA, Epoch: 8, IncarnationID: incA, LeaseSecs: 15})
		cert := p.recv().(*CertificateReply).Certificate
		require.NoError(t, handshake.VerifySigned(&cert, pinsFor(coordA)))
		p.send(&Activate{RequestID: 3, CoordinatorID: coordA, Epoch: 9, IncarnationID: incA, LeaseSecs: 15})
		busy := p.recv().(*frames.CoordError)
		require.Equal(t, frames.CodeResourceExhausted, busy.Code, "not fatal: the connection goes on")
		require.Equal(t, frames.RequestID(3), busy.RequestID)
		time.Sleep(5 * time.Second)
		p.send(&Renew{RequestID: 4, CoordinatorID: coordA, Epoch: 8, Activation: 1, IncarnationID: incA, Token: cert.Token, LeaseSecs: 15})
		renewed := p.recv().(*CertificateReply)
		require.Equal(t, cert.ExpiresAt+5, renewed.Certificate.ExpiresAt)
		p.send(&GetStatus{RequestID: 5, CoordinatorID: coordA})
		require.Equal(t, &StatusReply{RequestID: 5, LastEpoch: 8, Activation: 1, LeaseRemaining: 15}, p.recv())
		p.send(&frames.Pong{Nonce: 99}) // unsolicited, ignored
		p.send(&Relinquish{RequestID: 6, CoordinatorID: coordA, Token: cert.Token, IncarnationID: incA})
		require.Equal(t, &frames.Ack{RequestID: 6}, p.recv())
		p.send(&Renew{RequestID: 7, CoordinatorID: coordA, Epoch: 8, Activation: 1, IncarnationID: incA, Token: cert.Token, LeaseSecs: 15})
		p.wantError(frames.CodeStaleAuthority, 7)
	})
}

// TestC03_VersionBeforeAnythingElse: a foreign version is told even when nothing else parses.
func TestC03_VersionBeforeAnythingElse(t *testing.T) {
	for _, body := range [][]byte{
		{1, 4, 2, 0, 0, 2, 4, 2, 0, 9},                         // nothing after the version
		{1, 4, 2, 0, 1, 2, 4, 2, 0, 1, 3, 4, 2, 0, 0, 9, 0xff}, // rubbish after it
	} {
		synctest.Test(t, func(t *testing.T) {
			p := newRig(t, nil, linkRecord(ScopeAll)).peer()
			_, err := p.nc.Write(append([]byte{0, 0, 0, byte(len(body) + 1), byte(TypeLinkHello)}, body...))
			require.NoError(t, err)
			p.wantError(frames.CodeVersionIncompatible, 0)
		})
	}
}

// TestC03_NothingWithoutProof: no request is taken before the proof, none of another link ever.
func TestC03_NothingWithoutProof(t *testing.T) {
	for _, f := range []frames.Frame{
		&Activate{RequestID: 1, CoordinatorID: coordA, Epoch: 1, IncarnationID: incA, LeaseSecs: 15},
		&GetStatus{RequestID: 1, CoordinatorID: coordA},
		&frames.WorkloadResponse{ScopeBytes: frames.ScopeBytes(3)},
		&frames.Pong{},
		&WitnessHelloOK{Version: frames.CurrentVersion(), WitnessID: testWitness, MaxLeaseSecs: 60},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, nil, linkRecord(ScopeAll))
			p := r.peer()
			p.send(f)
			p.wantError(frames.CodeProtocolError, 0)

			p = r.peer() // between challenge and response nothing else is allowed either
			p.challenge()
			if f.Type() != frames.TypeWorkloadResponse {
				p.send(f)
				p.wantError(frames.CodeProtocolError, 0)
			}
			s, err := r.w.Status(coordA)
			require.NoError(t, err)
			require.Zero(t, s)
		})
	}
}

// TestC04_FailedProofsLookAlike: whatever is wrong, the answer is the same.
func TestC04_FailedProofsLookAlike(t *testing.T) {
	now := uint64(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).Unix()) // where a bubble begins
	record := func(change func(*handshake.Record)) handshake.Record {
		r := linkRecord(ScopeAll)
		change(&r)
		return r
	}
	good := linkRecord(ScopeAll)
	for _, tt := range []struct {
		name   string
		record handshake.Record
		act    func(p *peer)
	}{
		{"key not enrolled", record(func(r *handshake.Record) { r.PublicKey = signKey.Public() }),
			func(p *peer) { p.send(p.respond(ScopeAll, farFuture)) }},
		{"key revoked", record(func(r *handshake.Record) { r.RevokedAt = now - 10 }),
			func(p *peer) { p.send(p.respond(ScopeAll, farFuture)) }},
		{"key expired", record(func(r *handshake.Record) { r.ExpiresAt = now }),
			func(p *peer) { p.send(p.respond(ScopeAll, farFuture)) }},
		{"key of another coordinator", record(func(r *handshake.Record) { r.Coordinator = coordB }),
			func(p *peer) { p.send(p.respond(ScopeAll, farFuture)) }},
		{"expiry in the past", good, func(p *peer) { p.send(p.respond(ScopeAll, now)) }},
		{"unknown scope bit", good, func(p *peer) { p.send(p.respond(1<<40, farFuture)) }},
		{"no scope in common", linkRecord(ScopeStatus), func(p *peer) { p.send(p.respond(ScopeActivate, farFuture)) }},
		{"scope of seven bytes", good, func(p *peer) {
			resp := p.respond(ScopeAll, farFuture)
			resp.ScopeBytes = resp.ScopeBytes[:7]
			p.send(resp)
		}},
		{"altered proof", good, func(p *peer) {
			resp := p.respond(ScopeAll, farFuture)
			resp.Proof[0] ^= 1
			p.send(resp)
		}},
		{"altered expiry", good, func(p *peer) {
			resp := p.respond(ScopeAll, farFuture)
			resp.RequestedExpiry++
			p.send(resp)
		}},
		{"proof for another service", good, func(p *peer) {
			// The proof is made as for the endpoint, over a challenge rewritten to pass there.
			c := p.challenge()
			c.Service = frames.Service
			p.prover.Service.Name = frames.Service
			resp, err := p.prover.Respond(&p.hello.Offer, c, handshake.UDSPeer{Cred: sock.SelfCred()}, ScopeAll, farFuture)
			require.ErrorIs(p.t, err, handshake.ErrServerProof, "the client notices first")
			require.Nil(p.t, resp)
			p.send(&frames.WorkloadResponse{KeyID: holderA, ScopeBytes: frames.ScopeBytes(ScopeAll), RequestedExpiry: farFuture})
		}},
		{"no offer", good, func(p *peer) { p.hello.HasOffer = false; p.send(&p.hello) }},
		{"offer of another profile", good, func(p *peer) { p.hello.Offer.Profile = "phux-workload/v2"; p.send(&p.hello) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newRig(t, nil, tt.record).peer()
				tt.act(p)
				e := p.wantError(frames.CodeAuthenticationFailed, 0)
				require.Equal(t, link.AuthFailed, e.Message)
			})
		})
	}
}

// TestC04_ReplayedResponse: a response proves one connection only.
func TestC04_ReplayedResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil, linkRecord(ScopeAll))
		p := r.peer()
		resp := p.respond(ScopeAll, farFuture)
		p.send(resp)
		require.IsType(t, &WitnessHelloOK{}, p.recv())
		other := r.peer()
		other.hello.Offer = p.hello.Offer
		other.challenge()
		other.send(resp)
		other.wantError(frames.CodeAuthenticationFailed, 0)
		p.send(resp) // a second response on its own connection
		p.wantError(frames.CodeProtocolError, 0)
	})
}

// TestC02_CapsComeFirst: length and type are judged before any body is read or reserved.
func TestC02_CapsComeFirst(t *testing.T) {
	for _, tt := range []struct {
		name   string
		header []byte
		code   frames.Code
	}{
		{"length zero", []byte{0, 0, 0, 0}, frames.CodeFrameTooLarge},
		{"length 2^32-1", []byte{0xff, 0xff, 0xff, 0xff}, frames.CodeFrameTooLarge},
		{"length over 1 MiB", []byte{0, 0x10, 0, 1}, frames.CodeFrameTooLarge},
		{"length over 16 KiB", []byte{0, 0, 0x40, 1, byte(TypeLinkHello)}, frames.CodeFrameTooLarge},
		{"unknown type", []byte{0, 0, 0, 1, 0x66}, frames.CodeProtocolError},
		{"unknown type over its cap", []byte{0, 0, 0x40, 1, 0x66}, frames.CodeProtocolError},
		{"type of the server", []byte{0, 0, 0, 1, byte(TypeCertificate)}, frames.CodeProtocolError},
		{"hello without fields", []byte{0, 0, 0, 1, byte(TypeLinkHello)}, frames.CodeMalformedMessage},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newRig(t, nil).peer()
				_, err := p.nc.Write(tt.header) // no body follows, and none is waited for
				require.NoError(t, err)
				p.wantError(tt.code, 0)
			})
		})
	}
}

func TestFaultsOnAProvedConnection(t *testing.T) {
	for _, tt := range []struct {
		name  string
		frame frames.Frame
		code  frames.Code
		id    frames.RequestID
	}{
		{"second hello", &LinkHello{Version: frames.CurrentVersion(), CoordinatorID: coordA}, frames.CodeProtocolError, 0},
		{"another coordinator", &GetStatus{RequestID: 4, CoordinatorID: coordB}, frames.CodeAuthenticationFailed, 4},
		{"activation for another coordinator", &Activate{RequestID: 4, CoordinatorID: coordB, Epoch: 1, IncarnationID: incA, LeaseSecs: 6}, frames.CodeAuthenticationFailed, 4},
		{"lease of 61 s", &Activate{RequestID: 9, CoordinatorID: coordA, Epoch: 1, IncarnationID: incA, LeaseSecs: 61}, frames.CodeMalformedMessage, 9},
		{"renewal of nothing", &Renew{RequestID: 2, CoordinatorID: coordA, Epoch: 1, Activation: 1, IncarnationID: incA, LeaseSecs: 6}, frames.CodeStaleAuthority, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, nil, linkRecord(ScopeAll))
				p := r.peer()
				p.ready()
				p.send(tt.frame)
				p.wantError(tt.code, tt.id)
				for _, c := range []frames.CoordinatorID{coordA, coordB} {
					s, err := r.w.Status(c)
					require.NoError(t, err)
					require.Zero(t, s)
				}
			})
		})
	}
}

func TestScopesAreIndependent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newRig(t, nil, linkRecord(ScopeActivate)).peer()
		require.Equal(t, frames.Scope(ScopeActivate), p.ready().Grant.Scope)
		p.send(&GetStatus{RequestID: 1, CoordinatorID: coordA})
		require.Equal(t, frames.CodeScopeDenied, p.recv().(*frames.CoordError).Code)
		p.send(&Activate{RequestID: 2, CoordinatorID: coordA, Epoch: 1, IncarnationID: incA, LeaseSecs: 6})
		require.IsType(t, &CertificateReply{}, p.recv())
	})
	synctest.Test(t, func(t *testing.T) {
		p := newRig(t, nil, linkRecord(ScopeStatus)).peer()
		p.ready()
		p.send(&Activate{RequestID: 1, CoordinatorID: coordA, Epoch: 1, IncarnationID: incA, LeaseSecs: 6})
		require.Equal(t, frames.CodeScopeDenied, p.recv().(*frames.CoordError).Code)
		p.send(&GetStatus{RequestID: 2, CoordinatorID: coordA})
		require.Equal(t, &StatusReply{RequestID: 2}, p.recv())
	})
}

func TestUnauthenticatedConnectionsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil, linkRecord(ScopeAll))
		keep := r.peer()
		keep.ready() // proved connections do not count
		var waiting []*peer
		for range link.DefaultUnauthenticated {
			waiting = append(waiting, r.peer())
		}
		synctest.Wait()
		start := time.Now()
		r.peer().wantEnd()
		require.Zero(t, time.Since(start), "closed at once")
		keep.send(&GetStatus{RequestID: 1, CoordinatorID: coordA})
		require.IsType(t, &StatusReply{}, keep.recv(), "the proved one is served meanwhile")
		for _, p := range waiting {
			p.wantEnd()
		}
		require.Equal(t, 5*time.Second, time.Since(start))
		r.peer().ready() // room again
	})
}

func TestConnectionsOfOneKeyAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(o *ServerOptions) { o.MaxPerKey = 2 }, linkRecord(ScopeAll))
		first := r.peer()
		first.ready()
		r.peer().ready()
		p := r.peer()
		p.send(p.respond(ScopeAll, farFuture))
		p.wantError(frames.CodeResourceExhausted, 0)
		first.nc.Close()
		synctest.Wait()
		r.peer().ready()
	})
}

// TestC05_FailedStoreStopsServing: when a grant cannot be stored the peer gets no certificate
// and the server's caller is told to stop.
func TestC05_FailedStoreStopsServing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil, linkRecord(ScopeAll))
		p := r.peer()
		p.ready()
		require.NoError(t, r.w.ledger.db.Close())
		p.send(&Activate{RequestID: 1, CoordinatorID: coordA, Epoch: 1, IncarnationID: incA, LeaseSecs: 6})
		e := p.wantError(frames.CodeInternal, 1)
		require.NotContains(t, e.Message, "database")
		r.wg.Wait()
		require.Len(t, r.errs, 1)
		require.ErrorIs(t, r.errs[0], ErrFailed)
	})
}

// starvedListener has no descriptors left.
type starvedListener struct {
	calls int
	err   error
	done  chan struct{}
}

func (l *starvedListener) Accept() (*net.UnixConn, error) {
	l.calls++
	select {
	case <-l.done:
		return nil, net.ErrClosed
	default:
		return nil, l.err
	}
}
func (l *starvedListener) Close() error { close(l.done); return nil }

func TestAcceptRestsWhenDescriptorsRunOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		l := &starvedListener{err: &net.OpError{Op: "accept", Err: errEMFILE}, done: make(chan struct{})}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		require.NoError(t, r.srv.Serve(ctx, l))
		require.InDelta(t, 100, l.calls, 3)
	})
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		l := &starvedListener{err: errors.New("broken for good"), done: make(chan struct{})}
		require.ErrorContains(t, r.srv.Serve(context.Background(), l), "broken for good")
	})
}
