package handshake

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"testing"
	"time"

	"coordinator/codec"
	"coordinator/frames"
	"coordinator/internal/clock"
	"coordinator/internal/sock"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// pair is a server and a client that trust each other.
type pair struct {
	clock     *clock.Manual
	authority *Key
	registry  *Registry
	server    *Server
	client    *Client
	channel   Channel
}

func newPair(records ...Record) *pair {
	if records == nil {
		records = []Record{testRecord(1)}
	}
	p := &pair{clock: manualClock(), authority: seededKey(100), registry: StaticRegistry(records),
		channel: UDSPeer{sock.Cred{UID: 1000, GID: 1000, PID: 42}}}
	service := Service{Name: "phux-coordinator", Minor: 1, Scopes: testScopes.All()}
	p.server = &Server{Service: service, Authority: p.authority, Incarnation: testIncarnation, Registry: p.registry, Rand: rand.Reader, Clock: p.clock}
	p.client = &Client{Service: service, Key: seededKey(1), Pin: FingerprintOf(p.authority.pub)}
	return p
}

// open runs the exchange up to the response.
func (p *pair) open(t require.TestingT, scope, expiry uint64) (*Exchange, *frames.WorkloadChallenge, *frames.WorkloadResponse) {
	offer, err := p.client.NewOffer(rand.Reader)
	require.NoError(t, err)
	x, ch, err := p.server.Challenge(&offer, p.channel)
	require.NoError(t, err)
	resp, err := p.client.Respond(&offer, ch, p.channel, scope, expiry)
	require.NoError(t, err)
	return x, ch, resp
}

func TestExchangeGrantsTheIntersection(t *testing.T) {
	p := newPair()
	x, ch, resp := p.open(t, 0x21, testEnd+100) // admin is above the ceiling, the expiry beyond the record's
	g, err := x.Finish(resp)
	require.NoError(t, err)
	require.Equal(t, uint64(1), g.Scope)
	require.Equal(t, uint64(testEnd), g.ExpiresAt)
	require.Equal(t, KeyIDOf(p.client.Key.Public()), g.KeyID)
	require.NoError(t, g.Err(p.clock.Now()))
	wire := g.Wire()
	require.NoError(t, p.client.CheckHelloOK(ch, resp, &wire, testIncarnation))

	// Both frames pass the strict codec unchanged.
	for _, f := range []frames.Frame{ch, resp} {
		body, err := codec.Encode(nil, f)
		require.NoError(t, err)
		back, err := frames.Decode(f.Type(), body)
		require.NoError(t, err)
		require.Equal(t, f, back)
	}
}

func TestTLSChannelExchange(t *testing.T) {
	p := newPair()
	p.channel = TLSExporter{func(label string, context []byte, n int) ([]byte, error) {
		return bytes.Repeat([]byte{7}, n), nil
	}}
	x, _, resp := p.open(t, 1, testEnd)
	_, err := x.Finish(resp)
	require.NoError(t, err)
}

