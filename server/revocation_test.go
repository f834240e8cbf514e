package server

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/durable"
	"coordinator/internal/sock"
	"coordinator/server/quota"
	"coordinator/server/store"
	"coordinator/server/store/simfs"
)

// rewrite puts a registry in place whose records were changed. A nil record is left out.
func (r *rig) rewrite(change func(rec *handshake.Record) *handshake.Record) {
	r.t.Helper()
	records, err := handshake.ListRecords(r.registry, registryRules)
	require.NoError(r.t, err)
	var text strings.Builder
	for i := range records {
		if rec := change(&records[i]); rec != nil {
			text.WriteString(rec.Line(registryRules) + "\n")
		}
	}
	require.NoError(r.t, durable.Replace(r.registry, []byte(text.String()), durable.PrivateFile))
}

// endings are the ways in which the registry ends the grants of one key (protocol.md §5.5).
var endings = []struct {
	name string
	edit func(*handshake.Record) *handshake.Record
}{
	{"revoked", func(rec *handshake.Record) *handshake.Record {
		rec.RevokedAt = uint64(time.Now().Unix())
		return rec
	}},
	{"removed", func(*handshake.Record) *handshake.Record { return nil }},
	{"scope lowered", func(rec *handshake.Record) *handshake.Record {
		rec.Scope &^= uint64(frames.ScopeAdmin)
		return rec
	}},
	{"expired before now", func(rec *handshake.Record) *handshake.Record {
		rec.ExpiresAt = uint64(time.Now().Unix()) - 1
		return rec
	}},
	{"to expire soon", func(rec *handshake.Record) *handshake.Record {
		rec.ExpiresAt = uint64(time.Now().Unix()) + 2
		return rec
	}},
}

// farewell reads what the end of its grant brings, and nothing after that.
func (p *peer) farewell(subs ...frames.SubscriptionID) {
	p.t.Helper()
	p.told(subs...)
	_, err := p.any()
	require.ErrorIs(p.t, err, io.EOF)
}

// told reads a GAP for each subscription and the error. Events and replies that were on
// their way come before.
func (p *peer) told(subs ...frames.SubscriptionID) {
	p.t.Helper()
	var told []frames.SubscriptionID
	for {
		f, err := p.next()
		var refused *frames.Refusal
		if errors.As(err, &refused) {
			require.Equal(p.t, frames.CodeAuthenticationFailed, refused.Code)
			require.Equal(p.t, textGrantEnded, refused.Message)
			break
		}
		require.NoError(p.t, err)
		if gap, ok := f.(*frames.Gap); ok && gap.Reason == frames.GapGrantRevoked {
			told = append(told, gap.SubscriptionID)
		} else {
			require.Empty(p.t, told, "%T after a GAP that ends everything", f)
		}
	}
	require.ElementsMatch(p.t, subs, told)
}

// heldBy is what a key's connections hold, however many of them there are.
func (r *rig) heldBy(k *handshake.Key) (held []quota.Use) {
	id := quota.Principal(handshake.KeyIDOf(k.Public()))
	for _, u := range r.srv.Uses() {
		if u.Level == quota.OfPrincipal && u.Principal == id {
			held = append(held, u)
		}
	}
	return held
}

// A surface is one connection with what it holds.
type surface struct {
	*peer
	name string
	subs []frames.SubscriptionID

	lease  *frames.SnapshotBegin // that it is in the middle of
	replay *frames.ReplayBegin
	cursor []byte // that comes next
}

// onePage has every page carry one record or event.
func onePage(h *frames.CoordHello) {
	h.Limits.PageRecords = 1
	following(h)
}

