package client

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/codec"
	"coordinator/frames"
)

// A feed is the script's end of one subscription.
type feed struct {
	*peer
	id       frames.SubscriptionID
	delivery frames.DeliverySequence
	last     frames.EventSequence
}

// feed answers a SUBSCRIBE.
func (p *peer) feed() *feed {
	s := take[*frames.Subscribe](p)
	f := &feed{peer: p, id: frames.SubscriptionID{5}, last: frames.EventSequence(s.After)}
	p.send(&frames.Subscribed{RequestID: s.RequestID, SubscriptionID: f.id, NextDelivery: 1})
	return f
}

// live makes an event of a subscription.
func (f *feed) live(e frames.ReplayEvent) *frames.CoordEvent {
	f.delivery++
	f.last = e.Sequence
	return &frames.CoordEvent{SubscriptionID: f.id, Delivery: f.delivery, Sequence: e.Sequence, EventID: e.ID,
		Kind: e.Kind, Object: e.Object, Revision: e.Revision, Schema: e.Schema, Payload: e.Payload}
}

func (f *feed) gap(reason frames.GapReason) {
	f.send(&frames.Gap{SubscriptionID: f.id, LastDelivery: frames.DeliveryCut(f.delivery), LastEvent: frames.EventCut(f.last), Reason: reason})
}

// next expects the next update to be a T.
func next[T Update](t *testing.T, s *Subscription) T {
	t.Helper()
	u, err := s.Next(t.Context())
	require.NoError(t, err)
	got, ok := u.(T)
	require.True(t, ok, "%T %+v", u, u)
	return got
}

// rest reads until the subscription ends.
func rest(t *testing.T, s *Subscription) (updates []Update, err error) {
	for u, err := range s.Events(t.Context()) {
		if err != nil {
			return updates, err
		}
		updates = append(updates, u)
	}
	panic("unreachable: an error comes last")
}

func TestSubscribeDeliversTypedEventsInOrder(t *testing.T) {
	w := newWorld(t)
	c := w.verified(func(p *peer) {
		f := p.feed()
		for i := range 4 {
			p.send(f.live(change(frames.EventSequence(3*i+2), 1, frames.ObjectRevision(i+1))))
		}
		f.gap(frames.GapQueueOverflow)
		p.send(&frames.CoordError{Code: frames.CodeAuthorityFenced})
	})
	s, err := c.Subscribe(t.Context(), 0, SubscribeOptions{})
	require.NoError(t, err)
	<-c.Done()
	require.Zero(t, s.Cut(), "what was only read has not been delivered")
	for i := range 4 {
		e := next[*Event](t, s)
		require.Equal(t, frames.EventSequence(3*i+2), e.Sequence)
		require.Equal(t, frames.DeliverySequence(i+1), e.Delivery)
		r, ok, err := e.Record()
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, frames.ObjectRevision(i+1), r.Revision)
		require.Equal(t, frames.EventCut(e.Sequence), s.Cut())
	}
	g := next[*Gap](t, s)
	require.Equal(t, &Gap{Reason: frames.GapQueueOverflow, Last: 11}, g)
	_, err = s.Next(t.Context())
	var fatal *FatalError
	require.ErrorAs(t, err, &fatal)
	require.Equal(t, frames.CodeAuthorityFenced, fatal.Code)
}

