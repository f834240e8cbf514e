package client

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
	"coordinator/handshake"
)

func TestDialRecordsTheAuthorityBeforeItReturns(t *testing.T) {
	w := newWorld(t)
	c := w.dial(func(p *peer) { p.recv() })
	i := c.Info()
	require.Equal(t, w.epoch, i.Epoch)
	require.Equal(t, w.incarnation, i.IncarnationID)
	require.Equal(t, frames.AllScopes, i.Scope)
	require.False(t, i.Verified)

	s, err := OpenState(w.pins)
	require.NoError(t, err)
	require.Equal(t, w.epoch, s.mem.Authority.Epoch)
	require.False(t, s.mem.Authority.Verified)
	require.True(t, s.acceptedBefore(i.KeyID))
	st, err := os.Stat(s.Path())
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), st.Mode().Perm())
}

// TestC04_ServerThatFailsAPin holds a server to each pin and rule that must be checked
// before HELLO_OK is accepted. None of them may leave a trace in the memory.
func TestC04_ServerThatFailsAPin(t *testing.T) {
	peerErr := func(what string) func(*testing.T, error) {
		return func(t *testing.T, err error) {
			var pe *PeerError
			require.ErrorAs(t, err, &pe)
			require.Equal(t, what, pe.What)
		}
	}
	is := func(target error) func(*testing.T, error) {
		return func(t *testing.T, err error) { require.ErrorIs(t, err, target) }
	}
	for _, tt := range []struct {
		name   string
		break_ func(w *world)
		check  func(*testing.T, error)
	}{
		{"another authority key", func(w *world) { w.authority = key(w.t) }, peerErr("authority")},
		{"the pinned key without its secret", func(w *world) {
			w.challenge = func(c *frames.WorkloadChallenge) { c.Proof[3] ^= 1 }
		}, peerErr("authority")},
		{"a relayed challenge", func(w *world) { w.cred.PID++ }, peerErr("channel binding")},
		{"another user's process", func(w *world) { w.cred.UID++ }, peerErr("channel binding")},
		{"another service", func(w *world) {
			w.challenge = func(c *frames.WorkloadChallenge) { c.Service = "phux-witness" }
		}, peerErr("handshake")},
		{"a replayed challenge", func(w *world) {
			w.challenge = func(c *frames.WorkloadChallenge) { c.ClientNonce[0] ^= 1 }
		}, peerErr("handshake")},
		{"incarnation of HELLO_OK is another", func(w *world) {
			w.helloOK = func(o *frames.CoordHelloOK) { o.IncarnationID[0] ^= 1 }
		}, peerErr("handshake")},
		{"more scope than asked for", func(w *world) {
			w.helloOK = func(o *frames.CoordHelloOK) { o.Grant.Scope |= 0x80 }
		}, peerErr("handshake")},
		{"another coordinator", func(w *world) {
			w.helloOK = func(o *frames.CoordHelloOK) { o.CoordinatorID[0] ^= 1 }
		}, peerErr("coordinator_id")},
		{"another witness", func(w *world) {
			w.cert = func(c *frames.Certificate) { c.WitnessID[0] ^= 1 }
		}, peerErr("witness_id")},
		{"another witness key", func(w *world) { w.witness = key(w.t) }, peerErr("witness_public_key")},
		{"a forged certificate", func(w *world) {
			w.helloOK = func(o *frames.CoordHelloOK) { o.Certificate.Token[9] ^= 1 }
		}, peerErr("witness_public_key")},
		{"a certificate of another incarnation", func(w *world) {
			w.cert = func(c *frames.Certificate) { c.IncarnationID[0] ^= 1 }
		}, peerErr("activation certificate")},
		{"a certificate of another epoch", func(w *world) {
			w.cert = func(c *frames.Certificate) { c.Epoch++ }
		}, peerErr("activation certificate")},
		{"an expired certificate", func(w *world) {
			w.cert = func(c *frames.Certificate) { c.IssuedAt -= 15; c.ExpiresAt -= 15 }
		}, peerErr("activation certificate")},
		{"a certificate from the future", func(w *world) {
			w.cert = func(c *frames.Certificate) { c.IssuedAt += 3; c.ExpiresAt += 3 }
		}, peerErr("activation certificate")},
		{"capabilities that were not offered", func(w *world) {
			w.helloOK = func(o *frames.CoordHelloOK) { o.Capabilities |= 1 << 40 }
		}, is(ErrProtocol)},
		{"limits above the offer", func(w *world) {
			w.helloOK = func(o *frames.CoordHelloOK) { o.Limits.PageRecords = 1024 }
		}, is(ErrProtocol)},
		{"another minor version", func(w *world) {
			w.helloOK = func(o *frames.CoordHelloOK) { o.Version.Minor = 2 }
		}, is(ErrProtocol)},
		{"HELLO_OK without a challenge", func(w *world) {
			w.instead = func(stage string, p *peer) bool {
				p.send(&frames.Ack{RequestID: 1})
				return true
			}
		}, is(ErrProtocol)},
		{"nothing after the hello", func(w *world) {
			w.instead = func(stage string, p *peer) bool { return stage == "hello" }
		}, is(ErrDisconnected)},
		{"nothing after the response", func(w *world) {
			w.instead = func(stage string, p *peer) bool { return stage == "response" }
		}, is(ErrDisconnected)},
		{"another version", func(w *world) {
			w.instead = func(stage string, p *peer) bool {
				p.send(&frames.CoordError{Code: frames.CodeVersionIncompatible})
				return true
			}
		}, func(t *testing.T, err error) {
			var re *RefusedError
			require.ErrorAs(t, err, &re)
			require.Equal(t, frames.CodeVersionIncompatible, re.Code)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			tt.break_(w)
			_, err := Dial(t.Context(), w.pins, w.options(nil))
			require.Error(t, err)
			require.ErrorIs(t, err, ErrNotSent)
			tt.check(t, err)
			_, statErr := os.Stat(StatePath(w.pins.Path, w.pins.CoordinatorID))
			require.ErrorIs(t, statErr, os.ErrNotExist, "a server that failed was remembered")
		})
	}
}

