package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/clock"
	"coordinator/internal/durable"
	"coordinator/internal/sock"
	"coordinator/server/authority"
	"coordinator/server/store"
	"coordinator/server/store/simfs"
	"coordinator/witness"
)

func TestC06_RestartKeepsWhatWasCommitted(t *testing.T) {
	r := newRig(t)
	r.start()
	first := r.info.Certificate
	p := r.connect(r.keys[0])
	op, id := newID[frames.OperationID](t), newID[frames.ObjectiveID](t)
	make := &frames.CreateObjective{ObjectiveID: id, Schema: 1, Document: []byte("kept")}
	result, err := p.command(frames.CommandCreateObjective, op, make)
	require.NoError(t, err)
	before := p.snapshot()
	require.NoError(t, r.stop())
	p.ended()

	r.start()
	second := r.info.Certificate
	require.NotEqual(t, first.IncarnationID, second.IncarnationID)
	require.Greater(t, second.Epoch, first.Epoch)
	require.Greater(t, second.Activation, first.Activation)
	require.Equal(t, first.CoordinatorID, second.CoordinatorID)
	p = r.connect(r.keys[0])
	again, err := p.command(frames.CommandCreateObjective, op, make)
	require.NoError(t, err)
	require.Equal(t, result, again)
	after := p.snapshot()
	require.Equal(t, before.find(objective(id)), after.find(objective(id)))
	require.Len(t, after.begin.Bases, 2)
	require.Equal(t, first.Activation, after.begin.Bases[0].Activation)
	require.Greater(t, after.begin.Base, before.begin.Base, "an activation consumes an event sequence")
	require.LessOrEqual(t, before.begin.Base, after.begin.Bases[1].Base)
}

func TestC08_FiftySendersOfOneOperation(t *testing.T) {
	r := newRig(t)
	r.start()
	op, id := newID[frames.OperationID](t), newID[frames.ObjectiveID](t)
	make := &frames.CreateObjective{ObjectiveID: id, Schema: 1, Document: []byte("once")}
	const senders, perConn = 50, 5
	var results sync.Map
	var wg sync.WaitGroup
	for i := range senders / perConn {
		p := r.connect(r.keys[0])
		wg.Go(func() {
			for range perConn {
				p.sendCommand(frames.CommandCreateObjective, op, make)
			}
			for k := range perConn {
				f, err := p.next()
				if res, ok := f.(*frames.CoordCommandResult); ok && err == nil {
					results.Store(fmt.Sprint(i, k), res.Operation)
				}
			}
		})
	}
	wg.Wait()
	n := 0
	var one *frames.OperationResult
	results.Range(func(_, v any) bool {
		n++
		res := v.(frames.OperationResult)
		if one == nil {
			one = &res
		}
		require.Equal(t, *one, res)
		return true
	})
	require.Equal(t, senders, n)
	p := r.connect(r.keys[0])
	require.EqualValues(t, 1, p.snapshot().find(objective(id)).Revision)

	other := r.connect(r.keys[1])
	_, err := other.command(frames.CommandCreateObjective, op, make)
	require.Equal(t, frames.CodeOperationConflict, frames.CodeOf(err), "another principal learns nothing else")
	other.send(&frames.GetOperationResult{RequestID: other.id(), Guard: other.guard, OperationID: op})
	f, err := other.next()
	require.NoError(t, err)
	require.Equal(t, frames.OperationSucceeded, f.(*frames.OperationResultFrame).Operation.State, "it holds ADMIN")
}

func TestC08_ALostReplyIsLookedUp(t *testing.T) {
	r := newRig(t)
	r.start()
	op, id := newID[frames.OperationID](t), newID[frames.ObjectiveID](t)
	make := &frames.CreateObjective{ObjectiveID: id, Schema: 1, Document: []byte("{}")}
	p := r.connect(r.keys[0])
	p.sendCommand(frames.CommandCreateObjective, op, make)
	p.close() // before the reply

	q := r.connect(r.keys[0])
	result, err := q.command(frames.CommandCreateObjective, op, make)
	require.NoError(t, err)
	require.Equal(t, frames.OperationSucceeded, result.State)
	require.EqualValues(t, 1, q.snapshot().find(objective(id)).Revision)
}

