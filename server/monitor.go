package server

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/clock"
	"coordinator/server/authority"
	"coordinator/server/commit"
	"coordinator/server/outbox"
	"coordinator/server/quota"
	"coordinator/server/store"
	"coordinator/server/stream"
)

const (
	// pulseEvery is how often a running server is asked whether it goes on.
	pulseEvery = time.Second
	// stuckAfter without a sign of life makes a loop one that stands. The keeper may wait for
	// a witness that is silent as long as one attempt of the longest lease takes, 10 s.
	stuckAfter  = 10 * time.Second
	keeperAfter = stuckAfter + 10*time.Second
)

// A Monitor is a coordinator as whoever watches it sees it, from before its start to after
// its end. It is given to [Run] in its Options. Its methods may be called from any goroutine;
// none waits for what it tells of. Nil watches nothing.
type Monitor struct {
	clock clock.Clock

	mu    sync.RWMutex // held for reading as long as the server is read
	phase phase        // guarded by mu
	what  string       // guarded by mu: what a start is doing, why a stop
	w     *watched     // guarded by mu: the server that runs; nil before and after
}

type phase uint8

const (
	starting phase = iota
	serving
	stopping
	over
)

// watched is a running server and when its loops were last seen to come round.
type watched struct {
	s      *Server
	keeper *authority.Keeper
	free   func() uint64
	kept   uint64 // the disk reserve
	pulse  *task

	writer, fan atomic.Int64 // boot readings
}

// NewMonitor makes a monitor for one [Run].
func NewMonitor(c clock.Clock) *Monitor { return &Monitor{clock: c, what: "not begun"} }

// follow makes the lines of a start what the monitor says of it.
func (m *Monitor) follow(progress func(string)) func(string) {
	if m == nil {
		return progress
	}
	return func(line string) {
		m.mu.Lock()
		m.what = line
		m.mu.Unlock()
		progress(line)
	}
}

// watch takes in a server whose loops run. It serves nobody yet.
func (m *Monitor) watch(s *Server, keeper *authority.Keeper, o *Options) {
	if m == nil {
		return
	}
	w := &watched{s: s, keeper: keeper, free: o.freeBytes, kept: o.LowDiskBytes}
	now := int64(m.clock.Now().Boot)
	w.writer.Store(now)
	w.fan.Store(now)
	w.pulse = start(func(ctx context.Context) error { return w.feel(ctx, m.clock) })
	m.mu.Lock()
	defer m.mu.Unlock()
	m.w, m.what = w, "the activation is being installed"
}

// serving says that the endpoint serves from here on.
func (m *Monitor) serving() { m.enter(serving, "") }

// stopping says that it does not any more, for the reason err; nil is a stop that was asked for.
func (m *Monitor) stopping(err error) { m.enter(stopping, because(err)) }

// ended says that Run is about to return.
func (m *Monitor) ended(err error) { m.enter(over, because(err)) }

func because(err error) string {
	if err == nil {
		return "it was told to"
	}
	return err.Error()
}

func (m *Monitor) enter(p phase, what string) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.phase, m.what = p, what
}

// unwatch lets go of the server before its parts are closed.
func (m *Monitor) unwatch() {
	if m == nil {
		return
	}
	m.mu.Lock()
	w := m.w
	m.w = nil
	m.mu.Unlock()
	if w != nil {
		w.pulse.stop() //nolint:errcheck // always nil
	}
}

// feel notes again and again that the writer comes round, and that events are counted for
// their subscriptions.
func (w *watched) feel(ctx context.Context, c clock.Clock) error {
	t := c.NewTimer(pulseEvery)
	defer t.Stop()
	var last frames.EventCut
	for {
		if at, behind := w.s.streams.Counted(); !behind || at != last {
			last = at
			w.fan.Store(int64(c.Now().Boot))
		}
		// Not for longer: a writer that stands must not make the fan-out look as if it did, and
		// one that has begun to wait for a renewal is excused when it is asked anew.
		asked, done := within(ctx, c, pulseEvery)
		if w.s.writer.Ping(asked) == nil {
			w.writer.Store(int64(c.Now().Boot))
		}
		done()
		select {
		case <-ctx.Done():
			return nil
		case <-t.C():
			t.Reset(pulseEvery)
		}
	}
}

// Ready returns nil while the coordinator serves under an authority that has not expired, by
// the deadline of its own fence. The error says why not.
func (m *Monitor) Ready() error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	switch m.phase {
	case starting:
		return fmt.Errorf("starting: %s", m.what)
	case serving:
		return m.w.s.fence.Check()
	case stopping:
		return fmt.Errorf("stopping: %s", m.what)
	}
	return fmt.Errorf("ended: %s", m.what)
}

// Healthy returns nil while the loops that everything rests on come round: a start and a stop
// are healthy. The error says which one stands.
func (m *Monitor) Healthy() error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.w == nil || m.phase != serving {
		return nil
	}
	now := m.clock.Now().Boot
	return errors.Join(
		stands("the commit writer", now, time.Duration(m.w.writer.Load()), stuckAfter),
		stands("the lease keeper", now, m.w.keeper.Turned(), keeperAfter),
		stands("the fan-out of events", now, time.Duration(m.w.fan.Load()), stuckAfter),
	)
}

func stands(what string, now, seen, most time.Duration) error {
	if silent := now - seen; silent > most {
		return fmt.Errorf("%s has not come round for %v", what, silent.Round(time.Second))
	}
	return nil
}

// A Reading is a running server in numbers.
type Reading struct {
	Ready    bool // see [Monitor.Ready]
	Lease    time.Duration
	Renewals authority.Renewals
	State    store.State
	Stats    store.Stats
	Disk     *store.Meters
	Free     uint64 // bytes of the disk
	Reserve  uint64
	Writer   *commit.Meters
	Depth    commit.Depth
	Streams  *stream.Meters
	Use      stream.Use
	Outbox   *outbox.Meters
	Outgoing outbox.Use
	Quotas   []quota.Use
	Limits   quota.Limits
	Conns    handshake.ConnCounts
	Enrolled int  // keys in the registry
	Emptied  bool // the registry's file is bad: nobody is authorised
	StatsErr error
}

// Read gives the numbers; ok is false while no server runs.
func (m *Monitor) Read() (r Reading, ok bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.w == nil {
		return r, false
	}
	s := m.w.s
	snap := s.registry.Snapshot()
	r = Reading{
		Ready: m.phase == serving && s.fence.Check() == nil, Lease: s.fence.Remaining(), Renewals: m.w.keeper.Renewals(),
		State: s.store.State(), Disk: s.store.Meters(), Free: m.w.free(), Reserve: m.w.kept,
		Writer: s.writer.Meters(), Depth: s.writer.Depth(), Streams: s.streams.Meters(), Use: s.streams.Use(),
		Outbox: s.outbox.Meters(), Outgoing: s.outbox.Use(), Quotas: s.Uses(), Limits: s.quotas.Limits(), Conns: s.counts(),
		Enrolled: len(snap.Records), Emptied: snap.Problem != nil,
	}
	r.Stats, r.StatsErr = s.store.Stats()
	return r, true
}
