//go:build linux

package owner

import (
	"context"
	"encoding/binary"
	"testing"

	"coordinator/frames"
	"coordinator/internal/clock"

	"github.com/stretchr/testify/require"
)

// TestC15_FactsWaitForTheirAcknowledgement: credit gates them, a new connection goes on where
// the last was, an acknowledged one is gone, and CLOSED stays.
func TestC15_FactsWaitForTheirAcknowledgement(t *testing.T) {
	fake := newFakeLauncher()
	clk := clock.NewManual(clock.System().Now()) // stands, so that only whole ranges are recorded
	s := newStation(t, func(o *Options) { o.launch, o.Clock = fake, clk })
	c := s.coordinator(1)
	a := c.newSpawn(&Document{Argv: []string{"x"}})
	require.Equal(t, frames.EffectSucceeded, c.dispatch(a).State)
	id := frames.BindingID(a.Target.PendingBindingID)
	ch := fake.child(1)
	for i := range 4 { // OPENED and four ranges
		_, err := ch.w.Write(make([]byte, rangeBytes))
		require.NoError(t, err)
		c.eventually("the range", func() bool {
			row, err := s.o.holds(coordA, id)
			return err == nil && row.Last == uint64(i+2)
		})
	}
	ch.end(frames.Closed{Known: true, Status: 0})
	c.eventually("the end", func() bool { return s.o.Processes() == 0 })

	require.NoError(t, c.OpenFacts(t.Context(), c.guard(), id, 0, 2))
	c.eventually("two facts", func() bool { return len(c.in.of(id)) == 2 })
	require.NoError(t, c.FactAck(t.Context(), id, 1, 1))
	c.eventually("three facts", func() bool { return len(c.in.of(id)) == 3 })
	require.NoError(t, c.FactAck(t.Context(), id, 1, 0))
	require.Equal(t, NeverSeen, c.lookUp(c.newSpawn(&Document{Argv: []string{"y"}})).State) // a round trip
	require.Len(t, c.in.of(id), 3)
	require.NoError(t, c.Close())

	c = s.coordinator(1)
	require.Equal(t, []frames.BindingID{id}, c.in.bindings)
	require.NoError(t, c.OpenFacts(t.Context(), c.guard(), id, 1, 100))
	c.eventually("the rest", func() bool { return len(c.in.of(id)) == 5 })
	for i, f := range c.in.of(id) {
		require.EqualValues(t, i+2, f.Source.Sequence)
		require.Equal(t, ownerPrint, f.Source.Owner)
		require.Equal(t, c.Incarnation(), f.Source.OwnerIncarnation)
	}
	require.NoError(t, c.FactAck(t.Context(), id, 1000, 0)) // beyond the last: all there are
	require.NoError(t, c.OpenFacts(t.Context(), c.guard(), id, 0, 100))
	c.eventually("CLOSED again", func() bool { return len(c.in.of(id)) == 6 })
	last := c.in.of(id)[5]
	require.Equal(t, frames.FactClosed, last.Kind)
	require.EqualValues(t, 6, last.Source.Sequence)
	_, ends := c.in.snapshot()
	require.Empty(t, ends, "the incarnation lasts")

	c = s.coordinator(1)
	require.Empty(t, c.in.bindings, "nothing waits")
	requireCode(t, frames.CodeNotFound, c.OpenFacts(t.Context(), c.guard(), newID[frames.BindingID](t), 0, 1))
}

// A binding that is given up is killed, and what it still does is nobody's but its CLOSED.
func TestBindingThatIsGivenUp(t *testing.T) {
	s := newStation(t, nil)
	c := s.coordinator(1)
	a := c.newSpawn(&Document{Argv: []string{"/bin/sh", "-c", `trap "echo ending; exit 3" TERM; echo ready; while :; do sleep 0.05; done`}})
	require.Equal(t, frames.EffectSucceeded, c.dispatch(a).State)
	id := frames.BindingID(a.Target.PendingBindingID)
	require.NoError(t, c.OpenFacts(t.Context(), c.guard(), id, 0, 100))
	c.eventually("output", func() bool { return len(c.in.of(id)) >= 2 })
	require.NoError(t, c.FactAck(t.Context(), id, AckAll, 0))
	c.eventually("its end", func() bool { return s.o.Processes() == 0 })
	next := s.coordinator(1)
	require.Empty(t, next.in.bindings)
	require.NoError(t, next.OpenFacts(t.Context(), next.guard(), id, 0, 100))
	next.eventually("CLOSED", func() bool { return len(next.in.of(id)) == 1 })
	require.Equal(t, frames.FactClosed, next.in.of(id)[0].Kind)
	require.Greater(t, uint64(next.in.of(id)[0].Source.Sequence), uint64(3))
}

