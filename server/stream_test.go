package server

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/server/authority"
	"coordinator/server/quota"
)

const (
	plentyEvents = 1024
	plentyBytes  = 4 << 20
)

// following is a hello that sees no ADMIN record, whose changes would need a
// snapshot, and can replay.
func following(h *frames.CoordHello) { h.Offered = frames.CapEventReplay }

// join is a whole handshake over a transport.
func (r *rig) join(w way, change ...func(*frames.CoordHello)) *peer {
	r.t.Helper()
	p, ch := r.via(w)
	require.NoError(r.t, p.shake(r, r.keys[0], uint64(frames.AllScopes), ch, change...))
	return p
}

func (p *peer) subscribe(after frames.EventCut, count, bytes uint32) frames.SubscriptionID {
	p.t.Helper()
	p.send(&frames.Subscribe{RequestID: p.id(), Guard: p.guard, After: after, CreditCount: count, CreditBytes: bytes})
	f, err := p.next()
	require.NoError(p.t, err)
	require.IsType(p.t, &frames.Subscribed{}, f)
	return f.(*frames.Subscribed).SubscriptionID
}

func (p *peer) event() *frames.CoordEvent {
	p.t.Helper()
	f, err := p.next()
	require.NoError(p.t, err)
	require.IsType(p.t, &frames.CoordEvent{}, f)
	return f.(*frames.CoordEvent)
}

// gap passes over events and gives the next GAP and how many came before it.
func (p *peer) gap() (gap *frames.Gap, events int) {
	p.t.Helper()
	for {
		f, err := p.next()
		require.NoError(p.t, err)
		switch f := f.(type) {
		case *frames.Gap:
			return f, events
		case *frames.CoordEvent:
			events++
		default:
			p.t.Fatalf("%T before a GAP", f)
		}
	}
}

// replayed heals a subscription and returns the events of the replay.
func (p *peer) replayed(gap *frames.Gap, count, bytes uint32) (begin *frames.ReplayBegin, events []frames.ReplayEvent) {
	p.t.Helper()
	p.send(&frames.OpenReplay{RequestID: p.id(), Guard: p.guard, SubscriptionID: gap.SubscriptionID, After: gap.LastEvent})
	f, err := p.next()
	require.NoError(p.t, err)
	begin = f.(*frames.ReplayBegin)
	for cursor := begin.FirstCursor; cursor != nil; {
		p.send(&frames.ReplayNext{RequestID: p.id(), ReplayID: begin.ReplayID, Cursor: cursor})
		f, err := p.next()
		require.NoError(p.t, err)
		page := f.(*frames.ReplayPage)
		events = append(events, page.Events...)
		cursor = page.NextCursor
	}
	f, err = p.next()
	require.NoError(p.t, err)
	d := frames.NewReplayDigest(p.guard, gap.SubscriptionID, gap.LastEvent, begin.Cut, uint64(len(events)))
	for i := range events {
		require.NoError(p.t, d.Add(&events[i]))
	}
	require.Equal(p.t, d.Sum(), f.(*frames.ReplayEnd).Digest)
	p.send(&frames.ReplayApplied{
		RequestID: p.id(), ReplayID: begin.ReplayID, SubscriptionID: gap.SubscriptionID, CreditCount: count, CreditBytes: bytes,
	})
	f, err = p.next()
	require.NoError(p.t, err)
	require.Equal(p.t, &frames.Ack{RequestID: p.last}, f)
	return begin, events
}

// reserved takes a snapshot with a subscription, up to its END.
func (p *peer) reserved(replace frames.SubscriptionID) *frames.SnapshotBegin {
	p.t.Helper()
	p.send(&frames.OpenSnapshot{RequestID: p.id(), Guard: p.guard, Reserve: true, Replace: replace})
	f, err := p.next()
	require.NoError(p.t, err)
	begin := f.(*frames.SnapshotBegin)
	for cursor := begin.FirstCursor; cursor != nil; {
		page, err := p.nextPage(begin.SnapshotID, cursor)
		require.NoError(p.t, err)
		cursor = page.NextCursor
	}
	f, err = p.next()
	require.NoError(p.t, err)
	require.IsType(p.t, &frames.SnapshotEnd{}, f)
	return begin
}

// tight are limits of a subscription that a few writes reach.
func tight(t *testing.T) quota.Limits {
	t.Helper()
	l := quota.Defaults()
	l[quota.OfConnection][quota.UnsentFrames] = 20
	require.NoError(t, l.Validate())
	return l
}

