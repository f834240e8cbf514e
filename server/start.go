package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/clock"
	"coordinator/internal/durable"
	"coordinator/internal/quicnet"
	"coordinator/internal/sock"
	"coordinator/server/authority"
	"coordinator/server/commit"
	"coordinator/server/outbox"
	"coordinator/server/quota"
	"coordinator/server/store"
	"coordinator/server/stream"
	"coordinator/server/work"
	"coordinator/witness"
)

// Times of a stop, which must end within 5 s all together.
const (
	flushTime      = time.Second             // for replies to peers that read
	drainTime      = 2500 * time.Millisecond // for writes that passed the fence
	relinquishTime = time.Second
)

// Run is the whole life of a coordinator, in the order of protocol.md §4: store
// lock, integrity and schema, key material, incarnation and epoch, certificate,
// durable install, and only then the bind. Any failure is before the bind.
//
// It returns nil after a graceful stop, which ctx asks for. Otherwise its error
// matches one of: *durable.HeldError, *durable.UnsafeFileError,
// *store.CorruptError, *store.SchemaError, [ErrOtherStore],
// authority.ErrWitnessUnavailable, *authority.LeaseHeldError,
// *authority.RolledBackError, *sock.PathTooLongError, *sock.OccupiedError, *DescriptorError,
// authority.ErrFenced, store.ErrOutcomeUnknown.
func Run(ctx context.Context, o Options) error {
	o = o.withDefaults()
	o.Progress = o.Monitor.follow(o.Progress)
	if path := o.path(SocketFile); len(path) > sock.MaxPath {
		return &sock.PathTooLongError{Path: path, Len: len(path), Max: sock.MaxPath}
	}
	lock, err := authority.LockStore(o.Dir)
	if err != nil {
		return fmt.Errorf("store lock: %w", err)
	}
	defer lock.Release() //nolint:errcheck // the process is ending; the kernel releases it too
	st, err := openStore(o)
	if asked(ctx, err) {
		return nil
	}
	if err != nil {
		return err
	}
	err = serveStore(ctx, o, lock, st)
	if asked(ctx, err) {
		err = nil
	}
	o.Monitor.ended(err)
	// A failure to close is one of the history's file, after everything was
	// acknowledged from the log.
	if cerr := st.Close(); err == nil && cerr != nil {
		err = fmt.Errorf("close the store: %w", cerr)
	}
	return err
}

// asked reports whether err is only that the start was told to stop, as while it
// waited for the lease.
func asked(ctx context.Context, err error) bool {
	return ctx.Err() != nil && errors.Is(err, context.Canceled)
}

// openStore validates integrity and schema, loads everything and cuts a torn
// tail, before any lease is asked for.
func openStore(o Options) (*store.Store, error) {
	so := o.Store
	so.Clock, so.Rand, so.Logger, so.Progress, so.PageCheck = o.Clock, o.Rand, o.Logger, o.Progress, o.PageCheck
	so.Working, so.Advance = o.Working, o.Advance
	so.FreeBytes, so.ReserveBytes = o.freeBytes, o.LowDiskBytes
	st, err := store.Open(o.Dir, so)
	if err != nil {
		return nil, err
	}
	if have := st.State().CoordinatorID; have != o.CoordinatorID {
		st.Close() //nolint:errcheck // nothing was written
		return nil, fmt.Errorf("%w: it holds %s, coordinator.toml says %s", ErrOtherStore, have, o.CoordinatorID)
	}
	return st, nil
}

// serveStore goes on from a validated store: keys, lease, install, service.
func serveStore(ctx context.Context, o Options, lock *durable.Lock, st *store.Store) error {
	s, err := newServer(o, st)
	if err != nil {
		return err
	}
	room, err := localRoom(o)
	if err != nil {
		return err
	}
	s.local = make(chan struct{}, room)
	key, err := handshake.LoadKey(o.path(AuthorityKeyFile))
	if err != nil {
		return err
	}
	s.registry, err = handshake.OpenRegistry(o.path(RegistryFile), handshake.RegistryOptions{
		Clock: o.Clock, Logger: o.Logger, KnownScopes: handshake.EndpointScopes(),
		OnChange: func(snap handshake.Snapshot) { s.syncCredentials(s.following, snap) },
	})
	if err != nil {
		return err
	}
	if o.QUIC != "" { // an activation that nobody could reach would only end another's
		if err := quicnet.CanListen(o.QUIC); err != nil {
			return err
		}
	}
	wit, err := o.Witness()
	if err != nil {
		return err
	}
	state := st.State()
	act, err := authority.Activate(ctx, authority.ActivateOptions{
		Authority: wit, Clock: o.Clock, Rand: o.Rand, CoordinatorID: o.CoordinatorID,
		Epoch: state.Epoch, Activation: state.Activation, LeaseSeconds: o.LeaseSeconds, Progress: o.Progress,
	})
	if err != nil {
		return err
	}
	s.activate(o, act, key)
	if o.built != nil {
		o.built(s)
	}
	return s.live(ctx, o, lock, wit, act)
}