func TestC05_ASecondInstanceIsRefused(t *testing.T) {
	r := newRig(t)
	r.start()
	var held *durable.HeldError
	require.ErrorAs(t, Run(context.Background(), r.opts), &held)
	r.connect(r.keys[0]).create("{}") // the first one did not notice
}

// refusing is a witness whose renewals can be made to fail.
type refusing struct {
	witness.Authority
	err atomic.Pointer[error]
}

func (a *refusing) Renew(ctx context.Context, cur frames.Certificate, lease uint16) (frames.Certificate, error) {
	if err := a.err.Load(); err != nil {
		return frames.Certificate{}, *err
	}
	return a.Authority.Renew(ctx, cur, lease)
}

func (r *rig) refusing() *refusing {
	base, err := r.opts.Witness()
	require.NoError(r.t, err)
	a := &refusing{Authority: base}
	r.opts.Witness = func() (witness.Authority, error) { return a, nil }
	return a
}

func TestC05_AFencedCoordinatorSaysSoAndEnds(t *testing.T) {
	r := newRig(t)
	a := r.refusing()
	r.opts.LeaseSeconds = 6
	r.start()
	idle, waiting := r.connect(r.keys[0]), r.raw()
	var err error = &witness.RefusedError{Code: frames.CodeStaleAuthority}
	a.err.Store(&err)
	idle.refused(frames.CodeAuthorityFenced)
	idle.ended()
	waiting.refused(frames.CodeAuthorityFenced)
	waiting.ended()
	r.cancel()
	r.cancel = nil
	require.ErrorIs(t, <-r.done, authority.ErrFenced)
	status, serr := a.Status(context.Background())
	require.NoError(t, serr)
	require.NotZero(t, status.LeaseRemaining, "a fenced process does not relinquish")
}

func TestRenewalsReachEveryAuthenticatedConnection(t *testing.T) {
	r := newRig(t)
	r.opts.LeaseSeconds = 6
	r.start()
	p, q := r.connect(r.keys[0]), r.connect(r.keys[1])
	for _, c := range []*peer{p, q} {
		f, err := c.any()
		require.NoError(t, err)
		renewed, ok := f.(*frames.AuthorityRenewed)
		require.True(t, ok, "%T", f)
		got, had := renewed.Certificate, c.ok.Certificate
		require.Greater(t, got.ExpiresAt, had.ExpiresAt)
		require.Equal(t, had.Guard(), got.Guard())
		require.NoError(t, handshake.VerifyCertificate(&got, handshake.Pins{
			WitnessID: r.witID, WitnessPublicKey: r.witKey.Public(), CoordinatorID: r.opts.CoordinatorID,
		}, uint64(time.Now().Unix())))
	}
}

func TestAStopGivesTheLeaseBack(t *testing.T) {
	r := newRig(t)
	r.start()
	p := r.connect(r.keys[0])
	p.create("{}")
	require.NoError(t, r.stop())
	p.refused(frames.CodeAuthorityFenced)
	p.ended()
	status, err := r.witness.Status(r.opts.CoordinatorID)
	require.NoError(t, err)
	require.Zero(t, status.LeaseRemaining)
	require.NoFileExists(t, r.info.Socket)
}

// TestAStalledClientDoesNotHoldAStop fills the socket of a client that never
// reads and stops: the lease is given back all the same.
func TestAStalledClientDoesNotHoldAStop(t *testing.T) {
	r := newRig(t)
	r.start()
	p, healthy := r.connect(r.keys[0]), r.connect(r.keys[1])
	for range 20 {
		healthy.create(string(make([]byte, 100<<10)))
	}
	r.stall(p)
	healthy.create("{}") // nobody else is held up
	require.NoError(t, r.stop())
	status, err := r.witness.Status(r.opts.CoordinatorID)
	require.NoError(t, err)
	require.Zero(t, status.LeaseRemaining)
}

