package outbox

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/codec"
	"coordinator/frames"
	"coordinator/owner"
	"coordinator/server/store"
	"coordinator/server/work"
)

func TestARunGoesThrough(t *testing.T) {
	b := newBed(t)
	op := b.startRun(7)
	require.Equal(t, frames.RunCompleted, b.ended(7))
	require.Equal(t, "SUCCEEDED", b.result(op))
	require.True(t, b.sealed(7))
	most, all := b.owner.starts()
	require.Equal(t, []int{1, 1}, []int{most, all})
	b.until("the owner is told that it may forget", func() bool {
		b.owner.mu.Lock()
		defer b.owner.mu.Unlock()
		return b.owner.bindings[frames.BindingID{7}].given
	})
}

// Wherever the coordinator dies, at most one process is started, the store ends up with the
// truth, and no fact that was acknowledged is missing.
func TestC09_OneStartWhereverTheCoordinatorDies(t *testing.T) { disturb(t, (*bed).die) }

// The same for a link that breaks.
func TestC09_OneStartWhereverTheLinkBreaks(t *testing.T) {
	disturb(t, func(b *bed) { b.owner.cut() })
}

// disturb runs one run to its end, again and again, with something happening at the n-th step
// of the link, until a run has fewer steps.
func disturb(t *testing.T, happen func(*bed)) {
	for n := 1; ; n++ {
		b := newBed(t)
		var step int
		done := false
		b.owner.at(func(string) {
			if step++; step == n {
				done = true
				happen(b)
			}
		})
		var op frames.OperationID
		b.until("the run is admitted", func() bool {
			if b.dead() {
				b.restart()
			}
			_, err := b.propose(frames.CommandStartRun, b.startPayload(7))
			op = frames.OperationID{b.ops}
			if err == nil {
				return true
			}
			if b.dead() { // it may have been admitted: the same id tells
				b.restart()
				return b.result(op) != "absent"
			}
			return false
		})
		state := b.ended(7)
		b.owner.at(nil)
		if b.dead() {
			b.restart()
		}
		most, all := b.owner.starts()
		require.LessOrEqual(t, most, 1, "step %d", n)
		switch result := b.result(op); result {
		case "SUCCEEDED":
			require.Equal(t, 1, all)
			require.Equal(t, frames.RunCompleted, state, "step %d", n)
			require.True(t, b.sealed(7), "step %d: every fact arrived once", n)
		case "REJECTED/INTERNAL": // DISPATCHED was durable and nothing had left
			require.Zero(t, all, "step %d", n)
			require.Equal(t, frames.RunFailed, state)
		default:
			t.Fatalf("step %d: %s", n, result)
		}
		b.stop()
		if !done {
			require.Greater(t, n, 10, "a run has steps")
			return
		}
	}
}

// An owner that restarts at the n-th step: the process of the former incarnation is gone. Its
// facts are drained first, so a job that finished keeps its proof, and nothing is guessed.
func TestC16_OwnerRestartsAtEachStep(t *testing.T) {
	for n := 1; ; n++ {
		b := newBed(t)
		var step int
		done := false
		b.owner.at(func(string) {
			if step++; step == n {
				done = true
				b.owner.restart()
			}
		})
		op := b.startRun(7)
		state := b.ended(7)
		b.owner.at(nil)
		most, all := b.owner.starts()
		require.LessOrEqual(t, most, 1)
		switch result := b.result(op); result {
		case "SUCCEEDED":
			require.Equal(t, 1, all)
			require.Equal(t, frames.RunCompleted, state, "its CLOSED was kept")
			require.True(t, b.sealed(7))
		case "REJECTED/NOT_FOUND", "REJECTED/INTERNAL":
			require.Zero(t, all, "step %d", n)
			require.Equal(t, frames.RunFailed, state)
		default:
			t.Fatalf("step %d: %s", n, result)
		}
		b.stop()
		if !done {
			return
		}
	}
}

