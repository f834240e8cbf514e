package store

import (
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"coordinator/frames"
)

// A Store is an open store. One goroutine, the writer, calls Begin, Commit, Cut, Maintain,
// CheckpointStep and Close, and what a [Flight] needs of it, and uses what Begin returns; every
// other method may be called from any goroutine.
type Store struct {
	dir  string
	opts Options
	log  *log
	hist *history
	cuts cutSet

	meters *Meters

	// Owned by the writer.
	mem            memory
	state          State       // of memory: that of the last commit that was applied
	txs            [2]Tx       // one is built while the other is written
	turn           int         // which of txs Begin gives
	view           Tx          // see View
	sealed         *Flight     // not yet applied
	applied        *Flight     // not yet landed
	job            *checkpoint // under way
	dropped        uint64      // finished checkpoints whose overlay is gone
	lastCheckpoint time.Duration
	heldOps        int    // of the active overlay, what the last checkpoint had to leave to it
	heldWeight     uint64 // and its bytes
	clean          bool   // the log ends in a record with flagClean

	// Owned by whoever steps checkpoints: the commit of each key in bucket carry.
	carried map[Key]uint64

	known known

	completed  atomic.Uint64 // checkpoints finished in state.db
	eventBytes atomic.Uint64
	rebound    atomic.Bool // eventBytes has changed since the last checkpoint began
	published  atomic.Pointer[State]

	jobs     chan *checkpoint // to checkpointLoop; capacity 1
	finished chan *checkpoint // back to the writer; capacity 1
	written  chan struct{}    // see Written; capacity 1
	quit     chan struct{}
	joined   chan struct{} // closed by checkpointLoop

	mu     sync.Mutex
	err    error         // guarded by mu; first failure
	done   chan struct{} // closed when err is set
	closed bool          // guarded by mu
}

// State is the state after the last commit.
func (s *Store) State() State { return *s.published.Load() }

// Err is the failure that ended the store, or nil. Done is closed when there is one, also
// when a checkpoint in the background met it.
func (s *Store) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Done is closed when the store has failed.
func (s *Store) Done() <-chan struct{} { return s.done }

func (s *Store) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
		close(s.done)
	}
}

// readFault ends the store when a read met damage, or a value that only a newer program
// writes: no later read would find anything better.
func (s *Store) readFault(err error) error {
	var damaged *CorruptError
	var newer *SchemaError
	if errors.As(err, &damaged) || errors.As(err, &newer) {
		s.fail(err)
	}
	return err
}

// SetEventBytes sets how many bytes of log stay for replays behind the checkpoint, rounded
// up to whole segments. Zero keeps everything.
//
// A bound that leaves out what is there frees it at the next Maintain or Commit.
func (s *Store) SetEventBytes(n uint64) {
	s.eventBytes.Store(n)
	s.rebound.Store(true)
}

// keepFrom is the first commit of the oldest segment to keep once commit has been applied.
func (s *Store) keepFrom(commit uint64) uint64 {
	if n := s.eventBytes.Load(); n > 0 {
		return s.log.keepFrom(commit, n)
	}
	return s.log.oldest()
}

// Loaded is what Prefetch read, for Tx.Use.
type Loaded struct {
	pos   uint64
	rows  found
	heads found // without their payloads
}

var nothingLoaded = new(Loaded)

// found is what a look-up found: one row for each key, nil where there is none.
type found struct {
	keys  []Key
	rows  []*row
	index map[Key]int // of more keys than one likes to walk over
}

// walkedKeys is how many keys are compared faster than hashed.
const walkedKeys = 16

func (f *found) find(k Key) (r *row, known bool) {
	if f.index != nil {
		i, known := f.index[k]
		if !known {
			return nil, false
		}
		return f.rows[i], true
	}
	for i := range f.keys {
		if f.keys[i] == k {
			return f.rows[i], true
		}
	}
	return nil, false
}

// Prefetch reads the history rows of refs from state.db, so that the writer finds them in
// memory. It may fail with a CorruptError, which ends the store.
func (s *Store) Prefetch(refs []frames.ObjectRef) (*Loaded, error) {
	return s.PrefetchHeads(refs, nil)
}

