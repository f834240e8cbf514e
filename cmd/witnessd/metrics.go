package main

import (
	"sync"

	"coordinator/cmd/internal/daemon"
	"coordinator/frames"
	"coordinator/internal/clock"
	"coordinator/witness"
)

// What a witness exposes, beside go_* and process_*. docs/metrics.md says of each what it
// means and when to worry.
var (
	metBuild  = daemon.Gauge("witness_build_info", "What the program was made of; always 1.", "version", "revision", "goversion")
	metReady  = daemon.Gauge("witness_ready", "1 while it serves and can answer.")
	metGrants = daemon.Counter("witness_grants_total", "What was granted.", "kind")
	metStore  = daemon.Distribution("witness_store_duration_seconds", "Making a grant durable.")
	metLeases = daemon.Gauge("witness_leases", "Leases, one for each coordinator.", "state")
	metSoon   = daemon.Gauge("witness_lease_soonest_end_seconds", "What the live lease that ends first has left; 0 without one.")
	metFree   = daemon.Gauge("witness_disk_free_bytes", "What may still be written where the state is.")
	metConns  = daemon.NewConnFamilies("witness_")
)

var requestNames = map[frames.Type]string{
	witness.TypeActivate: "activate", witness.TypeRenew: "renew", witness.TypeRelinquish: "relinquish", witness.TypeGetStatus: "get_status",
}

// A watch is what is known of this process to whoever watches it.
type watch struct {
	dir   string
	pulse *daemon.Pulse

	mu sync.Mutex
	w  *witness.Witness // guarded by mu; nil before it is open and once it is closed
	s  *witness.Server  // guarded by mu; likewise
}

func newWatch(dir string) *watch { return &watch{dir: dir, pulse: daemon.NewPulse(clock.System())} }

// set says what there is to be read; nil takes it away.
func (h *watch) set(w *witness.Witness, s *witness.Server) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.w, h.s = w, s
}

// collect puts everything of a running witness.
func (h *watch) collect(s *daemon.Scrape) {
	s.PutBuild(metBuild)
	s.PutFlag(metReady, h.pulse.Ready() == nil)
	s.PutFree(metFree, h.dir)
	h.mu.Lock()
	w, server := h.w, h.s
	h.mu.Unlock()
	if w == nil {
		return
	}
	metConns.Put(s, server.Counts(), requestNames)
	m := w.Meters()
	s.Put(metGrants, float64(m.Granted.Load()), "activation")
	s.Put(metGrants, float64(m.Renewed.Load()), "renewal")
	s.Put(metGrants, float64(m.Relinquished.Load()), "relinquishment")
	s.PutDistribution(metStore, m.Store.Snapshot(), daemon.Nanoseconds)
	c := w.Census()
	s.Put(metLeases, float64(c.Live), "live")
	s.Put(metLeases, float64(c.Ended), "ended")
	s.Put(metLeases, float64(c.Relinquished), "relinquished")
	s.Put(metSoon, c.Soonest.Seconds())
}