// A connection that sees many processes end keeps nothing of them: a stream ends with CLOSED,
// and with its binding's giving up.
func TestStreamsEndWithTheirBindings(t *testing.T) {
	fake := newFakeLauncher()
	s := newStation(t, func(o *Options) { o.launch = fake })
	c := s.coordinator(1)
	watched := func() int {
		s.o.mu.Lock()
		defer s.o.mu.Unlock()
		return len(s.o.watchers)
	}
	for group := range uint32(3) {
		r := c.run(&Document{Argv: []string{"x"}})
		c.eventually("it is watched", func() bool { return watched() == 1 })
		fake.child(group + 1).end(frames.Closed{Known: true})
		r.requireExit(0)
		c.eventually("it is forgotten", func() bool { return watched() == 0 })
		require.NoError(t, c.FactAck(t.Context(), r.id, 2, 2))
		require.NoError(t, c.OpenFacts(t.Context(), c.guard(), r.id, 1, 1)) // and served again
		c.eventually("CLOSED again", func() bool { return len(c.in.of(r.id)) == 3 && watched() == 0 })
	}
	r := c.run(&Document{Argv: []string{"x"}})
	c.eventually("it is watched", func() bool { return watched() == 1 })
	require.NoError(t, c.FactAck(t.Context(), r.id, AckAll, 0)) // it is killed, and nobody asked to hear of it
	c.eventually("it is forgotten", func() bool { return watched() == 0 && s.o.Processes() == 0 })
	require.Equal(t, NeverSeen, c.lookUp(c.newSpawn(&Document{Argv: []string{"y"}})).State) // a round trip
	for _, f := range c.in.of(r.id) {
		require.Equal(t, frames.FactOpened, f.Kind)
	}
	// And a connection that ends leaves nothing.
	c.run(&Document{Argv: []string{"x"}})
	require.NoError(t, c.Close())
	c.eventually("it is forgotten", func() bool {
		s.o.mu.Lock()
		defer s.o.mu.Unlock()
		return len(s.o.watchers) == 0 && len(s.o.fences[coordA].holders) == 0
	})
}

// An opened stream that is opened again goes on where it was moved to, whatever was being sent.
func TestOpeningAgainMovesAStream(t *testing.T) {
	const ranges = 12
	fake := newFakeLauncher()
	s := newStation(t, func(o *Options) { o.launch = fake })
	c := s.coordinator(1)
	a := c.newSpawn(&Document{Argv: []string{"x"}})
	require.Equal(t, frames.EffectSucceeded, c.dispatch(a).State)
	id := frames.BindingID(a.Target.PendingBindingID)
	for range ranges {
		_, err := fake.child(1).w.Write(make([]byte, rangeBytes))
		require.NoError(t, err)
	}
	var last uint64
	c.eventually("the ranges", func() bool {
		row, err := s.o.holds(coordA, id)
		last = row.Last
		return err == nil && row.Output == ranges*rangeBytes
	})
	gate := make(chan struct{})
	c.in.mu.Lock()
	c.in.gate = gate // the first fact stays in the hands of the reader
	c.in.mu.Unlock()
	require.NoError(t, c.OpenFacts(t.Context(), c.guard(), id, 0, 1<<20))
	opened := make(chan error, 1)
	go func() { opened <- c.OpenFacts(context.Background(), c.guard(), id, last-2, 1<<20) }()
	c.eventually("the stream is moved", func() bool {
		s.o.mu.Lock()
		defer s.o.mu.Unlock()
		for w := range s.o.watchers[id] {
			w := w.(*session)
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.streams[id].moved == 2
		}
		return false
	})
	close(gate)
	require.NoError(t, <-opened)
	c.eventually("the rest", func() bool {
		facts := c.in.of(id)
		return len(facts) > 0 && uint64(facts[len(facts)-1].Source.Sequence) == last
	})
	var got []uint64
	for _, f := range c.in.of(id) {
		got = append(got, uint64(f.Source.Sequence))
	}
	require.Equal(t, []uint64{last - 1, last}, got[len(got)-2:])
	// Before them only what had left its hands: read, written, and given to the writer.
	require.LessOrEqual(t, len(got), 2+4, "%v", got)
}

