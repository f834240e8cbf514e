package owner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/boltfile"
	"coordinator/internal/clock"
	"coordinator/internal/durable"
)

const (
	lockFile = "owner.lock"
	// DefaultMaxOutput is how much output of one process is stored unless the configuration
	// says otherwise.
	DefaultMaxOutput = 1 << 30
	// DefaultMaxProcesses is how many processes may run at once.
	DefaultMaxProcesses = 1024
	// keepRows is how long rows outlive their incarnation ([D-47]).
	keepRows = 30 * 24 * time.Hour
	// stopGrace bounds grace_secs when the owner stops.
	stopGrace = 5 * time.Second
	// parallelStarts is how many processes are started at the same time.
	parallelStarts = 16
)

// Options configure [Open].
type Options struct {
	// Fingerprint is that of the owner's authority key, Incarnation that of this start.
	Fingerprint frames.Fingerprint
	Incarnation frames.IncarnationID
	// Groups are the terminal groups that are served. At least one.
	Groups []frames.GroupID
	// WitnessID and WitnessPublicKey pin the witness whose certificates count.
	WitnessID        frames.WitnessID
	WitnessPublicKey [32]byte
	// MaxOutput bounds the stored output of one process. Zero means 1 GiB.
	MaxOutput uint64
	// MaxProcesses bounds what runs at once. Zero means 1,024.
	MaxProcesses int
	// Home is where a process without a cwd starts. Empty means /.
	Home string
	// Environ is the owner's own environment, of which a process gets the basic part.
	Environ []string
	// BootID is [BootID]; process ids and start times compare only within one.
	BootID string
	Clock  clock.Clock
	// Logger gets a line per process and per authority. Nil discards.
	Logger *slog.Logger

	launch  launcher         // nil: the system's
	schemas boltfile.Schemas // nil: the program's
}

// An Owner runs processes and keeps the journal of them. One is open per directory.
type Owner struct {
	opt    Options
	dir    string
	log    *slog.Logger
	lock   *durable.Lock
	j      *journal
	launch launcher
	meters *Meters

	stopping chan struct{}  // closed when Close begins
	wg       sync.WaitGroup // effects in hand and bindings; added to under mu, before closed
	starts   chan struct{}  // one token per process that is being started

	mu       sync.Mutex
	closed   bool                                      // guarded by mu
	live     map[frames.BindingID]*binding             // guarded by mu
	inHand   map[frames.EffectAttemptID]*hand          // guarded by mu; journaled, without an outcome
	places   int                                       // guarded by mu; processes that run or are being started
	fences   map[frames.CoordinatorID]*fence           // guarded by mu
	watchers map[frames.BindingID]map[watcher]struct{} // guarded by mu
	resource uint32                                    // guarded by mu; last local resource id
}

// A watcher is told that a binding has new facts. It must not wait.
type watcher interface{ factsCame(frames.BindingID) }

// Create makes the journal and the output directory of a new owner in dir, a private directory.
// It refuses with an error matching fs.ErrExist when there is a journal.
func Create(dir string, owner frames.Fingerprint) error {
	if err := durable.CheckPrivateDir(dir); err != nil {
		return err
	}
	if err := durable.MkdirPrivate(filepath.Join(dir, outputDir)); err != nil {
		return err
	}
	return createJournal(filepath.Join(dir, journalFile), owner)
}

// Open locks dir, checks the journal completely, ends what former incarnations left running,
// and returns the owner. It never makes a journal. The program must have called [RunHeld] first
// of all, since processes begin as copies of it. Errors: *durable.HeldError (another
// instance), *[MissingError], *[CorruptError], *[SchemaError], *[IdentityError],
// *[UnsupportedError], *durable.UnsafeFileError.
func Open(dir string, o Options) (*Owner, error) {
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("open owner: %w", err)
	}
	if o.launch == nil {
		var err error
		if o.launch, err = newLauncher(); err != nil {
			return nil, err
		}
	}
	if err := durable.CheckPrivateDir(dir); err != nil {
		return nil, err
	}
	lock, err := durable.Acquire(filepath.Join(dir, lockFile))
	if err != nil {
		return nil, err
	}
	w := &Owner{
		opt: o, dir: dir, log: o.Logger, lock: lock, launch: o.launch,
		stopping: make(chan struct{}), starts: make(chan struct{}, parallelStarts),
		live: map[frames.BindingID]*binding{}, inHand: map[frames.EffectAttemptID]*hand{},
		fences: map[frames.CoordinatorID]*fence{}, watchers: map[frames.BindingID]map[watcher]struct{}{},
	}
	if w.j, err = openJournal(filepath.Join(dir, journalFile), o.Fingerprint, o.schemas, func(line string) { o.Logger.Info("file is migrated", "step", line) }); err == nil {
		w.meters = &Meters{Journal: w.j.took}
		if err = w.adopt(); err != nil {
			err = errors.Join(err, w.j.close())
		}
	}
	if err != nil {
		return nil, errors.Join(err, lock.Release())
	}
	return w, nil
}