// newServer is what needs no authority yet.
func newServer(o Options, st *store.Store) (*Server, error) {
	quotas, err := quota.New(o.Quotas)
	if err != nil {
		return nil, err
	}
	return &Server{
		clock: o.Clock, log: o.Logger, offer: frames.ReferenceLimits(), store: st, quotas: quotas,
		lines:  newLines(o.Clock),
		broken: make(chan error, 1), retained: make(chan struct{}, 1), conns: make(map[*conn]struct{}), waitingOf: make(map[uint64]int),
	}, nil
}

// activate puts a granted activation in front of everything that acts.
func (s *Server) activate(o Options, act *authority.Activation, key *handshake.Key) {
	s.pin = handshake.FingerprintOf(key.Public())
	s.fence = authority.NewFence(act, o.Clock)
	s.handshake = &handshake.Server{
		Service: handshake.Service{
			Name: frames.Service, Major: frames.VersionMajor, Minor: frames.VersionMinor, Scopes: uint64(frames.AllScopes),
		},
		Authority: key, Incarnation: act.Certificate.IncarnationID, Registry: s.registry, Rand: o.Rand, Clock: o.Clock,
	}
	s.writer = commit.New(commit.Options{
		Store: s.store, Fence: s.fence, Clock: o.Clock, Rand: o.Rand, Logger: o.Logger,
		Publish:    s.published,
		Round:      o.Round,
		QueueLimit: int(o.Quotas[quota.OfServer][quota.Requests]), QueueLimitEach: int(o.Quotas[quota.OfPrincipal][quota.Requests]),
		MaxPayload: int(s.offer.TypedPayload),
		Owners:     ownersOf{s},
		MaxPending: o.Quotas[quota.OfPrincipal][quota.Pending], MaxPendingAll: o.Quotas[quota.OfServer][quota.Pending],
		LowDisk: (&reserve{free: o.freeBytes, bytes: o.LowDiskBytes, log: o.Logger}).reached,
	})
	s.outbox = outbox.New(outbox.Options{
		Owners: o.Owners, Writer: s.writer, Fence: s.fence, Authorised: s.authorised,
		Clock: o.Clock, Rand: o.Rand, Logger: o.Logger,
	})
	s.streams = stream.New(stream.Options{
		Clock: o.Clock, Rand: o.Rand, Store: s.store, Do: s.writer.Do, Guard: s.fence.Guard(), Logger: o.Logger,
		WindowBytes: s.window,
	})
}

// A task is one goroutine of the server with its own end.
type task struct {
	cancel context.CancelFunc
	done   chan struct{}
	err    error // after done
}

// start runs f until its context ends or it returns.
func start(f func(context.Context) error) *task {
	ctx, cancel := context.WithCancel(context.Background())
	t := &task{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(t.done)
		t.err = f(ctx)
	}()
	return t
}

// stop ends the task and returns what it ended with.
func (t *task) stop() error {
	t.cancel()
	<-t.done
	return t.err
}

// live runs an activated coordinator: install, bind, serve, stop.
func (s *Server) live(ctx context.Context, o Options, lock *durable.Lock, wit witness.Authority, act *authority.Activation) error {
	keeper := authority.NewKeeper(authority.KeeperOptions{
		Fence: s.fence, Authority: wit, Clock: o.Clock, Lock: lock, LeaseSeconds: o.LeaseSeconds,
		OnRenewed: s.announce, Logger: o.Logger,
	})
	s.tended = make(chan struct{})
	keeping := start(keeper.Run)
	writing := start(s.writer.Run)
	expiring := start(s.streams.Run)
	var following, tending, sending *task
	telling := start(func(ctx context.Context) error {
		s.lines.set.Run(ctx, o.Logger)
		return nil
	})
	defer telling.stop() //nolint:errcheck // always nil
	o.Monitor.watch(s, keeper, &o)
	defer o.Monitor.unwatch()

	near, err := s.install(ctx, o, act)
	var remote *remote
	if err == nil {
		if remote, err = s.openRemote(o); err != nil {
			near.close()
		}
	}
	if err == nil {
		following = start(func(ctx context.Context) error {
			s.following = ctx
			return s.registry.Run(ctx)
		})
		tending = start(s.tend)
		sending = start(s.send)
		near.serve(s)
		o.Logger.Info("serving", "socket", o.path(SocketFile), "quic", remote.addr(), "epoch", act.Certificate.Epoch, "activation", act.Certificate.Activation)
		o.Monitor.serving()
		if o.Ready != nil {
			o.Ready(Info{
				Socket: o.path(SocketFile), QUIC: remote.addr(), Fingerprint: s.pin, Certificate: act.Certificate,
				Turn: func(ctx context.Context) error { return s.turn(ctx, keeper) },
			})
		}
		err = s.wait(ctx, writing, near.accepting)
		o.Monitor.stopping(err)
		if o.Stopping != nil {
			o.Stopping(err)
		}
		near.close()
		remote.close()
	}
	if following != nil {
		following.stop() //nolint:errcheck // a registry that cannot be followed has emptied itself
		tending.stop()   //nolint:errcheck // what it reports goes through broken
		sending.stop()   //nolint:errcheck // a link that ends is dialled again, and none is an error
	}
	err = s.end(o, err, keeper, keeping, writing, expiring)
	remote.finish()
	return err
}

