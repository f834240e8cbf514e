package server

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/server/quota"
)

// A taking is how a client comes by one unit of a resource, while the writer is held.
type taking struct {
	what quota.Resource
	ask  func(p *peer)
	// got waits until it is there; the principal then has n of them.
	got func(r *rig, p *peer, n uint64)
}

func openOne(p *peer) { p.send(&frames.OpenSnapshot{RequestID: p.id(), Guard: p.guard}) }

func answeredBy[F frames.Frame](_ *rig, p *peer, _ uint64) {
	f, err := p.next()
	require.NoError(p.t, err)
	var want F
	require.IsType(p.t, want, f)
}

func askForObjective(p *peer) {
	p.sendCommand(frames.CommandCreateObjective, newID[frames.OperationID](p.t), &frames.CreateObjective{ObjectiveID: newID[frames.ObjectiveID](p.t), Schema: 1})
}

func waits(r *rig, p *peer, n uint64) {
	eventually(p.t, "the requests wait", func() bool {
		held, _ := r.srv.quotas.Use(principalOf(p), quota.Requests)
		return held == n
	})
}

var (
	takeLease    = taking{quota.Leases, openOne, answeredBy[*frames.SnapshotBegin]}
	takePinned   = taking{quota.PinnedBytes, openOne, answeredBy[*frames.SnapshotBegin]}
	takeSub      = taking{quota.Subscriptions, func(p *peer) { p.send(&frames.Subscribe{RequestID: p.id(), Guard: p.guard}) }, answeredBy[*frames.Subscribed]}
	takeRequests = taking{quota.Requests, askForObjective, waits}
)

// TestC02_ARefusedTakeChangesNothing brings every resource to its limit at every level. The
// next take is refused by that level, leaves every account as it was, and is in nobody
// else's way below the server's level.
func TestC02_ARefusedTakeChangesNothing(t *testing.T) {
	for _, tt := range []struct {
		taking
		level quota.Level
		limit uint64 // of that level, which three fit into
	}{
		{takeRequests, quota.OfConnection, 3},
		{takeRequests, quota.OfPrincipal, 3},
		{takeRequests, quota.OfServer, 3},
		{takeLease, quota.OfConnection, 3},
		{takeLease, quota.OfPrincipal, 3},
		{takeLease, quota.OfServer, 3},
		{takePinned, quota.OfPrincipal, 3*quota.Reservation + 1},
		{takePinned, quota.OfServer, 3*quota.Reservation + 1},
		{takeSub, quota.OfConnection, 3},
		{takeSub, quota.OfPrincipal, 3},
		{takeSub, quota.OfServer, 3},
	} {
		t.Run(tt.what.Key()+" per "+tt.level.String(), func(t *testing.T) {
			r := newRig(t)
			l := quota.Defaults()
			l[tt.level][tt.what] = tt.limit
			if tt.level == quota.OfServer { // a principal's must not be above it
				l[quota.OfPrincipal][tt.what] = tt.limit
			}
			require.NoError(t, l.Validate())
			r.opts.Quotas = l
			r.opts.QUIC = "127.0.0.1:0"
			r.start()
			p, other := r.connect(r.keys[0], following), r.connect(r.keys[1], following)
			p.create("{}") // a snapshot has a record
			from := []*peer{p, p, p}
			switch tt.level {
			case quota.OfPrincipal: // over several connections, of both transports
				from[1], from[2] = r.join(ways[overQUIC], following), r.join(ways[overUnix], following)
			case quota.OfServer:
				from[1] = other
			}
			if tt.what == quota.Requests {
				r.hold()
			}
			n := make(map[quota.Principal]uint64)
			for _, p := range from {
				n[principalOf(p)]++
				tt.ask(p)
				tt.got(r, p, n[principalOf(p)])
			}
			before := r.srv.Uses()
			last := from[2]
			tt.ask(last)
			f := last.refused(frames.CodeResourceExhausted)
			require.Equal(t, last.last, f.RequestID)
			require.Contains(t, f.Message, tt.what.String())
			require.Contains(t, f.Message, "per "+tt.level.String())
			eventually(t, "every account is as it was", func() bool { return equalUses(before, r.srv.Uses()) })
			tt.ask(other)
			if tt.level == quota.OfServer {
				other.refused(frames.CodeResourceExhausted)
			} else {
				tt.got(r, other, 1)
			}
		})
	}
}