func TestDialTellsAKeyNeverAcceptedFromOneThatWas(t *testing.T) {
	w := newWorld(t)
	known := w.client
	w.dial(func(p *peer) { p.recv() })
	refusedKey := func(client *handshake.Key) *AuthenticationError {
		opts := w.options(nil)
		opts.Key = client
		w.client = key(t) // the only key that the server knows from now on
		_, err := Dial(t.Context(), w.pins, opts)
		var ae *AuthenticationError
		require.ErrorAs(t, err, &ae)
		return ae
	}
	require.True(t, refusedKey(known).AcceptedBefore)
	require.False(t, refusedKey(key(t)).AcceptedBefore)
}

func TestDialGivesUpWithItsContext(t *testing.T) {
	w := newWorld(t)
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	w.instead = func(string, *peer) bool { <-release; return true }
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	opts := w.options(nil)
	done := make(chan error, 1)
	go func() { _, err := Dial(ctx, w.pins, opts); done <- err }()
	cancel(cause)
	err := <-done
	require.ErrorIs(t, err, cause)
	require.ErrorIs(t, err, ErrNotSent)
}

func TestAuthorityMemory(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(w *world)
		check  func(t *testing.T, err error)
	}{
		{"the same again", func(w *world) {}, func(t *testing.T, err error) { require.NoError(t, err) }},
		{"a higher one", func(w *world) { w.restart() }, func(t *testing.T, err error) { require.NoError(t, err) }},
		{"a lower epoch and activation", func(w *world) { w.epoch--; w.activation-- }, lowerAuthority},
		{"a lower epoch", func(w *world) { w.epoch-- }, lowerAuthority},
		{"a lower activation", func(w *world) { w.activation-- }, lowerAuthority},
		{"the same with another token", func(w *world) { w.token[5]++ }, quarantined},
		{"the same with another incarnation", func(w *world) { w.incarnation[0] ^= 1 }, quarantined},
		{"a higher epoch under a lower activation", func(w *world) { w.epoch++; w.activation-- }, quarantined},
		{"a higher activation under the same epoch", func(w *world) { w.activation++ }, quarantined},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			w.dial(func(p *peer) { p.recv() })
			incarnation, token, epoch, activation := w.incarnation, w.token, w.epoch, w.activation
			tt.change(w)
			c, err := Dial(t.Context(), w.pins, w.options(nil))
			if err == nil {
				defer c.Close()
			}
			tt.check(t, err)
			if !errors.As(err, new(*QuarantineError)) {
				return
			}
			// Neither side of a conflict is chosen, not even the one met first.
			w.incarnation, w.token, w.epoch, w.activation = incarnation, token, epoch, activation
			_, err = Dial(t.Context(), w.pins, w.options(nil))
			quarantined(t, err)
			w.restart()
			_, err = Dial(t.Context(), w.pins, w.options(nil))
			quarantined(t, err)
		})
	}
}

func lowerAuthority(t *testing.T, err error) {
	var le *LowerAuthorityError
	require.ErrorAs(t, err, &le)
}

