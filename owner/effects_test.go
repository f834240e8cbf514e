//go:build linux

package owner

import (
	"context"
	"crypto/rand"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/clock"

	"github.com/stretchr/testify/require"
)

// counted is a process that appends a line to a file when it starts.
func counted(file string) *Document {
	return &Document{Argv: []string{"/bin/sh", "-c", `echo started >> "$FILE"; exit 6`}, Env: map[string]string{"FILE": file}}
}

func lines(t testing.TB, file string) int {
	t.Helper()
	data, err := os.ReadFile(file)
	if os.IsNotExist(err) {
		return 0
	}
	require.NoError(t, err)
	n := 0
	for _, c := range data {
		if c == '\n' {
			n++
		}
	}
	return n
}

// TestC09_EffectsDedupeAtTheTarget: however often and from how many connections.
func TestC09_EffectsDedupeAtTheTarget(t *testing.T) {
	s := newStation(t, nil)
	file := filepath.Join(t.TempDir(), "starts")
	c := s.coordinator(1)
	a := c.newSpawn(counted(file))
	var wg sync.WaitGroup
	for range 5 {
		other := s.coordinator(1)
		for range 10 {
			wg.Go(func() {
				r, err := other.Dispatch(context.Background(), other.guard(), a)
				if err != nil || r.State != frames.EffectSucceeded || !r.HasResource {
					t.Errorf("%+v, %v", r, err)
				}
			})
		}
	}
	wg.Wait()
	r := c.started(a, c.dispatch(a))
	r.requireExit(6)
	require.Equal(t, 1, lines(t, file))

	// Another digest under this attempt conflicts, dispatched or looked up.
	other := c.newSpawn(counted(file))
	other.ID = a.ID
	_, err := c.Dispatch(t.Context(), c.guard(), other)
	requireCode(t, frames.CodeOperationConflict, err)
	_, err = c.GetEffect(t.Context(), c.guard(), a.ID, other.Digest)
	requireCode(t, frames.CodeOperationConflict, err)
	require.Equal(t, 1, lines(t, file))
}

// TestC09_ReMintedAttemptsStartNothing: [D-47].
func TestC09_ReMintedAttemptsStartNothing(t *testing.T) {
	s := newStation(t, nil)
	file := filepath.Join(t.TempDir(), "starts")
	c := s.coordinator(1)
	a := c.newSpawn(counted(file))
	first := c.dispatch(a)
	require.Equal(t, frames.EffectSucceeded, first.State)

	// The same effect under another attempt: that attempt's outcome.
	b := again(t, a)
	r := c.dispatch(b)
	require.Equal(t, frames.EffectSucceeded, r.State)
	require.Equal(t, first.Resource, r.Resource)
	d := again(t, a)
	require.Equal(t, first.Resource, c.lookUp(d).Resource, "looked up by its digest")

	// The operation or the binding with another effect: nobody can say.
	sameOperation := c.newSpawn(counted(file))
	sameOperation.OperationID = a.OperationID
	sameBinding := c.rawSpawn([]byte(`{"argv":["true"]}`), func(x *frames.EffectTarget, _ *frames.SpawnPayload) {
		x.PendingBindingID = a.Target.PendingBindingID
	})
	for _, x := range []*frames.EffectAttempt{sameOperation, sameBinding} {
		require.Equal(t, frames.EffectIndeterminate, c.dispatch(x).State)
		require.Equal(t, frames.EffectIndeterminate, c.lookUp(x).State)
		require.Equal(t, frames.EffectIndeterminate, c.dispatch(x).State)
	}
	c.started(a, first).requireExit(6)
	require.Equal(t, 1, lines(t, file))

	// A later incarnation holds to all of it.
	require.NoError(t, s.stop())
	s = openStation(t, s.dir, nil)
	c = s.coordinator(1)
	require.Equal(t, first.Resource, c.lookUp(a).Resource)
	require.Equal(t, first.Resource, c.dispatch(again(t, a)).Resource)
	require.Equal(t, frames.EffectIndeterminate, c.lookUp(sameBinding).State)
	require.Equal(t, 1, lines(t, file))
}