// TestC13_GapAndHealing goes through a GAP, a replay and a replacement over each
// transport.
func TestC13_GapAndHealing(t *testing.T) {
	r := newRig(t)
	r.opts.QUIC = "127.0.0.1:0"
	r.opts.Quotas = tight(t)
	r.start()
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			p, writer := r.join(w, following), r.join(w)
			write := func(n int) {
				for range n {
					writer.create("{}") // two events each
				}
			}
			begin := p.reserved(frames.SubscriptionID{})
			write(3)
			p.send(&frames.SnapshotApplied{
				RequestID: p.id(), SnapshotID: begin.SnapshotID, SubscriptionID: begin.SubscriptionID, CreditCount: 2, CreditBytes: plentyBytes,
			})
			f, err := p.next()
			require.NoError(t, err)
			require.Equal(t, &frames.Ack{RequestID: p.last}, f, "the ACK precedes the first event")
			require.EqualValues(t, 1, p.event().Delivery)
			last := p.event()
			write(15)
			gap, events := p.gap()
			require.Zero(t, events)
			require.Equal(t, &frames.Gap{
				SubscriptionID: begin.SubscriptionID, LastDelivery: 2, LastEvent: frames.EventCut(last.Sequence),
				Observed: last.Sequence + 1, Reason: frames.GapQueueOverflow,
			}, gap)
			p.send(&frames.Credit{SubscriptionID: gap.SubscriptionID, AddCount: 1, AddBytes: 1}) // it crosses the GAP
			replay, missed := p.replayed(gap, 1, plentyBytes)
			require.Len(t, missed, 4+30)
			write(1)
			next := p.event()
			require.EqualValues(t, 3, next.Delivery)
			require.EqualValues(t, replay.Cut+1, next.Sequence)
			write(12)
			gap, _ = p.gap()
			healed := p.reserved(gap.SubscriptionID)
			p.send(&frames.SnapshotApplied{
				RequestID: p.id(), SnapshotID: healed.SnapshotID, SubscriptionID: healed.SubscriptionID, CreditCount: 9, CreditBytes: plentyBytes,
			})
			f, err = p.next()
			require.NoError(t, err)
			require.IsType(t, &frames.Ack{}, f)
			write(1)
			next = p.event()
			require.Equal(t, healed.SubscriptionID, next.SubscriptionID)
			require.EqualValues(t, 1, next.Delivery)
			p.close()
			writer.close()
		})
	}
}

// TestC04_AnEndedGrantGetsAGapAndAnError ends grants while subscriptions are open.
func TestC04_AnEndedGrantGetsAGapAndAnError(t *testing.T) {
	told := func(t *testing.T, p *peer, want ...frames.SubscriptionID) {
		var got []frames.SubscriptionID
		for len(got) < len(want) {
			f, err := p.any()
			require.NoError(t, err)
			switch f := f.(type) {
			case *frames.Ping:
				p.send(&frames.Pong{Nonce: f.Nonce})
			case *frames.Gap:
				require.Equal(t, frames.GapGrantRevoked, f.Reason)
				got = append(got, f.SubscriptionID)
			}
		}
		require.ElementsMatch(t, want, got)
		p.refused(frames.CodeAuthenticationFailed)
		p.ended()
	}
	t.Run("expired", func(t *testing.T) {
		bubble(t, func(t *testing.T, b *bed) {
			p := b.connect()
			cut := p.snapshot().begin.Base
			told(t, p, p.subscribe(cut, 1, plentyBytes), p.subscribe(cut, 0, 0))
		})
	})
	t.Run("revoked", func(t *testing.T) {
		r := remoteRig(t)
		other := r.connect(r.keys[1])
		watched := other.subscribe(other.snapshot().begin.Base, 1, plentyBytes)
		var peers []*peer
		var ids []frames.SubscriptionID
		for _, w := range ways {
			p := r.join(w)
			peers = append(peers, p)
			ids = append(ids, p.subscribe(p.snapshot().begin.Base, 1, plentyBytes))
		}
		_, err := handshake.RevokeRecord(r.registry, "first", uint64(time.Now().Unix()), registryRules)
		require.NoError(t, err)
		for i, p := range peers {
			told(t, p, ids[i])
		}
		gap, _ := other.gap()
		require.Equal(t, watched, gap.SubscriptionID)
		require.Equal(t, frames.GapRevisionMismatch, gap.Reason, "its CREDENTIAL record has changed")
	})
}

