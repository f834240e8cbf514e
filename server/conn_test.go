package server

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/sock"
)

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, patience, 5*time.Millisecond, what)
}

// header is the head of an outer frame without its body.
func header(length uint32, typ frames.Type) []byte {
	return append(binary.BigEndian.AppendUint32(nil, length), byte(typ))
}

func TestC01_OtherNamespacesAreRefused(t *testing.T) {
	r := newRig(t)
	r.start()
	for typ := range 256 {
		ft := frames.Type(typ)
		if ft.Known() && ft.FromClient() {
			continue
		}
		p := r.raw()
		p.write(header(1, ft))
		p.refused(frames.CodeProtocolError)
		p.ended()
		p.close()
	}
	p := r.connect(r.keys[0])
	p.write(header(1, 0x55)) // a type of another endpoint, after the hello too
	p.refused(frames.CodeProtocolError)
	p.ended()
}

// TestC02_RefusedVectors sends every refused frame of the vectors to a live
// coordinator in the state that its row names.
func TestC02_RefusedVectors(t *testing.T) {
	raw, err := os.ReadFile("../vectors/testdata/frames.json")
	require.NoError(t, err)
	var v struct {
		Refused []struct {
			Name, Frame, Direction, State string
			Code                          frames.Code
		}
	}
	require.NoError(t, json.Unmarshal(raw, &v))
	require.NotEmpty(t, v.Refused)
	r := newRig(t)
	r.start()
	for _, row := range v.Refused {
		t.Run(row.Name, func(t *testing.T) {
			require.Equal(t, "c2s", row.Direction)
			b, err := hex.DecodeString(row.Frame)
			require.NoError(t, err)
			var p *peer
			switch row.State {
			case "handshake":
				p = r.raw()
			case "challenged":
				p = r.raw()
				hello := baseHello()
				hello.HasOffer, hello.Offer = true, frames.WorkloadOffer{Profile: frames.Profile, ClientNonce: [32]byte{1}}
				p.send(&hello)
				f, err := p.next()
				require.NoError(t, err)
				require.IsType(t, &frames.WorkloadChallenge{}, f)
			case "active":
				p = r.connect(r.keys[0])
			default:
				t.Fatalf("state %q", row.State)
			}
			p.write(b)
			e := p.refused(row.Code)
			require.LessOrEqual(t, len(e.Message), frames.MaxText)
			p.ended()
			p.close()
		})
	}
}

// TestC02_TheHeaderDecides sends nothing but a header that no body may follow:
// the answer comes without one.
func TestC02_TheHeaderDecides(t *testing.T) {
	r := newRig(t)
	r.start()
	small := func(h *frames.CoordHello) {
		h.Limits = frames.Limits{FrameBytes: 8192, PageBytes: 1024, PageRecords: 8, TypedPayload: 1024, CreditCount: 8, CreditBytes: 4096}
	}
	for _, tt := range []struct {
		name   string
		active bool
		head   []byte
	}{
		{"handshake frame over 16 KiB", false, header(frames.MaxHandshakeBytes+1, frames.TypeCoordHello)},
		{"ping before the hello over 16 KiB", false, header(frames.MaxHandshakeBytes+1, frames.TypePing)},
		{"command over the selected payload and 4,096", true, header(1024+4096+1, frames.TypeCoordCommand)},
		{"other frame over the selected frame", true, header(8193, frames.TypeSnapshotNext)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var p *peer
			if p = r.raw(); tt.active {
				p = r.connect(r.keys[0], small)
			}
			p.write(tt.head)
			p.refused(frames.CodeFrameTooLarge)
			p.ended()
		})
	}
}

func TestC03_VersionBeforeEverything(t *testing.T) {
	r := newRig(t)
	r.start()
	p := r.raw()
	// Fields 1 to 3 say 0.9.0, what follows is no TLV.
	body := []byte{1, 4, 2, 0, 0, 2, 4, 2, 0, 9, 3, 4, 2, 0, 0, 0xff, 0xff, 0xff}
	p.write(append(header(uint32(len(body)+1), frames.TypeCoordHello), body...))
	p.refused(frames.CodeVersionIncompatible)
	p.ended()
}

func TestC03_ProofIsMandatoryOnTheOwnersSocket(t *testing.T) {
	r := newRig(t)
	r.start()
	for _, f := range []frames.Frame{
		&frames.OpenSnapshot{RequestID: 1},
		&frames.GetOperationResult{RequestID: 1, OperationID: newID[frames.OperationID](t)},
	} {
		p := r.raw()
		p.send(f)
		p.refused(frames.CodeProtocolError)
		p.ended()
	}
	p := r.raw()
	hello := baseHello() // without an offer
	p.send(&hello)
	p.refused(frames.CodeAuthenticationFailed)
	p.ended()
}

