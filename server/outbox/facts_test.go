package outbox

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/codec"
	"coordinator/frames"
	"coordinator/owner"
	"coordinator/server/work"
)

// lives starts run 7, whose process goes on.
func (b *bed) lives() frames.OperationID {
	b.t.Helper()
	b.owner.answers(0, owner.Result{State: frames.EffectSucceeded})
	op := b.startRun(7)
	b.until("it runs", func() bool { return b.result(op) == "SUCCEEDED" && b.durable(frames.BindingID{7}) == 1 })
	return op
}

func (b *bed) bell() {
	b.owner.emit(frames.BindingID{7}, frames.FactAttention, &frames.Attention{Kind: frames.AttentionBell})
}

// links is how many links have come as far as AUTHORITY.
func (b *bed) links() (n int) {
	for _, r := range b.owner.requests() {
		if r == "authority" {
			n++
		}
	}
	return n
}

// Credit and changes come back: one link takes any number of facts, one by one or in a flood.
func TestOneLinkTakesAllFacts(t *testing.T) {
	b := newBed(t)
	b.lives()
	n := uint64(1)
	for range factChanges + 20 {
		b.bell()
		n++
		b.until("it is durable", func() bool { return b.durable(frames.BindingID{7}) == n })
	}
	for range 6 * factCredit {
		b.bell()
		n++
	}
	b.until("all are durable", func() bool { return b.durable(frames.BindingID{7}) == n })
	require.Equal(t, 1, b.links())
}

// A link that comes again goes on behind the last fact that was admitted.
func TestFactsGoOnWhereTheyWere(t *testing.T) {
	b := newBed(t)
	b.lives()
	for n := uint64(2); n < 5; n++ {
		b.bell()
		b.until("it is durable", func() bool { return b.durable(frames.BindingID{7}) == n })
		b.owner.cut()
		b.until("it is opened again", func() bool {
			b.owner.mu.Lock()
			defer b.owner.mu.Unlock()
			return len(b.owner.opened) == int(n)
		})
	}
	b.owner.mu.Lock()
	defer b.owner.mu.Unlock()
	require.LessOrEqual(t, b.owner.opened[0], uint64(1))
	require.Equal(t, []uint64{2, 3, 4}, b.owner.opened[1:])
}

// A fact that cannot be admitted is not acknowledged: its link ends, and the owner keeps it.
func TestFactsThatAreNotCommittedAreNotAcknowledged(t *testing.T) {
	b := newBed(t)
	b.lives()
	b.owner.mu.Lock()
	l := b.owner.lines[0]
	bad := &frames.TerminalSourceFact{
		Source: frames.TerminalSourceRef{BindingID: frames.BindingID{7}, Owner: ownerPin, OwnerIncarnation: b.owner.inc, Sequence: 2},
		Kind:   frames.FactOutputRange, Schema: frames.FactSchema, Payload: []byte("no range"),
	}
	l.out <- func() { l.h.Fact(bad) } // the scripted owner checks every FACT_ACK
	b.owner.mu.Unlock()
	<-l.done
	b.until("the link is up again", func() bool { return b.links() == 2 && b.durable(frames.BindingID{7}) == 1 })
	b.bell()
	b.until("the true one is durable", func() bool { return b.durable(frames.BindingID{7}) == 2 })
}

// A SPAWN whose outcome is not known yet may have a process: when the owner reports it, it is
// not given up.
func TestD45_ProcessOfAnUnknownOutcomeIsKept(t *testing.T) {
	b := newBed(t)
	b.owner.answers(0, owner.Result{State: frames.EffectSucceeded})
	gate := make(chan struct{})
	b.owner.mu.Lock()
	b.owner.getGate = gate
	b.owner.mu.Unlock()
	cut := false
	b.owner.at(func(step string) {
		if step == "dispatched" && !cut { // it has been started, and nobody hears of it
			cut = true
			b.owner.cut()
		}
	})
	op := b.startRun(7)
	b.until("it is looked up", func() bool { return slices.Contains(b.owner.requests(), "get") })
	given := func() bool {
		b.owner.mu.Lock()
		defer b.owner.mu.Unlock()
		return b.owner.bindings[frames.BindingID{7}].given
	}
	require.Never(t, given, 100*time.Millisecond, 5*time.Millisecond)
	close(gate)
	b.until("it runs", func() bool { return b.result(op) == "SUCCEEDED" && b.durable(frames.BindingID{7}) == 1 })
	require.False(t, given())
	require.Equal(t, frames.RunRunning, b.run(7).State)
}

// A binding of the incarnation that is there does not end because the owner knows nothing of it,
// or says that nothing more comes; it ends with that incarnation [D-53].
func TestC16_OnlyAnotherIncarnationLosesABinding(t *testing.T) {
	b := newBed(t)
	b.lives()
	b.owner.mu.Lock()
	l := b.owner.lines[0]
	l.out <- func() { l.h.FactsEnd(frames.BindingID{7}, 1) }
	b.owner.mu.Unlock()
	ended := func() bool { return b.binding(7).State != frames.StateActive }
	require.Never(t, ended, 50*time.Millisecond, 5*time.Millisecond)

	b.owner.mu.Lock()
	delete(b.owner.bindings, frames.BindingID{7})
	b.owner.cutLocked()
	b.owner.mu.Unlock()
	b.until("it is opened in vain", func() bool {
		b.owner.mu.Lock()
		defer b.owner.mu.Unlock()
		return len(b.owner.opened) == 2
	})
	require.Never(t, ended, 50*time.Millisecond, 5*time.Millisecond)

	b.owner.restart()
	require.Equal(t, frames.RunFailed, b.ended(7))
	require.Equal(t, frames.EndOwnerLost, *b.binding(7).Reason)
}

