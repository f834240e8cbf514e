//go:build linux

package owner

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/handshake/link"
	"coordinator/internal/clock"
	"coordinator/internal/sock"

	"github.com/stretchr/testify/require"
)

// requireEnd waits for the connection's end and checks the code that the owner gave.
func (c *coordinator) requireEnd(code frames.Code) {
	c.t.Helper()
	select {
	case <-c.Done():
	case <-time.After(waitLimit):
		c.t.Fatal("the connection did not end")
	}
	requireCode(c.t, code, c.Err())
}

func TestHelloNamesGroupsAndIncarnation(t *testing.T) {
	s := newStation(t, nil)
	c := s.dial(linkKey, coordA, 0)
	require.Equal(t, []frames.GroupID{1, 7}, c.Groups())
	require.Equal(t, s.o.Incarnation(), c.Incarnation())
	require.Equal(t, ownerPrint, c.Fingerprint())
	require.Equal(t, ScopeAll, c.Scope())
}

func TestC04_OtherPinOrKey(t *testing.T) {
	s := newStation(t, nil)
	options := ClientOptions{
		Dial: func(context.Context) (nc netConn, ch handshake.Channel, err error) {
			return s.connect(), handshake.UDSPeer{Cred: sock.SelfCred()}, nil
		},
		Pin: ownerPrint, CoordinatorID: coordA, Key: linkKey, Clock: s.clk, Rand: rand.Reader,
	}
	o := options
	o.Pin[0]++
	_, err := Dial(t.Context(), o)
	require.ErrorIs(t, err, ErrImpostor)
	o = options
	o.Key = witnessKey
	_, err = Dial(t.Context(), o)
	requireCode(t, frames.CodeAuthenticationFailed, err)
	o = options
	o.CoordinatorID = coordB // the key may act for A alone
	_, err = Dial(t.Context(), o)
	requireCode(t, frames.CodeAuthenticationFailed, err)
}

// Nothing is taken before the AUTHORITY of a connection that acts.
func TestAuthorityComesFirst(t *testing.T) {
	s := newStation(t, nil)
	for _, f := range []frames.Frame{
		&GetEffect{RequestID: 1, Attempt: frames.EffectAttemptID{1}},
		&FactAck{BindingID: frames.BindingID{1}},
		&ReadOutput{RequestID: 1, BindingID: frames.BindingID{1}},
		&OpenFacts{RequestID: 1, BindingID: frames.BindingID{1}},
	} {
		c := s.dial(linkKey, coordA, ScopeAll)
		require.NoError(t, c.send(t.Context(), f))
		c.requireEnd(frames.CodeProtocolError)
	}
	c := s.dial(readerKey, coordA, ScopeOutput) // and none is taken from one that only reads
	require.NoError(t, c.Authority(t.Context(), certificate(t, s.clk.Now(), coordA, 1)))
	c.requireEnd(frames.CodeProtocolError)
}

func TestCertificatesThatAreRefused(t *testing.T) {
	s := newStation(t, nil)
	now := s.clk.Now()
	with := func(change func(*frames.Certificate), key *handshake.Key) frames.Certificate {
		cert := certificate(t, now, coordA, 5)
		change(&cert)
		return signed(t, cert, key)
	}
	for _, tt := range []struct {
		name string
		cert frames.Certificate
		code frames.Code
	}{
		{"another witness's key", with(func(*frames.Certificate) {}, linkKey), frames.CodeAuthenticationFailed},
		{"another witness", with(func(c *frames.Certificate) { c.WitnessID[0]++ }, witnessKey), frames.CodeAuthenticationFailed},
		{"for another coordinator", with(func(c *frames.Certificate) { c.CoordinatorID = coordB }, witnessKey), frames.CodeAuthenticationFailed},
		{"expired", with(func(c *frames.Certificate) { c.IssuedAt, c.ExpiresAt = now.Unix()-50, now.Unix()-1 }, witnessKey), frames.CodeStaleAuthority},
		{"of the future", with(func(c *frames.Certificate) { c.IssuedAt, c.ExpiresAt = now.Unix()+30, now.Unix()+60 }, witnessKey), frames.CodeStaleAuthority},
		{"altered", func() frames.Certificate { c := certificate(t, now, coordA, 5); c.Epoch++; return c }(), frames.CodeAuthenticationFailed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := s.dial(linkKey, coordA, ScopeAll)
			require.NoError(t, c.Authority(t.Context(), tt.cert))
			c.requireEnd(tt.code)
		})
	}
	s.coordinator(1) // none of them raised the fence
}