func (o *Options) check() error {
	switch {
	case o.Fingerprint == (frames.Fingerprint{}) || o.Incarnation == (frames.IncarnationID{}):
		return errors.New("fingerprint or incarnation is missing")
	case len(o.Groups) == 0 || len(o.Groups) > MaxGroups:
		return fmt.Errorf("an owner serves 1 to %d groups", MaxGroups)
	case o.WitnessID == (frames.WitnessID{}):
		return errors.New("the witness is not pinned")
	case o.BootID == "" || len(o.BootID) > maxBootID:
		return errors.New("the boot id is missing or too long")
	case o.Clock == nil:
		return errors.New("the clock is missing")
	}
	if err := handshake.CheckPublicKey(o.WitnessPublicKey[:]); err != nil {
		return fmt.Errorf("witness public key: %w", err)
	}
	if o.MaxOutput == 0 {
		o.MaxOutput = DefaultMaxOutput
	}
	if o.MaxProcesses == 0 {
		o.MaxProcesses = DefaultMaxProcesses
	}
	if o.Home == "" {
		o.Home = "/"
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.schemas == nil {
		o.schemas = schemas
	}
	return nil
}

// Incarnation is this start's.
func (o *Owner) Incarnation() frames.IncarnationID { return o.opt.Incarnation }

// Failed is closed when the journal could not be written: the process must stop.
func (o *Owner) Failed() <-chan struct{} { return o.j.failing }

// Err is why the journal could not be written, once Failed is closed; it matches [ErrFailed].
func (o *Owner) Err() error {
	select {
	case <-o.j.failing:
		return o.j.failed
	default:
		return nil
	}
}

// Processes is how many run.
func (o *Owner) Processes() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.live)
}

// Turn returns nil once the writer of the journal has come round after the call: nothing that
// it stores is stuck in the disk. It waits for that, however long, and fails as every request
// then does.
func (o *Owner) Turn(context.Context) error {
	o.Processes() // and nobody holds the lock
	return o.j.update(func(*txn) error { return nil })
}

// Close ends the processes (SIGTERM, then SIGKILL after at most 5 s), records their ends, and
// gives the journal and the lock up. The servers over this owner must have ended.
func (o *Owner) Close() error {
	o.mu.Lock()
	if o.closed {
		o.mu.Unlock()
		return nil
	}
	o.closed = true
	close(o.stopping)
	o.mu.Unlock()
	o.wg.Wait()
	err := o.j.update(func(t *txn) error {
		own := o.opt.Incarnation
		var row incarnationRow
		if t.get(bucketIncarnations, own[:], &row) {
			row.Ended = o.opt.Clock.Now().Unix()
			t.put(bucketIncarnations, own[:], &row)
		}
		return nil
	})
	return errors.Join(err, o.j.close(), o.lock.Release())
}

// adopt takes the journal over from the incarnations before: their processes are killed, their
// intents without an outcome get the final one INDETERMINATE, and their rows are kept for 30
// days.
func (o *Owner) adopt() error {
	former := map[frames.BindingID]bindingRow{}
	if err := o.j.view(func(t *txn) error {
		var row bindingRow
		t.each(bucketBindings, &row, func(key []byte) {
			if row.State == bindingHeld || row.State == bindingLive {
				former[frames.BindingID(key)] = row
			}
		})
		return nil
	}); err != nil {
		return err
	}
	for id, row := range former {
		if row.BootID != o.opt.BootID {
			continue // that boot's processes are gone, and its numbers are others'
		}
		if err := o.launch.endFormer(identity{row.Group, row.StartTime}); err != nil {
			return fmt.Errorf("former process of binding %s: %w", id, err)
		}
	}
	var removed []frames.BindingID
	if err := o.j.update(func(t *txn) error {
		o.closeFormer(t, former)
		removed = o.prune(t)
		return nil
	}); err != nil {
		return err
	}
	if len(former) > 0 {
		o.log.Info("processes of a former incarnation were ended", "count", len(former))
	}
	return o.sweepOutput(removed)
}

