package sim

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"coordinator/codec"
	"coordinator/frames"
	"coordinator/server/store"
	"coordinator/server/store/simfs"
)

const actionsPerSeed = 500

// TestSimulation runs SIM_SEEDS seeds from SIM_SEED_BASE on; `make sim` sets both.
func TestSimulation(t *testing.T) {
	seeds, base := number(t, "SIM_SEEDS", 5), number(t, "SIM_SEED_BASE", 1)
	var mu sync.Mutex
	var all seen
	t.Run("seed", func(t *testing.T) {
		for seed := base; seed < base+seeds; seed++ {
			t.Run(fmt.Sprint(seed), func(t *testing.T) {
				t.Parallel()
				w := run(t, seed)
				if w.failed != nil {
					t.Fatalf("seed %d: %v\n%s\nrun it again: make sim SEEDS=1 SEED_BASE=%d", seed, w.failed, w.history(), seed)
				}
				mu.Lock()
				defer mu.Unlock()
				all.add(&w.seen)
			})
		}
	})
	t.Logf("%d seeds: %v", seeds, &all)
	if t.Failed() || seeds < 5 {
		return
	}
	if all.acked == 0 || all.crashes == 0 || all.views == 0 || all.results == 0 || all.losses == 0 {
		t.Errorf("the simulation does nothing: %v", &all)
	}
	if all.unchecked*20 > all.checked {
		t.Errorf("too many histories were too hard to check: %d of %d", all.unchecked, all.checked)
	}
}

// TestSimulationRepeats holds the simulation to its promise: a seed is a whole run.
func TestSimulationRepeats(t *testing.T) {
	for seed := range number(t, "SIM_REPEATS", 3) {
		a, b := run(t, seed), run(t, seed)
		a.seen.unchecked, b.seen.unchecked = 0, 0 // which is a matter of real time
		if a.history() != b.history() || a.seen != b.seen {
			t.Errorf("seed %d ran in two ways:\n%s\n---\n%s", seed, a.history(), b.history())
		}
	}
}

func number(t *testing.T, name string, fallback uint64) uint64 {
	s := os.Getenv(name)
	if s == "" {
		return fallback
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatalf("%s=%q is not a number", name, s)
	}
	return n
}

func run(t *testing.T, seed uint64) (w *world) {
	synctest.Test(t, func(t *testing.T) {
		w = newWorld(t, seed)
		defer w.close()
		for _, c := range w.clients {
			c.begin()
		}
		for i := 0; i < actionsPerSeed && !w.over(); i++ {
			w.act()
		}
		if !w.over() {
			w.finish()
		}
	})
	if !w.over() {
		w.linearizable()
	}
	return w
}

// act does one random thing.
func (w *world) act() {
	w.settle() // a keeper that the last action woke
	n := w.nodes[w.rng.IntN(len(w.nodes))]
	if !n.up() && w.rng.IntN(4) == 0 {
		w.startNode(n)
		return
	}
	for _, n := range w.nodes {
		if n.up() {
			w.judgeQuotas(n, false)
		}
	}
	if w.rng.IntN(12) == 0 || w.calm && w.rng.IntN(4) == 0 {
		w.mend(n)
	}
	k := w.rng.IntN(240)
	if fault := k >= 82 && k < 100 || k >= 108 && k < 111; fault && w.calm && w.rng.IntN(4) > 0 {
		k = 111 // time in which all goes well
	}
	switch {
	case k >= 111:
		w.actClients(k - 111)
	case k >= 110:
		w.brink(n)
	case k >= 108:
		w.pause(n, w.pauseFor())
	case k >= 106:
		w.registry(n)
	case k >= 103:
		w.intrude(n)
	case k >= 100:
		w.lookup(n)
	case k < 40:
		w.command(n)
	case k < 62:
		w.commit(n)
	case k < 70:
		w.advance(time.Duration(w.rng.IntN(3000)) * time.Millisecond)
	case k < 78:
		w.checkpoint(n)
	case k < 82:
		w.cut(n)
	case k < 87:
		w.crash(n)
	case k < 89:
		w.stopNode(n)
	case k < 90:
		w.stepClock(n)
	case k < 91:
		w.restore(n)
	case k < 94:
		n.link.cut, n.link.deaf = w.rng.IntN(2) == 0, w.rng.IntN(4) == 0
		n.link.there, n.link.back = w.delay(), w.delay()
		w.say("%s: link cut=%v deaf=%v delays %v %v", n.name, n.link.cut, n.link.deaf, n.link.there, n.link.back)
	case k < 96:
		w.restartWitness()
	case k < 98:
		w.advance(time.Duration(w.rng.IntN(12)) * time.Second)
	default:
		w.copyNode(n)
	}
}

