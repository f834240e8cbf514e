package store

import (
	bolt "go.etcd.io/bbolt"
)

// A checkpoint writes one frozen overlay into state.db, a few thousand sorted keys per
// transaction. What it applied counts only with its last transaction; until then the log
// is replayed over whatever it got done, and the same rows come out.
//
// It changes nothing that the writer owns. The writer takes the finished checkpoint over
// at its next Begin or Commit.
type checkpoint struct {
	s      *Store
	frozen *overlay
	final  *applied // written by the last transaction
	pivot  Key      // every key up to here is done
	begun  bool
	watch  stopwatch

	carry []*change // changes that an open cut holds back; the writer adopts them
	room  []byte    // of one transaction's values after the other's: bbolt keeps none longer
}

// roomBytes is the least room for values that is made at a time.
const roomBytes = 64 << 10

// step runs one transaction. After an error the store is finished.
func (c *checkpoint) step() (done bool, err error) {
	batch, last := c.next()
	var held []*change
	h := c.s.hist
	err = h.update(func(tx *bolt.Tx) error {
		held, c.room = held[:0], c.room[:0]
		w, err := newPlacer(c, tx)
		if err != nil {
			return err
		}
		if !c.begun {
			// Rows of later commits than the last whole checkpoint are about to be there.
			if err := w.meta.Put(keyTarget, encodeTarget(c.final.state.Commit)); err != nil {
				return err
			}
		}
		for _, ch := range batch {
			back, err := w.place(ch)
			if err != nil {
				return err
			}
			if back {
				held = append(held, ch)
			}
		}
		if !last {
			return nil
		}
		c.final.logFrom = c.s.keepFrom(c.final.state.Commit)
		return w.meta.Put(keyCheckpoint, c.final.encode())
	})
	if err != nil {
		return false, err
	}
	c.begun = true
	c.settle(batch, held)
	if !last {
		return false, nil
	}
	c.s.completed.Add(1)
	c.watch.took(c.s.meters.Checkpoint)
	return true, c.s.log.drop(c.final.logFrom)
}

// next picks the keys of one transaction and says whether they are the last.
func (c *checkpoint) next() (batch []*change, last bool) {
	last = true
	var bytes uint64
	c.frozen.tree.Ascend(&c.pivot, func(ch *change) bool {
		if ch.key == c.pivot {
			return true
		}
		if len(batch) == c.s.opts.CheckpointKeys || bytes > checkpointTxBytes {
			last = false
			return false
		}
		batch = append(batch, ch)
		bytes += ch.weight()
		return true
	})
	return batch, last
}

// settle remembers a transaction that is on disk.
func (c *checkpoint) settle(batch, held []*change) {
	for _, ch := range batch {
		delete(c.s.carried, ch.key)
	}
	for _, ch := range held {
		c.s.carried[ch.key] = ch.commit
	}
	c.carry = append(c.carry, held...)
	if len(batch) > 0 {
		c.pivot = batch[len(batch)-1].key
	}
}

// A placer puts changes into the buckets of one transaction.
type placer struct {
	c                          *checkpoint
	meta, live, history, carry *bolt.Bucket
}