// stall asks for more page bytes than a socket takes, reads none of them, and
// waits until the server's writer is held up: the answer to a ping waits too.
func (r *rig) stall(p *peer) {
	r.t.Helper()
	var opened []*frames.SnapshotBegin
	for range 4 {
		begin, err := p.open()
		require.NoError(r.t, err)
		opened = append(opened, begin)
	}
	for _, begin := range opened {
		p.send(&frames.SnapshotNext{RequestID: p.id(), SnapshotID: begin.SnapshotID, Cursor: begin.FirstCursor})
	}
	p.send(&frames.Ping{Nonce: 1})
	c := r.connOf(p)
	eventually(r.t, "the writer waits for its peer", func() bool {
		c.lanes.mu.Lock()
		defer c.lanes.mu.Unlock()
		return len(c.lanes.control) > 0 && len(c.lanes.replies) > 0
	})
}

// connOf finds the server's side of p by its principal.
func (r *rig) connOf(p *peer) *conn {
	r.t.Helper()
	var found *conn
	r.srv.each(func(c *conn) {
		if g := c.grant.Load(); g != nil && g.KeyID == p.ok.Grant.KeyID {
			found = c
		}
	})
	require.NotNil(r.t, found)
	return found
}

func TestRevocationCutsLiveConnections(t *testing.T) {
	r := newRig(t)
	r.start()
	p, other := r.connect(r.keys[0]), r.connect(r.keys[1])
	_, err := handshake.RevokeRecord(r.registry, "first", uint64(time.Now().Unix()), registryRules)
	require.NoError(t, err)
	p.refused(frames.CodeAuthenticationFailed)
	p.ended()
	other.create("{}")
	require.ErrorContains(t, r.raw().shake(r, r.keys[0], uint64(frames.AllScopes), handshake.UDSPeer{Cred: sock.SelfCred()}), "AUTHENTICATION_FAILED")
	eventually(t, "the CREDENTIAL record says so", func() bool {
		for _, rec := range other.snapshot().records {
			if c := credentialOf(t, rec); c != nil && c.KeyID == p.ok.Grant.KeyID {
				return c.RevokedAt != nil
			}
		}
		return false
	})
}

// credentialOf decodes a CREDENTIAL record, or gives nil.
func credentialOf(t *testing.T, rec frames.SnapshotRecord) *frames.Credential {
	t.Helper()
	if rec.Kind != frames.KindAdmin {
		return nil
	}
	m, err := rec.DecodePayload()
	require.NoError(t, err)
	v, err := m.(*frames.Admin).DecodePayload()
	require.NoError(t, err)
	c, _ := v.(*frames.Credential)
	return c
}

func TestAnotherCoordinatorsStoreIsRefused(t *testing.T) {
	r := newRig(t)
	r.opts.CoordinatorID = newID[frames.CoordinatorID](t)
	require.ErrorIs(t, Run(context.Background(), r.opts), ErrOtherStore)
}

func TestAFailedBindGivesTheLeaseBack(t *testing.T) {
	r := newRig(t)
	require.NoError(t, durable.Create(r.opts.path(SocketFile), []byte("not a socket"), durable.PrivateFile))
	err := Run(context.Background(), r.opts)
	var occupied *sock.OccupiedError
	require.ErrorAs(t, err, &occupied)
	require.FileExists(t, r.opts.path(SocketFile))
	status, serr := r.witness.Status(r.opts.CoordinatorID)
	require.NoError(t, serr)
	require.Zero(t, status.LeaseRemaining)
	require.NotZero(t, status.LastEpoch)
}