// surfaces brings a connection over w into each of the states in which a revocation may
// find it. write makes so many events. Subscriptions of the rig must hold fewer than ten.
func (r *rig) surfaces(w way, write func(int)) (all []*surface) {
	r.t.Helper()
	add := func(name string, p *peer) *surface {
		all = append(all, &surface{peer: p, name: w.name + ", " + name})
		return all[len(all)-1]
	}
	add("idle", r.join(w, following))

	s := add("subscribed", r.join(w, following))
	cut := s.snapshot().begin.Base
	s.subs = append(s.subs, s.subscribe(cut, plentyEvents, plentyBytes), s.subscribe(cut, 1, plentyBytes), s.subscribe(cut, 0, 0))

	s = add("in a snapshot", r.join(w, onePage))
	s.send(&frames.OpenSnapshot{RequestID: s.id(), Guard: s.guard, Reserve: true})
	f, err := s.next()
	require.NoError(r.t, err)
	s.lease = f.(*frames.SnapshotBegin)
	s.subs = append(s.subs, s.lease.SubscriptionID)
	page, err := s.nextPage(s.lease.SnapshotID, s.lease.FirstCursor)
	require.NoError(r.t, err)
	require.NotNil(r.t, page.NextCursor)
	s.cursor = page.NextCursor

	s = add("in a replay", r.join(w, onePage))
	s.subs = append(s.subs, s.subscribe(s.snapshot().begin.Base, 0, 0))
	write(10)
	gap, _ := s.gap()
	s.send(&frames.OpenReplay{RequestID: s.id(), Guard: s.guard, SubscriptionID: gap.SubscriptionID, After: gap.LastEvent})
	f, err = s.next()
	require.NoError(r.t, err)
	s.replay = f.(*frames.ReplayBegin)
	s.send(&frames.ReplayNext{RequestID: s.id(), ReplayID: s.replay.ReplayID, Cursor: s.replay.FirstCursor})
	f, err = s.next()
	require.NoError(r.t, err)
	s.cursor = f.(*frames.ReplayPage).NextCursor
	require.NotNil(r.t, s.cursor)

	s = add("paused", r.join(w, following))
	s.subs = append(s.subs, s.subscribe(s.snapshot().begin.Base, 0, 0))
	write(10)
	s.gap()
	return all
}

// TestC04_AnEndedGrantEndsEverySurface ends a key's grants in each way, with connections of
// it in every state on both transports. All are told and cut, what they held is free, and
// another principal notices nothing. The key that comes back gets nothing of the old back.
func TestC04_AnEndedGrantEndsEverySurface(t *testing.T) {
	for _, tt := range endings {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.opts.QUIC = "127.0.0.1:0"
			r.opts.Quotas = tight(t)
			r.opts.Quotas[quota.OfConnection][quota.UnsentFrames] = 8
			r.start()
			before, err := os.ReadFile(r.registry)
			require.NoError(t, err)

			bystander := r.connect(r.keys[1], following)
			watched := bystander.subscribe(bystander.snapshot().begin.Base, plentyEvents, plentyBytes)
			reader := r.connect(r.keys[1], onePage)
			writer := r.connect(r.keys[1], following)
			written := 0
			write := func(n int) {
				for range n {
					writer.create("{}")
					written += 2 // objective and operation
				}
			}
			write(3)
			begin, err := reader.open()
			require.NoError(t, err)
			var all []*surface
			for _, w := range ways {
				all = append(all, r.surfaces(w, write)...)
			}
			p, ch := r.via(ways[overUnix])
			between := r.challenged(ways[overUnix], p, ch)
			proof, err := between.respond(ch)
			require.NoError(t, err)

			begun := time.Now()
			r.rewrite(func(rec *handshake.Record) *handshake.Record {
				if rec.Label != "first" {
					return rec
				}
				return tt.edit(rec)
			})
			for _, s := range all {
				s.farewell(s.subs...)
			}
			t.Logf("%d connections told and closed within %v", len(all), time.Since(begun))
			eventually(t, "what they held is free", func() bool { return len(r.heldBy(r.keys[0])) == 0 })

			if tt.name != "scope lowered" { // then the rest of its scope is still to be had
				between.send(proof)
				between.refused(frames.CodeAuthenticationFailed)
				require.ErrorContains(t, r.raw().shake(r, r.keys[0], uint64(frames.AllScopes), handshake.UDSPeer{Cred: sock.SelfCred()}), "AUTHENTICATION_FAILED")
			}
			write(1)
			for range written {
				require.Equal(t, watched, bystander.event().SubscriptionID)
			}
			_, err = reader.nextPage(begin.SnapshotID, begin.FirstCursor)
			require.NoError(t, err, "a lease of another principal goes on")

			require.NoError(t, durable.Replace(r.registry, before, durable.PrivateFile))
			again := r.returns(r.keys[0])
			require.Len(t, r.heldBy(r.keys[0]), 1, "it holds a connection and nothing else")
			for _, s := range all {
				again.holdsNothingOf(s)
				_, err := s.any()
				require.Error(t, err, s.name)
			}
			again.send(&frames.Credit{SubscriptionID: all[1].subs[0], AddCount: 1})
			again.refused(frames.CodeProtocolError)
		})
	}
}

