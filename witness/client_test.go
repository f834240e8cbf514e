package witness

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
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

var impostorKey = handshake.NewKey(sha256.Sum256([]byte("another witness's key")))

func clientOptions(dial func(context.Context) (net.Conn, error)) ClientOptions {
	return ClientOptions{
		Dial: func(ctx context.Context) (net.Conn, handshake.Channel, error) {
			c, err := dial(ctx)
			return c, handshake.UDSPeer{Cred: sock.SelfCred()}, err
		},
		Pin: handshake.FingerprintOf(signKey.Public()), WitnessID: testWitness,
		CoordinatorID: coordA, Key: linkKey, Clock: clock.Runtime(), Rand: rand.Reader,
	}
}

// client makes a client of the rig and counts how often it dials.
func (r *rig) client(dials *int) *Client {
	r.t.Helper()
	c, err := NewClient(clientOptions(func(context.Context) (net.Conn, error) {
		*dials++
		return r.connect(), nil
	}))
	require.NoError(r.t, err)
	r.t.Cleanup(func() { require.NoError(r.t, c.Close()) })
	return c
}

// TestAuthorities runs one story against the client and the in-process adapter: both are the
// same authority.
func TestAuthorities(t *testing.T) {
	story := func(t *testing.T, a Authority) {
		ctx := context.Background()
		s, err := a.Status(ctx)
		require.NoError(t, err)
		require.Zero(t, s)
		cert, err := a.Activate(ctx, 7, incA, 15)
		require.NoError(t, err)
		require.NoError(t, handshake.VerifySigned(&cert, pinsFor(coordA)))
		_, err = a.Activate(ctx, 8, incB, 15)
		requireCode(t, frames.CodeResourceExhausted, err)
		_, err = a.Activate(ctx, 7, incB, 15)
		requireCode(t, frames.CodeStaleAuthority, err)
		s, err = a.Status(ctx)
		require.NoError(t, err)
		require.Equal(t, Status{LastEpoch: 7, Activation: 1, LeaseRemaining: 15 * time.Second}, s)
		time.Sleep(5 * time.Second)
		next, err := a.Renew(ctx, cert, 15)
		require.NoError(t, err)
		require.Equal(t, cert.ExpiresAt+5, next.ExpiresAt)
		foreign := cert
		foreign.Token[0] ^= 1
		_, err = a.Renew(ctx, foreign, 15)
		requireCode(t, frames.CodeStaleAuthority, err)
		requireCode(t, frames.CodeStaleAuthority, a.Relinquish(ctx, foreign))
		require.NoError(t, a.Relinquish(ctx, next))
		require.NoError(t, a.Relinquish(ctx, next))
		_, err = a.Renew(ctx, next, 15)
		requireCode(t, frames.CodeStaleAuthority, err)
		ended, cancel := context.WithCancel(ctx)
		cancel()
		_, err = a.Activate(ended, 8, incB, 15)
		require.ErrorIs(t, err, context.Canceled)
		second, err := a.Activate(ctx, 9, incB, 15)
		require.NoError(t, err)
		require.Equal(t, frames.ActivationSequence(2), second.Activation)
	}
	t.Run("client", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			dials := 0
			story(t, newRig(t, nil, linkRecord(ScopeAll)).client(&dials))
			require.Equal(t, 5, dials, "one, and one after each refusal that ends a connection")
		})
	})
	t.Run("local", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w, _ := newWitness(t, clock.Runtime())
			story(t, Local{Witness: w, Coordinator: coordA, Holder: holderA})
		})
	})
}

func TestIdleClientKeepsItsConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dials := 0
		c := newRig(t, nil, linkRecord(ScopeAll)).client(&dials)
		require.NoError(t, c.Connect(t.Context()))
		time.Sleep(10 * time.Minute)
		select {
		case <-c.cur.ended:
			t.Fatal(c.cur.err)
		default:
		}
		_, err := c.Status(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, dials)
	})
}