func TestAMissingStoreIsNotMade(t *testing.T) {
	r := newRig(t)
	r.opts.Dir = r.dir + "x"
	require.NoError(t, durable.MkdirPrivate(r.opts.Dir))
	require.ErrorIs(t, Run(context.Background(), r.opts), store.ErrNoStore)
	status, err := r.witness.Status(r.opts.CoordinatorID)
	require.NoError(t, err)
	require.Zero(t, status.LastEpoch, "no lease was taken")
}

// TestAFailedWriteIsNeverAcknowledged makes the disk fail under a commit: the
// command gets no reply, the process ends with the fault, and keeps its lease.
func TestAFailedWriteIsNeverAcknowledged(t *testing.T) {
	for _, kind := range []string{"write", "sync"} {
		t.Run(kind, func(t *testing.T) {
			disk := simfs.New()
			r := newRigOn(t, disk)
			r.start()
			p := r.connect(r.keys[0])
			p.create("{}")
			disk.Hook(func(op simfs.Op) error {
				if op.Kind == kind {
					return syscall.ENOSPC
				}
				return nil
			})
			p.sendCommand(frames.CommandCreateObjective, newID[frames.OperationID](t),
				&frames.CreateObjective{ObjectiveID: newID[frames.ObjectiveID](t), Schema: 1, Document: []byte("{}")})
			e := p.refused(frames.CodeAuthorityFenced)
			require.Zero(t, e.RequestID, "the command itself is not answered")
			p.ended()
			err := <-r.done
			r.cancel = nil
			require.ErrorIs(t, err, store.ErrOutcomeUnknown)
			require.ErrorIs(t, err, syscall.ENOSPC)
			status, err := r.witness.Status(r.opts.CoordinatorID)
			require.NoError(t, err)
			require.NotZero(t, status.LeaseRemaining)
		})
	}
}

// TestLowDiskRefusesNewWork sets a reserve above what any disk has [D-41].
func TestLowDiskRefusesNewWork(t *testing.T) {
	r := newRig(t)
	r.opts.LowDiskBytes = 1 << 62
	r.start()
	p := r.connect(r.keys[0])
	_, err := p.command(frames.CommandCreateObjective, newID[frames.OperationID](t),
		&frames.CreateObjective{ObjectiveID: newID[frames.ObjectiveID](t), Schema: 1, Document: []byte("{}")})
	require.Equal(t, frames.CodeResourceExhausted, frames.CodeOf(err))
	_, err = p.command(frames.CommandChangeRetention, newID[frames.OperationID](t),
		&frames.ChangeRetention{Retention: frames.Retention{OperationResultSecs: 3_000_000, EventBytes: 1, ArtifactBytes: 1}})
	require.NoError(t, err)
	p.snapshot() // reads go on
}

// failing is a listener without descriptors.
type failing struct {
	n      atomic.Int32
	closed chan struct{}
}

func (f *failing) Accept() (*net.UnixConn, error) {
	if f.n.Add(1) > 3 {
		<-f.closed
		return nil, net.ErrClosed
	}
	return nil, &net.OpError{Op: "accept", Err: syscall.EMFILE}
}

func TestAcceptingPausesWithoutDescriptors(t *testing.T) {
	m := clock.NewManual(clock.Reading{Wall: time.Unix(1_800_000_000, 0)})
	o := Options{Clock: m}.withDefaults()
	s := &Server{clock: m, log: o.Logger}
	taken := func(*net.UnixConn) { t.Error("there was none") }
	f := &failing{closed: make(chan struct{})}
	done := make(chan error, 1)
	kept := new(spares)
	go func() { done <- s.acceptLoop(context.Background(), f, taken, kept) }()
	for n := int32(1); n <= 3; n++ {
		eventually(t, "it waits", func() bool { return f.n.Load() == n && m.Timers() == 1 })
		require.Empty(t, kept.files, "the spares are for the rest of the process meanwhile")
		m.Advance(acceptPause)
	}
	eventually(t, "it accepts again", func() bool { return f.n.Load() == 4 })
	close(f.closed)
	require.NoError(t, <-done)
	broken := errors.New("broken")
	require.False(t, passing(broken))
}
