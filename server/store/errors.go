package store

import (
	"errors"
	"fmt"
)

// Causes that callers match.
var (
	// ErrOutcomeUnknown: a write or sync of this commit failed. The commit may or may not be
	// in the log; only recovery decides. The process stops and acknowledges nothing.
	ErrOutcomeUnknown = errors.New("outcome of the commit is unknown")
	// ErrFailed: an earlier failure has ended this store. Nothing was written. Open it anew.
	ErrFailed = errors.New("store has failed and takes no more commits")
	// ErrClosed: the store or the cut is closed.
	ErrClosed = errors.New("store is closed")
	// ErrNotLoaded: the object is neither in memory nor prefetched.
	ErrNotLoaded = errors.New("object was not prefetched")
	// ErrExists: Create found a store.
	ErrExists = errors.New("a store exists already")
	// ErrNoStore: Open found neither log nor state.db.
	ErrNoStore = errors.New("no store here")
	// ErrInUse: another process has state.db open.
	ErrInUse = errors.New("state.db is open in another process")
	// ErrBeyondHead: a span of events ends behind the committed head or before it begins.
	ErrBeyondHead = errors.New("the span is not committed")
	// ErrTooLarge: the transaction does not fit into one log record. Nothing was written.
	ErrTooLarge = errors.New("transaction is larger than a log record may be")
)

const mend = "stop every coordinator of this store, restore log/ and state.db together from one backup, and start again"

// A CorruptError reports bytes that no crash of ours leaves behind. Nothing was changed.
type CorruptError struct {
	File    string
	Offset  int64 // byte in File, or -1 when the fault has no place
	Problem string
	Err     error // what lies below, or nil
}

func (e *CorruptError) Error() string {
	at := ""
	if e.Offset >= 0 {
		at = fmt.Sprintf(" at offset %d", e.Offset)
	}
	below := ""
	if e.Err != nil {
		below = ": " + e.Err.Error()
	}
	return fmt.Sprintf("store is damaged: %s%s: %s%s; %s", e.File, at, e.Problem, below, mend)
}

func (e *CorruptError) Unwrap() error { return e.Err }

func corrupt(file string, off int64, format string, args ...any) *CorruptError {
	return &CorruptError{File: file, Offset: off, Problem: fmt.Sprintf(format, args...)}
}

// A SchemaError reports a file of a newer version, or of an older one to whoever does not
// migrate. It was not touched.
type SchemaError struct {
	File string
	Have uint32 // the version of the file
	Want uint32 // the newest version that this program reads
}

func (e *SchemaError) Error() string {
	if e.Have < e.Want {
		return fmt.Sprintf("store: %s has schema %d and this program works with %d; start the coordinator once, which migrates it", e.File, e.Have, e.Want)
	}
	return fmt.Sprintf("store: %s has schema %d and this program reads up to %d; it was left untouched; start the newer coordinator again, or restore a backup of schema %d",
		e.File, e.Have, e.Want, e.Want)
}

// An IOError is an operation on a store file that the operating system refused.
type IOError struct {
	Op   string // "write", "sync", …
	File string
	Err  error
}

func (e *IOError) Error() string { return fmt.Sprintf("%s %s: %v", e.Op, e.File, e.Err) }
func (e *IOError) Unwrap() error { return e.Err }

// Writes reports that it was to change something. A store that meets such an error while it
// is open has ended (protocol.md §8 [D-41]).
func (e *IOError) Writes() bool {
	switch e.Op {
	case "create", "write", "sync", "remove", "rename", "mkdir":
		return true
	}
	return false
}

func ioError(op, file string, err error) error {
	if err == nil {
		return nil
	}
	return &IOError{Op: op, File: file, Err: err}
}

// A RetentionError answers a read of events that are no longer in the log.
type RetentionError struct {
	First uint64 // oldest event sequence still in the log
}

func (e *RetentionError) Error() string {
	return fmt.Sprintf("store: events before %d are no longer retained", e.First)
}

// failedError is what a store answers after it has failed. It matches ErrFailed and
// nothing of its cause: the outcome of a refused commit is known.
type failedError struct{ cause error }

func (e *failedError) Error() string { return fmt.Sprintf("store: %v (%v)", ErrFailed, e.cause) }
func (e *failedError) Unwrap() error { return ErrFailed }