// A connection that broke is replaced: a renewal is sent again, an activation never.
func TestClientReplacesABrokenConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil, linkRecord(ScopeAll))
		var last net.Conn
		dials := 0
		c, err := NewClient(clientOptions(func(context.Context) (net.Conn, error) {
			dials++
			last = r.connect()
			return last, nil
		}))
		require.NoError(t, err)
		defer c.Close()
		cert, err := c.Activate(t.Context(), 1, incA, 15)
		require.NoError(t, err)
		last.Close()
		synctest.Wait() // the client has seen the end
		_, err = c.Renew(t.Context(), cert, 15)
		require.NoError(t, err)
		require.Equal(t, 2, dials)
	})
	synctest.Test(t, func(t *testing.T) {
		// The witness ends the connection instead of answering its first request.
		requests := 0
		c, err := NewClient(clientOptions(func(context.Context) (net.Conn, error) {
			return fakeWitness(t, signKey, testWitness, func(f frames.Frame) frames.Frame {
				if requests++; requests == 2 {
					return nil
				}
				return &StatusReply{RequestID: f.(*GetStatus).RequestID, LastEpoch: 3, Activation: 1}
			}), nil
		}))
		require.NoError(t, err)
		defer c.Close()
		for range 2 { // the second one is sent twice
			s, err := c.Status(t.Context())
			require.NoError(t, err)
			require.Equal(t, frames.AuthorityEpoch(3), s.LastEpoch)
		}
		require.Equal(t, 3, requests)
	})
	synctest.Test(t, func(t *testing.T) {
		requests := 0
		c, err := NewClient(clientOptions(func(context.Context) (net.Conn, error) {
			return fakeWitness(t, signKey, testWitness, func(f frames.Frame) frames.Frame {
				requests++
				if s, ok := f.(*GetStatus); ok {
					return &StatusReply{RequestID: s.RequestID}
				}
				return nil
			}), nil
		}))
		require.NoError(t, err)
		defer c.Close()
		_, err = c.Status(t.Context())
		require.NoError(t, err)
		_, err = c.Activate(t.Context(), 1, incA, 15)
		var refused *RefusedError
		require.Error(t, err)
		require.False(t, errors.As(err, &refused), "no answer is no refusal")
		require.Equal(t, 2, requests)
	})
}

// fakeWitness is the witness's end of a fresh connection that proves itself properly and then
// answers as reply says; nil ends it.
func fakeWitness(t *testing.T, key handshake.Signer, id frames.WitnessID, reply func(frames.Frame) frames.Frame) net.Conn {
	client, server := net.Pipe()
	go func() {
		defer server.Close()
		s := handshake.Server{Service: HandshakeService(), Authority: key, Incarnation: incB,
			Registry: handshake.StaticRegistry([]handshake.Record{linkRecord(ScopeAll)}), Rand: rand.Reader, Clock: clock.Runtime()}
		r := link.NewReader(server, namespace)
		f, err := r.Next(anyType)
		if err != nil {
			return
		}
		x, challenge, err := s.Challenge(&f.(*LinkHello).Offer, handshake.UDSPeer{Cred: sock.SelfCred()})
		if err != nil || link.WriteFrame(server, challenge) != nil {
			return
		}
		if f, err = r.Next(anyType); err != nil {
			return
		}
		grant, err := x.Finish(f.(*frames.WorkloadResponse))
		if err != nil {
			return
		}
		defer grant.Release()
		if link.WriteFrame(server, &WitnessHelloOK{Version: frames.CurrentVersion(), WitnessID: id, Grant: grant.Wire(), MaxLeaseSecs: 60}) != nil {
			return
		}
		for {
			if f, err = r.Next(anyType); err != nil {
				return
			}
			if f = reply(f); f == nil || link.WriteFrame(server, f) != nil {
				return
			}
		}
	}()
	t.Cleanup(func() { client.Close(); server.Close() })
	return client
}

