package server

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/client"
	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/clock"
	"coordinator/internal/quicnet"
	"coordinator/internal/sock"
)

// patience bounds what a test on real sockets waits for; only a failure takes so long.
const patience = 60 * time.Second

// A way is one transport to the endpoint.
type way struct {
	name string
	dial func(*rig) (net.Conn, handshake.Channel, error)
	to   func(*rig, *client.Context)
}

var ways = []way{
	{"unix", func(r *rig) (net.Conn, handshake.Channel, error) {
		nc, err := sock.Dial(context.Background(), r.info.Socket)
		return nc, handshake.UDSPeer{Cred: sock.SelfCred()}, err
	}, func(r *rig, c *client.Context) { c.Socket = r.info.Socket }},
	{"quic", func(r *rig) (net.Conn, handshake.Channel, error) {
		return r.dialQUIC(frames.Service, r.info.Fingerprint)
	},
		func(r *rig, c *client.Context) { c.QUIC = r.info.QUIC }},
}

const overUnix, overQUIC = 0, 1

func (r *rig) dialQUIC(service string, pin frames.Fingerprint) (net.Conn, handshake.Channel, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conf := handshake.ClientTLS(pin, handshake.Service{Name: service}.ALPN(), time.Now)
	nc, err := quicnet.Dial(ctx, r.info.QUIC, quicnet.Options{TLS: conf})
	if err != nil {
		return nil, nil, err
	}
	return nc, handshake.TLSExporter{Export: nc.Export}, nil
}

// via connects without a handshake.
func (r *rig) via(w way) (*peer, handshake.Channel) {
	r.t.Helper()
	nc, ch, err := w.dial(r)
	require.NoError(r.t, err)
	require.NoError(r.t, nc.SetDeadline(time.Now().Add(patience)))
	return newPeer(r.t, nc), ch
}

// remoteRig is a rig that serves both transports.
func remoteRig(t *testing.T) *rig {
	r := newRig(t)
	r.opts.QUIC = "127.0.0.1:0"
	r.start()
	return r
}

// A half is a handshake up to its challenge.
type half struct {
	*peer
	ch        handshake.Channel
	prover    *handshake.Client
	offer     frames.WorkloadOffer
	challenge *frames.WorkloadChallenge
}

func (r *rig) challenged(w way, p *peer, ch handshake.Channel) *half {
	r.t.Helper()
	h := &half{peer: p, ch: ch, prover: &handshake.Client{
		Service: handshake.Service{Name: frames.Service, Major: frames.VersionMajor, Minor: frames.VersionMinor, Scopes: uint64(frames.AllScopes)},
		Key:     r.keys[0], Pin: r.info.Fingerprint,
	}}
	var err error
	h.offer, err = h.prover.NewOffer(rand.Reader)
	require.NoError(r.t, err)
	hello := baseHello()
	hello.HasOffer, hello.Offer = true, h.offer
	p.send(&hello)
	f, err := p.next()
	require.NoError(r.t, err)
	var ok bool
	h.challenge, ok = f.(*frames.WorkloadChallenge)
	require.True(r.t, ok, "%T", f)
	return h
}

// respond makes the proof of h, bound to ch.
func (h *half) respond(ch handshake.Channel) (*frames.WorkloadResponse, error) {
	return h.prover.Respond(&h.offer, h.challenge, ch, uint64(frames.AllScopes), uint64(time.Now().Add(time.Minute).Unix()))
}

// TestBothTransports runs the same cases over each.
func TestBothTransports(t *testing.T) {
	r := remoteRig(t)
	for _, w := range ways {
		start := func() *half {
			p, ch := r.via(w)
			return r.challenged(w, p, ch)
		}
		fails := func(t *testing.T, h *half, resp *frames.WorkloadResponse) {
			t.Helper()
			h.send(resp)
			h.refused(frames.CodeAuthenticationFailed) // the error arrives
			_, err := h.any()
			require.ErrorIs(t, err, io.EOF) // and then the end
		}
		for _, tt := range []struct {
			name string
			run  func(*testing.T)
		}{
			{"work is done", func(t *testing.T) {
				p, ch := r.via(w)
				require.NoError(t, p.shake(r, r.keys[0], uint64(frames.AllScopes), ch))
				p.create(`{"title":"over ` + w.name + `"}`)
				require.NotEmpty(t, p.snapshot().records)
				p.close()
			}},
			{"the binding is the transport's own", func(t *testing.T) {
				h := start()
				want := frames.BindingUDSPeer
				if w.name == "quic" {
					want = frames.BindingTLSExporter
				}
				require.Equal(t, want, h.challenge.BindingKind)
			}},
			{"altered proof", func(t *testing.T) {
				h := start()
				resp, err := h.respond(h.ch)
				require.NoError(t, err)
				resp.Proof[7] ^= 1
				fails(t, h, resp)
			}},
			{"proof of another connection", func(t *testing.T) {
				a, b := start(), start()
				resp, err := a.respond(a.ch)
				require.NoError(t, err)
				fails(t, b, resp)
			}},
			{"malformed frame", func(t *testing.T) {
				p, _ := r.via(w)
				p.write(header(1<<21, frames.TypeCoordHello))
				p.refused(frames.CodeFrameTooLarge)
				_, err := p.any()
				require.ErrorIs(t, err, io.EOF)
			}},
			{"peer that sends on after its error", func(t *testing.T) {
				p, _ := r.via(w)
				p.write(header(1<<21, frames.TypeCoordHello))
				go p.nc.Write(make([]byte, 1<<20)) //nolint:errcheck // as long as it is let
				p.refused(frames.CodeFrameTooLarge)
			}},
		} {
			t.Run(w.name+"/"+tt.name, tt.run)
		}
	}
	require.NoError(t, r.stop())
}