// A process that lives when its owner restarts is lost, after its facts.
func TestC16_OwnerLossEndsABindingAfterItsFacts(t *testing.T) {
	b := newBed(t)
	b.owner.answers(0, owner.Result{State: frames.EffectSucceeded})
	op := b.startRun(7)
	b.until("the spawn is known", func() bool { return b.result(op) == "SUCCEEDED" })
	b.owner.setDown(true)
	b.until("the link is down", func() bool { return !b.outbox.Connected(ownerPin, b.owner.incarnation()) })
	for range 200 { // more than the credit
		b.owner.emit(frames.BindingID{7}, frames.FactAttention, &frames.Attention{Kind: frames.AttentionBell})
	}
	require.Equal(t, frames.StateActive, b.binding(7).State, "a link that is down changes nothing")
	b.owner.restart()
	b.owner.setDown(false)
	require.Equal(t, frames.RunFailed, b.ended(7))
	require.Equal(t, frames.EndOwnerLost, *b.binding(7).Reason)
	require.EqualValues(t, 201, b.durable(frames.BindingID{7}), "every fact that it had left")
	require.False(t, b.sealed(7))
}

// [D-46]: a grant that is gone before the effect leaves.
func TestD46_LateRevocationIsLookedUp(t *testing.T) {
	b := newBed(t)
	b.mu.Lock()
	b.denied = true
	b.mu.Unlock()
	op := b.startRun(7)
	require.Equal(t, frames.RunFailed, b.ended(7))
	require.Equal(t, "REJECTED/SCOPE_DENIED", b.result(op))
	require.Contains(t, b.owner.requests(), "get")
	require.NotContains(t, b.owner.requests(), "dispatch")
}

// [D-29]: a CANCEL_RUN kills and finishes with the process.
func TestD29_CancelKills(t *testing.T) {
	b := newBed(t)
	b.owner.answers(0, owner.Result{State: frames.EffectSucceeded})
	op := b.startRun(7)
	b.until("it runs", func() bool { return b.result(op) == "SUCCEEDED" })
	cancel := b.do(frames.CommandCancelRun, &frames.RunCommand{RunID: frames.RunID{7}})
	require.Equal(t, frames.RunCancelled, b.ended(7))
	require.Equal(t, "SUCCEEDED", b.result(cancel))
	require.True(t, b.sealed(7))
}

// diesReady admits run 7 and lets the coordinator die before anything is made of its effect.
func (b *bed) diesReady() frames.OperationID {
	b.t.Helper()
	b.until("the link is up", func() bool { return b.outbox.Connected(ownerPin, b.owner.incarnation()) })
	b.mu.Lock()
	b.onPublish = func(batch store.Batch) {
		for _, c := range batch.Internal {
			if c.Row.Record.Kind == work.EffectKind {
				b.die()
			}
		}
	}
	b.mu.Unlock()
	_, err := b.propose(frames.CommandStartRun, b.startPayload(7))
	require.NoError(b.t, err)
	require.True(b.t, b.dead())
	b.mu.Lock()
	b.onPublish = nil
	b.mu.Unlock()
	require.Empty(b.t, b.owner.journalled())
	return frames.OperationID{b.ops}
}

// [D-24]: a run that is cancelled before its effect has left is never sent.
func TestD24_CancelOfWhatHasNotLeft(t *testing.T) {
	b := newBed(t)
	op := b.diesReady()
	b.owner.setDown(true)
	b.restart()
	require.Equal(t, "PENDING", b.result(op))
	cancel := b.do(frames.CommandCancelRun, &frames.RunCommand{RunID: frames.RunID{7}})
	require.Equal(t, "PENDING", b.result(cancel), "the owner is asked first")
	b.owner.setDown(false)
	require.Equal(t, frames.RunCancelled, b.ended(7))
	require.Equal(t, "REJECTED/REVISION_CONFLICT", b.result(op))
	require.Equal(t, "SUCCEEDED", b.result(cancel))
	require.NotContains(t, b.owner.requests(), "dispatch")
}