// TestC09_NeverSeenIsFinal: [D-51].
func TestC09_NeverSeenIsFinal(t *testing.T) {
	s := newStation(t, nil)
	file := filepath.Join(t.TempDir(), "starts")
	c := s.coordinator(1)
	a := c.newSpawn(counted(file))
	require.Equal(t, NeverSeen, c.lookUp(a).State)
	for range 2 {
		r := c.dispatch(a)
		require.Equal(t, frames.EffectRejected, r.State)
		require.Equal(t, textVoid, r.Message)
		require.Equal(t, NeverSeen, c.lookUp(a).State)
	}
	require.NoError(t, s.stop())
	s = openStation(t, s.dir, nil)
	c = s.coordinator(1)
	require.Equal(t, NeverSeen, c.lookUp(a).State)
	require.Equal(t, frames.EffectRejected, c.dispatch(a).State)
	require.Zero(t, lines(t, file))
	// A void attempt holds no id: the same effect may be dispatched under another attempt.
	b := again(t, a)
	b.Target.OwnerIncarnation = c.Incarnation()
	b = c.attempt(b.Kind, b.Target, b.Payload)
	require.Equal(t, frames.EffectSucceeded, c.dispatch(b).State)
}

func TestGetEffectWaitsForWhatIsInHand(t *testing.T) {
	gate := make(chan struct{})
	fake := newFakeLauncher()
	fake.beforeHold = func() { <-gate }
	s := newStation(t, func(o *Options) { o.launch = fake })
	c := s.coordinator(1)
	a := c.newSpawn(&Document{Argv: []string{"x"}})
	results := make(chan Result, 3)
	ask := func(f func() (Result, error)) {
		r, err := f()
		if err != nil {
			t.Error(err)
		}
		results <- r
	}
	go ask(func() (Result, error) { return c.Dispatch(context.Background(), c.guard(), a) })
	c.eventually("the hold", func() bool { return fake.holds.Load() == 1 })
	go ask(func() (Result, error) { return c.GetEffect(context.Background(), c.guard(), a.ID, a.Digest) })
	go ask(func() (Result, error) { return c.Dispatch(context.Background(), c.guard(), again(t, a)) })
	select {
	case r := <-results:
		t.Fatalf("an answer before the outcome: %+v", r)
	case <-time.After(50 * time.Millisecond):
	}
	close(gate)
	for range 3 {
		require.Equal(t, frames.EffectSucceeded, (<-results).State)
	}
	require.EqualValues(t, 1, fake.releases.Load())
}

func TestKillNamesTheFullBinding(t *testing.T) {
	s := newStation(t, nil)
	c := s.coordinator(1)
	r := c.shell("read x")
	for _, change := range []func(*frames.TerminalBindingRef){
		func(b *frames.TerminalBindingRef) { b.BindingID[0]++ },
		func(b *frames.TerminalBindingRef) { b.WorkSessionID[0]++ },
		func(b *frames.TerminalBindingRef) { b.Owner[0]++ },
		func(b *frames.TerminalBindingRef) { b.OwnerIncarnation[0]++ },
		func(b *frames.TerminalBindingRef) { b.Resource.ID++ },
		func(b *frames.TerminalBindingRef) { b.Resource.Host = "satellite" },
	} {
		wrong := *r
		change(&wrong.ref)
		out := c.dispatch(wrong.effect(frames.EffectKill, nil))
		require.Equal(t, frames.EffectRejected, out.State)
		require.Equal(t, textNoBinding, out.Message)
	}
	require.Equal(t, 1, s.o.Processes())
	require.Equal(t, frames.EffectSucceeded, c.dispatch(r.effect(frames.EffectKill, nil)).State)
	r.requireExit(-int32(syscall.SIGTERM))
}