func TestC04_EveryRefusalIsTheSame(t *testing.T) {
	revoked := testRecord(2)
	revoked.RevokedAt = testNow - 5
	revokedLater := testRecord(3)
	revokedLater.RevokedAt = testEnd // presence counts, not the time
	expired := testRecord(4)
	expired.ExpiresAt = testNow
	for _, tt := range []struct {
		name   string
		reason string
		key    byte
		scope  uint64
		expiry uint64
		alter  func(p *pair, x *Exchange, r *frames.WorkloadResponse)
	}{
		{name: "unknown key", reason: "key is not enrolled", key: 9},
		{name: "revoked key", reason: "key is revoked", key: 2},
		{name: "key revoked at a time to come", reason: "key is revoked", key: 3},
		{name: "expired record", reason: "expiry", key: 4},
		{name: "requested expiry is now", reason: "expiry", expiry: testNow},
		{name: "requested expiry of zero", reason: "expiry", alter: func(p *pair, x *Exchange, r *frames.WorkloadResponse) { p.resign(x, r, 0, r.ScopeBytes) }},
		{name: "nothing within the ceiling", reason: "ceiling", scope: 0x20},
		{name: "no scope", reason: "ceiling", alter: func(p *pair, x *Exchange, r *frames.WorkloadResponse) {
			p.resign(x, r, testEnd, make([]byte, 8))
		}},
		{name: "unknown scope bit", reason: "malformed", alter: func(p *pair, x *Exchange, r *frames.WorkloadResponse) {
			p.resign(x, r, testEnd, frames.ScopeBytes(1|1<<40))
		}},
		{name: "scope of 7 bytes", reason: "malformed", alter: func(p *pair, x *Exchange, r *frames.WorkloadResponse) {
			p.resign(x, r, testEnd, make([]byte, 7))
		}},
		{name: "scope of 9 bytes", reason: "malformed", alter: func(p *pair, x *Exchange, r *frames.WorkloadResponse) {
			p.resign(x, r, testEnd, make([]byte, 9))
		}},
		{name: "scope of no bytes", reason: "malformed", alter: func(p *pair, x *Exchange, r *frames.WorkloadResponse) {
			p.resign(x, r, testEnd, nil)
		}},
		{name: "scope raised after signing", reason: "verify", alter: func(_ *pair, _ *Exchange, r *frames.WorkloadResponse) {
			r.ScopeBytes = frames.ScopeBytes(3)
		}},
		{name: "expiry raised after signing", reason: "verify", alter: func(_ *pair, _ *Exchange, r *frames.WorkloadResponse) { r.RequestedExpiry++ }},
		{name: "another enrolled key's id", reason: "verify", alter: func(_ *pair, _ *Exchange, r *frames.WorkloadResponse) {
			r.KeyID = testRecord(5).KeyID
		}},
		{name: "signature bit", reason: "verify", alter: func(_ *pair, _ *Exchange, r *frames.WorkloadResponse) { r.Proof[40] ^= 4 }},
		{name: "signature of zeros", reason: "verify", alter: func(_ *pair, _ *Exchange, r *frames.WorkloadResponse) { r.Proof = [64]byte{} }},
		{name: "after 5 s", reason: "late", alter: func(p *pair, _ *Exchange, _ *frames.WorkloadResponse) {
			p.clock.Advance(ResponseTimeout + time.Nanosecond)
		}},
		{name: "second response", reason: "twice", alter: func(_ *pair, x *Exchange, r *frames.WorkloadResponse) {
			if _, err := x.Finish(r); err != nil {
				panic(err)
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPair(testRecord(1), revoked, revokedLater, expired, testRecord(5))
			if tt.key != 0 {
				p.client.Key = seededKey(tt.key)
			}
			if tt.scope == 0 {
				tt.scope = 1
			}
			if tt.expiry == 0 {
				tt.expiry = testEnd
			}
			x, _, resp := p.open(t, tt.scope, tt.expiry)
			if tt.alter != nil {
				tt.alter(p, x, resp)
			}
			g, err := x.Finish(resp)
			require.Nil(t, g)
			require.True(t, err == ErrAuthentication, "%v", err)
			require.Contains(t, x.Reason(), tt.reason)
			require.NotContains(t, err.Error(), tt.reason)
		})
	}
}

// resign makes a response that is right but for the values given.
func (p *pair) resign(x *Exchange, r *frames.WorkloadResponse, expiry uint64, scope []byte) {
	r.RequestedExpiry, r.ScopeBytes = expiry, scope
	r.Proof, _ = p.client.Key.Sign(x.terms.client(x.proof, r.KeyID, expiry, scope))
}

func TestC04_AlteredTranscriptFailsOnTheServer(t *testing.T) {
	for name, alter := range map[string]func(x *terms){
		"service":      func(x *terms) { x.service = "phux-witness" },
		"major":        func(x *terms) { x.major++ },
		"minor":        func(x *terms) { x.minor++ },
		"client nonce": func(x *terms) { x.clientNonce[31] ^= 1 },
		"server nonce": func(x *terms) { x.serverNonce[0] ^= 1 },
		"incarnation":  func(x *terms) { x.incarnation[15] ^= 1 },
		"binding kind": func(x *terms) { x.bindingKind = frames.BindingTLSExporter },
		"binding":      func(x *terms) { x.binding[9] ^= 1 },
		"authority":    func(x *terms) { x.authority[9] ^= 1 },
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair()
			x, _, resp := p.open(t, 1, testEnd)
			alter(&x.terms)
			_, err := x.Finish(resp)
			require.True(t, err == ErrAuthentication)
		})
	}
	p := newPair()
	x, _, resp := p.open(t, 1, testEnd)
	x.proof[3] ^= 1
	_, err := x.Finish(resp)
	require.True(t, err == ErrAuthentication)
}