// TestAnEndedAuthorityTellsEverySubscription fences a server, and stops one.
func TestAnEndedAuthorityTellsEverySubscription(t *testing.T) {
	ends := func(t *testing.T, p *peer, id frames.SubscriptionID) {
		gap, _ := p.gap()
		require.Equal(t, frames.GapEpochChanged, gap.Reason)
		require.Equal(t, id, gap.SubscriptionID)
		p.refused(frames.CodeAuthorityFenced)
		p.ended()
	}
	t.Run("fenced", func(t *testing.T) {
		bubble(t, func(t *testing.T, b *bed) {
			b.ends = authority.ErrFenced
			p := b.connect()
			id := p.subscribe(p.snapshot().begin.Base, 5, plentyBytes)
			b.s.fence.Close(errors.New("test"))
			ends(t, p, id)
		})
	})
	t.Run("stopped", func(t *testing.T) {
		r := remoteRig(t)
		var peers []*peer
		var ids []frames.SubscriptionID
		for _, w := range ways {
			p := r.join(w)
			peers = append(peers, p)
			ids = append(ids, p.subscribe(p.snapshot().begin.Base, 5, plentyBytes))
		}
		stopped := make(chan error, 1)
		go func() { stopped <- r.stop() }()
		for i, p := range peers {
			ends(t, p, ids[i])
		}
		require.NoError(t, <-stopped)
	})
}

// TestAReconnectContinues subscribes again where a connection and then a process
// ended. Every start consumes sequences that nobody sees.
func TestAReconnectContinues(t *testing.T) {
	r := newRig(t)
	r.start()
	cut := r.connect(r.keys[0], following).snapshot().begin.Base
	admin := cut
	var kinds []frames.EventKind
	read := func(n int) {
		p := r.connect(r.keys[0], following)
		p.subscribe(cut, plentyEvents, plentyBytes)
		for range n {
			e := p.event()
			require.Greater(t, e.Sequence, frames.EventSequence(cut))
			cut = frames.EventCut(e.Sequence)
			kinds = append(kinds, e.Kind)
		}
		p.close()
	}
	for range 3 {
		r.connect(r.keys[0]).create("{}")
		read(1) // and one is left for the next connection
		require.NoError(t, r.stop())
		r.start()
	}
	read(3)
	var want []frames.EventKind
	for range 3 {
		want = append(want, frames.EventObjectiveChanged, frames.EventOperationChanged)
	}
	require.Equal(t, want, kinds)
	p := r.connect(r.keys[0])
	p.subscribe(admin, plentyEvents, plentyBytes)
	gap, _ := p.gap()
	require.Equal(t, frames.GapRevisionMismatch, gap.Reason, "who sees ADMIN needs a snapshot after a start")
}

// TestChangeRetentionPausesWhoSeesIt changes an ADMIN record by a command, whose own
// event is one sequence with it.
func TestChangeRetentionPausesWhoSeesIt(t *testing.T) {
	r := newRig(t)
	r.start()
	p, blind, w := r.connect(r.keys[0]), r.connect(r.keys[0], following), r.connect(r.keys[1])
	cut := p.snapshot().begin.Base
	id := p.subscribe(cut, 5, plentyBytes)
	blind.subscribe(cut, 5, plentyBytes)
	res, err := w.command(frames.CommandChangeRetention, newID[frames.OperationID](t),
		&frames.ChangeRetention{Retention: frames.Retention{OperationResultSecs: 5_000_000, EventBytes: 1 << 20, ArtifactBytes: 1 << 20}})
	require.NoError(t, err)
	require.Equal(t, res.Sequence, blind.event().Sequence)
	gap, events := p.gap()
	require.Zero(t, events)
	require.Equal(t, &frames.Gap{
		SubscriptionID: id, LastEvent: cut, Observed: res.Sequence, Reason: frames.GapRevisionMismatch,
	}, gap)
	p.subscribe(cut, 5, plentyBytes)
	gap, _ = p.gap()
	require.Equal(t, frames.GapRevisionMismatch, gap.Reason, "nor does subscribing from before it help")
	after := p.snapshot().begin.Base
	require.EqualValues(t, res.Sequence, after)
	p.subscribe(after, 5, plentyBytes)
	w.create("{}")
	require.EqualValues(t, after+1, p.event().Sequence)
}

