package main

import (
	"sync"
	"time"

	"coordinator/cmd/internal/daemon"
	"coordinator/frames"
	"coordinator/internal/clock"
	"coordinator/owner"
)

// What an owner exposes, beside go_* and process_*. docs/metrics.md says of each what it means
// and when to worry.
var (
	metBuild    = daemon.Gauge("owner_build_info", "What the program was made of; always 1.", "version", "revision", "goversion")
	metReady    = daemon.Gauge("owner_ready", "1 while it serves and its journal can be written.")
	metRunning  = daemon.Gauge("owner_processes", "Processes that run.")
	metMost     = daemon.Gauge("owner_processes_limit", "Processes that may run at once.")
	metStarts   = daemon.Counter("owner_processes_total", "Processes that were started, ended, or not started.", "event")
	metBindings = daemon.Gauge("owner_bindings", "Bindings in the journal.", "state")
	metUnread   = daemon.Gauge("owner_facts_unread", "Source facts that their coordinator has not acknowledged.")
	metEffects  = daemon.Gauge("owner_effects", "Effect attempts in the journal.", "state")
	metOutput   = daemon.Counter("owner_output_bytes_total", "Bytes that processes wrote and facts cover.")
	metKept     = daemon.Gauge("owner_output_bytes", "Bytes that the facts of all bindings in the journal cover.")
	metUnstored = daemon.Counter("owner_output_unstored_total", "Bindings whose output could not be stored any more.")
	metJournal  = daemon.Distribution("owner_journal_duration_seconds", "One transaction of the journal.")
	metFree     = daemon.Gauge("owner_disk_free_bytes", "What may still be written where the state is.")
	metConns    = daemon.NewConnFamilies("owner_")
)

var requestNames = map[frames.Type]string{
	owner.TypeDispatchEffect: "dispatch_effect", owner.TypeGetEffect: "get_effect", owner.TypeAuthority: "authority",
	owner.TypeOpenFacts: "open_facts", owner.TypeFactAck: "fact_ack", owner.TypeReadOutput: "read_output",
}

// censusEvery is how old a reading of the whole journal may be.
const censusEvery = 10 * time.Second

// A watch is what is known of this process to whoever watches it.
type watch struct {
	dir   string
	clock clock.Clock
	pulse *daemon.Pulse

	mu     sync.Mutex
	own    *owner.Owner  // guarded by mu; nil before it is open and once it is closed
	server *owner.Server // guarded by mu; likewise
	census owner.Census  // guarded by mu
	at     time.Duration // guarded by mu: boot reading of census; zero before the first
}

func newWatch(dir string) *watch {
	return &watch{dir: dir, clock: clock.System(), pulse: daemon.NewPulse(clock.System())}
}

// set says what there is to be read; nil takes it away.
func (h *watch) set(own *owner.Owner, server *owner.Server) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.own, h.server, h.at = own, server, 0
}

// read gives what there is, and the journal as it was a moment ago.
func (h *watch) read() (own *owner.Owner, server *owner.Server, c owner.Census, known bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.own == nil {
		return nil, nil, c, false
	}
	if now := h.clock.Now().Boot; h.at == 0 || now-h.at >= censusEvery {
		census, err := h.own.Census()
		if err != nil {
			return h.own, h.server, c, false
		}
		h.census, h.at = census, now
	}
	return h.own, h.server, h.census, true
}

// collect puts everything of a running owner.
func (h *watch) collect(s *daemon.Scrape) {
	s.PutBuild(metBuild)
	s.PutFlag(metReady, h.pulse.Ready() == nil)
	s.PutFree(metFree, h.dir)
	own, server, c, known := h.read()
	if own == nil {
		return
	}
	metConns.Put(s, server.Counts(), requestNames)
	s.Put(metRunning, float64(own.Processes()))
	s.Put(metMost, float64(own.MaxProcesses()))
	m := own.Meters()
	s.Put(metStarts, float64(m.Started.Load()), "started")
	s.Put(metStarts, float64(m.Ended.Load()), "ended")
	s.Put(metStarts, float64(m.Rejected.Load()), "rejected")
	s.Put(metOutput, float64(m.Output.Load()))
	s.Put(metUnstored, float64(m.Unstored.Load()))
	s.PutDistribution(metJournal, m.Journal.Snapshot(), daemon.Nanoseconds)
	if !known {
		return
	}
	s.Put(metBindings, float64(c.Live), "live")
	s.Put(metBindings, float64(c.Waiting), "waiting")
	s.Put(metBindings, float64(c.Closed), "closed")
	s.Put(metBindings, float64(c.Lost), "lost")
	s.Put(metUnread, float64(c.Unread))
	s.Put(metKept, float64(c.Output))
	for state, name := range stateNames {
		s.Put(metEffects, float64(c.Effects[state]), name)
	}
}
