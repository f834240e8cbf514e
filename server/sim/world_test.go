package sim

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/clock"
	"coordinator/server/quota"
	"coordinator/server/store"
	"coordinator/server/store/simfs"
	"coordinator/server/work"
	"coordinator/witness"
)

var (
	coordinatorID = frames.CoordinatorID{1}
	witnessID     = frames.WitnessID{2}
	principal     = frames.KeyID{3}
	start         = clock.Reading{Wall: time.Unix(1_800_000_000, 0).UTC(), Boot: time.Hour}
)

const maxNodes = 3

// A world is one run: the machines, what the clients asked for, and what went wrong.
type world struct {
	dir      string
	rng      *rand.Rand
	bytes    *source // the random source of every coordinator
	base     *clock.Manual
	instants *instants

	witness      *witness.Witness
	witnessDir   string
	witnessClock *machineClock
	witnessKey   *handshake.Key
	boot         int
	steady       bool   // no coordinator's wall clock is ever stepped
	lease        uint16 // seconds

	nodes   []*node
	clients []*simClient
	net     *network
	// What all coordinators have: the key that clients pin, limits, and the registry.
	authority  *handshake.Key
	quotas     quota.Limits
	eventBytes uint64
	window     int   // bytes of newest events in memory
	tick       int64 // counts the beginnings and ends of what clients do
	deeds      []*deed
	dropped    []*lineage // of disks that an older copy has replaced
	backups    []backup
	copies     int
	calm       bool                        // faults are rare
	ages       bool                        // weeks may pass
	aged       map[frames.OperationID]bool // whose retention may have ended

	asked map[frames.OperationID]*request
	order []*request // asked, in order
	live  []frames.ObjectiveID

	lastEpoch      frames.AuthorityEpoch
	lastActivation frames.ActivationSequence
	lineages       map[frames.ActivationSequence]*lineage // by activation
	seen           seen

	mu     sync.Mutex
	trace  []string // guarded by mu
	failed error    // guarded by mu when goroutines run
}

// seen counts what happened, so that a simulation that does nothing shows.
type seen struct {
	acked, crashes, restores int
	results                  int // that were put on the network
	views                    int // that were held against what was there
	losses                   int // of history, that clients were told of
	gaps                     int // of subscriptions
	retired                  int // results that became tombstones or went
	checked, unchecked       int // histories of objectives
}

func (s *seen) add(o *seen) {
	s.acked, s.crashes, s.restores = s.acked+o.acked, s.crashes+o.crashes, s.restores+o.restores
	s.results, s.views, s.losses = s.results+o.results, s.views+o.views, s.losses+o.losses
	s.gaps, s.retired = s.gaps+o.gaps, s.retired+o.retired
	s.checked, s.unchecked = s.checked+o.checked, s.unchecked+o.unchecked
}

func (s *seen) String() string {
	return fmt.Sprintf("%d results acknowledged, %d of them on the network, and %d retired, over %d crashes and %d older copies put back; %d exact views held, %d gaps and %d losses of history told; %d histories linearizable, %d too hard to tell",
		s.acked, s.results, s.retired, s.crashes, s.restores, s.views, s.gaps, s.losses, s.checked-s.unchecked, s.unchecked)
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{
		dir: tempDir(t), rng: rand.New(rand.NewPCG(seed, 77)), bytes: newSource(seed),
		base: clock.NewManual(start), asked: map[frames.OperationID]*request{}, steady: seed%2 == 1,
		lease: []uint16{6, 6, 12, 24}[seed/2%4], lineages: map[frames.ActivationSequence]*lineage{},
		calm: seed%3 == 0, ages: seed%5 == 1, aged: map[frames.OperationID]bool{},
	}
	w.net = &network{w: w, sum: fnv.New64a()}
	w.authority = handshake.NewKey([32]byte{77})
	w.limits()
	w.instants = &instants{base: w.base, used: map[time.Duration]bool{}, lanes: map[string]int64{}, taken: map[int64]bool{}}
	w.witnessClock = w.machine()
	w.witnessDir = filepath.Join(w.dir, "witness")
	must(t, os.Mkdir(w.witnessDir, 0o700))
	must(t, witness.Create(w.witnessDir, witnessID))
	key, err := handshake.CreateKey(filepath.Join(w.witnessDir, "seed"), w.bytes)
	must(t, err)
	w.witnessKey = key
	must(t, w.openWitness())

	first := &node{w: w, name: "a", dir: filepath.Join(w.dir, "a"), made: filepath.Join(w.dir, "a"), fs: simfs.New(), clock: w.machine(), lineage: newLineage()}
	first.link = &link{w: w, holder: frames.KeyID{10}}
	must(t, os.Mkdir(first.dir, 0o700))
	change, err := work.GenesisRetention(frames.Retention{OperationResultSecs: frames.MinOperationRetained, EventBytes: 1 << 20, ArtifactBytes: 1 << 20})
	must(t, err)
	row := store.Row{Record: change.Record, Live: change.Live, Annex: change.Annex}
	must(t, store.Create(first.dir, store.Genesis{CoordinatorID: coordinatorID, Rows: []store.Row{row}, CreatedAt: start.Wall}, first.options()))
	w.nodes = []*node{first}
	for i := range clientKinds {
		if i < 2 || w.rng.IntN(2) == 0 {
			w.clients = append(w.clients, w.newClient(i))
		}
	}
	return w
}