// TestC05_StaleCoordinatorIsRefused: field case 1 at the owner. The higher authority ends the
// connections of the lower one, whose effects are refused from then on, restarts included.
func TestC05_StaleCoordinatorIsRefused(t *testing.T) {
	s := newStation(t, nil)
	old := s.coordinator(4)
	r := old.shell("read x")
	fresh := s.coordinator(5)
	old.requireEnd(frames.CodeStaleAuthority)
	require.Equal(t, []frames.BindingID{r.id}, fresh.in.bindings)

	for _, lower := range []uint64{4, 3} {
		c := s.dial(linkKey, coordA, ScopeAll)
		require.NoError(t, c.Authority(t.Context(), certificate(t, s.clk.Now(), coordA, lower)))
		c.requireEnd(frames.CodeStaleAuthority)
	}
	// Both counters rise together; of the same pair there is one token.
	for _, change := range []func(*frames.Certificate){
		func(c *frames.Certificate) { c.Activation = 4 },
		func(c *frames.Certificate) { c.Epoch = 5; c.Activation = 6 },
		func(c *frames.Certificate) { c.Epoch, c.Activation = 5, 5; c.Token[0]++ },
	} {
		cert := certificate(t, s.clk.Now(), coordA, 6)
		change(&cert)
		c := s.dial(linkKey, coordA, ScopeAll)
		require.NoError(t, c.Authority(t.Context(), signed(t, cert, witnessKey)))
		c.requireEnd(frames.CodeStaleAuthority)
	}
	same := s.coordinator(5) // another connection of the one in force
	require.NoError(t, same.Close())
	select {
	case <-fresh.Done():
		t.Fatal("the connection in force was ended")
	default:
	}
	require.NoError(t, fresh.FactAck(t.Context(), r.id, AckAll, 0))
	require.NoError(t, s.stop())

	s = openStation(t, s.dir, nil)
	c := s.dial(linkKey, coordA, ScopeAll)
	require.NoError(t, c.Authority(t.Context(), certificate(t, s.clk.Now(), coordA, 4)))
	c.requireEnd(frames.CodeStaleAuthority)
	b := s.dial(linkKeyB, coordB, ScopeAll) // each coordinator has its own fence
	b.show(certificate(t, s.clk.Now(), coordB, 1))
}

// An effect that is journaled gets its outcome before a higher authority is taken.
func TestTakeoverWaitsForWhatIsJournaled(t *testing.T) {
	gate := make(chan struct{})
	fake := newFakeLauncher()
	fake.beforeHold = func() { <-gate }
	s := newStation(t, func(o *Options) { o.launch = fake })
	old := s.coordinator(1)
	a := old.newSpawn(&Document{Argv: []string{"x"}})
	go old.Dispatch(context.Background(), old.guard(), a) //nolint:errcheck // its connection is ended
	require.Eventually(t, func() bool { return fake.holds.Load() == 1 }, waitLimit, time.Millisecond)
	next := s.dial(linkKey, coordA, ScopeAll)
	cert := certificate(t, s.clk.Now(), coordA, 2)
	require.NoError(t, next.Authority(t.Context(), cert))
	old.requireEnd(frames.CodeStaleAuthority)
	require.Never(t, func() bool {
		s.o.mu.Lock()
		defer s.o.mu.Unlock()
		return s.o.fences[coordA].highest.Epoch != 1
	}, 100*time.Millisecond, 5*time.Millisecond, "not taken yet")
	next.in.mu.Lock()
	require.Zero(t, next.in.lists)
	next.in.mu.Unlock()
	close(gate)
	next.cert = cert
	require.Equal(t, frames.EffectSucceeded, next.lookUp(a).State)
}