// TestASubscriberThatBlocksFiveSeconds stops reading in a bubble while others write
// and read.
func TestASubscriberThatBlocksFiveSeconds(t *testing.T) {
	for _, tt := range []struct {
		name   string
		writes int
		gaps   bool
	}{
		{"fewer events than it may be owed", 10, false},
		{"more", 600, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bed) {
				join := func() *peer {
					p := b.raw()
					require.NoError(t, p.shake(b.r, b.r.keys[0], uint64(frames.AllScopes), b.channel(), following))
					return p
				}
				writer, slow := join(), join()
				start := slow.snapshot().begin.Base
				slow.subscribe(start, plentyEvents, plentyBytes)
				go func() {
					for range tt.writes {
						writer.create("{}")
						time.Sleep(5 * time.Second / time.Duration(tt.writes))
					}
				}()
				time.Sleep(6 * time.Second)
				synctest.Wait()
				writer.create("{}") // nobody else is held up
				want := frames.EventSequence(start) + 1
				for range 2 * tt.writes {
					f, err := slow.next()
					require.NoError(t, err)
					gap, ok := f.(*frames.Gap)
					if ok {
						require.True(t, tt.gaps)
						require.Equal(t, frames.GapQueueOverflow, gap.Reason)
						require.EqualValues(t, want-1, gap.LastEvent)
						require.Equal(t, want, gap.Observed)
						_, events := slow.replayed(gap, plentyEvents, plentyBytes)
						require.Equal(t, want, events[0].Sequence)
						return
					}
					require.Equal(t, want, f.(*frames.CoordEvent).Sequence)
					want++
				}
				require.False(t, tt.gaps, "everything was held for it")
			})
		})
	}
}

// TestC14_AStallerBesideTwoHundred has one peer that stops reading. The others miss
// nothing and are not held up; it is told what it missed, and heals.
func TestC14_AStallerBesideTwoHundred(t *testing.T) {
	const healthy, writes = 200, 250
	r := newRig(t)
	l := quota.Defaults()
	l[quota.OfPrincipal][quota.Connections] = 256
	l[quota.OfPrincipal][quota.Subscriptions] = 256
	l[quota.OfConnection][quota.UnsentFrames] = 100
	require.NoError(t, l.Validate())
	r.opts.Quotas = l
	r.start()
	quiet := func(h *frames.CoordHello) { h.Offered = frames.CapEventReplay | frames.CapWithoutOperations }
	staller := r.connect(r.keys[0], quiet)
	start := staller.snapshot().begin.Base
	staller.subscribe(start, plentyEvents, plentyBytes)
	var group sync.WaitGroup
	problems := make(chan error, healthy)
	for i := range healthy {
		p := r.connect(r.keys[0], quiet)
		require.NoError(t, p.nc.SetDeadline(time.Now().Add(2*patience)))
		id := p.subscribe(start, plentyEvents, plentyBytes)
		group.Go(func() {
			if err := p.followAll(id, start, writes); err != nil {
				problems <- fmt.Errorf("peer %d: %w", i, err)
			}
			p.close()
		})
	}
	writer := r.connect(r.keys[1])
	document := strings.Repeat("x", 4<<10)
	for range writes {
		writer.create(document)
	}
	group.Wait()
	close(problems)
	for err := range problems {
		t.Error(err)
	}
	used, _ := r.srv.quotas.Use(principalOf(staller), quota.UnsentFrames)
	require.LessOrEqual(t, used, uint64(100))
	gap, events := staller.gap()
	require.EqualValues(t, events, gap.LastDelivery, "nothing was lost before the GAP")
	require.Less(t, events, writes)
	_, missed := staller.replayed(gap, plentyEvents, plentyBytes)
	require.Len(t, missed, writes-events)
	require.NoError(t, r.stop())
}