func quarantined(t *testing.T, err error) {
	var qe *QuarantineError
	require.ErrorAs(t, err, &qe)
}

func TestHigherAuthorityClosesTheLowerConnection(t *testing.T) {
	w := newWorld(t)
	state, err := OpenState(w.pins)
	require.NoError(t, err)
	opts := w.options(func(p *peer) { p.recv() })
	opts.State = state
	old, err := Dial(t.Context(), w.pins, opts)
	require.NoError(t, err)
	defer old.Close()
	w.restart()
	opts.Transport = w.transport(func(p *peer) { p.recv() })
	higher, err := Dial(t.Context(), w.pins, opts)
	require.NoError(t, err)
	defer higher.Close()
	require.ErrorIs(t, old.Err(), ErrSuperseded, "it was open after Dial had returned")
	require.NoError(t, higher.Err())
	_, err = old.Lookup(t.Context(), operation(1))
	require.ErrorIs(t, err, ErrNotSent)
	require.ErrorIs(t, err, ErrSuperseded)
}

func TestOnlySnapshotAndLookupBeforeTheFirstVerifiedSnapshot(t *testing.T) {
	w := newWorld(t)
	c := w.dial(func(p *peer) {
		g := take[*frames.GetOperationResult](p) // the first request that arrives is this one
		p.send(&frames.OperationResultFrame{RequestID: g.RequestID, Operation: frames.OperationResult{State: frames.OperationUnknown}})
		p.snapshot(&shown{})
		ping := take[*frames.Ping](p)
		p.send(&frames.Pong{Nonce: ping.Nonce})
		cmd := take[*frames.CoordCommand](p)
		p.send(&frames.CoordCommandResult{RequestID: cmd.RequestID, Operation: succeeded(1)})
	})
	ctx := t.Context()
	_, err := c.Command(ctx, created(t, operation(1), "{}"))
	require.ErrorIs(t, err, ErrSnapshotFirst)
	require.ErrorIs(t, err, ErrNotSent)
	require.ErrorIs(t, c.Ping(ctx), ErrSnapshotFirst)
	r, err := c.Lookup(ctx, operation(1))
	require.NoError(t, err)
	require.Equal(t, frames.OperationUnknown, r.State)
	s, err := c.Snapshot(ctx)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.NoError(t, c.Ping(ctx))
	_, err = c.Command(ctx, created(t, operation(1), "{}"))
	require.NoError(t, err)

	// The next connection to the same authority needs none, the next authority does.
	require.True(t, w.dial(func(p *peer) { p.recv() }).Info().Verified)
	w.restart()
	require.False(t, w.dial(func(p *peer) { p.recv() }).Info().Verified)
}

func TestExpiryEndsTheConnectionBeforeAFrameIsActedOn(t *testing.T) {
	for _, tt := range []struct {
		name string
		move func(w *world)
	}{
		{"time passes", func(w *world) { w.clock.Advance(15 * time.Second) }},
		{"the wall clock steps ahead", func(w *world) { w.clock.StepWall(15 * time.Second) }},
		{"the wall clock was set back", func(w *world) {
			w.clock.StepWall(-time.Hour)
			w.clock.Advance(15 * time.Second)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			sent, answer := make(chan struct{}), make(chan struct{})
			c := w.verified(func(p *peer) {
				cmd := take[*frames.CoordCommand](p)
				close(sent)
				<-answer
				p.send(&frames.CoordCommandResult{RequestID: cmd.RequestID, Operation: succeeded(9)})
			})
			done := make(chan error, 1)
			go func() { _, err := c.Command(t.Context(), created(t, operation(1), "{}")); done <- err }()
			<-sent
			tt.move(w)
			close(answer)
			err := <-done
			var ou *OutcomeUnknownError
			require.ErrorAs(t, err, &ou, "a result read at expiry counts as not received")
			require.ErrorIs(t, err, ErrExpired)
			_, err = c.Command(t.Context(), created(t, operation(2), "{}"))
			require.ErrorIs(t, err, ErrNotSent)
		})
	}
}

func TestIdleConnectionClosesAtExpiry(t *testing.T) {
	w := newWorld(t)
	c := w.dial(func(p *peer) { p.recv() })
	for range 15 {
		eventuallyTimer(t, w, c)
		w.clock.Advance(time.Second)
	}
	<-c.Done()
	require.ErrorIs(t, c.Err(), ErrExpired)
}

func TestConnectionWhosePeerDoesNotReadClosesAtExpiry(t *testing.T) {
	w := newWorld(t)
	release := make(chan struct{})
	c := w.dial(func(p *peer) {
		p.send(&frames.Ping{Nonce: 1}) // the answer blocks: nobody reads the pipe
		<-release
	})
	defer close(release)
	for c.Err() == nil {
		eventuallyTimer(t, w, c)
		w.clock.Advance(time.Second)
	}
	require.ErrorIs(t, c.Err(), ErrExpired)
}