func TestGuardsAndExpiry(t *testing.T) {
	clk := clock.NewManual(clock.System().Now())
	s := newStation(t, func(o *Options) { o.Clock = clk })
	c := s.coordinator(1)
	id := newID[frames.EffectAttemptID](t)
	for _, change := range []func(*frames.AuthorityGuard){
		func(g *frames.AuthorityGuard) { g.Epoch++ },
		func(g *frames.AuthorityGuard) { g.Activation++ },
		func(g *frames.AuthorityGuard) { g.CoordinatorID = coordB },
		func(g *frames.AuthorityGuard) { g.TokenSHA256[31]++ },
	} {
		c := s.coordinator(1)
		guard := c.guard()
		change(&guard)
		_, err := c.GetEffect(t.Context(), guard, id, [32]byte{1})
		requireCode(t, frames.CodeStaleAuthority, err)
		c.requireEnd(frames.CodeStaleAuthority)
	}
	look := func() error {
		_, err := c.GetEffect(t.Context(), c.guard(), id, [32]byte{1})
		return err
	}
	pass := func(secs int) { // with traffic, or both sides would take the other for dead
		for range secs / 10 {
			clk.Advance(10 * time.Second)
			require.NoError(t, look())
		}
	}
	pass(40)
	require.NoError(t, c.Authority(t.Context(), certificate(t, clk.Now(), coordA, 1)), "a renewal")
	pass(50)
	clk.StepWall(-time.Hour) // setting the clock back prolongs nothing
	require.NoError(t, look())
	clk.Advance(10 * time.Second)
	requireCode(t, frames.CodeStaleAuthority, look())
	c.requireEnd(frames.CodeStaleAuthority)
}

func TestRenewalOfAnotherActivationIsRefused(t *testing.T) {
	s := newStation(t, nil)
	c := s.coordinator(1)
	require.NoError(t, c.Authority(t.Context(), certificate(t, s.clk.Now(), coordA, 2)))
	c.requireEnd(frames.CodeStaleAuthority)
	s.coordinator(1) // it raised nothing
}

func TestScopesAreIndependent(t *testing.T) {
	s := newStation(t, nil)
	all := s.coordinator(1)
	r := all.shell("echo hello; read x")
	all.eventually("output", func() bool { return len(all.in.of(r.id)) > 1 })
	get := func(c *coordinator) error {
		_, err := c.GetEffect(t.Context(), all.guard(), r.attempt.ID, r.attempt.Digest)
		return err
	}
	open := func(c *coordinator) error { return c.OpenFacts(t.Context(), all.guard(), r.id, 0, 1) }
	read := func(c *coordinator) error {
		return c.ReadOutput(t.Context(), r.id, 0, 0, false, func(uint64, []byte) error { return nil })
	}
	for _, tt := range []struct {
		scope    uint64
		key      *handshake.Key
		get      bool
		open     bool
		read     bool
		bindings bool
	}{
		{ScopeEffects, linkKey, true, false, false, false},
		{ScopeFacts, linkKey, false, true, false, true},
		{ScopeOutput, readerKey, false, false, true, false},
		{ScopeEffects | ScopeOutput, linkKey, true, false, true, false},
	} {
		c := s.dial(tt.key, coordA, tt.scope)
		if tt.scope != ScopeOutput {
			require.NoError(t, c.Authority(t.Context(), all.cert))
		}
		for i, err := range []error{get(c), open(c), read(c)} {
			if []bool{tt.get, tt.open, tt.read}[i] {
				require.NoError(t, err)
			} else {
				requireCode(t, frames.CodeScopeDenied, err)
			}
		}
		c.in.mu.Lock()
		require.Equal(t, tt.bindings, c.in.lists > 0)
		c.in.mu.Unlock()
	}
}