// mend lets n reach the witness, and the witness serve.
func (w *world) mend(n *node) {
	n.link.cut, n.link.deaf, n.link.there, n.link.back = false, false, 0, 0
	if w.witness == nil {
		w.restartWitness()
	}
}

// command proposes something new, or something again.
func (w *world) command(n *node) {
	if !n.up() {
		return
	}
	for range 1 + w.rng.IntN(4) {
		if len(w.order) > 0 && w.rng.IntN(4) == 0 {
			n.propose(w.order[w.rng.IntN(len(w.order))]) // a client that retries
			continue
		}
		r, err := w.newRequest()
		if err != nil {
			w.fault("request: %v", err)
			return
		}
		w.order = append(w.order, r)
		n.propose(r)
	}
}

func (w *world) newRequest() (*request, error) {
	op, err := frames.NewID[frames.OperationID](w.bytes)
	if err != nil {
		return nil, err
	}
	r := &request{document: fmt.Appendf(nil, `{"n":%d}`, len(w.asked))}
	if w.rng.IntN(3) == 0 {
		r.document = append(r.document, make([]byte, w.rng.IntN(3000))...)
	}
	r.cmd = frames.CoordCommand{RequestID: 1, OperationID: op}
	var payload codec.Message
	if w.rng.IntN(60) == 0 {
		r.retention, r.cmd.Kind = true, frames.CommandChangeRetention
		payload = &frames.ChangeRetention{Retention: frames.Retention{
			OperationResultSecs: frames.MinOperationRetained, EventBytes: 16<<10 + uint64(w.rng.IntN(64<<10)), ArtifactBytes: 1 << 20,
		}}
	} else if len(w.live) > 0 && w.rng.IntN(8) == 0 {
		r.objective = w.live[w.rng.IntN(len(w.live))]
		r.archive, r.cmd.Kind = true, frames.CommandArchiveObjective
		payload = &frames.ArchiveObjective{ObjectiveID: r.objective}
	} else if len(w.live) == 0 || w.rng.IntN(3) == 0 {
		id, err := frames.NewID[frames.ObjectiveID](w.bytes)
		if err != nil {
			return nil, err
		}
		w.live = append(w.live, id)
		r.objective, r.create = id, true
		r.cmd.Kind = frames.CommandCreateObjective
		payload = &frames.CreateObjective{ObjectiveID: id, Schema: 1, Document: r.document}
	} else {
		r.objective = w.live[w.rng.IntN(len(w.live))]
		if w.rng.IntN(4) == 0 {
			s := frames.ObjectiveCompleted
			r.state = &s
		}
		r.cmd.Kind = frames.CommandUpdateObjective
		payload = &frames.UpdateObjective{ObjectiveID: r.objective, Schema: 1, Document: r.document, State: r.state}
	}
	if r.cmd.Payload, err = codec.Encode(nil, payload); err != nil {
		return nil, err
	}
	w.asked[op] = r
	return r, nil
}