// returns connects with every scope once the registry lets the key.
func (r *rig) returns(k *handshake.Key) (p *peer) {
	r.t.Helper()
	eventually(r.t, "the key is let in again", func() bool {
		p = r.raw()
		err := p.shake(r, k, uint64(frames.AllScopes), handshake.UDSPeer{Cred: sock.SelfCred()}, following)
		if err != nil || p.ok.Grant.Scope != frames.AllScopes {
			p.close()
			return false
		}
		return true
	})
	return p
}

// holdsNothingOf checks that p has none of another connection's leases and subscriptions.
func (p *peer) holdsNothingOf(s *surface) {
	p.t.Helper()
	switch {
	case s.lease != nil:
		_, err := p.nextPage(s.lease.SnapshotID, s.cursor)
		require.Equal(p.t, frames.CodeCursorInvalid, frames.CodeOf(err), s.name)
	case s.replay != nil:
		p.send(&frames.ReplayNext{RequestID: p.id(), ReplayID: s.replay.ReplayID, Cursor: s.cursor})
		p.refused(frames.CodeCursorInvalid)
	}
	for _, id := range s.subs {
		p.send(&frames.OpenReplay{RequestID: p.id(), Guard: p.guard, SubscriptionID: id})
		p.refused(frames.CodeNotFound)
	}
}

// hold keeps the writer between two commits until release.
func (r *rig) hold() {
	r.t.Helper()
	held, free := make(chan struct{}), make(chan struct{})
	var ended sync.WaitGroup
	ended.Go(func() {
		err := r.srv.writer.Do(context.Background(), func(*store.Store) error {
			close(held)
			<-free
			return nil
		})
		if err != nil {
			r.t.Errorf("hold: %v", err)
		}
	})
	<-held
	r.release = sync.OnceFunc(func() {
		close(free)
		ended.Wait()
	})
	r.t.Cleanup(r.release)
}

func (r *rig) used(k *handshake.Key, what quota.Resource) uint64 {
	n, _ := r.srv.quotas.Use(quota.Principal(handshake.KeyIDOf(k.Public())), what)
	return n
}

// objectives are the ids that a snapshot shows.
func (s snapshot) objectives() (ids []frames.ObjectiveID) {
	for _, rec := range s.records {
		if rec.Kind == frames.KindObjective {
			ids = append(ids, frames.ObjectiveID(rec.ID))
		}
	}
	return ids
}