// What was READY when the coordinator died has not left, and goes out after the restart.
func TestC09_ReadyEffectsGoOutAfterARestart(t *testing.T) {
	b := newBed(t)
	op := b.diesReady()
	b.restart()
	require.Equal(t, frames.RunCompleted, b.ended(7))
	require.Equal(t, "SUCCEEDED", b.result(op))
	_, all := b.owner.starts()
	require.Equal(t, 1, all)
}

// [D-31]: a KILL that was on its way when its owner's incarnation ended finishes with its
// binding. Nobody else is asked about it.
func TestD31_AKillEndsWithItsBinding(t *testing.T) {
	b := newBed(t)
	b.owner.answers(0, owner.Result{State: frames.EffectSucceeded})
	op := b.startRun(7)
	b.until("it runs", func() bool { return b.result(op) == "SUCCEEDED" })
	b.owner.at(func(step string) {
		if step == "dispatch" {
			b.owner.restart()
		}
	})
	cancel := b.do(frames.CommandCancelRun, &frames.RunCommand{RunID: frames.RunID{7}})
	require.Equal(t, frames.RunFailed, b.ended(7))
	require.Equal(t, frames.EndOwnerLost, *b.binding(7).Reason)
	require.Equal(t, "INDETERMINATE/TARGET_OUTCOME_UNKNOWN", b.result(cancel))
	require.NotContains(t, b.owner.requests(), "get")
}

// What an owner answers, and what it means.
func TestOwnerAnswers(t *testing.T) {
	for _, tt := range []struct {
		name   string
		answer owner.Result
		want   string
		run    frames.RunState
	}{
		{"rejected", owner.Result{State: frames.EffectRejected, Message: "no argv"}, "REJECTED/INTERNAL", frames.RunFailed},
		{"indeterminate", owner.Result{State: frames.EffectIndeterminate}, "INDETERMINATE/TARGET_OUTCOME_UNKNOWN", frames.RunPlanned},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBed(t)
			b.owner.answers(0, tt.answer)
			op := b.startRun(7)
			b.until("it is answered", func() bool { return b.result(op) == tt.want })
			require.Equal(t, tt.run, b.run(7).State)
			if tt.run == frames.RunPlanned {
				b.do(frames.CommandCancelRun, &frames.RunCommand{RunID: frames.RunID{7}})
				require.Equal(t, frames.RunCancelled, b.ended(7))
			}
			b.until("what may live of it is given up", func() bool { // [D-45], binding or not
				b.owner.mu.Lock()
				defer b.owner.mu.Unlock()
				return slices.Contains(b.owner.gaveUp, frames.BindingID{7})
			})
		})
	}
}

// What an owner refuses, and what that means. A dispatch that is refused is looked up: only the
// owner can say for good that nothing was started.
func TestOwnerRefusals(t *testing.T) {
	for _, tt := range []struct {
		name      string
		send, get frames.Code
		want      string
		looks     bool
	}{
		{"too many requests", frames.CodeResourceExhausted, 0, "REJECTED/INTERNAL", true},
		{"no scope for it", frames.CodeScopeDenied, 0, "REJECTED/INTERNAL", true},
		{"used by another coordinator", frames.CodeNotFound, frames.CodeNotFound, "INDETERMINATE/TARGET_OUTCOME_UNKNOWN", true},
		{"another effect under this attempt", frames.CodeOperationConflict, 0, "INDETERMINATE/TARGET_DEDUPE_UNAVAILABLE", false},
		{"another effect when looked up", frames.CodeResourceExhausted, frames.CodeOperationConflict, "INDETERMINATE/TARGET_DEDUPE_UNAVAILABLE", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBed(t)
			b.owner.mu.Lock()
			b.owner.noSend, b.owner.noGet = tt.send, tt.get
			b.owner.mu.Unlock()
			op := b.startRun(7)
			b.until("it is answered", func() bool { return b.result(op) == tt.want })
			require.Equal(t, tt.looks, slices.Contains(b.owner.requests(), "get"))
			_, all := b.owner.starts()
			require.Zero(t, all)
		})
	}
}