// TestSubscriptionThatBreaksItsPromises ends the connection: nothing at or behind the
// fault is delivered.
func TestSubscriptionThatBreaksItsPromises(t *testing.T) {
	ok := func(p *peer, f *feed) { p.send(f.live(change(5, 1, 1))) }
	for _, tt := range []struct {
		name   string
		script func(p *peer, f *feed)
		events int // delivered before it
	}{
		{"a delivery left out", func(p *peer, f *feed) { ok(p, f); f.delivery++; p.send(f.live(change(6, 1, 2))) }, 1},
		{"a delivery repeated", func(p *peer, f *feed) { ok(p, f); f.delivery--; p.send(f.live(change(6, 1, 2))) }, 1},
		{"an event repeated", func(p *peer, f *feed) { ok(p, f); p.send(f.live(change(5, 2, 1))) }, 1},
		{"an event from before", func(p *peer, f *feed) { ok(p, f); p.send(f.live(change(4, 2, 1))) }, 1},
		{"a revision left out", func(p *peer, f *feed) { ok(p, f); p.send(f.live(change(6, 1, 3))) }, 1},
		{"a revision repeated", func(p *peer, f *feed) { ok(p, f); p.send(f.live(change(6, 1, 1))) }, 1},
		{"an object that begins at revision 2", func(p *peer, f *feed) { p.send(f.live(change(6, 1, 2))) }, 0},
		{"a record of another object", func(p *peer, f *feed) {
			e := change(6, 1, 1)
			e.Object = objectRef(2)
			p.send(f.live(e))
		}, 0},
		{"a record at another revision", func(p *peer, f *feed) {
			e := change(6, 1, 1)
			e.Payload = change(6, 1, 2).Payload
			p.send(f.live(e))
		}, 0},
		{"a payload that is no record", func(p *peer, f *feed) {
			e := change(6, 1, 1)
			e.Payload = []byte("?")
			p.send(f.live(e))
		}, 0},
		{"a fact of an objective", func(p *peer, f *feed) {
			e := change(6, 1, 1)
			e.Kind = frames.EventSourceFactAdmitted
			p.send(f.live(e))
		}, 0},
		{"a removal of another object", func(p *peer, f *feed) {
			e := change(6, 1, 1)
			other := objectRef(2)
			e.Kind = frames.EventObjectRemoved
			e.Payload, _ = codec.EncodeImage(nil, &other)
			p.send(f.live(e))
		}, 0},
		{"another subscription's event", func(p *peer, f *feed) { f.id[0]++; ok(p, f) }, 0},
		{"another subscription's gap", func(p *peer, f *feed) { f.id[0]++; f.gap(frames.GapInternal) }, 0},
		{"an event behind a gap", func(p *peer, f *feed) { ok(p, f); f.gap(frames.GapInternal); p.send(f.live(change(6, 1, 2))) }, 1},
		{"a gap that skips a delivery", func(p *peer, f *feed) { ok(p, f); f.delivery++; f.gap(frames.GapInternal) }, 1},
		{"a gap that takes one back", func(p *peer, f *feed) { ok(p, f); f.delivery--; f.gap(frames.GapInternal) }, 1},
		{"a gap behind an event that never came", func(p *peer, f *feed) { ok(p, f); f.last++; f.gap(frames.GapInternal) }, 1},
		{"a gap before an event that came", func(p *peer, f *feed) { ok(p, f); f.last--; f.gap(frames.GapInternal) }, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			c := w.verified(func(p *peer) { tt.script(p, p.feed()); p.drain() })
			s, err := c.Subscribe(t.Context(), 0, SubscribeOptions{CreditCount: 2})
			require.NoError(t, err)
			updates, err := rest(t, s)
			require.ErrorIs(t, err, ErrProtocol)
			require.ErrorIs(t, c.Err(), ErrProtocol)
			n := 0
			for _, u := range updates {
				if _, event := u.(*Event); event {
					n++
				}
			}
			require.LessOrEqual(t, n, tt.events)
		})
	}
}

func TestC12_EventsThatNoCreditCoversEndTheConnection(t *testing.T) {
	w := newWorld(t)
	c := w.verified(func(p *peer) {
		f := p.feed()
		for i := range 3 {
			p.send(f.live(change(frames.EventSequence(5+i), 1, frames.ObjectRevision(1+i))))
		}
		p.recv()
	})
	_, err := c.Subscribe(t.Context(), 0, SubscribeOptions{CreditCount: 2})
	require.NoError(t, err)
	<-c.Done()
	require.ErrorIs(t, c.Err(), ErrProtocol)
}