// TestC04_QueuedCommandsOfAnEndedGrant has commands of two keys wait for the same commit and
// ends one of the two grants. Its commands are refused at the commit; the others are done.
func TestC04_QueuedCommandsOfAnEndedGrant(t *testing.T) {
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			r := remoteRig(t)
			doomed, other := r.join(w, following), r.connect(r.keys[1], following)
			r.hold()
			const each = 20
			var ids, others []frames.ObjectiveID
			op := newID[frames.OperationID](t)
			for i := range each {
				id, oid := newID[frames.ObjectiveID](t), newID[frames.ObjectiveID](t)
				ids, others = append(ids, id), append(others, oid)
				first := newID[frames.OperationID](t)
				if i == 0 {
					first = op
				}
				doomed.sendCommand(frames.CommandCreateObjective, first, &frames.CreateObjective{ObjectiveID: id, Schema: 1})
				other.sendCommand(frames.CommandCreateObjective, newID[frames.OperationID](t), &frames.CreateObjective{ObjectiveID: oid, Schema: 1})
			}
			eventually(t, "all of them wait", func() bool {
				return r.used(r.keys[0], quota.Requests) == each && r.used(r.keys[1], quota.Requests) == each
			})
			_, err := handshake.RevokeRecord(r.registry, "first", uint64(time.Now().Unix()), registryRules)
			require.NoError(t, err)
			doomed.farewell() // it does not wait for the writer
			eventually(t, "nothing is held for it", func() bool { return len(r.heldBy(r.keys[0])) == 0 })
			r.release()
			for range others {
				f, err := other.next()
				require.NoError(t, err)
				require.Equal(t, frames.OperationSucceeded, f.(*frames.CoordCommandResult).Operation.State)
			}
			there := other.snapshot().objectives()
			for i := range ids {
				require.NotContains(t, there, ids[i])
				require.Contains(t, there, others[i])
			}
			r.rewrite(func(rec *handshake.Record) *handshake.Record {
				rec.RevokedAt = 0
				return rec
			})
			again := r.returns(r.keys[0])
			again.send(&frames.GetOperationResult{RequestID: again.id(), Guard: again.guard, OperationID: op})
			f, err := again.next()
			require.NoError(t, err)
			require.Equal(t, frames.OperationUnknown, f.(*frames.OperationResultFrame).Operation.State, "its id is free")
			res, err := again.command(frames.CommandCreateObjective, op, &frames.CreateObjective{ObjectiveID: ids[0], Schema: 1})
			require.NoError(t, err)
			require.Equal(t, frames.OperationSucceeded, res.State)
		})
	}
}

// TestC04_AnInFlightCommandOfAnEndedGrant ends a grant while the disk flushes a commit of
// it. The commit counts; the connection that is gone is not told of it, and the key that
// comes back finds the result under its operation id.
func TestC04_AnInFlightCommandOfAnEndedGrant(t *testing.T) {
	disk := simfs.New()
	r := newRigOn(t, disk)
	r.start()
	p := r.connect(r.keys[0], following)
	sub := p.subscribe(p.snapshot().begin.Base, plentyEvents, plentyBytes)
	flushing, flush := make(chan struct{}), make(chan struct{})
	var once atomic.Bool
	disk.Hook(func(op simfs.Op) error {
		if op.Kind == "sync" && once.CompareAndSwap(false, true) {
			close(flushing)
			<-flush
		}
		return nil
	})
	t.Cleanup(sync.OnceFunc(func() {
		select {
		case <-flush:
		default:
			close(flush)
		}
	}))
	op, id := newID[frames.OperationID](t), newID[frames.ObjectiveID](t)
	make := &frames.CreateObjective{ObjectiveID: id, Schema: 1, Document: []byte("kept")}
	p.sendCommand(frames.CommandCreateObjective, op, make)
	<-flushing
	_, err := handshake.RevokeRecord(r.registry, "first", uint64(time.Now().Unix()), registryRules)
	require.NoError(t, err)
	p.farewell(sub) // although the writer is in the middle of a flush
	close(flush)

	r.rewrite(func(rec *handshake.Record) *handshake.Record {
		rec.RevokedAt = 0
		return rec
	})
	again := r.returns(r.keys[0])
	again.send(&frames.GetOperationResult{RequestID: again.id(), Guard: again.guard, OperationID: op})
	f, err := again.next()
	require.NoError(t, err)
	found := f.(*frames.OperationResultFrame).Operation
	require.Equal(t, frames.OperationSucceeded, found.State)
	res, err := again.command(frames.CommandCreateObjective, op, make)
	require.NoError(t, err)
	require.Equal(t, found, res, "the same command again gets the same result")
	require.Contains(t, again.snapshot().objectives(), id)
}