// TestC16_FormerIncarnationIsServedToItsEnd: [D-53].
func TestC16_FormerIncarnationIsServedToItsEnd(t *testing.T) {
	s := newStation(t, nil)
	c := s.coordinator(1)
	done := c.shell("echo done; exit 8")
	done.requireExit(8)
	dies := c.shell("echo here; sleep 100")
	c.eventually("output", func() bool { return len(c.in.of(dies.id)) == 2 })
	former := c.Incarnation()
	require.NoError(t, s.stop()) // in order: the process is ended and its end recorded

	s = openStation(t, s.dir, nil)
	c = s.coordinator(2)
	require.ElementsMatch(t, []frames.BindingID{done.id, dies.id}, c.in.bindings)
	for _, r := range []*running{done, dies} {
		require.NoError(t, c.OpenFacts(t.Context(), c.guard(), r.id, 0, 100))
		c.eventually("FACTS_END", func() bool {
			_, ends := c.in.snapshot()
			return ends[r.id] == 3
		})
		facts := c.in.of(r.id)
		require.Len(t, facts, 3)
		require.Equal(t, frames.FactClosed, facts[2].Kind)
		require.Equal(t, former, facts[2].Source.OwnerIncarnation)
		again := *r
		again.c = c
		require.Equal(t, frames.EffectRejected, c.dispatch(again.effect(frames.EffectKill, nil)).State)
	}
	v, err := c.in.of(dies.id)[2].DecodePayload()
	require.NoError(t, err)
	require.Equal(t, &frames.Closed{Known: true, Status: -int32(syscall.SIGTERM)}, v)
	require.NoError(t, c.OpenFacts(t.Context(), c.guard(), done.id, 3, 0))
	require.NoError(t, c.FactAck(t.Context(), done.id, 3, 0))
	reader := s.dial(readerKey, coordA, ScopeOutput)
	var out []byte
	require.NoError(t, reader.ReadOutput(t.Context(), done.id, 0, 0, true, func(_ uint64, p []byte) error { out = append(out, p...); return nil }))
	require.Equal(t, "done\r\n", string(out))
}

// Rows go 30 days after their incarnation, but none whose facts wait.
func TestRowsAreKeptForThirtyDays(t *testing.T) {
	s := newStation(t, nil)
	c := s.coordinator(1)
	acked, waiting := c.shell("echo a"), c.shell("echo b")
	acked.requireExit(0)
	waiting.requireExit(0)
	void := c.newSpawn(&Document{Argv: []string{"x"}})
	require.Equal(t, NeverSeen, c.lookUp(void).State)
	require.NoError(t, c.FactAck(t.Context(), acked.id, 3, 0))
	require.Equal(t, NeverSeen, c.lookUp(void).State) // a round trip behind it
	require.NoError(t, s.stop())
	for _, days := range []int{29, 31} {
		later := &shifted{Clock: s.clk, by: time.Duration(days) * 24 * time.Hour}
		s = openStation(t, s.dir, func(o *Options) { o.Clock = later })
		_, err := s.o.holds(coordA, acked.id)
		if days < 30 {
			require.NoError(t, err)
		} else {
			require.Error(t, err)
		}
		_, err = s.o.holds(coordA, waiting.id)
		require.NoError(t, err, "its facts wait")
		require.Len(t, entries(t, filepath.Join(s.dir, outputDir)), map[bool]int{true: 2, false: 1}[days < 30])
		require.NoError(t, s.o.j.view(func(tx *txn) error {
			_, ok := tx.attempt(acked.attempt.ID)
			require.Equal(t, days < 30, ok)
			_, ok = tx.attempt(void.ID)
			require.Equal(t, days < 30, ok)
			_, ok = tx.attempt(waiting.attempt.ID)
			require.True(t, ok)
			_, ok = tx.indexed(bindingKey(acked.id))
			require.Equal(t, days < 30, ok)
			return nil
		}))
		require.NoError(t, s.stop())
	}
	// Once its facts are acknowledged, too, the next look finds nothing to keep.
	at := func(days int) func(*Options) {
		return func(o *Options) { o.Clock = &shifted{Clock: clock.System(), by: time.Duration(days) * 24 * time.Hour} }
	}
	s = openStation(t, s.dir, at(31))
	c = s.coordinator(2)
	require.NoError(t, c.FactAck(t.Context(), waiting.id, 3, 0))
	require.Equal(t, NeverSeen, c.lookUp(c.newSpawn(&Document{Argv: []string{"y"}})).State) // a round trip behind it
	require.NoError(t, s.o.Prune())
	_, err := s.o.holds(coordA, waiting.id)
	require.Error(t, err)
	require.Empty(t, entries(t, filepath.Join(s.dir, outputDir)))
}