// TestC09_NothingOfAnotherCoordinator: [D-60].
func TestC09_NothingOfAnotherCoordinator(t *testing.T) {
	s := newStation(t, nil)
	a := s.coordinator(1)
	r := a.shell("echo secret; read x")
	b := s.dial(linkKeyB, coordB, ScopeAll)
	b.show(certificate(t, s.clk.Now(), coordB, 1))
	require.Empty(t, b.in.bindings)

	_, err := b.GetEffect(t.Context(), b.guard(), r.attempt.ID, r.attempt.Digest)
	requireCode(t, frames.CodeNotFound, err)
	_, err = b.Dispatch(t.Context(), b.guard(), r.attempt)
	requireCode(t, frames.CodeNotFound, err)
	_, err = b.Dispatch(t.Context(), b.guard(), again(t, r.attempt))
	requireCode(t, frames.CodeNotFound, err)
	requireCode(t, frames.CodeNotFound, b.OpenFacts(t.Context(), b.guard(), r.id, 0, 1))
	err = b.ReadOutput(t.Context(), r.id, 0, 0, false, func(uint64, []byte) error { t.Error("output"); return nil })
	requireCode(t, frames.CodeNotFound, err)
	kill := r.effect(frames.EffectKill, nil)
	require.Equal(t, frames.EffectRejected, b.dispatch(kill).State)
	require.NoError(t, b.FactAck(t.Context(), r.id, AckAll, 0))
	_, err = b.GetEffect(t.Context(), b.guard(), newID[frames.EffectAttemptID](t), r.attempt.Digest)
	require.NoError(t, err, "a digest tells nothing about another coordinator's effects")
	require.Equal(t, 1, s.o.Processes(), "and nothing was killed")
	require.Equal(t, frames.EffectSucceeded, a.dispatch(r.effect(frames.EffectKill, nil)).State)
}

// A peer of the wire: caps, stray frames and rubbish.
func TestC02_CapsOfTheLink(t *testing.T) {
	s := newStation(t, nil)
	header := func(length uint32, typ frames.Type) []byte {
		return append(binary.BigEndian.AppendUint32(nil, length), byte(typ))
	}
	for _, tt := range []struct {
		name string
		raw  []byte
		code frames.Code
	}{
		{"2^32-1", header(1<<32-1, TypeDispatchEffect), frames.CodeFrameTooLarge},
		{"above 512 KiB", header(MaxFrameBytes+1, TypeDispatchEffect), frames.CodeFrameTooLarge},
		{"unknown type", header(1, 0x66), frames.CodeProtocolError},
		{"frame of the server", header(1, TypeSourceFact), frames.CodeProtocolError},
		{"frame of the witness link", header(1, 0x12), frames.CodeProtocolError},
		{"second hello", header(1, link.TypeHello), frames.CodeProtocolError},
		{"empty dispatch", header(1, TypeDispatchEffect), frames.CodeMalformedMessage},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := s.coordinator(1)
			_, err := c.nc.Write(tt.raw)
			require.NoError(t, err)
			c.requireEnd(tt.code)
		})
	}
}

func TestMalformedEffectsEndTheConnection(t *testing.T) {
	s := newStation(t, nil)
	c := s.coordinator(1)
	a := c.newSpawn(&Document{Argv: []string{"true"}})
	a.Digest[0]++
	_, err := c.Dispatch(t.Context(), c.guard(), a)
	requireCode(t, frames.CodeMalformedMessage, err)
	c.requireEnd(frames.CodeMalformedMessage)
}