// TestC04_TheClockEndsGrants steps the wall clock past the end of a grant, with connections
// in every state. Each is told within a second, and no step back brings one to life.
func TestC04_TheClockEndsGrants(t *testing.T) {
	bubble(t, func(t *testing.T, b *bed) {
		idle, subscribed, reading := b.connect(), b.connect(), b.connect()
		begin, err := reading.open()
		require.NoError(t, err)
		cut := subscribed.snapshot().begin.Base
		subs := []frames.SubscriptionID{subscribed.subscribe(cut, 5, plentyBytes), subscribed.subscribe(cut, 0, 0)}
		time.Sleep(300 * time.Millisecond) // between two looks
		begun := time.Now()
		b.clock.by.Store(int64(2 * time.Minute)) // the grants last 100 seconds
		reading.send(&frames.SnapshotNext{RequestID: reading.id(), SnapshotID: begin.SnapshotID, Cursor: begin.FirstCursor})
		reading.told()
		require.Equal(t, begun, time.Now(), "a page is not even begun")
		leases := b.s.streams.Open()
		idle.send(&frames.OpenSnapshot{RequestID: idle.id(), Guard: idle.guard})
		idle.told()
		require.LessOrEqual(t, b.s.streams.Open(), leases, "nor is a cut made")
		subscribed.told(subs...)
		require.LessOrEqual(t, time.Since(begun), grantTick)
		b.clock.by.Store(0)
		for _, p := range []*peer{idle, subscribed, reading} {
			_, err := p.any()
			require.Error(t, err)
		}
		require.Zero(t, b.s.streams.Open())
		b.connect().create("{}") // the key itself is good again
	})
}

// TestC04_AGrantIsNotRevivedByTheClock ends a grant by the clock while its connection has a
// command in the queue, and sets the clock back before the writer comes to it.
func TestC04_AGrantIsNotRevivedByTheClock(t *testing.T) {
	bubble(t, func(t *testing.T, b *bed) {
		p := b.connect()
		grant := b.r.grantOf(b.s, p)
		b.clock.by.Store(int64(2 * time.Minute))
		require.ErrorIs(t, grant.Err(b.clock.Now()), handshake.ErrExpired)
		b.clock.by.Store(0)
		p.sendCommand(frames.CommandCreateObjective, newID[frames.OperationID](t), &frames.CreateObjective{ObjectiveID: newID[frames.ObjectiveID](t), Schema: 1})
		p.farewell()
		require.Empty(t, b.connect().snapshot().objectives())
	})
}

// grantOf finds the server's grant of a peer.
func (r *rig) grantOf(s *Server, p *peer) (found *handshake.Grant) {
	s.each(func(c *conn) {
		if g := c.grant.Load(); g != nil && g.KeyID == p.ok.Grant.KeyID {
			found = g
		}
	})
	require.NotNil(r.t, found)
	return found
}