func TestC04_FailedProofsCannotBeToldApart(t *testing.T) {
	r := newRig(t)
	r.start()
	channel := handshake.UDSPeer{Cred: sock.SelfCred()}
	texts := map[string]bool{}
	refused := func(name string, shake func(p *peer) error) {
		t.Run(name, func(t *testing.T) {
			p := r.raw()
			err := shake(p)
			var refusal *frames.Refusal
			require.ErrorAs(t, err, &refusal)
			require.Equal(t, frames.CodeAuthenticationFailed, refusal.Code)
			texts[refusal.Message] = true
			p.ended()
		})
	}
	refused("unknown key", func(p *peer) error { return p.shake(r, newKey(t), uint64(frames.AllScopes), channel) })
	refused("no scope", func(p *peer) error { return p.shake(r, r.keys[0], 0, channel) })
	reader := newKey(t)
	r.enrol(reader, uint64(frames.ScopeWorkRead), "reader")
	eventually(t, "the reader is enrolled", func() bool {
		return r.raw().shake(r, reader, uint64(frames.AllScopes), channel) == nil
	})
	refused("scope outside the ceiling", func(p *peer) error { return p.shake(r, reader, uint64(frames.ScopeAdmin), channel) })
	require.Len(t, texts, 1)
}

func TestHelloOrder(t *testing.T) {
	r := newRig(t)
	r.start()
	for _, tt := range []struct {
		name   string
		change func(*frames.CoordHello)
		want   frames.Code
	}{
		{"version before limits", func(h *frames.CoordHello) { h.Version.Minor = 7; h.Limits.PageBytes = h.Limits.FrameBytes }, frames.CodeVersionIncompatible},
		{"limits before profile", func(h *frames.CoordHello) { h.Limits.FrameBytes = 4096; h.Offer.Profile = "other" }, frames.CodeMalformedMessage},
		{"profile before capabilities", func(h *frames.CoordHello) { h.Offer.Profile = "other"; h.Required = 1 << 60 }, frames.CodeAuthenticationFailed},
		{"required outside the offer", func(h *frames.CoordHello) { h.Offered = 0; h.Required = frames.CapAdministration }, frames.CodeCapabilityRequired},
		{"required that nobody serves", func(h *frames.CoordHello) { h.Offered |= 1 << 61; h.Required = 1 << 61 }, frames.CodeCapabilityRequired},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := r.raw()
			hello := baseHello()
			hello.HasOffer, hello.Offer = true, frames.WorkloadOffer{Profile: frames.Profile, ClientNonce: [32]byte{9}}
			tt.change(&hello)
			p.send(&hello)
			p.refused(tt.want)
			p.ended()
		})
	}
}

func TestOneChallengePerConnection(t *testing.T) {
	r := newRig(t)
	r.start()
	p := r.raw()
	hello := baseHello()
	hello.HasOffer, hello.Offer = true, frames.WorkloadOffer{Profile: frames.Profile, ClientNonce: [32]byte{9}}
	p.send(&hello)
	_, err := p.next()
	require.NoError(t, err)
	p.send(&hello)
	p.refused(frames.CodeProtocolError)
	p.ended()
}

func TestAStaleGuardIsFatalAndNamesItsRequest(t *testing.T) {
	r := newRig(t)
	r.start()
	for i, spoil := range []func(*frames.AuthorityGuard){
		func(g *frames.AuthorityGuard) { g.CoordinatorID[0] ^= 1 },
		func(g *frames.AuthorityGuard) { g.Epoch++ },
		func(g *frames.AuthorityGuard) { g.Activation = 0 },
		func(g *frames.AuthorityGuard) { g.TokenSHA256[31] ^= 1 },
	} {
		p := r.connect(r.keys[0])
		guard := p.guard
		spoil(&guard)
		id := frames.RequestID(40 + i)
		for _, f := range []frames.Frame{
			&frames.Subscribe{RequestID: id, Guard: guard},
			&frames.GetOperationResult{RequestID: id, Guard: guard, OperationID: newID[frames.OperationID](t)},
		}[i%2 : i%2+1] {
			p.send(f)
			require.Equal(t, id, p.refused(frames.CodeStaleAuthority).RequestID)
			p.ended()
		}
	}
}

