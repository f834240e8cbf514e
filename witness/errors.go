package witness

import (
	"errors"
	"fmt"

	"coordinator/frames"
	"coordinator/handshake/link"
)

// Causes that callers match.
var (
	// ErrFailed says that a grant could not be written, so that what is on disk is unknown:
	// the witness answers nothing more and the process must stop.
	ErrFailed = errors.New("the witness state could not be written")
	// ErrClosed says that the witness or the client was closed.
	ErrClosed = errors.New("closed")
	// ErrImpostor says that the other side is not the pinned witness, or that it signed
	// something that the pinned witness would not sign.
	ErrImpostor = link.ErrImpostor
)

func impostor(format string, args ...any) error {
	return &link.ImpostorError{Peer: "witness", Cause: fmt.Errorf(format, args...)}
}

// A RefusedError is the witness's own answer no. Any other error of an [Authority] means
// that there is no answer: the request may or may not have been carried out.
type RefusedError struct {
	Code    frames.Code
	Message string // diagnostic only
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("witness refused: %v: %s", e.Code, e.Message)
}

func refuse(code frames.Code, format string, args ...any) *RefusedError {
	return &RefusedError{Code: code, Message: fmt.Sprintf(format, args...)}
}

// A CorruptError says that the witness's file is damaged. Nothing was changed and no fresh
// file takes its place: a witness that forgot its epochs would grant them again.
type CorruptError struct{ File, Problem string }

func (e *CorruptError) Error() string {
	return fmt.Sprintf("%s is damaged: %s; nothing was changed. Restore the newest copy of it only if no later "+
		"activation was granted since that copy; coordinators refuse a witness that went back", e.File, e.Problem)
}

// A MissingError says that a witness directory has no state file.
type MissingError struct{ File string }

func (e *MissingError) Error() string {
	return fmt.Sprintf("%s does not exist; a new witness is made by init, a lost file is never replaced by an empty one", e.File)
}

// A SchemaError refuses a file of another schema version, which is left untouched.
type SchemaError struct {
	File       string
	Have, Want uint32
}

func (e *SchemaError) Error() string {
	if e.Have < e.Want {
		return fmt.Sprintf("%s has schema %d, this program works with %d; start the witness once, which migrates it", e.File, e.Have, e.Want)
	}
	return fmt.Sprintf("%s has schema %d, this program knows %d; run the program version that wrote it", e.File, e.Have, e.Want)
}

// An IdentityError says that the file belongs to another witness id than the one configured.
type IdentityError struct {
	File       string
	Have, Want frames.WitnessID
}

func (e *IdentityError) Error() string {
	return fmt.Sprintf("%s belongs to witness %x, the configuration names %x; put the matching witness_id or file there", e.File, e.Have[:], e.Want[:])
}

// A PlacementError refuses a witness directory that lies inside, above or on the same file
// as a coordinator's: one disk image or backup would then carry both, and a restored copy
// could bring its own witness with it.
type PlacementError struct{ Dir, Coordinator, Relation string }

func (e *PlacementError) Error() string {
	return fmt.Sprintf("witness directory %s %s the coordinator's %s; give the witness a directory of its own", e.Dir, e.Relation, e.Coordinator)
}