func TestC04_AlteredChallengeIsNotSigned(t *testing.T) {
	other := seededKey(101)
	for _, tt := range []struct {
		name  string
		alter func(ch *frames.WorkloadChallenge)
		want  error
	}{
		{"profile", func(c *frames.WorkloadChallenge) { c.Profile = "phux-workload/v2" }, ErrChallenge},
		{"service", func(c *frames.WorkloadChallenge) { c.Service = "phux-witness" }, ErrChallenge},
		{"major", func(c *frames.WorkloadChallenge) { c.Major++ }, ErrChallenge},
		{"minor", func(c *frames.WorkloadChallenge) { c.Minor++ }, ErrChallenge},
		{"client nonce", func(c *frames.WorkloadChallenge) { c.ClientNonce[0] ^= 1 }, ErrChallenge},
		{"zero server nonce", func(c *frames.WorkloadChallenge) { c.ServerNonce = [32]byte{} }, ErrChallenge},
		{"server nonce", func(c *frames.WorkloadChallenge) { c.ServerNonce[0] ^= 1 }, ErrBinding},
		{"zero incarnation", func(c *frames.WorkloadChallenge) { c.Incarnation = frames.IncarnationID{} }, ErrChallenge},
		{"incarnation", func(c *frames.WorkloadChallenge) { c.Incarnation[0] ^= 1 }, ErrServerProof},
		{"binding kind", func(c *frames.WorkloadChallenge) { c.BindingKind = frames.BindingTLSExporter }, ErrBinding},
		{"binding", func(c *frames.WorkloadChallenge) { c.Binding[0] ^= 1 }, ErrBinding},
		{"authority proof", func(c *frames.WorkloadChallenge) { c.Proof[0] ^= 1 }, ErrServerProof},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPair()
			offer, err := p.client.NewOffer(rand.Reader)
			require.NoError(t, err)
			_, ch, err := p.server.Challenge(&offer, p.channel)
			require.NoError(t, err)
			tt.alter(ch)
			resp, err := p.client.Respond(&offer, ch, p.channel, 1, testEnd)
			require.Nil(t, resp)
			require.ErrorIs(t, err, tt.want)
		})
	}
	t.Run("another authority", func(t *testing.T) {
		p := newPair()
		p.server.Authority = other
		offer, err := p.client.NewOffer(rand.Reader)
		require.NoError(t, err)
		_, ch, err := p.server.Challenge(&offer, p.channel)
		require.NoError(t, err)
		_, err = p.client.Respond(&offer, ch, p.channel, 1, testEnd)
		var pin *PinError
		require.ErrorAs(t, err, &pin)
		require.Equal(t, FingerprintOf(other.pub), pin.Got)
	})
}

// A valid proof carried elsewhere: to a second connection, to another
// transport, to a server with the same registry, to another service.
func TestC04_ReplayAndRelay(t *testing.T) {
	p := newPair()
	_, _, resp := p.open(t, 1, testEnd)
	second, _, _ := p.open(t, 1, testEnd)
	_, err := second.Finish(resp)
	require.True(t, err == ErrAuthentication, "a proof made for another nonce")

	tls := TLSExporter{func(string, []byte, int) ([]byte, error) { return make([]byte, 32), nil }}
	other := UDSPeer{sock.Cred{UID: 1000, GID: 1000, PID: 43}}
	for name, victim := range map[string]Channel{"another process": other, "another transport": tls} {
		offer, err := p.client.NewOffer(rand.Reader)
		require.NoError(t, err)
		_, ch, err := p.server.Challenge(&offer, victim) // a relay dials the server itself
		require.NoError(t, err)
		_, err = p.client.Respond(&offer, ch, p.channel, 1, testEnd)
		require.ErrorIs(t, err, ErrBinding, name)
	}

	q := newPair() // the same keys on both sides, a later start
	q.server.Incarnation[0]++
	x, _, _ := q.open(t, 1, testEnd)
	_, err = x.Finish(resp)
	require.True(t, err == ErrAuthentication, "a proof made for another incarnation")

	w := newPair()
	w.server.Service.Name = "phux-witness"
	offer, err := w.client.NewOffer(rand.Reader)
	require.NoError(t, err)
	_, ch, err := w.server.Challenge(&offer, w.channel)
	require.NoError(t, err)
	_, err = w.client.Respond(&offer, ch, w.channel, 1, testEnd)
	require.ErrorIs(t, err, ErrChallenge)
}

func TestC04_OffersThatEarnNoChallenge(t *testing.T) {
	p := newPair()
	for name, offer := range map[string]*frames.WorkloadOffer{
		"none":          nil,
		"other profile": {Profile: "phux-workload/v0", ClientNonce: [32]byte{1}},
		"zero nonce":    {Profile: frames.Profile},
	} {
		_, _, err := p.server.Challenge(offer, p.channel)
		require.True(t, err == ErrAuthentication, name)
	}
	good := &frames.WorkloadOffer{Profile: frames.Profile, ClientNonce: [32]byte{1}}
	p.server.Rand = bytes.NewReader(make([]byte, 40)) // a zero nonce, then no more bytes
	_, _, err := p.server.Challenge(good, p.channel)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	p = newPair()
	_, _, err = p.server.Challenge(good, UDSPeer{})
	require.Error(t, err)
	require.NotErrorIs(t, err, ErrAuthentication)
	p.server.Authority = brokenSigner{p.authority.pub}
	_, _, err = p.server.Challenge(good, p.channel)
	require.ErrorIs(t, err, errBroken)
	p = newPair()
	p.client.Key = brokenSigner{seededKey(1).pub}
	offer, err := p.client.NewOffer(rand.Reader)
	require.NoError(t, err)
	_, ch, err := p.server.Challenge(&offer, p.channel)
	require.NoError(t, err)
	_, err = p.client.Respond(&offer, ch, p.channel, 1, testEnd)
	require.ErrorIs(t, err, errBroken)
}