// TestC04_RegistryFaultsUnderLiveConnections spoils the file under connections on both
// transports. One that says something else counts as what it says; one that cannot be
// trusted cuts everybody, records no removal, and lets in again once it is mended.
func TestC04_RegistryFaultsUnderLiveConnections(t *testing.T) {
	without := func(t *testing.T, r *rig) []byte { // the first key is not in it
		records, err := handshake.ListRecords(r.registry, registryRules)
		require.NoError(t, err)
		i := slices.IndexFunc(records, func(rec handshake.Record) bool { return rec.Label == "second" })
		return []byte(records[i].Line(registryRules) + "\n")
	}
	for _, tt := range []struct {
		name     string
		everyone bool // is cut, not only the first key
		spoil    func(t *testing.T, r *rig)
	}{
		{"written in place", false, func(t *testing.T, r *rig) {
			require.NoError(t, os.WriteFile(r.registry, without(t, r), durable.PrivateFile))
		}},
		{"renamed over", false, func(t *testing.T, r *rig) {
			require.NoError(t, os.WriteFile(r.registry+".new", without(t, r), durable.PrivateFile))
			require.NoError(t, os.Rename(r.registry+".new", r.registry))
		}},
		{"deleted and made", false, func(t *testing.T, r *rig) {
			text := without(t, r)
			require.NoError(t, os.Remove(r.registry))
			require.NoError(t, os.WriteFile(r.registry, text, durable.PrivateFile))
		}},
		{"a link in its place", true, func(t *testing.T, r *rig) {
			require.NoError(t, os.Rename(r.registry, r.registry+".real"))
			require.NoError(t, os.Symlink(r.registry+".real", r.registry))
		}},
		{"no mode at all", true, func(t *testing.T, r *rig) { require.NoError(t, os.Chmod(r.registry, 0)) }},
		{"half written", true, func(t *testing.T, r *rig) {
			text, err := os.ReadFile(r.registry)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(r.registry, text[:len(text)-20], durable.PrivateFile))
		}},
		{"removed", true, func(t *testing.T, r *rig) { require.NoError(t, os.Remove(r.registry)) }},
		{"a directory that others may enter", true, func(t *testing.T, r *rig) { require.NoError(t, os.Chmod(r.dir, 0o755)) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := remoteRig(t)
			first := []*peer{r.join(ways[overUnix], following), r.join(ways[overQUIC], following)}
			second := r.connect(r.keys[1])
			before, err := os.ReadFile(r.registry)
			require.NoError(t, err)
			begun := time.Now()
			tt.spoil(t, r)
			for _, p := range first {
				p.farewell()
			}
			if tt.everyone {
				second.farewell()
			} else {
				second.create("{}")
			}
			t.Logf("cut within %v", time.Since(begun))

			require.NoError(t, os.Chmod(r.dir, 0o700))
			require.NoError(t, os.RemoveAll(r.registry))
			require.NoError(t, os.WriteFile(r.registry, before, durable.PrivateFile))
			r.returns(r.keys[0]).create("{}")
			eventually(t, "both keys are recorded, neither as revoked", func() bool {
				known := 0
				for _, rec := range r.connect(r.keys[1]).snapshot().records {
					if c := credentialOf(t, rec); c != nil && c.RevokedAt == nil {
						known++
					}
				}
				return known == 2
			})
		})
	}
	t.Run("emptied", func(t *testing.T) { // which is a whole registry, of nobody
		r := remoteRig(t)
		first, second := r.join(ways[overQUIC], following), r.connect(r.keys[1])
		require.NoError(t, os.WriteFile(r.registry, nil, durable.PrivateFile))
		first.farewell()
		second.farewell()
	})
	t.Run("its directory moved away", func(t *testing.T) { // and the store's lock with it
		r := newRig(t)
		r.start()
		p := r.connect(r.keys[0], following)
		require.NoError(t, os.Rename(r.dir, filepath.Join(filepath.Dir(r.dir), "away")))
		p.ended()
	})
}

// TestC04_AnEndedGrantWaitsForNoReader has a page stuck on its way to a peer that takes
// nothing while its grant ends. What was let out before the end is not still handed over
// long after it.
func TestC04_AnEndedGrantWaitsForNoReader(t *testing.T) {
	bubble(t, func(t *testing.T, b *bed) {
		time.Sleep(90 * time.Second) // the grants end at 100, and a peer may be silent for 45
		p := b.connect()
		end := time.Unix(int64(p.ok.Grant.ExpiresAt), 0)
		p.create("{}")
		begin, err := p.open()
		require.NoError(t, err)
		p.send(&frames.SnapshotNext{RequestID: p.id(), SnapshotID: begin.SnapshotID, Cursor: begin.FirstCursor})
		time.Sleep(time.Until(end))
		for open := 1; open > 0; time.Sleep(10 * time.Millisecond) {
			b.s.mu.Lock()
			open = len(b.s.conns)
			b.s.mu.Unlock()
		}
		require.LessOrEqual(t, time.Since(end), stuckTime+20*time.Millisecond)
		_, err = p.any()
		require.Error(t, err)
	})
}