// Begin starts a transaction and ends the one before, unless that one was sealed. Writer
// only, and not while a flight is sealed and not yet applied.
func (s *Store) Begin() *Tx {
	s.pickUp()
	tx := &s.txs[s.turn]
	tx.reset(s)
	return tx
}

// View is a transaction for reading alone: it disturbs none that is under construction, and
// lasts until the next View. Writer only, and not between a flight's Apply and its Land.
func (s *Store) View() *Tx {
	s.onGround("a view")
	s.pickUp()
	s.view.reset(s)
	return &s.view
}

// Written receives after a checkpoint has ended. What it has written stays in memory, too,
// until the writer's next commit, or until it calls Maintain.
func (s *Store) Written() <-chan struct{} { return s.written }

// Maintain does what Commit does after a commit: it takes over a finished checkpoint and
// begins the next when it is due. For a writer that has nothing to commit. Writer only.
func (s *Store) Maintain() { s.maintain() }

// Commit makes the transaction durable and then visible: one record, one flush, then the
// trees. An empty transaction writes nothing. Now is recorded with the commit.
//
// ErrOutcomeUnknown means that a write or a flush failed: the store takes no more commits
// and only Open can tell. Any other error means that nothing was written. Writer only.
func (s *Store) Commit(tx *Tx, now time.Time) (Batch, error) {
	f, err := s.Seal(tx, now)
	if err != nil {
		return Batch{}, err
	}
	if err := f.Write(); err != nil {
		return Batch{}, err
	}
	s.Apply(f)
	return s.Land(f), nil
}

func newBatch(tx *Tx, now time.Time) (Batch, error) {
	b := Batch{Commit: tx.commit, Time: now, First: frames.EventSequence(tx.base) + 1, Last: frames.EventSequence(tx.head)}
	b.Events = make([]Event, 0, tx.Events())
	internals := 0
	for i := range tx.items {
		if it := &tx.items[i]; it.op == itemRow && internal(it.row.key.Kind()) || it.op == itemRemove && internal(it.ref.Kind) {
			internals++
		}
	}
	b.Internal = slices.Grow(b.Internal, internals)
	for i := range tx.items {
		it := &tx.items[i]
		switch it.op {
		case itemRow:
			if internal(it.row.key.Kind()) {
				b.Internal = append(b.Internal, Internal{Row: it.row.Row})
				continue
			}
			b.Silent = append(b.Silent, Silent{Ref: it.row.key.Ref(), Seq: it.seq})
		case itemRemove:
			if internal(it.ref.Kind) {
				b.Internal = append(b.Internal, Internal{
					Row: Row{Record: frames.SnapshotRecord{Kind: it.ref.Kind, ID: it.ref.ID}}, Removed: true,
				})
				continue
			}
			b.Silent = append(b.Silent, Silent{Ref: it.ref, Seq: it.seq, Removed: true})
		default:
			ev, ok, err := it.event()
			if err != nil {
				return Batch{}, err
			}
			if ok {
				b.Events = append(b.Events, ev)
			}
		}
	}
	return b, nil
}

var errCounts = errors.New("a removal has no row to remove")

// apply brings one commit into memory. Commit and recovery both use it, and nothing else
// changes the trees.
func (s *Store) apply(h recordHead, items []item) error {
	for i := range items {
		it := &items[i]
		if it.prev != nil && !internal(it.prev.key.Kind()) {
			s.cuts.charge(it.prev.commit, h.commit, it.prev.weight())
		}
		switch it.op {
		case itemEvent, itemRow:
			s.mem.set(&change{key: it.row.key, row: it.row, commit: h.commit, fresh: it.fresh})
			if it.created {
				s.mem.counts.add(it.row.key.Kind(), it.row.Principal)
			}
			if it.row.key.Kind() == frames.KindAdmin {
				s.state.AdminHead = frames.EventCut(it.seq)
			}
		case itemRemove:
			s.mem.set(&change{key: KeyOf(it.ref), commit: h.commit})
			if it.created && !s.mem.counts.sub(it.ref.Kind, it.principal) {
				return errCounts
			}
		case itemInstall:
			s.install(it.install)
		}
	}
	s.state.Head = frames.EventCut(h.base) + frames.EventCut(h.count)
	s.state.Commit = h.commit
	return nil
}