func newPlacer(c *checkpoint, tx *bolt.Tx) (*placer, error) {
	w := &placer{c: c}
	for _, b := range []struct {
		name []byte
		dst  **bolt.Bucket
	}{{bucketMeta, &w.meta}, {bucketLive, &w.live}, {bucketHistory, &w.history}, {bucketCarry, &w.carry}} {
		var err error
		if *b.dst, err = c.s.hist.bucket(tx, b.name); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// place writes one change. It reports true when an open cut still needs the history row
// that the change replaces: the change then stays in memory, and in bucket carry, until a
// later checkpoint. Inserting never disturbs a cut, which skips rows of later commits, and
// no cut reads the live bucket. What is fresh replaces nothing, and is in no carry.
func (w *placer) place(ch *change) (held bool, err error) {
	key := ch.key[:]
	if ch.fresh {
		if ch.row.Live {
			return false, w.live.Put(key, w.encode(ch))
		}
		return false, w.insert(ch)
	}
	if ch.row != nil && ch.row.Live {
		err = w.live.Put(key, w.encode(ch))
	} else {
		err = w.live.Delete(key)
	}
	if err != nil {
		return false, err
	}
	wanted := ch.row != nil && !ch.row.Live
	old := w.history.Get(key)
	if old != nil {
		commit, err := w.c.s.hist.commitOf(bucketHistory, key, old)
		switch {
		case err != nil:
			return false, err
		case commit == ch.commit && wanted:
			return false, w.release(ch) // done by a checkpoint that did not finish
		case commit > ch.commit:
			return false, corrupt(w.c.s.hist.path, -1, "history has commit %d of a row whose newest is %d", commit, ch.commit)
		case !internal(ch.key.Kind()) && w.c.s.cuts.charge(commit, ch.commit, w.weight(ch)):
			return true, w.hold(ch)
		}
	}
	switch {
	case wanted:
		err = w.insert(ch)
	case old != nil:
		err = w.history.Delete(key)
	}
	if err != nil {
		return false, err
	}
	return false, w.release(ch)
}

// encode lays a change out where it stays until the transaction has ended.
func (w *placer) encode(ch *change) []byte {
	c := w.c
	if n := changeSize(ch); cap(c.room)-len(c.room) < n {
		c.room = make([]byte, 0, max(n, min(2*cap(c.room), checkpointTxBytes), roomBytes)) // the values so far stay where they are
	}
	from := len(c.room)
	c.room = appendChange(c.room, ch)
	return c.room[from:len(c.room):len(c.room)]
}

// insert puts a history row, and nothing else does.
func (w *placer) insert(ch *change) error {
	w.c.s.known.note(&ch.key)
	return w.history.Put(ch.key[:], w.encode(ch))
}

// weight is what holding ch back costs the cuts: nothing when they have paid already.
func (w *placer) weight(ch *change) uint64 {
	if _, paid := w.c.s.carried[ch.key]; paid {
		return 0
	}
	return ch.weight()
}

func (w *placer) hold(ch *change) error {
	if w.c.s.carried[ch.key] == ch.commit {
		return nil
	}
	return w.carry.Put(ch.key[:], w.encode(ch))
}

func (w *placer) release(ch *change) error {
	if _, held := w.c.s.carried[ch.key]; !held {
		return nil
	}
	return w.carry.Delete(ch.key[:])
}

// checkpointLoop runs checkpoints until jobs is closed or quit, and between them learns what
// state.db has. It owns carried and known.
func (s *Store) checkpointLoop() {
	defer close(s.joined)
	for {
		job, ok := s.nextJob()
		if !ok {
			return
		}
		for done := false; !done; {
			select {
			case <-s.quit:
				return
			default:
			}
			var err error
			if done, err = job.step(); err != nil {
				s.fail(err)
				return
			}
		}
		s.finished <- job
		select {
		case s.written <- struct{}{}:
		default:
		}
	}
}

// nextJob waits for a checkpoint to run, and makes use of the time.
func (s *Store) nextJob() (job *checkpoint, ok bool) {
	for more := true; more; {
		select {
		case <-s.quit:
			return nil, false
		case job, ok = <-s.jobs:
			return job, ok
		default:
			more = s.known.walk(s.hist)
		}
	}
	job, ok = <-s.jobs
	return job, ok
}

// startCheckpoint freezes the active overlay and hands it on, unless one is under way or
// there is nothing to write. One without changes records that segments may go, which nobody
// holds any more or which a new bound leaves out. None is begun while a commit is in flight,
// which memory may have and the disk may lose. Writer only.
func (s *Store) startCheckpoint() bool {
	if s.job != nil || s.clean || s.aloft() || s.mem.active.tree.Len() == 0 && !s.log.drops(s.keepFrom(s.state.Commit)) {
		return false
	}
	counts := newTallies()
	for k, n := range s.mem.counts.kinds {
		counts.kinds[k] = n
	}
	counts.ops = s.mem.counts.ops.Copy()
	s.job = &checkpoint{
		s: s, frozen: s.mem.active, watch: startWatch(),
		final: &applied{state: s.state, chain: s.log.cur.tail, counts: counts},
	}
	s.mem.frozen, s.mem.active = s.mem.active, newOverlay()
	s.heldOps, s.heldWeight = 0, 0
	s.lastCheckpoint = s.opts.Clock.Now().Boot
	return true
}

// takeOver drops the overlay of a finished checkpoint. Writer only.
func (s *Store) takeOver(job *checkpoint) {
	s.mem.frozen = nil
	s.job = nil
	s.dropped++
	active := s.mem.active
	ops, weight := active.ops, active.weight
	for _, c := range job.carry {
		active.adopt(c)
	}
	s.heldOps, s.heldWeight = active.ops-ops, active.weight-weight
}

// pickUp takes a finished checkpoint over. Writer only.
func (s *Store) pickUp() {
	select {
	case job := <-s.finished:
		s.takeOver(job)
	default:
	}
}

// maintain takes a finished checkpoint over and starts the next one when it is due. It
// waits only when the disk is so far behind that memory would fill. Writer only.
func (s *Store) maintain() {
	s.pickUp()
	if s.clean {
		return // nothing was committed since Open, and the clean mark must stay true
	}
	if s.due(behindFactor) && s.job != nil && !s.opts.Manual {
		s.meters.Behind.Add(1)
		s.opts.Logger.Warn("store: commits wait for the checkpoint; the disk is behind",
			"changes", s.mem.active.ops, "bytes", s.mem.active.weight)
		select {
		case job := <-s.finished:
			s.takeOver(job)
		case <-s.done:
			return
		}
	}
	if s.job != nil {
		return
	}
	late := s.opts.Clock.Now().Boot-s.lastCheckpoint >= s.opts.CheckpointEvery
	if (s.rebound.Swap(false) || late || s.due(1)) && !s.opts.Manual && s.startCheckpoint() {
		s.jobs <- s.job // never blocks: one job at a time
	}
}

// due reports whether so many checkpoints have gathered. What cuts held back from the last one
// does not count: the next would find it held as well, and then the one after that.
func (s *Store) due(factor int) bool {
	ops := s.mem.active.ops - s.heldOps
	weight := s.mem.active.weight - min(s.mem.active.weight, s.heldWeight)
	return ops >= factor*s.opts.CheckpointOps || weight >= uint64(factor)*s.opts.CheckpointBytes ||
		s.scarce(weight/uint64(factor))
}

// scarce reports whether a checkpoint of this weight must not grow because the disk is nearly at
// its reserve: what memory has and state.db has not needs room there, too, and two generations
// of it leave half of the reserve to what it is for.
func (s *Store) scarce(weight uint64) bool {
	share := s.opts.ReserveBytes / 4
	return share > 0 && weight >= share && s.opts.FreeBytes() < s.opts.ReserveBytes+scarceCheckpoints*s.opts.CheckpointBytes
}

// CheckpointStep runs one checkpoint transaction in manual mode, beginning a checkpoint if
// none is under way, and reports whether more are needed. The writer takes the finished
// checkpoint over at its next Begin or Commit. Writer only.
func (s *Store) CheckpointStep() (more bool, err error) {
	if err := s.Err(); err != nil {
		return false, &failedError{err}
	}
	if len(s.finished) > 0 || s.job == nil && !s.startCheckpoint() {
		return false, nil
	}
	done, err := s.job.step()
	if err != nil {
		s.fail(err)
		return false, err
	}
	if done {
		s.finished <- s.job
		for s.known.walk(s.hist) {
		}
	}
	return !done, nil
}