// commit steps the writer, often so that a commit stays in flight, sometimes with a flush that
// stalls, fails, or is the last thing that the machine does.
func (w *world) commit(n *node) {
	if !n.up() {
		return
	}
	switch w.rng.IntN(18) {
	case 13, 14, 15, 16, 17:
		n.stepAhead()
	case 12:
		d := w.pauseFor()
		n.fs.Hook(func(op simfs.Op) error {
			if op.Kind == "sync" && d > 0 {
				w.pause(n, d)
				d = 0
			}
			return nil
		})
		n.step()
		n.fs.Hook(nil)
	case 0:
		stall := time.Duration(w.rng.IntN(14)) * time.Second
		frozen, cut := w.rng.IntN(2) == 0, n.link.cut // the whole process stands still, its renewals too
		n.fs.Hook(func(op simfs.Op) error {
			if op.Kind == "sync" {
				n.link.cut = cut || frozen
				w.advance(stall)
				w.rival(n, stall, func(*node) bool { return true })
				n.link.cut = cut
				stall = 0
			}
			return nil
		})
		w.say("%s: a flush stalls", n.name)
		n.step()
		n.fs.Hook(nil)
	case 1:
		n.fs.StopAfter(w.rng.IntN(3))
		n.step()
		w.crash(n)
	default:
		n.step()
	}
}

// rival tries to start another coordinator, one that can run, while n is stuck for as long
// as stall.
func (w *world) rival(n *node, stall time.Duration, can func(*node) bool) {
	for _, o := range w.nodes {
		if o != n && !o.up() && stall > time.Duration(w.lease)*time.Second && can(o) {
			w.startNode(o)
			return
		}
	}
}

func (w *world) checkpoint(n *node) {
	if !n.up() {
		return
	}
	for range 1 + w.rng.IntN(5) {
		if _, err := n.store.CheckpointStep(); err != nil {
			w.say("%s: checkpoint: %v", n.name, err)
			n.die()
			return
		}
	}
}

// cut opens a cut, or reads the open one again and expects what it held when it was made.
func (w *world) cut(n *node) {
	if !n.up() {
		return
	}
	if n.cut == nil {
		writer := n.writer
		n.served(func(ctx context.Context) {
			_ = writer.Do(ctx, func(s *store.Store) error { // given up when the writer cannot serve
				if n.lineage.epoch == n.fence.Guard().Epoch && s.State().Head != n.lineage.head {
					w.fault("%s: a call saw event %d when %d had been published", n.name, s.State().Head, n.lineage.head)
				}
				n.cut = s.Cut()
				return nil
			})
		})
		if !n.up() || n.cut == nil {
			return
		}
		rows, err := readCut(n.cut)
		if err != nil {
			w.fault("%s: read a cut: %v", n.name, err)
		}
		n.cutRows = rows
		return
	}
	rows, err := readCut(n.cut)
	if err != nil {
		w.fault("%s: read a cut again: %v", n.name, err)
	}
	if !slices.EqualFunc(rows, n.cutRows, sameRow) {
		w.fault("%s: the cut at %d moved while it was open", n.name, n.cut.Seq())
	}
	n.cut.Close()
	n.cut, n.cutRows = nil, nil
}

func sameRow(a, b store.Row) bool {
	return a.Seq == b.Seq && a.Record.Ref() == b.Record.Ref() && a.Record.Revision == b.Record.Revision &&
		string(a.Record.Payload) == string(b.Record.Payload) && string(a.Annex) == string(b.Annex)
}

// crash ends the process, or the machine under it.
func (w *world) crash(n *node) {
	if !n.up() {
		return
	}
	w.seen.crashes++
	if w.rng.IntN(2) == 0 {
		w.say("%s: killed", n.name)
		n.die()
		return
	}
	w.say("%s: power lost", n.name)
	n.fs.Crash(w.rng.Uint64())
	n.abandon()
}

func (w *world) startNode(n *node) {
	started, err := n.start()
	if err != nil {
		w.fault("%s: start: %v", n.name, err)
		return
	}
	if started && n.up() {
		w.verify(n)
	}
}

func (w *world) verify(n *node) {
	rows, err := n.rows()
	if err != nil {
		w.fault("%s: read: %v", n.name, err)
		return
	}
	if err := judge(rows, n.lineage, w.asked, w.aged); err != nil {
		w.fault("%s: %v", n.name, err)
	}
	if err := judgeBases(n.store.State(), n.fence.Guard().Activation); err != nil {
		w.fault("%s: %v", n.name, err)
	}
}