// TestHangingWitness: whatever is silent at the other end, a call ends at its own deadline.
func TestHangingWitness(t *testing.T) {
	for _, tt := range []struct {
		name string
		dial func(t *testing.T) func(context.Context) (net.Conn, error)
	}{
		{"connect never ends", func(*testing.T) func(context.Context) (net.Conn, error) {
			return func(ctx context.Context) (net.Conn, error) { <-ctx.Done(); return nil, ctx.Err() }
		}},
		{"accepts and reads nothing", func(t *testing.T) func(context.Context) (net.Conn, error) {
			return func(context.Context) (net.Conn, error) {
				client, server := net.Pipe()
				t.Cleanup(func() { server.Close() })
				return client, nil
			}
		}},
		{"accepts and answers nothing", func(t *testing.T) func(context.Context) (net.Conn, error) {
			return func(context.Context) (net.Conn, error) {
				client, server := net.Pipe()
				t.Cleanup(func() { server.Close() })
				go func() {
					for buf := make([]byte, 100); ; {
						if _, err := server.Read(buf); err != nil {
							return
						}
					}
				}()
				return client, nil
			}
		}},
		{"hangs after the handshake", func(t *testing.T) func(context.Context) (net.Conn, error) {
			return func(context.Context) (net.Conn, error) {
				return fakeWitness(t, signKey, testWitness, func(frames.Frame) frames.Frame {
					<-t.Context().Done()
					return nil
				}), nil
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, err := NewClient(clientOptions(tt.dial(t)))
				require.NoError(t, err)
				defer c.Close()
				var refused *RefusedError
				for _, wait := range []time.Duration{0, 3 * time.Second, time.Hour} {
					ctx, cancel := context.WithTimeout(t.Context(), wait)
					start := time.Now()
					_, err = c.Renew(ctx, frames.Certificate{CoordinatorID: coordA, Epoch: 1, Activation: 1, IncarnationID: incA}, 15)
					require.Equal(t, min(wait, defaultTimeout), time.Since(start))
					require.ErrorIs(t, err, context.DeadlineExceeded)
					require.False(t, errors.As(err, &refused))
					cancel()
				}
				// One call that hangs does not hold another past its own deadline.
				var wg sync.WaitGroup
				wg.Go(func() { c.Status(t.Context()) })
				synctest.Wait()
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				start := time.Now()
				_, err = c.Status(ctx)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.Equal(t, time.Second, time.Since(start))
				// Close ends the one under way.
				start = time.Now()
				require.NoError(t, c.Close())
				require.Zero(t, time.Since(start))
				wg.Wait()
				_, err = c.Status(t.Context())
				require.ErrorIs(t, err, ErrClosed)
			})
		})
	}
}

// TestC04_Impostors: another key, another id, or a signature that the pinned key did not make
// is never taken for an answer.
func TestC04_Impostors(t *testing.T) {
	signed := func(key *handshake.Key, change func(*frames.Certificate)) func(frames.Frame) frames.Frame {
		return func(f frames.Frame) frames.Frame {
			a := f.(*Activate)
			c := frames.Certificate{WitnessID: testWitness, CoordinatorID: coordA, Activation: 1, Epoch: a.Epoch, IncarnationID: a.IncarnationID,
				Token: [32]byte{1}, IssuedAt: 1000, ExpiresAt: 1015, WitnessKeyID: handshake.FingerprintOf(key.Public())}
			if change != nil {
				change(&c)
			}
			preimage, err := c.Preimage()
			if err != nil {
				panic(err)
			}
			c.Signature, _ = key.Sign(preimage)
			return &CertificateReply{RequestID: a.RequestID, Certificate: c}
		}
	}
	for _, tt := range []struct {
		name  string
		key   *handshake.Key
		id    frames.WitnessID
		reply func(frames.Frame) frames.Frame
	}{
		{"another key in the handshake", impostorKey, testWitness, signed(impostorKey, nil)},
		{"another witness id", signKey, frames.WitnessID{1}, signed(signKey, nil)},
		{"certificate of another key", signKey, testWitness, signed(impostorKey, nil)},
		{"certificate under a borrowed key id", signKey, testWitness, signed(impostorKey, func(c *frames.Certificate) {
			c.WitnessKeyID = handshake.FingerprintOf(signKey.Public())
		})},
		{"certificate of another witness", signKey, testWitness, signed(signKey, func(c *frames.Certificate) { c.WitnessID[0] = 1 })},
		{"certificate for another coordinator", signKey, testWitness, signed(signKey, func(c *frames.Certificate) { c.CoordinatorID = coordB })},
		{"certificate for another epoch", signKey, testWitness, signed(signKey, func(c *frames.Certificate) { c.Epoch++ })},
		{"certificate for another incarnation", signKey, testWitness, signed(signKey, func(c *frames.Certificate) { c.IncarnationID = incB })},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, err := NewClient(clientOptions(func(context.Context) (net.Conn, error) {
					return fakeWitness(t, tt.key, tt.id, tt.reply), nil
				}))
				require.NoError(t, err)
				defer c.Close()
				_, err = c.Activate(t.Context(), 4, incA, 15)
				require.ErrorIs(t, err, ErrImpostor)
				var pin *handshake.PinError
				require.Equal(t, tt.key == impostorKey, errors.As(err, &pin))
			})
		})
	}
	t.Run("the honest one passes", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c, err := NewClient(clientOptions(func(context.Context) (net.Conn, error) {
				return fakeWitness(t, signKey, testWitness, signed(signKey, nil)), nil
			}))
			require.NoError(t, err)
			defer c.Close()
			_, err = c.Activate(t.Context(), 4, incA, 15)
			require.NoError(t, err)
		})
	})
}