// eventuallyTimer waits until the connection has looked at its certificate and waits to
// look again, or has ended.
func eventuallyTimer(t *testing.T, w *world, c *Conn) {
	t.Helper()
	require.Eventually(t, func() bool { return c.Err() != nil || w.clock.Timers() > 0 }, 10*time.Second, time.Millisecond)
}

func TestAuthorityRenewed(t *testing.T) {
	renewed := func(change func(w *world, cert *frames.Certificate)) error {
		w := newWorld(t)
		looked := make(chan struct{})
		c := w.dial(func(p *peer) {
			<-looked
			w.clock.Advance(5 * time.Second)
			cert := w.certificate()
			if change != nil {
				change(w, &cert)
				w.sign(&cert)
			}
			p.send(&frames.AuthorityRenewed{Certificate: cert})
			g := take[*frames.GetOperationResult](p)
			p.send(&frames.OperationResultFrame{RequestID: g.RequestID, Operation: frames.OperationResult{State: frames.OperationUnknown}})
			p.recv()
		})
		before := c.Info().LeaseExpires
		close(looked)
		if _, err := c.Lookup(t.Context(), operation(1)); err != nil {
			<-c.Done()
			return c.Err()
		}
		require.Equal(t, before+5, c.Info().LeaseExpires)
		w.clock.Advance(14 * time.Second) // past the first certificate, within the second
		require.NoError(t, c.live())
		return nil
	}
	require.NoError(t, renewed(nil))
	for name, change := range map[string]func(*world, *frames.Certificate){
		"another token":       func(w *world, c *frames.Certificate) { c.Token[7]++ },
		"another incarnation": func(w *world, c *frames.Certificate) { c.IncarnationID[0]++ },
		"a higher epoch":      func(w *world, c *frames.Certificate) { c.Epoch++ },
		"a higher activation": func(w *world, c *frames.Certificate) { c.Activation++ },
		"no later expiry":     func(w *world, c *frames.Certificate) { c.IssuedAt -= 5; c.ExpiresAt -= 5 },
		"issued in future":    func(w *world, c *frames.Certificate) { c.IssuedAt += 3; c.ExpiresAt += 3 },
		"another witness key": func(w *world, c *frames.Certificate) { w.witness = key(w.t) },
	} {
		t.Run(name, func(t *testing.T) {
			err := renewed(change)
			var pe *PeerError
			require.ErrorAs(t, err, &pe)
		})
	}
}

func TestPingsAreAnswered(t *testing.T) {
	w := newWorld(t)
	got := make(chan uint64, 2)
	w.dial(func(p *peer) {
		p.send(&frames.Pong{Nonce: 99}) // unsolicited: ignored
		for n := range uint64(2) {
			p.send(&frames.Ping{Nonce: n + 40})
			got <- take[*frames.Pong](p).Nonce
		}
	})
	require.Equal(t, uint64(40), <-got)
	require.Equal(t, uint64(41), <-got)
}

func TestServerThatBreaksTheProtocolIsClosed(t *testing.T) {
	for name, script := range map[string]func(*peer){
		"a reply to no request":     func(p *peer) { p.send(&frames.Ack{RequestID: 77}) },
		"a client's frame":          func(p *peer) { p.send(&frames.GetOperationResult{RequestID: 1, OperationID: operation(1)}) },
		"a second hello":            func(p *peer) { p.nc.Write([]byte{0, 0, 0, 1, byte(frames.TypeCoordHelloOK)}) },
		"an event of nothing":       func(p *peer) { p.nc.Write([]byte{0, 0, 0, 1, byte(frames.TypeCoordEvent)}) },
		"a length of zero":          func(p *peer) { p.nc.Write([]byte{0, 0, 0, 0}) },
		"a length over the maximum": func(p *peer) { p.nc.Write([]byte{0, 0x10, 0, 1}) },
		"a frame over its cap": func(p *peer) {
			p.nc.Write([]byte{0, 8, 0, 1, byte(frames.TypeSnapshotPage)}) // 512 KiB + 1, caps are below
		},
		"a malformed body": func(p *peer) { p.nc.Write([]byte{0, 0, 0, 2, byte(frames.TypeAck), 9}) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			c := w.dial(func(p *peer) {
				script(p)
				p.recv()
			})
			<-c.Done()
			require.ErrorIs(t, c.Err(), ErrProtocol)
		})
	}
}
