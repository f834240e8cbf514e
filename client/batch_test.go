package client

import (
	"bufio"
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
	"coordinator/internal/clock"
)

// wireOf is so many events of one subscription as they come.
func wireOf(t *testing.T, s *Subscription, events int) (wire []byte, sent []frames.ReplayEvent) {
	for i := range events {
		e := change(frames.EventSequence(i+1), byte(i), frames.ObjectRevision(i/256+1))
		f := (&feed{id: s.id, delivery: frames.DeliverySequence(i)}).live(e)
		var err error
		wire, err = frames.Append(wire, f)
		require.NoError(t, err)
		sent = append(sent, e)
	}
	return wire, sent
}

// TestEventsOutliveTheBuffer keeps events while the buffer that they were read through is
// filled again and again, so small that frames also lie across its end or do not fit.
func TestEventsOutliveTheBuffer(t *testing.T) {
	for _, buffer := range []int{16, 100, 1000, readBuffer} {
		c, s := following(clock.System())
		wire, sent := wireOf(t, s, 2000)
		require.ErrorIs(t, c.readLoop(bufio.NewReaderSize(bytes.NewReader(wire), buffer)), ErrDisconnected)
		var got []*Event
		for range sent {
			u, err := s.Next(t.Context())
			require.NoError(t, err)
			got = append(got, u.(*Event))
		}
		for i, e := range got {
			require.Equal(t, sent[i].Sequence, e.Sequence)
			require.Equal(t, sent[i].Object, e.Object)
			require.Equal(t, sent[i].Payload, e.Payload)
		}
		require.False(t, s.waiting())
	}
}

// TestAnEventTakesNoMoreThanItself holds the way from the buffer to the consumer to the two
// allocations that the event is: itself and its payload.
func TestAnEventTakesNoMoreThanItself(t *testing.T) {
	const events = 5000
	c, s := following(clock.System())
	c.state.mem.Cut = &cutSeen{Sequence: 1 << 40} // shown by others
	wire, _ := wireOf(t, s, events)
	r := bufio.NewReaderSize(nil, readBuffer)
	allocated := testing.AllocsPerRun(5, func() {
		*s = Subscription{conn: c, phase: phaseLive, balance: credit{1 << 31, 1 << 31}, wake: make(chan struct{}, 1), seen: newRevisions(true), id: s.id}
		r.Reset(bytes.NewReader(wire))
		if err := c.readLoop(r); err == nil {
			t.Error("it did not end")
		}
		for range events {
			if _, err := s.Next(t.Context()); err != nil {
				t.Error(err)
				return
			}
		}
	})
	require.Less(t, allocated/events, 2.9, "a pool that is emptied meanwhile makes some more")
}

// TestAGapWaitsForTheEventsBeforeIt takes a batch that ends before a gap, and the gap alone.
func TestAGapWaitsForTheEventsBeforeIt(t *testing.T) {
	c, s := following(clock.System())
	wire, _ := wireOf(t, s, 3)
	for _, f := range []frames.Frame{
		&frames.Gap{SubscriptionID: s.id, LastDelivery: 3, LastEvent: 3, Reason: frames.GapQueueOverflow},
		&frames.Gap{SubscriptionID: s.id, LastDelivery: 3, LastEvent: 3, Reason: frames.GapInternal},
	} {
		var err error
		wire, err = frames.Append(wire, f)
		require.NoError(t, err)
	}
	require.ErrorIs(t, c.readLoop(bufio.NewReader(bytes.NewReader(wire))), ErrDisconnected)
	require.Len(t, s.wake, 1)
	for i := range 3 {
		require.True(t, s.waiting())
		require.Nil(t, s.unreadGap())
		require.Equal(t, frames.EventSequence(i+1), next[*Event](t, s).Sequence)
	}
	require.False(t, s.waiting())
	require.False(t, s.isPaused(), "there is a gap that was not told")
	require.Equal(t, frames.GapQueueOverflow, next[*Gap](t, s).Reason)
	require.False(t, s.isPaused(), "there is another")
	require.Equal(t, frames.GapInternal, s.unreadGap().Reason)
	require.True(t, s.isPaused())
}

// TestACutIsShownAgainAfterItWasReplaced lowers the cut as a lost history does.
func TestACutIsShownAgainAfterItWasReplaced(t *testing.T) {
	s := &State{store: new(MemoryStore), conns: map[*Conn]struct{}{}}
	cert := &frames.Certificate{Epoch: 1, Activation: 4}
	_, err := s.accept(cert, [32]byte{1}, frames.KeyID{1})
	require.NoError(t, err)
	show := func(seq frames.EventCut) frames.EventCut {
		s.observe(cutSeen{Activation: 4, Sequence: seq})
		return s.cut().Sequence
	}
	require.NoError(t, s.snapshotVerified(4, 1, nil))
	require.EqualValues(t, 50, show(50))
	require.EqualValues(t, 50, show(40))
	require.NoError(t, s.snapshotVerified(4, 2, &LostHistory{}))
	s.mu.Lock()
	s.mem.Cut = &cutSeen{Activation: 4, Sequence: 2} // which nothing had been shown of
	s.mu.Unlock()
	require.EqualValues(t, 40, show(40))
	require.EqualValues(t, 60, show(60))
}