func equalUses(a, b []quota.Use) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// TestC02_ConnectionsAreRefusedAtTheHello fills the places of a principal and of the server,
// over both transports.
func TestC02_ConnectionsAreRefusedAtTheHello(t *testing.T) {
	for _, w := range ways {
		for _, level := range []quota.Level{quota.OfPrincipal, quota.OfServer} {
			t.Run(w.name+" per "+level.String(), func(t *testing.T) {
				r := newRig(t)
				l := quota.Defaults()
				l[quota.OfPrincipal][quota.Connections] = 2
				if level == quota.OfServer {
					l[quota.OfServer][quota.Connections] = 2
				}
				r.opts.Quotas = l
				r.opts.QUIC = "127.0.0.1:0"
				r.start()
				first := r.connect(r.keys[0])
				second := r.keys[0]
				if level == quota.OfServer {
					second = r.keys[1]
				}
				r.connect(second)
				before := r.srv.Uses()
				p, ch := r.via(w)
				err := p.shake(r, second, uint64(frames.AllScopes), ch)
				require.Equal(t, frames.CodeResourceExhausted, frames.CodeOf(err))
				require.ErrorContains(t, err, "per "+level.String())
				p.ended()
				require.Equal(t, before, r.srv.Uses())
				first.close()
				eventually(t, "the place is free", func() bool {
					p, ch := r.via(w)
					return p.shake(r, second, uint64(frames.AllScopes), ch) == nil
				})
			})
		}
	}
}

// A held is a resource on its way through a connection: how it is taken, and how it comes to
// its own end. finish is nil for what only ends with its connection.
type held struct {
	name   string
	what   []quota.Resource
	take   func(r *rig, p *peer, write func(int)) (finish func())
	undo   func(r *rig)     // what take did to the server; nil for nothing
	leaves []quota.Resource // what p still holds after finish, beside the connection
}