func TestReadingOutput(t *testing.T) {
	s := newStation(t, nil)
	c := s.coordinator(1)
	r := c.shell("stty -onlcr; printf 'abcdefghij'; read x; printf 'klm'; exit 5")
	c.eventually("output", func() bool { return ranges(t, c.in.of(r.id), nil) >= 10 })
	reader := s.dial(readerKey, coordA, ScopeOutput)
	read := func(offset, max uint64, follow bool) string {
		var out []byte
		require.NoError(t, reader.ReadOutput(t.Context(), r.id, offset, max, follow, func(at uint64, data []byte) error {
			require.EqualValues(t, offset+uint64(len(out)), at)
			out = append(out, data...)
			return nil
		}))
		return string(out)
	}
	require.Equal(t, "abcdefghij", read(0, 0, false))
	require.Equal(t, "cde", read(2, 3, false))
	require.Equal(t, "cde", read(2, 3, true))
	require.Equal(t, "", read(10, 0, false))
	require.Equal(t, "", read(99, 0, false))
	require.Equal(t, "j", read(9, 5, false))
	followed := make(chan string)
	go func() { followed <- read(4, 0, true) }()
	// "\n" typed into the terminal: nobody of this link can, so the process is told by signal.
	require.Equal(t, frames.EffectSucceeded, c.dispatch(r.effect(frames.EffectKill, nil)).State)
	require.Equal(t, "efghij", <-followed)
	require.Equal(t, "", read(99, 0, true))
	r.requireExit(-int32(syscall.SIGTERM))
	requireCode(t, frames.CodeNotFound, reader.ReadOutput(t.Context(), newID[frames.BindingID](t), 0, 0, false, nil))
	// A slow sink holds nobody up, and its error comes back.
	err := reader.ReadOutput(t.Context(), r.id, 0, 0, false, func(uint64, []byte) error { return context.DeadlineExceeded })
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Equal(t, "abc", read(0, 3, false), "the connection goes on")
}

func TestReadsOfOneConnectionAreBounded(t *testing.T) {
	s := newStation(t, nil)
	c := s.coordinator(1)
	r := c.shell("read x")
	ctx, cancel := context.WithCancel(t.Context())
	results := make(chan error, maxReads+1)
	var begun atomic.Int32
	for range maxReads + 1 {
		go func() {
			begun.Add(1)
			results <- c.ReadOutput(ctx, r.id, 0, 0, true, func(uint64, []byte) error { return nil })
		}()
	}
	requireCode(t, frames.CodeResourceExhausted, <-results)
	cancel()
	for range maxReads {
		require.ErrorIs(t, <-results, context.Canceled)
	}
	reader := s.dial(readerKey, coordA, ScopeOutput)
	for range maxReads + 1 { // one after the other each gives its place back, refused or not
		require.NoError(t, reader.ReadOutput(t.Context(), r.id, 0, 0, false, func(uint64, []byte) error { return nil }))
		requireCode(t, frames.CodeNotFound, reader.ReadOutput(t.Context(), newID[frames.BindingID](t), 0, 0, false, nil))
	}
}

// Many windows in a row lose and repeat nothing.
func TestLongOutputIsReadInWindows(t *testing.T) {
	s := newStation(t, nil)
	c := s.coordinator(1)
	r := c.shell("stty -onlcr; seq 1 400000")
	var want []byte
	for i := 1; i <= 400000; i++ {
		want = appendInt(want, i)
	}
	got := r.output()
	require.Equal(t, len(want), len(got))
	require.Equal(t, string(want), string(got))
	r.requireExit(0)
	_, facts := r.closed()
	require.EqualValues(t, len(want), ranges(t, facts, got))
}

func appendInt(b []byte, i int) []byte {
	var tmp [12]byte
	n := len(tmp)
	for ; i > 0; i /= 10 {
		n--
		tmp[n] = byte('0' + i%10)
	}
	return append(append(b, tmp[n:]...), '\n')
}