func (s *Store) install(in *install) {
	s.state.Epoch, s.state.Activation, s.state.TokenSHA256 = in.epoch, in.activation, in.token
	// Copied, because published states share the old one.
	bases := append(slices.Clone(s.state.Bases), frames.ActivationBase{Activation: in.activation, Base: in.base})
	s.state.Bases = bases[max(0, len(bases)-frames.MaxActivationBases):]
}

func (s *Store) publish() {
	st := s.state
	st.Counts = maps.Clone(s.mem.counts.kinds)
	s.published.Store(&st)
}

// Close finishes the checkpoint under way, makes a last one, marks the log as cleanly
// ended and closes the files. After a failure it only closes them. Writer only; cuts and
// prefetches answer ErrClosed from then on.
func (s *Store) Close() error {
	whole := !s.aloft() // or else nobody knows what the log has, and recovery decides
	if !s.join(whole && s.Err() == nil) {
		return nil
	}
	err := s.Err()
	if err == nil && whole {
		err = s.settle()
	}
	return errors.Join(err, s.release())
}

// Abandon closes the files as a crash would leave them: nothing more is written. Writer
// only.
func (s *Store) Abandon() error {
	if !s.join(false) {
		return nil
	}
	return s.release()
}

// join ends the checkpoint goroutine, after its job if finish is set. It reports false when
// the store was closed before.
func (s *Store) join(finish bool) bool {
	s.mu.Lock()
	again := s.closed
	s.closed = true
	s.mu.Unlock()
	if again {
		return false
	}
	if !finish {
		close(s.quit)
	}
	close(s.jobs)
	if !s.opts.Manual {
		<-s.joined
	}
	return true
}

// settle leaves a store that opens without replay or page check.
func (s *Store) settle() error {
	if s.clean {
		return nil
	}
	for range 2 { // the one under way, and what came after it
		s.pickUp()
		if s.job == nil && !s.startCheckpoint() {
			break
		}
		for done := false; !done; {
			var err error
			if done, err = s.job.step(); err != nil {
				return err
			}
		}
		s.takeOver(s.job)
	}
	h := recordHead{commit: s.state.Commit + 1, base: uint64(s.state.Head), flags: flagClean, time: s.opts.Clock.Now().Wall.UnixNano()}
	_, err := s.log.append(make([]byte, recordHeader), h, nil)
	return err
}

func (s *Store) release() error {
	s.fail(ErrClosed)
	return errors.Join(s.log.close(), s.hist.close())
}

// Stats are sizes that an operator wants to see.
type Stats struct {
	LogBytes    int64 // of the log's files, unused ends and the segment made ahead included
	LogSegments int   // with records, or open for them
	StateBytes  int64 // of the pages of state.db
	FreeBytes   int64 // of those, unused
	OpenCuts    int
	OpenReplays int // that hold segments
}

// Stats returns the current sizes.
func (s *Store) Stats() (Stats, error) {
	var st Stats
	s.log.mu.RLock()
	st.LogSegments = len(s.log.segs)
	for _, seg := range s.log.segs {
		st.OpenReplays += seg.holds
	}
	s.log.mu.RUnlock()
	s.cuts.mu.Lock()
	st.OpenCuts = len(s.cuts.open)
	s.cuts.mu.Unlock()
	files, err := s.log.fs.List(s.log.dir)
	if err != nil {
		return st, ioError("list", s.log.dir, err)
	}
	for _, f := range files {
		st.LogBytes += f.Size
	}
	st.StateBytes, st.FreeBytes, err = s.hist.sizes()
	return st, err
}

func logPath(dir string) string   { return filepath.Join(dir, logName) }
func statePath(dir string) string { return filepath.Join(dir, stateName) }