// install makes the activation durable and binds.
func (s *Server) install(ctx context.Context, o Options, act *authority.Activation) (*local, error) {
	if err := s.writer.Install(ctx, act.Certificate); err != nil {
		return nil, fmt.Errorf("install the activation: %w", err)
	}
	if err := s.writer.SyncCredentials(ctx, credentials(s.registry.Snapshot())); err != nil {
		return nil, fmt.Errorf("install the registry: %w", err)
	}
	if err := s.boundLog(ctx); err != nil {
		return nil, fmt.Errorf("read the retention: %w", err)
	}
	if err := s.outbox.Recover(ctx); err != nil {
		return nil, fmt.Errorf("recover the operations: %w", err)
	}
	if err := s.fence.Check(); errors.Is(err, authority.ErrFenced) {
		return nil, err
	}
	return bind(o)
}

// wait serves until there is a reason to stop: nil when ctx asks for it.
func (s *Server) wait(ctx context.Context, writing, accepting *task) error {
	select {
	case <-ctx.Done():
		return nil
	case <-s.fence.Fenced():
		return s.fence.Err()
	case <-writing.done:
		return writing.err
	case <-accepting.done:
		return fmt.Errorf("accept: %w", accepting.err)
	case err := <-s.broken:
		return err
	}
}

// end stops what runs, in the order of protocol.md §4 [D-48]: last commit and
// its replies, fence, drain, connections, and only then the lease.
func (s *Server) end(o Options, cause error, keeper *authority.Keeper, keeping, writing, expiring *task) error {
	s.refuse()
	if err := writing.stop(); err != nil {
		cause = err // nearer to the fault than what others made of it
	}
	if err := s.fence.Err(); err != nil && !errors.Is(cause, store.ErrOutcomeUnknown) {
		cause = err
	}
	if cause == nil {
		flushCtx, cancel := within(context.Background(), o.Clock, flushTime)
		s.flush(flushCtx)
		cancel()
	}
	keeping.stop() //nolint:errcheck // the fence keeps its final error
	// The fence closes for every connection, which ends each within lingerTime.
	drainCtx, cancel := within(context.Background(), o.Clock, drainTime)
	drained := s.fence.Stop(drainCtx)
	cancel()
	s.running.Wait()
	expiring.stop() //nolint:errcheck // it ends only when told to
	if ferr := s.fence.Err(); cause == nil && !errors.Is(ferr, authority.ErrStopped) {
		cause = ferr
	}
	switch {
	case drained != nil:
		o.Logger.Warn("lease not given back", "err", drained)
	case errors.Is(cause, store.ErrOutcomeUnknown):
		o.Logger.Warn("lease not given back", "err", "the outcome of the last commit is unknown")
	default:
		relCtx, cancel := within(context.Background(), o.Clock, relinquishTime)
		defer cancel()
		if err := keeper.Relinquish(relCtx); err != nil {
			o.Logger.Warn("lease not given back; a successor waits for its end", "err", err)
		}
	}
	return cause
}

// within is context.WithTimeout on the injected clock.
func within(parent context.Context, c clock.Clock, d time.Duration) (context.Context, func()) {
	ctx, cancel := context.WithCancel(parent)
	timer := c.NewTimer(d)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer timer.Stop()
		select {
		case <-timer.C():
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		cancel()
		<-done
	}
}

// credentials is a registry snapshot as ADMIN records state it.
func credentials(snap handshake.Snapshot) []frames.Credential {
	out := make([]frames.Credential, 0, len(snap.Records))
	for _, r := range snap.Records {
		c := frames.Credential{KeyID: r.KeyID, ScopeCeiling: frames.Scope(r.Scope), ExpiresAt: r.ExpiresAt}
		if r.Revoked() {
			at := r.RevokedAt
			c.RevokedAt = &at
		}
		out = append(out, c)
	}
	return out
}

// syncCredentials writes a new generation of the registry into CREDENTIAL
// records. A snapshot emptied by a bad file is no removal [D-43].
func (s *Server) syncCredentials(ctx context.Context, snap handshake.Snapshot) {
	if snap.Problem != nil {
		return
	}
	err := s.writer.SyncCredentials(ctx, credentials(snap))
	var refused *work.Refusal
	if errors.As(err, &refused) {
		s.log.Warn("registry change not recorded; the next start records it", "err", err)
	} else if err != nil {
		s.breakdown(fmt.Errorf("record the registry: %w", err))
	}
}