var everything = []held{
	{"a connection", []quota.Resource{quota.Connections}, func(*rig, *peer, func(int)) func() { return nil }, nil, nil},
	{"requests", []quota.Resource{quota.Requests}, func(r *rig, p *peer, _ func(int)) func() {
		r.hold()
		for range 5 {
			takeRequests.ask(p)
		}
		takeRequests.got(r, p, 5)
		return func() {
			r.release()
			for range 5 {
				f, err := p.next()
				require.NoError(p.t, err)
				require.IsType(p.t, &frames.CoordCommandResult{}, f)
			}
		}
	}, func(r *rig) { r.release() }, nil},
	{"a snapshot", []quota.Resource{quota.Leases, quota.PinnedBytes}, func(_ *rig, p *peer, _ func(int)) func() {
		begin, err := p.open()
		require.NoError(p.t, err)
		return func() {
			for cursor := begin.FirstCursor; cursor != nil; {
				page, err := p.nextPage(begin.SnapshotID, cursor)
				require.NoError(p.t, err)
				cursor = page.NextCursor
			}
			f, err := p.next()
			require.NoError(p.t, err)
			require.IsType(p.t, &frames.SnapshotEnd{}, f)
		}
	}, nil, nil},
	{"a reserved snapshot", []quota.Resource{quota.Leases, quota.PinnedBytes, quota.Subscriptions}, func(_ *rig, p *peer, _ func(int)) func() {
		p.send(&frames.OpenSnapshot{RequestID: p.id(), Guard: p.guard, Reserve: true})
		f, err := p.next()
		require.NoError(p.t, err)
		begin := f.(*frames.SnapshotBegin)
		return func() {
			for cursor := begin.FirstCursor; cursor != nil; {
				page, err := p.nextPage(begin.SnapshotID, cursor)
				require.NoError(p.t, err)
				cursor = page.NextCursor
			}
			_, err := p.next()
			require.NoError(p.t, err)
			p.send(&frames.SnapshotApplied{RequestID: p.id(), SnapshotID: begin.SnapshotID, SubscriptionID: begin.SubscriptionID})
			_, err = p.next()
			require.NoError(p.t, err)
		}
	}, nil, []quota.Resource{quota.Subscriptions}},
	{"unsent events", []quota.Resource{quota.Subscriptions, quota.UnsentFrames, quota.UnsentBytes}, func(r *rig, p *peer, write func(int)) func() {
		id := p.subscribe(p.snapshot().begin.Base, 0, 0)
		write(3)
		eventually(p.t, "they are held back", func() bool { n, _ := r.srv.quotas.Use(principalOf(p), quota.UnsentFrames); return n == 6 })
		return func() {
			p.send(&frames.Credit{SubscriptionID: id, AddCount: 2, AddBytes: plentyBytes / 2})
			p.event()
			p.event()
			n, _ := r.srv.quotas.Use(principalOf(p), quota.UnsentFrames)
			require.EqualValues(p.t, 4, n, "what is sent is not held back")
			p.send(&frames.Credit{SubscriptionID: id, AddCount: 4})
			for range 4 {
				p.event()
			}
		}
	}, nil, []quota.Resource{quota.Subscriptions}},
	{"a replay", []quota.Resource{quota.Subscriptions, quota.Leases}, func(r *rig, p *peer, write func(int)) func() {
		p.subscribe(p.snapshot().begin.Base, 0, 0)
		write(6)
		gap, _ := p.gap()
		p.send(&frames.OpenReplay{RequestID: p.id(), Guard: p.guard, SubscriptionID: gap.SubscriptionID, After: gap.LastEvent})
		f, err := p.next()
		require.NoError(p.t, err)
		begin := f.(*frames.ReplayBegin)
		n, _ := r.srv.quotas.Use(principalOf(p), quota.PinnedBytes)
		require.Zero(p.t, n, "a replay reserves none")
		return func() {
			for cursor := begin.FirstCursor; cursor != nil; {
				p.send(&frames.ReplayNext{RequestID: p.id(), ReplayID: begin.ReplayID, Cursor: cursor})
				f, err := p.next()
				require.NoError(p.t, err)
				cursor = f.(*frames.ReplayPage).NextCursor
			}
			_, err := p.next()
			require.NoError(p.t, err)
			p.send(&frames.ReplayApplied{RequestID: p.id(), ReplayID: begin.ReplayID, SubscriptionID: gap.SubscriptionID})
			_, err = p.next()
			require.NoError(p.t, err)
		}
	}, nil, []quota.Resource{quota.Subscriptions}},
}

// TestC02_EveryEndReleases takes each resource on each transport and ends it in each way: by
// itself, with the connection, with the grant's time, with the key. Nothing stays charged.
func TestC02_EveryEndReleases(t *testing.T) {
	expire := func(rec *handshake.Record) *handshake.Record {
		rec.ExpiresAt = uint64(time.Now().Unix()) + 1
		return rec
	}
	revoke := func(rec *handshake.Record) *handshake.Record {
		rec.RevokedAt = uint64(time.Now().Unix())
		return rec
	}
	for _, w := range ways {
		for _, h := range everything {
			t.Run(w.name+"/"+h.name, func(t *testing.T) {
				t.Parallel()
				r := newRig(t)
				r.opts.QUIC = "127.0.0.1:0"
				r.opts.Quotas = tight(t)
				r.opts.Quotas[quota.OfConnection][quota.UnsentFrames] = 8
				r.start()
				writer := r.connect(r.keys[1], following)
				writer.create("{}")
				write := func(n int) {
					for range n {
						writer.create("{}")
					}
				}
				idle := r.srv.Uses()
				free := func() bool {
					return equalUses(idle, r.srv.Uses()) && r.srv.streams.Open() == 0 && r.srv.registry.Grants() == 1
				}
				undo := func() {
					if h.undo != nil {
						h.undo(r)
					}
				}
				take := func() (*peer, func()) {
					p := r.join(w, following)
					finish := h.take(r, p, write)
					for _, what := range h.what {
						n, _ := r.srv.quotas.Use(principalOf(p), what)
						require.NotZero(t, n, what)
					}
					return p, finish
				}
				p, finish := take()
				if finish != nil {
					finish()
					want := map[quota.Resource]bool{quota.Connections: true}
					for _, what := range h.leaves {
						want[what] = true
					}
					eventually(t, "it has come to its end", func() bool {
						held := r.heldBy(r.keys[0])
						for _, u := range held {
							if !want[u.Resource] {
								return false
							}
						}
						return len(held) == len(want)
					})
				}
				p.close()
				eventually(t, "the connection has ended", free)

				p, _ = take()
				p.close()
				eventually(t, "free after a disconnect", free)
				undo()

				for _, edit := range []func(*handshake.Record) *handshake.Record{expire, revoke} {
					p, _ = take()
					r.rewrite(func(rec *handshake.Record) *handshake.Record {
						if rec.Label != "first" {
							return rec
						}
						return edit(rec)
					})
					for { // whatever was on its way, and then the end
						if _, err := p.any(); err != nil {
							break
						}
					}
					eventually(t, "free after the grant", free)
					undo()
					r.rewrite(func(rec *handshake.Record) *handshake.Record {
						rec.RevokedAt, rec.ExpiresAt = 0, uint64(time.Now().Add(time.Hour).Unix())
						return rec
					})
					r.returns(r.keys[0]).close()
					eventually(t, "and again", free)
				}
			})
		}
	}
}