// [D-45]: the owner may give up what no run has, and must keep what one does.
func TestD45_BindingsAreJudged(t *testing.T) {
	b := newBed(t)
	b.owner.answers(0, owner.Result{State: frames.EffectSucceeded})
	op := b.startRun(7)
	b.until("it runs", func() bool { return b.result(op) == "SUCCEEDED" })
	b.owner.mu.Lock()
	b.owner.bindings[frames.BindingID{9}] = &held{inc: b.owner.inc} // of a lost history
	b.owner.mu.Unlock()
	b.owner.cut()
	given := func(id byte) bool {
		b.owner.mu.Lock()
		defer b.owner.mu.Unlock()
		return b.owner.bindings[frames.BindingID{id}].given
	}
	b.until("the foreign one is given up", func() bool { return given(9) })
	require.False(t, given(7))
	require.Equal(t, frames.RunRunning, b.run(7).State)
}

// [D-49]: the certificate is the first frame, and every renewed one follows.
func TestD49_AuthorityIsShown(t *testing.T) {
	b := newBed(t)
	b.until("the link is up", func() bool { return b.outbox.Connected(ownerPin, b.owner.incarnation()) })
	b.fence.change(false)
	b.until("the renewal is shown", func() bool {
		b.owner.mu.Lock()
		defer b.owner.mu.Unlock()
		return len(b.owner.shown) >= 2 && b.owner.shown[len(b.owner.shown)-1] == b.fence.Current()
	})
	require.Equal(t, "authority", b.owner.requests()[0])
}

// [D-31]: what an owner had when it was removed from the configuration.
func TestD31_RemovedOwner(t *testing.T) {
	b := newBed(t)
	b.owner.answers(0, owner.Result{State: frames.EffectSucceeded})
	op := b.startRun(7)
	b.until("it runs", func() bool { return b.result(op) == "SUCCEEDED" })
	cancelled := make(chan struct{})
	b.owner.at(func(step string) {
		if step == "dispatch" {
			b.die()
			select {
			case <-cancelled:
			default:
				close(cancelled)
			}
		}
	})
	b.propose(frames.CommandStartRun, b.startPayload(8)) //nolint:errcheck // its reply may be lost
	lost := frames.OperationID{b.ops}
	<-cancelled
	b.stop()
	b.owners = []Owner{}
	b.start()
	require.Equal(t, frames.RunFailed, b.ended(7))
	require.Equal(t, frames.EndOwnerLost, *b.binding(7).Reason)
	b.until("nobody can tell", func() bool { return b.result(lost) == "INDETERMINATE/TARGET_OUTCOME_UNKNOWN" })
	require.Equal(t, frames.RunPlanned, b.run(8).State)
}

// An owner that sends more than it may loses its link and nothing else.
func TestFactsWithoutCreditEndTheLink(t *testing.T) {
	b := newBed(t)
	b.owner.answers(0, owner.Result{State: frames.EffectSucceeded})
	op := b.startRun(7)
	b.until("it runs", func() bool { return b.result(op) == "SUCCEEDED" && b.durable(frames.BindingID{7}) == 1 })
	b.owner.mu.Lock()
	l := b.owner.lines[0]
	raw, err := codec.EncodeImage(nil, &frames.Attention{Kind: frames.AttentionBell})
	require.NoError(t, err)
	for seq := range frames.SourceSequence(factCredit + 40) {
		f := &frames.TerminalSourceFact{
			Source: frames.TerminalSourceRef{BindingID: frames.BindingID{7}, Owner: ownerPin, OwnerIncarnation: b.owner.inc, Sequence: seq + 2},
			Kind:   frames.FactAttention, Schema: frames.FactSchema, Payload: raw,
		}
		l.out <- func() { l.h.Fact(f) }
	}
	b.owner.mu.Unlock()
	<-l.done
	b.until("it is dialled again", func() bool { return b.outbox.Connected(ownerPin, b.owner.incarnation()) })
	require.Equal(t, frames.StateActive, b.binding(7).State)
}