// Replies that answer nothing that was asked end the connection and are no answer.
func TestRepliesOutOfPlace(t *testing.T) {
	for _, tt := range []struct {
		name  string
		reply func(frames.RequestID) frames.Frame
	}{
		{"another request id", func(id frames.RequestID) frames.Frame { return &StatusReply{RequestID: id + 1} }},
		{"another type", func(id frames.RequestID) frames.Frame { return &frames.Ack{RequestID: id} }},
		{"a frame of the client", func(id frames.RequestID) frames.Frame { return &GetStatus{RequestID: id, CoordinatorID: coordA} }},
		{"more left than any lease has", func(id frames.RequestID) frames.Frame { return &StatusReply{RequestID: id, LeaseRemaining: 61} }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, err := NewClient(clientOptions(func(context.Context) (net.Conn, error) {
					return fakeWitness(t, signKey, testWitness, func(f frames.Frame) frames.Frame {
						return tt.reply(f.(*GetStatus).RequestID)
					}), nil
				}))
				require.NoError(t, err)
				defer c.Close()
				_, err = c.Status(t.Context())
				require.Error(t, err)
				var refused *RefusedError
				require.False(t, errors.As(err, &refused))
			})
		})
	}
}

func TestRefusedKeyIsSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dials := 0
		c := newRig(t, nil).client(&dials) // nobody is enrolled
		_, err := c.Status(t.Context())
		requireCode(t, frames.CodeAuthenticationFailed, err)
		require.Equal(t, 1, dials)
	})
}

func TestLeaseLongerThanTheWitnessGrantsIsNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dials := 0
		c := newRig(t, nil, linkRecord(ScopeAll)).client(&dials)
		_, err := c.Activate(t.Context(), 1, incA, 61)
		require.ErrorContains(t, err, "1 to 60")
		s, err := c.Status(t.Context())
		require.NoError(t, err)
		require.Zero(t, s)
		require.Equal(t, 1, dials, "the connection was not spoilt")
	})
}

// unixWitness serves a witness with a followed registry on a real socket.
func unixWitness(t *testing.T, dir string) (stop func()) {
	t.Helper()
	clk := clock.System()
	w, err := Open(dir, options(clk, bootOne))
	require.NoError(t, err)
	registry, err := handshake.OpenRegistry(filepath.Join(dir, "workload-keys"), handshake.RegistryOptions{
		Clock: clk, KnownScopes: ScopeNames(), NeedCoordinator: true})
	require.NoError(t, err)
	srv, err := NewServer(ServerOptions{Witness: w, Clock: clk, Handshake: &handshake.Server{
		Service: HandshakeService(), Authority: signKey, Incarnation: incB, Registry: registry, Rand: rand.Reader, Clock: clk}})
	require.NoError(t, err)
	l, err := sock.Listen(filepath.Join(dir, "witness.sock"))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { require.NoError(t, srv.Serve(ctx, l)) })
	wg.Go(func() { require.ErrorIs(t, registry.Run(ctx), context.Canceled) })
	return sync.OnceFunc(func() {
		cancel()
		wg.Wait()
		require.NoError(t, w.Close())
	})
}

func unixOptions(dir string) ClientOptions {
	o := clientOptions(nil)
	o.Dial, o.Socket, o.Clock = nil, filepath.Join(dir, "witness.sock"), clock.System()
	return o
}

func linkRules() handshake.Rules {
	return handshake.Rules{Scopes: ScopeNames(), NeedCoordinator: true}
}