// More bindings than one frame names come in several.
func TestManyBindingsAreReported(t *testing.T) {
	dir := privateDir(t)
	require.NoError(t, Create(dir, ownerPrint))
	j := openTestJournal(t, dir)
	const n = maxBindingList + 1
	require.NoError(t, j.update(func(tx *txn) error {
		for i := range uint32(n) {
			id := frames.BindingID{1}
			binary.BigEndian.PutUint32(id[12:], i)
			tx.putBinding(id, &bindingRow{Coordinator: coordA, Session: frames.WorkSessionID{1}, Incarnation: frames.IncarnationID{1},
				Attempt: frames.EffectAttemptID{1}, BootID: bootOne, State: bindingLost, Last: 1})
		}
		return nil
	}))
	require.NoError(t, j.close())
	s := openStation(t, dir, func(o *Options) { o.launch = newFakeLauncher() })
	c := s.coordinator(1)
	c.eventually("all", func() bool {
		c.in.mu.Lock()
		defer c.in.mu.Unlock()
		return len(c.in.bindings) == n && c.in.lists == 2
	})
}

// Facts of a former incarnation come as the credit allows, however many there are, and their
// end behind the last of them.
func TestC16_FactsEndComesLast(t *testing.T) {
	fake := newFakeLauncher()
	clk := clock.NewManual(clock.System().Now()) // stands, so that only whole ranges are recorded
	s := newStation(t, func(o *Options) { o.launch, o.Clock = fake, clk })
	c := s.coordinator(1)
	r := c.run(&Document{Argv: []string{"x"}})
	for range 2*factPage + 1 {
		_, err := fake.child(1).w.Write(make([]byte, rangeBytes))
		require.NoError(t, err)
	}
	fake.child(1).end(frames.Closed{Known: true})
	r.requireExit(0)
	row, err := s.o.holds(coordA, r.id)
	require.NoError(t, err)
	facts := int(row.Last) // OPENED, ranges and CLOSED
	require.Greater(t, facts, 2*factPage)
	require.NoError(t, s.stop())

	s = openStation(t, s.dir, nil)
	c = s.coordinator(2)
	ended := func() bool {
		_, ends := c.in.snapshot()
		return ends[r.id] != 0
	}
	all := s.coordinator(2) // many at once, page after page
	require.NoError(t, all.OpenFacts(t.Context(), all.guard(), r.id, 0, 1<<20))
	all.eventually("FACTS_END", func() bool {
		_, ends := all.in.snapshot()
		return ends[r.id] == uint64(facts)
	})
	require.Len(t, all.in.of(r.id), facts)

	require.NoError(t, c.OpenFacts(t.Context(), c.guard(), r.id, 0, 1))
	for n := 1; n < facts; n++ {
		c.eventually("one more", func() bool { return len(c.in.of(r.id)) == n })
		require.False(t, ended(), "after %d", n)
		require.NoError(t, c.FactAck(t.Context(), r.id, uint64(n), 1))
	}
	c.eventually("FACTS_END", ended)
	require.Len(t, c.in.of(r.id), facts)
	for _, credit := range []uint32{1, 2, 1 << 20} { // CLOSED alone is left
		again := s.coordinator(2)
		require.NoError(t, again.OpenFacts(t.Context(), again.guard(), r.id, 0, credit))
		again.eventually("FACTS_END", func() bool {
			_, ends := again.in.snapshot()
			return ends[r.id] == uint64(facts)
		})
		require.NoError(t, again.Close())
	}
}
