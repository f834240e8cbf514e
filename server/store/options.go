package store

import (
	"crypto/rand"
	"io"
	"log/slog"
	"math"
	"time"

	"coordinator/frames"
	"coordinator/internal/clock"
)

// Options configure a store. The zero value is useful.
type Options struct {
	// FS holds the log. Nil is the operating system's.
	FS FS
	// SegmentBytes is the size of a log segment, header and index included. Zero means
	// 64 MiB; less than 4 KiB is raised to it, and more than 256 MiB lowered.
	SegmentBytes int64
	// CheckpointOps begins a checkpoint after this many row changes. Zero means 262,144.
	CheckpointOps int
	// CheckpointBytes begins one after this many bytes of changed rows. Zero means 128 MiB.
	CheckpointBytes uint64
	// CheckpointEvery begins one at the next commit this long after the last. Zero means 10 s.
	CheckpointEvery time.Duration
	// CheckpointKeys bounds the keys of one checkpoint transaction. Zero means 4,096.
	CheckpointKeys int
	// EventBytes is how many bytes of log to keep behind the checkpoint for replays, rounded
	// up to whole segments; SetEventBytes replaces it. Zero keeps everything.
	EventBytes uint64
	// FreeBytes is what may still be written on the file system of the log. Nil means that
	// there is always room.
	FreeBytes func() uint64
	// ReserveBytes of that are not for segments made ahead: while less is left, new segments
	// are small, so that the last bytes go to records (protocol.md §8 [D-41]). While little
	// more is left, a checkpoint begins at a quarter of it, if that is less than
	// CheckpointBytes: it needs room as well.
	ReserveBytes uint64
	// Clock times checkpoints. Nil is the machine's.
	Clock clock.Clock
	// Rand salts log segments. Nil is the operating system's.
	Rand io.Reader
	// Logger gets a line per checkpoint that had to be waited for. Nil discards.
	Logger *slog.Logger
	// Progress gets lines while Open works. Nil discards.
	Progress func(string)
	// Advance is told often how far a step has come while a store is opened, checked, compacted or
	// migrated. It must not wait. Nil is ignored.
	Advance func(Advance)
	// Working is called often while Open reads and applies: proof that it goes on. It must
	// not wait. Nil is ignored.
	Working func()
	// PageCheck checks the pages of state.db after an unclean stop, and always while the file
	// has no more than PageCheckBytes, before this process maps
	// the file: a damaged page can kill the process that reads it, so the caller runs
	// CheckFile in a child. Nil skips the check.
	PageCheck func(path string) error
	// PageCheckBytes is the size up to which checking costs less than anyone would notice.
	// Zero means 64 MiB.
	PageCheckBytes int64
	// Manual starts no goroutine: the writer drives checkpoints with CheckpointStep, and a
	// segment is prepared when it is needed. For simulation.
	Manual bool
	// UnsafeNoSync leaves state.db to the page cache. For tests whose machine does not crash.
	UnsafeNoSync bool

	upgrades []upgrade // nil: the program's
}

const (
	defaultSegmentBytes    = 64 << 20
	maxSegmentBytes        = 256 << 20
	defaultCheckpointOps   = 256 << 10
	defaultCheckpointBytes = 128 << 20
	defaultCheckpointEvery = 10 * time.Second
	defaultCheckpointKeys  = 4096
	defaultPageCheckBytes  = 64 << 20

	// checkpointTxBytes bounds the bytes of one checkpoint transaction.
	checkpointTxBytes = 4 << 20
	// behindFactor times a checkpoint's trigger is where the writer waits for it.
	behindFactor = 3
	// scarceCheckpoints is for how many checkpoints there must be room beside the reserve, or
	// they are made small.
	scarceCheckpoints = 4
	// scarceSegmentBytes is the size of a segment made while the reserve is reached.
	scarceSegmentBytes = 1 << 20
)

func (o Options) withDefaults() Options {
	if o.FS == nil {
		o.FS = osFS{}
	}
	if o.SegmentBytes == 0 {
		o.SegmentBytes = defaultSegmentBytes
	}
	o.SegmentBytes = roundSector(min(max(o.SegmentBytes, minSegmentSize), maxSegmentBytes))
	if o.CheckpointOps == 0 {
		o.CheckpointOps = defaultCheckpointOps
	}
	if o.CheckpointBytes == 0 {
		o.CheckpointBytes = defaultCheckpointBytes
	}
	if o.CheckpointEvery == 0 {
		o.CheckpointEvery = defaultCheckpointEvery
	}
	if o.CheckpointKeys == 0 {
		o.CheckpointKeys = defaultCheckpointKeys
	}
	if o.PageCheckBytes == 0 {
		o.PageCheckBytes = defaultPageCheckBytes
	}
	if o.Clock == nil {
		o.Clock = clock.System()
	}
	if o.Rand == nil {
		o.Rand = rand.Reader
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	if o.Advance == nil {
		o.Advance = func(Advance) {}
	}
	if o.Working == nil {
		o.Working = func() {}
	}
	if o.FreeBytes == nil {
		o.FreeBytes = func() uint64 { return math.MaxUint64 }
	}
	if o.upgrades == nil {
		o.upgrades = upgrades
	}
	return o
}

// Genesis is what a new store begins with: commit 1.
type Genesis struct {
	CoordinatorID frames.CoordinatorID
	// Incarnation tells this store from copies of it that go on by themselves. Zero leaves it
	// without one.
	Incarnation frames.IncarnationID
	// Rows are put without an event, at sequence 0.
	Rows      []Row
	CreatedAt time.Time
}

// State is a copy of what the store knows of itself after a commit.
type State struct {
	CoordinatorID frames.CoordinatorID
	CreatedAt     time.Time // whole seconds
	// Incarnation is the store's own, that of Genesis or Renew; it is no activation's.
	Incarnation frames.IncarnationID
	// Epoch, Activation and TokenSHA256 are the last that Install recorded; zero before.
	Epoch       frames.AuthorityEpoch
	Activation  frames.ActivationSequence
	TokenSHA256 [32]byte
	// Head is the newest event sequence, hidden ones included.
	Head frames.EventCut
	// Commit is the number of the newest commit.
	Commit uint64
	// Bases are the newest activations, oldest first, at most frames.MaxActivationBases
	// (protocol.md §4 [D-26]). Shared; not to be changed.
	Bases []frames.ActivationBase
	// AdminHead is the sequence of the newest ADMIN row (protocol.md §6 [D-12]): cuts from it
	// on have that row, earlier ones do not. It stays when its events are trimmed.
	AdminHead frames.EventCut
	// Counts are rows per kind. Shared; not to be changed.
	Counts map[frames.ObjectKind]uint64
}

// An Event is a committed event with what its visibility depends on.
type Event struct {
	frames.ReplayEvent
	// Principal is the originating principal when the object is an OPERATION.
	Principal frames.KeyID
	// Class is the kind of the object, with ClassRemoved when it is removed.
	Class frames.ObjectKind
}

// A Silent is a committed change without an event: an ADMIN row, a removal, or a row of which
// only the annex is new.
type Silent struct {
	Ref     frames.ObjectRef
	Seq     frames.EventSequence // head when it changed
	Removed bool
}

// A Batch is one commit as its readers see it. Events ascend; hidden sequences between
// First and Last have none.
type Batch struct {
	Commit uint64
	Time   time.Time
	// First and Last are the sequences this commit consumed; First > Last when none.
	First, Last frames.EventSequence
	Events      []Event
	Silent      []Silent
	// Internal are the internal rows that changed, in order.
	Internal []Internal
}