func (o *Owner) closeFormer(t *txn, former map[frames.BindingID]bindingRow) {
	now, own := o.opt.Clock.Now().Unix(), o.opt.Incarnation
	for id, row := range former {
		row.State = bindingLost
		t.putBinding(id, &row)
	}
	var attempt attemptRow
	open := map[frames.EffectAttemptID]attemptRow{}
	t.each(bucketAttempts, &attempt, func(key []byte) {
		if attempt.State == frames.EffectDispatched {
			open[frames.EffectAttemptID(key)] = attempt
		}
	})
	for id, row := range open {
		row.State, row.Message = frames.EffectIndeterminate, "the owner ended before it knew the outcome"
		t.putAttempt(id, &row)
	}
	var inc incarnationRow
	running := map[frames.IncarnationID]incarnationRow{}
	t.each(bucketIncarnations, &inc, func(key []byte) {
		if inc.Ended == 0 {
			running[frames.IncarnationID(key)] = inc
		}
	})
	for id, row := range running {
		row.Ended = now
		t.put(bucketIncarnations, id[:], &row)
	}
	t.put(bucketIncarnations, own[:], &incarnationRow{Started: now})
	var auth authorityRow
	t.each(bucketAuthorities, &auth, func(key []byte) {
		o.fences[frames.CoordinatorID(key)] = newFence(auth)
	})
}

// prune removes the rows of incarnations that ended long enough ago, but none whose facts
// still wait for their coordinator. It returns the bindings whose output goes with them.
func (o *Owner) prune(t *txn) (gone []frames.BindingID) {
	now := o.opt.Clock.Now().Unix()
	old := map[frames.IncarnationID]bool{}
	var inc incarnationRow
	t.each(bucketIncarnations, &inc, func(key []byte) {
		if inc.Ended != 0 && inc.Ended+uint64(keepRows/time.Second) <= now {
			old[frames.IncarnationID(key)] = true
		}
	})
	if len(old) == 0 {
		return nil
	}
	waiting := map[frames.EffectAttemptID]bool{}
	kept := map[frames.IncarnationID]bool{}
	var b bindingRow
	t.each(bucketBindings, &b, func(key []byte) {
		switch {
		case !old[b.Incarnation]:
		case b.unacked():
			waiting[b.Attempt], kept[b.Incarnation] = true, true
		default:
			gone = append(gone, frames.BindingID(key))
		}
	})
	dead := map[frames.EffectAttemptID]bool{}
	var a attemptRow
	t.each(bucketAttempts, &a, func(key []byte) {
		if id := frames.EffectAttemptID(key); old[a.Incarnation] && !waiting[id] {
			dead[id] = true
		}
	})
	var index [][]byte
	var i indexRow
	t.each(bucketIndex, &i, func(key []byte) {
		if dead[i.Attempt] {
			index = append(index, append([]byte(nil), key...))
		}
	})
	for _, key := range index {
		t.remove(bucketIndex, key)
	}
	for id := range dead {
		t.remove(bucketAttempts, id[:])
	}
	for _, id := range gone {
		t.removeFacts(id, AckAll, false)
		t.remove(bucketBindings, id[:])
	}
	for id := range old {
		if !kept[id] {
			t.remove(bucketIncarnations, id[:])
		}
	}
	return gone
}

// Prune removes what has been kept for long enough. It is called now and then by a long-lived
// process; Open does the same.
func (o *Owner) Prune() error {
	var gone []frames.BindingID
	if err := o.j.update(func(t *txn) error {
		gone = o.prune(t)
		return nil
	}); err != nil {
		return err
	}
	return o.removeOutput(gone)
}

func (o *Owner) removeOutput(gone []frames.BindingID) error {
	for _, id := range gone {
		if err := os.Remove(outputPath(o.dir, id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// sweepOutput removes the output of bindings that are gone, and files that no binding names:
// their process was never released.
func (o *Owner) sweepOutput(gone []frames.BindingID) error {
	if err := o.removeOutput(gone); err != nil {
		return err
	}
	if err := durable.MkdirPrivate(filepath.Join(o.dir, outputDir)); err != nil {
		return err
	}
	entries, err := os.ReadDir(filepath.Join(o.dir, outputDir))
	if err != nil {
		return err
	}
	return o.j.view(func(t *txn) error {
		for _, e := range entries {
			name, is := strings.CutSuffix(e.Name(), ".out")
			id, err := frames.ParseID[frames.BindingID](name)
			if !is || err != nil {
				continue // not ours to judge
			}
			if _, ok := t.binding(id); !ok && t.err == nil {
				if err := o.removeOutput([]frames.BindingID{id}); err != nil {
					return err
				}
			}
		}
		return nil
	})
}