// shortDir is a private directory whose socket paths stay short.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "wit")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func TestUnixSocket(t *testing.T) {
	dir := shortDir(t)
	require.NoError(t, Create(dir, testWitness))
	keys := filepath.Join(dir, "workload-keys")
	rec := linkRecord(ScopeAll)
	require.NoError(t, handshake.AddRecord(keys, rec, linkRules()))
	stop := unixWitness(t, dir)
	defer func() { stop() }()

	c, err := Dial(t.Context(), unixOptions(dir))
	require.NoError(t, err)
	defer c.Close()
	cert, err := c.Activate(t.Context(), 1, incA, 60)
	require.NoError(t, err)

	// Many coordinators on copies of one store: none gets past the live lease.
	var wg sync.WaitGroup
	for i := range 10 {
		wg.Go(func() {
			other, err := Dial(t.Context(), unixOptions(dir))
			if err != nil {
				t.Error(err)
				return
			}
			defer other.Close()
			_, err = other.Activate(t.Context(), frames.AuthorityEpoch(i+1), incB, 60)
			var refused *RefusedError
			if !errors.As(err, &refused) {
				t.Errorf("activation %d: %v", i, err)
			}
		})
	}
	wg.Wait()

	// A restart of the witness goes unnoticed, and the lease goes on.
	stop()
	_, err = c.Renew(t.Context(), cert, 60)
	require.ErrorContains(t, err, "is witnessd running there?")
	stop = unixWitness(t, dir)
	cert, err = c.Renew(t.Context(), cert, 60)
	require.NoError(t, err)
	_, err = c.Activate(t.Context(), 2, incB, 60)
	requireCode(t, frames.CodeResourceExhausted, err)

	// A revoked key is cut off while it is idle, and stays out.
	idle, err := Dial(t.Context(), unixOptions(dir))
	require.NoError(t, err)
	defer idle.Close()
	_, err = handshake.RevokeRecord(keys, "link", uint64(time.Now().Unix()), linkRules())
	require.NoError(t, err)
	select {
	case <-idle.cur.ended:
	case <-time.After(10 * time.Second):
		t.Fatal("a revoked key kept its connection")
	}
	_, err = c.Renew(t.Context(), cert, 60)
	requireCode(t, frames.CodeAuthenticationFailed, err)
	// Enrolled again, the key may come back.
	require.NoError(t, handshake.AddRecord(keys, rec, linkRules()))
	require.NoError(t, handshake.WaitLoaded(t.Context(), keys))
	_, err = c.Renew(t.Context(), cert, 60)
	require.NoError(t, err)
}

// TestC05_ConcurrentActivations: of many at once exactly one gets the lease.
func TestC05_ConcurrentActivations(t *testing.T) {
	dir := shortDir(t)
	require.NoError(t, Create(dir, testWitness))
	require.NoError(t, handshake.AddRecord(filepath.Join(dir, "workload-keys"), linkRecord(ScopeAll), linkRules()))
	stop := unixWitness(t, dir)
	defer stop()
	var wg sync.WaitGroup
	var mu sync.Mutex
	granted := 0
	for i := range 12 {
		wg.Go(func() {
			c, err := Dial(t.Context(), unixOptions(dir))
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			_, err = c.Activate(t.Context(), frames.AuthorityEpoch(1+i%4), frames.IncarnationID{0: byte(i + 1)}, 60)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				granted++
			}
		})
	}
	wg.Wait()
	require.Equal(t, 1, granted)
}

func TestAbsentWitness(t *testing.T) {
	o := unixOptions(shortDir(t))
	_, err := Dial(t.Context(), o)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, o.Socket)
	var refused *RefusedError
	require.False(t, errors.As(err, &refused))
}

func TestClientNeedsItsPins(t *testing.T) {
	for _, change := range []func(*ClientOptions){
		func(o *ClientOptions) { o.Pin = frames.Fingerprint{} },
		func(o *ClientOptions) { o.WitnessID = frames.WitnessID{} },
		func(o *ClientOptions) { o.CoordinatorID = frames.CoordinatorID{} },
		func(o *ClientOptions) { o.Key = nil },
		func(o *ClientOptions) { o.Socket = "" },
	} {
		o := unixOptions("/nowhere")
		change(&o)
		_, err := NewClient(o)
		require.Error(t, err)
	}
}