// TestC02_LeasesThatRunOutRelease lets a snapshot, a reserved one and one that is complete
// but not applied come to the end of their sixty seconds. The connection goes on.
func TestC02_LeasesThatRunOutRelease(t *testing.T) {
	bubble(t, func(t *testing.T, b *bed) {
		p := b.connect()
		p.create("{}")
		used := func(what quota.Resource) uint64 { n, _ := b.s.quotas.Use(principalOf(p), what); return n }
		openOne(p)
		answeredBy[*frames.SnapshotBegin](nil, p, 0)
		p.send(&frames.OpenSnapshot{RequestID: p.id(), Guard: p.guard, Reserve: true})
		answeredBy[*frames.SnapshotBegin](nil, p, 0)
		require.EqualValues(t, 2*quota.Reservation, used(quota.PinnedBytes))
		done := p.reserved(frames.SubscriptionID{})
		require.EqualValues(t, 2*quota.Reservation, used(quota.PinnedBytes), "END gives the reservation back")
		require.EqualValues(t, 3, used(quota.Leases), "and not the lease, which waits for APPLIED")
		gaps := 0
		for end := time.Now().Add(frames.LeaseSeconds * time.Second); time.Now().Before(end) || gaps < 2; {
			f, err := p.any()
			require.NoError(t, err)
			switch f := f.(type) {
			case *frames.Ping:
				p.send(&frames.Pong{Nonce: f.Nonce})
			case *frames.Gap:
				require.Equal(t, frames.GapCursorInvalid, f.Reason)
				gaps++
			}
		}
		require.Zero(t, used(quota.PinnedBytes))
		require.Zero(t, used(quota.Leases))
		p.send(&frames.SnapshotApplied{RequestID: p.id(), SnapshotID: done.SnapshotID, SubscriptionID: done.SubscriptionID})
		p.refused(frames.CodeCursorInvalid)
		p.create("{}")
	})
}

