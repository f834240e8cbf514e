//go:build linux

package owner

import (
	"context"
	"os"
	"syscall"
	"testing"
	"time"

	"coordinator/frames"
	"coordinator/handshake/link"
	"coordinator/internal/clock"

	"github.com/stretchr/testify/require"
)

// manual is a station whose processes are fakes and whose clock stands.
type manual struct {
	*station
	c    *coordinator
	clk  *clock.Manual
	fake *fakeLauncher
}

func newManual(t *testing.T) *manual {
	m := &manual{clk: clock.NewManual(clock.System().Now()), fake: newFakeLauncher()}
	m.station = newStation(t, func(o *Options) { o.launch, o.Clock = m.fake, m.clk })
	m.c = m.coordinator(1)
	return m
}

// stubborn starts a process that ignores SIGTERM and says which signals it gets. timers is how
// many timers run beside its own.
func (m *manual) stubborn(grace uint32) (r *running, child *fakeChild, hears chan syscall.Signal, timers int) {
	m.t.Helper()
	r = m.c.run(&Document{Argv: []string{"x"}, GraceSecs: secs(grace)})
	child = m.fake.child(1)
	hears = make(chan syscall.Signal, 10)
	child.hears = hears
	return r, child, hears, m.clk.Timers()
}

// ends ends the link at both ends, so that only timers of processes are left.
func (m *manual) ends() {
	m.cancel()
	m.wg.Wait()
	m.c.Close() //nolint:errcheck // the other end has ended it
}

// due waits until a timer is due within d.
func (m *manual) due(d time.Duration) {
	m.t.Helper()
	m.c.eventually("the alarm is set", func() bool {
		at, armed := m.clk.Next()
		return armed && at <= m.clk.Now().Boot+d
	})
}

// SIGKILL comes a grace after the first KILL; another KILL does not put it off.
func TestAnotherKillPutsNothingOff(t *testing.T) {
	m := newManual(t)
	r, _, hears, timers := m.stubborn(7)
	require.Equal(t, frames.EffectSucceeded, m.c.dispatch(r.effect(frames.EffectKill, nil)).State)
	require.Equal(t, syscall.SIGTERM, <-hears)
	m.c.eventually("the alarm is set", func() bool { return m.clk.Timers() == timers+1 })
	m.clk.Advance(6 * time.Second)
	require.Equal(t, frames.EffectSucceeded, m.c.dispatch(r.effect(frames.EffectKill, nil)).State)
	require.Equal(t, syscall.SIGTERM, <-hears)
	m.o.mu.Lock()
	b := m.o.live[r.id]
	m.o.mu.Unlock()
	m.c.eventually("the second is taken", func() bool { return len(b.killed) == 0 })
	require.Empty(t, hears)
	m.clk.Advance(time.Second)
	require.Equal(t, syscall.SIGKILL, <-hears)
	r.requireExit(-int32(syscall.SIGKILL))
}

// An owner that stops waits for nobody longer than its own grace, however long a document's is:
// not for a process that ignores SIGTERM, and not for a descendant that holds the terminal.
func TestStopBoundsEveryGrace(t *testing.T) {
	t.Run("process", func(t *testing.T) {
		m := newManual(t)
		_, _, hears, _ := m.stubborn(3600)
		stopped := make(chan error, 1)
		m.ends()
		go func() { stopped <- m.o.Close() }()
		require.Equal(t, syscall.SIGTERM, <-hears)
		m.due(stopGrace)
		m.clk.Advance(stopGrace)
		require.Equal(t, syscall.SIGKILL, <-hears)
		require.NoError(t, <-stopped)
	})
	t.Run("descendant", func(t *testing.T) {
		m := newManual(t)
		_, child, _, timers := m.stubborn(3600)
		child.exited <- frames.Closed{Known: true} // and its terminal stays open
		m.c.eventually("the grace runs", func() bool { return m.clk.Timers() == timers+1 })
		m.ends()
		stopped := make(chan error, 1)
		go func() { stopped <- m.o.Close() }()
		m.due(stopGrace)
		m.clk.Advance(stopGrace)
		m.due(flushAfter) // it is asked twice
		m.clk.Advance(flushAfter)
		require.NoError(t, <-stopped)
	})
}

// Output that cannot be made durable is not stored any more; its facts go on, since they are
// of what the process wrote.
func TestOutputThatCannotBeSynced(t *testing.T) {
	m := newManual(t)
	r := m.c.run(&Document{Argv: []string{"x"}})
	m.o.mu.Lock()
	out := m.o.live[r.id].out
	m.o.mu.Unlock()
	read, write, err := os.Pipe() // takes what is written and cannot be synced
	require.NoError(t, err)
	defer read.Close()
	go func() { // what was "stored"
		for buf := make([]byte, 1<<20); err == nil; {
			_, err = read.Read(buf)
		}
	}()
	out.mu.Lock()
	require.NoError(t, out.file.Close())
	out.file = write
	out.mu.Unlock()
	child := m.fake.child(1)
	for n := range 3 {
		_, err := child.w.Write(make([]byte, rangeBytes))
		require.NoError(t, err)
		m.c.eventually("the range", func() bool { return len(m.c.in.of(r.id)) == n+2 })
		stored, _, _ := out.state()
		require.EqualValues(t, rangeBytes, stored)
	}
	child.end(frames.Closed{Known: true})
	r.requireExit(0)
}

// When the journal fails, processes that write are not left waiting for it, and the owner ends.
func TestFailedJournalEndsTheOwner(t *testing.T) {
	fake := newFakeLauncher()
	dir := privateDir(t)
	require.NoError(t, Create(dir, ownerPrint))
	own, err := Open(dir, Options{
		Fingerprint: ownerPrint, Incarnation: newID[frames.IncarnationID](t), Groups: []frames.GroupID{1}, WitnessID: testWitness,
		WitnessPublicKey: witnessKey.Public(), BootID: bootOne, Clock: clock.System(), launch: fake,
	})
	require.NoError(t, err)
	s := &station{t: t, clk: clock.System(), o: own}
	cl := s.claimOf(1)
	require.NoError(t, own.claimAuthority(t.Context(), nobody{}, cl))
	proof := &link.Proof{Challenge: &frames.WorkloadChallenge{Incarnation: own.Incarnation()}}
	a := (&coordinator{t: t, Client: &Client{proof: proof}}).newSpawn(&Document{Argv: []string{"x"}})
	f := &DispatchEffect{Attempt: a.ID, OperationID: a.OperationID, Kind: a.Kind, Target: a.Target, Digest: a.Digest, Payload: a.Payload}
	out, err := own.dispatch(t.Context(), cl, f)
	require.NoError(t, err)
	require.Equal(t, frames.EffectSucceeded, out.state)
	require.NoError(t, own.j.db.Close()) // every write fails from here
	child := fake.child(1)
	for range 2 * maxRanges { // more than may wait
		_, err := child.w.Write(make([]byte, rangeBytes))
		require.NoError(t, err)
	}
	<-own.Failed()
	require.ErrorIs(t, own.Err(), ErrFailed)
	f.Attempt[0]++
	_, err = own.dispatch(context.Background(), cl, f)
	require.ErrorIs(t, err, ErrFailed)
	_, err = own.lookUp(context.Background(), cl, a.ID, a.Digest)
	require.ErrorIs(t, err, ErrFailed)
	require.ErrorIs(t, own.Close(), ErrFailed)
	require.EqualValues(t, 1, fake.holds.Load(), "nothing is started by an owner that cannot write")
}