func TestGapsThatNobodyTakesAreBounded(t *testing.T) {
	w := newWorld(t)
	c := w.verified(func(p *peer) {
		f := p.feed()
		for range maxUnreadGaps + 1 {
			f.gap(frames.GapInternal)
		}
		p.recv()
	})
	_, err := c.Subscribe(t.Context(), 0, SubscribeOptions{})
	require.NoError(t, err)
	<-c.Done()
	require.ErrorIs(t, c.Err(), ErrProtocol)
}

func TestSubscribeThatDoesNotBegin(t *testing.T) {
	for name, answer := range map[string]frames.Subscribed{
		"not with the first delivery": {SubscriptionID: frames.SubscriptionID{5}, NextDelivery: 2},
	} {
		w := newWorld(t)
		c := w.verified(func(p *peer) {
			s := take[*frames.Subscribe](p)
			answer.RequestID = s.RequestID
			p.send(&answer)
			p.recv()
		})
		_, err := c.Subscribe(t.Context(), 0, SubscribeOptions{})
		require.ErrorIs(t, err, ErrProtocol, name)
	}
	w := newWorld(t)
	c := w.verified(func(p *peer) {
		s := take[*frames.Subscribe](p)
		p.send(&frames.CoordError{RequestID: s.RequestID, Code: frames.CodeResourceExhausted})
		p.feed()
		s = take[*frames.Subscribe](p)
		p.send(&frames.Subscribed{RequestID: s.RequestID, SubscriptionID: frames.SubscriptionID{5}, NextDelivery: 1}) // in use
		p.recv()
	})
	_, err := c.Subscribe(t.Context(), 0, SubscribeOptions{})
	require.ErrorAs(t, err, new(*RefusedError))
	_, err = c.Subscribe(t.Context(), 0, SubscribeOptions{})
	require.NoError(t, err)
	_, err = c.Subscribe(t.Context(), 0, SubscribeOptions{})
	require.ErrorIs(t, err, ErrProtocol)

	unverified := w.dial(func(p *peer) { p.recv() })
	_ = unverified
}

// TestFactsRaiseTheRevision and leave the record as it was [D-16].
func TestFactsRaiseTheRevision(t *testing.T) {
	binding := frames.ObjectRef{Kind: frames.KindBinding, ID: frames.ObjectID{8}}
	r := newRevisions(true)
	r.known[binding] = 4
	for i, kind := range []frames.EventKind{frames.EventSourceFactAdmitted, frames.EventSourceGap} {
		require.NoError(t, r.apply(&Event{Sequence: 9, Kind: kind, Object: binding, Revision: frames.ObjectRevision(5 + i)}))
	}
	var jump *RevisionError
	require.ErrorAs(t, r.apply(&Event{Sequence: 12, Kind: frames.EventSourceGap, Object: binding, Revision: 8}), &jump)
	require.Equal(t, &RevisionError{Sequence: 12, Object: binding, Have: 6, Got: 8}, jump)

	partial := newRevisions(false)
	require.NoError(t, partial.apply(&Event{Kind: frames.EventSourceGap, Object: binding, Revision: 8}), "the first one says where it stands")
	require.Error(t, partial.apply(&Event{Kind: frames.EventSourceGap, Object: binding, Revision: 8}))
}