// A SPAWN that succeeded without naming its resource proves nothing.
func TestSuccessWithoutAResource(t *testing.T) {
	b := newBed(t)
	b.owner.mu.Lock()
	b.owner.nameless = true
	b.owner.mu.Unlock()
	op := b.startRun(7)
	b.until("it is answered", func() bool { return b.result(op) == "INDETERMINATE/TARGET_OUTCOME_UNKNOWN" })
}

// While the clocks diverge nothing is sent: no effect, no look-up, no certificate, no opening and
// no acknowledgement; all of it goes out once they agree [D-9] [D-48].
func TestNothingIsSentWhileTheClocksDiverge(t *testing.T) {
	b := newBed(t)
	b.until("the link is up", func() bool { return b.outbox.Connected(ownerPin, b.owner.incarnation()) })
	still := func(n int, what string) {
		t.Helper()
		require.Never(t, func() bool { return len(b.owner.requests()) != n }, 50*time.Millisecond, 5*time.Millisecond, what)
	}
	has := func(n int, what string) func() bool {
		return func() bool { return slices.Contains(b.owner.requests()[n:], what) }
	}
	b.owner.answers(0, owner.Result{State: frames.EffectSucceeded})
	b.gate.diverged.Store(true)
	n := len(b.owner.requests())
	op := b.startRun(7)
	still(n, "no effect")
	b.gate.agree()
	b.until("it runs", func() bool { return b.result(op) == "SUCCEEDED" && b.durable(frames.BindingID{7}) == 1 })
	require.True(t, has(n, "dispatch")())
	b.until("its start is acknowledged", has(n, "ack"))

	b.gate.diverged.Store(true)
	n = len(b.owner.requests())
	b.bell()
	b.until("it is durable", func() bool { return b.durable(frames.BindingID{7}) == 2 })
	b.fence.change(false) // a renewal
	still(n, "no acknowledgement and no certificate")
	b.gate.agree()
	b.until("both go out", func() bool { return has(n, "ack")() && has(n, "authority")() })

	b.gate.diverged.Store(true)
	n = len(b.owner.requests())
	b.owner.cut()
	still(n, "no certificate on a new link")
	b.owner.at(func(step string) { // and nothing behind it
		if step == "authority" {
			b.gate.diverged.Store(true)
		}
	})
	b.gate.agree()
	b.until("the link is up", has(n, "authority"))
	still(n+1, "no opening")
	b.owner.at(nil)
	b.gate.agree()
	b.until("it is opened", has(n, "open"))
}

// Connected is said of one incarnation, and served are the groups that it named.
func TestConnectedIsSaidOfOneIncarnation(t *testing.T) {
	b := newBed(t)
	inc := b.owner.incarnation()
	b.until("the link is up", func() bool { return b.outbox.Connected(ownerPin, inc) })
	require.True(t, b.outbox.Serves(ownerPin, inc, 1))
	require.False(t, b.outbox.Serves(ownerPin, inc, 2))
	require.False(t, b.outbox.Connected(ownerPin, frames.IncarnationID{99}))
	require.False(t, b.outbox.Serves(ownerPin, frames.IncarnationID{99}, 1))
	require.False(t, b.outbox.Connected(frames.Fingerprint{1}, inc))
	b.owner.setDown(true)
	b.until("it is down", func() bool { return !b.outbox.Connected(ownerPin, inc) })
	require.False(t, b.outbox.Serves(ownerPin, inc, 1))
}

// [D-34]: an effect that its run contradicts when the coordinator starts is finished there and
// then, and is neither sent nor looked up.
func TestD34_EffectsThatTheirRunContradicts(t *testing.T) {
	b := newBed(t)
	op := b.diesReady()
	b.owner.setDown(true)
	b.restart()
	ref := frames.ObjectRef{Kind: frames.KindRun, ID: frames.ObjectID{7}}
	require.NoError(t, b.writer.Change(t.Context(), []frames.ObjectRef{ref}, func(v work.View, env work.Env) (work.Outcome, error) {
		s, _, err := v.Record(ref)
		if err != nil {
			return work.Outcome{}, err
		}
		var run frames.Run
		if err := codec.Decode(&run, s.Record.Payload); err != nil {
			return work.Outcome{}, err
		}
		run.State = frames.RunRunning // without a binding
		if s.Record.Payload, err = codec.Encode(nil, &run); err != nil {
			return work.Outcome{}, err
		}
		s.Record.Revision++
		id, err := env.NewEventID()
		return work.Outcome{Changes: []work.Change{{Event: frames.EventRunChanged, EventID: id, Stored: s, Live: true}}}, err
	}))
	require.Equal(t, "PENDING", b.result(op))
	b.stop()
	b.start()
	require.Equal(t, "INDETERMINATE/RECOVERY_STATE_INVALID", b.result(op), "before anybody could ask the owner")
	b.owner.setDown(false)
	b.until("the link is up", func() bool { return b.outbox.Connected(ownerPin, b.owner.incarnation()) })
	require.Empty(t, b.owner.journalled())
}