// A READY effect whose owner has another incarnation by then is looked up there and not sent: it
// names the one that is gone [D-31].
func TestD31_ReadyAtAFormerIncarnationIsLookedUp(t *testing.T) {
	b := newBed(t)
	op := b.diesReady()
	b.owner.restart()
	b.restart()
	require.Equal(t, frames.RunFailed, b.ended(7))
	require.Equal(t, "REJECTED/NOT_FOUND", b.result(op))
	require.Contains(t, b.owner.requests(), "get")
	require.NotContains(t, b.owner.requests(), "dispatch")
}

// An owner that refuses the authority is dialled more and more rarely, and as quickly as ever
// once it has taken it again. Each rest is a random half of its full length.
func TestRefusingOwnerIsDialledRarely(t *testing.T) {
	b := newBed(t)
	b.until("the link is up", func() bool { return b.outbox.Connected(ownerPin, b.owner.incarnation()) })
	b.owner.mu.Lock()
	b.owner.refuses = true
	b.owner.cutLocked()
	b.owner.mu.Unlock()
	before := len(b.rested())
	b.until("it rests for long", func() bool { return len(b.rested()) >= before+12 })
	for i, d := range b.rested()[before:][:12] {
		full := min(firstRedial<<max(0, i-1), lastRedial) // the first rests may be of the link that was up
		require.LessOrEqual(t, d, lastRedial)
		require.GreaterOrEqual(t, d, full/2, "rest %d", i)
	}
	b.owner.mu.Lock()
	b.owner.refuses = false
	b.owner.mu.Unlock()
	b.until("the link is up", func() bool {
		b.owner.mu.Lock()
		defer b.owner.mu.Unlock()
		return len(b.owner.lines) > 0 && b.owner.lines[len(b.owner.lines)-1].told
	})
	before = len(b.rested())
	b.owner.cut()
	b.until("it is dialled again", func() bool { return len(b.rested()) > before })
	require.LessOrEqual(t, b.rested()[before], firstRedial)
}

// A link that cannot be made has one line in the log, not one for each try, although the words
// differ by the port from which somebody was asked in vain where the owner is.
func TestAnUnreachableOwnerHasOneLine(t *testing.T) {
	b := newBed(t)
	b.stop()
	var log bytes.Buffer
	var tries atomic.Int32
	b.log = slog.New(slog.NewTextHandler(&log, nil)) // one peer, one goroutine
	b.owners = []Owner{{Name: "far", Fingerprint: ownerPin, Dial: func(context.Context, Handlers) (Link, error) {
		at := &net.UDPAddr{IP: net.IPv4(10, 0, 0, 5), Port: 40000 + int(tries.Add(1))}
		why := &net.OpError{Op: "read", Net: "udp", Source: at, Addr: &net.UDPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 53}, Err: os.ErrDeadlineExceeded}
		return nil, &net.DNSError{Name: "far", Server: "10.0.0.1:53", Err: why.Error()}
	}}}
	b.start()
	b.until("it is dialled often", func() bool { return tries.Load() > 6 })
	b.stop()
	require.Equal(t, 1, strings.Count(log.String(), "owner link down"), log.String())
}

// An owner that owes the reply to an opening keeps no link that is over.
func TestStalledOpeningEndsWithItsLink(t *testing.T) {
	b := newBed(t)
	b.owner.mu.Lock()
	b.owner.stalls = true
	b.owner.mu.Unlock()
	b.owner.answers(0, owner.Result{State: frames.EffectSucceeded})
	op := b.startRun(7)
	b.until("it runs", func() bool { return b.result(op) == "SUCCEEDED" })
	b.until("the opening waits", func() bool { return slices.Contains(b.owner.requests(), "open") })
	b.owner.mu.Lock()
	l := b.owner.lines[0]
	l.out <- func() { l.h.Bindings(make([]frames.BindingID, maxReported+1)) } // nothing but a breach
	b.owner.stalls = false
	b.owner.mu.Unlock()
	<-l.done
	b.until("its facts come over the next link", func() bool { return b.durable(frames.BindingID{7}) == 1 })
}