// TestC14_ARefusedExtensionEndsThatLeaseAlone has two cuts of one principal and one of
// another hold back more than their reservations, with room for one extension in the first
// principal's quota [D-5]. The older of its two ends, by name; the writer is never refused.
func TestC14_ARefusedExtensionEndsThatLeaseAlone(t *testing.T) {
	r := newRig(t)
	r.opts.Quotas = quota.Defaults()
	r.opts.Quotas[quota.OfPrincipal][quota.PinnedBytes] = 2 * quota.Reservation
	r.start()
	writer := r.connect(r.keys[1], following)
	const objects = 24 // together above a reservation, below another step
	document := strings.Repeat("d", 100<<10)
	var ids []frames.ObjectiveID
	for range objects {
		ids = append(ids, writer.create(document))
	}
	p, q, other := r.connect(r.keys[0], onePage), r.connect(r.keys[0], onePage), r.connect(r.keys[1], onePage)

	p.send(&frames.OpenSnapshot{RequestID: p.id(), Guard: p.guard, Reserve: true})
	f, err := p.next()
	require.NoError(t, err)
	older := f.(*frames.SnapshotBegin)
	page, err := p.nextPage(older.SnapshotID, older.FirstCursor)
	require.NoError(t, err)
	newer, err := q.open()
	require.NoError(t, err)
	theirs, err := other.open()
	require.NoError(t, err)
	require.EqualValues(t, 2*quota.Reservation, r.used(r.keys[0], quota.PinnedBytes))

	for _, id := range ids {
		res, err := writer.command(frames.CommandUpdateObjective, newID[frames.OperationID](t),
			&frames.UpdateObjective{ObjectiveID: id, Schema: 1, Document: []byte("{}")})
		require.NoError(t, err)
		require.Equal(t, frames.OperationSucceeded, res.State)
	}
	gap, _ := p.gap()
	require.Equal(t, older.SubscriptionID, gap.SubscriptionID)
	require.Equal(t, frames.GapInternal, gap.Reason)
	_, err = p.nextPage(older.SnapshotID, page.NextCursor)
	require.Equal(t, frames.CodeCursorInvalid, frames.CodeOf(err))
	require.EqualValues(t, quota.Reservation+quota.Step, r.used(r.keys[0], quota.PinnedBytes), "the newer one alone, one step further")
	require.EqualValues(t, 1, r.used(r.keys[0], quota.Leases))
	require.EqualValues(t, quota.Reservation+quota.Step, r.used(r.keys[1], quota.PinnedBytes))

	for _, s := range []struct {
		*peer
		begin *frames.SnapshotBegin
	}{{q, newer}, {other, theirs}} {
		digest := frames.NewSnapshotDigest(s.guard, s.begin.Base, 2*objects)
		cursor, records := s.begin.FirstCursor, 0
		for ; cursor != nil; records++ {
			page, err := s.nextPage(s.begin.SnapshotID, cursor)
			require.NoError(t, err)
			require.NoError(t, digest.Add(&page.Records[0]))
			if page.Records[0].Kind == frames.KindObjective {
				require.Greater(t, len(page.Records[0].Payload), len(document), "the version of the cut")
			}
			cursor = page.NextCursor
		}
		require.Equal(t, 2*objects, records, "the objectives and their operations")
		f, err := s.next()
		require.NoError(t, err)
		require.Equal(t, digest.Sum(), f.(*frames.SnapshotEnd).Digest)
	}
	eventually(t, "END gives it all back", func() bool {
		return r.used(r.keys[0], quota.PinnedBytes) == 0 && r.used(r.keys[1], quota.PinnedBytes) == 0
	})
}

// TestC14_AnEndedConnectionKeepsItsPlaceInTheQueue has a principal's connections end while
// their commands wait for the writer. They are nobody's requests any more, but they wait all
// the same: the principal gets no more of them in than it may have outstanding.
func TestC14_AnEndedConnectionKeepsItsPlaceInTheQueue(t *testing.T) {
	r := newRig(t)
	r.opts.Quotas = quota.Defaults()
	r.opts.Quotas[quota.OfPrincipal][quota.Requests] = 3
	r.opts.Quotas[quota.OfServer][quota.Requests] = 6
	r.start()
	first, second, other := r.connect(r.keys[0], following), r.connect(r.keys[0], following), r.connect(r.keys[1], following)
	r.hold()
	for range 3 {
		askForObjective(first)
	}
	waits(r, first, 3)
	first.close()
	eventually(t, "its requests are over", func() bool { return r.used(r.keys[0], quota.Requests) == 0 })
	askForObjective(second)
	require.Contains(t, second.refused(frames.CodeResourceExhausted).Message, "principal")
	for range 3 {
		askForObjective(other)
	}
	waits(r, other, 3)
	r.release()
	for range 3 {
		answeredBy[*frames.CoordCommandResult](r, other, 0)
	}
	second.create("{}")
	require.Len(t, other.snapshot().objectives(), 7, "what the first had sent is done")
}