func TestRequestIdsAreOccupiedUntilTheirReply(t *testing.T) {
	r := newRig(t)
	r.start()
	p := r.connect(r.keys[0])
	for range 300 { // the same id again and again, each after its reply
		p.send(&frames.GetOperationResult{RequestID: 7, Guard: p.guard, OperationID: newID[frames.OperationID](t)})
		f, err := p.next()
		require.NoError(t, err)
		require.EqualValues(t, 7, f.(*frames.OperationResultFrame).RequestID)
	}
	one := &frames.GetOperationResult{RequestID: 9, Guard: p.guard, OperationID: newID[frames.OperationID](t)}
	c := r.busy(p)
	c.mu.Lock()
	c.occupied[9] = struct{}{}
	c.mu.Unlock()
	p.send(one)
	e := p.refused(frames.CodeMalformedMessage)
	require.EqualValues(t, 9, e.RequestID)
	p.ended()
}

// busy finds the server's side of an authenticated peer, of which there is one.
func (r *rig) busy(*peer) *conn {
	r.t.Helper()
	var found *conn
	srv := r.server()
	srv.mu.Lock()
	defer srv.mu.Unlock()
	for c := range srv.conns {
		if c.settled {
			require.Nil(r.t, found, "more than one connection")
			found = c
		}
	}
	require.NotNil(r.t, found)
	return found
}

func TestWhatWasNotNegotiatedIsNotServed(t *testing.T) {
	r := newRig(t)
	r.start()
	p := r.connect(r.keys[0])
	p.send(&frames.OpenReplay{RequestID: p.id(), Guard: p.guard, SubscriptionID: newID[frames.SubscriptionID](t)})
	require.Equal(t, p.last, p.refused(frames.CodeCapabilityRequired).RequestID)
	p.create("{}") // it ended its own request only
	p.send(&frames.Credit{SubscriptionID: newID[frames.SubscriptionID](t), AddCount: 1})
	require.Zero(t, p.refused(frames.CodeProtocolError).RequestID)
	p.ended()
}

func TestPingsPongsAndErrorsOfAClient(t *testing.T) {
	r := newRig(t)
	r.start()
	p := r.raw()
	p.send(&frames.Ping{Nonce: 5})
	f, err := p.next()
	require.NoError(t, err)
	require.Equal(t, &frames.Pong{Nonce: 5}, f)
	p = r.connect(r.keys[0])
	p.send(&frames.Pong{Nonce: 1}) // unsolicited: ignored
	p.create("{}")
	p.send(&frames.CoordError{Code: frames.CodeInternal, Message: "client error"})
	p.ended()
}

func TestOutstandingRequestsAreBounded(t *testing.T) {
	r := newRig(t)
	r.opts.Quotas = smallQuotas(t)
	r.start()
	p := r.connect(r.keys[0])
	c := r.busy(p)
	hold, err := c.account.Take(quotaRequests, 4)
	require.NoError(t, err)
	p.send(&frames.GetOperationResult{RequestID: p.id(), Guard: p.guard, OperationID: newID[frames.OperationID](t)})
	e := p.refused(frames.CodeResourceExhausted)
	require.Equal(t, p.last, e.RequestID)
	require.True(t, strings.Contains(e.Message, "outstanding requests"), e.Message)
	hold.Release()
	p.create("{}")
}

func TestUnauthenticatedConnectionsAreBounded(t *testing.T) {
	r := newRig(t)
	r.start()
	var held []*peer
	for range maxUnauthenticated {
		held = append(held, r.raw())
	}
	srv := r.server()
	eventually(t, "all are accepted", func() bool {
		srv.mu.Lock()
		defer srv.mu.Unlock()
		return srv.waiting == maxUnauthenticated
	})
	r.raw().ended()                                                                                        // one more is closed at accept
	eventually(t, "its descriptor is free", func() bool { return len(srv.local) == maxUnauthenticated+1 }) // and one waits
	held[0].close()
	eventually(t, "the place is free again", func() bool {
		srv.mu.Lock()
		defer srv.mu.Unlock()
		return srv.waiting < maxUnauthenticated
	})
	r.connect(r.keys[0]).create("{}")
}

func TestConnectionsPerPrincipalAreBounded(t *testing.T) {
	r := newRig(t)
	r.opts.Quotas = smallQuotas(t)
	r.start()
	a, b := r.connect(r.keys[0]), r.connect(r.keys[0])
	channel := handshake.UDSPeer{Cred: sock.SelfCred()}
	p := r.raw()
	err := p.shake(r, r.keys[0], uint64(frames.AllScopes), channel)
	var refusal *frames.Refusal
	require.ErrorAs(t, err, &refusal)
	require.Equal(t, frames.CodeResourceExhausted, refusal.Code)
	p.ended()
	r.connect(r.keys[1]).create("{}") // another principal is not in the way
	a.create("{}")
	b.close()
	eventually(t, "its place is free again", func() bool {
		return r.raw().shake(r, r.keys[0], uint64(frames.AllScopes), channel) == nil
	})
}