// tempDir is a directory in memory where there is one: what is flushed here is not what the
// simulation crashes.
func tempDir(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "sim")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// machine is the clock of another machine.
func (w *world) machine() *machineClock { return &machineClock{base: w.base, instants: w.instants} }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (w *world) openWitness() (err error) {
	w.witness, err = witness.Open(w.witnessDir, witness.Options{
		ID: witnessID, Key: w.witnessKey, BootID: fmt.Sprintf("boot-%d", w.boot), Clock: w.witnessClock, Rand: w.bytes,
	})
	return err
}

func (w *world) say(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sayLocked(format, args...)
}

func (w *world) sayLocked(format string, args ...any) {
	text := strings.ReplaceAll(fmt.Sprintf(format, args...), w.dir, "")
	w.trace = append(w.trace, fmt.Sprintf("%8.1fs %s", (w.base.Now().Boot-start.Boot).Seconds(), text))
}

// fault records the first thing that must never happen.
func (w *world) fault(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failed == nil {
		w.failed = fmt.Errorf(format, args...)
		w.sayLocked("FAULT %v", w.failed)
	}
}

// over reports whether something has failed.
func (w *world) over() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failed != nil
}

// settle lets every other goroutine run until it waits, and looks at what they did. Who
// looks at a replica may be the one that finds its certificate expired and ends its
// connection: what that wakes rests too before time goes on.
func (w *world) settle() {
	synctest.Wait()
	w.inspect()
	synctest.Wait()
}

// advance lets time pass, one timer at a time, so that no two processes race.
func (w *world) advance(d time.Duration) {
	end := w.base.Now().Boot + d
	for now := end - d; now < end; now = w.base.Now().Boot {
		step := end - now
		if due, ok := w.base.Next(); ok {
			step = min(step, max(due-now, 0))
		}
		w.base.Advance(step)
		w.settle()
		w.net.run(w.rng.IntN(3))
	}
}

// await runs fn while time passes.
func (w *world) await(fn func()) {
	done := make(chan struct{})
	go func() { defer close(done); fn() }()
	for {
		w.settle()
		select {
		case <-done:
			return
		default:
			w.advance(100 * time.Millisecond)
		}
	}
}

// actsNow checks, at the instant in which n does something that others see, that the
// witness still keeps the authority free for it.
func (w *world) actsNow(n *node, what string) {
	mine := n.fence.Guard().Activation
	if w.lastActivation != mine {
		w.fault("%s: %s under activation %d after %d had been granted", n.name, what, mine, w.lastActivation)
	}
	if w.witness == nil {
		return
	}
	s, err := w.witness.Status(coordinatorID)
	if err != nil || s.Activation != mine || s.LeaseRemaining == 0 {
		w.fault("%s: %s under activation %d, whose lease has ended: %+v %v", n.name, what, mine, s, err)
	}
}

// granted checks a new activation against all before it.
func (w *world) granted(n *node, c frames.Certificate) error {
	if c.Epoch <= w.lastEpoch || c.Activation <= w.lastActivation || c.Epoch <= n.lineage.epoch {
		return fmt.Errorf("%s: epoch %d activation %d granted after %d and %d", n.name, c.Epoch, c.Activation, w.lastEpoch, w.lastActivation)
	}
	for _, o := range w.nodes {
		if o != n && o.up() && o.clock.paused == nil && o.fence.Check() == nil {
			return fmt.Errorf("%s: activation %d granted while %s still holds its lease", n.name, c.Activation, o.name)
		}
	}
	w.lastEpoch, w.lastActivation = c.Epoch, c.Activation
	w.lineages[c.Activation] = n.lineage
	w.say("%s: epoch %d activation %d", n.name, c.Epoch, c.Activation)
	return nil
}

// headBefore is where a store stood before batch b: ahead of what was published when a
// commit of an earlier process was durable but never acknowledged.
func (w *world) headBefore(n *node, b store.Batch) frames.EventCut {
	if b.First == 0 {
		return 0
	}
	for _, base := range n.store.State().Bases {
		if frames.EventSequence(base.Base)+1 == b.First {
			return base.Base
		}
	}
	return n.lineage.head
}

// close ends everything, in order, so that the bubble is empty.
func (w *world) close() {
	for _, c := range w.clients {
		c.end()
	}
	for _, n := range w.nodes {
		if n.up() {
			n.die()
		}
	}
	if w.witness != nil {
		_ = w.witness.Close()
	}
}

// history is what happened, and a sum of all that was said on the network.
func (w *world) history() string {
	return strings.Join(w.trace, "\n") + fmt.Sprintf("\nnetwork %x", w.net.sum.Sum64())
}