// TestC04_NoProofCrossesTransports: a proof for one transport is none on the other, whoever
// carries it there.
func TestC04_NoProofCrossesTransports(t *testing.T) {
	r := remoteRig(t)
	for i, w := range ways {
		other := ways[1-i]
		t.Run(other.name+" proof on "+w.name, func(t *testing.T) {
			p, ch := r.via(w)
			q, otherCh := r.via(other)
			here, there := r.challenged(w, p, ch), r.challenged(other, q, otherCh)
			_, err := here.respond(otherCh)
			require.ErrorIs(t, err, handshake.ErrBinding, "an honest client notices")
			resp, err := there.respond(otherCh)
			require.NoError(t, err)
			here.send(resp)
			here.refused(frames.CodeAuthenticationFailed)
		})
	}
	// Somebody in between who ends the client's TLS himself has no certificate for it.
	_, _, err := r.dialQUIC(frames.Service, frames.Fingerprint(sha256.Sum256([]byte("another"))))
	var pin *handshake.PinError
	require.ErrorAs(t, err, &pin)
	require.Equal(t, r.info.Fingerprint, pin.Got)
	_, _, err = r.dialQUIC("phux-witness", r.info.Fingerprint)
	require.ErrorIs(t, err, quicnet.ErrLabel)
}

// TestC03_NoFrameBeforeThePin: a client that meets another authority sends nothing.
func TestC03_NoFrameBeforeThePin(t *testing.T) {
	key := newKey(t)
	conf, err := handshake.ServerTLS(key, handshake.Service{Name: frames.Service}.ALPN(), rand.Reader, time.Now())
	require.NoError(t, err)
	l, err := quicnet.Listen("127.0.0.1:0", quicnet.Options{TLS: conf})
	require.NoError(t, err)
	met := make(chan error, 1)
	go func() { _, err := l.Accept(); met <- err }()
	r := &rig{t: t, info: Info{QUIC: l.Addr().String()}}
	_, _, err = r.dialQUIC(frames.Service, handshake.FingerprintOf(newKey(t).Public()))
	var pin *handshake.PinError
	require.ErrorAs(t, err, &pin)
	require.NoError(t, l.Finish())
	require.ErrorIs(t, <-met, net.ErrClosed, "no stream was ever opened")
}

// Remote peers that prove nothing leave room at the Unix socket, and one that has proved
// itself no longer counts.
func TestRemotePeersLeaveRoom(t *testing.T) {
	r := remoteRig(t)
	p, ch := r.via(ways[overQUIC])
	require.NoError(t, p.shake(r, r.keys[0], uint64(frames.AllScopes), ch))
	var busy error
	for range maxUnauthenticated {
		nc, _, err := r.dialQUIC(frames.Service, r.info.Fingerprint)
		if err != nil {
			busy = err
			break
		}
		defer nc.Close()
		_, err = nc.Write([]byte{0})
		require.NoError(t, err)
	}
	require.ErrorIs(t, busy, quicnet.ErrBusy)
	r.connect(r.keys[1]).create("{}")
	p.create("{}")
}

// TestSettledRemotePeersTakeNoStrangersPlace has more peers of one host prove themselves than
// it may have strangers.
func TestSettledRemotePeersTakeNoStrangersPlace(t *testing.T) {
	r := remoteRig(t)
	for i := range maxRemoteUnauthenticated/2 + 4 {
		p, ch := r.via(ways[overQUIC])
		require.NoError(t, p.shake(r, r.keys[i%2], uint64(frames.AllScopes), ch))
	}
	r.srv.mu.Lock()
	defer r.srv.mu.Unlock()
	require.Zero(t, r.srv.waiting)
}

// context is a client's, over one transport.
func (r *rig) context(w way) *client.Context {
	c := &client.Context{
		Path: r.t.TempDir() + "/context.toml", Name: "test", CoordinatorID: r.opts.CoordinatorID, Authority: r.info.Fingerprint,
		WitnessID: r.witID, WitnessPublicKey: r.witKey.Public(),
	}
	w.to(r, c)
	return c
}