var errBroken = errors.New("agent gone")

type brokenSigner struct{ pub [32]byte }

func (s brokenSigner) Public() [32]byte              { return s.pub }
func (s brokenSigner) Sign([]byte) ([64]byte, error) { return [64]byte{}, errBroken }

func TestC04_HelloAnswersThatAreDowngrades(t *testing.T) {
	p := newPair()
	x, ch, resp := p.open(t, 1, testEnd)
	g, err := x.Finish(resp)
	require.NoError(t, err)
	good := g.Wire()
	require.NoError(t, p.client.CheckHelloOK(ch, resp, &good, testIncarnation))
	with := func(change func(g *frames.WorkloadGrant)) *frames.WorkloadGrant {
		bad := good
		change(&bad)
		return &bad
	}
	for name, err := range map[string]error{
		"no challenge":       p.client.CheckHelloOK(nil, nil, &good, testIncarnation),
		"no grant":           p.client.CheckHelloOK(ch, resp, nil, testIncarnation),
		"other incarnation":  p.client.CheckHelloOK(ch, resp, &good, frames.IncarnationID{1}),
		"other key":          p.client.CheckHelloOK(ch, resp, with(func(g *frames.WorkloadGrant) { g.KeyID[0]++ }), testIncarnation),
		"other authority":    p.client.CheckHelloOK(ch, resp, with(func(g *frames.WorkloadGrant) { g.Fingerprint[0]++ }), testIncarnation),
		"more scope":         p.client.CheckHelloOK(ch, resp, with(func(g *frames.WorkloadGrant) { g.Scope = 3 }), testIncarnation),
		"no scope":           p.client.CheckHelloOK(ch, resp, with(func(g *frames.WorkloadGrant) { g.Scope = 0 }), testIncarnation),
		"longer than wanted": p.client.CheckHelloOK(ch, resp, with(func(g *frames.WorkloadGrant) { g.ExpiresAt++ }), testIncarnation),
		"no time at all":     p.client.CheckHelloOK(ch, resp, with(func(g *frames.WorkloadGrant) { g.ExpiresAt = 0 }), testIncarnation),
	} {
		require.ErrorIs(t, err, ErrDowngrade, name)
	}
}

// Whatever is asked, a grant never exceeds what was asked, the ceiling, or the
// two expiries, and is given exactly when something is left.
func TestGrantIsTheMeet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rec := testRecord(1)
		rec.Scope = rapid.SampledFrom([]uint64{1, 2, 3, 0x20, 0x23}).Draw(t, "ceiling")
		rec.ExpiresAt = rapid.Uint64Range(testNow-2, testNow+2).Draw(t, "record")
		p := newPair(rec)
		asked := rapid.SampledFrom([]uint64{0, 1, 2, 3, 0x20, 0x21}).Draw(t, "asked")
		until := rapid.Uint64Range(testNow-2, testNow+2).Draw(t, "until")
		x, _, resp := p.open(t, asked, until)
		g, err := x.Finish(resp)
		scope, end := asked&rec.Scope, min(until, rec.ExpiresAt)
		if want := scope != 0 && end > testNow; want != (err == nil) {
			t.Fatalf("granted %v, want %v", err == nil, want)
		}
		if err == nil && (g.Scope != scope || g.ExpiresAt != end) {
			t.Fatalf("grant %#x until %d, want %#x until %d", g.Scope, g.ExpiresAt, scope, end)
		}
	})
}

func TestC04_GrantExpiresForGood(t *testing.T) {
	p := newPair()
	x, _, resp := p.open(t, 1, testNow+10)
	g, err := x.Finish(resp)
	require.NoError(t, err)
	p.clock.Advance(9 * time.Second)
	require.NoError(t, g.Err(p.clock.Now()))
	p.clock.Advance(time.Second)
	require.ErrorIs(t, g.Err(p.clock.Now()), ErrExpired)
	p.clock.StepWall(-time.Hour)
	require.ErrorIs(t, g.Err(p.clock.Now()), ErrExpired, "a clock set back revives nothing")
}