// An incarnation that crashed counts as ended from the start of the next one.
func TestACrashEndsAnIncarnation(t *testing.T) {
	s := newStation(t, func(o *Options) { o.launch = newFakeLauncher() })
	crashed := s.o.Incarnation()
	require.NoError(t, s.stop())
	j := openTestJournal(t, s.dir)
	require.NoError(t, j.update(func(tx *txn) error { // as it stands when nobody could write it
		tx.put(bucketIncarnations, crashed[:], &incarnationRow{Started: 1})
		return nil
	}))
	require.NoError(t, j.close())
	s = openStation(t, s.dir, func(o *Options) { o.launch = newFakeLauncher() })
	now := s.o.Incarnation()
	require.NoError(t, s.o.j.view(func(tx *txn) error {
		var row incarnationRow
		require.True(t, tx.get(bucketIncarnations, crashed[:], &row))
		require.NotZero(t, row.Ended)
		require.True(t, tx.get(bucketIncarnations, now[:], &row))
		require.Zero(t, row.Ended)
		return nil
	}))
}

// The key is looked at before each frame is carried out: of one whose time is over nothing is
// started, although the certificate lasts.
func TestC04_EffectsOfAnExpiredKey(t *testing.T) {
	fake := newFakeLauncher()
	clk := clock.NewManual(clock.System().Now())
	s := newStation(t, func(o *Options) { o.launch, o.Clock = fake, clk })
	srv, err := NewServer(ServerOptions{Owner: s.o, Clock: clk, Handshake: &handshake.Server{
		Service: HandshakeService(), Authority: ownerKey, Incarnation: s.o.Incarnation(), Rand: rand.Reader, Clock: clk,
		Registry: handshake.StaticRegistry([]handshake.Record{
			{PublicKey: linkKey.Public(), Scope: ScopeAll, ExpiresAt: clk.Now().Unix() + 20, Coordinator: coordA, Label: "a"},
		}),
	}})
	require.NoError(t, err)
	s.srv = srv
	c := s.coordinator(1)
	require.Equal(t, NeverSeen, c.lookUp(c.newSpawn(&Document{Argv: []string{"x"}})).State)
	clk.StepWall(20 * time.Second) // no timer rings
	_, err = c.Dispatch(t.Context(), c.guard(), c.newSpawn(&Document{Argv: []string{"x"}}))
	requireCode(t, frames.CodeAuthenticationFailed, err)
	c.requireEnd(frames.CodeAuthenticationFailed)
	require.NoError(t, s.stop())
	require.Zero(t, fake.holds.Load())
}

// A place is free as soon as the end of its process can be known, and a process that is being
// started has one.
func TestPlacesOfProcesses(t *testing.T) {
	fake := newFakeLauncher()
	gate := make(chan struct{})
	s := newStation(t, func(o *Options) { o.launch, o.MaxProcesses = fake, 1 })
	c := s.coordinator(1)
	for group := range uint32(20) {
		a := c.newSpawn(&Document{Argv: []string{"x"}})
		r := c.started(a, c.dispatch(a))
		require.Equal(t, frames.EffectRejected, c.dispatch(c.newSpawn(&Document{Argv: []string{"y"}})).State)
		fake.child(group + 1).end(frames.Closed{Known: true})
		r.requireExit(0)
	}
	require.Equal(t, frames.EffectRejected, c.dispatch(c.newSpawn(&Document{Argv: []string{"missing"}})).State)
	fake.beforeHold = func() { <-gate }
	holds := fake.holds.Load()
	first := make(chan Result, 1)
	a := c.newSpawn(&Document{Argv: []string{"x"}})
	go func() {
		r, err := c.Dispatch(context.Background(), c.guard(), a)
		if err != nil {
			t.Error(err)
		}
		first <- r
	}()
	c.eventually("the hold", func() bool { return fake.holds.Load() == holds+1 })
	second := c.dispatch(c.newSpawn(&Document{Argv: []string{"y"}}))
	require.Equal(t, frames.EffectRejected, second.State)
	require.Equal(t, textTooMany, second.Message)
	close(gate)
	require.Equal(t, frames.EffectSucceeded, (<-first).State)
}