// TestC12_CreditIsNeitherLostNorDoubled runs thousands of events through small windows,
// with consumers that stop now and then. The script holds the client to both balances.
func TestC12_CreditIsNeitherLostNorDoubled(t *testing.T) {
	largest := uint32(frames.EventBytes(int(frames.ReferenceLimits().TypedPayload)))
	for _, opts := range []SubscribeOptions{{CreditCount: 1}, {CreditCount: 2}, {CreditCount: 7}, {CreditCount: 64}, {CreditBytes: 1}} {
		w := newWorld(t)
		const events = 3000
		c := w.verified(func(p *peer) {
			s := take[*frames.Subscribe](p)
			want := max(opts.CreditBytes, largest)
			if opts.CreditBytes == 0 {
				want = p.limits.CreditBytes
			}
			if s.CreditBytes != want {
				panic("script: another window than was asked for")
			}
			f := &feed{peer: p, id: frames.SubscriptionID{5}}
			p.send(&frames.Subscribed{RequestID: s.RequestID, SubscriptionID: f.id, NextDelivery: 1})
			count, bytes := s.CreditCount, s.CreditBytes
			for i := 1; i <= events; i++ {
				e := f.live(change(frames.EventSequence(i), 1, frames.ObjectRevision(i)))
				size := uint32(frames.EventBytes(len(e.Payload)))
				for count == 0 || bytes < size || opts.CreditBytes != 0 && bytes < largest {
					more := take[*frames.Credit](p)
					count, bytes = count+more.AddCount, bytes+more.AddBytes
					if count > s.CreditCount || bytes > s.CreditBytes {
						panic("script: credit was doubled")
					}
				}
				count, bytes = count-1, bytes-size
				p.send(e)
			}
			for { // what is granted at the end
				take[*frames.Credit](p)
			}
		})
		s, err := c.Subscribe(t.Context(), 0, opts)
		require.NoError(t, err)
		for i := 1; i <= events; i++ {
			require.Equal(t, frames.EventSequence(i), next[*Event](t, s).Sequence)
			if rand.N(50) == 0 {
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				_, err := s.Next(ctx)
				require.ErrorIs(t, err, context.Canceled, "and nothing is lost by it")
			}
			s.mu.Lock()
			queued, bytes := uint32(len(s.batch)+len(s.queue)), uint32(0)
			for _, q := range slices.Concat(s.batch, s.queue) {
				bytes += q.size
			}
			require.Equal(t, s.window, credit{s.balance.count + s.owed.count + queued, s.balance.bytes + s.owed.bytes + bytes})
			s.mu.Unlock()
		}
		require.NoError(t, c.Close())
	}
}

// TestEventsAfterExpiryCountAsNotReceived loses the renewals: what waits is dropped, and
// going on from the last event delivered brings it again.
func TestEventsAfterExpiryCountAsNotReceived(t *testing.T) {
	w := newWorld(t)
	sent := make(chan struct{})
	c := w.verified(func(p *peer) {
		f := p.feed()
		for i := range 3 {
			p.send(f.live(change(frames.EventSequence(i+1), 1, frames.ObjectRevision(i+1))))
		}
		f.gap(frames.GapQueueOverflow)
		close(sent)
		p.recv()
	})
	s, err := c.Subscribe(t.Context(), 0, SubscribeOptions{})
	require.NoError(t, err)
	<-sent
	next[*Event](t, s)
	w.clock.Advance(time.Duration(w.lease) * time.Second)
	_, err = s.Next(t.Context())
	require.ErrorIs(t, err, ErrExpired)
	<-c.Done()
	require.Equal(t, frames.EventCut(1), s.Cut())
	require.Equal(t, cutSeen{w.activation, 1}, c.State().cut())
}

// TestHigherAuthorityEndsWhatTheLowerOneSent drops what waits as soon as another server
// has proved a higher authority (protocol.md §4).
func TestHigherAuthorityEndsWhatTheLowerOneSent(t *testing.T) {
	w := newWorld(t)
	sent := make(chan struct{})
	c := w.verified(func(p *peer) {
		f := p.feed()
		for i := range 3 {
			p.send(f.live(change(frames.EventSequence(i+1), 1, frames.ObjectRevision(i+1))))
		}
		f.gap(frames.GapQueueOverflow)
		close(sent)
		p.recv()
	})
	s, err := c.Subscribe(t.Context(), 0, SubscribeOptions{})
	require.NoError(t, err)
	<-sent
	next[*Event](t, s)
	w.restart()
	opts := w.options(func(p *peer) { p.recv() })
	opts.State = c.State()
	higher, err := Dial(t.Context(), w.pins, opts)
	require.NoError(t, err)
	_, err = s.Next(t.Context())
	require.ErrorIs(t, err, ErrSuperseded)
	_, err = higher.Subscribe(t.Context(), 1, SubscribeOptions{})
	require.ErrorIs(t, err, ErrSnapshotFirst, "quarantined until a snapshot has verified")
	require.NoError(t, higher.Close())
}

// drain reads until the client closes.
func (p *peer) drain() {
	for {
		p.recv()
	}
}