// TestTenThousandCommands: neither commands that end nor such as are given up use anything
// up on their one connection.
func TestTenThousandCommands(t *testing.T) {
	const many = 10_000
	const goroutinesOfAStore = 4 // which come and go by themselves, as for a checkpoint
	r := remoteRig(t)
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 4*patience)
			defer cancel()
			cl, err := client.Dial(ctx, r.context(w), client.Options{Key: r.keys[0], Clock: clock.System()})
			require.NoError(t, err)
			_, sub, err := cl.SnapshotAndSubscribe(ctx, client.SubscribeOptions{})
			if err != nil {
				cl.Close()
			}
			require.NoError(t, err)
			made, followed := make(chan struct{}), make(chan error, 1)
			done := make(chan struct{})
			defer func() {
				cl.Close()
				<-done
			}()
			go func() { // the subscription is open throughout, and sees each objective once
				defer close(done)
				seen := 0
				for u, err := range sub.Events(ctx) {
					if err != nil {
						followed <- err
						return
					}
					if e, ok := u.(*client.Event); ok && e.Object.Kind == frames.KindObjective {
						if seen++; seen == many/10*9 {
							close(made)
						}
					}
				}
			}()
			before := runtime.NumGoroutine()
			op := newID[frames.OperationID](t)
			for i := range many {
				binary.BigEndian.PutUint32(op[:], uint32(i)+1)
				var cmd client.Command
				if i%10 == 0 { // one that the server refuses
					cmd, err = client.NewCommand(op, frames.CommandStartRun, &frames.CreateObjective{ObjectiveID: frames.ObjectiveID(op), Schema: 1, Document: []byte("{}")})
				} else {
					cmd, err = client.NewCommand(op, frames.CommandCreateObjective, &frames.CreateObjective{ObjectiveID: frames.ObjectiveID(op), Schema: 1, Document: []byte("{}")})
				}
				require.NoError(t, err)
				if _, err = cl.Command(ctx, cmd); i%10 != 0 {
					require.NoError(t, err, "command %d", i)
				} else {
					var refused *client.RefusedError
					require.ErrorAs(t, err, &refused, "command %d", i)
				}
			}
			select {
			case <-made:
			case err := <-followed:
				t.Fatalf("the subscription ended: %v", err)
			}
			for i := range many {
				short, stop := context.WithCancel(ctx)
				given := make(chan error, 1)
				go func() { _, err := cl.Lookup(short, op); given <- err }()
				if i%3 == 0 {
					runtime.Gosched()
				}
				stop()
				if err := <-given; err != nil {
					require.ErrorIs(t, err, context.Canceled, "lookup %d", i)
				}
			}
			_, err = cl.Lookup(ctx, op)
			require.NoError(t, err)
			require.Empty(t, followed)
			eventually(t, "nothing is left of them", func() bool {
				left := 0
				r.server().each(func(c *conn) {
					c.mu.Lock()
					defer c.mu.Unlock()
					left += len(c.occupied)
				})
				return left == 0 && runtime.NumGoroutine() <= before+goroutinesOfAStore
			})
		})
	}
}

// A stop does not wait for remote peers that read nothing and never close.
func TestAStopWithRemotePeers(t *testing.T) {
	r := remoteRig(t)
	p, ch := r.via(ways[overQUIC])
	require.NoError(t, p.shake(r, r.keys[0], uint64(frames.AllScopes), ch))
	p.create("{}")
	require.NoError(t, r.stop())
	f, err := p.next()
	if err == nil {
		t.Fatalf("got %T", f)
	}
	var refused *frames.Refusal
	if errors.As(err, &refused) {
		require.Equal(t, frames.CodeAuthorityFenced, refused.Code)
	}
}

// An address that is taken ends the start like any other failed bind.
func TestTakenQUICAddress(t *testing.T) {
	udp, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	defer udp.Close()
	r := newRig(t)
	r.opts.QUIC = udp.LocalAddr().String()
	err = Run(t.Context(), r.opts)
	require.ErrorContains(t, err, "address already in use")
	r.opts.QUIC = ""
	r.start() // and the lease was given back
}

// TestStrangersHaveTheirTimeOnBothTransports: one that sends half a header and one that says
// PING are told that it took too long, and closed [D-7]. TestHandshakeDeadlines has the
// seconds.
func TestStrangersHaveTheirTimeOnBothTransports(t *testing.T) {
	r := remoteRig(t)
	var all []*peer
	for _, w := range []way{ways[overQUIC], ways[overUnix]} { // last words over QUIC do not wait long for who reads them
		half, _ := r.via(w)
		half.write([]byte{0, 0})
		polite, _ := r.via(w)
		polite.send(&frames.Ping{Nonce: 7})
		f, err := polite.next()
		require.NoError(t, err)
		require.Equal(t, &frames.Pong{Nonce: 7}, f)
		all = append(all, half, polite)
	}
	for _, p := range all {
		p.refused(frames.CodeProtocolError)
		_, err := p.any()
		require.ErrorIs(t, err, io.EOF)
	}
	r.connect(r.keys[0]).create("{}")
}