func (w *world) stopNode(n *node) {
	if !n.up() {
		return
	}
	w.say("%s: stops", n.name)
	if err := n.stop(); err != nil {
		w.fault("%s: stop: %v", n.name, err)
	}
}

func (w *world) stepClock(n *node) {
	c := n.clock
	if w.steady || w.rng.IntN(3) == 0 {
		c = w.witnessClock
	}
	if c.offset != 0 && w.rng.IntN(3) > 0 {
		c.offset = 0 // somebody has noticed
	} else {
		c.offset += time.Duration(w.rng.IntN(40)-20) * time.Second
	}
	w.look(c)
	w.say("wall clock of %s steps to %v off", n.name, c.offset)
}

// restartWitness restarts the daemon, sometimes with its machine, sometimes leaving it down.
func (w *world) restartWitness() {
	if w.witness != nil {
		if err := w.witness.Close(); err != nil {
			w.fault("witness: close: %v", err)
		}
		w.witness = nil
		w.say("witness down")
		if w.rng.IntN(3) == 0 {
			return
		}
	}
	if w.rng.IntN(3) == 0 {
		w.boot++
	}
	if err := w.openWitness(); err != nil {
		w.fault("witness: open: %v", err)
	}
	w.say("witness up, boot %d", w.boot)
}

// copyNode starts the life of a copy of n's disk.
func (w *world) copyNode(n *node) {
	if len(w.nodes) == maxNodes {
		return
	}
	name := string(rune('a' + len(w.nodes)))
	dir := filepath.Join(w.dir, name)
	fs, err := n.copyTo(dir)
	if err != nil {
		w.fault("copy: %v", err)
		return
	}
	machine := n.clock
	if w.rng.IntN(2) == 0 {
		machine = w.machine()
	}
	c := &node{w: w, name: name, dir: dir, made: n.made, fs: fs, clock: machine, lineage: n.lineage.clone(w.tick)}
	c.link = &link{w: w, holder: n.link.holder}
	w.nodes = append(w.nodes, c)
	w.say("%s is a copy of %s", name, n.name)
}

// A backup is a copy of a disk that nobody runs on.
type backup struct {
	name, dir string
	fs        *simfs.FS
	lineage   *lineage
}

const maxBackups = 4

// restore makes a copy of n's disk, or puts an older one in its place when n is down.
func (w *world) restore(n *node) {
	if !n.up() && len(w.backups) > 0 && w.rng.IntN(2) == 0 {
		i := w.rng.IntN(len(w.backups))
		b := w.backups[i]
		w.backups = slices.Delete(w.backups, i, i+1)
		w.dropped = append(w.dropped, n.lineage)
		n.dir, n.fs, n.lineage = b.dir, b.fs, b.lineage
		w.seen.restores++
		w.say("%s gets back %s", n.name, b.name)
		return
	}
	if w.copies++; w.copies > maxBackups {
		return
	}
	b := backup{name: fmt.Sprintf("copy %d of %s", w.copies, n.name), lineage: n.lineage.clone(w.tick)}
	b.dir = filepath.Join(w.dir, fmt.Sprintf("backup%d", w.copies))
	var err error
	if b.fs, err = n.copyTo(b.dir); err != nil {
		w.fault("backup: %v", err)
		return
	}
	w.backups = append(w.backups, b)
	w.say("%s is made", b.name)
}

// finish heals everything and expects each disk to come back with all it promised.
func (w *world) finish() {
	for _, n := range w.nodes {
		w.mend(n)
		n.clock.offset = 0
	}
	w.witnessClock.offset = 0
	w.healClients()
	for _, n := range w.nodes {
		for _, o := range w.nodes {
			if o.up() {
				w.stopNode(o)
			}
		}
		w.advance(2 * time.Minute) // past every lease, also one that a reboot prolonged
		if w.over() {
			return
		}
		if started, err := n.start(); err != nil || !started {
			w.fault("%s: does not come back: started=%v: %v", n.name, started, err)
			return
		}
		if !n.up() {
			w.fault("%s: ended right after its start", n.name)
			return
		}
		w.verify(n)
		w.converge(n)
	}
}