// followAll reads n events of distinct objects, without a hole in the delivery, and
// grants anew what it used.
func (p *peer) followAll(id frames.SubscriptionID, after frames.EventCut, n int) error {
	last := frames.EventSequence(after)
	for i := range n {
		f, err := p.next()
		if err != nil {
			return err
		}
		e, ok := f.(*frames.CoordEvent)
		switch {
		case !ok:
			return fmt.Errorf("%+v in place of event %d", f, i)
		case e.Delivery != frames.DeliverySequence(i+1) || e.Sequence <= last:
			return fmt.Errorf("delivery %d of event %d after %d", e.Delivery, e.Sequence, last)
		}
		last = e.Sequence
		if i%50 == 49 {
			credit, err := frames.Append(nil, &frames.Credit{SubscriptionID: id, AddCount: 50})
			if err == nil {
				_, err = p.nc.Write(credit)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// TestConnectionsCutAtRandomBytes closes connections wherever they happen to be while
// credit toggles between nothing and plenty. A client that goes on from the last
// event it has read misses none and sees none twice.
func TestConnectionsCutAtRandomBytes(t *testing.T) {
	r := remoteRig(t)
	writer := r.connect(r.keys[1])
	cut := r.connect(r.keys[0], following).snapshot().begin.Base
	stop, written := make(chan struct{}), make(chan int, 1)
	go func() {
		for n := 0; ; n++ {
			select {
			case <-stop:
				written <- n
				return
			default:
				writer.create("{}")
			}
		}
	}()
	rng := rand.New(rand.NewPCG(7, 9))
	c := &cutter{last: frames.EventSequence(cut)}
	for round := range 120 {
		w := ways[overUnix]
		if round%6 == 5 {
			w = ways[overQUIC]
		}
		p := r.join(w, following)
		c.read(t, p, rng, rng.IntN(12<<10))
		p.close()
	}
	close(stop)
	n := <-written
	p := r.join(ways[overUnix], following)
	id := p.subscribe(frames.EventCut(c.last), 1, plentyBytes/2)
	for c.last < frames.EventSequence(cut)+frames.EventSequence(2*n) {
		f, err := p.next()
		require.NoError(t, err)
		if gap, ok := f.(*frames.Gap); ok { // it is more than the queue holds
			_, events := p.replayed(gap, 1, plentyBytes/2)
			for i := range events {
				require.Equal(t, c.last+1, events[i].Sequence)
				c.last++
			}
			continue
		}
		require.Equal(t, c.last+1, f.(*frames.CoordEvent).Sequence)
		c.last++
		p.send(&frames.Credit{SubscriptionID: id, AddCount: 1, AddBytes: 300})
	}
	require.Positive(t, c.seen, "the test reads something")
	eventually(t, "what they held is released", func() bool {
		subs, _ := r.srv.quotas.Use(principalOf(p), quota.Subscriptions)
		unsent, _ := r.srv.quotas.Use(principalOf(p), quota.UnsentFrames)
		return subs == 1 && unsent == 0
	})
}

// A cutter keeps what a client keeps over its connections.
type cutter struct {
	last frames.EventSequence
	seen int
}

// read follows a subscription until the transport breaks after so many bytes.
func (c *cutter) read(t *testing.T, p *peer, rng *rand.Rand, bytes int) {
	t.Helper()
	credit := [][2]uint32{{0, 0}, {plentyEvents, plentyBytes}, {1, plentyBytes}, {plentyEvents, 0}}[rng.IntN(4)]
	p.in.Reset(&breaking{nc: p.nc, left: bytes})
	require.NoError(t, p.nc.SetReadDeadline(time.Now().Add(50*time.Millisecond))) // when no credit is left
	p.send(&frames.Subscribe{
		RequestID: p.id(), Guard: p.guard, After: frames.EventCut(c.last), CreditCount: credit[0], CreditBytes: credit[1],
	})
	var id frames.SubscriptionID
	for i := 0; ; i++ {
		f, err := p.next()
		if err != nil {
			return
		}
		switch f := f.(type) {
		case *frames.Subscribed:
			id = f.SubscriptionID
		case *frames.CoordEvent:
			require.Equal(t, c.last+1, f.Sequence)
			c.last = f.Sequence
			c.seen++
		case *frames.Gap:
			require.LessOrEqual(t, frames.EventSequence(f.LastEvent), c.last)
			return
		}
		if i%8 == 0 && credit[0] < 100 {
			grant, err := frames.Append(nil, &frames.Credit{SubscriptionID: id, AddCount: uint32(rng.IntN(2)) * 10})
			require.NoError(t, err)
			if _, err := p.nc.Write(grant); err != nil {
				return
			}
		}
	}
}

// breaking is a connection that ends after so many bytes.
type breaking struct {
	nc   net.Conn
	left int
}

func (b *breaking) Read(p []byte) (int, error) {
	if b.left == 0 {
		b.nc.Close()
		return 0, net.ErrClosed
	}
	n, err := b.nc.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

// TestAStopIsNotHeldUpByAStaller stops a server one of whose subscribers reads
// nothing.
func TestAStopIsNotHeldUpByAStaller(t *testing.T) {
	r := newRig(t)
	r.start()
	p := r.connect(r.keys[0], following)
	p.subscribe(p.snapshot().begin.Base, plentyEvents, plentyBytes)
	writer := r.connect(r.keys[1])
	for range 100 {
		writer.create(strings.Repeat("x", 8<<10))
	}
	require.NoError(t, r.stop())
}