// What is not started yet has no output, rather than an empty one that looks final; and nobody
// can kill it by a name that it has not been given.
func TestProcessThatIsHeldHasNoOutput(t *testing.T) {
	reached, gate := make(chan struct{}), make(chan struct{})
	fake := newFakeLauncher()
	fake.started = func([]string) { close(reached); <-gate }
	s := newStation(t, func(o *Options) { o.launch = fake })
	c := s.coordinator(1)
	a := c.newSpawn(&Document{Argv: []string{"x"}})
	id := frames.BindingID(a.Target.PendingBindingID)
	dispatched := make(chan Result, 1)
	go func() {
		r, err := c.Dispatch(context.Background(), c.guard(), a)
		if err != nil {
			t.Error(err)
		}
		dispatched <- r
	}()
	<-reached
	none := func(uint64, []byte) error { t.Error("output"); return nil }
	requireCode(t, frames.CodeNotFound, c.ReadOutput(t.Context(), id, 0, 0, true, none))
	row, err := s.o.holds(coordA, id)
	require.NoError(t, err)
	require.Equal(t, bindingHeld, row.State)
	guess := running{c: c, id: id, ref: row.ref(id, ownerPrint)}
	require.Equal(t, frames.EffectRejected, c.dispatch(guess.effect(frames.EffectKill, nil)).State)
	next := s.dial(linkKey, coordA, ScopeAll)
	next.show(c.cert)
	require.Equal(t, []frames.BindingID{id}, next.in.bindings, "it may live before anybody knows")
	require.NoError(t, c.FactAck(t.Context(), id, AckAll, 0)) // given up before it is started
	c.eventually("that is journaled", func() bool {
		row, err := s.o.holds(coordA, id)
		return err == nil && row.Acked == AckAll
	})
	close(gate)
	require.Equal(t, frames.EffectSucceeded, (<-dispatched).State)
	c.eventually("it is killed at once", func() bool { return s.o.Processes() == 0 })
}

// What one connection has outstanding is bounded, and comes back.
func TestRequestsOfOneConnectionAreBounded(t *testing.T) {
	gate := make(chan struct{})
	fake := newFakeLauncher()
	fake.beforeHold = func() { <-gate }
	s := newStation(t, func(o *Options) { o.launch = fake })
	c := s.coordinator(1)
	results := make(chan error, maxRequests)
	for range maxRequests {
		a := c.newSpawn(&Document{Argv: []string{"x"}})
		go func() {
			_, err := c.Dispatch(context.Background(), c.guard(), a)
			results <- err
		}()
	}
	c.eventually("all are journaled", func() bool {
		s.o.mu.Lock()
		defer s.o.mu.Unlock()
		return len(s.o.inHand) == maxRequests
	})
	_, err := c.GetEffect(t.Context(), c.guard(), newID[frames.EffectAttemptID](t), [32]byte{1})
	requireCode(t, frames.CodeResourceExhausted, err)
	close(gate)
	for range maxRequests {
		require.NoError(t, <-results)
	}
	a := c.newSpawn(&Document{Argv: []string{"y"}})
	for range maxRequests + 1 { // each gives its place back, refused or not
		require.Equal(t, NeverSeen, c.lookUp(a).State)
		_, err := c.GetEffect(t.Context(), c.guard(), a.ID, [32]byte{1})
		requireCode(t, frames.CodeOperationConflict, err)
	}
}
